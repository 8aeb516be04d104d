//! An endpoint on a host: transport, rail, side band and memory put together. The C API and the
//! tool both stand on this room, so that they cannot differ.
//!
//! [`Endpoint`] has two halves. [`Shared`] may be used from any thread: registration, listening,
//! connecting, accepting; it lies beside the endpoint in the block, so that the two never overlap.
//! The rest belongs to one thread at a time: requests, progress, closing.
//!
//! Three folders: [`choice`] says what an endpoint is opened on, [`life`] joins, watches and ends
//! connections and their rails, and [`log`] has the sentences for people.

mod choice;
pub mod endpoint;
pub mod error;
pub mod gather;
pub mod gin;
pub mod gpu;
pub mod group;
pub mod kernels;
mod life;
mod link_memory;
pub mod log;
mod machine;
mod memory_options;
pub mod nic_counter;
mod own;
mod parts;
mod ports_memory;
pub mod rma;
pub mod shared;

pub use choice::{
    DeviceKind, DeviceProperties, Options, device, mistyped, options, plan, settings, vendor,
};
pub use endpoint::Endpoint;
pub use error::{
    AcceptError, AllocateError, ConnectError, DeregisterError, ListenError, OpenError,
    RegisterError, RingsError,
};
pub use life::RailView;
pub use log::stall;
pub use log::{END_BYTES_MAX, RailEnd};
pub use memory_options::{MemoryError, MemoryOptions};
pub use shared::{Attempt, Half, Shared};
