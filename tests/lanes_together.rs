//! Connections of one host over shared memory and TCP at once (CROSSTIE_RAILS=shm+tcp): both rails
//! carry bytes, either goes on without the other, and where one side does not want both there is
//! shared memory alone.
#![allow(dead_code)] // of the shared parts

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::Options;
use crosstie::host::endpoint::{Closing, ConnectionRail};
use crosstie::host::log::{Level, sink_set};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{LaneView, RequestError, SubmitError};
use host_support::flow::Flow;
use host_support::pair::{Pair, alone};
use host_support::roles::{self, Process};
use host_support::{Memory, Node, Place, Random, Watch, small, wait_both};
use std::sync::{Mutex, PoisonError};

fn set(name: &str, value: &str) {
    host_support::set(name, value);
}

#[test]
fn role() {
    roles::take(&[("connect", role_connect)]);
}

/// An endpoint that wants these rails, so many of one connection at most, over TCP so many.
fn open(rails: &str, rails_max: u32, tcp_rails: u32) -> Node {
    set("CROSSTIE_RAILS", rails);
    set("CROSSTIE_TCP_RAILS", &tcp_rails.to_string());
    set("CROSSTIE_SOCKET_IFNAME", "=lo");
    let mut options: Options = small(2);
    options.limits.rails_max = rails_max;
    Node::open(&options)
}

impl Pair {
    /// Of endpoints with these rails and limits, connected, all of so many rails in use.
    fn new(rails: [&str; 2], rails_max: [u32; 2], tcp_rails: [u32; 2], lanes: u8) -> Pair {
        let alone = alone();
        let a = open(rails[0], rails_max[0], tcp_rails[0]);
        let b = open(rails[1], rails_max[1], tcp_rails[1]);
        Pair::of(alone, a, b, lanes)
    }

    fn both() -> Pair {
        Pair::new(["shm+tcp"; 2], [2; 2], [1; 2], 2)
    }

    /// Breaks a rail at one side: the socket behind the library's back, the rings by a word.
    fn kill(&mut self, side: usize, lane: u8) {
        if lane == 0 {
            let (node, connection) = match side {
                0 => (&mut self.a, self.to_b),
                _ => (&mut self.b, self.to_a),
            };
            node.lane_break(connection, 0);
            return;
        }
        let (node, connection) = self.side(side);
        let fd = node.lane_socket(connection, lane).expect("a rail in use");
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) }, 0);
    }

    fn rails(&mut self) -> [Option<ConnectionRail>; 2] {
        [self.a.connection_rail(self.to_b), self.b.connection_rail(self.to_a)]
    }

    /// Waits until the rings are given up on both sides.
    fn without_rings(&mut self, flows: &mut [Flow; 2]) {
        self.flow_until(flows, "the rings to be given up", |pair, _| {
            pair.views(0).iter().all(|view| view.state == LaneState::Down)
        });
    }

    /// Lets messages flow until a rail is in use again on both sides, and carries bytes both ways.
    fn until_back(&mut self, flows: &mut [Flow; 2], lane: u8, generation: u32) {
        let before = self.bytes(lane);
        self.flow_until(flows, "the rail to carry bytes again", |pair, _| {
            let newer = |view: &LaneView| view.generation > generation;
            let bytes = pair.bytes(lane);
            pair.is_up(lane)
                && pair.views(lane).iter().all(newer)
                && bytes[0] > before[0]
                && bytes[1] > before[1]
        });
    }
}

// ---------------------------------------------------------------- both

