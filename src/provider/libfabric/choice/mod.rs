//! Which domains of libfabric are ports of an endpoint, and which of two hosts' reach each other.
//! For open and for people: it allocates, and reads files.

mod fork;
pub mod names;
pub(super) mod offer;
pub mod settings;
pub mod survey;

use super::{Config, LoadError, OpenError};
use crate::base::hash::fnv1a_128;
use settings::Settings;
use std::ffi::{CStr, CString};
use std::format;
use std::fs;
use std::path::Path;
use std::string::String;
use std::vec::Vec;
use survey::{Offered, refusal, survey};

/// Where the kernel shows devices.
pub const SYSFS: &str = "/sys";

/// Providers of NICs, each with the drivers of its devices as the kernel calls them: that of a PCI
/// function and that of the class behind it. `opx` is none of them: it reads what a call was given
/// after the call (`FI_ASYNC_IOV`).
const NICS: [(&CStr, &[&str]); 3] =
    [(EFA, &["efa"]), (c"cxi", &["cxi_ss1", "cxi_core"]), (c"psm3", &["hfi1"])];
const EFA: &CStr = c"efa";

/// A domain that can be a port.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Nic {
    /// Its provider.
    pub provider: CString,
    /// Its name there.
    pub domain: CString,
    /// The same of domains that reach each other: of their provider and network.
    pub network: u128,
    /// The network as the provider calls it.
    pub network_name: String,
    /// Whether it reaches ports of its own host.
    pub reaches_own: bool,
    /// Whether it reaches ports of other hosts.
    pub reaches_others: bool,
    /// How fast it is, in Mbit/s; 0: nobody says.
    pub speed_mbps: u32,
}

