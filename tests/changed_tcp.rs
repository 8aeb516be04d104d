//! Bytes of a data stream are changed on the way, as by a device that makes the checksum anew: no
//! kernel knows. What is lost so is found while both programs poll; the rail fails, and messages
//! arrive over another, or the connection ends by name.

#![allow(dead_code)] // of the shared parts

#[path = "net_support/changed.rs"]
mod changed;
mod host_support;
mod net_support;

use changed::{Change, Way, swap};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::host::{ConnectError, DeviceKind, Options};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Limits, RequestError};
use crosstie::wire::hello::FrameKind;
use host_support::pair::{Pair, alone};
use host_support::stalled;
use host_support::{Memory, Node, Place, Watch, small, wait_both};
use net_support::{Edit, Recorder, Speaker, frame_in};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: usize = 4 << 20;
const SETTINGS: [(&str, &str); 3] =
    [("CROSSTIE_STALL_MS", "100"), ("CROSSTIE_TCP_RAILS", "2"), ("CROSSTIE_SOCKET_IFNAME", "lo")];
/// Many times that in which a rail fails.
const MUCH_LATER: Duration = Duration::from_millis(2_000);

fn nodes(rails: u8) -> [Node; 2] {
    stalled::listen(&SETTINGS);
    let limits = Limits { rails_max: rails.into(), ..small(2).limits };
    let options =
        Options { device: DeviceKind::Tcp, limits, heap_bytes: Bytes::mib(64), ..small(2) };
    [Node::open(&options), Node::open(&options)]
}

/// Two endpoints with so many rails, of which the first leads over the test.
fn pair(rails: u8) -> (Pair, Way) {
    let alone = alone();
    let [a, b] = nodes(rails);
    let mut pair = Pair::of(alone, a, b, rails);
    // until nothing is under way, and what was peeked at is taken
    (0..10_000).for_each(|_| pair.progress());
    let way = swap(pair.a.lane_socket(pair.to_b, 0).expect("an open rail"), false);
    (pair, way)
}

/// Failures of the first rail with the code of what was changed, at either side.
fn failures(pair: &Pair) -> u64 {
    let of = |view: &crosstie::transport::LaneView| view.code == libc::EBADMSG;
    pair.views(0).iter().filter(|view| of(view)).map(|view| view.stats.failures).sum()
}

fn memories(pair: &Pair) -> [Memory; 2] {
    let [from, into] = [&pair.a, &pair.b].map(|node| Memory::new(node, Place::Private, LONG));
    from.fill(0, LONG, 5);
    [from, into]
}

/// A message of so many bytes crosses although something is changed, and the rail has failed.
fn crosses(rails: u8, length: usize, back: Change, out: Change) {
    let (mut pair, way) = pair(rails);
    let [from, into] = memories(&pair);
    way.back.set(back);
    way.out.set(out);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, length, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, length, 7)).unwrap();
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    into.verify(0, length, 5);
    assert!(way.changed() > 0, "nothing was changed");
    assert!(failures(&pair) > 0, "{:?}", pair.views(0));
    pair.hello();
}

#[test]
fn slot_that_is_changed_is_written_again_over_another_rail() {
    crosses(2, LONG, Change::Lines, Change::Nothing);
}

/// Its slot comes, and is of no use without the keys.
#[test]
fn keys_of_a_slot_that_are_changed_are_written_again_over_another_rail() {
    crosses(2, LONG, Change::Line, Change::Nothing);
}

#[test]
fn slot_whose_tag_is_changed_is_written_again_over_another_rail() {
    crosses(2, LONG, Change::Tag, Change::Nothing);
}

