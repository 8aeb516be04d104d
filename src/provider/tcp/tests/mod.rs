//! What only this rail does: how its peers end, and how it sleeps.

#[path = "../../../../tests/common/tcp_pair.rs"]
pub mod pair;

use super::area::{LONG_CELLS, SHORT_BYTES_MAX, SLOTS};
use super::{Limits, OpenError, Settings, Tcp, bytes, socket};
use crate::base::carve::heap::HeapBlock;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Completion, Domain, DownCause, LINE_BYTES, LONG_SLOTS, LocalSpan, MemoryDomain, MemoryKind,
    Next, Op, OpId, OpKind, PeerLife, PostError, Posted, Provider, RailKey, RecvSlot, Region,
    RemoteSpan, Source,
};
use crate::provider::host_domain::HostDomain;
use crate::wire::stream::{HEADER_BYTES_MAX, SEND_HEAD_AT, StreamFrame};
use pair::{PairConfig, PairMemory, connected};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::vec::Vec;

const PEER: PeerIndex = PeerIndex(0);
const PEERS: u32 = 8;

/// What an event's place holds before a poll.
const NOTHING: Completion = Completion::PeerDown { peer: PEER, cause: DownCause::Closed };

/// Regions of the rails that [`rail_in`] opens.
const REGIONS: u32 = 16;

/// What [`rail_in`] is given.
fn block_of(limits: &Limits) -> HeapBlock {
    HeapBlock::new(bytes(limits) + HostDomain::bytes(REGIONS))
}

/// One peer on one stream each, of so many.
fn limits_of(peers_max: u32) -> Limits {
    Limits { peers_max, ops_max: 128, streams: 1, lanes: 1 }
}

/// Takes the first or the second ends of connections into use, as one peer each.
fn join(rail: &mut Tcp, pairs: &[[TcpStream; 2]], end: usize) {
    for (n, pair) in pairs.iter().enumerate() {
        rail.peer_open(PeerIndex(n as u32), &[pair[end].as_raw_fd()]).unwrap();
    }
}

/// A frame's header.
fn header(frame: &StreamFrame) -> Vec<u8> {
    let mut header = [0; HEADER_BYTES_MAX];
    let length = frame.encode(&mut header);
    header[..length].to_vec()
}

/// Registers memory that outlives the rail's last poll.
fn register(rail: &Tcp, bytes: &mut [u8]) -> RailKey {
    let (address, length) = (bytes.as_mut_ptr().expose_provenance() as u64, Bytes::of(bytes.len()));
    // SAFETY: the caller vouches for it.
    unsafe { rail.domain().register(Region { address, length, kind: MemoryKind::Host }) }.unwrap()
}

fn rail_in<'m>(block: &'m mut HeapBlock, limits: &Limits, settings: Settings) -> Tcp<'m> {
    let mut carver = block.carver();
    let domain = HostDomain::carve(&mut carver, REGIONS).unwrap();
    // SAFETY: no threads.
    unsafe { Tcp::open(&mut carver, limits, domain, settings) }.unwrap()
}

/// Polls until something is reported; the kernel's part of it takes microseconds.
fn poll(rail: &mut Tcp) -> Vec<Completion> {
    let mut out = [NOTHING; 16];
    // an end without a goodbye is reported when the side band has had time to know better
    let start = std::time::Instant::now();
    loop {
        let now = Instant(start.elapsed().as_nanos() as u64);
        let count = rail.poll(&mut out, Bytes::kib(64), now);
        if count > 0 {
            return out[..count].to_vec();
        }
    }
}

/// Polls until the peer is down; says why, and how many messages came before.
fn end(rail: &mut Tcp) -> (DownCause, usize) {
    let mut messages = 0;
    loop {
        for completion in poll(rail) {
            match completion {
                Completion::PeerDown { cause, .. } => return (cause, messages),
                Completion::Received { peer, slot, .. } => {
                    rail.received_release(peer, slot);
                    messages += 1;
                }
                Completion::Done { .. } | Completion::Immediate { .. } => {}
                Completion::Fenced { .. } => {}
            }
        }
    }
}

fn send(rail: &mut Tcp, peer: PeerIndex) {
    assert!(rail.send_now(peer, &[7; 32], LocalSpan::EMPTY));
}

/// Fences the peer, which ends at once: the rail's own calls alone move anything.
fn fence(rail: &mut Tcp) {
    let kind = OpKind::Fence { generation: RailGeneration(1) };
    assert_eq!(rail.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)), Ok(Posted::Pending));
    assert!(matches!(poll(rail)[..], [Completion::Fenced { id: OpId(1), .. }]));
}

#[test]
fn fenced_peer_is_closed_not_dead_and_its_last_messages_arrive() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    (0..5).for_each(|_| send(&mut a, PEER));
    fence(&mut a);
    assert_eq!(end(&mut b), (DownCause::Closed, 5));
}

/// What is written to a peer that has closed fails before its goodbye is read. The rail was told of
/// as lost, errno 32, though its peer had closed in good order.
#[test]
fn goodbye_is_heard_behind_a_write_that_failed() {
    for is_lane in [false, true] {
        let mut memory = PairMemory::new(PairConfig::default());
        let [mut a, mut b] = memory.open();
        if is_lane {
            b.peer_is_lane(PEER);
        }
        (0..5).for_each(|_| send(&mut a, PEER));
        let kind = OpKind::Fence { generation: RailGeneration(1) };
        assert_eq!(a.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)), Ok(Posted::Pending));
        // the kernel's answer to the first makes the second fail
        while b.send_now(PEER, &[7; 32], LocalSpan::EMPTY) {}
        assert_eq!(end(&mut b), (DownCause::Closed, 5), "a lane: {is_lane}");
    }
}

