//! What tests of bad input over TCP stand on: two endpoints whose messages flow while a test
//! misbehaves towards one of them, strangers that dial it, and a proxy that records.
#![allow(dead_code)]

#[path = "../common/black_hole.rs"]
pub mod hole;

use crate::host_support::{Memory, Node, Place, Watch, small, wait_both};
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Span};
use crosstie::connect::ListenerId;
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{ConnectError, DeviceKind, Options, Shared};
use crosstie::wire::handle::{Address, Family, ListenHandle};
use crosstie::wire::hello::{FRAME_MAGIC, FrameHeader, FrameKind};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const LENGTH: usize = 100_000;

/// Options of an endpoint that talks over TCP alone, and inside this machine.
pub fn tcp(connections_max: u32) -> Options {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| crate::host_support::set("CROSSTIE_SOCKET_IFNAME", "lo"));
    Options { device: DeviceKind::Tcp, heap_bytes: Bytes::mib(64), ..small(connections_max) }
}

/// As [`tcp`], and short of patience with whoever says nothing, or with whoever is slow.
fn hasty(connections_max: u32) -> Options {
    Options { handshake_deadline: Span::millis(300), ..tcp(connections_max) }
}

/// What the library has said to people.
pub struct Said;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Said {
    /// Collects from now on; the sentences of this process only.
    pub fn collect() -> Said {
        fn keep(_: usize, _: Level, text: &str) {
            SAID.lock().expect("nobody panics with it").push(text.to_owned());
        }
        SAID.lock().expect("nobody panics with it").clear();
        sink_set(Some((keep, 0)));
        Said
    }

    pub fn all(&self) -> Vec<String> {
        SAID.lock().expect("nobody panics with it").clone()
    }

    /// Sentences that contain `part`.
    pub fn count(&self, part: &str) -> usize {
        self.all().iter().filter(|text| text.contains(part)).count()
    }
}

/// Two joined endpoints; `b` listens, and its handle is known.
pub struct Scene {
    a: Node,
    b: Node,
    ends: (Handle, Handle),
    from: Memory,
    into: Memory,
    pub listener: ListenerId,
    pub handle: [u8; 128],
}

/// What a test may use while messages flow: the halves of both endpoints that any thread may use.
#[derive(Copy, Clone)]
pub struct Halves<'a> {
    pub a: &'a Shared,
    pub b: &'a Shared,
    pub listener: ListenerId,
    pub handle: [u8; 128],
}

impl Scene {
    pub fn new(options: &Options) -> Scene {
        Scene::between([options, options])
    }

    /// One whose `b` is short of patience; `a`, which connects, is not, on a machine that is busy.
    pub fn hasty(connections_max: u32) -> Scene {
        Scene::between([&tcp(connections_max), &hasty(connections_max)])
    }

    fn between(options: [&Options; 2]) -> Scene {
        let [mut a, mut b] = options.map(Node::open);
        let (listener, handle) = b.shared.listen().expect("a listener");
        let attempt = a.shared.connect(&handle).expect("an attempt");
        let to_b = a.connected(attempt).expect("a connection");
        let to_a = b.accepted(listener);
        let [from, into] = [&a, &b].map(|node| Memory::new(node, Place::Private, LENGTH));
        Scene { a, b, ends: (to_b, to_a), from, into, listener, handle }
    }

    /// Messages of each way cross, and their bytes are right.
    pub fn works(&mut self, number: u64) {
        let Scene { a, b, ends: (to, back), from, into, .. } = self;
        for length in [8, LENGTH] {
            from.fill(0, length, number);
            let receive = b.irecv(*back, &[into.incoming(0, length, 9)]).unwrap();
            let send = a.isend(*to, from.outgoing(0, length, 9)).unwrap();
            assert_eq!(wait_both(b, a, receive).result, Ok(()));
            assert_eq!(wait_both(a, b, send).result, Ok(()));
            into.verify(0, length, number);
            let receive = a.irecv(*to, &[from.incoming(0, length, 8)]).unwrap();
            let send = b.isend(*back, into.outgoing(0, length, 8)).unwrap();
            assert_eq!(wait_both(a, b, receive).result, Ok(()));
            assert_eq!(wait_both(b, a, send).result, Ok(()));
        }
    }

