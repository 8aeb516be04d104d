//! Lanes of different speeds, which nobody tells the machine, and which change places midway: how
//! long a stream of long messages takes, beside what all lanes together could carry.
//!
//! Time is the network's. It goes on to whatever lands next, or to the next of the moments at which
//! the sides look at all.
#![forbid(unsafe_code)]

use super::memory::{self, Pages};
use super::network::EAGER_BYTES;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{ConnectionIndex, PeerIndex};
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{MemoryDomain, RailKey, RemoteSpan, Syscalls};
use crosstie::transport::limits::{CREDITS, RECEIVES_SPARE};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{
    Config, ConnectionSetup, DataMrs, Endpoint, Incoming, Limits, Outgoing, RequestId,
};
use crosstie::wire::report::REPORT_BYTES_MAX;
use crosstie_kit::sim::{Faults, SimConfig, SimFabric, SimPort};
use std::collections::VecDeque;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 1 << 20;
/// Messages after which the machine knows the lanes, at first and when they have changed.
const WARM: u64 = 100;

const CONNECTION: ConnectionIndex = ConnectionIndex(0);
const BUDGET: Bytes = Bytes::mib(1024);
/// Calls of progress at one moment after which it never comes to rest.
const ROUNDS_MAX: u32 = 10_000;
/// Calls of which nothing comes: what one call finds out, the next acts upon.
const QUIET: u32 = 2;

/// A stream of messages over lanes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes per second of each lane, at first, and each time that they have changed.
    pub phases: Vec<Vec<u64>>,
    /// Messages outstanding at a time.
    pub outstanding: u64,
    /// Messages measured of each phase.
    pub messages: u64,
    /// How long every operation takes beside its bytes.
    pub latency: Span,
    /// The sides look at multiples of this.
    pub look: Span,
    /// The fault that is planted.
    #[cfg(feature = "proof")]
    pub mutant: Option<crosstie::transport::mutant::Mutant>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Found {
    /// How long the messages took that were measured, by phase.
    pub taken: Vec<Span>,
    /// Bytes that each lane carried meanwhile.
    pub carried: Vec<Vec<u64>>,
}

impl Plan {
    /// So many lanes, of which the first has a tenth of the others' speed, and then the last.
    pub fn tenth(lanes: usize, speed: u64, outstanding: u64) -> Plan {
        let slow = |lane: usize| {
            let mut speeds = vec![speed; lanes];
            speeds[lane] /= 10;
            speeds
        };
        Plan::of(vec![slow(0), slow(lanes - 1)], outstanding)
    }

    /// Lanes of such speeds.
    pub fn of(phases: Vec<Vec<u64>>, outstanding: u64) -> Plan {
        Plan {
            phases,
            outstanding,
            messages: 300,
            latency: Span::micros(20),
            look: Span(1),
            #[cfg(feature = "proof")]
            mutant: None,
        }
    }

    /// By how much a phase took longer than the ideal, in thousandths of it.
    pub fn excess(&self, found: &Found) -> Vec<u64> {
        let beyond = |(at, taken): (usize, &Span)| {
            (taken.0 * 1000).div_ceil(self.ideal(at).0).saturating_sub(1000)
        };
        found.taken.iter().enumerate().map(beyond).collect()
    }

    /// How long the measured messages of one phase take when every lane carries what it can.
    pub fn ideal(&self, phase: usize) -> Span {
        let speed: u64 = self.phases[phase].iter().sum();
        let bytes = u128::from(self.messages) * MESSAGE_BYTES as u128;
        Span((bytes * 1_000_000_000 / u128::from(speed)) as u64)
    }

    /// Runs it. An error is a sentence about what should not have happened.
    pub fn run(&self) -> Result<Found, String> {
        let lanes = self.phases[0].len() as u32;
        let config = self.network();
        let mut fabric_block = HeapBlock::new(SimFabric::bytes(config));
        let fabric = SimFabric::open(config, &mut fabric_block.carver());
        let fabric = fabric.map_err(|_| "fabric block")?;
        for lane in 0..lanes {
            let joined = fabric.connect_at(0, 1, PeerIndex(lane));
            joined.map_err(|error| format!("lane {lane}: {error:?}"))?;
        }
        let rails_max = config.peers_max;
        let limits = Limits { connections_max: 1, requests_max: 32, regions_max: 1, rails_max };
        let bytes = limits.machine_bytes() + limits.regions_bytes();
        let mut blocks = [HeapBlock::new(bytes), HeapBlock::new(bytes)];
        let [first, second] = blocks.each_mut();
        let count = self.outstanding as usize;
        let mut sides = [
            Side::open(&fabric, 0, first, limits, count)?,
            Side::open(&fabric, 1, second, limits, count)?,
        ];
        for side in 0..2 {
            let mailbox = sides[1 - side].mailbox();
            sides[side].connection_open(mailbox, lanes as u8)?;
            #[cfg(feature = "proof")]
            sides[side].endpoint.mutant_set(self.mutant);
        }
        let now = Instant(1);
        let (posted, sent, received) = (0, VecDeque::new(), VecDeque::new());
        let mut stream = Stream { plan: self, fabric: &fabric, sides, now, posted, sent, received };
        stream.lanes_up()?;
        stream.measure()
    }

