//! Both ends of each connection inside one provider: the fastest rail there can be.
//!
//! Peers are joined in pairs. Each op posted to one peer appears at the other. So the whole stack
//! above can run and be measured in one thread without a network.
//!
//! Small ops happen inside [`Provider::post`]. A transfer longer than [`POST_COPY_MAX`] becomes a
//! job, and [`Provider::poll`] works on it within its budget. Later ops to the same peer queue
//! behind it, so the order is kept.
//!
//! A fence or a failure ends a connection for good. Its jobs are canceled, its other end is told,
//! and only a fresh pair carries bytes again. Our own act is enough for that, so the fence is
//! [`FenceKind::Local`].

mod jobs;
mod table;

use super::host_domain::HostDomain;
use super::touch;
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Head, LINE_BYTES, LocalSpan, MemoryDomain,
    Next, Op, OpErrorKind, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan,
    Source, Syscalls,
};
use jobs::{Job, Work};
use table::{Event, State, Tables};

/// Longest transfer that `post` itself carries out: about what a queued job would cost anyway
/// (100 ns at 40 GB/s).
pub const POST_COPY_MAX: Bytes = Bytes::kib(4);

/// Longest write or read; any bound would do for a copy, this one leaves room for sums.
const TRANSFER_MAX: Bytes = Bytes(1 << 40);

/// How much of everything a loopback has.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Peers that may be open, two to a pair.
    pub peers_max: u32,
    /// Receive slots of each peer.
    pub slots: u32,
    /// Longest payload of one send.
    pub payload_max: Bytes,
    /// Regions that may be registered.
    pub regions_max: u32,
    /// Transfers that may wait for `poll`; a power of two.
    pub jobs: u32,
}

/// Why a pair could not be opened. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// One of the indices is open already, or both are the same.
    InUse,
    /// An index lies beyond [`Limits::peers_max`].
    Range,
}

/// The provider. See the [module](self).
#[derive(Debug)]
pub struct Loopback<'m> {
    tables: Tables<'m>,
}

impl<'m> Loopback<'m> {
    /// What [`Loopback::open`] cuts from its block.
    pub const fn bytes(limits: Limits) -> usize {
        table::bytes(limits) + HostDomain::bytes(limits.regions_max)
    }

