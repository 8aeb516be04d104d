//! What looks at one connection have found missing on its way ([`super::lost`] says when it is
//! lost).
#![forbid(unsafe_code)]

use crate::connect::Traffic;
use crate::diagnose::lost::Missing;

/// Looks in a row that find the same missing, behind the first.
const LOOKS: u8 = 8;
/// Looks that are left out while nothing is missing, at most.
pub(in crate::host) const PAUSE_MAX: u64 = 8;

/// What looks at one connection have found.
#[derive(Copy, Clone, Debug)]
pub(in crate::host) struct Suspect {
    pub(in crate::host) missing: Option<Missing>,
    /// What had come on that rail.
    pub(in crate::host) received: u64,
    /// Looks that count.
    pub(in crate::host) looks: u8,
    /// Rails that have failed.
    pub(in crate::host) turn: u8,
    pub(in crate::host) since_ms: u64,
    /// Looks between two questions.
    pub(in crate::host) pause: u64,
    /// When the next is due; 0: at once.
    pub(in crate::host) next_ms: u64,
    /// Until when the peer wants us to look.
    pub(in crate::host) wanted_ms: u64,
}

impl Suspect {
    /// Nothing is open.
    pub(in crate::host) const NONE: Suspect = Suspect {
        missing: None,
        received: 0,
        looks: 0,
        turn: 0,
        since_ms: 0,
        pause: 1,
        next_ms: 0,
        wanted_ms: 0,
    };

    /// The peer wants us to look, until it asks no more.
    pub(in crate::host) fn want(&mut self, now_ms: u64, look_ms: u64) {
        self.wanted_ms = now_ms + 2 * PAUSE_MAX * look_ms;
        self.pause = 1;
        self.next_ms = self.next_ms.min(now_ms + look_ms);
    }

    /// One look: what is missing, and what the rail has carried. Whether it is lost.
    pub(in crate::host) fn look(
        &mut self,
        missing: Option<Missing>,
        traffic: Traffic,
        now_ms: u64,
    ) -> bool {
        let Some(found) = missing else {
            let pause = if self.missing.is_some() { 1 } else { (2 * self.pause).min(PAUSE_MAX) };
            (self.missing, self.looks, self.pause) = (None, 0, pause);
            return false;
        };
        let quiet = found.answer.is_none() || self.received == traffic.received;
        if self.missing != missing || !quiet {
            (self.missing, self.received) = (missing, traffic.received);
            (self.looks, self.since_ms) = (0, now_ms);
        } else if traffic.delivered {
            self.looks += 1;
        }
        self.pause = 1;
        self.looks >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::lost::What;

    const QUIET: Traffic = Traffic { received: 5, delivered: true };

    fn missing(what: What) -> Option<Missing> {
        let answer = matches!(what, What::Stripes(_)).then_some(0);
        Some(Missing { what, mark: 0, lane: 0, answer })
    }

    /// At which look the rail fails, if at all.
    fn fails(look: impl Fn(u64) -> (Option<Missing>, Traffic)) -> Option<u64> {
        let mut suspect = Suspect::NONE;
        (0..100).find(|at| {
            let (missing, traffic) = look(*at);
            suspect.look(missing, traffic, *at)
        })
    }

    #[test]
    fn rail_fails_when_the_same_is_missing_for_as_many_looks() {
        let looks = u64::from(LOOKS);
        assert_eq!(fails(|_| (missing(What::Slot(3)), QUIET)), Some(looks));
        assert_eq!(fails(|at| (missing(What::Stream(at as u32 / 8)), QUIET)), None);
        assert_eq!(fails(|at| (missing(What::Slot(3)).filter(|_| at % 8 != 0), QUIET)), None);
    }

    #[test]
    fn what_has_not_reached_the_peers_host_is_not_lost() {
        let slow = Traffic { delivered: false, ..QUIET };
        assert_eq!(fails(|_| (missing(What::Stream(3)), slow)), None);
    }

    #[test]
    fn answer_may_stand_behind_what_comes_and_a_message_may_not() {
        let busy = |at| Traffic { received: at, ..QUIET };
        assert_eq!(fails(|at| (missing(What::Stripes(3)), busy(at))), None);
        assert_eq!(fails(|at| (missing(What::Stream(3)), busy(at))), Some(u64::from(LOOKS)));
    }
}