#[test]
fn end_of_a_stream_without_goodbye_is_a_broken_rail_unless_the_side_band_knows_better() {
    let mut memory = PairMemory::new(PairConfig::default());
    memory.sockets[0][0].shutdown(Shutdown::Write).unwrap();
    let [_a, mut b] = memory.open();
    assert_eq!(end(&mut b), (DownCause::Broken(0), 0));
    for told in [DownCause::Died, DownCause::Closed, DownCause::Broken(libc::ECONNRESET)] {
        let mut memory = PairMemory::new(PairConfig::default());
        memory.sockets[0][0].shutdown(Shutdown::Write).unwrap();
        let [_a, mut b] = memory.open();
        b.poll(&mut [], Bytes::kib(64), Instant(0));
        b.peer_fail(PEER, told);
        assert_eq!(end(&mut b), (told, 0));
    }
}

#[test]
fn reset_of_a_stream_is_a_broken_rail_with_the_systems_code() {
    let mut memory = PairMemory::new(PairConfig::default());
    let breaker = memory.sockets[0][0].try_clone().unwrap();
    let [_a, mut b] = memory.open();
    // SAFETY: integers, for which zero is a value; no family takes a stream apart, with a reset.
    let nowhere: libc::sockaddr = unsafe { core::mem::zeroed() };
    let length = size_of_val(&nowhere) as u32;
    // SAFETY: a whole address.
    assert_eq!(unsafe { libc::connect(breaker.as_raw_fd(), &nowhere, length) }, 0);
    assert_eq!(end(&mut b), (DownCause::Broken(libc::ECONNRESET), 0));
}

/// Found when a thread waited for a word of the side band by a clock that stood still.
#[test]
fn stream_of_a_copy_thread_that_breaks_ends_its_peer_on_both_sides() {
    let limits = Limits { streams: 3, ..PairConfig::default().limits };
    let settings = Settings { threads: 2, ..Settings::default() };
    for stream in 0..3 {
        for told in [None, Some(DownCause::Died), Some(DownCause::Closed)] {
            let mut memory =
                PairMemory::new(PairConfig { limits, settings, ..PairConfig::default() });
            let breaker = memory.sockets[0][stream].try_clone().unwrap();
            let [mut a, mut b] = memory.open();
            breaker.shutdown(Shutdown::Both).unwrap();
            if let Some(told) = told {
                b.peer_fail(PEER, told);
            }
            assert_eq!(end(&mut b), (told.unwrap_or(DownCause::Broken(0)), 0), "{stream}");
            assert_eq!(end(&mut a), (DownCause::Broken(0), 0), "{stream}");
        }
    }
}

#[test]
fn garbage_is_a_failure_and_what_came_before_it_is_reported() {
    let mut memory = PairMemory::new(PairConfig::default());
    let mut liar = memory.sockets[0][0].try_clone().unwrap();
    let [mut a, mut b] = memory.open();
    send(&mut a, PEER);
    a.poll(&mut [], Bytes::kib(64), Instant(0));
    liar.write_all(&[0xff; 100]).unwrap();
    assert_eq!(end(&mut b), (DownCause::Failed, 1));
}

/// A look at the rest of a write whose region had gone since its first bytes came was a panic.
#[test]
fn region_that_goes_in_the_middle_of_a_write_is_refused() {
    let mut memory = PairMemory::new(PairConfig::default());
    let mut writer = memory.sockets[0][0].try_clone().unwrap();
    let [mut a, mut b] = memory.open();
    let mut target = std::vec![0u8; 100_000];
    let address = target.as_mut_ptr() as u64;
    let key = register(&b, &mut target);
    let (immediate, silent) = (Some(5), false);
    let frame = StreamFrame::Write { length: 100_000, key: key.0, address, immediate, silent };
    writer.write_all(&header(&frame)).unwrap();
    writer.write_all(&[7; 1000]).unwrap();
    while !b.take_moved() {
        assert_eq!(b.poll(&mut [NOTHING], Bytes::kib(64), Instant(0)), 0);
    }
    b.domain().deregister(key).unwrap();
    writer.write_all(&std::vec![7; 99_000]).unwrap();
    // what comes behind it is in its place; nobody hears of the write itself
    send(&mut a, PEER);
    a.poll(&mut [], Bytes::kib(64), Instant(0));
    let [Completion::Received { peer, slot, .. }] = poll(&mut b)[..] else {
        panic!("the message behind the write")
    };
    b.received_release(peer, slot);
    assert!(target[1000..].iter().all(|byte| *byte == 0));
}

#[test]
fn write_to_the_end_of_the_address_space_is_read_and_dropped() {
    let mut memory = PairMemory::new(PairConfig::default());
    let mut liar = memory.sockets[0][0].try_clone().unwrap();
    let [mut a, mut b] = memory.open();
    let (address, immediate, silent) = (u64::MAX - 8, None, false);
    let frame = StreamFrame::Write { length: 4096, key: 0, address, immediate, silent };
    liar.write_all(&header(&frame)).unwrap();
    liar.write_all(&[1; 4096]).unwrap();
    send(&mut a, PEER);
    a.poll(&mut [], Bytes::kib(64), Instant(0));
    assert!(matches!(poll(&mut b)[..], [Completion::Received { .. }]));
}

