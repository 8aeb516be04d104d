//! The TCP rail: peers on any host.
//!
//! Each connection has one to [`STREAMS_MAX`] sockets of its own, which the side band has made and
//! owns; this rail reads and writes them, and never blocks. What is posted is staged, and goes out
//! with the next poll, many messages in one system call; a payload of more than 8 KiB goes out as
//! it is posted, and what the kernel does not take of it is staged.
//!
//! - The first stream carries sends, lines, adds, reads and short writes; long writes take the
//!   emptiest of the others, if there are any ([`Limits::streams`]). With one stream everything
//!   that a peer is told takes effect in order; a read's bytes are taken when its answer goes out.
//! - What comes in is read into a scratch buffer that all peers share and which stays in the cache;
//!   the rest of a payload is read straight to its place. A message that is still held when the
//!   buffer is needed again moves to a cell of its own.
//! - Only a call of this rail moves bytes in or out of registered memory, so a fence is our own
//!   act: nothing of the peer's sockets is touched after it.
//! - Where a peer is opened with sums, each header and payload has one behind it ([`sums`]). What
//!   is wrong breaks the connection: headers and lines before anything is done by them, payloads
//!   before anybody hears of them.
//! - A write from memory, an add and a read end when the peer has answered; a send and a line are
//!   done when they are posted. A line to a bad key breaks the connection, since its poster has
//!   counted on it.

mod answers;
mod area;
mod aside;
mod ending;
mod ops;
mod out;
pub mod pair;
mod peek;
mod peer;
mod provider;
mod pull;
mod push;
mod rail;
mod socket;
mod straight;
mod stream;
mod sums;
#[cfg(test)]
mod tests;
mod threads;
mod watching;

pub use area::{SEND_BYTES_MAX, peer_reserve_bytes};
pub use rail::{RECORD_SIZES, Tcp, bytes};
pub use threads::THREADS_MAX;

use crate::base::carve::BlockTooSmall;
use crate::base::units::Bytes;
use crate::memory::CpuSet;

/// Most streams of one connection.
pub const STREAMS_MAX: usize = 6;

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
