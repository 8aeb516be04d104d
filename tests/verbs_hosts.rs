//! Whole endpoints over ports of a false libibverbs (`tests/verbs_fake`), which does what devices
//! do that a host here does not have. Each story runs in a process of its own, before whose eyes
//! stands a sysfs with that device.
#![allow(dead_code)] // of the shared parts

#[path = "common/network.rs"]
mod common_network;
mod host_support;
mod verbs_support;

use common_network::{network, own_network, sockets_end};
use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::RequestId;
use crosstie::transport::rail::LaneState;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Watch, joined, small};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use verbs_support::fake::{compile, libraries, story_in, story_told};
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
        "be refused memory" => be_refused_memory(),
        "lose tcp busy" => lose_tcp(Away::Busy),
        "lose tcp idle" => lose_tcp(Away::Idle),
        "lose tcp alone" => lose_tcp(Away::Alone),
        "lose tcp late" => lose_tcp(Away::Late),
        "lose tcp reset" => lose_tcp(Away::Reset),
        "lose all" => lose_all(),
        "look for the peer" => look_for_the_peer(),
        "find the peer" => find_the_peer(),
        "lose program" => lose_program(),
        "open" => open(8).close(),
        "connect" => pair().close(),
        "connect on an old kernel" => {
            old_kernel();
            pair().close();
        }
        _ => panic!("no story is called {story}"),
    }
}

// What a story stands on.

const GID: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";

/// A folder that looks like `/sys/class`, with so many devices on links of this kind.
fn class(layer: &str, cards: usize) -> PathBuf {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("class-{}-{made}", std::process::id()));
    for card in 0..cards {
        let device = folder.join(format!("infiniband/fake{card}"));
        let kind = if layer == "Ethernet" { "RoCE v2" } else { "IB/RoCE v1" };
        for (name, text) in [
            ("node_type", "1: CA"),
            ("node_guid", "0c42:a103:0064:2b1c"),
            ("device/vendor", "0x0"), // it stands on a bus
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/link_layer", layer),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/gids/0", GID),
            ("ports/1/gid_attrs/types/0", kind),
        ] {
            let path = device.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
    }
    folder
}

/// How a command gets mounts of its own here; `None`, with a line that says so: it does not.
fn mounts() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["-m"], &["-Urm"]];
    let works = |way: &&&[&str]| {
        let mount = ["sh", "-c", "mount -t tmpfs none /sys/class"];
        let done = Command::new("unshare").args(**way).args(mount).output();
        done.is_ok_and(|done| done.status.success())
    };
    let way = ways.iter().find(works).copied();
    if way.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no mounts of our own");
        println!("SKIP: no mounts of our own (unshare -m)");
    }
    way
}

