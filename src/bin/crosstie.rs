//! The `crosstie` tool.
fn main() {}
