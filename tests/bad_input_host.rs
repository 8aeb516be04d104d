//! Bad input names itself, changes nothing, and the next good call works.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::host::endpoint::Closing;
use crosstie::host::{
    AcceptError, AllocateError, ConnectError, DeregisterError, OpenError, Options, RegisterError,
};
use crosstie::transport::limits::LimitsError;
use crosstie::transport::request::RequestIdError;
use crosstie::transport::{Limits, Outgoing, RequestError, RequestId, SubmitError};
use crosstie::wire::handle::ListenHandle;
use host_support::{Memory, Node, Place, Watch, joined, small, wait_both};

const BYTES: usize = 1 << 20;

struct Two {
    a: Node,
    b: Node,
    to_b: Handle,
    to_a: Handle,
    from: Memory,
    into: Memory,
}

fn two() -> Two {
    let (mut a, mut b) = (Node::open(&small(4)), Node::open(&small(4)));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let from = Memory::new(&a, Place::Private, BYTES);
    let into = Memory::new(&b, Place::Shared, BYTES);
    Two { a, b, to_b, to_a, from, into }
}

impl Two {
    /// Messages of each way still cross.
    fn works(&mut self) {
        for (number, length) in [8usize, 100_000].into_iter().enumerate() {
            self.from.fill(0, length, number as u64);
            let receive = self.b.irecv(self.to_a, &[self.into.incoming(0, length, 9)]).unwrap();
            let send = self.a.isend(self.to_b, self.from.outgoing(0, length, 9)).unwrap();
            let outcome = wait_both(&mut self.b, &mut self.a, receive);
            assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), length as u64));
            assert_eq!(wait_both(&mut self.a, &mut self.b, send).result, Ok(()));
            self.into.verify(0, length, number as u64);
        }
    }

    fn refuses_send(&mut self, message: Outgoing, error: SubmitError) {
        let before = self.a.stats();
        assert_eq!(self.a.isend(self.to_b, message), Err(error));
        assert_eq!(self.a.stats(), before);
        self.works();
    }
}

#[test]
fn region_that_was_never_registered_is_refused() {
    let mut two = two();
    for region in [
        Handle::default(),
        Handle { index: 63, generation: 1 },
        Handle { index: u32::MAX, generation: 1 },
    ] {
        let message = Outgoing { region, ..two.from.outgoing(0, 8, 0) };
        two.refuses_send(message, SubmitError::Region);
        let room = crosstie::transport::Incoming { region, ..two.into.incoming(0, 8, 0) };
        assert_eq!(two.b.irecv(two.to_a, &[room]), Err(SubmitError::Region));
        assert_eq!(two.a.shared.deregister(region), Err(DeregisterError::Stale));
        assert_eq!(two.a.shared.free(region), Err(DeregisterError::Stale));
    }
    two.works();
}

#[test]
fn region_that_was_deregistered_is_refused_also_when_its_slot_is_used_again() {
    let mut two = two();
    let old = Memory::new(&two.a, Place::Private, 4096);
    let message = old.outgoing(0, 8, 0);
    let region = old.region;
    old.release(&two.a);
    two.refuses_send(message, SubmitError::Region);
    let again = Memory::new(&two.a, Place::Private, 4096);
    assert_eq!(again.region.index, region.index);
    two.refuses_send(Outgoing { region, ..again.outgoing(0, 8, 0) }, SubmitError::Region);
    assert_eq!(two.a.shared.deregister(region), Err(DeregisterError::Stale));
}

#[test]
fn range_outside_its_region_is_refused() {
    let mut two = two();
    let good = two.from.outgoing(0, 8, 0);
    for (address, length) in [
        (good.address - 1, 8),
        (good.address + BYTES as u64 - 7, 8),
        (good.address, BYTES as u64 + 1),
        (u64::MAX - 3, 8),
        (0, 8),
    ] {
        two.refuses_send(Outgoing { address, length, ..good }, SubmitError::Range);
    }
    let all = two.from.outgoing(0, BYTES, 0);
    let message = Outgoing { length: (1 << 40) + 1, ..all };
    two.refuses_send(message, SubmitError::TooLong);
    let length = u64::MAX;
    two.refuses_send(Outgoing { length, ..all }, SubmitError::TooLong);
}