/// The drivers of this host's NICs, without asking libfabric: loading all of its providers takes
/// long, and most hosts have none.
fn drivers(sysfs: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for class in ["class/infiniband", "class/cxi"] {
        let Ok(devices) = fs::read_dir(sysfs.join(class)) else { continue };
        for device in devices.flatten() {
            if let Ok(driver) = fs::read_link(device.path().join("device/driver"))
                && let Some(name) = driver.file_name()
            {
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// The providers that this host's NICs are for, the best first.
pub fn nic_providers(sysfs: &Path) -> Vec<&'static CStr> {
    let drivers = drivers(sysfs);
    let is_here = |its: &[&str]| drivers.iter().any(|name| its.contains(&name.as_str()));
    NICS.iter().filter(|(_, its)| is_here(its)).map(|(provider, _)| *provider).collect()
}

/// How fast the device is that a domain is called after, as the kernel has it: `rdmap0s6-rdm` is
/// `rdmap0s6`.
fn kernel_speed_mbps(sysfs: &Path, domain: &str) -> u32 {
    let device = domain.split(['-', ';']).next().unwrap_or(domain);
    let files = [
        sysfs.join("class/infiniband").join(device).join("ports/1/rate"),
        sysfs.join("class/cxi").join(device).join("device/port/speed"),
    ];
    let mut texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    texts.find_map(|text| speed_mbps(&text)).unwrap_or(0)
}

/// `100 Gb/sec (4X EDR)`, `BS_200G`: in Gbit/s, and a bare number so large that it is none of them
/// in Mbit/s.
fn speed_mbps(text: &str) -> Option<u32> {
    let digits = text.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    match digits[..end].parse().ok()? {
        0 => None,
        number @ 1..5000 => Some(number * 1000),
        number => Some(number),
    }
}

/// What is left out if it is not named: what every host has, and calls the same.
fn is_of_the_host(domain: &str) -> bool {
    domain == "lo" || domain.starts_with("docker")
}

fn nic_of(offer: &Offered, at: usize) -> Option<Nic> {
    let (domain, network) = (offer.domains[at].as_str(), offer.networks[at].as_str());
    let speed_mbps = offer.speeds_mbps[at];
    let own_host_alone = domain == "lo" || offer.provider.starts_with("shm");
    Some(Nic {
        provider: CString::new(offer.provider.as_str()).ok()?,
        domain: CString::new(domain).ok()?,
        network: fnv1a_128([offer.provider.as_bytes(), &[0], network.as_bytes()]),
        network_name: network.into(),
        reaches_own: offer.reaches_own,
        reaches_others: !own_host_alone,
        speed_mbps,
    })
}

/// The domains of an offer that the user wants.
fn nics_of(offer: &Offered, settings: &Settings) -> Vec<Nic> {
    let all = &offer.domains;
    if settings.domains.is_empty() {
        let kept = (0..all.len()).filter(|at| !is_of_the_host(&all[*at]));
        return kept.filter_map(|at| nic_of(offer, at)).collect();
    }
    let named = settings.domains.iter().filter_map(|name| {
        nic_of(offer, all.iter().position(|domain| domain.as_bytes() == name.to_bytes())?)
    });
    named.collect()
}

/// Why there is no domain to be had.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum NoNic {
    /// Nobody asked for one, and the host has no such NIC.
    NotWanted,
    /// libfabric cannot be asked.
    Error(OpenError),
    /// It has no such provider, or none that can carry a rail: why, and what it has, in words.
    NoProvider(String),
    /// The provider is there, and none of its domains is wanted; what it has, in words.
    NoDomain(String),
}

impl NoNic {
    /// Why nothing that these settings ask for is to be had, for people.
    pub fn words(&self, settings: &Settings) -> String {
        let of = |name: &CString| name.to_string_lossy().into_owned();
        let domains: Vec<_> = settings.domains.iter().map(of).collect();
        let domains = domains.join(",");
        let provider = settings.provider.as_ref().map(of);
        match (self, provider) {
            (NoNic::NotWanted, _) => "no setting asks for libfabric, and no NIC needs it".into(),
            (NoNic::Error(error), _) => match &settings.library {
                // who cannot load it names it
                Some(file) if !matches!(error, OpenError::Library(LoadError::Missing(..))) => {
                    format!("{error}; CROSSTIE_OFI_LIBRARY={}", of(file))
                }
                Some(_) | None => format!("{error}"),
            },
            (NoNic::NoProvider(what), Some(provider)) => format!(
                "there is no provider {provider} that can carry a rail (CROSSTIE_OFI_PROVIDER); \
                 {what}"
            ),
            (NoNic::NoProvider(what), None) => {
                format!("no provider of a NIC; {what}; CROSSTIE_OFI_PROVIDER can name one")
            }
            (NoNic::NoDomain(what), _) if !domains.is_empty() => {
                format!("no domain of CROSSTIE_OFI_DOMAINS={domains} is there; {what}")
            }
            (NoNic::NoDomain(what), _) => {
                format!(
                    "domains over lo and docker are used only where CROSSTIE_OFI_DOMAINS names \
                     them; {what}"
                )
            }
        }
    }
}

/// The domains that the user wants, or, where none is named, those of this host's NICs. `asked`: a
/// provider is to be found also where the kernel shows no NIC of one.
pub fn choose(settings: &Settings, sysfs: &Path, asked: bool) -> Result<Vec<Nic>, NoNic> {
    let wanted = match &settings.provider {
        Some(provider) => std::vec![provider.as_c_str()],
        None if asked => NICS.iter().map(|(provider, _)| *provider).collect(),
        None => nic_providers(sysfs),
    };
    if wanted.is_empty() {
        return Err(NoNic::NotWanted);
    }
    if nic_providers(sysfs).contains(&EFA) {
        fork::permit();
    }
    let mut others = Vec::new();
    for provider in wanted.iter().copied() {
        let config = Config { provider: Some(provider), ..settings.config() };
        let found = survey(&config).map_err(NoNic::Error)?;
        for offer in &found.offers {
            if is_of(offer, provider) {
                let mut nics = nics_of(offer, settings);
                if !nics.is_empty() {
                    for nic in nics.iter_mut().filter(|nic| nic.speed_mbps == 0) {
                        nic.speed_mbps = kernel_speed_mbps(sysfs, &nic.domain.to_string_lossy());
                    }
                    return Ok(nics);
                }
                let text = format!("{} over {}", offer.provider, offer.domains.join(", "));
                others.push(text);
            }
        }
    }
    if !others.is_empty() {
        return Err(NoNic::NoDomain(format!("libfabric has {}", others.join("; "))));
    }
    let all = survey(&settings.config_of_any()).map_or(Vec::new(), |all| all.offers);
    let names: Vec<_> = all.into_iter().map(|offer| offer.provider).collect();
    let what = match names.is_empty() {
        true => "libfabric has none that can".into(),
        false => format!("libfabric has {}", names.join(", ")),
    };
    Err(NoNic::NoProvider(format!("{}{what}", refusals(settings, &wanted))))
}

impl Settings {
    /// Which of the domains that are named are not there, beside those that are; in a sentence.
    pub fn missing_words(&self, nics: &[Nic]) -> Option<String> {
        let names = self.missing_domains(|name| nics.iter().any(|nic| *nic.domain == *name));
        let provider = nics.first().filter(|_| !names.is_empty())?.provider.to_string_lossy();
        Some(format!("CROSSTIE_OFI_DOMAINS names domains that {provider} does not have: {names}"))
    }

    /// Which settings are passed over where nobody asks for libfabric, and it is not used; a
    /// sentence of each.
    pub fn unused_words(&self) -> Vec<String> {
        let set = [
            (self.library.is_some(), "CROSSTIE_OFI_LIBRARY"),
            (!self.domains.is_empty(), "CROSSTIE_OFI_DOMAINS"),
            (self.silence_max.is_some(), "CROSSTIE_OFI_SILENCE_MS"),
        ];
        let set = set.iter().filter(|(is_set, _)| *is_set);
        set.map(|(_, name)| {
            format!(
                "{name} has no effect: libfabric is not used; CROSSTIE_OFI_PROVIDER, or \
                 CROSSTIE_RAILS=libfabric, asks for it"
            )
        })
        .collect()
    }
}

/// `opx: the libfabric provider wants ...; `: why those that are there carry no rail.
fn refusals(settings: &Settings, wanted: &[&CStr]) -> String {
    let of = |name: &&CStr| {
        let why = refusal(&Config { provider: Some(name), ..settings.config() })?;
        Some(format!("{}: {why}; ", name.to_string_lossy()))
    };
    wanted.iter().filter_map(of).collect()
}

/// Whether an offer is of a provider of that name, or of what stands on top of it.
fn is_of(offer: &Offered, provider: &CStr) -> bool {
    let rest = offer.provider.as_bytes().strip_prefix(provider.to_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b';')
}

impl Settings {
    fn config_of_any(&self) -> Config<'_> {
        Config { provider: None, ..self.config() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sys::numbers::version;
    use super::offer::reaches_own;
    use super::*;
    use std::borrow::ToOwned;
    use std::string::ToString;
    use std::vec;

    fn offer(provider: &str, domains: &[(&str, &str)]) -> Offered {
        Offered {
            provider: provider.into(),
            domains: domains.iter().map(|(domain, _)| domain.to_string()).collect(),
            networks: domains.iter().map(|(_, network)| network.to_string()).collect(),
            speeds_mbps: vec![0; domains.len()],
            reaches_own: true,
            endpoint_scoped: false,
            carries_words: true,
        }
    }

    const TWO: [(&str, &str); 3] =
        [("lo", "127.0.0.0/8"), ("eth0", "10.0.0.0/24"), ("eth1", "10.0.1.0/24")];

    #[test]
    fn domains_that_every_host_has_must_be_named() {
        let offer = offer("tcp;ofi_rxm", &TWO);
        let names = |settings: &Settings| -> Vec<CString> {
            nics_of(&offer, settings).into_iter().map(|nic| nic.domain).collect()
        };
        assert_eq!(names(&Settings::default()), [c"eth0".to_owned(), c"eth1".to_owned()]);
        let domains = vec![c"lo".to_owned(), c"eth7".to_owned(), c"lo".to_owned()];
        let named = Settings { domains, ..Settings::default() };
        assert_eq!(names(&named), [c"lo".to_owned(), c"lo".to_owned()]);
        assert!(nics_of(&offer, &named).iter().all(|nic| nic.reaches_own && !nic.reaches_others));
    }

    #[test]
    fn what_stands_on_top_of_a_provider_is_of_its_name() {
        let matches = |name: &str, wanted| is_of(&offer(name, &TWO), wanted);
        assert!(matches("tcp", c"tcp") && matches("tcp;ofi_rxm", c"tcp"));
        assert!(!matches("tcp2", c"tcp"));
    }

    /// `crosstie info` said of a provider whose domains are others that it is not there.
    #[test]
    fn what_is_not_there_is_named_as_what_it_is() {
        let provider = Some(c"psm3".to_owned());
        let asked = Settings { provider, ..Settings::default() };
        let said = NoNic::NoProvider("libfabric has shm".into()).words(&asked);
        assert_eq!(
            said,
            "there is no provider psm3 that can carry a rail (CROSSTIE_OFI_PROVIDER); libfabric \
             has shm"
        );
        let asked = Settings { domains: vec![c"eth9".to_owned(), c"eth8".to_owned()], ..asked };
        let said = NoNic::NoDomain("libfabric has tcp over lo".into()).words(&asked);
        let text =
            "no domain of CROSSTIE_OFI_DOMAINS=eth9,eth8 is there; libfabric has tcp over lo";
        assert_eq!(said, text);
        let said = NoNic::NoProvider("libfabric has tcp".into()).words(&Settings::default());
        assert!(said.starts_with("no provider of a NIC; libfabric has tcp"), "{said}");
    }

    #[test]
    fn networks_differ_by_provider_and_name() {
        let of = |provider: &str| nics_of(&offer(provider, &TWO), &Settings::default());
        let (tcp, psm3) = (of("tcp;ofi_rxm"), of("psm3"));
        assert_eq!(tcp[0].network, of("tcp;ofi_rxm")[0].network);
        assert_ne!(tcp[0].network, tcp[1].network);
        assert_ne!(tcp[0].network, psm3[0].network);
        let reaches = |provider, minor| reaches_own(provider, version(1, minor));
        assert!(!reaches(c"cxi", 22) && !reaches(c"efa", 20) && reaches(c"efa", 21));
        assert!(reaches(c"tcp", 17) && tcp[0].reaches_own);
    }

    #[cfg(not(miri))]
    #[test]
    fn host_without_such_a_nic_asks_libfabric_nothing() {
        let root = std::env::temp_dir().join(std::format!("crosstie-nics-{}", std::process::id()));
        let device = root.join("class/infiniband/rdmap0/device");
        fs::create_dir_all(&device).unwrap();
        assert_eq!(nic_providers(&root), [] as [&CStr; 0]);
        let missing = Settings { library: Some(c"/none".to_owned()), ..Settings::default() };
        assert_eq!(choose(&missing, &root, false), Err(NoNic::NotWanted));
        std::os::unix::fs::symlink("../../../bus/pci/drivers/efa", device.join("driver")).unwrap();
        assert_eq!(nic_providers(&root), [c"efa"]);
        let refused = choose(&missing, &root, false);
        assert!(matches!(refused, Err(NoNic::Error(OpenError::Library(_)))), "{refused:?}");
        // or else it would end the process at its next fork
        assert_eq!(std::env::var(fork::SAFE).as_deref(), Ok("1"));
        fs::remove_dir_all(&root).unwrap();
    }

    /// A Slingshot NIC is a device of its class, whose driver is that of its PCI function.
    #[cfg(not(miri))]
    #[test]
    fn slingshot_is_known_by_either_driver() {
        let root = std::env::temp_dir().join(std::format!("crosstie-cxi-{}", std::process::id()));
        for driver in ["cxi_ss1", "cxi_core"] {
            let device = root.join("class/cxi/cxi0/device");
            fs::create_dir_all(device.join("port")).unwrap();
            let link = std::format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(link, device.join("driver")).unwrap();
            fs::write(device.join("port/speed"), "BS_200G\n").unwrap();
            assert_eq!(nic_providers(&root), [c"cxi"], "{driver}");
            assert_eq!(kernel_speed_mbps(&root, "cxi0"), 200_000);
            fs::remove_dir_all(&root).unwrap();
        }
        assert_eq!(kernel_speed_mbps(&root, "cxi0"), 0);
    }

    #[test]
    fn speed_is_read_as_the_kernel_writes_it() {
        assert_eq!(speed_mbps("100 Gb/sec (4X EDR)\n"), Some(100_000));
        assert_eq!(speed_mbps("BS_400G"), Some(400_000));
        assert_eq!(speed_mbps("25000\n"), Some(25_000));
        assert_eq!(speed_mbps("0"), None);
        assert_eq!(speed_mbps("unknown"), None);
    }
}
