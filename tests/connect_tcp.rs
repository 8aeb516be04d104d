//! The side band between hosts, over TCP on loopback: what works, and how it ends.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "common/port.rs"]
mod port;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::handle::{Family, HANDLE_LOCAL, ListenHandle};
use crosstie::wire::hello::{CONNECT_SUMS, CONNECT_SUMS_WANTED, RAIL_SHM, RAIL_TCP};
use port::Port;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

fn at(ip: [u8; 4], port: u16) -> crosstie::wire::handle::Address {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&ip);
    crosstie::wire::handle::Address { family: Family::Ipv4, port, ip: bytes }
}

const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

fn error_of(node: &Node, handle: &ListenHandle) -> ConnectError {
    match node.band.connect_begin(&handle.encode()) {
        Ok(pending) => until("an error", || node.band.connect_poll(pending).err()),
        Err(error) => error,
    }
}

#[test]
fn a_connection_over_tcp_is_established_with_its_streams() {
    for streams in 1..=4 {
        let limits = Limits { streams, ..Limits::tcp() };
        let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        let of_a = a.established(here).expect("the event comes before the handle");
        let of_b = b.established(there).expect("the event comes before the handle");
        assert_eq!((of_a.rail, of_b.rail), (Rail::Tcp, Rail::Tcp));
        assert_eq!((of_a.side, of_b.side), (Side::Connector, Side::Listener));
        assert_eq!((of_a.peer.connection, of_b.peer.connection), (there.pack(), here.pack()));
        let counted = [of_a, of_b].map(|of| u32::from(of.stream_count));
        assert_eq!(counted, [streams; 2]);
        assert_eq!((of_a.peer.streams, of_b.peer.streams), (streams, streams));
        for stream in 0..streams as usize {
            carry(of_a.streams[stream], of_b.streams[stream]);
            carry(of_b.streams[stream], of_a.streams[stream]);
        }
        a.band.connection_close(here).unwrap();
        assert_eq!(until("gone", || b.gone(there)), DownCause::Closed);
        b.band.connection_close(there).unwrap();
        until("a free", || a.all_free());
        until("b free", || b.all_free());
    }
}

#[test]
fn a_connection_has_one_stream_where_either_side_has_many_descriptors() {
    for [here, there] in [[0, u64::MAX], [u64::MAX, 0]] {
        let limits = |descriptors_max| Limits { streams: 4, descriptors_max, ..Limits::tcp() };
        let (mut a, b) = (Node::new(&limits(here)), Node::new(&limits(there)));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, _) = pair(&a, &b, listener, &handle.encode());
        assert_eq!(a.established(here).unwrap().stream_count, 1);
    }
}

#[test]
fn the_listener_limits_the_streams() {
    let (a, b) = (Limits { streams: 4, ..Limits::tcp() }, Limits { streams: 2, ..Limits::tcp() });
    let (mut a, b) = (Node::new(&a), Node::new(&b));
    let (listener, handle) = b.band.listen().unwrap();
    let (here, _) = pair(&a, &b, listener, &handle.encode());
    assert_eq!(a.established(here).unwrap().stream_count, 2);
}

/// Sums are used where either side wants them and both can; who wants them of a peer that cannot
/// is told so.
#[test]
fn sums_are_agreed_on_where_both_sides_can() {
    static UNCHECKED: AtomicI32 = AtomicI32::new(0);
    fn listen(note: Note) {
        UNCHECKED.fetch_add(i32::from(matches!(note, Note::Unchecked(_))), Ordering::SeqCst);
    }
    let (can, wants) = (CONNECT_SUMS, CONNECT_SUMS | CONNECT_SUMS_WANTED);
    for (ours, theirs, sums, unchecked) in
        [(can, can, false, 0), (wants, can, true, 0), (can, wants, true, 0), (wants, 0, false, 1)]
    {
        UNCHECKED.store(0, Ordering::SeqCst);
        let of = |features| Node::new(&Limits { features, note: listen, ..Limits::tcp() });
        let (mut a, mut b) = (of(ours), of(theirs));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        let agreed = (a.established(here).unwrap().sums, b.established(there).unwrap().sums);
        assert_eq!(agreed, (sums, sums), "{ours:#x} {theirs:#x}");
        assert_eq!(UNCHECKED.load(Ordering::SeqCst), unchecked);
    }
}

