//! P5: payloads longer than those towards all peers, of which one peer has room for a few.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, ensure, fail, skipped};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crosstie::base::units::Bytes;
use crosstie::fabric::{LONG_SLOTS, OpKind, PostError, Provider, RecvSlot};

/// Longest payload that is tried: the arena has two of it, at different places.
const BYTES_MAX: usize = ARENA_BYTES / 2;
/// Where the payload of each message begins behind that of the one before it.
const STEP: usize = 4093;
/// Long messages that are held.
const HELD: usize = LONG_SLOTS as usize;
/// Short ones that come between them and are held with them, where there are receives for that.
const BETWEEN: usize = 8;
/// Short ones that come behind all of them, each released as it comes.
const BEHIND: usize = 12;
/// Long ones that come behind all of them, each released before the next.
const PAST: usize = 3;
const ROUNDS: usize = 3;
/// What a peer does that the promise is not kept for.
const LOST: &str = "a peer that has room for a long payload ended";

/// A message that is held. Its head has its number, which says where its bytes come from, and its
/// length.
#[derive(Copy, Clone)]
struct Held {
    slot: RecvSlot,
    number: usize,
    length: usize,
}

/// Messages from A to B, and some of B to A, which releases them at once.
struct Flow<'b, 'r, R: Rig> {
    bench: &'b mut Bench<'r, R>,
    /// Longest payload of each side, and the longest that is not long.
    longest: [usize; 2],
    short: usize,
    /// Messages that were posted, and of B's arrivals those that were looked at.
    posted: usize,
    seen: usize,
    /// The same of what B sends.
    answers: usize,
    answers_seen: usize,
    /// Whether B holds what comes.
    keeps: bool,
    held: [Option<Held>; HELD + BETWEEN],
}

/// The byte at each place of A's arena, which stays as it is.
fn painted(at: usize) -> u8 {
    ((at as u32).wrapping_mul(0x9e37_79b1) >> 23) as u8
}

const fn place(number: usize) -> usize {
    number * STEP % (ARENA_BYTES - BYTES_MAX)
}

fn is_painted<R: Rig>(bench: &mut Bench<R>, length: usize, number: usize) -> bool {
    (0..length).all(|n| bench.byte(Side::B, n) == painted(place(number) + n))
}

impl<R: Rig> Flow<'_, '_, R> {
    /// How long a message is: long ones are of three lengths, short ones of many.
    fn length(&self, number: usize, is_long: bool) -> usize {
        let longest = self.longest[Side::A as usize];
        match (is_long, number % 3) {
            (true, 0) => longest,
            (true, 1) => self.short + 1,
            (true, _) => self.short + (longest - self.short).div_ceil(2),
            (false, _) => number * 97 % (self.short.min(600) + 1),
        }
    }

    /// Posts as soon as there is room.
    fn post(&mut self, side: Side, number: usize, length: usize) -> Check {
        let mut head = [number as u8; 32];
        head[..4].copy_from_slice(&(number as u32).to_ne_bytes());
        head[4..8].copy_from_slice(&(length as u32).to_ne_bytes());
        for rounds in 0.. {
            let payload = self.bench.local(side, place(number), length);
            let id = self.bench.post(side, OpKind::Send { head, payload })?;
            match self.bench.fate(id) {
                Fate::Refused(PostError::Again) => self.bench.forget_last(),
                Fate::Refused(PostError::PeerDown) => return fail(5, LOST),
                Fate::Refused(PostError::Unsupported) => {
                    return fail(5, "a payload of the length that a peer has room for was refused");
                }
                Fate::Pending | Fate::Ended(_) => return Ok(()),
            }
            let why = "a payload that a peer has room for was never taken";
            ensure(self.bench.rig.is_patient(rounds), 5, why)?;
            self.turn()?;
        }
        unreachable!("rounds have no end")
    }

    fn send(&mut self, is_long: bool) -> Check {
        let number = self.posted;
        self.posted += 1;
        let length = self.length(number, is_long);
        self.post(Side::A, number, length)
    }

    /// B sends a long message, as far as A has room for such, and a short one.
    fn answer(&mut self) -> Check {
        for length in [self.longest[Side::B as usize], self.short.min(64)] {
            let number = self.answers;
            self.answers += 1;
            self.post(Side::B, number, length)?;
        }
        Ok(())
    }

