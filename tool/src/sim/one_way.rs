//! A lane whose packets vanish in one direction, without a word from its device: nothing is sent
//! that way, and messages flow on over the others.
#![forbid(unsafe_code)]

use super::network::calm;
use super::stage::{self, Stage};
use super::world::CONNECTION;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Bytes;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{LaneJoin, LaneView, RequestError};

/// Longer than what goes unasked.
const LONG: usize = 2048;
const LANE: u8 = 1;
const PEER: PeerIndex = PeerIndex(LANE as u32);
/// Nothing that is posted ends while a test lasts: a byte takes a second.
const SILENT: u64 = 1;
const FREE: u64 = 0;
/// A message without payload leaves within a few calls of [`Stage::both`], and the longest one long
/// after a test has looked.
const LONG_LOST: u64 = 2_000_000;
const CALLS: u32 = 8;

impl Stage<'_, '_> {
    /// What a side sends on the lane gets nowhere, or does again. That side's end alone.
    fn speed_of(&mut self, side: u32, speed: u64) {
        self.fabric.speed_set(side, side, PEER, speed, self.world.now);
    }

    /// The lane dies, and both sides open it anew. `waits`: who hears the other before it sends.
    fn lane_renew(&mut self, generation: u32, waits: Option<usize>) {
        self.fabric.sever(0, PEER, self.world.now);
        self.both();
        for side in 0..2 {
            assert_eq!(self.lane(side, LANE), LaneState::Down);
            self.world.lanes_release(side).unwrap();
        }
        self.fabric.connect_at(0, 1, PEER).unwrap();
        for side in 0..2 {
            let waits = waits == Some(side);
            let join = LaneJoin { generation, mailbox_key: None, waits };
            assert!(self.world.endpoints[side].lane_join(CONNECTION, LANE, &join));
        }
        self.both();
    }

    /// Messages both ways, long ones and short ones.
    fn messages_flow(&mut self) {
        for tag in 0..8 {
            let length = if tag % 2 == 0 { LONG } else { 8 };
            let receives = [0, 1].map(|side| self.receive(side, tag));
            let sends = [0, 1].map(|side| self.send(side, tag, length));
            self.both();
            for side in 0..2 {
                let outcomes = self.ended(side, &[sends[side], receives[side]]);
                let outcomes = outcomes.unwrap_or_else(|| panic!("side {side}, tag {tag}: stuck"));
                let [send, receive] = [outcomes[0].result, outcomes[1].result];
                // rooms are of any length
                let whole = matches!(receive, Ok(()) | Err(RequestError::Truncated));
                assert!(send.is_ok() && whole, "side {side}, tag {tag}: {outcomes:?}");
            }
        }
    }

    fn carried(&self, side: usize) -> bool {
        self.view(side).carried
    }

    fn view(&self, side: usize) -> LaneView {
        self.world.endpoints[side].lane_view(CONNECTION, LANE).unwrap()
    }
}

#[test]
fn lane_that_is_silent_one_way_is_not_used_that_way_and_messages_flow_on() {
    // every other seed has lane 0 as a reserve, which control leaves
    for seed in 0..2 {
        for silent in 0..2 {
            for waits in [None, Some(0), Some(1)] {
                stage::set(calm(false, 2, seed), 2, |stage| {
                    stage.speed_of(silent, SILENT);
                    stage.lane_renew(2, waits);
                    let silent = silent as usize;
                    let state = stage.lane(silent, LANE);
                    assert_eq!(state, LaneState::Joining, "seed {seed}, {waits:?}");
                    stage.messages_flow();
                    assert_eq!(stage.lane(silent, LANE), LaneState::Joining);
                    assert!(!stage.carried(silent));
                    // it is found out, and the path is whole again
                    stage.speed_of(silent as u32, FREE);
                    stage.lane_renew(3, waits);
                    assert!((0..2).all(|side| stage.lane(side, LANE) == LaneState::Up));
                    stage.messages_flow();
                    assert!((0..2).all(|side| stage.carried(side)), "seed {seed}, {waits:?}");
                });
            }
        }
    }
}

/// Switches of a shorter MTU than the hosts' pass short packets and drop long ones without a word.
/// Such a lane joined by short messages, and took all that it was given with it.
#[test]
fn lane_that_loses_long_packets_alone_is_not_used_and_is_known_by_that() {
    for seed in 0..2 {
        for lossy in 0..2 {
            for waits in [None, Some(0), Some(1)] {
                stage::set(calm(false, 2, seed), 2, |stage| {
                    stage.lane_renew(2, waits);
                    stage.speed_of(lossy, LONG_LOST);
                    let lossy = lossy as usize;
                    stage.lane_renew(3, waits);
                    (0..CALLS).for_each(|_| stage.both());
                    assert_eq!(stage.lane(lossy, LANE), LaneState::Joining, "{waits:?}");
                    stage.messages_flow();
                    assert_eq!(stage.lane(lossy, LANE), LaneState::Joining);
                    assert_eq!(stage.view(lossy).ended, Bytes(0));
                    stage.speed_of(lossy as u32, FREE);
                    stage.lane_renew(4, waits);
                    assert!(stage.view(lossy).short_alone, "seed {seed}, {waits:?}");
                    assert!((0..2).all(|side| stage.lane(side, LANE) == LaneState::Up));
                    stage.messages_flow();
                    assert!((0..2).all(|side| stage.carried(side)), "seed {seed}, {waits:?}");
                });
            }
        }
    }
}

/// One that gives no answers is believed to hear us.
#[test]
fn lane_to_a_peer_of_an_older_version_is_used_when_that_is_heard() {
    stage::set(calm(false, 2, 2), 2, |stage| {
        stage.speed_of(0, SILENT);
        stage.lane_renew(2, None);
        assert_eq!([0, 1].map(|side| stage.lane(side, LANE)), [LaneState::Up, LaneState::Joining]);
    });
}
