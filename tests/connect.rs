//! The side band over real sockets: two endpoints in one process, and in two.

mod connect_support;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::WIRE_MAJOR;
use crosstie::wire::handle::ListenHandle;
use std::num::NonZeroI32;

#[test]
fn a_connection_is_established_and_both_sides_share_its_rings() {
    let (mut a, mut b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    let (here, there) = pair(&a, &b, listener, &handle.encode());
    let of_a = a.established(here).expect("the event comes before the handle");
    let of_b = b.established(there).expect("the event comes before the handle");
    assert_eq!((of_a.side, of_b.side), (Side::Connector, Side::Listener));
    assert_eq!((of_a.peer.connection, of_b.peer.connection), (there.pack(), here.pack()));
    assert_eq!(of_a.peer.mailbox_address, 0x1000 + 0x100 * u64::from(there.index));
    assert_eq!(of_b.send_ring_bytes, 1024);
    // one process: it may read itself
    assert_eq!(of_a.kernel_copy_pid, NonZeroI32::new(std::process::id() as i32));
    assert!(of_a.peer_copies && of_b.peer_copies && of_b.kernel_copy_pid.is_some());
    assert!(of_a.membarrier && of_a.doorbell_fd >= 0 && of_a.heap.is_some());
    for (writer, reader) in [(of_a, of_b), (of_b, of_a)] {
        let rings = (writer.rings_address as *mut u64, reader.peer_rings_address as *const u64);
        // SAFETY: both are mapped until the connection is closed, which is below.
        unsafe { rings.0.write_volatile(42) };
        // SAFETY: as above.
        assert_eq!(unsafe { rings.1.read_volatile() }, 42);
    }
    let mut text = [0; 128];
    let length = a.band.peer_text(here, &mut text);
    let text = std::str::from_utf8(&text[..length]).unwrap();
    assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    a.band.connection_close(here).unwrap();
    assert_eq!(until("gone", || b.gone(there)), DownCause::Closed);
    b.band.connection_close(there).unwrap();
    until("a free", || a.all_free());
    until("b free", || b.all_free());
    assert_eq!(a.band.connection_close(here), Err(CloseError::Stale));
}

#[test]
fn a_hundred_connections_share_one_link() {
    let limits = Limits { connections: 128, events: 256, ..Limits::default() };
    let (a, b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    let handle = handle.encode();
    let pairs: Vec<_> = (0..100).map(|_| pair(&a, &b, listener, &handle)).collect();
    assert_eq!((a.band.counters().links, b.band.counters().links), (1, 1));
    for (here, there) in pairs {
        a.band.connection_close(here).unwrap();
        b.band.connection_close(there).unwrap();
    }
    until("a free", || a.all_free());
    until("b free", || b.all_free());
}

#[test]
fn ranks_that_both_connect_first_do_not_wait_for_each_other() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (at_a, handle_a) = a.band.listen().unwrap();
    let (at_b, handle_b) = b.band.listen().unwrap();
    let (handle_a, handle_b) = (handle_a.encode(), handle_b.encode());
    // neither calls accept before its own connect has ended; the calls cross
    let pending_b = a.band.connect_begin(&handle_b).unwrap();
    let pending_a = b.band.connect_begin(&handle_a).unwrap();
    let (mut to_b, mut to_a) = (None, None);
    until("crossing connects", || {
        to_b = to_b.or_else(|| a.band.connect_poll(pending_b).unwrap());
        to_a = to_a.or_else(|| b.band.connect_poll(pending_a).unwrap());
        (to_b.is_some() && to_a.is_some()).then_some(())
    });
    until("accept at a", || a.band.accept(at_a).unwrap());
    until("accept at b", || b.band.accept(at_b).unwrap());
}

#[test]
fn an_endpoint_connects_to_itself() {
    let a = Node::new(&Limits::default());
    let (listener, handle) = a.band.listen().unwrap();
    let (here, there) = pair(&a, &a, listener, &handle.encode());
    assert_ne!(here, there);
    a.band.connection_close(here).unwrap();
    a.band.connection_close(there).unwrap();
    until("free", || a.all_free());
}

#[test]
fn an_abandoned_connect_gives_everything_back_and_is_never_accepted() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    for _ in 0..50 {
        let pending = a.band.connect_begin(&handle.encode()).unwrap();
        a.band.connect_abandon(pending).unwrap();
        assert_eq!(a.band.connect_poll(pending), Err(ConnectError::Stale));
        until("a free", || a.all_free());
    }
    until("b free", || b.all_free());
    assert_eq!(b.band.accept(listener), Ok(None));
}