    /// One round of polls. What has come is released before the next poll, or held.
    fn turn(&mut self) -> Check {
        self.bench.round()?;
        while let Some(arrival) = self.bench.arrival(Side::A, self.answers_seen) {
            let Arrival::Message { slot, .. } = arrival else { return fail(5, LOST) };
            self.answers_seen += 1;
            let peer = self.bench.rig.peer(Side::A);
            self.bench.rig.provider(Side::A).received_release(peer, slot);
        }
        while let Some(arrival) = self.bench.arrival(Side::B, self.seen) {
            let Arrival::Message { slot, head, length } = arrival else { return fail(5, LOST) };
            self.seen += 1;
            let number = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let is_sent = number < self.posted && head[4..8] == length.to_ne_bytes();
            ensure(is_sent, 5, "a message came that was not sent so")?;
            let held = Held { slot, number, length: length as usize };
            if self.keeps {
                let free = self.held.iter_mut().find(|place| place.is_none());
                *free.expect("as many places as messages that are held") = Some(held);
            } else {
                self.is_whole(held, "a payload beside those that are held arrived changed")?;
                self.release(held);
            }
        }
        Ok(())
    }

    /// Lets everything arrive.
    fn arrive(&mut self) -> Check {
        let mut rounds = 0;
        while self.seen < self.posted || self.answers_seen < self.answers || self.bench.is_pending()
        {
            let why = "a payload that a peer has room for never arrived";
            ensure(self.bench.rig.is_patient(rounds), 5, why)?;
            self.turn()?;
            rounds += 1;
        }
        ensure(!self.bench.has_failed(), 5, "a send that arrived failed")
    }

    fn is_whole(&mut self, held: Held, why: &'static str) -> Check {
        let Held { slot, number, length } = held;
        let (peer, to) = (self.bench.rig.peer(Side::B), self.bench.local(Side::B, 0, length));
        self.bench.fill(Side::B, 0, length, 0xee);
        self.bench.rig.provider(Side::B).received_copy(peer, slot, 0, to);
        ensure(is_painted(self.bench, length, number), 5, why)
    }

    fn all_are_whole(&mut self) -> Check {
        for n in 0..self.held.len() {
            if let Some(held) = self.held[n] {
                self.is_whole(held, "a long payload that is held is not as it was sent")?;
            }
        }
        Ok(())
    }

    fn release(&mut self, held: Held) {
        let peer = self.bench.rig.peer(Side::B);
        self.bench.rig.provider(Side::B).received_release(peer, held.slot);
    }

    /// Sends as many long ones as may be held, short ones between them as far as there is room, and
    /// holds all. In odd rounds each comes before the next is sent.
    fn hold(&mut self, count: usize, between: usize, round: usize) -> Check {
        self.keeps = true;
        for n in 0..count {
            self.send(true)?;
            if n < between {
                self.send(false)?;
            }
            if round % 2 == 1 {
                self.arrive()?;
            }
        }
        self.arrive()
    }

    /// What comes while they are held, is looked at and released at once.
    fn pass_by(&mut self, round: usize) -> Check {
        self.keeps = false;
        for n in 0..BEHIND {
            self.send(false)?;
            if n % 4 == round {
                self.answer()?;
            }
        }
        self.arrive()?;
        for n in 0..2 * PAST {
            self.send(true)?;
            // first each by itself, then all behind each other, short ones between them
            if n < PAST {
                self.arrive()?;
            } else {
                self.send(false)?;
            }
        }
        self.arrive()
    }
}

pub fn long_payloads_are_held_as_many_as_promised<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let longest = [Side::A, Side::B].map(|side| bench.payload_max(side).min(Bytes::of(BYTES_MAX)));
    let longest = longest.map(Bytes::as_usize);
    let short = bench.caps.send_payload_max.as_usize();
    if longest[Side::A as usize] <= short {
        return skipped("the rail has no longer payloads towards one peer than towards all");
    }
    let receives = bench.caps.recv_slots as usize;
    let count = HELD.min(receives);
    // one stays free, for what is released at once
    let between = BETWEEN.min((receives - count).saturating_sub(1));
    bench.release = false;
    for at in 0..ARENA_BYTES {
        bench.set_byte(Side::A, at, painted(at));
    }
    let (posted, seen, answers, answers_seen, keeps) = (0, 0, 0, 0, false);
    let held = [None; HELD + BETWEEN];
    let bench = &mut bench;
    let mut flow = Flow { bench, longest, short, posted, seen, answers, answers_seen, keeps, held };
    for round in 0..ROUNDS {
        flow.hold(count, between, round)?;
        flow.all_are_whole()?;
        if receives > count {
            flow.pass_by(round)?;
            flow.all_are_whole()?;
        }
        // every second two, which short ones are among; others in place of the long ones; then all,
        // the newest first
        let mut longs = 0;
        for n in (0..flow.held.len()).filter(|n| n / 2 % 2 == 1) {
            if let Some(held) = flow.held[n].take() {
                longs += usize::from(held.length > short);
                flow.release(held);
            }
        }
        flow.hold(longs, 0, round + 1)?;
        flow.all_are_whole()?;
        for n in (0..flow.held.len()).rev() {
            if let Some(held) = flow.held[n].take() {
                flow.release(held);
            }
        }
    }
    PASSED
}
