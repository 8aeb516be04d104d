//! What the simulator does to lanes, done to RDMA ports: the scenarios of `tool/src/sim` that have
//! a real counterpart and stand in no other test. The table in `doc/testing.md` says which is
//! which. On the wires of the guest of `tests/vm`.

mod guest_support;
mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::endpoint::Closing;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{RequestError, RequestId};
use guest_support::{
    address_add, address_take, counted, flow_until_given_up, is_given_up, link_down,
    link_down_with_stripes, link_up, open_in, pair_in, queued, run, wired_pair, wires,
};
use host_support::flow::Flow;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Random, Watch, roles, stalled, wait_both};

/// When requests are reported that do not end.
const STALL_MS: &str = "1000";

/// Some are a millisecond late, and overtaken meanwhile; some come twice.
#[test]
fn packets_that_are_late_doubled_or_out_of_order_cost_no_message() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let links = ["rail0", "far0", "rail1", "far1"];
    let devices = ["rxe0", "rxe1", "rxe2", "rxe3"];
    let sum = |what: &str| devices.iter().map(|device| counted(device, what)).sum::<u64>();
    let seen = || [sum("duplicate_request"), sum("out_of_seq_request")];
    let before = seen();
    for link in links {
        run("tc", &format!("qdisc add dev {link} root netem delay 1ms reorder 99% duplicate 1%"));
    }
    pair.flow(&mut flows, 96);
    for link in links {
        run("tc", &format!("qdisc del dev {link} root"));
    }
    let after = seen();
    println!("doubled and out of order: {before:?}, then {after:?}");
    assert!(after[0] > before[0] && after[1] > before[1], "nothing came so: nothing is proven");
    pair.all_up(3);
    pair.flow(&mut flows, 16);
}

/// How far a rail that comes back has come when the other one dies.
type Moment = fn(&Pair, u8, u32) -> bool;
const MOMENTS: [(&str, Moment); 2] = [
    ("tried", |pair, lane, before| pair.views(lane).iter().any(|view| view.generation > before)),
    ("up on one side", |pair, lane, _| {
        pair.views(lane).iter().any(|view| view.state == LaneState::Up)
    }),
];

#[test]
fn rail_that_dies_while_another_comes_back_costs_no_message() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    for (round, (moment, is_then)) in MOMENTS.iter().enumerate() {
        let (back, dead) = (round % 2, 1 - round % 2);
        let lanes = [back as u8 + 1, dead as u8 + 1];
        let before = lanes.map(|lane| pair.views(lane)[0].generation);
        link_down(back);
        flow_until_given_up(&mut pair, &mut flows, lanes[0]);
        link_up(back);
        pair.flow_until(&mut flows, moment, |pair, _| is_then(pair, lanes[0], before[0]));
        link_down(dead);
        flow_until_given_up(&mut pair, &mut flows, lanes[1]);
        pair.flow_until_back(&mut flows, lanes[0], before[0]);
        link_up(dead);
        pair.flow_until_back(&mut flows, lanes[1], before[1]);
        println!("{moment}: both rails are back");
    }
    pair.settle(&mut flows);
}

/// Also for less than it takes to give a rail up, and again while it is being made anew.
#[test]
fn ports_that_flap_under_load_cost_no_message_and_come_back() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = [1, 2].map(|lane| pair.views(lane).map(|view| view.stats));
    let resends = |pair: &Pair| pair.a.stats().resends + pair.b.stats().resends;
    let resends_before = resends(&pair);
    let mut random = Random(0x5eed_0006);
    let mut is_down = [false; 2];
    for _ in 0..6 {
        let rail = random.below(2) as usize;
        if is_down[rail] {
            link_up(rail)
        } else {
            link_down(rail)
        }
        is_down[rail] = !is_down[rail];
        pair.flow(&mut flows, random.below(6));
    }
    for (rail, is_down) in is_down.iter().enumerate() {
        if *is_down {
            link_up(rail);
        }
    }
    both_in_use(&mut pair, &mut flows);
    for rail in 0..2 {
        let lane = rail as u8 + 1;
        let generation = pair.views(lane)[0].generation;
        link_down_with_stripes(&mut pair, &mut flows, rail);
        link_up(rail);
        pair.flow_until(&mut flows, "the rail to be tried", |pair, _| {
            pair.views(lane).iter().any(|view| view.generation > generation)
        });
        link_down(rail);
        flow_until_given_up(&mut pair, &mut flows, lane);
        link_up(rail);
        pair.flow_until_back(&mut flows, lane, generation);
    }
    both_in_use(&mut pair, &mut flows);
    pair.settle(&mut flows);
    for (lane, before) in (1..=2).zip(before) {
        let after = pair.views(lane).map(|view| view.stats);
        println!("rail {lane}: {before:?}, then {after:?}");
        for (before, after) in before.iter().zip(&after) {
            assert!(after.failures > before.failures, "rail {lane} was not given up: {after:?}");
            assert!(after.joins > before.joins, "rail {lane} did not come back: {after:?}");
        }
        assert!(after[0].moved > before[0].moved, "rail {lane} has lost nothing: {after:?}");
    }
    let again = resends(&pair) - resends_before;
    println!("{again} sends were sent again");
    assert!(again > 0, "no send was lost with a rail: nothing is proven");
    assert!(pair.views(0).iter().all(|view| view.stats.failures == 0), "TCP has not failed");
}