/// A copy of an attempt closed the connection under its user, or handed it out twice.
#[test]
fn an_attempt_is_over_once_its_caller_has_the_connection() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    let attempt = a.band.connect_begin(&handle.encode()).unwrap();
    let here = until("connect", || a.band.connect_poll(attempt).unwrap());
    let there = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(a.band.connect_poll(attempt), Err(ConnectError::Stale));
    assert_eq!(a.band.connect_abandon(attempt), Err(CloseError::Stale));
    // nor does the other side's connection pass for an attempt
    assert_eq!(b.band.connect_abandon(PendingId(there)), Err(CloseError::Stale));
    a.band.connection_close(here).unwrap();
    b.band.connection_close(there).unwrap();
}

/// NCCL 2.13 to 2.26 asks for several connections, keeps the first that is made and asks for no
/// other; its peer accepts at as many listeners, and keeps the first likewise. Each kept another.
#[test]
fn accept_gives_what_the_asker_has_taken_and_nothing_else() {
    for streams in [0, 1, 2] {
        let asks = Limits { accept_taken: true, ..Limits::of(streams) };
        let (a, b) = (Node::new(&asks), Node::new(&Limits::of(streams)));
        let handles: Vec<_> = (0..3).map(|_| b.band.listen().unwrap()).collect();
        let of = |at: usize| a.band.connect_begin(&handles[at].1.encode()).unwrap();
        let attempts = [of(0), of(1), of(2)];
        // the last one alone is asked for until it is made
        let here = until("connect", || a.band.connect_poll(attempts[2]).unwrap());
        let there = until("accept", || {
            let accepted = handles.iter().map(|(listener, _)| b.band.accept(*listener).unwrap());
            accepted.enumerate().find_map(|(at, made)| made.map(|made| (at, made)))
        });
        assert_eq!(there.0, 2, "{streams} streams");
        // a listener closes with what nobody took, and one is given up by its asker
        b.band.listener_close(handles[0].0).unwrap();
        a.band.connect_abandon(attempts[1]).unwrap();
        // made and closed, or refused
        let ended = until("end", || {
            a.band.connect_poll(attempts[0]).map_or(Some(None), |ended| ended.map(Some))
        });
        ended.into_iter().for_each(|lost| a.band.connection_close(lost).unwrap());
        a.band.connection_close(here).unwrap();
        b.band.connection_close(there.1).unwrap();
        until("a free", || a.all_free());
        until("b free", || b.all_free());
        assert_eq!(b.band.accept(handles[1].0), Ok(None));
    }
}

/// A connection that nobody has on either side keeps no place when its asker closes.
#[test]
fn what_nobody_took_goes_with_its_asker() {
    for streams in [0, 1] {
        let asks = Limits { accept_taken: true, ..Limits::of(streams) };
        let (mut a, b) = (Node::new(&asks), Node::new(&Limits::of(streams)));
        let (listener, handle) = b.band.listen().unwrap();
        a.band.connect_begin(&handle.encode()).unwrap();
        until("made", || {
            a.drain();
            a.seen.iter().any(|event| matches!(event, BandEvent::Established { .. })).then_some(())
        });
        drop(a);
        until("b free", || b.all_free());
        assert_eq!(b.band.accept(listener), Ok(None));
    }
}

