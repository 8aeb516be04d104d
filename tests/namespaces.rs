//! The whole library between hosts, which are network namespaces of this machine: messages, ends,
//! slow and lossy links, and what the sentences say when something is wrong.

mod host_support;
mod namespace_support;

use host_support::Watch;
use host_support::roles;
use namespace_support::two::{Log, Two, all_ended, copy_threads, ended, flows_on, tcp_sockets};
use namespace_support::wire::{Quality, Wired};
use namespace_support::work::{role_connect, role_listen};
use namespace_support::{Hosts, may, may_wire};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[test]
fn role() {
    roles::take(&[("listen", role_listen), ("connect", role_connect)]);
}

/// Each pair wants two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---------------------------------------------------------------- the hosts themselves

/// Bytes through a plain socket from host 1 to host 0.
fn plain_bytes_cross(hosts: &Hosts, address: &str, length: usize) {
    let listener = hosts.inside(0, || TcpListener::bind((address, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut out = hosts.inside(1, || TcpStream::connect((address, port))).unwrap();
    let (mut into, _) = listener.accept().unwrap();
    let bytes: Vec<u8> = (0..length).map(|at| ((at * 31) >> 3) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            out.write_all(&bytes).unwrap();
            drop(out);
        });
        let mut seen = vec![];
        into.read_to_end(&mut seen).unwrap();
        assert!(seen == bytes);
    });
}

#[test]
fn hosts_reach_each_other_and_nobody_else() {
    if !may("hosts_reach_each_other_and_nobody_else") {
        return;
    }
    let hosts = Hosts::bridged(3);
    for address in [hosts.ipv4(0), hosts.ipv6(0)] {
        plain_bytes_cross(&hosts, &address, 1 << 20);
    }
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = here.local_addr().unwrap().port();
    hosts.inside(2, || TcpStream::connect(("127.0.0.1", port))).unwrap_err();
    // a queue that is too short loses packets
    hosts.shape(1, "rate 200mbit burst 4k limit 12k");
    plain_bytes_cross(&hosts, &hosts.ipv4(0), 4 << 20);
    assert!(hosts.dropped(1) > 0);
}

#[test]
fn wire_takes_its_time_and_loses_packets() {
    if !may_wire("wire_takes_its_time_and_loses_packets") {
        return;
    }
    let quality = Quality {
        delay: Duration::from_millis(5),
        lost_per_thousand: 20,
        packets_max: 1000,
        seed: 0x5eed_0101,
    };
    let wired = Wired::new(quality);
    for address in [wired.hosts.ipv4(0), wired.hosts.ipv6(0)] {
        let start = Instant::now();
        plain_bytes_cross(&wired.hosts, &address, 300_000);
        assert!(start.elapsed() > 3 * quality.delay);
    }
    let (carried, lost) = wired.counts();
    assert!(carried > 400 && lost > 2, "{carried} packets carried, {lost} lost");
}

// ---------------------------------------------------------------- messages between hosts

#[test]
fn processes_of_one_host_exchange_over_shared_memory() {
    if !may("processes_of_one_host_exchange_over_shared_memory") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(1);
    for seed in [0x5eed_0200, 0x5eed_0201] {
        let mut two = Two::logged(&hosts, [0, 0], &[], None);
        two.exchange(100, seed);
        assert_eq!(tcp_sockets(&two.connecting), 0);
        two.end();
    }
}

/// Two streams beside the first, and a thread for each.
const THREADED: &[(&str, &str)] = &[("CROSSTIE_TCP_STREAMS", "3"), ("CROSSTIE_TCP_THREADS", "2")];

