//! What `crosstie info` says of libfabric: its providers that can carry a rail, or why there are
//! none.
#![forbid(unsafe_code)]

extern crate std;

use super::info::{Line, Section, line};
use crate::host::settings::environment;
use crate::provider::libfabric::Config;
use crate::provider::libfabric::survey::{Offered, Survey, survey};
use crate::wire::pair::PORTS_MAX;
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

/// What this version does with them.
const USE: &str = "rails beside tcp: by default of a NIC that has no other, else of the provider \
                   that CROSSTIE_OFI_PROVIDER names; below is what one can be of";
/// The same where a setting leaves them out.
const NO_USE: &str = "none: CROSSTIE_RAILS leaves out libfabric; below is what one could be of";

/// Each provider of this host.
pub fn section() -> Section {
    let settings = environment();
    let used = if settings.rails.libfabric { USE } else { NO_USE };
    let config = Config { provider: None, ..settings.libfabric.config() };
    let lines = match survey(&config) {
        Ok(survey) => described(used, &survey),
        Err(error) => vec![line("library", error.to_string())],
    };
    Section { name: "libfabric", lines }
}

fn described(used: &str, survey: &Survey) -> Vec<Line> {
    let mut lines = vec![line("use", used), line("library", survey.version.clone())];
    if survey.offers.is_empty() {
        lines.push(line("providers", "none that has what a rail needs"));
    }
    lines.extend(survey.offers.iter().map(|offer| line(&offer.provider, offer_text(offer))));
    lines
}

fn offer_text(offer: &Offered) -> String {
    let memory =
        if offer.endpoint_scoped { "memory bound to endpoints" } else { "memory of domains" };
    let words = if offer.carries_words { "words with writes" } else { "words behind writes" };
    let domains = offer.domains.iter().zip(&offer.speeds_mbps);
    let domains: Vec<_> = domains.map(|(domain, speed)| domain_text(domain, *speed)).collect();
    let left_out = match domains.len() > PORTS_MAX {
        true => format!("; an endpoint uses {PORTS_MAX} at most (CROSSTIE_OFI_DOMAINS chooses)"),
        false => String::new(),
    };
    format!("{memory}, {words}; over {}{left_out}", domains.join(", "))
}

fn domain_text(domain: &str, speed_mbps: u32) -> String {
    match speed_mbps {
        0 => domain.into(),
        1..1000 => format!("{domain} ({speed_mbps} Mbit/s)"),
        1000.. => format!("{domain} ({} Gbit/s)", speed_mbps / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_is_a_line_and_none_is_one_too() {
        let offer = Offered {
            provider: "tcp;ofi_rxm".into(),
            domains: vec!["eth0".into(), "lo".into()],
            networks: vec!["10.0.0.0/24".into(), "127.0.0.0/8".into()],
            speeds_mbps: vec![200_000, 0],
            reaches_own: true,
            endpoint_scoped: false,
            carries_words: true,
        };
        let mut survey = Survey { version: "1.17".into(), offers: vec![offer] };
        let texts = |survey: &Survey| -> Vec<(String, String)> {
            described(USE, survey).into_iter().map(|line| (line.name, line.text)).collect()
        };
        let last = texts(&survey).pop().unwrap();
        assert_eq!(last.0, "tcp;ofi_rxm");
        assert_eq!(last.1, "memory of domains, words with writes; over eth0 (200 Gbit/s), lo");
        let many: Vec<String> = (0..=PORTS_MAX).map(|n| format!("eth{n}")).collect();
        (survey.offers[0].domains, survey.offers[0].speeds_mbps) = (many, vec![0; PORTS_MAX + 1]);
        let last = texts(&survey).pop().unwrap();
        assert!(
            last.1.ends_with("eth7; an endpoint uses 7 at most (CROSSTIE_OFI_DOMAINS chooses)")
        );
        survey.offers.clear();
        assert_eq!(texts(&survey).pop().unwrap().1, "none that has what a rail needs");
    }
}
