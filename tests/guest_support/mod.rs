//! Whole endpoints on the devices of this host, and what can be done to the wires between those of
//! the guest of `tests/vm`: links go down, packets are lost, addresses change.
#![allow(dead_code)]

#[allow(clippy::duplicate_mod)] // programs that have `verbs_support`, too
#[path = "../common/verbs_pair.rs"]
pub mod verbs_pair;

use crate::host_support::flow::Flow;
use crate::host_support::pair::{Pair, alone};
use crate::host_support::{Node, Watch, small};
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::rail::LaneState;
use std::io::Write;
use std::process::{Command, Stdio};
use verbs_pair::devices;

/// Devices of two ends of wires, rail by rail; the same twice where there are no wires.
pub fn ends(rails: usize) -> Option<[String; 2]> {
    let names = match devices() {
        Ok(names) => names,
        Err(why) => {
            println!("SKIP: {why}");
            return None;
        }
    };
    let wired = ["rxe0", "rxe1", "rxe2", "rxe3"].iter().all(|end| names.iter().any(|n| n == end));
    if wired {
        let of = |from: usize| {
            (from..from + rails).map(|at| format!("rxe{at}")).collect::<Vec<_>>().join(",")
        };
        return Some([format!("={}", of(0)), format!("={}", of(2))]);
    }
    (names.len() >= rails).then(|| {
        let all = format!("={}", names[..rails].join(","));
        [all.clone(), all]
    })
}

/// The same, where links can be taken down and packets lost: on the wires of the guest.
pub fn wires(rails: usize) -> Option<[String; 2]> {
    ends(rails).filter(has_wires)
}

/// An endpoint of so many rails at most, with these devices and so many queue pairs on each.
pub fn open(rails_max: u32, devices: &str, queue_pairs: u8) -> Node {
    let queue_pairs = queue_pairs.to_string();
    open_in(rails_max, devices, &[("CROSSTIE_IB_QPS_PER_CONNECTION", &queue_pairs)])
}

/// An endpoint with these devices, and with settings that end with the test.
pub fn open_in(rails_max: u32, devices: &str, more: &[(&str, &str)]) -> Node {
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = rails_max;
    open_with(&options, devices, more)
}

