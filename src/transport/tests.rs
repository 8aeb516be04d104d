//! The machine over the loopback rail: both ends in one endpoint.
#![forbid(unsafe_code)]

mod again;
mod cancels;
mod filled;
mod hostile;
mod many;
mod offers;
mod stops;

use super::*;
use crate::base::carve::heap::HeapBlock;
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{Caps, Provider, RemoteSpan, Syscalls};
use crate::provider::loopback::{self, Loopback};
use crate::transport::limits::CREDITS;
use crate::transport::mr::vouched;
use crate::transport::snapshot::Tick;
use crate::wire::status::Waits;
use std::vec;
use std::vec::Vec;

const A: ConnectionIndex = ConnectionIndex(0);
const B: ConnectionIndex = ConnectionIndex(1);
const BUDGET: Bytes = Bytes::kib(if cfg!(miri) { 16 } else { 256 });
const LIMITS: Limits =
    Limits { connections_max: 2, requests_max: 32, regions_max: 16, rails_max: 1 };
const RAIL: loopback::Limits = loopback::Limits {
    peers_max: 2,
    slots: 64,
    payload_max: Bytes::kib(8),
    regions_max: 17,
    jobs: 64,
};

/// A message of many stripes, and more than one poll moves.
const LONG: usize = if cfg!(miri) { 40_001 } else { 1_000_001 };
/// Enough to use every record many times.
const MESSAGES: usize = if cfg!(miri) { 60 } else { 5000 };

struct Pair<'m, P: Provider = Loopback<'m>> {
    endpoint: Endpoint<'m, P>,
    regions: DataMrs<'m>,
}

impl<'m> Pair<'m> {
    fn open(block: &'m mut HeapBlock, pull: bool) -> Pair<'m> {
        Pair::open_over(block, pull, |rail| rail)
    }
}

impl<'m, P: Provider> Pair<'m, P> {
    fn open_over(
        block: &'m mut HeapBlock,
        pull: bool,
        wrap: impl FnOnce(Loopback<'m>) -> P,
    ) -> Pair<'m, P> {
        Pair::open_with(block, LIMITS, Bytes::kib(8), pull, wrap)
    }

    fn open_with(
        block: &'m mut HeapBlock,
        limits: Limits,
        eager_bytes_max: Bytes,
        pull: bool,
        wrap: impl FnOnce(Loopback<'m>) -> P,
    ) -> Pair<'m, P> {
        let mut carver = block.carver();
        let regions = DataMrs::carve(&mut carver, limits.regions_max, 0).unwrap();
        let mut rail = Loopback::open(RAIL, &mut carver).unwrap();
        rail.peer_open_at(crate::base::ids::PeerIndex(0), crate::base::ids::PeerIndex(1)).unwrap();
        let config = Config { stripe_bytes_min: Bytes::kib(4), ..Config::default() };
        let mut endpoint =
            Endpoint::open(&mut carver, limits, config, regions, wrap(rail)).unwrap();
        let mailboxes = endpoint.mailboxes();
        let key = vouched::register(&endpoint.rail().domain(), mailboxes.region()).unwrap();
        for (own, peer) in [(A, B), (B, A)] {
            let mailbox = RemoteSpan { key, address: mailboxes.address(peer.0) };
            let setup = ConnectionSetup {
                pull,
                mailbox,
                eager_bytes_max,
                credits: CREDITS,
                groups_max: limits.groups_max(),
                lanes: 1,
                reserve: 0,
                probed: true,
                reads_runs: true,
                reads_filled: true,
                slots_in_rows: true,
            };
            endpoint.connection_open(own, &setup);
        }
        Pair { endpoint, regions }
    }

    /// As over sockets.
    fn lines_cost_calls(&mut self) {
        let peer = crate::base::ids::PeerIndex(0);
        let of_rail = self.endpoint.net.rail.caps(peer);
        let caps = Caps { syscalls: Syscalls::PerBatch, ..of_rail };
        for c in self.endpoint.net.connections.iter_mut() {
            c.rails.control_lane.caps_set(&caps);
        }
    }

    fn register(&self, memory: &mut [u8]) -> Handle {
        vouched::insert(&self.endpoint.rail().domain(), &self.regions, memory)
    }