    fn network(&self) -> SimConfig {
        SimConfig {
            ports: 2,
            peers_max: (self.phases[0].len() as u32).next_power_of_two(),
            recv_slots: CREDITS + RECEIVES_SPARE,
            payload_max: EAGER_BYTES.max(Bytes::of(REPORT_BYTES_MAX)),
            regions_max: 4,
            flights_max: 256,
            pull: false,
            ordered: true,
            immediate: true,
            copies_at_post: true,
            syscalls: Syscalls::None,
            latency: self.latency,
            delay_max: Span(0),
            seed: 1,
            faults: Faults::default(),
        }
    }
}

/// One endpoint and its user's memory.
struct Side<'f, 'm> {
    endpoint: Endpoint<'m, SimPort<'f, 'm>>,
    memory: Pages,
    region: Handle,
    key: RailKey,
}

impl<'f, 'm> Side<'f, 'm> {
    fn open(
        fabric: &'f SimFabric<'m>,
        port: u32,
        block: &'m mut HeapBlock,
        limits: Limits,
        messages: usize,
    ) -> Result<Side<'f, 'm>, String> {
        let mut carver = block.carver();
        let table = DataMrs::carve(&mut carver, limits.regions_max, 0).map_err(|_| "block")?;
        let config =
            Config { salt: 2 * port + 2, eager_bytes_max: EAGER_BYTES, ..Config::default() };
        let rail = fabric.port(port);
        let endpoint =
            Endpoint::open(&mut carver, limits, config, table, rail).map_err(|_| "block")?;
        let domain = endpoint.rail().domain();
        let register = |region| {
            let key = memory::register(&domain, region);
            key.map_err(|error| format!("register: {error:?}"))
        };
        let key = register(endpoint.mailboxes().region())?;
        let mut memory = Pages::new(messages, MESSAGE_BYTES);
        let region = memory.region();
        let region = memory::enter(&table, region, register(region)?).ok_or("regions")?;
        Ok(Side { endpoint, memory, region, key })
    }

    fn mailbox(&self) -> RemoteSpan {
        RemoteSpan { key: self.key, address: self.endpoint.mailboxes().address(0) }
    }

    fn connection_open(&mut self, mailbox: RemoteSpan, lanes: u8) -> Result<(), String> {
        let setup = ConnectionSetup {
            pull: false,
            mailbox,
            eager_bytes_max: EAGER_BYTES,
            credits: CREDITS,
            groups_max: self.endpoint.limits().groups_max(),
            lanes,
            reserve: 0,
            probed: true,
            reads_runs: true,
            reads_filled: true,
            slots_in_rows: true,
        };
        self.endpoint.connection_open(CONNECTION, &setup);
        for lane in 1..lanes {
            if !self.endpoint.lane_rejoin(CONNECTION, lane, 1) {
                return Err(format!("lane {lane} may not come up"));
            }
        }
        Ok(())
    }

    fn is_up(&self, lane: u8) -> bool {
        let view = self.endpoint.lane_view(CONNECTION, lane);
        view.is_some_and(|view| view.state == LaneState::Up)
    }

    /// Whether the oldest of some requests has ended; takes it away.
    fn ended(&mut self, requests: &mut VecDeque<RequestId>) -> Result<bool, String> {
        let Some(request) = requests.front() else { return Ok(false) };
        let asked = self.endpoint.test(*request).map_err(|error| format!("test: {error:?}"))?;
        let Some(outcome) = asked else { return Ok(false) };
        requests.pop_front();
        outcome.result.map_err(|error| format!("a request ended: {error:?}"))?;
        Ok(true)
    }
}

