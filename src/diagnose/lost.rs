//! What a rail over TCP has lost although it stands: bytes that were changed on the way, behind a
//! checksum that was made anew, are no loss to the kernels of both ends. Each side says how it
//! stands (W8.12); what one has sent, and the other, whose program polls, does not have for a long
//! time, is lost.
//!
//! Pure. Whether it is a long time, and whether all that was sent has reached the peer's host, is
//! the caller's to know.

use super::stall::send_waits;
use crate::base::seq::Seq;
use crate::base::words::said;
use crate::wire::RAILS_MAX;
use crate::wire::status::{RailStanding, STATUS_FRESH, Standing, Status, StatusHello, Waits};

said! {
    /// What a peer has not acknowledged.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum What {
        /// Messages of the stream, from this number on.
        Stream(number: u32) => "message {number} of the stream",
        Slot(group: u32) => "the slot of group {group}",
        /// The word that the peer's stream was taken in below this number.
        Taken(number: u32) => "the word that the peer's stream was taken in below {number}",
        /// A message that the peer has bound to a receive of that group.
        Bound(group: u32) => "a message for group {group}",
        /// Stripes of the long message with this number.
        Stripes(number: u32) => "stripes of send {number}",
        /// That long message, whose stripes have come.
        Message(number: u32) => "a part of send {number}",
        /// Nothing of ours: the peer's word that it has a message, or of credits, is not here.
        Word(_it: u32) => "an acknowledgement or credits of the peer",
    }
}

/// Something that is missing, and the rail that carried it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Missing {
    /// What. While it stays the same, nothing of it moves.
    pub what: What,
    /// How much of it there is.
    pub mark: u64,
    /// Which rail.
    pub lane: u8,
    /// The rail on which the peer answers it, behind other things: it is missing only while nothing
    /// comes there. `None`: whatever comes, it is missing.
    pub answer: Option<u8>,
}

/// The first thing that is missing on a rail over TCP between two sides, as both say. Where any
/// rail may have lost it, `turn` says which counts.
pub fn missing(ours: &StatusHello, theirs: &StatusHello, turn: u8) -> Option<Missing> {
    let stands = |status: &Status| {
        let is_open = Standing::from_wire(status.standing) == Standing::Open;
        let unsettled = [RailStanding::Failing, RailStanding::Fenced, RailStanding::Joining];
        is_open && !unsettled.iter().any(|state| status.lane_that_is(*state).is_some())
    };
    let (us, them) = (&ours.status, &theirs.status);
    if us.pull != 0 || them.flags & STATUS_FRESH == 0 || !stands(us) || !stands(them) {
        return None;
    }
    let found = in_stream(us, them)
        .or_else(|| in_slots(us, theirs))
        .or_else(|| in_room(us, theirs))
        .or_else(|| in_long(ours, them, turn))
        .or_else(|| in_groups(us, them))
        .or_else(|| in_credits(ours, them))?;
    let lane = usize::from(found.lane) % RAILS_MAX;
    let is_tcp = us.lanes_tcp >> lane & 1 == 1;
    (is_tcp && us.lane(lane) == RailStanding::Up).then_some(found)
}

fn in_stream(us: &Status, them: &Status) -> Option<Missing> {
    let what = What::Stream(them.eager_expected);
    let is_missing = Seq(them.eager_expected).before(Seq(us.eager_number));
    is_missing.then_some(Missing { what, mark: 0, lane: us.control, answer: None })
}

fn in_slots(us: &Status, theirs: &StatusHello) -> Option<Missing> {
    let group = theirs.status.group_next;
    let is_written = Seq(us.slots_next).ahead_of(Seq(group)) > 0;
    let is_missing = match theirs.send.waits() {
        Waits::Slot => is_written,
        // it has seen another one than was written: its message has a receive, or those before it
        // have filled the group
        Waits::Tag => {
            let all_in = us.eager_expected == theirs.status.eager_number;
            let takes = us.group_oldest == group && us.takes(theirs.send.tag as i32);
            is_written && all_in && (takes || Seq(group).before(Seq(us.group_oldest)))
        }
        _ => false,
    };
    let what = What::Slot(group);
    is_missing.then_some(Missing { what, mark: 0, lane: us.control, answer: None })
}

