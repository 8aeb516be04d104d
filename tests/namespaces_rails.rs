//! Connections over two real rails between hosts, which are network namespaces of this machine with
//! two subnets: both are used by themselves, one may go away and come back, or be slow.

#![allow(dead_code)] // of the shared parts

mod host_support;
mod namespace_support;

use host_support::{Watch, roles};
use namespace_support::two::{Log, Two};
use namespace_support::work::{STREAM, role_connect, role_listen};
use namespace_support::{Hosts, INTERFACE, SECOND, may};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[test]
fn role() {
    roles::take(&[("listen", role_listen), ("connect", role_connect)]);
}

/// Each pair wants two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rail as a process tells of it.
#[derive(Copy, Clone, Debug)]
struct Rail {
    up: bool,
    bytes: u64,
    failures: u64,
    joins: u64,
    code: u64,
}

fn rails_read(text: &str) -> Vec<Rail> {
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect(text)).collect();
    let rail = |of: &[u64]| match *of {
        [up, bytes, failures, joins, code] => Rail { up: up == 1, bytes, failures, joins, code },
        _ => panic!("{text}"),
    };
    numbers.chunks(5).map(rail).collect()
}

/// How the rails are, by process. No message is under way.
fn rails(two: &mut Two) -> [Vec<Rail>; 2] {
    two.both().map(|line| {
        line.say_text("rails");
        rails_read(&line.hear_text())
    })
}

/// How they are while messages flow, of which each side has received some more.
fn flowing_rails(two: &mut Two) -> [Vec<Rail>; 2] {
    two.both().map(|line| {
        let mut last = rails_read(&line.hear_text());
        while line.is_ready() {
            last = rails_read(&line.hear_text());
        }
        last
    })
}

fn of_all(both: &[Vec<Rail>; 2], count: usize, holds: impl Fn(&Rail) -> bool) -> bool {
    both.iter().all(|rails| rails.len() == count && rails.iter().all(&holds))
}

// ---------------------------------------------------------------- what is used

#[test]
fn two_subnets_are_two_rails_without_a_setting() {
    if !may("two_subnets_are_two_rails_without_a_setting") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let mut two = Two::joined(&hosts, &[]);
    two.exchange(100, 0x5eed_0410);
    let both = rails(&mut two);
    assert!(of_all(&both, 2, |rail| rail.up && rail.bytes > 0 && rail.failures == 0), "{both:?}");
    two.end();
}

/// The first interface has a second subnet, which would be a rail over the same cable.
#[test]
fn cut_cable_of_an_interface_with_two_subnets_leaves_the_rail_over_the_other_interface() {
    if !may("cut_cable_of_an_interface_with_two_subnets_leaves_the_rail_over_the_other_interface") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    for at in 0..2 {
        hosts.ip(at, &format!("addr add 10.79.0.{}/24 dev {INTERFACE}\n", at + 1));
    }
    let mut two = Two::joined(&hosts, &[("CROSSTIE_PEER_TIMEOUT_MS", "1000")]);
    two.exchange(20, 0x5eed_0425);
    two.say("flow on rails");
    let before = flowing_rails(&mut two);
    assert!(of_all(&before, 2, |rail| rail.up), "{before:?}");
    hosts.cable(0, false);
    let watch = Watch::start();
    let cut = loop {
        let both = flowing_rails(&mut two);
        if (0..2).all(|side| both[side][0].failures > before[side][0].failures) {
            break both;
        }
        watch.look("a rail to be missed");
    };
    let watch = Watch::start();
    loop {
        let both = flowing_rails(&mut two);
        if (0..2).all(|side| both[side][1].up && both[side][1].bytes > cut[side][1].bytes) {
            break;
        }
        watch.look("the other rail to carry on");
    }
    hosts.cable(0, true);
    two.listening.line.say_text("close");
    for line in two.both() {
        let text = loop {
            let text = line.hear_text();
            if text.starts_with("ended") {
                break text;
            }
        };
        assert!(!text.contains("RailsLost"), "{text}");
    }
}