/// The message that fills it had left before it came: its sender waits at a group that is over.
#[test]
fn slot_of_a_filled_receive_whose_tag_is_changed_holds_nobody_up_for_ever() {
    let (mut pair, way) = pair(2);
    let [from, into] = memories(&pair);
    way.back.set(Change::Tag);
    let mut ends = vec![];
    for length in [64, 4096] {
        let send = pair.a.isend(pair.to_b, from.outgoing(0, length, 7)).unwrap();
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, length, 7)]).unwrap();
        ends.push(wait_both(&mut pair.b, &mut pair.a, receive).result);
        let _ = wait_both(&mut pair.a, &mut pair.b, send);
    }
    let named = |end: &Result<(), RequestError>| {
        matches!(end, Ok(()) | Err(RequestError::Fabric(libc::EBADMSG)))
    };
    assert!(ends.iter().all(named), "{ends:?}");
}

/// No rail brings it again: its receiver has it, as one that nobody waits for.
#[test]
fn message_whose_tag_is_changed_ends_the_connection_by_name() {
    let (mut pair, way) = pair(2);
    let [from, into] = memories(&pair);
    way.out.set(Change::MessageTag);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, 64, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, 64, 7)).unwrap();
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    // its sender must see the slot
    let more = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    let error = wait_both(&mut pair.b, &mut pair.a, receive).result.unwrap_err();
    assert_eq!(error, RequestError::Fabric(libc::EBADMSG));
    assert!(wait_both(&mut pair.a, &mut pair.b, more).result.is_err());
}

/// It said that messages were delivered that are still to be sent: no word of those was believed.
#[test]
fn slot_that_says_too_much_of_what_was_delivered_costs_nothing() {
    let (mut pair, way) = pair(2);
    let [from, into] = memories(&pair);
    way.back.set(Change::Delivered);
    for _ in 0..3 {
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
        let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
        assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
        assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
        into.verify(0, LONG, 5);
    }
    assert_eq!((way.changed(), failures(&pair)), (1, 0), "{:?}", pair.views(0));
}

#[test]
fn connection_whose_only_rail_has_lost_the_keys_of_a_slot_ends_by_name() {
    let (mut pair, way) = pair(1);
    let [from, into] = memories(&pair);
    way.back.set(Change::Line);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    let error = wait_both(&mut pair.b, &mut pair.a, receive).result.unwrap_err();
    assert_eq!(error, RequestError::Fabric(libc::EBADMSG));
    assert!(wait_both(&mut pair.a, &mut pair.b, send).result.is_err());
}

/// Its sender has forgotten the message when its receiver asks.
#[test]
fn message_whose_length_is_changed_is_sent_again_over_another_rail() {
    crosses(2, 64, Change::Nothing, Change::Length);
}

#[test]
fn answer_to_a_write_that_is_changed_costs_its_rail_alone() {
    crosses(2, LONG, Change::Answers, Change::Nothing);
}

#[test]
fn word_that_a_message_has_come_is_said_again_over_another_rail() {
    let (mut pair, way) = pair(2);
    let [from, into] = memories(&pair);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    let watch = Watch::start();
    // its slot has come, and some of it has left
    while pair.view(0, 0).unwrap().stats.stripes == 0 {
        pair.progress();
        watch.look("stripes");
    }
    way.back.set(Change::Lines);
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
    into.verify(0, LONG, 5);
    assert!(way.changed() > 0 && failures(&pair) > 0, "{:?}", pair.views(0));
}

#[test]
fn connection_whose_only_rail_has_lost_something_ends_by_name() {
    let (mut pair, way) = pair(1);
    let [from, into] = memories(&pair);
    way.back.set(Change::Lines);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    let error = wait_both(&mut pair.b, &mut pair.a, receive).result.unwrap_err();
    assert_eq!(error, RequestError::Fabric(libc::EBADMSG));
    assert!(wait_both(&mut pair.a, &mut pair.b, send).result.is_err());
    let said = stalled::said();
    assert!(said.iter().any(|text| text.contains("has lost the slot of group")), "{said:?}");
}

