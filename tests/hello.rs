//! Versions: what released versions wrote is kept under `tests/data/hello/`, one folder per
//! release with its wire minor version, one file per frame. Every one is read today, and makes a
//! link and a connection; newer minor versions work; another major version is refused with a
//! sentence that says which side to upgrade.
//!
//! To keep what a new release writes: `HELLO_RECORD=tests/data/hello/VERSION-minor-N cargo test
//! --test hello record`.
#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::*;
use crosstie::wire::status::*;
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};
use raw::{ARENA_BYTES, Raw, RawTcp, hello_to, memfd};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const HEAD: usize = FrameHeader::SIZE;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hello")
}

/// The folders of all versions, oldest first.
fn versions() -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    assert!(all.len() >= 2, "{all:?}");
    all
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// One recorded frame.
fn recorded(version: &Path, name: &str) -> Vec<u8> {
    fs::read(version.join(name)).unwrap_or_else(|error| panic!("{version:?} {name}: {error}"))
}

/// Writes a number of a frame's body.
fn patch<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    frame[HEAD + at..HEAD + at + N].copy_from_slice(&bytes);
}

/// A recorded hello as if it had been said to `peer` by `endpoint`.
fn addressed(version: &Path, name: &str, endpoint: u128, peer: u128) -> Vec<u8> {
    let mut bytes = recorded(version, name);
    patch(&mut bytes, 8, endpoint.to_le_bytes());
    patch(&mut bytes, 24, peer.to_le_bytes());
    bytes
}

/// A recorded frame as if it meant `target`.
fn aimed(version: &Path, name: &str, target: u64) -> Vec<u8> {
    let mut bytes = recorded(version, name);
    let at = if name == "closed" || name == "refused" { 0 } else { 8 };
    patch(&mut bytes, at, target.to_le_bytes());
    bytes
}

/// As a later minor version would write it: a longer body, and feature bits that we do not know.
fn later(mut frame: Vec<u8>, features_at: Option<usize>) -> Vec<u8> {
    if let Some(at) = features_at {
        // the high bytes of the features
        patch(&mut frame, at + 4, [0xff; 4]);
    }
    frame.resize(FRAME_BYTES_MAX, 0xff);
    frame[12..16].fill(0); // it may say no sum
    frame[6..8].copy_from_slice(&(WIRE_MINOR + 9).to_le_bytes());
    frame[10..12].copy_from_slice(&((FRAME_BYTES_MAX - HEAD) as u16).to_le_bytes());
    frame
}

fn name_of_kind(frame: &Frame) -> &'static str {
    match frame {
        Frame::LinkHello(_) => "link_hello",
        Frame::LinkReply(_) => "link_reply",
        Frame::LinkReady(_) => "link_ready",
        Frame::Connect(_) => "connect",
        Frame::Accepted(_) => "accepted",
        Frame::Refused(_) => "refused",
        Frame::Closed(_) => "closed",
        Frame::StreamHello(..) => "stream_hello",
        Frame::Ping(_) => "ping",
        Frame::Pong(_) => "pong",
        Frame::Addresses(_) => "addresses",
        Frame::StatusAsk(_) => "status_ask",
        Frame::Status(_) => "status",
        Frame::Ports(_) => "ports",
        Frame::Pair(..) => "pair",
        Frame::Taken(_) => "taken",
        Frame::Knock(_) => "knock",
        Frame::Challenge(_) => "challenge",
        Frame::Prove(_) => "prove",
        Frame::Proved(_) => "proved",
    }
}

#[test]
fn every_frame_of_this_version_is_recorded() {
    let newest = versions().pop().unwrap();
    for name in [
        "link_hello",
        "link_reply",
        "link_ready",
        "connect",
        "accepted",
        "refused",
        "closed",
        "stream_hello",
        "ping",
        "pong",
        "addresses",
        "status_ask",
        "status",
    ] {
        assert!(!recorded(&newest, name).is_empty());
    }
}