#[test]
fn a_listener_is_not_another_endpoint_s() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let ((at_a, _), (at_b, _)) = (a.band.listen().unwrap(), b.band.listen().unwrap());
    assert_ne!(at_a, at_b);
    assert_eq!(b.band.accept(at_a), Err(AcceptError::Stale));
    assert_eq!(b.band.listener_close(at_a), Err(CloseError::Stale));
    a.band.listener_close(at_a).unwrap();
}

#[test]
fn a_closed_listener_is_named_with_and_without_a_link() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (first, handle_first) = b.band.listen().unwrap();
    let (second, handle_second) = b.band.listen().unwrap();
    pair(&a, &b, second, &handle_second.encode());
    b.band.listener_close(first).unwrap();
    assert_eq!(b.band.accept(first), Err(AcceptError::Stale));
    let pending = a.band.connect_begin(&handle_first.encode()).unwrap();
    let error = until("refusal", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    b.band.listener_close(second).unwrap();
    let c = Node::new(&Limits::default());
    // b's sockets stay, because a forked child may hold them: it is b that refuses
    let pending = c.band.connect_begin(&handle_second.encode()).unwrap();
    let error = until("refusal", || c.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    until("c free", || c.all_free());
}

#[test]
fn closing_a_listener_closes_what_nobody_accepted() {
    let (mut a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    b.band.listener_close(listener).unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Closed);
    a.band.connection_close(here).unwrap();
    until("b free", || b.all_free());
}

#[test]
fn bad_handles_are_named() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (_, handle) = b.band.listen().unwrap();
    let begin = |bytes: &[u8; 128]| a.band.connect_begin(bytes).unwrap_err();
    let mut corrupt = handle.encode();
    corrupt[30] ^= 1;
    assert_eq!(begin(&corrupt), ConnectError::HandleCorrupt);
    assert_eq!(begin(&[7; 128]), ConnectError::HandleForeign);
    let elsewhere = ListenHandle { node_id: handle.node_id ^ 1, ..handle };
    assert_eq!(begin(&elsewhere.encode()), ConnectError::OtherHost);
    let version = begin(&other_version(handle.encode()));
    assert_eq!(version, ConnectError::Version(WIRE_MAJOR + 1));
    assert!(version.to_string().ends_with("upgrade this side"), "{version}");
    let nobody = ListenHandle { endpoint_id: handle.endpoint_id ^ 1, ..handle };
    assert!(matches!(begin(&nobody.encode()), ConnectError::NoListener(_)));
    until("free", || a.all_free());
}

