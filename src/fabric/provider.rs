//! The provider trait, and spans of local memory that only a registration can make.

use super::caps::Caps;
use super::completion::{Completion, DownCause, Next};
use super::op::{Gather, Head, Line, Op, OpId, OpKind, RemoteSpan, Source};
use super::region::{DeregisterError, RailKey, Region, RegisterError};
use crate::base::carve::Zeroable;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};

/// Memory of this process that an op may read or write. Whoever makes one vouches for the memory;
/// from then on parts of it can be cut safely.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
#[repr(C)]
pub struct LocalSpan {
    address: u64,
    length: u64,
    key: RailKey,
}

// SAFETY: three integers; zero is the empty span.
unsafe impl Zeroable for LocalSpan {}

impl LocalSpan {
    /// The span of no bytes.
    pub const EMPTY: LocalSpan = LocalSpan { address: 0, length: 0, key: RailKey(0) };

    /// Vouches for memory.
    ///
    /// # Safety
    /// - `address..address + length` lies in the region that `key` names, and stays valid for reads
    ///   and writes until every op that was given the span, or a part of it, has completed;
    /// - until then nobody reads what such an op writes, nor writes what it reads.
    pub const unsafe fn new(address: u64, length: Bytes, key: RailKey) -> LocalSpan {
        LocalSpan { address, length: length.0, key }
    }

    /// Address of the first byte.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Its length.
    pub const fn length(self) -> Bytes {
        Bytes(self.length)
    }

    /// What the rail calls the region it lies in.
    pub const fn key(self) -> RailKey {
        self.key
    }

    /// `length` bytes at `offset`. *Panics* when they do not lie inside.
    #[inline]
    pub const fn part(self, offset: u64, length: u64) -> LocalSpan {
        assert!(offset <= self.length && length <= self.length - offset);
        LocalSpan { address: self.address + offset, length, key: self.key }
    }
}

/// Names a received message until it is released.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct RecvSlot(pub u64);

// SAFETY: an integer.
unsafe impl Zeroable for RecvSlot {}

/// Payloads longer than [`Caps::send_payload_max`] that receives of one peer have room for: see
/// [`Provider::send_payload_max`].
pub const LONG_SLOTS: u32 = 8;

/// How an op was accepted (P2).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Posted {
    /// Its completion will come from `poll`.
    Pending,
    /// It has completed with success; `poll` will not report it. A line that was written so may
    /// still be on its way: where the target's own poll carries writes out, it lands there.
    Done,
}

/// Why an op was not accepted. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PostError {
    /// No room now: poll, then post again.
    Again,
    /// The peer is down or was never opened; the op could not succeed later either.
    PeerDown,
    /// The op is beyond [`Caps`]: too long, or of a kind that the rail lacks.
    Unsupported,
}

/// Why a peer could not be closed. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum CloseError {
    /// Ops are in flight: fence first, or poll until they have ended.
    Busy,
    /// No such peer is open.
    Stale,
}

/// Registration, from any thread, beside a provider that one thread owns.
pub trait Domain: Sync {
    /// Makes a region known to the rail and its peers.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until [`Domain::deregister`] has returned
    ///   success for the key, or the provider is closed.
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError>;

    /// Forgets a region. After success no peer can touch it any more (P7).
    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError>;
}

/// How far what was posted to a peer has left; see [`Provider::sent_through`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SentThrough {
    /// Bytes that have left.
    pub left: u64,
    /// What that will be when the last send has.
    pub posted: u64,
}

/// Memory of a rail: how it becomes known to the rail and its peers.
pub trait MemoryDomain {
    /// The registration side.
    type Domain: Domain + Clone;

    /// A handle to the registration side that outlives borrows of the provider.
    fn domain(&self) -> Self::Domain;
}

/// How peers of a rail end. Each rail opens its peers in its own way.
pub trait PeerLife {
    /// Says from outside (the side band) that a peer is gone. The next polls report what had come,
    /// then [`Completion::PeerDown`], and complete what was accepted (P6). The cause is told as it
    /// came, unless the rail knew of an end before; one that cannot befall it may be `Failed`.
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause);

    /// Forgets a peer (P9). Receive slots still held are given back with it: opened again, it has
    /// all of [`Caps::recv_slots`].
    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError>;

    /// Forgets a peer that was fenced as [`PeerLife::peer_close`] does, but for what it sent:
    /// receive slots still held stay valid until they are released, also when the peer is opened
    /// again, which has so many receives fewer until then. A rail on which a peer cannot be opened
    /// again says [`CloseError::Busy`].
    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let _ = peer;
        Err(CloseError::Busy)
    }
}

/// One rail, driven by one thread: its promises and its data path. See the contract in [`super`].
pub trait Provider: MemoryDomain + PeerLife {
    /// Whether a connection may have several of its peers, so that one may fail without it. Where
    /// not, nothing that this takes is part of the program.
    const SEVERAL_LANES: bool = true;

