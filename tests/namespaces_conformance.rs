//! The TCP rail keeps the contract also where packets take their time and are lost: P1 to P10 over
//! sockets between two hosts that are network namespaces, at the ends of such a wire.

#![allow(dead_code)] // of the shared parts

mod common;
mod host_support;
mod namespace_support;
#[path = "common/tcp_pair.rs"]
mod tcp_pair;

use common::{Pair, Pause};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Bytes;
use crosstie::provider::tcp::{Limits, Settings, Tcp};
use namespace_support::may_wire;
use namespace_support::wire::{Quality, Wired};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tcp_pair::{PairConfig, PairMemory};

const QUALITY: Quality = Quality {
    delay: Duration::from_micros(500),
    lost_per_thousand: 5,
    packets_max: 1000,
    seed: 0x5eed_0601,
};
/// What one step of a rig waits for at most: 64 of them outlast two retransmissions in a row, whose
/// timers begin at 200 ms.
const STEP_MS: i32 = 12;
/// So little that a poll cannot take all of a long write.
const CALL_BYTES: Bytes = Bytes::kib(8);
/// Smaller than a long payload by far.
const TINY_BYTES: i32 = 8192;

/// Two ends of a connection across the wire.
fn across(wired: &Wired, config: &PairConfig) -> [TcpStream; 2] {
    let address = match config.v6 {
        true => wired.hosts.ipv6(1),
        false => wired.hosts.ipv4(1),
    };
    let listener = wired.hosts.inside(1, || TcpListener::bind((address.as_str(), 0))).unwrap();
    shrink(listener.as_raw_fd(), config.buffer_bytes);
    let at = listener.local_addr().unwrap();
    let near = wired.hosts.inside(0, || TcpStream::connect(at)).unwrap();
    shrink(near.as_raw_fd(), config.buffer_bytes);
    let (far, _) = listener.accept().unwrap();
    for end in [&near, &far] {
        end.set_nonblocking(true).unwrap();
        // as the rail's own sockets
        end.set_nodelay(true).unwrap();
    }
    [near, far]
}

fn shrink(fd: i32, bytes: Option<i32>) {
    let Some(bytes) = bytes else { return };
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        // SAFETY: four readable bytes.
        let rc =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
        assert_eq!(rc, 0);
    }
}

fn pair(wired: &Wired, config: PairConfig) -> Pair<Tcp<'static>> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(config)));
    memory.sockets = [vec![], vec![]];
    for _ in 0..config.limits.streams {
        let [near, far] = across(wired, &config);
        memory.sockets[0].push(near);
        memory.sockets[1].push(far);
    }
    let [a, b] = memory.open();
    Pair { providers: vec![a, b], peers: [PeerIndex(0); 2], rejoin: None }
}

/// Waits until something has come for either side.
fn wait_for_wire(pair: &mut Pair<Tcp<'static>>) {
    let mut waits = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2];
    for (rail, wait) in pair.providers.iter_mut().zip(&mut waits) {
        if !rail.arm() {
            return;
        }
        wait.fd = rail.wait_fd();
    }
    // SAFETY: as many descriptors as are said.
    unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, STEP_MS) };
}

/// Runs the suite; one test at a time, since each wants its processors.
fn suite(name: &str, config: PairConfig, skips: usize) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !may_wire(name) {
        return;
    }
    let wired = Rc::new(Wired::new(QUALITY));
    let mine = Rc::clone(&wired);
    let pause = Some(Pause { wait: wait_for_wire, threads: false });
    // nothing repeats exactly, and a second connection is that of `conformance_tcp`
    common::run_all_pausing(move || pair(&mine, config), skips + 2, pause);
    let (carried, lost) = wired.counts();
    assert!(carried > 1000 && lost > 0, "{carried} packets carried, {lost} lost");
}

fn streams(streams: u32) -> PairConfig {
    let config = PairConfig::default();
    let settings = Settings { call_bytes: CALL_BYTES, ..Settings::default() };
    PairConfig { limits: Limits { streams, ..config.limits }, settings, ..config }
}

#[test]
fn one_stream_keeps_every_promise_over_a_wire_that_loses_packets() {
    suite("one_stream_keeps_every_promise_over_a_wire_that_loses_packets", streams(1), 0);
}

#[test]
fn one_stream_with_tiny_buffers_keeps_every_promise_over_a_wire_that_loses_packets() {
    let tiny = PairConfig { buffer_bytes: Some(TINY_BYTES), v6: true, ..streams(1) };
    let name = "one_stream_with_tiny_buffers_keeps_every_promise_over_a_wire_that_loses_packets";
    suite(name, tiny, 0);
}

#[test]
fn four_streams_keep_every_promise_over_a_wire_that_loses_packets() {
    // several streams keep no order among each other
    suite("four_streams_keep_every_promise_over_a_wire_that_loses_packets", streams(4), 3);
}
