//! P1, P5 and P9: all the receives that a peer has, and what is held beyond the peer's end.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, QUIET, ensure, fail, skipped};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crosstie::base::ids::RailGeneration;
use crosstie::fabric::{
    CloseError, FenceKind, Head, Op, OpError, OpId, OpKind, PeerLife, PostError, Posted, Provider,
    RecvSlot, Source,
};

/// Receives that are tried at most; `doc/vendor.md` has the number.
const TRIED_MAX: usize = 1024;
/// Longest payload of such a message.
const BYTES_MAX: usize = 32;
/// Where held payloads are copied to.
const COPIED_AT: usize = ARENA_BYTES / 2;
/// Ids of such messages start here, beyond those of all other ops.
const ID_FIRST: u64 = 0xc0df_0000;

const _: () = assert!(TRIED_MAX * BYTES_MAX <= COPIED_AT);

/// Messages from A that B holds, all of them at a time. Each has a number, which its head begins
/// with.
pub struct Stock {
    /// Whether messages that come are taken for such.
    pub is_open: bool,
    posted: usize,
    ended: usize,
    held: [Option<RecvSlot>; TRIED_MAX],
    came: usize,
    /// What the bytes of a message depend on, beside its number.
    seeds: [u8; TRIED_MAX],
    bytes: usize,
    /// Which promise the names of held messages are about: P5, or that of a peer's end.
    promise: u8,
}

impl Stock {
    pub const EMPTY: Stock = Stock {
        is_open: false,
        posted: 0,
        ended: 0,
        held: [None; TRIED_MAX],
        came: 0,
        seeds: [0; TRIED_MAX],
        bytes: 0,
        promise: 5,
    };

    /// Whether an id is that of such a message.
    pub const fn has_posted(id: OpId) -> bool {
        id.0 >= ID_FIRST
    }

    /// What grows as long as the rail gets on: as many rounds as one message may take are waited
    /// for each of it, since a short send queue makes many of many receives.
    const fn progress(&self) -> [usize; 3] {
        [self.posted, self.came, self.ended]
    }

    pub fn end(&mut self, id: OpId, result: Result<(), OpError>) -> Check {
        let known = id.0 - ID_FIRST < self.posted as u64;
        ensure(known, 6, "a completion names an op that was never posted")?;
        ensure(result.is_ok(), 5, "a good send failed")?;
        self.ended += 1;
        ensure(self.ended <= self.posted, 2, "an op completed twice")
    }

    pub fn arrive(&mut self, slot: RecvSlot, head: &Head, length: u32) -> Check {
        let number = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let known = number < self.posted && length as usize == self.bytes;
        ensure(known, 5, "a message came that was not sent so")?;
        let is_new = self.held[number].replace(slot).is_none();
        ensure(is_new, 2, "a send arrived twice")?;
        let named = self.held[..self.posted].iter().filter(|held| **held == Some(slot)).count();
        ensure(named == 1, self.promise, "two messages that are held have one name")?;
        self.came += 1;
        Ok(())
    }
}

/// How many receives are tried.
fn tried<R: Rig>(bench: &Bench<R>) -> usize {
    (bench.caps.recv_slots as usize).min(TRIED_MAX)
}

fn byte(number: usize, seed: u8) -> u8 {
    (number * 7 + number / 256) as u8 ^ seed
}

/// Posts one message of the stock; says whether it was taken.
fn post<R: Rig>(bench: &mut Bench<R>, seed: u8) -> Check<bool> {
    let (number, bytes) = (bench.stock.posted, bench.stock.bytes);
    bench.fill(Side::A, number * BYTES_MAX, bytes, byte(number, seed));
    let payload = bench.local(Side::A, number * BYTES_MAX, bytes);
    let mut head = [seed; 32];
    head[..4].copy_from_slice(&(number as u32).to_ne_bytes());
    let (peer, now) = (bench.rig.peer(Side::A), bench.rig.now());
    let kind = OpKind::Send { head, payload };
    let op = Op { id: OpId(ID_FIRST + number as u64), peer, kind };
    match bench.rig.provider(Side::A).post(&op, now) {
        Ok(posted) => {
            bench.stock.posted += 1;
            bench.stock.ended += usize::from(posted == Posted::Done);
            bench.stock.seeds[number] = seed;
            Ok(true)
        }
        Err(PostError::Again) => Ok(false),
        Err(_) => fail(1, "an op that Caps allows was refused for good"),
    }
}

