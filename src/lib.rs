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
//! - [`collective`]: schedules of collective operations over windows
//! - [`hca`]: a host channel adapter in software, for queues that a GPU writes
//! - [`provider`]: who answers the seam: loopback, shared memory, and other rails
//! - `memory`, `connect`, `host`: what needs an operating system (feature `std`)
//!
//! Under `cfg(loom)` only [`base`] exists: it holds everything that two threads share, and loom's
//! atomics cannot be zeroed memory, which the rooms above are made of.
#![no_std]

pub mod base;
#[cfg(not(loom))]
pub mod collective;
#[cfg(not(loom))]
pub mod fabric;
#[cfg(not(loom))]
pub mod hca;
#[cfg(not(loom))]
pub mod provider;
#[cfg(not(loom))]
pub mod transport;
#[cfg(not(loom))]
pub mod window;
#[cfg(not(loom))]
pub mod wire;

#[cfg(feature = "std")]
pub mod connect;
#[cfg(feature = "std")]
pub mod diagnose;
#[cfg(feature = "std")]
pub mod host;
#[cfg(feature = "std")]
pub mod memory;

/// Chance for unit tests, which cannot use the test kit: it would bring the library once more.
#[cfg(all(test, not(loom)))]
#[path = "../tests/kit/src/random.rs"]
mod random;

#[cfg(any(test, feature = "std"))]
extern crate std;

// Files of `tests/` that its unit tests include name the library as others do.
#[cfg(test)]
extern crate self as crosstie;
