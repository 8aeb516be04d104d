//! `crosstie sim --peers N`: the cost of an endpoint that talks to N others, without the cost of a
//! rail.
//!
//! It measures bytes of the block, the time to take the connections into use, and the time of a
//! message on each. It also measures an idle call of progress.
#![forbid(unsafe_code)]

use super::memory::{self, Buffer, Memory};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::ConnectionIndex;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{MemoryDomain, RailKey, RemoteSpan, Syscalls};
use crosstie::transport::limits::CREDITS;
use crosstie::transport::{
    Config, ConnectionSetup, DataMrs, Endpoint, Incoming, Limits, Outgoing, RequestId,
};
use crosstie_kit::random::Random;
use crosstie_kit::sim::{Faults, SimConfig, SimFabric, SimPort};
use std::time::Instant as Clock;

/// Most peers of a run: both endpoints are in one process.
pub const PEERS_MAX: u32 = 20_000;
const MESSAGE_BYTES: usize = 64;
/// Idle calls of progress that are timed.
const IDLE_CALLS: u32 = 10_000;
/// Rounds of progress after which what has not arrived never will.
const ROUNDS_MAX: u32 = 1_000_000;

/// What was found.
#[derive(Copy, Clone, Debug)]
pub struct Account {
    /// Connections of the endpoint.
    pub peers: u32,
    /// Bytes of the endpoint's block, without its rail and side band.
    pub block_bytes: usize,
    /// Seconds to take all connections into use, one side.
    pub open_seconds: f64,
    /// Seconds for one message on each connection, both sides in one thread.
    pub message_seconds: f64,
    /// Nanoseconds of a call of progress while nothing happens.
    pub idle_ns: f64,
}

impl Account {
    /// The lines for people.
    pub fn text(&self) -> String {
        format!(
            "{} peers of one endpoint, over the simulated rail:\n\
             {:>14}  bytes of the machine's part of the block, {} per peer\n\
             {:>14.3}  ms to take all connections into use\n\
             {:>14.3}  ms for a message of {MESSAGE_BYTES} bytes on each, verified\n\
             {:>14.1}  ns for a call of progress while nothing happens\n",
            self.peers,
            self.block_bytes,
            self.block_bytes / self.peers as usize,
            self.open_seconds * 1e3,
            self.message_seconds * 1e3,
            self.idle_ns,
        )
    }
}

/// One endpoint and its user's memory.
struct Side<'f, 'm> {
    endpoint: Endpoint<'m, SimPort<'f, 'm>>,
    memory: Memory,
    regions: Vec<Handle>,
    key: RailKey,
}

fn config(peers: u32, regions: usize) -> SimConfig {
    SimConfig {
        ports: 2,
        peers_max: peers,
        recv_slots: CREDITS,
        payload_max: Bytes::of(MESSAGE_BYTES),
        regions_max: 2 * regions as u32 + 2,
        // few: the network looks at each of them whenever it is polled
        flights_max: 64,
        pull: true,
        ordered: true,
        immediate: true,
        copies_at_post: true,
        syscalls: Syscalls::None,
        latency: Span(100),
        delay_max: Span(0),
        seed: 1,
        faults: Faults::default(),
    }
}

/// Runs it. An error is a sentence about what should not have happened.
pub fn run(peers: u32) -> Result<Account, String> {
    let regions = Memory::regions_for(peers as usize);
    let limits = Limits {
        connections_max: peers,
        requests_max: 32,
        regions_max: regions as u32,
        rails_max: 1,
    };
    let config = config(peers, regions);
    let mut fabric_block = HeapBlock::new(SimFabric::bytes(config));
    let fabric = SimFabric::open(config, &mut fabric_block.carver()).map_err(|_| "fabric block")?;
    for _ in 0..peers {
        fabric.connect(0, 1).map_err(|error| format!("connect: {error:?}"))?;
    }
    let block_bytes = limits.machine_bytes() + limits.regions_bytes();
    let mut blocks = [HeapBlock::new(block_bytes), HeapBlock::new(block_bytes)];
    let [first, second] = blocks.each_mut();
    let mut sides =
        [Side::open(&fabric, 0, first, limits)?, Side::open(&fabric, 1, second, limits)?];
    let started = Clock::now();
    sides[0].connections_open(peers, &sides_peer(&sides, 1))?;
    let open_seconds = started.elapsed().as_secs_f64();
    sides[1].connections_open(peers, &sides_peer(&sides, 0))?;
    let message_seconds = messages(&mut sides, peers)?;
    let started = Clock::now();
    for _ in 0..IDLE_CALLS {
        sides[0].endpoint.progress(Instant(u64::MAX / 2), Bytes::kib(256));
    }
    let idle_ns = started.elapsed().as_secs_f64() * 1e9 / f64::from(IDLE_CALLS);
    Ok(Account { peers, block_bytes, open_seconds, message_seconds, idle_ns })
}

