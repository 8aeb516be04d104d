//! Hosts that are reached by their ports alone, because TCP's network is away or its sockets have
//! ended: whole endpoints over ports of a false libibverbs (`tests/verbs_fake`), each story in a
//! process of its own.
#![allow(dead_code)] // of the shared parts

#[path = "common/network.rs"]
mod common_network;
mod host_support;
#[path = "verbs_support/hosts.rs"]
mod hosts;
mod verbs_support;

use common_network::{network, owe, own_network, sockets_end};
use host_support::pair::Pair;
use host_support::{Memory, Place, Watch};
use hosts::{Stream, pair, told};
use std::time::{Duration, Instant};
use verbs_support::fake::story_told;

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "lose tcp busy" => lose_tcp(Away::Busy),
        "lose tcp idle" => lose_tcp(Away::Idle),
        "lose tcp alone" => lose_tcp(Away::Alone),
        "lose tcp late" => lose_tcp(Away::Late),
        "lose tcp reset" => lose_tcp(Away::Reset),
        "lose all" => lose_all(),
        "lose program" => lose_program(),
        _ => panic!("no story is called {story}"),
    }
}

/// How long TCP is away: longer than a peer may be silent.
const AWAY: Duration = Duration::from_secs(6);

/// What there is while TCP is away.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Away {
    /// Messages.
    Busy,
    /// No message, and programs that call the library.
    Idle,
    /// Nobody who calls the library.
    Alone,
    /// No message, and a port that loses a packet, which it sends again in time.
    Late,
    /// Messages, and all sockets ended when it began.
    Reset,
}

/// Two endpoints of which a peer may be silent for so long, with control on their port.
fn pair_on_port(silent_ms: u32) -> Pair {
    own_network().expect("a network of its own");
    host_support::set("CROSSTIE_PEER_TIMEOUT_MS", silent_ms.to_string());
    let mut pair = pair();
    let mut stream = Stream::new(&pair, 64);
    let watch = Watch::start();
    while !pair.views(1).iter().all(|view| view.control) {
        stream.burst(&mut pair, 1);
        watch.look("control on the port");
    }
    stream.release(&pair);
    pair
}

/// How often the side bands of this process have slept so far.
fn looks_of_bands() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let of_band = texts.filter(|text| text.starts_with("Name:\tcrosstie-band\n"));
    let slept = |text: String| {
        let (_, count) = text.split_once("\nvoluntary_ctxt_switches:\t")?;
        count.lines().next()?.parse::<u64>().ok()
    };
    of_band.filter_map(slept).sum()
}

/// Messages go on while TCP is away, in which rail 0 is lost, and it comes back when TCP does.
fn lose_tcp(away: Away) {
    let mut pair = pair_on_port(if away == Away::Late { 4000 } else { 1000 });
    let mut stream = Stream::new(&pair, 4096);
    network(false);
    // a rail on which nothing is under way is not lost by that
    owe(pair.a.lane_socket(pair.to_b, 0).expect("a socket of rail 0"));
    if away == Away::Reset {
        sockets_end();
    }
    let (since, before) = (Instant::now(), looks_of_bands());
    while since.elapsed() < AWAY {
        let is_late = (3500..5500).contains(&since.elapsed().as_millis());
        let fake = if away == Away::Late && is_late { "late" } else { "" };
        // SAFETY: as in `pair`.
        unsafe { std::env::set_var("FAKE", fake) };
        match away {
            Away::Busy | Away::Reset => stream.burst(&mut pair, 4),
            Away::Idle | Away::Late => pair.progress(),
            Away::Alone => std::thread::yield_now(),
        }
    }
    let looks = looks_of_bands() - before;
    assert!(looks < 1000, "{looks} looks of two side bands");
    stream.burst(&mut pair, 64);
    println!("messages went on");
    let watch = Watch::start();
    while !pair.views(0).iter().all(|view| view.stats.failures > 0) {
        stream.burst(&mut pair, 1);
        watch.look("rail 0 to be lost");
    }
    network(true);
    let watch = Watch::start();
    while !(pair.is_up(0) && pair.views(0).iter().all(|view| view.generation > 1)) {
        stream.burst(&mut pair, 1);
        watch.look("rail 0 to come back");
    }
    assert!(pair.views(1).iter().all(|view| view.stats.failures == 0), "the port stood");
    // its next queue pairs are told of over the link
    let (to_b, before) = (pair.to_b, pair.views(1).map(|view| view.generation));
    pair.a.lane_break(to_b, 1);
    let is_new = |pair: &Pair| {
        pair.is_up(1) && (0..2).all(|side| pair.views(1)[side].generation > before[side])
    };
    while !is_new(&pair) {
        stream.burst(&mut pair, 1);
        watch.look("the link to come back");
    }
    stream.burst(&mut pair, 64);
    stream.release(&pair);
    pair.close();
    println!("closed");
}

