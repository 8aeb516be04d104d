//! Who is no peer, or not quite: dropped at a bounded cost, and nobody else notices.

#![allow(dead_code)] // of the shared parts

mod connect_support;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::*;
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut out = [0; FRAME_BYTES_WRITTEN];
    let length = frame.encode(&mut out);
    out[..length].to_vec()
}

/// What an honest connector says first.
fn hello_to(handle: &ListenHandle) -> LinkHello {
    LinkHello {
        node_id: 1,
        endpoint_id: 2,
        peer_endpoint_id: handle.endpoint_id,
        rails: RAIL_TCP,
        streams: 4,
        nonce: 3,
        ..LinkHello::ZERO
    }
}

/// The next frame that comes; `None`: the end.
fn next(stream: &mut TcpStream) -> Option<Frame> {
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut header = [0; FrameHeader::SIZE];
    stream.read_exact(&mut header).ok()?;
    let mut frame = header.to_vec();
    frame.resize(16 + usize::from(FrameHeader::from_bytes(&header).length), 0);
    stream.read_exact(&mut frame[16..]).unwrap();
    Some(Frame::decode(&frame).unwrap())
}

fn is_dropped(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    matches!(stream.read(&mut [0; 64]), Ok(0)) || stream.peer_addr().is_err() || {
        // a reset
        stream.read(&mut [0; 64]).is_ok_and(|length| length == 0)
    }
}

fn strangers_reach(node: &Node, count: u64) {
    until("dropped", || (node.band.counters().strangers >= count).then_some(()));
    assert_eq!(node.band.counters().strangers, count);
}

#[test]
fn the_first_stranger_is_named_by_its_address() {
    static FROM: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    fn keep(note: Note) {
        let Note::Stranger(from) = note else { panic!("{note:?}") };
        FROM.lock().unwrap().push(from.to_string());
    }
    let b = Node::new(&Limits { note: keep, ..Limits::tcp() });
    let (_, handle) = b.band.listen().unwrap();
    let mut stranger = dial_tcp(&handle);
    let at = stranger.local_addr().unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    strangers_reach(&b, 1);
    assert_eq!(*FROM.lock().unwrap(), [format!(" at {at}")]);
}

/// A frame of any kind whose header says any length.
fn header(major: u16, kind: u16, length: u16) -> Vec<u8> {
    FrameHeader { magic: FRAME_MAGIC, major, minor: WIRE_MINOR, kind, length, sum: 0 }
        .encode()
        .to_vec()
}

#[test]
fn what_is_no_hello_is_dropped_at_once_and_the_rest_goes_on() {
    let (a, b) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
    let (listener, handle) = b.band.listen().unwrap();
    let (here, _) = pair(&a, &b, listener, &handle.encode());
    let tls = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat();
    let oversized = header(WIRE_MAJOR, 1, 60_000);
    let unknown = [header(WIRE_MAJOR, 99, 8), vec![0; 8]].concat();
    let too_short = [header(WIRE_MAJOR, 1, 8), vec![0; 8]].concat();
    let not_first = bytes_of(&Frame::Ping(PingHello { number: 1 }));
    let followed = [bytes_of(&Frame::LinkHello(hello_to(&handle))), vec![1]].concat();
    let garbage: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        &tls,
        &[0; 4096],
        &oversized,
        &unknown,
        &too_short,
        &not_first,
        &followed,
    ];
    for (round, bytes) in garbage.iter().enumerate() {
        let mut stranger = dial_tcp(&handle);
        stranger.write_all(bytes).unwrap();
        strangers_reach(&b, round as u64 + 1);
        assert!(is_dropped(&mut stranger));
        pair(&a, &b, listener, &handle.encode());
    }
    // the beginning of a hello, and the end
    let mut cut = dial_tcp(&handle);
    cut.write_all(&bytes_of(&Frame::LinkHello(hello_to(&handle)))[..100]).unwrap();
    drop(cut);
    strangers_reach(&b, 9);
    drop(dial_tcp(&handle));
    strangers_reach(&b, 10);
    assert_eq!(b.band.counters().links_lost, 0);
    assert!(a.band.peer_text(here, &mut [0; 64]) > 0);
}