/// Where the mailboxes of a side lie, for the other.
fn sides_peer(sides: &[Side<'_, '_>; 2], side: usize) -> impl Fn(u32) -> RemoteSpan + use<> {
    let (mailboxes, key) = (sides[side].endpoint.mailboxes(), sides[side].key);
    move |index| RemoteSpan { key, address: mailboxes.address(index) }
}

/// One message on each connection, every byte compared; says how long it took.
fn messages(sides: &mut [Side<'_, '_>; 2], peers: u32) -> Result<f64, String> {
    let mut random = Random::new(1);
    let mut receives = Vec::with_capacity(peers as usize);
    let mut buffers = Vec::with_capacity(peers as usize);
    for index in 0..peers {
        let buffer = sides[0].memory.take(&mut random);
        sides[0].memory.fill(buffer, MESSAGE_BYTES, u64::from(index));
        buffers.push((buffer, sides[1].memory.take(&mut random)));
    }
    let started = Clock::now();
    for (index, (_, buffer)) in buffers.iter().enumerate() {
        receives.push(sides[1].irecv(index as u32, *buffer)?);
    }
    for (index, (buffer, _)) in buffers.iter().enumerate() {
        sides[0].isend(index as u32, *buffer)?;
    }
    let mut now = Instant(0);
    let mut left = receives.len();
    let mut rounds = 0;
    while left > 0 {
        now = now.after(Span(1000));
        for side in sides.iter_mut() {
            side.endpoint.progress(now, Bytes::kib(256));
        }
        while left > 0 {
            let asked = sides[1].endpoint.test(receives[left - 1]);
            match asked.map_err(|error| format!("test: {error:?}"))? {
                Some(outcome) if outcome.result.is_ok() => left -= 1,
                Some(outcome) => return Err(format!("a receive ended: {outcome:?}")),
                None => break,
            }
        }
        rounds += 1;
        if rounds == ROUNDS_MAX {
            return Err(format!("{left} messages did not arrive"));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    for (index, (_, buffer)) in buffers.iter().enumerate() {
        if !sides[1].memory.holds(*buffer, MESSAGE_BYTES, index as u64) {
            return Err(format!("the message of connection {index} has the wrong bytes"));
        }
    }
    Ok(seconds)
}

impl<'f, 'm> Side<'f, 'm> {
    fn open(
        fabric: &'f SimFabric<'m>,
        port: u32,
        block: &'m mut HeapBlock,
        limits: Limits,
    ) -> Result<Side<'f, 'm>, String> {
        let mut carver = block.carver();
        let table = DataMrs::carve(&mut carver, limits.regions_max, 0).map_err(|_| "block")?;
        let config = Config { salt: 2 * port + 2, ..Config::default() };
        let rail = fabric.port(port);
        let endpoint =
            Endpoint::open(&mut carver, limits, config, table, rail).map_err(|_| "block")?;
        let domain = endpoint.rail().domain();
        let key = memory::register(&domain, endpoint.mailboxes().region())
            .map_err(|error| format!("register: {error:?}"))?;
        let mut memory = Memory::new(limits.regions_max as usize);
        let mut regions = Vec::new();
        for at in 0..limits.regions_max as usize {
            let region = memory.region(at);
            let key = memory::register(&domain, region)
                .map_err(|error| format!("register: {error:?}"))?;
            regions.push(memory::enter(&table, region, key).ok_or("regions")?);
        }
        Ok(Side { endpoint, memory, regions, key })
    }

    fn connections_open(
        &mut self,
        peers: u32,
        mailbox: &impl Fn(u32) -> RemoteSpan,
    ) -> Result<(), String> {
        for index in 0..peers {
            let setup = ConnectionSetup {
                pull: true,
                mailbox: mailbox(index),
                eager_bytes_max: Bytes::of(MESSAGE_BYTES),
                credits: CREDITS,
                groups_max: self.endpoint.limits().groups_max(),
                lanes: 1,
                reserve: 0,
                probed: true,
                reads_runs: true,
                reads_filled: true,
                slots_in_rows: true,
            };
            self.endpoint.connection_open(ConnectionIndex(index), &setup);
        }
        Ok(())
    }

    fn isend(&mut self, index: u32, buffer: Buffer) -> Result<RequestId, String> {
        let region = self.regions[self.memory.region_of(buffer)];
        let address = self.memory.address(buffer);
        let message = Outgoing { region, address, length: MESSAGE_BYTES as u64, tag: 0 };
        let sent = self.endpoint.isend(ConnectionIndex(index), message);
        sent.map_err(|error| format!("send: {error:?}"))
    }

    fn irecv(&mut self, index: u32, buffer: Buffer) -> Result<RequestId, String> {
        let region = self.regions[self.memory.region_of(buffer)];
        let address = self.memory.address(buffer);
        let room = Incoming { region, address, length: MESSAGE_BYTES as u64, tag: 0 };
        let posted = self.endpoint.irecv(ConnectionIndex(index), &[room]);
        posted.map_err(|error| format!("receive: {error:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_gets_its_message() {
        let account = run(200).unwrap();
        assert_eq!(account.peers, 200);
        assert!(account.text().contains("200 peers"));
    }
}
