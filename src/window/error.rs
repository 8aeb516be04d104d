//! Why an operation on a window was not accepted, or did not end well.
#![forbid(unsafe_code)]

use crate::transport::{RequestError, SubmitError};
use crate::wire::one_sided::Refusal;

/// Why an operation was not accepted, or ended badly. An operation that was not accepted has
/// changed nothing.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum WindowError {
    /// No room now: make progress, then call again.
    Again,
    /// No such window, or it was freed.
    Window,
    /// All windows of the group are in use.
    WindowsFull,
    /// The window was not exchanged yet.
    NotExchanged,
    /// The window was exchanged already.
    Exchanged,
    /// The group has no such rank.
    Rank,
    /// The window has no such signal, counter or barrier; at the peer, where it is the peer's.
    Id,
    /// The bytes do not lie inside the window of that rank, which has so many.
    Range(u64),
    /// Peers may not write to that rank's window.
    ReadOnly,
    /// The rank has freed its window.
    Freed,
    /// The local buffer: it is not registered, does not lie in its region, or the connection does
    /// not reach memory of GPUs.
    Buffer(SubmitError),
    /// The owner of the window could not move the bytes.
    Memory,
    /// A NIC was to add to a counter of the window, and failed first: what the window's counters
    /// would be is not known.
    OutcomeUnknown,
    /// The connection to this rank has failed; the cause.
    Failed(u32, RequestError),
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

impl core::fmt::Display for WindowError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            WindowError::Again => "there is no room now",
            WindowError::Window => "no such window, or it was freed",
            WindowError::WindowsFull => "all windows of the group are in use",
            WindowError::NotExchanged => "the window was not exchanged",
            WindowError::Exchanged => "the window was exchanged already",
            WindowError::Rank => "the group has no such rank",
            WindowError::Id => "the window has no such signal, counter or barrier",
            WindowError::Range(0) => "the bytes do not lie inside the window",
            WindowError::Range(bytes) => {
                return write!(
                    f,
                    "the bytes do not lie inside that rank's window of {bytes} bytes"
                );
            }
            WindowError::ReadOnly => {
                "the window is read only, or its memory is and the flag that says so is missing"
            }
            WindowError::Freed => "that rank has freed its window",
            WindowError::Buffer(_) => "the local buffer cannot be used",
            WindowError::Memory => "the owner of the window could not move the bytes",
            WindowError::OutcomeUnknown => "a NIC failed before it had added to a counter",
            WindowError::Failed(rank, error) => {
                return write!(f, "the connection to rank {rank} has failed: {error}");
            }
        })
    }
}