/// The peer has bound messages to all receives of our oldest group, and of all that has come in its
/// stream none is for an open one: its tag is another than was sent.
fn in_groups(us: &Status, them: &Status) -> Option<Missing> {
    let group = us.group_oldest;
    let is_open = (0..us.group_count.min(8)).any(|at| us.group_bound >> at & 1 == 0);
    let all_in = us.eager_expected == them.eager_number;
    let is_missing = is_open && all_in && Seq(group).before(Seq(them.group_next));
    let (what, lane) = (What::Bound(group), them.control);
    is_missing.then_some(Missing { what, mark: 0, lane, answer: None })
}

/// The peer's send has all but the rail, as it says, and does not leave. What it has not seen is
/// the keys of a slot or, if short, how much of its stream was taken in: lines on our rail of
/// control.
fn in_room(us: &Status, theirs: &StatusHello) -> Option<Missing> {
    let (them, group) = (&theirs.status, theirs.status.group_next);
    let what = match Seq(us.slots_next).ahead_of(Seq(group)) > 0 {
        true => What::Slot(group),
        false => What::Taken(us.eager_expected),
    };
    let mark = u64::from(them.eager_number) << 32 | u64::from(theirs.send.sequence);
    let answer = Some(them.control);
    let short = theirs.send.short != 0;
    let is_missing = theirs.send.waits() == Waits::Room && (short || what == What::Slot(group));
    is_missing.then_some(Missing { what, mark, lane: us.control, answer })
}

fn in_long(ours: &StatusHello, them: &Status, turn: u8) -> Option<Missing> {
    let (send, number) = (&ours.send, ours.send.sequence);
    let carrier = (send.rails & ours.status.lanes_tcp).checked_ilog2().map(|lane| lane as u8);
    let mark = send.posted ^ send.written.rotate_left(1);
    let (what, lane) = match send.waits() {
        Waits::Completion => (What::Stripes(number), carrier?),
        Waits::Delivery if Seq(number).before(Seq(them.arrived_through)) => {
            (What::Word(number), them.control)
        }
        Waits::Delivery => {
            // its stripes have all been answered
            let up = ours.status.up & ours.status.lanes_tcp;
            let mut lanes = (0..RAILS_MAX as u8).filter(|lane| up >> lane & 1 == 1);
            let lane = lanes.nth(usize::from(turn) % (up.count_ones().max(1) as usize))?;
            (What::Message(number), lane)
        }
        _ => return None,
    };
    Some(Missing { what, mark, lane, answer: Some(lane) })
}

