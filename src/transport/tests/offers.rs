//! Offers of groups that are held back, since a packet each is much.
#![forbid(unsafe_code)]

use super::*;
use crate::transport::request::SubmitError;

const GROUP: usize = 4;
const GROUPS: usize = 40;
const BYTES: usize = 8;

/// Who answered each message in more than the least hold was offered a slot while the answer was on
/// its way, at a packet, and a system call, each.
#[test]
fn slots_are_held_back_from_a_peer_that_answers_as_steadily_as_before() {
    const MICRO: u64 = 1000;
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    pair.endpoint.caps.syscalls = Syscalls::PerBatch;
    let (mut source, mut target) = (pattern(BYTES, 1), vec![0u8; BYTES]);
    let (from, to) = (pair.register(&mut source), pair.register(&mut target));
    let mut now = 1000 * MICRO;
    let held = |pair: &mut Pair, now: u64| {
        pair.endpoint.progress(Instant(now), BUDGET);
        let c = &pair.endpoint.connections[B.as_usize()];
        c.group_post.ahead_of(c.slots_next)
    };
    // what was held back after three quarters of the time in which nothing comes
    let mut cross = |pair: &mut Pair, gap_us: u64| {
        let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
        held(pair, now);
        let late = held(pair, now + gap_us * MICRO * 3 / 4);
        now += gap_us * MICRO;
        let send = pair.endpoint.isend(A, outgoing(from, &source, 7)).unwrap();
        while pair.endpoint.test(receive).unwrap().is_none() {
            pair.endpoint.progress(Instant(now), BUDGET);
        }
        assert_eq!(pair.finish(send).result, Ok(()));
        late
    };
    assert!((0..16).all(|_| cross(&mut pair, 100) < 8));
    let counts: Vec<i32> = (0..24).map(|_| cross(&mut pair, 100)).collect();
    assert_eq!(counts.iter().filter(|count| **count == 7).count(), 3, "{counts:?}");
    assert_eq!(counts.iter().filter(|count| **count == 0).count(), 3, "{counts:?}");
    // beyond that nobody waits for the next
    assert!((0..8).all(|_| cross(&mut pair, 1000) < 8));
    assert!((0..24).all(|_| cross(&mut pair, 1000) == 0));
}

/// The sender is ahead: it remembers so many messages that went before their receives, however many
/// groups these are. Time stands still, so that nobody is helped on by a hold that ends.
#[test]
fn groups_are_not_held_back_from_a_sender_that_has_sent_all_it_may() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    pair.endpoint.caps.syscalls = Syscalls::PerBatch;
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
