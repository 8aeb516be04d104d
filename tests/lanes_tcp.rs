//! Connections over several TCP rails whose sockets break: no message is lost, doubled, damaged or
//! out of order while one rail lives, and a rail that died comes back and carries bytes.
//!
//! The sockets are broken behind the library's back, by their descriptors.
#![allow(dead_code)] // of the shared parts

#[path = "common/black_hole.rs"]
mod black_hole;
mod host_support;

use black_hole::black_hole;
use crosstie::host::endpoint::Closing;
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{DeviceKind, Options, RailView};
use crosstie::transport::{RequestError, RequestId, SubmitError};
use host_support::flow::Flow;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Random, Watch, small, wait_both};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::Mutex;

/// One way in which a socket dies.
#[derive(Copy, Clone, Debug)]
enum Blow {
    Shut,
    ShutOneWay,
    Reset,
}

const BLOWS: [Blow; 3] = [Blow::Shut, Blow::ShutOneWay, Blow::Reset];

/// An endpoint of so many rails at most, which wishes for so many.
fn open(rails_max: u32, wish: u32) -> Node {
    let mut options = Options { device: DeviceKind::Tcp, ..small(2) };
    options.limits.rails_max = rails_max;
    for (name, value) in
        [("CROSSTIE_TCP_RAILS", wish.to_string()), ("CROSSTIE_SOCKET_IFNAME", "=lo".into())]
    {
        host_support::set(name, value);
    }
    Node::open(&options)
}

impl Pair {
    /// Of endpoints with these limits and wishes, connected, all rails in use.
    fn new(rails_max: [u32; 2], wish: [u32; 2], rails: u8) -> Pair {
        let alone = alone();
        let a = open(rails_max[0], wish[0]);
        let b = open(rails_max[1], wish[1]);
        Pair::of(alone, a, b, rails)
    }

    fn alike(rails: u8) -> Pair {
        let rails_max = u32::from(rails).next_power_of_two();
        Pair::new([rails_max; 2], [rails.into(); 2], rails)
    }

    /// Breaks a rail at one side.
    fn kill(&self, side: usize, lane: u8, blow: Blow) {
        let (node, connection) = self.side(side);
        let fd = node.lane_socket(connection, lane).expect("a rail in use");
        let rc = match blow {
            // SAFETY: no pointers.
            Blow::Shut => unsafe { libc::shutdown(fd, libc::SHUT_RDWR) },
            // SAFETY: no pointers.
            Blow::ShutOneWay => unsafe { libc::shutdown(fd, libc::SHUT_WR) },
            Blow::Reset => {
                // SAFETY: integers, for which zero is a value.
                let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
                // SAFETY: a whole address, of no family.
                unsafe { libc::connect(fd, &nowhere, size_of_val(&nowhere) as u32) }
            }
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Breaks a rail, each in its turn; says which, and which use of it that was.
    fn kill_in(&self, round: u64) -> (u8, u32) {
        let (side, lane) = ((round % 2) as usize, (round / 2 % 2) as u8);
        let generation = self.views(lane)[0].generation;
        self.kill(side, lane, BLOWS[round as usize % 3]);
        (lane, generation)
    }
}

// ---------------------------------------------------------------- one rail at a time

#[test]
fn killed_rail_costs_no_message_and_comes_back_and_carries_bytes() {
    let mut pair = Pair::alike(2);
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 8);
    let mut kills = [0; 2];
    for blow in BLOWS {
        for (side, lane) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let before = pair.views(lane);
            pair.kill(side, lane, blow);
            kills[usize::from(lane)] += 1;
            pair.flow_until_back(&mut flows, lane, before[0].generation);
            for (before, after) in before.iter().zip(pair.views(lane)) {
                assert!(after.generation > before.generation, "{blow:?}");
                assert_eq!(after.stats.failures, before.stats.failures + 1, "{blow:?}");
                assert_eq!(after.stats.joins, before.stats.joins + 1, "{blow:?}");
            }
        }
    }
    pair.flow(&mut flows, 8);
    for lane in 0..2 {
        assert!(
            pair.views(lane).iter().all(|view| view.stats.failures == kills[usize::from(lane)])
        );
    }
    assert_eq!(pair.a.stats().failures + pair.b.stats().failures, 0);
}