#[test]
fn region_of_another_endpoint_does_not_reach_its_memory() {
    let mut two = two();
    // a number that this endpoint has not given, and one whose range is another
    let foreign = two.into.outgoing(0, 8, 0);
    let error = two.a.isend(two.to_b, foreign).unwrap_err();
    assert!(matches!(error, SubmitError::Region | SubmitError::Range), "{error:?}");
    two.works();
}

#[test]
fn group_has_one_to_eight_receives() {
    let mut two = two();
    let room = two.into.incoming(0, 8, 1);
    assert_eq!(two.b.irecv(two.to_a, &[]), Err(SubmitError::Group));
    assert_eq!(two.b.irecv(two.to_a, &[room; 9]), Err(SubmitError::Group));
    two.works();
    let receive = two.b.irecv(two.to_a, &[room; 8]).unwrap();
    for _ in 0..8 {
        let send = two.a.isend(two.to_b, two.from.outgoing(0, 8, 1)).unwrap();
        assert_eq!(wait_both(&mut two.a, &mut two.b, send).result, Ok(()));
    }
    let outcome = wait_both(&mut two.b, &mut two.a, receive);
    assert_eq!((outcome.result, outcome.count), (Ok(()), 8));
}

#[test]
fn group_with_one_bad_receive_pins_none_of_its_regions() {
    let mut two = two();
    let good = two.into.incoming(0, 8, 1);
    let bad = crosstie::transport::Incoming { region: Handle::default(), ..good };
    assert_eq!(two.b.irecv(two.to_a, &[good, bad]), Err(SubmitError::Region));
    two.works();
    let Two { b, into, .. } = two;
    into.release(&b);
}

#[test]
fn closed_connection_is_refused_and_others_go_on() {
    let mut two = two();
    let (other, back) = joined(&mut two.a, &mut two.b);
    two.a.disconnect(other);
    let message = two.from.outgoing(0, 8, 0);
    assert_eq!(two.a.isend(other, message), Err(SubmitError::Connection));
    assert_eq!(two.a.irecv(other, &[two.from.incoming(0, 8, 0)]), Err(SubmitError::Connection));
    assert_eq!(two.a.connection_close(other), Closing::Stale);
    for wrong in [Handle::default(), Handle { index: u32::MAX, generation: 1 }] {
        assert_eq!(two.a.isend(wrong, message), Err(SubmitError::Connection));
        assert_eq!(two.a.connection_close(wrong), Closing::Stale);
        assert_eq!(two.a.shared.peer_text(wrong, &mut [0; 64]), 0);
    }
    two.works();
    two.b.disconnect(back);
    two.works();
}

#[test]
fn message_longer_than_its_receive_ends_with_truncated_and_the_next_arrives() {
    let mut two = two();
    for (long, room) in [(100usize, 99usize), (8192, 0), (500_000, 499_999), (500_000, 8)] {
        let first = two.b.irecv(two.to_a, &[two.into.incoming(0, room, 3)]).unwrap();
        let next = two.b.irecv(two.to_a, &[two.into.incoming(BYTES / 2, long, 3)]).unwrap();
        two.into.fill(0, room, 77);
        two.from.fill(0, long, 5);
        let sends = [0, 1].map(|_| two.a.isend(two.to_b, two.from.outgoing(0, long, 3)).unwrap());
        let outcome = wait_both(&mut two.b, &mut two.a, first);
        assert_eq!(outcome.result, Err(RequestError::Truncated), "{long} in {room}");
        two.into.verify(0, room, 77);
        let outcome = wait_both(&mut two.b, &mut two.a, next);
        assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), long as u64));
        two.into.verify(BYTES / 2, long, 5);
        for send in sends {
            let sent = wait_both(&mut two.a, &mut two.b, send).result;
            assert!(matches!(sent, Ok(()) | Err(RequestError::Truncated)), "{sent:?}");
        }
    }
    assert_eq!(two.b.stats().truncated, 4);
    two.works();
}

