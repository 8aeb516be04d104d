//! Links over TCP whose path dies while connections have other lanes: they are lost, and come back.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::*;
use raw::{RawTcp, hello_to};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything that bands of this process have said.
static SAID: Mutex<Vec<Note>> = Mutex::new(Vec::new());
/// One test at a time: cutting looks through all sockets of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    SAID.lock().unwrap().clear();
    guard
}

fn listen_to_notes(note: Note) {
    SAID.lock().unwrap().push(note);
}

fn said(of: impl Fn(&Note) -> bool) -> usize {
    SAID.lock().unwrap().iter().filter(|note| of(note)).count()
}

/// What was said of the endpoint of a handle: that it was lost, and that it is back.
fn of_link(handle: &ListenHandle) -> (usize, usize) {
    let id = handle.endpoint_id;
    (
        said(|note| matches!(note, Note::LinkLost { peer } if peer.endpoint_id == id)),
        said(|note| matches!(note, Note::LinkBack { peer, .. } if peer.endpoint_id == id)),
    )
}

/// Address `n` of this host in a subnet of its own.
fn ip(subnet: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, subnet, n)
}

/// An endpoint at so many addresses.
fn at(subnet: u8, addresses: u8) -> Limits {
    let addresses = (1..=addresses).map(|n| (ip(subnet, n).into(), 24)).collect();
    let peer_deadline = Span::millis(800);
    Limits { lanes: 8, addresses, peer_deadline, note: listen_to_notes, ..Limits::tcp() }
}

/// One end's address of a socket: ours, or with `peer` the other one.
fn name(socket: i32, peer: bool) -> Option<SocketAddrV4> {
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in>() as u32;
    let at = (&raw mut address).cast();
    let get = if peer { libc::getpeername } else { libc::getsockname };
    // SAFETY: writable for its length.
    let rc = unsafe { get(socket, at, &mut length) };
    if rc != 0 || i32::from(address.sin_family) != libc::AF_INET {
        return None;
    }
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)))
}

/// Whether a socket listens.
fn listens(socket: i32) -> bool {
    let (mut answer, mut length) = (0i32, 4);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    // SAFETY: an integer, writable for its length.
    let rc =
        unsafe { libc::getsockopt(socket, level, option, (&raw mut answer).cast(), &mut length) };
    rc == 0 && answer != 0
}

/// Whether a socket waits to be answered at an address (`TCP_SYN_SENT`).
fn is_dialled(at: Ipv4Addr, port: u16) -> bool {
    let remote = format!("{:08X}:{port:04X}", u32::from_ne_bytes(at.octets()));
    let all = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let waits = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        words.next() == Some(&remote[..]) && words.next() == Some("02")
    };
    all.lines().any(waits)
}

/// This process's sockets that listen at an address, and both ends of what was accepted there.
fn sockets(at: Ipv4Addr) -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let named: Vec<_> = numbers.map(|fd| (fd, [name(fd, false), name(fd, true)])).collect();
    let door = |(fd, ends): &(i32, [Option<SocketAddrV4>; 2])| {
        ends[0].filter(|end| *end.ip() == at && listens(*fd))
    };
    let doors: Vec<_> = named.iter().filter_map(door).collect();
    let there =
        |ends: &[Option<SocketAddrV4>; 2]| ends.iter().flatten().any(|end| doors.contains(end));
    named.iter().filter(|(_, ends)| there(ends)).map(|(fd, _)| *fd).collect()
}

/// Nothing gets through to or from an address any more, nor is a new socket answered there.
fn cut(at: Ipv4Addr) {
    let all = sockets(at);
    assert!(!all.is_empty());
    all.into_iter().for_each(black_hole);
}

/// What an address lost comes back.
fn mend(at: Ipv4Addr) {
    let zero = 0;
    for socket in sockets(at) {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_DETACH_FILTER);
        // SAFETY: an integer. What has no filter refuses.
        unsafe { libc::setsockopt(socket, level, option, (&raw const zero).cast(), 4) };
    }
}

/// Two endpoints and a connection.
struct Pair {
    a: Node,
    b: Node,
    listener: ListenerId,
    handle: ListenHandle,
    here: Handle,
    there: Handle,
}

impl Pair {
    fn new(a: &Limits, b: &Limits) -> Pair {
        let (a, b) = (Node::new(a), Node::new(b));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        Pair { a, b, listener, handle, here, there }
    }

