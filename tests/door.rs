//! What a local socket gives away before its other end has proved to hold the handle: nothing.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::wire::WIRE_MAJOR;
use crosstie::wire::hello::*;
use raw::{ARENA_BYTES, Raw, hello_to, memfd};
use std::sync::Mutex;

/// Everything that bands of this process have said.
static SAID: Mutex<Vec<Note>> = Mutex::new(Vec::new());

fn listen_to_notes(note: Note) {
    SAID.lock().unwrap().push(note);
}

/// What an answer is that lets nobody in.
fn refusal(answer: &Frame) -> RefuseReason {
    let Frame::Refused(refused) = answer else { panic!("{answer:?} instead of a refusal") };
    RefuseReason::from_wire(refused.reason)
}

/// All names of sockets that every user of this host can read.
fn public_names() -> String {
    let names = std::fs::read("/proc/net/unix").unwrap();
    String::from_utf8_lossy(&names).to_lowercase()
}

#[test]
fn no_public_name_has_a_part_of_the_endpoints_number() {
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    b.band.watch_start(Span::millis(60_000));
    let names = public_names();
    let public = format!("@crosstie-{:032x}", key::public_number(handle.endpoint_id));
    assert!(names.contains(&public) && names.contains("@crosstie-report-"), "the names are read");
    for bytes in [handle.endpoint_id.to_le_bytes(), handle.endpoint_id.to_be_bytes()] {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // eight digits are never equal by chance among these few names
        for part in (0..=24).map(|at| &digits[at..at + 8]) {
            assert!(!names.contains(part), "{part} of {digits}");
        }
    }
}

#[test]
fn who_has_the_name_and_no_handle_gets_a_random_number_and_a_refusal() {
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    let public = key::public_number(handle.endpoint_id);
    for guess in [0, public, !handle.endpoint_id, handle.endpoint_id ^ 1] {
        let raw = Raw::knock(&handle);
        let (_, answer) = raw.prove(guess, handle.listener, None);
        assert_eq!(refusal(&answer), RefuseReason::NoListener);
        raw.closed();
    }
    assert_eq!((b.band.counters().strangers, b.band.counters().links), (4, 0));
}

#[test]
fn a_proof_is_good_for_one_challenge() {
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    let old = Raw::knock(&handle);
    let (numbers, answer) = old.prove(handle.endpoint_id, handle.listener, None);
    assert!(matches!(answer, Frame::Proved(_)));
    let raw = Raw::knock(&handle);
    let knock = DoorHello { version: LOCAL_VERSION, nonce: numbers.connector, ..DoorHello::ZERO };
    raw.send(Frame::Knock(knock), &[]);
    assert!(matches!(raw.receive(), Frame::Challenge(_)));
    let said = key::door_hello(None, key::DoorStep::Connector, &numbers);
    raw.send(Frame::Prove(said), &[]);
    assert_eq!(refusal(&raw.receive()), RefuseReason::NoListener);
}

#[test]
fn a_handle_with_a_wrong_listener_number_gets_nothing() {
    let b = Node::new(&Limits::default());
    let (listener, handle) = b.band.listen().unwrap();
    for wrong in [handle.listener + 1, 0, u64::MAX] {
        let raw = Raw::knock(&handle);
        let (_, answer) = raw.prove(handle.endpoint_id, wrong, None);
        assert_eq!(refusal(&answer), RefuseReason::NoListener);
        raw.closed();
    }
    // one that was right, and is closed
    b.band.listen().unwrap();
    b.band.listener_close(listener).unwrap();
    let raw = Raw::knock(&handle);
    let (_, answer) = raw.prove(handle.endpoint_id, handle.listener, None);
    assert_eq!((refusal(&answer), b.band.counters().links), (RefuseReason::NoListener, 0));
}

#[test]
fn a_hello_before_the_proof_is_refused_and_an_older_peers_is_told_the_version() {
    let b = Node::new(&Limits { note: listen_to_notes, ..Limits::default() });
    let (_, handle) = b.band.listen().unwrap();
    for _ in 0..2 {
        let (raw, arena) = (Raw::knock(&handle), memfd(ARENA_BYTES));
        raw.send(Frame::LinkHello(hello_to(&handle)), &[&arena]);
        let Frame::Refused(refused) = raw.receive() else { panic!("no refusal") };
        let told = (RefuseReason::from_wire(refused.reason), refused.major);
        assert_eq!(told, (RefuseReason::Version, WIRE_MAJOR));
        raw.closed();
    }
    let said = SAID.lock().unwrap().clone();
    assert_eq!(said.iter().filter(|note| matches!(note, Note::LocalVersion(_))).count(), 1);
    let (raw, arena) = (Raw::knock(&handle), memfd(ARENA_BYTES));
    let knock = DoorHello { version: LOCAL_VERSION, nonce: 1, ..DoorHello::ZERO };
    raw.send(Frame::Knock(knock), &[]);
    raw.receive();
    raw.send(Frame::LinkHello(hello_to(&handle)), &[&arena]);
    raw.closed();
    assert_eq!(b.band.counters().links, 0);
}

#[test]
fn versions_that_differ_are_refused_on_both_sides_and_an_older_handle_is_not_dialled() {
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    let raw = Raw::knock(&handle);
    raw.send(Frame::Knock(DoorHello { version: LOCAL_VERSION + 1, ..DoorHello::ZERO }), &[]);
    assert_eq!(refusal(&raw.receive()), RefuseReason::Version);
    drop(b);
    let door = Raw::listen(handle.endpoint_id);
    let a = Node::new(&Limits::default());
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = door.accept_silent();
    link.receive();
    let later = DoorHello { version: LOCAL_VERSION + 1, nonce: 9, ..DoorHello::ZERO };
    link.send(Frame::Challenge(later), &[]);
    let error = until("refusal", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::LocalVersion(_)), "{error}");
    link.closed();
    let old = crosstie::wire::handle::ListenHandle { flags: 1, ..handle };
    let error = a.band.connect_begin(&old.encode()).unwrap_err();
    assert!(matches!(error, ConnectError::LocalVersion(_)), "{error}");
}

#[test]
fn a_program_in_the_listeners_place_without_the_handle_gets_a_proof_and_nothing_else() {
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    drop(b);
    let door = Raw::listen(handle.endpoint_id);
    let a = Node::new(&Limits::default());
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = door.accept_silent();
    let Frame::Knock(knock) = link.receive() else { panic!("no knock") };
    assert_eq!(knock, DoorHello { version: LOCAL_VERSION, nonce: knock.nonce, ..knock });
    let challenge = DoorHello { version: LOCAL_VERSION, nonce: 9, ..DoorHello::ZERO };
    link.send(Frame::Challenge(challenge), &[]);
    let Frame::Prove(proof) = link.receive() else { panic!("no proof") };
    // what it has heard does not serve as the answer
    link.send(Frame::Proved(proof), &[]);
    let error = until("refusal", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::OtherProgram(_)), "{error}");
    link.closed();
}

#[test]
fn an_attempt_at_a_closed_listener_does_not_end_that_at_another() {
    let b = Node::new(&Limits::default());
    let (closed, stale) = b.band.listen().unwrap();
    let (listener, handle) = b.band.listen().unwrap();
    b.band.listener_close(closed).unwrap();
    let a = Node::new(&Limits::default());
    let first = a.band.connect_begin(&stale.encode()).unwrap();
    pair(&a, &b, listener, &handle.encode());
    let error = until("refusal", || a.band.connect_poll(first).err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
}
