//! Two endpoints, one connection between them, and a record of all that was asked of them.
#![forbid(unsafe_code)]

use super::lanes::{self, Ends, Lanes};
use super::memory::{self, BUFFER_BYTES, Buffer, Held, Memory};
use super::network::{EAGER_BYTES, REGIONS};
use super::oracle::{self, Oracle, Pairing, Posted, Sent};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::ConnectionIndex;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{MemoryDomain, RailKey, RemoteSpan};
use crosstie::transport::endpoint::ConnectionCloseError;
use crosstie::transport::limits::CREDITS;
use crosstie::transport::{
    Config, ConnectionSetup, DataMrs, Endpoint, Incoming, Limits, Outcome, Outgoing, RequestError,
    RequestId, SubmitError,
};
use crosstie_kit::random::Random;
use crosstie_kit::sim::SimFabric;
use std::cell::RefCell;
use std::rc::Rc;

pub(super) const CONNECTION: ConnectionIndex = ConnectionIndex(0);
pub(super) const BUDGET: Bytes = Bytes::kib(256);
/// Messages of one direction that wait for a receive.
pub(super) const UNMATCHED_MAX: usize = 12;
/// Buffers that receives leave for sends, more than can be unmatched.
const BUFFERS_SPARE: usize = 3 * UNMATCHED_MAX;

pub(super) struct SendRecord {
    pub(super) sent: Sent,
    pub(super) buffer: Buffer,
    pub(super) request: RequestId,
    pub(super) ended: bool,
}

pub(super) struct GroupRecord {
    pub(super) tags: Vec<i32>,
    pub(super) rooms: Vec<(Buffer, usize)>,
    pub(super) request: RequestId,
    /// Posted when the connection had ended at this side.
    pub(super) is_late: bool,
    pub(super) cancel_asked: bool,
    pub(super) outcome: Option<Outcome>,
    /// What the buffers held when the request ended, kept for the oracle.
    pub(super) held: Vec<Held>,
}

/// One direction of the connection.
#[derive(Default)]
pub(super) struct Direction {
    pub(super) sends: Vec<SendRecord>,
    pub(super) groups: Vec<GroupRecord>,
    paired: RefCell<Paired>,
}

/// What [`Direction::pairing`] said last.
#[derive(Default)]
struct Paired {
    /// The messages, the groups and those of them that were canceled: nothing else counts.
    of: [usize; 3],
    pairing: Rc<(Pairing, Vec<usize>)>,
}

impl Direction {
    fn is_kept(group: &GroupRecord) -> bool {
        group.outcome.is_none_or(|outcome| outcome.result != Err(RequestError::Canceled))
    }

    fn posted(&self) -> (Vec<Posted>, Vec<usize>) {
        let kept: Vec<usize> =
            (0..self.groups.len()).filter(|at| Self::is_kept(&self.groups[*at])).collect();
        let posted = |at: &usize| {
            let GroupRecord { tags, is_late, .. } = &self.groups[*at];
            Posted { tags: tags.clone(), is_late: *is_late }
        };
        (kept.iter().map(posted).collect(), kept)
    }

    /// Who gets what, and which groups that counts. It is asked at each step, so it is worked out
    /// again only when something has changed.
    pub(super) fn pairing(&self) -> Rc<(Pairing, Vec<usize>)> {
        let canceled = self.groups.iter().filter(|group| !Self::is_kept(group)).count();
        let of = [self.sends.len(), self.groups.len(), canceled];
        let mut paired = self.paired.borrow_mut();
        if paired.of != of {
            *paired = Paired { of, pairing: Rc::new(self.pairing_by(oracle::pair)) };
        }
        Rc::clone(&paired.pairing)
    }

    pub(super) fn pairing_by(&self, pair: Oracle) -> (Pairing, Vec<usize>) {
        let sent: Vec<Sent> = self.sends.iter().map(|send| send.sent).collect();
        let (posted, kept) = self.posted();
        (pair(&sent, &posted), kept)
    }

