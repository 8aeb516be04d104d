//! Each class from two snapshots, and the sentence that names who owes what.

use super::*;
use crate::wire::status::{AGE_UNKNOWN_MS, STATUS_SNAPSHOT};
use std::format;
use std::string::String;

const STALL_MS: u32 = 10_000;

const OPEN: Status = Status {
    standing: Standing::Open as u8,
    flags: STATUS_SNAPSHOT | STATUS_FRESH,
    lane_count: 2,
    up: 0b11,
    lane_states: (RailStanding::Up as u64) << 8 | RailStanding::Up as u64,
    lane_generations_low: 4 << 32 | 3,
    epoch: 9,
    ..Status::ZERO
};

fn request(waits: Waits) -> RequestStatus {
    RequestStatus {
        waits: waits as u8,
        tag: 7,
        length: 4096,
        age_ms: 12_000,
        sequence: 5,
        count: 1,
        ..RequestStatus::ZERO
    }
}

fn said(status: Status) -> StatusHello {
    StatusHello { status, ..StatusHello::ZERO }
}

/// Class and sentence.
fn of(ours: &Status, request: &RequestStatus, answer: Answer<'_>) -> (Class, String) {
    let stall = Stall { ours, request, answer, peer: "other (pid 9)", stall_ms: STALL_MS };
    let text = format!("{stall}");
    assert!(text.contains(stall.class().name()) && text.contains("other (pid 9)"), "{text}");
    assert!(text.contains("12000 ms"), "{text}");
    (stall.class(), text)
}

fn is(ours: &Status, request: &RequestStatus, theirs: &StatusHello, class: Class, words: &str) {
    let (found, text) = of(ours, request, Answer::Said(theirs));
    assert_eq!(found, class, "{text}");
    assert!(text.contains(words), "{text}");
}

#[test]
fn peer_that_says_nothing_is_stopped() {
    let (class, text) = of(&OPEN, &request(Waits::Delivery), Answer::Silent(1000));
    assert_eq!(class, Class::StoppedPeer);
    assert!(text.contains("1000 ms ago and does not answer"), "{text}");
}

#[test]
fn peer_whose_snapshot_is_old_makes_no_progress() {
    let old = said(Status { flags: STATUS_SNAPSHOT, silent_ms: 15_000, ..OPEN });
    is(&OPEN, &request(Waits::Slot), &old, Class::NoProgress, "last one was 15000 ms ago");
    let never = said(Status { flags: 0, silent_ms: AGE_UNKNOWN_MS, ..OPEN });
    is(&OPEN, &request(Waits::Message), &never, Class::NoProgress, "none since it was asked");
}

#[test]
fn peer_that_has_closed_is_named() {
    let closed = said(Status { flags: STATUS_CLOSED, ..Status::ZERO });
    is(&OPEN, &request(Waits::Message), &closed, Class::ClosedPeer, "has closed the connection");
}

#[test]
fn receive_that_nobody_posts_is_owed() {
    is(&OPEN, &request(Waits::Slot), &said(OPEN), Class::NeverPosted, "owes a receive");
    let held = said(Status { unexpected: 1, unexpected_tag: 7, ..OPEN });
    is(&OPEN, &request(Waits::Reading), &held, Class::NeverPosted, "since group 0");
}

#[test]
fn message_that_nobody_sends_is_owed() {
    is(&OPEN, &request(Waits::Message), &said(OPEN), Class::NeverSent, "owes a message");
}

#[test]
fn tags_that_differ_are_both_named_from_both_sides() {
    let mut theirs = Status { unexpected: 1, unexpected_tag: 7, group_post: 1, ..OPEN };
    theirs.group_count = 1;
    theirs.tag_set(0, 8);
    for waits in [Waits::Tag, Waits::Reading] {
        is(&OPEN, &request(waits), &said(theirs), Class::WrongTag, "waits for tag 8");
    }
    let ours = Status { unexpected: 1, unexpected_tag: 8, ..OPEN };
    is(
        &ours,
        &request(Waits::Message),
        &said(OPEN),
        Class::WrongTag,
        "its first message has tag 8",
    );
    let send = RequestStatus { tag: 8, ..request(Waits::Tag) };
    let theirs = StatusHello { send, ..said(OPEN) };
    is(&OPEN, &request(Waits::Message), &theirs, Class::WrongTag, "its next message has tag 8");
}

