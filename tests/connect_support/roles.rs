// Parts of tests that need a process of their own: the test binary starts itself again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

const ROLE: &str = "CONNECT_TEST_ROLE";
const DIRECTORY: &str = "CONNECT_TEST_DIRECTORY";

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Those of the test harness's own thread, which gets ready to wait while a test runs already.
static ALLOCATIONS_HARNESS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: two calls without arguments.
        let harness = unsafe { libc::gettid() == libc::getpid() };
        let count = if harness { &ALLOCATIONS_HARNESS } else { &ALLOCATIONS };
        count.fetch_add(1, Ordering::Relaxed);
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

/// Does nothing unless this process was started for a role.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "listen" | "listen_poor" | "listen_poorer" | "listen_forked" | "listen_paused" => {
            role_listen();
        }
        "cycles" => role_cycles(),
        "no_alloc" => role_no_alloc(),
        "descriptors" => role_descriptors(),
        "crowded" => role_crowded(),
        "times" => role_times(),
        "times_at_once" => role_times_at_once(),
        _ => panic!("unknown role {role}"),
    }
}

/// This binary, to run `role` in its test `test`.
fn command(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Runs a role in a process in which nothing else happens.
fn run_alone(role: &str) {
    run_alone_in("role", role);
}

/// As `run_alone`, of a role that the test `test` knows.
fn run_alone_in(test: &str, role: &str) {
    let output = command(test, role).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stdout));
}

/// Starts a process that listens, accepts for ever, and says its handle.
fn start_child(role: &str, directory: &Path) -> (Child, [u8; 128]) {
    let mut command = command("role", role);
    command.env(DIRECTORY, directory).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.by_ref().map(Result::unwrap).find_map(|line| {
        line.split_once("handle=").map(|(_, handle)| handle.to_owned())
    });
    let line = line.expect("the child says its handle");
    let mut handle = [0; 128];
    for (byte, at) in handle.iter_mut().zip((0..256).step_by(2)) {
        *byte = u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    }
    // stays open, so that nothing that the child prints fails
    std::mem::forget(lines);
    (child, handle)
}

fn role_listen() {
    let dir = std::env::var(DIRECTORY).unwrap();
    let paused = std::env::var(ROLE).as_deref() == Ok("listen_paused");
    let mut limits =
        Limits { shm_dir: dir.into(), connections: 1100, events: 4096, ..Limits::of(STREAMS) };
    if paused {
        limits.peer_deadline = Span::millis(100);
    }
    let mut node = Node::new(&limits);
    let (listener, handle) = node.band.listen().unwrap();
    let text: String = handle.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    if std::env::var(ROLE).as_deref() == Ok("listen_poor") {
        descriptors_freeze();
    }
    if std::env::var(ROLE).as_deref() == Ok("listen_forked") {
        hold_in_child();
    }
    println!("handle={text}");
    let poorer = std::env::var(ROLE).as_deref() == Ok("listen_poorer");
    let mut accepted = Vec::with_capacity(1100);
    // until the parent kills us, or goes away
    let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives until the call returns.
    while unsafe { libc::poll(&mut poll, 1, 5) } == 0 {
        node.drain();
        while let Some(connection) = node.band.accept(listener).unwrap() {
            accepted.push(connection);
            if poorer && accepted.len() == 2 {
                descriptors_freeze();
            }
        }
        accepted.retain(|connection| {
            let gone = node.gone(*connection).is_some();
            if gone {
                node.band.connection_close(*connection).unwrap();
            }
            !gone
        });
    }
    drop(node);
    assert!(!paused || PAUSES.load(Ordering::Relaxed) > 0, "it was stopped, and says nothing");
}

/// Forks a child that holds copies of all descriptors until the test that started us ends.
fn hold_in_child() {
    // SAFETY: the child only polls, and ends.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    let mut poll = libc::pollfd { fd: 0, events: 0, revents: 0 };
    // SAFETY: one structure, which lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, 60_000) };
    // SAFETY: ends the child without running the parent's handlers.
    unsafe { libc::_exit(0) };
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: our own child, not waited for yet.
    let rc = unsafe { libc::kill(child.id() as i32, signal) };
    assert_eq!(rc, 0);
    if signal == libc::SIGSTOP {
        // until every thread of it has stopped
        let mut status = 0;
        // SAFETY: valid for writes.
        unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status));
    }
}

fn role_cycles() {
    // of its own, since others that open sweep theirs and so dial what they find
    let dir = directory("cycles");
    let limits = Limits { shm_dir: dir.clone(), ..Limits::of(STREAMS) };
    let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    let handle = handle.encode();
    pair(&a, &b, listener, &handle);
    let before = descriptors();
    for cycle in 0..1000 {
        let (here, there) = pair(&a, &b, listener, &handle);
        // either side first
        if cycle % 2 == 0 {
            a.band.connection_close(here).unwrap();
            b.band.connection_close(there).unwrap();
        } else {
            b.band.connection_close(there).unwrap();
            a.band.connection_close(here).unwrap();
        }
        a.drain();
        b.drain();
    }
    assert_eq!(descriptors(), before);
    b.band.close();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "close removes the path");
    std::fs::remove_dir(&dir).unwrap();
}

