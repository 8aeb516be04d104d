//! Sleeping on the wait descriptor: no wake-up is lost, with the process-wide barrier and without
//! it, and a peer that dies wakes the sleeper.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::endpoint::Closing;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::RequestError;
use host_support::roles::{self, Process};
use host_support::{Memory, Node, Place, Random, Watch, small};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ROUNDS: u64 = 2000;
/// Longest pause between two messages, in turns of an empty loop: about 100 us.
const PAUSE: u64 = 100_000;

#[test]
fn role() {
    roles::take(&[("sleep", role_sleep), ("die", role_die)]);
}

fn deny_barrier_if_asked(name: &str) {
    if std::env::var(name).is_ok() {
        assert!(host_support::deny::deny(libc::SYS_membarrier, libc::ENOSYS));
    }
}

/// Answers every message, and sleeps in between.
fn role_sleep() {
    deny_barrier_if_asked("TEST_SLEEPER_WITHOUT_BARRIER");
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&on(std::env::var("TEST_SLEEPER_ON_TCP").is_ok()));
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    let memory = Memory::new(&node, Place::Shared, LENGTH_MAX);
    let mut slept = 0;
    for round in 0..ROUNDS {
        let room = memory.incoming(0, LENGTH_MAX, 0);
        let receive = node.irecv(connection, &[room]).unwrap();
        let (result, sleeps) = node.sleep_until_done(receive);
        assert_eq!(result, Ok(()));
        memory.verify(0, length(round), round);
        slept += sleeps;
        let send = node.isend(connection, memory.outgoing(0, 8, 0)).unwrap();
        assert_eq!(node.wait(send).result, Ok(()));
    }
    line.say_number(slept);
    line.hear_number();
}

const LENGTH_MAX: usize = 20_000;

/// Short ones, and one in eight that is pulled.
fn length(round: u64) -> usize {
    if round % 8 == 7 { LENGTH_MAX } else { 8 }
}

fn connected(role: &str, environment: &[(&str, &str)], node: &mut Node) -> (Process, Handle) {
    let (listener, handle) = node.shared.listen().unwrap();
    let mut process = roles::start(role, environment);
    process.line.say(&handle);
    let connection = node.accepted(listener);
    node.shared.listener_close(listener).unwrap();
    (process, connection)
}

/// On which device.
fn on(tcp: bool) -> Options {
    let device = if tcp { DeviceKind::Tcp } else { DeviceKind::Host };
    Options { device, ..small(2) }
}

fn rounds(environment: &[(&str, &str)]) {
    let tcp = environment.iter().any(|(name, _)| *name == "TEST_SLEEPER_ON_TCP");
    let mut node = Node::open(&on(tcp));
    let (mut sleeper, connection) = connected("sleep", environment, &mut node);
    let (from, into) =
        (Memory::new(&node, Place::Shared, LENGTH_MAX), Memory::new(&node, Place::Shared, 8));
    let seed = 0x5eed_0008;
    let mut random = Random(seed);
    for round in 0..ROUNDS {
        for _ in 0..random.below(PAUSE) {
            std::hint::spin_loop();
        }
        from.fill(0, length(round), round);
        let receive = node.irecv(connection, &[into.incoming(0, 8, 0)]).unwrap();
        let send = node.isend(connection, from.outgoing(0, length(round), 0)).unwrap();
        for request in [send, receive] {
            assert_eq!(node.wait(request).result, Ok(()), "round {round}, seed {seed}");
        }
        into.verify(0, 8, round);
    }
    let slept = sleeper.line.hear_number();
    sleeper.line.say_number(0);
    assert!(sleeper.finished().success());
    println!("{slept} sleeps in {ROUNDS} rounds");
    assert!(slept > ROUNDS / 4, "only {slept} sleeps: nothing was tried");
}

/// Each pair wants two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn sleeper_misses_no_message() {
    let _alone = alone();
    rounds(&[]);
}

#[test]
fn sleeper_misses_no_message_without_the_barrier() {
    let _alone = alone();
    rounds(&[("TEST_SLEEPER_WITHOUT_BARRIER", "1")]);
}

#[test]
fn sleeper_misses_no_message_over_tcp() {
    let _alone = alone();
    rounds(&[("TEST_SLEEPER_ON_TCP", "1")]);
}

/// Connects, says so, and waits to be killed.
fn role_die() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&on(std::env::var("TEST_SLEEPER_ON_TCP").is_ok()));
    let attempt = node.shared.connect(&handle).unwrap();
    node.connected(attempt).unwrap();
    line.say_number(1);
    let _ = line.try_hear::<8>();
}

#[test]
fn death_of_the_peer_wakes_the_sleeper() {
    death(false);
}

