//! What `crosstie info` says of libfabric: its providers that can carry a rail, or why there are
//! none.
#![forbid(unsafe_code)]

use super::network::Towards;
use super::section::{Line, Section, line};
use crosstie::host::plan::Plan;
use crosstie::host::settings::{Environment, environment};
use crosstie::provider::libfabric::Config;
use crosstie::provider::libfabric::choice::{Nic, NoNic, SYSFS, choose};
use crosstie::provider::libfabric::survey::{Offered, Survey, survey};
use crosstie::wire::pair::PORTS_MAX;
use std::path::Path;

/// What this version does with them.
const USE: &str = "rails beside tcp: by default of a NIC that nothing else reaches, else of the \
                   provider that CROSSTIE_OFI_PROVIDER names; the usable ones are below";

/// Each provider of this host. `plan`: what an endpoint uses; none: none opens.
pub fn section(plan: Option<&Plan>) -> Section {
    let settings = environment();
    let config = Config { provider: None, ..settings.libfabric.config() };
    let planned = plan.map(Plan::libfabric).unwrap_or_default();
    // else for the reason
    let nics = if planned.is_empty() { find(&settings) } else { Ok(planned.clone()) };
    let used = line("used", used(&planned, &nics, &settings));
    let lines = match survey(&config) {
        Ok(survey) => {
            let mut lines = vec![line("use", USE), used];
            lines.extend(described(&survey));
            lines.extend(not_there(&nics, &settings, &survey));
            lines
        }
        Err(error) => vec![used, line("library", error.to_string())],
    };
    Section { name: "libfabric", lines }
}

fn described(survey: &Survey) -> Vec<Line> {
    let mut lines = vec![line("library", survey.version.clone())];
    if survey.offers.is_empty() {
        lines.push(line("providers", "none that has what a rail needs"));
    }
    lines.extend(survey.offers.iter().map(|offer| line(&offer.provider, offer_text(offer))));
    lines
}

type Found = Result<Vec<Nic>, NoNic>;

/// Whether somebody asks for libfabric, whatever NICs there are.
fn is_asked(settings: &Environment) -> bool {
    settings.libfabric_named || settings.libfabric.provider.is_some()
}

fn find(settings: &Environment) -> Found {
    choose(&settings.libfabric, Path::new(SYSFS), is_asked(settings))
}

/// The domains that an endpoint uses, or why it uses none: `found` are those that there are.
fn used(planned: &[Nic], found: &Found, settings: &Environment) -> String {
    let over = |nics: &[Nic]| {
        let provider = nics.first().map_or("".into(), |nic| nic.provider.to_string_lossy());
        format!("{provider} over {}", nics.iter().map(domain_of).collect::<Vec<_>>().join(", "))
    };
    match found {
        _ if !settings.rails.libfabric => "none: CROSSTIE_RAILS leaves out libfabric".into(),
        _ if !planned.is_empty() => over(planned),
        Ok(nics) => {
            let why = match is_asked(settings) {
                true => "CROSSTIE_LOG=info says why when an endpoint opens",
                false => "RDMA ports are used, and no setting asks for libfabric",
            };
            format!("none: there is {}; {why}", over(nics))
        }
        Err(why) => format!("none: {}", why.words(&settings.libfabric)),
    }
}

/// `eth0 (network 10.0.0.0/24)`.
fn domain_of(nic: &Nic) -> String {
    format!("{} (network {})", nic.domain.to_string_lossy(), nic.network_name)
}

/// Which domains of an endpoint would be rails to a peer, or why none. The peer tells its own when
/// it is connected to, and not before.
pub(super) fn towards(settings: &Environment, plan: Option<&Plan>, peer: &Towards) -> String {
    if let Some(why) = peer.none_beside_tcp(settings.rails, settings.rails.libfabric) {
        return why.into();
    }
    match plan.map(Plan::libfabric).unwrap_or_default() {
        none if none.is_empty() => used(&none, &find(settings), settings),
        nics => pairs(&nics, peer),
    }
}

