//! The endpoint: owns the parts, takes requests, makes progress, tells outcomes.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::limits::{CREDITS, Config, EARLY_MAX, KEPT_BYTES, Limits, POLL_BATCH, STREAM_KEPT};
use super::mr::{CtrlMr, DataMrs, Kept, Scratch, SpanError};
use super::rail::{Lane, LaneMeter};
use super::records::{
    ConnectionState, EarlySend, GroupRecord, HeldMessage, ReceiveRecord, SendRecord, StreamRecord,
};
use super::request::{RequestError, RequestId, RequestKind, SubmitError};
use super::stats::Stats;
use super::used::{RecordsUsed, record_words};
use crate::base::bitset::{self, BitSet};
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::Seq;
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{Caps, Completion, DownCause, Next, Provider, RemoteSpan};
use crate::wire::GROUP_MAX;

/// Longest message of any connection. NCCL's steps are at most 1 GiB. A rail may carry less:
/// [`Endpoint::message_bytes_max`].
pub const MESSAGE_BYTES_MAX: u64 = 1 << 40;

/// A message to send.
#[derive(Copy, Clone, Debug)]
pub struct Outgoing {
    /// Region that the message lies in; not looked at when `length` is zero.
    pub region: Handle,
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Matched against the tags of the oldest group.
    pub tag: i32,
}

/// Room for a message to receive.
#[derive(Copy, Clone, Debug)]
pub struct Incoming {
    /// Region that the room lies in; not looked at when `length` is zero.
    pub region: Handle,
    /// Address of its first byte.
    pub address: u64,
    /// Room in bytes.
    pub length: u64,
    /// Takes messages with this tag.
    pub tag: i32,
}

/// What the hello of both sides agreed on for one connection.
#[derive(Copy, Clone, Debug)]
pub struct ConnectionSetup {
    /// The rail pulls, in both directions.
    pub pull: bool,
    /// The peer's mailbox for this connection.
    pub mailbox: RemoteSpan,
    /// Longest eager payload that the peer takes.
    pub eager_bytes_max: Bytes,
    /// Receives that the peer keeps for us.
    pub credits: u32,
    /// Groups that may be outstanding at the peer; must equal ours on rails that push.
    pub groups_max: u32,
    /// Lanes that the connection has at both ends, 1 to [`Limits::rails_max`]. Lane 0 is up, the
    /// others come up by [`Endpoint::lane_rejoin`]. With several the rail pushes.
    pub lanes: u8,
    /// A bit for each lane that carries bytes for the others when they cannot, and else as many as
    /// tell how fast it is: what it carries costs more than theirs.
    pub reserve: u8,
    /// Both ends answer probes: a lane is used by whom the other has heard there (W10).
    pub probed: bool,
    /// The peer reads slots that speak for several groups (W3).
    pub reads_runs: bool,
    /// The peer reads in heads which groups its messages have filled (W1).
    pub reads_filled: bool,
    /// Both sides know mailboxes in which the first slots of all groups lie together (W3).
    pub slots_in_rows: bool,
}

/// What a call of [`Endpoint::progress`] did.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Progress {
    /// Events that the rail reported, lines of peers that said something new, and sends that ended
    /// since the last call. Zero does not mean that nothing is outstanding.
    pub events: usize,
}

/// Why a connection could not be closed yet, or at all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ConnectionCloseError {
    /// Operations are being fenced: make progress, then call again.
    Again,
    /// No such connection.
    Stale,
}

