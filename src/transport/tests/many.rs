//! As many requests as a connection may have, all asked for before any is tested.

use super::*;
use crate::transport::limits::{GROUPS_OFFERED_MAX, REQUESTS_MAX};
use crate::wire::GROUP_MAX;

/// Longer than what goes in the stream.
const STEP: usize = 100;
const EAGER: Bytes = Bytes(64);

fn limits(requests_max: u32) -> Limits {
    Limits { requests_max, ..LIMITS }
}

/// Every third is short.
fn length(number: usize) -> usize {
    if number.is_multiple_of(3) { STEP / 2 } else { STEP - number % 7 }
}

/// Submits what `submit` makes of each number until there is no room.
fn submit_all(mut submit: impl FnMut(usize) -> Result<RequestId, SubmitError>) -> Vec<RequestId> {
    let mut requests = vec![];
    loop {
        match submit(requests.len()) {
            Ok(request) => requests.push(request),
            Err(SubmitError::Again) => return requests,
            Err(error) => panic!("{error:?} at {}", requests.len()),
        }
    }
}

fn place(memory: &[u8], number: usize) -> &[u8] {
    &memory[number * STEP..][..STEP]
}

/// A connection of 64 requests stood still when its user asked for 65 before testing any.
#[test]
fn sends_that_nobody_receives_yet_all_have_requests_and_end() {
    for (pull, requests_max) in [(true, 64), (true, REQUESTS_MAX), (false, 128), (false, 256)] {
        let (limits, count) = (limits(requests_max), requests_max as usize);
        let mut block = block_of(limits);
        let mut pair = Pair::open_with(&mut block, limits, EAGER, pull, |rail| rail);
        let mut source = pattern(STEP * (count + 64), 3);
        let mut target = vec![0; source.len()];
        let (from, to) = (pair.register(&mut source), pair.register(&mut target));
        // whatever has left at once has a request that takes no record
        let mut sends = submit_all(|at| {
            let message = outgoing(from, &place(&source, at)[..length(at)], 0);
            pair.endpoint.isend(A, message)
        });
        assert!((count..count + 64).contains(&sends.len()), "{} of {count}", sends.len());
        // the last one first, and one more when it has ended
        let mut received = 0;
        while received < sends.len() {
            let room = [incoming(to, place(&target, received), 0)];
            let receive = pair.endpoint.irecv(B, &room).unwrap();
            let outcome = pair.finish(receive);
            assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), length(received) as u64));
            received += 1;
        }
        while let Some(send) = sends.pop() {
            assert_eq!(pair.finish(send).result, Ok(()));
        }
        for number in 0..received {
            let length = length(number);
            assert_eq!(place(&target, number)[..length], place(&source, number)[..length]);
        }
    }
}

/// Only so many groups have slots at the peer as its mailbox has room for; the others follow.
#[test]
fn groups_behind_the_window_follow_when_the_peer_has_bound_those_before() {
    for (pull, size) in [(true, 1), (true, GROUP_MAX), (false, 1), (false, GROUP_MAX)] {
        let (limits, count) = (limits(REQUESTS_MAX), REQUESTS_MAX as usize);
        let mut block = block_of(limits);
        let mut pair = Pair::open_with(&mut block, limits, EAGER, pull, |rail| rail);
        let mut source = pattern(STEP * (count + 1) * size, 5);
        let mut target = vec![0; source.len()];
        let (from, to) = (pair.register(&mut source), pair.register(&mut target));
        let groups = submit_all(|at| {
            let room = |i: usize| incoming(to, place(&target, at * size + i), i as i32);
            let rooms: Vec<_> = (0..size).map(room).collect();
            pair.endpoint.irecv(B, &rooms)
        });
        assert_eq!(groups.len(), count);
        for _ in 0..20 {
            pair.endpoint.progress(Instant(0), BUDGET);
        }
        let offered = pair.endpoint.status(B, Tick::of(100, 10)).status.slots_next;
        assert_eq!(offered, if pull { 0 } else { GROUPS_OFFERED_MAX });
        for at in 0..count {
            let sends = (0..size).rev().map(|i| {
                let number = at * size + i;
                let message = outgoing(from, &place(&source, number)[..length(number)], i as i32);
                pair.endpoint.isend(A, message).unwrap()
            });
            for send in sends.collect::<Vec<_>>() {
                assert_eq!(pair.finish(send).result, Ok(()));
            }
        }
        for (at, group) in groups.into_iter().enumerate().rev() {
            let outcome = pair.finish(group);
            assert_eq!(outcome.result, Ok(()));
            for number in at * size..(at + 1) * size {
                let length = length(number);
                assert_eq!(outcome.lengths[number % size], length as u64);
                assert_eq!(place(&target, number)[..length], place(&source, number)[..length]);
            }
        }
    }
}