fn outlives_tcp(story: &str) {
    let Some(said) = told("Ethernet", story, "") else { return };
    for words in ["messages went on", "closed", "the side-band link to ", " is back, after "] {
        assert!(said.contains(words), "no {words}: {said}");
    }
}

/// It died with its side band, although its queue pairs carried messages.
#[test]
fn connection_whose_port_carries_messages_outlives_tcp() {
    outlives_tcp("lose tcp busy");
}

/// Nothing is sent that a device could answer, unless it is asked to.
#[test]
fn connection_whose_port_lives_outlives_tcp_without_messages() {
    outlives_tcp("lose tcp idle");
}

/// As between two collectives: there is nobody whom the side band could ask.
#[test]
fn connection_whose_port_lives_outlives_tcp_while_nobody_calls_the_library() {
    outlives_tcp("lose tcp alone");
}

/// A device sends again after seconds; one packet that it lost at that moment was the peer's death.
#[test]
fn connection_whose_port_answers_late_outlives_tcp() {
    outlives_tcp("lose tcp late");
}

/// The peer was dead after 100 ms.
#[test]
fn connection_whose_port_lives_outlives_the_end_of_all_its_sockets() {
    outlives_tcp("lose tcp reset");
}

/// TCP and the port end together: the peer is dead.
fn lose_all() {
    let mut pair = pair_on_port(1000);
    let Pair { a, b, to_b, to_a, .. } = &mut pair;
    let into = Memory::new(a, Place::Private, 64);
    let receive = a.irecv(*to_b, &[into.incoming(0, 64, 1)]).expect("a receive");
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", "silent") };
    network(false);
    sockets_end();
    let watch = Watch::start();
    let outcome = loop {
        b.progress();
        if let Some(outcome) = a.test(receive).expect("a receive") {
            break outcome;
        }
        watch.look("the peer's death");
    };
    println!("the receive ended: {:?}", outcome.result);
    into.release(a);
    let _ = to_a;
    std::process::exit(0); // who is dead need not be waited for
}

/// All sockets end, and the peer's program does nothing more: it has died, and a child that it had
/// forked holds its queue pairs, for which the device answers.
fn lose_program() {
    let mut pair = pair_on_port(1000);
    let Pair { a, to_b, .. } = &mut pair;
    let into = Memory::new(a, Place::Private, 64);
    let receive = a.irecv(*to_b, &[into.incoming(0, 64, 1)]).expect("a receive");
    network(false);
    sockets_end();
    let outcome = a.wait(receive);
    println!("the receive ended: {:?}", outcome.result);
    into.release(a);
    std::process::exit(0); // who is dead need not be waited for
}

/// It was waited for as long as the child lived.
#[test]
fn peer_whose_sockets_have_ended_and_whose_device_alone_answers_is_dead() {
    let Some(said) = told("Ethernet", "lose program", "") else { return };
    assert!(said.contains("the receive ended: Err(PeerDied"), "{said}");
}

#[test]
fn peer_of_whom_neither_tcp_nor_a_port_hears_is_dead() {
    let Some(said) = told("Ethernet", "lose all", "") else { return };
    assert!(said.contains("the receive ended: Err(PeerDied"), "{said}");
}
