//! Bytes under way on a lane beside its frames.

use crate::base::slab::Handle;
use crate::transport::RequestId;
use crate::window::carrier::Add;
use crate::window::memory::Span;
use crate::window::table::Count;

/// Transfers of bytes apart from their record, each way, and gets.
pub(in crate::window) const TRANSFERS: usize = 16;

/// Bytes that leave apart from their record.
#[derive(Copy, Clone, Debug)]
pub(in crate::window) struct Leaving {
    pub request: Option<RequestId>,
    pub region: Handle,
    pub address: u64,
    pub length: u64,
    pub why: Why,
    pub count: Option<Count>,
}

/// What bytes leave for.
#[derive(Copy, Clone, Debug)]
pub(in crate::window) enum Why {
    /// A put of ours: the number of its record.
    Put(u64),
    /// The answer to a get of the peer's: our window.
    Answer(u16),
}

/// What is under way for a record of the peer's.
#[derive(Copy, Clone, Debug)]
pub(super) enum Way {
    /// Nothing yet.
    Waits,
    /// The receive of its bytes.
    Receive(RequestId),
    /// An add to a word of a GPU's memory.
    Add(Add),
}

/// A record whose bytes come apart from it, or whose word is not added to yet.
#[derive(Copy, Clone, Debug)]
pub(super) struct Arriving {
    pub way: Way,
    pub region: Handle,
    pub address: u64,
    /// Room for them; 0 where they are refused.
    pub length: u64,
    /// The number of their record.
    pub number: u64,
    pub what: What,
}

/// What bytes come for.
#[derive(Copy, Clone, Debug)]
pub(super) enum What {
    /// A put of the peer's, with its signal.
    Put { window: u16, signal: Option<(u16, u64)> },
    /// The answer to a get of ours.
    Answer,
    /// No bytes: a word grows.
    Add { window: u16, value: u64 },
    /// Nothing: their put was refused.
    Nothing,
}

/// A get of ours that is not answered.
#[derive(Copy, Clone, Debug)]
pub(in crate::window) struct Asked {
    /// The number of its record.
    pub number: u64,
    pub region: Handle,
    pub address: u64,
    pub length: u64,
    /// The same memory, where the CPU reaches it.
    pub bytes: Span,
    /// The answer's bytes must not come inline: the CPU may not reach the buffer.
    pub is_apart: bool,
    pub state: GetState,
}

/// How far a get of ours is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::window) enum GetState {
    Waiting,
    /// It is answered, and the bytes are on their way.
    Coming,
    Done,
}