#[test]
fn slot_that_was_written_and_is_not_seen_is_lost_from_both_sides() {
    let theirs = Status { slots_next: 4, group_post: 4, ..OPEN };
    let ours = Status { group_next: 3, ..OPEN };
    is(&ours, &request(Waits::Slot), &said(theirs), Class::LostSlot, "slot of group 3: the peer");
    let theirs =
        StatusHello { send: request(Waits::Slot), ..said(Status { group_next: 5, ..OPEN }) };
    let ours = Status { slots_next: 6, ..OPEN };
    is(&ours, &request(Waits::Message), &theirs, Class::LostSlot, "slot of group 5: we have");
}

#[test]
fn credits_are_owed_by_who_holds_unexpected_messages() {
    let ours = Status { consumed: 48, credits_through: 48, ..OPEN };
    let theirs = Status { unexpected: 48, unexpected_tag: 3, ..OPEN };
    let sentence = "the peer owes us credits: 48 receives of 48 are consumed, and 48 message(s)";
    is(&ours, &request(Waits::Credit), &said(theirs), Class::NoCredits, sentence);
}

#[test]
fn rail_that_loses_stripes_is_dead() {
    let send = RequestStatus {
        stripes: 4,
        posted: 0b1111,
        written: 0b0011,
        rails: 0b10,
        ..request(Waits::Completion)
    };
    let sentence = "rail 1 (generation 4) owes stripes 0xc, which have not completed";
    is(&OPEN, &send, &said(OPEN), Class::DeadRail, sentence);
    let receive = RequestStatus { stripes: 4, posted: 0b0111, ..request(Waits::Arrival) };
    is(&OPEN, &receive, &said(OPEN), Class::DeadRail, "stripes 0x8, which have not come");
    let none = Status { up: 0, lane_states: 0, ..OPEN };
    is(&none, &send, &said(OPEN), Class::DeadRail, "no rail is up");
}

#[test]
fn failed_rail_owes_its_fence_or_the_peer_its_report() {
    let send = RequestStatus { rails: 1, ..request(Waits::Completion) };
    let mut ours = Status { up: 0b10, ..OPEN };
    ours.lane_states = (RailStanding::Up as u64) << 8 | RailStanding::Failing as u64;
    is(&ours, &send, &said(OPEN), Class::Unfenced, "rail 0 (generation 3) has failed, and it owes");
    ours.lane_states = (RailStanding::Up as u64) << 8 | RailStanding::Fenced as u64;
    is(&ours, &send, &said(OPEN), Class::Unfenced, "the peer owes its report");
}

/// Of two rails: a receiver's own rail of control says nothing about what carries its message.
#[test]
fn receiver_names_the_rail_that_the_sender_uses_or_none() {
    let receive = RequestStatus { stripes: 4, posted: 0b0011, ..request(Waits::Arrival) };
    let token = immediate::token(Seq(receive.sequence), 0);
    let send = RequestStatus { token, rails: 0b10, ..request(Waits::Completion) };
    let theirs = StatusHello { send, ..said(OPEN) };
    let sentence = "rail 1 (generation 4) owes stripes 0xc, which have not come";
    is(&OPEN, &receive, &theirs, Class::DeadRail, sentence);
    // its oldest send is another, or it does not know the rail any more
    for send in [RequestStatus { token: token + 8, ..send }, RequestStatus { rails: 0, ..send }] {
        let theirs = StatusHello { send, ..said(OPEN) };
        is(&OPEN, &receive, &theirs, Class::DeadRail, "one of the rails owes stripes 0xc");
    }
    // a message behind it
    let sentence = "rail 1 (generation 4) owes what has left and has not come";
    is(&OPEN, &request(Waits::Message), &theirs, Class::DeadRail, sentence);
    // what left in the stream left on the peer's rail of control
    let theirs = said(Status { eager_number: 3, control: 1, ..OPEN });
    is(&OPEN, &request(Waits::Message), &theirs, Class::DeadRail, sentence);
    let both = RequestStatus { stripes: 4, posted: 15, rails: 0b11, ..request(Waits::Completion) };
    is(&OPEN, &both, &said(OPEN), Class::DeadRail, "rails 0, 1 owe stripes 0xf");
}

#[test]
fn request_of_a_program_that_is_elsewhere_is_as_old_as_its_snapshot_says_and_older() {
    let ours = Status { flags: STATUS_SNAPSHOT, left_ms: 1_030, moved_ms: 374, ..OPEN };
    let receive = RequestStatus { age_ms: 370, ..request(Waits::Message) };
    let theirs = said(Status { left_ms: 500, ..OPEN });
    assert_eq!(class_of(&ours, &receive, &theirs).0, Class::NeverSent);
}