#[test]
fn every_recorded_frame_is_read() {
    for version in versions() {
        let minor: u16 = file_name(&version).rsplit_once('-').unwrap().1.parse().unwrap();
        for entry in fs::read_dir(&version).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let frame = Frame::decode(&bytes).unwrap_or_else(|error| panic!("{path:?} {error:?}"));
            assert_eq!(name_of_kind(&frame), file_name(&path), "{path:?}");
            assert_eq!(bytes[6..8], minor.to_le_bytes(), "{path:?}");
            if let Frame::LinkHello(hello) | Frame::LinkReply(hello) = frame {
                assert_eq!(hello.nonce == 0, minor == 0, "{path:?}");
                assert!(hello.page_bytes >= 4096 && hello.pid != 0, "{path:?}");
            }
        }
    }
}

/// What goes with a recorded hello: arena, heap, doorbell.
fn with_hello() -> [OwnedFd; 3] {
    [memfd(ARENA_BYTES), memfd(4096), memfd(4096)]
}

/// A recorded connector against an endpoint of today: link, connection, close.
fn connector(version: &Path, change: impl Fn(Vec<u8>, Option<usize>) -> Vec<u8>) {
    for limits in [Limits::default(), both_rails()] {
        connector_to(version, &change, &limits);
    }
}

/// Those of an endpoint that has shared memory, and TCP with several lanes.
fn both_rails() -> Limits {
    Limits { rails: RAIL_SHM | RAIL_TCP, lanes: 4, ..Limits::tcp() }
}

fn connector_to(
    version: &Path,
    change: &impl Fn(Vec<u8>, Option<usize>) -> Vec<u8>,
    limits: &Limits,
) {
    let mut b = Node::new(&Limits { peer_deadline: Span::millis(40), ..limits.clone() });
    let (listener, handle) = b.band.listen().unwrap();
    let raw = Raw::dial(&handle);
    let [arena, heap, doorbell] = with_hello();
    let mut hello = addressed(version, "link_hello", 0xabcd, handle.endpoint_id);
    patch(&mut hello, 72, ARENA_BYTES.to_le_bytes());
    raw.send_bytes(&change(hello, Some(40)), &[&arena, &heap, &doorbell]);
    let Frame::LinkReply(reply) = raw.receive() else { panic!("no reply") };
    assert_eq!((reply.endpoint_id, reply.peer_endpoint_id), (handle.endpoint_id, 0xabcd));
    let ready = addressed(version, "link_ready", 0xabcd, handle.endpoint_id);
    raw.send_bytes(&change(ready, Some(40)), &[]);
    let connect = aimed(version, "connect", handle.listener);
    raw.send_bytes(&change(connect, Some(72)), &[]);
    let Frame::Accepted(accepted) = raw.receive() else { panic!("not accepted") };
    let there = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(there, Handle::unpack(accepted.connection));
    assert!(b.established(there).is_some());
    raw.send_bytes(&change(aimed(version, "closed", accepted.connection), None), &[]);
    assert_eq!(until("gone", || b.gone(there)), DownCause::Closed);
    b.band.connection_close(there).unwrap();
    assert!(matches!(raw.receive(), Frame::Closed(_)));
    until("free", || b.all_free());
    assert_eq!(b.band.counters().links_lost, 0);
}

/// A recorded listener against an endpoint of today.
fn listener(version: &Path, change: impl Fn(Vec<u8>, Option<usize>) -> Vec<u8>) {
    for limits in [Limits::default(), both_rails()] {
        listener_for(version, &change, &limits);
    }
}

