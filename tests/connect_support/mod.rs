//! What the side band's tests stand on: shared memory by memfd, an endpoint's tables, a watchdog.
#![allow(dead_code)]

#[path = "../common/black_hole.rs"]
mod hole;
mod record;

use crosstie::base::pool::Pool;
use crosstie::base::ring::{Consumer, Indices, split};
use crosstie::base::slab::Handle;
use crosstie::base::sync::{AtomicU32, AtomicU64, Cell, Ordering};
use crosstie::base::units::Span;
use crosstie::connect::key::Key;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::hello::{AddressHello, AddressList, RAIL_SHM, RAIL_TCP};
use crosstie::wire::pair::PortList;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

#[allow(unused_imports)] // not every test loses packets
pub use hole::black_hole;
#[allow(unused_imports)] // nor does every one dial by hand
pub use record::{dial_record, listen_record};

/// Bytes of one connection's rings in these tests.
pub const RINGS_BYTES: u64 = 4096;
pub const WATCHDOG: Duration = Duration::from_secs(600);

/// Shared memory through memfd.
pub struct TestMemory {
    doorbell: OwnedFd,
    heap: OwnedFd,
    populate_bytes_left: u64,
}

pub struct Mapping {
    fd: Option<OwnedFd>,
    address: usize,
    bytes: u64,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with these numbers, once.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.bytes as usize) };
    }
}

fn memfd(bytes: u64) -> Result<OwnedFd, MemoryError> {
    // SAFETY: a terminated name; the result is checked.
    let fd = unsafe { libc::memfd_create(c"crosstie-test".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(MemoryError::Descriptors);
    }
    // SAFETY: a descriptor of ours, just made.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: no pointers.
    unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) };
    Ok(fd)
}

/// Maps memory that we made, whose descriptor we keep, or what a peer made, for reading alone.
fn map(fd: OwnedFd, bytes: u64, keep: bool) -> Result<Mapping, MemoryError> {
    let protection = libc::PROT_READ | if keep { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping at a place that the kernel chooses.
    let at = unsafe {
        let flags = libc::MAP_SHARED;
        libc::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, fd.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(MemoryError::Exhausted);
    }
    Ok(Mapping { fd: keep.then_some(fd), address: at as usize, bytes })
}

impl LinkMemory for TestMemory {
    type Mapping = Mapping;
    type View = Mapping;

    fn create_arena(&mut self, bytes: u64) -> Result<Mapping, MemoryError> {
        map(memfd(bytes)?, bytes, true)
    }

    fn arena_fd<'a>(&self, arena: &'a Mapping) -> BorrowedFd<'a> {
        arena.fd.as_ref().unwrap().as_fd()
    }

    fn populate(
        &mut self,
        arena: &Mapping,
        offset: u64,
        rings: (u32, u32),
    ) -> Result<(), MemoryError> {
        let bytes = rings_bytes(rings.0, rings.1).unwrap();
        assert!(offset + bytes <= arena.bytes);
        if self.populate_bytes_left < bytes {
            return Err(MemoryError::Exhausted);
        }
        self.populate_bytes_left -= bytes;
        let fd = arena.fd.as_ref().unwrap().as_raw_fd();
        // SAFETY: no pointers.
        let rc = unsafe { libc::fallocate(fd, 0, offset as i64, bytes as i64) };
        if rc == 0 { Ok(()) } else { Err(MemoryError::Exhausted) }
    }

    fn map_arena(&mut self, fd: OwnedFd, bytes: u64) -> Result<Mapping, MemoryError> {
        map(fd, bytes, false)
    }

    fn map_heap(&mut self, fd: OwnedFd, bytes: u64) -> Result<(Mapping, u64), MemoryError> {
        Ok((map(fd, bytes, false)?, bytes))
    }

    fn address(&self, mapping: &Mapping) -> usize {
        mapping.address
    }

    fn view_address(&self, view: &Mapping) -> usize {
        view.address
    }

    fn heap(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.heap.as_fd(), 4096))
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }

    fn probe(&mut self, pid: i32, address: u64, word: u64) -> bool {
        let mut got = 0u64;
        let local = libc::iovec { iov_base: (&raw mut got).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 8 };
        // SAFETY: eight writable bytes; a bad remote address is the kernel's to refuse.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        read == 8 && got == word
    }

    fn allow_tracer(&mut self) {}
}

