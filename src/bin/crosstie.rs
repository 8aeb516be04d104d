//! The `crosstie` tool.
#![forbid(unsafe_code)]

fn main() {}