/// Sends so many messages more and waits for them all, none of which is released.
fn stock_up<R: Rig>(
    bench: &mut Bench<R>,
    count: usize,
    seed: u8,
    (promise, why): (u8, &'static str),
) -> Check {
    bench.stock.is_open = true;
    bench.stock.promise = promise;
    bench.stock.bytes = bench.caps.send_payload_max.as_usize().min(BYTES_MAX);
    let whole = bench.stock.posted + count;
    let (mut seen, mut rounds) = (bench.stock.progress(), 0);
    while bench.stock.came < whole || bench.stock.ended < whole {
        if bench.stock.posted < whole && post(bench, seed)? {
            continue;
        }
        let now = bench.stock.progress();
        if now != seen {
            (seen, rounds) = (now, 0);
        }
        ensure(bench.rig.is_patient(rounds), promise, why)?;
        bench.round()?;
        rounds += 1;
    }
    Ok(())
}

/// Each message that is held has the bytes that were sent.
fn is_whole<R: Rig>(bench: &mut Bench<R>) -> bool {
    let (peer, bytes) = (bench.rig.peer(Side::B), bench.stock.bytes);
    (0..bench.stock.posted).all(|number| {
        let Some(slot) = bench.stock.held[number] else { return true };
        let to = bench.local(Side::B, COPIED_AT, bytes);
        bench.fill(Side::B, COPIED_AT, bytes, !byte(number, bench.stock.seeds[number]));
        bench.rig.provider(Side::B).received_copy(peer, slot, 0, to);
        bench.holds(Side::B, COPIED_AT, bytes, byte(number, bench.stock.seeds[number]))
    })
}

/// Gives all back, the oldest first, and begins anew.
fn release_all<R: Rig>(bench: &mut Bench<R>) {
    let peer = bench.rig.peer(Side::B);
    for number in 0..bench.stock.posted {
        if let Some(slot) = bench.stock.held[number].take() {
            bench.rig.provider(Side::B).received_release(peer, slot);
        }
    }
    bench.stock = Stock::EMPTY;
}

const TOO_FEW: (u8, &str) = (5, "a peer has fewer receives than its caps promise");

pub fn receives_are_as_many_as_promised<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let count = tried(&bench);
    for seed in 1..=2 {
        stock_up(&mut bench, count, seed, TOO_FEW)?;
        ensure(is_whole(&mut bench), 5, "a message that is held is not as it was sent")?;
        release_all(&mut bench);
    }
    PASSED
}

/// Writes with words that are tried while all receives are taken, and what each moves.
const WORDS: usize = 48;
const WORD_BYTES: usize = 4096;

const _: () = assert!(WORDS * WORD_BYTES <= COPIED_AT);

pub fn refused_write_with_word_leaves_no_bytes<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.immediate {
        return skipped("the rail has no immediates");
    }
    let count = tried(&bench);
    stock_up(&mut bench, count, 1, TOO_FEW)?;
    let length = bench.cut(WORD_BYTES);
    bench.fill(Side::A, 0, WORDS * WORD_BYTES, 0xa5);
    let mut taken = [true; WORDS];
    for (n, taken) in taken.iter_mut().enumerate() {
        let at = n * WORD_BYTES;
        let source = Source::Span(bench.local(Side::A, at, length));
        let (target, immediate) = (bench.remote(Side::B, at), Some(n as u32));
        let id = bench.post(Side::A, OpKind::Write { source, target, immediate })?;
        *taken = match bench.fate(id) {
            Fate::Refused(PostError::Unsupported) => {
                return fail(1, "an op that Caps allows was refused for good");
            }
            Fate::Refused(PostError::Again | PostError::PeerDown) => false,
            Fate::Pending | Fate::Ended(_) => true,
        };
    }
    // while messages are held, and when room is made for words
    for is_held in [true, false] {
        bench.rounds(QUIET)?;
        for n in (0..WORDS).filter(|n| !taken[*n]) {
            let why = "a write with an immediate was refused, and had moved bytes";
            ensure(bench.holds(Side::B, n * WORD_BYTES, length, 0), 1, why)?;
        }
        if is_held {
            release_all(&mut bench);
            bench.finish(2)?;
        }
    }
    // of those that were taken the rail may have lost some: more were posted than it has receives
    for (n, taken) in taken.into_iter().enumerate() {
        let came = bench.arrivals(Side::B).any(|arrival| arrival == Arrival::Word(n as u32));
        ensure(taken || !came, 1, "an immediate came whose write was refused")?;
        let whole = !came || bench.holds(Side::B, n * WORD_BYTES, length, 0xa5);
        ensure(whole, 5, "an immediate came before its data")?;
    }
    PASSED
}

