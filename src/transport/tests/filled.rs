//! What short messages have filled, told by the heads of answers.

use super::again::Narrow;
use super::*;
use crate::transport::connection::{Connection, READS_RUNS};
use crate::wire::head::{FILLED_SAID, KIND_EAGER, SendHead};

const BYTES: usize = 8;
const STEP_NS: u64 = 10_000;

/// Two ends that answer each other's messages, over a rail of which there may be several, where a
/// line costs a call of the system.
struct Answers<'m> {
    pair: Pair<'m, Narrow<'m>>,
    memory: Vec<u8>,
    region: Handle,
    now: u64,
}

impl<'m> Answers<'m> {
    fn open(block: &'m mut HeapBlock) -> Answers<'m> {
        let wrap = |inner| Narrow { inner, refuses: None, transfer_max: [Bytes::mib(1); 2] };
        let mut pair = Pair::open_over(block, false, wrap);
        pair.lines_cost_calls();
        let mut memory = pattern(2 * LONG, 1);
        let region = pair.register(&mut memory);
        Answers { pair, memory, region, now: 1_000_000_000 }
    }

    fn end(&self, of: ConnectionIndex) -> &Connection {
        &self.pair.endpoint.net.connections[of.as_usize()]
    }

    fn receive(&mut self, at: ConnectionIndex, length: usize, tag: i32) -> RequestId {
        let room = incoming(self.region, &self.memory[LONG..][..length], tag);
        self.pair.endpoint.irecv(at, &[room]).unwrap()
    }

    fn send(&mut self, from: ConnectionIndex, length: usize, tag: i32) -> RequestId {
        let message = outgoing(self.region, &self.memory[..length], tag);
        self.pair.endpoint.isend(from, message).unwrap()
    }

    fn end_of(&mut self, request: RequestId) -> Outcome {
        loop {
            self.pair.endpoint.progress(Instant(self.now), BUDGET);
            if let Some(outcome) = self.pair.endpoint.test(request).unwrap() {
                return outcome;
            }
            self.now += STEP_NS / 10;
        }
    }

    /// So many messages each way, each the answer to one. The next receive of either end waits.
    fn rounds(&mut self, count: usize, waiting: &mut [RequestId; 2]) {
        for round in 0..2 * count {
            let (from, at) = if round % 2 == 0 { (A, 1) } else { (B, 0) };
            self.send(from, BYTES, 7);
            self.now += STEP_NS;
            let outcome = self.end_of(waiting[at]);
            assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), BYTES as u64));
            waiting[at] = self.receive([A, B][at], BYTES, 7);
        }
    }

    /// How many of the newest `count` groups of an end had slots.
    fn slots(&self, of: ConnectionIndex, count: u32) -> usize {
        let post = self.end(of).recv.post.0;
        let reader = [B, A][of.as_usize()].as_usize();
        let number = |back: &u32| crate::base::seq::Seq(post.wrapping_sub(*back));
        let is_there = |back: &u32| self.pair.endpoint.net.slot_is_there(reader, number(back), 0);
        (1..=count).filter(is_there).count()
    }

    /// A long message, which needs a slot, finds its receive behind all that had none.
    fn long_one(&mut self, from: ConnectionIndex, waiting: RequestId) {
        let to = [B, A][from.as_usize()];
        let receive = self.receive(to, LONG, 9);
        self.send(from, BYTES, 7);
        assert_eq!(self.end_of(waiting).result, Ok(()));
        let send = self.send(from, LONG, 9);
        assert_eq!(self.end_of(receive).result, Ok(()));
        assert_eq!(self.end_of(send).result, Ok(()));
        assert!(self.memory[..LONG] == self.memory[LONG..]);
        let (sender, receiver) = (self.end(from), self.end(to));
        assert_eq!((sender.send.cursor.early, sender.send.cursor.group), (0, receiver.recv.post));
    }
}

/// Each tenth answer had a line with it, for either side, which takes as long as the answer.
#[test]
fn answers_tell_what_they_answer_and_no_line_does() {
    for reads_filled in [true, false] {
        let mut block = block();
        let mut ends = Answers::open(&mut block);
        if !reads_filled {
            ends.pair
                .endpoint
                .net
                .connections
                .iter_mut()
                .for_each(|c| c.control.lines.reads = READS_RUNS);
        }
        let mut waiting = [A, B].map(|end| ends.receive(end, BYTES, 7));
        ends.rounds(20, &mut waiting);
        let told = |ends: &Answers<'_>| {
            [A, B].map(|end| ends.end(end)).map(|c| c.recv.oldest.ahead_of(c.recv.offers.next))
        };
        ends.rounds(20, &mut waiting);
        for end in [A, B] {
            assert_eq!(ends.slots(end, 20) != 0, !reads_filled);
        }
        if reads_filled {
            // the last answer has not been answered
            assert_eq!(told(&ends), [1, 0]);
            assert!(ends.end(A).send.cursor.early <= 1 && ends.end(B).send.cursor.early <= 1);
        }
        ends.long_one(A, waiting[1]);
        ends.long_one(B, waiting[0]);
    }
}

