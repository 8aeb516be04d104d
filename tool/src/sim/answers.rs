//! Short messages that answer each other, one at a time, among all else: what they have filled is
//! told by heads then, while lanes die and other calls come between.
#![forbid(unsafe_code)]

use super::network::EAGER_BYTES;
use super::world::{GroupRecord, World};
use crosstie_kit::random::Random;
use crosstie_kit::sim::SimFabric;

/// Of so many schedules one has answers.
const EVERY: u64 = 4;
/// Looks of both sides after which an answer is waited for no longer: what was posted before may
/// want other messages first.
const LOOKS_MAX: usize = 60;

/// Receives that have no message beyond which none is posted for an answer.
const OPEN_MAX: usize = 4;

/// Whether this step of a schedule is a message that answers the one before. Most are, and of the
/// first ones all.
pub(super) fn answers(seed: u64, step: u64, random: &mut Random) -> bool {
    seed % EVERY == EVERY - 2 && (step < 40 || random.below(4) != 0)
}

impl<'m> World<'_, 'm> {
    /// A message from the side whose turn it is, for which the other has posted a receive.
    pub(super) fn answer(&mut self, fabric: &SimFabric<'m>, step: u64) -> Result<(), String> {
        let side = (step % 2) as usize;
        let is_open = |group: &GroupRecord| group.outcome.is_none();
        let open = self.directions[side].groups.iter().filter(|group| is_open(group)).count();
        // more would be the user's own deadlock: other messages may want receives of their own
        if open >= OPEN_MAX || !self.irecv(1 - side, &[0])? {
            return self.progress(1 - side);
        }
        let length = self.random.below(EAGER_BYTES.0 / 2) as usize;
        self.isend(side, 0, length)?;
        for _ in 0..LOOKS_MAX {
            self.calls += 2;
            self.progress(side)?;
            self.progress(1 - side)?;
            self.lanes_step(fabric)?;
            if self.failed || !self.directions[side].groups.iter().any(is_open) {
                break;
            }
        }
        Ok(())
    }
}
