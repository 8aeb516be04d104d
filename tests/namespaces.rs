//! The whole library between hosts, which are network namespaces of this machine: messages, ends,
//! slow and lossy links, and what the sentences say when something is wrong.

mod host_support;
mod namespace_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::host::{ConnectError, Options};
use crosstie::transport::RequestId;
use host_support::exchange::Exchange;
use host_support::flow::Flow;
use host_support::roles::{self, Line, Process};
use host_support::{Memory, Node, Place, Watch, small};
use namespace_support::wire::{Quality, Wired};
use namespace_support::{Hosts, Start, may, may_wire};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[test]
fn role() {
    roles::take(&[("listen", role_listen), ("connect", role_connect)]);
}

/// Each pair wants two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---------------------------------------------------------------- the processes

/// Opens an endpoint, says its handle, and works on the connection that comes.
fn role_listen() {
    let mut line = roles::line();
    let mut node = open();
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    work(node, connection, line, 0);
}

/// Hears a handle, says how connecting ended, and works on the connection.
fn role_connect() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = open();
    let connected = match node.shared.connect(&handle) {
        Ok(attempt) => node.connected(attempt),
        Err(error) => Err(error),
    };
    match connected {
        Ok(connection) => {
            line.say_text("connected");
            work(node, connection, line, 1);
        }
        Err(error) => line.say_text(&sentence(&error)),
    }
}

/// Its name and what it says.
fn sentence(error: &ConnectError) -> String {
    format!("{error:?}: {error}")
}

fn open() -> Node {
    Node::open(&Options { heap_bytes: Bytes::mib(256), ..small(8) })
}

/// Does what the test says, line by line, until it says that it is over.
fn work(mut node: Node, connection: Handle, mut line: Line, side: u64) {
    loop {
        match line.hear_text().as_str() {
            "exchange" => {
                let [rounds, seed] = [line.hear_number(), line.hear_number()];
                let place = if seed % 2 == 0 { Place::Shared } else { Place::Private };
                let exchange = Exchange::new(&node, connection, side, place);
                line.say_number(exchange.run(&mut node, rounds, seed));
                exchange.release(&node);
            }
            "flow" => flow(&mut node, connection, &mut line),
            "wait" => wait(&mut node, connection, &mut line),
            "stream" => stream(&mut node, connection, &mut line, side),
            "close" => {
                node.disconnect(connection);
                line.say_text("closed");
            }
            "end" => break,
            other => panic!("{other}"),
        }
    }
    node.close();
}

/// Lets messages flow until the test says something or they end; says how many came and how they
/// ended.
fn flow(node: &mut Node, connection: Handle, line: &mut Line) {
    let mut flow = Flow::new(node, connection, Place::Private);
    let mut said = 0;
    loop {
        flow.step(node);
        if flow.failed() && flow.outstanding() == 0 {
            break;
        }
        if flow.received >= said + 16 {
            said = flow.received;
            line.say_text("flows");
        }
        if !flow.failed() && line.is_ready() {
            break;
        }
    }
    let refused = flow.refused.map(|error| format!(" {error:?}")).unwrap_or_default();
    let errors: Vec<String> = flow.errors.iter().map(|error| format!("{error:?}")).collect();
    line.say_text(&format!("ended {}{refused}", errors.join(" ")));
}

/// Waits for a message that never comes, and says how that ended.
fn wait(node: &mut Node, connection: Handle, line: &mut Line) {
    let memory = Memory::new(node, Place::Private, 64);
    let receive = node.irecv(connection, &[memory.incoming(0, 64, 0)]).unwrap();
    line.say_text("waits");
    let result = node.wait(receive).result;
    memory.release(node);
    line.say_text(&format!("ended {result:?}"));
}

/// Messages of the stream, and how many of them stand at a time.
const STREAM: (usize, usize) = (1 << 20, 8);