    /// Waits until both sides have a lane, of a generation or later, and uses it.
    fn joined(&mut self, lane: u8, least: u32) -> (u32, i32, i32) {
        let (here, there) = (self.here, self.there);
        let of_a = until("the lane here", || up(&mut self.a, here, lane, least));
        let of_b = until("the lane there", || up(&mut self.b, there, lane, of_a.0));
        assert_eq!(of_a.0, of_b.0);
        carry(of_a.1, of_b.1);
        carry(of_b.1, of_a.1);
        (of_a.0, of_a.1, of_b.1)
    }

    fn lost(&self, outages: usize) {
        until("the link to be lost", || (of_link(&self.handle).0 == outages).then_some(()));
    }

    fn back(&self, outages: usize) {
        until("the link to be back", || (of_link(&self.handle).1 == outages).then_some(()));
    }

    /// Closes both sides, and sees that nothing is left.
    fn close(self) {
        self.a.band.connection_close(self.here).unwrap();
        self.b.band.connection_close(self.there).unwrap();
        until("a free", || self.a.all_free());
        until("b free", || self.b.all_free());
    }
}

/// What a node was told last of a lane, if that is of generation `least` or later: its generation
/// and first stream.
fn up(node: &mut Node, of: Handle, wanted: u8, least: u32) -> Option<(u32, i32)> {
    node.drain();
    let known = node.seen.iter().rev().find_map(|event| match *event {
        BandEvent::Lane { index, generation, lane, lane_generation, streams, .. }
            if (index, generation, lane) == (of.index, of.generation, wanted) =>
        {
            Some((lane_generation, streams[0]))
        }
        _ => None,
    });
    known.filter(|known| known.0 >= least)
}

#[test]
fn a_link_whose_path_dies_comes_back_over_another_and_the_other_lanes_go_on() {
    let _alone = alone();
    for key in [None, Some(key::Key::new(b"a key of many bytes").unwrap())] {
        let subnet = 1 + u8::from(key.is_some());
        let mut both = Pair::new(
            &Limits { key: key.clone(), ..at(subnet, 3) },
            &Limits { key, ..at(subnet, 3) },
        );
        let (one, two) = (both.joined(1, 1), both.joined(2, 1));
        cut(ip(subnet, 1));
        both.lost(1);
        carry(one.1, one.2);
        both.back(1);
        assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
        carry(two.2, two.1);
        // proofs of lanes and new connections work over it, and it was no other link
        both.b.band.lane_wanted(both.there, 1).unwrap();
        both.a.band.lane_wanted(both.here, 1).unwrap();
        both.joined(1, 2);
        let (c, d) = pair(&both.a, &both.b, both.listener, &both.handle.encode());
        both.a.band.connection_close(c).unwrap();
        assert_eq!(until("closed", || both.b.gone(d)), DownCause::Closed);
        both.b.band.connection_close(d).unwrap();
        assert_eq!((both.a.band.counters().links, both.b.band.counters().links), (1, 1));
        // the first lane waits for its own path
        both.b.band.lane_wanted(both.there, 0).unwrap();
        both.a.band.lane_wanted(both.here, 0).unwrap();
        mend(ip(subnet, 1));
        both.joined(0, 2);
        // the second path can die as well
        cut(ip(subnet, 2));
        both.lost(2);
        let (c, d) = pair(&both.a, &both.b, both.listener, &both.handle.encode());
        both.back(2);
        both.a.band.connection_close(c).unwrap();
        both.b.band.connection_close(d).unwrap();
        assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
        let (here, there) = (both.a.band.counters(), both.b.band.counters());
        assert_eq!((here.links_lost, there.links_lost, there.strangers), (0, 0, 0));
        both.close();
        SAID.lock().unwrap().clear();
    }
}

#[test]
fn connections_of_one_lane_end_with_the_path_and_others_stay() {
    let _alone = alone();
    // the second connector insists on one lane
    let mut both = Pair::new(&at(3, 2), &at(3, 2));
    let one = both.joined(1, 1);
    let mut single = Node::new(&Limits { lanes_wish: 1, ..at(3, 2) });
    let (c, d) = pair(&single, &both.b, both.listener, &both.handle.encode());
    assert_eq!(single.established(c).unwrap().lanes, 1);
    cut(ip(3, 1));
    assert_eq!(until("gone", || single.gone(c)), DownCause::Unheard);
    assert_eq!(until("gone", || both.b.gone(d)), DownCause::Unheard);
    both.back(1);
    carry(one.1, one.2);
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    single.band.connection_close(c).unwrap();
    both.b.band.connection_close(d).unwrap();
    until("free", || single.all_free());
    both.close();
}

