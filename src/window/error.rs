//! Why an operation on a window was not accepted, or did not end well.
#![forbid(unsafe_code)]

use crate::base::words::said;
use crate::transport::{RequestError, SubmitError};
use crate::wire::one_sided::Refusal;

said! {
    /// Why an operation was not accepted, or ended badly. An operation that was not accepted has
    /// changed nothing.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum WindowError {
        /// Make progress, then call again.
        Again => "there is no room now",
        Window => "no such window, or it was freed",
        WindowsFull => "all windows of the group are in use",
        NotExchanged => "the window was not exchanged",
        Exchanged => "the window was exchanged already",
        Rank => "the group has no such rank",
        /// At the peer, where it is the peer's.
        Id => "the window has no such signal, counter or barrier",
        /// The bytes do not lie inside the window of that rank, which has so many; 0: not known.
        Range(bytes: u64) => |f| match bytes {
            0 => f.write_str("the bytes do not lie inside the window"),
            bytes => write!(f, "the bytes do not lie inside that rank's window of {bytes} bytes"),
        },
        /// Peers may not write to that rank's window.
        ReadOnly =>
            "the window is read only, or its memory is and the flag that says so is missing",
        Freed => "that rank has freed its window",
        /// It is not registered, does not lie in its region, or the connection does not reach
        /// memory of GPUs.
        Buffer(error: SubmitError) => "the local buffer cannot be used",
        Memory => "the owner of the window could not move the bytes",
        /// What the window's counters would be is not known.
        OutcomeUnknown => "a NIC failed before it had added to a counter",
        Failed(rank: u32, error: RequestError) =>
            "the connection to rank {rank} has failed: {error}",
    }
}

impl From<Refusal> for WindowError {
    fn from(refusal: Refusal) -> WindowError {
        match refusal {
            Refusal::Stale => WindowError::Freed,
            Refusal::Range => WindowError::Range(0),
            Refusal::Id => WindowError::Id,
            Refusal::ReadOnly => WindowError::ReadOnly,
            Refusal::Memory => WindowError::Memory,
        }
    }
}
