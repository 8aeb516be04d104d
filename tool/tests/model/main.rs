//! The failover protocol as a model: every order in which operations land, ends of lanes fail,
//! fences hold and sides make progress, with the shipped machine on both sides.
//!
//! A search takes the shortest histories first, and from each state a random walk to the end of
//! everything, so that also what a failure leads to long after it is seen. How far it goes says
//! `DEPTH`: seconds by default, a minute or two with `ci`, and with `full` until nothing is left,
//! which for all but the smallest model is more than a machine remembers.

mod check;
mod memory;
mod mutants;
mod net;
mod plans;
mod regressions;
mod windows;
mod world;

use check::{Depth, Failover};
use world::Plan;

/// Transitions that are looked at of each model, by depth.
const TRANSITIONS: usize = 25_000;
const TRANSITIONS_CI: usize = 300_000;
/// Random walks of each long plan, by depth, and actions of each.
const WALKS: u64 = 300;
const WALKS_CI: u64 = 3_000;
const WALK_ACTIONS: u64 = 400;

fn depth() -> (Depth, u64) {
    match std::env::var("DEPTH").as_deref() {
        Ok("full") => (Depth::Full, 20 * WALKS_CI),
        Ok("ci") => (Depth::Transitions(TRANSITIONS_CI), WALKS_CI),
        _ => (Depth::Transitions(TRANSITIONS), WALKS),
    }
}

fn holds_to(plan: &'static Plan, depth: Depth) -> check::Found {
    let found = Failover { plan, mutant: None }.check(depth);
    println!("{}: {} states, up to {} actions", plan.name, found.states, found.depth);
    if let Some(wrong) = &found.wrong {
        panic!("{}: {wrong}", plan.name);
    }
    found
}

fn walks(plan: &'static Plan) {
    let model = Failover { plan, mutant: None };
    let (_, count) = depth();
    for seed in 1..=count {
        if let Some((invariant, sentence)) = model.walk(seed, WALK_ACTIONS) {
            panic!("{}, walk {seed}: {invariant:?}: {sentence}", plan.name);
        }
    }
    println!("{}: {count} walks of {WALK_ACTIONS} actions", plan.name);
}

#[test]
fn one_message_survives_one_death() {
    let found = holds_to(&plans::SMALL, depth().0);
    assert!(found.over, "no order of events led to the end");
}

#[test]
fn stripes_of_failed_lanes_move() {
    holds_to(&plans::STRIPES, depth().0);
}

#[test]
fn stripes_move_that_were_complete_for_their_writer() {
    holds_to(&plans::STRIPES_LOCAL, depth().0);
}

#[test]
fn groups_survive_the_death_of_their_control_lane() {
    holds_to(&plans::GROUPS, depth().0);
}

#[test]
fn long_walks_end_well() {
    walks(&plans::LONG);
}

#[test]
fn long_walks_end_well_where_ops_are_complete_at_post() {
    walks(&plans::LONG_LOCAL);
}