fn listener_for(
    version: &Path,
    change: &impl Fn(Vec<u8>, Option<usize>) -> Vec<u8>,
    limits: &Limits,
) {
    let mut a = Node::new(&Limits { peer_deadline: Span::millis(40), ..limits.clone() });
    let (handle, raw) = stand_in();
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = raw.accept();
    let Frame::LinkHello(hello) = link.receive() else { panic!("no hello") };
    let [_, heap, doorbell] = with_hello();
    let mut reply = addressed(version, "link_reply", handle.endpoint_id, hello.endpoint_id);
    patch(&mut reply, 72, hello.arena_bytes.to_le_bytes());
    let arena = memfd(hello.arena_bytes);
    link.send_bytes(&change(reply, Some(40)), &[&arena, &heap, &doorbell]);
    assert!(matches!(link.receive(), Frame::LinkReady(_)));
    let Frame::Connect(connect) = link.receive() else { panic!("no connect") };
    link.send_bytes(&change(aimed(version, "accepted", connect.connection), Some(72)), &[]);
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    assert!(a.established(here).is_some());
    // a second one is not made
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let Frame::Connect(connect) = link.receive() else { panic!("no connect") };
    link.send_bytes(&change(aimed(version, "refused", connect.connection), None), &[]);
    let error = until("refusal", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    link.send_bytes(&change(aimed(version, "closed", connect_of(here)), None), &[]);
    assert_eq!(until("gone", || a.gone(here)), DownCause::Closed);
    a.band.connection_close(here).unwrap();
    assert!(matches!(link.receive(), Frame::Closed(_)));
    assert_eq!(a.band.counters().links_lost, 0);
}

fn connect_of(here: Handle) -> u64 {
    here.pack()
}

/// The handle of an endpoint that has closed, and a socket of ours under its name.
fn stand_in() -> (ListenHandle, Raw) {
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    b.band.close();
    (handle, Raw::listen(handle.endpoint_id))
}

#[test]
fn a_connector_of_every_version_is_served() {
    for version in versions() {
        connector(&version, |frame, _| frame);
    }
}

#[test]
fn a_listener_of_every_version_serves_us() {
    for version in versions() {
        listener(&version, |frame, _| frame);
    }
}

#[test]
fn a_newer_minor_version_works_both_ways() {
    let newest = versions().pop().unwrap();
    connector(&newest, later);
    listener(&newest, later);
}

#[test]
fn a_peer_of_minor_version_0_is_never_pinged() {
    let b = Node::new(&Limits { peer_deadline: Span::millis(20), ..Limits::default() });
    let (_, handle) = b.band.listen().unwrap();
    let (oldest, newest) = (versions().remove(0), versions().pop().unwrap());
    let link = |version: &Path, id| {
        let raw = Raw::dial(&handle);
        let [arena, heap, doorbell] = with_hello();
        let mut hello = addressed(version, "link_hello", id, handle.endpoint_id);
        patch(&mut hello, 72, ARENA_BYTES.to_le_bytes());
        raw.send_bytes(&hello, &[&arena, &heap, &doorbell]);
        assert!(matches!(raw.receive(), Frame::LinkReply(_)));
        raw.send_bytes(&addressed(version, "link_ready", id, handle.endpoint_id), &[]);
        raw
    };
    let (old, new) = (link(&oldest, 1), link(&newest, 2));
    // it has been silent as long as the one that is asked for the third time
    for _ in 0..3 {
        let frame = Frame::decode(&new.receive_bytes()).unwrap();
        let Frame::Ping(ping) = frame else { panic!("{frame:?}") };
        new.send(Frame::Pong(ping), &[]);
    }
    old.send_bytes(&aimed(&oldest, "connect", u64::MAX), &[]);
    let first = Frame::decode(&old.receive_bytes()).unwrap();
    assert!(matches!(first, Frame::Refused(_)), "{first:?}");
}

/// A hello of this version as one to another host.
fn remote(handle: &ListenHandle) -> LinkHello {
    LinkHello { rails: RAIL_TCP, streams: 1, arena_bytes: 0, ..hello_to(handle) }
}

fn encoded(frame: Frame) -> Vec<u8> {
    let mut bytes = [0; FRAME_BYTES_WRITTEN];
    let length = frame.encode(&mut bytes);
    bytes[..length].to_vec()
}

#[test]
fn over_tcp_too_a_newer_minor_version_works() {
    type Change = fn(Vec<u8>, Option<usize>) -> Vec<u8>;
    let changes: [Change; 2] = [|frame, _| frame, later];
    for change in changes {
        let b = Node::new(&Limits::tcp());
        let (listener, handle) = b.band.listen().unwrap();
        let link = RawTcp::dial(&handle);
        let hello = remote(&handle);
        link.send_bytes(&change(encoded(Frame::LinkHello(hello)), Some(40)));
        let Frame::LinkReply(reply) = link.receive() else { panic!("no reply") };
        link.send_bytes(&change(encoded(Frame::LinkReady(hello)), Some(40)));
        let target = handle.listener;
        let connect = ConnectHello { connection: 5, target, streams: 1, ..ConnectHello::ZERO };
        let stream = StreamHello {
            endpoint_id: hello.endpoint_id,
            proof: reply.nonce,
            connection: 5,
            stream: 0,
            streams: 1,
            ask: 1,
            ..StreamHello::ZERO
        };
        let data = RawTcp::dial(&handle);
        data.send_bytes(&change(encoded(Frame::StreamHello(stream, connect)), None));
        let Frame::Accepted(accepted) = link.receive() else { panic!("not accepted") };
        let there = until("accept", || b.band.accept(listener).unwrap());
        assert_eq!(there, Handle::unpack(accepted.connection));
    }
}

#[test]
fn over_tcp_too_another_major_version_is_refused_and_named() {
    let b = Node::new(&Limits::tcp());
    let (_, handle) = b.band.listen().unwrap();
    for major in [0, WIRE_MAJOR + 1, u16::MAX] {
        let raw = RawTcp::dial(&handle);
        raw.send_bytes(&of_major(encoded(Frame::LinkHello(remote(&handle))), major));
        let Frame::Refused(refused) = raw.receive() else { panic!("no refusal") };
        assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Version);
        assert_eq!(refused.major, WIRE_MAJOR);
        raw.closed();
    }
    for (major, side) in [(0, "upgrade the peer"), (WIRE_MAJOR + 1, "upgrade this side")] {
        let reason = RefuseReason::Version as u32;
        let known = encoded(Frame::Refused(RefusedHello { target: 0, reason, major }));
        for answer in [known.clone(), of_major(known, major)] {
            let a = Node::new(&Limits::tcp());
            let (socket, handle) = RawTcp::listen(&handle);
            let pending = a.band.connect_begin(&handle.encode()).unwrap();
            let link = RawTcp::of(socket.accept().unwrap().0);
            assert!(matches!(link.receive(), Frame::LinkHello(_)));
            link.send_bytes(&answer);
            let error = until("refusal", || a.band.connect_poll(pending).err());
            assert_eq!(error, ConnectError::Version(major));
            assert!(error.to_string().ends_with(side), "{error}");
        }
    }
}

