//! Nothing allocates in any thread between open and close: counted at Rust's allocator, and at the
//! C library's by a preloaded library. A program of its own, without the test harness, so that all
//! threads count.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::connect::Ending;
use crosstie::fabric::MemoryKind;
use crosstie::host::{ConnectError, ListenError};
use crosstie::transport::RequestError;
use host_support::roles::{self, Process};
use host_support::{Memory, Node, Place, Watch, joined, small, wait_both};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const INSIDE: &str = "NO_ALLOC_INSIDE";
const LONG: usize = 1 << 20;
const SIZES: [usize; 9] = [0, 1, 8, 25, 4096, 8192, 8193, 100_000, LONG];
const ROUNDS: usize = 60;

fn main() {
    roles::take(&[("peer", role_peer)]);
    // as the harness's programs: rungs that select this one ask for the list first
    if std::env::args().any(|argument| argument == "--list") {
        return println!("no_allocation_between_open_and_close: test\n\n1 test, 0 benchmarks");
    }
    let inside = std::env::var_os(INSIDE).is_some();
    let rails = std::env::var("CROSSTIE_RAILS").unwrap_or_else(|_| "shm,tcp".into());
    for (place, kernel_copy, rails) in [
        (Place::Private, "1", rails.as_str()),
        (Place::Private, "0", &rails),
        (Place::Shared, "1", &rails),
    ] {
        host_support::set("CROSSTIE_KERNEL_COPY", kernel_copy);
        host_support::set("CROSSTIE_RAILS", rails);
        let counted = life(place);
        assert_eq!(counted, 0, "{place:?}, kernel copies {kernel_copy}, {rails}: allocated");
    }
    println!(
        "no allocation between open and close{}",
        if inside { " in the C library" } else { "" }
    );
    if !inside {
        preloaded();
    }
}

/// From a mark to the other: allocations at Rust's allocator, and at C's where that is counted.
struct Marks {
    before: u64,
    end: Option<extern "C" fn() -> u64>,
}

fn symbol(name: &std::ffi::CStr) -> Option<*mut libc::c_void> {
    // SAFETY: a C string; the answer is null where nobody preloaded the library.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl Marks {
    fn begin() -> Marks {
        // SAFETY: functions of `malloc_count.c`, of these types.
        let (begin, end) = unsafe {
            type Begin = extern "C" fn();
            type End = extern "C" fn() -> u64;
            (
                symbol(c"mark_begin").map(|at| std::mem::transmute::<*mut libc::c_void, Begin>(at)),
                symbol(c"mark_end").map(|at| std::mem::transmute::<*mut libc::c_void, End>(at)),
            )
        };
        assert_eq!(std::env::var_os(INSIDE).is_some(), begin.is_some(), "preloading");
        if let Some(begin) = begin {
            begin();
        }
        Marks { before: ALLOCATIONS.load(Ordering::Relaxed), end }
    }

    fn end(self) -> u64 {
        let counted = ALLOCATIONS.load(Ordering::Relaxed) - self.before;
        counted + self.end.map_or(0, |end| end())
    }
}

/// Two endpoints and a peer from open to close; how many allocations there were.
fn life(place: Place) -> u64 {
    let peer = roles::start("peer", &[]);
    let (mut a, mut b) = (Node::open(&small(8)), Node::open(&small(8)));
    let (from, into) = (Memory::new(&a, place, LONG), Memory::new(&b, place, LONG));
    let mut spare = vec![0u8; 1 << 16];
    let spare = spare.as_mut_ptr().expose_provenance() as u64;
    let stop = AtomicBool::new(false);
    let ready = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        // SAFETY: the endpoint is closed after this scope.
        let other = unsafe { b.shared.place().as_ref() };
        let (stop, ready) = (&stop, &ready);
        let helper = scope.spawn(move || {
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: nothing uses the memory.
                let region =
                    unsafe { other.register(spare, Bytes(1 << 16), MemoryKind::Host) }.unwrap();
                other.deregister(region).unwrap();
            }
        });
        ready.wait();
        let marks = Marks::begin();
        set_up(&mut a, &mut b);
        messages(&mut a, &mut b, &from, &into);
        peer_dies(&mut b, &into, peer);
        stop.store(true, Ordering::Relaxed);
        let watch = Watch::start();
        while !helper.is_finished() {
            watch.look("the thread that registers");
        }
        let counted = marks.end();
        planted();
        counted
    })
}

