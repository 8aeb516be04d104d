//! Messages over TCP that leave before their receives are there and are longer than what every
//! receive has a place for: between two endpoints of this process, against a plain oracle.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{Incoming, Limits, Outcome, RequestError, RequestId, SubmitError};
use host_support::{Memory, Node, Place, Random, Watch, joined, small};
use std::collections::VecDeque;

const LENGTH_MAX: usize = 200_000;
/// Messages that are looked at for the next group: fewer than leave before their receives.
const AHEAD: usize = 6;
/// Groups and sends that are outstanding at most.
const OUTSTANDING: usize = 32;
const MESSAGES: usize = 400;
const TAGS: u64 = 3;

fn options() -> Options {
    let limits = Limits { requests_max: 256, ..small(2).limits };
    Options { device: DeviceKind::Tcp, limits, ..small(2) }
}

/// A message: its number, length and tag.
#[derive(Copy, Clone)]
struct Message {
    number: u64,
    length: usize,
    tag: i32,
}

fn messages(random: &mut Random) -> VecDeque<Message> {
    let message = |number| {
        let bound = [9, 8192, 8300, 131_072, 140_000, LENGTH_MAX][random.below(6) as usize];
        let length = random.below(bound as u64 + 1) as usize;
        Message { number, length, tag: random.below(TAGS) as i32 }
    };
    (0..MESSAGES as u64).map(message).collect()
}

/// What the groups of a receiver are, and which messages each takes, place by place: the tags of
/// some of the next messages.
fn groups(mut left: VecDeque<Message>, random: &mut Random) -> VecDeque<Vec<Message>> {
    let mut all = VecDeque::new();
    while !left.is_empty() {
        let count = 1 + random.below(3.min(left.len() as u64)) as usize;
        let ahead = left.len().min(AHEAD);
        let mut picked: Vec<usize> = (0..ahead).collect();
        while picked.len() > count {
            picked.remove(random.below(picked.len() as u64) as usize);
        }
        let mut places: Vec<(i32, Option<Message>)> =
            picked.iter().map(|at| (left[*at].tag, None)).collect();
        // each message, in turn, takes the first free place with its tag
        left.retain(|message| {
            let place =
                places.iter_mut().find(|(tag, taken)| *tag == message.tag && taken.is_none());
            place.map(|place| place.1 = Some(*message)).is_none()
        });
        all.push_back(places.into_iter().map(|(_, taken)| taken.unwrap()).collect());
    }
    all
}

/// One side: what it sends, and what it receives.
struct Side {
    node: Node,
    peer: Handle,
    from: Memory,
    into: Memory,
    sends: VecDeque<Message>,
    sending: VecDeque<(RequestId, usize)>,
    groups: VecDeque<Vec<Message>>,
    receiving: VecDeque<(RequestId, Vec<Message>, usize)>,
    places_out: Vec<usize>,
    places_in: Vec<usize>,
}

impl Side {
    fn new(
        node: Node,
        peer: Handle,
        sends: VecDeque<Message>,
        groups: VecDeque<Vec<Message>>,
    ) -> Side {
        let places = || (0..OUTSTANDING).collect();
        let from = Memory::new(&node, Place::Private, OUTSTANDING * LENGTH_MAX);
        let into = Memory::new(&node, Place::Private, 3 * OUTSTANDING * LENGTH_MAX);
        let (sending, receiving) = (VecDeque::new(), VecDeque::new());
        let (places_out, places_in) = (places(), places());
        Side { node, peer, from, into, sends, sending, groups, receiving, places_out, places_in }
    }

    fn is_done(&self) -> bool {
        self.sends.is_empty()
            && self.sending.is_empty()
            && self.groups.is_empty()
            && self.receiving.is_empty()
    }