    /// Progress, until nothing happens any more without more requests.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.endpoint.progress(Instant(0), BUDGET);
        }
    }

    fn finish(&mut self, request: RequestId) -> Outcome {
        for _ in 0..100_000 {
            if let Some(outcome) = self.endpoint.test(request).unwrap() {
                return outcome;
            }
            self.endpoint.progress(Instant(0), BUDGET);
        }
        panic!("request never ended");
    }
}

fn outgoing(region: Handle, memory: &[u8], tag: i32) -> Outgoing {
    Outgoing { region, address: memory.as_ptr() as u64, length: memory.len() as u64, tag }
}

fn incoming(region: Handle, memory: &[u8], tag: i32) -> Incoming {
    Incoming { region, address: memory.as_ptr() as u64, length: memory.len() as u64, tag }
}

fn block() -> HeapBlock {
    block_of(LIMITS)
}

fn block_of(limits: Limits) -> HeapBlock {
    HeapBlock::new(limits.machine_bytes() + limits.regions_bytes() + Loopback::bytes(RAIL))
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn messages_of_every_size_cross_in_both_modes_and_orders() {
    for pull in [true, false] {
        for send_first in [true, false] {
            let mut block = block();
            let mut pair = Pair::open(&mut block, pull);
            for length in [0, 1, 8, 4096, 8192, 8193, LONG / 16 + 1, LONG] {
                let mut source = pattern(length, 3);
                let mut target = vec![0u8; length + 5];
                let from = if length == 0 { Handle::default() } else { pair.register(&mut source) };
                let to = pair.register(&mut target);
                let (out, room) = (outgoing(from, &source, 7), incoming(to, &target, 7));
                let (send, receive) = if send_first {
                    let send = pair.endpoint.isend(A, out).unwrap();
                    pair.endpoint.progress(Instant(0), BUDGET);
                    (send, pair.endpoint.irecv(B, &[room]).unwrap())
                } else {
                    let receive = pair.endpoint.irecv(B, &[room]).unwrap();
                    pair.endpoint.progress(Instant(0), BUDGET);
                    (pair.endpoint.isend(A, out).unwrap(), receive)
                };
                let outcome = pair.finish(receive);
                assert_eq!(outcome.result, Ok(()));
                assert_eq!(outcome.lengths[0], length as u64);
                assert_eq!(pair.finish(send).result, Ok(()));
                assert_eq!(target[..length], source[..]);
                assert!(target[length..].iter().all(|b| *b == 0));
                pair.regions.remove(to).unwrap();
                if length != 0 {
                    pair.regions.remove(from).unwrap();
                }
            }
        }
    }
}

#[test]
fn tags_match_inside_the_oldest_group_in_order() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut source = pattern(64, 9);
        let from = pair.register(&mut source);
        let mut target = [0u8; 64];
        let to = pair.register(&mut target);
        // second group's tag is sent first: it waits until the first group is bound
        let sends: Vec<_> = [(5, 0), (1, 8), (2, 16)]
            .iter()
            .map(|(tag, at)| {
                pair.endpoint.isend(A, outgoing(from, &source[*at..*at + 8], *tag)).unwrap()
            })
            .collect();
        pair.endpoint.progress(Instant(0), BUDGET);
        let rooms = [incoming(to, &target[8..16], 2), incoming(to, &target[16..24], 1)];
        let first = pair.endpoint.irecv(B, &rooms).unwrap();
        let second = pair.endpoint.irecv(B, &[incoming(to, &target[24..40], 5)]).unwrap();
        assert_eq!(pair.finish(first).lengths[..2], [8, 8]);
        assert_eq!(pair.finish(second).lengths[0], 8);
        for send in sends {
            assert_eq!(pair.finish(send).result, Ok(()));
        }
        assert_eq!(target[8..16], source[16..24]);
        assert_eq!(target[16..24], source[8..16]);
        assert_eq!(target[24..32], source[0..8]);
    }
}

#[test]
fn message_longer_than_the_receive_is_an_error_and_the_next_one_arrives() {
    for pull in [true, false] {
        for length in [100, LONG / 10] {
            let mut block = block();
            let mut pair = Pair::open(&mut block, pull);
            let mut source = pattern(length, 1);
            let from = pair.register(&mut source);
            let mut target = vec![0u8; length];
            let to = pair.register(&mut target);
            let short = pair.endpoint.irecv(B, &[incoming(to, &target[..50], 0)]).unwrap();
            let whole = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
            let sends = [0, 1].map(|_| pair.endpoint.isend(A, outgoing(from, &source, 0)).unwrap());
            assert_eq!(pair.finish(short).result, Err(RequestError::Truncated));
            assert_eq!(pair.finish(whole).result, Ok(()));
            for send in sends {
                assert_eq!(pair.finish(send).result, Ok(()));
            }
            assert_eq!(target, source);
        }
    }
}

