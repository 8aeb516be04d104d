//! Endpoints over TCP, put together for real: side band, rail, machine.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::endpoint::{Closing, ConnectionRail};
use crosstie::host::{DeviceKind, Options, log};
use crosstie::transport::{RequestError, SubmitError};

use host_support::{Memory, Node, Place, joined, small, wait_both};
use std::sync::Mutex;

const LENGTH_MAX: usize = 3_000_001;
/// The longest message that leaves before its receive is there.
const KEPT: usize = 131_072;

fn over_tcp(connections_max: u32) -> Options {
    Options { device: DeviceKind::Tcp, ..small(connections_max) }
}

fn pair(options: [Options; 2]) -> (Node, Node, Handle, Handle) {
    let [mut a, mut b] = options.map(|options| Node::open(&options));
    let (to_b, to_a) = joined(&mut a, &mut b);
    (a, b, to_b, to_a)
}

#[test]
fn messages_of_every_size_cross() {
    let (mut a, mut b, to_b, to_a) = pair([over_tcp(4); 2]);
    assert_eq!(a.connection_rail(to_b), Some(ConnectionRail::Tcp));
    for place in [Place::Shared, Place::Private] {
        let from = Memory::new(&a, place, LENGTH_MAX);
        let into = Memory::new(&b, place, LENGTH_MAX);
        for (seed, size) in (0..).zip([
            0,
            1,
            8,
            24,
            25,
            4096,
            8192,
            8193,
            65_536,
            KEPT,
            KEPT + 1,
            1 << 20,
            LENGTH_MAX,
        ]) {
            from.fill(0, size, seed);
            let receive = b.irecv(to_a, &[into.incoming(0, size, 5)]).unwrap();
            let send = a.isend(to_b, from.outgoing(0, size, 5)).unwrap();
            let outcome = wait_both(&mut b, &mut a, receive);
            assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), size as u64));
            assert_eq!(wait_both(&mut a, &mut b, send).result, Ok(()));
            into.verify(0, size, seed);
        }
        from.release(&a);
        into.release(&b);
    }
}

/// What the header and doc/connecting.md say of messages without a receive: so many leave, then as
/// many are accepted as there are requests, then `Again`.
#[test]
fn early_messages_are_24_over_tcp_and_48_through_shared_memory_and_then_the_requests() {
    let over_tcp = [(64, 24), (8192, 24), (8193, 8), (KEPT, 8), (KEPT + 1, 0)];
    let over_tcp = over_tcp.map(|(length, early)| (DeviceKind::Tcp, length, early));
    let through_rings = [(DeviceKind::SharedMemory, 64, 48)];
    for (device, length, early) in over_tcp.into_iter().chain(through_rings) {
        let options = Options { device, ..small(2) };
        let (mut a, mut b, to_b, to_a) = pair([options; 2]);
        // who has used a connection reads what comes
        let nothing = Memory::new(&b, Place::Private, 8);
        b.isend(to_a, nothing.outgoing(0, 0, 1)).unwrap();
        nothing.release(&b);
        let from = Memory::new(&a, Place::Private, length);
        let mut requests = Vec::new();
        let refused = loop {
            match a.isend(to_b, from.outgoing(0, length, 1)) {
                Ok(request) => requests.push(request),
                Err(error) => break error,
            }
            a.progress();
            b.progress();
        };
        let count = early + options.limits.requests_max as usize;
        assert_eq!((refused, requests.len()), (SubmitError::Again, count), "{device:?}, {length}");
        for _ in 0..1000 {
            a.progress();
            b.progress();
        }
        let ended = requests.iter().filter(|request| matches!(a.test(**request), Ok(Some(_))));
        assert_eq!(ended.count(), early, "{device:?}, {length}");
        // what has left is to reach the peer, who reads it
        while a.connection_close(to_b) == Closing::Again {
            a.progress();
            b.progress();
        }
        from.release(&a);
    }
}