    /// Runs `act` while messages of the standing connection flow: none fails, none is wrong.
    pub fn during<T: Send>(&mut self, act: impl FnOnce(Halves<'_>) -> T + Send) -> T {
        // SAFETY: the thread ends in this function, and the endpoints live on.
        let (a, b) = unsafe { (self.a.shared.place().as_ref(), self.b.shared.place().as_ref()) };
        let halves = Halves { a, b, listener: self.listener, handle: self.handle };
        let done = AtomicBool::new(false);
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _done = Done(&done);
                act(halves)
            });
            let mut number = 0;
            while !done.load(Ordering::Acquire) || number < 3 {
                number += 1;
                self.works(number);
            }
            thread.join()
        });
        match answer {
            Ok(answer) => answer,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Whether nobody was accepted whom the test did not mean.
    pub fn nobody_came(&self) -> bool {
        self.b.shared.accept(self.listener) == Ok(None)
    }
}

/// Ends the messages also when the test panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Halves<'_> {
    /// Connects `a` to a handle; how that ended.
    pub fn connect(&self, handle: &[u8; 128]) -> Result<Handle, ConnectError> {
        let attempt = self.a.connect(handle)?;
        let watch = Watch::start();
        loop {
            if let Some(connection) = self.a.connect_poll(attempt)? {
                return Ok(connection);
            }
            watch.look("an attempt to connect");
            std::thread::yield_now();
        }
    }

    /// Connects `a` to `b` anew, and takes the connection.
    pub fn joined(&self) -> (Handle, Handle) {
        let here = self.connect(&self.handle).expect("a connection");
        let watch = Watch::start();
        loop {
            if let Some(there) = self.b.accept(self.listener).expect("a listener") {
                return (here, there);
            }
            watch.look("a connection to accept");
            std::thread::yield_now();
        }
    }
}

/// Where a handle's listener answers over IPv4.
pub fn address(handle: &[u8; 128]) -> SocketAddr {
    let decoded = ListenHandle::decode(handle).expect("a handle");
    let found = decoded.addresses.iter().find(|address| address.family == Family::Ipv4);
    let Address { port, ip, .. } = found.expect("an IPv4 address");
    let ip: [u8; 4] = ip[..4].try_into().expect("four bytes");
    SocketAddr::from((Ipv4Addr::from(ip), *port))
}

/// The same handle with one address: this.
pub fn readdressed(handle: &[u8; 128], to: SocketAddr) -> [u8; 128] {
    let decoded = ListenHandle::decode(handle).expect("a handle");
    let SocketAddr::V4(to) = to else { panic!("IPv4") };
    let mut ip = [0; 16];
    ip[..4].copy_from_slice(&to.ip().octets());
    let mut addresses = [Address::default(); 3];
    addresses[0] = Address { family: Family::Ipv4, port: to.port(), ip };
    ListenHandle { addresses, ..decoded }.encode()
}

/// A plain socket to a listener.
pub fn dial(handle: &[u8; 128]) -> TcpStream {
    let stream = TcpStream::connect(address(handle)).expect("the listener's host answers");
    stream.set_read_timeout(Some(crate::host_support::WATCHDOG)).expect("a timeout");
    stream
}

/// Reads until the other side has had enough; what it said until then.
pub fn dropped(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = vec![];
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return bytes,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("the socket is neither answered nor closed: {error}"),
        }
    }
}

/// A stranger that says this, and is dropped.
pub fn stranger(handle: &[u8; 128], bytes: &[u8]) -> Vec<u8> {
    let mut stream = dial(handle);
    // it may be dropped before it has said all
    let _ = stream.write_all(bytes);
    dropped(stream)
}

