//! RDMA ports as devices: each that works is one, under the name that NCCL's own InfiniBand network
//! gives it, so that what users have written in `NCCL_IB_HCA` or `NCCL_NET_FORCE_MERGE` means the
//! same.
#![forbid(unsafe_code)]

use super::device::{self, Device, GpuWay, Reach, SPEED_MBPS_DEFAULT};
use super::kind::Kind;
use super::log;
use crate::driver;
use crosstie::connect::interfaces::{InterfaceAddress, Interfaces, all_addresses};
use crosstie::memory::Variables;
use crosstie::provider::verbs::choice::{HcaChoice, Unusable, usable};
use crosstie::provider::verbs::device_takes_dmabufs;
use crosstie::provider::verbs::gid::GidEntry;
use crosstie::provider::verbs::names::{PortName, PortNames};
use crosstie::provider::verbs::ports::{self, SYSFS, chip_ports};
use crosstie::provider::verbs::settings::{Names, Settings, read};
use crosstie::provider::verbs::speed;
use crosstie::provider::verbs::sys::{Device as Opened, Library};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The devices that ports of this host are. Says what is wrong with NCCL's variables (the library
/// does with ours), and why there are none where there might be.
pub fn survey(reach: &Reach) -> Vec<Device> {
    let (settings, complaints) = read(|name| Variables::of_process().text(name), Names::WithNccl);
    for complaint in complaints.iter().filter(|it| it.name.starts_with("NCCL_")) {
        log::warn(&complaint.to_string());
    }
    let its = crosstie::host::settings::environment();
    let found = listed(Path::new(SYSFS), &settings);
    if !its.rails.verbs || !its.rails.tcp {
        if let Some(text) = left_out(&found.unwrap_or_default(), &settings) {
            log::info(&text);
        }
        return Vec::new();
    }
    let then = match its.required.verbs {
        true => "and CROSSTIE_RAILS_REQUIRED names verbs: no device opens",
        false => "interfaces are the devices",
    };
    let mut found = match found {
        Ok(found) => found,
        Err(text) => {
            log::warn(&format!("{text}; {then}"));
            return Vec::new();
        }
    };
    let missing = settings.hca.unmatched(&found);
    if !missing.is_empty() {
        let names = missing.join(", ");
        let text = format!("no RDMA port is called {names} ({})", settings.hca.asker());
        log::warn(&settings.as_set(&text));
    }
    speed::correct(&mut found, &settings);
    let host = Host { sysfs: Path::new(SYSFS), found: &found, addresses: &all() };
    let (devices, reasons) = host.devices(&settings, reach, opens);
    if devices.is_empty() && (its.verbs_named || !reasons.is_empty()) {
        let text = none_text(&settings, &reasons, then);
        let is_meant = its.verbs_named || settings.narrows();
        if is_meant { log::warn(&text) } else { log::info(&text) }
    }
    devices
}

/// That there is no port, why, and what is done then.
fn none_text(settings: &Settings, reasons: &[String], then: &str) -> String {
    let why = match (reasons, settings.hca == HcaChoice::ALL) {
        ([], true) => "there is none".into(),
        ([], false) => format!("there is none that CROSSTIE_IB_HCA={} allows", settings.hca),
        (reasons, _) => reasons.join("; "),
    };
    settings.as_set(&format!("no RDMA port can be used, {then} ({why})"))
}

/// What the kernel shows of those that are meant, or why that is not known, in a sentence.
fn listed(sysfs: &Path, settings: &Settings) -> Result<Vec<ports::Device>, String> {
    let found = ports::survey_of(sysfs, &|device, port| settings.means(device, port));
    found.map_err(|error| format!("RDMA devices cannot be listed: {error}"))
}

fn all() -> Vec<InterfaceAddress> {
    all_addresses().unwrap_or_default()
}

/// The ports that work and that the rails leave out, in a sentence; `None`: there are none.
fn left_out(found: &[ports::Device], settings: &Settings) -> Option<String> {
    let each = found.iter().flat_map(|it| it.ports.iter().map(move |port| (it, port)));
    let working = each.filter(|(device, port)| usable(device, port, settings, &[]).is_ok());
    let names: Vec<String> =
        working.map(|(device, port)| format!("{}:{}", device.name, port.number)).collect();
    let what = "work and are not used: CROSSTIE_RAILS leaves out verbs";
    (!names.is_empty()).then(|| format!("RDMA ports {} {what}", names.join(", ")))
}

/// Whether this process may use a device: tried. How it takes memory of GPUs.
fn opens(name: &str) -> Result<GpuWay, Box<dyn Display>> {
    let library = Library::load().map_err(|error| Box::new(error) as Box<dyn Display>)?;
    let opened = Opened::open(library, name);
    let refused = |errno| Box::new(format!("it does not open: {errno}")) as Box<dyn Display>;
    let opened = opened.map_err(refused)?;
    Ok(match driver::is_wanted() && device_takes_dmabufs(&opened) {
        true => GpuWay::Dmabuf,
        false => GpuWay::None,
    })
}

