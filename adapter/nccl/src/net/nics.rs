//! NICs that libfabric reaches as devices: each domain of its provider is one, where somebody asks
//! for libfabric, or where no RDMA port works and there is such a NIC.
#![forbid(unsafe_code)]

use super::device::{self, Device, GpuWay, Reach, SPEED_MBPS_DEFAULT};
use super::kind::Kind;
use super::log;
use crate::driver;
use crosstie::connect::interfaces::{InterfaceAddress, Interfaces, all_addresses};
use crosstie::provider::libfabric::Config;
use crosstie::provider::libfabric::choice::{Nic, NoNic, SYSFS, choose};
use crosstie::provider::libfabric::names::NicNames;
use crosstie::provider::libfabric::settings::Settings;
use crosstie::provider::libfabric::survey::takes_gpus;
use crosstie::provider::verbs::choice::Cabling;
use std::path::{Path, PathBuf};

/// Whether somebody asks for libfabric, so that its NICs come before RDMA ports.
pub fn is_asked() -> bool {
    let its = crosstie::host::settings::environment();
    its.rails.libfabric && (its.libfabric_named || its.libfabric.provider.is_some())
}

/// The devices that libfabric's domains are. Says why there are none where somebody asked.
pub fn survey(reach: &Reach) -> Vec<Device> {
    let its = crosstie::host::settings::environment();
    if !its.rails.libfabric || !its.rails.tcp {
        return Vec::new();
    }
    let why = match choose(&its.libfabric, Path::new(SYSFS), its.libfabric_named) {
        Ok(nics) => {
            its.libfabric.missing_words(&nics).iter().for_each(|text| log::warn(text));
            let addresses = all_addresses().unwrap_or_default();
            return devices(&nics, reach, &addresses, |nic| gpu_way(&its.libfabric, nic));
        }
        Err(NoNic::NotWanted) => {
            its.libfabric.unused_words().iter().for_each(|text| log::warn(text));
            return Vec::new();
        }
        Err(why) => why.words(&its.libfabric),
    };
    let text = match its.required.libfabric {
        true => format!(
            "libfabric has no device, and CROSSTIE_RAILS_REQUIRED names libfabric: no device \
             opens ({why})"
        ),
        false => format!("libfabric has no device ({why})"),
    };
    if is_asked() {
        log::warn(&text)
    } else {
        log::info(&text)
    }
    Vec::new()
}

/// How a NIC takes memory of GPUs.
fn gpu_way(settings: &Settings, nic: &Nic) -> GpuWay {
    let config = Config { provider: Some(&nic.provider), ..settings.config() };
    match driver::is_wanted() && takes_gpus(&config, &nic.domain) {
        true => GpuWay::Address,
        false => GpuWay::None,
    }
}

fn devices(
    nics: &[Nic],
    reach: &Reach,
    addresses: &[InterfaceAddress],
    gpu_way: impl Fn(&Nic) -> GpuWay,
) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for nic in nics {
        let Some(names) = NicNames::one(&nic.provider, &nic.domain) else { continue };
        let domain = nic.domain.to_string_lossy().into_owned();
        // NCCL tells devices apart by their names
        let again = devices.iter().filter(|it| it.name.to_string_lossy().starts_with(&domain));
        let name = match again.count() {
            0 => domain.clone(),
            before => format!("{domain}#{}", before + 1),
        };
        let its = addresses.iter().find(|address| address.name.as_str() == domain);
        let its = its.map_or(Interfaces::NONE, |address| Interfaces::one(address.name));
        let pci = pci_path(&domain);
        let pci = pci.as_deref().and_then(Path::to_str);
        devices.push(Device {
            name: device::kept(&name),
            kind: Kind::Nics {
                nics: names,
                reserve: reach.beside(its),
                leads_out: nic.reaches_others,
            },
            members: device::own(devices.len()),
            pci_path: pci.map(device::kept),
            guid: device::guid(pci, &name),
            speed_mbps: speed_of(nic),
            port: 1,
            spare: reach.choice,
            family: reach.family,
            cabling: Cabling::default(),
            gpus: gpu_way(nic),
        });
    }
    devices
}

/// NCCL plans by it. Those who do not know it say ten Gbit/s, as of an Ethernet that does not.
fn speed_of(nic: &Nic) -> i32 {
    match i32::try_from(nic.speed_mbps) {
        Ok(speed) if speed > 0 => speed,
        Ok(_) | Err(_) => SPEED_MBPS_DEFAULT,
    }
}

/// The PCI function of the device that a domain is called after: `rdmap0s6-rdm` is `rdmap0s6`.
fn pci_path(domain: &str) -> Option<PathBuf> {
    let device = domain.split(['-', ';']).next()?;
    let classes = ["net", "infiniband", "cxi"].iter();
    let mut paths = classes.map(|class| format!("{SYSFS}/class/{class}/{device}/device"));
    paths.find_map(|path| device::pci_function(Path::new(&path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosstie::connect::interfaces::AddressFamily;
    use crosstie::host::settings::Environment;

    #[test]
    fn each_domain_is_a_device_with_a_name_of_its_own() {
        let nic = |domain: &std::ffi::CStr, speed_mbps| Nic {
            provider: c"tcp;ofi_rxm".into(),
            domain: domain.into(),
            network: 7,
            network_name: "10.0.0.0/24".into(),
            reaches_own: true,
            reaches_others: true,
            speed_mbps,
        };
        let reach = Reach { family: AddressFamily::Any, chosen: None, named: false, choice: "" };
        let here = Nic { reaches_others: false, ..nic(c"none0", 0) };
        let nics = [here, nic(c"none1", 400_000), nic(c"none0", 0)];
        let found = devices(&nics, &reach, &[], |_| GpuWay::None);
        assert_eq!(found[0].speed_mbps, SPEED_MBPS_DEFAULT);
        assert_eq!(found[1].speed_mbps, 400_000, "as libfabric or the kernel says it");
        let names: Vec<_> = found.iter().map(|it| it.name.to_str().unwrap()).collect();
        assert_eq!(names, ["none0", "none1", "none0#2"]);
        assert_eq!(
            found[1].kind.rails_text(&Environment::default()),
            "one libfabric rail to other hosts, \
            tcp;ofi_rxm none1, with TCP over the usual interfaces"
        );
        // it was said to be a rail to other hosts
        assert_eq!(
            found[0].kind.rails_text(&Environment::default()),
            "one libfabric rail to processes of this host alone, \
            tcp;ofi_rxm none0, with TCP over the usual interfaces"
        );
        let both = found[0].kind.with(&found[1].kind).unwrap();
        let text = both.rails_text(&Environment::default());
        assert!(text.starts_with("2 libfabric rails to other hosts, "), "{text}");
        assert_eq!(found[0].members, device::own(0));
        assert_ne!(found[0].guid, found[1].guid);
    }
}
