//! Lanes of a connection between hosts, which are network namespaces of this machine: each has a
//! subnet of its own, one of which comes and goes.

#![allow(dead_code)] // of the shared parts

mod connect_support;
mod host_support;
mod namespace_support;

use connect_support::{Limits, Node, carry, until};
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::connect::{BandEvent, Note};
use crosstie::fabric::completion::DownCause;
use namespace_support::{Hosts, INTERFACE, may};
use std::sync::atomic::{AtomicUsize, Ordering};

static MISSED: AtomicUsize = AtomicUsize::new(0);

fn note(note: Note) {
    MISSED.fetch_add(usize::from(matches!(note, Note::LaneMissed { .. })), Ordering::Relaxed);
}

/// An endpoint at both addresses of a host. Its thread makes its sockets there.
fn node(hosts: &Hosts, at: usize) -> Node {
    let ips = [77, 78].map(|net| ([10, net, 0, at as u8 + 1].into(), 24));
    let peer_deadline = Span::millis(800);
    let limits = Limits { addresses: ips.into(), lanes: 8, peer_deadline, note, ..Limits::tcp() };
    hosts.inside(at, || Node::new(&limits))
}

/// The second lane's generation and stream, if it is `least` or later.
fn lane(node: &mut Node, of: Handle, least: u32) -> Option<(u32, i32)> {
    node.drain();
    node.seen.iter().rev().find_map(|event| match *event {
        BandEvent::Lane { index, lane: 1, lane_generation, streams, .. }
            if index == of.index && lane_generation >= least =>
        {
            Some((lane_generation, streams[0]))
        }
        _ => None,
    })
}

#[test]
fn a_lane_whose_subnet_goes_away_comes_back_with_it() {
    if !may("a_lane_whose_subnet_goes_away_comes_back_with_it") {
        return;
    }
    let hosts = Hosts::bridged(2);
    for at in 0..2 {
        hosts.ip(at, &format!("addr add 10.78.0.{}/24 dev {INTERFACE}\n", at + 1));
    }
    let (mut a, mut b) = (node(&hosts, 0), node(&hosts, 1));
    let (listener, handle) = hosts.inside(1, || b.band.listen().unwrap());
    let handle = handle.encode();
    let here = hosts.inside(0, || {
        let pending = a.band.connect_begin(&handle).unwrap();
        until("connect", || a.band.connect_poll(pending).unwrap())
    });
    let there = hosts.inside(1, || until("accept", || b.band.accept(listener).unwrap()));
    let first = (a.established(here).unwrap(), b.established(there).unwrap());
    assert_eq!((first.0.lanes, first.1.lanes), (2, 2));
    let mut up = until("the lane", || lane(&mut a, here, 1));
    for outage in 1..3 {
        let other = until("the lane there", || lane(&mut b, there, up.0));
        assert_eq!(other.0, up.0);
        carry(up.1, other.1);
        hosts.ip(1, &format!("addr del 10.78.0.2/24 dev {INTERFACE}\n"));
        // SAFETY: one readable byte.
        assert_eq!(unsafe { libc::send(up.1, [7u8].as_ptr().cast(), 1, 0) }, 1);
        until("it to be seen", || {
            a.drain();
            let of = |event: &&BandEvent| {
                matches!(event, BandEvent::LaneGone { lane: 1, cause: DownCause::Failed, .. })
            };
            (a.seen.iter().filter(of).count() == outage).then_some(())
        });
        carry(first.0.streams[0], first.1.streams[0]);
        hosts.inside(1, || b.band.lane_wanted(there, 1).unwrap());
        hosts.inside(0, || a.band.lane_wanted(here, 1).unwrap());
        until("it to be said", || (MISSED.load(Ordering::Relaxed) == outage).then_some(()));
        hosts.ip(1, &format!("addr add 10.78.0.2/24 dev {INTERFACE}\n"));
        let next = up.0 + 1;
        up = until("the lane", || lane(&mut a, here, next));
    }
    assert_eq!((a.gone(here), b.gone(there)), (None, None));
    a.band.connection_close(here).unwrap();
    b.band.connection_close(there).unwrap();
    until("a free", || a.all_free());
    until("b free", || b.all_free());
}