/// A listener's data thread may use a connection's stream before its side band's answer is read.
#[test]
fn a_stream_that_is_used_before_the_answer_is_read_stays_as_it_is() {
    let mut a = Node::new(&Limits::tcp());
    let (_, like) = a.band.listen().unwrap();
    let (socket, handle) = RawTcp::listen(&like);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = RawTcp::of(socket.accept().unwrap().0);
    let Frame::LinkHello(hello) = link.receive() else { panic!("no hello") };
    let reply = LinkHello {
        node_id: handle.node_id,
        endpoint_id: handle.endpoint_id,
        peer_endpoint_id: hello.endpoint_id,
        ..remote(&handle)
    };
    link.send(Frame::LinkReply(reply));
    let Frame::LinkReady(_) = link.receive() else { panic!("not ready") };
    let data = RawTcp::of(socket.accept().unwrap().0);
    let Frame::StreamHello(_, connect) = data.receive() else { panic!("no stream") };
    data.send_bytes(b"payload");
    // until streams have been looked at several times
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(100) {
        assert_eq!(a.band.connect_poll(pending), Ok(None));
    }
    link.send(Frame::Accepted(ConnectHello {
        connection: 9,
        target: connect.connection,
        streams: 1,
        ..ConnectHello::ZERO
    }));
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    let params = a.established(here).unwrap();
    let (mut bytes, fd) = ([0; 16], params.streams[0]);
    // SAFETY: sixteen writable bytes.
    let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!((got, &bytes[..7]), (7, &b"payload"[..]));
    socket.set_nonblocking(true).unwrap();
    assert!(socket.accept().is_err(), "another stream was dialled");
}