#[test]
fn both_rails_carry_bytes() {
    for place in [Place::Private, Place::Shared] {
        let mut pair = Pair::both();
        assert_eq!(pair.rails(), [Some(ConnectionRail::Together); 2]);
        let mut flows = pair.flows(place);
        pair.flow_until(&mut flows, "bytes on both rails", |pair, _| {
            [0, 1].iter().all(|lane| pair.bytes(*lane).iter().all(|bytes| *bytes > 0))
        });
        // nearly all through the rings, once both are known
        pair.flow(&mut flows, 400);
        let (shm, tcp) = (pair.bytes(0), pair.bytes(1));
        assert!(shm[0] > 2 * tcp[0] && shm[1] > 2 * tcp[1], "{shm:?} {tcp:?}");
        let failures = pair.a.stats().failures + pair.b.stats().failures;
        assert_eq!(failures + pair.a.stats().lane_failures, 0);
    }
}

/// A writer that may not touch its peer's memory by the kernel, and whose messages lie in memory of
/// its own, writes through the rings.
#[test]
fn rings_carry_bytes_where_the_kernel_copies_nothing() {
    let guard = alone();
    set("CROSSTIE_KERNEL_COPY", "0");
    drop(guard);
    let mut pair = Pair::both();
    host_support::unset("CROSSTIE_KERNEL_COPY");
    let mut flows = pair.flows(Place::Private);
    pair.flow_until(&mut flows, "bytes through the rings", |pair, _| {
        pair.bytes(0).iter().all(|bytes| *bytes > 0)
    });
}

#[test]
fn rails_say_what_they_are() {
    let mut pair = Pair::new(["shm+tcp"; 2], [4; 2], [2; 2], 3);
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    for (node, connection) in [(&mut pair.a, to_b), (&mut pair.b, to_a)] {
        let mut kind = |rail| node.rail_view(connection, rail).unwrap().map(|view| view.rail);
        assert_eq!(kind(0), Some(ConnectionRail::Shm));
        assert_eq!(kind(1), Some(ConnectionRail::Tcp));
        assert_eq!(kind(2), Some(ConnectionRail::Tcp));
        assert_eq!(kind(3), None);
    }
    let into = Memory::new(&pair.b, Place::Private, 64);
    let receive = pair.b.irecv(to_a, &[into.incoming(0, 64, 1)]).unwrap();
    let mut said = String::new();
    pair.b.report(&mut said).unwrap();
    assert!(said.contains("[rail 0 shm generation 1 up"), "{said}");
    pair.b.cancel(receive).unwrap();
}

// ---------------------------------------------------------------- one dies

#[test]
fn tcp_rail_killed_costs_no_message_and_comes_back_and_carries_bytes() {
    let mut pair = Pair::both();
    let mut flows = pair.flows(Place::Private);
    for side in [0, 1, 0, 1] {
        pair.flow(&mut flows, 8);
        let generation = pair.views(1)[0].generation;
        pair.kill(side, 1);
        pair.until_back(&mut flows, 1, generation);
    }
    assert_eq!(pair.a.stats().failures + pair.b.stats().failures, 0);
    assert!(pair.views(0).iter().all(|view| view.stats.failures == 0));
}

#[test]
fn rings_given_up_cost_no_message_and_tcp_carries_all() {
    for side in [0, 1] {
        let mut pair = Pair::both();
        let mut flows = pair.flows(Place::Private);
        pair.flow(&mut flows, 8);
        pair.kill(side, 0);
        pair.without_rings(&mut flows);
        let before = pair.bytes(0);
        pair.flow(&mut flows, 40);
        assert_eq!(pair.bytes(0), before, "nothing more through the rings");
        for view in pair.views(0) {
            assert_eq!((view.state, view.stats.failures), (LaneState::Down, 1));
            assert!(!view.control);
        }
        // and what is left is looked after
        let generation = pair.views(1)[0].generation;
        assert_eq!(generation, 1);
        assert_eq!(pair.a.stats().failures + pair.b.stats().failures, 0);
    }
}