/// Several short messages are one call of the system where their sender asks for them one behind
/// the other, and none stays behind whose request was told to have ended.
#[test]
fn short_message_leaves_when_its_request_is_told_and_not_with_those_before_it() {
    let (mut a, mut b, to_b, to_a) = pair([over_tcp(2); 2]);
    let from = Memory::new(&a, Place::Private, 64);
    let into = Memory::new(&b, Place::Private, 64);
    let is_told = |node: &mut Node, request| matches!(node.test(request), Ok(Some(_)));
    // also when there have been more than a request's number can say
    for others in [0, 300] {
        let receive = b.irecv(to_a, &[into.incoming(0, 8, 1)]).unwrap();
        let oldest = a.isend(to_b, from.outgoing(0, 8, 1)).unwrap();
        wait_both(&mut a, &mut b, oldest);
        b.wait(receive);
        for _ in 0..others {
            let receive = b.irecv(to_a, &[into.incoming(0, 8, 1)]).unwrap();
            let send = a.isend(to_b, from.outgoing(0, 8, 1)).unwrap();
            assert!(is_told(&mut a, send));
            b.wait(receive);
        }
        let receives = [(); 4].map(|()| b.irecv(to_a, &[into.incoming(0, 8, 1)]).unwrap());
        b.progress();
        let sends = [(); 3].map(|()| a.isend(to_b, from.outgoing(0, 8, 1)).unwrap());
        assert!(is_told(&mut a, sends[0]));
        // from here on the receiver alone makes progress
        for receive in &receives[..3] {
            b.wait(*receive);
        }
        let last = a.isend(to_b, from.outgoing(0, 8, 1)).unwrap();
        assert!(sends.iter().all(|send| is_told(&mut a, *send)));
        for _ in 0..100 {
            assert_eq!(b.test(receives[3]), Ok(None), "it has left with what was before it");
        }
        assert!(is_told(&mut a, last));
        b.wait(receives[3]);
    }
    a.disconnect(to_b);
    from.release(&a);
    into.release(&b);
}

/// It waited for the sender's next call, behind all that its program and that call did before.
#[test]
fn short_message_that_nothing_is_on_the_way_before_leaves_with_its_call() {
    let (mut a, mut b, to_b, to_a) = pair([over_tcp(2); 2]);
    let memory = [&a, &b].map(|node| Memory::new(node, Place::Private, 128));
    let mut sends = Vec::new();
    for _ in 0..3 {
        let receive = b.irecv(to_a, &[memory[1].incoming(64, 64, 1)]).unwrap();
        sends.push(a.isend(to_b, memory[0].outgoing(0, 64, 1)).unwrap());
        b.wait(receive); // the receiver alone makes progress
        let receive = a.irecv(to_b, &[memory[0].incoming(64, 64, 1)]).unwrap();
        let answer = b.isend(to_a, memory[1].outgoing(0, 64, 1)).unwrap();
        a.wait(receive);
        assert!(matches!(b.test(answer), Ok(Some(_))));
    }
    assert!(sends.into_iter().all(|send| matches!(a.test(send), Ok(Some(_)))));
    a.disconnect(to_b);
    for (memory, node) in memory.into_iter().zip([&a, &b]) {
        memory.release(node);
    }
}

/// What was said, by other tests too.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A rail that pushes has a slot of the peer's for each group: both sides say so, and nothing else
/// is disturbed.
#[test]
fn different_requests_max_are_named_by_both_sides() {
    log::sink_set(Some((|_, _, text| SAID.lock().unwrap().push(text.into()), 0)));
    let (less, mut more) = (over_tcp(2), over_tcp(2));
    more.limits.requests_max = 64;
    let (mut a, mut b, to_b, to_a) = pair([less, more]);
    for (node, connection, said) in
        [(&mut a, to_b, "32 here, 64 or more at"), (&mut b, to_a, "64 or more here, 32 at")]
    {
        let memory = Memory::new(node, Place::Shared, 8);
        let refused = node.isend(connection, memory.outgoing(0, 8, 0));
        assert_eq!(refused, Err(SubmitError::RequestsMax));
        let lines = SAID.lock().unwrap().clone();
        let is_it = |text: &&String| text.contains("requests_max differs") && text.contains(said);
        assert_eq!(lines.iter().filter(is_it).count(), 1, "{lines:?}");
        node.disconnect(connection);
    }
    log::sink_set(None);
}

