//! `crosstie sim`: simulated schedules with faults, against a plain model.
#![forbid(unsafe_code)]

extern crate std;

use std::string::String;

/// Runs schedules as the arguments say.
pub fn run(_args: &[String]) -> Result<(), super::Failure> {
    super::write_out("usage: crosstie sim --seed N --schedules M\n\nThis command is coming.\n")
}