/// The rings are gone before the other rail is there: it takes over when it comes.
#[test]
fn rings_given_up_before_the_other_rail_is_up_cost_no_message() {
    for round in 0..10u64 {
        let _alone = alone();
        let (mut a, mut b) = (open("shm+tcp", 2, 1), open("shm+tcp", 2, 1));
        let (to_b, to_a) = host_support::joined(&mut a, &mut b);
        let out = Memory::new(&a, Place::Private, 1 << 20);
        let into = Memory::new(&b, Place::Private, 1 << 20);
        for size in [1000, 1 << 20] {
            out.fill(0, size, round);
            let receive = b.irecv(to_a, &[into.incoming(0, size, 1)]).unwrap();
            let send = a.isend(to_b, out.outgoing(0, size, 1)).unwrap();
            (0..round / 2).for_each(|_| _ = a.progress());
            if size == 1000 {
                let (node, connection) =
                    if round % 2 == 0 { (&mut a, to_b) } else { (&mut b, to_a) };
                node.lane_break(connection, 0);
            }
            assert_eq!(wait_both(&mut b, &mut a, receive).result, Ok(()), "round {round}");
            assert_eq!(wait_both(&mut a, &mut b, send).result, Ok(()));
            into.verify(0, size, round);
        }
    }
}

/// The rings are given up after any number of steps of a long message, of either side.
#[test]
fn rings_given_up_at_any_step_of_a_long_message_lose_none_of_it() {
    const LENGTH: usize = 3 << 20;
    for round in 0..12u64 {
        let mut pair = Pair::both();
        let out = Memory::new(&pair.a, Place::Private, LENGTH);
        let into = Memory::new(&pair.b, Place::Private, LENGTH);
        out.fill(0, LENGTH, round);
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LENGTH, 1)]).unwrap();
        let send = pair.a.isend(pair.to_b, out.outgoing(0, LENGTH, 1)).unwrap();
        (0..round).for_each(|_| pair.progress());
        pair.kill((round % 2) as usize, 0);
        let Pair { a, b, .. } = &mut pair;
        let outcome = wait_both(b, a, receive);
        assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), LENGTH as u64), "round {round}");
        assert_eq!(wait_both(a, b, send).result, Ok(()));
        into.verify(0, LENGTH, round);
    }
}

#[test]
fn one_rail_after_the_other_dies_and_no_message_is_lost() {
    let mut random = Random(0x5eed_0b05);
    for round in 0..6u64 {
        let mut pair = Pair::new(["shm+tcp"; 2], [4; 2], [2; 2], 3);
        let mut flows = pair.flows(Place::Private);
        pair.flow(&mut flows, 4);
        // rings and one of two rails over TCP, in either order, one during the other's failover
        let (first, second) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let generation = pair.views(1)[0].generation;
        pair.kill(random.below(2) as usize, first);
        (0..random.below(8)).for_each(|_| pair.step(&mut flows));
        pair.kill(random.below(2) as usize, second);
        pair.without_rings(&mut flows);
        pair.until_back(&mut flows, 1, generation);
        let generation = pair.views(2)[0].generation;
        pair.kill(random.below(2) as usize, 2);
        pair.until_back(&mut flows, 2, generation);
        assert_eq!(pair.a.stats().failures + pair.b.stats().failures, 0);
    }
}