/// The same of other options.
pub fn open_with(options: &Options, devices: &str, more: &[(&str, &str)]) -> Node {
    let usual = [
        ("CROSSTIE_RAILS", "verbs"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_IB_HCA", devices),
        // an eighth of a second: emulated devices are slow, and lose packets when they are busy
        ("CROSSTIE_IB_TIMEOUT", "15"),
        ("CROSSTIE_PEER_TIMEOUT_MS", "10000"),
        ("CROSSTIE_LOG", "info"),
    ];
    for (name, value) in usual.iter().chain(more) {
        crate::host_support::set(name, value);
    }
    let node = Node::open(options);
    for (name, _) in more {
        crate::host_support::unset(name);
    }
    node
}

/// Two endpoints with so many verbs rails behind rail 0, which is TCP.
pub fn pair(rails: u8) -> Option<Pair> {
    pair_of(rails, 1)
}

/// The same on wires.
pub fn wired_pair(rails: u8) -> Option<Pair> {
    wires(rails.into())?;
    pair(rails)
}

/// Two endpoints with so many ports, and so many queue pairs on each.
pub fn pair_of(ports: u8, queue_pairs: u8) -> Option<Pair> {
    let ends = ends(ports.into())?;
    let count = queue_pairs.to_string();
    let settings = [("CROSSTIE_IB_QPS_PER_CONNECTION", count.as_str())];
    Some(pair_in(&ends, ports * queue_pairs, [&settings, &settings]))
}

/// Two endpoints on two ends of wires, with so many verbs rails, and settings of each.
pub fn pair_in(ends: &[String; 2], rails: u8, settings: [&[(&str, &str)]; 2]) -> Pair {
    let alone = alone();
    println!("over {} and {}", ends[0], ends[1]);
    let rails_max = (u32::from(rails) + 1).next_power_of_two();
    let [a, b] = [0, 1].map(|end: usize| open_in(rails_max, &ends[end], settings[end]));
    Pair::of(alone, a, b, rails + 1)
}

/// Whether links can be taken down and packets lost: on the wires of the guest.
fn has_wires(ends: &[String; 2]) -> bool {
    let wires = ends[0] != ends[1];
    if !wires {
        println!("SKIP: no wires between devices");
    }
    wires
}

pub fn run(program: &str, words: &str) {
    let done = Command::new(program).args(words.split(' ')).status();
    assert!(done.expect(program).success(), "{program} {words}");
}

/// What is said of a link's queue behind some words.
fn queue_word(link: &str, behind: &str) -> String {
    let said = Command::new("tc").args(["-s", "qdisc", "show", "dev", link]).output().expect("tc");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.split(behind).nth(1).expect(behind).into()
}

/// Packets that a link was made to lose.
pub fn dropped(link: &str) -> u64 {
    let behind = queue_word(link, "(dropped ");
    behind.split(',').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Packets that a link holds back.
pub fn queued(link: &str) -> u64 {
    let behind = queue_word(link, "backlog ");
    let packets = behind.split(' ').nth(1).and_then(|word| word.strip_suffix('p'));
    packets.and_then(|number| number.parse().ok()).expect("a number")
}

/// What a device has counted since it is there.
pub fn counted(device: &str, what: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{what}");
    let text = std::fs::read_to_string(path).expect("a counter");
    text.trim().parse().expect("a number")
}

/// The link below a verbs rail goes down, at our end of the wire; its IPv6 addresses go with it.
pub fn link_down(rail: usize) {
    run("ip", &format!("link set rail{rail} down"));
}

/// The link below a verbs rail goes down, and the rail is given up, with a stripe of the first
/// side's on its way: it was posted while the link lost everything.
pub fn link_down_with_stripes(pair: &mut Pair, flows: &mut [Flow; 2], rail: usize) {
    let (link, lane) = (format!("rail{rail}"), rail as u8 + 1);
    let watch = Watch::start();
    loop {
        let before = pair.views(lane)[0];
        let has_stripe = |pair: &Pair| pair.views(lane)[0].stats.stripes > before.stats.stripes;
        run("tc", &format!("qdisc add dev {link} root netem loss 100%"));
        pair.flow_until(flows, "a stripe, or the rail to be given up", |pair, _| {
            has_stripe(pair) || is_given_up(pair, lane)
        });
        link_down(rail);
        run("tc", &format!("qdisc del dev {link} root"));
        flow_until_given_up(pair, flows, lane);
        if has_stripe(pair) {
            return;
        }
        link_up(rail);
        pair.flow_until_back(flows, lane, before.generation);
        watch.look("a stripe that is lost");
    }
}

/// It comes up again, with its address of IPv6 and the guest's own routes over it.
pub fn link_up(rail: usize) {
    let table = 100 + 2 * rail;
    let mut lines = vec![
        format!("link set rail{rail} up"),
        format!("addr replace fd77:0:0:{rail}::1/64 dev rail{rail}"),
    ];
    for subnet in [format!("10.77.{rail}."), format!("fd77:0:0:{rail}::")] {
        let way = format!("{subnet}2 dev rail{rail} src {subnet}1 table {table}");
        lines.push(format!("route replace {way}"));
    }
    ip_all(&lines);
}

/// Several commands of `ip` at once: a process takes long in the guest.
pub fn ip_all(lines: &[String]) {
    let mut ip =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("ip");
    let mut input = ip.stdin.take().expect("a pipe");
    input.write_all(lines.join("\n").as_bytes()).expect("it reads");
    drop(input);
    assert!(ip.wait().expect("its end").success(), "{lines:?}");
}

/// Both sides have given a rail up.
pub fn is_given_up(pair: &Pair, lane: u8) -> bool {
    pair.views(lane).iter().all(|view| view.state != LaneState::Up)
}

/// Lets messages flow until both sides have given a rail up.
pub fn flow_until_given_up(pair: &mut Pair, flows: &mut [Flow; 2], lane: u8) {
    pair.flow_until(flows, "the rail to be given up", |pair, _| is_given_up(pair, lane));
}

/// The first rail has this address, and the guest's own routes between it and the far end.
pub fn address_add(last: u8) {
    let ours = format!("10.77.0.{last}");
    run("ip", &format!("addr add {ours}/24 dev rail0"));
    run("ip", &format!("route replace 10.77.0.2 dev rail0 src {ours} table 100"));
    run("ip", &format!("route replace {ours} dev far0 src 10.77.0.2 table 101"));
    if last != 1 {
        run("ip", &format!("rule add pref 10 iif lo from {ours} to 10.77.0.2 lookup 100"));
        run("ip", &format!("rule add pref 10 iif lo from 10.77.0.2 to {ours} lookup 101"));
    }
}

pub fn address_take(last: u8) {
    run("ip", &format!("addr del 10.77.0.{last}/24 dev rail0"));
}

/// The kernel knows the way to both ends of the first rail, whatever is lost on it; or asks again.
pub fn neighbours_stay(stay: bool) {
    for (address, from, to) in [("10.77.0.2", "rail0", "far0"), ("10.77.0.1", "far0", "rail0")] {
        let path = format!("/sys/class/net/{to}/address");
        let mac = std::fs::read_to_string(path).expect("an interface");
        match stay {
            true => run(
                "ip",
                &format!("neigh replace {address} lladdr {} dev {from} nud permanent", mac.trim()),
            ),
            false => run("ip", &format!("neigh del {address} dev {from}")),
        }
    }
}
