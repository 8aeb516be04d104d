//! The C functions of `crosstie.h`, one file per noun. The header is made from this crate: what
//! stands above a function here is what a C programmer reads there.
//!
//! Each function checks its pointers, hands the call to `crosstie::host` through the guard
//! ([`guard`]), which checks the endpoint and catches panics, and turns the answer into a result
//! code. Nothing is decided here, and nothing allocates once an endpoint is open.

// The names are C's; each function's contract is its comment, which is written for C.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod library;

mod result;

mod device;

mod config;

mod endpoint;

mod handle;

mod listener;

mod connection;

mod memory;

mod request;

mod group;

mod stats;
mod vendor;

pub mod guard;

mod errors;
mod structs;
mod text;

pub use config::*;
pub use connection::*;
pub use device::*;
pub use endpoint::*;
pub use group::*;
pub use handle::*;
pub use library::*;
pub use listener::*;
pub use memory::*;
pub use request::*;
pub use result::*;
pub use stats::*;
pub use vendor::*;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles of the C API are 64-bit numbers in pointers");