/// The same handle from a later major version, with a checksum that fits.
fn other_version(mut bytes: [u8; 128]) -> [u8; 128] {
    bytes[8..10].copy_from_slice(&(WIRE_MAJOR + 1).to_le_bytes());
    let sum = bytes[..120].iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    bytes[120..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn full_tables_are_named_on_either_side_and_recover() {
    let small = Limits { connections: 2, ..Limits::default() };
    let (a, b) = (Node::new(&Limits::default()), Node::new(&small));
    let (at_a, handle_a) = a.band.listen().unwrap();
    let (at_b, handle_b) = b.band.listen().unwrap();
    let first = pair(&a, &b, at_b, &handle_b.encode());
    pair(&a, &b, at_b, &handle_b.encode());
    let pending = a.band.connect_begin(&handle_b.encode()).unwrap();
    let error = until("full there", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::PeerFull(_)), "{error}");
    assert_eq!(b.band.connect_begin(&handle_a.encode()), Err(ConnectError::LocalFull));
    a.band.connection_close(first.0).unwrap();
    b.band.connection_close(first.1).unwrap();
    let pending = until("room here", || b.band.connect_begin(&handle_a.encode()).ok());
    until("connect", || b.band.connect_poll(pending).unwrap());
    until("accept", || a.band.accept(at_a).unwrap());
}

#[test]
fn no_memory_for_rings_is_named() {
    let poor = Limits { populate_bytes: RINGS_BYTES, ..Limits::default() };
    let (a, b) = (Node::new(&poor), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    pair(&a, &b, listener, &handle.encode());
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    assert_eq!(a.band.connect_poll(pending), Err(ConnectError::Memory));
}

#[test]
fn a_thousand_cycles_leak_no_slot_no_space_and_no_descriptor() {
    run_alone("cycles");
}

#[test]
fn a_full_event_queue_loses_nothing() {
    let narrow = Limits { connections: 32, events: 2, ..Limits::default() };
    let wide = Limits { connections: 32, ..Limits::default() };
    let (a, mut b) = (Node::new(&wide), Node::new(&narrow));
    let (listener, handle) = b.band.listen().unwrap();
    let connects: Vec<_> =
        (0..20).map(|_| a.band.connect_begin(&handle.encode()).unwrap()).collect();
    for pending in &connects {
        until("connect", || a.band.connect_poll(*pending).unwrap());
    }
    for _ in 0..20 {
        let there = until("accept", || {
            b.drain();
            b.band.accept(listener).unwrap()
        });
        assert!(b.established(there).is_some());
    }
    a.band.close();
    until("all gone", || {
        b.drain();
        let gone = b.seen.iter().filter(|event| matches!(event, BandEvent::Gone { .. }));
        (gone.count() == 20).then_some(())
    });
}

#[test]
fn garbage_drops_its_own_socket_only() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    let (here, _) = pair(&a, &b, listener, &handle.encode());
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], b"XTIE"] {
        let before = b.band.counters().strangers;
        let stranger = dial(&handle);
        send(&stranger, garbage);
        until("dropped", || (b.band.counters().strangers > before).then_some(()));
    }
    assert_eq!(b.band.counters().strangers, 3);
    pair(&a, &b, listener, &handle.encode());
    assert!(a.band.peer_text(here, &mut [0; 64]) > 0);
}

#[test]
fn silent_ones_push_each_other_out_and_peers_of_the_host_still_connect() {
    let (a, b) = (Node::new(&Limits::default()), Node::new(&Limits::default()));
    let (listener, handle) = b.band.listen().unwrap();
    let silent: Vec<_> = (0..200).map(|_| dial(&handle)).collect();
    pair(&a, &b, listener, &handle.encode());
    until("dropped", || (b.band.counters().strangers >= 200 - 64).then_some(()));
    assert_eq!(b.band.counters().links, 1);
    drop(silent);
}

#[test]
fn who_never_says_hello_is_dropped_after_the_deadline() {
    let hasty = Limits { deadline: Span::millis(50), ..Limits::default() };
    let b = Node::new(&hasty);
    let (_, handle) = b.band.listen().unwrap();
    let silent = dial(&handle);
    until("dropped", || (b.band.counters().strangers == 1).then_some(()));
    drop(silent);
}

#[test]
fn a_connect_that_nobody_answers_ends_at_the_deadline_and_names_the_peer() {
    let hasty = Limits { deadline: Span::millis(50), ..Limits::default() };
    let a = Node::new(&hasty);
    // a listener that never accepts, under the name of an endpoint
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    b.band.close();
    let mute = listen_record(handle.endpoint_id);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let error = until("deadline", || a.band.connect_poll(pending).err());
    let ConnectError::Deadline(peer) = error else { panic!("{error}") };
    assert_eq!(peer.pid, std::process::id());
    until("free", || a.all_free());
    drop(mute);
}

