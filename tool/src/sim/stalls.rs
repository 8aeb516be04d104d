//! Each class of `doc/stalls.md`, brought about on the simulated network, named by what the two
//! machines say of themselves.
#![forbid(unsafe_code)]

use super::network::calm;
use super::stage::{self, Stage};
use super::world::CONNECTION;
use crosstie::base::ids::PeerIndex;
use crosstie::diagnose::stall::{Answer, Class, Stall};
use crosstie::fabric::DownCause;
use crosstie::transport::RequestError;
use crosstie::transport::rail::LaneState;
use crosstie::transport::snapshot::Tick;
use crosstie::wire::status::{
    RequestStatus, STATUS_CLOSED, STATUS_FRESH, STATUS_SNAPSHOT, Status, StatusHello,
};
use crosstie_kit::sim::Breach;

/// Longer than what goes unasked.
const LONG: usize = 2048;
const SHORT: usize = 8;
/// When the requests are seen first, and when they are reported.
const SEEN_MS: u64 = 1_000;
const STALL_MS: u32 = 10_000;
const LOOK_MS: u32 = 1_250;

/// What the peer's side band answers.
#[derive(Copy, Clone)]
enum Peer {
    Says,
    /// A snapshot of earlier: its program is elsewhere.
    Computes,
    Stopped,
    /// It knows no such connection any more.
    Closed,
}

/// One way to a class; the request that is reported is of side 0.
struct Scene {
    class: Class,
    words: &'static str,
    pull: bool,
    lanes: u32,
    peer: Peer,
    act: fn(&mut Stage<'_, '_>),
    /// A message of the peer's comes before the request is reported.
    moves: bool,
}

const fn scene(class: Class, words: &'static str, act: fn(&mut Stage<'_, '_>)) -> Scene {
    Scene { class, words, pull: false, lanes: 1, peer: Peer::Says, act, moves: false }
}

const SCENES: [Scene; 21] = [
    scene(Class::NeverPosted, "the peer owes a receive: it has posted none", sent_unasked),
    Scene { pull: true, ..scene(Class::NeverPosted, "1 message(s) of ours", sent_unasked) },
    scene(Class::NeverSent, "the peer owes a message", received_unsent),
    scene(Class::WrongTag, "a receive with tag 7: its oldest group, 0, waits for tag 8", wrong_tag),
    Scene { pull: true, ..scene(Class::WrongTag, "waits for tag 8", wrong_tag) },
    scene(Class::WrongTag, "owes tag 7: its first message has tag 8", wrong_tag_received),
    Scene { pull: true, ..scene(Class::NoCredits, "the peer owes us credits: 48", flooded) },
    scene(Class::LostSlot, "rail 0 owes the slot of group 0: the peer has written it", slot_lost),
    scene(Class::LostSlot, "rail 0 owes the slot of group 0: we have written it", own_slot_lost),
    scene(Class::DeadRail, "rail 0 (generation 1) owes stripes", writes_stuck),
    scene(Class::DeadRail, "which have not come", writes_stuck_at_peer),
    Scene { moves: true, ..scene(Class::SlowRail, "something moved 0 ms ago", writes_stuck) },
    Scene { lanes: 3, ..scene(Class::DeadRail, "no rail is up that could carry it", all_dead) },
    Scene { lanes: 3, ..scene(Class::DeadRail, "no rail is up", all_dead_at_receiver) },
    Scene { peer: Peer::Stopped, ..scene(Class::StoppedPeer, "owes an answer", received_unsent) },
    Scene { peer: Peer::Computes, ..scene(Class::NoProgress, "15000 ms ago", received_unsent) },
    Scene { peer: Peer::Closed, ..scene(Class::ClosedPeer, "has closed the conn", closed_by_peer) },
    Scene {
        lanes: 2,
        ..scene(Class::Unfenced, "rail 1 (generation 1) has failed, and it", unfenced)
    },
    Scene { lanes: 2, ..scene(Class::Unfenced, "and the peer owes its report", unreported) },
    Scene {
        lanes: 2,
        peer: Peer::Stopped,
        ..scene(Class::Unfenced, "rail 1 (generation 1) has failed, and the peer owes", unreported)
    },
    Scene { pull: true, ..scene(Class::Moving, "neither side sees a fault", being_read) },
];

fn sent_unasked(stage: &mut Stage<'_, '_>) {
    stage.send(0, 7, LONG);
    stage.both();
}

fn received_unsent(stage: &mut Stage<'_, '_>) {
    stage.receive(0, 7);
    stage.both();
}

fn wrong_tag(stage: &mut Stage<'_, '_>) {
    stage.receive(1, 8);
    stage.both();
    sent_unasked(stage);
}

fn wrong_tag_received(stage: &mut Stage<'_, '_>) {
    stage.send(1, 8, SHORT);
    stage.both();
    received_unsent(stage);
}

fn flooded(stage: &mut Stage<'_, '_>) {
    let mut open = 0;
    while open == 0 {
        stage.send(0, 7, SHORT);
        stage.both();
        open = stage.world.endpoints[0].watch(CONNECTION, Tick::of(0, LOOK_MS)).open;
    }
}

/// A receive is posted at a side, and its slot goes its way.
fn offered(stage: &mut Stage<'_, '_>, side: usize) {
    stage.receive(side, 7);
    stage.both();
}

fn slot_lost(stage: &mut Stage<'_, '_>) {
    stage.fabric.breach_set(Breach::Lines);
    offered(stage, 1);
    sent_unasked(stage);
}

