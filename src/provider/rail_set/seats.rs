//! Which connections a port has a place for, and when the next queue pair of each is due.

use crate::base::units::{Instant, Span};
use std::vec::Vec;

/// How long a port that is down is left alone.
pub(super) const LOOK: Span = Span::millis(20);
/// How long after a queue pair came to nothing the next is prepared, doubled each time up to the
/// longest: the kernel, and the caller with it, may look for the peer's address for a second.
const PAUSE: Span = Span::millis(100);
const PAUSE_DOUBLED_MAX: u8 = 7;
/// Longest wait behind a queue pair that payload was lost on: each costs its users the time that it
/// stands still before it is given up.
const PAUSE_LOST_MAX: Span = Span::millis(60_000);
/// Losses longer ago than this count no more.
const LOSSES_KEPT: Span = Span::millis(600_000);
/// How long a peer's port is looked for before the queue pair is tried again, doubled each time,
/// and how often: hosts of one subnet answer within some hundred microseconds.
const ANSWER: Span = Span::millis(1);
const ANSWERS_MAX: u8 = 5;
/// No moment.
const NEVER: Instant = Instant(u64::MAX);

/// Why a queue pair is prepared later.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Later {
    /// Its port is down.
    Down,
    /// The last one could not be had or joined, or had carried nothing.
    Missed,
    /// The last one was joined, and payload vanished on it, as it does where short packets pass and
    /// long ones do not; what there was on its way had stood still for so long.
    Lost(Span),
}

/// What is to be done with a queue pair that had to wait.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Due {
    /// To prepare the next one.
    Prepare,
    /// To join the last one to the peer's end of this generation of the lane, which has come.
    Join(u32),
}

/// The place of one connection on a port.
#[derive(Copy, Clone)]
struct Seat {
    /// Which of its lanes is on this port.
    lane: u8,
    /// Times in a row that its queue pair could not be had or joined, or had carried nothing.
    misses: u8,
    /// Times that payload vanished since it was carried enough, and when the last was.
    losses: u8,
    lost_at: Instant,
    /// Whether its queue pair was prepared, and not joined since.
    is_prepared: bool,
    /// Whether the port refused to prepare the last one.
    is_refused: bool,
    /// Times that the last one could not be joined because nobody answered.
    unanswered: u8,
    /// When something is to be done with its queue pair, and what.
    due: Instant,
    what: Due,
}

impl Seat {
    const FREE: Seat = Seat {
        lane: 0,
        misses: 0,
        losses: 0,
        lost_at: Instant(0),
        is_prepared: false,
        is_refused: false,
        unanswered: 0,
        due: NEVER,
        what: Due::Prepare,
    };

    /// Its queue pair came to nothing: when the next is due.
    fn missed(&mut self) -> Span {
        self.misses = self.misses.saturating_add(1);
        Span(PAUSE.0 << self.misses.min(PAUSE_DOUBLED_MAX))
    }

    /// Payload vanished on it: likewise. Twice as long as it stood still, the first time.
    fn lost(&mut self, stood: Span, now: Instant) -> Span {
        if now.since(self.lost_at) >= LOSSES_KEPT {
            self.losses = 0;
        }
        self.lost_at = now;
        self.losses = self.losses.saturating_add(1);
        let stood = u128::from(stood.0.max(PAUSE.0)) << self.losses.min(16);
        Span(stood.min(PAUSE_LOST_MAX.0.into()) as u64)
    }
}

/// Those of one port, by connection.
pub(super) struct Seats {
    all: Vec<Seat>,
    /// How many of them have something due.
    waiting: u32,
    /// How many of them the port refused a queue pair.
    refused: u32,
    /// Nothing is due before; it may be earlier than what is.
    earliest: Instant,
}

impl Seats {
    /// Of so many connections.
    pub fn new(count: u32) -> Seats {
        let seat = Seat::FREE;
        Seats { all: std::vec![seat; count as usize], waiting: 0, refused: 0, earliest: NEVER }
    }

    /// Whether there is one of that number.
    #[inline]
    pub fn has(&self, number: usize) -> bool {
        number < self.all.len()
    }