#[test]
fn a_peer_of_minor_version_0_has_no_rail_to_another_host() {
    let b = Node::new(&Limits::tcp());
    let (_, handle) = b.band.listen().unwrap();
    let raw = RawTcp::dial(&handle);
    let oldest = versions().remove(0);
    raw.send_bytes(&addressed(&oldest, "link_hello", 0xabcd, handle.endpoint_id));
    let Frame::Refused(refused) = raw.receive() else { panic!("no refusal") };
    assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Rail);
}

fn of_major(mut frame: Vec<u8>, major: u16) -> Vec<u8> {
    frame[4..6].copy_from_slice(&major.to_le_bytes());
    frame[12..16].fill(0); // it may say no sum
    frame
}

#[test]
fn another_major_version_is_refused_and_told_ours() {
    let newest = versions().pop().unwrap();
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    for major in [0, WIRE_MAJOR + 1, u16::MAX] {
        let raw = Raw::dial(&handle);
        let [arena, heap, doorbell] = with_hello();
        let hello = addressed(&newest, "link_hello", 0xabcd, handle.endpoint_id);
        raw.send_bytes(&of_major(later(hello, None), major), &[&arena, &heap, &doorbell]);
        let Frame::Refused(refused) = raw.receive() else { panic!("no refusal") };
        assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Version);
        assert_eq!(refused.major, WIRE_MAJOR);
        raw.closed();
    }
}

#[test]
fn a_listener_of_another_major_version_is_named_with_the_side_to_upgrade() {
    let newest = versions().pop().unwrap();
    for (major, side) in [(0, "upgrade the peer"), (WIRE_MAJOR + 1, "upgrade this side")] {
        // it answers in its own version, or refuses in words that we know
        let mut known = aimed(&newest, "refused", 0);
        patch(&mut known, 8, (RefuseReason::Version as u32).to_le_bytes());
        patch(&mut known, 12, major.to_le_bytes());
        for answer in [known.clone(), of_major(later(known, None), major)] {
            let a = Node::new(&Limits::default());
            let (handle, raw) = stand_in();
            let pending = a.band.connect_begin(&handle.encode()).unwrap();
            let link = raw.accept();
            assert!(matches!(link.receive(), Frame::LinkHello(_)));
            link.send_bytes(&answer, &[]);
            let error = until("refusal", || a.band.connect_poll(pending).err());
            assert_eq!(error, ConnectError::Version(major));
            let text = error.to_string();
            assert!(text.ends_with(side), "{text}");
            assert!(text.contains(&format!("version {major}")), "{text}");
        }
    }
}