/// Side 1 sends as many messages as the test says; side 0 says how many nanoseconds each eighth of
/// them took to arrive.
fn stream(node: &mut Node, connection: Handle, line: &mut Line, side: u64) {
    let count = line.hear_number() as usize;
    let (length, depth) = STREAM;
    let memory = Memory::new(node, Place::Private, length * depth);
    let mut requests: [Option<RequestId>; STREAM.1] = [None; STREAM.1];
    let post = |node: &mut Node, at: usize| match side {
        0 => node.irecv(connection, &[memory.incoming(at * length, length, 0)]).unwrap(),
        _ => node.isend(connection, memory.outgoing(at * length, length, 0)).unwrap(),
    };
    for (at, request) in requests.iter_mut().enumerate() {
        *request = Some(post(node, at));
    }
    let mut start = Instant::now();
    for number in 0..count {
        let at = number % depth;
        let request = requests[at].take().expect("posted");
        assert_eq!(node.wait(request).result, Ok(()));
        if number + depth < count {
            requests[at] = Some(post(node, at));
        }
        if side == 0 && (number + 1) % (count / 8) == 0 {
            line.say_number(start.elapsed().as_nanos() as u64);
            start = Instant::now();
        }
    }
    memory.release(node);
    line.say_text("done");
}

// ---------------------------------------------------------------- the tests' side

/// Two processes with a connection between them.
struct Two {
    listening: Process,
    connecting: Process,
}

impl Two {
    /// One process in host 0, and one in host 1 that connects to it.
    fn joined(hosts: &Hosts, environment: &[(&str, &str)]) -> Two {
        Two::logged(hosts, [0, 1], environment, None)
    }

    /// As `joined`, in the hosts that are named, and the first writes what it has to say to a file.
    fn logged(
        hosts: &Hosts,
        at: [usize; 2],
        environment: &[(&str, &str)],
        log: Option<File>,
    ) -> Two {
        let listening = hosts.start(at[0], "listen", Start { environment, log });
        let connecting = hosts.start(at[1], "connect", Start { environment, log: None });
        let mut two = Two { listening, connecting };
        let handle = two.listening.line.hear::<128>();
        two.connecting.line.say(&handle);
        assert_eq!(two.connecting.line.hear_text(), "connected");
        two
    }

    fn both(&mut self) -> [&mut Line; 2] {
        [&mut self.listening.line, &mut self.connecting.line]
    }

    fn say(&mut self, text: &str) {
        self.both().into_iter().for_each(|line| line.say_text(text));
    }

    /// Messages of all kinds cross, and every byte is right.
    fn exchange(&mut self, rounds: u64, seed: u64) {
        for line in self.both() {
            line.say_text("exchange");
            line.say_number(rounds);
            line.say_number(seed);
        }
        let arrived = self.both().map(|line| line.hear_number());
        assert!(arrived[0] == arrived[1] && arrived[0] >= rounds, "{arrived:?}, seed {seed}");
    }

    fn end(mut self) {
        self.say("close");
        for line in self.both() {
            assert_eq!(line.hear_text(), "closed");
        }
        self.say("end");
        for process in [self.listening, self.connecting] {
            assert!(process.finished().success());
        }
    }
}

/// What a process says of its messages' end, after it has said some times that they flow.
fn ended(line: &mut Line) -> String {
    loop {
        let text = line.hear_text();
        if text != "flows" {
            return text;
        }
    }
}

/// Whether a process has said that messages came, after all that it had said before.
fn flows_on(line: &mut Line) {
    while line.is_ready() {
        assert_eq!(line.hear_text(), "flows");
    }
    for _ in 0..3 {
        assert_eq!(line.hear_text(), "flows");
    }
}

/// Sockets of TCP that a process holds and that have a peer.
fn tcp_sockets(process: &Process) -> usize {
    let id = process.id();
    let held: Vec<String> = std::fs::read_dir(format!("/proc/{id}/fd"))
        .expect("proc")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.into()))
        .collect();
    let table =
        |name: &str| std::fs::read_to_string(format!("/proc/{id}/net/{name}")).expect("proc");
    let tables = table("tcp") + &table("tcp6");
    let rows = tables.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 9 && row[3] == "01" && held.iter().any(|h| h == row[9])).count()
}

/// A file for what a process says on standard error.
struct Log(PathBuf);

impl Log {
    fn new(name: &str) -> Log {
        Log(std::env::temp_dir().join(format!("xtie-{}-{name}.log", std::process::id())))
    }