/// A peer that answers before all was sent ended the write: what was still to go out was read from
/// memory that its owner had back.
#[test]
fn answer_to_what_was_not_sent_is_a_failure_and_ends_no_write_well() {
    const BYTES: usize = 64 << 20;
    let mut memory = PairMemory::new(PairConfig::default());
    let mut liar = memory.sockets[1][0].try_clone().unwrap();
    let [mut a, _b] = memory.open();
    let mut source = std::vec![1u8; BYTES];
    let (address, key) = (source.as_mut_ptr() as u64, register(&a, &mut source));
    // SAFETY: it lives longer than the rail does anything.
    let span = unsafe { LocalSpan::new(address, Bytes::of(BYTES), key) };
    let target = RemoteSpan { key: RailKey(0), address: 4096 };
    let kind = OpKind::Write { source: Source::Span(span), target, immediate: None };
    assert_eq!(a.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)), Ok(Posted::Pending));
    // nobody reads: more than the kernel takes
    a.poll(&mut [], Bytes::kib(64), Instant(0));
    liar.write_all(&header(&StreamFrame::Done { through: 1 })).unwrap();
    let mut came = Vec::new();
    while came.len() < 2 {
        came.extend(poll(&mut a));
        let is_well = |it: &Completion| matches!(it, Completion::Done { result: Ok(()), .. });
        assert!(!came.iter().any(is_well), "{came:?}");
    }
    let is_failed = |it: &Completion| matches!(it, Completion::Done { result: Err(_), .. });
    let is_down =
        |it: &Completion| matches!(it, Completion::PeerDown { cause: DownCause::Failed, .. });
    assert!(came.iter().any(is_failed) && came.iter().any(is_down), "{came:?}");
}

#[test]
fn line_to_a_bad_key_breaks_the_connection() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let target = RemoteSpan { key: RailKey(1 << 32 | 1), address: 64 };
    let source = Source::Line([1; LINE_BYTES]);
    let kind = OpKind::Write { source, target, immediate: None };
    assert_eq!(a.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)), Ok(Posted::Done));
    a.poll(&mut [], Bytes::kib(64), Instant(0));
    assert_eq!(end(&mut b).0, DownCause::Failed);
    assert!(matches!(end(&mut a).0, DownCause::Broken(_)));
}