/// How a socket ends although its process lives.
#[derive(Copy, Clone, Debug)]
enum Blow {
    Shut,
    Reset,
}

/// `false`: it has ended already.
fn blow(socket: i32, how: Blow) -> bool {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let to_nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: whole structures, which the kernel copies. To connect to nobody with nothing to
    // linger for resets a socket.
    let rc = unsafe {
        match how {
            Blow::Shut => libc::shutdown(socket, libc::SHUT_RDWR),
            Blow::Reset => {
                let (level, name, at) = (libc::SOL_SOCKET, libc::SO_LINGER, &raw const linger);
                libc::setsockopt(socket, level, name, at.cast(), size_of_val(&linger) as u32);
                libc::connect(socket, &raw const to_nobody, size_of_val(&to_nobody) as u32)
            }
        }
    };
    rc == 0
}

/// Its end was taken for the peer's death, with two lanes that carried.
#[test]
fn a_link_whose_socket_ends_comes_back_and_the_lanes_go_on() {
    let _alone = alone();
    for (subnet, how) in [(20, Blow::Shut), (21, Blow::Reset)] {
        let mut both = Pair::new(&at(subnet, 2), &at(subnet, 2));
        let one = both.joined(1, 1);
        for outages in 1..4 {
            let mut known: Vec<i32> = vec![one.1, one.2];
            known.extend(both.a.established(both.here).unwrap().streams);
            known.extend(both.b.established(both.there).unwrap().streams);
            let of_link = |fd: &i32| !known.contains(fd) && !listens(*fd);
            let ends = until("both ends of the link, and no older ones", || {
                let all = [1, 2].into_iter().flat_map(|n| sockets(ip(subnet, n)));
                let ends: Vec<i32> = all.filter(of_link).collect();
                (ends.len() == 2).then_some(ends)
            });
            assert!(blow(ends[outages % 2], how), "{how:?}");
            both.back(outages);
            carry(one.1, one.2);
            assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
        }
        let (c, d) = pair(&both.a, &both.b, both.listener, &both.handle.encode());
        both.a.band.connection_close(c).unwrap();
        both.b.band.connection_close(d).unwrap();
        both.close();
    }
}

/// Bytes of somebody else in it ended connections with two lanes that carried; and again and again
/// they are a broken protocol.
#[test]
fn a_link_with_garbage_in_it_is_made_anew_once_in_a_while() {
    let _alone = alone();
    for side in 0..2 {
        let subnet = 23 + side as u8;
        let mut both = Pair::new(&at(subnet, 2), &at(subnet, 2));
        let one = both.joined(1, 1);
        let mut known: Vec<i32> = vec![one.1, one.2];
        known.extend(both.a.established(both.here).unwrap().streams);
        known.extend(both.b.established(both.there).unwrap().streams);
        let ends = || {
            let all = [1, 2].into_iter().flat_map(|n| sockets(ip(subnet, n)));
            let ends: Vec<i32> = all.filter(|fd| !known.contains(fd) && !listens(*fd)).collect();
            (ends.len() == 2).then_some(ends)
        };
        let garbage = |socket: i32| {
            // SAFETY: readable bytes.
            assert_eq!(unsafe { libc::send(socket, [0xffu8; 64].as_ptr().cast(), 64, 0) }, 64);
        };
        garbage(until("both ends of the link", ends)[side]);
        both.back(1);
        carry(one.1, one.2);
        assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
        garbage(until("both ends of the next one", ends)[side]);
        // who reads it ends, and takes the lanes along: the other sees that
        let Pair { mut a, mut b, here, there, .. } = both;
        let first = until("the first end", || {
            a.gone(here).map(|_| true).or_else(|| b.gone(there).map(|_| false))
        });
        if first {
            a.band.connection_close(here).unwrap();
            until("the end there", || b.gone(there));
            b.band.connection_close(there).unwrap();
        } else {
            b.band.connection_close(there).unwrap();
            until("the end here", || a.gone(here));
            a.band.connection_close(here).unwrap();
        }
    }
}