/// A peer that runs out of descriptors closes streams before it has said whose they are.
#[test]
fn stream_that_ends_without_a_word_from_where_a_peer_is_is_not_called_a_stranger() {
    static NAMED: AtomicUsize = AtomicUsize::new(0);
    fn note(note: Note) {
        NAMED.fetch_add(usize::from(matches!(note, Note::Stranger(_))), Ordering::Relaxed);
    }
    let (a, b) = (Node::new(&Limits::tcp()), Node::new(&Limits { note, ..Limits::tcp() }));
    let (listener, handle) = b.band.listen().unwrap();
    pair(&a, &b, listener, &handle.encode());
    drop(dial_tcp(&handle));
    strangers_reach(&b, 1);
    assert_eq!(NAMED.load(Ordering::Relaxed), 0);
    let mut stranger = dial_tcp(&handle);
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    strangers_reach(&b, 2);
    assert_eq!(NAMED.load(Ordering::Relaxed), 1);
}

#[test]
fn who_means_another_endpoint_is_told_and_counted() {
    let b = Node::new(&Limits::tcp());
    let (_, handle) = b.band.listen().unwrap();
    let foreign = ListenHandle { endpoint_id: !handle.endpoint_id, ..handle };
    let mut stranger = dial_tcp(&handle);
    stranger.write_all(&bytes_of(&Frame::LinkHello(hello_to(&foreign)))).unwrap();
    let Some(Frame::Refused(refused)) = next(&mut stranger) else { panic!("no refusal") };
    assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::NoListener);
    assert!(next(&mut stranger).is_none());
    strangers_reach(&b, 1);
}

#[test]
fn another_major_version_is_told_ours_and_a_rail_that_is_not_allowed_is_named() {
    static VERSIONS: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    fn note(note: Note) {
        if let Note::Version(_, theirs) = note {
            VERSIONS.lock().unwrap().push(theirs);
        }
    }
    let b = Node::new(&Limits { note, ..Limits::tcp() });
    let (_, handle) = b.band.listen().unwrap();
    let mut later = dial_tcp(&handle);
    later.write_all(&[header(WIRE_MAJOR + 1, 1, 8), vec![0; 8]].concat()).unwrap();
    let Some(Frame::Refused(refused)) = next(&mut later) else { panic!("no refusal") };
    assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Version);
    assert_eq!(refused.major, WIRE_MAJOR);
    assert_eq!(b.band.counters().versions_refused, 1);
    let said = VERSIONS.lock().unwrap().clone();
    assert_eq!(said, [WIRE_MAJOR + 1], "said here, too");
    assert_eq!(b.band.counters().strangers, 0);
    let mut shm_alone = dial_tcp(&handle);
    let hello = LinkHello { rails: RAIL_SHM, ..hello_to(&handle) };
    shm_alone.write_all(&bytes_of(&Frame::LinkHello(hello))).unwrap();
    let Some(Frame::Refused(refused)) = next(&mut shm_alone) else { panic!("no refusal") };
    assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Rail);
}

#[test]
fn who_is_silent_or_slow_is_dropped_after_the_deadline_and_disturbs_nobody() {
    let hasty = Limits { deadline: Span::millis(200), ..Limits::tcp() };
    let (mut a, mut b) = (Node::new(&Limits::tcp()), Node::new(&hasty));
    let (listener, handle) = b.band.listen().unwrap();
    let mut slow = dial_tcp(&handle);
    let hello = bytes_of(&Frame::LinkHello(hello_to(&handle)));
    let mut silent: Vec<_> = (0..10).map(|_| dial_tcp(&handle)).collect();
    // a byte per turn, which never comes to an end in time
    let mut at = 0;
    until("the slow one is dropped", || {
        if at < hello.len() - 1 && slow.write_all(&hello[at..=at]).is_ok() {
            at += 1;
        }
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        a.band.connection_close(here).unwrap();
        b.band.connection_close(there).unwrap();
        a.drain();
        b.drain();
        (b.band.counters().strangers == 11).then_some(())
    });
    assert!(silent.iter_mut().all(is_dropped));
}

#[test]
fn a_hello_in_single_bytes_is_understood() {
    let b = Node::new(&Limits::tcp());
    let (_, handle) = b.band.listen().unwrap();
    let mut peer = dial_tcp(&handle);
    for byte in bytes_of(&Frame::LinkHello(hello_to(&handle))) {
        peer.write_all(&[byte]).unwrap();
    }
    let Some(Frame::LinkReply(reply)) = next(&mut peer) else { panic!("no reply") };
    assert_eq!((reply.endpoint_id, reply.peer_endpoint_id), (handle.endpoint_id, 2));
    assert!(reply.nonce != 0 && reply.features == 0 && reply.arena_bytes == 0);
    let Some(Frame::Addresses(list)) = next(&mut peer) else { panic!("no addresses") };
    assert_eq!((list.count, list.all[0].port), (1, handle.addresses[0].port));
    let ready = Frame::LinkReady(LinkHello { peer_endpoint_id: handle.endpoint_id, ..reply });
    for byte in bytes_of(&ready) {
        peer.write_all(&[byte]).unwrap();
    }
    until("the link", || (b.band.counters().links == 1).then_some(()));
}

