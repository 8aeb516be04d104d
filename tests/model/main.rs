//! The failover protocol as a model: every order in which operations land, ends of lanes fail,
//! fences hold and sides make progress, with the shipped machine on both sides.
//!
//! `DEPTH=ci` looks at some hundred thousand states of each model, `DEPTH=full` at all of them.

mod check;
mod memory;
mod mutants;
mod net;
mod plans;
mod world;

use check::{Depth, Failover};
use world::Plan;

fn depth(bounded: usize) -> Depth {
    match std::env::var("DEPTH").as_deref() {
        Ok("full") => Depth::Full,
        Ok("ci") => Depth::States(bounded * 8),
        _ => Depth::States(bounded),
    }
}

fn holds(plan: &'static Plan, bounded: usize) {
    let model = Failover { plan, mutant: None };
    let start = std::time::Instant::now();
    let found = model.check(depth(bounded));
    println!(
        "{}: {} states, depth {}, all: {}, over: {} in {:?}",
        plan.name,
        found.states,
        found.depth,
        found.complete,
        found.over,
        start.elapsed()
    );
    if let Some(wrong) = found.wrong {
        panic!("{}: {wrong}", plan.name);
    }
}

#[test]
fn stripes_of_failed_lanes_move() {
    holds(&plans::STRIPES, 50_000);
}

#[test]
fn stripes_move_that_were_complete_for_their_writer() {
    holds(&plans::STRIPES_LOCAL, 50_000);
}

#[test]
fn groups_survive_the_death_of_their_control_lane() {
    holds(&plans::GROUPS, 50_000);
}

fn walks(plan: &'static Plan, count: u64) {
    let model = Failover { plan, mutant: None };
    for seed in 1..=count {
        if let Some((invariant, sentence)) = model.walk(seed, 400) {
            panic!("{}, walk {seed}: {invariant:?}: {sentence}", plan.name);
        }
    }
}

#[test]
fn long_walks_end_well() {
    walks(&plans::LONG, 5_000);
}

#[test]
fn long_walks_end_well_where_ops_are_complete_at_post() {
    walks(&plans::LONG_LOCAL, 5_000);
}