fn own_slot_lost(stage: &mut Stage<'_, '_>) {
    stage.fabric.breach_set(Breach::Lines);
    offered(stage, 0);
    stage.send(1, 7, LONG);
    stage.both();
}

fn writes_stuck(stage: &mut Stage<'_, '_>) {
    stage.fabric.breach_set(Breach::Writes);
    offered(stage, 1);
    sent_unasked(stage);
}

fn writes_stuck_at_peer(stage: &mut Stage<'_, '_>) {
    stage.fabric.breach_set(Breach::Writes);
    offered(stage, 0);
    stage.send(1, 7, LONG);
    stage.both();
}

fn all_dead(stage: &mut Stage<'_, '_>) {
    offered(stage, 1);
    stage.send(0, 7, LONG);
    stage.sever_all();
    stage.both();
}

fn all_dead_at_receiver(stage: &mut Stage<'_, '_>) {
    offered(stage, 0);
    stage.sever_all();
    stage.both();
}

fn closed_by_peer(stage: &mut Stage<'_, '_>) {
    offered(stage, 0);
    stage.world.close(1).unwrap();
    for _ in 0..4 {
        stage.one(1);
        stage.world.close(1).unwrap();
    }
}

/// Stripes are under way on lane 1 when it dies; the peer is not told.
fn lane_lost(stage: &mut Stage<'_, '_>) {
    offered(stage, 1);
    stage.send(0, 7, LONG);
    let sent = stage.world.endpoints[0].lane_view(CONNECTION, 1).unwrap().stats.stripes;
    assert_ne!(sent, 0, "the lane that is to die carries something");
    stage.fabric.sever(0, PeerIndex(1), stage.world.now);
    stage.one(0);
}

fn unfenced(stage: &mut Stage<'_, '_>) {
    stage.fabric.breach_set(Breach::Fences);
    lane_lost(stage);
    assert_eq!(stage.lane(0, 1), LaneState::Failing);
}

fn unreported(stage: &mut Stage<'_, '_>) {
    lane_lost(stage);
    assert_eq!(stage.lane(0, 1), LaneState::Fenced);
}

/// The message was described, and the peer is on its way to it.
fn being_read(stage: &mut Stage<'_, '_>) {
    offered(stage, 1);
    stage.send(0, 7, LONG);
    stage.one(0);
    stage.step(1, crosstie::base::units::Span(1));
}

/// What the peer's side band says of it, if it says anything.
fn said(stage: &Stage<'_, '_>, peer: Peer, tick: Tick) -> Option<StatusHello> {
    let mut said = stage.world.endpoints[1].status(CONNECTION, tick);
    match peer {
        Peer::Says => said.status.flags = STATUS_SNAPSHOT | STATUS_FRESH,
        Peer::Computes => {
            said.status.flags = STATUS_SNAPSHOT;
            said.status.silent_ms = 15_000;
        }
        Peer::Stopped => return None,
        Peer::Closed => {
            assert!(!stage.world.endpoints[1].is_open(CONNECTION));
            let status = Status { flags: STATUS_CLOSED, ..Status::ZERO };
            said = StatusHello { status, ..StatusHello::ZERO };
        }
    }
    Some(said)
}

fn sentence(ours: &Status, request: &RequestStatus, said: Option<&StatusHello>) -> (Class, String) {
    let answer = said.map_or(Answer::Silent(1_000), Answer::Said);
    let stall = Stall { ours, request, answer, peer: "the other", stall_ms: STALL_MS };
    (stall.class(), format!("{stall}"))
}

#[test]
fn every_class_is_named_where_it_is_brought_about() {
    for (at, scene) in SCENES.iter().enumerate() {
        stage::set(calm(scene.pull, scene.lanes, 1), scene.lanes, |stage| {
            (scene.act)(stage);
            let seen = Tick::of(SEEN_MS, LOOK_MS);
            assert_eq!(stage.world.endpoints[0].watch(CONNECTION, seen).open, 1, "scene {at}");
            let now = Tick::of(SEEN_MS + u64::from(STALL_MS), LOOK_MS);
            if scene.moves {
                stage.send(1, 9, SHORT);
                stage.both();
            }
            let endpoint = &mut stage.world.endpoints[0];
            assert_eq!(endpoint.watch(CONNECTION, now).unreported_ms, STALL_MS);
            let request = endpoint.next_stalled(CONNECTION, STALL_MS, now).expect("one");
            assert_eq!(endpoint.next_stalled(CONNECTION, STALL_MS, now), None, "said once");
            let ours = endpoint.status(CONNECTION, now).status;
            let said = said(stage, scene.peer, now);
            let (class, text) = sentence(&ours, &request, said.as_ref());
            assert_eq!(class, scene.class, "scene {at}: {text}");
            assert!(text.contains(scene.words), "scene {at}: {text}");
        });
    }
}

#[test]
fn no_class_is_without_a_scene() {
    for class in Class::ALL {
        assert!(SCENES.iter().any(|scene| scene.class == class), "{}", class.name());
    }
}

#[test]
fn closed_peer_ends_the_request_when_the_side_band_tells_of_it() {
    stage::set(calm(false, 1, 1), 1, |stage| {
        let request = stage.receive(0, 7);
        stage.both();
        closed_by_peer(stage);
        stage.world.endpoints[0].connection_gone(CONNECTION, DownCause::Closed);
        stage.one(0);
        assert_eq!(stage.errors(0, &[request]).unwrap(), [RequestError::PeerClosed]);
    });
}