    /// Which lane of a connection is on the port.
    #[inline]
    pub fn lane(&self, number: usize) -> u32 {
        self.all[number].lane.into()
    }

    /// Whether some queue pair is to be prepared or joined later.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// Whether one was refused, and not prepared since.
    pub fn is_refused(&self) -> bool {
        self.refused != 0
    }

    /// The queue pair of a lane was prepared: what was due was so of the one before.
    pub fn prepared(&mut self, number: usize, lane: u8) {
        self.admitted(number);
        self.nothing_due(number);
        let seat = &mut self.all[number];
        (seat.lane, seat.is_prepared, seat.unanswered) = (lane, true, 0);
    }

    /// It was joined.
    pub fn joined(&mut self, number: usize) {
        self.all[number].is_prepared = false;
    }

    /// Its queue pair has ended: whether nobody knows it but whoever was told of it, who waits to
    /// hear of another one. Asked once.
    pub fn was_prepared(&mut self, number: usize) -> bool {
        core::mem::take(&mut self.all[number].is_prepared)
    }

    /// The port refused to prepare it.
    pub fn was_refused(&mut self, number: usize) {
        let seat = &mut self.all[number];
        self.refused += u32::from(!core::mem::replace(&mut seat.is_refused, true));
    }

    fn admitted(&mut self, number: usize) {
        let seat = &mut self.all[number];
        self.refused -= u32::from(core::mem::take(&mut seat.is_refused));
    }

    /// The queue pair of a lane is to be prepared later.
    pub fn later(&mut self, number: usize, lane: u8, now: Instant, why: Later) {
        let seat = &mut self.all[number];
        let pause = match why {
            Later::Down => LOOK,
            Later::Missed => seat.missed(),
            Later::Lost(stood) => seat.lost(stood, now),
        };
        (seat.lane, seat.is_prepared) = (lane, false);
        self.wait(number, now.after(pause), Due::Prepare);
    }

    /// The queue pair that was prepared last is to be joined later, to the peer's end of this
    /// generation: nobody answers for that end yet. `false`: nobody has for too long.
    pub fn unanswered(&mut self, number: usize, now: Instant, generation: u32) -> bool {
        let seat = &mut self.all[number];
        if seat.unanswered == ANSWERS_MAX {
            return false;
        }
        let pause = Span(ANSWER.0 << seat.unanswered);
        seat.unanswered += 1;
        self.wait(number, now.after(pause), Due::Join(generation));
        true
    }

    fn wait(&mut self, number: usize, due: Instant, what: Due) {
        let seat = &mut self.all[number];
        self.waiting += u32::from(seat.due == NEVER);
        (seat.due, seat.what) = (due, what);
        self.earliest = self.earliest.min(due);
    }

    fn nothing_due(&mut self, number: usize) {
        let due = core::mem::replace(&mut self.all[number].due, NEVER);
        self.waiting -= u32::from(due != NEVER);
    }

    /// The next connection with whose queue pair something is to be done now. Each is named once.
    pub fn due(&mut self, now: Instant) -> Option<(usize, Due)> {
        if self.waiting == 0 || now < self.earliest {
            return None;
        }
        let number = self.all.iter().position(|seat| seat.due <= now);
        match number {
            Some(number) => self.nothing_due(number),
            None => self.earliest = self.all.iter().map(|seat| seat.due).min().unwrap_or(NEVER),
        }
        number.map(|number| (number, self.all[number].what))
    }

    /// The last queue pair has carried something; `enough`: so much that payload does not vanish.
    pub fn carried(&mut self, number: usize, enough: bool) {
        let seat = &mut self.all[number];
        seat.misses = 0;
        seat.losses = if enough { 0 } else { seat.losses };
    }