/// Closes a peer of which nothing is in flight, as soon as the rail has noticed that.
fn close_patiently<R: Rig>(bench: &mut Bench<R>, side: Side) -> Check {
    let peer = bench.rig.peer(side);
    let mut rounds = 0;
    while let Err(error) = bench.rig.provider(side).peer_close(peer) {
        ensure(error == CloseError::Busy, 9, "a peer that is open could not be closed")?;
        ensure(bench.rig.is_patient(rounds), 9, "a peer without ops could not be closed")?;
        bench.round()?;
        rounds += 1;
    }
    Ok(())
}

pub fn close_gives_held_receives_back<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let count = tried(&bench);
    let mut why = TOO_FEW;
    for seed in 1..=3 {
        stock_up(&mut bench, count, seed, why)?;
        ensure(is_whole(&mut bench), 9, "a message of a peer that was opened again is another")?;
        close_patiently(&mut bench, Side::B)?;
        bench.rounds(QUIET)?;
        close_patiently(&mut bench, Side::A)?;
        if !bench.rig.rejoin() {
            return skipped("the rig joins no peers a second time");
        }
        bench.stock = Stock::EMPTY;
        why = (9, "a receive that was held when its peer was closed is missing");
    }
    PASSED
}

const GENERATION: RailGeneration = RailGeneration(1);
/// Messages that are held while their peer is forgotten, where there are more than twice as many
/// receives.
const KEPT_MAX: usize = 8;
const CHANGED: &str = "a message that was held when its peer was detached is gone or changed";

pub fn held_messages_outlive_a_detach<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    match bench.caps.fence {
        FenceKind::Local | FenceKind::WriterDrained => {}
        FenceKind::Endpoint | FenceKind::None => return skipped("the rail has no such fence"),
    }
    let count = tried(&bench);
    let kept = (count / 2).clamp(1, KEPT_MAX);
    stock_up(&mut bench, kept, 1, TOO_FEW)?;
    let fence = bench.fence(Side::B, GENERATION)?;
    bench.finish(10)?;
    ensure(bench.succeeded(fence), 1, "a fence that Caps allows was refused for good")?;
    bench.rounds(QUIET)?;
    let peer = bench.rig.peer(Side::B);
    match bench.rig.provider(Side::B).peer_detach(peer) {
        Ok(()) => {}
        Err(CloseError::Busy) => return skipped("the rail detaches no peers that hold messages"),
        Err(CloseError::Stale) => return fail(9, "a peer that is open could not be detached"),
    }
    ensure(is_whole(&mut bench), 9, CHANGED)?;
    close_patiently(&mut bench, Side::A)?;
    if !bench.rig.rejoin() {
        release_all(&mut bench);
        return PASSED;
    }
    ensure(is_whole(&mut bench), 9, CHANGED)?;
    let rest = (9, "a peer that was opened again has too few receives beside those held");
    stock_up(&mut bench, count - kept, 2, rest)?;
    ensure(is_whole(&mut bench), 9, CHANGED)?;
    release_all(&mut bench);
    let all = (9, "a receive is missing that was held when its peer was detached");
    stock_up(&mut bench, count, 3, all)?;
    ensure(is_whole(&mut bench), 9, "a message of a peer that was opened again is another")?;
    release_all(&mut bench);
    PASSED
}