    fn file(&self) -> File {
        File::create(&self.0).expect("a file")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).expect("written by the process")
    }

    /// Waits until the process has said something.
    fn says(&self, part: &str) {
        let watch = Watch::start();
        while !self.text().contains(part) {
            watch.look(&format!("`{part}` in what a process says:\n{}", self.text()));
            std::thread::yield_now();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

// ---------------------------------------------------------------- the hosts themselves

/// Bytes through a plain socket from host 1 to host 0.
fn plain_bytes_cross(hosts: &Hosts, address: &str, length: usize) {
    let listener = hosts.inside(0, || TcpListener::bind((address, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut out = hosts.inside(1, || TcpStream::connect((address, port))).unwrap();
    let (mut into, _) = listener.accept().unwrap();
    let bytes: Vec<u8> = (0..length).map(|at| (at * 31 >> 3) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            out.write_all(&bytes).unwrap();
            drop(out);
        });
        let mut seen = vec![];
        into.read_to_end(&mut seen).unwrap();
        assert!(seen == bytes);
    });
}

#[test]
fn hosts_reach_each_other_and_nobody_else() {
    if !may("hosts_reach_each_other_and_nobody_else") {
        return;
    }
    let hosts = Hosts::bridged(3);
    for address in [hosts.ipv4(0), hosts.ipv6(0)] {
        plain_bytes_cross(&hosts, &address, 1 << 20);
    }
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = here.local_addr().unwrap().port();
    hosts.inside(2, || TcpStream::connect(("127.0.0.1", port))).unwrap_err();
    // a queue that is too short loses packets
    hosts.shape(1, "rate 200mbit burst 4k limit 12k");
    plain_bytes_cross(&hosts, &hosts.ipv4(0), 4 << 20);
    assert!(hosts.dropped(1) > 0);
}

#[test]
fn wire_takes_its_time_and_loses_packets() {
    if !may_wire("wire_takes_its_time_and_loses_packets") {
        return;
    }
    let quality = Quality {
        delay: Duration::from_millis(5),
        lost_per_thousand: 20,
        packets_max: 1000,
        seed: 0x5eed_0101,
    };
    let wired = Wired::new(quality);
    for address in [wired.hosts.ipv4(0), wired.hosts.ipv6(0)] {
        let start = Instant::now();
        plain_bytes_cross(&wired.hosts, &address, 300_000);
        assert!(start.elapsed() > 3 * quality.delay);
    }
    let (carried, lost) = wired.counts();
    assert!(carried > 400 && lost > 2, "{carried} packets carried, {lost} lost");
}

// ---------------------------------------------------------------- messages between hosts

#[test]
fn processes_of_one_host_exchange_over_shared_memory() {
    if !may("processes_of_one_host_exchange_over_shared_memory") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(1);
    for seed in [0x5eed_0200, 0x5eed_0201] {
        let mut two = Two::logged(&hosts, [0, 0], &[], None);
        two.exchange(100, seed);
        assert_eq!(tcp_sockets(&two.connecting), 0);
        two.end();
    }
}

#[test]
fn messages_of_all_kinds_cross_between_hosts() {
    if !may("messages_of_all_kinds_cross_between_hosts") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for (seed, environment) in [
        (0x5eed_0210, &[][..]),
        (0x5eed_0211, &[]),
        (0x5eed_0212, &[("CROSSTIE_TCP_STREAMS", "4")]),
        (0x5eed_0213, &[("CROSSTIE_TCP_STREAMS", "3"), ("CROSSTIE_RAILS", "tcp")]),
        (0x5eed_0214, &[("CROSSTIE_SOCKET_IFNAME", "eth")]),
        (0x5eed_0215, &[("CROSSTIE_SOCKET_IFNAME", "^lo,docker")]),
        (0x5eed_0216, &[("CROSSTIE_TCP_THREADS", "2")]),
    ] {
        let mut two = Two::joined(&hosts, environment);
        two.exchange(100, seed);
        assert!(tcp_sockets(&two.connecting) >= 2, "the link and a stream: {environment:?}");
        two.end();
    }
}

#[test]
fn either_family_of_addresses_is_enough() {
    if !may("either_family_of_addresses_is_enough") {
        return;
    }
    let _alone = alone();
    for (seed, family) in [(0x5eed_0220, "-4"), (0x5eed_0221, "-6")] {
        let hosts = Hosts::bridged(2);
        for at in 0..2 {
            let other = if family == "-4" { "-6" } else { "-4" };
            hosts.forget(at, other);
        }
        let mut two = Two::joined(&hosts, &[]);
        two.exchange(60, seed);
        two.end();
    }
}

#[test]
fn both_connect_first_and_each_side_may_listen() {
    if !may("both_connect_first_and_each_side_may_listen") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for at in [[0, 1], [1, 0]] {
        let mut two = Two::logged(&hosts, at, &[], None);
        two.exchange(20, 0x5eed_0230);
        two.end();
    }
}

// ---------------------------------------------------------------- ends

#[test]
fn closing_in_the_middle_ends_the_others_requests_by_name() {
    if !may("closing_in_the_middle_ends_the_others_requests_by_name") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for listener_closes in [true, false] {
        let mut two = Two::joined(&hosts, &[]);
        two.say("flow");
        two.both().into_iter().for_each(flows_on);
        let [a, b] = two.both();
        let (closes, other) = if listener_closes { (a, b) } else { (b, a) };
        closes.say_text("close");
        assert_eq!(ended(closes).trim(), "ended");
        assert_eq!(closes.hear_text(), "closed");
        all_ended(other, "PeerClosed");
        other.say_text("close");
        assert_eq!(other.hear_text(), "closed");
        two.say("end");
        assert!(two.listening.finished().success() && two.connecting.finished().success());
    }
}

/// Messages that flowed have all ended by this name.
fn all_ended(line: &mut Line, name: &str) {
    let text = ended(line);
    let mut words = text.split_whitespace();
    assert_eq!(words.next(), Some("ended"), "{text}");
    assert!(words.clone().count() > 0, "{text}");
    let failed = format!("Failed({name})");
    assert!(words.all(|word| word == name || word == failed), "{text}");
}

#[test]
fn killed_peer_of_another_host_ends_requests_by_name() {
    if !may("killed_peer_of_another_host_ends_requests_by_name") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for listener_dies in [true, false] {
        for work in ["flow", "wait"] {
            let mut two = Two::joined(&hosts, &[]);
            two.say(work);
            if work == "flow" {
                two.both().into_iter().for_each(flows_on);
            } else {
                two.both().map(|line| assert_eq!(line.hear_text(), "waits"));
            }
            let Two { mut listening, mut connecting } = two;
            let (dies, lives) = match listener_dies {
                true => (&mut listening, &mut connecting),
                false => (&mut connecting, &mut listening),
            };
            dies.kill();
            match work {
                "flow" => all_ended(&mut lives.line, "PeerDied"),
                _ => assert_eq!(lives.line.hear_text(), "ended Err(PeerDied)"),
            }
            lives.line.say_text("close");
            assert_eq!(lives.line.hear_text(), "closed");
        }
    }
}

#[test]
fn host_that_vanishes_ends_requests_within_the_deadline() {
    if !may("host_that_vanishes_ends_requests_within_the_deadline") {
        return;
    }
    let _alone = alone();
    for work in ["flow", "wait"] {
        let hosts = Hosts::bridged(2);
        let mut two = Two::joined(&hosts, &[("CROSSTIE_PEER_TIMEOUT_MS", "800")]);
        two.say(work);
        for line in two.both() {
            match work {
                "flow" => flows_on(line),
                _ => assert_eq!(line.hear_text(), "waits"),
            }
        }
        hosts.cable(1, false);
        // neither side is told; both find out, with requests that send and with those that wait
        for line in two.both() {
            match work {
                "flow" => all_ended(line, "PeerDied"),
                _ => assert_eq!(line.hear_text(), "ended Err(PeerDied)"),
            }
        }
        two.end();
    }
}

#[test]
fn stopped_peer_is_reported_and_goes_on_when_it_may() {
    if !may("stopped_peer_is_reported_and_goes_on_when_it_may") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let log = Log::new("stopped");
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "800")];
    let mut two = Two::logged(&hosts, [0, 1], &environment, Some(log.file()));
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    two.connecting.signal(libc::SIGSTOP);
    let stopped = Watch::start();
    while !two.connecting.is_stopped() {
        stopped.look("a process that is to stop");
    }
    log.says(REPORTED);
    assert_eq!(log.text().matches(REPORTED).count(), 1, "{}", log.text());
    two.connecting.signal(libc::SIGCONT);
    two.both().into_iter().for_each(flows_on);
    log.says(REPORTED_AGAIN);
    // nothing was lost or ended: the same flow ends when it is told to
    two.listening.line.say_text("close");
    assert_eq!(ended(&mut two.listening.line).trim(), "ended");
    assert_eq!(two.listening.line.hear_text(), "closed");
    all_ended(&mut two.connecting.line, "PeerClosed");
}

