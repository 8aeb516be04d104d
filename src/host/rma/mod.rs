//! One-sided operations that the host issues: what NCCL's RMA plugins, and its GIN plugins in proxy
//! mode, are translated to.
//!
//! A [`Comm`] is a group of ranks ([`super::group`]) over an endpoint of its own. Each function
//! returns at once, but for those that all ranks call together: connecting and registering. Those
//! have a deadline.
//!
//! - [`listener`]: the endpoint, before its ranks are known
//! - [`comm`]: the communicator
//! - [`core`]: what its lock guards, and each step of it
//! - [`requests`]: operations under way, in places that are made beforehand
//! - [`tend`]: the thread that makes progress while the user does not
//!
//! # Promises
//!
//! | What | When |
//! |---|---|
//! | a signal is seen | all that its rank issued to that rank before is there |
//! | a put has ended | its source may be used again; for a put to the own rank, the bytes are there |
//! | a get has ended | the bytes are there |
//! | a flush has ended | the gets of the same context and rank that came before have ended |

pub mod comm;
mod core;
pub mod listener;
pub mod requests;
mod tend;

extern crate std;

use super::error::{ListenError, OpenError};
use super::group::GroupError;
use super::memory_options::MemoryError;
use crate::memory::Errno;
use crate::window::WindowError;
use ::core::fmt;

pub use comm::{Comm, Opening};
pub use core::{Memory, Side, Signal, Target};
pub use listener::Listener;

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