#[test]
fn silent_ones_beyond_the_table_push_out_the_oldest_and_peers_still_connect() {
    const SILENT: u64 = 300;
    let (a, b) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
    let (listener, handle) = b.band.listen().unwrap();
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(dial_tcp(&handle));
        if silent.len() % 50 == 0 {
            let c = Node::new(&Limits::tcp());
            let (_, there) = pair(&c, &b, listener, &handle.encode());
            b.band.connection_close(there).unwrap();
            let (here, there) = pair(&a, &b, listener, &handle.encode());
            a.band.connection_close(here).unwrap();
            b.band.connection_close(there).unwrap();
        }
    }
    // one whose hello was on its way took a place, too, until it came
    until("dropped", || (b.band.counters().strangers >= SILENT - 64).then_some(()));
    assert!(silent[..100].iter_mut().all(is_dropped));
}

#[test]
fn ten_thousand_bogus_connections_cost_little_and_peers_connect_meanwhile() {
    let (mut a, mut b) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
    let (listener, handle) = b.band.listen().unwrap();
    pair(&a, &b, listener, &handle.encode());
    let before = descriptors();
    let noted = NOTES.load(Ordering::Relaxed);
    let scanner = std::thread::spawn(move || {
        for round in 0..10_000u32 {
            let mut stream = dial_tcp(&handle);
            match round % 4 {
                0 => {}
                1 => drop(stream.write_all(b"GET / HTTP/1.0\r\n\r\n")),
                2 => drop(stream.write_all(&header(WIRE_MAJOR, 1, 256))),
                _ => drop(stream.write_all(&[round as u8; 700])),
            }
        }
    });
    let mut made = 0;
    while !scanner.is_finished() {
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        a.band.connection_close(here).unwrap();
        b.band.connection_close(there).unwrap();
        a.drain();
        b.drain();
        made += 1;
    }
    scanner.join().unwrap();
    assert!(made > 0);
    strangers_reach(&b, 10_000);
    until("a free but one", || (descriptors() <= before).then_some(()));
    assert!(NOTES.load(Ordering::Relaxed) <= noted + 8, "said once per endpoint");
    assert_eq!((a.band.counters().links_lost, b.band.counters().links_lost), (0, 0));
}

/// A peer made by hand, whose link stands but for its last word.
struct Hand {
    link: TcpStream,
    reply: LinkHello,
    asks: std::cell::Cell<u64>,
}

impl Hand {
    fn new(handle: &ListenHandle) -> Hand {
        let mut link = dial_tcp(handle);
        link.write_all(&bytes_of(&Frame::LinkHello(hello_to(handle)))).unwrap();
        let Some(Frame::LinkReply(reply)) = next(&mut link) else { panic!("no reply") };
        let Some(Frame::Addresses(_)) = next(&mut link) else { panic!("no addresses") };
        Hand::of(link, reply)
    }

    fn of(link: TcpStream, reply: LinkHello) -> Hand {
        Hand { link, reply, asks: std::cell::Cell::new(0) }
    }

    fn ready(&mut self) {
        let ready = LinkHello { nonce: 3, ..self.reply };
        self.link.write_all(&bytes_of(&Frame::LinkReady(ready))).unwrap();
    }

    fn stream(&self, handle: &ListenHandle, stream: u32, streams: u32) -> TcpStream {
        self.stream_of(handle, 77, stream, streams, self.reply.nonce)
    }

    fn stream_of(
        &self,
        handle: &ListenHandle,
        connection: u64,
        stream: u32,
        streams: u32,
        proof: u128,
    ) -> TcpStream {
        let ask = self.asks.get() + 1;
        self.asks.set(ask);
        let hello = StreamHello {
            endpoint_id: 2,
            proof,
            connection,
            stream,
            streams,
            ask,
            ..StreamHello::ZERO
        };
        let connect =
            ConnectHello { connection, target: handle.listener, streams, ..ConnectHello::ZERO };
        let mut socket = dial_tcp(handle);
        socket.write_all(&bytes_of(&Frame::StreamHello(hello, connect))).unwrap();
        socket
    }
}

