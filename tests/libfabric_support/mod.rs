//! Two libfabric rails driven by a test, and the strict fabric under them.
#![allow(dead_code)]

pub mod end;
pub mod pair;
#[path = "../common/wait.rs"]
pub mod wait;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, LINE_BYTES, LocalSpan, MemoryDomain, MemoryKind, Op, OpId,
    OpKind, PeerLife, Posted, Provider, RailKey, Region, RemoteSpan, Source,
};
use crosstie::provider::libfabric::sys::abi::CqErrEntry;
use crosstie::provider::libfabric::sys::calls::{MsgRma, RmaIov};
use crosstie::provider::libfabric::sys::{Code, Endpoint, numbers as n};
use crosstie::provider::libfabric::{Config, Hello, Libfabric, Limits, OpenError, PeerOpenError};
use pair::PairMemory;
use std::ffi::{CStr, CString, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Duration;
use wait::WATCHDOG;

pub const LIMITS: Limits = Limits { peers_max: 2, regions_max: 16, payload_bytes_max: 8192 };
pub const BLOCK_BYTES: usize = 1 << 20;
pub const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(99), immediate: 0 };
const HEADER: &str = "/usr/include/rdma/fabric.h";

/// Says why something is not tried; where everything must be, that is a failure.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
    println!("SKIP: {why}");
}

/// Removes files of libfabric's shm provider that a killed process has left behind, whose number
/// this one has now: the provider would find its name taken.
pub fn left_behind_remove() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let own = format!("{}:", std::process::id());
        for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&own) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    });
}

/// As long as libfabric's structures are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Layout {
    /// In 1.17.
    One,
    /// In 2.x.
    Two,
}

/// The strict fabric's file; `None`, with a line that says why, where it cannot be built.
pub fn strict(layout: Layout) -> Option<&'static CStr> {
    static FILES: [OnceLock<Option<CString>>; 2] = [OnceLock::new(), OnceLock::new()];
    let file = FILES[layout as usize].get_or_init(|| build(layout)).as_deref();
    if file.is_none() {
        skip(&format!("{HEADER} is not installed (package libfabric-dev)"));
    }
    file
}

/// Registrations of the strict fabric: ever made, and open.
pub fn counts(library: &CStr) -> [usize; 2] {
    let mut counts = [0; 2];
    // SAFETY: that is its type.
    let call: extern "C" fn(*mut usize) =
        unsafe { std::mem::transmute(function(library, c"strict_registrations")) };
    call(counts.as_mut_ptr());
    counts
}

/// Registrations of the strict fabric that were ever made by a dma-buf.
pub fn dmabufs(library: &CStr) -> i32 {
    // SAFETY: that is its type.
    let call: extern "C" fn() -> i32 =
        unsafe { std::mem::transmute(function(library, c"strict_dmabufs")) };
    call()
}

/// Bytes of the messages that were ever posted to the strict fabric.
pub fn message_bytes(library: &CStr) -> usize {
    // SAFETY: that is its type.
    let call: extern "C" fn() -> usize =
        unsafe { std::mem::transmute(function(library, c"strict_message_bytes")) };
    call()
}

/// A failure as the strict fabric's queues write it.
pub fn error_write(library: &CStr, entry: *mut CqErrEntry) {
    // SAFETY: that is its type.
    let call: extern "C" fn(*mut CqErrEntry) =
        unsafe { std::mem::transmute(function(library, c"strict_error_write")) };
    call(entry);
}

/// Posts a write of 64 bytes by the library's own call, to an address of what a key names.
///
/// # Safety
/// - 64 bytes from `memory` on may be read until the write has ended, or the program stops.
pub unsafe fn write_raw(
    from: &Endpoint,
    memory: *mut c_void,
    mut descriptor: *mut c_void,
    context: *mut c_void,
    (key, address): (u64, u64),
) -> Result<(), Code> {
    let part = libc::iovec { iov_base: memory, iov_len: 64 };
    let there = RmaIov { addr: address, len: 64, key };
    let message = MsgRma {
        msg_iov: &part,
        desc: &mut descriptor,
        iov_count: 1,
        addr: 0,
        rma_iov: &there,
        rma_iov_count: 1,
        context,
        data: 0,
    };
    // SAFETY: the caller's word.
    unsafe { from.port().write(&message, n::COMPLETION | n::DELIVERY_COMPLETE) }
}

