//! Faults that are planted in windows are found by one-sided schedules, which find nothing where
//! none is planted.

use std::panic::catch_unwind;

use crosstie::window::mutant::Mutant;
use crosstie_tool::sim::proof;

/// Schedules within which a fault is found.
const SCHEDULES: u64 = 1_000;

/// The first schedule that goes wrong, and how.
fn found(mutant: Option<Mutant>) -> Option<(u64, String)> {
    (1..=SCHEDULES).find_map(|seed| {
        let run = catch_unwind(|| proof::run_one_sided(seed, mutant));
        match run {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some((seed, error)),
            Err(_) => Some((seed, "it panicked".into())),
        }
    })
}

#[test]
fn one_sided_schedules_find_nothing_where_no_fault_is_planted() {
    assert_eq!(found(None), None);
}

#[test]
fn fence_that_the_owner_ignores_is_found() {
    let (seed, error) = found(Some(Mutant::FenceIgnored)).expect("it lives");
    println!("FenceIgnored: seed {seed}: {error}");
    assert!(error.contains("taken effect") || error.contains("took effect"), "{error}");
}

#[test]
fn add_that_the_owner_does_although_it_has_refused_what_that_needs_is_found() {
    let (seed, error) = found(Some(Mutant::RefusalIgnored)).expect("it lives");
    println!("RefusalIgnored: seed {seed}: {error}");
    assert!(error.contains("was added by nobody"), "{error}");
}

#[test]
fn signal_that_is_added_before_its_bytes_have_come_is_found() {
    let (seed, error) = found(Some(Mutant::SignalAtRecord)).expect("it lives");
    println!("SignalAtRecord: seed {seed}: {error}");
    assert!(error.contains("took effect"), "{error}");
}
