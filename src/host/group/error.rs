//! Why a group was not opened, and how a wait ended that did not end well.
#![forbid(unsafe_code)]

use crate::base::words::{said, wraps};
use crate::host::{AcceptError, ConnectError, ListenError, RegisterError};
use crate::transport::RequestError;
use crate::window::WindowError;

/// The user's bootstrap has failed, with a code of its own.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct BootstrapError(pub i32);

said! {
    /// Why a group was not opened. Nothing of it is left.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum GroupError {
        /// A limit is out of range, or the rank is not below the number of ranks.
        Limits => "a limit of the group is out of range",
        Storage => "the group's storage is too small, or not aligned to 64 bytes",
        /// The frames could not be registered.
        Register(_it: RegisterError) => "the group's storage cannot be registered",
        Connections(needed: u32) =>
            "the group needs {needed} connections, and the endpoint has fewer left \
             (connections_max)",
        /// This rank cannot listen.
        Listen(error: ListenError) => "the group cannot listen: {error}",
        /// The bootstrap has failed.
        Bootstrap(error: BootstrapError) => |f|
            write!(f, "the group's bootstrap has failed (code {})", error.0),
        /// What this rank got from that one is not of a group like this: another version of the
        /// library, another number of ranks or windows, or another rank's number.
        Mismatch(rank: u32) =>
            "rank {rank} opens another group: its library is of another version, its number of \
             ranks or of windows differs, or two say the same rank",
        /// This rank could not connect to that one.
        Connect(rank: u32, error: ConnectError) => "no connection to rank {rank}: {error}",
        /// This rank could not accept.
        Accept(error: AcceptError) => "the group cannot accept: {error:?}",
        Failed(rank: u32, error: RequestError) =>
            "the connection to rank {rank} failed while the group opened: {error}",
        Missing(rank: u32) => "rank {rank} did not connect in time",
        /// That rank could not open its group; its own error says why.
        Elsewhere(rank: u32) => "rank {rank} could not open its group; its own error says why",
    }
}

said! {
    /// How a wait ended that did not end well. The group can be used as before.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum WaitError {
        /// The deadline has passed. Where a rank is waited for, which.
        Timeout(what: Option<u32>) => |f| match what {
            Some(rank) => write!(f, "the deadline has passed, for rank {rank}"),
            None => f.write_str("the deadline has passed"),
        },
        Aborted => "the group was aborted",
        /// The operation ended with an error.
        Window(error: WindowError) => "{error}",
    }
}

wraps!(WaitError: Window(WindowError));
