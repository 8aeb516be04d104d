//! Endpoints on this host, put together for real: side band, rail, machine.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{MemoryKind, RegisterError};
use crosstie::host::endpoint::Closing;
use crosstie::host::{DeviceKind, Endpoint, Options};
use crosstie::memory::Variables;
use crosstie::transport::{Incoming, Limits, Outcome, Outgoing, RequestError, RequestId};
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(600);

fn open(block: &mut HeapBlock, options: &Options) -> Endpoint {
    // SAFETY: the block outlives the endpoint in every test.
    unsafe { Endpoint::open(block.start(), block.length(), options) }.expect("an endpoint")
}

fn joined(a: &mut Endpoint, b: &mut Endpoint) -> (Handle, Handle) {
    let (listener, bytes) = b.shared.listen().expect("a listener");
    let attempt = a.shared.connect(&bytes).expect("an attempt");
    let start = Instant::now();
    let (mut connecting, mut accepted) = (None, None);
    while connecting.is_none() || accepted.is_none() {
        if connecting.is_none() {
            connecting = a.shared.connect_poll(attempt).expect("a connection");
        }
        if accepted.is_none() {
            accepted = b.shared.accept(listener).expect("a connection");
        }
        assert!(start.elapsed() < WATCHDOG);
    }
    b.shared.listener_close(listener).unwrap();
    (connecting.unwrap(), accepted.unwrap())
}

fn wait(endpoints: &mut [&mut Endpoint], who: usize, request: RequestId) -> Outcome {
    let start = Instant::now();
    loop {
        if let Some(outcome) = endpoints[who].test(request).expect("a live request") {
            return outcome;
        }
        for endpoint in endpoints.iter_mut() {
            endpoint.progress();
        }
        assert!(start.elapsed() < WATCHDOG);
    }
}

fn close(endpoint: &mut Endpoint, connection: Handle) {
    let start = Instant::now();
    while endpoint.connection_close(connection) == Closing::Again {
        endpoint.progress();
        assert!(start.elapsed() < WATCHDOG);
    }
}

#[test]
fn messages_cross_between_two_endpoints_in_each_kind_of_memory() {
    let options = Options::default();
    let (mut block_a, mut block_b) =
        (HeapBlock::new(options.bytes()), HeapBlock::new(options.bytes()));
    let (mut a, mut b) = (open(&mut block_a, &options), open(&mut block_b, &options));
    let (to_b, to_a) = joined(&mut a, &mut b);
    for shared in [true, false] {
        let length = 3_000_001usize;
        let mut heap = (vec![0u8; length], vec![0u8; length]);
        let memory = |endpoint: &Endpoint, vector: &mut Vec<u8>| match shared {
            true => {
                let (start, handle) = endpoint.shared.allocate(Bytes(length as u64)).unwrap();
                (start, handle)
            }
            false => {
                let start = vector.as_mut_ptr();
                let (address, bytes) = (start.expose_provenance() as u64, Bytes(length as u64));
                // SAFETY: the vectors outlive the endpoints' use of them.
                let handle =
                    unsafe { endpoint.shared.register(address, bytes, MemoryKind::Host) }.unwrap();
                (start, handle)
            }
        };
        let (source, from) = memory(&a, &mut heap.0);
        let (target, into) = memory(&b, &mut heap.1);
        for size in [0usize, 1, 8, 24, 25, 4096, 8192, 8193, 65_536, 1 << 20, length] {
            for at in 0..size {
                // SAFETY: no request stands.
                unsafe { source.add(at).write((at * 7 + size) as u8) };
            }
            let room =
                Incoming { region: into, address: target as u64, length: size as u64, tag: 5 };
            let message =
                Outgoing { region: from, address: source as u64, length: size as u64, tag: 5 };
            let receive = b.irecv(to_a, &[room]).unwrap();
            let send = a.isend(to_b, message).unwrap();
            let outcome = wait(&mut [&mut a, &mut b], 1, receive);
            assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), size as u64));
            assert_eq!(wait(&mut [&mut a, &mut b], 0, send).result, Ok(()));
            for at in 0..size {
                // SAFETY: no request stands.
                assert_eq!(unsafe { target.add(at).read() }, (at * 7 + size) as u8);
            }
        }
        if shared {
            a.shared.free(from).unwrap();
            b.shared.free(into).unwrap();
        } else {
            a.shared.deregister(from).unwrap();
            b.shared.deregister(into).unwrap();
        }
    }
    close(&mut a, to_b);
    close(&mut b, to_a);
    a.close();
    b.close();
}