#[test]
fn armed_rail_wakes_for_each_of_many_peers() {
    let limits = Limits { peers_max: PEERS, ops_max: 8, streams: 1, lanes: 1 };
    let mut blocks = [(); 2].map(|()| block_of(&limits));
    let mut rails = blocks.each_mut().map(|block| rail_in(block, &limits, Settings::default()));
    let sockets: Vec<_> = (0..PEERS).map(|_| connected(&PairConfig::default())).collect();
    let [a, b] = &mut rails;
    join(a, &sockets, 0);
    join(b, &sockets, 1);
    for peer in (0..PEERS).map(PeerIndex) {
        assert!(b.arm(), "nothing is there yet");
        send(a, peer);
        assert!(a.is_unsent());
        assert!(a.arm() && !a.is_unsent(), "arming hands over");
        let mut wait = libc::pollfd { fd: b.wait_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one whole entry.
        assert_eq!(unsafe { libc::poll(&mut wait, 1, 60_000) }, 1);
        assert!(!b.arm(), "a message is there");
        let [Completion::Received { peer: from, slot, .. }] = poll(b)[..] else {
            panic!("one message")
        };
        assert_eq!(from, peer);
        b.received_release(from, slot);
        b.peer_close(peer).unwrap();
        sockets[peer.as_usize()][1].shutdown(Shutdown::Both).unwrap();
        assert_eq!(end(a).0, DownCause::Closed);
    }
    assert!(b.is_idle());
}

#[test]
fn threads_without_streams_of_their_own_are_refused() {
    let mut block = HeapBlock::new(1 << 20);
    let mut carver = block.carver();
    let domain = HostDomain::carve(&mut carver, 1).unwrap();
    let limits = Limits { peers_max: 1, ops_max: 8, streams: 1, lanes: 1 };
    let settings = Settings { threads: 1, ..Settings::default() };
    // SAFETY: the block outlives what is opened.
    let opened = unsafe { Tcp::open(&mut carver, &limits, domain, settings) };
    assert!(matches!(opened, Err(OpenError::Settings)));
}

/// The end of a peer whose sockets stay open was not reported as long as another sent messages that
/// are longer than what every slot takes.
#[test]
fn end_of_a_silent_peer_is_reported_while_another_sends_long_messages() {
    let limits = Limits { peers_max: 2, ops_max: 8, streams: 1, lanes: 1 };
    let mut block = block_of(&limits);
    let mut rail = rail_in(&mut block, &limits, Settings::default());
    let sockets = [(); 2].map(|()| connected(&PairConfig::default()));
    join(&mut rail, &sockets, 0);
    let silent = PeerIndex(1);
    let message = message(10_000, 10_000);
    rail.peer_fail(silent, DownCause::Silent);
    for round in 1..=8 {
        let mut full = &sockets[0][1];
        full.write_all(&message).unwrap();
        let mut out = [NOTHING; 4];
        let (mut came, mut ended) = (false, false);
        while !came {
            let count = rail.poll(&mut out, Bytes::kib(64), Instant(round));
            for completion in &out[..count] {
                match *completion {
                    Completion::Received { peer, slot, .. } => {
                        rail.received_release(peer, slot);
                        came = true;
                    }
                    Completion::PeerDown { peer, .. } => ended = peer == silent,
                    other => panic!("{other:?}"),
                }
            }
        }
        if ended {
            return;
        }
    }
    panic!("no end of the silent peer");
}

/// A stream that always had something was read alone, for as long as it had.
#[test]
fn stream_with_more_than_a_poll_takes_does_not_keep_another_from_being_read() {
    let limits = Limits { peers_max: 2, ops_max: 8, streams: 1, lanes: 1 };
    let mut block = block_of(&limits);
    let settings = Settings { call_bytes: Bytes::kib(4), ..Settings::default() };
    let mut rail = rail_in(&mut block, &limits, settings);
    let sockets = [(); 2].map(|()| connected(&PairConfig::default()));
    join(&mut rail, &sockets, 0);
    let [mut full, mut other] = sockets.each_ref().map(|ends| &ends[1]);
    full.set_nonblocking(true).unwrap();
    let long =
        StreamFrame::Write { length: 1 << 30, key: 0, address: 0, immediate: None, silent: false };
    full.write_all(&header(&long)).unwrap();
    let mut filled = 0;
    while let Ok(written) = full.write(&[0; 1 << 16]) {
        filled += written;
    }
    assert!(filled >= 4 << 16, "more than both polls take: 64 KiB each");
    other.write_all(&message(0, 0)).unwrap();
    let mut events = [NOTHING; 4];
    let came: usize = (0..2).map(|_| rail.poll(&mut events, Bytes(1), Instant(1))).sum();
    assert_eq!(came, 1);
    assert!(matches!(events[0], Completion::Received { peer: PeerIndex(1), .. }));
}

/// Many streams are asked which has room; what waited for that answer was forgotten when so few
/// were left that they are read in turn.
#[test]
fn stream_that_is_full_goes_on_when_others_close() {
    use std::io::Read;
    let config = PairConfig { buffer_bytes: Some(4096), ..PairConfig::default() };
    let limits = limits_of(4);
    for closed in 1..=2 {
        let mut pairs: Vec<_> = (0..3).map(|_| connected(&config)).collect();
        let mut block = block_of(&limits);
        let mut rail = rail_in(&mut block, &limits, config.settings);
        join(&mut rail, &pairs, 0);
        let mut posted = 0;
        while rail.send_now(PEER, &[7; 32], LocalSpan::EMPTY) {
            posted += 1;
        }
        // the kernel takes no more
        (0..9).for_each(|_| assert_eq!(rail.poll(&mut [], Bytes::kib(64), Instant(0)), 0));
        for n in 1..=closed {
            rail.peer_close(PeerIndex(n)).unwrap();
        }
        let (mut turns, mut into) = (0, [0; 4096]);
        while rail.is_undelivered(PEER) {
            let _ = pairs[0][1].read(&mut into);
            rail.poll(&mut [], Bytes::kib(64), Instant(0));
            turns += 1;
            assert!(turns < 1_000_000, "{posted} messages wait, {closed} closed");
        }
    }
}

/// A send that found a long write before it, and handed over as much of that as a send may, took
/// away the wish to hear of room: what was left of the write waited for nobody.
#[test]
fn write_goes_on_behind_a_send_that_was_refused() {
    use std::io::Read;
    const LENGTH: usize = 32 << 20;
    let config = PairConfig::default();
    let limits = limits_of(4);
    let mut pairs: Vec<_> = (0..3).map(|_| connected(&config)).collect();
    let mut block = block_of(&limits);
    let mut rail = rail_in(&mut block, &limits, config.settings);
    join(&mut rail, &pairs, 0);
    let mut source = std::vec![7; LENGTH];
    let (address, key) = (source.as_mut_ptr() as u64, register(&rail, &mut source));
    // SAFETY: inside the region.
    let span = |length| unsafe { LocalSpan::new(address, Bytes(length), key) };
    let target = RemoteSpan { key: RailKey(1), address: 0 };
    let source = Source::Span(span(LENGTH as u64));
    let kind = OpKind::Write { source, target, immediate: None };
    let op = Op { peer: PEER, id: OpId(1), kind };
    assert_eq!(rail.post(&op, Instant(0)), Ok(Posted::Pending));
    let mut into = std::vec![0; 1 << 20];
    let mut out = [NOTHING; 4];
    let mut refused = 0;
    while rail.is_undelivered(PEER) && refused < 8 {
        // the kernel takes no more, and then it has room again
        let mut polls = 0;
        while rail.is_undelivered(PEER) && !rail.streams[0].wants_room {
            rail.poll(&mut out, Bytes::kib(64), Instant(0));
            polls += 1;
            assert!(polls < 1_000_000, "nobody waits for room");
        }
        while pairs[0][1].read(&mut into).is_ok() {}
        let kind = OpKind::Send { head: [7; 32], payload: span(16 << 10) };
        let posted = rail.post(&Op { peer: PEER, id: OpId(2), kind }, Instant(0));
        refused += u32::from(posted == Err(PostError::Again));
    }
    assert!(refused > 0, "nothing was refused");
    let mut turns = 0;
    while rail.is_undelivered(PEER) {
        let _ = pairs[0][1].read(&mut into);
        rail.poll(&mut out, Bytes::kib(64), Instant(0));
        turns += 1;
        assert!(turns < 1_000_000, "the write stands still");
    }
}

/// Whoever waits for one peer may say so: what the others have sent costs no call then, and is seen
/// by the next look at all.
#[test]
fn look_at_one_peer_reads_its_stream_alone_and_the_next_reads_all() {
    let limits = limits_of(4);
    for count in [2, 3] {
        let config = PairConfig::default();
        let pairs: Vec<_> = (0..count).map(|_| connected(&config)).collect();
        let mut block = block_of(&limits);
        let mut rail = rail_in(&mut block, &limits, config.settings);
        for (n, [near, far]) in pairs.iter().enumerate() {
            rail.peer_open(PeerIndex(n as u32), &[near.as_raw_fd()]).unwrap();
            (&mut &*far).write_all(&message(0, 0)).unwrap();
        }
        let mut out = [NOTHING; 8];
        let mut of = |rail: &mut Tcp| {
            assert!(matches!(rail.next(), Next::Poll));
            let came = rail.poll(&mut out, Bytes::kib(64), Instant(0));
            let peer_of = |it: &Completion| match it {
                Completion::Received { peer, .. } => *peer,
                other => panic!("{other:?}"),
            };
            out[..came].iter().map(peer_of).collect::<Vec<_>>()
        };
        rail.look_at(PeerIndex(1));
        assert_eq!(of(&mut rail), [PeerIndex(1)], "{count}");
        let mut rest = of(&mut rail);
        rest.sort_unstable_by_key(|peer| peer.0);
        let others: Vec<_> = (0..count).filter(|n| *n != 1).map(PeerIndex).collect();
        assert_eq!(rest, others, "{count}");
    }
}

/// The place that reading had come to among many was kept when few were left, and lay behind them:
/// one of those was never read again.
#[test]
fn every_stream_is_read_when_others_have_closed() {
    let config = PairConfig::default();
    let limits = limits_of(4);
    for (closed, turns) in [(1..4, 1), (1..4, 2), (2..4, 3), (1..3, 3), (0..2, 3), (0..3, 3)] {
        let pairs: Vec<_> = (0..4).map(|_| connected(&config)).collect();
        let mut blocks = [(); 2].map(|()| block_of(&limits));
        let [mut near, mut far] =
            blocks.each_mut().map(|block| rail_in(block, &limits, config.settings));
        join(&mut near, &pairs, 0);
        join(&mut far, &pairs, 1);
        // polls that end because what they report has no room
        let mut one = [NOTHING];
        for _ in 0..turns {
            send(&mut far, PeerIndex(3));
            send(&mut far, PeerIndex(3));
            far.poll(&mut [], Bytes::kib(64), Instant(0));
            let mut taken = 0;
            while taken < 2 {
                if near.poll(&mut one, Bytes::kib(64), Instant(0)) == 1 {
                    let Completion::Received { peer, slot, .. } = one[0] else { panic!() };
                    near.received_release(peer, slot);
                    taken += 1;
                }
            }
        }
        for peer in closed.clone().map(PeerIndex) {
            near.peer_close(peer).unwrap();
            far.peer_close(peer).unwrap();
        }
        let left: Vec<u32> = (0..4).filter(|peer| !closed.contains(peer)).collect();
        left.iter().for_each(|peer| send(&mut far, PeerIndex(*peer)));
        far.poll(&mut [], Bytes::kib(64), Instant(0));
        let mut came = Vec::new();
        for _ in 0..1_000_000 {
            if near.poll(&mut one, Bytes::kib(64), Instant(0)) == 1
                && let Completion::Received { peer, slot, .. } = one[0]
            {
                near.received_release(peer, slot);
                came.push(peer.0);
            }
            if came.len() == left.len() {
                break;
            }
        }
        came.sort_unstable();
        assert_eq!(came, left, "{turns} turns, {closed:?} closed");
    }
}

/// A close that asked between the two took the connection away although another lane could have
/// carried what this one lost.
#[test]
fn lane_is_undelivered_from_its_break_until_that_is_reported() {
    let mut memory = PairMemory::new(PairConfig::default());
    let breaker = memory.sockets[0][0].try_clone().unwrap();
    let [mut a, _b] = memory.open();
    a.peer_is_lane(PEER);
    assert!(!a.is_undelivered(PEER));
    breaker.shutdown(Shutdown::Both).unwrap();
    let mut one = [Completion::PeerDown { peer: PEER, cause: DownCause::Died }];
    let mut polls = 0;
    while a.poll(&mut one, Bytes::kib(64), Instant(polls)) == 0 {
        assert!(a.is_undelivered(PEER), "poll {polls}");
        polls += 1;
    }
    assert!(polls > 0 && matches!(one[0], Completion::PeerDown { .. }));
    assert!(!a.is_undelivered(PEER));
}

/// The frame of a message, and so many of its bytes.
fn message(length: u32, there: usize) -> Vec<u8> {
    let mut frame = std::vec![7; HEADER_BYTES_MAX + there];
    StreamFrame::Send { length }.encode((&mut frame[..HEADER_BYTES_MAX]).try_into().unwrap());
    frame[SEND_HEAD_AT..].fill(7);
    frame
}

/// What had come of a message was never told and never given back: a peer that was fenced and
/// detached a few times in the middle of long ones was taken for broken, since it has room for few.
#[test]
fn room_of_a_message_that_was_cut_off_comes_back() {
    for (length, receives) in
        [(100_000, LONG_CELLS), (SHORT_BYTES_MAX + 1, LONG_CELLS), (SHORT_BYTES_MAX, SLOTS)]
    {
        let config = PairConfig::default();
        let mut memory = PairMemory::new(config);
        let mut writer = memory.sockets[0][0].try_clone().unwrap();
        let [_a, mut b] = memory.open();
        let mut sockets = Vec::new();
        for id in 0..SLOTS as u64 + 1 {
            writer.write_all(&message(length, 1000)).unwrap();
            b.take_moved();
            while !b.take_moved() {
                assert_eq!(b.poll(&mut [], Bytes::kib(64), Instant(0)), 0);
                assert_eq!(b.poll(&mut [NOTHING], Bytes::kib(64), Instant(0)), 0);
            }
            let kind = OpKind::Fence { generation: RailGeneration(id as u32) };
            b.post(&Op { id: OpId(id), peer: PEER, kind }, Instant(0)).unwrap();
            let ended = poll(&mut b);
            let is_fenced = matches!(ended[..], [Completion::Fenced { .. }]);
            assert!(is_fenced, "{length} bytes, cut off {id} times before: {ended:?}");
            b.peer_detach(PEER).unwrap();
            let [near, far] = connected(&config);
            b.peer_open(PEER, &[far.as_raw_fd()]).unwrap();
            writer = near;
            sockets.push(far);
        }
        for came in 0..receives {
            let mut frame = &message(length, length as usize)[..];
            let completion = loop {
                // the kernel may take less than all of it
                frame = &frame[writer.write(frame).unwrap_or(0)..];
                let mut one = [NOTHING];
                if b.poll(&mut one, Bytes::kib(64), Instant(0)) == 1 {
                    break one[0];
                }
            };
            let is_message = matches!(completion, Completion::Received { .. });
            assert!(is_message, "{length} bytes, {came} of {receives} held: {completion:?}");
        }
    }
}

/// A look took in a quarter of a MiB, whatever the budget, which counts for many short writes.
#[test]
fn poll_of_many_short_writes_stays_inside_its_budget() {
    const EACH: usize = 8 << 10;
    const COUNT: usize = 48;
    let settings = Settings { call_bytes: Bytes::kib(8), ..Settings::default() };
    let mut memory =
        PairMemory::new(PairConfig { settings, buffer_bytes: Some(1 << 20), ..Default::default() });
    let (mut source, mut target) = (std::vec![1u8; EACH * COUNT], std::vec![0u8; EACH * COUNT]);
    let [mut a, mut b] = memory.open();
    let keys = [register(&a, &mut source), register(&b, &mut target)];
    let addresses = [source.as_ptr() as u64, target.as_ptr() as u64];
    let (mut posted, mut seen, budget) = (0, 0, Bytes(4096));
    let most = (budget.0 + b.caps(PEER).copy_granule.0) as usize;
    while seen < EACH * COUNT {
        while posted < COUNT {
            let at = (posted * EACH) as u64;
            // SAFETY: inside the region, which is read alone.
            let span = unsafe { LocalSpan::new(addresses[0] + at, Bytes::of(EACH), keys[0]) };
            let target = RemoteSpan { key: keys[1], address: addresses[1] + at };
            let kind = OpKind::Write { source: Source::Span(span), target, immediate: None };
            let op = Op { id: OpId(posted as u64), peer: PEER, kind };
            if a.post(&op, Instant(0)).is_err() {
                break;
            }
            posted += 1;
        }
        // all that the kernel takes
        for _ in 0..COUNT {
            a.poll(&mut [NOTHING; 16], Bytes::kib(64), Instant(0));
        }
        b.poll(&mut [NOTHING; 16], budget, Instant(0));
        let start = target.as_ptr();
        // SAFETY: the polls that write there are over.
        let landed =
            (0..EACH * COUNT).filter(|n| unsafe { start.add(*n).read_volatile() } == 1).count();
        assert!(landed - seen <= most, "{} bytes in a poll, and not {most}", landed - seen);
        seen = landed;
    }
}

/// The next message, found by looks or by polls.
fn received(rail: &mut Tcp) -> Option<(PeerIndex, RecvSlot, u8, u32)> {
    if let Next::Received { peer, slot, head, length } = rail.next() {
        return Some((peer, slot, head[0], length));
    }
    let mut one = [NOTHING];
    match rail.poll(&mut one, Bytes::kib(64), Instant(0)) {
        0 => None,
        _ => match one[0] {
            Completion::Received { peer, slot, head, length } => {
                Some((peer, slot, head[0], length))
            }
            other => panic!("{other:?}"),
        },
    }
}

/// Other peers' messages and later ones come through the buffer in which long ones lie at first.
#[test]
fn long_messages_that_are_held_stay_whole_whoever_sends_behind_them() {
    const OTHER: PeerIndex = PeerIndex(1);
    for (peers, lanes) in [(1, 1), (2, 1), (2, 2)] {
        let config = PairConfig::default();
        let limits = Limits { peers_max: peers, ops_max: 16, streams: 1, lanes };
        let pairs: Vec<_> = (0..peers).map(|_| connected(&config)).collect();
        let mut blocks = [(); 2].map(|()| block_of(&limits));
        let [mut near, mut far] =
            blocks.each_mut().map(|block| rail_in(block, &limits, config.settings));
        join(&mut near, &pairs, 0);
        join(&mut far, &pairs, 1);
        let is_long = |peer: PeerIndex| peer.0.is_multiple_of(lanes);
        // a byte, and as many of it as the message has
        let (mut queue, mut held) = (Vec::new(), Vec::new());
        let other = if peers > 1 { OTHER } else { PEER };
        for number in 1..=LONG_SLOTS as u8 {
            queue.push((
                PEER,
                number,
                [100_000, SHORT_BYTES_MAX + 1, 128 << 10][number as usize % 3],
            ));
            queue.push((other, 100, if is_long(other) && peers > 1 { 128 << 10 } else { 8192 }));
            queue.push((PEER, 100, 64));
        }
        queue.extend([(PEER, 100, 128 << 10), (PEER, 100, 8192), (other, 100, 8192)].repeat(4));
        let (count, mut came) = (queue.len(), 0);
        let mut queue = queue.into_iter().peekable();
        let mut rounds = 0;
        while came < count {
            while let Some((peer, byte, length)) = queue.peek().copied() {
                let payload = std::vec![byte; length as usize];
                let length = Bytes(length.into());
                // SAFETY: it is copied before this returns.
                let span = unsafe { LocalSpan::new(payload.as_ptr() as u64, length, RailKey(0)) };
                if !far.send_now(peer, &[byte; 32], span) {
                    break;
                }
                queue.next();
            }
            assert_eq!(far.poll(&mut [NOTHING], Bytes::kib(64), Instant(0)), 0);
            while let Some((peer, slot, byte, length)) = received(&mut near) {
                came += 1;
                match byte {
                    100 => near.received_release(peer, slot),
                    _ => held.push((peer, slot, byte, length)),
                }
            }
            rounds += 1;
            assert!(rounds < 1_000_000, "{came} of {count} came");
        }
        assert_eq!(held.len(), LONG_SLOTS as usize);
        for (peer, slot, byte, length) in held {
            let mut payload = std::vec![0; length as usize];
            near.received_peek(peer, slot, &mut payload);
            assert!(payload.iter().all(|b| *b == byte), "{byte} of {peers} peers, {lanes} lanes");
            near.received_release(peer, slot);
        }
    }
}

/// Bytes that the kernel has of a socket's peer.
fn unread(fd: i32) -> i32 {
    let mut bytes = 0;
    // SAFETY: four writable bytes.
    assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) }, 0);
    bytes
}

