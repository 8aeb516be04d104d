//! Several lanes in a schedule: they are killed, and come back, while messages cross.
#![forbid(unsafe_code)]

use crosstie::base::units::Span;
use crosstie::transport::Stats;
use crosstie_kit::random::Random;
use crosstie_kit::sim::{CERTAIN, Faults};

/// How long a connection waits for any lane, and a lane for its fence and report, in the time of
/// the simulation, where a message takes some microseconds.
pub const LOSS_SPAN: Span = Span(200_000);
pub const FENCE_SPAN: Span = Span(4_000_000);

/// Most lanes that are killed in one schedule, so that it ends.
pub(super) const KILLS_MAX: u32 = 400;

/// Most lanes of a schedule.
const LANES_MAX: u64 = 4;

/// What became of lanes, both sides together.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Counts {
    /// Lanes that failed.
    pub failures: u64,
    /// Lanes that came up.
    pub joins: u64,
    /// Stripes that moved.
    pub moved: u64,
    /// Sends that were sent again.
    pub resends: u64,
    /// Times that control moved.
    pub control_moves: u64,
}

impl Counts {
    /// Adds what one side counted.
    pub fn add(&mut self, stats: &Stats) {
        self.failures += stats.lane_failures;
        self.joins += stats.lane_joins;
        self.moved += stats.stripes_moved;
        self.resends += stats.resends;
        self.control_moves += stats.control_moves;
    }

    /// Adds other counts.
    pub fn sum(&mut self, other: &Counts) {
        self.failures += other.failures;
        self.joins += other.joins;
        self.moved += other.moved;
        self.resends += other.resends;
        self.control_moves += other.control_moves;
    }
}

/// The lanes of a schedule.
#[derive(Copy, Clone, Debug)]
pub struct Lanes {
    /// How many.
    pub count: u32,
    /// One lane always lives, so that nothing may fail; else lanes die as they like.
    pub(super) careful: bool,
    /// The chance of a death, and of a lane's return, per step.
    pub(super) deaths: u32,
    pub(super) returns: u32,
    /// By side and lane: the machine has let go of it.
    pub(super) released: [u8; 2],
    /// Lanes that were not killed since they were opened.
    pub(super) alive: u8,
    /// How many were killed.
    pub(super) kills: u32,
    pub(super) generations: [u32; LANES_MAX as usize],
}

/// Draws how many lanes a schedule has, and how badly they fare.
pub fn draw(random: &mut Random, pull: bool) -> Lanes {
    let several = !pull && random.below(4) != 0;
    let count = if several { 2 + random.below(LANES_MAX - 1) as u32 } else { 1 };
    Lanes {
        count,
        careful: random.below(3) != 0,
        deaths: random.below(u64::from(CERTAIN / 8)) as u32,
        returns: random.below(u64::from(CERTAIN / 4)) as u32,
        // all but the first are to be opened
        released: [!1; 2],
        alive: 1,
        kills: 0,
        generations: [1, 0, 0, 0],
    }
}

impl Lanes {
    /// So many, of which a test opens and kills all but the first itself.
    #[cfg(test)]
    pub fn by_hand(count: u32) -> Lanes {
        Lanes {
            count,
            careful: true,
            deaths: 0,
            returns: 0,
            released: [!1; 2],
            alive: 1,
            kills: 0,
            generations: [1, 0, 0, 0],
        }
    }

    /// The faults of the network that go with it.
    pub fn faults(&self, drawn: Faults) -> Faults {
        match self.count > 1 && self.careful {
            true => Faults { error: 0, rail_death: 0, ghost: CERTAIN / 2, ..drawn },
            false => drawn,
        }
    }

    /// For the sentence about a schedule that failed.
    pub fn text(&self) -> String {
        let how = if self.careful { "careful" } else { "reckless" };
        format!("{} lanes, {how}", self.count)
    }
}