/// What a command says before whose eyes those devices stand; `None`: it cannot be.
fn said_before(class: &Path, teller: &Command) -> Option<String> {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /sys/class && cp -r \"$1\"/. /sys/class && shift && \
                  exec \"$@\"";
    command.args(mounts()?).args(["sh", "-c", script, "sh"]).arg(class);
    command.arg(teller.get_program()).args(teller.get_args());
    command.envs(teller.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = command.output().expect("unshare runs");
    let said = [&done.stdout, &done.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    let _ = std::fs::remove_dir_all(class);
    let how = done.status;
    assert!(how.success(), "{teller:?}: {how}: {}{}", said[0], said[1]);
    Some(said.concat())
}

/// What a story says of endpoints whose port is of this kind of link; `None`: none can be told.
fn told(layer: &str, story: &str, fake: &str) -> Option<String> {
    let [new, _] = libraries()?;
    said_before(&class(layer, 1), &story_in(new, story, fake))
}

/// What `crosstie info` says of RDMA, of so many devices, with the library of that folder.
fn info(folder: &Path, cards: usize) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.arg("info").env("LD_LIBRARY_PATH", folder).env("FAKE", "cards=8");
    let said = said_before(&class("Ethernet", cards), &command)?;
    let (_, section) = said.split_once("\nrdma\n").expect("a section");
    Some(section.split("\nlibfabric").next().expect("a section").into())
}

/// An endpoint of this process.
fn open(rails_max: u32) -> Node {
    for (name, value) in
        [("CROSSTIE_RAILS", "verbs"), ("CROSSTIE_SOCKET_IFNAME", "=lo"), ("CROSSTIE_LOG", "info")]
    {
        // SAFETY: a process of one story; whoever reads the environment does it through the same
        // lock of the standard library, but for the false device, in this thread.
        unsafe { std::env::set_var(name, value) };
    }
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = rails_max;
    Node::open(&options)
}

/// Two endpoints of this process, with the port's rail behind rail 0, which is TCP.
fn pair() -> Pair {
    let alone = alone();
    let (a, b) = (open(2), open(2));
    let mut pair = Pair::of(alone, a, b, 2);
    assert_eq!(pair.a.connection_rail(pair.to_b), Some(ConnectionRail::Verbs));
    pair
}

// Order.

/// Messages that stand one way.
struct Stream {
    out: Memory,
    into: Vec<Memory>,
    length: usize,
    sends: [Option<RequestId>; DEPTH],
    receives: [Option<RequestId>; DEPTH],
    sent: u64,
    posted: u64,
    received: u64,
}

/// Messages of a stream at a time.
const DEPTH: usize = 8;

impl Stream {
    fn new(pair: &Pair, length: usize) -> Stream {
        let into = (0..DEPTH).map(|_| Memory::new(&pair.b, Place::Private, length)).collect();
        let out = Memory::new(&pair.a, Place::Private, length);
        let (sends, receives) = ([None; DEPTH], [None; DEPTH]);
        Stream { out, into, length, sends, receives, sent: 0, posted: 0, received: 0 }
    }

    /// Posts what can be posted of so many, and tests what is due.
    fn step(&mut self, pair: &mut Pair, messages: u64) {
        let Pair { a, b, to_b, to_a, .. } = pair;
        let at = self.posted as usize % DEPTH;
        if self.receives[at].is_none() && self.posted < messages {
            let room = self.into[at].incoming(0, self.length, 1);
            self.receives[at] = b.irecv(*to_a, &[room]).ok();
            self.posted += u64::from(self.receives[at].is_some());
        }
        let at = self.sent as usize % DEPTH;
        if self.sends[at].is_none() && self.sent < messages {
            self.sends[at] = a.isend(*to_b, self.out.outgoing(0, self.length, 1)).ok();
            self.sent += u64::from(self.sends[at].is_some());
        }
        for send in &mut self.sends {
            if let Some(outcome) = send.and_then(|id| a.test(id).expect("a send")) {
                assert_eq!(outcome.result, Ok(()));
                *send = None;
            }
        }
        let at = self.received as usize % DEPTH;
        if let Some(id) = self.receives[at]
            && let Some(outcome) = b.test(id).expect("a receive")
        {
            assert_eq!(outcome.result, Ok(()));
            (self.receives[at], self.received) = (None, self.received + 1);
        }
    }

    /// Sends so many more, and waits until all of them have ended on both sides.
    fn burst(&mut self, pair: &mut Pair, more: u64) {
        let messages = self.posted + more;
        let watch = Watch::start();
        while self.received < messages || self.sends.iter().any(Option::is_some) {
            self.step(pair, messages);
            pair.progress();
            watch.look(&format!("{} messages of {} bytes", self.received, self.length));
        }
    }

    fn release(self, pair: &Pair) {
        self.out.release(&pair.a);
        for memory in self.into {
            memory.release(&pair.b);
        }
    }
}

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
    let refused = "RDMA port 10.0.0.1 gives no end of a rail (buffers cannot be registered: errno \
                   12";
    let counts = [refused, "RDMA port 10.0.0.1 gives ends of rails again"]
        .map(|words| said.matches(words).count());
    assert!((1..=2).contains(&counts[0]) && counts[0] == counts[1], "{counts:?}: {said}");
    assert!(said.contains("and it is tried again") && said.contains("all came"), "{said}");
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
    let words = "over verbs, 10.0.0.1 to 10.0.0.1, never came up: errno 110, timed out; 1 other \
                 goes on, it is tried again";
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

// Hosts that are reached by their ports alone, because TCP's network is away.

/// How long TCP is away: longer than a peer may be silent.
const AWAY: Duration = Duration::from_secs(6);

/// What there is while TCP is away.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Away {
    /// Messages.
    Busy,
    /// No message, and programs that call the library.
    Idle,
    /// Nobody who calls the library.
    Alone,
    /// No message, and a port that loses a packet, which it sends again in time.
    Late,
    /// Messages, and all sockets ended when it began.
    Reset,
}

