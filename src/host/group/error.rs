//! Why a group was not opened, and how a wait ended that did not end well.
#![forbid(unsafe_code)]

use crate::host::{AcceptError, ConnectError, ListenError, RegisterError};
use crate::transport::RequestError;
use crate::window::WindowError;
use core::fmt;

/// The user's bootstrap has failed, with a code of its own.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct BootstrapError(pub i32);

/// Why a group was not opened. Nothing of it is left.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum GroupError {
    /// A limit is out of range, or the rank is not below the number of ranks.
    Limits,
    /// The block is too small, or not aligned to 64 bytes.
    Storage,
    /// The frames could not be registered.
    Register(RegisterError),
    /// The endpoint has fewer connections left than the group needs, which are so many.
    Connections(u32),
    /// This rank cannot listen.
    Listen(ListenError),
    /// The bootstrap has failed.
    Bootstrap(BootstrapError),
    /// What this rank got from that one is not of a group like this: another version of the
    /// library, another number of ranks or windows, or another rank's number.
    Mismatch(u32),
    /// This rank could not connect to that one.
    Connect(u32, ConnectError),
    /// This rank could not accept.
    Accept(AcceptError),
    /// The connection to that rank failed while the group was opened.
    Failed(u32, RequestError),
    /// That rank did not connect in time.
    Missing(u32),
    /// That rank could not open its group; its own error says why.
    Elsewhere(u32),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Limits => f.write_str("a limit of the group is out of range"),
            GroupError::Storage => {
                f.write_str("the group's storage is too small, or not aligned to 64 bytes")
            }
            GroupError::Register(_) => f.write_str("the group's storage cannot be registered"),
            GroupError::Connections(needed) => write!(
                f,
                "the group needs {needed} connections, and the endpoint has fewer left \
                 (connections_max)"
            ),
            GroupError::Listen(error) => write!(f, "the group cannot listen: {error}"),
            GroupError::Bootstrap(BootstrapError(code)) => {
                write!(f, "the group's bootstrap has failed (code {code})")
            }
            GroupError::Mismatch(rank) => write!(
                f,
                "rank {rank} opens another group: its library is of another version, its number of \
                 ranks or of windows differs, or two say the same rank"
            ),
            GroupError::Connect(rank, error) => write!(f, "no connection to rank {rank}: {error}"),
            GroupError::Accept(error) => write!(f, "the group cannot accept: {error:?}"),
            GroupError::Failed(rank, error) => {
                write!(f, "the connection to rank {rank} failed while the group opened: {error}")
            }
            GroupError::Missing(rank) => write!(f, "rank {rank} did not connect in time"),
            GroupError::Elsewhere(rank) => {
                write!(f, "rank {rank} could not open its group; its own error says why")
            }
        }
    }
}

/// How a wait ended that did not end well. The group can be used as before.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum WaitError {
    /// The deadline has passed. Where a rank is waited for, which.
    Timeout(Option<u32>),
    /// The group was aborted.
    Aborted,
    /// The operation ended with an error.
    Window(WindowError),
}

impl From<WindowError> for WaitError {
    fn from(error: WindowError) -> WaitError {
        WaitError::Window(error)
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::Timeout(Some(rank)) => write!(f, "the deadline has passed, for rank {rank}"),
            WaitError::Timeout(None) => f.write_str("the deadline has passed"),
            WaitError::Aborted => f.write_str("the group was aborted"),
            WaitError::Window(error) => write!(f, "{error}"),
        }
    }
}
