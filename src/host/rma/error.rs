//! Why something of this room does not work.
#![forbid(unsafe_code)]

use crate::base::words::{said, wraps};
use crate::host::error::{ListenError, OpenError};
use crate::host::group::GroupError;
use crate::host::group::board::BoardError;
use crate::host::memory_options::MemoryError;
use crate::memory::Errno;
use crate::window::WindowError;

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