/// The second subnet goes away for a while, in either of two ways, and comes back.
#[test]
fn subnet_that_goes_away_and_comes_back_costs_no_message() {
    if !may("subnet_that_goes_away_and_comes_back_costs_no_message") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let log = Log::new("subnet");
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "1000")];
    let mut two = Two::logged(&hosts, [0, 1], &environment, Some(log.file()));
    two.exchange(20, 0x5eed_0420);
    two.say("flow on rails");
    let mut before = flowing_rails(&mut two);
    let mut outages = 0;
    for (down, up) in [
        (format!("link set {SECOND} down\n"), format!("link set {SECOND} up\n")),
        (
            format!("addr del 10.78.0.2/24 dev {SECOND}\n"),
            format!("addr add 10.78.0.2/24 dev {SECOND}\n"),
        ),
    ] {
        hosts.ip(1, &down);
        let watch = Watch::start();
        let outage = loop {
            let both = flowing_rails(&mut two);
            if (0..2).all(|side| both[side][1].failures > before[side][1].failures) {
                break both;
            }
            watch.look("a rail to be missed");
        };
        hosts.ip(1, &up);
        let watch = Watch::start();
        before = loop {
            let both = flowing_rails(&mut two);
            let carries = (0..2).all(|side| both[side][1].bytes > outage[side][1].bytes);
            if carries && of_all(&both, 2, |rail| rail.up) {
                break both;
            }
            watch.look("a rail to come back");
        };
        // kept when it is back; who hears of it from the other has no code of its own
        let codes = [libc::ETIMEDOUT, libc::ENETDOWN].map(|code| code as u64);
        let silent = before.iter().any(|rails| codes.contains(&rails[1].code));
        assert!(silent, "{before:?}");
        // each outage is told with what was lost; which side sees the silence first is open
        outages += 1;
        let lines = log.text();
        let told = |part: &str| {
            let of = |line: &&str| {
                line.contains(": rail 1 to ")
                    && line.contains("tcp, 10.78.0.1:")
                    && line.contains(part)
            };
            lines.lines().filter(of).count()
        };
        let [lost, back] = ["was lost: ", "carries bytes again"].map(told);
        assert!(lost >= outages && back >= outages, "{lines}");
    }
    flow_closed(&mut two);
}

/// What still flows ends with the connection, and had not ended before.
fn flow_closed(two: &mut Two) {
    two.listening.line.say_text("close");
    for line in two.both() {
        let text = loop {
            let text = line.hear_text();
            if text.starts_with("ended") {
                break text;
            }
        };
        assert!(!text.contains("RailsLost"), "{text}");
    }
}

/// A rail may be silent for a day here: only the kernel can tell that it is of no use.
#[test]
fn rail_whose_interface_loses_its_carrier_is_lost_without_a_wait_for_its_silence() {
    if !may("rail_whose_interface_loses_its_carrier_is_lost_without_a_wait_for_its_silence") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let log = Log::new("carrier");
    let environment = [("CROSSTIE_PEER_TIMEOUT_MS", "86400000")];
    let mut two = Two::logged(&hosts, [0, 1], &environment, Some(log.file()));
    two.exchange(20, 0x5eed_0430);
    two.say("flow on rails");
    let mut before = flowing_rails(&mut two);
    // both ends of a cable; an end that the other side does not see; the way of the side band
    for (rail, interface, ends) in
        [(1, SECOND, &[0, 1][..]), (1, SECOND, &[0][..]), (0, INTERFACE, &[0, 1][..])]
    {
        ends.iter().for_each(|at| hosts.cable_of(*at, interface, false));
        let watch = Watch::start();
        let outage = loop {
            let both = flowing_rails(&mut two);
            if (0..2).all(|side| both[side][rail].failures > before[side][rail].failures) {
                break both;
            }
            watch.look("a rail to be lost");
        };
        // who hears of it from the other first has no code of its own
        let codes: Vec<u64> = ends.iter().map(|side| outage[*side][rail].code).collect();
        assert!(codes.contains(&(libc::ENETDOWN as u64)), "{outage:?}");
        if rail == 0 {
            log.says("the side-band link to ");
        }
        // and messages go on over the other
        let other = 1 - rail;
        let watch = Watch::start();
        while flowing_rails(&mut two)[0][other].bytes == outage[0][other].bytes {
            watch.look("messages on the other rail");
        }
        ends.iter().for_each(|at| hosts.cable_of(*at, interface, true));
        let watch = Watch::start();
        before = loop {
            let both = flowing_rails(&mut two);
            if of_all(&both, 2, |rail| rail.up) {
                break both;
            }
            watch.look("a rail to come back");
        };
    }
    log.says("has no carrier, or is down; 1 other rail goes on");
    flow_closed(&mut two);
}

