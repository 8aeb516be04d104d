//! Several lanes in a schedule: they are killed, and come back, while messages cross.
#![forbid(unsafe_code)]

use super::schedule::{CONNECTION, World};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Span;
use crosstie::fabric::PeerLife;
use crosstie::transport::Stats;
use crosstie::transport::rail::LaneState;
use crosstie_kit::random::Random;
use crosstie_kit::sim::{CERTAIN, Faults, SimFabric};

/// How long a connection waits for any lane, and a lane for its fence and report, in the time of
/// the simulation, where a message takes some microseconds.
pub const LOSS_SPAN: Span = Span(200_000);
pub const FENCE_SPAN: Span = Span(4_000_000);

/// Most lanes that are killed in one schedule, so that it ends.
const KILLS_MAX: u32 = 400;

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
    careful: bool,
    /// The chance of a death, and of a lane's return, per step.
    deaths: u32,
    returns: u32,
    /// By side and lane: the machine has let go of it.
    released: [u8; 2],
    /// Lanes that were not killed since they were opened.
    alive: u8,
    /// How many were killed.
    kills: u32,
    generations: [u32; LANES_MAX as usize],
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

impl<'m> World<'_, 'm> {
    /// Kills a lane, or lets one come back.
    pub fn lanes_step(&mut self, fabric: &SimFabric<'m>) -> Result<(), String> {
        if self.lanes.count == 1 {
            return Ok(());
        }
        for side in 0..2 {
            self.lanes_release(side)?;
        }
        if self.random.chance(self.lanes.returns) {
            self.lane_return(fabric)?;
        }
        if self.lanes.careful
            && self.lanes.kills < KILLS_MAX
            && self.random.chance(self.lanes.deaths)
        {
            self.lane_kill(fabric);
        }
        if self.lanes.careful && self.failed {
            return Err("a request failed although a lane lived".into());
        }
        Ok(())
    }

    /// Closes what the machine says is down.
    pub fn lanes_release(&mut self, side: usize) -> Result<(), String> {
        while let Some((_, lane)) = self.endpoints[side].next_lane_down() {
            self.lane_detach(side, lane)?;
        }
        Ok(())
    }

    fn lane_detach(&mut self, side: usize, lane: u8) -> Result<(), String> {
        let peer = self.endpoints[side].lane_peer(CONNECTION, lane);
        let closed = self.endpoints[side].rail_mut().peer_detach(peer);
        closed.map_err(|error| format!("lane {lane} was said to be down: {error:?}"))?;
        self.lanes.released[side] |= 1 << lane;
        Ok(())
    }

    /// Opens a lane that both sides have closed.
    fn lane_return(&mut self, fabric: &SimFabric<'m>) -> Result<(), String> {
        let both = self.lanes.released[0] & self.lanes.released[1];
        let lane = self.random.below(u64::from(self.lanes.count)) as u8;
        if both >> lane & 1 == 0 || self.failed {
            return Ok(());
        }
        let opened = fabric.connect_at(0, 1, PeerIndex(u32::from(lane)));
        opened.map_err(|error| format!("lane {lane}: {error:?}"))?;
        self.lanes.generations[usize::from(lane)] += 1 + self.random.below(2) as u32;
        let generation = self.lanes.generations[usize::from(lane)];
        for side in 0..2 {
            self.lanes.released[side] &= !(1 << lane);
            if self.endpoints[side].lane_rejoin(CONNECTION, lane, generation) {
                continue;
            }
            // the connection may have failed meanwhile, and no request may have told so yet
            if self.lanes.careful || self.endpoints[side].is_open(CONNECTION) {
                return Err(format!("lane {lane} was down and may not come back"));
            }
            self.lane_detach(side, lane)?;
        }
        self.lanes.alive |= 1 << lane;
        Ok(())
    }

    /// Kills one of several lanes that both sides use.
    fn lane_kill(&mut self, fabric: &SimFabric<'m>) {
        let is_up = |side: usize, lane: u8| {
            let view = self.endpoints[side].lane_view(CONNECTION, lane);
            view.is_some_and(|view| view.state == LaneState::Up)
        };
        let alive = self.lanes.alive;
        let both = |lane: &u8| alive >> lane & 1 == 1 && is_up(0, *lane) && is_up(1, *lane);
        let up: std::vec::Vec<u8> = (0..self.lanes.count as u8).filter(both).collect();
        if up.len() < 2 {
            return;
        }
        let lane = up[self.random.below(up.len() as u64) as usize];
        self.lanes.alive &= !(1 << lane);
        self.lanes.kills += 1;
        fabric.sever(0, PeerIndex(u32::from(lane)), self.now);
    }
}