/// One message from `a`, which `b` takes in; says how many bytes of all are still with the kernel.
fn pass_one(a: &mut Tcp, b: &mut Tcp, fd: i32) -> i32 {
    send(a, PEER);
    a.flush(Bytes::kib(64));
    b.look_at(PEER); // who looks at all in turn takes what he reads
    let came = poll(b);
    let [Completion::Received { peer, slot, length: 0, .. }] = came[..] else { panic!("{came:?}") };
    b.received_release(peer, slot);
    unread(fd)
}

/// What a message of [`pass_one`] is on the wire.
const EMPTY_MESSAGE: i32 = HEADER_BYTES_MAX as i32;

/// Each second one had the kernel acknowledge both, by a packet within the call that read it.
#[test]
fn short_messages_stay_with_the_kernel_until_some_have_gathered() {
    for v6 in [false, true] {
        let mut memory = PairMemory::new(PairConfig { v6, ..PairConfig::default() });
        let fd = memory.sockets[1][0].as_raw_fd();
        let leaves = socket::remember_peeks(fd);
        let stay = |messages: i32| if leaves { messages * EMPTY_MESSAGE } else { 0 };
        let [mut a, mut b] = memory.open();
        // whoever was short is peeked at next
        assert_eq!(pass_one(&mut a, &mut b, fd), 0);
        for round in 0..3 {
            for messages in 1..=8 {
                assert_eq!(pass_one(&mut a, &mut b, fd), stay(messages), "round {round}");
            }
            // or the kernel, which always had something unread, would acknowledge none
            assert_eq!(pass_one(&mut a, &mut b, fd), 0, "round {round}");
        }
        // nobody is woken by what he has had
        assert_eq!(pass_one(&mut a, &mut b, fd), stay(1));
        assert!(b.arm(), "nothing is there");
        assert_eq!(unread(fd), 0);
        // who sleeps over each message would take it before the next sleep
        assert_eq!(pass_one(&mut a, &mut b, fd), 0);
        assert!(b.arm(), "nothing is there");
        assert_eq!(pass_one(&mut a, &mut b, fd), 0);
        (0..300).for_each(|_| look(&mut b));
        assert_eq!(pass_one(&mut a, &mut b, fd), stay(1));
        // a peer whose window is small hears that it came, though nothing comes any more
        let mut looks = 0;
        while unread(fd) > 0 {
            look(&mut b);
            looks += 1;
            assert!(looks < 1000, "it stays");
        }
        assert_eq!(pass_one(&mut a, &mut b, fd), stay(1));
        // a socket that is closed with something unread resets its peer
        b.peer_fail(PEER, DownCause::Died);
        assert_eq!(end(&mut b), (DownCause::Died, 0));
        assert_eq!(unread(fd), 0);
    }
}