// ---------------------------------------------------------------- how fast: by hand, optimised

/// Whether speeds are to be measured: with `XTIE_MEASURE=1`, optimised, alone on the machine.
fn measures(test: &str) -> bool {
    let asked = std::env::var("XTIE_MEASURE").as_deref() == Ok("1");
    if !asked {
        eprintln!("SKIP {test}: measures with XTIE_MEASURE=1");
    }
    asked && may(test)
}

/// Seconds of each eighth of a stream of so many messages from host 1 to host 0; `midway` is called
/// when half of them have come.
fn stream(two: &mut Two, count: u64, midway: impl FnOnce()) -> [f64; 8] {
    for line in two.both() {
        line.say_text("stream");
        line.say_number(count);
    }
    let mut midway = Some(midway);
    let eighths = core::array::from_fn(|at| {
        let seconds = two.listening.line.hear_number() as f64 / 1e9;
        if at == 3
            && let Some(act) = midway.take()
        {
            act();
        }
        seconds
    });
    for line in two.both() {
        assert_eq!(line.hear_text(), "done");
    }
    eighths
}

/// Bits per second of all but the first eighth, in which TCP finds out how fast the link is.
fn speed(eighths: &[f64; 8], count: u64) -> f64 {
    (count * 7 / 8 * STREAM.0 as u64 * 8) as f64 / eighths[1..].iter().sum::<f64>()
}

/// A bucket that holds more than one segment of 64 KiB: with a smaller one the kernel cuts each
/// into packets first, and one processor can send no more than 1.2 Gbit/s.
const GIGABIT: &str = "rate 1gbit burst 256k limit 2m";
const TENTH: &str = "rate 100mbit burst 256k limit 2m";
const MESSAGES: u64 = 640;

/// Bits per second of bare sockets over so many of the subnets at once, from host 1 to host 0.
fn bare(hosts: &Hosts, rails: usize, bytes: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for address in &["10.77.0.1", "10.78.0.1"][..rails] {
            let listener = hosts.inside(0, || TcpListener::bind((*address, 0))).unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut out = hosts.inside(1, || TcpStream::connect((*address, port))).unwrap();
            let (mut into, _) = listener.accept().unwrap();
            scope.spawn(move || {
                let part = vec![1; 1 << 20];
                (0..bytes >> 20).for_each(|_| out.write_all(&part).unwrap());
            });
            scope.spawn(move || {
                let mut part = vec![0; 1 << 20];
                while into.read(&mut part).unwrap() > 0 {}
            });
        }
    });
    (rails * bytes * 8) as f64 / start.elapsed().as_secs_f64()
}