#[test]
fn region_is_busy_while_a_request_stands() {
    let mut two = two();
    let receive = two.b.irecv(two.to_a, &[two.into.incoming(0, 8, 4)]).unwrap();
    assert_eq!(two.b.shared.free(two.into.region), Err(DeregisterError::Busy));
    // what was allocated is freed alone
    assert_eq!(two.b.shared.deregister(two.into.region), Err(DeregisterError::Stale));
    let send = two.a.isend(two.to_b, two.from.outgoing(0, 8, 4)).unwrap();
    assert_eq!(wait_both(&mut two.b, &mut two.a, receive).result, Ok(()));
    assert_eq!(wait_both(&mut two.a, &mut two.b, send).result, Ok(()));
    // a long message stands until its receiver has read it
    let send = two.a.isend(two.to_b, two.from.outgoing(0, BYTES, 4)).unwrap();
    assert_eq!(two.a.shared.deregister(two.from.region), Err(DeregisterError::Busy));
    let receive = two.b.irecv(two.to_a, &[two.into.incoming(0, BYTES, 4)]).unwrap();
    assert_eq!(wait_both(&mut two.b, &mut two.a, receive).result, Ok(()));
    assert_eq!(wait_both(&mut two.a, &mut two.b, send).result, Ok(()));
    two.works();
    let Two { a, b, from, into, .. } = two;
    from.release(&a);
    into.release(&b);
}

#[test]
fn memory_that_was_not_allocated_here_cannot_be_freed() {
    let two = two();
    assert_eq!(two.a.shared.free(two.from.region), Err(DeregisterError::Stale));
    let (start, _) = two.a.shared.allocate(Bytes(4096)).unwrap();
    // part of an allocation, registered by hand, is no allocation
    // SAFETY: the allocation lives to the end of the test.
    let part =
        unsafe { two.a.shared.register(start as u64 + 64, Bytes(64), MemoryKind::Host) }.unwrap();
    assert_eq!(two.a.shared.free(part), Err(DeregisterError::Stale));
    assert_eq!(two.a.shared.deregister(part), Ok(()), "it is registered still");
}

#[test]
fn impossible_memory_is_refused_by_name() {
    let two = two();
    let register = |address, bytes, kind| {
        // SAFETY: refused; nothing uses it.
        unsafe { two.a.shared.register(address, Bytes(bytes), kind) }
    };
    assert_eq!(register(4096, 0, MemoryKind::Host), Err(RegisterError::Range));
    assert_eq!(register(u64::MAX - 4, 8, MemoryKind::Host), Err(RegisterError::Range));
    assert_eq!(two.a.shared.allocate(Bytes(0)).unwrap_err(), RegisterError::Range.into());
    assert_eq!(two.a.shared.allocate(Bytes(u64::MAX)).unwrap_err(), RegisterError::Range.into());
    assert_eq!(two.a.shared.allocate(Bytes(1 << 50)).unwrap_err(), AllocateError::HeapFull);
    let bare = Node::open(&Options { heap_bytes: Bytes::ZERO, ..small(1) });
    assert_eq!(bare.shared.allocate(Bytes(64)).unwrap_err(), RegisterError::Kind.into());
}

#[test]
fn full_table_of_regions_is_an_answer_and_a_free_place_is_used() {
    let node = Node::open(&small(1));
    let mut held = vec![];
    let error = loop {
        match node.shared.allocate(Bytes(4096)) {
            Ok((_, region)) => held.push(region),
            Err(error) => break error,
        }
    };
    assert_eq!((held.len(), error), (64, RegisterError::Full.into()));
    for _ in 0..100 {
        node.shared.free(held.pop().unwrap()).unwrap();
        held.push(node.shared.allocate(Bytes(4096)).unwrap().1);
        assert_eq!(node.shared.allocate(Bytes(4096)).unwrap_err(), RegisterError::Full.into());
    }
}

