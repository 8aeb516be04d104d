//! Each class from two snapshots, and the sentence that names who owes what.
#![forbid(unsafe_code)]

extern crate std;

use super::*;
use std::format;
use std::string::String;

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
    let stall = Stall { ours, request, answer, peer: "other (pid 9)" };
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
    assert!(text.contains("1000 ms ago and says nothing"), "{text}");
}

#[test]
fn peer_whose_snapshot_is_old_makes_no_progress() {
    let old = said(Status { flags: STATUS_SNAPSHOT, silent_ms: 15_000, ..OPEN });
    is(&OPEN, &request(Waits::Slot), &old, Class::NoProgress, "last one was 15000 ms ago");
    let never = said(Status { flags: 0, silent_ms: AGE_UNKNOWN_MS, ..OPEN });
    is(
        &OPEN,
        &request(Waits::Message),
        &never,
        Class::NoProgress,
        "none since it was first looked at",
    );
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
    is(&ours, &request(Waits::Message), &said(OPEN), Class::WrongTag, "sent first has tag 8");
    let send = RequestStatus { tag: 8, ..request(Waits::Tag) };
    let theirs = StatusHello { send, ..said(OPEN) };
    is(&OPEN, &request(Waits::Message), &theirs, Class::WrongTag, "wants to send has tag 8");
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
    is(&none, &send, &said(OPEN), Class::DeadRail, "no rail lives");
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
        let stall = Stall { ours: &ours.status, request: &ours.send, answer, peer: "x" };
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
