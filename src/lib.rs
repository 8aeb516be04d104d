//! crosstie: the transport under GPU collectives.
//!
//! One reliable, ordered, fast connection out of several rails, allocation-free after open. The
//! rooms of the house, and which may name which, are drawn in `doc/architecture.md`; this file
//! only opens the doors.
//!
//! - [`base`]: units, serial numbers, containers over borrowed storage
//! - [`wire`]: the bytes that peers exchange
//! - [`fabric`]: the seam between the protocol and the rails, with the provider contract
//! - [`transport`]: the protocol machine
//! - [`provider`]: who answers the seam: loopback, simulator, fault injector, tracer, shared memory
//! - `memory`, `connect`, `host`: what needs an operating system (feature `std`)
#![no_std]

pub mod base;
pub mod fabric;
pub mod provider;
pub mod transport;
pub mod wire;

#[cfg(feature = "std")]
pub mod connect;
#[cfg(feature = "std")]
pub mod diagnose;
#[cfg(feature = "std")]
pub mod host;
#[cfg(feature = "std")]
pub mod memory;
#[cfg(feature = "tool")]
pub mod tool;

#[cfg(test)]
extern crate std;
