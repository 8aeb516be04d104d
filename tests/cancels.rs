//! Receives that are taken back between two endpoints of this process, over each kind of rail.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{Limits, RequestError, RequestId};
use host_support::{Memory, Node, Place, joined, small, wait_both};

/// Goes in the stream, does so over TCP alone, and nowhere.
const LENGTHS: [usize; 3] = [64, 40_000, LONG];
const TAG: i32 = 5;
/// One that goes in no stream, from whatever memory.
const LONG: usize = 200_000;

/// A rail: what opens it, and whether it pushes through shared memory.
const RAILS: [(&str, DeviceKind, bool); 3] = [
    ("shm that pulls", DeviceKind::SharedMemory, false),
    ("shm that pushes", DeviceKind::SharedMemory, true),
    ("tcp", DeviceKind::Tcp, false),
];

/// A connection from `a` to `b`.
struct Ends {
    a: Node,
    b: Node,
    to_b: Handle,
    to_a: Handle,
    rail: &'static str,
}

impl Ends {
    fn over(rail: &(&'static str, DeviceKind, bool)) -> Ends {
        let (rail, device, push) = *rail;
        let limits = Limits { requests_max: 256, ..small(2).limits };
        let options = Options { device, push, limits, ..small(2) };
        let (mut a, mut b) = (Node::open(&options), Node::open(&options));
        let (to_b, to_a) = joined(&mut a, &mut b);
        Ends { a, b, to_b, to_a, rail }
    }

    fn progress(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.a.progress();
            self.b.progress();
        }
    }

    /// Posts so many, cancels the newest first with `rounds` of progress after each, and sees each
    /// end once.
    fn post_and_cancel(&mut self, into: &Memory, count: usize, rounds: usize) {
        let receives: Vec<RequestId> = (0..count)
            .map(|_| self.b.irecv(self.to_a, &[into.incoming(0, 8, TAG)]))
            .map(Result::unwrap)
            .collect();
        self.progress(50);
        for receive in receives.iter().rev() {
            self.b.cancel(*receive).unwrap();
            self.progress(rounds);
        }
        for receive in receives {
            let Ends { a, b, rail, .. } = self;
            let result = wait_both(b, a, receive).result;
            assert_eq!(result, Err(RequestError::Canceled), "{rail}, {count}, {rounds} rounds");
            assert!(b.test(receive).is_err(), "it ends once");
        }
    }

    /// Short messages and long ones, whose receives are all posted before.
    fn goes_on(&mut self, from: &Memory, into: &Memory, seed: u64) {
        let count = if seed.is_multiple_of(3) { 100 } else { 5 };
        for length in LENGTHS {
            let receives: Vec<RequestId> = (0..count)
                .map(|at| self.b.irecv(self.to_a, &[into.incoming(at * length, length, TAG)]))
                .map(Result::unwrap)
                .collect();
            for (at, receive) in receives.into_iter().enumerate() {
                from.fill(0, length, seed + at as u64);
                let send = self.a.isend(self.to_b, from.outgoing(0, length, TAG)).unwrap();
                let Ends { a, b, .. } = self;
                assert_eq!(wait_both(b, a, receive).result, Ok(()));
                assert_eq!(wait_both(a, b, send).result, Ok(()));
                into.verify(at * length, length, seed + at as u64);
            }
        }
    }
}

#[test]
fn receives_canceled_newest_first_end_once_and_the_connection_goes_on() {
    for rail in &RAILS {
        let mut ends = Ends::over(rail);
        let from = Memory::new(&ends.a, Place::Private, LONG);
        let into = Memory::new(&ends.b, Place::Private, 100 * LONG);
        ends.goes_on(&from, &into, 1); // an end takes part once it has used the connection
        let mut seed = 0;
        for count in [2, 3, 100] {
            for rounds in [0, 1, 3] {
                ends.post_and_cancel(&into, count, rounds);
                ends.goes_on(&from, &into, seed);
                seed += 1;
            }
        }
    }
}

/// Where the receiver pulls, the message is announced at once, and may be read from then on: what
/// crosstie.h says of xtie_request_cancel.
#[test]
fn long_send_without_a_receive_is_taken_back_where_receives_are_offered() {
    for rail in &RAILS {
        let mut ends = Ends::over(rail);
        let from = Memory::new(&ends.a, Place::Private, LONG);
        let into = Memory::new(&ends.b, Place::Private, 100 * LONG);
        let pulls = rail.0 == "shm that pulls";
        ends.goes_on(&from, &into, 1);
        let send = ends.a.isend(ends.to_b, from.outgoing(0, LONG, TAG)).unwrap();
        ends.progress(100);
        let canceled = ends.a.cancel(send);
        assert_eq!(canceled.is_err(), pulls, "{}: {canceled:?}", ends.rail);
        if !pulls {
            let Ends { a, b, .. } = &mut ends;
            assert_eq!(wait_both(a, b, send).result, Err(RequestError::Canceled));
            ends.goes_on(&from, &into, 2);
            continue;
        }
        // its receive, or the end of the connection, ends it
        let to = ends.b.irecv(ends.to_a, &[into.incoming(0, LONG, TAG)]).unwrap();
        let Ends { a, b, .. } = &mut ends;
        assert_eq!(wait_both(b, a, to).result, Ok(()));
        assert_eq!(wait_both(a, b, send).result, Ok(()));
    }
}
