//! kill -9 of a peer at random moments leaves nothing behind, and ends every request by name.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::ConnectError;
use crosstie::transport::{RequestError, SubmitError};
use host_support::flow::Flow;
use host_support::roles::{self, Process};
use host_support::{Node, Place, Random, Watch, descriptors, directory, mappings, small};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ROUNDS: u64 = 50;
const SEED: u64 = 0x5eed_0007;
/// Longest life of a child after it has connected, in calls of progress.
const LIFE: u64 = 8000;

#[test]
fn role() {
    roles::take(&[
        ("connect", role_connect),
        ("listen", role_listen),
        ("listen_and_fork", role_listen_and_fork),
    ]);
}

fn role_connect() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&small(4));
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    line.say_number(1);
    flow_for_ever(node, connection);
}

fn role_listen() {
    let mut line = roles::line();
    let mut node = Node::open(&small(4));
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    line.say_number(1);
    flow_for_ever(node, connection);
}

fn place() -> Place {
    match std::env::var("TEST_PLACE").as_deref() {
        Ok("shared") => Place::Shared,
        _ => Place::Private,
    }
}

fn flow_for_ever(mut node: Node, connection: Handle) {
    let mut flow = Flow::new(&node, connection, place());
    loop {
        flow.step(&mut node);
        assert!(!flow.failed(), "the parent lives");
    }
}

struct Round {
    child: Process,
    connection: Handle,
    place: Place,
    life: u64,
}

fn round_start(node: &mut Node, round: u64, random: &mut Random, dir: &str) -> Round {
    let place = if round & 2 == 0 { Place::Shared } else { Place::Private };
    let name = if place == Place::Shared { "shared" } else { "private" };
    let environment = [("TEST_PLACE", name), ("CROSSTIE_SHM_DIR", dir)];
    let connection;
    let mut child;
    if round & 1 == 0 {
        let (listener, handle) = node.shared.listen().unwrap();
        child = roles::start("connect", &environment);
        child.line.say(&handle);
        connection = node.accepted(listener);
        node.shared.listener_close(listener).unwrap();
    } else {
        child = roles::start("listen", &environment);
        let handle = child.line.hear::<128>();
        let attempt = node.shared.connect(&handle).unwrap();
        connection = node.connected(attempt).unwrap();
    }
    // the first rounds kill while the connection is new
    let life = if round < 8 { round / 4 } else { random.below(LIFE) };
    if round >= 8 {
        assert_eq!(child.line.hear_number(), 1);
    }
    Round { child, connection, place, life }
}

/// Lets messages flow, kills, and takes every request to its end.
fn round_run(node: &mut Node, mut round: Round) -> (u64, usize) {
    let mut flow = Flow::new(node, round.connection, round.place);
    for _ in 0..round.life {
        flow.step(node);
    }
    round.child.kill();
    let at_kill = flow.outstanding();
    flow.end_with_peer(node);
    if let Some(refused) = flow.refused {
        assert_eq!(refused, SubmitError::Failed(RequestError::PeerDied));
    }
    let again = node.isend(flow.connection, flow.out[0].outgoing(0, 8, 0));
    assert_eq!(again, Err(SubmitError::Failed(RequestError::PeerDied)));
    node.disconnect(flow.connection);
    let received = flow.received;
    flow.release(node);
    (received, at_kill)
}

/// One test counts this process's descriptors, and each has the environment's variables: the folder
/// that one has set is gone behind it.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    host_support::forget();
    turn
}