/// Changes what a relay has read of a side, before it hands that on.
pub type Edit = Box<dyn Fn(Speaker, &mut [u8]) + Send>;

/// Whose words a relay hands on.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Speaker {
    Connector,
    Listener,
}

/// The first frame of the side band of that kind in bytes that begin with frames.
pub fn frame_in(mut bytes: &mut [u8], kind: FrameKind) -> Option<&mut [u8]> {
    loop {
        let header = FrameHeader::from_bytes(bytes.first_chunk()?);
        let length = FrameHeader::SIZE + usize::from(header.length);
        if header.magic != FRAME_MAGIC || length > bytes.len() {
            return None;
        }
        let (frame, rest) = bytes.split_at_mut(length);
        if header.kind == kind as u16 {
            return Some(frame);
        }
        bytes = rest;
    }
}

/// Stands between a connector and a listener, and keeps what the connector says on each socket.
pub struct Recorder {
    pub handle: [u8; 128],
    said: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    pub fn before(handle: &[u8; 128]) -> Recorder {
        Recorder::changing(handle, Box::new(|_, _| {}))
    }

    /// One that changes what it hands on.
    pub fn changing(handle: &[u8; 128], edit: Edit) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let ours = readdressed(handle, listener.local_addr().expect("bound"));
        let (said, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (kept, until, to) = (Arc::clone(&said), Arc::clone(&stop), address(handle));
        let thread = std::thread::spawn(move || relay(&listener, to, (&kept, &edit), &until));
        Recorder { handle: ours, said, stop, thread: Some(thread) }
    }

    /// What was said on each socket, in the order of their dialling.
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        self.said.lock().expect("nobody panics with it").clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One socket that is relayed.
struct Relayed {
    number: usize,
    near: TcpStream,
    far: TcpStream,
}

fn relay(
    listener: &TcpListener,
    to: SocketAddr,
    (said, edit): (&Mutex<Vec<Vec<u8>>>, &Edit),
    stop: &AtomicBool,
) {
    let mut all: Vec<Relayed> = vec![];
    while !stop.load(Ordering::Acquire) {
        if let Ok((near, _)) = listener.accept() {
            let far = TcpStream::connect(to).expect("the listener's host answers");
            near.set_nonblocking(true).expect("a socket");
            far.set_nonblocking(true).expect("a socket");
            let mut said = said.lock().expect("nobody panics with it");
            all.push(Relayed { number: said.len(), near, far });
            said.push(vec![]);
        }
        for one in &all {
            let mut part = [0; 4096];
            if let Ok(length) = (&one.near).read(&mut part) {
                if length == 0 {
                    let _ = one.far.shutdown(Shutdown::Write);
                }
                said.lock().expect("nobody panics with it")[one.number]
                    .extend_from_slice(&part[..length]);
                edit(Speaker::Connector, &mut part[..length]);
                let _ = (&one.far).write_all(&part[..length]);
            }
            if let Ok(length) = (&one.far).read(&mut part) {
                if length == 0 {
                    let _ = one.near.shutdown(Shutdown::Write);
                }
                edit(Speaker::Listener, &mut part[..length]);
                let _ = (&one.near).write_all(&part[..length]);
            }
        }
        std::thread::yield_now();
    }
}

/// Kilobytes of memory that a process holds, itself by 0.
pub fn resident_kib(process: u32) -> u64 {
    let name = match process {
        0 => "/proc/self/status".to_owned(),
        id => format!("/proc/{id}/status"),
    };
    let text = std::fs::read_to_string(name).expect("proc");
    let row = text.lines().find(|row| row.starts_with("VmRSS:")).expect("a row");
    row.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// Counts that several threads add to.
pub type Count = AtomicU64;

/// A pause that is part of what a slow stranger does, never a wait for something.
pub fn dawdle() {
    std::thread::sleep(Duration::from_millis(1));
}
