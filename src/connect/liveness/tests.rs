//! Silence, with time by hand.

use super::*;

const SECOND: u64 = 1_000_000_000;
const DEADLINE: Span = Span(8 * SECOND);

fn at(seconds: u64) -> Instant {
    Instant(1000 * SECOND + seconds * SECOND)
}

fn hearing() -> Hearing {
    Hearing::start(at(0), DEADLINE, 0)
}

#[test]
fn a_silent_peer_is_asked_after_a_quarter_and_reported_at_the_deadline_once() {
    let mut hearing = hearing();
    assert_eq!(hearing.look(at(1), DEADLINE), Verdict { next: Some(at(2)), ..Default::default() });
    let asked = hearing.look(at(2), DEADLINE);
    assert_eq!(asked, Verdict { ping: Some(1), silent: None, next: Some(at(4)) });
    let waiting = hearing.look(at(7), DEADLINE);
    assert_eq!(waiting, Verdict { ping: None, silent: None, next: Some(at(8)) });
    let reported = hearing.look(at(8), DEADLINE);
    assert_eq!(reported, Verdict { silent: Some(DEADLINE), ..Default::default() });
    assert_eq!(hearing.look(at(100), DEADLINE), Verdict::default());
    // silent since the start, and asked after a quarter of the deadline
    let spans = (Span(101 * SECOND), Span(99 * SECOND));
    assert_eq!(hearing.heard(at(101), DEADLINE), Some(spans));
    // and again: one report per silence
    assert_eq!(hearing.heard(at(102), DEADLINE), None);
    assert_eq!(hearing.look(at(104), DEADLINE).ping, Some(2));
    assert_eq!(hearing.look(at(110), DEADLINE).silent, Some(DEADLINE));
}

#[test]
fn who_speaks_is_not_asked() {
    let mut hearing = hearing();
    for second in 1..50 {
        assert_eq!(hearing.heard(at(second), DEADLINE), None);
        let verdict = hearing.look(at(second), DEADLINE);
        assert_eq!(verdict, Verdict { next: Some(at(second + 2)), ..Default::default() });
    }
}

#[test]
fn who_answers_is_asked_again_after_a_quarter() {
    let mut hearing = hearing();
    for number in 1..20 {
        assert_eq!(hearing.look(at(2 * number), DEADLINE).ping, Some(number));
        assert_eq!(hearing.heard(at(2 * number), DEADLINE), None);
    }
}

#[test]
fn who_was_asked_late_has_half_the_deadline_to_answer() {
    let mut hearing = hearing();
    let verdict = hearing.look(at(7), DEADLINE);
    assert_eq!((verdict.ping, verdict.silent, verdict.next), (Some(1), None, Some(at(9))));
    assert_eq!(hearing.look(at(10), DEADLINE).silent, None);
    assert_eq!(hearing.look(at(11), DEADLINE).silent, Some(Span(11 * SECOND)));
}

#[test]
fn time_in_which_nobody_looked_counts_for_nobody() {
    let mut hearing = hearing();
    assert_eq!(hearing.look(at(2), DEADLINE).ping, Some(1));
    hearing.restart(at(500));
    assert_eq!(hearing.look(at(500), DEADLINE).silent, None);
    assert_eq!(hearing.look(at(507), DEADLINE).silent, None);
    assert_eq!(hearing.look(at(508), DEADLINE).silent, Some(DEADLINE));
    // what was reported stays so
    hearing.restart(at(900));
    assert_eq!(hearing.look(at(950), DEADLINE), Verdict::default());
    let spans = (Span(460 * SECOND), Span(460 * SECOND));
    assert_eq!(hearing.heard(at(960), DEADLINE), Some(spans));
}

#[test]
fn looks_are_never_further_apart_than_what_counts_as_a_gap() {
    // else a peer would get its time again at every look, and never be reported
    for part in [0, 100, 255] {
        let mut hearing = Hearing::start(at(0), DEADLINE, part);
        let mut now = at(0);
        while let Some(next) = hearing.look(now, DEADLINE).next {
            assert!(next.since(now).0 <= DEADLINE.0 / 2, "{part} {now:?} {next:?}");
            assert!(next > now);
            now = next;
        }
        assert!(now.since(at(0)) >= DEADLINE);
    }
}