/// The report that was asked for of a healthy pair whose messages flow.
#[test]
fn request_younger_than_the_peers_snapshot_is_not_judged_by_it() {
    let young = |waits| RequestStatus { age_ms: 0, stripes: 1, posted: 1, ..request(waits) };
    let ours = Status { left_ms: 1020, group_next: 3, ..OPEN };
    let theirs = said(Status { left_ms: 1022, slots_next: 4, eager_number: 9, ..OPEN });
    for waits in (0..=u8::MAX).map(Waits::from_wire).filter(|waits| *waits != Waits::None) {
        let now = Status { left_ms: 0, flags: 0, ..ours };
        for ours in [ours, Status { left_ms: 1024, ..ours }, now] {
            let stall = Stall {
                ours: &ours,
                request: &young(waits),
                answer: Answer::Said(&theirs),
                peer: "other",
                stall_ms: STALL_MS,
            };
            assert_eq!(stall.class(), Class::Moving, "{stall}");
        }
    }
    // it was open before, and nothing has moved since
    let still = Status { moved_ms: 3, ..ours };
    let (class, _) = class_of(&still, &young(Waits::Slot), &said(Status { left_ms: 1022, ..OPEN }));
    assert_eq!(class, Class::NeverPosted);
    // it was, and something has moved since a snapshot that is old
    let old = said(Status { left_ms: 5_000, ..OPEN });
    let moved = Status { moved_ms: 4_000, ..OPEN };
    is(&moved, &request(Waits::Slot), &old, Class::Moving, "last moved 4000 ms ago");
    let still = Status { moved_ms: 6_000, ..OPEN };
    is(&still, &request(Waits::Slot), &old, Class::NeverPosted, "owes a receive");
}

#[test]
fn what_is_on_its_way_is_stuck_when_it_is_old_or_nothing_moves() {
    let send = RequestStatus { age_ms: 400, stripes: 1, posted: 1, ..request(Waits::Completion) };
    for (moved_ms, age_ms, class) in [
        (0, 400, Class::Moving),
        (400, 400, Class::Moving),
        (1_000, 400, Class::DeadRail),
        (0, STALL_MS, Class::DeadRail),
    ] {
        let (ours, send) = (Status { moved_ms, ..OPEN }, RequestStatus { age_ms, ..send });
        for answer in [Answer::Said(&said(OPEN)), Answer::NotAsked, Answer::Cannot] {
            let stall_ms = STALL_MS;
            let stall = Stall { ours: &ours, request: &send, answer, peer: "other", stall_ms };
            assert_eq!(stall.class(), class, "{stall}");
        }
    }
}

/// It was said of shared memory that packets are lost on the way, 4 ms after it had moved.
#[test]
fn rail_that_moves_is_slow_and_shared_memory_loses_no_packets() {
    let send = RequestStatus { stripes: 1, posted: 1, rails: 1, ..request(Waits::Completion) };
    for (lane_count, lanes_shm) in [(1, 1), (1, 0), (2, 1)] {
        let ours = Status { moved_ms: 4, lane_count, lanes_shm, ..OPEN };
        let words = "stripes 0x1, which have not completed; it is slow: something moved 4 ms ago";
        is(&ours, &send, &said(OPEN), Class::SlowRail, words);
    }
    // it moved when the request left, and not since
    let ours = Status { moved_ms: 375, lane_count: 1, ..OPEN };
    let young = RequestStatus { age_ms: 370, ..send };
    let stall = Stall {
        ours: &ours,
        request: &young,
        answer: Answer::Said(&said(OPEN)),
        peer: "other",
        stall_ms: 300,
    };
    assert_eq!(stall.class(), Class::DeadRail, "{stall}");
    // of two it may be the other that moves
    let ours = Status { moved_ms: 4, ..OPEN };
    is(&ours, &send, &said(OPEN), Class::DeadRail, "packets are lost on the way");
    let ours = Status { moved_ms: 4_000, lanes_shm: 1, ..OPEN };
    is(&ours, &send, &said(OPEN), Class::DeadRail, "not completed; it moves nothing");
}

fn class_of(ours: &Status, request: &RequestStatus, theirs: &StatusHello) -> (Class, String) {
    let (answer, stall_ms) = (Answer::Said(theirs), STALL_MS);
    let stall = Stall { ours, request, answer, peer: "other", stall_ms };
    (stall.class(), format!("{stall}"))
}

