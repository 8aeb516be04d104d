//! Who answers [`crate::fabric::Provider`]. Every provider passes [`conformance`].

pub mod conformance;
pub mod fault;
pub mod loopback;
#[cfg(feature = "std")]
pub mod shm;
pub mod sim;
pub mod trace;
