//! The providers: implementations of [`crate::fabric::Provider`]. Each passes the conformance suite
//! of `tests/kit`.
//!
//! Providers that carve tables of atomics are left out under loom, whose atomics are not plain
//! memory.

#[cfg(feature = "std")]
mod asides;
#[cfg(feature = "std")]
pub mod copy_engine;
#[cfg(feature = "std")]
mod events;
pub mod fifo;
#[cfg(not(loom))]
pub mod host_domain;
#[cfg(feature = "std")]
pub mod notes;
#[cfg(feature = "std")]
mod ops;
#[cfg(not(loom))]
pub mod touch;

#[cfg(feature = "std")]
pub mod libfabric;
#[cfg(not(loom))]
pub mod loopback;
#[cfg(feature = "std")]
pub mod rail_set;
#[cfg(feature = "std")]
pub mod shm;
#[cfg(feature = "std")]
pub mod taken;
#[cfg(feature = "std")]
pub mod tcp;
#[cfg(not(loom))]
pub mod vendor;
#[cfg(feature = "std")]
pub mod verbs;
