//! The acceptance table of one-sided operations over RDMA ports: those of the guest of `tests/vm`,
//! and those of a false libibverbs (`tests/verbs_fake`), in a process of its own.
#![allow(dead_code)] // of the shared parts

mod group_support;
mod guest_support;
mod host_support;
#[path = "verbs_support/hosts.rs"]
mod hosts;
mod verbs_support;

use crosstie::host::DeviceKind;
use crosstie::host::endpoint::ConnectionRail;
use group_support::suite::{Place, Rail, fill};
use verbs_support::fake::story_told;

fn rail(name: &'static str, more: &[(&'static str, &str)]) -> Rail {
    let usual = [("CROSSTIE_RAILS", "verbs"), ("CROSSTIE_SOCKET_IFNAME", "=lo")];
    let mut rail = Rail {
        settings: usual
            .iter()
            .chain(more)
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect(),
        place: Place::Private,
        carrier: Some(ConnectionRail::Verbs),
        ..Rail::new(name, DeviceKind::Host, 2)
    };
    rail.options.limits.rails_max = 2;
    rail
}

/// Whose NIC adds to counters.
fn with_companions(mut rail: Rail) -> Rail {
    rail.options.companions = true;
    rail
}

/// What the other starts, in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    assert_eq!(story, "the table");
    fill(&[rail("verbs, fake", &[]), with_companions(rail("companions, fake", &[]))]);
    println!("the table is full");
}

#[test]
fn every_row_over_a_false_libibverbs() {
    let Some(said) = hosts::told("Ethernet", "the table", "") else { return };
    print!("{said}");
    assert!(said.contains("the table is full"), "{said}");
}

/// In the guest, where there are devices: over the packets of one wire.
#[test]
fn every_row_over_the_devices_of_this_host() {
    let Some([near, far]) = guest_support::ends(1) else { return };
    assert!(FAR.set(far).is_ok(), "once");
    let of_devices = |name| {
        let slow = [("CROSSTIE_IB_TIMEOUT", "15"), ("CROSSTIE_PEER_TIMEOUT_MS", "10000")];
        let mut rail = rail(name, &slow);
        rail.settings.push(("CROSSTIE_IB_HCA", near.clone()));
        rail.settings_of = |rank| match rank {
            1 => vec![("CROSSTIE_IB_HCA", FAR.get().expect("set").clone())],
            _ => Vec::new(),
        };
        // emulated devices are slow
        rail.bytes_max = 2 << 20;
        rail
    };
    fill(&[of_devices("verbs"), with_companions(of_devices("companions"))]);
}

/// The devices of the second rank.
static FAR: std::sync::OnceLock<String> = std::sync::OnceLock::new();