    /// The connection is gone.
    pub fn forget(&mut self, number: usize) {
        self.admitted(number);
        self.nothing_due(number);
        let seat = &mut self.all[number];
        (seat.misses, seat.losses) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pair_that_comes_to_nothing_waits_longer_each_time() {
        let mut seat = Seat::FREE;
        let pauses = Vec::from_iter((0..300).map(|_| seat.missed().0 / 1_000_000));
        assert_eq!(pauses[..8], [200, 400, 800, 1600, 3200, 6400, 12800, 12800]);
        assert!(pauses[8..].iter().all(|pause| *pause == 12800));
    }

    /// It was prepared at once, since it had stood for long: in silence. Everything stood still for
    /// 6 s of each 7, for ever.
    #[test]
    fn queue_pair_that_payload_vanishes_on_waits_longer_each_time_until_it_carries_enough() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let silent = Later::Lost(Span::millis(6250));
        let mut seats = Seats::new(1);
        let pauses = |seats: &mut Seats, start: u64, why| {
            Vec::from_iter((0..5).map(|n| {
                let start = at(start + 70 * n);
                seats.later(0, 1, start, why);
                let due = seats.all[0].due;
                assert_eq!(seats.due(due), Some((0, Due::Prepare)));
                due.since(start).0 / 1_000_000
            }))
        };
        assert_eq!(pauses(&mut seats, 1000, silent), [12_500, 25_000, 50_000, 60_000, 60_000]);
        seats.carried(0, false);
        assert_eq!(pauses(&mut seats, 1500, silent)[..2], [60_000, 60_000]);
        seats.carried(0, true);
        assert_eq!(pauses(&mut seats, 2000, silent)[..2], [12_500, 25_000]);
        // the last was long ago
        let quick = Later::Lost(Span::millis(500));
        assert_eq!(pauses(&mut seats, 4000, quick), [1000, 2000, 4000, 8000, 16_000]);
    }

    #[test]
    fn each_that_waits_is_named_once_when_it_is_due() {
        let at = |millis: u64| Instant(millis * 1_000_000);
        let mut seats = Seats::new(4);
        let named = |number| Some((number, Due::Prepare));
        assert_eq!(seats.due(at(1000)), None);
        seats.later(2, 1, at(0), Later::Missed); // due at 200
        seats.later(1, 1, at(0), Later::Down); // at 20
        seats.later(3, 1, at(10), Later::Down); // at 30
        assert!(seats.is_waiting());
        assert_eq!(seats.due(at(19)), None);
        assert_eq!((seats.due(at(20)), seats.due(at(20))), (named(1), None));
        seats.forget(3);
        assert_eq!((seats.due(at(199)), seats.is_waiting()), (None, true));
        seats.later(0, 1, at(150), Later::Down); // at 170
        assert_eq!((seats.due(at(169)), seats.due(at(170))), (None, named(0)));
        assert_eq!((seats.due(at(5000)), seats.due(at(5000))), (named(2), None));
        assert!(!seats.is_waiting());
        seats.later(2, 1, at(5000), Later::Missed); // at 5400: the second time in a row
        assert_eq!((seats.due(at(5399)), seats.due(at(5400))), (None, named(2)));
    }
    #[test]
    fn queue_pair_whose_peer_nobody_answers_for_is_looked_at_soon_and_not_for_long() {
        let at = |millis: u64| Instant(millis * 1_000_000);
        let mut seats = Seats::new(2);
        for _ in 0..2 {
            let mut now = 0;
            seats.prepared(1, 1);
            for pause in [1, 2, 4, 8, 16] {
                assert!(seats.unanswered(1, at(now), 7));
                assert_eq!(seats.due(at(now + pause - 1)), None);
                now += pause;
                assert_eq!(seats.due(at(now)), Some((1, Due::Join(7))));
            }
            assert!(!seats.unanswered(1, at(now), 7), "who is asked for the last time refuses");
            assert!(!seats.is_waiting());
        }
        // the next one is another
        seats.prepared(1, 1);
        assert!(seats.unanswered(1, at(0), 7));
        seats.prepared(1, 1);
        assert!(!seats.is_waiting());
        assert!(seats.unanswered(1, at(0), 8));
        seats.later(1, 1, at(0), Later::Down);
        assert_eq!((seats.due(at(19)), seats.due(at(20))), (None, Some((1, Due::Prepare))));
        assert!(!seats.is_waiting());
    }
}