/// Messages that nobody receives do not hold up the ring: the word of how the other rail ended
/// comes past them, and so do messages that are received.
#[test]
fn ring_is_not_held_up_by_messages_that_nobody_receives() {
    const KEPT: usize = 8;
    const SIZE: usize = 1000;
    let mut pair = Pair::both();
    let out = Memory::new(&pair.a, Place::Private, 1 << 20);
    let into = Memory::new(&pair.b, Place::Private, 1 << 20);
    for at in 0..KEPT {
        out.fill(at * SIZE, SIZE, at as u64);
        let send = pair.a.isend(pair.to_b, out.outgoing(at * SIZE, SIZE, 9)).unwrap();
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(a, b, send).result, Ok(()));
    }
    // several times what the ring holds
    for round in 0..400u64 {
        out.fill(0, SIZE, round);
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, SIZE, 1)]).unwrap();
        let send = pair.a.isend(pair.to_b, out.outgoing(0, SIZE, 1)).unwrap();
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, receive).result, Ok(()), "round {round}");
        assert_eq!(wait_both(a, b, send).result, Ok(()));
        into.verify(0, SIZE, round);
        if round % 100 == 50 {
            let generation = pair.views(1)[0].generation;
            pair.kill(0, 1);
            let watch = Watch::start();
            while !pair.is_up(1) || pair.views(1)[1].generation <= generation {
                pair.progress();
                watch.look("the rail over TCP");
            }
        }
    }
    // the rings go, and what came through them is still there
    pair.kill(1, 0);
    let watch = Watch::start();
    while !pair.views(0).iter().all(|view| view.state == LaneState::Down) {
        pair.progress();
        watch.look("the rings");
    }
    for at in 0..KEPT {
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, SIZE, 9)]).unwrap();
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, receive).result, Ok(()));
        into.verify(0, SIZE, at as u64);
    }
}

/// What a closing side was told is done arrives in the receives that wait for it, on whichever rail
/// it came, although the word of the close comes another way and is read first.
#[test]
fn messages_sent_before_a_close_arrive_in_the_receives_that_wait() {
    const COUNT: usize = 4;
    for round in 0..20u64 {
        let rails = if round % 2 == 0 { "shm+tcp" } else { "tcp" };
        let mut pair = Pair::new([rails; 2], [2; 2], [1 + round as u32 % 2; 2], 2);
        let out = Memory::new(&pair.a, Place::Private, COUNT * 1000);
        let into = Memory::new(&pair.b, Place::Private, (COUNT + 1) * 1000);
        let receives: Vec<_> = (0..=COUNT)
            .map(|at| pair.b.irecv(pair.to_a, &[into.incoming(at * 1000, 1000, 1)]).unwrap())
            .collect();
        for at in 0..COUNT {
            out.fill(at * 1000, 1000, round);
            let send = pair.a.isend(pair.to_b, out.outgoing(at * 1000, 1000, 1)).unwrap();
            // the peer does not move
            assert_eq!(pair.a.wait(send).result, Ok(()));
        }
        let watch = Watch::start();
        while pair.a.connection_close(pair.to_b) == Closing::Again {
            pair.a.progress();
            watch.look("closing");
        }
        // what comes over the link behind that word has come, and nothing else was taken in
        let (listener, handle) = pair.b.shared.listen().unwrap();
        let attempt = pair.a.shared.connect(&handle).unwrap();
        pair.a.connected(attempt).unwrap();
        while pair.b.shared.accept(listener).unwrap().is_none() {
            watch.look("the next connection");
        }
        for (at, receive) in receives.into_iter().enumerate() {
            let result = pair.b.wait(receive).result;
            let wanted = if at < COUNT { Ok(()) } else { Err(RequestError::PeerClosed) };
            assert_eq!(result, wanted, "round {round}, message {at}");
            if at < COUNT {
                into.verify(at * 1000, 1000, round);
            }
        }
        pair.b.disconnect(pair.to_a);
    }
}

// ---------------------------------------------------------------- sides that differ

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: usize, level: Level, text: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.push(format!("{level:?}: {text}"));
}

/// What is said while a pair connects and talks, and what it runs over.
fn said_of(
    rails: [&str; 2],
    rails_max: [u32; 2],
    lanes: u8,
) -> (Vec<String>, [Option<ConnectionRail>; 2]) {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
    set("CROSSTIE_LOG", "info");
    sink_set(Some((keep, 0)));
    let mut pair = Pair::new(rails, rails_max, [1; 2], lanes);
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 8);
    let over = pair.rails();
    sink_set(None);
    host_support::unset("CROSSTIE_LOG");
    drop(pair);
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (said.into_iter().filter(|line| line.contains("shm+tcp")).collect(), over)
}