#[test]
fn closing_one_side_ends_the_others_requests_and_connections_can_be_made_again() {
    let options = Options::default();
    let (mut block_a, mut block_b) =
        (HeapBlock::new(options.bytes()), HeapBlock::new(options.bytes()));
    let (mut a, mut b) = (open(&mut block_a, &options), open(&mut block_b, &options));
    let (_, into) = b.shared.allocate(Bytes(4096)).unwrap();
    for _ in 0..200 {
        let (to_b, to_a) = joined(&mut a, &mut b);
        let room = Incoming { region: into, address: 0, length: 0, tag: 0 };
        let receive = b.irecv(to_a, &[room]).unwrap();
        close(&mut a, to_b);
        let outcome = wait(&mut [&mut a, &mut b], 1, receive);
        assert_eq!(outcome.result, Err(RequestError::PeerClosed));
        close(&mut b, to_a);
        assert_eq!(b.connection_close(to_a), Closing::Stale);
    }
    a.close();
    b.close();
}

#[test]
fn sender_ends_although_the_receiver_does_nothing_after_its_message_has_come() {
    // as the environment says, and over TCP
    for device in [DeviceKind::Host, DeviceKind::Tcp] {
        let all = Variables::of_process().iter().map(|(name, value)| (name.into(), value.into()));
        let all = all.chain([("CROSSTIE_SOCKET_IFNAME".into(), "lo".into())]).collect();
        let variables = Some(&*Box::leak(Box::new(all)));
        let options = Options { device, variables, ..Options::default() };
        let (mut block_a, mut block_b) =
            (HeapBlock::new(options.bytes()), HeapBlock::new(options.bytes()));
        let (mut a, mut b) = (open(&mut block_a, &options), open(&mut block_b, &options));
        let (to_b, to_a) = joined(&mut a, &mut b);
        for length in [8u64, 8192, 100_000, 256 << 10, 1 << 20, (4 << 20) + 3] {
            let (source, from) = a.shared.allocate(Bytes(length)).unwrap();
            let (target, into) = b.shared.allocate(Bytes(length)).unwrap();
            let room = Incoming { region: into, address: target as u64, length, tag: 0 };
            let message = Outgoing { region: from, address: source as u64, length, tag: 0 };
            let receives = [(); 8].map(|()| b.irecv(to_a, &[room]).unwrap());
            let sends = [(); 8].map(|()| a.isend(to_b, message).unwrap());
            for receive in receives {
                assert_eq!(wait(&mut [&mut a, &mut b], 1, receive).result, Ok(()));
            }
            // from here on the receiver is not asked any more
            for send in sends {
                assert_eq!(wait(&mut [&mut a], 0, send).result, Ok(()), "{device:?}, {length}");
            }
            a.shared.free(from).unwrap();
            b.shared.free(into).unwrap();
        }
        close(&mut a, to_b);
        close(&mut b, to_a);
        a.close();
        b.close();
    }
}

