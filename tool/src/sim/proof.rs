//! Schedules with a planted fault, which the oracle must find.
#![forbid(unsafe_code)]

pub use super::throttle::{Found as Carried, Plan as Lanes};

use super::schedule;
use crosstie::transport::mutant::Mutant;

/// Runs the schedule of `seed` with a fault planted in both machines.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<(), String> {
    schedule::run_prepared(seed, &|endpoint| endpoint.mutant_set(mutant)).map(|_| ())
}