#[test]
fn canceled_receive_ends_and_later_messages_find_their_receives() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut source = pattern(16, 1);
        let from = pair.register(&mut source);
        let mut target = [0u8; 32];
        let to = pair.register(&mut target);
        let canceled = pair.endpoint.irecv(B, &[incoming(to, &target[..16], 3)]).unwrap();
        let kept = pair.endpoint.irecv(B, &[incoming(to, &target[16..], 3)]).unwrap();
        pair.endpoint.progress(Instant(0), BUDGET);
        pair.endpoint.cancel(canceled).unwrap();
        if !pull {
            // the sender gives the verdict when it looks at the slots
            pair.endpoint.progress(Instant(0), BUDGET);
        }
        let send = pair.endpoint.isend(A, outgoing(from, &source, 3)).unwrap();
        assert_eq!(pair.finish(canceled).result, Err(RequestError::Canceled));
        assert_eq!(pair.finish(kept).result, Ok(()));
        assert_eq!(pair.finish(send).result, Ok(()));
        assert_eq!(target[16..], source[..]);
        assert!(target[..16].iter().all(|b| *b == 0));
        assert_eq!(pair.endpoint.test(kept), Err(request::RequestIdError::Stale));
    }
}

#[test]
fn canceled_receive_ends_although_its_peer_sends_nothing() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut target = [0u8; 16];
    let to = pair.register(&mut target);
    let canceled = pair.endpoint.irecv(B, &[incoming(to, &target, 3)]).unwrap();
    pair.endpoint.progress(Instant(0), BUDGET);
    pair.endpoint.cancel(canceled).unwrap();
    assert_eq!(pair.finish(canceled).result, Err(RequestError::Canceled));
}

#[test]
fn thousands_of_messages_keep_order_with_few_records() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut source = pattern(1 << 16, 1);
        let from = pair.register(&mut source);
        let mut target = vec![0u8; 1 << 16];
        let to = pair.register(&mut target);
        let lengths = [8usize, 9000, 0, 8192, 1, 20_000];
        let (mut sent, mut posted, mut done) = (0usize, 0usize, 0usize);
        let mut receives = std::collections::VecDeque::new();
        let mut sends = std::collections::VecDeque::new();
        while done < MESSAGES {
            let length = lengths[sent % lengths.len()];
            if sent < MESSAGES {
                match pair.endpoint.isend(A, outgoing(from, &source[..length], 0)) {
                    Ok(send) => {
                        sends.push_back(send);
                        sent += 1;
                    }
                    Err(error) => assert_eq!(error, SubmitError::Again),
                }
            }
            if posted < MESSAGES && posted % 7 != 3 || receives.is_empty() {
                match pair.endpoint.irecv(B, &[incoming(to, &target[..20_000], 0)]) {
                    Ok(receive) => {
                        receives.push_back(receive);
                        posted += 1;
                    }
                    Err(error) => assert_eq!(error, SubmitError::Again),
                }
            }
            pair.endpoint.progress(Instant(0), BUDGET);
            while let Some(send) = sends.front() {
                match pair.endpoint.test(*send).unwrap() {
                    Some(outcome) => assert_eq!(outcome.result, Ok(())),
                    None => break,
                }
                sends.pop_front();
            }
            if let Some(outcome) = receives.front().and_then(|r| pair.endpoint.test(*r).unwrap()) {
                assert_eq!(outcome.result, Ok(()));
                assert_eq!(outcome.lengths[0], lengths[done % lengths.len()] as u64);
                receives.pop_front();
                done += 1;
            }
        }
    }
}

