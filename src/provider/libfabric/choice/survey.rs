//! What libfabric offers on this host. For open and for people: it allocates.

use super::offer::{
    carries_words, check, choose, hints_for, is_other_network, is_there, reaches_own, speed_mbps,
};
use crate::provider::libfabric::sys::abi::InfoRaw;
use crate::provider::libfabric::sys::library::{VersionText, text};
use crate::provider::libfabric::sys::{Code, Library, numbers as n};
use crate::provider::libfabric::{Config, Limits, OpenError, Step};
use core::ffi::CStr;
use std::string::String;
use std::vec::Vec;

/// A provider, and what it can be opened on.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Offered {
    /// Its name.
    pub provider: String,
    /// Its domains: interfaces or NICs.
    pub domains: Vec<String>,
    /// The network of each: domains of a provider and one network reach each other.
    pub networks: Vec<String>,
    /// How fast the NIC of each is, in Mbit/s; 0: the provider does not say.
    pub speeds_mbps: Vec<u32>,
    /// Whether its endpoints reach those of their own host as they reach others.
    pub reaches_own: bool,
    /// Whether its registrations belong to endpoints.
    pub endpoint_scoped: bool,
    /// Whether it carries a word of 64 bits with a write.
    pub carries_words: bool,
}

/// What there is.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Survey {
    /// The library's version.
    pub version: String,
    /// What a rail can be opened on.
    pub offers: Vec<Offered>,
}

/// Asks the library.
pub fn survey(config: &Config) -> Result<Survey, OpenError> {
    survey_of(config, n::MSG | n::RMA)
}

/// Whether a domain of a provider takes memory of GPUs, as the library says where it finds the
/// driver of CUDA.
pub fn takes_gpus(config: &Config, domain: &CStr) -> bool {
    let Ok(found) = survey_of(config, n::MSG | n::RMA | n::HMEM) else { return false };
    let has = |offer: &Offered| offer.domains.iter().any(|it| it.as_bytes() == domain.to_bytes());
    found.offers.iter().any(has)
}

fn survey_of(config: &Config, caps: u64) -> Result<Survey, OpenError> {
    let library = Library::load(config.library).map_err(OpenError::Library)?;
    let version = std::format!("{}", VersionText(library.version()));
    let mut offers: Vec<Offered> = Vec::new();
    let at = |code| OpenError::Refused(Step::Offer, code);
    let hints = hints_for(&library, config, caps).map_err(at)?;
    let all = match library.offers(&hints) {
        Ok(all) => all,
        Err(Code(n::ENODATA)) => return Ok(Survey { version, offers }),
        Err(code) => return Err(at(code)),
    };
    let mut next: *const InfoRaw = all.get();
    while !next.is_null() {
        // SAFETY: an offer of the list, which lives until this returns.
        let raw = unsafe { &*next };
        take(&mut offers, raw, library.version());
        next = raw.next;
    }
    Ok(Survey { version, offers })
}

/// Why no rail opens on the provider that is asked for. `None`: one does, or there is no such
/// provider.
pub fn refusal(config: &Config) -> Option<OpenError> {
    let library = Library::load(config.library).ok()?;
    // what every rail needs, as `survey` has it
    let limits = Limits { peers_max: 1, regions_max: 1, payload_bytes_max: 0 };
    match choose(&library, config, &limits).err()? {
        OpenError::NoOffer => is_there(&library, config).then_some(OpenError::NoOffer),
        error => Some(error),
    }
}

/// Adds one offer, unless it could carry no rail.
fn take(offers: &mut Vec<Offered>, raw: &InfoRaw, version: u32) {
    if check(raw, 0).is_err() || is_other_network(raw) {
        return;
    }
    // SAFETY: the library allocates all parts of an offer.
    let (domain, fabric) = unsafe { (&*raw.domain_attr, &*raw.fabric_attr) };
    // SAFETY: and their texts, which live as long.
    let [provider, name, network] =
        [fabric.prov_name, domain.name, fabric.name].map(|part| unsafe { text(part) });
    let reaches_own = reaches_own(provider, version);
    let words = |part: &CStr| String::from_utf8_lossy(part.to_bytes()).into_owned();
    let (provider, name, network) = (words(provider), words(name), words(network));
    let endpoint_scoped = domain.mr_mode & n::MR_ENDPOINT != 0;
    let (carries_words, speed) = (carries_words(raw), speed_mbps(raw, version));
    match offers.iter_mut().find(|offer| offer.provider == provider) {
        Some(offer) if offer.domains.contains(&name) => {}
        Some(offer) => {
            offer.domains.push(name);
            offer.networks.push(network);
            offer.speeds_mbps.push(speed);
        }
        None => {
            let (domains, networks) = (std::vec![name], std::vec![network]);
            offers.push(Offered {
                provider,
                domains,
                networks,
                speeds_mbps: std::vec![speed],
                reaches_own,
                endpoint_scoped,
                carries_words,
            });
        }
    }
}
