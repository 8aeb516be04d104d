//! One rank of a pattern: its connections to other ranks, and the messages that travel over them.
//!
//! Every message has bytes of its own, made from its sender, its receiver and its number, so that
//! one that goes astray is noticed as well as one that is damaged.
#![forbid(unsafe_code)]

use super::pattern::Pattern;
use crate::Failure;
use crate::owned::Backing;
use crate::perf::rails;
use crate::perf::side::{Place, Side};
use crate::rendezvous::Rendezvous;
use crosstie::base::slab::Handle;
use crosstie::host::RailView;
use crosstie::transport::RequestId;
use crosstie::wire::handle::HANDLE_BYTES;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long all ranks may take to connect, and to end a window. Far more than either takes.
pub const STEP_LIMIT: Duration = Duration::from_secs(120);
/// A rank says its number by a message of as many bytes.
const NUMBER_BYTES: u64 = crate::launch::RANKS_MAX as u64;
/// Bytes of messages that only bring ranks into step.
const STEP_BYTES: u64 = 8;

/// Messages of one window.
#[derive(Copy, Clone, Debug)]
pub struct Job {
    /// Length of each in bytes.
    pub bytes: u64,
    /// Messages on each way from one rank to another.
    pub rounds: u64,
    /// How many of them are outstanding.
    pub outstanding: u64,
    /// Every message is filled before and checked after it travelled.
    pub verify: bool,
}

/// Names the rank at whose connection something failed.
fn of_rank(rank: u32) -> impl Fn(Failure) -> Failure + Copy {
    move |failure| format!("rank {rank}: {failure}")
}

/// One way, to another rank or from it.
struct Lane {
    connection: Handle,
    peer: u32,
    started: u64,
    ended: u64,
    /// Outstanding requests, oldest first.
    requests: VecDeque<RequestId>,
}

/// A rank and its ways.
pub struct Lanes {
    side: Side,
    pattern: Pattern,
    rank: u32,
    backing: Backing,
    sends: Vec<Lane>,
    receives: Vec<Lane>,
}

impl Lanes {
    /// The rails of the first connection, where it has several.
    pub fn rails(&mut self) -> Vec<RailView> {
        rails::rails(&mut self.side)
    }

    /// As [`Side::attend`].
    pub fn attend<T: Send>(
        &mut self,
        wait: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.side.attend(wait)
    }

    /// Connects an endpoint, which has no buffers yet, to the other ranks.
    pub fn open(
        pattern: Pattern,
        mut side: Side,
        buffer: (Backing, u64),
        met: &mut Rendezvous,
    ) -> Result<Lanes, Failure> {
        let (rank, size) = (met.rank(), met.size());
        side.crowd(size);
        side.buffers_make(buffer.0, buffer.1.max(NUMBER_BYTES))?;
        let (listener, handle) = side.listen()?;
        let handles = met.gather(&handle, STEP_LIMIT)?;
        let targets = pattern.targets(rank, size);
        for target in &targets {
            side.connect(&handle_of(&handles, *target)?)?;
        }
        let comers = pattern.comers(rank, size).len();
        let deadline = Instant::now() + STEP_LIMIT;
        side.accept_while(listener, targets.len() + comers, || {
            // a rank that was refused ends, and nobody else would tell us
            met.all_here()?;
            match Instant::now() < deadline {
                true => Ok(()),
                false => Err("a rank that was to connect has not".into()),
            }
        })?;
        let mut lanes = Lanes {
            side,
            pattern,
            rank,
            backing: buffer.0,
            sends: Vec::new(),
            receives: Vec::new(),
        };
        let known = lanes.introduce(targets)?;
        lanes.lay(&known, size);
        met.barrier(STEP_LIMIT)?;
        Ok(lanes)
    }