/// The sockets between the two, but for the first of each rail.
fn sockets_beside(pair: &Pair) -> Vec<i32> {
    let first = |lane| pair.a.lane_socket(pair.to_b, lane).expect("a rail in use");
    let firsts = [first(0), first(1)];
    let there = far_end(firsts[0]).expect("a socket in use");
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let all = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let of_a = |fd: &i32| !firsts.contains(fd) && far_end(*fd) == Some(there);
    all.filter(of_a).collect()
}

/// To where a socket is connected.
fn far_end(fd: i32) -> Option<SocketAddr> {
    // SAFETY: nothing is done with it but to ask, and it is not closed.
    let socket = unsafe { TcpStream::from_raw_fd(fd) };
    let there = socket.peer_addr();
    let _ = socket.into_raw_fd();
    there.ok()
}

/// Found when a copy thread waited for ever to be told more of a stream that had ended.
#[test]
fn rail_whose_copy_threads_streams_break_costs_no_message_and_comes_back() {
    let settings = [("CROSSTIE_TCP_STREAMS", "3"), ("CROSSTIE_TCP_THREADS", "2")];
    let alone = alone();
    for (name, value) in settings {
        host_support::set(name, value);
    }
    let (a, b) = (open(2, 2), open(2, 2));
    for (name, _) in settings {
        host_support::unset(name);
    }
    let mut pair = Pair::of(alone, a, b, 2);
    let mut flows = pair.flows(Place::Private);
    let failures = |pair: &Pair| [0, 1].map(|lane| pair.views(lane)[0].stats.failures);
    let mut round = 0;
    while failures(&pair).iter().any(|failures| *failures < 3) {
        pair.flow(&mut flows, 8);
        let sockets = sockets_beside(&pair);
        round += 1;
        // SAFETY: no pointers.
        let rc = unsafe { libc::shutdown(sockets[round * 3 % sockets.len()], libc::SHUT_RDWR) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        pair.flow(&mut flows, 8);
        pair.flow_until(&mut flows, "both rails", |pair, _| pair.is_up(0) && pair.is_up(1));
    }
    assert_eq!(pair.a.stats().failures + pair.b.stats().failures, 0);
}

// ---------------------------------------------------------------- what people are told

/// What was said since the last look, one line each.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn hear(_: usize, level: Level, text: &str) {
    SAID.lock().unwrap().push(format!("{level:?}: {text}"));
}

fn said() -> Vec<String> {
    std::mem::take(&mut *SAID.lock().unwrap())
}

/// What both sides know of a rail.
fn rails(pair: &mut Pair, rail: u32) -> [RailView; 2] {
    let Pair { a, b, to_b, to_a, .. } = pair;
    [(a, *to_b), (b, *to_a)].map(|(node, to)| node.rail_view(to, rail).unwrap().expect("a rail"))
}

#[test]
fn lost_rail_is_told_with_its_addresses_and_code_and_so_is_its_return() {
    let mut pair = Pair::alike(2);
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 8);
    let before = rails(&mut pair, 1);
    let [near, far] = before.map(|view| view.ends);
    assert_eq!((near[0], near[1]), (far[1], far[0]));
    assert!(before.iter().all(|view| view.lane.code == 0), "{before:?}");
    sink_set(Some((hear, 0)));
    for (side, blow) in BLOWS.into_iter().enumerate() {
        let generation = pair.views(1)[0].generation;
        let ends = rails(&mut pair, 1).map(|view| view.ends);
        pair.kill(side % 2, 1, blow);
        pair.flow_until_back(&mut flows, 1, generation);
        let lines = said();
        for [ours, theirs] in ends {
            let rail = format!("over tcp, {ours} to {theirs}, was lost: ");
            let lost: Vec<_> = lines.iter().filter(|line| line.contains(&rail)).collect();
            assert!(lost.len() == 1 && lost[0].starts_with("Warning: rail 1 to "), "{lines:?}");
            assert!(
                lost[0].ends_with("; 1 other rail goes on, and this one is connected again"),
                "{lines:?}"
            );
        }
        for view in rails(&mut pair, 1) {
            let [ours, theirs] = view.ends;
            let rail = format!("over tcp, {ours} to {theirs}, carries bytes again, after ");
            assert_eq!(lines.iter().filter(|line| line.contains(&rail)).count(), 1, "{lines:?}");
            assert_ne!(view.lane.code, 0, "{blow:?} of side {side}: {view:?}");
        }
        assert_eq!(lines.len(), 4, "{lines:?}");
    }
    sink_set(None);
}

