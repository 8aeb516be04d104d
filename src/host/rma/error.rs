//! Why something of this room does not work.
#![forbid(unsafe_code)]

use crate::host::error::{ListenError, OpenError};
use crate::host::group::GroupError;
use crate::host::group::board::BoardError;
use crate::host::memory_options::MemoryError;
use crate::memory::Errno;
use crate::window::WindowError;
use core::fmt;

/// What of a request was refused. Offsets are in the peer's memory.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum What {
    /// Its put; a signal of it was not raised.
    Put {
        /// How many bytes.
        bytes: u64,
        /// Where they go.
        offset: u64,
    },
    /// Its get.
    Get {
        /// How many bytes.
        bytes: u64,
        /// Where they come from.
        offset: u64,
    },
    /// Its signal.
    Signal {
        /// Where the word is.
        offset: u64,
    },
    /// The signal was not raised, since a put before it was refused.
    Behind {
        /// Where the word is.
        offset: u64,
    },
    /// Nothing of the flush, but a get that it waits for.
    Flush,
}

/// A request that was refused, by the owner of the memory or before it was sent.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Refused {
    /// What of it.
    pub what: What,
    /// Its context, in its list.
    pub context: u32,
    /// The rank that it is with.
    pub rank: u32,
    /// Why.
    pub why: WindowError,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { what, context, rank, why } = self;
        match what {
            What::Put { bytes, offset } => write!(f, "the put of {bytes} bytes at {offset}")?,
            What::Get { bytes, offset } => write!(f, "the get of {bytes} bytes at {offset}")?,
            What::Signal { offset } | What::Behind { offset } => {
                write!(f, "the signal at {offset}")?
            }
            What::Flush => f.write_str("the flush")?,
        }
        write!(f, " with rank {rank} in context {context}")?;
        f.write_str(match what {
            What::Put { .. } | What::Get { .. } | What::Signal { .. } => " was refused: ",
            What::Behind { .. } => " was not raised, since a put before it was refused: ",
            What::Flush => " waits for a get that was refused: ",
        })?;
        why.fmt(f)
    }
}

/// Why something of this room does not work.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RmaError {
    /// The endpoint cannot be opened.
    Open(OpenError),
    /// It cannot listen.
    Listen(ListenError),
    /// The ranks do not come together.
    Group(GroupError),
    /// The system refused memory, or a thread.
    System(Errno),
    /// The memory cannot be registered here.
    Register(MemoryError),
    /// An operation on a window was refused, or has failed.
    Window(WindowError),
    /// This request was refused; others go on.
    Refused(Refused),
    /// That rank did not come to a call that all ranks make.
    Missing(u32),
    /// That rank could not take part; its own log says why.
    Rank(u32),
    /// That rank has told that it has failed; its own log says why.
    Told(u32),
    /// An argument is out of range.
    Argument(&'static str),
    /// All places for requests are in use.
    Full,
    /// The communicator was given up after an error.
    Broken,
}

impl fmt::Display for RmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RmaError::Open(error) => write!(f, "the endpoint cannot be opened: {error}"),
            RmaError::Listen(error) => write!(f, "no listener: {error}"),
            RmaError::Group(error) => error.fmt(f),
            RmaError::System(error) => error.fmt(f),
            RmaError::Register(error) => write!(f, "the memory is refused: {error}"),
            RmaError::Window(error) => error.fmt(f),
            RmaError::Refused(refused) => refused.fmt(f),
            RmaError::Missing(rank) => write!(f, "rank {rank} did not come in time"),
            RmaError::Rank(rank) => write!(f, "rank {rank} could not take part; see its log"),
            RmaError::Told(rank) => write!(f, "rank {rank} has failed; see its log"),
            RmaError::Argument(what) => write!(f, "{what} is out of range"),
            RmaError::Full => f.write_str("more requests than a rank and context may have"),
            RmaError::Broken => f.write_str("the communicator was given up after an error"),
        }
    }
}

impl From<GroupError> for RmaError {
    fn from(error: GroupError) -> RmaError {
        RmaError::Group(error)
    }
}

impl From<BoardError> for RmaError {
    fn from(error: BoardError) -> RmaError {
        match error {
            BoardError::Register(error) => RmaError::Register(error.into()),
            BoardError::Window(error) => RmaError::Window(error),
            BoardError::Missing(rank) => RmaError::Missing(rank),
        }
    }
}

impl From<Errno> for RmaError {
    fn from(error: Errno) -> RmaError {
        RmaError::System(error)
    }
}

impl From<WindowError> for RmaError {
    fn from(error: WindowError) -> RmaError {
        RmaError::Window(error)
    }
}