#[test]
fn streams_may_come_in_any_order_and_before_the_links_last_word() {
    let limits = Limits { streams: 4, ..Limits::tcp() };
    let mut b = Node::new(&limits);
    let (listener, handle) = b.band.listen().unwrap();
    let mut hand = Hand::new(&handle);
    let mut streams: Vec<_> = [2, 0, 3].map(|n| (n, hand.stream(&handle, n, 4))).into();
    assert_eq!(b.band.accept(listener), Ok(None));
    hand.ready();
    streams.push((1, hand.stream(&handle, 1, 4)));
    let Some(Frame::Accepted(accepted)) = next(&mut hand.link) else { panic!("not accepted") };
    assert_eq!((accepted.target, accepted.streams), (77, 4));
    let there = until("accept", || b.band.accept(listener).unwrap());
    let params = b.established(there).unwrap();
    for (number, stream) in &mut streams {
        use std::os::fd::AsRawFd;
        carry(stream.as_raw_fd(), params.streams[*number as usize]);
    }
    b.band.connection_close(there).unwrap();
    for (_, stream) in &mut streams {
        assert!(is_dropped(stream));
    }
    let Some(Frame::Closed(closed)) = next(&mut hand.link) else { panic!("not closed") };
    assert_eq!(closed.target, 77);
}

#[test]
fn streams_without_proof_and_nonsense_about_streams_are_strangers() {
    let b = Node::new(&Limits { streams: 2, ..Limits::tcp() });
    let (listener, handle) = b.band.listen().unwrap();
    let mut hand = Hand::new(&handle);
    hand.ready();
    let proof = hand.reply.nonce;
    let mut forged = [
        hand.stream_of(&handle, 77, 0, 1, proof ^ 1),
        hand.stream_of(&handle, 77, 0, 1, 0),
        hand.stream_of(&handle, 77, 1, 1, proof),
        hand.stream_of(&handle, 77, 0, 0, proof),
        hand.stream_of(&handle, 77, 0, 3, proof),
    ];
    strangers_reach(&b, 5);
    assert!(forged.iter_mut().all(is_dropped));
    assert_eq!(b.band.accept(listener), Ok(None));
    until("free", || b.all_free());
    // the link has not suffered
    let _stream = hand.stream(&handle, 0, 1);
    assert!(matches!(next(&mut hand.link), Some(Frame::Accepted(_))));
}

#[test]
fn a_connection_whose_streams_never_all_come_gives_its_slot_back() {
    let limits = Limits { streams: 2, deadline: Span::millis(1_000), ..Limits::tcp() };
    let b = Node::new(&limits);
    let (_, handle) = b.band.listen().unwrap();
    let mut hand = Hand::new(&handle);
    hand.ready();
    let kept = hand.stream(&handle, 0, 2);
    until("gathered", || b.some_taken());
    until("given back at the deadline", || b.all_free());
    drop(kept);
    // one that is given up is noticed before
    let b = Node::new(&Limits { deadline: Span::millis(60_000), ..limits });
    let (_, handle) = b.band.listen().unwrap();
    let mut hand = Hand::new(&handle);
    hand.ready();
    let dropped = hand.stream(&handle, 1, 2);
    until("gathered", || b.some_taken());
    drop(dropped);
    until("given back", || b.all_free());
}

#[test]
fn a_half_open_link_is_dropped_at_the_deadline_and_its_end_frees_what_was_gathered() {
    let hasty = Limits { deadline: Span::millis(100), links: 1, ..Limits::tcp() };
    let b = Node::new(&hasty);
    let (_, handle) = b.band.listen().unwrap();
    for _ in 0..3 {
        // each uses the only link there is
        let mut hand = until("a free link", || {
            let mut link = dial_tcp(&handle);
            link.write_all(&bytes_of(&Frame::LinkHello(hello_to(&handle)))).unwrap();
            match next(&mut link) {
                Some(Frame::LinkReply(reply)) => Some(Hand::of(link, reply)),
                Some(Frame::Refused(_)) => None,
                other => panic!("{other:?}"),
            }
        });
        let _stream = hand.stream(&handle, 0, 1);
        assert!(matches!(next(&mut hand.link), Some(Frame::Addresses(_))));
        assert!(next(&mut hand.link).is_none());
    }
    until("free", || b.all_free());
}

/// What roles talk over: data streams; 0 is shared memory.
const STREAMS: u32 = 1;

include!("connect_support/roles.rs");