/// The machine of one endpoint over one rail. `&mut`: one owner at a time.
#[derive(Debug)]
pub struct Endpoint<'m, P: Provider> {
    pub(super) rail: P,
    pub(super) caps: Caps,
    pub(super) limits: Limits,
    pub(super) config: Config,
    pub(super) regions: DataMrs<'m>,
    pub(super) mailboxes: CtrlMr,
    pub(super) scratch: Scratch,
    pub(super) connections: &'m mut [Connection],
    pub(super) sends: &'m mut [SendRecord],
    /// A bit for each of them that holds a send, in words of each connection.
    sends_used: &'m mut [u64],
    pub(super) groups: &'m mut [GroupRecord],
    pub(super) receives: &'m mut [ReceiveRecord],
    pub(super) early: &'m mut [EarlySend],
    pub(super) held: &'m mut [HeldMessage],
    pub(super) lanes: &'m mut [Lane],
    /// By lane, where there may be several.
    pub(super) meters: &'m mut [LaneMeter],
    /// Which stripes of each send each lane has carried and not been relieved of.
    pub(super) carried: &'m mut [u64],
    pub(super) stream: &'m mut [StreamRecord],
    pub(super) kept: Kept,
    /// Connections with something to post.
    pub(super) work: BitSet<'m>,
    /// Connections whose mailbox will change.
    pub(super) watch: BitSet<'m>,
    /// Connections that wait for something with a deadline.
    pub(super) troubled: BitSet<'m>,
    /// Lanes, by their peer number, that their provider may close and open again.
    pub(super) lanes_down: BitSet<'m>,
    /// A lane's number within its peer number has so many bits.
    pub(super) lane_bits: u32,
    /// Connections of several lanes.
    pub(super) failing_over: usize,
    pub(super) stats: Stats,
    /// Why a peer's report was not believed last.
    pub(super) report_error: Option<(ConnectionIndex, super::ReportError)>,
    /// What happened since the last progress ended, without an event of the rail's.
    pub(super) news: usize,
    /// Connections that hold slots back.
    pub(super) holding: usize,
    /// Pushing connections in use, whose peers may ask groups back.
    pub(super) pushing: usize,
    /// The connection whose slots are looked at next, although nothing waits for them.
    rota: usize,
    pub(super) now: Instant,
    /// When deadlines were looked at last, and the time over which they have been.
    pub(super) looked_at: Instant,
    pub(super) waited: Instant,
    batch: [Completion; POLL_BATCH],
    /// The fault that was planted, if any.
    #[cfg(feature = "proof")]
    pub(super) mutant: Option<super::mutant::Mutant>,
}

/// Receives of which one at least is followed by a look at what came without an event.
const WATCH_RECEIVES: u64 = 8;

