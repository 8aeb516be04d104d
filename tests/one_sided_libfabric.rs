//! The acceptance table of one-sided operations over libfabric, by the software providers of
//! Debian's library. A program of its own: the library is loaded once in a process.
#![allow(dead_code)] // of the shared parts

mod group_support;
mod host_support;
mod libfabric_support;

use crosstie::host::DeviceKind;
use crosstie::host::endpoint::ConnectionRail;
use crosstie::provider::libfabric::survey::survey;
use crosstie::provider::libfabric::{Config, OpenError};
use group_support::suite::{Place, Rail, fill};
use libfabric_support::skip;
use std::ffi::CString;

const PROVIDERS: [(&str, &str); 2] = [("libfabric, rxm", "tcp;ofi_rxm"), ("libfabric, tcp", "tcp")];

#[test]
fn every_row_over_libfabric() {
    let mut rails = Vec::new();
    for (name, provider) in PROVIDERS {
        let wanted = CString::new(provider).expect("no zero");
        let config = Config { provider: Some(&wanted), ..Config::DEFAULT };
        match survey(&config) {
            Ok(found) if found.offers.iter().any(|offer| offer.provider == provider) => {}
            Ok(_) => {
                println!("SKIP: this libfabric has no {provider}");
                continue;
            }
            Err(error @ (OpenError::Library(_) | OpenError::NoOffer)) => {
                skip(&error.to_string());
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        let mut rail = Rail {
            settings: [
                ("CROSSTIE_RAILS", "libfabric"),
                ("CROSSTIE_SOCKET_IFNAME", "=lo"),
                ("CROSSTIE_OFI_PROVIDER", provider),
                ("CROSSTIE_OFI_DOMAINS", "lo"),
            ]
            .map(|(name, value)| (name, value.to_owned()))
            .to_vec(),
            place: Place::Private,
            carrier: Some(ConnectionRail::Libfabric),
            ..Rail::new(name, DeviceKind::Host, 2)
        };
        rail.options.limits.rails_max = 2;
        rails.push(rail);
    }
    fill(&rails);
}
