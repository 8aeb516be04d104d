//! The providers: implementations of [`crate::fabric::Provider`]. Each passes [`conformance`].
//!
//! Providers that carve tables of atomics are left out under loom, whose atomics are not plain
//! memory.

#[cfg(feature = "std")]
mod asides;
#[cfg(feature = "std")]
mod events;
mod fifo;
#[cfg(not(loom))]
pub mod host_domain;
#[cfg(feature = "std")]
mod ops;
pub mod random;
#[cfg(not(loom))]
mod touch;

pub mod conformance;
pub mod fault;
#[cfg(feature = "std")]
pub mod libfabric;
#[cfg(not(loom))]
pub mod loopback;
#[cfg(feature = "std")]
pub mod rail_set;
#[cfg(feature = "std")]
pub mod shm;
#[cfg(not(loom))]
pub mod sim;
#[cfg(feature = "std")]
pub mod taken;
#[cfg(feature = "std")]
pub mod tcp;
pub mod trace;
#[cfg(not(loom))]
pub mod vendor;
#[cfg(feature = "std")]
pub mod verbs;