/// Lets the other thread end also when this one panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The counters do count.
fn planted() {
    let marks = Marks::begin();
    std::hint::black_box(vec![1u8; 100]);
    // Rust's allocator stands on C's, so that one is seen by both
    let seen = if marks.end.is_some() { 2 } else { 1 };
    assert_eq!(marks.end(), seen, "a planted allocation is counted");
    let marks = Marks::begin();
    if marks.end.is_some() {
        // SAFETY: freed at once.
        unsafe { libc::free(std::hint::black_box(libc::calloc(1, 100))) };
        assert_eq!(marks.end(), 1, "a planted allocation in C is counted");
    }
}

/// Text that is not kept on the heap.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The sentence of a failure has the system's number.
fn says(failure: &dyn std::fmt::Display, code: i32) {
    let (mut line, mut number) = (Line { bytes: [0; 512], length: 0 }, [0; 3]);
    write!(line, "{failure}").unwrap();
    write!(&mut number[..], "{code}").unwrap();
    let number = &number[..number.iter().take_while(|byte| **byte != 0).count()];
    assert!(line.bytes.windows(number.len()).any(|part| part == number));
}

/// Listening, connecting, refusals, registration.
fn set_up(a: &mut Node, b: &mut Node) {
    for _ in 0..20 {
        let (to_b, to_a) = joined(a, b);
        assert!(a.shared.peer_text(to_b, &mut [0; 64]) > 0);
        a.disconnect(to_b);
        b.disconnect(to_a);
        let (start, region) = a.shared.allocate(Bytes(100_000)).unwrap();
        assert!(!start.is_null());
        a.shared.free(region).unwrap();
    }
    let (listener, handle) = b.shared.listen().unwrap();
    let mut damaged = handle;
    damaged[77] ^= 1;
    assert_eq!(a.shared.connect(&damaged).unwrap_err(), ConnectError::HandleCorrupt);
    let attempt = a.shared.connect(&handle).unwrap();
    a.shared.connect_abandon(attempt).unwrap();
    b.shared.listener_close(listener).unwrap();
    let attempt = a.shared.connect(&handle).unwrap();
    let Err(ConnectError::NoListener(peer)) = a.connected(attempt) else { panic!("a listener") };
    // what the system said is told in words, which its own are not: they take the heap
    for code in [libc::ECONNRESET, libc::EXDEV] {
        says(&ConnectError::Unreachable(peer, code), code);
        says(&ConnectError::System(code), code);
        says(&ListenError::System(code), code);
        says(&Ending::Broken(code), code);
    }
}

/// Every size, alone, grouped, unexpected and in crowds, both ways; and the calls beside.
fn messages(a: &mut Node, b: &mut Node, from: &Memory, into: &Memory) {
    let (to_b, to_a) = joined(a, b);
    for round in 0..ROUNDS {
        for size in SIZES {
            one(a, b, (to_b, to_a), (from, into), size, round % 2 == 0);
            one(b, a, (to_a, to_b), (into, from), size, round % 2 == 1);
        }
        grouped(a, b, (to_b, to_a), (from, into));
        beside(a, b, (to_b, to_a), (from, into));
    }
    a.disconnect(to_b);
    b.disconnect(to_a);
}

type Names = (Handle, Handle);
type Places<'a> = (&'a Memory, &'a Memory);