#[test]
fn kill_at_random_moments_ends_all_requests_by_name_and_leaves_nothing() {
    let _alone = alone();
    let dir = directory("kill");
    let dir_text = dir.to_str().unwrap().to_owned();
    host_support::set("CROSSTIE_SHM_DIR", &dir_text);
    let seed = std::env::var("TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED);
    println!("TEST_SEED={seed}");
    let mut random = Random(seed);
    let mut node = Node::open(&small(4));
    let (mut messages, mut standing) = (0, 0);
    // the sockets that a listener opens close with the last listener, once nothing needs them
    let before = (descriptors(), mappings());
    for number in 0..ROUNDS {
        let round = round_start(&mut node, number, &mut random, &dir_text);
        let (received, at_kill) = round_run(&mut node, round);
        messages += received;
        standing += at_kill;
        // the side band lets go of a dead link when its socket says so
        assert_eq!(settled(before), before, "round {number}, seed {seed}");
    }
    println!("{messages} messages arrived, {standing} requests stood when their peer was killed");
    assert!(messages > 100 && standing > 50, "{messages} messages, {standing} standing");
    let gone = connect_to_the_dead(&mut node, &dir_text);
    assert!(matches!(gone, ConnectError::NoListener(_)), "{gone:?}");
    node.close();
    // a listener that was killed could not remove its socket: the next endpoint does
    Node::open(&small(1)).close();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir(&dir).unwrap();
}

/// Descriptors and mappings, once they are what they were or the watchdog barks.
fn settled(before: (usize, usize)) -> (usize, usize) {
    let start = std::time::Instant::now();
    loop {
        let now = (descriptors(), mappings());
        if now == before || start.elapsed() > host_support::WATCHDOG {
            return now;
        }
        std::thread::yield_now();
    }
}

fn connect_to_the_dead(node: &mut Node, dir: &str) -> ConnectError {
    let mut child = roles::start("listen", &[("CROSSTIE_SHM_DIR", dir)]);
    let handle = child.line.hear::<128>();
    child.kill();
    match node.shared.connect(&handle) {
        Ok(attempt) => node.connected(attempt).unwrap_err(),
        Err(error) => error,
    }
}

/// Listens, leaves a forked child that lives on and listens itself, and waits to be killed.
fn role_listen_and_fork() {
    let mut line = roles::line();
    let mut node = Node::open(&small(4));
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    // SAFETY: the child opens an endpoint of its own, and is killed with its parent's session; the
    // threads that its parent has hold no lock of the heap, since none of them allocates.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut own = Node::open(&small(4));
        let (listener, handle) = own.shared.listen().unwrap();
        line.say_number(std::process::id().into());
        line.say(&handle);
        let connection = own.accepted(listener);
        flow_for_ever(own, connection);
        return;
    }
    flow_for_ever(node, connection);
}

/// A connection to who listens there.
fn connected(node: &mut Node, handle: &[u8; 128]) -> Result<Handle, ConnectError> {
    node.shared.connect(handle).and_then(|attempt| node.connected(attempt))
}

#[test]
fn dead_process_whose_forked_child_lives_is_dead_to_its_peers() {
    let _alone = alone();
    // our own side has what the environment says
    let set = std::env::var("CROSSTIE_RAILS");
    let both = ["tcp", "shm"];
    for rails in set.as_deref().map_or(&both[..], |_| &both[..1]) {
        let rails = set.as_deref().unwrap_or(rails);
        let mut parent = roles::start("listen_and_fork", &[("CROSSTIE_RAILS", rails)]);
        let mut node = Node::open(&small(4));
        let handle = parent.line.hear::<128>();
        let connection = connected(&mut node, &handle).unwrap();
        // what the child says comes over its parent's line
        let (child, of_child) = (parent.line.hear_number() as i32, parent.line.hear::<128>());
        let mut flow = Flow::new(&node, connection, Place::Private);
        while flow.received < 16 {
            flow.step(&mut node);
        }
        parent.kill();
        let watch = Watch::start();
        while !(flow.failed() && flow.outstanding() == 0) {
            flow.step(&mut node);
            watch.look("the end of requests whose peer was killed");
        }
        let died = |error: &RequestError| *error == RequestError::PeerDied;
        assert!(flow.errors.iter().all(died), "{rails}: {:?}", flow.errors);
        let error = connected(&mut node, &handle).unwrap_err();
        // the link to it may not be gone yet, when its connections are
        let gone = matches!(error, ConnectError::NoListener(_) | ConnectError::PeerDied(_));
        assert!(gone, "{rails}: {error}");
        // the child has an endpoint of its own
        let to_child = connected(&mut node, &of_child).unwrap();
        let mut flow = Flow::new(&node, to_child, Place::Private);
        while flow.received < 16 {
            flow.step(&mut node);
        }
        // SAFETY: a process that the role made, and told of.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
}