/// As when a firewall forgets all that it knew: nobody died.
#[test]
fn a_link_that_is_reset_with_all_its_lanes_comes_back_and_so_do_they() {
    let _alone = alone();
    let mut both = Pair::new(&at(22, 2), &at(22, 2));
    both.joined(1, 1);
    let mut all = sockets(ip(22, 1));
    all.retain(|fd| !listens(*fd));
    all.extend(sockets(ip(22, 2)).into_iter().filter(|fd| !listens(*fd)));
    assert!(all.into_iter().filter(|fd| blow(*fd, Blow::Shut)).count() >= 3);
    both.back(1);
    for lane in [0, 1] {
        both.b.band.lane_wanted(both.there, lane).unwrap();
        both.a.band.lane_wanted(both.here, lane).unwrap();
    }
    both.joined(0, 2);
    both.joined(1, 2);
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    both.close();
}

#[test]
fn what_is_closed_during_an_outage_is_said_afterwards() {
    let _alone = alone();
    let mut both = Pair::new(&at(4, 2), &at(4, 2));
    let all: Vec<_> =
        (0..6).map(|_| pair(&both.a, &both.b, both.listener, &both.handle.encode())).collect();
    both.joined(1, 1);
    cut(ip(4, 1));
    // on the old socket, where nobody hears it
    both.a.band.connection_close(all[0].0).unwrap();
    both.b.band.connection_close(all[1].1).unwrap();
    both.a.band.connection_close(all[2].0).unwrap();
    both.b.band.connection_close(all[2].1).unwrap();
    both.lost(1);
    both.a.band.connection_close(all[3].0).unwrap();
    both.b.band.connection_close(all[4].1).unwrap();
    both.back(1);
    for (here, there) in [all[1], all[4]] {
        assert_eq!(until("closed", || both.a.gone(here)), DownCause::Closed);
        both.a.band.connection_close(here).unwrap();
        assert_eq!(both.b.gone(there), None);
    }
    for (_, there) in [all[0], all[3]] {
        assert_eq!(until("closed", || both.b.gone(there)), DownCause::Closed);
        both.b.band.connection_close(there).unwrap();
    }
    both.a.band.connection_close(all[5].0).unwrap();
    both.b.band.connection_close(all[5].1).unwrap();
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    both.close();
}

#[test]
fn what_is_taken_during_an_outage_is_accepted_afterwards() {
    let _alone = alone();
    let limits = Limits { accept_taken: true, ..at(13, 2) };
    let mut both = Pair::new(&limits, &limits);
    both.joined(1, 1);
    let made = |node: &mut Node| {
        node.drain();
        let made = |event: &&BandEvent| matches!(event, BandEvent::Established { .. });
        (node.seen.iter().filter(made).count() == 2).then_some(())
    };
    let attempt = both.a.band.connect_begin(&both.handle.encode()).unwrap();
    until("made here", || made(&mut both.a));
    until("made there", || made(&mut both.b));
    cut(ip(13, 1));
    // on the old socket, where nobody hears it
    let here = until("connect", || both.a.band.connect_poll(attempt).unwrap());
    both.lost(1);
    // the link may be back before anybody has asked
    let early = both.b.band.accept(both.listener).unwrap();
    both.back(1);
    let later = || until("accept", || both.b.band.accept(both.listener).unwrap());
    let there = early.unwrap_or_else(later);
    both.a.band.connection_close(here).unwrap();
    both.b.band.connection_close(there).unwrap();
    both.close();
}

#[test]
fn one_side_may_notice_nothing() {
    let _alone = alone();
    let long = Limits { peer_deadline: Span::millis(20_000), ..at(10, 2) };
    // who listens notices: the old socket comes back into use
    let mut both = Pair::new(&long, &at(10, 2));
    let one = both.joined(1, 1);
    cut(ip(10, 1));
    let lost = || said(|note| matches!(note, Note::LinkLost { .. }));
    until("the loss", || (lost() == 1).then_some(()));
    carry(one.1, one.2);
    mend(ip(10, 1));
    let back = || said(|note| matches!(note, Note::LinkBack { .. }));
    until("the link", || (back() == 1).then_some(()));
    assert_eq!((of_link(&both.handle), lost()), ((0, 0), 1));
    both.close();
    SAID.lock().unwrap().clear();
    // who connects notices, and takes over a link that nobody there has lost
    let long = Limits { peer_deadline: Span::millis(20_000), ..at(11, 2) };
    let mut both = Pair::new(&at(11, 2), &long);
    let one = both.joined(1, 1);
    cut(ip(11, 1));
    both.back(1);
    carry(one.1, one.2);
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    assert_eq!((lost(), back()), (1, 1));
    both.close();
}

