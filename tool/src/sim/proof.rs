//! Schedules with a planted fault, which the oracle must find.
#![forbid(unsafe_code)]

pub use super::throttle::{Found as Carried, Plan as Lanes};

use super::{one_sided, schedule};
use crosstie::transport::mutant::Mutant;
use crosstie::window::mutant::Mutant as WindowMutant;

/// Runs the schedule of `seed` with a fault planted in both machines.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<(), String> {
    schedule::run_prepared(seed, &|endpoint| endpoint.mutant_set(mutant)).map(|_| ())
}

/// Runs the one-sided schedule of `seed` with a fault planted in both groups.
pub fn run_one_sided(seed: u64, mutant: Option<WindowMutant>) -> Result<(), String> {
    one_sided::schedule::run_prepared(seed, &|group| group.mutant_set(mutant)).map(|_| ())
}
