//! Lets processes fork with the `efa` provider loaded.
//!
//! `efa` ends a process at its next fork, unless forking was permitted. It does so only where the
//! kernel or rdma-core cannot give a child pages of its own (before Linux 5.13).

use crate::memory::Variables;

/// What says so.
pub const SAFE: &str = "FI_EFA_FORK_SAFE";
/// What somebody may have said of it: the same in other words, and huge pages, which exclude it.
const SAID: [&str; 4] = [SAFE, "RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "FI_EFA_USE_HUGE_PAGE"];

/// Has the process let to fork, unless somebody has said whether it is. For hosts with such a NIC,
/// before libfabric is loaded.
///
/// A change of the environment is the whole process's. It is made once, and only where a process
/// would otherwise end at its next fork. Threads that read the environment through Rust's library
/// wait meanwhile; one that reads it in C at that very moment has the same risk as with any library
/// that sets a variable when it is loaded, NCCL among them, and one that begins later has none.
pub fn permit() {
    let all = Variables::of_process();
    if SAID.iter().all(|name| all.get(name).is_none()) {
        // SAFETY: see above.
        unsafe { std::env::set_var(SAFE, "1") };
    }
}