/// Two endpoints of which a peer may be silent for so long, with control on their port.
fn pair_on_port(silent_ms: u32) -> Pair {
    own_network().expect("a network of its own");
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("CROSSTIE_PEER_TIMEOUT_MS", silent_ms.to_string()) };
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 64);
    let watch = Watch::start();
    while !pair.views(1).iter().all(|view| view.control) {
        stream.burst(&mut pair, 1);
        watch.look("control on the port");
    }
    stream.release(&pair);
    pair
}

/// How often the side bands of this process have slept so far.
fn looks_of_bands() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let of_band = texts.filter(|text| text.starts_with("Name:\tcrosstie-band\n"));
    let slept = |text: String| {
        let (_, count) = text.split_once("\nvoluntary_ctxt_switches:\t")?;
        count.lines().next()?.parse::<u64>().ok()
    };
    of_band.filter_map(slept).sum()
}

/// Messages go on while TCP is away, and rail 0 comes back when TCP does.
fn lose_tcp(away: Away) {
    let mut pair = pair_on_port(if away == Away::Late { 4000 } else { 1000 });
    let mut stream = Stream::new(&pair, 4096);
    network(false);
    if away == Away::Reset {
        sockets_end();
    }
    let (since, before) = (Instant::now(), looks_of_bands());
    while since.elapsed() < AWAY {
        let is_late = (3500..5500).contains(&since.elapsed().as_millis());
        let fake = if away == Away::Late && is_late { "late" } else { "" };
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", fake) };
        match away {
            Away::Busy | Away::Reset => stream.burst(&mut pair, 4),
            Away::Idle | Away::Late => pair.progress(),
            Away::Alone => std::thread::yield_now(),
        }
    }
    let looks = looks_of_bands() - before;
    assert!(looks < 1000, "{looks} looks of two side bands");
    stream.burst(&mut pair, 64);
    println!("messages went on");
    network(true);
    let watch = Watch::start();
    while !(pair.is_up(0) && pair.views(0).iter().all(|view| view.generation > 1)) {
        stream.burst(&mut pair, 1);
        watch.look("rail 0 to come back");
    }
    assert!(pair.views(1).iter().all(|view| view.stats.failures == 0), "the port stood");
    // its next queue pairs are told of over the link
    let (to_b, before) = (pair.to_b, pair.views(1).map(|view| view.generation));
    pair.a.lane_break(to_b, 1);
    let is_new = |pair: &Pair| {
        pair.is_up(1) && (0..2).all(|side| pair.views(1)[side].generation > before[side])
    };
    while !is_new(&pair) {
        stream.burst(&mut pair, 1);
        watch.look("the link to come back");
    }
    stream.burst(&mut pair, 64);
    stream.release(&pair);
    pair.close();
    println!("closed");
}

fn outlives_tcp(story: &str) {
    let Some(said) = told("Ethernet", story, "") else { return };
    for words in ["messages went on", "closed", "the side-band link to ", " is back, after "] {
        assert!(said.contains(words), "no {words}: {said}");
    }
}

/// It died with its side band, although its queue pairs carried messages.
#[test]
fn connection_whose_port_carries_messages_outlives_tcp() {
    outlives_tcp("lose tcp busy");
}

/// Nothing is sent that a device could answer, unless it is asked to.
#[test]
fn connection_whose_port_lives_outlives_tcp_without_messages() {
    outlives_tcp("lose tcp idle");
}

/// As between two collectives: there is nobody whom the side band could ask.
#[test]
fn connection_whose_port_lives_outlives_tcp_while_nobody_calls_the_library() {
    outlives_tcp("lose tcp alone");
}

/// A device sends again after seconds; one packet that it lost at that moment was the peer's death.
#[test]
fn connection_whose_port_answers_late_outlives_tcp() {
    outlives_tcp("lose tcp late");
}

/// The peer was dead after 100 ms.
#[test]
fn connection_whose_port_lives_outlives_the_end_of_all_its_sockets() {
    outlives_tcp("lose tcp reset");
}

