//! A thousand connections between two processes, full tables, crossing connects, stale handles and
//! forked children.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::connect::CloseError;
use crosstie::host::endpoint::Closing;
use crosstie::host::{AcceptError, ConnectError, ListenError, Options};
use crosstie::transport::{RequestError, SubmitError};
use host_support::roles;
use host_support::{Memory, Node, Place, Watch, joined, small, wait_both};

const CONNECTIONS: usize = 1000;
/// Times that all of them are made and closed.
const LIVES: u64 = 2;
const LENGTHS: [usize; 2] = [48, 9000];
const LENGTH_MAX: usize = 9000;

/// Rings as short as they may be, so that a thousand take 16 MiB.
fn many(connections_max: u32) -> Options {
    Options {
        eager_bytes_max: Bytes(960),
        send_ring_bytes: 4096,
        write_ring_bytes: 4096,
        ..small(connections_max)
    }
}

#[test]
fn role() {
    roles::take(&[("many", role_many), ("crossing", role_crossing), ("ring", role_ring)]);
}

fn role_many() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&many(CONNECTIONS as u32));
    let memory = Memory::new(&node, Place::Shared, 2 * LENGTH_MAX);
    for life in 0..LIVES {
        let mut connections = Vec::with_capacity(CONNECTIONS);
        while connections.len() < CONNECTIONS {
            let attempt = node.shared.connect(&handle).unwrap();
            connections.push(node.connected(attempt).unwrap());
        }
        assert_eq!(node.shared.connect(&handle), Err(ConnectError::LocalFull));
        for (number, connection) in connections.iter().enumerate() {
            for length in LENGTHS {
                let key = number as u64 + life * 10_000;
                let (out, into) =
                    (memory.outgoing(0, length, 0), memory.incoming(LENGTH_MAX, length, 0));
                memory.fill(0, length, key);
                let receive = node.irecv(*connection, &[into]).unwrap();
                let send = node.isend(*connection, out).unwrap();
                assert_eq!(node.wait(receive).result, Ok(()));
                memory.verify(LENGTH_MAX, length, !key);
                assert_eq!(node.wait(send).result, Ok(()));
            }
        }
        line.say_number(life);
        line.hear_number();
        for connection in connections {
            node.disconnect(connection);
        }
        line.say_number(life);
        line.hear_number();
    }
}

#[test]
fn thousand_connections_between_two_processes_are_made_used_closed_and_made_again() {
    let mut node = Node::open(&many(CONNECTIONS as u32));
    let before = host_support::descriptors();
    let mut peer = roles::start("many", &[]);
    let (listener, handle) = node.shared.listen().unwrap();
    peer.line.say(&handle);
    let memory = Memory::new(&node, Place::Shared, 2 * LENGTH_MAX);
    let mut earlier: Vec<Handle> = vec![];
    for life in 0..LIVES {
        let connections: Vec<Handle> = (0..CONNECTIONS).map(|_| node.accepted(listener)).collect();
        for (number, connection) in connections.iter().enumerate() {
            for length in LENGTHS {
                let key = number as u64 + life * 10_000;
                let room = memory.incoming(LENGTH_MAX, length, 0);
                let receive = node.irecv(*connection, &[room]).unwrap();
                assert_eq!(node.wait(receive).result, Ok(()));
                memory.verify(LENGTH_MAX, length, key);
                memory.fill(0, length, !key);
                let send = node.isend(*connection, memory.outgoing(0, length, 0)).unwrap();
                assert_eq!(node.wait(send).result, Ok(()));
            }
        }
        assert_eq!(peer.line.hear_number(), life);
        // one link carries them all; over TCP each has a socket of its own
        let sockets = if host_support::over_tcp() { CONNECTIONS } else { 0 };
        assert!(host_support::descriptors() < before + sockets + 20);
        for old in &earlier {
            let message = memory.outgoing(0, 8, 0);
            assert_eq!(node.isend(*old, message), Err(SubmitError::Connection));
            assert_eq!(node.connection_close(*old), Closing::Stale);
        }
        peer.line.say_number(life);
        assert_eq!(peer.line.hear_number(), life);
        for connection in &connections {
            node.disconnect(*connection);
        }
        earlier = connections;
        peer.line.say_number(life);
    }
    assert!(peer.finished().success());
}