#[test]
fn damaged_foreign_and_newer_handles_name_themselves() {
    let mut two = two();
    let (listener, good) = two.b.shared.listen().unwrap();
    let mut corrupt = good;
    corrupt[60] ^= 4;
    assert_eq!(two.a.shared.connect(&corrupt).unwrap_err(), ConnectError::HandleCorrupt);
    assert_eq!(two.a.shared.connect(&[7; 128]).unwrap_err(), ConnectError::HandleForeign);
    assert_eq!(two.a.shared.connect(&[0; 128]).unwrap_err(), ConnectError::HandleForeign);
    let mut newer = good;
    newer[8..10].copy_from_slice(&99u16.to_le_bytes());
    let sum = newer[..120].iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    newer[120..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(two.a.shared.connect(&newer).unwrap_err(), ConnectError::Version(99));
    let decoded = ListenHandle::decode(&good).unwrap();
    let nowhere = ListenHandle { listener: decoded.listener ^ 2, ..decoded }.encode();
    let attempt = two.a.shared.connect(&nowhere).unwrap();
    let error = two.a.connected(attempt).unwrap_err();
    assert!(matches!(error, ConnectError::NoListener(_)), "{error:?}");
    let attempt = two.a.shared.connect(&good).unwrap();
    let connection = two.a.connected(attempt).unwrap();
    let accepted = two.b.accepted(listener);
    two.works();
    two.a.disconnect(connection);
    two.b.disconnect(accepted);
}

#[test]
fn closed_listener_is_stale_for_its_owner_and_gone_for_others() {
    let mut two = two();
    let (listener, handle) = two.b.shared.listen().unwrap();
    two.b.shared.listener_close(listener).unwrap();
    assert_eq!(two.b.shared.listener_close(listener), Err(AcceptError::Stale));
    assert_eq!(two.b.shared.accept(listener), Err(AcceptError::Stale));
    let attempt = two.a.shared.connect(&handle).unwrap();
    let error = two.a.connected(attempt).unwrap_err();
    assert!(matches!(error, ConnectError::NoListener(_)), "{error:?}");
    assert!(error.to_string().contains("no listener at"), "{error}");
    assert_eq!(two.a.shared.connect_poll(attempt), Err(ConnectError::Stale));
    two.works();
}

#[test]
fn request_is_told_once_and_a_wrong_number_names_nothing() {
    let mut two = two();
    let receive = two.b.irecv(two.to_a, &[two.into.incoming(0, 8, 0)]).unwrap();
    two.a.isend(two.to_b, two.from.outgoing(0, 8, 0)).unwrap();
    wait_both(&mut two.b, &mut two.a, receive);
    assert_eq!(two.b.test(receive), Err(RequestIdError::Stale));
    assert_eq!(two.b.cancel(receive), Err(RequestIdError::Stale));
    let mut random = host_support::Random(7);
    for _ in 0..10_000 {
        let number = RequestId(random.next());
        if number.0 >> 30 & 3 != 1 {
            assert_eq!(two.b.test(number), Err(RequestIdError::Stale), "{number:?}");
            assert_eq!(two.b.cancel(number), Err(RequestIdError::Stale), "{number:?}");
        }
    }
    two.works();
}

#[test]
fn receives_beyond_the_limit_are_told_to_come_again() {
    let mut two = two();
    let room = two.into.incoming(0, 8, 0);
    let mut held = vec![];
    let error = loop {
        match two.b.irecv(two.to_a, &[room]) {
            Ok(request) => held.push(request),
            Err(error) => break error,
        }
    };
    assert_eq!((held.len(), error), (32, SubmitError::Again));
    let watch = Watch::start();
    for request in held {
        two.a.isend(two.to_b, two.from.outgoing(0, 8, 0)).unwrap();
        assert_eq!(wait_both(&mut two.b, &mut two.a, request).result, Ok(()));
        watch.look("32 messages");
    }
    two.works();
}

#[test]
fn wrong_options_name_what_is_wrong() {
    let limits = Limits { connections_max: 4, requests_max: 32, regions_max: 4, rails_max: 1 };
    let limit = |limits| Node::try_open(&Options { limits, ..small(1) }).err();
    for (limits, error) in [
        (Limits { requests_max: 33, ..limits }, LimitsError::Requests),
        (Limits { requests_max: 16, ..limits }, LimitsError::Requests),
        (Limits { requests_max: 512, ..limits }, LimitsError::Requests),
    ] {
        assert_eq!(limit(limits), Some(OpenError::Limits(error)));
    }
    for options in [
        Options { send_ring_bytes: 5000, ..small(1) },
        Options { send_ring_bytes: 0, ..small(1) },
        Options { send_ring_bytes: 1 << 31, ..small(1) },
        Options { write_ring_bytes: 1 << 31, ..small(1) },
        Options { write_ring_bytes: 2048, ..small(1) },
        Options { eager_bytes_max: Bytes(u64::MAX), ..small(1) },
        Options { send_ring_bytes: 4096, ..small(1) },
    ] {
        assert!(matches!(Node::try_open(&options), Err(OpenError::Rings(_))), "{options:?}");
    }
}
