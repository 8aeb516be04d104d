//! Which log lines a rail still owes: one for each loss, one for each return.
//!
//! A rail that flaps gets at most `LINES_MAX` lines in `WINDOW_MS`. After that, one line says how
//! often it was lost.
#![forbid(unsafe_code)]

/// In what time a rail has [`LINES_MAX`] lines at most.
const WINDOW_MS: u64 = 10_000;
/// How long it may take until the side band says that the peer has closed the connection, after its
/// rails have ended in good order.
const CLOSE_MS: u64 = 1000;
/// No moment, and later than all.
const NEVER_MS: u64 = u64::MAX;
/// Three losses and their returns.
const LINES_MAX: u8 = 6;

/// What was told of a rail, and what is still to be told.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::host) struct Told {
    /// Failures that were looked at.
    failures: u64,
    /// Those of them that nobody was told of.
    owed: u32,
    /// When it was lost, in ms since open, if it has not come back; else [`NEVER_MS`].
    lost_ms: u64,
    /// When it came back, if nobody was told of that loss yet; else [`NEVER_MS`].
    back_ms: u64,
    /// That it was lost was told, and not yet that it is back.
    lost: bool,
    /// It has been in use.
    known: bool,
    /// Lines since then.
    lines: u8,
    since_ms: u64,
}

/// What is to be said of a rail now, in this order.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(in crate::host) struct Say {
    /// It is in use for the first time.
    pub(in crate::host) first: bool,
    /// It was lost so many times.
    pub(in crate::host) losses: u32,
    /// It is back, after so many ms.
    pub(in crate::host) back_ms: Option<u64>,
    /// More is to be said at that time, in ms since open.
    pub(in crate::host) due_ms: Option<u64>,
}

impl Told {
    /// Nothing, of a rail that has never been in use.
    pub(in crate::host) const NOTHING: Told = Told {
        failures: 0,
        owed: 0,
        lost_ms: NEVER_MS,
        back_ms: NEVER_MS,
        lost: false,
        known: false,
        lines: 0,
        since_ms: 0,
    };

    /// Looks at how often a rail has failed and whether it is in use. `in_order`: the peer may have
    /// ended it because it closes the connection, which is no loss, and which is heard elsewhere.
    pub(in crate::host) fn look(
        &mut self,
        failures: u64,
        up: bool,
        in_order: bool,
        now_ms: u64,
    ) -> Say {
        let fresh = failures.saturating_sub(self.failures);
        if fresh > 0 {
            self.failures = failures;
            self.owed = self.owed.saturating_add(fresh.min(u64::from(u32::MAX)) as u32);
            self.lost_ms = self.lost_ms.min(now_ms);
            self.back_ms = NEVER_MS;
        }
        if up && self.lost_ms != NEVER_MS {
            self.back_ms = self.back_ms.min(now_ms);
        }
        let first = up && !self.known && failures == 0;
        self.known |= up;
        let mut say = Say { first, ..Say::default() };
        let is_recent = now_ms.saturating_sub(self.lost_ms) < CLOSE_MS && self.lost_ms != NEVER_MS;
        if in_order && self.owed > 0 && is_recent {
            say.due_ms = Some(self.lost_ms + CLOSE_MS);
            return say;
        }
        if self.owed > 0 || (self.lost && up) {
            if now_ms.saturating_sub(self.since_ms) >= WINDOW_MS {
                (self.since_ms, self.lines) = (now_ms, 0);
            }
            if self.lines >= LINES_MAX {
                say.due_ms = Some(self.since_ms + WINDOW_MS);
            } else {
                self.tell(up, now_ms, &mut say);
            }
        }
        if up {
            (self.lost_ms, self.back_ms) = (NEVER_MS, NEVER_MS);
        }
        say
    }

    fn tell(&mut self, up: bool, now_ms: u64, say: &mut Say) {
        say.losses = core::mem::take(&mut self.owed);
        self.lines += u8::from(say.losses > 0);
        self.lost |= say.losses > 0;
        if self.lost && up {
            let back_ms = self.back_ms.min(now_ms);
            say.back_ms = Some(back_ms.saturating_sub(self.lost_ms));
            self.lost = false;
            self.lines += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(losses: u32) -> Say {
        Say { losses, ..Say::default() }
    }

    fn back(ms: u64) -> Say {
        Say { back_ms: Some(ms), ..Say::default() }
    }

    #[test]
    fn each_loss_and_each_return_is_said_once() {
        let mut told = Told::NOTHING;
        assert_eq!(told.look(0, false, false, 1), Say::default());
        assert_eq!(told.look(0, true, false, 5), Say { first: true, ..Say::default() });
        assert_eq!(told.look(0, true, false, 6), Say::default());
        assert_eq!(told.look(1, false, false, 100), lost(1));
        assert_eq!(told.look(1, false, false, 150), Say::default());
        assert_eq!(told.look(1, true, false, 170), back(70));
        assert_eq!(told.look(1, true, false, 171), Say::default());
        // lost and back between two looks
        assert_eq!(told.look(2, true, false, 300), Say { losses: 1, ..back(0) });
    }

    #[test]
    fn of_a_rail_that_flaps_few_lines_are_said_and_then_how_often_and_how_it_is() {
        let mut told = Told::NOTHING;
        told.look(0, true, false, 0);
        let mut lines = 0;
        for turn in 1..=100 {
            let down = told.look(turn, false, false, 20 * turn);
            let up = told.look(turn, true, false, 20 * turn + 10);
            lines += u32::from(down.losses > 0) + u32::from(up.back_ms.is_some());
        }
        assert_eq!(lines, 6);
        // silent until the time is over, and told when that is
        assert_eq!(told.look(100, true, false, 9_999).due_ms, Some(10_000));
        assert_eq!(told.look(100, true, false, 10_000), Say { losses: 97, ..back(0) });
        assert_eq!(told.look(100, true, false, 10_001), Say::default());
    }

    #[test]
    fn rail_that_is_lost_when_its_lines_are_spent_is_told_of_in_the_end() {
        let mut told = Told::NOTHING;
        told.look(0, true, false, 0);
        for turn in 1..=3 {
            told.look(turn, false, false, turn);
            told.look(turn, true, false, turn);
        }
        assert_eq!(told.look(4, false, false, 500), Say { due_ms: Some(10_000), ..Say::default() });
        assert_eq!(told.look(4, false, false, 10_000), lost(1));
        assert_eq!(told.look(4, true, false, 10_500), back(10_000));
    }

    #[test]
    fn rail_that_its_peer_ended_is_told_of_unless_the_connection_was_closed_meanwhile() {
        let mut told = Told::NOTHING;
        told.look(0, true, true, 0);
        let held = Say { due_ms: Some(1100), ..Say::default() };
        assert_eq!(told.look(1, false, true, 100), held);
        assert_eq!(told.look(1, true, true, 170), held);
        assert_eq!(told.look(1, true, true, 1099), held);
        assert_eq!(told.look(1, true, true, 1100), Say { losses: 1, ..back(70) });
        assert_eq!(told.look(1, true, true, 1101), Say::default());
        // a loss of another kind is told of at once, with the one before it
        assert_eq!(told.look(2, false, true, 5000), Say { due_ms: Some(6000), ..Say::default() });
        assert_eq!(told.look(3, false, false, 5010), lost(2));
    }
}