/// What each domain would be paired with.
fn pairs(nics: &[Nic], peer: &Towards) -> String {
    let provider = nics.first().map_or("".into(), |nic| nic.provider.to_string_lossy());
    let names: Vec<_> = nics.iter().map(|nic| towards_of(nic, peer)).collect();
    let names = names.join(", ");
    if !nics.iter().any(|nic| reaches(nic, peer)) {
        return format!("none: {provider} has {names}");
    }
    format!(
        "{provider} over {names}, each with a domain of the peer that has the same provider and \
         network, up to rails_max (default 2, and tcp takes one); the peer's domains are known \
         only when it is connected (`crosstie info --all` there has them at `used`)"
    )
}

const fn reaches(nic: &Nic, peer: &Towards) -> bool {
    if peer.own { nic.reaches_own } else { nic.reaches_others }
}

/// `eth0 (network 10.0.0.0/24, in which 10.0.0.7 is)`.
fn towards_of(nic: &Nic, peer: &Towards) -> String {
    let (domain, network) = (nic.domain.to_string_lossy(), &nic.network_name);
    if !reaches(nic, peer) {
        let whom = if peer.own { "other hosts" } else { "this host" };
        return format!("{domain} (which reaches {whom} alone)");
    }
    let subnet = network.split_once('/');
    let subnet = subnet.and_then(|(ip, bits)| Some((ip.parse().ok()?, bits.parse().ok()?)));
    let Some((of, bits)) = subnet else { return domain_of(nic) };
    format!("{domain} (network {network}{})", peer.in_subnet(of, bits))
}

