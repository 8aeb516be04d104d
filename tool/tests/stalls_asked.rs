//! Somebody asks how a process stands: while all is well, while it ends, and while its peer is
//! stopped.

#[path = "../../tests/host_support/mod.rs"]
mod host_support;

use crosstie::base::slab::Handle;
use crosstie::connect::ListenerId;
use crosstie::host::{DeviceKind, Options};
use host_support::flow::Flow;
use host_support::roles::{self, Process};
use host_support::{Memory, Node, Place, Watch, small};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const DEVICES: [(DeviceKind, &str); 2] =
    [(DeviceKind::SharedMemory, "shm0"), (DeviceKind::Tcp, "tcp0")];
/// How often a busy pair is asked.
const ASKED: usize = 4;
/// Reports after which a stopped peer is still called stopped.
const REPORTS: usize = 200;
const LONG: usize = 1 << 20;
/// Of a receive that is asked for among those of all tests here.
const TAG: i32 = 4711;

fn options(device: DeviceKind) -> Options {
    Options { device, ..small(2) }
}

#[test]
fn role() {
    roles::take(&[("flowing", role_flowing), ("idle", role_idle), ("stuck", role_stuck)]);
}

/// Sends and receives until it is told not to.
fn role_flowing() {
    let (mut line, mut node, connection) = accepted();
    let mut flow = Flow::new(&node, connection, Place::Private);
    while !line.is_ready() {
        flow.step(&mut node);
        node.progress();
    }
    line.hear_number();
}

fn role_idle() {
    let (line, mut node, _) = accepted();
    while !line.is_ready() {
        node.progress();
    }
}

/// Posts a receive, and after a while neither does nor calls anything.
fn role_stuck() {
    let (mut line, mut node, connection) = accepted();
    let memory = Memory::new(&node, Place::Private, LONG);
    node.irecv(connection, &[memory.incoming(0, LONG, 8)]).unwrap();
    while !line.is_ready() {
        node.progress();
    }
    let told = line.hear_number();
    line.say_number(told);
    while !line.is_ready() {
        std::thread::yield_now();
    }
}

fn accepted() -> (roles::Line, Node, Handle) {
    let mut line = roles::line();
    let device = std::env::var("TEST_DEVICE").unwrap();
    let mut node = Node::open(&options(DeviceKind::named(&device).unwrap()));
    let (listener, handle): (ListenerId, _) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    (line, node, connection)
}

/// Another process in a role, and this one's end of the connection.
fn started(role: &str, device: (DeviceKind, &str)) -> (Process, Node, Handle) {
    started_with(role, device, &[])
}

/// The same, with more environment.
fn started_with(
    role: &str,
    device: (DeviceKind, &str),
    environment: &[(&str, &str)],
) -> (Process, Node, Handle) {
    let environment = [&[("TEST_DEVICE", device.1)], environment].concat();
    let mut other = roles::start(role, &environment);
    let mut node = Node::open(&options(device.0));
    let handle = other.line.hear::<128>();
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    (other, node, connection)
}

/// What the tool says of a process; something goes on meanwhile.
fn report(pid: u32, mut meanwhile: impl FnMut()) -> Output {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_crosstie"))
        .args(["report", &pid.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let watch = Watch::start();
    while tool.try_wait().unwrap().is_none() {
        meanwhile();
        watch.look("the tool");
    }
    tool.wait_with_output().unwrap()
}

/// How long each thread of a process' side band has waited for a processor, by its number.
fn waited(pid: u32) -> BTreeMap<OsString, Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |task: std::fs::DirEntry| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        read("comm").filter(|name| name.trim() == "crosstie-band")?;
        let waited = read("schedstat")?.split_whitespace().nth(1)?.parse().ok()?;
        Some((task.file_name(), Duration::from_nanos(waited)))
    };
    tasks.filter_map(of).collect()
}

/// An answer that has not come within its second is said to be missing.
const STARVED: Duration = Duration::from_millis(500);

#[test]
fn busy_pair_has_no_fault() {
    for device in DEVICES {
        let (mut other, mut node, connection) = started("flowing", device);
        let mut flow = Flow::new(&node, connection, Place::Private);
        let (watch, mut asked) = (Watch::start(), 0);
        while asked < ASKED {
            let before = flow.received;
            let waits = || [std::process::id(), other.id()].map(waited).into_iter().flatten();
            let waits_before: BTreeMap<_, _> = waits().collect();
            let output = report(other.id(), || {
                flow.step(&mut node);
                node.progress();
            });
            assert!(flow.received > before, "the pair is busy");
            let text = String::from_utf8(output.stdout).unwrap();
            // then that is a fault, and true: of the host, whose processors others have
            let since = |(thread, waited): (OsString, Duration)| {
                waited.saturating_sub(waits_before.get(&thread).copied().unwrap_or_default())
            };
            let starved = waits().map(since).sum::<Duration>() > STARVED;
            if starved && text.contains("gets no processor") {
                watch.look("processors for the side band");
                continue;
            }
            asked += 1;
            let classed =
                text.lines().filter(|line| line.contains("open for ") && line.contains('['));
            for line in classed {
                assert!(line.contains(": no fault seen: "), "{}: {text}", device.1);
            }
            assert!(text.contains("1 connection(s)"), "{text}");
        }
        assert!(!flow.failed(), "{:?}", flow.errors);
        other.kill();
    }
}

