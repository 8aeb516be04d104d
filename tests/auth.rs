//! Who is let in, and who is listened for: the shared key, and pings to silent peers.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::key::{self, Key, LinkNumbers, Step};
use crosstie::connect::*;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::*;
use raw::{ARENA_BYTES, Raw, RawTcp, hello_to, memfd};
use std::sync::Mutex;

/// Everything that bands of this process have said.
static SAID: Mutex<Vec<Note>> = Mutex::new(Vec::new());

fn listen_to_notes(note: Note) {
    SAID.lock().unwrap().push(note);
}

fn notes(which: impl Fn(&Note) -> bool) -> usize {
    SAID.lock().unwrap().iter().filter(|note| which(note)).count()
}

fn keyed(key: &[u8]) -> Limits {
    keyed_of(Limits::default(), key)
}

fn keyed_of(limits: Limits, key: &[u8]) -> Limits {
    Limits { key: Some(Key::new(key).unwrap()), note: listen_to_notes, ..limits }
}

const KEY: &[u8] = b"the key of these tests";

fn refusal(node: &Node, handle: &[u8; 128]) -> ConnectError {
    let pending = node.band.connect_begin(handle).unwrap();
    until("refusal", || node.band.connect_poll(pending).err())
}

#[test]
fn who_has_the_key_connects_and_others_are_named_without_disturbing_them() {
    for limits in [Limits::default(), Limits::tcp()] {
        strangers_are_named(&limits);
    }
}

fn strangers_are_named(limits: &Limits) {
    let ours = keyed_of(limits.clone(), KEY);
    let (a, b) = (Node::new(&ours), Node::new(&ours));
    let (listener, handle) = b.band.listen().unwrap();
    let bytes = handle.encode();
    pair(&a, &b, listener, &bytes);
    let strangers = [
        (limits.clone(), KeyCause::NoneHere),
        (keyed_of(limits.clone(), b"quite another key"), KeyCause::Unclear),
    ];
    for round in 0..3 {
        for (limits, wanted) in &strangers {
            let stranger = Node::new(limits);
            let error = refusal(&stranger, &bytes);
            let ConnectError::Key(peer, cause) = error else { panic!("{error}") };
            assert_eq!(cause, *wanted);
            assert_eq!(peer.endpoint_id, handle.endpoint_id);
            assert!(error.to_string().contains("CROSSTIE_KEY_FILE"), "{error}");
            until("free", || stranger.all_free());
        }
        assert_eq!(b.band.counters().keys_refused, 2 * (round + 1));
        pair(&a, &b, listener, &bytes);
    }
    // said once
    let of_b = |note: &Note| matches!(note, Note::Key(peer, _) if peer.pid == std::process::id());
    assert!(notes(of_b) >= 1);
    assert_eq!(b.band.accept(listener), Ok(None));
}

#[test]
fn a_listener_without_a_key_refuses_who_has_one() {
    for limits in [Limits::default(), Limits::tcp()] {
        let a = Node::new(&keyed_of(limits.clone(), KEY));
        let b = Node::new(&limits);
        let (_, handle) = b.band.listen().unwrap();
        assert!(matches!(refusal(&a, &handle.encode()), ConnectError::Key(..)));
        assert_eq!(b.band.counters().keys_refused, 1);
    }
}