/// Heads alone said that there was room for more slots, and nobody looked.
#[test]
fn groups_behind_the_window_follow_when_every_message_is_answered() {
    const GROUPS: usize = 200;
    for pull in [true, false] {
        let limits = limits(REQUESTS_MAX);
        let mut block = block_of(limits);
        let mut pair = Pair::open_with(&mut block, limits, EAGER, pull, |rail| rail);
        let mut source = pattern(8 * GROUPS, 5);
        let mut target = vec![0; 8 * (GROUPS + 1)];
        let (from, to) = (pair.register(&mut source), pair.register(&mut target));
        let room = |at: usize| [incoming(to, &target[8 * at..][..8], 0)];
        let message = |at: usize| outgoing(from, &source[8 * at..][..8], 0);
        let receives: Vec<_> =
            (0..GROUPS).map(|at| pair.endpoint.irecv(B, &room(at)).unwrap()).collect();
        for (at, receive) in receives.into_iter().enumerate() {
            let answer = pair.endpoint.irecv(A, &room(GROUPS)).unwrap();
            let there = pair.endpoint.isend(A, message(at)).unwrap();
            assert_eq!(pair.finish(receive).result, Ok(()));
            let back = pair.endpoint.isend(B, message(at)).unwrap();
            for request in [answer, there, back] {
                assert_eq!(pair.finish(request).result, Ok(()));
            }
        }
        assert_eq!(target[..8 * GROUPS], source[..]);
    }
}

/// The last record has the number that once meant "no more".
#[test]
fn queued_sends_leave_in_any_order_and_can_be_taken_back() {
    let (limits, count) = (limits(REQUESTS_MAX), REQUESTS_MAX as usize);
    let mut block = block_of(limits);
    let mut pair = Pair::open_with(&mut block, limits, EAGER, false, |rail| rail);
    let mut source = pattern(STEP, 1);
    let mut target = vec![0; STEP];
    let (from, to) = (pair.register(&mut source), pair.register(&mut target));
    let message = |tag: usize| outgoing(from, &source, tag as i32);
    let sends = submit_all(|at| pair.endpoint.isend(A, message(at)));
    assert_eq!(sends.len(), count);
    // the last, the first, and every other one
    let taken_back = |at: usize| at == 0 || at == count - 1 || at % 2 == 1;
    for (at, send) in sends.iter().enumerate().rev().filter(|(at, _)| taken_back(*at)) {
        assert_eq!(pair.endpoint.cancel(*send), Ok(()), "{at}");
        assert_eq!(pair.finish(*send).result, Err(RequestError::Canceled));
    }
    let again: Vec<_> = (0..10).map(|at| pair.endpoint.isend(A, message(count + at))).collect();
    let left = (0..count).filter(|at| !taken_back(*at)).rev().chain(count..count + 10);
    for tag in left {
        let room = [incoming(to, &target, tag as i32)];
        let receive = pair.endpoint.irecv(B, &room).unwrap();
        assert_eq!(pair.finish(receive).result, Ok(()));
    }
    let rest = sends.iter().enumerate().filter(|(at, _)| !taken_back(*at)).map(|(_, it)| *it);
    for send in rest.chain(again.into_iter().map(|it| it.unwrap())) {
        assert_eq!(pair.finish(send).result, Ok(()));
    }
    assert_eq!((waits(&mut pair, A), waits(&mut pair, B)), (vec![], vec![]));
}