#[test]
fn messages_of_all_kinds_cross_between_hosts() {
    if !may("messages_of_all_kinds_cross_between_hosts") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for (seed, environment) in [
        (0x5eed_0210, &[][..]),
        (0x5eed_0211, &[]),
        (0x5eed_0212, &[("CROSSTIE_TCP_STREAMS", "4")]),
        (0x5eed_0213, &[("CROSSTIE_TCP_STREAMS", "3"), ("CROSSTIE_RAILS", "tcp")]),
        (0x5eed_0214, &[("CROSSTIE_SOCKET_IFNAME", "eth")]),
        (0x5eed_0215, &[("CROSSTIE_SOCKET_IFNAME", "^lo,docker")]),
        (0x5eed_0216, THREADED),
    ] {
        let mut two = Two::joined(&hosts, environment);
        two.exchange(100, seed);
        assert!(tcp_sockets(&two.connecting) >= 2, "the link and a stream: {environment:?}");
        let threads = if environment == THREADED { 2 } else { 0 };
        for role in [&two.listening, &two.connecting] {
            assert_eq!(copy_threads(role), threads, "{environment:?}");
        }
        two.end();
    }
}

#[test]
fn either_family_of_addresses_is_enough() {
    if !may("either_family_of_addresses_is_enough") {
        return;
    }
    let _alone = alone();
    for (seed, family) in [(0x5eed_0220, "-4"), (0x5eed_0221, "-6")] {
        let hosts = Hosts::bridged(2);
        for at in 0..2 {
            let other = if family == "-4" { "-6" } else { "-4" };
            hosts.forget(at, other);
        }
        let mut two = Two::joined(&hosts, &[]);
        two.exchange(60, seed);
        two.end();
    }
}

#[test]
fn both_connect_first_and_each_side_may_listen() {
    if !may("both_connect_first_and_each_side_may_listen") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for at in [[0, 1], [1, 0]] {
        let mut two = Two::logged(&hosts, at, &[], None);
        two.exchange(20, 0x5eed_0230);
        two.end();
    }
}

// ---------------------------------------------------------------- ends

#[test]
fn closing_in_the_middle_ends_the_others_requests_by_name() {
    if !may("closing_in_the_middle_ends_the_others_requests_by_name") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for listener_closes in [true, false] {
        let mut two = Two::joined(&hosts, &[]);
        two.say("flow");
        two.both().into_iter().for_each(flows_on);
        let [a, b] = two.both();
        let (closes, other) = if listener_closes { (a, b) } else { (b, a) };
        closes.say_text("close");
        assert_eq!(ended(closes).trim(), "ended");
        assert_eq!(closes.hear_text(), "closed");
        all_ended(other, "PeerClosed");
        other.say_text("close");
        assert_eq!(other.hear_text(), "closed");
        two.say("end");
        assert!(two.listening.finished().success() && two.connecting.finished().success());
    }
}

#[test]
fn killed_peer_of_another_host_ends_requests_by_name() {
    if !may("killed_peer_of_another_host_ends_requests_by_name") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for listener_dies in [true, false] {
        for work in ["flow", "wait"] {
            let mut two = Two::joined(&hosts, &[]);
            two.say(work);
            if work == "flow" {
                two.both().into_iter().for_each(flows_on);
            } else {
                two.both().into_iter().for_each(|line| assert_eq!(line.hear_text(), "waits"));
            }
            let Two { mut listening, mut connecting } = two;
            let (dies, lives) = match listener_dies {
                true => (&mut listening, &mut connecting),
                false => (&mut connecting, &mut listening),
            };
            dies.kill();
            match work {
                "flow" => all_ended(&mut lives.line, "PeerDied"),
                _ => assert_eq!(lives.line.hear_text(), "ended Err(PeerDied)"),
            }
            lives.line.say_text("close");
            assert_eq!(lives.line.hear_text(), "closed");
        }
    }
}

#[test]
fn host_that_vanishes_ends_requests_within_the_deadline() {
    if !may("host_that_vanishes_ends_requests_within_the_deadline") {
        return;
    }
    let _alone = alone();
    for work in ["flow", "wait"] {
        let hosts = Hosts::bridged(2);
        let mut two = Two::joined(&hosts, &[("CROSSTIE_PEER_TIMEOUT_MS", "800")]);
        two.say(work);
        for line in two.both() {
            match work {
                "flow" => flows_on(line),
                _ => assert_eq!(line.hear_text(), "waits"),
            }
        }
        hosts.cable(1, false);
        // neither side is told; both find out, with requests that send and with those that wait
        for line in two.both() {
            match work {
                "flow" => all_ended(line, "PeerDied"),
                _ => assert_eq!(line.hear_text(), "ended Err(PeerDied)"),
            }
        }
        two.end();
    }
}