#[test]
fn loopback_endpoint_talks_to_itself() {
    let options = Options { device: DeviceKind::Loopback, ..Options::default() };
    let mut block = HeapBlock::new(options.bytes());
    let mut endpoint = open(&mut block, &options);
    for _ in 0..100 {
        let (listener, bytes) = endpoint.shared.listen().unwrap();
        let attempt = endpoint.shared.connect(&bytes).unwrap();
        let to = endpoint.shared.connect_poll(attempt).unwrap().unwrap();
        let from = endpoint.shared.accept(listener).unwrap().unwrap();
        endpoint.shared.listener_close(listener).unwrap();
        let (start, region) = endpoint.shared.allocate(Bytes(1 << 20)).unwrap();
        let half = 1 << 19;
        let message = Outgoing { region, address: start as u64, length: half, tag: 1 };
        let room = Incoming { region, address: start as u64 + half, length: half, tag: 1 };
        let receive = endpoint.irecv(from, &[room]).unwrap();
        let send = endpoint.isend(to, message).unwrap();
        assert_eq!(wait(&mut [&mut endpoint], 0, receive).lengths[0], half);
        assert_eq!(wait(&mut [&mut endpoint], 0, send).result, Ok(()));
        close(&mut endpoint, to);
        close(&mut endpoint, from);
        endpoint.shared.free(region).unwrap();
    }
    endpoint.close();
}

fn options_of(device: DeviceKind, connections_max: u32) -> Options {
    let limits = Limits { connections_max, requests_max: 32, regions_max: 64, rails_max: 1 };
    Options { device, limits, ..Options::default() }
}

/// An endpoint behind its block, so that a test that fails ends it first.
fn opened(options: &Options) -> (HeapBlock, Endpoint) {
    let mut block = HeapBlock::new(options.bytes());
    let endpoint = open(&mut block, options);
    (block, endpoint)
}

/// A byte from one end to the other.
fn byte_crosses(endpoints: &mut [&mut Endpoint], from: (usize, Handle), to: (usize, Handle)) {
    let mut of = [from.0, to.0].map(|who| {
        let (start, region) = endpoints[who].shared.allocate(Bytes(4096)).unwrap();
        (start as u64, region)
    });
    let [(address, region), (room, into)] = of;
    let incoming = Incoming { region: into, address: room, length: 1, tag: 1 };
    let receive = endpoints[to.0].irecv(to.1, &[incoming]).expect("a receive");
    let message = Outgoing { region, address, length: 1, tag: 1 };
    let send = endpoints[from.0].isend(from.1, message).expect("a send");
    assert_eq!(wait(endpoints, to.0, receive).result, Ok(()));
    assert_eq!(wait(endpoints, from.0, send).result, Ok(()));
    for (who, (_, region)) in [from.0, to.0].into_iter().zip(&mut of) {
        endpoints[who].shared.free(*region).unwrap();
    }
}

