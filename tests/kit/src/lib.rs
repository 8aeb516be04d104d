//! The test kit: what tests of rails and of the protocol are made of.
//!
//! - [`conformance`]: the suite that each provider passes
//! - [`vendor`]: the suite over two objects of a vendor's table, for the core archive
//! - [`sim`]: rails of a simulated network, with faults that a seed determines
//! - [`fault`]: a provider made worse, within the contract
//! - [`trace`]: a provider with a record of its calls
//! - [`random`]: the chance of both, and of others
//!
//! The library never names the kit; its tests in `tests/` do. The kit needs no operating system
//! and allocates nothing, since `libcrosstie-core.a` offers the suite to vendors.
//!
//! Under `cfg(loom)` the kit is empty, as the rooms of the library that it names.
#![no_std]
#![cfg(not(loom))]

pub mod conformance;
pub mod fault;
pub mod random;
pub mod sim;
pub mod trace;
pub mod vendor;

#[cfg(test)]
extern crate std;
