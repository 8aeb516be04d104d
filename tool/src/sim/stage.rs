//! Two endpoints on a simulated network that a test breaks by hand.
#![forbid(unsafe_code)]

use super::lanes::Lanes;
use super::network::limits;
use super::world::{CONNECTION, World};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::RailKey;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Outcome, RequestError, RequestId};
use crosstie_kit::sim::{SimConfig, SimFabric};

const BUDGET: Bytes = Bytes::kib(256);
/// More than an operation takes on a calm network.
const STEP: Span = Span(200);
/// Steps after which everything that can happen has.
const STEPS: u32 = 40;

/// What a test has in hand.
pub struct Stage<'f, 'm> {
    pub world: World<'f, 'm>,
    pub fabric: &'f SimFabric<'m>,
}

/// Sets it up, with all lanes in use, and hands it to `act`.
pub fn set(config: SimConfig, lanes: u32, act: impl FnOnce(&mut Stage<'_, '_>)) {
    let mut fabric_block = HeapBlock::new(SimFabric::bytes(config));
    let fabric = SimFabric::open(config, &mut fabric_block.carver()).unwrap();
    fabric.connect_at(0, 1, PeerIndex(0)).unwrap();
    let limits = limits(config.peers_max);
    let bytes = limits.machine_bytes() + limits.regions_bytes();
    let mut blocks = [HeapBlock::new(bytes), HeapBlock::new(bytes)];
    let shape = (config.pull, limits);
    let lanes = Lanes::by_hand(lanes);
    let mut world = World::open(&fabric, &mut blocks, shape, lanes, config.seed).unwrap();
    world.now = Instant(1);
    let mut stage = Stage { world, fabric: &fabric };
    (1..lanes.count as u8).for_each(|lane| stage.lane_open(lane, 1));
    act(&mut stage);
}

impl Stage<'_, '_> {
    /// Opens a lane at both ends, and waits until it is in use.
    pub fn lane_open(&mut self, lane: u8, generation: u32) {
        self.fabric.connect_at(0, 1, PeerIndex(u32::from(lane))).unwrap();
        for side in 0..2 {
            assert!(self.world.endpoints[side].lane_rejoin(CONNECTION, lane, generation));
        }
        self.both();
        assert!([0, 1].iter().all(|side| self.lane(*side, lane) == LaneState::Up));
    }

    pub fn lane(&self, side: usize, lane: u8) -> LaneState {
        self.world.endpoints[side].lane_view(CONNECTION, lane).unwrap().state
    }

    /// A little time, and progress of one side.
    pub fn one(&mut self, side: usize) {
        for _ in 0..STEPS {
            self.step(side, STEP);
        }
    }

    /// The same, of both.
    pub fn both(&mut self) {
        for _ in 0..STEPS {
            self.step(0, STEP);
            self.step(1, STEP);
        }
    }

    /// Some time, and one call of progress.
    pub fn step(&mut self, side: usize, span: Span) {
        self.world.now = self.world.now.after(span);
        self.world.endpoints[side].progress(self.world.now, BUDGET);
    }

    pub fn send(&mut self, side: usize, tag: i32, length: usize) -> RequestId {
        assert!(self.world.isend(side, tag, length).unwrap());
        self.world.directions[side].sends.last().unwrap().request
    }

    pub fn receive(&mut self, side: usize, tag: i32) -> RequestId {
        assert!(self.world.irecv(side, &[tag]).unwrap());
        self.world.directions[1 - side].groups.last().unwrap().request
    }

    /// Kills all lanes at once.
    pub fn sever_all(&mut self) {
        for lane in 0..self.world.lanes.count {
            self.fabric.sever(0, PeerIndex(lane), self.world.now);
        }
    }

    /// How requests of a side have ended, if all of them have. None is forgotten by it.
    pub fn ended(&mut self, side: usize, requests: &[RequestId]) -> Option<Vec<Outcome>> {
        let endpoint = &mut self.world.endpoints[side];
        if requests.iter().any(|request| endpoint.is_outstanding(*request)) {
            return None;
        }
        requests.iter().map(|request| endpoint.test(*request).unwrap()).collect()
    }

    /// How requests of a side ended: all of them badly.
    pub fn errors(&mut self, side: usize, requests: &[RequestId]) -> Option<Vec<RequestError>> {
        let outcomes = self.ended(side, requests)?;
        Some(outcomes.iter().map(|outcome| outcome.result.unwrap_err()).collect())
    }

    /// Each lane goes by keys of its own, that of a rail of several.
    pub fn keys_differ(&mut self) {
        for side in 0..2 {
            for lane in 1..self.world.lanes.count as u8 {
                self.world.endpoints[side].lane_key_set(CONNECTION, lane, lane);
            }
        }
    }

    /// A rail of one side knows none of its memory any more.
    pub fn memory_forgotten(&mut self, side: usize, lane: u8) {
        for region in self.world.regions[side] {
            self.world.tables[side].keys_set(region, usize::from(lane), &[RailKey(0)]);
        }
    }

    /// Stripes that a side has sent on a lane.
    pub fn stripes(&self, side: usize, lane: u8) -> u64 {
        self.world.endpoints[side].lane_view(CONNECTION, lane).unwrap().stats.stripes
    }
}