#[test]
fn sides_of_different_settings_use_what_both_allow_and_say_which_differs() {
    let shm = [Some(ConnectionRail::Shm); 2];
    let tcp = [Some(ConnectionRail::Tcp); 2];
    for rails in [["shm+tcp", "shm,tcp"], ["shm,tcp", "shm+tcp"], ["shm+tcp", "shm"]] {
        let (said, over) = said_of(rails, [2; 2], 1);
        assert_eq!(over, shm, "{rails:?}");
        let here = |line: &&String| line.starts_with("Warning") && line.contains("this side has:");
        let there = |line: &&String| line.starts_with("Info") && line.contains("side has not:");
        assert_eq!(said.iter().filter(here).count(), 1, "{said:?}");
        assert_eq!((said.iter().filter(there).count(), said.len()), (1, 2), "{said:?}");
    }
    let (said, over) = said_of(["shm+tcp", "tcp"], [2; 2], 1);
    assert_eq!((over, said.len()), (tcp, 0), "{said:?}");
    let (said, over) = said_of(["shm,tcp", "shm,tcp"], [2; 2], 1);
    assert_eq!((over, said.len()), (shm, 0), "{said:?}");
    // no room for a second rail
    let (said, over) = said_of(["shm+tcp", "shm+tcp"], [1, 2], 1);
    assert_eq!(over, shm);
    assert!(said.iter().any(|line| line.contains("rails_max of 2 or more")), "{said:?}");
}

#[test]
fn sides_of_different_limits_agree_on_the_rails_that_both_have() {
    for (rails_max, tcp_rails, lanes) in [
        ([2, 4], [4, 4], 2),
        ([4, 2], [4, 4], 2),
        ([4, 4], [3, 1], 4),
        // who connects plans
        ([4, 4], [1, 3], 2),
        ([8, 8], [8, 8], 8),
    ] {
        let mut pair = Pair::new(["shm+tcp"; 2], rails_max, tcp_rails, lanes);
        let mut flows = pair.flows(Place::Private);
        pair.flow(&mut flows, 8);
        assert_eq!(pair.rails(), [Some(ConnectionRail::Together); 2]);
    }
}

#[test]
fn different_numbers_of_requests_leave_shared_memory_alone() {
    let _alone = alone();
    let mut a = open("shm+tcp", 2, 1);
    let mut options = small(2);
    options.limits.requests_max = 64;
    let mut b = Node::open(&options);
    for turn in [false, true] {
        let (near, far) = if turn { (&mut b, &mut a) } else { (&mut a, &mut b) };
        let (to_far, to_near) = host_support::joined(near, far);
        assert_eq!(near.connection_rail(to_far), Some(ConnectionRail::Shm));
        assert_eq!(far.connection_rail(to_near), Some(ConnectionRail::Shm));
        let out = Memory::new(near, Place::Private, 1 << 20);
        let into = Memory::new(far, Place::Private, 1 << 20);
        out.fill(0, 1 << 20, 5);
        let receive = far.irecv(to_near, &[into.incoming(0, 1 << 20, 1)]).unwrap();
        let send = near.isend(to_far, out.outgoing(0, 1 << 20, 1)).unwrap();
        assert_eq!(wait_both(far, near, receive).result, Ok(()));
        assert_eq!(wait_both(near, far, send).result, Ok(()));
        into.verify(0, 1 << 20, 5);
        near.disconnect(to_far);
        far.disconnect(to_near);
    }
}

// ---------------------------------------------------------------- two processes

fn role_connect() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut options = small(2);
    options.limits.rails_max = 2;
    let mut node = Node::open(&options);
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    line.say_number(1);
    let mut flow = Flow::new(&node, connection, Place::Private);
    while !line.is_ready() {
        flow.step(&mut node);
        assert!(!flow.failed(), "the parent lives: {:?} {:?}", flow.refused, flow.errors);
    }
    let rail = [0, 1].map(|lane| node.lane_view(connection, lane).expect("a rail"));
    line.say_text(&format!("{:?} {}", rail[0].state, rail[1].stats.bytes > 0));
}