#[test]
fn closing_ends_requests_on_both_sides_and_the_number_can_be_used_again() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, true);
    let mut target = [0u8; 32];
    let to = pair.register(&mut target);
    let own = pair.endpoint.irecv(A, &[incoming(to, &target[..16], 3)]).unwrap();
    let peers = pair.endpoint.irecv(B, &[incoming(to, &target[16..], 3)]).unwrap();
    assert_eq!(pair.regions.remove(to), Err(crate::base::regions::RemoveError::Busy));
    while pair.endpoint.connection_close(A) == Err(endpoint::ConnectionCloseError::Again) {
        pair.endpoint.progress(Instant(0), BUDGET);
    }
    assert_eq!(pair.finish(own).result, Err(RequestError::Closed));
    assert_eq!(pair.finish(peers).result, Err(RequestError::PeerClosed));
    assert!(pair.endpoint.irecv(A, &[incoming(to, &target, 0)]).is_err());
    pair.regions.remove(to).unwrap();
}

#[test]
fn numbers_of_ended_receives_are_stale_also_when_their_record_is_used_again() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, true);
    let mut target = [0u8; 8];
    let to = pair.register(&mut target);
    let old = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
    for round in 0..LIMITS.requests_max {
        let nothing = Outgoing { region: Handle::default(), address: 0, length: 0, tag: 0 };
        pair.endpoint.isend(A, nothing).unwrap();
        let receive = match round {
            0 => old,
            _ => pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap(),
        };
        assert_eq!(pair.finish(receive).result, Ok(()));
    }
    let again = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
    assert_ne!(again, old);
    assert_eq!(pair.endpoint.test(old), Err(request::RequestIdError::Stale));
    assert_eq!(pair.endpoint.cancel(old), Err(request::RequestIdError::Stale));
    assert_eq!(pair.endpoint.test(again), Ok(None));
    assert_eq!(pair.endpoint.test(RequestId(0x8000_0000_4000_0007)), {
        Err(request::RequestIdError::Stale)
    });
}

#[test]
fn peer_that_repeats_a_delivery_number_fails_the_connection() {
    use crate::fabric::OpId;
    use crate::wire::head::{KIND_DESCRIPTOR, SendHead};
    let mut block = block();
    let mut pair = Pair::open(&mut block, true);
    let mut source = pattern(64, 1);
    let from = pair.register(&mut source);
    let mut target = [0u8; 128];
    let to = pair.register(&mut target);
    let first = pair.endpoint.irecv(B, &[incoming(to, &target[..64], 0)]).unwrap();
    let second = pair.endpoint.irecv(B, &[incoming(to, &target[64..], 0)]).unwrap();
    let key = pair.regions.idle_keys(from).unwrap()[0];
    let mut descriptor = vec![0u8; 24];
    descriptor[..8].copy_from_slice(&(source.as_ptr() as u64).to_le_bytes());
    descriptor[8..16].copy_from_slice(&64u64.to_le_bytes());
    descriptor[16..].copy_from_slice(&key.0.to_le_bytes());
    let words = pair.register(&mut descriptor);
    let region = pair.regions.check(words, descriptor.as_ptr() as u64, 24).unwrap();
    let payload = pair.regions.span(region, descriptor.as_ptr() as u64, 24, rail::DataRail(0));
    for eager_number in 0..2 {
        let credits_through = CREDITS;
        let head = SendHead {
            kind: KIND_DESCRIPTOR,
            epoch: 1,
            eager_number,
            credits_through,
            ..SendHead::ZERO
        };
        let kind = crate::fabric::OpKind::Send { head: head.encode(), payload };
        let op = crate::fabric::Op { id: OpId(0), peer: crate::base::ids::PeerIndex(0), kind };
        pair.endpoint.rail_mut().post(&op, Instant(0)).unwrap();
    }
    assert_eq!(pair.finish(first).result, Ok(()));
    assert_eq!(pair.finish(second).result, Ok(())); // the bytes came; the number is the lie
    let room = [incoming(to, &target, 0)];
    assert_eq!(pair.endpoint.irecv(B, &room), Err(SubmitError::Failed(RequestError::Protocol)));
}

/// What a request of a connection waits for, as the watch sees it first.
fn waits(pair: &mut Pair<'_>, of: ConnectionIndex) -> Vec<Waits> {
    let tick = Tick::of(100, 10);
    pair.endpoint.watch(of, tick);
    let requests = 0..2 * LIMITS.requests_max;
    let found = requests.filter_map(|at| pair.endpoint.request_status(of, at, tick));
    found.map(|request| request.waits()).collect()
}

