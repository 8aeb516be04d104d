//! Memory that one rail of several does not know: what lies there goes over the others.
#![forbid(unsafe_code)]

use super::lanes::LOSS_SPAN;
use super::network::calm;
use super::stage::{self, Stage};
use super::world::CONNECTION;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Span;
use crosstie::transport::RequestError;
use std::ops::Range;

/// In several stripes.
const LONG: usize = 2048;
const LANES: u8 = 3;

/// Long messages of a side, all asked for before any has ended, to their ends.
fn long_messages_flow(stage: &mut Stage<'_, '_>, side: usize, tags: Range<i32>) {
    let receives: Vec<_> = tags.clone().map(|tag| stage.receive(1 - side, tag)).collect();
    let sends: Vec<_> = tags.clone().map(|tag| stage.send(side, tag, LONG)).collect();
    (0..8).for_each(|_| stage.both());
    let sent = stage.ended(side, &sends).unwrap_or_else(|| panic!("{tags:?} stand still"));
    let received = stage.ended(1 - side, &receives).expect("what was sent has come");
    assert!(sent.iter().all(|outcome| outcome.result.is_ok()));
    // rooms are of any length
    let is_whole = |result| matches!(result, Ok(()) | Err(RequestError::Truncated));
    assert!(received.iter().all(|outcome| is_whole(outcome.result)));
}

/// A stripe was given to a lane that lacks a key of an end, again and again, when the first lane,
/// which took those, was down.
#[test]
fn messages_go_on_over_the_lane_that_knows_their_memory() {
    for seed in 0..2 {
        for without in 1..LANES {
            for forgets in 0..2 {
                stage::set(calm(false, u32::from(LANES), seed), u32::from(LANES), |stage| {
                    stage.keys_differ();
                    stage.memory_forgotten(forgets, without);
                    stage.fabric.sever(0, PeerIndex(0), stage.world.now);
                    stage.both();
                    for round in 0..4 {
                        long_messages_flow(stage, 1 - forgets, 2 * round..2 * round + 2);
                    }
                    assert_eq!(stage.stripes(1 - forgets, without), 0);
                });
            }
        }
    }
}

/// No lane that is left knows it: that was waited for without end.
#[test]
fn message_that_no_lane_carries_any_more_ends() {
    for returns in [true, false] {
        stage::set(calm(false, 2, 0), 2, |stage| {
            stage.world.endpoints.iter_mut().for_each(|it| it.lane_key_set(CONNECTION, 1, 1));
            stage.memory_forgotten(1, 1);
            stage.fabric.sever(0, PeerIndex(0), stage.world.now);
            stage.both();
            let receive = stage.receive(1, 0);
            let send = stage.send(0, 0, LONG);
            stage.both();
            assert_eq!(stage.ended(0, &[send]), None);
            if returns {
                (0..2).for_each(|side| stage.world.lanes_release(side).unwrap());
                stage.lane_open(0, 2);
                stage.both();
                assert_eq!(stage.ended(0, &[send]).expect("an end")[0].result, Ok(()));
                assert!(stage.ended(1, &[receive]).is_some());
            }
            for side in [0, 1, 0, 1] {
                stage.step(side, LOSS_SPAN);
                stage.one(side);
            }
            if returns {
                long_messages_flow(stage, 0, 2..4);
            } else {
                let errors = stage.errors(0, &[send]).expect("an end");
                assert!(matches!(errors[..], [RequestError::RailsLost(_)]), "{errors:?}");
            }
        });
    }
}

/// A lane that comes back, and does not know it either, is no news to a message that waits.
#[test]
fn message_waits_no_longer_because_other_lanes_come_and_go() {
    const PART: Span = Span(LOSS_SPAN.0 / 10);
    stage::set(calm(false, u32::from(LANES), 0), u32::from(LANES), |stage| {
        stage.keys_differ();
        (1..LANES).for_each(|lane| stage.memory_forgotten(1, lane));
        for lane in [0, 2] {
            stage.fabric.sever(0, PeerIndex(lane), stage.world.now);
        }
        stage.both();
        stage.receive(1, 0);
        let send = stage.send(0, 0, LONG);
        stage.both();
        (0..7).for_each(|_| stage.step(0, PART));
        assert_eq!(stage.ended(0, &[send]), None);
        (0..2).for_each(|side| stage.world.lanes_release(side).unwrap());
        stage.lane_open(2, 2);
        assert_eq!(stage.ended(0, &[send]), None);
        (0..7).for_each(|_| stage.step(0, PART));
        stage.one(0);
        let errors = stage.errors(0, &[send]).expect("an end");
        assert!(matches!(errors[..], [RequestError::RailsLost(_)]), "{errors:?}");
    });
}

/// A rail that was asked to forget memory and has, while another was busy: the peer went on writing
/// by the key that it had been told before.
#[test]
fn peer_is_told_anew_of_memory_whose_keys_have_changed() {
    stage::set(calm(false, u32::from(LANES), 0), u32::from(LANES), |stage| {
        stage.keys_differ();
        for round in 0..4 {
            long_messages_flow(stage, 0, 6 * round..6 * round + 6);
        }
        let before = stage.stripes(0, 1);
        assert!(before > 0);
        stage.memory_forgotten(1, 1);
        long_messages_flow(stage, 0, 24..30);
        assert_eq!(stage.stripes(0, 1), before, "written by a forgotten key");
    });
}