    pub(super) fn is_done(&self) -> bool {
        self.sends.iter().all(|send| send.ended)
            && self.groups.iter().all(|group| group.outcome.is_some())
    }
}

pub(super) struct World<'f, 'm> {
    pub(super) endpoints: Ends<'f, 'm>,
    pub(super) tables: [DataMrs<'m>; 2],
    pub(super) regions: [[Handle; REGIONS]; 2],
    pub(super) memory: [Memory; 2],
    pub(super) directions: [Direction; 2],
    pub(super) random: Random,
    pub(super) now: Instant,
    pub(super) calls: u64,
    pub(super) failed: bool,
    pub(super) lanes: Lanes,
}

/// Whether a request ended because its connection did.
fn ends_connection(outcome: &Outcome) -> bool {
    matches!(
        outcome.result,
        Err(RequestError::PeerClosed
            | RequestError::PeerDied
            | RequestError::Protocol
            | RequestError::PeerGaveUp
            | RequestError::RailsLost(_)
            | RequestError::NoAnswer
            | RequestError::Unfenced
            | RequestError::Silent
            | RequestError::Fabric(_))
    )
}

/// Two endpoints of a network, whose mailboxes are registered.
pub(super) struct Opened<'f, 'm> {
    pub(super) endpoints: Ends<'f, 'm>,
    pub(super) tables: [DataMrs<'m>; 2],
    /// Of the mailboxes.
    pub(super) keys: [RailKey; 2],
}

/// Opens an endpoint on each of two ports.
pub(super) fn ends_open<'f, 'm>(
    fabric: &'f SimFabric<'m>,
    blocks: &'m mut [HeapBlock; 2],
    limits: Limits,
) -> Opened<'f, 'm> {
    let mut port = 0;
    let halves = blocks.each_mut().map(|block| {
        let mut carver = block.carver();
        let table = DataMrs::carve(&mut carver, limits.regions_max, 0).expect("sized");
        let config = Config {
            eager_bytes_max: EAGER_BYTES,
            eager_mapped_bytes_max: EAGER_BYTES,
            salt: 0x5a17 + port,
            stripe_bytes_min: Bytes(128),
            loss_span: lanes::LOSS_SPAN,
            fence_span: lanes::FENCE_SPAN,
        };
        let rail = fabric.port(port);
        let endpoint = Endpoint::open(&mut carver, limits, config, table, rail).expect("sized");
        port += 1;
        (endpoint, table)
    });
    let tables = halves.each_ref().map(|(_, table)| *table);
    let endpoints = halves.map(|(endpoint, _)| endpoint);
    let keys = endpoints.each_ref().map(|endpoint| {
        let region = endpoint.mailboxes().region();
        memory::register(&endpoint.rail().domain(), region).expect("sized")
    });
    Opened { endpoints, tables, keys }
}

/// How a side takes a connection with so many lanes into use, whose peer has this mailbox.
pub(super) fn setup(
    seed: u64,
    side: usize,
    (pull, limits): (bool, Limits),
    (lanes, mailbox): (u32, RemoteSpan),
) -> ConnectionSetup {
    ConnectionSetup {
        pull,
        mailbox,
        eager_bytes_max: EAGER_BYTES,
        credits: CREDITS,
        groups_max: limits.groups_max(),
        lanes: lanes as u8,
        // of every other schedule control leaves lane 0 as soon as another is up
        reserve: u8::from(lanes > 1 && seed & 1 == 1),
        probed: seed & 2 == 0, // else a peer is older, and wants all slots with others
        reads_runs: !(seed / 16 + side as u64).is_multiple_of(4),
        reads_filled: !(seed / 64 + side as u64).is_multiple_of(3),
        slots_in_rows: !(seed / 128).is_multiple_of(3),
    }
}

impl<'f, 'm> World<'f, 'm> {
    pub(super) fn open(
        fabric: &'f SimFabric<'m>,
        blocks: &'m mut [HeapBlock; 2],
        (pull, limits): (bool, Limits),
        lanes: Lanes,
        seed: u64,
    ) -> Result<World<'f, 'm>, String> {
        let mut memories = [Memory::new(REGIONS), Memory::new(REGIONS)];
        let mut regions = [[Handle::default(); REGIONS]; 2];
        let Opened { mut endpoints, tables, keys } = ends_open(fabric, blocks, limits);
        for side in 0..2 {
            for (at, handle) in regions[side].iter_mut().enumerate() {
                let region = memories[side].region(at);
                let domain = endpoints[side].rail().domain();
                let key = memory::register(&domain, region).map_err(|e| format!("{e:?}"))?;
                *handle = memory::enter(&tables[side], region, key).ok_or("regions")?;
            }
            let other = 1 - side;
            let mailbox =
                RemoteSpan { key: keys[other], address: endpoints[other].mailboxes().address(0) };
            let setup = setup(seed, side, (pull, limits), (lanes.count, mailbox));
            endpoints[side].connection_open(CONNECTION, &setup);
        }
        Ok(World {
            endpoints,
            tables,
            regions,
            memory: memories,
            directions: Default::default(),
            random: Random::new(seed),
            now: Instant(0),
            calls: 0,
            failed: false,
            lanes,
        })
    }

