//! Several lanes in a schedule: they are killed, and come back, while messages cross.
#![forbid(unsafe_code)]

use crosstie::base::ids::ConnectionIndex;
use crosstie::base::units::{Instant, Span};
use crosstie::fabric::PeerLife;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Endpoint, Stats};
use crosstie_kit::random::Random;
use crosstie_kit::sim::{CERTAIN, Faults, SimFabric, SimPort};

/// The two endpoints of a schedule.
pub(super) type Ends<'f, 'm> = [Endpoint<'m, SimPort<'f, 'm>>; 2];

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

/// The lanes of one connection of a schedule.
#[derive(Copy, Clone, Debug)]
pub struct Lanes {
    pub(super) connection: ConnectionIndex,
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
        connection: ConnectionIndex(0),
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
            connection: ConnectionIndex(0),
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

    /// The same of another connection.
    pub fn of(mut self, connection: ConnectionIndex) -> Lanes {
        self.connection = connection;
        self
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

    /// Lets a lane come back, or kills one. `failed`: a request has told that its connection has.
    pub(super) fn step<'m>(
        &mut self,
        ends: &mut Ends<'_, 'm>,
        fabric: &SimFabric<'m>,
        (random, now): (&mut Random, Instant),
        failed: bool,
    ) -> Result<(), String> {
        if random.chance(self.returns) {
            self.one_returns(ends, fabric, random, failed)?;
        }
        if self.careful && self.kills < KILLS_MAX && random.chance(self.deaths) {
            self.kill(ends, fabric, (random, now));
        }
        if self.careful && failed {
            return Err("a request failed although a lane lived".into());
        }
        Ok(())
    }

    fn detach(&mut self, ends: &mut Ends<'_, '_>, side: usize, lane: u8) -> Result<(), String> {
        let peer = ends[side].lane_peer(self.connection, lane);
        let closed = ends[side].rail_mut().peer_detach(peer);
        closed.map_err(|error| format!("lane {lane} was said to be down: {error:?}"))?;
        self.released[side] |= 1 << lane;
        Ok(())
    }

    /// Opens a lane that both sides have closed.
    fn one_returns<'m>(
        &mut self,
        ends: &mut Ends<'_, 'm>,
        fabric: &SimFabric<'m>,
        random: &mut Random,
        failed: bool,
    ) -> Result<(), String> {
        let both = self.released[0] & self.released[1];
        let lane = random.below(u64::from(self.count)) as u8;
        if both >> lane & 1 == 0 || failed {
            return Ok(());
        }
        let opened = fabric.connect_at(0, 1, ends[0].lane_peer(self.connection, lane));
        opened.map_err(|error| format!("lane {lane}: {error:?}"))?;
        self.generations[usize::from(lane)] += 1 + random.below(2) as u32;
        let generation = self.generations[usize::from(lane)];
        for side in 0..2 {
            self.released[side] &= !(1 << lane);
            if ends[side].lane_rejoin(self.connection, lane, generation) {
                continue;
            }
            // the connection may have failed meanwhile, and no request may have told so yet
            if self.careful || ends[side].is_open(self.connection) {
                return Err(format!("lane {lane} was down and may not come back"));
            }
            self.detach(ends, side, lane)?;
        }
        self.alive |= 1 << lane;
        Ok(())
    }

    /// Kills one of several lanes that both sides use. Whether there were several.
    pub(super) fn kill<'m>(
        &mut self,
        ends: &Ends<'_, 'm>,
        fabric: &SimFabric<'m>,
        (random, now): (&mut Random, Instant),
    ) -> bool {
        let is_up = |side: usize, lane: u8| {
            let view = ends[side].lane_view(self.connection, lane);
            view.is_some_and(|view| view.state == LaneState::Up)
        };
        let alive = self.alive;
        let both = |lane: &u8| alive >> lane & 1 == 1 && is_up(0, *lane) && is_up(1, *lane);
        let up: Vec<u8> = (0..self.count as u8).filter(both).collect();
        if up.len() < 2 {
            return false;
        }
        let lane = up[random.below(up.len() as u64) as usize];
        self.alive &= !(1 << lane);
        self.kills += 1;
        fabric.sever(0, ends[0].lane_peer(self.connection, lane), now);
        true
    }
}

/// Closes what the machines say is down; `all` are the lanes of each connection.
pub(super) fn release(ends: &mut Ends<'_, '_>, all: &mut [Lanes]) -> Result<(), String> {
    (0..2).try_for_each(|side| release_at(ends, all, side))
}

/// The same at one side.
pub(super) fn release_at(
    ends: &mut Ends<'_, '_>,
    all: &mut [Lanes],
    side: usize,
) -> Result<(), String> {
    while let Some((connection, lane)) = ends[side].next_lane_down() {
        all[connection.0 as usize].detach(ends, side, lane)?;
    }
    Ok(())
}