/// Found when addresses were kept in a table that endpoints of one rail do not have.
#[test]
fn connection_of_one_rail_has_its_addresses_too() {
    let mut pair = Pair::new([1; 2], [1; 2], 1);
    let [near, far] = rails(&mut pair, 0).map(|view| view.ends);
    assert_eq!((near[0], near[1]), (far[1], far[0]));
    assert!(near[0].to_string().parse::<SocketAddr>().is_ok(), "{near:?}");
}

/// A rail dies after any number of steps of a long message, of either side, and while it is bound,
/// cut and written.
#[test]
fn rail_killed_at_any_step_of_a_long_message_loses_none_of_it() {
    const LENGTH: usize = 4 << 20;
    let mut pair = Pair::alike(2);
    let out = Memory::new(&pair.a, Place::Private, LENGTH);
    let into = Memory::new(&pair.b, Place::Private, LENGTH);
    for round in 0..12u64 {
        out.fill(0, LENGTH, round);
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LENGTH, 1)]).unwrap();
        let send = pair.a.isend(pair.to_b, out.outgoing(0, LENGTH, 1)).unwrap();
        for _ in 0..round {
            pair.progress();
        }
        let (lane, generation) = pair.kill_in(round);
        let Pair { a, b, .. } = &mut pair;
        let outcome = wait_both(b, a, receive);
        assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), LENGTH as u64), "round {round}");
        assert_eq!(wait_both(a, b, send).result, Ok(()));
        into.verify(0, LENGTH, round);
        back(&mut pair, lane, generation);
    }
}

/// Waits until a rail that was killed is in use again.
fn back(pair: &mut Pair, lane: u8, generation: u32) {
    let watch = Watch::start();
    while !pair.is_up(lane) || pair.views(lane).iter().any(|view| view.generation <= generation) {
        pair.progress();
        watch.look("a rail to come back");
    }
}

#[test]
fn rail_killed_while_short_messages_wait_for_their_receives_loses_none() {
    const COUNT: usize = 20;
    let mut pair = Pair::alike(2);
    let out = Memory::new(&pair.a, Place::Private, COUNT * 64);
    let into = Memory::new(&pair.b, Place::Private, COUNT * 64);
    for round in 0..12u64 {
        let (mut sends, mut killed) = (vec![], (0, 0));
        for at in 0..COUNT {
            out.fill(at * 64, 64, round * 100 + at as u64);
            sends.push(pair.a.isend(pair.to_b, out.outgoing(at * 64, 64, 1)).unwrap());
            if at as u64 == round % 20 {
                killed = pair.kill_in(round);
            }
            (0..round % 3).for_each(|_| pair.progress());
        }
        for at in 0..COUNT {
            let receive = pair.b.irecv(pair.to_a, &[into.incoming(at * 64, 64, 1)]).unwrap();
            let Pair { a, b, .. } = &mut pair;
            assert_eq!(wait_both(b, a, receive).result, Ok(()), "round {round}");
            into.verify(at * 64, 64, round * 100 + at as u64);
        }
        for send in sends {
            let Pair { a, b, .. } = &mut pair;
            assert_eq!(wait_both(a, b, send).result, Ok(()));
        }
        back(&mut pair, killed.0, killed.1);
    }
}

#[test]
fn rail_killed_while_a_group_fills_loses_none_of_it() {
    const SIZES: [usize; 8] = [0, 8, 8192, 8193, 100_000, 1000, 300_001, 65_536];
    const PLACE: usize = 300_032;
    let mut pair = Pair::alike(2);
    let out = Memory::new(&pair.a, Place::Private, 8 * PLACE);
    let into = Memory::new(&pair.b, Place::Private, 8 * PLACE);
    for round in 0..12u64 {
        let rooms: Vec<_> = (0..8).map(|at| into.incoming(at * PLACE, PLACE, at as i32)).collect();
        let receive = pair.b.irecv(pair.to_a, &rooms).unwrap();
        let (mut sends, mut killed): (Vec<RequestId>, _) = (vec![], (0, 0));
        for step in 0..8u64 {
            let at = ((step + round) % 8) as usize;
            out.fill(at * PLACE, SIZES[at], round * 8 + at as u64);
            let message = out.outgoing(at * PLACE, SIZES[at], at as i32);
            sends.push(pair.a.isend(pair.to_b, message).unwrap());
            if step == round % 8 {
                killed = pair.kill_in(round);
            }
            pair.progress();
        }
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, receive).result, Ok(()), "round {round}");
        for send in sends {
            assert_eq!(wait_both(a, b, send).result, Ok(()));
        }
        (0..8).for_each(|at| into.verify(at * PLACE, SIZES[at], round * 8 + at as u64));
        back(&mut pair, killed.0, killed.1);
    }
}