    /// A loopback without peers. *Panics* when `limits.jobs` is no power of two.
    pub fn open(limits: Limits, carver: &mut Carver<'m>) -> Result<Loopback<'m>, BlockTooSmall> {
        Ok(Loopback { tables: Tables::carve(limits, carver)? })
    }

    /// Joins two given peers.
    pub fn peer_open_at(&mut self, a: PeerIndex, b: PeerIndex) -> Result<(), OpenError> {
        let (state_a, state_b) = (self.tables.state(a), self.tables.state(b));
        let (state_a, state_b) = state_a.zip(state_b).ok_or(OpenError::Range)?;
        if a == b || state_a != State::Closed || state_b != State::Closed {
            return Err(OpenError::InUse);
        }
        self.tables.join(a.as_usize(), b.as_usize());
        Ok(())
    }

    #[inline]
    fn post_send(&mut self, op: &Op, head: &Head, payload: LocalSpan) -> PostResult {
        if payload.length() > self.tables.limits.payload_max {
            return Err(PostError::Unsupported);
        }
        let (from, to) = self.tables.ends(op.peer);
        if self.tables.peers[from].jobs != 0 && self.tables.jobs.room() == 0 {
            return Err(PostError::Again);
        }
        let slot = self.tables.slot_take(to).ok_or(PostError::Again)?;
        self.tables.slot_fill(slot, head, payload);
        if self.tables.peers[from].jobs != 0 {
            return self.queue(op, Work::Deliver { slot }, [0; 2], 0);
        }
        self.tables.events.push(Event::Received { peer: to as u32, slot });
        Ok(Posted::Done)
    }

    #[inline]
    fn post_line(
        &mut self,
        op: &Op,
        line: &[u8; LINE_BYTES],
        to: RemoteSpan,
        imm: u64,
    ) -> PostResult {
        if !self.tables.has_loose_room() {
            return Err(PostError::Again);
        }
        let Some(region) = self.tables.regions.find(to.key, to.address, LINE_BYTES as u64) else {
            return self.refuse(op);
        };
        if self.must_queue(op) {
            let work = Work::Line { to: to.address, line: *line };
            return self.queue(op, work, [region + 1, 0], imm);
        }
        // SAFETY: the region table vouches for the range until it is deregistered.
        unsafe { touch::copy_out(line, to.address) };
        self.tables.announce(op.peer, imm);
        Ok(Posted::Done)
    }

    fn post_copy(&mut self, op: &Op, copy: Transfer, imm: u64) -> PostResult {
        let length = copy.length;
        if length > TRANSFER_MAX.0 {
            return Err(PostError::Unsupported);
        }
        if !self.tables.has_loose_room() {
            return Err(PostError::Again);
        }
        let Some(pins) = self.tables.pins_of(&copy) else {
            return self.refuse(op);
        };
        if length > POST_COPY_MAX.0 || self.must_queue(op) {
            let work = Work::Copy { from: copy.from, to: copy.to, left: length };
            return self.queue(op, work, pins, imm);
        }
        // SAFETY: the region table vouches for the far range, the span's maker for the near one.
        unsafe { touch::copy(copy.from, copy.to, length) };
        self.tables.announce(op.peer, imm);
        Ok(Posted::Done)
    }

    fn post_add(&mut self, op: &Op, target: RemoteSpan, value: u64) -> PostResult {
        if !target.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        if !self.tables.has_loose_room() {
            return Err(PostError::Again);
        }
        let Some(region) = self.tables.regions.find(target.key, target.address, 8) else {
            return self.refuse(op);
        };
        if self.must_queue(op) {
            let work = Work::Add { to: target.address, value };
            return self.queue(op, work, [region + 1, 0], 0);
        }
        // SAFETY: inside a registered region and aligned, as checked above.
        unsafe { touch::add(target.address, value) };
        Ok(Posted::Done)
    }

    fn post_fence(&mut self, op: &Op, generation: u32) -> PostResult {
        if !self.tables.has_loose_room() {
            return Err(PostError::Again);
        }
        self.tables.fence(op.peer.as_usize());
        let event = Event::Fenced { peer: op.peer.0, id: op.id.0, generation };
        self.tables.accept(op.peer, event)
    }

    /// Whether older ops to the same peer wait, so that this one must wait behind them.
    #[inline]
    fn must_queue(&self, op: &Op) -> bool {
        self.tables.peers[op.peer.as_usize()].jobs != 0
    }

    fn queue(&mut self, op: &Op, work: Work, pins: [u32; 2], imm: u64) -> PostResult {
        self.tables.queue(Job::new(op, work, pins, imm))
    }

    /// Accepts an op whose key or range is wrong; it ends with an error and moves nothing.
    fn refuse(&mut self, op: &Op) -> PostResult {
        let event = Event::Failed { peer: op.peer.0, id: op.id.0, kind: OpErrorKind::Key };
        self.tables.accept(op.peer, event)
    }
}

type PostResult = Result<Posted, PostError>;

/// A copy between memory of ours (`local`) and of the other end (`remote`).
struct Transfer {
    from: u64,
    to: u64,
    length: u64,
    local: LocalSpan,
    remote: RemoteSpan,
}

impl Transfer {
    fn write(source: LocalSpan, target: RemoteSpan) -> Transfer {
        let (from, to) = (source.address(), target.address);
        Transfer { from, to, length: source.length().0, local: source, remote: target }
    }

    fn read(target: LocalSpan, source: RemoteSpan) -> Transfer {
        let (from, to) = (source.address, target.address());
        Transfer { from, to, length: target.length().0, local: target, remote: source }
    }
}

/// An immediate as a number that is zero when there is none.
const fn immediate_pack(immediate: Option<u32>) -> u64 {
    match immediate {
        Some(word) => 1 << 32 | word as u64,
        None => 0,
    }
}

impl<'m> MemoryDomain for Loopback<'m> {
    type Domain = HostDomain<'m>;