/// A function that the strict fabric, which an endpoint has loaded, has for tests.
fn function(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: two names that end with a zero.
    let call =
        unsafe { libc::dlsym(libc::dlopen(library.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!call.is_null(), "the strict fabric has {name:?}");
    call
}

/// The path of the next write that is posted to the strict fabric goes silent, until it is let go.
pub fn silence(library: &CStr, on: bool) {
    silence_how(library, on.into());
}

/// The path of the next send likewise.
pub fn silence_of_send(library: &CStr) {
    silence_how(library, 2);
}

fn silence_how(library: &CStr, how: i32) {
    // SAFETY: that is how it is declared there.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(function(library, c"strict_silence")) };
    call(how);
}

/// The next read that is posted to the strict fabric is held, and fails when that ends.
pub fn hold_read(library: &CStr, on: bool) {
    // SAFETY: that is how it is declared there.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(function(library, c"strict_hold")) };
    call(on.into());
}

/// The strict fabric closes no registration.
pub fn keep(library: &CStr, on: bool) {
    // SAFETY: that is how it is declared there.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(function(library, c"strict_keep")) };
    call(on.into())
}

/// How many it has not closed since it was told so.
pub fn kept(library: &CStr) -> i32 {
    // SAFETY: that is how it is declared there.
    let call: extern "C" fn() -> i32 =
        unsafe { std::mem::transmute(function(library, c"strict_kept")) };
    call()
}

/// No post finds room at endpoints of the strict fabric that fill up.
pub fn fill(library: &CStr, on: bool) {
    // SAFETY: that is how it is declared there.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(function(library, c"strict_fill")) };
    call(on.into());
}

/// Whether there was such an op.
pub fn is_silent(library: &CStr) -> bool {
    // SAFETY: that is how it is declared there.
    let call: extern "C" fn() -> i32 =
        unsafe { std::mem::transmute(function(library, c"strict_is_silent")) };
    call() != 0
}

fn build(layout: Layout) -> Option<CString> {
    if !std::path::Path::new(HEADER).exists() {
        return None;
    }
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/strict");
    let program = std::env::current_exe().unwrap();
    let program = program.file_name().unwrap().to_string_lossy().into_owned();
    let file = format!("{}/{program}-strict-{layout:?}.so", env!("CARGO_TARGET_TMPDIR"));
    // made aside and put there whole: another run of the same program may be loading it
    let aside = format!("{file}.{}", std::process::id());
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]);
    compiler.args(["-fvisibility=hidden", "-pthread", "-o", &aside]);
    let map = match layout {
        Layout::One => "one.map",
        Layout::Two => {
            compiler.arg("-DLAYOUT_2");
            "two.map"
        }
    };
    compiler.arg(format!("-Wl,--version-script={sources}/{map}"));
    for source in ["strict.c", "memory.c", "endpoint.c", "events.c"] {
        compiler.arg(format!("{sources}/{source}"));
    }
    compiler.arg("-ldl");
    let done = compiler.output().expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&aside, &file).unwrap();
    Some(CString::new(file).unwrap())
}

/// A provider of the strict fabric.
pub fn strict_config(layout: Layout, provider: &'static CStr) -> Option<Config<'static>> {
    let library = strict(layout)?;
    Some(Config { library, provider: Some(provider), ..Config::DEFAULT })
}

/// What gives endpoints a rail on one domain of the strict fabric.
pub fn strict_environment<'a>(
    library: &'a CStr,
    provider: &'a str,
) -> [(&'static str, &'a str); 5] {
    [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_OFI_LIBRARY", library.to_str().unwrap()),
        ("CROSSTIE_OFI_PROVIDER", provider),
        ("CROSSTIE_OFI_DOMAINS", "strict0"),
    ]
}

