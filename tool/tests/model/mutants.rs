//! Each planted fault is found, by the model and by the simulator, in a search that finds nothing
//! where no fault is planted.

use std::panic::catch_unwind;

use crosstie::transport::mutant::Mutant;
use crosstie_tool::sim::proof;

use crate::check::{Depth, Failover};
use crate::plans;
use crate::world::Plan;

/// Transitions within which a model finds a fault.
const TRANSITIONS: Depth = Depth::Transitions(30_000);
/// Schedules within which the simulator does.
const SCHEDULES: u64 = 20_000;
/// Schedules in which it finds nothing where nothing is wrong.
const SOUND: u64 = 1_000;

/// The model of `plan` holds, but not with the fault.
fn model_finds(plan: &'static Plan, mutant: Mutant) {
    let found = Failover { plan, mutant: Some(mutant) }.check(TRANSITIONS);
    let wrong = found.wrong.unwrap_or_else(|| panic!("{}: {mutant:?} lives", plan.name));
    println!("{mutant:?}: {} finds it among {} states: {wrong}", plan.name, found.states);
}

/// The first schedule that goes wrong.
fn simulator_finds(mutant: Option<Mutant>, schedules: u64) -> Option<u64> {
    (1..=schedules).find(|seed| {
        let run = catch_unwind(|| proof::run(*seed, mutant));
        !matches!(run, Ok(Ok(())))
    })
}

fn both_find(mutant: Mutant) {
    for plan in [&plans::STRIPES, &plans::STRIPES_LOCAL, &plans::GROUPS] {
        model_finds(plan, mutant);
    }
    let seed = simulator_finds(Some(mutant), SCHEDULES);
    println!("{mutant:?}: the simulator finds it with seed {seed:?}");
    assert!(seed.is_some(), "{mutant:?} lives through {SCHEDULES} schedules");
}

#[test]
fn nothing_is_found_where_no_fault_is_planted() {
    assert_eq!(simulator_finds(None, SOUND), None);
    for plan in [&plans::STRIPES, &plans::STRIPES_LOCAL, &plans::GROUPS] {
        let found = Failover { plan, mutant: None }.check(TRANSITIONS);
        assert!(found.wrong.is_none(), "{}: {found:?}", plan.name);
    }
}

#[test]
fn fence_that_is_skipped_is_found() {
    both_find(Mutant::FenceSkipped);
}

#[test]
fn answer_before_the_fence_is_found() {
    both_find(Mutant::AnswerBeforeFence);
}

#[test]
fn cursor_that_is_ignored_is_found() {
    both_find(Mutant::CursorIgnored);
}

#[test]
fn deliveries_that_are_ignored_are_found() {
    both_find(Mutant::DeliveriesIgnored);
}

#[test]
fn release_on_local_completion_is_found() {
    both_find(Mutant::ReleaseOnLocal);
}

#[test]
fn slots_written_again_before_the_fence_are_found() {
    both_find(Mutant::ControlUnfenced);
}

/// Nothing is lost with it, and no model knows of time: a slow lane makes everything slow.
#[test]
fn equal_weights_are_found_by_a_slow_lane() {
    for (lanes, outstanding) in [(2, 8), (3, 8), (4, 8), (2, 1)] {
        let gigabit = 1_000_000_000 / 8;
        let excess = |mutant| {
            let plan = proof::Lanes { mutant, ..proof::Lanes::tenth(lanes, gigabit, outstanding) };
            let found = plan.run().unwrap();
            plan.excess(&found)
        };
        let (good, bad) = (excess(None), excess(Some(Mutant::WeightsEqual)));
        println!("WeightsEqual: {lanes} lanes, {outstanding} at a time: {bad:?} thousandths");
        println!("beyond the ideal, and {good:?} without it");
        let most = if outstanding == 1 { 150 } else { 50 }; // whole stripes cannot do better
        assert!(good.iter().all(|part| *part <= most), "{good:?}");
        assert!(bad.iter().all(|part| *part > 4 * most), "equal weights live: {bad:?}");
    }
}

/// Ten bits are enough for any search: what needs more is a stream of more messages.
#[test]
fn numbers_of_ten_bits_are_found_by_a_long_stream() {
    let stream = |mutant| Failover { plan: &plans::STREAM, mutant }.walk(1, 600);
    assert_eq!(stream(None), None);
    let (_, sentence) = stream(Some(Mutant::SequenceNarrow)).expect("numbers of ten bits live");
    println!("SequenceNarrow: {}", sentence.lines().next().unwrap_or_default());
}
