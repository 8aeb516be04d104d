//! Schedules with a planted fault, which the oracle must find.
#![forbid(unsafe_code)]

extern crate std;

use super::schedule::{self, Plan};
use crate::transport::mutant::Mutant;
use std::string::String;

/// Runs the schedule of `seed`, so many steps longer, with a fault planted in both machines.
pub fn run(seed: u64, steps_more: u64, mutant: Option<Mutant>) -> Result<(), String> {
    let plan = Plan { steps_more, prepare: &|endpoint| endpoint.mutant_set(mutant) };
    schedule::run_planned(seed, &plan).map(|_| ())
}