/// Whether two endpoints of one process can talk to each other. Those of libfabric 2.6's shm
/// cannot: its progress follows a pointer that is none (seen; between processes it works).
pub fn reaches_its_own_process(rail: &Libfabric) -> bool {
    rail.provider_name() != c"shm" || rail.version().0 >> 16 < 2
}

/// Gives the kernel and the threads of some providers, which connect sockets, their turn.
pub fn let_library_work() {
    // SAFETY: no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
}

struct Enough<'e>(&'e AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two rails, joined as peer 0 of each other, with a registered block each.
pub struct World {
    pub rails: [Libfabric<'static>; 2],
    pub blocks: [*mut u8; 2],
    pub keys: [RailKey; 2],
    /// What each side has seen.
    pub seen: [Vec<Completion>; 2],
    pub now: Instant,
    start: std::time::Instant,
    next_id: u64,
}

pub const PEER: PeerIndex = PeerIndex(0);
pub const OTHER: PeerIndex = PeerIndex(1);

impl World {
    pub fn open(config: &Config) -> Result<World, OpenError> {
        World::open_with(config, LIMITS)
    }

    /// Over sockets whose endpoints peers share, with so many peers; `None`, with a line: they
    /// cannot be had here.
    pub fn of_sockets(peers_max: u32) -> Option<World> {
        let limits = Limits { peers_max, ..LIMITS };
        let of = |provider| {
            World::open_with(&Config { provider: Some(provider), ..Config::DEFAULT }, limits).ok()
        };
        let world = [c"tcp;ofi_rxm", c"tcp"].into_iter().find_map(of);
        if world.is_none() {
            skip("no endpoint of sockets that peers share");
        }
        world
    }