/// Keeps a question of how a connection stands, and the answer to another.
fn keep_status(b: &Node, raw: &Raw, connection: u64, keep: &dyn Fn(&[u8])) {
    let is_ping = |bytes: &[u8]| matches!(Frame::decode(bytes), Ok(Frame::Ping(_)));
    let next = || std::iter::repeat_with(|| raw.receive_bytes()).find(|bytes| !is_ping(bytes));
    let standing = Standing::Open as u8;
    let status = Status { standing, sends: 2, up: 1, ..Status::ZERO };
    let send = RequestStatus { age_ms: 1250, length: 4096, waits: 1, ..RequestStatus::ZERO };
    let left = StatusHello { status, send, ..StatusHello::ZERO };
    b.band.status_leave(Handle::unpack(connection), &left);
    raw.send(
        Frame::StatusAsk(StatusAsk { target: connection, connection: 1, number: 5, flags: 0 }),
        &[],
    );
    keep(&next().unwrap()); // status
    assert!(b.band.status_ask(Handle::unpack(connection)));
    keep(&next().unwrap()); // status_ask
}

/// Keeps what this version writes, when asked to.
#[test]
fn record() {
    let Ok(into) = std::env::var("HELLO_RECORD") else { return };
    fs::create_dir_all(&into).unwrap();
    let keep = |bytes: &[u8]| {
        let name = name_of_kind(&Frame::decode(bytes).unwrap());
        fs::write(Path::new(&into).join(name), bytes).unwrap();
    };
    let b = Node::new(&Limits { peer_deadline: Span::millis(40), ..Limits::default() });
    let (_, handle) = b.band.listen().unwrap();
    let raw = Raw::dial(&handle);
    raw.send(Frame::LinkHello(hello_to(&handle)), &[&memfd(ARENA_BYTES)]);
    keep(&raw.receive_bytes());
    raw.send(Frame::LinkReady(hello_to(&handle)), &[]);
    keep(&raw.receive_bytes()); // ping
    raw.send(Frame::Ping(PingHello { number: 1 }), &[]);
    keep(&raw.receive_bytes()); // pong
    let mut connect = ConnectHello {
        connection: 1,
        target: handle.listener,
        send_ring_bytes: 1024,
        write_ring_bytes: 512,
        ..ConnectHello::ZERO
    };
    raw.send(Frame::Connect(connect), &[]);
    let accepted = raw.receive_bytes();
    keep(&accepted);
    let Frame::Accepted(accepted) = Frame::decode(&accepted).unwrap() else { panic!("refused") };
    keep_status(&b, &raw, accepted.connection, &keep);
    connect.target = u64::MAX;
    raw.send(Frame::Connect(connect), &[]);
    keep(&raw.receive_bytes()); // refused
    b.band.close();
    keep(&raw.receive_bytes()); // closed
    let a = Node::new(&Limits::default());
    let (handle, raw) = stand_in();
    a.band.connect_begin(&handle.encode()).unwrap();
    let link = raw.accept();
    let bytes = link.receive_bytes();
    keep(&bytes); // link_hello
    let Frame::LinkHello(hello) = Frame::decode(&bytes).unwrap() else { panic!("no hello") };
    let reply = LinkHello {
        endpoint_id: handle.endpoint_id,
        peer_endpoint_id: hello.endpoint_id,
        arena_bytes: hello.arena_bytes,
        ..hello_to(&handle)
    };
    link.send(Frame::LinkReply(reply), &[&memfd(hello.arena_bytes)]);
    keep(&link.receive_bytes()); // link_ready
    keep(&link.receive_bytes()); // connect
    let a = Node::new(&Limits::tcp());
    let (socket, handle) = RawTcp::listen(&handle);
    a.band.connect_begin(&handle.encode()).unwrap();
    let link = RawTcp::of(socket.accept().unwrap().0);
    let Frame::LinkHello(hello) = link.receive() else { panic!("no hello") };
    let reply = LinkHello {
        endpoint_id: handle.endpoint_id,
        peer_endpoint_id: hello.endpoint_id,
        ..remote(&handle)
    };
    link.send(Frame::LinkReply(reply));
    assert!(Frame::decode(&link.receive_bytes()).is_ok()); // link_ready
    keep(&link.receive_bytes()); // addresses
    keep(&RawTcp::of(socket.accept().unwrap().0).receive_bytes()); // stream_hello
}
