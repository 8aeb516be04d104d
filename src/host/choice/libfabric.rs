//! Ports of libfabric: which domains an endpoint uses, and which make lanes with those of a peer.
#![forbid(unsafe_code)]

use super::device::Rails;
use super::settings::Environment;
use crate::host::log::Level;
use crate::host::log::event::tell;
use crate::host::log::ports::PortEvent;
use crate::provider::libfabric::Config;
use crate::provider::libfabric::choice::{Nic, NoNic, SYSFS, choose as choose_nics};
use crate::provider::libfabric::settings::Settings;
use crate::wire::pair::PortHello;
use std::format;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// `PortHello::kind` of such a port.
pub(in crate::host) const KIND: u8 = 4;

/// `tcp;ofi_rxm eth0`.
pub(in crate::host) fn name_of(nic: &Nic) -> String {
    format!("{} {}", nic.provider.to_string_lossy(), nic.domain.to_string_lossy())
}

/// The domains that are used; says why there is none where somebody asked for one (`asked`: for
/// libfabric by name, or for a provider), or has a NIC that only libfabric reaches.
pub(in crate::host) fn choose(environment: &Environment) -> Vec<Nic> {
    let (settings, asked) = (&environment.libfabric, environment.libfabric_named);
    let found = choose_nics(settings, Path::new(SYSFS), asked);
    let why = match found {
        Ok(nics) => {
            if let Some(text) = settings.missing_words(&nics) {
                tell(&PortEvent::DomainsMissing(&text));
            }
            return nics;
        }
        Err(NoNic::NotWanted) => return Vec::new(),
        Err(why) => why.words(settings),
    };
    let asked = asked || settings.provider.is_some();
    let level = if asked { Level::Warning } else { Level::Info };
    let required = environment.requires(Rails { libfabric: true, ..Rails::NONE });
    tell(&PortEvent::NoDomain { level, why: &why, required });
    Vec::new()
}

/// What a peer is told of a port.
pub(in crate::host) fn hello_of(nic: &Nic) -> PortHello {
    let prefix_bits = super::device::reach_bits(nic.reaches_own, nic.reaches_others);
    PortHello { gid: nic.network, prefix_bits, kind: KIND, speed_mbit_s: nic.speed_mbps }
}

/// What a port is opened with.
pub(in crate::host) fn config_of<'a>(nic: &'a Nic, settings: &'a Settings) -> Config<'a> {
    let (provider, domain) = (Some(nic.provider.as_c_str()), Some(nic.domain.as_c_str()));
    Config { provider, domain, ..settings.config() }
}
