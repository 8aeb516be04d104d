//! Memory that processes share, and the two system services beside it: copies through the kernel,
//! and waking a sleeper.
//!
//! - [`available`]: how much memory can still be had
//! - [`shared`]: one mapping, backed by an anonymous file whose descriptor is handed to the peer
//! - [`cuda`]: memory of GPUs
//! - [`cpus`]: sets of CPUs, and threads that are kept on them
//! - [`dmabuf`]: what a descriptor of a buffer that devices share is told by
//! - [`environment`]: the process's variables, read once
//! - [`heap`]: page-aligned allocations out of one sparse mapping that peers map too
//! - [`kernel_copy`]: reading another process's memory
//! - [`loader`]: libraries that are loaded at run time
//! - [`pidfd`]: a child's descriptors, for the test that breaks its sockets
//! - [`probe`]: what the kernel grants this process, for `crosstie info` and for pinning
//! - [`processor`]: giving it up
//! - [`registrations`]: a cache of memory that is registered with rails
//! - [`reserve`]: private memory that exists where it is touched
//! - [`rights`]: whether this process may write to its memory
//! - `space`: address space that core dumps and `mlockall` leave alone
//! - [`stderr`]: its lines without a lock
//! - [`threads`]: threads that work for a rail
//! - [`wake`]: eventfd, timerfd, and the process-wide barrier that makes a doorbell cheap
//!
//! Everything here is control path, except [`kernel_copy::read`] and [`wake::ring`], which do one
//! system call each and nothing else, and [`probe::clock_ns`]. Space is allocated for real when it
//! is handed out, so that a full `/dev/shm` is an error of the call and never a SIGBUS later.

pub mod available;
pub mod cpus;
pub mod cuda;
pub mod dmabuf;
pub mod environment;
pub mod errno;
pub mod heap;
pub mod kernel_copy;
pub mod loader;
pub mod pidfd;
pub mod probe;
pub mod processor;
pub mod registrations;
pub mod reserve;
pub mod rights;
pub mod shared;
mod space;
pub mod stderr;
pub mod threads;
pub mod wake;

pub use cpus::{CpuSet, PinError, cpus_try, thread_pin};
pub use environment::Variables;
pub use errno::Errno;
pub use heap::{HeapError, SharedHeap};
pub use reserve::Reserve;
pub use shared::{SharedMapping, ViewMapping};
pub use threads::locked;
pub use wake::{Alarm, WaitSet, WakeFd};