#[test]
fn the_first_stranger_is_reported_and_no_other() {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    fn count(note: Note) {
        assert!(matches!(note, Note::Key(_, KeyCause::NoneThere)), "{note:?}");
        COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    let b = Node::new(&Limits { note: count, ..keyed(KEY) });
    let (_, handle) = b.band.listen().unwrap();
    let a = Node::new(&Limits::default());
    for _ in 0..5 {
        assert!(matches!(refusal(&a, &handle.encode()), ConnectError::Key(..)));
    }
    assert_eq!(b.band.counters().keys_refused, 5);
    assert_eq!(COUNT.load(std::sync::atomic::Ordering::SeqCst), 1);
}

fn proved(hello: LinkHello, step: Step, numbers: &LinkNumbers) -> LinkHello {
    let key = Key::new(KEY).unwrap();
    let (proof_low, proof_high) = key::link_proof(Some(&key), step, numbers);
    LinkHello { proof_low, proof_high, ..hello }
}

/// Says a first hello that proves the key, and checks that the answer does too.
fn greet(handle: &ListenHandle) -> (Raw, LinkHello, LinkNumbers) {
    let raw = Raw::dial_with(handle, Some(&Key::new(KEY).unwrap()));
    let hello = hello_to(handle);
    let mut numbers = LinkNumbers {
        connector: hello.nonce,
        listener: 0,
        connector_id: hello.endpoint_id,
        listener_id: handle.endpoint_id,
    };
    let arena = memfd(ARENA_BYTES);
    raw.send(Frame::LinkHello(proved(hello, Step::Hello, &numbers)), &[&arena]);
    let Frame::LinkReply(reply) = raw.receive() else { panic!("no reply") };
    numbers.listener = reply.nonce;
    assert_ne!(reply.nonce, 0);
    assert_eq!(reply, proved(reply, Step::Reply, &numbers));
    (raw, hello, numbers)
}

fn refused(raw: &Raw) -> RefuseReason {
    let Frame::Refused(refused) = raw.receive() else { panic!("no refusal") };
    raw.closed();
    RefuseReason::from_wire(refused.reason)
}

#[test]
fn what_was_recorded_proves_nothing_on_the_next_link() {
    let b = Node::new(&keyed(KEY));
    let (listener, handle) = b.band.listen().unwrap();
    let (first, hello, numbers) = greet(&handle);
    let ready = proved(hello, Step::Ready, &numbers);
    first.send(Frame::LinkReady(ready), &[]);
    let target = ListenHandle::decode(&handle.encode()).unwrap().listener;
    let connect = ConnectHello {
        connection: 5,
        target,
        send_ring_bytes: 1024,
        write_ring_bytes: 512,
        ..ConnectHello::ZERO
    };
    first.send(Frame::Connect(connect), &[]);
    assert!(matches!(first.receive(), Frame::Accepted(_)));
    until("accept", || b.band.accept(listener).unwrap());
    // the same hello word for word is answered with another number, so the same ready is worthless
    let (second, _, fresh) = greet(&handle);
    assert_ne!(fresh.listener, numbers.listener);
    second.send(Frame::LinkReady(ready), &[]);
    assert_eq!(refused(&second), RefuseReason::Key);
    // nor is the listener's own proof one of the connector's
    let (third, _, numbers) = greet(&handle);
    third.send(Frame::LinkReady(proved(hello, Step::Reply, &numbers)), &[]);
    assert_eq!(refused(&third), RefuseReason::Key);
    assert_eq!(b.band.counters().keys_refused, 2);
    assert_eq!(b.band.counters().links, 1);
}

/// A link over TCP, made by hand, with the key or without one.
fn link_tcp(handle: &ListenHandle, key: Option<&Key>) -> (RawTcp, LinkNumbers) {
    let raw = RawTcp::dial(handle);
    let hello = LinkHello { rails: RAIL_TCP, streams: 1, arena_bytes: 0, ..hello_to(handle) };
    let mut numbers = LinkNumbers {
        connector: hello.nonce,
        listener: 0,
        connector_id: hello.endpoint_id,
        listener_id: handle.endpoint_id,
    };
    let prove = |step, numbers: &LinkNumbers| {
        let (proof_low, proof_high) = key::link_proof(key, step, numbers);
        LinkHello { proof_low, proof_high, ..hello }
    };
    raw.send(Frame::LinkHello(prove(Step::Hello, &numbers)));
    let Frame::LinkReply(reply) = raw.receive() else { panic!("no reply") };
    numbers.listener = reply.nonce;
    raw.send(Frame::LinkReady(prove(Step::Ready, &numbers)));
    (raw, numbers)
}

#[test]
fn a_data_stream_needs_the_proof_of_its_link_and_a_replayed_one_is_dropped() {
    for limits in [Limits::tcp(), keyed_of(Limits::tcp(), KEY)] {
        let b = Node::new(&limits);
        let (listener, handle) = b.band.listen().unwrap();
        let (link, numbers) = link_tcp(&handle, limits.key.as_ref());
        let (_, other) = link_tcp(&handle, limits.key.as_ref());
        let target = handle.listener;
        let connect = ConnectHello { connection: 5, target, streams: 1, ..ConnectHello::ZERO };
        let (endpoint_id, connection) = (0xabcd, 5);
        let hello =
            StreamHello { endpoint_id, connection, streams: 1, ask: 1, ..StreamHello::ZERO };
        let proof = |numbers| key::stream_proof(limits.key.as_ref(), numbers, &hello);
        let stream = |proof| {
            let hello = StreamHello { proof, ..hello };
            let raw = RawTcp::dial(&handle);
            raw.send(Frame::StreamHello(hello, connect));
            raw
        };
        let mut wrong = vec![0, 1, proof(&numbers) ^ 1, proof(&numbers) ^ 1 << 127];
        if limits.key.is_some() {
            // the number alone, which everybody on the way has seen
            wrong.push(numbers.listener);
        }
        for proof in wrong {
            stream(proof).closed();
        }
        let good = stream(proof(&numbers));
        assert!(matches!(link.receive(), Frame::Accepted(_)));
        let here = until("accept", || b.band.accept(listener).unwrap());
        // once more, word for word: no second connection, and the first one stays
        stream(proof(&numbers)).closed();
        assert_eq!(b.band.accept(listener), Ok(None));
        assert!(b.band.peer_text(here, &mut [0; 64]) > 0);
        assert_ne!(proof(&other), proof(&numbers));
        drop(good);
    }
}

#[test]
fn a_hello_that_was_recorded_is_worth_nothing_after_its_connection_closed() {
    for limits in [Limits::tcp(), keyed_of(Limits::tcp(), KEY)] {
        let b = Node::new(&limits);
        let (listener, handle) = b.band.listen().unwrap();
        let (link, numbers) = link_tcp(&handle, limits.key.as_ref());
        let target = handle.listener;
        let say = |connection, ask| {
            let connect = ConnectHello { connection, target, streams: 1, ..ConnectHello::ZERO };
            let (endpoint_id, streams) = (0xabcd, 1);
            let mut hello =
                StreamHello { endpoint_id, connection, streams, ask, ..StreamHello::ZERO };
            hello.proof = key::stream_proof(limits.key.as_ref(), &numbers, &hello);
            let raw = RawTcp::dial(&handle);
            raw.send(Frame::StreamHello(hello, connect));
            raw
        };
        let strangers = b.band.counters().strangers;
        for (round, (connection, ask)) in [(5, 7), (5, 6), (9, 2000)].into_iter().enumerate() {
            let good = say(connection, ask);
            let Frame::Accepted(accepted) = link.receive() else { panic!("not accepted") };
            let here = until("accept", || b.band.accept(listener).unwrap());
            b.band.connection_close(here).unwrap();
            assert!(matches!(link.receive(), Frame::Closed(_)));
            let (target, reason) = (accepted.connection, RefuseReason::Closed as u32);
            let closed = RefusedHello { target, reason, major: crosstie::wire::WIRE_MAJOR };
            link.send(Frame::Closed(closed));
            drop(good);
            until("free", || b.all_free());
            // the same bytes, on the link that still stands
            say(connection, ask).closed();
            assert_eq!(b.band.counters().strangers, strangers + round as u64 + 1);
            assert_eq!(b.band.accept(listener), Ok(None));
        }
        // too low to be remembered, and none at all
        for ask in [900, 1, 0] {
            say(5, ask).closed();
        }
        assert_eq!(b.band.accept(listener), Ok(None));
        let _stream = say(5, 2001);
        assert!(matches!(link.receive(), Frame::Accepted(_)));
    }
}

#[test]
fn a_first_hello_without_proof_gets_no_descriptor_and_no_reply() {
    let b = Node::new(&keyed(KEY));
    let (_, handle) = b.band.listen().unwrap();
    let raw = Raw::knock(&handle);
    let (_, answer) = raw.prove(handle.endpoint_id, handle.listener, None);
    let Frame::Refused(why) = answer else { panic!("{answer:?}") };
    assert_eq!(RefuseReason::from_wire(why.reason), RefuseReason::Key);
    raw.closed();
    for nonce in [0, 0x1234] {
        let raw = Raw::dial_with(&handle, Some(&Key::new(KEY).unwrap()));
        let arena = memfd(ARENA_BYTES);
        raw.send(Frame::LinkHello(LinkHello { nonce, ..hello_to(&handle) }), &[&arena]);
        assert_eq!(refused(&raw), RefuseReason::Key);
    }
}

#[test]
fn an_impostor_in_the_listeners_place_is_named() {
    let a = Node::new(&keyed(KEY));
    let b = Node::new(&keyed(KEY));
    let (_, handle) = b.band.listen().unwrap();
    b.band.close();
    let impostor = Raw::listen(handle.endpoint_id);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    // it holds the handle and knows no key
    let link = impostor.accept();
    let error = until("refusal", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::Key(..)), "{error}");
    link.closed();
}

