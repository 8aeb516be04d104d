//! What is wrong, in words: why requests do not end, from snapshots; and what this process runs on,
//! read from files that the kernel offers. Control path.
#![forbid(unsafe_code)]

pub mod kernel;
pub mod lost;
pub mod stall;
