//! Whole endpoints over ports of a false libibverbs (`tests/verbs_fake`), which does what devices
//! do that a host here does not have. Each story runs in a process of its own, before whose eyes
//! stands a sysfs with that device. Of hosts whose TCP is away tells `verbs_away`.
#![allow(dead_code)] // of the shared parts

#[path = "common/network.rs"]
mod common_network;
mod host_support;
#[path = "verbs_support/hosts.rs"]
mod hosts;
mod verbs_support;

use common_network::own_network;
use crosstie::transport::rail::LaneState;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Place, Watch, joined};
use hosts::{DEPTH, GID, Stream, class, mounts, open, pair, said_before, told};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use verbs_support::fake::{libraries, story_in, story_told};
use verbs_support::old_kernel;

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "stream" => stream(),
        "exchange" => exchange(),
        "come and go" => come_and_go(),
        "answer" => answer(),
        "lose the device" => lose_the_device(),
        "be refused" => be_refused(),
        "come up late" => come_up_late(),
        "come up unheard" => come_up_unheard(),
        "hold what is over" => hold_what_is_over(),
        "be refused memory" => be_refused_memory(),
        "look for the peer" => look_for_the_peer(),
        "find the peer" => find_the_peer(),
        "stand on the other family" => stand_on_the_other_family(),
        "be of two families" => be_of_two_families(),
        "be alone with a port" => differ("CROSSTIE_IB_DISABLE", ["0", "1"]),
        "open" => open(8).close(),
        "open for one rail" => open(2).close(),
        "connect" => pair().close(),
        "connect on an old kernel" => {
            old_kernel();
            pair().close();
        }
        _ => panic!("no story is called {story}"),
    }
}

// Order.

/// Messages one way, so that nothing but lines goes the other: what the sender may do stands there.
/// It waits for the end of each burst, after which nothing is told anew that was overlooked.
fn stream() {
    const BURSTS: u64 = 4000;
    let mut pair = pair();
    for length in [8, 64, 4096, 100_000] {
        let mut stream = Stream::new(&pair, length);
        for burst in 1..=BURSTS {
            stream.burst(&mut pair, 1 + burst % (2 * DEPTH as u64));
        }
        println!("{BURSTS} bursts of {length} bytes");
    }
    assert!(pair.views(1).iter().all(|view| view.control), "control is on the port");
}

/// Messages of all lengths both ways, every byte compared.
fn exchange() {
    let mut pair = pair();
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.flow(&mut flows, 512);
    assert!(pair.views(1).iter().all(|view| view.state == LaneState::Up));
    println!("all came");
}

/// The same while the rail goes and comes back, and control with it.
fn come_and_go() {
    const ROUNDS: usize = 4;
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 4096);
    let is_up = |pair: &Pair| pair.views(1).iter().all(|view| view.state == LaneState::Up);
    for round in 0..ROUNDS {
        stream.burst(&mut pair, 100);
        for (fake, is_there) in
            [("event=18 no_gid infiniband swaps", false), ("event=9 infiniband swaps", true)]
        {
            // SAFETY: as in `pair`.
            unsafe { std::env::set_var("FAKE", fake) };
            let watch = Watch::start();
            while is_up(&pair) != is_there {
                stream.burst(&mut pair, 1 + round as u64);
                watch.look("the rail to go, or to come back");
            }
        }
    }
    println!("all came");
}

/// Short messages back and forth, one at a time: each side sends, posts its next receive, and tests
/// that. `XTIE_COUNT`: so many rounds, for counters of instructions.
fn answer() {
    const LENGTH: usize = 64;
    let rounds = std::env::var("XTIE_COUNT").map_or(1000, |text| text.parse().expect("a count"));
    let Pair { mut a, mut b, to_b, to_a, .. } = pair();
    let memory = [&a, &b].map(|node| Memory::new(node, Place::Private, 2 * LENGTH));
    let ends = [to_b, to_a];
    let room = memory.each_ref().map(|memory| memory.incoming(LENGTH, LENGTH, 1));
    let out = memory.each_ref().map(|memory| memory.outgoing(0, LENGTH, 1));
    let mut receive = b.irecv(to_a, &[room[1]]).expect("a receive");
    eprintln!("begins");
    for turn in 0..2 * rounds {
        let side = turn % 2;
        let (from, to) = if side == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let send = from.isend(ends[side], out[side]).expect("a send");
        let answer = from.irecv(ends[side], &[room[side]]).expect("a receive");
        assert_eq!(from.test(answer), Ok(None));
        let watch = Watch::start();
        while to.test(receive).expect("a receive").is_none() {
            from.progress(); // it may still be held, until control is on the port
            watch.look("a message");
        }
        receive = answer;
        assert!(from.test(send).expect("a send").is_some(), "it was copied");
    }
    eprintln!("{rounds} rounds");
}