    /// A length to send.
    pub(super) fn length(&mut self) -> usize {
        match self.random.below(4) {
            0 => 0,
            1 => self.random.below(EAGER_BYTES.0 + 2) as usize,
            _ => self.random.below(BUFFER_BYTES as u64 + 1) as usize,
        }
    }

    /// Sends from `side`. `Ok(false)`: full.
    pub(super) fn isend(&mut self, side: usize, tag: i32, length: usize) -> Result<bool, String> {
        if self.memory[side].left() == 0 {
            return Ok(false);
        }
        let buffer = self.memory[side].take(&mut self.random);
        let seed = self.random.next();
        self.memory[side].fill(buffer, length, seed);
        let message = Outgoing {
            region: self.regions[side][self.memory[side].region_of(buffer)],
            address: self.memory[side].address(buffer),
            length: length as u64,
            tag,
        };
        match self.endpoints[side].isend(CONNECTION, message) {
            Ok(request) => {
                let sent = Sent { tag, length, seed };
                let record = SendRecord { sent, buffer, request, ended: false };
                self.directions[side].sends.push(record);
                Ok(true)
            }
            Err(error) => {
                self.memory[side].give_back(buffer);
                self.refused(error)?;
                Ok(false)
            }
        }
    }

    /// Posts a group at `side`, for messages of the other.
    pub(super) fn irecv(&mut self, side: usize, tags: &[i32]) -> Result<bool, String> {
        self.irecv_of(side, tags, false)
    }

    /// The same; `near` in few regions, so that their peer can be told the keys of all.
    pub(super) fn irecv_of(
        &mut self,
        side: usize,
        tags: &[i32],
        near: bool,
    ) -> Result<bool, String> {
        if self.memory[side].left() < tags.len() + BUFFERS_SPARE {
            return Ok(false);
        }
        let rooms: Vec<(Buffer, usize)> = tags
            .iter()
            .map(|_| {
                let short = self.random.below(12) == 0;
                let room = if short { self.length() } else { BUFFER_BYTES };
                let memory = &mut self.memory[side];
                (if near { memory.take_first() } else { memory.take(&mut self.random) }, room)
            })
            .collect();
        let buffers: Vec<Incoming> = rooms
            .iter()
            .zip(tags)
            .map(|((buffer, room), tag)| Incoming {
                region: self.regions[side][self.memory[side].region_of(*buffer)],
                address: self.memory[side].address(*buffer),
                length: *room as u64,
                tag: *tag,
            })
            .collect();
        let is_late = !self.endpoints[side].is_open(CONNECTION);
        match self.endpoints[side].irecv(CONNECTION, &buffers) {
            Ok(request) => {
                self.directions[1 - side].groups.push(GroupRecord {
                    tags: tags.to_vec(),
                    rooms,
                    request,
                    is_late,
                    cancel_asked: false,
                    outcome: None,
                    held: Vec::new(),
                });
                Ok(true)
            }
            Err(error) => {
                for (buffer, _) in rooms {
                    self.memory[side].give_back(buffer);
                }
                self.refused(error)?;
                Ok(false)
            }
        }
    }