/// As a listener that has no room for another link: what was lost stays lost, lanes come and go.
fn full(subnet: u8, addresses: u8) -> (Limits, Limits) {
    (at(subnet, addresses), Limits { links: 1, ..at(subnet, addresses) })
}

#[test]
fn lanes_are_judged_and_rejoin_without_a_link_and_a_killed_peer_is_dead() {
    let _alone = alone();
    let (a, b) = full(5, 3);
    let mut both = Pair::new(&a, &b);
    both.joined(1, 1);
    both.joined(2, 1);
    cut(ip(5, 1));
    both.lost(1);
    // another path dies, too: seen because the last one is heard
    let one = both.joined(1, 1);
    cut(ip(5, 2));
    // SAFETY: one readable byte.
    assert_eq!(unsafe { libc::send(one.1, [7u8].as_ptr().cast(), 1, 0) }, 1);
    let here = both.here;
    until("the stall", || {
        both.a.drain();
        let of = |event: &BandEvent| {
            matches!(event, BandEvent::LaneGone { index, lane: 1, cause: DownCause::Silent, .. }
                if *index == here.index)
        };
        both.a.seen.iter().any(of).then_some(())
    });
    mend(ip(5, 2));
    both.b.band.lane_wanted(both.there, 1).unwrap();
    both.a.band.lane_wanted(both.here, 1).unwrap();
    both.joined(1, 2);
    both.joined(2, 1);
    assert_eq!((of_link(&both.handle), both.a.gone(here)), ((1, 0), None));
    // its process goes: nobody listens any more where it did
    let Pair { mut a, b, .. } = both;
    drop(b);
    assert_eq!(until("gone", || a.gone(here)), DownCause::Severed);
    a.band.connection_close(here).unwrap();
    until("a free", || a.all_free());
}

/// Listens, accepts, and says the handle, until it is killed.
fn listen_here() {
    let mut node = Node::new(&full(12, 2).1);
    let (listener, handle) = node.band.listen().unwrap();
    let text: String = handle.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("handle={text}");
    let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives until the call returns.
    while unsafe { libc::poll(&mut poll, 1, 5) } == 0 {
        node.drain();
        let _ = node.band.accept(listener).unwrap();
    }
}

#[test]
fn a_process_that_is_killed_during_an_outage_is_dead() {
    let _alone = alone();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_here", "--nocapture"]).env(ROLE, "listen_here");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.find_map(|line| Some(line.split_once("handle=")?.1.to_owned())).unwrap();
    let mut bytes = [0; 128];
    for (byte, at) in bytes.iter_mut().zip((0..256).step_by(2)) {
        *byte = u8::from_str_radix(&said[at..at + 2], 16).unwrap();
    }
    let handle = ListenHandle::decode(&bytes).unwrap();
    let mut a = Node::new(&full(12, 2).0);
    let pending = a.band.connect_begin(&bytes).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    until("the lane", || up(&mut a, here, 1, 1));
    // nothing comes back from the first address, and the peer has no room for another link
    let first = SocketAddrV4::new(ip(12, 1), handle.addresses[0].port);
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(fd) = entry.file_name().to_str().unwrap().parse() else { continue };
        if name(fd, true) == Some(first) {
            black_hole(fd);
        }
    }
    until("the loss", || (of_link(&handle).0 == 1).then_some(()));
    assert_eq!(a.gone(here), None);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Severed);
    assert_eq!(of_link(&handle), (1, 0));
    a.band.connection_close(here).unwrap();
    until("a free", || a.all_free());
}

#[test]
fn a_peer_that_no_lane_hears_any_more_is_dead_on_both_sides() {
    let _alone = alone();
    let mut both = Pair::new(&at(6, 2), &at(6, 2));
    both.joined(1, 1);
    cut(ip(6, 1));
    cut(ip(6, 2));
    both.lost(1);
    assert_eq!(until("gone", || both.a.gone(both.here)), DownCause::Unheard);
    assert_eq!(until("gone", || both.b.gone(both.there)), DownCause::Unheard);
    assert_eq!(of_link(&both.handle), (1, 0));
    both.close();
}

#[test]
fn who_listens_notices_that_who_connected_is_gone() {
    let _alone = alone();
    let (a, b) = full(7, 2);
    let mut both = Pair::new(&a, &b);
    both.joined(1, 1);
    cut(ip(7, 1));
    both.lost(1);
    let Pair { a, mut b, there, .. } = both;
    drop(a);
    assert_eq!(until("gone", || b.gone(there)), DownCause::Unheard);
    b.band.connection_close(there).unwrap();
    until("b free", || b.all_free());
}

