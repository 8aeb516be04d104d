//! When a poll looks beside the ports, at sockets: each look is a system call, and while a port
//! carries the connections hardly anything comes there.

use crate::base::units::{Instant, Span};

/// Polls of ports in use, and the time, between two looks at quiet sockets, whichever is over
/// first: so who polls seldom looks each time.
const POLLS: u32 = 32;
const EVERY: Span = Span::micros(50);
/// Sockets are quiet when nothing has moved for so long, and for so many looks: a connection that
/// has no port, or none that works, waits for answers from another host.
const QUIET: Span = Span::millis(1);
const QUIET_LOOKS: u32 = 256;

/// The looks of one rail.
#[derive(Copy, Clone, Debug)]
pub(super) struct Looks {
    /// Polls since the last one, and when that was.
    passed: u32,
    last: Instant,
    /// Looks since something moved, and when it did.
    fruitless: u32,
    moved: Instant,
}

impl Looks {
    /// The first poll looks.
    pub const FIRST: Looks =
        Looks { passed: POLLS, last: Instant(0), fruitless: QUIET_LOOKS, moved: Instant(0) };

    /// Whether this poll looks. `must`: something is known to be there, or no port is in use.
    #[inline]
    pub fn is_due(&mut self, must: bool, now: Instant) -> bool {
        if must {
            (self.fruitless, self.moved) = (0, now);
        }
        self.passed = self.passed.saturating_add(1);
        let is_awake = self.fruitless < QUIET_LOOKS || now.since(self.moved) < QUIET;
        let is_due = is_awake || self.passed >= POLLS || now.since(self.last) >= EVERY;
        if is_due {
            (self.passed, self.last) = (0, now);
            self.fruitless = self.fruitless.saturating_add(1);
        }
        is_due
    }

    /// The next poll looks: what a socket has keeps its user from sleeping.
    pub fn hasten(&mut self) {
        self.passed = POLLS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each poll looked, a system call for each round of whoever waits for a message of a port.
    #[test]
    fn quiet_sockets_are_looked_at_now_and_then() {
        let mut looks = Looks::FIRST;
        let at = Instant(1_000_000);
        let seen =
            |looks: &mut Looks, must, now| (0..96).filter(|_| looks.is_due(must, now)).count();
        assert!(looks.is_due(false, at));
        assert_eq!(seen(&mut looks, false, at), 3, "by polls");
        assert!(!looks.is_due(false, Instant(at.0 + 49_999)));
        assert!(looks.is_due(false, Instant(at.0 + 50_000)), "by time");
        assert!(!looks.is_due(false, Instant(at.0 + 50_001)));
        looks.hasten();
        assert!(looks.is_due(false, Instant(at.0 + 50_002)), "before its user sleeps");
    }

    /// Whoever waits for an answer over a socket got each 50 us later, beside a port of others.
    #[test]
    fn sockets_that_carry_something_are_looked_at_each_time() {
        let at = Instant(5_000_000);
        let count = |looks: &mut Looks, now| (0..960).filter(|_| looks.is_due(false, now)).count();
        for (later, seen) in [(999_999, 960), (1_000_000, 255 + 22)] {
            let mut looks = Looks::FIRST;
            assert!(looks.is_due(true, at));
            assert_eq!(count(&mut looks, Instant(at.0 + later)), seen, "{later} ns");
        }
        let mut looks = Looks::FIRST;
        assert!(looks.is_due(true, Instant(0)));
        assert_eq!(count(&mut looks, Instant(0)), 960, "without the time");
    }
}