/// Lines of control had a doorbell of their own before each sixteenth answer; on a device of
/// software that is a system call, and the longest part of the way. And each receive had a line,
/// which is a packet.
#[test]
fn answers_take_a_doorbell_each_and_hardly_more() {
    let Some(said) = told("Ethernet", "answer", "say_posts say_doorbells") else { return };
    let (_, said) = said.split_once("begins\n").expect("a begin");
    let (said, _) = said.split_once("1000 rounds\n").expect("an end");
    let doorbells = said.lines().filter(|line| *line == "doorbell").count();
    let sends = said.lines().filter(|line| line.starts_with("post 2 ")).count();
    assert!(sends > 1900, "most go over the port: {sends}");
    let lines = said.lines().filter(|line| line.starts_with("post 0 ")).count();
    assert!(lines <= sends / 6, "{lines} lines for {sends} sends");
    assert!(doorbells <= sends + sends / 50, "{doorbells} doorbells for {sends} sends");
}

/// What was there first of control lines is not written over by what is older: InfiniBand's
/// switches may send packets of a queue pair by several ways.
#[test]
fn lines_that_overtake_each_other_hide_no_news() {
    let Some(said) = told("InfiniBand", "stream", "infiniband swaps") else { return };
    assert!(said.contains("bursts of 100000 bytes"), "{said}");
    for story in ["exchange", "come and go"] {
        let said = told("InfiniBand", story, "infiniband swaps").expect("as before");
        assert!(said.contains("all came"), "{said}");
    }
}

// Devices that go, and libraries that lack something.

/// The port's device is gone in the midst of messages, which go on over TCP; all memory can be
/// given back.
fn lose_the_device() {
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 100_000);
    let idle = Memory::new(&pair.a, Place::Private, 1 << 20);
    stream.burst(&mut pair, 64);
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", "event=8 dead") };
    stream.burst(&mut pair, 640);
    let watch = Watch::start();
    while pair.views(1).iter().any(|view| view.state == LaneState::Up) {
        pair.progress();
        watch.look("the rail's end");
    }
    stream.burst(&mut pair, 64);
    println!("messages went on");
    // what is registered from now on is known to TCP alone
    Memory::new(&pair.a, Place::Private, 100_000).release(&pair.a);
    idle.release(&pair.a);
    stream.release(&pair);
    println!("all memory is given back");
    pair.close();
    println!("closed");
}

#[test]
fn messages_go_on_over_tcp_when_the_device_is_gone_and_memory_is_given_back() {
    let Some(said) = told("Ethernet", "lose the device", "") else { return };
    let wanted = "messages went on\nall memory is given back\nclosed";
    assert!(said.contains(wanted), "{said}");
}

/// For a while the device gives no end: the limit of locked memory is reached.
fn be_refused() {
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 100_000);
    // what has carried something is made again at once
    stream.burst(&mut pair, 64);
    for (fake, is_there) in [("locked_memory", false), ("", true)] {
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", fake) };
        if !is_there {
            let to_b = pair.to_b;
            pair.a.lane_break(to_b, 1);
        }
        let watch = Watch::start();
        while pair.views(1).iter().all(|view| view.state == LaneState::Up) != is_there {
            stream.burst(&mut pair, 1);
            watch.look("the rail to go, or to come back");
        }
        stream.burst(&mut pair, 500);
    }
    println!("all came");
}

