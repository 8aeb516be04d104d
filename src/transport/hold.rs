//! How long slots are held back: as long as messages keep coming as fast as they did.
#![forbid(unsafe_code)]

use super::limits::{HELD_GAP_MAX_US, HELD_GAPS, HELD_SPAN};
use super::records::Connection;
use crate::base::units::Instant;

/// A moment in microseconds that wrap; never 0, unless the moment is not known.
const fn micros(now: Instant) -> u32 {
    let us = (now.0 / 1000) as u32;
    if us == 0 && now.0 != 0 { 1 } else { us }
}

impl Connection {
    /// Whether nothing has come since slots are held back, for so long that they wait no more.
    pub const fn is_held_idle(&self, now: Instant) -> bool {
        let since_us = micros(now).wrapping_sub(self.held_since_us);
        self.holds
            && self.held_since_us != 0
            && self.held_at == self.eager_expected.0 as u16
            && since_us >= self.held_us()
    }

    /// How long slots are held back when nothing comes, in microseconds.
    const fn held_us(&self) -> u32 {
        let (least, gap) = ((HELD_SPAN.0 / 1000) as u32, self.gap_us as u32);
        let expected = gap * HELD_GAPS;
        if gap <= HELD_GAP_MAX_US && expected > least { expected } else { least }
    }

    /// Notes when messages came last: slots are held back from then on. `starts`: they were not
    /// before, so that the last message came some time ago, and the next one will come too soon
    /// after this to tell how fast they come.
    pub fn held_from(&mut self, now: Instant, starts: bool) {
        let (now_us, at) = (micros(now), self.eager_expected.0 as u16);
        let came = u32::from(at.wrapping_sub(self.held_at));
        let is_known = self.held_since_us != 0;
        if came == 0 && is_known {
            return;
        }
        if is_known && now_us != 0 && (starts || !self.held_late) {
            let gap = now_us.wrapping_sub(self.held_since_us) / came;
            // messages of a collective come by two and two: the longer time counts for some
            let faded = u32::from(self.gap_us) * 3 / 4;
            self.gap_us = gap.min(HELD_GAP_MAX_US + 1).max(faded) as u16;
        }
        // when it began is known by now, if the time was not then
        self.held_late = starts | ((came == 0) & self.held_late);
        (self.held_since_us, self.held_at) = (now_us, at);
    }

    /// Slots are held back from now on, as if a message had come; not as long as it was expected
    /// to, since none came: whoever waits for several slots would wait so long for each.
    pub const fn held_again(&mut self, now: Instant) {
        (self.held_since_us, self.held_late, self.gap_us) = (micros(now), true, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_US: u64 = 26;

    fn at(round: u64, us: u64) -> Instant {
        Instant((1_000_000 + round * ROUND_US + us) * 1000)
    }

    /// Who answers each message rings a doorbell, and posts the next receive then: slots that were
    /// held from there on counted as held since their message, which the next one seemed to follow
    /// at once. So they left after two messages, by a doorbell of their own, and that began anew.
    #[test]
    fn slots_wait_three_times_as_long_as_from_message_to_message() {
        let mut c = Connection::FREE;
        let mut waits = 0;
        for round in 0..20 {
            c.eager_expected = c.eager_expected.next();
            if c.holds {
                c.held_from(at(round, 0), false);
                waits += 1;
            }
            let answered = at(round, 21);
            if c.is_held_idle(answered) || waits == 7 {
                (c.holds, waits) = (false, 0); // they leave
                continue;
            }
            if !c.holds {
                c.holds = true;
                // in every second round without the time, as polls are that nothing waits for
                if round % 2 == 1 {
                    c.held_from(Instant(0), true);
                    c.held_from(answered, false);
                } else {
                    c.held_from(answered, true);
                }
            }
            let gap_us = u64::from(c.gap_us);
            assert!(round < 5 || (ROUND_US..2 * ROUND_US).contains(&gap_us), "{round}: {gap_us}");
        }
        c.holds = true;
        for round in 20..24 {
            c.eager_expected = c.eager_expected.next();
            c.held_from(at(round, 0), false);
        }
        assert_eq!(u64::from(c.gap_us), ROUND_US);
        assert!(!c.is_held_idle(at(23, 3 * ROUND_US - 1)));
        assert!(c.is_held_idle(at(23, 3 * ROUND_US)));
    }
}
