//! Offers of groups that are held back, since a packet each is much.

use super::*;
use crate::base::seq::Seq;
use crate::transport::connection::{READS_ROWS, READS_RUNS};
use crate::transport::limits::EARLY_MAX;
use crate::transport::request::SubmitError;

const GROUP: usize = 4;
const GROUPS: usize = 40;
const BYTES: usize = 8;

const MICRO: u64 = 1000;

/// Two ends between which short messages cross one at a time, each when the one before has come.
struct Crossing<'m> {
    pair: Pair<'m>,
    source: Vec<u8>,
    target: Vec<u8>,
    from: Handle,
    to: Handle,
    now: u64,
}

impl<'m> Crossing<'m> {
    fn open(block: &'m mut HeapBlock, reads_runs: bool) -> Crossing<'m> {
        let mut pair = Pair::open(block, false);
        pair.lines_cost_calls();
        let reads = READS_ROWS | (u8::from(reads_runs) * READS_RUNS);
        pair.endpoint.net.connections[B.as_usize()].control.lines.reads = reads;
        let (mut source, mut target) = (pattern(LONG, 1), vec![0u8; LONG]);
        let (from, to) = (pair.register(&mut source), pair.register(&mut target));
        Crossing { pair, source, target, from, to, now: 1000 * MICRO }
    }

    /// How many groups have not been offered at a time.
    fn held(&mut self, now: u64) -> i32 {
        self.pair.endpoint.progress(Instant(now), BUDGET);
        let c = &self.pair.endpoint.net.connections[B.as_usize()];
        c.recv.post.ahead_of(c.recv.offers.next)
    }

    /// Posts a receive.
    fn receive(&mut self, tag: i32) -> Result<RequestId, SubmitError> {
        self.pair.endpoint.irecv(B, &[incoming(self.to, &self.target, tag)])
    }

    /// Sends a short message.
    fn send(&mut self, tag: i32) -> RequestId {
        let message = outgoing(self.from, &self.source[..BYTES], tag);
        self.pair.endpoint.isend(A, message).unwrap()
    }

    /// One message; what was held back after three quarters of the time in which nothing came.
    fn cross(&mut self, gap_us: u64) -> i32 {
        let receive = self.receive(7).unwrap();
        self.held(self.now);
        let late = self.held(self.now + gap_us * MICRO * 3 / 4);
        self.now += gap_us * MICRO;
        let send = self.send(7);
        while self.pair.endpoint.test(receive).unwrap().is_none() {
            self.pair.endpoint.progress(Instant(self.now), BUDGET);
        }
        assert_eq!(self.pair.finish(send).result, Ok(()));
        late
    }

    /// How many of the newest groups have a slot that was written.
    fn slots(&self, newest: u32) -> usize {
        let post = self.pair.endpoint.net.connections[B.as_usize()].recv.post;
        let at = |back| Seq(post.0.wrapping_sub(back));
        let endpoint = &self.pair.endpoint;
        (1..=newest).filter(|back| endpoint.net.slot_is_there(A.as_usize(), at(*back), 0)).count()
    }
}

/// Who answered each message in more than the least hold was offered a slot while the answer was on
/// its way, at a packet, and a system call, each.
#[test]
fn slots_are_held_back_from_a_peer_that_answers_as_steadily_as_before() {
    // eight that are filled leave together, with the one that is not, or behind one slot for all
    for (reads_runs, period, times_none) in [(false, 9, 4), (true, 8, 0)] {
        let mut block = block();
        let mut ends = Crossing::open(&mut block, reads_runs);
        assert!((0..16).all(|_| ends.cross(100) < 9));
        let counts: Vec<i32> = (0..4 * period).map(|_| ends.cross(100)).collect();
        assert_eq!(counts.iter().filter(|count| **count == 8).count(), 4, "{counts:?}");
        assert_eq!(counts.iter().filter(|count| **count == 0).count(), times_none, "{counts:?}");
        // beyond that nobody waits for the next
        assert!((0..8).all(|_| ends.cross(1000) < 9));
        assert!((0..24).all(|_| ends.cross(1000) == 0));
    }
}

/// Each had a line of its own, which is a packet.
#[test]
fn one_slot_speaks_for_what_short_messages_have_filled() {
    for reads_runs in [true, false] {
        let mut block = block();
        let mut ends = Crossing::open(&mut block, reads_runs);
        (0..40).for_each(|_| assert!(ends.cross(100) < 9));
        let held = ends.held(ends.now) as u32;
        let slots = ends.slots(20 + held);
        assert_eq!(slots, if reads_runs { 2 } else { 20 });
        // the sender has stepped over them: a long message finds its receive
        let room = incoming(ends.to, &ends.target, 7);
        let receive = ends.pair.endpoint.irecv(B, &[room]).unwrap();
        let send = ends.pair.endpoint.isend(A, outgoing(ends.from, &ends.source, 7)).unwrap();
        while ends.held(ends.now) != 0 {
            ends.now += 100 * MICRO;
        }
        assert_eq!(ends.pair.finish(receive).result, Ok(()));
        assert_eq!(ends.pair.finish(send).result, Ok(()));
        assert_eq!(ends.target, ends.source);
        let [ours, theirs] = [A, B].map(|of| &ends.pair.endpoint.net.connections[of.as_usize()]);
        assert_eq!((ours.send.cursor.early, ours.send.cursor.group), (0, theirs.recv.post));
    }
}

/// Each receive behind ten that were posted ahead had a line of its own, however short the messages
/// were.
#[test]
fn slots_are_held_back_although_many_receives_are_outstanding() {
    let mut block = block();
    let mut ends = Crossing::open(&mut block, true);
    (0..16).for_each(|_| assert!(ends.cross(100) < 9));
    let mut posted: std::collections::VecDeque<_> =
        (0..14).map(|_| ends.receive(7).unwrap()).collect();
    let mut held = Vec::new();
    for _ in 0..48 {
        ends.send(7);
        ends.now += 2 * MICRO;
        ends.held(ends.now);
        let first = posted.pop_front().unwrap();
        assert_eq!(ends.pair.endpoint.test(first).unwrap().unwrap().result, Ok(()));
        posted.push_back(ends.receive(7).unwrap());
        held.push(ends.held(ends.now));
    }
    let last = &held[16..];
    assert!(last.iter().all(|held| (14..14 + 8).contains(held)), "{held:?}");
    // of eight messages one slot speaks
    assert_eq!(last.iter().filter(|held| **held == 14).count(), 4, "{held:?}");
}

/// Records of what was filled and tested were kept for slots that were held back, so that whoever
/// had as many outstanding as there may be was told `Again` for nearly each.
#[test]
fn as_many_receives_may_be_outstanding_as_before() {
    let mut block = block();
    let mut ends = Crossing::open(&mut block, true);
    (0..16).for_each(|_| assert!(ends.cross(100) < 9));
    let most = ends.pair.endpoint.net.limits.requests_max as usize;
    let mut posted = std::collections::VecDeque::new();
    for step in 0..200 {
        while posted.len() < most {
            let Ok(receive) = ends.receive(7) else { break };
            posted.push_back(receive);
        }
        assert!(step < 2 || posted.len() == most, "{} at {step}", posted.len());
        ends.send(7);
        for _ in 0..2 {
            ends.now += 2 * MICRO;
            ends.held(ends.now);
        }
        let first = posted.pop_front().unwrap();
        assert_eq!(ends.pair.endpoint.test(first).unwrap().unwrap().result, Ok(()));
    }
}

/// Each receive of several that short messages need slots for waited as long as the first.
#[test]
fn holds_of_one_receive_after_the_other_do_not_add_up() {
    let mut block = block();
    let mut ends = Crossing::open(&mut block, true);
    (0..16).for_each(|_| assert!(ends.cross(150) < 9));
    // nobody receives these, so that no other may leave early
    for _ in 0..EARLY_MAX {
        ends.send(1);
        ends.now += 150 * MICRO;
        ends.held(ends.now);
    }
    let tags = [100, 101, 102, 103, 104];
    let posted = tags.map(|tag| ends.receive(tag).unwrap());
    for tag in tags {
        ends.send(tag);
    }
    let mut done = Vec::new();
    for us in 0..2000 {
        ends.now += MICRO;
        ends.held(ends.now);
        if done.len() < posted.len()
            && ends.pair.endpoint.test(posted[done.len()]).unwrap().is_some()
        {
            done.push(us);
        }
    }
    assert_eq!(done.len(), posted.len(), "{done:?}");
    assert!(done.windows(2).all(|two| two[1] - two[0] <= 25), "{done:?}");
    assert!(done[0] <= 500, "{done:?}");
}

/// A slot for each of them cost more than the messages, where these came slower than expected; and
/// of the next messages the first alone needs one, should it be long.
#[test]
fn receives_that_nothing_comes_for_are_offered_one_by_one() {
    let mut block = block();
    let mut ends = Crossing::open(&mut block, true);
    (0..16).for_each(|_| assert!(ends.cross(100) < 9));
    let posted: Vec<_> = (0..5).map(|_| ends.receive(7).unwrap()).collect();
    let mut seen = Vec::new();
    for _ in 0..100 {
        ends.now += 10 * MICRO;
        let held = ends.held(ends.now);
        assert_eq!(ends.held(ends.now), held, "time alone counts");
        if seen.last() != Some(&held) {
            seen.push(held);
        }
        if held == 2 {
            break;
        }
    }
    assert_eq!(seen[1..], [4, 3, 2], "{seen:?}");
    // a long message says that others may be
    let send = ends.pair.endpoint.isend(A, outgoing(ends.from, &ends.source, 7)).unwrap();
    assert_eq!(ends.pair.finish(posted[0]).result, Ok(()));
    assert_eq!(ends.pair.finish(send).result, Ok(()));
    assert_eq!((ends.held(ends.now), &ends.target), (0, &ends.source));
    for receive in &posted[1..] {
        let send = ends.pair.endpoint.isend(A, outgoing(ends.from, &ends.source, 7)).unwrap();
        assert_eq!(ends.pair.finish(*receive).result, Ok(()));
        assert_eq!(ends.pair.finish(send).result, Ok(()));
    }
}

/// Groups of several receives, and such as were taken back, have slots of their own; a run ends
/// before them.
#[test]
fn run_ends_before_what_is_no_part_of_it() {
    let mut block = block();
    let mut ends = Crossing::open(&mut block, true);
    (0..16).for_each(|_| assert!(ends.cross(100) < 9));
    while ends.held(ends.now) != 1 {
        ends.cross(100);
    }
    let offered = ends.pair.endpoint.net.connections[B.as_usize()].recv.offers.next;
    ends.cross(100);
    let room = incoming(ends.to, &ends.target, 7);
    let other = ends.pair.endpoint.irecv(B, &[room]).unwrap();
    ends.pair.endpoint.cancel(other).unwrap();
    assert_eq!(ends.pair.finish(other).result, Err(RequestError::Canceled));
    (0..2).for_each(|_| assert!(ends.cross(100) < 9));
    let two = [incoming(ends.to, &ends.target[..8], 7), incoming(ends.to, &ends.target[..8], 7)];
    let both = ends.pair.endpoint.irecv(B, &two).unwrap();
    for _ in 0..2 {
        ends.pair.endpoint.isend(A, outgoing(ends.from, &ends.source[..BYTES], 7)).unwrap();
    }
    assert_eq!(ends.pair.finish(both).result, Ok(()));
    while ends.held(ends.now) != 0 {
        ends.now += 100 * MICRO;
    }
    let there = |ahead| ends.pair.endpoint.net.slot_is_there(A.as_usize(), offered.plus(ahead), 0);
    let seen: Vec<bool> = (0..6).map(there).collect();
    // two filled, one taken back, two filled, the group of two
    assert_eq!(seen, [true, false, true, true, false, true]);
    assert_eq!(ends.pair.endpoint.net.connections[A.as_usize()].send.cursor.early, 0);
}

/// The sender is ahead: it remembers so many messages that went before their receives, however many
/// groups these are. Time stands still, so that nobody is helped on by a hold that ends.
#[test]
fn groups_are_not_held_back_from_a_sender_that_has_sent_all_it_may() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    pair.lines_cost_calls();
    let mut source = pattern(GROUPS * GROUP * BYTES, 1);
    let mut target = vec![0u8; source.len()];
    let (from, to) = (pair.register(&mut source), pair.register(&mut target));
    let (mut sent, mut outstanding) = (0, Vec::new());
    for group in 0..GROUPS {
        while sent < GROUPS * GROUP {
            let message = outgoing(from, &source[sent * BYTES..][..BYTES], (sent % GROUP) as i32);
            match pair.endpoint.isend(A, message) {
                Ok(request) => {
                    outstanding.push(request);
                    sent += 1;
                }
                Err(SubmitError::Again) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        let room =
            |at: usize| incoming(to, &target[(group * GROUP + at) * BYTES..][..BYTES], at as i32);
        let receive = pair.endpoint.irecv(B, &[room(0), room(1), room(2), room(3)]).unwrap();
        let outcome = pair.finish(receive);
        assert_eq!((outcome.result, outcome.lengths[..GROUP].to_vec()), (Ok(()), vec![8; GROUP]));
    }
    assert_eq!(target, source);
}

/// Of slots that were written on a control lane which died the sender may have passed some and lost
/// others: it looks for the next one, of which a slot for several does not speak.
#[test]
fn slots_that_a_lane_may_have_lost_are_written_one_by_one() {
    let mut block = block();
    let mut ends = Crossing::open(&mut block, true);
    let room = incoming(ends.to, &ends.target, 7);
    // epochs tell lanes apart: the second slot and those behind it are of one that the sender does
    // not know yet; and what it says of its state is lost
    let epoch_set = |ends: &mut Crossing<'_>, writer: ConnectionIndex, epoch| {
        ends.pair.endpoint.net.connections[writer.as_usize()].control.epoch = epoch;
    };
    let peer_epoch_set = |ends: &mut Crossing<'_>, reader: ConnectionIndex, epoch| {
        ends.pair.endpoint.net.connections[reader.as_usize()].control.peer_epoch = epoch;
    };
    peer_epoch_set(&mut ends, A, 7);
    let mut receives = Vec::new();
    for number in 0..6 {
        receives.push(ends.pair.endpoint.irecv(B, &[room]).unwrap());
        assert_eq!(ends.held(ends.now), 0);
        if number == 0 {
            epoch_set(&mut ends, B, 2);
        }
    }
    for receive in receives {
        let message = outgoing(ends.from, &ends.source[..BYTES], 7);
        let send = ends.pair.endpoint.isend(A, message).unwrap();
        assert_eq!(ends.pair.finish(receive).result, Ok(()));
        assert_eq!(ends.pair.finish(send).result, Ok(()));
    }
    peer_epoch_set(&mut ends, B, 7);
    peer_epoch_set(&mut ends, A, 1);
    ends.held(ends.now);
    let [sender, receiver] = [A, B].map(|end| &ends.pair.endpoint.net.connections[end.as_usize()]);
    assert_eq!((sender.send.cursor.group, sender.send.cursor.early), (Seq(1), 5));
    assert_eq!((receiver.recv.offers.passed, receiver.recv.offers.through), (Seq(0), Seq(6)));
    // both hear of a new lane
    peer_epoch_set(&mut ends, B, 1);
    epoch_set(&mut ends, B, 3);
    peer_epoch_set(&mut ends, A, 3);
    ends.pair.endpoint.net.control_resume(B.as_usize());
    let receive = ends.pair.endpoint.irecv(B, &[room]).unwrap();
    let send = ends.pair.endpoint.isend(A, outgoing(ends.from, &ends.source, 7)).unwrap();
    assert_eq!(ends.pair.finish(receive).result, Ok(()));
    assert_eq!(ends.pair.finish(send).result, Ok(()));
    assert_eq!(ends.target, ends.source);
}