#[test]
fn full_table_of_the_peer_is_named_and_a_closed_connection_makes_room() {
    let (mut a, mut b) = (Node::open(&many(64)), Node::open(&many(4)));
    let (listener, handle) = b.shared.listen().unwrap();
    let connect = |a: &mut Node| {
        let attempt = a.shared.connect(&handle).unwrap();
        a.connected(attempt)
    };
    for _ in 0..20 {
        // a slot of an earlier round is free once both sides' words have crossed
        let watch = Watch::start();
        let mut held = vec![];
        while held.len() < 4 {
            match connect(&mut a) {
                Ok(connection) => held.push(connection),
                Err(ConnectError::PeerFull(_)) => watch.look("room at the peer"),
                Err(error) => panic!("{error}"),
            }
        }
        let error = connect(&mut a).unwrap_err();
        assert!(matches!(error, ConnectError::PeerFull(_)), "{error}");
        let accepted: Vec<Handle> = (0..4).map(|_| b.accepted(listener)).collect();
        assert_eq!(b.shared.accept(listener), Ok(None));
        let error = connect(&mut a).unwrap_err();
        assert!(matches!(error, ConnectError::PeerFull(_)), "{error}");
        held.into_iter().for_each(|connection| a.disconnect(connection));
        accepted.into_iter().for_each(|connection| b.disconnect(connection));
    }
}

#[test]
fn full_table_of_ours_is_named_and_a_closed_connection_makes_room() {
    let (mut a, mut b) = (Node::open(&many(2)), Node::open(&many(8)));
    let (first, first_there) = joined(&mut a, &mut b);
    let (second, second_there) = joined(&mut a, &mut b);
    let (_, handle) = b.shared.listen().unwrap();
    assert_eq!(a.shared.connect(&handle), Err(ConnectError::LocalFull));
    a.disconnect(first);
    b.disconnect(first_there);
    let watch = Watch::start();
    loop {
        match a.shared.connect(&handle) {
            Ok(attempt) => break a.connected(attempt).map(drop).unwrap(),
            Err(ConnectError::LocalFull) => watch.look("room"),
            Err(error) => panic!("{error}"),
        }
    }
    a.disconnect(second);
    b.disconnect(second_there);
}

/// Connects to whoever started it, while that connects here.
fn role_crossing() {
    let mut line = roles::line();
    let mut node = Node::open(&small(64));
    cross(&mut node, &mut line, 0);
}

fn cross(node: &mut Node, line: &mut roles::Line, side: u64) {
    let memory = Memory::new(node, Place::Shared, 64);
    for round in 0..50 {
        let (listener, ours) = node.shared.listen().unwrap();
        line.say(&ours);
        let theirs = line.hear::<128>();
        let attempt = node.shared.connect(&theirs).unwrap();
        let (made, taken) = (node.connected(attempt).unwrap(), node.accepted(listener));
        let receive = node.irecv(taken, &[memory.incoming(32, 32, 0)]).unwrap();
        memory.fill(0, 32, round * 2 + side);
        let send = node.isend(made, memory.outgoing(0, 32, 0)).unwrap();
        assert_eq!(node.wait(receive).result, Ok(()));
        memory.verify(32, 32, round * 2 + 1 - side);
        assert_eq!(node.wait(send).result, Ok(()));
        line.say_number(round);
        assert_eq!(line.hear_number(), round);
        node.disconnect(made);
        node.disconnect(taken);
        node.shared.listener_close(listener).unwrap();
    }
}

#[test]
fn both_sides_may_connect_first() {
    let mut peer = roles::start("crossing", &[]);
    let mut node = Node::open(&small(64));
    cross(&mut node, &mut peer.line, 1);
    assert!(peer.finished().success());
}

/// Processes of the ring, and times that messages go round it.
const RING: (usize, u64) = (64, 3);
const RING_LENGTHS: [usize; 3] = [8, 9000, 100_000];

/// Listens, connects to the next of the ring, and hands on what the one before sends.
fn role_ring() {
    let mut line = roles::line();
    let mut node = Node::open(&small(4));
    let (listener, ours) = node.shared.listen().unwrap();
    line.say(&ours);
    let (number, next) = (line.hear_number(), line.hear::<128>());
    let attempt = node.shared.connect(&next).unwrap();
    let (to, from) = (node.connected(attempt).unwrap(), node.accepted(listener));
    let memory = Memory::new(&node, Place::Private, 200_000);
    for round in 0..RING.1 {
        for length in RING_LENGTHS {
            let before = (number + RING.0 as u64 - 1) % RING.0 as u64;
            memory.fill(0, length, round << 8 | number);
            let receive = node.irecv(from, &[memory.incoming(100_000, length, 0)]).unwrap();
            let send = node.isend(to, memory.outgoing(0, length, 0)).unwrap();
            assert_eq!(node.wait(receive).result, Ok(()));
            memory.verify(100_000, length, round << 8 | before);
            assert_eq!(node.wait(send).result, Ok(()));
        }
    }
    line.say_number(number);
    // the others may still be under way
    line.hear_number();
    node.disconnect(to);
    node.disconnect(from);
}