/// One refusal ended the rail for the life of the connection.
#[test]
fn device_that_refuses_an_end_is_asked_again_and_that_is_said_once() {
    let Some(said) = told("Ethernet", "be refused", "") else { return };
    let refused = "RDMA port 10.0.0.1 opens no new rail (buffers cannot be registered: errno 12";
    let counts = [refused, "RDMA port 10.0.0.1 opens new rails again"]
        .map(|words| said.matches(words).count());
    assert!((1..=2).contains(&counts[0]) && counts[0] == counts[1], "{counts:?}: {said}");
    assert!(said.contains("and it is tried again") && said.contains("all came"), "{said}");
}

/// The port goes down, of which the device tells, and comes up, of which it does not.
fn come_up_unheard() {
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 4096);
    stream.burst(&mut pair, 64);
    for (fake, is_there) in [("event=10 port_down", false), ("", true)] {
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", fake) };
        let watch = Watch::start();
        while pair.views(1).iter().all(|view| view.state == LaneState::Up) != is_there {
            stream.burst(&mut pair, 1);
            watch.look("the rail to go, or to come back");
        }
    }
    println!("it came back");
}

/// Nothing was prepared on it any more, since it was down for ever.
#[test]
fn rail_comes_back_of_whose_port_nobody_told_that_it_is_up() {
    let Some(said) = told("Ethernet", "come up unheard", "") else { return };
    assert!(said.contains("it came back"), "{said}");
}

/// The port goes down, and its driver does not destroy queue pairs before the port is up again.
fn hold_what_is_over() {
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 4096);
    stream.burst(&mut pair, 64);
    let set = |fake| {
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", fake) };
    };
    set("event=10 port_down held_destroy");
    let watch = Watch::start();
    while pair.views(1).iter().any(|view| view.state != LaneState::Down) {
        stream.burst(&mut pair, 1);
        watch.look("the end of the rail");
    }
    stream.burst(&mut pair, 64);
    eprintln!("messages went on");
    set("event=9");
    while !pair.is_up(1) {
        stream.burst(&mut pair, 1);
        watch.look("the rail to come back");
    }
    stream.release(&pair);
    pair.close();
}

/// soft-RoCE destroys a queue pair when the last packet of it has gone, which takes 3 s where a
/// neighbour does not answer, and its peer's messages stood still.
#[test]
fn driver_that_waits_for_what_is_over_holds_nobody_up() {
    let Some(said) = told("Ethernet", "hold what is over", "") else { return };
    let (before, after) = said.split_once("messages went on\n").expect("messages");
    let aside = "a queue pair is destroyed aside\n";
    assert!(!before.contains(aside) && after.contains(aside), "{said}");
}

/// Nobody answers at the peer's address who knows of the queue pair; then the peer does.
fn come_up_late() {
    let alone = alone();
    let (mut a, mut b) = (open(2), open(2));
    let ends = joined(&mut a, &mut b);
    let mut pair = Pair::joined(alone, a, b, ends);
    pair.hello();
    let is_tried = |pair: &Pair| pair.views(1).iter().all(|view| view.stats.failures > 1);
    let watch = Watch::start();
    while !is_tried(&pair) {
        pair.progress();
        watch.look("two attempts");
    }
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", "") };
    pair.all_up(2);
    pair.progress(); // by which it is said
    eprintln!("it is closed");
    pair.close();
}

/// Each attempt was called the loss of a rail that had carried nothing.
#[test]
fn rail_whose_first_packets_nobody_answers_is_said_to_have_never_come_up() {
    let Some(said) = told("Ethernet", "come up late", "unanswered") else { return };
    let words = "over verbs, 10.0.0.1 to 10.0.0.1, never came up: errno 110, timed out; no device \
                 at the peer's address acknowledges a packet: another host may have that address, \
                 the partition keys may differ, or UDP port 4791 (RoCE) may be blocked; 1 other \
                 rail goes on, and this one is tried again";
    let (said, _) = said.split_once("it is closed\n").expect("an end");
    assert!(said.contains(words) && said.contains("carries bytes, after "), "{said}");
    assert!(!said.contains("was lost") && !said.contains(" again, after "), "{said}");
}