/// What is known of this host.
struct Host<'h> {
    sysfs: &'h Path,
    found: &'h [ports::Device],
    addresses: &'h [InterfaceAddress],
}

impl Host<'_> {
    /// The devices, and why other ports are none.
    fn devices(
        &self,
        settings: &Settings,
        reach: &Reach,
        opens: impl Fn(&str) -> Result<GpuWay, Box<dyn Display>>,
    ) -> (Vec<Device>, Vec<String>) {
        let (mut devices, mut reasons) = (Vec::new(), Vec::new());
        let before = chip_ports(self.found, settings.merge_vfs);
        let here: Vec<_> = self.addresses.iter().map(|it| it.ip).collect();
        for (device, before) in self.found.iter().zip(before) {
            let chosen = |it: &Result<_, Unusable>| !matches!(it, Err(Unusable::NotChosen(_)));
            let verdict = |port| (port, usable(device, port, settings, &here));
            let verdicts = device.ports.iter().map(verdict);
            let verdicts: Vec<_> = verdicts.filter(|(_, verdict)| chosen(verdict)).collect();
            let works = |(_, verdict): &(_, Result<_, _>)| verdict.is_ok();
            let opened = match verdicts.iter().any(works) {
                true => opens(&device.name),
                false => Ok(GpuWay::None),
            };
            let gpus = match opened {
                Ok(gpus) => gpus,
                Err(why) => {
                    reasons.push(format!("{}: {why}", device.name));
                    continue;
                }
            };
            for (port, verdict) in verdicts {
                match verdict {
                    Ok(gid) => {
                        let port = Found { device, port, gid, before, gpus };
                        devices.extend(self.device(&port, settings, reach, devices.len()));
                    }
                    Err(why) => reasons.push(format!("{}:{}: {why}", device.name, port.number)),
                }
            }
        }
        (devices, reasons)
    }

    fn device(
        &self,
        found: &Found<'_>,
        settings: &Settings,
        reach: &Reach,
        number: usize,
    ) -> Option<Device> {
        let Found { device, port, gid, before, gpus } = found;
        let name = match device.ports.len() {
            1 => device.name.clone(),
            _ => format!("{}:{}", device.name, port.number),
        };
        let ports = PortNames::one(PortName::new(&device.name, port.number)?);
        let reserve = reach.beside(self.interface(gid, reach));
        let pci = pci_path(device, settings.merge_vfs);
        let pci = pci.as_deref().and_then(Path::to_str);
        let speed = i32::try_from(port.speed_mbit_s).unwrap_or(i32::MAX);
        Some(Device {
            name: device::kept(&name),
            kind: Kind::Ports { ports, reserve },
            members: device::own(number),
            pci_path: pci.map(device::kept),
            guid: self.guid(&device.name).unwrap_or_else(|| device::guid(pci, &device.name)),
            speed_mbps: if speed > 0 { speed } else { SPEED_MBPS_DEFAULT },
            // NCCL counts so: cards of two functions have a first port each
            port: i32::from(port.number) + *before as i32,
            spare: reach.choice,
            family: reach.family,
            cabling: settings.hca.cabling(&device.name, port.number),
            gpus: *gpus,
        })
    }

    /// The interface that has the GID's address, or is said to be the GID's, where sockets may use
    /// it; none on InfiniBand, or where it has no address.
    fn interface(&self, gid: &GidEntry, reach: &Reach) -> Interfaces {
        let may = |it: &&InterfaceAddress| it.up && !it.link_local && reach.family.allows(it.ip);
        let by_address = self.addresses.iter().find(|it| it.ip == gid.gid.ip());
        let name = by_address.map(|it| it.name.as_str()).or(gid.interface.as_deref());
        let its = self.addresses.iter().filter(may).find(|it| Some(it.name.as_str()) == name);
        its.map_or(Interfaces::NONE, |it| Interfaces::one(it.name))
    }

    /// What all functions and ports of a card have in common.
    fn guid(&self, name: &str) -> Option<u64> {
        let file = self.sysfs.join("class/infiniband").join(name).join("sys_image_guid");
        let text = std::fs::read_to_string(file).ok()?;
        let guid = u64::from_str_radix(&text.trim().replace(':', ""), 16).ok()?;
        (guid != 0).then_some(guid)
    }
}

/// A port that works.
struct Found<'p> {
    device: &'p ports::Device,
    port: &'p ports::Port,
    gid: &'p GidEntry,
    /// Ports of the same card on functions before.
    before: u32,
    gpus: GpuWay,
}

/// The PCI function that NCCL is to see: the card's first, so that all of its ports are beside each
/// other, where this host has that; a virtual machine may have been given another function alone.
fn pci_path(device: &ports::Device, merge_vfs: bool) -> Option<PathBuf> {
    let chip = device.chip(merge_vfs).filter(|path| path.is_dir());
    chip.or_else(|| device.pci.clone())
}

#[cfg(test)]
mod tests;
