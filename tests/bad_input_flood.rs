//! Ten thousand strangers at a listener, while a hundred peers connect: all of these succeed, the
//! rest is dropped at a bounded cost, and said once.

mod host_support;
mod net_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::host::Options;
use crosstie::transport::RequestId;
use crosstie::wire::hello::{FRAME_MAGIC, FrameHeader, FrameKind};
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};
use host_support::roles::{self, Line};
use host_support::{Memory, Node, Place, Random, Watch};
use net_support::{resident_kib, tcp};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::net::TcpStream;

/// Strangers at least, and at most: they go on until all peers are served.
const STRANGERS: (u64, u64) = (10_000, 25_000);
/// Strangers at a time.
const CROWD: usize = 300;
/// Endpoints that connect, and connections of each.
const PEERS: (usize, usize) = (20, 5);
/// What the listener's process may grow by, in KiB: its hundred connections, and nothing for
/// strangers.
const GROWTH_KIB_MAX: u64 = 16 << 10;

#[test]
fn role() {
    roles::take(&[("echo", role_echo), ("strangers", role_strangers)]);
}

/// Sends back what comes on every connection. Says its handle, and how it is when asked.
fn role_echo() {
    let mut line = roles::line();
    let count = PEERS.0 * PEERS.1 + 8;
    let options = Options { handshake_deadline: Span::millis(2000), ..tcp(count as u32) };
    let mut node = Node::open(&options);
    let memory = Memory::new(&node, Place::Private, 64 * count);
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let mut receives: Vec<(Handle, RequestId)> = vec![];
    loop {
        if let Some(connection) = node.shared.accept(listener).unwrap() {
            let room = memory.incoming(receives.len() * 64, 64, 0);
            receives.push((connection, node.irecv(connection, &[room]).unwrap()));
        }
        for (at, (connection, receive)) in receives.iter_mut().enumerate() {
            let Some(outcome) = node.test(*receive).unwrap() else { continue };
            if outcome.result.is_ok() {
                let send = node.isend(*connection, memory.outgoing(at * 64, 64, 0)).unwrap();
                assert_eq!(node.wait(send).result, Ok(()));
                *receive = node.irecv(*connection, &[memory.incoming(at * 64, 64, 0)]).unwrap();
            }
        }
        if line.is_ready() {
            match line.hear_text().as_str() {
                "how" => how(&mut line, receives.len()),
                _ => return,
            }
        }
    }
}

fn how(line: &mut Line, connections: usize) {
    line.say_number(connections as u64);
    line.say_number(host_support::descriptors() as u64);
    line.say_number(resident_kib(0));
}

/// Dials and dials: says nothing, garbage, half a hello, or a whole one byte by byte.
fn role_strangers() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let to = net_support::address(&handle);
    let mut random = Random(0x5eed_0310);
    let mut crowd: VecDeque<(TcpStream, u64, usize)> = VecDeque::new();
    let mut dialled = 0;
    while dialled < STRANGERS.1 && (dialled < STRANGERS.0 || !line.is_ready()) {
        if crowd.len() == CROWD {
            crowd.pop_front();
        }
        // the listener's queue may be full for a moment
        let Ok(stream) = TcpStream::connect(to) else { continue };
        stream.set_nonblocking(true).unwrap();
        let kind = random.below(4);
        let hello = hello();
        let _ = match kind {
            0 => Ok(0),
            1 => (&stream).write(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n"),
            2 => (&stream).write(&hello[..100]),
            _ => (&stream).write(&hello[..1]),
        };
        crowd.push_back((stream, kind, 1));
        for (stream, kind, said) in &mut crowd {
            if *kind == 3 && *said < hello.len() && random.below(8) == 0 {
                let _ = stream.write(&hello[*said..*said + 1]);
                *said += 1;
            }
        }
        dialled += 1;
        if dialled == 1000 {
            line.say_number(dialled);
        }
    }
    line.say_number(dialled);
    line.hear_number();
}

