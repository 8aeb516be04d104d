//! Fences that do not come, and rails that are all lost: every request ends by name within its
//! deadline, and memory that may still be touched is not given back before.
#![forbid(unsafe_code)]

use super::lanes::{FENCE_SPAN, LOSS_SPAN};
use super::network::{REGIONS, calm};
use super::stage::{self, Stage};
use super::world::CONNECTION;
use crosstie::base::ids::PeerIndex;
use crosstie::base::regions::RemoveError;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::transport::endpoint::ConnectionCloseError;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{RequestError, RequestId};
use crosstie_kit::sim::{Breach, CERTAIN, Faults, SimConfig};

/// Longer than what goes unasked.
const LONG: usize = 2048;
const SHORT: usize = 8;
/// Calls of progress within one deadline.
const CALLS: u64 = 100;
const SEEDS: core::ops::Range<u64> = 1..if cfg!(miri) { 3 } else { 40 };

impl Stage<'_, '_> {
    /// Time goes on for both sides, so and so much.
    fn wait(&mut self, span: Span) {
        for _ in 0..CALLS {
            self.step(0, Span(span.0 / CALLS));
            self.step(1, Span(0));
        }
    }

    /// Regions of a side that cannot be taken back.
    fn busy(&self, side: usize) -> Vec<Handle> {
        let world = &self.world;
        let idle = |region: &&Handle| world.tables[side].idle_keys(**region).is_ok();
        world.regions[side].iter().filter(|region| !idle(region)).copied().collect()
    }

    fn region_of_send(&self, side: usize) -> Handle {
        let buffer = self.world.directions[side].sends.last().unwrap().buffer;
        self.world.regions[side][self.world.memory[side].region_of(buffer)]
    }

    fn region_of_receive(&self, side: usize) -> Handle {
        let buffer = self.world.directions[1 - side].groups.last().unwrap().rooms[0].0;
        self.world.regions[side][self.world.memory[side].region_of(buffer)]
    }

    /// The user of a side believes that everything is its own again, and watches over it.
    fn give_back(&mut self, side: usize) {
        let sends = core::mem::take(&mut self.world.directions[side].sends);
        let groups = core::mem::take(&mut self.world.directions[1 - side].groups);
        let rooms = groups.iter().flat_map(|group| &group.rooms).map(|room| room.0);
        for buffer in sends.iter().map(|send| send.buffer).chain(rooms) {
            self.world.memory[side].give_back(buffer);
        }
    }

    fn is_untouched(&mut self) -> bool {
        self.world.memory.iter_mut().all(|memory| memory.is_untouched())
    }

    fn close_both(&mut self) -> bool {
        let again = Err(ConnectionCloseError::Again);
        let closed = |endpoint: &mut crosstie::transport::Endpoint<'_, _>| {
            endpoint.connection_close(CONNECTION) != again
        };
        let [a, b] = &mut self.world.endpoints;
        closed(a) & closed(b)
    }
}

/// A network whose dead rails write on, for a long time.
fn haunted(lanes: u32, seed: u64) -> SimConfig {
    let faults = Faults { ghost: CERTAIN, ..Faults::default() };
    SimConfig { faults, delay_max: Span(2 * FENCE_SPAN.0), ..calm(false, lanes, seed) }
}

/// A message is under way in stripes when all its lanes die, and no fence comes; both requests end.
fn abandoned(stage: &mut Stage<'_, '_>) {
    let receive = stage.receive(1, 7);
    stage.both();
    let send = stage.send(0, 7, LONG);
    stage.fabric.breach_set(Breach::Fences);
    stage.sever_all();
    stage.wait(Span(FENCE_SPAN.0 / 2));
    assert!(stage.ended(0, &[send]).is_none() && stage.ended(1, &[receive]).is_none());
    stage.wait(FENCE_SPAN);
    assert_eq!(stage.errors(0, &[send]).unwrap(), [RequestError::Unfenced]);
    assert_eq!(stage.errors(1, &[receive]).unwrap(), [RequestError::Unfenced]);
}