/// What settings name and is not there, where no other line says so.
fn not_there(nics: &Found, settings: &Environment, survey: &Survey) -> Option<Line> {
    let Environment { rails, libfabric: settings, .. } = settings;
    if let Err(why @ (NoNic::NoProvider(_) | NoNic::NoDomain(_))) = nics {
        // the line of what is used has said it
        return (!rails.libfabric).then(|| line("not there", why.words(settings)));
    }
    let missing = settings.missing_domains(|name| {
        let has = |offer: &Offered| offer.domains.iter().any(|it| it.as_bytes() == name.to_bytes());
        match nics {
            Ok(nics) => nics.iter().any(|nic| *nic.domain == *name),
            Err(_) => survey.offers.iter().any(has),
        }
    });
    let text = || format!("{missing} (CROSSTIE_OFI_DOMAINS asks for it)");
    (!missing.is_empty()).then(|| line("not there", text()))
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
    use core::net::IpAddr;
    use crosstie::host::device::Rails;
    use crosstie::provider::libfabric::settings::Settings;
    use std::ffi::{CStr, CString};

    /// It was shown as set, and nothing more.
    #[test]
    fn domain_that_no_provider_has_is_a_line() {
        let survey = Survey { version: "1.17".into(), offers: Vec::new() };
        let nobody_asks = Err(NoNic::NotWanted);
        let of = |domains: &[&CStr]| {
            let domains = domains.iter().map(|name| CString::from(*name)).collect();
            let libfabric = Settings { domains, ..Settings::default() };
            Environment { libfabric, ..Environment::default() }
        };
        let line = not_there(&nobody_asks, &of(&[c"eth9"]), &survey).unwrap();
        assert_eq!(line.text, "eth9 (CROSSTIE_OFI_DOMAINS asks for it)");
        assert!(not_there(&nobody_asks, &of(&[]), &survey).is_none());
    }

    /// It was there as often as the setting names it.
    #[test]
    fn missing_domain_that_is_named_twice_is_said_once() {
        let survey = Survey { version: "1.17".into(), offers: Vec::new() };
        let domains = [c"eth9", c"eth8", c"eth9"].map(CString::from).into();
        let libfabric = Settings { domains, ..Settings::default() };
        let environment = Environment { libfabric, ..Environment::default() };
        let line = not_there(&Err(NoNic::NotWanted), &environment, &survey).unwrap();
        assert_eq!(line.text, "eth8, eth9 (CROSSTIE_OFI_DOMAINS asks for it)");
    }

    /// `used` and `not there` said two things of it, of which one was not so where the provider is
    /// there and its domains are others.
    #[test]
    fn what_is_asked_for_and_not_there_is_one_line() {
        let survey = Survey { version: "1.17".into(), offers: Vec::new() };
        let provider = Some(c"none-such".into());
        let libfabric = Settings { provider, ..Settings::default() };
        let environment = Environment { libfabric, ..Environment::default() };
        for why in [NoNic::NoProvider("it has tcp".into()), NoNic::NoDomain("it has tcp".into())] {
            let nics = Err(why);
            let used = used(&[], &nics, &environment);
            assert!(used.starts_with("none: ") && used.ends_with("; it has tcp"), "{used}");
            assert!(not_there(&nics, &environment, &survey).is_none());
        }
    }

    fn nic(domain: &str, network: &str) -> Nic {
        Nic {
            provider: c"tcp".into(),
            domain: CString::new(domain).unwrap(),
            network: 1,
            network_name: network.into(),
            reaches_own: true,
            reaches_others: domain != "lo",
            speed_mbps: 0,
        }
    }

    #[test]
    fn domains_that_an_endpoint_does_without_are_named_with_the_reason() {
        let nics = [nic("eth0", "a"), nic("eth1", "b")];
        let of = |planned: &[Nic], provider: Option<&CStr>| {
            let libfabric =
                Settings { provider: provider.map(CString::from), ..Settings::default() };
            let environment = Environment { libfabric, ..Environment::default() };
            used(planned, &Ok(nics.to_vec()), &environment)
        };
        assert_eq!(of(&nics[..1], None), "tcp over eth0 (network a)");
        let none = "none: there is tcp over eth0 (network a), eth1 (network b); ";
        assert_eq!(
            of(&[], None),
            format!("{none}RDMA ports are used, and no setting asks for libfabric")
        );
        assert!(of(&[], Some(c"tcp")).starts_with(&format!("{none}CROSSTIE_LOG=info")));
    }

    #[test]
    fn domains_towards_a_peer_are_said_with_what_speaks_for_them() {
        let ips = [IpAddr::from([10, 1, 0, 9])];
        let nics = [
            nic("lo", "127.0.0.0/8"),
            nic("eth0", "10.1.0.0/24"),
            nic("eth1", "10.2.0.0/24"),
            nic("rdmap0s6-rdm", "efa"),
        ];
        let text = |nics: &[Nic], own| pairs(nics, &Towards { ips: &ips, own, tcp: true });
        let wanted = "tcp over lo (which reaches this host alone), \
                      eth0 (network 10.1.0.0/24, in which 10.1.0.9 is), \
                      eth1 (network 10.2.0.0/24, in which none of these addresses is), \
                      rdmap0s6-rdm (network efa), each with a domain of the peer";
        assert!(text(&nics, false).starts_with(wanted), "{}", text(&nics, false));
        let none = "none: tcp has lo (which reaches this host alone)";
        assert_eq!(text(&nics[..1], false), none);
        assert!(text(&nics[..1], true).starts_with("tcp over lo (network 127.0.0.0/8, in which "));
    }

    /// Nothing was said of libfabric.
    #[test]
    fn rails_that_a_peer_does_not_get_are_said_with_the_reason() {
        let ips = [IpAddr::from([10, 1, 0, 9])];
        let without = Rails { tcp: true, ..Rails::NONE };
        for (rails, own, tcp, wanted) in [
            (Rails::ALL, true, true, "none: the peer is on this host, and shm is allowed"),
            (
                Rails::ALL,
                false,
                false,
                "none: tcp, over which such rails are set up, leads nowhere",
            ),
            (without, true, true, "none: CROSSTIE_RAILS leaves out libfabric"),
        ] {
            let settings = Environment { rails, ..Environment::default() };
            assert_eq!(towards(&settings, None, &Towards { ips: &ips, own, tcp }), wanted);
        }
    }

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
            described(survey).into_iter().map(|line| (line.name, line.text)).collect()
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