/// A hello of nobody.
fn hello() -> Vec<u8> {
    let header = FrameHeader {
        magic: FRAME_MAGIC,
        major: WIRE_MAJOR,
        minor: WIRE_MINOR,
        kind: FrameKind::LinkHello as u16,
        length: 256,
        sum: 0,
    };
    [&header.encode()[..], &[0x11; 256]].concat()
}

/// One connection to the echo.
struct Caller {
    connection: Handle,
    memory: Memory,
}

impl Caller {
    fn new(node: &mut Node, handle: &[u8; 128]) -> Caller {
        let attempt = node.shared.connect(handle).expect("an attempt");
        let connection = node.connected(attempt).expect("a connection among strangers");
        Caller { connection, memory: Memory::new(node, Place::Private, 128) }
    }

    /// A message there and back.
    fn call(&self, node: &mut Node, number: u64) {
        self.memory.fill(0, 64, number);
        let receive = node.irecv(self.connection, &[self.memory.incoming(64, 64, 0)]).unwrap();
        let send = node.isend(self.connection, self.memory.outgoing(0, 64, 0)).unwrap();
        assert_eq!(node.wait(receive).result, Ok(()));
        assert_eq!(node.wait(send).result, Ok(()));
        self.memory.verify(64, 64, number);
    }
}

#[test]
fn hundred_peers_connect_among_ten_thousand_strangers() {
    let path = std::env::temp_dir().join(format!("xtie-{}-flood.log", std::process::id()));
    let log = File::create(&path).unwrap();
    // where processors are scarce, messages that are late are reported too
    let quiet = [("CROSSTIE_STALL_MS", "0")];
    let mut echo = roles::start_as("echo", &quiet, Some(log), || Ok(()));
    let handle = echo.line.hear::<128>();
    let mut bystander = Node::open(&tcp(2));
    let standing = Caller::new(&mut bystander, &handle);
    standing.call(&mut bystander, 1);
    let asked = |echo: &mut roles::Process| {
        echo.line.say_text("how");
        [(); 3].map(|()| echo.line.hear_number())
    };
    let before = asked(&mut echo);

    let mut strangers = roles::start("strangers", &[]);
    strangers.line.say(&handle);
    assert_eq!(strangers.line.hear_number(), 1000);
    let mut nodes: Vec<(Node, Vec<Caller>)> = vec![];
    for peer in 0..PEERS.0 as u64 {
        let mut node = Node::open(&tcp(PEERS.1 as u32));
        let callers: Vec<Caller> = (0..PEERS.1).map(|_| Caller::new(&mut node, &handle)).collect();
        for (at, caller) in callers.iter().enumerate() {
            caller.call(&mut node, peer * 100 + at as u64);
            standing.call(&mut bystander, peer * 100 + 50 + at as u64);
        }
        nodes.push((node, callers));
    }
    strangers.line.say_number(0);
    let dialled = strangers.line.hear_number();
    standing.call(&mut bystander, 2);
    let after = asked(&mut echo);
    println!("{dialled} strangers; connections, descriptors, KiB: {before:?}, then {after:?}");
    assert!(dialled >= STRANGERS.0);
    assert_eq!(after[0], before[0] + (PEERS.0 * PEERS.1) as u64);
    assert!(after[2] < before[2] + GROWTH_KIB_MAX, "{before:?} KiB, then {after:?}");
    drop(strangers);
    // two sockets for each connection at most besides a link for each peer: strangers are gone
    let kept = before[1] + (PEERS.0 * (PEERS.1 + 1)) as u64;
    let watch = Watch::start();
    while asked(&mut echo)[1] > kept {
        watch.look("the descriptors of strangers");
    }
    for (node, callers) in &mut nodes {
        callers.iter().for_each(|caller| caller.call(node, 3));
    }
    echo.line.say_text("end");
    assert!(echo.finished().success());
    let said = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // beside the warning that loopback alone is chosen
    let counts = |line: &&str| line.starts_with("crosstie:") && !line.contains("listening at");
    let lines: Vec<&str> = said.lines().filter(counts).collect();
    assert!(lines.len() == 1 && lines[0].contains("no crosstie peer"), "{said}");
}