    /// Whether registered memory may lie in GPUs. Where not, nothing that this takes is part of
    /// the program.
    const REACHES_DEVICES: bool = false;

    /// The promises towards a peer: those of the rail that it is on. A provider that is one rail
    /// promises the same to all peers, open or not.
    fn caps(&self, peer: PeerIndex) -> Caps;

    /// Longest payload to an open peer, which may be longer than [`Caps::send_payload_max`]. Of
    /// payloads beyond that there may be [`LONG_SLOTS`] received and not yet released, or on their
    /// way to where those before them are held, and one more if it is released before a next.
    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        self.caps(peer).send_payload_max
    }

    /// How many bytes of all that was posted to an open peer have left for the system or the
    /// device, and how many those are up to the end of its last send beyond
    /// [`Caps::send_payload_max`], counted alike. Until these have left, further calls are wanted.
    fn sent_through(&self, peer: PeerIndex) -> SentThrough {
        let _ = peer;
        SentThrough { left: 0, posted: 0 }
    }

    /// Whether long writes to an open peer go one after the other on one stream, so that a message
    /// in parts takes no less time.
    fn is_single_stream(&self, peer: PeerIndex) -> bool {
        let _ = peer;
        false
    }

    /// Whether ops to an open peer may have memory of GPUs on either side.
    fn reaches_device(&self, peer: PeerIndex) -> bool {
        let _ = peer;
        false
    }

    /// Accepts or refuses an op (P1, P2).
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError>;

    /// [`Provider::post`] of a send, whose parts need not be put together to an op first.
    #[inline]
    fn post_send(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
        now: Instant,
    ) -> Result<Posted, PostError> {
        self.post(&Op { id, peer, kind: OpKind::Send { head: *head, payload } }, now)
    }

    /// The same of a line without an immediate.
    #[inline]
    fn post_line(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        now: Instant,
    ) -> Result<Posted, PostError> {
        let kind = OpKind::Write { source: Source::Line(*line), target, immediate: None };
        self.post(&Op { id, peer, kind }, now)
    }

    /// How many parts a [`Provider::post_gather`] to a peer may have; 1: there is no such op.
    fn parts_max(&self, peer: PeerIndex) -> usize {
        let _ = peer;
        1
    }

    /// [`Provider::post`] of a write of several parts.
    fn post_gather(&mut self, gather: &Gather, now: Instant) -> Result<Posted, PostError> {
        let _ = (gather, now);
        Err(PostError::Unsupported)
    }

    /// Posts a send if nothing stands in its way and it is complete at once, as after
    /// [`Posted::Done`]. `false`: nothing was changed, and [`Provider::post`] knows what to do.
    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        let _ = (peer, head, payload);
        false
    }

    /// Fills `out` from the front and says how many; copies about `budget` bytes each way at most
    /// (P3).
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize;

    /// Hands over what was posted, and what is owed to peers, as far as that waits for the next
    /// poll; about `budget` bytes at most. Called after every poll, when the answers to its events
    /// have been posted, so that all of them leave together, and behind a send that somebody waits
    /// for.
    #[inline]
    fn flush(&mut self, budget: Bytes) {
        let _ = budget;
    }

    /// Says that the next poll is for what comes from one peer: a provider to which each costs a
    /// call of the system may leave the others to the poll after it.
    #[inline]
    fn look_at(&mut self, peer: PeerIndex) {
        let _ = peer;
    }

    /// Whether something that was posted to a peer waits for the next poll or flush, and what is
    /// posted to it now leaves with it, at no further call.
    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        let _ = peer;
        false
    }

    /// Takes the next event if it is a peer's send, which is what short messages wait for: a
    /// provider may say so by a shorter way than [`Provider::poll`]. Keeps the order of events.
    #[inline]
    fn next(&mut self) -> Next {
        Next::Poll
    }

    /// Copies `to.length()` bytes of a received payload, from `offset` on, to `to`.
    ///
    /// *Panics* when the payload is shorter, or the slot is not held.
    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan);

    /// Copies the first bytes of a received payload, as many as `to` is long.
    ///
    /// *Panics* when the payload is shorter, or the slot is not held.
    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]);

    /// Copies the first `to.length()` bytes of a received payload to memory of a GPU, as an op:
    /// they have been read from the slot when this returns, and are there with its completion.
    ///
    /// *Panics* as [`Provider::received_copy`].
    fn received_read(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        slot: RecvSlot,
        to: LocalSpan,
    ) -> Result<Posted, PostError> {
        let _ = (id, peer, slot, to);
        Err(PostError::Unsupported)
    }

    /// Gives a receive slot back. Slots may be given back in any order. When this returns, the peer
    /// may post to it again, without a poll here between: its credit may come over another rail.
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot);

    /// Copies the first `to.length()` bytes of a received payload to `to`, and gives the slot back.
    ///
    /// *Panics* when the payload is shorter, or the slot is not held.
    #[inline]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        self.received_copy(peer, slot, 0, to);
        self.received_release(peer, slot);
    }
}