#[test]
fn a_link_is_taken_over_by_nobody_else() {
    let _alone = alone();
    let mut both = Pair::new(&at(8, 2), &at(8, 2));
    let one = both.joined(1, 1);
    for resume in [1, u128::MAX] {
        let raw = RawTcp::dial(&both.handle);
        let mine =
            LinkHello { rails: RAIL_TCP, streams: 1, arena_bytes: 0, ..hello_to(&both.handle) };
        raw.send(Frame::LinkHello(LinkHello { lanes: 8, resume, ..mine }));
        let Frame::Refused(refused) = raw.receive() else { panic!("not refused") };
        assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Closed);
        raw.closed();
    }
    carry(one.1, one.2);
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    both.close();
}

/// The attempt to take over a lost link gave its place to a stranger, and the lost link took that
/// one's for its attempt: it was dialled no more, and closed the stranger's when it ended.
#[test]
fn attempt_whose_place_is_wanted_is_made_again() {
    let _alone = alone();
    let mut both = Pair::new(&Limits { links: 2, ..at(13, 2) }, &at(13, 2));
    both.joined(1, 1);
    let (listener, handle) = both.a.band.listen().unwrap();
    // the peer answers nobody any more, at its second address neither
    let port = |handle: &ListenHandle| handle.addresses[1].port;
    let is_door = |socket: &i32| {
        listens(*socket) && name(*socket, false).is_some_and(|it| it.port() == port(&both.handle))
    };
    let doors: Vec<_> = sockets(ip(13, 2)).into_iter().filter(is_door).collect();
    assert_eq!(doors.len(), 1);
    black_hole(doors[0]);
    cut(ip(13, 1));
    both.lost(1);
    until("an attempt", || is_dialled(ip(13, 2), port(&both.handle)).then_some(()));
    let stranger = std::net::TcpStream::connect((ip(13, 2), port(&handle)));
    let raw = RawTcp::of(stranger.unwrap());
    let mine = LinkHello { rails: RAIL_TCP, streams: 1, arena_bytes: 0, ..hello_to(&handle) };
    raw.send(Frame::LinkHello(LinkHello { lanes: 8, ..mine }));
    assert!(matches!(raw.receive(), Frame::LinkReply(_)));
    drop(raw);
    mend(ip(13, 1));
    mend(ip(13, 2));
    both.back(1);
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    both.a.band.listener_close(listener).unwrap();
    both.close();
}

#[test]
fn role_here() {
    match std::env::var(ROLE).as_deref() {
        Ok("listen_here") => listen_here(),
        Ok("outages") => outages(false),
        Ok("no_alloc") => outages(true),
        _ => {}
    }
}

#[test]
fn outages_leak_no_slot_and_no_descriptor() {
    run_alone_in("role_here", "outages");
}

#[test]
fn nothing_allocates_during_outages() {
    run_alone_in("role_here", "no_alloc");
}

/// Links that came back.
static BACK: AtomicUsize = AtomicUsize::new(0);

fn count_back(note: Note) {
    BACK.fetch_add(usize::from(matches!(note, Note::LinkBack { .. })), Ordering::Relaxed);
}

fn outages(counted: bool) {
    let key = Some(key::Key::new(b"a key of many bytes").unwrap());
    let b = Limits { key, note: |_| {}, ..at(9, 3) };
    let mut both = Pair::new(&Limits { note: count_back, ..b.clone() }, &b);
    let two = (both.joined(1, 1), both.joined(2, 1)).1;
    let before = descriptors();
    for round in 1..5 {
        // over the first path, and over the second while that is gone
        let path = ip(9, 2 - round % 2);
        cut(path);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        until("the link", || (BACK.load(Ordering::Relaxed) == round.into()).then_some(()));
        let later = ALLOCATIONS.load(Ordering::Relaxed);
        assert!(!counted || later == allocations);
        mend(path);
        carry(two.1, two.2);
        until("descriptors back", || (descriptors() == before).then_some(()));
    }
    assert_eq!((both.a.gone(both.here), both.b.gone(both.there)), (None, None));
    both.close();
}

/// What roles talk over: data streams; 0 is shared memory.
const STREAMS: u32 = 1;

include!("connect_support/roles.rs");