/// Two ports register no memory, for one reason and then for another.
fn be_refused_memory() {
    let node = open(4);
    for fake in ["cards=2 locked_memory", "cards=2 refuses_adds=13"] {
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", fake) };
        for pages in [1, 2] {
            Memory::new(&node, Place::Private, pages << 12).release(&node);
        }
    }
    node.close();
}

/// One port and one reason were all that was ever named.
#[test]
fn memory_that_is_refused_is_said_once_of_each_port_and_reason() {
    let Some([new, _]) = libraries() else { return };
    let story = story_in(new, "be refused memory", "cards=2");
    let Some(said) = said_before(&class("Ethernet", 2), &story) else { return };
    let limit = "errno 12, no memory: is the limit of locked memory too low? `ulimit -l`";
    for port in ["fake0:1", "fake1:1"] {
        for why in [limit, "errno 13, permission denied"] {
            let line = format!("RDMA port {port} does not register memory ({why}); messages in it");
            assert_eq!(said.matches(&line).count(), 1, "{line}: {said}");
        }
    }
}

/// The mailboxes' refusal was told as `Fabric(12)`.
#[test]
fn port_that_registers_nothing_is_left_out_with_words() {
    let Some(said) = told("Ethernet", "open", "locked_memory") else { return };
    let words = "RDMA port fake0:1 is not used: it does not register memory (errno 12, no memory: \
                 is the limit of locked memory too low? `ulimit -l`); TCP is used instead";
    assert_eq!(said.matches(words).count(), 1, "{said}");
}

// Ports whose switch is gone.

