//! What libfabric offers on this host. For open and for people: it allocates.

extern crate std;

use super::offer::hints_for;
use super::sys::abi::InfoRaw;
use super::sys::library::{VersionText, text};
use super::sys::{Library, numbers as n};
use super::{Config, OpenError, Step};
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
    let library = Library::load(config.library).map_err(OpenError::Library)?;
    let version = std::format!("{}", VersionText(library.version()));
    let at = |code| OpenError::Refused(Step::Offer, code);
    let hints = hints_for(&library, config, n::MSG | n::RMA).map_err(at)?;
    let mut offers: Vec<Offered> = Vec::new();
    let all = match library.offers(&hints) {
        Ok(all) => all,
        Err(super::sys::Code(n::ENODATA)) => return Ok(Survey { version, offers }),
        Err(code) => return Err(at(code)),
    };
    let mut next: *const InfoRaw = all.get();
    while !next.is_null() {
        // SAFETY: an offer of the list, which lives until the end of this function.
        let raw = unsafe { &*next };
        // SAFETY: the library allocates all parts of an offer.
        let domain = unsafe { &*raw.domain_attr };
        // SAFETY: as above, and their texts.
        let provider = unsafe { text((*raw.fabric_attr).prov_name) };
        // SAFETY: as above.
        let name = unsafe { text(domain.name) };
        let provider = String::from_utf8_lossy(provider.to_bytes()).into_owned();
        let name = String::from_utf8_lossy(name.to_bytes()).into_owned();
        // SAFETY: as above.
        let network = unsafe { text((*raw.fabric_attr).name) };
        let network = String::from_utf8_lossy(network.to_bytes()).into_owned();
        let endpoint_scoped = domain.mr_mode & n::MR_ENDPOINT != 0;
        let carries_words = domain.cq_data_size >= 8;
        match offers.iter_mut().find(|offer| offer.provider == provider) {
            Some(offer) if offer.domains.contains(&name) => {}
            Some(offer) => {
                offer.domains.push(name);
                offer.networks.push(network);
            }
            None => {
                let (domains, networks) = (std::vec![name], std::vec![network]);
                offers.push(Offered {
                    provider,
                    domains,
                    networks,
                    endpoint_scoped,
                    carries_words,
                });
            }
        }
        next = raw.next;
    }
    Ok(Survey { version, offers })
}