/// Limits of a test endpoint.
#[derive(Clone)]
pub struct Limits {
    pub connections: usize,
    pub links: u32,
    pub events: usize,
    pub deadline: Span,
    pub populate_bytes: u64,
    pub key: Option<Key>,
    pub users: Users,
    pub peer_deadline: Span,
    pub note: fn(Note),
    pub shm_dir: PathBuf,
    pub rails: u32,
    pub streams: u32,
    pub descriptors_max: u64,
    pub lanes: u32,
    /// Lanes asked for; 0: as many as addresses can be used.
    pub lanes_wish: u32,
    /// Addresses to answer at, with prefix lengths.
    pub addresses: Vec<(std::net::IpAddr, u8)>,
    /// The peer accepts only what our user has.
    pub accept_taken: bool,
    /// `CONNECT_` bits.
    pub features: u64,
    /// RDMA ports, of which the first makes a lane with the peer's first, and so on.
    pub ports: usize,
}

impl Limits {
    /// Of an endpoint that talks over so many streams; 0: over shared memory.
    pub fn of(streams: u32) -> Limits {
        if streams == 0 { Limits::default() } else { Limits { streams, ..Limits::tcp() } }
    }

    /// Of an endpoint that talks over TCP alone, at 127.0.0.1.
    pub fn tcp() -> Limits {
        Limits { rails: RAIL_TCP, addresses: vec![([127, 0, 0, 1].into(), 8)], ..Limits::default() }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 16,
            links: 8,
            events: 64,
            deadline: Span::millis(10_000),
            populate_bytes: u64::MAX,
            accept_taken: false,
            key: None,
            users: Users::default(),
            peer_deadline: Span::millis(10_000),
            note,
            shm_dir: "/dev/shm".into(),
            rails: RAIL_SHM,
            streams: 1,
            descriptors_max: u64::MAX,
            lanes: 1,
            lanes_wish: 0,
            addresses: Vec::new(),
            features: 0,
            ports: 0,
        }
    }
}

/// An endpoint of which only the side band is there.
pub struct Node {
    pub band: Band<TestMemory>,
    pub events: Consumer<'static, BandEvent>,
    pub generations: &'static [AtomicU32],
    /// What the pool of slots is made of.
    pool_words: (&'static AtomicU64, &'static [AtomicU32]),
    pub seen: Vec<BandEvent>,
    /// What lanes of connections were given: which generation, and the peer's end.
    pub ends: Vec<(Handle, u8, u32, PairEnd)>,
}

fn address_hello(ip: std::net::IpAddr, prefix_bits: u8) -> AddressHello {
    let (ip, family) = match ip {
        std::net::IpAddr::V4(ip) => (u128::from(u32::from_le_bytes(ip.octets())), 4),
        std::net::IpAddr::V6(ip) => (u128::from_le_bytes(ip.octets()), 6),
    };
    AddressHello { ip, port: 0, family, prefix_bits, speed_mbit_s: 0 }
}

fn leak<T>(count: usize, make: impl Fn() -> T) -> &'static [T] {
    Vec::leak((0..count).map(|_| make()).collect())
}

fn rings_bytes(send: u32, write: u32) -> Option<u64> {
    (send == 1024 && write == 512).then_some(RINGS_BYTES)
}

pub static NOTES: AtomicUsize = AtomicUsize::new(0);

fn wake(_context: usize) {}

/// How often a band was told that its own process had not run.
pub static PAUSES: AtomicUsize = AtomicUsize::new(0);