fn role_no_alloc() {
    let limits = Limits {
        deadline: Span::millis(200),
        key: Some(crosstie::connect::key::Key::new(b"a key of many bytes").unwrap()),
        peer_deadline: Span::millis(20),
        ..Limits::of(STREAMS)
    };
    let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let (listener, handle) = b.band.listen().unwrap();
    let handle_bytes = handle.encode();
    for _ in 0..20 {
        let (here, there) = pair(&a, &b, listener, &handle_bytes);
        a.drain();
        b.drain();
        a.band.peer_text(here, &mut [0; 64]);
        a.band.connection_close(here).unwrap();
        b.band.connection_close(there).unwrap();
    }
    let (kept, _) = pair(&a, &b, listener, &handle_bytes);
    let stranger = dial(&handle);
    send(&stranger, b"garbage");
    let silent = dial(&handle);
    until("strangers", || (b.band.counters().strangers == 2).then_some(()));
    drop(silent);
    until("pings", || (a.band.counters().pongs + b.band.counters().pongs > 5).then_some(()));
    let pending = a.band.connect_begin(&handle_bytes).unwrap();
    a.band.connect_abandon(pending).unwrap();
    b.band.listener_close(listener).unwrap();
    let (listener, handle) = b.band.listen().unwrap();
    pair(&a, &b, listener, &handle.encode());
    let during = ALLOCATIONS.load(Ordering::Relaxed) - before;
    drop(b);
    until("gone", || a.gone(kept));
    let after = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!((during, after), (0, 0));
    std::hint::black_box(vec![1u8; 100]);
    assert!(ALLOCATIONS.load(Ordering::Relaxed) - before > after, "a planted one is seen");
}

/// From now on this process can open no descriptor more. Says the limit.
fn descriptors_freeze() -> u64 {
    let next_free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: valid for writes.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur = next_free;
    // SAFETY: valid for reads.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    next_free
}

/// When descriptors run out, who has said nothing yet gives way to the next one. It may be a peer.
fn role_crowded() {
    let b = Node::new(&Limits::of(STREAMS));
    let (_, handle) = b.band.listen().unwrap();
    let before = descriptors();
    let mut silent = dial_tcp(&handle);
    until("it is accepted", || (descriptors() == before + 2).then_some(()));
    let held = std::fs::File::open("/dev/null").unwrap();
    descriptors_freeze();
    drop(held);
    let next = dial_tcp(&handle);
    until("one gives way", || (b.band.counters().descriptors_short > 0).then_some(()));
    assert_eq!(std::io::Read::read(&mut silent, &mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(b.band.counters().strangers, 0);
    drop(next);
}

fn role_descriptors() {
    let limits = Limits::of(STREAMS);
    let (a, b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    let c = Node::new(&limits);
    let (here, there) = pair(&c, &b, listener, &handle.encode());
    let limit = descriptors_freeze();
    let error = a.band.connect_begin(&handle.encode()).unwrap_err();
    assert_eq!(error, ConnectError::Descriptors(limit));
    if STREAMS != 0 {
        // the link stands, and has no socket for another connection
        let pending = c.band.connect_begin(&handle.encode()).unwrap();
        assert_eq!(c.band.connect_poll(pending), Err(ConnectError::Descriptors(limit)));
    }
    assert_eq!(a.band.listen().map(|_| ()), Err(ListenError::Descriptors(limit)));
    assert_eq!(b.band.listen().map(|_| ()), Ok(()), "its sockets are open already");
    until("nothing was changed", || a.all_free());
    c.band.connection_close(here).unwrap();
    b.band.connection_close(there).unwrap();
    until("nothing was kept", || c.all_free());
}

/// First and further connections between two processes; printed, not judged.
fn role_times() {
    let dir = directory("times");
    let limits = Limits { connections: 1100, events: 4096, ..Limits::of(STREAMS) };
    let node = Node::new(&limits);
    let (mut child, handle) = start_child("listen", &dir);
    let mut times = Vec::new();
    for _ in 0..1000 {
        let start = std::time::Instant::now();
        let pending = node.band.connect_begin(&handle).unwrap();
        until("connect", || node.band.connect_poll(pending).unwrap());
        times.push(start.elapsed());
    }
    let first = times.remove(0);
    times.sort();
    println!(
        "first {first:?}; further p50 {:?} p99 {:?} max {:?}; sum {:?}",
        times[499],
        times[989],
        times[998],
        times.iter().sum::<std::time::Duration>()
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
}

/// A thousand connections begun at once; printed, not judged.
fn role_times_at_once() {
    let dir = directory("at_once");
    let limits = Limits { connections: 1100, events: 4096, ..Limits::of(STREAMS) };
    let node = Node::new(&limits);
    let (mut child, handle) = start_child("listen", &dir);
    for round in 0..2 {
        let count = if round == 0 { 1 } else { 1000 };
        let start = std::time::Instant::now();
        let pending: Vec<_> =
            (0..count).map(|_| node.band.connect_begin(&handle).unwrap()).collect();
        let begun = start.elapsed();
        for id in pending {
            until("connect", || node.band.connect_poll(id).unwrap());
        }
        println!("{count} at once: begun {begun:?}, all {:?}", start.elapsed());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
}

/// Dials an endpoint's side band as a stranger.
fn dial(handle: &ListenHandle) -> OwnedFd {
    if STREAMS != 0 {
        return dial_tcp(handle).into();
    }
    dial_record(handle.endpoint_id)
}

/// Dials an endpoint's first address as a stranger.
fn dial_tcp(handle: &ListenHandle) -> std::net::TcpStream {
    let local = handle.addresses[0].family == crosstie::wire::handle::Family::Local;
    let address = handle.addresses[usize::from(local)];
    let [a, b, c, d] = *address.ip.first_chunk().unwrap();
    let at = std::net::SocketAddr::from(([a, b, c, d], address.port));
    let stream = std::net::TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    // SAFETY: readable bytes.
    let sent = unsafe {
        libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL)
    };
    assert_eq!(sent, bytes.len() as isize);
}
