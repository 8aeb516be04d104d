//! Why a port has no companion, and why an add is not posted.
#![forbid(unsafe_code)]

use super::super::report::status_words;
use super::super::{Step, refused};
use crate::base::words::said;
use crate::memory::Errno;
use core::ffi::c_int;

said! {
    /// Why a port has no companion. Nothing is left behind.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum CompanionError {
        /// The device has no atomics, or none may be on their way.
        Atomics => "the device has no atomics",
        /// libibverbs has no `ibv_reg_mr_iova2`.
        Library =>
            "libibverbs has no ibv_reg_mr_iova2, by which memory is registered at address 0 \
             (rdma-core 28 has it)",
        Sink(errno: Errno) => "the device does not register memory at address 0 (iova 0): {errno}",
        /// It has registered the sink, and does not find it at address 0: the status of set-up's
        /// add.
        SinkElsewhere(status: c_int) => |f| write!(
            f,
            "the device does not find the memory that was registered at address 0 (iova 0): {}",
            status_words(*status)
        ),
        /// Set-up's add failed with that status.
        Trial(status: c_int) => |f| write!(f, "an add for trial failed: {}", status_words(*status)),
        /// It ended well, and the word or the sink does not hold what it must.
        Wrong => "an add for trial has left a wrong value",
        /// It did not end.
        Late => "an add for trial has not ended",
        /// The device refused something else, with its code.
        Refused(step: Step, errno: Errno) => |f| refused(f, *step, *errno),
    }
}

/// Why an add was not posted. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AddError {
    /// [`super::ADDS_MAX`] are on their way, or the device has no room: poll, then add again.
    Again,
    /// The word is not aligned to 8 bytes.
    Unaligned,
    /// The word does not lie in a region of that key.
    Region,
    /// The device registered that region without adds.
    NoAdds,
    /// An add has failed, or the port has: there will be no more.
    Lost,
    /// The device refused the request, with its code.
    Refused(Errno),
}

/// An add was posted, and its device or port failed before it ended: it was carried out, or not.
/// The word is to be set anew by who owns it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct OutcomeUnknown;

pub(super) const fn at(step: Step) -> impl Fn(Errno) -> CompanionError {
    move |errno| CompanionError::Refused(step, errno)
}