fn both_in_use(pair: &mut Pair, flows: &mut [Flow; 2]) {
    pair.flow_until(flows, "both rails to be in use", |pair, _| {
        (0..=2).all(|lane| pair.is_up(lane))
    });
}

/// What a port had sent is on its way for longer than it takes to give the rail up: it comes to a
/// queue pair that is none any more, beside messages over TCP into the same memory.
#[test]
fn writes_that_come_after_their_rail_was_given_up_touch_nothing() {
    let Some(ends) = wires(1) else { return };
    // the device does not send again before they have come
    let patient = [("CROSSTIE_IB_ADDR_FAMILY", "AF_INET"), ("CROSSTIE_IB_TIMEOUT", "18")];
    let mut pair = pair_in(&ends, 1, [&patient, &patient]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    // from the first end of the wire alone, whose address goes
    run("tc", "qdisc add dev rail0 root netem delay 400ms limit 100000");
    let mut late = 0;
    for round in 0..2 {
        let before = pair.views(1)[0].generation;
        pair.flow_until(&mut flows, "packets on their way", |_, _| queued("rail0") > 32);
        address_take(1);
        flow_until_given_up(&mut pair, &mut flows, 1);
        late += queued("rail0");
        address_add(1);
        pair.flow_until_back(&mut flows, 1, before);
        println!("round {round}: {late} packets were late");
    }
    run("tc", "qdisc del dev rail0 root");
    assert!(late > 0, "nothing came late: nothing is proven");
    pair.flow(&mut flows, 16);
}

/// Taken back, too long for its room, there before its receive, and in a group.
struct Kinds {
    from: Memory,
    into: Memory,
    round: u64,
}

const ROOM: usize = 100_000;

impl Kinds {
    fn new(pair: &Pair) -> Kinds {
        let from = Memory::new(&pair.a, Place::Private, 4 * ROOM);
        let into = Memory::new(&pair.b, Place::Private, 4 * ROOM);
        Kinds { from, into, round: 0 }
    }

    fn receive(&self, pair: &mut Pair, room: usize, tags: std::ops::Range<i32>) -> RequestId {
        let to = |tag: i32| self.into.incoming(tag as usize * ROOM, room, tag);
        let rooms: Vec<_> = tags.map(to).collect();
        pair.b.irecv(pair.to_a, &rooms).expect("room for a request")
    }

    fn send(&self, pair: &mut Pair, length: usize, tag: i32) -> RequestId {
        let at = tag as usize * ROOM;
        self.from.fill(at, length, self.round + tag as u64);
        pair.a.isend(pair.to_b, self.from.outgoing(at, length, tag)).expect("room for a request")
    }

    fn end(pair: &mut Pair, send: RequestId, receive: RequestId) -> Result<(), RequestError> {
        let result = wait_both(&mut pair.b, &mut pair.a, receive).result;
        assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
        result
    }

    fn came(&self, length: usize, tag: i32) {
        self.into.verify(tag as usize * ROOM, length, self.round + tag as u64);
    }

    fn step(&mut self, pair: &mut Pair, random: &mut Random) {
        self.round += 4;
        self.take_back(pair, random);
        let length = [0, 8, 5000, ROOM][random.below(4) as usize];
        let send = self.send(pair, length, 0);
        for _ in 0..random.below(500) {
            pair.progress();
        }
        let receive = self.receive(pair, ROOM, 0..1);
        assert_eq!(Kinds::end(pair, send, receive), Ok(()));
        self.came(length, 0);
        let receive = self.receive(pair, 1000, 1..2);
        let send = self.send(pair, 1001 + length, 1);
        assert_eq!(Kinds::end(pair, send, receive), Err(RequestError::Truncated));
        let group = self.receive(pair, ROOM, 0..4);
        let sends = [2, 0, 3, 1].map(|tag| self.send(pair, length, tag));
        assert_eq!(wait_both(&mut pair.b, &mut pair.a, group).result, Ok(()));
        for send in sends {
            assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
        }
        (0..4).for_each(|tag| self.came(length, tag));
    }

    /// Until control has left the reserve on both sides.
    fn settle(&mut self, pair: &mut Pair, random: &mut Random) {
        let watch = Watch::start();
        while pair.views(0).iter().any(|view| view.control) {
            self.step(pair, random);
            watch.look("control to leave the reserve");
        }
    }

    /// Newest first; each ends once.
    fn take_back(&self, pair: &mut Pair, random: &mut Random) {
        let receives = [(); 3].map(|()| self.receive(pair, 8, 0..1));
        for receive in receives.iter().rev() {
            for _ in 0..random.below(200) {
                pair.progress();
            }
            pair.b.cancel(*receive).expect("nothing was sent");
        }
        for receive in receives {
            let result = wait_both(&mut pair.b, &mut pair.a, receive).result;
            assert_eq!(result, Err(RequestError::Canceled));
            assert!(pair.b.test(receive).is_err(), "it ends once");
        }
    }
}

#[test]
fn messages_of_every_kind_end_as_they_should_while_links_flap() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut kinds = Kinds::new(&pair);
    let mut random = Random(0x5eed_0007);
    kinds.settle(&mut pair, &mut random);
    let before = [0, 1, 2].map(|lane| pair.views(lane)[0].stats);
    for round in 0..4 {
        let rail = round / 2 % 2;
        let lane = rail as u8 + 1;
        let is_over: fn(&Pair, u8) -> bool = match round % 2 {
            0 => is_given_up,
            _ => Pair::is_up,
        };
        if round % 2 == 0 {
            link_down(rail)
        } else {
            link_up(rail)
        }
        for _ in 0..1 + random.below(6) {
            kinds.step(&mut pair, &mut random);
        }
        let watch = Watch::start();
        while !is_over(&pair, lane) {
            kinds.step(&mut pair, &mut random);
            watch.look("the rail to be given up, or to come back");
        }
    }
    pair.all_up(3);
    kinds.settle(&mut pair, &mut random);
    let after = [0, 1, 2].map(|lane| pair.views(lane)[0].stats);
    let [tcp, first, second] = [0, 1, 2].map(|lane: usize| after[lane].bytes - before[lane].bytes);
    println!("{tcp} bytes over TCP, {first} and {second} over the ports");
    assert!(first + second > 4 * tcp, "the reserve carries what no port can, and no more");
    for lane in 1..=2 {
        assert!(after[lane].failures > before[lane].failures, "rail {lane} was not given up");
    }
    assert_eq!(after[0].failures, 0, "TCP has not failed");
}

