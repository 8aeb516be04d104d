//! Receives that are taken back, in any order, where their slots have been offered and where not.

use super::*;
use crate::transport::limits::{GROUPS_OFFERED_MAX, REQUESTS_MAX};

/// Longer than what goes in the stream.
const STEP: usize = 100;
const EAGER: Bytes = Bytes(64);
const TAG: i32 = 3;
/// More than have slots at the peer.
const GROUPS: usize = 100;
/// Rounds of progress after which nothing moves any more.
const ROUNDS: usize = 40;

const _: () = assert!(GROUPS > GROUPS_OFFERED_MAX as usize && GROUPS < REQUESTS_MAX as usize);

const LIMITS_MANY: Limits = Limits { requests_max: REQUESTS_MAX, ..LIMITS };

/// A connection whose messages lie one after the other, in the same places on both sides.
struct Places<'m> {
    pair: Pair<'m>,
    source: Vec<u8>,
    target: Vec<u8>,
    from: Handle,
    to: Handle,
    /// Places from the first on in which something may lie.
    used: usize,
}

impl<'m> Places<'m> {
    fn open(block: &'m mut HeapBlock, pull: bool, count: usize) -> Places<'m> {
        let pair = Pair::open_with(block, LIMITS_MANY, EAGER, pull, |rail| rail);
        let mut source = pattern(STEP * count, 7);
        let mut target = vec![0; source.len()];
        let (from, to) = (pair.register(&mut source), pair.register(&mut target));
        Places { pair, source, target, from, to, used: 0 }
    }

    fn receive(&mut self, at: usize) -> RequestId {
        let room = incoming(self.to, &self.target[at * STEP..][..STEP], TAG);
        self.pair.endpoint.irecv(B, &[room]).unwrap()
    }

    /// Every third is short.
    fn length(at: usize) -> usize {
        if at.is_multiple_of(3) { STEP / 2 } else { STEP }
    }

    fn send(&mut self, at: usize) -> RequestId {
        let message = outgoing(self.from, &self.source[at * STEP..][..Self::length(at)], TAG);
        self.pair.endpoint.isend(A, message).unwrap()
    }

    fn cancel(&mut self, receive: RequestId) {
        assert_eq!(self.pair.endpoint.cancel(receive), Ok(()));
    }

    fn progress(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.pair.endpoint.progress(Instant(0), BUDGET);
        }
    }

    /// A receive has one end, and then no more.
    fn ends(&mut self, receive: RequestId) -> Result<(), RequestError> {
        let outcome = self.pair.finish(receive);
        assert_eq!(self.pair.endpoint.test(receive), Err(request::RequestIdError::Stale));
        outcome.result
    }

    fn sent(&mut self, send: RequestId) {
        assert_eq!(self.pair.finish(send).result, Ok(()));
    }

    /// Message `from` lies in place `to`, and place by place onwards.
    fn lie(&self, from: usize, to: usize, count: usize) {
        for at in 0..count {
            let length = Self::length(from + at);
            let sent = &self.source[(from + at) * STEP..][..length];
            assert_eq!(&self.target[(to + at) * STEP..][..length], sent, "{from} + {at}");
        }
    }

    /// Messages from place `first` on, received where they came from.
    fn goes_on(&mut self, first: usize, count: usize) {
        let receives: Vec<_> = (first..first + count).map(|at| self.receive(at)).collect();
        let sends: Vec<_> = (first..first + count).map(|at| self.send(at)).collect();
        for (receive, send) in receives.into_iter().zip(sends) {
            assert_eq!(self.ends(receive), Ok(()));
            self.sent(send);
        }
        self.lie(first, first, count);
        assert!(self.target[self.used * STEP..first * STEP].iter().all(|byte| *byte == 0));
    }
}

/// Which of the two ways, and how many rounds of progress between one call and the next.
fn ways() -> impl Iterator<Item = (bool, usize)> {
    [true, false].into_iter().flat_map(|pull| [0, 1, ROUNDS].map(|rounds| (pull, rounds)))
}

/// The slot of the newer one asked for it, and that of the older one, which the peer looks at
/// first, never did.
#[test]
fn receives_that_are_canceled_newest_first_all_end() {
    for (pull, rounds) in ways() {
        let mut block = block_of(LIMITS_MANY);
        let mut places = Places::open(&mut block, pull, 12);
        let receives = [0, 1, 2].map(|at| places.receive(at));
        places.progress(ROUNDS);
        for receive in receives.into_iter().rev() {
            places.cancel(receive);
            places.progress(rounds);
        }
        for receive in receives {
            assert_eq!(places.ends(receive), Err(RequestError::Canceled), "{pull} {rounds}");
        }
        places.goes_on(3, 9);
    }
}