/// A message that is nobody's yet was sent before those that fill receives: the sender must not
/// take it for one of them.
#[test]
fn nothing_is_told_while_a_message_is_left_over() {
    let mut block = block();
    let mut ends = Answers::open(&mut block);
    let mut waiting = [A, B].map(|end| ends.receive(end, BYTES, 7));
    ends.rounds(20, &mut waiting);
    // B has no receive for it, and answers the next one
    ends.send(A, BYTES, 5);
    ends.now += STEP_NS;
    for _ in 0..3 {
        ends.send(A, BYTES, 7);
        let outcome = ends.end_of(waiting[1]);
        assert_eq!(outcome.result, Ok(()));
        assert_eq!(
            ends.pair.endpoint.recvs.filled_through(&ends.pair.endpoint.net, B.as_usize()),
            None
        );
        waiting[1] = ends.receive(B, BYTES, 7);
        ends.send(B, BYTES, 7);
        assert_eq!(ends.end_of(waiting[0]).result, Ok(()));
        waiting[0] = ends.receive(A, BYTES, 7);
    }
    ends.send(A, BYTES, 7);
    assert_eq!(ends.end_of(waiting[1]).result, Ok(()));
    let left_over = ends.receive(B, BYTES, 5);
    assert_eq!(ends.end_of(left_over).result, Ok(()));
    waiting[1] = ends.receive(B, BYTES, 7);
    ends.rounds(4, &mut waiting);
    ends.long_one(A, waiting[1]);
    ends.long_one(B, waiting[0]);
}

/// An older message that fills a part of the next group was taken for one of those that filled the
/// groups before it (seed 40234 of the simulator).
#[test]
fn nothing_is_told_while_the_next_group_is_half_full() {
    let mut block = block();
    let mut ends = Answers::open(&mut block);
    let mut waiting = [A, B].map(|end| ends.receive(end, BYTES, 7));
    ends.rounds(20, &mut waiting);
    ends.send(A, BYTES, 5); // left over
    ends.send(A, BYTES, 7);
    assert_eq!(ends.end_of(waiting[1]).result, Ok(()));
    let two = [5, 6].map(|tag| incoming(ends.region, &ends.memory[LONG..][..BYTES], tag));
    let both = ends.pair.endpoint.irecv(B, &two).unwrap();
    assert!(ends.end(B).recv.messages.unexpected.is_empty());
    assert_eq!(
        ends.pair.endpoint.recvs.filled_through(&ends.pair.endpoint.net, B.as_usize()),
        None
    );
    ends.send(B, BYTES, 7);
    assert_eq!(ends.end_of(waiting[0]).result, Ok(()));
    ends.send(A, BYTES, 6);
    assert_eq!(ends.end_of(both).result, Ok(()));
    waiting = [A, B].map(|end| ends.receive(end, BYTES, 7));
    ends.rounds(4, &mut waiting);
    ends.long_one(A, waiting[1]);
    ends.long_one(B, waiting[0]);
}

/// What was told by heads that the peer may not have seen has slots on the next control lane.
#[test]
fn what_was_told_has_slots_on_the_next_control_lane() {
    let mut block = block();
    let mut ends = Answers::open(&mut block);
    let mut waiting = [A, B].map(|end| ends.receive(end, BYTES, 7));
    ends.rounds(20, &mut waiting);
    ends.send(A, BYTES, 7);
    ends.now += STEP_NS;
    assert_eq!(ends.end_of(waiting[1]).result, Ok(()));
    waiting[1] = ends.receive(B, BYTES, 7);
    ends.send(B, BYTES, 7); // which tells it, and nobody has looked
    assert_eq!(ends.slots(B, 2), 0);
    let (told, passed) = (ends.end(B).recv.offers.next, ends.end(B).recv.offers.passed);
    assert_eq!(told.ahead_of(passed), 1);
    ends.pair.endpoint.net.control_resume(B.as_usize());
    while ends.end(B).recv.offers.next != ends.end(B).recv.post {
        ends.now += 10 * STEP_NS;
        ends.pair.endpoint.progress(Instant(ends.now), BUDGET);
    }
    assert_eq!(ends.slots(B, 2), 2);
    assert_eq!(ends.end_of(waiting[0]).result, Ok(()));
    waiting[0] = ends.receive(A, BYTES, 7);
    ends.rounds(20, &mut waiting);
    ends.long_one(A, waiting[1]);
    ends.long_one(B, waiting[0]);
}

/// A peer that tells of more than it was sent breaks the protocol; one that tells again does not.
#[test]
fn more_is_filled_than_was_sent() {
    for (ahead, is_sound) in [(0, true), (-3, true), (1, false), (300, false)] {
        let mut block = block();
        let mut ends = Answers::open(&mut block);
        let mut waiting = [A, B].map(|end| ends.receive(end, BYTES, 7));
        ends.rounds(4, &mut waiting);
        ends.send(B, BYTES, 7);
        assert_eq!(ends.end_of(waiting[0]).result, Ok(()));
        for _ in 0..40 {
            ends.pair.endpoint.progress(Instant(ends.now), BUDGET);
        }
        let c = ends.end(A);
        assert_eq!(c.send.cursor.early, 0, "all that A sent has a group");
        let number = c.send.cursor.group.0.wrapping_add_signed(ahead) as u16 & !FILLED_SAID;
        let filled = FILLED_SAID | number;
        let head = SendHead { kind: KIND_EAGER, filled, ..SendHead::ZERO };
        assert_eq!(
            ends.pair.endpoint.sends.filled_heard(&mut ends.pair.endpoint.net, A.as_usize(), &head),
            is_sound,
            "{ahead}"
        );
    }
}