#[test]
fn a_killed_peer_is_noticed_and_leaves_no_file() {
    let dir = directory("killed");
    let limits = Limits { shm_dir: dir.clone(), ..Limits::default() };
    let mut a = Node::new(&limits);
    let (mut child, handle) = start_child("listen", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    let params = a.established(here).unwrap();
    assert_eq!(params.kernel_copy_pid, NonZeroI32::new(child.id() as i32));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Died);
    until("file removed", || (std::fs::read_dir(&dir).unwrap().count() == 0).then_some(()));
    a.band.connection_close(here).unwrap();
    until("free", || a.all_free());
    let error = a.band.connect_begin(&handle).unwrap_err();
    assert!(matches!(error, ConnectError::NoListener(_)), "{error}");
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_killed_peer_is_noticed_although_its_child_holds_the_sockets() {
    let dir = directory("orphan");
    let mut a = Node::new(&Limits { shm_dir: dir.clone(), ..Limits::default() });
    let (mut child, handle) = start_child("listen_forked", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    child.kill().unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Died);
    until("file removed", || (std::fs::read_dir(&dir).unwrap().count() == 0).then_some(()));
    let end = until("an end", || match a.band.connect_begin(&handle) {
        Ok(pending) => Some(until("an end", || a.band.connect_poll(pending).err())),
        Err(error) => Some(error),
    });
    let named = matches!(end, ConnectError::PeerDied(_) | ConnectError::NoListener(_));
    assert!(named, "{end}");
    child.wait().unwrap();
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_stopped_peer_is_named_at_the_deadline_and_the_slot_comes_back_when_it_goes_on() {
    let dir = directory("stopped");
    let limits = Limits {
        connections: 2,
        deadline: Span::millis(100),
        shm_dir: dir.clone(),
        ..Limits::default()
    };
    let a = Node::new(&limits);
    let (mut child, handle) = start_child("listen", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    until("connect", || a.band.connect_poll(pending).unwrap());
    signal(&child, libc::SIGSTOP);
    let pending = a.band.connect_begin(&handle).unwrap();
    let error = until("deadline", || a.band.connect_poll(pending).err());
    let ConnectError::Deadline(peer) = error else { panic!("{error}") };
    assert_eq!(peer.pid, child.id());
    assert_eq!(a.band.connect_begin(&handle), Err(ConnectError::LocalFull));
    signal(&child, libc::SIGCONT);
    let pending = until("slot", || a.band.connect_begin(&handle).ok());
    a.band.connect_abandon(pending).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    a.band.close();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_thousand_connections_between_two_processes() {
    run_alone("times");
}

// A band may be used from any thread.
static_assertions::assert_impl_all!(Band<TestMemory>: Send, Sync);

#[test]
fn open_sweeps_what_killed_endpoints_left() {
    let dir = directory("sweep");
    let (mut child, _) = start_child("listen", &dir);
    let living = Node::new(&Limits { shm_dir: dir.clone(), ..Limits::default() });
    living.band.listen().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
    let next = Node::new(&Limits { shm_dir: dir.clone(), ..Limits::default() });
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    next.band.close();
    living.band.close();
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_forked_child_must_not_use_the_band() {
    let a = Node::new(&Limits::default());
    // SAFETY: the child calls only what checks the pid first, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = a.band.listen().err() == Some(ListenError::Forked);
        a.band.close();
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    a.band.listen().unwrap();
}

#[test]
fn nothing_allocates_between_open_and_close() {
    run_alone("no_alloc");
}

#[test]
fn running_out_of_descriptors_is_named_with_the_limit() {
    run_alone("descriptors");
}

#[test]
fn a_peer_without_descriptors_says_so_again_and_again() {
    let dir = directory("poor");
    let a = Node::new(&Limits { shm_dir: dir.clone(), ..Limits::default() });
    let (mut child, handle) = start_child("listen_poor", &dir);
    for _ in 0..5 {
        let pending = a.band.connect_begin(&handle).unwrap();
        let error = until("refusal", || a.band.connect_poll(pending).err());
        let ConnectError::PeerDescriptors(peer) = error else { panic!("{error}") };
        assert_eq!(peer.pid, child.id());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What roles talk over: data streams; 0 is shared memory.
const STREAMS: u32 = 0;

include!("connect_support/roles.rs");