/// A look at one stream, on which there is nothing.
fn look(rail: &mut Tcp) {
    rail.look_at(PEER);
    let mut one = [Completion::Immediate { peer: PEER, immediate: 0 }];
    assert_eq!(rail.poll(&mut one, Bytes::kib(64), Instant(0)), 0);
}

/// Its sockets were reset, and their peers lost what was on its way to them.
#[test]
fn rail_that_ends_without_closing_its_peers_leaves_nothing_unread() {
    let mut memory = PairMemory::new(PairConfig::default());
    let fd = memory.sockets[1][0].as_raw_fd();
    let [mut a, mut b] = memory.open();
    (0..4).for_each(|_| _ = pass_one(&mut a, &mut b, fd));
    drop(b);
    assert_eq!(unread(fd), 0);
}

#[test]
fn what_was_peeked_at_before_the_peer_has_closed_comes_and_then_the_end() {
    let mut memory = PairMemory::new(PairConfig::default());
    let fd = memory.sockets[1][0].as_raw_fd();
    let [mut a, mut b] = memory.open();
    (0..4).for_each(|_| _ = pass_one(&mut a, &mut b, fd));
    (0..5).for_each(|_| send(&mut a, PEER));
    fence(&mut a);
    b.look_at(PEER);
    assert_eq!(end(&mut b), (DownCause::Closed, 5));
}