/// Who has more than 64 requests offers 64 groups at a time, as a peer with 64 expects it.
#[test]
fn connections_of_64_and_256_requests_carry_messages_between_them() {
    let (mut few, mut many) = (over_tcp(2), over_tcp(2));
    (few.limits.requests_max, many.limits.requests_max) = (64, 256);
    for options in [[few, many], [many, few]] {
        let (mut a, mut b, to_b, to_a) = pair(options);
        let count = options[1].limits.requests_max;
        let (from, into) =
            (Memory::new(&a, Place::Private, 20_000), Memory::new(&b, Place::Private, 20_000));
        from.fill(0, 20_000, 1);
        let post = |_| b.irecv(to_a, &[into.incoming(0, 20_000, 5)]).unwrap();
        let receives: Vec<_> = (0..count).map(post).collect();
        for receive in receives {
            let send = a.isend(to_b, from.outgoing(0, 20_000, 5)).unwrap();
            assert_eq!(wait_both(&mut b, &mut a, receive).result, Ok(()));
            assert_eq!(wait_both(&mut a, &mut b, send).result, Ok(()));
        }
        into.verify(0, 20_000, 1);
        from.release(&a);
        into.release(&b);
    }
}

/// Same-host peers take shared memory by themselves where both may.
#[test]
fn rail_is_one_that_both_sides_have() {
    let host = small(2);
    let (tcp, shm) = (over_tcp(2), Options { device: DeviceKind::SharedMemory, ..small(2) });
    for (options, rail) in [
        ([host, host], ConnectionRail::Shm),
        ([host, shm], ConnectionRail::Shm),
        ([shm, host], ConnectionRail::Shm),
        ([host, tcp], ConnectionRail::Tcp),
        ([tcp, host], ConnectionRail::Tcp),
    ] {
        let (mut a, mut b, to_b, to_a) = pair(options);
        assert_eq!(a.connection_rail(to_b), Some(rail), "{options:?}");
        assert_eq!(b.connection_rail(to_a), Some(rail), "{options:?}");
        let (from, into) = (Memory::new(&a, Place::Shared, 8), Memory::new(&b, Place::Shared, 8));
        from.fill(0, 8, 1);
        let receive = b.irecv(to_a, &[into.incoming(0, 8, 0)]).unwrap();
        a.isend(to_b, from.outgoing(0, 8, 0)).unwrap();
        assert_eq!(wait_both(&mut b, &mut a, receive).result, Ok(()));
        into.verify(0, 8, 1);
        a.disconnect(to_b);
        assert_eq!(a.connection_rail(to_b), None);
    }
}

/// What was accepted and has ended well arrives, although the sender closes at once: the connection
/// alone, or the endpoint.
#[test]
fn short_messages_arrive_although_their_sender_closes_at_once() {
    // those of shared memory stay in their ring, which holds fewer
    const KINDS: [(DeviceKind, usize); 2] = [(DeviceKind::Tcp, 8192), (DeviceKind::Host, 1024)];
    for ((device, bytes), whole) in KINDS.into_iter().flat_map(|k| [(k, false), (k, true)]) {
        let (mut a, mut b, to_b, to_a) = pair([Options { device, ..small(2) }; 2]);
        let from = Memory::new(&a, Place::Private, COUNT * bytes);
        let into = Memory::new(&b, Place::Private, COUNT * bytes);
        from.fill(0, COUNT * bytes, 3);
        let receives: Vec<_> = (0..=COUNT)
            .map(|n| b.irecv(to_a, &[into.incoming(n % COUNT * bytes, bytes, 0)]).unwrap())
            .collect();
        let receiver = std::thread::spawn(move || {
            let results: Vec<_> = receives.into_iter().map(|r| b.wait(r).result).collect();
            // one more than there are messages: it ends, and says why
            assert_eq!(results[..COUNT], [Ok(()); COUNT], "{device:?}, whole {whole}");
            assert_eq!(results[COUNT], Err(RequestError::PeerClosed));
        });
        for n in 0..COUNT {
            let send = loop {
                match a.isend(to_b, from.outgoing(n * bytes, bytes, 0)) {
                    Ok(send) => break send,
                    Err(SubmitError::Again) => _ = a.progress(),
                    Err(error) => panic!("{error:?}"),
                }
            };
            assert_eq!(a.wait(send).result, Ok(()));
        }
        match whole {
            true => a.close(),
            false => a.disconnect(to_b),
        }
        receiver.join().unwrap();
        into.verify(0, COUNT * bytes, 3);
    }
}

const COUNT: usize = 24;