/// A hundredth of what the other port carries: equal parts would make every message wait for it.
#[test]
fn slow_port_carries_little_and_the_other_one_the_rest() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    for link in ["rail0", "far0"] {
        run("tc", &format!("qdisc add dev {link} root netem rate 8mbit limit 100000"));
    }
    pair.flow(&mut flows, 64);
    let before = [1, 2].map(|lane| pair.bytes(lane));
    pair.flow(&mut flows, 64);
    let after = [1, 2].map(|lane| pair.bytes(lane));
    for link in ["rail0", "far0"] {
        run("tc", &format!("qdisc del dev {link} root"));
    }
    for side in 0..2 {
        let [slow, fast] = [0, 1].map(|at: usize| after[at][side] - before[at][side]);
        println!("side {side}: {slow} bytes by the slow port, {fast} by the other");
        assert!(fast > 4 * slow, "side {side}: {slow} bytes by the slow port, {fast} else");
    }
    pair.all_up(3);
    pair.flow(&mut flows, 16);
}

/// The most memory that this process may lock, of a thread that has not the right to more.
fn locked_bytes_set(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a structure that lives as long as the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
}

/// This thread, and no other, has the right to nothing that is not everybody's.
fn rights_drop() {
    const VERSION_3: u32 = 0x2008_0522;
    let (header, sets) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: the header and the two sets of the version that it says.
    let rc = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// One side's memory is registered by both ports, and of what the other side receives into two
/// parts by both, one by one port, and one by none.
#[test]
fn memory_that_no_port_has_room_for_goes_over_tcp_beside_the_rest() {
    // the kernel takes no command of who has opened a device with other rights
    rights_drop();
    let Some(mut pair) = wired_pair(2) else { return };
    locked_bytes_set(pinned_bytes() + (59 << 19));
    let mut flows = pair.flows(Place::Private);
    let before = [0, 1, 2].map(|lane| pair.bytes(lane));
    pair.flow(&mut flows, 96);
    let after = [0, 1, 2].map(|lane| pair.bytes(lane));
    locked_bytes_set(libc::RLIM_INFINITY);
    let more = |lane: usize| [0, 1].map(|side: usize| after[lane][side] - before[lane][side]);
    let [tcp, first, second] = [0, 1, 2].map(more);
    println!("bytes of both sides: {tcp:?} over TCP, {first:?} and {second:?} over the ports");
    assert!(tcp[0] > 1 << 20 && tcp[0] > 8 * tcp[1]);
    assert!(first[0] > 1 << 20 && first[1] > 1 << 20 && second[1] > 1 << 20);
    let has_lost = |lane: u8| pair.views(lane).iter().any(|view| view.stats.failures > 0);
    assert!(!(0..3).any(has_lost));
}

#[test]
fn role() {
    roles::take(&[("flow", role_flow)]);
}

/// Messages flow with the parent until it says so; then nothing is called until it says more.
fn role_flow() {
    stalled::listen(&[("CROSSTIE_STALL_MS", STALL_MS)]);
    let mut line = roles::line();
    let devices = line.hear_text();
    let mut node = open_in(4, &devices, &[]);
    let mut flow = Flow::with_parent(&mut node, &mut line);
    loop {
        flow.step(&mut node);
        assert!(!flow.failed(), "the parent lives: {:?}", flow.errors);
        if line.is_ready() {
            let Ok(_) = line.try_hear::<8>() else { return };
            line.say_number(flow.received);
            let Ok(_) = line.try_hear::<8>() else { return };
        }
    }
}

/// Whatever the other's program owes is named, and the request ends with it.
#[test]
fn requests_that_wait_for_the_other_program_are_named_and_end_with_it() {
    stalled::listen(&[("CROSSTIE_STALL_MS", STALL_MS)]);
    let Some(mut pair) = wired_pair(2) else { return };
    let (mut kinds, mut random) = (Kinds::new(&pair), Random(0x5eed_0008));
    kinds.settle(&mut pair, &mut random);
    let named = |pair: &mut Pair, class: &str| {
        let (watch, before) = (Watch::start(), stalled::said().len());
        while !stalled::said()[before..].iter().any(|text| text.contains(class)) {
            pair.progress();
            watch.look(class);
        }
    };
    let receive = kinds.receive(&mut pair, ROOM, 0..1);
    named(&mut pair, "peer never sent");
    let send = kinds.send(&mut pair, ROOM, 0);
    assert_eq!(Kinds::end(&mut pair, send, receive), Ok(()));
    let send = kinds.send(&mut pair, ROOM, 0);
    named(&mut pair, "peer never posted its receive");
    let receive = kinds.receive(&mut pair, ROOM, 0..1);
    assert_eq!(Kinds::end(&mut pair, send, receive), Ok(()));
    let receives = [kinds.receive(&mut pair, ROOM, 1..2), kinds.receive(&mut pair, ROOM, 2..3)];
    let second = kinds.send(&mut pair, ROOM, 2);
    named(&mut pair, "wrong tag");
    let first = kinds.send(&mut pair, ROOM, 1);
    assert_eq!(Kinds::end(&mut pair, first, receives[0]), Ok(()));
    assert_eq!(Kinds::end(&mut pair, second, receives[1]), Ok(()));
    // and who closes owes nothing any more
    let receive = kinds.receive(&mut pair, ROOM, 0..1);
    let watch = Watch::start();
    while pair.a.connection_close(pair.to_b) == Closing::Again {
        pair.progress();
        watch.look("closing a connection");
    }
    assert_eq!(pair.b.wait(receive).result, Err(RequestError::PeerClosed));
}

/// This process, beside another whose messages flow with it.
struct Beside {
    node: Node,
    connection: Handle,
    flow: Flow,
    child: roles::Process,
}

impl Beside {
    fn new(ends: &[String; 2]) -> Beside {
        let mut node = open_in(4, &ends[0], &[]);
        let (listener, handle) = node.shared.listen().unwrap();
        let mut child = roles::start("flow", &[]);
        child.line.say_text(&ends[1]);
        child.line.say(&handle);
        let connection = node.accepted(listener);
        assert_eq!(child.line.hear_number(), 1);
        let flow = Flow::new(&node, connection, Place::Private);
        Beside { node, connection, flow, child }
    }

    fn is_up(&self, lane: u8) -> bool {
        let view = self.node.lane_view(self.connection, lane);
        view.is_some_and(|view| view.state == LaneState::Up)
    }

    fn flow_until(&mut self, what: &str, is_so: impl Fn(&Beside) -> bool) {
        let watch = Watch::start();
        while !is_so(self) {
            self.flow.step(&mut self.node);
            let Flow { refused, errors, .. } = &self.flow;
            assert!(!self.flow.failed(), "{what}: {refused:?} {errors:?}");
            watch.look(what);
        }
    }
}

/// Its device answers for it, its messages wait, and it is named; and a rail dies meanwhile.
#[test]
fn peer_that_is_stopped_or_computes_is_named_and_goes_on_although_a_rail_dies() {
    let Some(ends) = wires(2) else { return };
    stalled::listen(&[("CROSSTIE_STALL_MS", STALL_MS)]);
    let _alone = alone();
    let mut beside = Beside::new(&ends);
    for (rail, is_stopped, class) in [(0, true, "stopped peer"), (1, false, "no progress")] {
        let lane = rail as u8 + 1;
        beside.flow_until("the rail", |beside| beside.is_up(lane) && beside.flow.received > 16);
        let before = stalled::said_of(&beside.child).len();
        if is_stopped {
            beside.child.stop();
        } else {
            beside.child.line.say_number(0);
            beside.child.line.hear_number();
        }
        beside.flow_until(class, |beside| {
            stalled::said_of(&beside.child)[before..].iter().any(|text| text.contains(class))
        });
        link_down(rail);
        beside.flow_until("the rail to be given up", |beside| !beside.is_up(lane));
        if is_stopped {
            beside.child.signal(libc::SIGCONT);
        } else {
            beside.child.line.say_number(0);
        }
        let goal = beside.flow.received + 24;
        beside.flow_until("messages", |beside| beside.flow.received >= goal);
        link_up(rail);
        beside.flow_until("the rail to come back", |beside| beside.is_up(lane));
    }
    let Beside { mut node, connection, mut flow, mut child } = beside;
    child.kill();
    flow.end_with_peer(&mut node);
    node.disconnect(connection);
    node.close();
}

/// Packets of both ports and of the reserve vanish at the same time.
#[test]
fn host_that_is_cut_off_ends_every_request_by_name() {
    let Some(ends) = wires(2) else { return };
    let soon = [("CROSSTIE_PEER_TIMEOUT_MS", "2000")];
    let mut pair = pair_in(&ends, 2, [&soon, &soon]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let links = ["rail0", "far0", "rail1", "far1", "lo"];
    for link in links {
        run("tc", &format!("qdisc add dev {link} root netem loss 100%"));
    }
    let watch = Watch::start();
    while !flows.iter().all(|flow| flow.failed() && flow.outstanding() == 0) {
        flows[0].step(&mut pair.a);
        flows[1].step(&mut pair.b);
        watch.look("requests of a host that is cut off");
    }
    for link in links {
        run("tc", &format!("qdisc del dev {link} root"));
    }
    for flow in &flows {
        let is_name = |error: &RequestError| *error == RequestError::PeerDied;
        assert!(!flow.errors.is_empty() && flow.errors.iter().all(is_name), "{:?}", flow.errors);
    }
    pair.close();
}
