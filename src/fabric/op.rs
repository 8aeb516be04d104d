//! The whole operation set: send, write, write with immediate, read, 64-bit add, fence.
#![forbid(unsafe_code)]

use super::provider::LocalSpan;
use super::region::RailKey;
use crate::base::ids::{PeerIndex, RailGeneration};

/// Bytes of the head that every send carries inline.
pub const HEAD_BYTES: usize = 32;

/// A send's head; what it means is the transport's business.
pub type Head = [u8; HEAD_BYTES];

/// Bytes of an inline write: one line of control memory.
pub const LINE_BYTES: usize = 64;

/// An inline write's bytes.
pub type Line = [u8; LINE_BYTES];

/// The poster's name for an op; it comes back in the completion.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct OpId(pub u64);

/// One operation, addressed to one peer.
#[derive(Copy, Clone, Debug)]
pub struct Op {
    /// Comes back in the completion.
    pub id: OpId,
    /// The other end.
    pub peer: PeerIndex,
    /// What to do.
    pub kind: OpKind,
}

/// What an op does.
#[derive(Copy, Clone, Debug)]
pub enum OpKind {
    /// Head and payload appear in a receive slot of the peer, as one message.
    Send {
        /// Copied at post.
        head: Head,
        /// Up to [`super::Caps::send_payload_max`].
        payload: LocalSpan,
    },
    /// Source bytes appear at `target`; with an immediate, the target's poll then reports it.
    Write {
        /// Where from.
        source: Source,
        /// Where to.
        target: RemoteSpan,
        /// Reported as [`super::Completion::Immediate`] after the data is visible.
        immediate: Option<u32>,
    },
    /// The peer's bytes at `source` appear in `target`.
    Read {
        /// Where to, and how much.
        target: LocalSpan,
        /// Where from.
        source: RemoteSpan,
    },
    /// The 64-bit word at `target` grows by `value`, atomically among adds through this rail.
    Add {
        /// An 8-byte aligned word.
        target: RemoteSpan,
        /// Added modulo 2^64.
        value: u64,
    },
    /// See P10; answered by [`super::Completion::Fenced`].
    Fence {
        /// Everything of this generation and before is fenced.
        generation: RailGeneration,
    },
}

/// Where a write takes its bytes from.
#[derive(Copy, Clone, Debug)]
pub enum Source {
    /// A line of control data, copied at post.
    Line(Line),
    /// Memory that stays put until the completion.
    Span(LocalSpan),
}

/// A write whose bytes are those of several spans, one behind the other.
#[derive(Copy, Clone, Debug)]
pub struct Gather<'a> {
    /// Comes back in the completion.
    pub id: OpId,
    /// The other end.
    pub peer: PeerIndex,
    /// Memory that stays put until the completion.
    pub parts: &'a [LocalSpan],
    /// Where to.
    pub target: RemoteSpan,
    /// As that of [`OpKind::Write`].
    pub immediate: Option<u32>,
}

/// Memory of the peer.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(C)]
pub struct RemoteSpan {
    /// What this rail calls the peer's region.
    pub key: RailKey,
    /// Address in the peer's process.
    pub address: u64,
}

impl RemoteSpan {
    /// The span that starts `offset` bytes later.
    pub const fn plus(self, offset: u64) -> RemoteSpan {
        RemoteSpan { key: self.key, address: self.address.wrapping_add(offset) }
    }
}