/// Behind it peeks and reads do not count the same, so that bytes came twice.
#[test]
fn urgent_byte_among_short_messages_is_garbage() {
    let mut memory = PairMemory::new(PairConfig::default());
    let fd = memory.sockets[1][0].as_raw_fd();
    if !socket::remember_peeks(fd) {
        return; // nothing is peeked at
    }
    let stranger = memory.sockets[0][0].try_clone().unwrap();
    let [mut a, mut b] = memory.open();
    (0..3).for_each(|_| _ = pass_one(&mut a, &mut b, fd));
    // SAFETY: one readable byte.
    let sent = unsafe { libc::send(stranger.as_raw_fd(), [0u8].as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    for _ in 0..20 {
        if !a.send_now(PEER, &[7; 32], LocalSpan::EMPTY) {
            break;
        }
        a.flush(Bytes::kib(64));
        b.look_at(PEER);
        let mut out = [Completion::Immediate { peer: PEER, immediate: 0 }; 8];
        let count = b.poll(&mut out, Bytes::kib(64), Instant(0));
        for completion in &out[..count] {
            match *completion {
                Completion::Received { peer, slot, .. } => b.received_release(peer, slot),
                Completion::PeerDown { cause: DownCause::Failed, .. } => return,
                ref other => panic!("{other:?}"),
            }
        }
    }
    panic!("nobody has noticed");
}

#[test]
fn long_message_and_write_behind_short_ones_that_were_left_arrive_whole() {
    const LENGTH: u32 = 6000;
    let mut memory = PairMemory::new(PairConfig::default());
    let fd = memory.sockets[1][0].as_raw_fd();
    let [mut a, mut b] = memory.open();
    let mut bytes = std::vec![0u8; 2 * LENGTH as usize];
    let address = bytes.as_mut_ptr() as u64;
    let keys = [&a, &b].map(|rail| register(rail, &mut bytes));
    let mut polled = Vec::new();
    for round in 0..40u32 {
        for _ in 0..round % 11 {
            pass_one(&mut a, &mut b, fd);
        }
        let fill = round as u8 + 1;
        // SAFETY: no poll is under way.
        unsafe { core::ptr::write_bytes(address as *mut u8, fill, LENGTH as usize) };
        // SAFETY: inside the region.
        let span = unsafe { LocalSpan::new(address, Bytes(LENGTH.into()), keys[0]) };
        let target = RemoteSpan { key: keys[1], address: address + u64::from(LENGTH) };
        let kind = OpKind::Write { source: Source::Span(span), target, immediate: Some(round) };
        let op = Op { id: OpId(round.into()), peer: PEER, kind };
        assert_eq!(a.post(&op, Instant(0)), Ok(Posted::Pending));
        assert!(a.send_now(PEER, &[7; 32], span));
        polled.clear();
        while polled.len() < 2 {
            a.flush(Bytes::kib(64));
            polled.extend(poll(&mut b));
        }
        let Completion::Immediate { immediate, .. } = polled[0] else { panic!("{polled:?}") };
        assert_eq!(immediate, round);
        let Completion::Received { peer, slot, length, .. } = polled[1] else {
            panic!("{polled:?}")
        };
        let mut came = [0; LENGTH as usize];
        b.received_peek(peer, slot, &mut came);
        b.received_release(peer, slot);
        assert_eq!((length, came), (LENGTH, [fill; LENGTH as usize]));
        // SAFETY: no poll is under way.
        let there = unsafe { core::slice::from_raw_parts(target.address as *const u8, came.len()) };
        assert_eq!(there, came);
        b.flush(Bytes::kib(64)); // the answer
        assert!(matches!(poll(&mut a)[..], [Completion::Done { result: Ok(()), .. }]));
    }
}

/// Of the sockets of one host none is paced; what the system has for others is its own.
#[test]
fn connection_within_the_host_has_the_plainest_window() {
    let mut memory = PairMemory::new(PairConfig::default());
    let fd = memory.sockets[1][0].as_raw_fd();
    let _rails = memory.open();
    let (mut name, mut length) = ([0u8; 16], 16);
    let to = name.as_mut_ptr().cast();
    // SAFETY: so many writable bytes.
    let result = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, to, &raw mut length)
    };
    assert_eq!((result, &name[..5]), (0, &b"reno\0"[..]));
}