    fn send(&mut self) {
        let (Some(message), Some(place)) = (self.sends.front(), self.places_out.last()) else {
            return;
        };
        let at = place * LENGTH_MAX;
        self.from.fill(at, message.length, message.number);
        match self.node.isend(self.peer, self.from.outgoing(at, message.length, message.tag)) {
            Ok(request) => {
                self.sending.push_back((request, *place));
                self.places_out.pop();
                self.sends.pop_front();
            }
            Err(SubmitError::Again) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn receive(&mut self) {
        let (Some(group), Some(place)) = (self.groups.front(), self.places_in.last()) else {
            return;
        };
        let incoming = |at: usize| {
            self.into.incoming((3 * place + at) * LENGTH_MAX, LENGTH_MAX, group[at].tag)
        };
        let all: Vec<Incoming> = (0..group.len()).map(incoming).collect();
        match self.node.irecv(self.peer, &all) {
            Ok(request) => {
                self.receiving.push_back((request, self.groups.pop_front().unwrap(), *place));
                self.places_in.pop();
            }
            Err(SubmitError::Again) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Looks at what is under way.
    fn look(&mut self) {
        if let Some((request, place)) = self.sending.pop_front() {
            match self.node.test(request).expect("a live request") {
                None => self.sending.push_back((request, place)),
                Some(Outcome { result, .. }) => {
                    assert_eq!(result, Ok(()));
                    // what has ended is the sender's again
                    self.from.fill(place * LENGTH_MAX, LENGTH_MAX, u64::MAX);
                    self.places_out.push(place);
                }
            }
        }
        if let Some((request, group, place)) = self.receiving.pop_front() {
            match self.node.test(request).expect("a live request") {
                None => self.receiving.push_back((request, group, place)),
                Some(outcome) => {
                    assert_eq!(outcome.result, Ok(()));
                    for (at, message) in group.iter().enumerate() {
                        assert_eq!(outcome.lengths[at], message.length as u64);
                        self.into.verify(
                            (3 * place + at) * LENGTH_MAX,
                            message.length,
                            message.number,
                        );
                    }
                    self.places_in.push(place);
                }
            }
        }
    }

    fn turn(&mut self, random: &mut Random) {
        for _ in 0..random.below(12) {
            match random.below(4) {
                0 => self.send(),
                1 => self.receive(),
                2 => self.look(),
                _ => _ = self.node.progress(),
            }
        }
    }
}

fn both_directions(seed: u64) {
    let mut random = Random(seed);
    let (mut a, mut b) = (Node::open(&options()), Node::open(&options()));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let (from_a, from_b) = (messages(&mut random), messages(&mut random));
    let (at_b, at_a) = (groups(from_a.clone(), &mut random), groups(from_b.clone(), &mut random));
    let mut sides = [Side::new(a, to_b, from_a, at_a), Side::new(b, to_a, from_b, at_b)];
    let watch = Watch::start();
    while !sides.iter().all(Side::is_done) {
        // one of them may have more turns for a while
        let side = &mut sides[(random.below(64).count_ones() % 2) as usize];
        side.turn(&mut random);
        watch.look("messages of both sides");
    }
    for Side { mut node, peer, from, into, .. } in sides {
        node.disconnect(peer);
        from.release(&node);
        into.release(&node);
        node.close();
    }
}

#[test]
fn messages_of_all_lengths_meet_the_receives_that_the_oracle_says() {
    for seed in 1..9 {
        both_directions(seed);
    }
}

/// With threads, shorter messages leave early, and long ones go by other streams.
#[test]
fn so_with_threads_that_move_what_is_long() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "messages_of_all_lengths_meet_the_receives_that_the_oracle_says"]);
    command.env("CROSSTIE_TCP_THREADS", "2");
    assert!(command.status().unwrap().success());
}

/// Receives that are taken back while long messages are on their way to them: none breaks the
/// connection, and each message comes once, in order.
#[test]
fn long_messages_to_receives_that_are_taken_back_come_in_order() {
    const LONG: usize = 100_000;
    const COUNT: u64 = 60;
    let (mut a, mut b) = (Node::open(&options()), Node::open(&options()));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let from = Memory::new(&a, Place::Private, OUTSTANDING * LONG);
    let into = Memory::new(&b, Place::Private, OUTSTANDING * LONG);
    let mut random = Random(7);
    let (mut sent, mut come) = (0, 0);
    let mut sending: VecDeque<RequestId> = VecDeque::new();
    let mut receiving: VecDeque<(RequestId, usize)> = VecDeque::new();
    let mut places: Vec<usize> = (0..OUTSTANDING).collect();
    let watch = Watch::start();
    while come < COUNT || !receiving.is_empty() {
        match random.below(6) {
            0 if sent < COUNT && sending.len() < OUTSTANDING => {
                let at = sent as usize % OUTSTANDING * LONG;
                from.fill(at, LONG, sent);
                sending.push_back(a.isend(to_b, from.outgoing(at, LONG, 1)).unwrap());
                sent += 1;
            }
            1 if come < COUNT => {
                if let Some(place) = places.pop() {
                    let room = into.incoming(place * LONG, LONG, 1);
                    receiving.push_back((b.irecv(to_a, &[room]).unwrap(), place));
                }
            }
            2 if !receiving.is_empty() => {
                let at = random.below(receiving.len() as u64) as usize;
                _ = b.cancel(receiving[at].0); // it may have its message
            }
            3 => _ = a.progress(),
            _ => _ = b.progress(),
        }
        if let Some(request) = sending.front()
            && let Some(outcome) = a.test(*request).unwrap()
        {
            assert_eq!(outcome.result, Ok(()));
            sending.pop_front();
        }
        if let Some((request, place)) = receiving.front().copied()
            && let Some(outcome) = b.test(request).unwrap()
        {
            match outcome.result {
                Ok(()) => {
                    into.verify(place * LONG, LONG, come);
                    come += 1;
                }
                error => assert_eq!(error, Err(RequestError::Canceled)),
            }
            places.push(place);
            receiving.pop_front();
        }
        if come == COUNT
            && let Some((request, _)) = receiving.front()
        {
            _ = b.cancel(*request);
        }
        watch.look("messages to receives that are taken back");
    }
    a.disconnect(to_b);
    from.release(&a);
    into.release(&b);
}
