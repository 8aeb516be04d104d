//! The plugin over libfabric: its software provider over the loopback, where two processes of this
//! host are two ends. What NCCL does is done over its endpoints.

#[allow(dead_code)] // of the shared parts
mod support;

use crosstie::provider::libfabric::Config;
use crosstie::provider::libfabric::survey::survey;
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::{CONTRACT, harness, play_in, plugin};

/// One at a time; `None`: there is no such provider here, and it was said.
fn provider() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config { provider: Some(c"tcp;ofi_rxm"), ..Config::DEFAULT };
    match survey(&config) {
        Ok(found) if !found.offers.is_empty() => Some(alone),
        Ok(_) | Err(_) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no tcp;ofi_rxm");
            eprintln!("SKIP: no tcp;ofi_rxm of libfabric");
            None
        }
    }
}

/// Over libfabric, and nothing else but what connections are made by.
const OVER_LIBFABRIC: [(&str, &str); 4] = [
    ("CROSSTIE_RAILS", "libfabric"),
    ("CROSSTIE_OFI_PROVIDER", "tcp;ofi_rxm"),
    ("CROSSTIE_OFI_DOMAINS", "lo,lo"),
    ("CROSSTIE_SOCKET_IFNAME", "=lo"),
];

fn play(scenario: &str, version: u32) {
    let start = std::time::Instant::now();
    play_in(&OVER_LIBFABRIC, harness(), &plugin(), scenario, version);
    println!("{scenario} with v{version}: {} ms", start.elapsed().as_millis());
}

#[test]
fn domains_are_devices() {
    let Some(_alone) = provider() else { return };
    for version in [6, 9, 12] {
        play("nics_shown", version);
    }
    play("properties", 12);
}

#[test]
fn connection_of_a_domain_goes_over_that_domain_alone() {
    let Some(_alone) = provider() else { return };
    play("nics_apart", 12);
    play("nics_apart", 6);
}

#[test]
fn device_of_two_domains_has_a_rail_on_each() {
    let Some(_alone) = provider() else { return };
    play("nics_fused", 9);
    play("nics_fused", 12);
}

#[test]
fn points_of_the_contract_hold_over_libfabric() {
    let Some(_alone) = provider() else { return };
    // libfabric's own pools grow when they like
    for scenario in CONTRACT.into_iter().filter(|scenario| *scenario != "no_alloc") {
        play(scenario, 12);
    }
    for version in [6, 8, 10] {
        play("bytes", version);
        play("groups", version);
    }
}

/// A fence waits for the word of the peer, or two seconds. So did the thread that closed.
#[test]
fn close_waits_for_no_peer_over_libfabric() {
    let Some(_alone) = provider() else { return };
    play("closed_at_once", 12);
}

/// The peer's next set-up stood while a connection was closed.
#[test]
fn connections_are_made_while_closed_ones_wait_for_their_peer() {
    let Some(_alone) = provider() else { return };
    play("closed_aside", 12);
}

#[test]
fn traffic_at_random_arrives_whole_over_libfabric() {
    let Some(_alone) = provider() else { return };
    play("traffic", 12);
}