fn note(note: Note) {
    // a machine that is busy is none of ours
    if matches!(note, Note::Paused(_)) {
        PAUSES.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if matches!(note, Note::Connected { .. } | Note::Closed(_)) {
        return;
    }
    NOTES.fetch_add(1, Ordering::Relaxed);
}

impl Node {
    pub fn new(limits: &Limits) -> Node {
        let head: &AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
        let generations = leak(limits.connections, || AtomicU32::new(0));
        let next = leak(limits.connections, || AtomicU32::new(0));
        let pool = Pool::new(head, next);
        let unused = BandEvent::Gone { index: 0, generation: 0, cause: DownCause::Closed };
        let slots = leak(limits.events, || Cell::new(unused));
        let (producer, events) = split(Box::leak(Box::new(Indices::default())), slots);
        let template = LocalTemplate {
            mailbox_key: 77,
            mailbox_base: 0x1000,
            mailbox_stride: 0x100,
            groups_max: 8,
            credits: 9,
            eager_bytes_max: 10,
            tcp_eager_bytes_max: 10,
            data_rails: 1,
            control_rails: 1,
            features: limits.features,
            send_ring_bytes: 1024,
            write_ring_bytes: 512,
            rings_bytes,
        };
        let mut addresses = AddressList::EMPTY;
        for (ip, prefix_bits) in &limits.addresses {
            addresses.all[addresses.count] = address_hello(*ip, *prefix_bits);
            addresses.count += 1;
        }
        let config = BandConfig {
            node_id: None,
            shm_dir: limits.shm_dir.clone(),
            handshake_deadline: limits.deadline,
            links_max: limits.links,
            listeners_max: 4,
            rails: limits.rails,
            streams: limits.streams,
            descriptors_max: limits.descriptors_max,
            lanes_max: limits.lanes,
            lanes_wish: limits.lanes_wish,
            ports: PortList { count: limits.ports, ..PortList::EMPTY },
            pair_ports: |ours, theirs, _, places| {
                let count = ours.len().min(theirs.len());
                (0..).zip(&mut places[..count]).for_each(|(at, place)| *place = at);
                count
            },
            addresses,
            bind: true,
            excluded: vec![],
            spare: vec![],
            without_interface: false,
            membarrier: true,
            trust: Trust::new(limits.key.clone(), limits.users),
            peer_deadline: limits.peer_deadline,
            accept_taken: limits.accept_taken,
            thread_retires: true,
            template,
            wake: Wake { call: wake, context: 0 },
            note: limits.note,
        };
        // SAFETY: no pointers.
        let doorbell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let heap = memfd(4096).unwrap();
        let memory = TestMemory { doorbell, heap, populate_bytes_left: limits.populate_bytes };
        let tables = BandTables { pool, generations, events: producer };
        let band = Band::open(config, tables, memory).unwrap();
        let (seen, ends) = (Vec::with_capacity(8192), Vec::new());
        Node { band, events, generations, pool_words: (head, next), seen, ends }
    }

    /// Takes news out of the queue.
    pub fn drain(&mut self) {
        while let Some(event) = self.events.pop() {
            if let BandEvent::Pair { index, generation, lane, lane_generation } = event {
                let of = Handle { index, generation };
                if let Some(end) = self.band.pair_end(of, lane.into(), lane_generation) {
                    self.ends.push((of, lane, lane_generation, end));
                }
            }
            if self.seen.len() < self.seen.capacity() {
                self.seen.push(event);
            }
        }
    }

    pub fn established(&mut self, of: Handle) -> Option<LinkParams> {
        self.drain();
        self.seen.iter().find_map(|event| match event {
            BandEvent::Established { index, generation, params }
                if (*index, *generation) == (of.index, of.generation) =>
            {
                Some(*params)
            }
            _ => None,
        })
    }

    pub fn gone(&mut self, of: Handle) -> Option<DownCause> {
        self.drain();
        self.seen.iter().find_map(|event| match event {
            BandEvent::Gone { index, generation, cause }
                if (*index, *generation) == (of.index, of.generation) =>
            {
                Some(*cause)
            }
            _ => None,
        })
    }

    /// Whether a slot is not in the pool.
    pub fn some_taken(&self) -> Option<()> {
        (self.free_count()? < self.generations.len()).then_some(())
    }

    /// Whether every slot is in the pool.
    pub fn all_free(&self) -> Option<()> {
        (self.free_count()? == self.generations.len()).then_some(())
    }

    /// How many slots are in the pool, counted without taking one, so that nobody is refused
    /// meanwhile; `None` when the pool changed during the count.
    fn free_count(&self) -> Option<usize> {
        let (head, next) = self.pool_words;
        let seen = head.load(Ordering::Acquire);
        let (mut at, mut count) = (seen as u32, 0);
        while at != 0 && count <= next.len() {
            // a word is the difference from what follows in a new pool
            let at_first = if (at as usize) < next.len() { at + 1 } else { 0 };
            at = next[at as usize - 1].load(Ordering::Acquire) ^ at_first;
            count += 1;
        }
        (head.load(Ordering::Acquire) == seen).then_some(count)
    }
}

/// Polls until there is an answer. Panics when the watchdog barks.
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < WATCHDOG, "no answer in {WATCHDOG:?}: {what}");
        std::thread::yield_now();
    }
}

/// Connects `from` to `to`, and accepts there.
pub fn pair(from: &Node, to: &Node, listener: ListenerId, handle: &[u8; 128]) -> (Handle, Handle) {
    let pending = from.band.connect_begin(handle).unwrap();
    let connector = until("connect", || from.band.connect_poll(pending).unwrap());
    let acceptor = until("accept", || to.band.accept(listener).unwrap());
    (connector, acceptor)
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A directory for one test's sockets.
pub fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("xtie-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Sends a byte from one descriptor to another.
pub fn carry(from: i32, to: i32) {
    let byte = [from as u8 ^ 0x5a];
    // SAFETY: one readable byte.
    assert_eq!(unsafe { libc::send(from, byte.as_ptr().cast(), 1, 0) }, 1);
    let mut got = [0u8];
    until("the byte", || {
        // SAFETY: one writable byte.
        let length = unsafe { libc::recv(to, got.as_mut_ptr().cast(), 1, 0) };
        (length == 1).then_some(())
    });
    assert_eq!(got, byte);
}
