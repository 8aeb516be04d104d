//! The TCP rail keeps the contract, over real sockets of the loopback device.

mod common;
#[path = "common/tcp_pair.rs"]
mod tcp_pair;

use common::{Pair, Pause, Rejoin};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::Provider;
use crosstie::provider::tcp::{Limits, PeerOpenError, Settings, Tcp};
use std::os::fd::IntoRawFd;
use tcp_pair::{PairConfig, PairMemory, connected};

fn pair(config: PairConfig) -> Pair<Tcp<'static>> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(config)));
    let [a, b] = memory.open();
    let rejoin: Rejoin<_> = Box::new(move |rails| connect_again(rails, &config));
    Pair { providers: vec![a, b], peers: [PeerIndex(0); 2], rejoin: Some(rejoin) }
}

/// Joins both as peer 0 again, by sockets that are open until the test's process ends.
fn connect_again(rails: &mut [Tcp<'static>], config: &PairConfig) {
    let mut fds = [vec![], vec![]];
    for _ in 0..config.limits.streams {
        for (fds, end) in fds.iter_mut().zip(connected(config)) {
            fds.push(end.into_raw_fd());
        }
    }
    for (rail, fds) in rails.iter_mut().zip(&fds) {
        // threads may not have let go of the last one yet
        while let Err(error) = rail.peer_open_with(PeerIndex(0), fds, config.sums) {
            assert_eq!(error, PeerOpenError::Again);
            rail.poll(&mut [common::NOTHING; 4], Bytes::ZERO, Instant(0));
        }
    }
}

/// So little that a poll cannot take all of a long write.
const CALL_BYTES: Bytes = Bytes::kib(8);

fn streams(streams: u32) -> PairConfig {
    let config = PairConfig::default();
    let settings = Settings { call_bytes: CALL_BYTES, ..Settings::default() };
    PairConfig { limits: Limits { streams, ..config.limits }, settings, ..config }
}

/// Several streams keep no order among each other.
const SKIPS_UNORDERED: usize = 3;

#[test]
fn one_stream_keeps_every_promise() {
    common::run_all_through_kernel(|| pair(streams(1)), 0);
}

#[test]
fn one_stream_over_ipv6_keeps_every_promise() {
    common::run_all_through_kernel(|| pair(PairConfig { v6: true, ..streams(1) }), 0);
}

#[test]
fn four_streams_keep_every_promise() {
    common::run_all_through_kernel(|| pair(streams(4)), SKIPS_UNORDERED);
}

/// Each header and payload with a sum behind it.
fn summed(config: PairConfig) -> PairConfig {
    PairConfig { sums: true, ..config }
}

#[test]
fn one_stream_with_sums_keeps_every_promise() {
    common::run_all_through_kernel(|| pair(summed(streams(1))), 0);
}

#[test]
fn four_streams_with_sums_and_tiny_buffers_keep_every_promise() {
    let make = || pair(summed(tiny(streams(4))));
    common::run_all_pausing(make, SKIPS_UNORDERED + 1, KERNEL);
}

#[test]
fn copy_threads_with_sums_keep_every_promise() {
    let make = || pair(summed(threads(2)));
    common::run_all_pausing(make, SKIPS_UNORDERED + 2, THREADS);
}

/// Smaller than a long payload by far. With less (the kernel goes down to 2304) the contract is
/// kept too, but every few bytes wait for a timer of the kernel.
const TINY_BYTES: i32 = 8192;

/// With such buffers on both ways.
fn tiny(config: PairConfig) -> PairConfig {
    PairConfig { buffer_bytes: Some(TINY_BYTES), ..config }
}

/// Waits until the kernel has something for either side, a few milliseconds at most: with buffers
/// this small it makes the peers wait for its own timers.
fn wait_for_kernel(pair: &mut Pair<Tcp<'static>>) {
    let mut waits = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2];
    for (rail, wait) in pair.providers.iter_mut().zip(&mut waits) {
        if !rail.arm() {
            return;
        }
        wait.fd = rail.wait_fd();
    }
    // SAFETY: as many descriptors as are said.
    unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, 4) };
}

const KERNEL: Option<Pause<Tcp<'static>>> = Some(Pause { wait: wait_for_kernel, threads: false });
const THREADS: Option<Pause<Tcp<'static>>> = Some(Pause { wait: wait_for_threads, threads: true });

#[test]
fn tiny_buffers_keep_every_promise() {
    let make = || pair(tiny(streams(1)));
    common::run_all_pausing(make, 1, KERNEL);
}

#[test]
fn four_streams_with_tiny_buffers_keep_every_promise() {
    let make = || pair(tiny(streams(4)));
    common::run_all_pausing(make, SKIPS_UNORDERED + 1, KERNEL);
}

fn threads(count: u32) -> PairConfig {
    PairConfig { settings: Settings { threads: count, ..Settings::default() }, ..streams(4) }
}

/// Gives the threads their turn also while the polling one has work.
fn wait_for_threads(pair: &mut Pair<Tcp<'static>>) {
    wait_for_kernel(pair);
    // SAFETY: no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
}

#[test]
fn copy_threads_keep_every_promise() {
    for count in [1, 3] {
        let make = move || pair(threads(count));
        common::run_all_pausing(make, SKIPS_UNORDERED + 2, THREADS);
    }
}