#[test]
fn stopped_peer_is_reported_and_goes_on_when_it_may() {
    if !may("stopped_peer_is_reported_and_goes_on_when_it_may") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let log = Log::new("stopped");
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "800")];
    let mut two = Two::logged(&hosts, [0, 1], &environment, Some(log.file()));
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    two.connecting.signal(libc::SIGSTOP);
    let stopped = Watch::start();
    while !two.connecting.is_stopped() {
        stopped.look("a process that is to stop");
    }
    log.says(REPORTED);
    assert_eq!(log.text().matches(REPORTED).count(), 1, "{}", log.text());
    two.connecting.signal(libc::SIGCONT);
    two.both().into_iter().for_each(flows_on);
    log.says(REPORTED_AGAIN);
    // nothing was lost or ended: the same flow ends when it is told to
    two.listening.line.say_text("close");
    assert_eq!(ended(&mut two.listening.line).trim(), "ended");
    assert_eq!(two.listening.line.hear_text(), "closed");
    all_ended(&mut two.connecting.line, "PeerClosed");
}

/// What its kernel has not acknowledged then may be sent again for a quarter of an hour.
#[test]
fn stopped_peer_whose_network_goes_down_is_dead() {
    if !may("stopped_peer_whose_network_goes_down_is_dead") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let log = Log::new("stopped_down");
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "800"), ("CROSSTIE_STALL_MS", "200")];
    let mut two = Two::logged(&hosts, [0, 1], &environment, Some(log.file()));
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    two.connecting.signal(libc::SIGSTOP);
    log.says(REPORTED);
    hosts.ip(1, "link set eth0 down\nlink set eth1 down\n");
    let text = ended(&mut two.listening.line);
    assert!(text.contains("PeerDied"), "{text}");
    two.connecting.signal(libc::SIGCONT);
    let text = ended(&mut two.connecting.line);
    assert!(text.contains("PeerDied"), "{text}");
}

#[test]
fn process_that_is_stopped_again_and_again_keeps_its_own_connection() {
    if !may("process_that_is_stopped_again_and_again_keeps_its_own_connection") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "800"), ("CROSSTIE_TCP_RAILS", "1")];
    let mut two = Two::joined(&hosts, &environment);
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    // for longer than a stall may last, and for less
    for stopped_ms in [600, 1000, 200, 350].repeat(6) {
        two.connecting.signal(libc::SIGSTOP);
        passed(stopped_ms);
        two.connecting.signal(libc::SIGCONT);
        passed(150);
        // unread, what they say would fill their lines, and they would wait for us
        for line in two.both() {
            while line.is_ready() {
                assert_eq!(line.hear_text(), "flows");
            }
        }
    }
    two.both().into_iter().for_each(flows_on);
    two.listening.line.say_text("close");
    assert_eq!(ended(&mut two.listening.line).trim(), "ended");
    assert_eq!(two.listening.line.hear_text(), "closed");
    all_ended(&mut two.connecting.line, "PeerClosed");
}

#[test]
fn network_that_is_down_is_no_stopped_process_and_nobody_answers_on_it() {
    if !may("network_that_is_down_is_no_stopped_process_and_nobody_answers_on_it") {
        return;
    }
    a_network_goes_down("down", |_| {});
}

/// What the peer said before, which a process without a processor has not read yet, is no answer
/// beside packets that are lost since.
#[test]
fn word_that_was_read_late_is_no_answer_on_a_network_that_is_down() {
    if !may("word_that_was_read_late_is_no_answer_on_a_network_that_is_down") {
        return;
    }
    a_network_goes_down("late", |two| {
        two.connecting.signal(libc::SIGSTOP);
        passed(1000);
    });
}