#[test]
fn ipv6_works_and_its_handle_has_its_own_port() {
    let ip = "::1".parse().unwrap();
    let limits = Limits { addresses: vec![(ip, 128)], ..Limits::tcp() };
    let (mut a, b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    assert_eq!(handle.addresses[0].family, Family::Ipv6);
    let (here, _) = pair(&a, &b, listener, &handle.encode());
    assert_eq!(a.established(here).unwrap().rail, Rail::Tcp);
    let list = a.band.peer_addresses(here);
    assert_eq!(list.count, 1);
    assert_eq!(interfaces::ip_of(&list.all[0]), Some(ip));
    assert_eq!((list.all[0].prefix_bits, list.all[0].port), (128, handle.addresses[0].port));
}

#[test]
fn a_handle_says_beside_its_addresses_that_the_listener_answers_on_its_host() {
    let both = Limits { rails: RAIL_SHM | RAIL_TCP, ..Limits::tcp() };
    let (_, handle) = Node::new(&both).band.listen().unwrap();
    assert_eq!(handle.flags, HANDLE_LOCAL);
    let families = handle.addresses.map(|address| address.family);
    assert_eq!(families, [Family::Ipv4, Family::None, Family::None]);
    let many = (1..=4).map(|n| ([127, 0, 0, n].into(), 8)).collect();
    let (_, handle) = Node::new(&Limits { addresses: many, ..both }).band.listen().unwrap();
    assert_eq!(handle.flags, HANDLE_LOCAL);
    assert_eq!(handle.addresses.map(|address| address.family), [Family::Ipv4; 3]);
    let (_, handle) = Node::new(&Limits::tcp()).band.listen().unwrap();
    assert_eq!(handle.flags, 0);
}

#[test]
fn one_host_takes_shared_memory_and_another_host_tcp() {
    let both = Limits { rails: RAIL_SHM | RAIL_TCP, ..Limits::tcp() };
    let (mut a, b) = (Node::new(&both), Node::new(&both));
    let (listener, handle) = b.band.listen().unwrap();
    let (here, _) = pair(&a, &b, listener, &handle.encode());
    assert_eq!(a.established(here).unwrap().rail, Rail::Shm);
    let mut c = Node::new(&both);
    let elsewhere = ListenHandle { node_id: !handle.node_id, ..handle };
    let (here, _) = pair(&c, &b, listener, &elsewhere.encode());
    assert_eq!(c.established(here).unwrap().rail, Rail::Tcp);
    let alone = Node::new(&Limits::default());
    assert_eq!(error_of(&alone, &elsewhere), ConnectError::OtherHost);
}

#[test]
fn rails_that_only_one_side_allows_are_named_for_both() {
    let [shm, tcp] = [Limits::default(), Limits::tcp()];
    let both = Limits { rails: RAIL_SHM | RAIL_TCP, ..Limits::tcp() };
    for (connecting, listening, elsewhere, wanted) in [
        (&tcp, &shm, false, "this side allows tcp alone, the peer shm alone ("),
        (&shm, &tcp, false, "this side allows shm alone, the peer tcp alone ("),
        (&both, &shm, true, "this side allows shm and tcp, the peer shm alone; it is on another"),
        (&tcp, &shm, true, "this side allows tcp alone, the peer shm alone; it is on another"),
    ] {
        let (a, b) = (Node::new(connecting), Node::new(listening));
        let (_, handle) = b.band.listen().unwrap();
        let node_id = if elsewhere { !handle.node_id } else { handle.node_id };
        let error = error_of(&a, &ListenHandle { node_id, ..handle });
        assert!(matches!(error, ConnectError::Rail { .. }), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(a.all_free().is_some());
    }
}

#[test]
fn a_host_with_our_number_that_is_not_ours_is_reached_over_tcp() {
    let both = Limits { rails: RAIL_SHM | RAIL_TCP, ..Limits::tcp() };
    let (mut a, b) = (Node::new(&both), Node::new(&Limits::tcp()));
    let (listener, handle) = b.band.listen().unwrap();
    // it says that it answers locally, and does: elsewhere
    let cloned = ListenHandle { flags: HANDLE_LOCAL, ..handle };
    let (here, _) = pair(&a, &b, listener, &cloned.encode());
    assert_eq!(a.established(here).unwrap().rail, Rail::Tcp);
}

#[test]
fn ranks_that_both_connect_first_over_tcp_do_not_wait_for_each_other() {
    const EACH: usize = 500;
    let limits = Limits { connections: 1024, events: 4096, ..Limits::tcp() };
    let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
    let (at_a, handle_a) = a.band.listen().unwrap();
    let (at_b, handle_b) = b.band.listen().unwrap();
    let begin = |node: &Node, handle: &ListenHandle| -> Vec<_> {
        (0..EACH).map(|_| node.band.connect_begin(&handle.encode()).unwrap()).collect()
    };
    let (from_a, from_b) = (begin(&a, &handle_b), begin(&b, &handle_a));
    for (to_b, to_a) in from_a.into_iter().zip(from_b) {
        until("a connects", || a.band.connect_poll(to_b).unwrap());
        until("b connects", || b.band.connect_poll(to_a).unwrap());
    }
    for _ in 0..EACH {
        let at_a = until("accept at a", || a.band.accept(at_a).unwrap());
        let at_b = until("accept at b", || b.band.accept(at_b).unwrap());
        a.band.connection_close(at_a).unwrap();
        b.band.connection_close(at_b).unwrap();
    }
    assert_eq!((a.band.counters().links, b.band.counters().links), (2, 2));
    for node in [&mut a, &mut b] {
        until("all told", || {
            node.drain();
            let gone = node.seen.iter().filter(|event| matches!(event, BandEvent::Gone { .. }));
            (gone.count() == EACH).then_some(())
        });
    }
}

#[test]
fn an_endpoint_connects_to_itself_over_tcp() {
    let a = Node::new(&Limits::tcp());
    let (listener, handle) = a.band.listen().unwrap();
    let (here, there) = pair(&a, &a, listener, &handle.encode());
    assert_ne!(here, there);
    a.band.connection_close(here).unwrap();
    a.band.connection_close(there).unwrap();
    until("free", || a.all_free());
}

#[test]
fn an_attempt_over_tcp_that_is_abandoned_in_any_phase_gives_everything_back() {
    let limits = Limits { streams: 2, connections: 128, ..Limits::tcp() };
    let (a, b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    for polls in 0..60 {
        // the link comes to stand on the way, so that all phases are met
        let pending = a.band.connect_begin(&handle.encode()).unwrap();
        match (0..polls % 6).find_map(|_| a.band.connect_poll(pending).unwrap()) {
            None => a.band.connect_abandon(pending).unwrap(),
            // so fast that there is nothing to abandon any more
            Some(here) => a.band.connection_close(here).unwrap(),
        }
        assert_eq!(a.band.connect_poll(pending), Err(ConnectError::Stale));
    }
    until("both free", || {
        if let Some(there) = b.band.accept(listener).unwrap() {
            b.band.connection_close(there).unwrap();
        }
        a.all_free().and(b.all_free())
    });
    // and nobody took offence
    pair(&a, &b, listener, &handle.encode());
    assert_eq!(a.band.counters().links_lost, 0);
}

#[test]
fn a_closed_listener_is_named_over_tcp_and_can_be_opened_again() {
    let (a, b) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
    let (first, handle_first) = b.band.listen().unwrap();
    let (second, handle_second) = b.band.listen().unwrap();
    pair(&a, &b, second, &handle_second.encode());
    b.band.listener_close(first).unwrap();
    let error = error_of(&a, &handle_first);
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    let (again, handle) = b.band.listen().unwrap();
    pair(&a, &b, again, &handle.encode());
    let error = error_of(&a, &handle_first);
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
}

#[test]
fn closing_a_listener_over_tcp_closes_what_nobody_accepted() {
    let (mut a, b) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
    let (listener, handle) = b.band.listen().unwrap();
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    b.band.listener_close(listener).unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Closed);
    a.band.connection_close(here).unwrap();
    until("b free", || b.all_free());
}

#[test]
fn the_thread_ends_with_the_last_listener_and_link_and_starts_again() {
    for limits in [Limits::default(), Limits::tcp()] {
        let b = Node::new(&limits);
        assert!(b.band.is_attended());
        for _ in 0..3 {
            let (listener, handle) = b.band.listen().unwrap();
            assert!(b.band.is_attended());
            let a = Node::new(&limits);
            let (_, there) = pair(&a, &b, listener, &handle.encode());
            b.band.listener_close(listener).unwrap();
            a.band.close();
            b.band.connection_close(there).unwrap();
            until("the end of the thread", || (!b.band.is_attended()).then_some(()));
            let c = Node::new(&limits);
            let error = error_of(&c, &handle);
            assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
        }
    }
}

#[test]
fn full_tables_are_named_over_tcp_on_either_side_and_recover() {
    let small = Limits { connections: 2, ..Limits::tcp() };
    let (a, b) = (Node::new(&Limits::tcp()), Node::new(&small));
    let (at_b, handle_b) = b.band.listen().unwrap();
    let first = pair(&a, &b, at_b, &handle_b.encode());
    pair(&a, &b, at_b, &handle_b.encode());
    let error = error_of(&a, &handle_b);
    assert!(matches!(error, ConnectError::PeerFull(_)), "{error}");
    a.band.connection_close(first.0).unwrap();
    b.band.connection_close(first.1).unwrap();
    until("room there", || {
        let pending = a.band.connect_begin(&handle_b.encode()).unwrap();
        let made = until("an answer", || a.band.connect_poll(pending).transpose());
        made.ok()
    });
    let few = Node::new(&Limits { links: 1, ..Limits::tcp() });
    let (_, handle) = few.band.listen().unwrap();
    let (c, d) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
    let pending = c.band.connect_begin(&handle.encode()).unwrap();
    until("connect", || c.band.connect_poll(pending).unwrap());
    let error = error_of(&d, &handle);
    assert!(matches!(error, ConnectError::PeerFull(_)), "{error}");
}

#[test]
fn a_thousand_connections_over_tcp_between_two_processes() {
    run_alone("times");
    run_alone("times_at_once");
}

#[test]
fn a_thousand_cycles_over_tcp_leak_no_slot_and_no_descriptor() {
    run_alone("cycles");
}

#[test]
fn nothing_allocates_over_tcp_between_open_and_close() {
    run_alone("no_alloc");
}

#[test]
fn running_out_of_descriptors_over_tcp_is_named_with_the_limit() {
    run_alone("descriptors");
}

#[test]
fn peer_that_gives_way_when_descriptors_run_out_is_no_stranger() {
    run_alone("crowded");
}

#[test]
fn a_peer_over_tcp_without_descriptors_says_so_for_links_and_for_streams() {
    let dir = directory("poor_tcp");
    let a = Node::new(&Limits { connections: 1024, events: 2048, ..Limits::tcp() });
    let (mut child, handle) = start_child("listen_poor", &dir);
    for _ in 0..5 {
        let error = error_of(&a, &ListenHandle::decode(&handle).unwrap());
        assert!(matches!(error, ConnectError::PeerDescriptors(_)), "{error}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // and one that runs out while the link stands
    let (mut child, handle) = start_child("listen_poorer", &dir);
    until("the limit", || {
        let pending = a.band.connect_begin(&handle).unwrap();
        until("an answer", || a.band.connect_poll(pending).transpose()).err()
    });
    for _ in 0..5 {
        let error = error_of(&a, &ListenHandle::decode(&handle).unwrap());
        let ConnectError::PeerDescriptors(peer) = error else { panic!("{error}") };
        assert_eq!(peer.pid, child.id());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_killed_peer_is_noticed_over_tcp_and_its_handle_leads_nowhere() {
    let dir = directory("killed_tcp");
    let mut a = Node::new(&Limits::tcp());
    let (mut child, handle) = start_child("listen", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    let mut text = [0; 128];
    let length = a.band.peer_text(here, &mut text);
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    assert!(text.contains(&format!("pid {}", child.id())), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Severed);
    a.band.connection_close(here).unwrap();
    until("free", || a.all_free());
    let error = error_of(&a, &ListenHandle::decode(&handle).unwrap());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_stopped_peer_is_named_over_tcp_at_the_deadline() {
    let dir = directory("stopped_tcp");
    let limits = Limits { connections: 2, deadline: Span::millis(100), ..Limits::tcp() };
    let a = Node::new(&limits);
    let (mut child, handle) = start_child("listen", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    until("connect", || a.band.connect_poll(pending).unwrap());
    signal(&child, libc::SIGSTOP);
    for _ in 0..3 {
        // the slot comes back each time: nothing can come on a closed socket
        let error = error_of(&a, &ListenHandle::decode(&handle).unwrap());
        let ConnectError::Deadline(peer) = error else { panic!("{error}") };
        assert_eq!(peer.pid, child.id());
    }
    let fresh = Node::new(&limits);
    let error = error_of(&fresh, &ListenHandle::decode(&handle).unwrap());
    assert!(matches!(error, ConnectError::Deadline(_)), "{error}");
    assert!(error.to_string().contains(" at 127.0.0.1:"), "{error}");
    signal(&child, libc::SIGCONT);
    let pending = a.band.connect_begin(&handle).unwrap();
    until("connect", || a.band.connect_poll(pending).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_next_address_is_tried_when_one_refuses_or_is_silent() {
    let hasty = Limits { deadline: Span::millis(600), ..Limits::tcp() };
    let (mut a, b) = (Node::new(&hasty), Node::new(&Limits::tcp()));
    let (listener, handle) = b.band.listen().unwrap();
    let held = Port::held(Ipv4Addr::LOCALHOST);
    let closed = held.number();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = at(LOOPBACK, silent.local_addr().unwrap().port());
    let addresses = [at(LOOPBACK, closed), silent, handle.addresses[0]];
    let (here, _) = pair(&a, &b, listener, &ListenHandle { addresses, ..handle }.encode());
    assert_eq!(a.established(here).unwrap().rail, Rail::Tcp);
}

#[test]
fn a_peer_timeout_shorter_than_the_connects_own_does_not_end_it() {
    const OWN: Duration = Duration::from_millis(2000);
    let deadline = Span::millis(OWN.as_millis() as u64);
    let a = Node::new(&Limits { deadline, peer_deadline: Span::millis(160), ..Limits::tcp() });
    let (_, handle) = Node::new(&Limits::tcp()).band.listen().unwrap();
    // its queue is full, so that the kernel drops who dials
    let full = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // SAFETY: no pointers.
    unsafe { libc::listen(full.as_raw_fd(), 0) };
    let to = full.local_addr().unwrap();
    let _first = TcpStream::connect(to).unwrap();
    let none = crosstie::wire::handle::Address::default();
    let addresses = [at(LOOPBACK, to.port()), none, none];
    let began = Instant::now();
    let error = error_of(&a, &ListenHandle { addresses, ..handle });
    assert!(matches!(error, ConnectError::Unreachable(..)), "{error}");
    // a sixteenth is kept back, so that the cause is named before the caller's own deadline
    assert!(began.elapsed() >= OWN / 16 * 15, "{:?}", began.elapsed());
}

#[test]
fn addresses_that_lead_nowhere_are_named_with_the_cause() {
    let a = Node::new(&Limits { deadline: Span::millis(100), ..Limits::tcp() });
    let b = Node::new(&Limits::tcp());
    let (_, handle) = b.band.listen().unwrap();
    let none = crosstie::wire::handle::Address::default();
    // no route: the kernel refuses by itself to connect to a broadcast address
    let nowhere = at([255, 255, 255, 255], 9);
    let error = error_of(&a, &ListenHandle { addresses: [nowhere, none, none], ..handle });
    let ConnectError::Unreachable(_, code) = error else { panic!("{error}") };
    assert!(error.to_string().contains("at 255.255.255.255:9: "), "{error}");
    assert!([libc::ENETUNREACH, libc::EACCES].contains(&code), "{error}");
    // refused by all
    let held = Port::held(Ipv4Addr::LOCALHOST);
    let closed = held.number();
    let refused = at(LOOPBACK, closed);
    let error = error_of(&a, &ListenHandle { addresses: [refused, refused, none], ..handle });
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    let named = format!("at 127.0.0.1:{closed}, 127.0.0.1:{closed}: ");
    assert!(error.to_string().contains(&named), "{error}");
    let error = error_of(&a, &ListenHandle { addresses: [refused, nowhere, none], ..handle });
    assert!(matches!(error, ConnectError::Unreachable(..)), "{error}");
    // another endpoint has the port now
    let foreign = ListenHandle { endpoint_id: !handle.endpoint_id, ..handle };
    let error = error_of(&a, &foreign);
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    until("free", || a.all_free());
    assert_eq!(b.band.counters().strangers, 1);
}

/// A server in between: closes the first `drops` sockets after it has read their hello, and hands
/// the others on.
fn between(to: SocketAddr, drops: i32, after: i32) -> u16 {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let (count, left) = (Arc::new(AtomicI32::new(0)), drops);
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream: TcpStream = stream.unwrap();
            let number = count.fetch_add(1, Ordering::Relaxed);
            if (after..after + left).contains(&number) {
                let _ = std::io::Read::read(&mut stream, &mut [0; 512]);
                continue;
            }
            let other = TcpStream::connect(to).unwrap();
            for (mut from, mut into) in
                [(stream.try_clone().unwrap(), other.try_clone().unwrap()), (other, stream)]
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    port
}

#[test]
fn who_is_dropped_before_it_is_greeted_dials_again() {
    for (drops, after) in [(5, 0), (3, 1)] {
        // links first, then data streams
        let (a, b) = (Node::new(&Limits::tcp()), Node::new(&Limits::tcp()));
        let (listener, handle) = b.band.listen().unwrap();
        let to = SocketAddr::from((LOOPBACK, handle.addresses[0].port));
        let mut addresses = handle.addresses;
        addresses[0].port = between(to, drops, after);
        pair(&a, &b, listener, &ListenHandle { addresses, ..handle }.encode());
        assert_eq!(a.band.counters().links, 1);
    }
}

/// What roles talk over: data streams; 0 is shared memory.
const STREAMS: u32 = 1;

include!("connect_support/roles.rs");