#[test]
fn a_stopped_peer_is_reported_once_and_its_connections_stay() {
    let dir = directory("silent");
    let limits = Limits {
        peer_deadline: Span::millis(200),
        note: listen_to_notes,
        shm_dir: dir.clone(),
        ..Limits::default()
    };
    let mut a = Node::new(&limits);
    let (mut child, handle) = start_child("listen", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    let pid = child.id();
    let stopped = || {
        notes(|note| {
            matches!(note, Note::Stopped { peer, silent }
            if peer.pid == pid && *silent >= Span::millis(200))
        })
    };
    let resumed = || {
        notes(|note| {
            matches!(note, Note::Resumed { peer, silent, .. }
            if peer.pid == pid && *silent >= Span::millis(200))
        })
    };
    for round in 1..3 {
        signal(&child, libc::SIGSTOP);
        until("report", || (stopped() == round).then_some(()));
        assert_eq!(a.gone(here), None);
        assert_eq!(resumed(), round - 1);
        // asked for during the silence, and answered after it
        let pending = a.band.connect_begin(&handle).unwrap();
        assert_eq!(a.band.connect_poll(pending), Ok(None));
        signal(&child, libc::SIGCONT);
        until("resumed", || (resumed() == round).then_some(()));
        until("connect", || a.band.connect_poll(pending).unwrap());
        assert_eq!(stopped(), round);
    }
    assert_eq!((a.band.counters().links, a.gone(here)), (1, None));
    child.kill().unwrap();
    child.wait().unwrap();
    let cause = until("gone", || a.gone(here));
    assert_eq!(cause, crosstie::fabric::completion::DownCause::Died);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn pings_are_answered_at_once_and_silent_peers_are_asked() {
    let b = Node::new(&Limits { peer_deadline: Span::millis(100), ..Limits::default() });
    let (_, handle) = b.band.listen().unwrap();
    let raw = Raw::dial(&handle);
    let arena = memfd(ARENA_BYTES);
    raw.send(Frame::LinkHello(hello_to(&handle)), &[&arena]);
    assert!(matches!(raw.receive(), Frame::LinkReply(_)));
    raw.send(Frame::LinkReady(hello_to(&handle)), &[]);
    for number in [7, u64::MAX, 0] {
        raw.send(Frame::Ping(PingHello { number }), &[]);
        assert_eq!(raw.receive(), Frame::Pong(PingHello { number }));
    }
    for expected in 1..4 {
        let frame = Frame::decode(&raw.receive_bytes()).unwrap();
        let Frame::Ping(PingHello { number }) = frame else { panic!("{frame:?}") };
        assert!(number >= expected);
        raw.send(Frame::Pong(PingHello { number }), &[]);
    }
    assert_eq!(b.band.counters().links_lost, 0);
}

/// What roles talk over: data streams; 0 is shared memory.
const STREAMS: u32 = 0;

include!("connect_support/roles.rs");