#[test]
fn death_of_the_peer_wakes_the_sleeper_over_tcp() {
    death(true);
}

fn death(tcp: bool) {
    let _alone = alone();
    let mut random = Random(3);
    let mut node = Node::open(&on(tcp));
    let environment: &[_] = if tcp { &[("TEST_SLEEPER_ON_TCP", "1")] } else { &[] };
    let into = Memory::new(&node, Place::Shared, 64);
    for _ in 0..20 {
        let (mut process, connection) = connected("die", environment, &mut node);
        assert_eq!(process.line.hear_number(), 1);
        let receive = node.irecv(connection, &[into.incoming(0, 64, 0)]).unwrap();
        let pause = random.below(10 * PAUSE);
        let killer = std::thread::spawn(move || {
            for _ in 0..pause {
                std::hint::spin_loop();
            }
            process.kill();
        });
        let (result, _) = node.sleep_until_done(receive);
        assert_eq!(result, Err(RequestError::PeerDied));
        killer.join().unwrap();
        node.disconnect(connection);
    }
}

#[test]
fn closing_peer_wakes_the_sleeper() {
    closing(false);
}

#[test]
fn closing_peer_wakes_the_sleeper_over_tcp() {
    closing(true);
}

fn closing(tcp: bool) {
    let _alone = alone();
    let (mut a, mut b) = (Node::open(&on(tcp)), Node::open(&on(tcp)));
    let into = Memory::new(&a, Place::Shared, 64);
    for _ in 0..20 {
        let (to_b, to_a) = host_support::joined(&mut a, &mut b);
        let receive = a.irecv(to_b, &[into.incoming(0, 64, 0)]).unwrap();
        let watch = Watch::start();
        std::thread::scope(|scope| {
            scope.spawn(|| b.disconnect(to_a));
            let (result, _) = a.sleep_until_done(receive);
            assert_eq!(result, Err(RequestError::PeerClosed));
        });
        assert_eq!(a.stats().failures, 0, "that is no failure");
        a.disconnect(to_b);
        watch.look("closing");
    }
}

/// An event loop asks after each of its requests and arms when none has ended; what ends after it
/// was asked, by the progress of the next call, was slept over, for ever after a long rest.
#[test]
fn end_that_came_between_two_tests_is_not_slept_over() {
    let _alone = alone();
    for tcp in [false, true] {
        let (mut a, mut b) = (Node::open(&on(tcp)), Node::open(&on(tcp)));
        let (to_b, to_a) = host_support::joined(&mut a, &mut b);
        let into = Memory::new(&a, Place::Shared, 128);
        let from = Memory::new(&b, Place::Shared, 64);
        for by_test in [true, false] {
            let first = a.irecv(to_b, &[into.incoming(0, 64, 0)]).unwrap();
            let second = a.irecv(to_b, &[into.incoming(64, 64, 1)]).unwrap();
            let (ended, watch) = (a.stats().receives, Watch::start());
            let send = b.isend(to_a, from.outgoing(0, 8, 0)).unwrap();
            while a.stats().receives == ended {
                match by_test {
                    true => assert_eq!(a.test(second), Ok(None)),
                    false => _ = a.progress(),
                }
                b.progress();
                watch.look("a message");
            }
            assert!(!a.wait_arm(), "it may not have been asked after");
            assert_eq!(a.wait(first).result, Ok(()));
            assert_eq!(b.wait(send).result, Ok(()));
            let send = b.isend(to_a, from.outgoing(0, 8, 1)).unwrap();
            assert_eq!(b.wait(send).result, Ok(()));
            assert_eq!(a.sleep_until_done(second).0, Ok(()));
        }
    }
}

/// Who closes and sleeps in between is woken when closing waits no longer for the peer.
#[test]
fn closing_on_a_peer_that_takes_nothing_ends_although_we_sleep() {
    let _alone = alone();
    // without reports of stalls, which wake whoever sleeps now and then
    let settings = [("CROSSTIE_PEER_TIMEOUT_MS", "3000"), ("CROSSTIE_STALL_MS", "0")];
    for (name, value) in settings {
        host_support::set(name, value);
    }
    let (mut a, mut b) = (Node::open(&on(true)), Node::open(&on(true)));
    let (to_b, _) = host_support::joined(&mut a, &mut b);
    let from = Memory::new(&a, Place::Private, 8192);
    for _ in 0..20 {
        let send = a.isend(to_b, from.outgoing(0, 8192, 0)).unwrap();
        assert_eq!(a.wait(send).result, Ok(()));
    }
    let watch = Watch::start();
    while a.connection_close(to_b) == Closing::Again {
        a.sleep();
        watch.look("closing");
    }
    for (name, _) in settings {
        host_support::unset(name);
    }
}