#[test]
fn nine_tenths_of_a_gigabit_link_are_used() {
    if !measures("nine_tenths_of_a_gigabit_link_are_used") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    (0..2).for_each(|at| hosts.shape_one(at, INTERFACE, "rate 1gbit burst 64k limit 2m"));
    let mut two = Two::joined(&hosts, &[("CROSSTIE_TCP_RAILS", "1")]);
    let eighths = stream(&mut two, MESSAGES / 2, || ());
    two.end();
    let share = speed(&eighths, MESSAGES / 2) / 1e9;
    // where processors are scarce no program fills the link: then as much as a bare socket
    let bare = bare(&hosts, 1, 128 << 20) / 1e9;
    println!("{share:.3} of the link, a bare socket {bare:.3}; seconds of eighths: {eighths:.3?}");
    assert!(share >= 0.9 || share >= 0.9 * bare, "{share:.3} of the link, bare {bare:.3}");
}

#[test]
fn two_rails_carry_nearly_twice_as_much_as_one() {
    if !measures("two_rails_carry_nearly_twice_as_much_as_one") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    for (rate, count) in [("100mbit", 160), ("1gbit", 640)] {
        let tbf = format!("rate {rate} burst 256k limit 2m");
        for at in 0..2 {
            hosts.shape_one(at, INTERFACE, &tbf);
            hosts.shape_one(at, SECOND, &tbf);
        }
        let bare = [1, 2].map(|rails| bare(&hosts, rails, (count as usize / 2) << 20) / 1e6);
        println!("{rate}: bare sockets {bare:.1?} Mbit/s, {:.3} times one", bare[1] / bare[0]);
        let ours = ["1", "2"].map(|rails| {
            let mut two = Two::joined(&hosts, &[("CROSSTIE_TCP_RAILS", rails)]);
            let eighths = stream(&mut two, count, || ());
            let carried: Vec<u64> =
                self::rails(&mut two)[1].iter().map(|rail| rail.bytes).collect();
            println!("bytes by rail: {carried:?}");
            two.end();
            println!("{rate}, {rails}: eighths {eighths:.3?} s");
            speed(&eighths, count) / 1e6
        });
        println!("{rate}: rails {ours:.1?} Mbit/s, {:.3} times one", ours[1] / ours[0]);
        // where processors are scarce no program fills both links: then as much as bare sockets
        assert!(ours[1] >= 1.8 * ours[0] || ours[1] >= 0.9 * bare[1]);
    }
}

#[test]
fn rail_at_a_tenth_of_the_speed_costs_little_although_nobody_says_which_it_is() {
    if !measures("rail_at_a_tenth_of_the_speed_costs_little_although_nobody_says_which_it_is") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let shape = |fast, slow| {
        for at in 0..2 {
            hosts.shape_one(at, fast, GIGABIT);
            hosts.shape_one(at, slow, TENTH);
        }
    };
    // what TCP itself leaves of a link
    shape(INTERFACE, SECOND);
    let mut two = Two::joined(&hosts, &[("CROSSTIE_TCP_RAILS", "1")]);
    let one = speed(&stream(&mut two, MESSAGES, || ()), MESSAGES);
    two.end();
    let mut two = Two::joined(&hosts, &[]);
    let eighths = stream(&mut two, MESSAGES, || shape(SECOND, INTERFACE));
    let rate = |eighths: &[f64]| {
        (MESSAGES / 8 * eighths.len() as u64 * STREAM.0 as u64 * 8) as f64
            / eighths.iter().sum::<f64>()
    };
    // 80 messages each: from the second eighth of either half on, the speeds are known
    let [before, swap, after] = [rate(&eighths[1..4]), rate(&eighths[4..5]), rate(&eighths[5..])];
    let ideal = 1.1 * one;
    println!(
        "one fast rail {:.3} Gbit/s, ideal {:.3}; eighths {eighths:.3?} s",
        one / 1e9,
        ideal / 1e9
    );
    let share = |rate: f64| rate / ideal;
    let [before, swap, after] = [before, swap, after].map(share);
    println!("of the ideal: {before:.3}, while swapped {swap:.3}, then {after:.3}");
    println!("{:?}", rails(&mut two));
    assert!(before >= 0.95 && after >= 0.95);
    two.end();
}
