//! Ports of libfabric: which domains an endpoint uses, and which make lanes with those of a peer.
#![forbid(unsafe_code)]

extern crate std;

use super::log::{Level, say};
use crate::provider::libfabric::Config;
use crate::provider::libfabric::choice::{Nic, NoNic, SYSFS, choose as choose_nics};
use crate::provider::libfabric::settings::Settings;
use crate::wire::pair::{PORTS_MAX, PortHello};
use std::format;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// `PortHello::kind` of such a port.
const KIND: u8 = 4;
/// Bits of `PortHello::prefix_bits` of such a port: whom it reaches.
const REACHES_OWN: u8 = 1;
const REACHES_OTHERS: u8 = 2;

/// `tcp;ofi_rxm eth0`.
pub(super) fn name_of(nic: &Nic) -> String {
    format!("{} {}", nic.provider.to_string_lossy(), nic.domain.to_string_lossy())
}

/// The domains that are used; says why there is none where somebody asked for one (`asked`: for
/// libfabric by name, or for a provider), or has a NIC that only libfabric reaches.
pub(super) fn choose(settings: &Settings, asked: bool) -> Vec<Nic> {
    let found = choose_nics(settings, Path::new(SYSFS), asked);
    let why = match found {
        Ok(mut nics) => {
            nics.truncate(PORTS_MAX);
            return nics;
        }
        Err(NoNic::NotWanted) => return Vec::new(),
        Err(NoNic::Error(error)) => format!("{error}"),
        Err(NoNic::None(what)) => match &settings.provider {
            Some(provider) => {
                format!("{} has no domain for it; {what}", provider.to_string_lossy())
            }
            None => format!("no provider of a NIC; {what}, and CROSSTIE_OFI_PROVIDER names one"),
        },
    };
    let asked = asked || settings.provider.is_some();
    let level = if asked { Level::Warning } else { Level::Info };
    say(level, &format!("no libfabric rail, hosts talk over TCP ({why})"));
    Vec::new()
}

/// What a peer is told of a port.
pub(super) fn hello_of(nic: &Nic) -> PortHello {
    let own = if nic.reaches_own { REACHES_OWN } else { 0 };
    let others = if nic.reaches_others { REACHES_OTHERS } else { 0 };
    PortHello { gid: nic.network, prefix_bits: own | others, kind: KIND, speed_mbit_s: 0 }
}

/// What a port is opened with.
pub(super) fn config_of<'a>(nic: &'a Nic, settings: &'a Settings) -> Config<'a> {
    let (provider, domain) = (Some(nic.provider.as_c_str()), Some(nic.domain.as_c_str()));
    Config { provider, domain, ..settings.config() }
}

/// Which of our ports make lanes with those of a peer, of those that are of libfabric: of each
/// network that both have, the first with the first. Both sides find the same pairs in the same
/// order.
pub(super) fn pair_ports(
    ours: &[PortHello],
    theirs: &[PortHello],
    same_host: bool,
    out: &mut [u8],
) -> usize {
    let way = if same_host { REACHES_OWN } else { REACHES_OTHERS };
    let reaches = |port: &PortHello| port.kind == KIND && port.prefix_bits & way != 0;
    let mut count = 0;
    let mut network = None;
    loop {
        let later = |port: &&PortHello| network.is_none_or(|before| port.gid > before);
        let next =
            ours.iter().filter(|port| reaches(port)).filter(later).map(|port| port.gid).min();
        let Some(gid) = next else { return count };
        network = Some(gid);
        let of_it = |port: &PortHello| reaches(port) && port.gid == gid;
        let others = theirs.iter().filter(|port| of_it(port)).count();
        let places = ours.iter().enumerate().filter(|(_, port)| of_it(port)).take(others);
        for (place, _) in places {
            let Some(entry) = out.get_mut(count) else { return count };
            *entry = place as u8;
            count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(network: u128, reaches: u8) -> PortHello {
        PortHello { gid: network, prefix_bits: reaches, kind: KIND, speed_mbit_s: 0 }
    }

    fn pairs(ours: &[PortHello], theirs: &[PortHello], same_host: bool) -> Vec<u8> {
        let mut out = [9; PORTS_MAX];
        let count = pair_ports(ours, theirs, same_host, &mut out);
        out[..count].to_vec()
    }

    #[test]
    fn ports_of_a_network_pair_alike_from_both_sides() {
        let ours = [port(7, 3), port(3, 3), port(7, 3), port(8, 3)];
        let theirs = [port(3, 3), port(7, 3), port(9, 3)];
        assert_eq!(pairs(&ours, &theirs, false), [1, 0]);
        assert_eq!(pairs(&theirs, &ours, false), [0, 1]);
        let verbs = [PortHello { kind: 3, ..port(7, 3) }];
        assert!(pairs(&ours, &verbs, false).is_empty() && pairs(&verbs, &ours, false).is_empty());
    }

    #[test]
    fn who_is_not_reached_makes_no_pair() {
        let (own, others) = ([port(7, REACHES_OWN)], [port(7, REACHES_OTHERS)]);
        assert_eq!(pairs(&own, &own, true), [0]);
        assert!(pairs(&own, &own, false).is_empty(), "a loopback leads to the asking host");
        assert_eq!(pairs(&others, &others, false), [0]);
        assert!(pairs(&others, &others, true).is_empty(), "it drops what it sends to itself");
        assert!(pairs(&own, &others, true).is_empty());
    }
}