/// Messages on their way.
struct Stream<'p, 'f, 'm> {
    plan: &'p Plan,
    fabric: &'f SimFabric<'m>,
    sides: [Side<'f, 'm>; 2],
    now: Instant,
    /// Messages posted, at both sides.
    posted: u64,
    /// Requests of the oldest of them.
    sent: VecDeque<RequestId>,
    received: VecDeque<RequestId>,
}

impl Stream<'_, '_, '_> {
    fn speeds_set(&self, speeds: &[u64]) {
        for (lane, speed) in speeds.iter().enumerate() {
            self.fabric.speed_set(0, 1, PeerIndex(lane as u32), *speed, self.now);
        }
    }

    fn lanes_up(&mut self) -> Result<(), String> {
        let lanes = self.plan.phases[0].len() as u8;
        loop {
            self.rest()?;
            if self.sides.iter().all(|side| (0..lanes).all(|lane| side.is_up(lane))) {
                return Ok(());
            }
            self.time_goes_on()?;
        }
    }

    /// Lets the messages pass, and measures those of each phase but the first.
    fn measure(&mut self) -> Result<Found, String> {
        let each = WARM + self.plan.messages;
        let all = each * self.plan.phases.len() as u64;
        let mut found = Found { taken: Vec::new(), carried: Vec::new() };
        let mut begun = 0;
        for speeds in &self.plan.phases {
            self.speeds_set(speeds);
            self.pass(begun + WARM, all)?;
            let (started, before) = (self.now, self.carried());
            begun += each;
            self.pass(begun, all)?;
            found.taken.push(self.now.since(started));
            let lanes = self.carried().into_iter().zip(before);
            found.carried.push(lanes.map(|(after, before)| after - before).collect());
        }
        Ok(found)
    }

    fn carried(&self) -> Vec<u64> {
        let endpoint = &self.sides[0].endpoint;
        let view = |lane| endpoint.lane_view(CONNECTION, lane).expect("a lane of it");
        (0..self.plan.phases[0].len() as u8).map(|lane| view(lane).stats.bytes).collect()
    }

    /// Goes on until so many messages of all have ended at both sides.
    fn pass(&mut self, until: u64, all: u64) -> Result<(), String> {
        loop {
            self.rest()?;
            let mut some = self.post(all)?;
            some |= self.take()?;
            if self.done() >= until {
                return Ok(());
            }
            if !some {
                self.time_goes_on()?;
            }
        }
    }

    /// Messages that have ended at both sides.
    fn done(&self) -> u64 {
        self.posted - self.sent.len().max(self.received.len()) as u64
    }

    /// Progress of both sides, until nothing more comes of it at this moment.
    fn rest(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..ROUNDS_MAX {
            let (now, before) = (self.now, self.fabric.counts().accepted);
            let progress = |side: &mut Side<'_, '_>| side.endpoint.progress(now, BUDGET).events;
            let events: usize = self.sides.iter_mut().map(progress).sum();
            let none = events == 0 && self.fabric.counts().accepted == before;
            quiet = if none { quiet + 1 } else { 0 };
            if quiet == QUIET {
                return Ok(());
            }
        }
        Err("it never comes to rest".into())
    }

    fn time_goes_on(&mut self) -> Result<(), String> {
        let due = self.fabric.next_due().ok_or("nothing is under way")?;
        if due <= self.now {
            return Err("what is due does not land".into());
        }
        self.now = Instant(due.0.next_multiple_of(self.plan.look.0));
        Ok(())
    }

    /// Posts messages at both sides while fewer are outstanding than may be.
    fn post(&mut self, all: u64) -> Result<bool, String> {
        let before = self.posted;
        while self.posted < all.min(self.done() + self.plan.outstanding) {
            let at = (self.posted % self.plan.outstanding) as usize;
            let [from, to] = &mut self.sides;
            from.memory.stamp(at, self.posted);
            let length = MESSAGE_BYTES as u64;
            let (region, address) = (to.region, to.memory.address(at));
            let room = Incoming { region, address, length, tag: 0 };
            let received = to.endpoint.irecv(CONNECTION, &[room]);
            self.received.push_back(received.map_err(|error| format!("receive: {error:?}"))?);
            let (region, address) = (from.region, from.memory.address(at));
            let message = Outgoing { region, address, length, tag: 0 };
            let sent = from.endpoint.isend(CONNECTION, message);
            self.sent.push_back(sent.map_err(|error| format!("send: {error:?}"))?);
            self.posted += 1;
        }
        Ok(self.posted > before)
    }

    /// Takes what has ended, and looks at what came.
    fn take(&mut self) -> Result<bool, String> {
        let mut some = false;
        while self.sides[0].ended(&mut self.sent)? {
            some = true;
        }
        loop {
            let number = self.posted - self.received.len() as u64;
            if !self.sides[1].ended(&mut self.received)? {
                return Ok(some);
            }
            let at = (number % self.plan.outstanding) as usize;
            if !self.sides[1].memory.holds(at, number) {
                return Err(format!("message {number} has the wrong bytes"));
            }
            some = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000 / 8;
    /// Speeds of a lane that is not slow.
    const SPEEDS: [u64; 2] = [GIGABIT, 10 * GIGABIT];
    /// Messages outstanding of a stream.
    const STREAM: u64 = 8;
    /// Stripes of each lane that a message is cut into.
    const STRIPES_PER_LANE: u64 = 4;

    /// How long the messages of a phase take one at a time when their whole stripes are spread as
    /// well as can be: each where it is done first.
    fn best_of_stripes(plan: &Plan, phase: usize) -> u64 {
        let speeds = &plan.phases[phase];
        let stripes = STRIPES_PER_LANE * speeds.len() as u64;
        let stripe_ns = |speed: u64| MESSAGE_BYTES as u64 * 1_000_000_000 / stripes / speed;
        let mut done = vec![0; speeds.len()];
        for _ in 0..stripes {
            let next = |lane: &usize| done[*lane] + stripe_ns(speeds[*lane]);
            let lane = (0..speeds.len()).min_by_key(next).unwrap();
            done[lane] = next(&lane);
        }
        plan.messages * done.into_iter().max().unwrap()
    }

    #[test]
    fn slow_lane_costs_a_twentieth_at_most_wherever_it_is_and_when_it_changes() {
        for speed in SPEEDS {
            for lanes in [2, 3, 4] {
                let plan = Plan::tenth(lanes, speed, STREAM);
                let found = plan.run().unwrap();
                let excess = plan.excess(&found);
                assert!(excess.iter().all(|part| *part <= 50), "{plan:?}: {excess:?}");
                let turned = Plan { phases: plan.phases.into_iter().rev().collect(), ..plan };
                let found = turned.run().unwrap();
                let excess = turned.excess(&found);
                assert!(excess.iter().all(|part| *part <= 50), "{turned:?}: {excess:?}");
            }
        }
    }

    #[test]
    fn lane_that_slows_down_and_recovers_costs_a_twentieth_at_most() {
        for speed in SPEEDS {
            let (alike, slow) = (vec![speed; 2], vec![speed, speed / 10]);
            let plan = Plan::of(vec![alike.clone(), slow, alike], STREAM);
            let excess = plan.excess(&plan.run().unwrap());
            assert!(excess.iter().all(|part| *part <= 50), "{plan:?}: {excess:?}");
        }
    }

    #[test]
    fn slow_lane_is_better_than_none() {
        let taken = |speeds: &[u64]| {
            let found = Plan::of(vec![speeds.to_vec()], STREAM).run().unwrap();
            found.taken[0].0
        };
        for speed in SPEEDS {
            let (fast, slow) = (taken(&[speed]), taken(&[speed / 10]));
            assert!(slow > 9 * fast, "what lanes carry alone: {fast} and {slow} ns");
            for both in [taken(&[speed, speed / 10]), taken(&[speed / 10, speed])] {
                assert!(both < fast, "{both} ns together, {fast} and {slow} alone");
            }
        }
    }

    /// Of few whole stripes a lane at a tenth cannot have a tenth: it gets none, or keeps the rest
    /// waiting.
    #[test]
    fn messages_one_at_a_time_take_as_long_as_whole_stripes_must() {
        for lanes in [2, 3, 4] {
            let plan = Plan::tenth(lanes, GIGABIT, 1);
            let found = plan.run().unwrap();
            for (phase, taken) in found.taken.iter().enumerate() {
                let best = best_of_stripes(&plan, phase);
                assert!(taken.0 * 100 <= best * 105, "{plan:?}: {taken:?} instead of {best}");
            }
        }
    }

    #[test]
    fn alike_lanes_carry_alike() {
        for speed in SPEEDS {
            for outstanding in [STREAM, 1] {
                let plan = Plan::of(vec![vec![speed; 2]], outstanding);
                let found = plan.run().unwrap();
                let carried = &found.carried[0];
                let sum: u64 = carried.iter().sum();
                let even = carried.iter().all(|lane| (45..=55).contains(&(lane * 100 / sum)));
                assert!(even, "{plan:?}: {carried:?}");
            }
        }
    }
}
