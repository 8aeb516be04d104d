//! RDMA devices, as libibverbs calls them: InfiniBand and RoCE.
//!
//! What needs no device to be thought about: [`ports`] reads what the kernel shows of them,
//! [`settings`] what the user wants of them, [`choice`] which ports may be used and why others may
//! not, [`gid`] by which of its addresses a port is used, and [`rails`] which ports of two hosts
//! reach each other. All of it is for open: it allocates, and reads files.

pub mod choice;
pub mod gid;
pub mod ports;
pub mod rails;
pub mod settings;