impl<'m, P: Provider> Endpoint<'m, P> {
    /// Cuts an endpoint out of a block, as [`Limits::machine_bytes`] counts. `limits` have passed
    /// [`Limits::check`].
    ///
    /// *Panics* when the rail does not copy sends at post ([`Caps::copies_at_post`]).
    pub fn open(
        block: &mut Carver<'m>,
        limits: Limits,
        config: Config,
        regions: DataMrs<'m>,
        rail: P,
    ) -> Result<Endpoint<'m, P>, BlockTooSmall> {
        let connections = limits.connections_max as usize;
        let requests = connections * limits.requests_max as usize;
        let rails = limits.rails_max as usize;
        let (meters, stream, kept) = match rails {
            1 => (0, 0, 0),
            _ => (rails, STREAM_KEPT as usize, KEPT_BYTES as usize),
        };
        assert!(rail.caps().copies_at_post);
        let nothing = Completion::PeerDown { peer: PeerIndex(0), cause: DownCause::Closed };
        Ok(Endpoint {
            caps: rail.caps(),
            rail,
            limits,
            config,
            regions,
            scratch: Scratch::carve(block, limits.rails_max)?,
            mailboxes: CtrlMr::carve(block, limits.connections_max, limits.mailbox_bytes())?,
            connections: block.filled(connections, Connection::FREE)?,
            sends: block.slice(requests)?,
            sends_used: block.slice(connections * record_words(limits.requests_max))?,
            groups: block.slice(requests)?,
            receives: block.slice(requests * GROUP_MAX)?,
            early: block.slice(connections * EARLY_MAX as usize)?,
            held: block.slice(connections * CREDITS as usize)?,
            lanes: block.filled(connections * rails, Lane::DOWN)?,
            meters: block.filled(connections * meters, LaneMeter::NONE)?,
            carried: block.slice(requests * limits.carried_words())?,
            stream: block.slice(connections * stream)?,
            kept: Kept::carve(block, connections * kept)?,
            work: BitSet::new(block.slice(bitset::words(connections))?),
            watch: BitSet::new(block.slice(bitset::words(connections))?),
            troubled: BitSet::new(block.slice(bitset::words(connections))?),
            lanes_down: BitSet::new(block.slice(bitset::words(limits.peers_max() as usize))?),
            lane_bits: limits.rails_max.trailing_zeros(),
            failing_over: 0,
            stats: Stats::default(),
            report_error: None,
            news: 0,
            holding: 0,
            pushing: 0,
            rota: 0,
            now: Instant::default(),
            looked_at: Instant::default(),
            waited: Instant(1), // 0 is no time
            batch: [nothing; POLL_BATCH],
            #[cfg(feature = "proof")]
            mutant: None,
        })
    }

    /// The control memory, to be registered on the rail before any connection is opened.
    pub fn mailboxes(&self) -> CtrlMr {
        self.mailboxes
    }

    /// The rail, for set-up of its peers.
    pub fn rail_mut(&mut self) -> &mut P {
        &mut self.rail
    }

    /// The rail.
    pub fn rail(&self) -> &P {
        &self.rail
    }

    /// Counts since open.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The limits it was opened with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether a connection is open.
    pub fn is_open(&self, connection: ConnectionIndex) -> bool {
        self.connections
            .get(connection.as_usize())
            .is_some_and(|c| c.state == ConnectionState::Open)
    }

    /// Whether the number is one of a connection that was opened and not closed to its end.
    pub fn is_used(&self, connection: ConnectionIndex) -> bool {
        self.connections
            .get(connection.as_usize())
            .is_some_and(|c| c.state != ConnectionState::Free)
    }

    /// Accepts a message. The buffer belongs to the library until the request has ended.
    ///
    /// *Cost*: a short message is copied and posted at once; a long one is described.
    #[inline(always)]
    pub fn isend(
        &mut self,
        connection: ConnectionIndex,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let index = self.open_index(connection)?;
        if message.length > MESSAGE_BYTES_MAX {
            return Err(SubmitError::TooLong);
        }
        let region = self.regions.check(message.region, message.address, message.length)?;
        if self.eager_straight(index, region, &message) {
            self.stats.sends += 1;
            self.stats.send_bytes += message.length;
            return Ok(self.complete(message.length));
        }
        self.isend_other(index, region, message)
    }

    /// Accepts a group of 1 to 8 receives. The buffers belong to the library until the request has
    /// ended.
    #[inline(always)]
    pub fn irecv(
        &mut self,
        connection: ConnectionIndex,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        match self.open_index(connection) {
            Ok(index) => self.group_take(connection, index, buffers),
            Err(refusal) => self.irecv_left(connection, buffers, refusal),
        }
    }

    /// Accepts a group of receives on a connection that takes it.
    #[inline(always)]
    pub(super) fn group_take(
        &mut self,
        connection: ConnectionIndex,
        index: usize,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        if buffers.is_empty() || buffers.len() > GROUP_MAX {
            return Err(SubmitError::Group);
        }
        let requests = self.limits.requests_max;
        let c = &mut self.connections[index];
        let number = c.recv.post;
        let at = index * requests as usize + number.cell(requests);
        let requests_all = self.groups.len();
        let group = &mut self.groups[at];
        let offered = c.pull || number.ahead_of(c.recv.offers.next) < requests as i32;
        // where slots may have to be written again, their records wait until the peer is past them
        let kept = P::SEVERAL_LANES
            && c.rails.fails_over()
            && number.ahead_of(c.recv.offers.passed) >= requests as i32;
        if group.used || !offered || kept {
            return Err(SubmitError::Again);
        }
        // the record is free: what a refused group leaves in it does not count
        match buffers {
            [buffer] => self.receives[at] = receive_take(&self.regions, buffer)?,
            _ => receives_take(&self.regions, &mut self.receives[at..], requests_all, buffers)?,
        }
        let generation = group.generation.wrapping_add(1);
        let count = buffers.len() as u8;
        *group = GroupRecord { number, generation, count, used: true, ..GroupRecord::FREE };
        c.recv.post = number.next();
        let unexpected = !c.recv.messages.unexpected.is_empty() && c.recv.oldest == number;
        if !c.pull {
            self.work.insert(index);
        }
        if unexpected {
            self.unexpected_match(index);
        }
        let (record, generation) = (number.cell(requests) as u8, self.salted(generation));
        Ok(RequestId::pack(RequestKind::Receive { connection, record, generation }))
    }

    /// Moves everything on that can move now; copies about `budget` bytes at most.
    #[inline(always)]
    pub fn progress(&mut self, now: Instant, budget: Bytes) -> Progress {
        self.now = now;
        if !self.work.is_empty() {
            self.work_step(); // what the user has asked for since leaves with this poll
        }
        let (mut events, received) = (0, self.stats.receives);
        while events < POLL_BATCH {
            match self.rail.next() {
                Next::Received { peer, slot, head, length } => {
                    self.send_arrived(peer, slot, &head, length);
                    events += 1;
                }
                Next::Nothing => break,
                Next::Poll => {
                    events += self.poll(budget);
                    break;
                }
            }
        }
        if self.pushing != 0 {
            self.rota_step();
        }
        // what has come may wait for an answer: with most of such polls the next one looks
        let may_wait = P::SEVERAL_LANES
            && self.stats.receives != received
            && self.stats.receives / WATCH_RECEIVES == received / WATCH_RECEIVES;
        if !self.watch.is_empty() && !may_wait {
            self.watch_step();
        }
        if !self.work.is_empty() {
            self.work_step();
        }
        if P::SEVERAL_LANES && !self.troubled.is_empty() {
            self.deadlines_look();
        }
        self.rail.flush(budget);
        events += core::mem::take(&mut self.news);
        Progress { events }
    }

    /// Before its user sleeps: looks at what every peer has asked for without an event. `false`:
    /// something is due now, make progress instead.
    pub fn look_around(&mut self) -> bool {
        if self.pushing == 0 {
            return true;
        }
        let before = self.news;
        if self.holding != 0 {
            self.offers_release();
        }
        for _ in 0..self.connections.len() {
            self.rota_step();
        }
        self.news == before
    }

    /// Looks at one connection's slots: a peer that wants a group back waits for the verdict, also
    /// when we have nothing to send.
    fn rota_step(&mut self) {
        let index = self.rota;
        self.rota = if index + 1 < self.connections.len() { index + 1 } else { 0 };
        let c = &self.connections[index];
        if c.state == ConnectionState::Open && !c.pull {
            self.withdrawals_look(index);
        }
    }

    /// Takes in a batch of the rail's events.
    #[inline(never)]
    fn poll(&mut self, budget: Bytes) -> usize {
        let events = self.rail.poll(&mut self.batch, budget, self.now);
        for at in 0..events {
            let completion = self.batch[at];
            self.completion(&completion);
        }
        events
    }

    #[inline]
    fn completion(&mut self, completion: &Completion) {
        match *completion {
            Completion::Received { peer, slot, ref head, length } => {
                self.send_arrived(peer, slot, head, length);
            }
            Completion::Done { peer, id, result } => self.op_done(peer, id, result),
            Completion::Immediate { peer, immediate } => {
                self.stripe_arrived(peer, immediate);
            }
            Completion::Fenced { peer, .. } => self.fenced(peer),
            Completion::PeerDown { peer, cause } => self.peer_went_down(peer, cause),
        }
    }

    #[inline(never)]
    fn watch_step(&mut self) {
        let mut from = 0;
        while let Some(index) = self.watch.next_from(from) {
            from = index + 1;
            if self.connections[index].state != ConnectionState::Open {
                self.watch.remove(index); // what the peer still says is not for us any more
                continue;
            }
            self.state_look(index);
            if self.connections[index].recv.hold.on {
                self.offers_look(index);
            } else if self.offers_have_room(index) {
                self.work.insert(index); // heads tell of it as well as state lines
            }
            let c = &self.connections[index];
            if !c.send.queue.is_empty() {
                self.work.insert(index);
            } else if !c.is_watching() {
                self.watch.remove(index);
            }
        }
    }

    #[inline(never)]
    fn work_step(&mut self) {
        let mut from = 0;
        while let Some(index) = self.work.next_from(from) {
            from = index + 1;
            self.work.remove(index);
            if self.connection_work(index) {
                self.work.insert(index);
            }
        }
    }

    /// Posts what is due on one connection; says whether something is still due.
    pub(super) fn connection_work(&mut self, index: usize) -> bool {
        match self.connections[index].state {
            ConnectionState::Free => false,
            ConnectionState::Failed => {
                P::SEVERAL_LANES
                    && self.connections[index].rails.quarantine
                    && self.fences_step(index)
            }
            ConnectionState::Failing | ConnectionState::Closing => self.fences_step(index),
            ConnectionState::Open => {
                let failover = self.fails_over(index) && self.failover_step(index);
                let pulls = self.pulls_step(index);
                let slots = self.slots_step(index);
                let sends = self.sends_step(index);
                let state = self.state_step(index);
                failover | pulls | slots | sends | state
            }
        }
    }

    #[inline(always)]
    pub(super) fn open_index(&self, connection: ConnectionIndex) -> Result<usize, SubmitError> {
        let index = connection.as_usize();
        match self.connections.get(index) {
            Some(c) if c.state == ConnectionState::Open => Ok(index),
            known => Err(not_open(known)),
        }
    }

    /// The numbers of the records that hold sends.
    #[inline]
    pub(super) fn sends_used(&self, index: usize) -> RecordsUsed {
        let words = record_words(self.limits.requests_max);
        RecordsUsed::of(&self.sends_used[index * words..][..words])
    }

    #[inline]
    pub(super) fn sends_used_mut(&mut self, index: usize) -> &mut [u64] {
        let words = record_words(self.limits.requests_max);
        &mut self.sends_used[index * words..][..words]
    }

    /// The numbers of a connection's records.
    pub(super) fn records(&self) -> core::ops::RangeInclusive<u8> {
        0..=(self.limits.requests_max - 1) as u8
    }

    #[inline]
    pub(super) fn send_at(&self, index: usize, record: u8) -> usize {
        index * self.limits.requests_max as usize + usize::from(record)
    }

    #[inline]
    pub(super) fn group_at(&self, index: usize, number: Seq) -> usize {
        index * self.limits.requests_max as usize + number.cell(self.limits.requests_max)
    }

    #[inline]
    pub(super) fn held_at(&self, index: usize, record: u8) -> usize {
        index * CREDITS as usize + usize::from(record)
    }
}