    pub fn open_with(config: &Config, limits: Limits) -> Result<World, OpenError> {
        left_behind_remove();
        let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(limits)));
        let rails = memory.open(config)?;
        let blocks = [(); 2].map(|()| Box::leak(Box::new(HeapBlock::new(BLOCK_BYTES))).start());
        let keys = [0, 1].map(|side| register(&rails[side], blocks[side], BLOCK_BYTES).unwrap());
        let seen = [Vec::new(), Vec::new()];
        let start = std::time::Instant::now();
        Ok(World { rails, blocks, keys, seen, now: Instant(0), start, next_id: 1 << 32 })
    }

    pub fn local(&self, side: usize, offset: usize, length: usize) -> LocalSpan {
        assert!(offset + length <= BLOCK_BYTES);
        let address = self.blocks[side] as u64 + offset as u64;
        // SAFETY: inside a leaked block that is registered.
        unsafe { LocalSpan::new(address, Bytes::of(length), self.keys[side]) }
    }

    pub fn remote(&self, side: usize, offset: usize) -> RemoteSpan {
        RemoteSpan { key: self.keys[side], address: self.blocks[side] as u64 + offset as u64 }
    }

    pub fn fill(&self, side: usize, offset: usize, length: usize, byte: u8) {
        assert!(offset + length <= BLOCK_BYTES);
        // SAFETY: inside a leaked block.
        unsafe { self.blocks[side].add(offset).write_bytes(byte, length) };
    }

    pub fn byte(&self, side: usize, offset: usize) -> u8 {
        assert!(offset < BLOCK_BYTES);
        // SAFETY: inside a leaked block; volatile because the library may write it.
        unsafe { self.blocks[side].add(offset).read_volatile() }
    }

    pub fn holds(&self, side: usize, offset: usize, length: usize, byte: u8) -> bool {
        (offset..offset + length).all(|at| self.byte(side, at) == byte)
    }

    /// Posts, polling as long as the answer is `Again`.
    pub fn post_to(&mut self, side: usize, peer: PeerIndex, kind: OpKind) -> OpId {
        let posted = self.post_in_time(side, peer, kind);
        posted.unwrap_or_else(|| panic!("never room for {kind:?}: {}", self.peers_in_words(side)))
    }

    /// The same; `None`: there is no room for as long as anything is waited for.
    pub fn post_in_time(&mut self, side: usize, peer: PeerIndex, kind: OpKind) -> Option<OpId> {
        let id = OpId(self.next_id);
        self.next_id += 1;
        let start = std::time::Instant::now();
        while start.elapsed() < WATCHDOG {
            match self.rails[side].post(&Op { id, peer, kind }, self.now) {
                Ok(Posted::Pending) => return Some(id),
                Ok(Posted::Done) => {
                    self.seen[side].push(Completion::Done { peer, id, result: Ok(()) });
                    return Some(id);
                }
                Err(crosstie::fabric::PostError::Again) => self.poll(),
                Err(error) => panic!("{error:?} for {kind:?}"),
            }
        }
        None
    }

    /// The records of a rail's peers, for whoever must find out why nothing goes on.
    pub fn peers_in_words(&self, side: usize) -> String {
        const MOST: usize = 6000;
        let all = format!("{:?}", self.rails[side]);
        let peers = all.find("peers: [").map_or("", |at| &all[at..]);
        peers.chars().take(MOST).collect()
    }

    pub fn post(&mut self, side: usize, kind: OpKind) -> OpId {
        self.post_to(side, PEER, kind)
    }

    pub fn write_kind(&self, side: usize, at: usize, length: usize) -> OpKind {
        let source = Source::Span(self.local(side, at, length));
        OpKind::Write { source, target: self.remote(1 - side, at), immediate: None }
    }

    pub fn write(&mut self, side: usize, at: usize, length: usize) -> OpId {
        let kind = self.write_kind(side, at, length);
        self.post(side, kind)
    }

    pub fn line(&mut self, side: usize, at: usize, byte: u8) -> OpId {
        let source = Source::Line([byte; LINE_BYTES]);
        let target = self.remote(1 - side, at);
        self.post(side, OpKind::Write { source, target, immediate: None })
    }

    pub fn send(&mut self, side: usize, number: u8, length: usize) -> OpId {
        let payload = self.local(side, 0, length);
        self.post(side, OpKind::Send { head: [number; 32], payload })
    }

    pub fn fence(&mut self, side: usize) -> OpId {
        self.post(side, OpKind::Fence { generation: RailGeneration(1) })
    }

    /// One poll of one side.
    pub fn poll_side(&mut self, side: usize) {
        self.now = Instant(self.start.elapsed().as_nanos() as u64);
        let mut out = [NOTHING; 16];
        let count = self.rails[side].poll(&mut out, Bytes::kib(64), self.now);
        self.seen[side].extend_from_slice(&out[..count]);
    }

    /// So much time goes by, for polls.
    pub fn pass(&mut self, time: Duration) {
        self.start = self.start.checked_sub(time).expect("a clock that has run for longer");
    }

    /// One poll of each.
    pub fn poll(&mut self) {
        self.poll_side(0);
        self.poll_side(1);
        std::thread::yield_now();
    }

    /// Polls until something is so.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let start = std::time::Instant::now();
        while start.elapsed() < WATCHDOG {
            if is_so(self) {
                return;
            }
            self.poll();
        }
        let last = self.seen.each_ref().map(|seen| seen.last());
        panic!("{what}, never; last seen: {last:?}");
    }

    pub fn result(&self, side: usize, wanted: OpId) -> Option<Result<(), String>> {
        self.seen[side].iter().find_map(|completion| match completion {
            Completion::Done { id, result, .. } if *id == wanted => {
                Some(result.map_err(|error| format!("{error:?}")))
            }
            Completion::Fenced { id, .. } if *id == wanted => Some(Ok(())),
            _ => None,
        })
    }

    pub fn end(&mut self, side: usize, id: OpId) -> bool {
        self.until("an op ends", |world| world.result(side, id).is_some());
        self.result(side, id) == Some(Ok(()))
    }

    pub fn downs(&self, side: usize) -> usize {
        let is_down = |seen: &&Completion| matches!(seen, Completion::PeerDown { .. });
        self.seen[side].iter().filter(is_down).count()
    }

    /// A write, to its end.
    pub fn write_well(&mut self) {
        self.seen = [Vec::new(), Vec::new()];
        let id = self.write(0, 0, 4096);
        assert!(self.end(0, id));
    }

    /// Memory is registered and deregistered in threads, with the rail of side 0, while this one
    /// does something again and again, so many times at least.
    pub fn register_beside(&mut self, times: usize, act: impl Fn(&mut World)) {
        const THREADS: usize = 3;
        const ROUNDS: usize = 200;
        let domain = self.rails[0].domain();
        let is_enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| {
                scope.spawn(|| {
                    let memory = vec![0u8; 8192];
                    let (address, length) = (memory.as_ptr() as u64, Bytes::of(memory.len()));
                    let region = Region { address, length, kind: MemoryKind::Host };
                    let mut rounds = 0;
                    // the strict fabric keeps every registration, to know it again
                    while rounds < ROUNDS
                        || !is_enough.load(Ordering::Relaxed) && rounds < 5 * ROUNDS
                    {
                        rounds += 1;
                        // SAFETY: memory that stays until the region is gone.
                        let key = unsafe { domain.register(region) }.unwrap();
                        domain.deregister(key).unwrap();
                    }
                })
            });
            // also when `act` panics, or the others would never end
            let _enough = Enough(&is_enough);
            let mut done = 0;
            // also a thread that panicked has finished
            while !threads.iter().all(|thread| thread.is_finished()) || done < times {
                act(self);
                done += 1;
                is_enough.store(done >= times, Ordering::Relaxed);
            }
        });
    }

    /// The first side gives its peer up while a write to it is under way, answers for the write,
    /// and lets go of the peer.
    pub fn give_up_while_writing(&mut self) {
        let late = self.write(0, 0, 4096);
        self.rails[0].peer_fail(PEER, DownCause::Silent);
        self.poll_side(0);
        self.pass(Duration::from_secs(3));
        while self.result(0, late).is_none() {
            self.poll_side(0);
        }
        self.rails[0].peer_detach(PEER).unwrap();
    }

    /// Polls until what was on its way has come.
    pub fn until_quiet(&mut self) {
        for _ in 0..64 {
            self.poll();
        }
    }

    /// Whether a message of each side reaches the other; `false`: the peer ends before.
    pub fn exchanges(&mut self, peer: PeerIndex) -> bool {
        let of_it =
            |it: &Completion| matches!(it, Completion::PeerDown { peer: of, .. } if *of == peer);
        let came =
            |it: &Completion| matches!(it, Completion::Received { peer: of, .. } if *of == peer);
        self.seen = [Vec::new(), Vec::new()];
        let mut sent = [false; 2];
        let start = std::time::Instant::now();
        while start.elapsed() < WATCHDOG {
            for side in [0, 1] {
                let payload = self.local(side, 0, 64);
                let op = Op { id: OpId(1), peer, kind: OpKind::Send { head: [1; 32], payload } };
                sent[side] = sent[side] || self.rails[side].post(&op, self.now).is_ok();
            }
            self.poll();
            if self.seen.iter().all(|seen| seen.iter().any(came)) {
                return true;
            }
            if self.seen.iter().all(|seen| seen.iter().any(of_it)) {
                return false;
            }
        }
        panic!("neither messages nor ends of both: {:?}", self.seen);
    }

    /// Joins both rails as the same peer once more.
    pub fn join(&mut self, peer: PeerIndex, token: u32) {
        let hellos = [0, 1].map(|side| self.prepare(side, peer, token + 0x0101 * (1 + side)));
        for (rail, hello) in self.rails.iter_mut().zip([hellos[1], hellos[0]]) {
            rail.peer_connect(peer, &hello).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Prepares a peer of a side, polling as long as its last is owed a word.
    pub fn prepare(&mut self, side: u32, peer: PeerIndex, token: u32) -> Hello {
        loop {
            match self.rails[side as usize].peer_prepare(peer, token) {
                Err(PeerOpenError::Again) => self.poll(),
                prepared => return prepared.unwrap_or_else(|error| panic!("{error}")),
            }
        }
    }
}

pub fn register(
    rail: &Libfabric<'static>,
    start: *mut u8,
    length: usize,
) -> Result<RailKey, crosstie::fabric::RegisterError> {
    let region =
        Region { address: start as u64, length: Bytes::of(length), kind: MemoryKind::Host };
    // SAFETY: leaked memory.
    unsafe { rail.domain().register(region) }
}