    /// Tells those that were connected to which rank this is, and learns who the others are.
    /// Returns the rank behind each connection.
    fn introduce(&mut self, mut ranks: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let connections = self.side.connections.clone();
        let (made, taken) = connections.split_at(ranks.len());
        let place = |bytes| Place { backing: self.backing, offset: 0, bytes, seed: None };
        let mut said = Vec::new();
        for connection in made {
            let place = place(u64::from(self.rank));
            said.push(self.side.send_at(*connection, &place)?.ok_or("no record for a greeting")?);
        }
        for connection in taken {
            let place = place(NUMBER_BYTES);
            let heard = self.side.receive_at(*connection, &place)?;
            ranks.push(self.side.wait_length(heard.ok_or("no record for a greeting")?)? as u32);
        }
        for request in said {
            self.side.wait(request)?;
        }
        Ok(ranks)
    }

    /// Says which connections carry what.
    fn lay(&mut self, known: &[u32], size: u32) {
        let lane = |(peer, connection): (&u32, &Handle)| {
            let requests = VecDeque::with_capacity(crate::perf::side::REQUESTS_MAX as usize);
            Lane { connection: *connection, peer: *peer, started: 0, ended: 0, requests }
        };
        let all = || known.iter().zip(&self.side.connections);
        let made = self.pattern.targets(self.rank, size).len();
        let lower = self.rank.is_multiple_of(2);
        match self.pattern {
            Pattern::Pair if lower => self.sends = all().map(lane).collect(),
            Pattern::Pair => self.receives = all().map(lane).collect(),
            Pattern::Ring => {
                self.sends = all().take(made).map(lane).collect();
                self.receives = all().skip(made).map(lane).collect();
            }
            Pattern::AllToAll => {
                self.sends = all().map(lane).collect();
                self.receives = all().map(lane).collect();
            }
        }
    }

    /// How many messages a round is for this rank.
    pub fn fan(&self) -> u64 {
        self.sends.len().max(self.receives.len()) as u64
    }

    /// Bytes verified and messages found wrong until now.
    pub fn checked(&self) -> (u64, u64) {
        (self.side.verified, self.side.wrong)
    }

    /// Brings all ranks that hang together to the same moment, within a message's time.
    pub fn align(&mut self, size: u32) -> Result<(), Failure> {
        let rounds = match self.pattern {
            Pattern::Pair | Pattern::AllToAll => 1,
            // A rank's lateness travels by one rank a round.
            Pattern::Ring => u64::from(size),
        };
        self.steps(&Job { bytes: STEP_BYTES, rounds, outstanding: 1, verify: false })
    }

    /// One message at a time: back and forth in a pair; in the other patterns each rank sends, and
    /// waits for, a message on each of its ways before it goes on.
    pub fn steps(&mut self, job: &Job) -> Result<(), Failure> {
        for round in 0..job.rounds {
            if self.pattern != Pattern::Pair {
                self.flow(job, round..round + 1)?;
                continue;
            }
            let lower = self.receives.is_empty();
            self.one(job, round, lower)?;
            self.one(job, round, !lower)?;
        }
        Ok(())
    }

    /// Sends or receives one message of a pair.
    fn one(&mut self, job: &Job, round: u64, send: bool) -> Result<(), Failure> {
        let lane = self.sends.first().or(self.receives.first()).ok_or("a pair of one")?;
        let (connection, peer) = (lane.connection, lane.peer);
        let place =
            self.place(job, 0, round, if send { (self.rank, peer) } else { (peer, self.rank) });
        let request = match send {
            true => self.side.send_at(connection, &place),
            false => self.side.receive_at(connection, &place),
        };
        let of = of_rank(peer);
        let request = request.map_err(of)?;
        let request = request.ok_or("no record free although one message is outstanding")?;
        self.side.wait(request).map_err(of)?;
        if !send {
            self.side.verify_at(&place)?;
        }
        Ok(())
    }