/// What a command of iproute2 does in this network.
fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// How often this thread has slept so far.
fn sleeps() -> i64 {
    // SAFETY: integers, for all of which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

/// Two endpoints with a connection. Their ports' addresses, 10.0.0.1 and 10.0.0.2, are of one wire,
/// on which nobody answers for the second where it is `away`.
fn pair_on_wire(away: bool) -> Pair {
    own_network().expect("a network of its own");
    ip("link add wire0 type veth peer name wire1");
    let alone = alone();
    let [mut a, mut b] = [1, 2].map(|end: u8| {
        let device = Path::new("/sys/class/infiniband").join(format!("fake{}", end - 1));
        let port = device.join("ports/1");
        std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        std::fs::write(port.join("gid_attrs/ndevs/0"), "wire0\n").unwrap();
        std::fs::write(port.join("gids/0"), GID.replace("0001", &format!("000{end}"))).unwrap();
        ip(&format!("addr add 10.0.0.{end}/24 dev wire0"));
        host_support::set("CROSSTIE_IB_HCA", format!("=fake{}", end - 1));
        open(2)
    });
    if away {
        ip("addr del 10.0.0.2/24 dev wire0");
    }
    ip("link set wire0 up");
    ip("link set wire1 up");
    let ends = host_support::joined(&mut a, &mut b);
    Pair::joined(alone, a, b, ends)
}

/// Answers for the second port.
fn answer_for_the_peer() {
    ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev wire0 nud permanent");
}

/// There is an answer: the rail comes into use.
fn answered(mut pair: Pair) {
    let watch = Watch::start();
    while !pair.is_up(1) {
        pair.progress();
        watch.look("the rail");
    }
    println!("generations {:?}", pair.views(1).map(|view| view.generation));
    pair.hello();
    pair.close();
}

/// It is tried again and again until there is an answer.
fn look_for_the_peer() {
    const LOOKED: Duration = Duration::from_secs(2);
    let mut pair = pair_on_wire(true);
    pair.hello();
    let (since, before) = (Instant::now(), sleeps());
    while since.elapsed() < LOOKED {
        pair.progress();
    }
    let slept = sleeps() - before;
    assert!(slept < 20, "the data threads slept {slept} times");
    assert!(!pair.is_up(1), "nobody answers");
    answer_for_the_peer();
    answered(pair);
}

/// The answer comes soon after the question.
fn find_the_peer() {
    let mut pair = pair_on_wire(true);
    let is_asked = || {
        let known = std::fs::read_to_string("/proc/thread-self/net/arp").expect("a table");
        known.contains("10.0.0.2 ")
    };
    let mut stream = Stream::new(&pair, 64);
    let watch = Watch::start();
    while !is_asked() {
        stream.step(&mut pair, 1);
        pair.progress();
        watch.look("the question");
    }
    answer_for_the_peer();
    stream.burst(&mut pair, 1);
    stream.release(&pair);
    answered(pair);
}

/// What a story of such a pair says.
fn told_on_wire(story: &str) -> Option<String> {
    let [new, _] = libraries()?;
    said_before(&class("Ethernet", 2), &story_in(new, story, "cards=2 gid_by_card"))
}

/// Each try of each connection held up the data thread, and all its rails, for some milliseconds.
#[test]
fn peer_whose_port_nobody_answers_for_holds_nobody_up() {
    let Some(said) = told_on_wire("look for the peer") else { return };
    let words = "rail 1 is not connected yet: no host answers for the address of the peer's port; \
                 it is tried again";
    assert!(said.contains(words), "{said}");
}

/// Nobody waits for the answer, and the queue pair that was prepared does.
#[test]
fn peer_whose_port_is_answered_for_soon_is_joined_at_the_first_try() {
    let Some(said) = told_on_wire("find the peer") else { return };
    assert!(said.contains("generations [1, 1]"), "{said}");
}

/// The place of the second port's GID has an address of the other family, and then its own again.
fn stand_on_the_other_family() {
    const CARDS: &str = "cards=2 gid_by_card";
    host_support::set("CROSSTIE_IB_GID_INDEX", "0");
    let mut pair = pair_on_wire(false);
    pair.hello();
    pair.all_up(2);
    let mut stream = Stream::new(&pair, 4096);
    stream.burst(&mut pair, 16);
    for (fake, is_there) in [("event=18 gid6_at=0 gid6_card=1", false), ("event=9", true)] {
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", format!("{CARDS} {fake}")) };
        let watch = Watch::start();
        let since = Instant::now();
        // it is taken in its turn, five seconds after the port has come up
        while pair.views(1).iter().all(|view| view.state == LaneState::Up) != is_there
            || !is_there && since.elapsed() < Duration::from_secs(8)
        {
            stream.burst(&mut pair, 1);
            watch.look("the rail to go, or to come back");
        }
        println!("it is there: {is_there}");
    }
    pair.close();
}

/// It was "errno 22, not allowed for it" and nothing of addresses.
#[test]
fn rail_whose_place_of_the_gid_has_the_other_family_says_so_and_comes_back_with_its_own() {
    let Some(said) = told_on_wire("stand on the other family") else { return };
    // whoever listens joins first
    let words = "rail 1 is not connected yet: the GID of this side's port, fd00::1, is of IPv6, \
                 and the peer's, 10.0.0.1, of IPv4: RoCE v2 packets are of one family";
    assert!(said.contains(words), "{said}");
    assert!(said.contains("it is there: true"), "{said}");
}

/// Two endpoints of which the second's port has an address of IPv6.
fn be_of_two_families() {
    let gid = Path::new("/sys/class/infiniband/fake1/ports/1/gids/0");
    std::fs::write(gid, "fd00:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
    differ("CROSSTIE_IB_HCA", ["=fake0", "=fake1"]);
}

/// Two ends with a variable each, which have no rail but TCP.
fn differ(name: &str, values: [&str; 2]) {
    let alone = alone();
    let [a, b] = values.map(|value| {
        host_support::set(name, value);
        open(2)
    });
    Pair::of(alone, a, b, 1).close();
}

/// It was said to have no port that pairs, which sounds like another subnet.
#[test]
fn peer_that_has_no_port_is_told_so() {
    let Some(said) = told("Ethernet", "be alone with a port", "") else { return };
    let words = "it reports no port, and this side has some (";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(!said.contains("that pairs with"), "{said}");
}

/// A first port was named, and no address.
#[test]
fn peer_whose_ports_are_of_other_subnets_is_told_with_the_addresses_of_both_sides() {
    let Some([new, _]) = libraries() else { return };
    let fake = "cards=2 gid6_at=0 gid6_card=1";
    let story = story_in(new, "be of two families", fake);
    let Some(said) = said_before(&class("Ethernet", 2), &story) else { return };
    let (v4, v6) = ("10.0.0.1/32 (RoCE v2)", "fd00::1/128 (RoCE v2)");
    for [ours, theirs] in [[v4, v6], [v6, v4]] {
        let words = format!(
            "is the first); RDMA: no subnet in common: this side's ports are {ours}; the peer's \
             are {theirs}"
        );
        assert_eq!(said.matches(&words).count(), 1, "{words}: {said}");
    }
}

// Hosts that cannot run these tests.

/// What became of a story-less storyteller where the header of libibverbs is missing, and CI is
/// what is said here; `None`: there are no mounts of our own.
fn passes_without_header(ci: &str) -> Option<bool> {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /usr/include/infiniband && exec \"$@\"";
    command.args(mounts()?).args(["sh", "-c", script, "sh"]);
    command.arg(std::env::current_exe().expect("this program has a name"));
    command.args(["--exact", "storyteller"]).env("CI", ci);
    Some(command.output().expect("unshare runs").status.success())
}

/// They were skipped there, too, and passed.
#[test]
fn libibverbs_without_a_header_is_a_failure_where_nothing_may_be_skipped() {
    if libraries().is_none() {
        return;
    }
    let Some(passes) = passes_without_header("true") else { return };
    assert!(!passes, "CI=true");
    assert_eq!(passes_without_header("false"), Some(true));
}

// Which ports are used, and what is said of the others.

/// The eighth was left out without a word.
#[test]
fn ports_for_which_there_is_no_lane_are_named() {
    let Some([new, _]) = libraries() else { return };
    let story = story_in(new, "open", "cards=9");
    let Some(said) = said_before(&class("Ethernet", 9), &story) else { return };
    let words = "an endpoint uses 7 ports at most, and leaves out RDMA port fake7:1, RDMA port \
                 fake8:1 (";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    let mut one = story_in(new, "open", "cards=9");
    one.env("CROSSTIE_IB_HCA", "^fake0,fake1").env("CROSSTIE_IB_QPS_PER_CONNECTION", "2");
    let said = said_before(&class("Ethernet", 9), &one).expect("as before");
    assert!(!said.contains("leaves out"), "seven are left: {said}");
}

/// What a story says with these settings, on a host of so many cards; `None`: none can be told.
fn said_with(story: &str, cards: usize, fake: &str, settings: &[(&str, &str)]) -> Option<String> {
    let [new, _] = libraries()?;
    let mut story = story_in(new, story, fake);
    story.envs(settings.iter().copied());
    said_before(&class("Ethernet", cards), &story)
}

/// Each had a device open, and the mailboxes registered with it.
#[test]
fn queue_pairs_that_no_connection_can_have_are_named_and_not_opened() {
    let said = |story| said_with(story, 1, "", &[("CROSSTIE_IB_QPS_PER_CONNECTION", "3")]);
    let Some(one) = said("open for one rail") else { return };
    let words = "connections have 2 rails at most (rails_max), the first of them TCP, and leave \
                 out 2 of 3 queue pairs of RDMA port fake0:1 (";
    assert_eq!(one.matches(words).count(), 1, "{one}");
    assert_eq!(one.matches("register, access").count(), 1, "{one}");
    // with eight rails each is one
    let all = said("open").expect("as before");
    assert_eq!(all.matches("register, access").count(), 3, "{all}");
    assert!(!all.contains("leave out"), "{all}");
}

/// Of two ports one stood idle, and with the log as it is by default nobody heard of it.
#[test]
fn port_that_no_connection_has_a_rail_for_is_a_warning() {
    let said = |story| said_with(story, 2, "cards=2 card_nets", &[("CROSSTIE_LOG", "warning")]);
    let Some(one) = said("open for one rail") else { return };
    assert!(one.contains("and leave out RDMA port fake1:1"), "{one}");
    let all = said("open").expect("as before");
    assert!(!all.contains("leave out"), "{all}");
}

/// More than seven were cut without a word.
#[test]
fn queue_pairs_of_which_there_are_not_so_many_are_said() {
    let said = |count| {
        let settings = [("CROSSTIE_IB_QPS_PER_CONNECTION", count), ("CROSSTIE_LOG", "info")];
        said_with("open", 1, "", &settings)
    };
    let Some(many) = said("8") else { return };
    let words = "CROSSTIE_IB_QPS_PER_CONNECTION=8 would be 8 queue pairs to each peer, over 1 \
                 ports: there are 7 at most";
    assert_eq!(many.matches(words).count(), 1, "{many}");
    assert!(!said("7").expect("as before").contains("would be"), "as many as there are");
}

/// With the log as it is by default nobody heard that the choice was of none.
#[test]
fn choice_that_leaves_no_port_is_a_warning_and_says_why() {
    let said = |name, value| {
        let settings = [(name, value), ("CROSSTIE_LOG", "warning"), ("CROSSTIE_RAILS", "")];
        said_with("open", 1, "", &settings)
    };
    for (name, value) in [
        ("CROSSTIE_IB_HCA", "mlx5"),
        ("CROSSTIE_IB_PKEY", "9"),
        ("CROSSTIE_IB_ADDR_RANGE", "192.0.2.0/24"),
    ] {
        let Some(text) = said(name, value) else { return };
        let at = text.find("no RDMA port can be used, hosts talk over TCP (fake0:1: ");
        assert!(at.is_some_and(|at| text[at..].contains(value)), "{name}: {text}");
    }
    for (name, value) in [("CROSSTIE_IB_DISABLE", "1"), ("CROSSTIE_IB_HCA", "^fake0")] {
        let text = said(name, value).expect("as before");
        assert!(!text.contains("no RDMA port"), "it was meant so: {text}");
    }
}

/// What became of the misspelled one was for the reader to find out.
#[test]
fn names_of_ports_that_are_not_there_are_said_when_an_endpoint_opens() {
    let Some([new, _]) = libraries() else { return };
    let mut story = story_in(new, "open", "");
    story.env("CROSSTIE_IB_HCA", "=fake0,rxe0,fake0:2");
    let Some(said) = said_before(&class("Ethernet", 1), &story) else { return };
    let words = "no RDMA port is called rxe0, fake0:2 (CROSSTIE_IB_HCA";
    assert_eq!(said.matches(words).count(), 1, "{said}");
}

/// As in a container that shares a device with others.
#[test]
fn gid_that_is_no_address_of_this_namespace_is_said_once() {
    let Some(said) = told("Ethernet", "connect", "") else { return };
    let words = "RDMA port fake0:1 is used by GID 0 10.0.0.1 (RoCE v2), which is no address of \
                 this network namespace";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    let said = told("InfiniBand", "connect", "infiniband").expect("as before");
    assert!(!said.contains("namespace"), "{said}");
}

/// The rail stood on what had come in its place, and peers were told what had gone.
#[test]
fn port_whose_gid_has_changed_since_it_was_chosen_is_not_used() {
    let words = "RDMA port fake0:1 is not used: the GID at that index has changed since it was \
                 chosen (did an address change?)";
    for (fake, count) in [("gid_ends=9 gid_net=7", 1), ("gid_version_1", 1), ("", 0)] {
        let Some(said) = told("Ethernet", "open", fake) else { return };
        assert_eq!(said.matches(words).count(), count, "{fake}: {said}");
        assert_eq!(said.contains(": rails verbs and tcp,"), count == 0, "{fake}: {said}");
    }
    // an old library does not tell the version
    let [_, old] = libraries().expect("as before");
    for (fake, count) in [("gid_ends=9", 1), ("gid_version_1", 0)] {
        let story = story_in(old, "open", fake);
        let said = said_before(&class("Ethernet", 1), &story).expect("as before");
        assert_eq!(said.matches(words).count(), count, "{fake}: {said}");
    }
}

#[test]
fn library_that_cannot_have_children_is_said_once() {
    let Some(said) = told("Ethernet", "connect on an old kernel", "no_children") else { return };
    assert!(said.matches("children").count() > 1, "{said}");
    let words = "libibverbs cannot guard registered memory from forks (errno 38, ";
    assert_eq!(said.matches(words).count(), 1, "{said}");
}