/// Those behind the window of slots were asked back where their slots had not been written.
#[test]
fn receives_more_than_have_slots_all_end_when_canceled_newest_first() {
    for (pull, rounds) in ways() {
        let mut block = block_of(LIMITS_MANY);
        let mut places = Places::open(&mut block, pull, 2 * GROUPS);
        let receives: Vec<_> = (0..GROUPS).map(|at| places.receive(at)).collect();
        places.progress(ROUNDS);
        for receive in receives.iter().rev() {
            places.cancel(*receive);
            places.progress(rounds.min(1));
        }
        for receive in receives {
            assert_eq!(places.ends(receive), Err(RequestError::Canceled), "{pull} {rounds}");
        }
        places.goes_on(GROUPS, GROUPS);
    }
}

/// Nobody but us knows of a receive whose slot has not been written.
#[test]
fn receive_behind_the_window_is_canceled_at_once_and_later_messages_find_their_receives() {
    const CANCELED: usize = 80;
    for pull in [true, false] {
        let mut block = block_of(LIMITS_MANY);
        let mut places = Places::open(&mut block, pull, 2 * GROUPS);
        let mut receives: Vec<_> = (0..GROUPS).map(|at| places.receive(at)).collect();
        places.progress(ROUNDS);
        let canceled = receives.remove(CANCELED);
        places.cancel(canceled);
        assert_eq!(
            places.pair.endpoint.test(canceled).unwrap().map(|outcome| outcome.result),
            Some(Err(RequestError::Canceled))
        );
        for (at, receive) in receives.into_iter().enumerate() {
            let send = places.send(at);
            assert_eq!(places.ends(receive), Ok(()));
            places.sent(send);
        }
        places.lie(0, 0, CANCELED);
        places.lie(CANCELED, CANCELED + 1, GROUPS - 1 - CANCELED);
        assert_eq!((waits(&mut places.pair, A), waits(&mut places.pair, B)), (vec![], vec![]));
    }
}

/// On a rail that pushes a receive is given back when those before it have their messages.
#[test]
fn newer_receive_that_is_canceled_ends_when_the_older_has_its_message() {
    for (pull, rounds) in ways() {
        let mut block = block_of(LIMITS_MANY);
        let mut places = Places::open(&mut block, pull, 12);
        let [older, newer] = [0, 1].map(|at| places.receive(at));
        places.progress(ROUNDS);
        places.cancel(newer);
        places.progress(rounds);
        assert_eq!(places.pair.endpoint.test(older), Ok(None));
        let send = places.send(0);
        assert_eq!(places.ends(older), Ok(()));
        places.sent(send);
        assert_eq!(places.ends(newer), Err(RequestError::Canceled), "{pull} {rounds}");
        places.lie(0, 0, 1);
        places.used = 1;
        places.goes_on(2, 10);
    }
}

/// What was asked back first was filled meanwhile: who is next is asked for by nobody else.
#[test]
fn receives_that_are_canceled_while_a_message_comes_all_end() {
    for (pull, rounds) in ways() {
        let mut block = block_of(LIMITS_MANY);
        let mut places = Places::open(&mut block, pull, 12);
        let receives = [0, 1, 2].map(|at| places.receive(at));
        places.progress(ROUNDS);
        let send = places.send(0);
        receives.iter().for_each(|receive| places.cancel(*receive));
        places.progress(rounds);
        let [first, second, third] = receives.map(|receive| places.ends(receive));
        let canceled = Err(RequestError::Canceled);
        // who pulls gives back what nothing has reached, and the message waits for a receive
        let first_expected = if pull { canceled } else { Ok(()) };
        assert_eq!((first, second, third), (first_expected, canceled, canceled), "{pull} {rounds}");
        if pull {
            let receive = places.receive(0);
            assert_eq!(places.ends(receive), Ok(()));
        }
        places.sent(send);
        places.lie(0, 0, 1);
        places.used = 1;
        places.goes_on(3, 9);
    }
}

/// Whatever is canceled in whatever order: what is not has the messages, in order.
#[test]
fn receives_canceled_in_any_order_leave_the_messages_to_the_others() {
    for (pull, rounds) in ways() {
        for step in [3, 7, 61, GROUPS - 1] {
            let mut block = block_of(LIMITS_MANY);
            let mut places = Places::open(&mut block, pull, GROUPS);
            let receives: Vec<_> = (0..GROUPS).map(|at| places.receive(at)).collect();
            places.progress(ROUNDS);
            let is_kept = |at: &usize| at % 4 == 2;
            for at in (0..GROUPS).map(|turn| turn * step % GROUPS).filter(|at| !is_kept(at)) {
                places.cancel(receives[at]);
                places.progress(rounds.min(1));
            }
            let kept: Vec<_> = (0..GROUPS).filter(is_kept).collect();
            let mut sends = vec![];
            for message in 0..kept.len() {
                places.progress(ROUNDS); // else it may come first
                sends.push(places.send(message));
            }
            for (at, receive) in receives.into_iter().enumerate() {
                let expected = if is_kept(&at) { Ok(()) } else { Err(RequestError::Canceled) };
                assert_eq!(places.ends(receive), expected, "{pull} {rounds} {step} {at}");
            }
            sends.into_iter().for_each(|send| places.sent(send));
            for (message, at) in kept.into_iter().enumerate() {
                places.lie(message, at, 1);
            }
        }
    }
}
