//! The TCP rail: peers on any host.
//!
//! Each connection has one to [`STREAMS_MAX`] sockets of its own, which the side band has made and
//! owns; this rail reads and writes them, and never blocks. What is posted is staged, and goes out
//! with the next poll, many messages in one system call.

use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, LocalSpan, Op, PostError, Posted, Provider,
    RecvSlot, Syscalls,
};
use crate::provider::host_domain::HostDomain;

/// Most streams of one connection.
pub const STREAMS_MAX: usize = 4;

/// How large a rail is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Peers at a time.
    pub peers_max: u32,
    /// Ops outstanding at a time, all peers together: a power of two.
    pub ops_max: u32,
}

/// What a rail is opened with besides its limits.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Settings {
    /// Threads that move long payloads; 0: the thread that polls moves everything.
    pub threads: u32,
    /// CPUs of those threads, one bit each; 0: they inherit the opener's.
    pub thread_cpus: u64,
}

/// Why a rail could not be opened. Nothing is left behind.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// The block is too small.
    Block,
    /// The kernel refused, with its code.
    System(i32),
}

impl From<BlockTooSmall> for OpenError {
    fn from(_: BlockTooSmall) -> OpenError {
        OpenError::Block
    }
}

/// Why a peer could not be opened. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PeerOpenError {
    /// No such number, or it is open.
    Index,
    /// No stream, or too many.
    Streams,
    /// The kernel refused, with its code.
    System(i32),
}

/// Bytes that [`Tcp::open`] cuts.
pub const fn bytes(_limits: &Limits) -> usize {
    0
}

/// The rail.
pub struct Tcp<'m> {
    domain: HostDomain<'m>,
}

impl<'m> Tcp<'m> {
    /// Cuts a rail out of `block`. `domain` may share its table with another rail.
    pub fn open(
        _block: &mut Carver<'m>,
        _limits: &Limits,
        domain: HostDomain<'m>,
        _settings: Settings,
    ) -> Result<Tcp<'m>, OpenError> {
        Ok(Tcp { domain })
    }

    /// Takes a peer into use, over connected sockets of which the first carries sends and lines.
    /// They stay the caller's, who closes them after [`crate::fabric::Provider::peer_close`].
    pub fn peer_open(&mut self, _peer: PeerIndex, _streams: &[i32]) -> Result<(), PeerOpenError> {
        todo!()
    }

    /// Whether no peer is open, so that polling is of no use.
    pub fn is_idle(&self) -> bool {
        true
    }

    /// Whether something was posted that no poll has handed to the kernel yet.
    pub fn is_unsent(&self) -> bool {
        false
    }

    /// Whether something that was posted to a living peer has not been handed to the kernel yet.
    pub fn is_unsent_to(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// A descriptor that is readable while a poll would find something, once [`Tcp::arm`] has said
    /// so.
    pub fn wait_fd(&self) -> i32 {
        -1
    }

    /// Hands over what is staged, and makes ready for sleep. `false`: something is there already.
    pub fn arm(&mut self) -> bool {
        true
    }
}

impl<'m> Provider for Tcp<'m> {
    type Domain = HostDomain<'m>;

    fn domain(&self) -> HostDomain<'m> {
        self.domain
    }

    fn caps(&self) -> Caps {
        Caps {
            send_payload_max: Bytes::kib(8),
            recv_slots: 64,
            transfer_max: Bytes::mib(1024),
            pull: true,
            immediate: true,
            ordered: false,
            copies_at_post: true,
            atomic_bytes: 8,
            copy_granule: Bytes::kib(64),
            fence: FenceKind::Local,
            syscalls: Syscalls::PerBatch,
        }
    }

    fn post(&mut self, _op: &Op, _now: Instant) -> Result<Posted, PostError> {
        Err(PostError::PeerDown)
    }

    fn poll(&mut self, _out: &mut [Completion], _budget: Bytes, _now: Instant) -> usize {
        0
    }

    fn received_copy(&mut self, _peer: PeerIndex, _slot: RecvSlot, _offset: u64, _to: LocalSpan) {}

    fn received_peek(&self, _peer: PeerIndex, _slot: RecvSlot, _to: &mut [u8]) {}

    fn received_release(&mut self, _peer: PeerIndex, _slot: RecvSlot) {}

    fn peer_fail(&mut self, _peer: PeerIndex, _cause: DownCause) {}

    fn peer_close(&mut self, _peer: PeerIndex) -> Result<(), CloseError> {
        Err(CloseError::Stale)
    }
}
