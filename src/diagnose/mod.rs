//! What this process runs on, read from files that the kernel offers. Control path.
#![forbid(unsafe_code)]

pub mod kernel;