/// What the log says of a peer whose host answers and whose process does not.
const REPORTED: &str = "does not answer";
/// And when it does again.
const REPORTED_AGAIN: &str = "answers again";

// ---------------------------------------------------------------- slow and lossy links

#[test]
fn messages_cross_a_slow_link_with_tiny_buffers_that_loses_packets() {
    if !may("messages_cross_a_slow_link_with_tiny_buffers_that_loses_packets") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for at in 0..2 {
        hosts.shape(at, "rate 100mbit burst 4k limit 12k");
    }
    let mut two = Two::joined(&hosts, &[]);
    two.exchange(16, 0x5eed_0240);
    assert!(hosts.dropped(0) > 0 && hosts.dropped(1) > 0);
    two.end();
}

#[test]
fn messages_cross_a_wire_with_delay_and_loss_that_breaks_for_a_while() {
    if !may_wire("messages_cross_a_wire_with_delay_and_loss_that_breaks_for_a_while") {
        return;
    }
    let _alone = alone();
    let quality = Quality {
        delay: Duration::from_millis(3),
        lost_per_thousand: 5,
        packets_max: 200,
        seed: 0x5eed_0102,
    };
    let wired = Wired::new(quality);
    let mut two = Two::joined(&wired.hosts, &[("CROSSTIE_TCP_STREAMS", "2")]);
    two.exchange(12, 0x5eed_0250);
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    wired.cut(true);
    let (_, before) = wired.counts();
    let watch = Watch::start();
    while wired.counts().1 < before + 8 {
        watch.look("packets that a cut wire loses");
        std::thread::yield_now();
    }
    wired.cut(false);
    two.both().into_iter().for_each(flows_on);
    two.listening.line.say_text("close");
    assert_eq!(ended(&mut two.listening.line).trim(), "ended");
    assert_eq!(two.listening.line.hear_text(), "closed");
    all_ended(&mut two.connecting.line, "PeerClosed");
}