#[test]
fn requests_whose_fence_never_comes_end_unfenced_and_their_regions_stay_registered() {
    for lanes in [1, 2, 4] {
        stage::set(calm(false, lanes, 1), lanes, |stage| {
            abandoned(stage);
            let regions = [stage.region_of_send(0), stage.region_of_receive(1)];
            stage.wait(Span(4 * FENCE_SPAN.0));
            for (side, region) in regions.into_iter().enumerate() {
                assert_eq!(stage.busy(side), [region], "this one, and no other");
                assert_eq!(stage.world.tables[side].remove(region), Err(RemoveError::Busy));
                assert_eq!(stage.world.endpoints[side].stats().unfenced, 1);
            }
            assert!(!stage.close_both(), "nor can the connection be closed");
        });
    }
}

#[test]
fn fence_that_comes_late_ends_the_quarantine_and_nothing_is_touched_afterwards() {
    for lanes in [1, 2, 4] {
        let mut touched_late = 0;
        for seed in SEEDS {
            stage::set(haunted(lanes, seed), lanes, |stage| {
                abandoned(stage);
                let writes = stage.fabric.counts().writes;
                stage.wait(Span(2 * FENCE_SPAN.0));
                touched_late += stage.fabric.counts().writes - writes;
                stage.fabric.breach_set(Breach::None);
                stage.both();
                assert!(stage.busy(0).is_empty() && stage.busy(1).is_empty(), "seed {seed}");
                (0..2).for_each(|side| stage.give_back(side));
                stage.wait(Span(40 * FENCE_SPAN.0));
                assert!(stage.is_untouched(), "seed {seed}: touched behind a fence");
                assert!(stage.close_both());
                for side in 0..2 {
                    for region in stage.world.regions[side] {
                        assert_eq!(stage.world.tables[side].remove(region), Ok(()));
                    }
                }
            });
        }
        assert!(touched_late > 0, "no write came late: the quarantine was for nothing");
    }
}

/// What the quarantine is for: the oracle sees what it keeps from the user.
#[test]
fn memory_given_back_before_the_fence_is_seen_to_be_touched() {
    let mut touched = 0;
    for seed in SEEDS {
        stage::set(haunted(2, seed), 2, |stage| {
            abandoned(stage);
            stage.give_back(1);
            stage.wait(Span(40 * FENCE_SPAN.0));
            touched += u32::from(!stage.is_untouched());
        });
    }
    assert!(touched > 0);
}

#[test]
fn connection_that_is_closed_unfenced_ends_its_requests_too() {
    for lanes in [1, 2] {
        stage::set(calm(false, lanes, 1), lanes, |stage| {
            let receive = stage.receive(0, 7);
            stage.both();
            stage.fabric.breach_set(Breach::Fences);
            assert!(!stage.close_both());
            stage.wait(Span(2 * FENCE_SPAN.0));
            assert_eq!(stage.errors(0, &[receive]).unwrap(), [RequestError::Unfenced]);
            let region = stage.region_of_receive(0);
            assert_eq!(stage.busy(0), [region]);
            assert!(!stage.close_both());
            stage.fabric.breach_set(Breach::None);
            stage.wait(LOSS_SPAN);
            assert!(stage.close_both());
            assert!(stage.busy(0).is_empty());
        });
    }
}

/// Whoever closes may have computed for long, and made no progress.
#[test]
fn fence_has_its_time_from_the_first_progress_after_the_close() {
    for lanes in [1, 2] {
        stage::set(calm(false, lanes, 1), lanes, |stage| {
            let receive = stage.receive(0, 7);
            stage.both();
            stage.world.now = stage.world.now.after(Span(3 * FENCE_SPAN.0));
            stage.fabric.breach_set(Breach::Fences);
            assert!(!stage.close_both());
            stage.wait(Span(FENCE_SPAN.0 / 2));
            assert!(stage.ended(0, &[receive]).is_none());
            stage.fabric.breach_set(Breach::None);
            stage.both();
            assert!(stage.close_both());
            assert_eq!(stage.errors(0, &[receive]).unwrap(), [RequestError::Closed]);
        });
    }
}

/// The lane that is only not reported on is older than the one that is not fenced.
#[test]
fn lane_that_is_not_reported_on_hides_none_that_is_not_fenced() {
    stage::set(calm(false, 2, 1), 2, |stage| {
        stage.receive(1, 7);
        stage.both();
        let send = stage.send(0, 7, LONG);
        stage.fabric.sever(0, PeerIndex(0), stage.world.now);
        stage.one(0);
        assert_eq!(stage.lane(0, 0), LaneState::Fenced);
        stage.fabric.breach_set(Breach::Fences);
        stage.fabric.sever(0, PeerIndex(1), stage.world.now);
        for _ in 0..3 * CALLS {
            stage.step(0, Span(FENCE_SPAN.0 / CALLS)); // the peer makes no progress
        }
        assert_eq!(stage.errors(0, &[send]).unwrap(), [RequestError::Unfenced]);
        assert_eq!(stage.busy(0), [stage.region_of_send(0)]);
    });
}

