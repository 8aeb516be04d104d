//! A peer that says on the wire what no peer of this version would: its connection ends, and
//! nothing of it is believed.

use super::*;
use crate::base::ids::PeerIndex;
use crate::fabric::{LocalSpan, Op, OpId, OpKind, Source};
use crate::wire::head::{KIND_DESCRIPTOR, KIND_EAGER, KIND_START, SendHead};
use crate::wire::immediate;

/// What A's end of the rail says to B.
const TO_B: PeerIndex = PeerIndex(0);

impl Pair<'_> {
    fn say(&mut self, head: SendHead, payload: LocalSpan) {
        let head = SendHead { epoch: 1, credits_through: CREDITS, ..head };
        self.tell(OpKind::Send { head: head.encode(), payload });
    }

    fn tell(&mut self, kind: OpKind) {
        let op = Op { id: OpId(0), peer: TO_B, kind };
        self.endpoint.rail_mut().post(&op, Instant(0)).unwrap();
        self.settle();
    }

    fn span_of(&self, memory: Handle, bytes: &[u8]) -> LocalSpan {
        let (address, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let region = self.regions.check(memory, address, length).unwrap();
        self.regions.span(region, address, length, rail::DataRail(0))
    }

    fn b_is_over(&mut self, memory: Handle, room: &[u8]) {
        let over = Err(SubmitError::Failed(RequestError::Protocol));
        assert_eq!(self.endpoint.irecv(B, &[incoming(memory, room, 0)]), over);
    }
}

/// A receive of a connection that pushes ended twice: by a read, and by stripes beside it.
#[test]
fn description_on_a_connection_that_pushes_is_not_followed() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut target = [0u8; 64];
    let to = pair.register(&mut target);
    let key = pair.regions.idle_keys(to).unwrap()[0];
    let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
    let mut description = vec![0u8; 24];
    description[16..].copy_from_slice(&key.0.to_le_bytes());
    description[..8].copy_from_slice(&(target.as_ptr() as u64).to_le_bytes());
    description[8] = 64;
    let words = pair.register(&mut description);
    let payload = pair.span_of(words, &description);
    pair.say(SendHead { kind: KIND_DESCRIPTOR, ..SendHead::ZERO }, payload);
    assert_eq!(pair.finish(receive).result, Err(RequestError::Protocol));
    pair.b_is_over(to, &target);
    pair.regions.remove(to).unwrap();
}

#[test]
fn start_and_stripe_on_a_connection_that_pulls_end_no_receive() {
    for is_stripe in [false, true] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, true);
        let mut target = [0u8; 64];
        let to = pair.register(&mut target);
        let mut length = 8u64.to_le_bytes();
        let words = pair.register(&mut length);
        let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
        let token = immediate::token(crate::base::seq::Seq(0), 0);
        if is_stripe {
            let key = pair.regions.idle_keys(words).unwrap()[0];
            let target = RemoteSpan { key, address: length.as_ptr() as u64 };
            let immediate = Some(immediate::encode(token, 0));
            pair.tell(OpKind::Write { source: Source::Span(LocalSpan::EMPTY), target, immediate });
        } else {
            let payload = pair.span_of(words, &length);
            let (kind, tag) = (KIND_START, token as i32);
            pair.say(SendHead { kind, tag, stripes: 1, ..SendHead::ZERO }, payload);
        }
        assert_eq!(pair.finish(receive).result, Err(RequestError::Protocol));
        pair.b_is_over(to, &target);
    }
}

/// The next offer went through all groups that were never posted, 2^32 of them.
#[test]
fn groups_that_were_never_posted_are_bound_by_nobody() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut target = [0u8; 64];
    let to = pair.register(&mut target);
    pair.say(SendHead { kind: KIND_EAGER, group_base: 1, ..SendHead::ZERO }, LocalSpan::EMPTY);
    pair.b_is_over(to, &target);
}

/// The count of bytes received overflowed.
#[test]
fn message_longer_than_any_is_none() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    let mut target = [0u8; 64];
    let to = pair.register(&mut target);
    let first = pair.endpoint.irecv(B, &[incoming(to, &target[..8], 0)]).unwrap();
    let send = pair.endpoint.isend(A, outgoing(to, &target[8..16], 0)).unwrap();
    for request in [first, send] {
        assert_eq!(pair.finish(request).result, Ok(()));
    }
    let second = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
    pair.settle();
    let mut length = u64::MAX.to_le_bytes();
    let words = pair.register(&mut length);
    let payload = pair.span_of(words, &length);
    let tag = immediate::token(crate::base::seq::Seq(1), 0) as i32;
    let head = SendHead { kind: KIND_START, tag, eager_number: 1, stripes: 1, ..SendHead::ZERO };
    pair.say(head, payload);
    assert_eq!(pair.finish(second).result, Err(RequestError::Protocol));
}

/// Whoever only receives does not look at what the peer says of itself, and took a failure for an
/// orderly end.
#[test]
fn peer_that_gave_up_has_not_closed_to_who_only_receives_either() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut target = [0u8; 64];
        let to = pair.register(&mut target);
        let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 0)]).unwrap();
        pair.settle();
        // this one has come to who pulls, and stays
        let mut source = [7u8; 8];
        let from = pair.register(&mut source);
        pair.endpoint.isend(A, outgoing(from, &source, 5)).unwrap();
        pair.settle();
        pair.endpoint.net.connection_fail(0, RequestError::NoAnswer);
        assert_eq!(pair.finish(receive).result, Err(RequestError::PeerGaveUp), "pull {pull}");
        // where the sender has slots to look at, it keeps what has none
        let left = pair.endpoint.irecv(B, &[incoming(to, &target[..8], 5)]);
        assert_eq!(left.map(|left| pair.finish(left).result).is_ok(), pull);
        assert_eq!(target[..8], [if pull { 7 } else { 0 }; 8]);
    }
}