#[test]
fn tool_asks_a_process_that_is_stuck_in_its_own_code() {
    for device in DEVICES {
        let environment = [("CROSSTIE_STALL_MS", "300"), ("CROSSTIE_TCP_RAILS", "2")];
        let (mut other, mut node, _) = started_with("stuck", device, &environment);
        // its request grows old enough for a snapshot to be left
        let later = Instant::now() + Duration::from_millis(400);
        while Instant::now() < later {
            node.progress();
        }
        other.line.say_number(1);
        assert_eq!(other.line.hear_number(), 1);
        let output = report(other.id(), || {
            node.progress();
        });
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("1 connection(s)") && text.contains("call of progress"), "{text}");
        assert!(text.contains("receive of group 0, tag 8"), "{text}");
        assert!(text.contains(": peer never sent: the peer owes a message"), "{text}");
        other.kill();
    }
}

/// Nothing has looked at it before: one look finds it, and the next that nothing has moved.
#[test]
fn request_of_a_moment_ago_is_judged_within_one_report() {
    for device in DEVICES {
        let (mut other, mut node, connection) = started("idle", device);
        let memory = Memory::new(&node, Place::Private, 64);
        node.irecv(connection, &[memory.incoming(0, 64, TAG)]).unwrap();
        let output = report(std::process::id(), || {
            node.progress();
        });
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.contains(&format!("tag {TAG}, "))).expect(&text);
        assert!(line.contains(": peer never sent: the peer owes a message"), "{line}");
        other.kill();
    }
}

#[test]
fn process_that_ends_while_it_is_asked_has_ended() {
    let (mut other, mut node, _) = started("idle", DEVICES[0]);
    let pid = other.id();
    let door = format!("@crosstie-report-{pid}-");
    let mut killed = false;
    let output = report(pid, || {
        node.progress();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        // the door, and the socket on which the tool is asking
        if !killed && sockets.matches(&door).count() > 1 {
            other.kill();
            killed = true;
        }
    });
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(killed && !output.status.success(), "{text}");
    assert!(
        text.contains(&format!("process {pid} has ended, or has closed its endpoint")),
        "{text}"
    );
}

/// Each report asks again: the peer owes the first answer for all that.
#[test]
fn stopped_peer_stays_stopped_in_every_later_report() {
    for device in DEVICES {
        let (other, mut node, connection) = started("idle", device);
        other.stop();
        let memory = Memory::new(&node, Place::Private, 64);
        node.irecv(connection, &[memory.incoming(0, 64, 7)]).unwrap();
        let mut said = || {
            let mut text = String::new();
            node.progress();
            assert_eq!(node.report(&mut text), Ok(1));
            text
        };
        let first = said();
        assert!(first.contains("peer not asked yet]"), "{first}");
        let watch = Watch::start();
        while !said().contains(": stopped peer: ") {
            watch.look("a stopped peer");
        }
        for _ in 0..REPORTS {
            let text = said();
            assert!(text.contains(": stopped peer: ") && text.contains("peer silent]"), "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
        other.signal(libc::SIGCONT);
        while !said().contains(": peer never sent: the peer owes a message") {
            watch.look("an answer");
        }
    }
}

/// Any program may give a socket such a name, and nobody was told of any process meanwhile.
#[test]
fn report_is_had_beside_sockets_whose_names_are_no_text() {
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as _;
    for (to, from) in address.sun_path[1..].iter_mut().zip(std::process::id().to_le_bytes()) {
        *to = (from | 0x80) as _;
    }
    address.sun_path[5] = 0xffu8 as _;
    let length = (size_of::<libc::sa_family_t>() + 6) as libc::socklen_t;
    // SAFETY: no pointers; then an address that is as long.
    let bound = unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        libc::bind(socket, (&raw const address).cast(), length)
    };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    let (other, mut node, _) = started("idle", DEVICES[0]);
    let output = report(other.id(), || {
        node.progress();
    });
    assert!(output.status.success(), "{output:?}");
}
