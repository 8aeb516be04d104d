//! What an endpoint is opened on: its device, its ports, its rails and addresses, as options and
//! settings ask.

pub mod device;
pub(super) mod libfabric;
pub mod mistyped;
pub(super) mod network;
pub mod options;
pub mod plan;
pub(super) mod ports;
pub(super) mod rdma;
pub mod settings;
pub(super) mod sizes;
pub(super) mod values;
pub mod vendor;

pub use device::{DeviceKind, DeviceProperties};
pub use options::Options;
