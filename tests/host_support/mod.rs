//! What tests of whole endpoints stand on: endpoints with their blocks, memory with a pattern in
//! it, and processes of the test's own that take a role.
#![allow(dead_code)]

pub mod deny;
pub mod exchange;
pub mod flow;
pub mod long_drops;
pub mod pair;
pub mod roles;
pub mod stalled;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::connect::ListenerId;
use crosstie::fabric::MemoryKind;
use crosstie::host::endpoint::Closing;
use crosstie::host::vendor::VendorRail;
use crosstie::host::{Attempt, ConnectError, Endpoint, OpenError, Options};
use crosstie::memory::Variables;
use crosstie::transport::{Incoming, Limits, Outcome, Outgoing, RequestError, RequestId};
use std::ffi::{OsStr, OsString};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long anything may take before a test says that it hangs.
pub const WATCHDOG: Duration = Duration::from_secs(600);

/// How long a sleeper waits before it calls the wake-up lost. Nothing is that late by chance.
const LOST_MS: i32 = 20_000;

/// Panics once [`WATCHDOG`] is over.
pub struct Watch(Instant);

impl Watch {
    pub fn start() -> Watch {
        Watch(Instant::now())
    }

    pub fn look(&self, what: &str) {
        assert!(self.0.elapsed() < WATCHDOG, "no end in {WATCHDOG:?}: {what}");
    }
}

/// Options that need little memory.
pub fn small(connections_max: u32) -> Options {
    Options {
        limits: Limits { connections_max, requests_max: 32, regions_max: 64, rails_max: 2 },
        heap_bytes: Bytes::mib(1024),
        ..Options::default()
    }
}

/// What [`set`] and [`unset`] have said.
static SET: Mutex<Vec<(OsString, Option<OsString>)>> = Mutex::new(Vec::new());

/// Gives a variable another value, for endpoints and processes that are started from now on. The
/// environment itself is read once in a process.
pub fn set(name: impl Into<OsString>, value: impl Into<OsString>) {
    change(name.into(), Some(value.into()));
}

/// Has a variable count as not set.
pub fn unset(name: impl Into<OsString>) {
    change(name.into(), None);
}

/// Has what the environment says count again.
pub fn forget() {
    SET.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn change(name: OsString, value: Option<OsString>) {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    set.retain(|(it, _)| *it != name);
    set.push((name, value));
}

/// The variables that count; `None`: those of the environment.
pub fn variables() -> Option<&'static Variables> {
    let set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    let is_changed = |name: &OsStr| set.iter().any(|(it, _)| it == name);
    let kept = Variables::of_process().iter().filter(|(name, _)| !is_changed(name));
    let kept = kept.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let new = set.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
    // a test opens few endpoints
    (!set.is_empty()).then(|| &*Box::leak(Box::new(kept.chain(new).collect())))
}

/// An endpoint and its block.
pub struct Node {
    endpoint: Option<Endpoint>,
    block: HeapBlock,
}

impl Node {
    pub fn open(options: &Options) -> Node {
        Node::try_open(options).expect("an endpoint")
    }

    pub fn try_open(options: &Options) -> Result<Node, OpenError> {
        Node::open_with(options, &[])
    }

    /// With rails of vendors, whose tables and contexts stay until the program ends.
    pub fn open_with(options: &Options, rails: &[VendorRail]) -> Result<Node, OpenError> {
        let options = &Options { variables: options.variables.or_else(variables), ..*options };
        let mut block = HeapBlock::new(options.bytes());
        let (start, length) = (block.start(), block.length());
        // SAFETY: the node keeps the block until the endpoint is closed.
        let endpoint = unsafe { Endpoint::open_with(start, length, options, rails) }?;
        Ok(Node { endpoint: Some(endpoint), block })
    }

    /// Closes a connection, however often that must be asked.
    pub fn disconnect(&mut self, connection: Handle) {
        let watch = Watch::start();
        while self.connection_close(connection) == Closing::Again {
            self.progress();
            watch.look("closing a connection");
        }
    }

    /// Tests a request until it ends.
    pub fn wait(&mut self, request: RequestId) -> Outcome {
        let watch = Watch::start();
        loop {
            if let Some(outcome) = self.test(request).expect("a live request") {
                return outcome;
            }
            watch.look("a request");
            std::thread::yield_now();
        }
    }

    /// Sleeps on the wait descriptor until a request has ended; says how often that was needed.
    pub fn sleep_until_done(&mut self, request: RequestId) -> (Result<(), RequestError>, u64) {
        let mut sleeps = 0;
        loop {
            if let Some(outcome) = self.test(request).expect("a live request") {
                return (outcome.result, sleeps);
            }
            sleeps += u64::from(self.sleep());
        }
    }

    /// Sleeps until something may have happened, if nothing has; whether it slept.
    pub fn sleep(&mut self) -> bool {
        if !self.wait_arm() {
            return false;
        }
        let fd = self.shared.wait_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives until the call returns.
        let woken = unsafe { libc::poll(&mut poll, 1, LOST_MS) };
        assert_eq!(woken, 1, "a wake-up was lost");
        true
    }