fn in_credits(ours: &StatusHello, them: &Status) -> Option<Missing> {
    let us = &ours.status;
    let is_missing = send_waits(us, &ours.send) == Waits::Credit
        && Seq(them.credits_given).ahead_of(Seq(us.credits_through)) > 0;
    let (what, lane) = (What::Word(us.credits_through), them.control);
    is_missing.then_some(Missing { what, mark: 0, lane, answer: Some(lane) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides of a connection of two rails over TCP on which nothing is open.
    fn sides() -> [StatusHello; 2] {
        let mut side = StatusHello::ZERO;
        side.status.standing = Standing::Open as u8;
        side.status.flags = STATUS_FRESH;
        (side.status.lane_count, side.status.up, side.status.lanes_tcp) = (2, 3, 3);
        side.status.lane_set(0, 1, RailStanding::Up);
        side.status.lane_set(1, 1, RailStanding::Up);
        [side; 2]
    }

    #[test]
    fn nothing_is_missing_where_nothing_was_sent() {
        let [us, them] = sides();
        assert_eq!(missing(&us, &them, 0), None);
    }

    #[test]
    fn stream_and_slot_are_missing_on_our_rail_of_control() {
        let [mut us, mut them] = sides();
        us.status.control = 1;
        (us.status.eager_number, them.status.eager_expected) = (7, 5);
        let found = missing(&us, &them, 0).unwrap();
        assert_eq!((found.what, found.lane, found.answer), (What::Stream(5), 1, None));
        them.status.eager_expected = 7;
        (us.status.slots_next, them.status.group_next) = (3, 2);
        assert_eq!(missing(&us, &them, 0), None, "it wants to send nothing");
        them.send.waits = Waits::Slot as u8;
        assert_eq!(missing(&us, &them, 0).map(|it| it.what), Some(What::Slot(2)));
        us.status.lanes_tcp = 1;
        assert_eq!(missing(&us, &them, 0), None, "no rail of TCP");
    }

    #[test]
    fn slot_is_missing_where_the_peer_sees_another_tag_in_it() {
        let [mut us, mut them] = sides();
        (us.status.group_count, us.status.slots_next) = (1, 1);
        us.status.tag_set(0, 7);
        (them.send.waits, them.send.tag) = (Waits::Tag as u8, 8);
        assert_eq!(missing(&us, &them, 0), None, "no receive takes it");
        them.send.tag = 7;
        assert_eq!(missing(&us, &them, 0).map(|it| it.what), Some(What::Slot(0)));
        us.status.group_bound = 1;
        assert_eq!(missing(&us, &them, 0), None, "another message has the receive");
        (us.status.group_bound, us.status.group_oldest) = (0, 1);
        assert_eq!(missing(&us, &them, 0).map(|it| it.what), Some(What::Slot(0)), "it is filled");
    }

    #[test]
    fn message_is_missing_where_the_peer_has_bound_one_and_all_that_came_has_another_tag() {
        let [mut us, mut them] = sides();
        (us.status.group_count, us.status.slots_next, them.status.group_next) = (1, 1, 1);
        assert_eq!(missing(&us, &them, 0).map(|it| it.what), Some(What::Bound(0)));
        us.status.group_bound = 1;
        assert_eq!(missing(&us, &them, 0), None, "it has come");
        (us.status.group_bound, them.status.group_next) = (0, 0);
        assert_eq!(missing(&us, &them, 0), None, "it was not sent");
    }

    #[test]
    fn keys_or_a_word_are_missing_where_the_peers_send_waits_for_room_alone() {
        let [mut us, mut them] = sides();
        (us.status.control, us.status.slots_next, them.status.group_next) = (1, 3, 2);
        them.send.waits = Waits::Room as u8;
        let found = missing(&us, &them, 0).unwrap();
        assert_eq!((found.what, found.lane, found.answer), (What::Slot(2), 1, Some(0)));
        them.status.group_next = 3;
        assert_eq!(missing(&us, &them, 0), None, "a long one waits for a slot");
        them.send.short = 1;
        let later = missing(&us, &them, 0).unwrap();
        assert_eq!((later.what, later.lane), (What::Taken(0), 1));
        (us.status.eager_expected, them.status.eager_number) = (1, 1);
        assert_ne!(missing(&us, &them, 0).unwrap().mark, later.mark, "something has left");
    }

    #[test]
    fn long_message_is_missing_on_the_rail_that_carries_it_and_its_word_on_the_peers() {
        let [mut us, mut them] = sides();
        (us.send.sequence, us.send.rails, us.send.waits) = (4, 2, Waits::Completion as u8);
        assert_eq!(
            missing(&us, &them, 0).map(|it| (it.what, it.lane)),
            Some((What::Stripes(4), 1))
        );
        us.send.waits = Waits::Delivery as u8;
        let lanes = [0, 1, 2].map(|turn| missing(&us, &them, turn).unwrap().lane);
        assert_eq!(lanes, [0, 1, 0], "any of them");
        them.status.arrived_through = 5;
        let found = missing(&us, &them, 0).unwrap();
        assert_eq!((found.what, found.lane, found.answer), (What::Word(4), 0, Some(0)));
    }

    #[test]
    fn credits_are_missing_where_the_peer_has_given_more() {
        let [mut us, mut them] = sides();
        us.send.waits = Waits::Credit as u8;
        (us.status.credits_through, them.status.credits_given) = (48, 48);
        assert_eq!(missing(&us, &them, 0), None);
        them.status.credits_given = 60;
        assert_eq!(missing(&us, &them, 0).map(|it| it.what), Some(What::Word(48)));
    }

    #[test]
    fn peer_whose_program_does_not_poll_and_rails_that_are_sorted_out_miss_nothing() {
        let [mut us, mut them] = sides();
        us.status.eager_number = 1;
        assert!(missing(&us, &them, 0).is_some());
        them.status.flags = 0;
        assert_eq!(missing(&us, &them, 0), None);
        them.status.flags = STATUS_FRESH;
        them.status.lane_states = 0;
        them.status.lane_set(1, 1, RailStanding::Fenced);
        assert_eq!(missing(&us, &them, 0), None);
    }
}
