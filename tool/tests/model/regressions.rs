//! What a model has found, as the history that led to it.

use crate::plans;
use crate::world::Action::{self, Hold, Kill, Land, Progress, Rejoin, Submit};
use crate::world::World;

/// The side that opened a lane anew before it could say that its last use was fenced had the peer
/// wait for that word until the connection failed.
#[test]
fn lane_opened_anew_before_its_report_left_counts_as_fenced() {
    let history = [
        Submit(0),
        Kill(0, 0),
        Progress(0),
        Hold(0, 0),
        Land(0, 1),
        Progress(1),
        Land(1, 1),
        Progress(0),
        Land(1, 1),
    ];
    let mut world = World::new(&plans::GROUPS, None);
    history.iter().for_each(|action| world.act(*action));
    world.settle_all();
    assert_eq!(world.wrong(), None);
}

/// Lets lane 0 be fenced and reports be exchanged on lane 1.
fn exchange(world: &mut World) {
    for _ in 0..8 {
        for side in 0..2 {
            let mut enabled = Vec::new();
            world.enabled(&mut enabled);
            let due = |action: &&Action| matches!(**action, Hold(..) | Land(_, 1));
            enabled.iter().filter(due).for_each(|action| world.act(*action));
            world.act(Progress(side));
        }
    }
}

/// A lane that died while it joined was reported as fenced before the peer had opened it; the peer
/// then opened it, found the probe, used it, and waited for a report that had been made.
#[test]
fn lane_that_died_before_the_peer_opened_it_is_not_waited_for() {
    let mut world = World::new(&plans::LONG, None);
    world.act(Kill(0, 0));
    exchange(&mut world);
    world.act(Rejoin(1, 0));
    world.act(Progress(1)); // its probe leaves
    world.act(Kill(1, 0));
    exchange(&mut world);
    world.act(Rejoin(0, 0));
    world.act(Land(1, 0)); // and comes
    world.act(Progress(0));
    world.settle_all();
    assert_eq!(world.wrong(), None);
}
