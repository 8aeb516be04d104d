//! How long slots are held back: as long as messages keep coming as fast as they did.

use crate::base::seq::Seq;
use crate::base::units::Instant;
use crate::transport::limits::{HELD_GAP_MAX_US, HELD_GAPS, HELD_SPAN};
use core::hash::Hash;

/// A moment in microseconds that wrap; never 0, unless the moment is not known.
const fn micros(now: Instant) -> u32 {
    let us = (now.0 / 1000) as u32;
    if us == 0 && now.0 != 0 { 1 } else { us }
}

/// Whether slots are held back until there are several, and how long.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Hold {
    /// Whether they are.
    pub on: bool,
    /// The last message had come some time before `since_us`.
    pub late: bool,
    /// The last bits of what had come then.
    pub at: u16,
    /// Microseconds from one message to the next, as of late; 0: not known.
    pub gap_us: u16,
    /// The last bits of the number in the stream behind the last start, or of one not long ago:
    /// what has come since is short.
    pub started_at: u16,
    /// Since when, in microseconds, which wrap; 0: the time is not known yet.
    pub since_us: u32,
}

impl Hold {
    /// None is held back.
    pub const NEW: Hold =
        Hold { on: false, late: false, at: 0, gap_us: 0, started_at: 0, since_us: 0 };

    /// Whether nothing has come since slots are held back, for so long that they wait no more.
    pub const fn is_idle(&self, expected: Seq, now: Instant) -> bool {
        let since_us = micros(now).wrapping_sub(self.since_us);
        self.on && self.since_us != 0 && self.at == expected.0 as u16 && since_us >= self.span_us()
    }

    /// How long slots are held back when nothing comes, in microseconds.
    const fn span_us(&self) -> u32 {
        let (least, gap) = ((HELD_SPAN.0 / 1000) as u32, self.gap_us as u32);
        let expected = gap * HELD_GAPS;
        if gap <= HELD_GAP_MAX_US && expected > least { expected } else { least }
    }

    /// Notes when messages came last: slots are held back from then on. `starts`: they were not
    /// before, so that the last message came some time ago, and the next one will come too soon
    /// after this to tell how fast they come.
    pub fn note(&mut self, expected: Seq, now: Instant, starts: bool) {
        let (now_us, at) = (micros(now), expected.0 as u16);
        let came = u32::from(at.wrapping_sub(self.at));
        let is_known = self.since_us != 0;
        if came == 0 && is_known {
            return;
        }
        if is_known && now_us != 0 && (starts || !self.late) {
            let gap = now_us.wrapping_sub(self.since_us) / came;
            // messages of a collective come by two and two: the longer time counts for some
            let faded = u32::from(self.gap_us) * 3 / 4;
            self.gap_us = gap.min(HELD_GAP_MAX_US + 1).max(faded) as u16;
        }
        // when it began is known by now, if the time was not then
        self.late = starts | ((came == 0) & self.late);
        (self.since_us, self.at) = (now_us, at);
    }

    /// Slots are held back from now on, as if a message had come; not as long as it was expected
    /// to, since none came: whoever waits for several slots would wait so long for each.
    pub const fn again(&mut self, now: Instant) {
        (self.since_us, self.late, self.gap_us) = (micros(now), true, 0);
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
        let (mut hold, mut expected) = (Hold::NEW, Seq(0));
        let mut waits = 0;
        for round in 0..20 {
            expected = expected.next();
            if hold.on {
                hold.note(expected, at(round, 0), false);
                waits += 1;
            }
            let answered = at(round, 21);
            if hold.is_idle(expected, answered) || waits == 7 {
                (hold.on, waits) = (false, 0); // they leave
                continue;
            }
            if !hold.on {
                hold.on = true;
                // in every second round without the time, as polls are that nothing waits for
                if round % 2 == 1 {
                    hold.note(expected, Instant(0), true);
                    hold.note(expected, answered, false);
                } else {
                    hold.note(expected, answered, true);
                }
            }
            let gap_us = u64::from(hold.gap_us);
            assert!(round < 5 || (ROUND_US..2 * ROUND_US).contains(&gap_us), "{round}: {gap_us}");
        }
        hold.on = true;
        for round in 20..24 {
            expected = expected.next();
            hold.note(expected, at(round, 0), false);
        }
        assert_eq!(u64::from(hold.gap_us), ROUND_US);
        assert!(!hold.is_idle(expected, at(23, 3 * ROUND_US - 1)));
        assert!(hold.is_idle(expected, at(23, 3 * ROUND_US)));
    }
}
