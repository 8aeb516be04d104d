//! An endpoint on a host: transport, rail, side band and memory put together. The C API and the
//! tool both stand on this room, so that they cannot differ.
//!
//! [`Endpoint`] has two halves. [`Shared`] may be used from any thread: registration, listening,
//! connecting, accepting; it lies beside the endpoint in the block, so that the two never overlap.
//! The rest belongs to one thread at a time: requests, progress, closing.

pub mod device;
pub mod endpoint;
pub mod error;
mod events;
pub mod gin;
mod join;
mod lanes;
mod libfabric;
mod linger;
mod link_memory;
pub mod log;
mod lost;
mod machine;
pub mod mistyped;
mod network;
mod news;
pub mod options;
mod own;
mod pairs;
mod parts;
mod ports;
mod ports_memory;
mod rail_end;
mod rail_news;
mod rdma;
pub mod settings;
pub mod shared;
mod silence;
pub mod stall;
mod told;
mod values;
pub mod vendor;
mod vouch;

pub use device::{DeviceKind, DeviceProperties};
pub use endpoint::Endpoint;
pub use error::{
    AcceptError, AllocateError, ConnectError, DeregisterError, ListenError, OpenError,
    RegisterError, RingsError,
};
pub use lanes::RailView;
pub use options::Options;
pub use rail_end::{END_BYTES_MAX, RailEnd};
pub use shared::{Attempt, Half, Shared};