/// A process that connects to an endpoint of ours, and both rails in use.
fn two_processes() -> (Node, Handle, Process) {
    let mut node = open("shm+tcp", 2, 1);
    let (listener, handle) = node.shared.listen().unwrap();
    let environment = [
        ("CROSSTIE_RAILS", "shm+tcp"),
        ("CROSSTIE_TCP_RAILS", "1"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
    ];
    let mut child = roles::start("connect", &environment);
    child.line.say(&handle);
    let connection = node.accepted(listener);
    node.shared.listener_close(listener).unwrap();
    assert_eq!(child.line.hear_number(), 1);
    assert_eq!(node.connection_rail(connection), Some(ConnectionRail::Together));
    (node, connection, child)
}

/// Flows until both rails have carried our bytes.
fn warm(node: &mut Node, flow: &mut Flow, connection: Handle) {
    let watch = Watch::start();
    let carries = |node: &Node, lane| {
        node.lane_view(connection, lane).is_some_and(|view| view.stats.bytes > 0)
    };
    while !carries(node, 0) || !carries(node, 1) {
        flow.step(node);
        assert!(!flow.failed(), "{:?} {:?}", flow.refused, flow.errors);
        watch.look("bytes on both rails");
    }
}

#[test]
fn each_rail_killed_between_two_processes_costs_no_message() {
    let _alone = alone();
    let (mut node, connection, mut child) = two_processes();
    let mut flow = Flow::new(&node, connection, Place::Private);
    warm(&mut node, &mut flow, connection);
    let view = |node: &Node, lane| node.lane_view(connection, lane).expect("a rail");
    let generation = view(&node, 1).generation;
    let fd = node.lane_socket(connection, 1).expect("a rail in use");
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) }, 0);
    let watch = Watch::start();
    while view(&node, 1).generation <= generation || view(&node, 1).state != LaneState::Up {
        flow.step(&mut node);
        assert!(!flow.failed(), "{:?} {:?}", flow.refused, flow.errors);
        watch.look("the rail over TCP");
    }
    node.lane_break(connection, 0);
    let goal = flow.received + 100;
    while flow.received < goal || view(&node, 0).state != LaneState::Down {
        flow.step(&mut node);
        assert!(!flow.failed(), "{:?} {:?}", flow.refused, flow.errors);
        watch.look("messages over TCP");
    }
    child.line.say_number(0);
    let watch = Watch::start();
    while !child.line.is_ready() {
        flow.step(&mut node);
        watch.look("the other process");
    }
    assert_eq!(child.line.hear_text(), "Down true");
}

/// However many rails saw it, the peer's death is one error by name for each request.
#[test]
fn peer_that_is_killed_ends_every_request_by_one_name() {
    let _alone = alone();
    for round in 0..6 {
        let (mut node, connection, mut child) = two_processes();
        let mut flow = Flow::new(&node, connection, Place::Private);
        if round > 0 {
            warm(&mut node, &mut flow, connection);
        }
        if round % 3 == 2 {
            node.lane_break(connection, 0);
            (0..round * 10).for_each(|_| flow.step(&mut node));
        }
        child.kill();
        flow.end_with_peer(&mut node);
        if let Some(refused) = flow.refused {
            assert_eq!(refused, SubmitError::Failed(RequestError::PeerDied));
        }
        let again = node.isend(connection, flow.out[0].outgoing(0, 8, 0));
        assert_eq!(again, Err(SubmitError::Failed(RequestError::PeerDied)));
        assert_eq!(node.stats().failures, 1);
        node.disconnect(connection);
        flow.release(&node);
    }
}