#[test]
fn snapshot_says_what_each_request_waits_for() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut source = pattern(LONG, 9);
        let from = pair.register(&mut source);
        let mut target = vec![0u8; LONG];
        let to = pair.register(&mut target);
        // nothing is offered, then a receive with another tag, then the right one
        let send = pair.endpoint.isend(A, outgoing(from, &source, 7)).unwrap();
        pair.endpoint.progress(Instant(0), BUDGET);
        let expected = if pull { Waits::Reading } else { Waits::Slot };
        assert_eq!(waits(&mut pair, A), [expected]);
        let wrong = pair.endpoint.irecv(B, &[incoming(to, &target[..8], 8)]).unwrap();
        let right = pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
        for _ in 0..10 {
            pair.endpoint.progress(Instant(0), BUDGET);
        }
        let expected = if pull { Waits::Reading } else { Waits::Tag };
        assert_eq!(waits(&mut pair, A), [expected]);
        assert_eq!(waits(&mut pair, B), [Waits::Message, Waits::Older]);
        let standing = pair.endpoint.status(B, Tick::of(100, 10));
        assert_eq!((standing.status.receives, standing.status.tag(0)), (2, 8));
        assert_eq!(standing.status.unexpected, u16::from(pull));
        pair.endpoint.isend(A, outgoing(from, &source[..8], 8)).unwrap();
        for request in [wrong, right, send] {
            assert_eq!(pair.finish(request).result, Ok(()));
        }
        assert_eq!((waits(&mut pair, A), waits(&mut pair, B)), (vec![], vec![]));
    }
}

/// The receive whose record has the number of the first queued send was given for the oldest.
#[test]
fn status_gives_the_oldest_receive_whatever_send_is_queued_first() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut memory = pattern(LONG, 9);
    let region = pair.register(&mut memory);
    let message = outgoing(region, &memory, 7);
    let sends = [0, 1, 2].map(|_| pair.endpoint.isend(A, message).unwrap());
    pair.endpoint.cancel(sends[0]).unwrap();
    for tag in 20..23 {
        pair.endpoint.irecv(A, &[incoming(region, &memory, tag)]).unwrap();
    }
    waits(&mut pair, A);
    let hello = pair.endpoint.status(A, Tick::of(100, 10));
    assert_eq!((hello.status.sends, hello.status.receives), (2, 3));
    assert_eq!((hello.send.record, hello.receive.tag), (1, 20));
}

#[test]
fn stalled_request_is_given_once_when_it_is_old_enough() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, true);
    let mut target = [0u8; 64];
    let to = pair.register(&mut target);
    pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
    let at = |ms| Tick::of(ms, 10);
    assert_eq!(pair.endpoint.watch(B, at(1000)).unreported_ms, 0);
    assert_eq!(pair.endpoint.watch(B, at(1400)).unreported_ms, 400);
    assert_eq!(pair.endpoint.next_stalled(B, 500, at(1400)), None);
    let request = pair.endpoint.next_stalled(B, 500, at(1500)).unwrap();
    assert_eq!((request.age_ms, request.tag, request.waits()), (500, 7, Waits::Message));
    assert_eq!(pair.endpoint.next_stalled(B, 500, at(1600)), None);
    let watched = pair.endpoint.watch(B, at(1700));
    assert_eq!((watched.open, watched.oldest_ms, watched.unreported_ms), (1, 700, 0));
}

/// A slot that was written and is not there: what both sides say is told apart from a receive that
/// was never posted.
#[test]
fn lost_slot_shows_in_what_both_sides_say() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut source = pattern(LONG, 9);
    let from = pair.register(&mut source);
    let mut target = vec![0u8; LONG];
    let to = pair.register(&mut target);
    pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
    for _ in 0..10 {
        pair.endpoint.progress(Instant(0), BUDGET);
    }
    pair.endpoint.net.mailboxes.clear(A.as_usize());
    pair.endpoint.isend(A, outgoing(from, &source, 7)).unwrap();
    for _ in 0..10 {
        pair.endpoint.progress(Instant(0), BUDGET);
    }
    assert_eq!(waits(&mut pair, A), [Waits::Slot]);
    let [ours, theirs] = [A, B].map(|of| pair.endpoint.status(of, Tick::of(100, 10)).status);
    assert!(theirs.slots_next > ours.group_next);
}

