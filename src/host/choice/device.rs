//! The devices of a host: what an endpoint can be opened on.
#![forbid(unsafe_code)]

use crate::base::words::named;

named! {
    /// A device. They stand in the order of their numbers, which is the same in every process. New
    /// ones come last, because C programs keep the numbers.
    pub enum DeviceKind {
        /// Processes of every host: of this one through shared memory, of others over TCP.
        Host = "host0",
        /// This endpoint itself, for tests and measurements.
        Loopback = "loopback0",
        /// Processes of this host, through shared memory alone.
        SharedMemory = "shm0",
        /// Processes of every host, over TCP alone.
        Tcp = "tcp0",
    }
}

/// All devices, in the order of their numbers.
pub const DEVICES: [DeviceKind; 4] = DeviceKind::ALL;

impl DeviceKind {
    /// The device of a name: `host0`, `loopback0`, `shm0`, `tcp0`.
    pub fn named(name: &str) -> Option<DeviceKind> {
        DEVICES.into_iter().find(|kind| kind.name() == name)
    }

    /// The rails that it may use at most; `CROSSTIE_RAILS` chooses among them.
    pub const fn rails(self) -> Rails {
        match self {
            DeviceKind::Host => Rails::ALL,
            DeviceKind::Loopback => Rails::NONE,
            DeviceKind::SharedMemory => Rails { shm: true, ..Rails::NONE },
            DeviceKind::Tcp => Rails { tcp: true, ..Rails::NONE },
        }
    }
}

/// A set of rails that connections may take.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Rails {
    /// Shared memory.
    pub shm: bool,
    /// Sockets.
    pub tcp: bool,
    /// RDMA ports, where both hosts have some that reach each other; set up over TCP, which is
    /// their reserve, too.
    pub verbs: bool,
    /// NICs that libfabric reaches, likewise.
    pub libfabric: bool,
    /// Rails of vendors that the program brings, likewise.
    pub vendor: bool,
}

impl Rails {
    /// All, of which each connection takes one.
    pub const ALL: Rails =
        Rails { shm: true, tcp: true, verbs: true, libfabric: true, vendor: true };

    /// None.
    pub const NONE: Rails =
        Rails { shm: false, tcp: false, verbs: false, libfabric: false, vendor: false };

    /// Those of both sets.
    pub const fn and(self, other: Rails) -> Rails {
        Rails {
            shm: self.shm && other.shm,
            tcp: self.tcp && other.tcp,
            verbs: self.verbs && other.verbs,
            libfabric: self.libfabric && other.libfabric,
            vendor: self.vendor && other.vendor,
        }
    }

    /// The rail of a name, as `CROSSTIE_RAILS` has it, to be put in or taken out.
    pub fn named(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "shm" => &mut self.shm,
            "tcp" => &mut self.tcp,
            "verbs" => &mut self.verbs,
            "libfabric" => &mut self.libfabric,
            "vendor" => &mut self.vendor,
            _ => return None,
        })
    }

    /// Whether all rails of another set are among them.
    pub const fn has(self, other: Rails) -> bool {
        let Rails { shm, tcp, verbs, libfabric, vendor } = other.without(self);
        !(shm || tcp || verbs || libfabric || vendor)
    }

    /// Those that another set has not.
    pub const fn without(self, other: Rails) -> Rails {
        Rails {
            shm: self.shm && !other.shm,
            tcp: self.tcp && !other.tcp,
            verbs: self.verbs && !other.verbs,
            libfabric: self.libfabric && !other.libfabric,
            vendor: self.vendor && !other.vendor,
        }
    }

    /// Their names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            (self.shm, "shm"),
            (self.verbs, "verbs"),
            (self.libfabric, "libfabric"),
            (self.vendor, "vendor"),
            (self.tcp, "tcp"),
        ];
        names.into_iter().filter(|(has, _)| *has).map(|(_, name)| name)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        !self.shm && !self.tcp
    }
}

impl core::fmt::Display for Rails {
    /// As `CROSSTIE_RAILS` says it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names = [
            (self.shm, "shm"),
            (self.tcp && self.verbs, "verbs"),
            (self.tcp && self.libfabric, "libfabric"),
            (self.tcp && self.vendor, "vendor"),
            (self.tcp, "tcp"),
            (self.is_empty(), "none"),
        ];
        let mut names = names.into_iter().filter(|(has, _)| *has).map(|(_, name)| name);
        f.write_str(names.next().unwrap_or_default())?;
        names.try_for_each(|name| write!(f, ",{name}"))
    }
}

/// What is known of a device.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DeviceProperties {
    /// Which.
    pub kind: DeviceKind,
    /// Its name: [`DeviceKind::name`].
    pub name: &'static str,
    /// What it reaches, for people.
    pub description: &'static str,
    /// Whether it can be used here.
    pub available: bool,
    /// Why not, or what is missing although it can.
    pub remark: &'static str,
    /// A rough bandwidth in Mbit/s, for schedulers.
    pub speed_mbps: u32,
    /// Most receives in one group.
    pub group_max: u32,
}

/// The properties of a device on this host.
pub fn properties(kind: DeviceKind) -> DeviceProperties {
    let (description, remark, speed_mbps) = match kind {
        DeviceKind::Host => (
            "processes of this host through shared memory, of others over RDMA, libfabric or TCP",
            "",
            80_000,
        ),
        DeviceKind::Loopback => (
            "this endpoint itself, for tests and measurements",
            "reaches no other endpoint",
            80_000,
        ),
        DeviceKind::SharedMemory => {
            ("processes of this host, through shared memory alone", "", 80_000)
        }
        DeviceKind::Tcp => ("processes of every host, over TCP alone", "", 40_000),
    };
    DeviceProperties {
        kind,
        name: kind.name(),
        description,
        available: true,
        remark,
        speed_mbps,
        group_max: crate::wire::GROUP_MAX as u32,
    }
}

/// Bits of `PortHello::prefix_bits` of a port that is paired by its network's name: whom it
/// reaches.
pub(in crate::host) const REACHES_OWN: u8 = 1;
pub(in crate::host) const REACHES_OTHERS: u8 = 2;

/// They, of such a port.
pub(in crate::host) const fn reach_bits(own: bool, others: bool) -> u8 {
    (if own { REACHES_OWN } else { 0 }) | (if others { REACHES_OTHERS } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_found_by_its_name() {
        for kind in DEVICES {
            assert_eq!(DeviceKind::named(properties(kind).name), Some(kind));
        }
        assert_eq!(DeviceKind::named("shm1"), None);
    }
}