    /// Polls an attempt until it ends.
    pub fn connected(&mut self, attempt: Attempt) -> Result<Handle, ConnectError> {
        let watch = Watch::start();
        loop {
            if let Some(connection) = self.shared.connect_poll(attempt)? {
                return Ok(connection);
            }
            self.progress();
            watch.look("connecting");
            std::thread::yield_now();
        }
    }

    /// Polls a listener until somebody has connected.
    pub fn accepted(&mut self, listener: ListenerId) -> Handle {
        let watch = Watch::start();
        loop {
            if let Some(connection) = self.shared.accept(listener).expect("a listener") {
                return connection;
            }
            self.progress();
            watch.look("accepting");
            std::thread::yield_now();
        }
    }

    /// Ends the endpoint before the block.
    pub fn close(mut self) {
        self.endpoint.take().expect("open until now").close();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close();
        }
    }
}

impl Deref for Node {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        self.endpoint.as_ref().expect("open")
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("open")
    }
}

/// Joins two endpoints of this process: what `a` calls the connection, and what `b` does.
pub fn joined(a: &mut Node, b: &mut Node) -> (Handle, Handle) {
    let (listener, bytes) = b.shared.listen().expect("a listener");
    let attempt = a.shared.connect(&bytes).expect("an attempt");
    let to_b = a.connected(attempt).expect("a connection");
    let to_a = b.accepted(listener);
    b.shared.listener_close(listener).expect("a listener");
    (to_b, to_a)
}

/// Tests a request of `a` until it ends; `b` makes progress meanwhile.
pub fn wait_both(a: &mut Node, b: &mut Node, request: RequestId) -> Outcome {
    let watch = Watch::start();
    loop {
        if let Some(outcome) = a.test(request).expect("a live request") {
            return outcome;
        }
        b.progress();
        watch.look("a request between two endpoints");
    }
}

/// Where a message lies.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Place {
    /// In the endpoint's heap, which peers map.
    Shared,
    /// In ordinary memory of this process.
    Private,
}

/// Registered memory.
pub struct Memory {
    pub start: *mut u8,
    pub length: usize,
    pub region: Handle,
    private: Option<Vec<u8>>,
}

impl Memory {
    pub fn new(node: &Node, place: Place, length: usize) -> Memory {
        let bytes = Bytes(length as u64);
        match place {
            Place::Shared => {
                let (start, region) = node.shared.allocate(bytes).expect("memory");
                Memory { start, length, region, private: None }
            }
            Place::Private => {
                let mut vector = vec![0u8; length];
                let start = vector.as_mut_ptr();
                let address = start.expose_provenance() as u64;
                // SAFETY: the vector lives until `release`, or to the end of the process.
                let region = unsafe { node.shared.register(address, bytes, MemoryKind::Host) };
                Memory { start, length, region: region.unwrap(), private: Some(vector) }
            }
        }
    }

    pub fn release(mut self, node: &Node) {
        match self.private.take() {
            None => node.shared.free(self.region).expect("no request stands"),
            Some(_) => node.shared.deregister(self.region).expect("no request stands"),
        }
    }

    pub fn outgoing(&self, offset: usize, length: usize, tag: i32) -> Outgoing {
        let address = self.start as u64 + offset as u64;
        Outgoing { region: self.region, address, length: length as u64, tag }
    }

    pub fn incoming(&self, offset: usize, length: usize, tag: i32) -> Incoming {
        let address = self.start as u64 + offset as u64;
        Incoming { region: self.region, address, length: length as u64, tag }
    }

    /// Writes the pattern of message `number`. No request stands on that part.
    pub fn fill(&self, offset: usize, length: usize, number: u64) {
        assert!(offset + length <= self.length);
        for at in (0..length).step_by(8) {
            let bytes = word(number, at).to_le_bytes();
            let part = bytes.len().min(length - at);
            // SAFETY: inside the memory (assert), which nobody else touches now.
            unsafe { self.start.add(offset + at).copy_from(bytes.as_ptr(), part) };
        }
    }

    /// Panics where the pattern of message `number` is not there.
    pub fn verify(&self, offset: usize, length: usize, number: u64) {
        assert!(offset + length <= self.length);
        for at in (0..length).step_by(8) {
            let mut bytes = [0u8; 8];
            let part = bytes.len().min(length - at);
            // SAFETY: inside the memory (assert), which nobody else touches now.
            unsafe { self.start.add(offset + at).copy_to(bytes.as_mut_ptr(), part) };
            let expected = word(number, at).to_le_bytes();
            assert_eq!(bytes[..part], expected[..part], "message {number} of {length}, byte {at}");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // never deregistered: requests may stand on it
        std::mem::forget(self.private.take());
    }
}

fn word(number: u64, at: usize) -> u64 {
    (number << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Small random numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Whether the environment lets endpoints use TCP alone: the rung `tcp`.
pub fn over_tcp() -> bool {
    std::env::var("CROSSTIE_RAILS").as_deref() == Ok("tcp")
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Mappings of this process that are ours.
pub fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains("crosstie-")).count()
}

/// A directory for one test's sockets; others sweep theirs and so dial what they find.
pub fn directory(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("xtie-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}