/// Short ones have the numbers that they will have in the stream, a long one that among the long.
#[test]
fn queued_sends_have_numbers_of_their_own() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut source = pattern(LONG, 9);
        let from = pair.register(&mut source);
        let tick = Tick::of(100, 10);
        let mut open = 0;
        while open == 0 {
            pair.endpoint.isend(A, outgoing(from, &source[..8], 7)).unwrap();
            open = pair.endpoint.watch(A, tick).open;
        }
        for length in [8, LONG, 8, LONG] {
            pair.endpoint.isend(A, outgoing(from, &source[..length], 7)).unwrap();
        }
        let left = pair.endpoint.status(A, tick).status.eager_number;
        let requests = 0..LIMITS.requests_max;
        let found = requests.filter_map(|at| pair.endpoint.request_status(A, at, tick));
        let found: Vec<_> = found.map(|request| (request.short, request.sequence)).collect();
        assert_eq!(found, [(1, left), (1, left + 1), (0, 0), (1, left + 3), (0, 1)]);
    }
}

/// A long message that trickles in is not still.
#[test]
fn stripes_count_as_movement() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut target = vec![0u8; LONG];
    let to = pair.register(&mut target);
    pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
    let moved = |pair: &mut Pair<'_>, ms| {
        pair.endpoint.watch(B, Tick::of(ms, 1250));
        pair.endpoint.status(B, Tick::of(ms, 1250)).status.moved_ms
    };
    assert_eq!([1000, 1007].map(|ms| moved(&mut pair, ms)), [0, 7]);
    let at = (0..pair.endpoint.recvs.groups.len())
        .find(|at| pair.endpoint.recvs.groups[*at].used)
        .unwrap();
    pair.endpoint.recvs.receives[at].stripes |= 2;
    assert_eq!([1020, 1023].map(|ms| moved(&mut pair, ms)), [0, 3]);
}

/// Offers cost a packet each over sockets, and short messages do without.
#[test]
fn offers_are_held_back_while_messages_are_short_and_nobody_waits() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    pair.lines_cost_calls();
    let (mut source, mut target) = (pattern(LONG, 1), vec![0u8; LONG]);
    let (from, to) = (pair.register(&mut source), pair.register(&mut target));
    let held = |pair: &Pair| {
        let c = &pair.endpoint.net.connections[B.as_usize()];
        c.recv.post.ahead_of(c.recv.offers.next)
    };
    let cross = |pair: &mut Pair, length: usize, now: u64| {
        let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
        pair.endpoint.progress(Instant(now), BUDGET);
        let held = held(pair);
        let send = pair.endpoint.isend(A, outgoing(from, &source[..length], 7)).unwrap();
        let outcome = pair.finish(receive);
        assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), length as u64));
        assert_eq!(pair.finish(send).result, Ok(()));
        held
    };
    let counts: Vec<i32> = (0..26).map(|now| cross(&mut pair, 8, 1000 + now)).collect();
    assert_eq!(counts[..10], [0, 0, 0, 0, 0, 0, 0, 0, 1, 2], "the first may be long");
    assert_eq!((counts.iter().max(), counts.iter().filter(|n| **n == 8).count()), (Some(&8), 2));
    // for one that may be long after all
    let at = |pair: &mut Pair, now: u64| {
        pair.endpoint.progress(Instant(now), BUDGET);
        held(pair)
    };
    while at(&mut pair, 10_000) == 0 {
        cross(&mut pair, 8, 10_000);
    }
    assert!(pair.endpoint.wants_time());
    assert!(at(&mut pair, 29_999) > 0);
    assert_eq!((at(&mut pair, 30_000), at(&mut pair, 30_000)), (0, 0));
    assert!(!pair.endpoint.wants_time());
    // before sleep
    (0..9).for_each(|_| assert!(cross(&mut pair, 8, 40_000) < 9));
    let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
    if at(&mut pair, 40_000) > 0 {
        assert!(!pair.endpoint.look_around());
    }
    assert_eq!(at(&mut pair, 40_000), 0);
    // the other side has seen what was offered, and then nothing is left
    assert!((0..3).any(|_| pair.endpoint.look_around()));
    let send = pair.endpoint.isend(A, outgoing(from, &source, 7)).unwrap();
    assert_eq!((pair.finish(receive).result, pair.finish(send).result), (Ok(()), Ok(())));
    // after a long one none is held back
    assert!((0..8).all(|_| cross(&mut pair, 8, 40_000) == 0));
    assert_ne!(cross(&mut pair, 8, 40_000), 0);
}