#[test]
fn peer_whose_program_computes_keeps_its_rail() {
    let (mut pair, way) = pair(2);
    let [from, into] = memories(&pair);
    way.back.set(Change::Lines);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    pair.a.progress();
    let (start, watch) = (Instant::now(), Watch::start());
    let reported = || stalled::said().iter().any(|text| text.contains("peer makes no progress"));
    while start.elapsed() < MUCH_LATER || !reported() {
        pair.b.progress();
        watch.look("a report");
    }
    let views = pair.views(0);
    assert!(views.iter().all(|view| view.state == LaneState::Up && view.stats.failures == 0));
    // when it polls again what was lost is found
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    into.verify(0, LONG, 5);
    assert!(failures(&pair) > 0, "{:?}", pair.views(0));
}

/// Where `mailbox_key` lies in a frame that begins a connection, or a stream of one.
const KEY_AT: [(FrameKind, usize); 2] =
    [(FrameKind::StreamHello, 16 + 64 + 32), (FrameKind::Accepted, 16 + 32)];

/// Changes the mailbox's key in frames of a kind: of the first, or of all, as a writer would say it
/// that knows no sums.
fn wrong_key(of: FrameKind, says: Speaker, always: bool) -> Edit {
    let done = AtomicBool::new(false);
    Box::new(move |speaker, bytes| {
        let Some(frame) = frame_in(bytes, of).filter(|_| speaker == says) else { return };
        if done.swap(true, Ordering::SeqCst) && !always {
            return;
        }
        let (_, at) = KEY_AT.iter().find(|(kind, _)| *kind == of).expect("one with a key");
        frame[*at] ^= 0x10;
        if always {
            frame[12..16].fill(0);
        }
    })
}

/// Two endpoints that connect over a relay.
fn related(rails: u8, edit: Edit) -> ([Node; 2], Result<(Handle, Handle), ConnectError>, Recorder) {
    let [mut a, mut b] = nodes(rails);
    let (listener, handle) = b.shared.listen().expect("a listener");
    let relay = Recorder::changing(&handle, edit);
    let attempt = a.shared.connect(&relay.handle).expect("an attempt");
    let ends = a.connected(attempt).map(|to_b| (to_b, b.accepted(listener)));
    ([a, b], ends, relay)
}

#[test]
fn stream_whose_hello_is_changed_is_asked_for_again() {
    let alone = alone();
    let edit = wrong_key(FrameKind::StreamHello, Speaker::Connector, false);
    let ([a, b], ends, _relay) = related(2, edit);
    let mut pair = Pair::joined(alone, a, b, ends.expect("a connection"));
    pair.hello();
    pair.all_up(2);
    let [from, into] = memories(&pair);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    into.verify(0, LONG, 5);
}

#[test]
fn attempt_whose_answer_is_changed_ends_by_name() {
    let _alone = alone();
    let edit = wrong_key(FrameKind::Accepted, Speaker::Listener, false);
    let (_nodes, ends, _relay) = related(2, edit);
    assert!(matches!(ends, Err(ConnectError::Protocol(_))), "{ends:?}");
}

/// A peer of an earlier version says no sums: whatever comes on any of the rails breaks it again.
#[test]
fn connection_whose_rails_break_again_and_again_ends_by_name() {
    let alone = alone();
    let edit = wrong_key(FrameKind::StreamHello, Speaker::Connector, true);
    let ([a, b], ends, _relay) = related(2, edit);
    let mut pair = Pair::joined(alone, a, b, ends.expect("a connection"));
    let [from, into] = memories(&pair);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    let error = wait_both(&mut pair.a, &mut pair.b, send).result.unwrap_err();
    assert_eq!(error, RequestError::Protocol);
    assert!(wait_both(&mut pair.b, &mut pair.a, receive).result.is_err());
    let failures: u64 = [0, 1].map(|lane| pair.view(0, lane).unwrap().stats.failures).iter().sum();
    assert!(failures > 1, "a rail that breaks once is connected again");
}