    /// As many messages as may be outstanding, on all ways at once, to the end.
    pub fn stream(&mut self, job: &Job) -> Result<(), Failure> {
        self.flow(job, 0..job.rounds)?;
        match (self.pattern, self.sends.is_empty()) {
            // The sender's time ends when the receiver has all.
            (Pattern::Pair, true) => self.side.signal(),
            (Pattern::Pair, false) => self.side.signal_wait(),
            (Pattern::Ring | Pattern::AllToAll, _) => Ok(()),
        }
    }

    fn flow(&mut self, job: &Job, rounds: std::ops::Range<u64>) -> Result<(), Failure> {
        for lane in self.sends.iter_mut().chain(&mut self.receives) {
            (lane.started, lane.ended) = (rounds.start, rounds.start);
        }
        let mut open = true;
        while open {
            open = false;
            for at in 0..self.receives.len() {
                open |= self.receive_some(job, at, rounds.end)?;
            }
            for at in 0..self.sends.len() {
                open |= self.send_some(job, at, rounds.end)?;
            }
        }
        Ok(())
    }

    /// Starts and ends receives of one way; whether any are left.
    fn receive_some(&mut self, job: &Job, at: usize, end: u64) -> Result<bool, Failure> {
        let of = of_rank(self.receives[at].peer);
        loop {
            let lane = &self.receives[at];
            let (connection, round) = (lane.connection, lane.started);
            if round == end || round - lane.ended == job.outstanding {
                break;
            }
            let place = self.place(job, at, round, (lane.peer, self.rank));
            let Some(request) = self.side.receive_at(connection, &place).map_err(of)? else {
                break;
            };
            self.receives[at].requests.push_back(request);
            self.receives[at].started += 1;
        }
        while let Some(request) = self.receives[at].requests.front() {
            if !self.side.ended(*request).map_err(of)? {
                break;
            }
            let lane = &self.receives[at];
            let place = self.place(job, at, lane.ended, (lane.peer, self.rank));
            self.side.verify_at(&place)?;
            self.receives[at].requests.pop_front();
            self.receives[at].ended += 1;
        }
        Ok(self.receives[at].ended < end)
    }

    /// Starts and ends sends of one way; whether any are left.
    fn send_some(&mut self, job: &Job, at: usize, end: u64) -> Result<bool, Failure> {
        let of = of_rank(self.sends[at].peer);
        loop {
            let lane = &self.sends[at];
            let (connection, round) = (lane.connection, lane.started);
            if round == end || round - lane.ended == job.outstanding {
                break;
            }
            let place = self.place(job, at, round, (self.rank, lane.peer));
            let Some(request) = self.side.send_at(connection, &place).map_err(of)? else { break };
            self.sends[at].requests.push_back(request);
            self.sends[at].started += 1;
        }
        while let Some(request) = self.sends[at].requests.front() {
            if !self.side.ended(*request).map_err(of)? {
                break;
            }
            self.sends[at].requests.pop_front();
            self.sends[at].ended += 1;
        }
        Ok(self.sends[at].ended < end)
    }

    /// Where message `round` of a way lies, and its bytes, which its two ends know.
    fn place(&self, job: &Job, lane: usize, round: u64, ends: (u32, u32)) -> Place {
        let slot = lane as u64 * job.outstanding + round % job.outstanding;
        let (from, to) = (u64::from(ends.0), u64::from(ends.1));
        let seed = round.wrapping_mul(0x1_0001) + (from << 42) + (to << 52) + job.bytes;
        let offset = slot * stride(job.bytes);
        Place { backing: self.backing, offset, bytes: job.bytes, seed: job.verify.then_some(seed) }
    }
}

/// Distance of messages in a buffer: whole cache lines.
pub fn stride(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(64)
}

fn handle_of(handles: &[Vec<u8>], rank: u32) -> Result<[u8; HANDLE_BYTES], Failure> {
    let handle = handles[rank as usize].as_slice();
    handle.try_into().map_err(|_| format!("rank {rank} gave no handle"))
}
