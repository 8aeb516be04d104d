//! When a poll looks beside the ports, at sockets: each look is a system call, and while a port
//! carries the connections hardly anything comes there.

use crate::base::units::{Instant, Span};

/// Polls of ports in use, and the time, between two looks at quiet sockets, whichever is over
/// first: so who polls seldom looks each time.
const POLLS: u32 = 32;
const EVERY: Span = Span::micros(50);

/// The looks of one rail.
#[derive(Copy, Clone, Debug)]
pub(super) struct Looks {
    /// Polls since the last one, and when that was.
    passed: u32,
    last: Instant,
}

impl Looks {
    /// The first poll looks.
    pub const FIRST: Looks = Looks { passed: POLLS, last: Instant(0) };

    /// Whether this poll looks. `must`: something is known to be there, or no port is in use.
    #[inline]
    pub fn is_due(&mut self, must: bool, now: Instant) -> bool {
        self.passed = self.passed.saturating_add(1);
        let is_due = must || self.passed >= POLLS || now.since(self.last) >= EVERY;
        if is_due {
            (self.passed, self.last) = (0, now);
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
        assert_eq!(seen(&mut looks, true, at), 96, "busy ones each time");
        assert!(!looks.is_due(false, Instant(at.0 + 49_999)));
        assert!(looks.is_due(false, Instant(at.0 + 50_000)), "by time");
        assert!(!looks.is_due(false, Instant(at.0 + 50_001)));
        looks.hasten();
        assert!(looks.is_due(false, Instant(at.0 + 50_002)), "before its user sleeps");
        assert_eq!(seen(&mut looks, false, Instant(0)), 3, "without the time");
    }
}
