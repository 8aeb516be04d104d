//! The `crosstie` tool.

pub mod sim;