/// Early messages have filled the groups before the one that is wanted back, and the peer has
/// nothing to send that would have it look at them.
#[test]
fn receive_behind_one_that_an_early_message_filled_is_given_back_at_once() {
    for rails in [1, 2] {
        let mut pair = Pair::alike(rails);
        let into = Memory::new(&pair.b, Place::Private, 64);
        let canceled = pair.b.irecv(pair.to_a, &[into.incoming(0, 64, 1)]).unwrap();
        pair.b.cancel(canceled).unwrap();
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, canceled).result, Err(RequestError::Canceled));
    }
}

#[test]
fn receive_canceled_while_a_rail_dies_ends_and_the_next_message_finds_the_next_receive() {
    const LENGTH: usize = 100_000;
    let mut pair = Pair::alike(2);
    let out = Memory::new(&pair.a, Place::Private, LENGTH);
    let into = Memory::new(&pair.b, Place::Private, 2 * LENGTH);
    for round in 0..12u64 {
        let canceled = pair.b.irecv(pair.to_a, &[into.incoming(0, LENGTH, 1)]).unwrap();
        (0..round % 5).for_each(|_| pair.progress());
        let (lane, generation) = pair.kill_in(round);
        pair.b.cancel(canceled).unwrap();
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, canceled).result, Err(RequestError::Canceled), "round {round}");
        let receive = pair.b.irecv(pair.to_a, &[into.incoming(LENGTH, LENGTH, 1)]).unwrap();
        out.fill(0, LENGTH, round);
        let send = pair.a.isend(pair.to_b, out.outgoing(0, LENGTH, 1)).unwrap();
        let Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, receive).result, Ok(()), "round {round}");
        assert_eq!(wait_both(a, b, send).result, Ok(()));
        into.verify(LENGTH, LENGTH, round);
        back(&mut pair, lane, generation);
    }
}

/// Closing while a rail dies ends on both sides, and the peer learns that it was a close.
#[test]
fn close_while_a_rail_dies_is_a_close() {
    for round in 0..12u64 {
        let mut pair = Pair::alike(2);
        let into = Memory::new(&pair.a, Place::Private, 64);
        let receive = pair.a.irecv(pair.to_b, &[into.incoming(0, 64, 1)]).unwrap();
        (0..round % 4).for_each(|_| pair.progress());
        pair.kill_in(round);
        (0..round % 3).for_each(|_| pair.progress());
        let watch = Watch::start();
        while pair.b.connection_close(pair.to_a) == Closing::Again {
            pair.progress();
            watch.look("closing");
        }
        let Pair { a, b, .. } = &mut pair;
        let error = wait_both(a, b, receive).result.unwrap_err();
        assert_eq!(error, RequestError::PeerClosed, "round {round}");
        pair.a.disconnect(pair.to_b);
    }
}

/// The sends had ended, since their bytes are held here, and the close took these away before the
/// other rail had carried them.
#[test]
fn messages_whose_rail_died_arrive_although_their_sender_closes_at_once() {
    const MESSAGES: usize = 7;
    for blow in BLOWS {
        let mut pair = Pair::alike(2);
        let into = Memory::new(&pair.b, Place::Private, 64 * MESSAGES);
        let out = Memory::new(&pair.a, Place::Private, 64);
        let receives: Vec<_> = (0..MESSAGES)
            .map(|at| pair.b.irecv(pair.to_a, &[into.incoming(at * 64, 64, 1)]).unwrap())
            .collect();
        (0..100).for_each(|_| pair.progress());
        let lane = [0, 1].into_iter().find(|lane| pair.views(*lane)[0].control).expect("a rail");
        black_hole(pair.b.lane_socket(pair.to_a, lane).expect("a rail in use"));
        for at in 0..MESSAGES {
            out.fill(0, 64, at as u64);
            let send = pair.a.isend(pair.to_b, out.outgoing(0, 64, 1)).unwrap();
            assert_eq!(pair.a.wait(send).result, Ok(()));
        }
        pair.kill(0, lane, blow);
        let watch = Watch::start();
        while pair.a.connection_close(pair.to_b) == Closing::Again {
            pair.progress();
            watch.look("closing");
        }
        for (at, receive) in receives.into_iter().enumerate() {
            let Pair { a, b, .. } = &mut pair;
            assert_eq!(wait_both(b, a, receive).result, Ok(()), "message {at}, {blow:?}");
            into.verify(at * 64, 64, at as u64);
        }
        out.release(&pair.a);
        into.release(&pair.b);
        pair.b.disconnect(pair.to_a);
    }
}

