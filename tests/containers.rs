//! Processes in namespaces of their own that share `/dev/shm`, and every way of reading a peer's
//! memory: the same bytes arrive.

mod host_support;

use crosstie::base::slab::Handle;
use host_support::roles::{self, Process};
use host_support::{Memory, Node, Place, small};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

const SIZES: [usize; 9] = [8, 24, 25, 8192, 8193, 1 << 16, 1_000_001, 16 << 20, (64 << 20) - 3];
const SIZE_MAX: usize = 64 << 20;
/// Sizes from here on cross once for each way of pulling.
const LARGE: usize = 16 << 20;
const NAMESPACES: i32 = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWPID;

#[test]
fn role() {
    roles::take(&[
        ("listen", role_listen),
        ("connect", role_connect),
        ("container", role_container),
    ]);
}

fn place() -> Place {
    match std::env::var("TEST_PLACE").as_deref() {
        Ok("shared") => Place::Shared,
        _ => Place::Private,
    }
}

fn role_listen() {
    if std::env::var_os("TEST_DENY").is_some() {
        assert!(host_support::deny::deny(libc::SYS_process_vm_readv, libc::EPERM));
    }
    let mut line = roles::line();
    let mut node = Node::open(&small(2));
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    if std::env::var_os("TEST_LOSES").is_some() {
        assert!(host_support::deny::deny(libc::SYS_process_vm_readv, libc::ESRCH));
    }
    exchange(&mut node, connection, false);
    line.say_number(node.stats().pulled);
    // the other side may still be reading our last message
    line.hear_number();
}

fn role_connect() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&small(2));
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    exchange(&mut node, connection, true);
    line.say_number(node.stats().pulled);
    line.hear_number();
}

/// Every size in both directions, verified.
fn exchange(node: &mut Node, connection: Handle, first: bool) {
    let memory = Memory::new(node, place(), SIZE_MAX);
    let large = std::env::var_os("TEST_LARGE").is_some();
    let sizes = SIZES.into_iter().filter(|size| large || *size < LARGE);
    for (number, size) in sizes.enumerate() {
        for sends in [first, !first] {
            let number = 2 * number as u64 + u64::from(sends == first);
            if sends {
                memory.fill(0, size, number);
                let send = node.isend(connection, memory.outgoing(0, size, 1)).unwrap();
                assert_eq!(node.wait(send).result, Ok(()));
            } else {
                let receive = node.irecv(connection, &[memory.incoming(0, size, 1)]).unwrap();
                let outcome = node.wait(receive);
                assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), size as u64));
                memory.verify(0, size, number);
            }
        }
    }
    memory.release(node);
}

/// Goes into namespaces of its own, and starts the role that was asked for in there.
fn role_container() {
    // SAFETY: no pointers.
    if unsafe { libc::unshare(NAMESPACES) } != 0 {
        panic!("unshare: {}", std::io::Error::last_os_error());
    }
    let inner = std::env::var("TEST_INNER").unwrap();
    // standard input is the line to the test, and goes on to the process inside
    let status = roles::command(&inner).stdin(Stdio::inherit()).status().unwrap();
    std::process::exit(status.code().unwrap_or(1));
}

/// Relays the handle, lets both exchange, and collects them.
fn run_pair(mut listening: Process, mut connecting: Process) {
    let handle = listening.line.hear::<128>();
    connecting.line.say(&handle);
    // each pulled the long half of what it received, and all of what it sent was pulled
    for process in [&mut listening, &mut connecting] {
        let pulled = process.line.try_hear::<8>().map(u64::from_le_bytes);
        assert!(pulled.expect("verified data") >= 3);
    }
    for mut process in [listening, connecting] {
        process.line.say_number(0);
        assert!(process.finished().success());
    }
}

fn outside(role: &str, place: &str, more: &[(&str, &str)]) -> Process {
    let mut environment = vec![("TEST_PLACE", place)];
    environment.extend(more);
    roles::start(role, &environment)
}

fn inside(role: &str, place: &str) -> Process {
    roles::start("container", &[("TEST_PLACE", place), ("TEST_INNER", role)])
}

/// The kernel knows no memory of a process whose first thread has ended, while others work on. It
/// was taken for dead.
#[test]
fn peer_whose_memory_the_kernel_does_not_find_lives() {
    let _alone = alone();
    run_pair(
        outside("listen", "private", &[("TEST_LOSES", "1")]),
        outside("connect", "private", &[]),
    );
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Each pair spins on two processors.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process may make namespaces; says so in one line when not.
fn namespaces(test: &str) -> bool {
    let made = Command::new("unshare").args(["--net", "--ipc", "--pid", "--fork", "true"]).output();
    let may = made.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("SKIP {test}: no namespaces may be made here (needs root)");
    }
    may
}

#[test]
fn every_way_of_pulling_gives_the_same_bytes() {
    let _alone = alone();
    let ring = ("CROSSTIE_KERNEL_COPY", "0");
    for place in ["shared", "private"] {
        for (here, there) in [(true, true), (true, false), (false, true), (false, false)] {
            let environment = |kernel| {
                let mut environment = if kernel { vec![] } else { vec![ring] };
                environment.extend((here == there).then_some(("TEST_LARGE", "1")));
                environment
            };
            run_pair(
                outside("listen", place, &environment(here)),
                outside("connect", place, &environment(there)),
            );
        }
    }
}

#[test]
fn kernel_that_refuses_copies_is_found_out_and_data_is_right() {
    let _alone = alone();
    run_pair(
        outside("listen", "private", &[("TEST_DENY", "1")]),
        outside("connect", "private", &[]),
    );
}

#[test]
fn namespaces_that_share_only_a_directory_are_joined_through_the_path() {
    let _alone = alone();
    if !namespaces("namespaces_that_share_only_a_directory") {
        return;
    }
    for place in ["shared", "private"] {
        run_pair(outside("listen", place, &[]), inside("connect", place));
        run_pair(inside("listen", place), outside("connect", place, &[]));
        run_pair(inside("listen", place), inside("connect", place));
    }
}