/// Waits until both sides have said that they closed.
fn all_places_free(endpoints: &[&Endpoint]) {
    let start = Instant::now();
    while endpoints.iter().any(|it| it.shared.connections_left() < 2) {
        assert!(start.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
}

/// What nobody had taken of earlier connections filled the queue of news, and set-up waited for
/// room there without end.
#[test]
fn set_up_goes_on_where_nobody_makes_progress() {
    // a host's rails are those of the environment, which a device of another rail contradicts
    let named = [DeviceKind::SharedMemory, DeviceKind::Tcp];
    let named = if std::env::var_os("CROSSTIE_RAILS").is_none() { &named[..] } else { &[] };
    for device in named.iter().copied().chain([DeviceKind::Host]) {
        let options = options_of(device, 2);
        let ((_at, mut a), (_bt, mut b)) = (opened(&options), opened(&options));
        for _ in 0..20 {
            all_places_free(&[&a, &b]);
            let (to_b, to_a) = joined(&mut a, &mut b);
            assert_eq!(a.connection_close(to_b), Closing::Closed);
            assert_eq!(b.connection_close(to_a), Closing::Closed);
        }
        // an attempt that was made before it is given up is news as well
        for round in 0..20 {
            all_places_free(&[&a, &b]);
            let (listener, bytes) = b.shared.listen().expect("a listener");
            let attempt = a.shared.connect(&bytes).expect("an attempt");
            let start = Instant::now();
            let to_a = loop {
                if let Some(to_a) = b.shared.accept(listener).expect("a listener") {
                    break to_a;
                }
                assert!(start.elapsed() < WATCHDOG, "{device:?}, round {round}");
            };
            a.shared.connect_abandon(attempt).expect("an attempt");
            assert_eq!(b.connection_close(to_a), Closing::Closed);
            b.shared.listener_close(listener).unwrap();
        }
        all_places_free(&[&a, &b]);
        let (to_b, to_a) = joined(&mut a, &mut b);
        byte_crosses(&mut [&mut a, &mut b], (0, to_b), (1, to_a));
        a.close();
        b.close();
    }
}

#[test]
fn loopback_connections_that_were_never_used_are_in_nobodys_way() {
    let (_block, mut endpoint) = opened(&options_of(DeviceKind::Loopback, 2));
    for _ in 0..100 {
        let (to, from) = joined_to_itself(&endpoint);
        close(&mut endpoint, to);
        close(&mut endpoint, from);
    }
    let (to, from) = joined_to_itself(&endpoint);
    byte_crosses(&mut [&mut endpoint], (0, to), (0, from));
    endpoint.close();
}

fn joined_to_itself(endpoint: &Endpoint) -> (Handle, Handle) {
    let (listener, bytes) = endpoint.shared.listen().expect("a listener");
    let attempt = endpoint.shared.connect(&bytes).expect("an attempt");
    let to = endpoint.shared.connect_poll(attempt).unwrap().expect("a connection");
    let from = endpoint.shared.accept(listener).unwrap().expect("a connection");
    endpoint.shared.listener_close(listener).unwrap();
    (to, from)
}

/// The other end of a connection that nobody had accepted was forgotten while it was in use.
#[test]
fn loopback_listener_ends_the_connections_that_wait_there() {
    let (_block, mut endpoint) = opened(&options_of(DeviceKind::Loopback, 2));
    for _ in 0..10 {
        let (listener, bytes) = endpoint.shared.listen().unwrap();
        let attempt = endpoint.shared.connect(&bytes).unwrap();
        let to = endpoint.shared.connect_poll(attempt).unwrap().unwrap();
        let (start, region) = endpoint.shared.allocate(Bytes(4096)).unwrap();
        let room = Incoming { region, address: start as u64, length: 4096, tag: 1 };
        let receive = endpoint.irecv(to, &[room]).expect("a receive");
        endpoint.shared.listener_close(listener).unwrap();
        let outcome = wait(&mut [&mut endpoint], 0, receive);
        assert_eq!(outcome.result, Err(RequestError::PeerClosed));
        close(&mut endpoint, to);
        endpoint.shared.free(region).unwrap();
        let (to, from) = joined_to_itself(&endpoint);
        byte_crosses(&mut [&mut endpoint], (0, to), (0, from));
        close(&mut endpoint, to);
        close(&mut endpoint, from);
        assert_eq!(endpoint.shared.connections_left(), 2);
    }
    endpoint.close();
}

#[test]
fn loopback_connections_wait_until_the_table_is_full() {
    let (_block, endpoint) = opened(&options_of(DeviceKind::Loopback, 64));
    let (listener, bytes) = endpoint.shared.listen().unwrap();
    let made: Vec<_> = (0..32).map(|_| endpoint.shared.connect(&bytes).expect("made")).collect();
    assert!(endpoint.shared.connect(&bytes).is_err(), "64 places are taken");
    for attempt in made {
        let to = endpoint.shared.connect_poll(attempt).unwrap().expect("a connection");
        assert!(endpoint.shared.accept(listener).unwrap().is_some_and(|from| from != to));
    }
    assert_eq!(endpoint.shared.accept(listener), Ok(None));
    endpoint.close();
}

/// It was called a full table.
#[test]
fn memory_of_an_absurd_length_is_a_range_that_cannot_be() {
    let (_block, endpoint) = opened(&options_of(DeviceKind::Host, 2));
    for length in [1 << 56, u64::MAX / 2] {
        // SAFETY: refused.
        let refused =
            unsafe { endpoint.shared.register(4096, Bytes(length), MemoryKind::Host) }.err();
        assert_eq!(refused, Some(RegisterError::Range));
    }
    endpoint.close();
}
