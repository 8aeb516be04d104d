//! The header of libibverbs, which tests compile against.

pub const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Whether it is installed, with a line that says so where it is not.
///
/// *Panics* where it must be: under CI nothing may be skipped.
pub fn is_installed() -> bool {
    let is_there = std::path::Path::new(HEADER).exists();
    if !is_there {
        let why = format!("{HEADER} is not installed (package libibverbs-dev)");
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
        println!("SKIP: {why}");
    }
    is_there
}
