//! Why something of this room does not work.
#![forbid(unsafe_code)]

use crate::base::words::{said, wraps};
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
    /// Its user was told before.
    pub again: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { what, context, rank, why, .. } = self;
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

said! {
    /// Why something of this room does not work.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum RmaError {
        Open(error: OpenError) => "the endpoint cannot be opened: {error}",
        /// It cannot listen.
        Listen(error: ListenError) => "no listener: {error}",
        /// The ranks do not come together.
        Group(error: GroupError) => "{error}",
        /// The system refused memory, or a thread.
        System(error: Errno) => "{error}",
        /// The memory cannot be registered here.
        Register(error: MemoryError) => "the memory is refused: {error}",
        /// An operation on a window was refused, or has failed.
        Window(error: WindowError) => "{error}",
        /// This request was refused; others go on.
        Refused(refused: Refused) => "{refused}",
        /// That rank did not come to a call that all ranks make.
        Missing(rank: u32) => "rank {rank} did not come in time",
        /// That rank could not take part; its own log says why.
        Rank(rank: u32) => "rank {rank} could not take part; see its log",
        /// That rank has told that it has failed; its own log says why.
        Told(rank: u32) => "rank {rank} has failed; see its log",
        /// An argument is out of range.
        Argument(what: &'static str) => "{what} is out of range",
        /// All places for requests are in use.
        Full => "more requests than a rank and context may have",
        Broken => "the communicator was given up after an error",
    }
}

wraps!(RmaError: Group(GroupError), System(Errno), Window(WindowError));

impl From<BoardError> for RmaError {
    fn from(error: BoardError) -> RmaError {
        match error {
            BoardError::Register(error) => RmaError::Register(error.into()),
            BoardError::Window(error) => RmaError::Window(error),
            BoardError::Missing(rank) => RmaError::Missing(rank),
        }
    }
}
