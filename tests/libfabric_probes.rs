//! Many peers that count as dead, and of which it is found out whether anybody listens at their
//! addresses: none waits for all others. Time goes by hand, over sockets of libfabric.

mod libfabric_support;
#[path = "common/port.rs"]
mod port;

use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{Completion, DownCause, Op, OpId, OpKind, PeerLife, Provider};
use crosstie::provider::libfabric::{Hello, Libfabric};
use libfabric_support::{NOTHING, OTHER, World, let_library_work};
use port::Port;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// How long an address that does not answer is asked.
const EVERY: Span = Span::millis(500);
/// From one look for its answer to the next.
const LOOK: Span = Span::millis(1);
/// Less than that, and longer than a fence waits that nobody can write behind.
const SHORT: Span = Span::millis(300);
/// Polls that take in whatever there is.
const TAKING: usize = 1000;

/// One that answers nobody any more: the one connection that it has room for is there.
struct Full {
    listener: TcpListener,
    _first: TcpStream,
}

impl Full {
    fn at(ip: IpAddr) -> Full {
        let listener = TcpListener::bind((ip, 0)).expect("a port");
        // SAFETY: a number; a socket that listens is told another length of its queue.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let first = TcpStream::connect(listener.local_addr().unwrap()).expect("room for one");
        Full { listener, _first: first }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }
}

/// A peer at a port of that host, which counts as dead, and is fenced.
fn dead(rail: &mut Libfabric, index: u32, other: &Hello, port: u16, now: Instant) {
    let peer = PeerIndex(index);
    rail.peer_prepare(peer, 0x1000 + index).unwrap();
    let mut hello = *other;
    hello.name[2..4].copy_from_slice(&port.to_be_bytes());
    rail.peer_connect(peer, &hello).unwrap();
    rail.peer_fail(peer, DownCause::Severed);
    let kind = OpKind::Fence { generation: RailGeneration(1) };
    assert!(rail.post(&Op { id: OpId(index.into()), peer, kind }, now).is_ok());
}

/// Whether the fence of a peer that nobody listens for holds when others, before it, do not answer,
/// as many times [`EVERY`] after it was posted as there is to wait for them.
fn is_fenced_beside(hanging: u32, rounds: u32) -> Option<bool> {
    let World { rails: [mut rail, mut other], .. } = World::of_sockets(hanging + 2)?;
    let hello = other.peer_prepare(OTHER, 0x77).unwrap();
    let ip = rail.ends(&hello).expect("addresses of sockets")[1].ip();
    let full = Full::at(ip);
    let IpAddr::V4(ipv4) = ip else { panic!("{ip}") };
    let refusing = Port::held(ipv4);
    let mut now = Instant(1 << 40);
    rail.poll(&mut [NOTHING; 16], Bytes::kib(64), now);
    // peer 0 lives: the endpoint is not closed for want of any
    for index in 1..=hanging {
        dead(&mut rail, index, &hello, full.port(), now);
    }
    let last = hanging + 1;
    dead(&mut rail, last, &hello, refusing.number(), now);
    let mut fenced = Vec::new();
    let mut poll = |now: Instant| {
        for n in 0..TAKING {
            // what was begun before is looked at in the second half
            let now = if n < TAKING / 2 { now } else { now.after(LOOK) };
            let mut out = [NOTHING; 16];
            let count = rail.poll(&mut out, Bytes::kib(64), now);
            fenced.extend(out[..count].iter().filter_map(|it| match it {
                Completion::Fenced { peer, .. } => Some(*peer),
                _ => None,
            }));
            let_library_work();
        }
    };
    poll(now);
    for _ in 0..rounds {
        now = now.after(EVERY);
        poll(now);
    }
    poll(now.after(SHORT));
    assert!(fenced.iter().all(|peer| peer.0 == last), "nothing is known of the others");
    Some(fenced.len() == 1)
}

/// Each waited for half a second for each before it.
#[test]
fn dead_peers_do_not_wait_for_each_other() {
    for (hanging, rounds) in [(6, 0), (20, 2)] {
        let is_fenced = is_fenced_beside(hanging, rounds);
        assert_ne!(is_fenced, Some(false), "behind {hanging} that do not answer");
    }
}