/// Requests of a side in every state that they can be in.
fn requests_of_all_kinds(stage: &mut Stage<'_, '_>, side: usize) -> Vec<RequestId> {
    let other = 1 - side;
    stage.receive(other, 3);
    let unmatched = stage.receive(side, 5);
    let grouped = stage.world.irecv(side, &[1, 2, 3]).unwrap();
    assert!(grouped);
    let group = stage.world.directions[other].groups.last().unwrap().request;
    stage.both();
    let without_receive = stage.send(side, 4, LONG);
    let flying = stage.send(side, 3, LONG);
    let last = stage.receive(side, 9);
    let mut requests = vec![unmatched, group, without_receive, flying, last];
    // more short ones than are kept for a lane that dies: the last wait for room
    for _ in 0..20 {
        let short = stage.send(side, 4, SHORT);
        requests.push(short);
    }
    requests
}

#[test]
fn loss_of_all_lanes_ends_every_request_by_name_within_its_deadline() {
    for lanes in [2, 3, 4] {
        for seed in SEEDS {
            let faults = Faults { ghost: CERTAIN / 2, ..Faults::default() };
            let config = SimConfig { faults, ..calm(false, lanes, seed) };
            stage::set(config, lanes, |stage| {
                let requests = [0, 1].map(|side| requests_of_all_kinds(stage, side));
                let open = [0, 1].map(|side| {
                    let endpoint = &stage.world.endpoints[side];
                    let of_side = requests[side].iter().copied();
                    of_side.filter(|id| endpoint.is_outstanding(*id)).collect::<Vec<_>>()
                });
                stage.sever_all();
                let end = stage.world.now.after(LOSS_SPAN);
                while stage.world.now.0 + 2_000 < end.0 {
                    stage.step(0, Span(1_000));
                    stage.step(1, Span(0));
                    assert!(stage.ended(0, &open[0]).is_none(), "it may come back until then");
                }
                while stage.world.now.0 < end.0 + 10_000 {
                    stage.step(0, Span(1_000));
                    stage.step(1, Span(0));
                }
                for (side, open) in open.iter().enumerate() {
                    assert!(open.len() >= 4, "{}", open.len());
                    for error in stage.errors(side, open).expect("all have ended") {
                        assert_eq!(error, RequestError::RailsLost(0), "seed {seed}");
                    }
                }
                (0..2).for_each(|side| stage.give_back(side));
                stage.wait(FENCE_SPAN);
                assert!(stage.is_untouched(), "seed {seed}");
                assert!(stage.close_both());
                assert_eq!(stage.busy(0).len() + stage.busy(1).len(), 0, "of {REGIONS} regions");
            });
        }
    }
}

/// A side that was stopped itself took its own stop for the silence of its peer.
#[test]
fn time_in_which_nobody_looked_ends_no_request() {
    for seed in SEEDS {
        stage::set(calm(false, 2, seed), 2, |stage| {
            let receive = stage.receive(1, 7);
            stage.both();
            let send = stage.send(0, 7, LONG);
            stage.one(0);
            stage.fabric.sever(0, PeerIndex(1), stage.world.now);
            stage.fabric.sever(1, PeerIndex(1), stage.world.now);
            while stage.lane(0, 1) != LaneState::Fenced {
                stage.one(0);
            }
            stage.one(0);
            assert!(stage.ended(0, &[send]).is_none() && stage.ended(1, &[receive]).is_none());
            stage.step(0, Span(3 * FENCE_SPAN.0)); // nothing of the peer's report has come yet
            for (side, request) in [send, receive].into_iter().enumerate() {
                let ended = loop {
                    stage.both();
                    if let Some(ended) = stage.ended(side, &[request]) {
                        break ended;
                    }
                };
                let result = ended[0].result; // a room may be shorter than what comes
                assert!(matches!(result, Ok(()) | Err(RequestError::Truncated)), "{result:?}");
            }
        });
    }
}
