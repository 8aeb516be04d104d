//! Diagnosis in words, on the control path.
//!
//! - [`stall`] and [`lost`]: why requests do not end, from snapshots
//! - [`kernel`]: what this process runs on, from files of the kernel
#![forbid(unsafe_code)]

pub mod kernel;
pub mod lost;
pub mod stall;