fn a_network_goes_down(what: &str, before: impl Fn(&mut Two)) {
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let log = Log::new(what);
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "2400"), ("CROSSTIE_STALL_MS", "800")];
    let mut two = Two::logged(&hosts, [0, 1], &environment, Some(log.file()));
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    before(&mut two);
    hosts.ip(1, "link set eth0 down\nlink set eth1 down\n");
    two.connecting.signal(libc::SIGCONT);
    two.both().into_iter().for_each(|line| {
        let text = ended(line);
        assert!(text.contains("PeerDied"), "{text}");
    });
    let text = log.text();
    assert!(text.contains("host cannot be reached"), "{text}");
    for wrong in ["answers, but", "large packets are lost"] {
        assert!(!text.contains(wrong), "{text}");
    }
}

/// What has to have lasted has lasted.
fn passed(ms: u64) {
    let (start, time) = (Instant::now(), Duration::from_millis(ms));
    while start.elapsed() < time {
        std::thread::park_timeout(time - start.elapsed().min(time));
    }
}

/// What the log says of a peer whose host answers and whose process does not.
const REPORTED: &str = "has not answered for";
/// And when it does again.
const REPORTED_AGAIN: &str = "answers again";

// ---------------------------------------------------------------- slow and lossy links

#[test]
fn messages_cross_a_slow_link_with_tiny_buffers_that_loses_packets() {
    if !may("messages_cross_a_slow_link_with_tiny_buffers_that_loses_packets") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for at in 0..2 {
        hosts.shape(at, "rate 100mbit burst 4k limit 12k");
    }
    let mut two = Two::joined(&hosts, &[]);
    two.exchange(16, 0x5eed_0240);
    assert!(hosts.dropped(0) > 0 && hosts.dropped(1) > 0);
    two.end();
}

#[test]
fn messages_cross_a_wire_with_delay_and_loss_that_breaks_for_a_while() {
    if !may_wire("messages_cross_a_wire_with_delay_and_loss_that_breaks_for_a_while") {
        return;
    }
    let _alone = alone();
    let quality = Quality {
        delay: Duration::from_millis(3),
        lost_per_thousand: 5,
        packets_max: 200,
        seed: 0x5eed_0102,
    };
    let wired = Wired::new(quality);
    let mut two = Two::joined(&wired.hosts, &[("CROSSTIE_TCP_STREAMS", "2")]);
    two.exchange(12, 0x5eed_0250);
    two.say("flow");
    two.both().into_iter().for_each(flows_on);
    wired.cut(true);
    let (_, before) = wired.counts();
    let watch = Watch::start();
    while wired.counts().1 < before + 8 {
        watch.look("packets that a cut wire loses");
        std::thread::yield_now();
    }
    wired.cut(false);
    two.both().into_iter().for_each(flows_on);
    two.listening.line.say_text("close");
    assert_eq!(ended(&mut two.listening.line).trim(), "ended");
    assert_eq!(two.listening.line.hear_text(), "closed");
    all_ended(&mut two.connecting.line, "PeerClosed");
}

/// A switch on the way has a smaller MTU, and nobody says so.
#[test]
fn path_that_loses_large_packets_alone_is_said_to_have_a_smaller_mtu() {
    if !may_wire("path_that_loses_large_packets_alone_is_said_to_have_a_smaller_mtu") {
        return;
    }
    let _alone = alone();
    let quality = Quality {
        delay: Duration::from_millis(1),
        lost_per_thousand: 0,
        packets_max: 1000,
        seed: 0x5eed_0103,
    };
    let wired = Wired::new(quality);
    wired.narrow(1000);
    let log = Log::new("mtu");
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "2000")];
    let mut two = Two::logged(&wired.hosts, [0, 1], &environment, Some(log.file()));
    two.say("flow");
    log.says("probably smaller than the 1500 bytes");
    for line in two.both() {
        let text = ended(line);
        assert!(text.starts_with("ended"), "{text}");
    }
}