#[test]
fn sixty_four_processes_talk_in_a_ring() {
    let mut ring: Vec<_> = (0..RING.0).map(|_| roles::start("ring", &[])).collect();
    let handles: Vec<_> = ring.iter_mut().map(|process| process.line.hear::<128>()).collect();
    for (number, process) in ring.iter_mut().enumerate() {
        process.line.say_number(number as u64);
        process.line.say(&handles[(number + 1) % RING.0]);
    }
    for (number, process) in ring.iter_mut().enumerate() {
        assert_eq!(process.line.hear_number(), number as u64);
    }
    for process in &mut ring {
        process.line.say_number(0);
    }
    for process in ring {
        assert!(process.finished().success());
    }
}

#[test]
fn stale_connection_is_refused_although_its_slot_is_used_again() {
    let (mut a, mut b) = (Node::open(&small(1)), Node::open(&small(8)));
    let memory = Memory::new(&a, Place::Shared, 64);
    let mut old: Vec<Handle> = vec![];
    for _ in 0..20 {
        let watch = Watch::start();
        let (listener, handle) = b.shared.listen().unwrap();
        let attempt = loop {
            match a.shared.connect(&handle) {
                Err(ConnectError::LocalFull) => watch.look("the slot"),
                other => break other.unwrap(),
            }
        };
        let to_b = a.connected(attempt).unwrap();
        let to_a = b.accepted(listener);
        b.shared.listener_close(listener).unwrap();
        for stale in &old {
            assert_eq!(stale.index, to_b.index);
            assert_eq!(a.isend(*stale, memory.outgoing(0, 8, 0)), Err(SubmitError::Connection));
            assert_eq!(a.connection_close(*stale), Closing::Stale);
        }
        let send = a.isend(to_b, memory.outgoing(0, 8, 0)).unwrap();
        assert_eq!(wait_both(&mut a, &mut b, send).result, Ok(()));
        a.disconnect(to_b);
        b.disconnect(to_a);
        old.push(to_b);
    }
}

#[test]
fn forked_child_is_refused_by_name_and_the_parent_goes_on() {
    let (mut a, mut b) = (Node::open(&small(4)), Node::open(&small(4)));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let (listener, handle) = b.shared.listen().unwrap();
    let attempt = a.shared.connect(&handle).unwrap();
    // SAFETY: the child calls the library, which must not allocate or lock here, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = [
            a.shared.listen().map(|_| ()) == Err(ListenError::Forked),
            a.shared.connect(&handle) == Err(ConnectError::Forked),
            a.shared.connect_poll(attempt) == Err(ConnectError::Forked),
            a.shared.connect_abandon(attempt) == Err(CloseError::Forked),
            b.shared.accept(listener) == Err(AcceptError::Forked),
            b.shared.listener_close(listener) == Err(AcceptError::Forked),
            a.shared.peer_text(to_b, &mut [0; 64]) == 0,
        ];
        let wrong = refused.iter().position(|refused| !refused);
        // SAFETY: ends this process without anything of the parent's.
        unsafe { libc::_exit(wrong.map_or(0, |at| at as i32 + 1)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "call {} was not refused", status >> 8);
    let to_b_too = a.connected(attempt).unwrap();
    let memory = Memory::new(&a, Place::Shared, 64);
    let receive = a.irecv(to_b, &[memory.incoming(0, 8, 0)]).unwrap();
    a.isend(to_b_too, memory.outgoing(0, 8, 0)).unwrap();
    b.disconnect(to_a);
    assert_eq!(wait_both(&mut a, &mut b, receive).result, Err(RequestError::PeerClosed));
}

#[test]
fn listening_again_works_while_a_forked_child_holds_what_listened_before() {
    let node = Node::open(&small(2));
    let (listener, _) = node.shared.listen().unwrap();
    // SAFETY: the child does nothing but wait to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no pointers.
            unsafe { libc::pause() };
        }
    }
    node.shared.listener_close(listener).unwrap();
    let again = node.shared.listen().map(|_| ());
    // SAFETY: our own child, collected once; no status is asked for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(again, Ok(()));
}
