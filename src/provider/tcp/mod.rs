//! The TCP rail: peers on any host.
//!
//! Each connection has one to [`STREAMS_MAX`] sockets. The side band makes and owns them. This rail
//! reads and writes them, and never blocks. Posts are staged and go out with the next poll, many
//! messages in one system call. A payload over 8 KiB goes out at post, and the rest is staged.
//!
//! - The first stream carries sends, lines, adds, reads and short writes. Long writes take the
//!   emptiest of the others, if there are any ([`Limits::streams`]).
//! - With one stream, everything that a peer is told takes effect in order. A read's bytes are
//!   taken when its answer goes out.
//! - Input is read into a scratch buffer that all peers share and that stays in the cache. The rest
//!   of a payload is read straight to its place. A message that is still held when the buffer is
//!   needed moves to a cell of its own.
//! - Only a call of this rail moves bytes in or out of registered memory. So a fence is our own
//!   act: nothing of the peer's sockets is touched after it.
//! - If a peer is opened with sums, each header and payload is followed by one ([`sums`]). A wrong
//!   sum breaks the connection: of headers and lines before they take effect, of payloads before
//!   they are reported.
//! - A write from memory, an add and a read end when the peer has answered. A send and a line are
//!   done at post. A line to a bad key breaks the connection, because its poster has counted on it.
//!
//! The rail ([`rail`]) opens and ends peers. What leaves goes through [`push`] and the stream's
//! [`out`]; what comes through [`pull`], the [`scratch`] buffer and the [`parser`].

mod area;
mod aside;
mod helpers;
mod ops;
mod out;
mod parser;
mod peek;
mod peer;
mod provider;
mod pull;
mod push;
mod rail;
mod scratch;
mod socket;
mod stream;
mod streams;
mod sums;
#[cfg(test)]
mod tests;
mod threads;

pub use area::{SEND_BYTES_MAX, peer_reserve_bytes};
pub use rail::{RECORD_SIZES, Tcp, bytes};

use crate::base::carve::BlockTooSmall;
use crate::base::units::Bytes;
use crate::memory::CpuSet;

/// Most streams of one connection.
pub const STREAMS_MAX: usize = 6;
/// Most copy threads of a rail: one for each stream beside the first.
pub const THREADS_MAX: usize = STREAMS_MAX - 1;
/// No stream, no peer, no region.
const NONE: u32 = u32::MAX;

/// How large a rail is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Peers at a time.
    pub peers_max: u32,
    /// Ops outstanding at a time, all peers together: a power of two.
    pub ops_max: u32,
    /// Streams of one peer at most, 1 to [`STREAMS_MAX`]. With 1 the rail keeps order.
    pub streams: u32,
    /// How many peers in a row are ways to one process. The first of them alone takes payloads
    /// beyond [`crate::fabric::Caps::send_payload_max`].
    pub lanes: u32,
}

/// What a rail is opened with besides its limits.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Settings {
    /// Threads that move long payloads, fewer than [`Limits::streams`]; 0: the thread that polls
    /// moves everything.
    pub threads: u32,
    /// CPUs of those threads; empty: they inherit the opener's.
    pub thread_cpus: CpuSet,
    /// Bytes that one call hands over at most, and a poll at least if it has them, whatever its
    /// budget. Where bytes go one way alone, what is more than [`CALL_BYTES`] has left the cache
    /// before its reader gets it; where a thread sends and receives as much, more spare it turns.
    pub call_bytes: Bytes,
}

/// What [`Settings::call_bytes`] is where nobody says otherwise.
pub const CALL_BYTES: Bytes = Bytes::kib(256);

impl Default for Settings {
    /// No threads.
    fn default() -> Settings {
        Settings { threads: 0, thread_cpus: CpuSet::EMPTY, call_bytes: CALL_BYTES }
    }
}

/// Why a rail could not be opened. Nothing is left behind.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// The block is too small.
    Block,
    /// The limits or settings contradict each other: no peer, no stream or too many, or as many
    /// threads as streams: a thread moves at least one, and none moves the first.
    Settings,
    /// The host lacks this CPU of the settings, or its cpuset keeps the process off it.
    Cpu(u32),
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
    /// Threads still let go of the last peer of that number: poll, then call again.
    Again,
    /// The kernel refused, with its code.
    System(i32),
}