/// A peer whose program has never used the connection holds nothing, and yet they wait there.
#[test]
fn messages_that_wait_are_counted_where_the_peer_has_not_looked_at_them() {
    let unused = said(Status { standing: Standing::None as u8, lane_count: 0, up: 0, ..OPEN });
    let ours = Status { eager_number: 24, ..OPEN };
    let sentence = "and 24 message(s) of ours wait there";
    is(&ours, &request(Waits::Slot), &unused, Class::NeverPosted, sentence);
    let ours = Status { eager_number: 48, consumed: 48, credits_through: 48, pull: 1, ..OPEN };
    let sentence = "48 receives of 48 are consumed, and 48 message(s) wait";
    is(&ours, &request(Waits::Credit), &unused, Class::NoCredits, sentence);
    // those that it has taken in and holds, and two on their way
    let held = said(Status { eager_expected: 46, unexpected: 40, unexpected_tag: 3, ..OPEN });
    let sentence = "and 42 message(s) wait for a receive of the program, the first with tag 3";
    is(&ours, &request(Waits::Credit), &held, Class::NoCredits, sentence);
}

#[test]
fn sends_behind_one_without_credits_have_its_class() {
    let ours = Status { eager_number: 48, consumed: 48, credits_through: 48, pull: 1, ..OPEN };
    for standing in [Standing::None as u8, Standing::Open as u8] {
        let theirs = said(Status { standing, ..OPEN });
        is(&ours, &request(Waits::Turn), &theirs, Class::NoCredits, "the peer owes us credits");
        let spare = Status { credits_through: 49, ..ours };
        is(&spare, &request(Waits::Turn), &theirs, Class::NeverPosted, "the peer owes a receive");
    }
    // from the other side
    let send = request(Waits::Turn);
    let theirs = StatusHello { send, ..said(Status { eager_expected: 0, ..ours }) };
    let ours = Status { eager_expected: 48, ..OPEN };
    is(&ours, &request(Waits::Message), &theirs, Class::NoCredits, "this side owes the peer");
}

#[test]
fn sentence_says_how_the_question_to_the_peer_stands() {
    for (answer, words) in [
        (Answer::NotAsked, "; peer not asked yet]"),
        (Answer::Asked(40), "; peer asked 40 ms ago]"),
        (Answer::Cannot, "; peer cannot be asked]"),
    ] {
        for (waits, class) in
            [(Waits::Message, Class::NeverSent), (Waits::Slot, Class::NeverPosted)]
        {
            let (found, text) = of(&OPEN, &request(waits), answer);
            assert_eq!(found, class);
            // what it has posted and sent is not known
            assert!(text.ends_with(words) && !text.contains("it has"), "{text}");
        }
    }
}

#[test]
fn short_sends_are_told_from_long_ones() {
    let short = RequestStatus { short: 1, sequence: 31, ..request(Waits::Turn) };
    let text = format!("{}", Named(&short));
    assert!(text.starts_with("short send 31, tag 7"), "{text}");
    assert!(format!("{}", Named(&request(Waits::Turn))).starts_with("send 5, tag 7"));
}

#[test]
fn any_two_statuses_give_a_sentence() {
    let mut state = 0x5eed_0011u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    for _ in 0..if cfg!(miri) { 50 } else { 5000 } {
        let mut bytes = [[0u8; Status::SIZE]; 2];
        for byte in bytes.as_flattened_mut() {
            *byte = next();
        }
        let [ours, theirs] = bytes.map(|bytes| StatusHello::decode(&bytes).unwrap());
        let answer = Answer::Said(&theirs);
        let (ours, request, stall_ms) = (&ours.status, &ours.send, STALL_MS);
        let stall = Stall { ours, request, answer, peer: "x", stall_ms };
        assert!(format!("{stall}").len() < 1000);
    }
}

#[test]
fn rails_are_named_by_what_they_are() {
    let mut ours = Status { lane_count: 3, lanes_shm: 0b001, lanes_tcp: 0b110, ..Status::ZERO };
    for (lane, state) in
        [RailStanding::Down, RailStanding::Up, RailStanding::Joining].into_iter().enumerate()
    {
        ours.lane_set(lane, 1, state);
    }
    let text = format!("{}", RailsOf(&ours));
    assert_eq!(text, "rail 0 shm down, rail 1 tcp up, rail 2 tcp joining");
    let nameless = Status { lane_count: 1, ..Status::ZERO };
    assert_eq!(format!("{}", RailsOf(&nameless)), "rail 0 down");
}