fn one(a: &mut Node, b: &mut Node, to: Names, at: Places<'_>, size: usize, early: bool) {
    let message = at.0.outgoing(0, size, 1);
    let room = [at.1.incoming(0, size, 1)];
    let (send, receive);
    if early {
        send = a.isend(to.0, message).unwrap();
        b.progress();
        receive = b.irecv(to.1, &room).unwrap();
    } else {
        receive = b.irecv(to.1, &room).unwrap();
        send = a.isend(to.0, message).unwrap();
    }
    assert_eq!(wait_both(b, a, receive).result, Ok(()));
    assert_eq!(wait_both(a, b, send).result, Ok(()));
}

fn grouped(a: &mut Node, b: &mut Node, to: Names, at: Places<'_>) {
    let rooms: [_; 8] = core::array::from_fn(|i| at.1.incoming(i << 16, 1 << 16, i as i32));
    let receive = b.irecv(to.1, &rooms).unwrap();
    for tag in (0..8).rev() {
        let size = if tag % 2 == 0 { 100 } else { 1 << 16 };
        let send = a.isend(to.0, at.0.outgoing(0, size, tag)).unwrap();
        assert_eq!(wait_both(a, b, send).result, Ok(()));
    }
    let outcome = wait_both(b, a, receive);
    assert_eq!((outcome.result, outcome.count), (Ok(()), 8));
}

fn beside(a: &mut Node, b: &mut Node, to: Names, at: Places<'_>) {
    assert!(a.stats().sends > 0);
    let receive = a.irecv(to.0, &[at.0.incoming(0, 8, 7)]).unwrap();
    if a.cancel(receive).is_err() {
        // once offered it ends with a message
        b.isend(to.1, at.1.outgoing(0, 8, 7)).unwrap();
    }
    wait_both(a, b, receive);
    a.wait_arm();
    b.wait_arm();
    assert!(a.isend(Handle::default(), at.0.outgoing(0, 8, 0)).is_err());
    // longer than its receive
    let receive = b.irecv(to.1, &[at.1.incoming(0, 8, 2)]).unwrap();
    let send = a.isend(to.0, at.0.outgoing(0, 20_000, 2)).unwrap();
    assert_eq!(wait_both(b, a, receive).result, Err(RequestError::Truncated));
    wait_both(a, b, send);
}

/// Another process connects, sends for ever, and is killed.
fn peer_dies(b: &mut Node, into: &Memory, mut peer: Process) {
    let (listener, handle) = b.shared.listen().unwrap();
    peer.line.say(&handle);
    let connection = b.accepted(listener);
    let mut died = false;
    let mut arrived = 0;
    let watch = Watch::start();
    while !died {
        let Ok(receive) = b.irecv(connection, &[into.incoming(0, LONG, 0)]) else { break };
        let outcome = b.wait(receive);
        arrived += u64::from(outcome.result.is_ok());
        died = outcome.result == Err(RequestError::PeerDied);
        if arrived == 50 {
            peer.kill();
            arrived += 1;
        }
        watch.look("a peer that dies");
    }
    b.disconnect(connection);
    b.shared.listener_close(listener).unwrap();
}

fn role_peer() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&small(2));
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    let memory = Memory::new(&node, Place::Private, LONG);
    for size in SIZES.into_iter().cycle() {
        let send = node.isend(connection, memory.outgoing(0, size, 0)).unwrap();
        node.wait(send);
    }
}

/// The same once more, where the C library's allocator is counted.
fn preloaded() {
    let Some(library) = library() else { return };
    let status = Command::new(std::env::current_exe().unwrap())
        .env("LD_PRELOAD", &library)
        .env(INSIDE, "1")
        .status()
        .unwrap();
    let _ = std::fs::remove_file(&library);
    assert!(status.success(), "counted in the C library: {status}");
}

fn library() -> Option<PathBuf> {
    if !cfg!(target_env = "gnu") {
        eprintln!("SKIP malloc_count: it knows glibc only");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interpose/malloc_count.c");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("malloc_count.so");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(&cc)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&out, &source])
        .status();
    match built {
        Ok(status) => assert!(status.success(), "{cc}: {status}"),
        Err(error) => {
            eprintln!("SKIP malloc_count: {cc}: {error}");
            return None;
        }
    }
    Some(out)
}
