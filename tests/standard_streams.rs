//! A program without standard streams, and one whose reader of standard error has gone: the library
//! neither takes their place nor ends the program.
#![allow(dead_code)] // of the shared parts

mod host_support;

use crosstie::host::log::{Level, say};
use crosstie::host::{DeviceKind, Options};
use crosstie::provider::libfabric::Config;
use crosstie::provider::libfabric::survey::survey;
use host_support::pair::disconnect_both;
use host_support::{Memory, Node, Place, joined, roles, small, wait_both};
use std::io::Read;
use std::os::fd::{OwnedFd, RawFd};
use std::process::Stdio;

const STREAMS: [RawFd; 3] = [0, 1, 2];
const MESSAGE: usize = 100_000;
const ROUNDS: u64 = 20;
/// How a role ends that has nothing else to say it with.
const WELL: i32 = 42;

#[test]
fn role() {
    roles::take(&[
        ("without_streams", role_without_streams),
        ("without_a_reader", role_without_a_reader),
    ]);
}

/// The numbers of standard streams at which something is open that can be read or written.
fn taken() -> Vec<RawFd> {
    // SAFETY: a call without pointers.
    let flags = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFL) };
    let is_open = |fd: &RawFd| flags(fd) >= 0 && flags(fd) & libc::O_PATH == 0;
    STREAMS.into_iter().filter(is_open).collect()
}

/// Closes all three, and tells `starter` by a descriptor of its own.
fn role_without_streams() {
    let device = match std::env::var("TEST_DEVICE").as_deref() {
        Ok("shm") => DeviceKind::SharedMemory,
        Ok("tcp") => DeviceKind::Tcp,
        Ok("host") => DeviceKind::Host,
        other => panic!("{other:?}"),
    };
    // SAFETY: calls without pointers; nothing of this process uses them from here on.
    let told = unsafe { libc::fcntl(0, libc::F_DUPFD, 100) };
    for fd in STREAMS {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
    let tell = move |text: &str| {
        // SAFETY: readable for its length.
        unsafe { libc::write(told, text.as_ptr().cast(), text.len()) };
    };
    std::panic::set_hook(Box::new(move |info| tell(&info.to_string())));
    let options = Options { device, ..small(2) };
    let [mut a, mut b] = [&options, &options].map(Node::open);
    assert_eq!(taken(), [], "after open");
    let (to_b, to_a) = joined(&mut a, &mut b);
    assert_eq!(taken(), [], "after connect");
    let (from, into) =
        (Memory::new(&a, Place::Private, MESSAGE), Memory::new(&b, Place::Private, MESSAGE));
    for round in 0..ROUNDS {
        from.fill(0, MESSAGE, round);
        let receive = b.irecv(to_a, &[into.incoming(0, MESSAGE, 0)]).expect("a receive");
        let send = a.isend(to_b, from.outgoing(0, MESSAGE, 0)).expect("a send");
        assert_eq!(wait_both(&mut b, &mut a, receive).result, Ok(()));
        into.verify(0, MESSAGE, round);
        assert_eq!(wait_both(&mut a, &mut b, send).result, Ok(()));
    }
    assert_eq!(taken(), [], "after messages");
    disconnect_both((&mut a, to_b), (&mut b, to_a));
    a.close();
    b.close();
    for fd in STREAMS {
        // SAFETY: a call without pointers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "{fd} was closed before");
    }
    tell("well");
    // the harness would print to what is closed
    std::process::exit(0);
}

/// Has a program without standard streams open, connect, exchange and close.
fn without_streams(device: &str, environment: &[(&str, &str)]) {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket");
    let mut command = roles::command("without_streams");
    command.env("TEST_DEVICE", device).envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn().expect("a process");
    drop(command);
    let mut told = String::new();
    ours.read_to_string(&mut told).expect("text");
    assert!(child.wait().expect("a child").success(), "{device}: {told}");
    assert_eq!(told, "well", "{device}");
}

#[test]
fn library_takes_no_number_of_a_standard_stream() {
    for device in ["shm", "tcp"] {
        without_streams(device, &[]);
    }
    without_streams("tcp", &[("CROSSTIE_TCP_THREADS", "2")]);
}

/// Libfabric opens sockets of its own, also while a connection is made.
#[test]
fn libfabric_takes_no_number_of_a_standard_stream() {
    let tcp = Config { provider: Some(c"tcp;ofi_rxm"), ..Config::DEFAULT };
    if let Err(error) = survey(&tcp) {
        return println!("SKIP: {error}");
    }
    let environment = [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_OFI_PROVIDER", "tcp;ofi_rxm"),
        ("CROSSTIE_OFI_DOMAINS", "lo"),
    ];
    without_streams("host", &environment);
}

/// As a program in C is, which SIGPIPE ends.
fn role_without_a_reader() {
    // SAFETY: no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // something is wrong with the environment, which open says
    Node::open(&Options { device: DeviceKind::SharedMemory, ..small(2) }).close();
    say(Level::Error, "nobody reads this");
    assert!(!sigpipe_waits() && !sigpipe_is_blocked());
    // SAFETY: a set of ours, and this thread.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe(), std::ptr::null_mut());
        libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE);
    }
    say(Level::Error, "nor this");
    assert!(sigpipe_waits() && sigpipe_is_blocked(), "the program's own signal was taken");
    std::process::exit(WELL);
}

fn sigpipe() -> libc::sigset_t {
    // SAFETY: a plain set of bits, for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of ours.
    unsafe { libc::sigaddset(&mut set, libc::SIGPIPE) };
    set
}

fn sigpipe_waits() -> bool {
    let mut set = sigpipe();
    // SAFETY: a set of ours, which the call fills.
    unsafe { libc::sigpending(&mut set) };
    // SAFETY: a whole set.
    unsafe { libc::sigismember(&set, libc::SIGPIPE) == 1 }
}

fn sigpipe_is_blocked() -> bool {
    let mut set = sigpipe();
    // SAFETY: asks for the mask alone.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set) };
    // SAFETY: a whole set.
    unsafe { libc::sigismember(&set, libc::SIGPIPE) == 1 }
}

#[test]
fn log_raises_no_sigpipe_where_the_reader_has_gone() {
    let (ours, theirs) = std::io::pipe().expect("a pipe");
    let mut command = roles::command("without_a_reader");
    command.env("CROSSTIE_NO_SUCH_VARIABLE", "1").stderr(Stdio::from(theirs));
    drop(ours);
    let status = command.status().expect("a process");
    assert_eq!(status.code(), Some(WELL), "{status}");
}