impl From<SpanError> for SubmitError {
    #[inline]
    fn from(error: SpanError) -> SubmitError {
        match error {
            SpanError::Region => SubmitError::Region,
            SpanError::Range => SubmitError::Range,
        }
    }
}

/// The record of one receive, whose region is pinned for it.
#[inline(always)]
fn receive_take(regions: &DataMrs<'_>, buffer: &Incoming) -> Result<ReceiveRecord, SubmitError> {
    if buffer.length > MESSAGE_BYTES_MAX {
        return Err(SubmitError::TooLong);
    }
    let region = regions.check_and_pin(buffer.region, buffer.address, buffer.length)?;
    Ok(ReceiveRecord {
        address: buffer.address,
        length: buffer.length,
        label: buffer.tag as u32,
        region,
        ..ReceiveRecord::FREE
    })
}

/// The records of a group, every `step`-th; when one buffer is refused, none is pinned.
#[inline(never)]
fn receives_take(
    regions: &DataMrs<'_>,
    records: &mut [ReceiveRecord],
    step: usize,
    buffers: &[Incoming],
) -> Result<(), SubmitError> {
    for (at, buffer) in buffers.iter().enumerate() {
        match receive_take(regions, buffer) {
            Ok(record) => records[at * step] = record,
            Err(error) => {
                let taken = records.iter().step_by(step).take(at);
                taken.for_each(|record| regions.unpin(record.region));
                return Err(error);
            }
        }
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn not_open(connection: Option<&Connection>) -> SubmitError {
    match connection.map(|c| c.state) {
        Some(ConnectionState::Failing | ConnectionState::Failed) => {
            SubmitError::Failed(connection.map_or(RequestError::Closed, |c| c.failure.0))
        }
        Some(ConnectionState::Open | ConnectionState::Free | ConnectionState::Closing) | None => {
            SubmitError::Connection
        }
    }
}
