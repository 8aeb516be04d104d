//! Ports of libfabric: which domains an endpoint uses, and which make lanes with those of a peer.
#![forbid(unsafe_code)]

extern crate std;

use super::device::Rails;
use super::settings::{Environment, REQUIRED};
use crate::base::units::Span;
use crate::host::log::{Level, say};
use crate::provider::libfabric::choice::{Nic, NoNic, SYSFS, choose as choose_nics};
use crate::provider::libfabric::settings::Settings;
use crate::provider::libfabric::{CONNECTED, Config};
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
                say(Level::Warning, &text);
            }
            return nics;
        }
        Err(NoNic::NotWanted) => return Vec::new(),
        Err(why) => why.words(settings),
    };
    let asked = asked || settings.provider.is_some();
    let level = if asked { Level::Warning } else { Level::Info };
    let then = match environment.requires(Rails { libfabric: true, ..Rails::NONE }) {
        true => format!("and {REQUIRED} names libfabric"),
        false => "hosts talk over TCP".into(),
    };
    say(level, &format!("no libfabric rail, {then} ({why})"));
    Vec::new()
}

/// What a peer is told of a port.
pub(in crate::host) fn hello_of(nic: &Nic) -> PortHello {
    let prefix_bits = super::ports::reach_bits(nic.reaches_own, nic.reaches_others);
    PortHello { gid: nic.network, prefix_bits, kind: KIND, speed_mbit_s: nic.speed_mbps }
}

/// What a port is opened with. `silence_max`: how long a path may be silent whose end is fenced by
/// our own act, as that of a connected endpoint is.
pub(in crate::host) fn config_of<'a>(
    nic: &'a Nic,
    settings: &'a Settings,
    silence_max: Span,
) -> Config<'a> {
    let (provider, domain) = (Some(nic.provider.as_c_str()), Some(nic.domain.as_c_str()));
    let is_connected = nic.provider.as_bytes().ends_with(CONNECTED.as_bytes());
    let default = if is_connected { silence_max } else { Span(0) };
    let silence_max = settings.silence_max.unwrap_or(default);
    Config { provider, domain, silence_max, ..settings.config() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::ffi::CStr;

    #[test]
    fn silence_ends_rails_by_default_where_their_fence_is_our_own_act() {
        let of = |provider: &CStr, settings: &Settings| {
            let nic = Nic {
                provider: provider.to_owned(),
                domain: c"eth0".to_owned(),
                network: 1,
                network_name: "10.0.0.0/24".into(),
                reaches_own: true,
                reaches_others: true,
                speed_mbps: 0,
            };
            config_of(&nic, settings, Span::millis(6250)).silence_max
        };
        let unset = Settings::default();
        assert_eq!(of(c"tcp@msg", &unset), Span::millis(6250));
        assert_eq!(of(c"tcp;ofi_rxm", &unset), Span(0), "its fence is the peer's word");
        for silence_max in [Span(0), Span::millis(500)] {
            let set = Settings { silence_max: Some(silence_max), ..Settings::default() };
            assert_eq!([of(c"tcp@msg", &set), of(c"efa", &set)], [silence_max; 2]);
        }
    }
}
