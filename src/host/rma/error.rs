//! Why something of this room does not work.
#![forbid(unsafe_code)]

use crate::host::error::{ListenError, OpenError};
use crate::host::group::GroupError;
use crate::host::group::board::BoardError;
use crate::host::memory_options::MemoryError;
use crate::memory::Errno;
use crate::window::WindowError;
use core::fmt;

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