// ---------------------------------------------------------------- several at a time

/// While one rail's death is sorted out the next one dies, until one is left.
#[test]
fn rails_killed_during_another_failover_lose_nothing() {
    let mut pair = Pair::alike(4);
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 8);
    let mut random = Random(0x5eed_0400);
    for round in 0..12u64 {
        let spared = (round % 4) as u8;
        let generations = [0, 1, 2, 3].map(|lane| pair.views(lane)[0].generation);
        for lane in (0..4).filter(|lane| *lane != spared) {
            pair.kill(random.below(2) as usize, lane, BLOWS[random.below(3) as usize]);
            for _ in 0..random.below(6) {
                pair.step(&mut flows);
            }
        }
        for lane in (0..4).filter(|lane| *lane != spared) {
            pair.flow_until_back(&mut flows, lane, generations[usize::from(lane)]);
        }
    }
    assert_eq!(pair.a.stats().failures + pair.b.stats().failures, 0);
}

/// Whose rails all die at once has none to tell its peer by what has come: unless one comes back in
/// time, all that stands ends by this name, and later requests are refused with it.
#[test]
fn all_rails_killed_at_once_come_back_in_time_or_end_everything_by_name() {
    for (round, blow) in BLOWS.into_iter().enumerate() {
        let mut pair = Pair::alike(2);
        let mut flows = pair.flows(Place::Private);
        pair.flow(&mut flows, 8);
        let goal = [0, 1].map(|side: usize| flows[side].received + 100);
        (0..2).for_each(|lane| pair.kill(round % 2, lane, blow));
        let watch = Watch::start();
        let over =
            |flow: &Flow, goal| flow.received >= goal || (flow.failed() && flow.outstanding() == 0);
        while !over(&flows[0], goal[0]) || !over(&flows[1], goal[1]) {
            flows[0].step(&mut pair.a);
            flows[1].step(&mut pair.b);
            watch.look("messages, or their ends");
        }
        for flow in &flows {
            let lost = |error: &RequestError| matches!(error, RequestError::RailsLost(_));
            assert!(flow.errors.iter().all(lost), "{:?}", flow.errors);
            match flow.refused {
                None => {}
                Some(SubmitError::Failed(error)) => assert!(lost(&error), "{error:?}"),
                Some(error) => panic!("{error:?}"),
            }
        }
    }
}

/// The peer does nothing, so that no rail comes back: every request ends by this name.
#[test]
fn rails_that_do_not_come_back_in_time_end_every_request_by_name() {
    let mut pair = Pair::alike(2);
    let memory = Memory::new(&pair.a, Place::Private, 1 << 20);
    let receive = pair.a.irecv(pair.to_b, &[memory.incoming(0, 64, 1)]).unwrap();
    let send = pair.a.isend(pair.to_b, memory.outgoing(0, 1 << 20, 1)).unwrap();
    pair.kill(0, 0, Blow::Reset);
    pair.kill(0, 1, Blow::Shut);
    for request in [receive, send] {
        let error = pair.a.wait(request).result.unwrap_err();
        assert!(matches!(error, RequestError::RailsLost(_)), "{error:?}");
    }
}

// ---------------------------------------------------------------- different sides

#[test]
fn sides_of_different_limits_and_wishes_agree_on_the_rails_that_both_have() {
    for (rails_max, wish, rails) in [
        ([1, 2], [2, 2], 1),
        ([2, 1], [2, 2], 1),
        ([2, 4], [4, 4], 2),
        ([4, 2], [4, 4], 2),
        ([8, 4], [8, 8], 4),
        // who connects plans
        ([2, 2], [1, 2], 1),
        ([2, 2], [2, 1], 2),
        ([4, 4], [3, 4], 3),
    ] {
        let mut pair = Pair::new(rails_max, wish, rails);
        let mut flows = pair.flows(Place::Private);
        pair.flow(&mut flows, 8);
        if rails > 1 {
            let generation = pair.views(1)[0].generation;
            pair.kill(1, 1, Blow::Shut);
            pair.flow_until_back(&mut flows, 1, generation);
        }
    }
}