/// Bits per second of the link, and messages sent over it.
const RATE: (f64, u64) = (1e9, 160);

#[test]
fn nine_tenths_of_a_gigabit_link_are_used() {
    if !may("nine_tenths_of_a_gigabit_link_are_used") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for at in 0..2 {
        hosts.shape(at, "rate 1gbit burst 64k limit 2m");
    }
    let mut two = Two::joined(&hosts, &[]);
    for line in two.both() {
        line.say_text("stream");
        line.say_number(RATE.1);
    }
    let bits = (RATE.1 / 8 * STREAM.0 as u64 * 8) as f64;
    let shares = [(); 8].map(|()| {
        let seconds = two.listening.line.hear_number() as f64 / 1e9;
        bits / seconds / RATE.0
    });
    let best = shares.iter().copied().fold(0.0, f64::max);
    println!("shares of the link: {shares:.3?}");
    assert!(best >= 0.9, "{shares:.3?} of the link");
    for line in two.both() {
        assert_eq!(line.hear_text(), "done");
    }
    two.end();
}

// ---------------------------------------------------------------- what cannot be reached

/// How a process in host 1 ends that connects to what listens in host 0.
fn refused(hosts: &Hosts, handle: &[u8; 128], environment: &[(&str, &str)]) -> String {
    let mut connecting = hosts.start(1, "connect", Start { environment, log: None });
    connecting.line.say(handle);
    let text = connecting.line.hear_text();
    assert!(connecting.finished().success());
    text
}

#[test]
fn unreachable_listeners_are_named_by_cause() {
    if !may("unreachable_listeners_are_named_by_cause") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let mut listening = hosts.start(0, "listen", Start::default());
    let handle = listening.line.hear::<128>();
    let short = [("CROSSTIE_CONNECT_TIMEOUT_MS", "700")];
    // nobody answers
    hosts.cable(0, false);
    let text = refused(&hosts, &handle, &short);
    assert!(text.starts_with("Deadline") || text.starts_with("Unreachable"), "{text}");
    hosts.cable(0, true);
    // no route
    for family in ["-4", "-6"] {
        hosts.forget(1, family);
    }
    let text = refused(&hosts, &handle, &[]);
    assert!(text.starts_with("Unreachable"), "{text}");
    hosts.configure(1);
    // nobody listens
    listening.kill();
    let text = refused(&hosts, &handle, &[]);
    assert!(text.starts_with("NoListener") || text.starts_with("Unreachable"), "{text}");
}
