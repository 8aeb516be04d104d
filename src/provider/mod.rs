//! Who answers [`crate::fabric::Provider`]. Every provider passes [`conformance`].

mod fifo;
pub mod host_domain;
pub mod random;
mod touch;

pub mod conformance;
pub mod fault;
pub mod loopback;
#[cfg(feature = "std")]
pub mod shm;
pub mod sim;
pub mod trace;