    fn refused(&mut self, error: SubmitError) -> Result<(), String> {
        match error {
            SubmitError::Again => Ok(()),
            SubmitError::Failed(_) | SubmitError::Connection => {
                self.failed = true;
                Ok(())
            }
            other => Err(format!("a good request was refused: {other:?}")),
        }
    }

    /// Progress of one side, a little time, and every request asked.
    pub(super) fn progress(&mut self, side: usize) -> Result<(), String> {
        self.now = self.now.after(Span(self.random.below(600)));
        self.endpoints[side].progress(self.now, BUDGET);
        self.ask_sends(side)?;
        self.ask_receives(side)
    }

    fn ask_sends(&mut self, side: usize) -> Result<(), String> {
        let World { endpoints, memory, directions, .. } = self;
        for send in directions[side].sends.iter_mut().filter(|send| !send.ended) {
            let asked = endpoints[side].test(send.request);
            let Some(outcome) = asked.map_err(|error| format!("send: {error:?}"))? else {
                continue;
            };
            send.ended = true;
            if outcome.result.is_ok() && outcome.lengths[0] != send.sent.length as u64 {
                return Err(format!("a send of {} said {:?}", send.sent.length, outcome));
            }
            self.failed |= outcome.result.is_err();
            if !memory[side].holds(send.buffer, send.sent.length, send.sent.seed) {
                return Err("a source was written".into());
            }
            memory[side].give_back(send.buffer);
        }
        Ok(())
    }

    fn ask_receives(&mut self, side: usize) -> Result<(), String> {
        let World { endpoints, memory, directions, .. } = self;
        let mut broken = false;
        for group in directions[1 - side].groups.iter_mut().filter(|group| group.outcome.is_none())
        {
            let asked = endpoints[side].test(group.request);
            let Some(outcome) = asked.map_err(|error| format!("receive: {error:?}"))? else {
                continue;
            };
            group.outcome = Some(outcome);
            broken |= ends_connection(&outcome);
            for (at, (buffer, _)) in group.rooms.iter().enumerate() {
                let length = outcome.lengths[at] as usize;
                group.held.push(memory[side].content(*buffer, length));
                memory[side].give_back(*buffer);
            }
        }
        self.failed |= broken;
        Ok(())
    }

    pub(super) fn close(&mut self, side: usize) -> Result<(), String> {
        match self.endpoints[side].connection_close(CONNECTION) {
            Ok(()) | Err(ConnectionCloseError::Stale | ConnectionCloseError::Again) => Ok(()),
        }
    }

    /// Kills a lane, or lets one come back.
    pub fn lanes_step(&mut self, fabric: &SimFabric<'m>) -> Result<(), String> {
        let World { endpoints, lanes, random, now, failed, .. } = self;
        if lanes.count == 1 {
            return Ok(());
        }
        lanes::release(endpoints, core::slice::from_mut(lanes))?;
        lanes.step(endpoints, fabric, (random, *now), *failed)
    }

    /// Closes what the machine says is down.
    #[cfg(test)]
    pub fn lanes_release(&mut self, side: usize) -> Result<(), String> {
        let World { endpoints, lanes, .. } = self;
        lanes::release_at(endpoints, core::slice::from_mut(lanes), side)
    }
}
