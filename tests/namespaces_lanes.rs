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
static LOST: AtomicUsize = AtomicUsize::new(0);
static BACK: AtomicUsize = AtomicUsize::new(0);

fn note(note: Note) {
    let count = |at: &AtomicUsize, of: bool| at.fetch_add(usize::from(of), Ordering::Relaxed);
    count(&MISSED, matches!(note, Note::LaneMissed { lane: 1, .. }));
    count(&LOST, matches!(note, Note::LinkLost { .. }));
    count(&BACK, matches!(note, Note::LinkBack { .. }));
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
    any_lane(node, of, 1, least)
}

fn any_lane(node: &mut Node, of: Handle, wanted: u8, least: u32) -> Option<(u32, i32)> {
    node.drain();
    node.seen.iter().rev().find_map(|event| match *event {
        BandEvent::Lane { index, lane, lane_generation, streams, .. }
            if (index, lane) == (of.index, wanted) && lane_generation >= least =>
        {
            Some((lane_generation, streams[0]))
        }
        _ => None,
    })
}

/// Two hosts with two subnets, an endpoint on each, and a connection of two lanes.
struct Pair {
    hosts: Hosts,
    a: Node,
    b: Node,
    here: Handle,
    there: Handle,
}

impl Pair {
    fn new() -> Pair {
        let hosts = Hosts::bridged(2);
        for at in 0..2 {
            hosts.ip(at, &format!("addr add 10.78.0.{}/24 dev {INTERFACE}\n", at + 1));
        }
        let (a, b) = (node(&hosts, 0), node(&hosts, 1));
        let (listener, handle) = hosts.inside(1, || b.band.listen().unwrap());
        let handle = handle.encode();
        let here = hosts.inside(0, || {
            let pending = a.band.connect_begin(&handle).unwrap();
            until("connect", || a.band.connect_poll(pending).unwrap())
        });
        let there = hosts.inside(1, || until("accept", || b.band.accept(listener).unwrap()));
        Pair { hosts, a, b, here, there }
    }
}

#[test]
fn a_link_whose_subnet_goes_away_comes_back_over_another_unless_the_peer_is_gone() {
    if !may("a_link_whose_subnet_goes_away_comes_back_over_another_unless_the_peer_is_gone") {
        return;
    }
    let Pair { hosts, mut a, mut b, here, there } = Pair::new();
    let up = until("the lane", || lane(&mut a, here, 1));
    let other = until("the lane there", || lane(&mut b, there, up.0));
    hosts.ip(1, &format!("addr del 10.77.0.2/24 dev {INTERFACE}\n"));
    until("the loss", || (LOST.load(Ordering::Relaxed) >= 1).then_some(()));
    carry(up.1, other.1);
    until("the link", || (BACK.load(Ordering::Relaxed) >= 1).then_some(()));
    carry(other.1, up.1);
    assert_eq!((a.gone(here), b.gone(there)), (None, None));
    // its own lane comes back with its subnet
    hosts.inside(1, || b.band.lane_wanted(there, 0).unwrap());
    hosts.inside(0, || a.band.lane_wanted(here, 0).unwrap());
    hosts.ip(1, &format!("addr add 10.77.0.2/24 dev {INTERFACE}\n"));
    let zero = until("the first lane", || any_lane(&mut a, here, 0, 2));
    let other = until("it there", || any_lane(&mut b, there, 0, zero.0));
    carry(zero.1, other.1);
    // the subnet of the link goes, and in the outage the peer: its other address says so
    hosts.ip(1, &format!("addr del 10.78.0.2/24 dev {INTERFACE}\n"));
    drop(b);
    assert_eq!(until("gone", || a.gone(here)), DownCause::Severed);
    a.band.connection_close(here).unwrap();
    until("a free", || a.all_free());
}

#[test]
fn a_lane_whose_subnet_goes_away_comes_back_with_it() {
    if !may("a_lane_whose_subnet_goes_away_comes_back_with_it") {
        return;
    }
    let Pair { hosts, mut a, mut b, here, there } = Pair::new();
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
                matches!(event, BandEvent::LaneGone { lane: 1, cause: DownCause::Silent, .. })
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