    fn domain(&self) -> HostDomain<'m> {
        self.tables.regions
    }
}

impl<'m> Provider for Loopback<'m> {
    const SEVERAL_LANES: bool = false;

    fn caps(&self, _peer: PeerIndex) -> Caps {
        Caps {
            send_payload_max: self.tables.limits.payload_max,
            recv_slots: self.tables.limits.slots,
            transfer_max: TRANSFER_MAX,
            pull: true,
            immediate: true,
            ordered: true,
            copies_at_post: true,
            atomic_bytes: 8,
            copy_granule: Bytes(LINE_BYTES as u64),
            fence: FenceKind::Local,
            bad_key_breaks: false,
            syscalls: Syscalls::None,
        }
    }

    #[inline]
    fn post(&mut self, op: &Op, _now: Instant) -> PostResult {
        let state = self.tables.state(op.peer).unwrap_or(State::Closed);
        if state != State::Open {
            return match op.kind {
                OpKind::Fence { generation } if state != State::Closed => {
                    self.post_fence(op, generation.0)
                }
                _ => Err(PostError::PeerDown),
            };
        }
        match &op.kind {
            OpKind::Send { head, payload } => self.post_send(op, head, *payload),
            OpKind::Write { source: Source::Line(line), target, immediate } => {
                self.post_line(op, line, *target, immediate_pack(*immediate))
            }
            OpKind::Write { source: Source::Span(source), target, immediate } => {
                let imm = immediate_pack(*immediate);
                self.post_copy(op, Transfer::write(*source, *target), imm)
            }
            OpKind::Read { target, source } => {
                self.post_copy(op, Transfer::read(*target, *source), 0)
            }
            OpKind::Add { target, value } => self.post_add(op, *target, *value),
            OpKind::Fence { generation } => self.post_fence(op, generation.0),
        }
    }

    #[inline(always)]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        if payload.length() > self.tables.limits.payload_max {
            return false;
        }
        let Some(to) = self.tables.straight(peer) else {
            return false;
        };
        let Some(slot) = self.tables.slot_take(to) else {
            return false;
        };
        self.tables.slot_fill(slot, head, payload);
        self.tables.events.push(Event::Received { peer: to as u32, slot });
        true
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, _now: Instant) -> usize {
        if !self.tables.jobs.is_empty() {
            self.tables.work(budget.0);
        }
        let mut count = 0;
        while count < out.len() && !self.tables.events.is_empty() {
            count += usize::from(self.tables.report(&mut out[count]));
        }
        count
    }

    #[inline(always)]
    fn next(&mut self) -> Next {
        if self.tables.jobs.is_empty() { self.tables.next() } else { Next::Poll }
    }

    #[inline]
    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let from = self.tables.payload(peer, slot, offset, to.length().0);
        // SAFETY: the span's maker vouches for it; a payload is inside our block, not under it.
        unsafe { touch::copy_out(from, to.address()) };
    }

    #[inline]
    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        to.copy_from_slice(self.tables.payload(peer, slot, 0, to.len() as u64));
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.tables.slot_release(peer, slot);
    }

    #[inline(always)]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        let from = self.tables.payload(peer, slot, 0, to.length().0);
        // SAFETY: the span's maker vouches for it; a payload is inside our block, not under it.
        unsafe { touch::copy_out(from, to.address()) };
        self.tables.slot_give_back(peer.as_usize(), slot.0 as u32);
    }
}

impl<'m> PeerLife for Loopback<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        let known = matches!(self.tables.state(peer), Some(State::Open | State::Fenced));
        if known {
            let peer = peer.as_usize();
            let partner = self.tables.partner(peer);
            self.tables.go_down(peer, cause);
            // Behind a fence the other end may have been closed and joined to a stranger since.
            if self.tables.partner(partner) == peer {
                self.tables.go_down(partner, cause);
            }
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.tables.state(peer) {
            None | Some(State::Closed) => return Err(CloseError::Stale),
            Some(State::Open | State::Down | State::Fenced) => {}
        }
        if self.tables.peers[peer.as_usize()].inflight != 0 {
            return Err(CloseError::Busy);
        }
        self.tables.close(peer.as_usize());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
