//! Connections whose side band and rail over TCP are lost while a rail of libfabric carries: the
//! peer's program is asked over that, and is not taken for dead. Over the strict fabric, which is
//! no part of the network that is taken away. Each test has that network, and its endpoints, in a
//! thread of its own.
#![allow(dead_code)] // of the shared parts

#[path = "common/network.rs"]
mod common_network;
mod host_support;
mod libfabric_support;

use common_network::{listeners_end, network, own_network, sockets_end};
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{RequestError, RequestId};
use host_support::flow::Flow;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Watch, small};
use libfabric_support::{Layout, strict};
use std::io::Write;
use std::time::{Duration, Instant};

/// How long a peer may be silent.
const SILENT_MS: u32 = 1000;
/// How long TCP is away: much longer than that.
const AWAY: Duration = Duration::from_millis(2500);

/// What there is while TCP is away.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Away {
    /// Messages.
    Busy,
    /// No message, and programs that call the library.
    Idle,
    /// Nobody who calls the library.
    Alone,
    /// Messages, and all sockets ended when it began.
    Reset,
}

/// Two endpoints in a network of their own, with a rail of libfabric behind rail 0, which is TCP.
fn pair(provider: &str) -> Option<Pair> {
    let alone = alone();
    let library = strict(Layout::One)?;
    if let Err(error) = own_network() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no network of our own: {error}");
        return None;
    }
    let silent_ms = SILENT_MS.to_string();
    for (name, value) in [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_OFI_LIBRARY", library.to_str().unwrap()),
        ("CROSSTIE_OFI_PROVIDER", provider),
        ("CROSSTIE_OFI_DOMAINS", "strict0"),
        ("CROSSTIE_PEER_TIMEOUT_MS", &silent_ms),
    ] {
        // SAFETY: whoever reads the environment does it through the same lock of the standard
        // library; tests of this binary take turns.
        unsafe { std::env::set_var(name, value) };
    }
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = 2;
    let (a, b) = (Node::open(&options), Node::open(&options));
    Some(Pair::of(alone, a, b, 2))
}

/// Messages that flow both ways.
struct Flows([Flow; 2]);

impl Flows {
    fn new(pair: &Pair) -> Flows {
        let of = |node, connection| Flow::new(node, connection, Place::Private);
        Flows([of(&pair.a, pair.to_b), of(&pair.b, pair.to_a)])
    }

    fn step(&mut self, pair: &mut Pair) {
        let [near, far] = &mut self.0;
        near.step(&mut pair.a);
        far.step(&mut pair.b);
        for flow in &self.0 {
            assert!(!flow.failed(), "{:?} {:?}", flow.errors, flow.refused);
        }
    }

    /// Lets them flow until that many more have come, and something is so.
    fn until(&mut self, pair: &mut Pair, what: &str, more: u64, over: impl Fn(&Pair) -> bool) {
        let watch = Watch::start();
        let received = |flows: &Flows| flows.0.iter().map(|flow| flow.received).min();
        let goal = received(self).unwrap_or(0) + more;
        while received(self).unwrap_or(0) < goal || !over(pair) {
            self.step(pair);
            watch.look(what);
        }
    }
}

/// In a thread of its own, which has its own network.
fn apart(story: impl FnOnce() + Send + 'static) {
    std::thread::spawn(story).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Messages go on while TCP is away, and rail 0 comes back when TCP does.
fn lose_tcp(provider: &str, away: Away) {
    let Some(mut pair) = pair(provider) else { return };
    let mut flows = Flows::new(&pair);
    flows.until(&mut pair, "bytes on the rail", 16, |pair| {
        pair.views(1).iter().all(|view| view.stats.bytes > 1 << 22)
    });
    network(false);
    if away == Away::Reset {
        sockets_end();
    }
    let since = Instant::now();
    while since.elapsed() < AWAY {
        match away {
            Away::Busy | Away::Reset => flows.step(&mut pair),
            Away::Idle => pair.progress(),
            Away::Alone => std::thread::yield_now(),
        }
    }
    flows.until(&mut pair, "messages", 32, |_| true);
    network(true);
    flows.until(&mut pair, "rail 0 to come back", 1, |pair| {
        pair.is_up(0) && pair.views(0).iter().all(|view| view.generation > 1)
    });
    assert!(pair.views(1).iter().all(|view| view.stats.failures == 0), "the rail stood");
    flows.until(&mut pair, "messages", 32, |_| true);
    drop(flows);
    pair.close();
}

/// It died with its side band, although its rail carried messages.
#[test]
fn connection_whose_rail_carries_messages_outlives_tcp() {
    apart(|| lose_tcp("strict", Away::Busy));
}

#[test]
fn connection_whose_endpoints_are_its_own_outlives_tcp() {
    apart(|| lose_tcp("strict-msg", Away::Busy));
}

/// Nothing is sent that the peer could answer, unless it is asked something.
#[test]
fn connection_whose_rail_lives_outlives_tcp_without_messages() {
    apart(|| lose_tcp("strict", Away::Idle));
}

/// As between two collectives: there is nobody whom the side band could ask.
#[test]
fn connection_whose_rail_lives_outlives_tcp_while_nobody_calls_the_library() {
    apart(|| lose_tcp("strict", Away::Alone));
}

#[test]
fn connection_whose_rail_lives_outlives_the_end_of_all_its_sockets() {
    apart(|| lose_tcp("strict", Away::Reset));
}

/// The peer was dead when the first dial was refused.
#[test]
fn connection_whose_rail_lives_outlives_dials_that_are_refused() {
    apart(|| {
        let Some(mut pair) = pair("strict") else { return };
        let mut flows = Flows::new(&pair);
        flows.until(&mut pair, "bytes on the rail", 16, |pair| {
            pair.views(1).iter().all(|view| view.stats.bytes > 1 << 22)
        });
        listeners_end();
        sockets_end();
        let since = Instant::now();
        while since.elapsed() < AWAY {
            flows.step(&mut pair);
        }
        flows.until(&mut pair, "messages", 32, |_| true);
        drop(flows);
        pair.close();
    });
}

/// A receive of the first endpoint, whose end is waited for while the other's program does nothing.
fn receive_of_lonely(pair: &mut Pair, lost: impl FnOnce()) -> Result<(), RequestError> {
    let Pair { a, to_b, .. } = pair;
    let into = Memory::new(a, Place::Private, 64);
    let receive: RequestId = a.irecv(*to_b, &[into.incoming(0, 64, 1)]).expect("a receive");
    lost();
    let watch = Watch::start();
    let outcome = loop {
        if let Some(outcome) = a.test(receive).expect("a receive") {
            break outcome;
        }
        watch.look("the peer's end");
    };
    into.release(a);
    outcome.result
}

/// Its program is nowhere to be heard: as one that has died, whose library still has its endpoint.
#[test]
fn peer_whose_sockets_have_ended_and_whose_program_does_not_answer_is_given_up() {
    apart(|| {
        let Some(mut pair) = pair("strict") else { return };
        let ended = receive_of_lonely(&mut pair, || {
            network(false);
            sockets_end();
        });
        assert!(matches!(ended, Err(RequestError::PeerDied)), "{ended:?}");
        network(true);
        pair.close();
    });
}