/// TCP and the port end together: the peer is dead.
fn lose_all() {
    let mut pair = pair_on_port(1000);
    let Pair { a, b, to_b, to_a, .. } = &mut pair;
    let into = Memory::new(a, Place::Private, 64);
    let receive = a.irecv(*to_b, &[into.incoming(0, 64, 1)]).expect("a receive");
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", "silent") };
    network(false);
    sockets_end();
    let watch = Watch::start();
    let outcome = loop {
        b.progress();
        if let Some(outcome) = a.test(receive).expect("a receive") {
            break outcome;
        }
        watch.look("the peer's death");
    };
    println!("the receive ended: {:?}", outcome.result);
    into.release(a);
    let _ = to_a;
    std::process::exit(0); // who is dead need not be waited for
}

/// All sockets end, and the peer's program does nothing more: it has died, and a child that it had
/// forked holds its queue pairs, for which the device answers.
fn lose_program() {
    let mut pair = pair_on_port(1000);
    let Pair { a, to_b, .. } = &mut pair;
    let into = Memory::new(a, Place::Private, 64);
    let receive = a.irecv(*to_b, &[into.incoming(0, 64, 1)]).expect("a receive");
    network(false);
    sockets_end();
    let watch = Watch::start();
    let outcome = loop {
        if let Some(outcome) = a.test(receive).expect("a receive") {
            break outcome;
        }
        watch.look("the peer's death");
    };
    println!("the receive ended: {:?}", outcome.result);
    into.release(a);
    std::process::exit(0); // who is dead need not be waited for
}

/// It was waited for as long as the child lived.
#[test]
fn peer_whose_sockets_have_ended_and_whose_device_alone_answers_is_dead() {
    let Some(said) = told("Ethernet", "lose program", "") else { return };
    assert!(said.contains("the receive ended: Err(PeerDied"), "{said}");
}

#[test]
fn peer_of_whom_neither_tcp_nor_a_port_hears_is_dead() {
    let Some(said) = told("Ethernet", "lose all", "") else { return };
    assert!(said.contains("the receive ended: Err(PeerDied"), "{said}");
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

/// Two endpoints with a connection over TCP. Their ports' addresses are of one wire, on which
/// nobody answers for that of the second.
fn pair_on_wire() -> Pair {
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
        // SAFETY: as in `open`.
        unsafe { std::env::set_var("CROSSTIE_IB_HCA", format!("=fake{}", end - 1)) };
        open(2)
    });
    for change in ["addr del 10.0.0.2/24 dev wire0", "link set wire0 up", "link set wire1 up"] {
        ip(change);
    }
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
    let mut pair = pair_on_wire();
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
    let mut pair = pair_on_wire();
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
    let words = "rail 1 has no second end yet: nobody answers for the address of the peer's port; \
                 tried again";
    assert!(said.contains(words), "{said}");
}

/// Nobody waits for the answer, and the queue pair that was prepared does.
#[test]
fn peer_whose_port_is_answered_for_soon_is_joined_at_the_first_try() {
    let Some(said) = told_on_wire("find the peer") else { return };
    assert!(said.contains("generations [1, 1]"), "{said}");
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

/// They were called usable, whatever the library said.
#[test]
fn info_calls_no_port_usable_that_an_endpoint_cannot_use() {
    let Some([new, _]) = libraries() else { return };
    let Some(said) = info(new, 9) else { return };
    let line = |name: &str| {
        let of_it = |line: &&str| line.trim_start().starts_with(&format!("{name} "));
        said.lines().find(of_it).unwrap_or_else(|| panic!("no {name}: {said}"))
    };
    assert!(line("library").contains("verbs_fake_new/libibverbs.so.1 (rdma-core 62 or newer)"));
    for card in 0..7 {
        let port = format!("fake{card}:1");
        assert!(line(&port).contains(" usable by GID 0 10.0.0.1"), "{said}");
    }
    assert!(line("fake7:1").contains("unusable: an endpoint uses seven ports"), "{said}");
    assert!(line("fake8:1").contains("unusable: device file: none: the kernel"), "{said}");
    let strange = compile("strange", "fake.map", &["-Dibv_open_device=ibv_open_nothing"]);
    let said = info(&strange, 1).expect("as before");
    let why = "libibverbs.so.1 is too old, it has no ibv_open_device";
    assert_eq!(said.matches(why).count(), 1, "{said}");
    assert!(said.contains(" unusable: libibverbs cannot be used "), "{said}");
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
