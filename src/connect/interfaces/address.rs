//! An address of this host, and the interface that has it.

use crate::base::text::Text;
use crate::wire::hello::AddressHello;
use core::fmt;
use core::net::IpAddr;

/// Longest name of an interface in bytes, with the terminating zero (`IFNAMSIZ`, netdevice(7)).
const NAME_BYTES_MAX: usize = 16;
/// Flags of an address (`linux/if_addr.h`).
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// The name of an interface.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct InterfaceName(Text<NAME_BYTES_MAX>);

impl InterfaceName {
    /// The name; longer ones than the kernel knows are cut.
    pub fn new(name: &[u8]) -> InterfaceName {
        InterfaceName(Text::beginning(name))
    }

    /// As text; a name that is none is empty.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One address of this host.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct InterfaceAddress {
    /// The interface that has it.
    pub name: InterfaceName,
    /// Its label, as `eth0:hsn`; mostly the interface's name.
    pub label: InterfaceName,
    /// The network device that carries it: of a VLAN, or a bridge of one NIC, that NIC.
    pub device: InterfaceName,
    /// The address.
    pub ip: IpAddr,
    /// Length of its subnet's prefix in bits, from the netmask.
    pub prefix_bits: u8,
    /// Whether the interface is switched on.
    pub up: bool,
    /// Whether its driver has what it needs to carry packets, as a cable.
    pub running: bool,
    /// Whether it reaches this host alone.
    pub loopback: bool,
    /// Whether the address is good on one link only.
    pub link_local: bool,
    /// Whether the interface is a bridge of which no port is a NIC: to containers or virtual
    /// machines of this host.
    pub inner: bool,
    /// Whether the address goes away soon: an IPv6 address for privacy, or a deprecated one.
    pub passing: bool,
    /// Whether the kernel still looks if another host has the IPv6 address (RFC 4862, 5.4).
    pub tentative: bool,
    /// Whether another host has it, so that it cannot be used.
    pub duplicate: bool,
    /// Speed of the interface in Mbit/s; 0: not known.
    pub speed_mbit_s: u32,
}

impl InterfaceAddress {
    /// An address of an interface that works, and of which nothing else is known.
    pub fn new(name: InterfaceName, ip: IpAddr, prefix_bits: u8) -> InterfaceAddress {
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        InterfaceAddress {
            name,
            label: name,
            device: name,
            ip,
            prefix_bits,
            up: true,
            running: true,
            loopback: ip.is_loopback(),
            link_local,
            inner: false,
            passing: false,
            tentative: false,
            duplicate: false,
            speed_mbit_s: 0,
        }
    }

    /// Takes in the kernel's flags of an IPv6 address.
    pub(super) fn flags_take(&mut self, flags: u32) {
        let has = |flag| flags & flag != 0;
        self.passing = has(IFA_F_TEMPORARY) || has(IFA_F_DEPRECATED);
        self.duplicate = has(IFA_F_DADFAILED);
        // an optimistic one is used while the kernel looks (RFC 4429)
        self.tentative = has(IFA_F_TENTATIVE) && !has(IFA_F_OPTIMISTIC) && !has(IFA_F_DADFAILED);
    }

    /// Whether peers can hardly use it.
    pub fn is_hard(&self) -> bool {
        self.inner || self.passing || self.link_local
    }

    /// As peers are told, with the port at which the side band answers.
    pub fn hello(&self, port: u16) -> AddressHello {
        let (ip, family) = match self.ip {
            IpAddr::V4(ip) => (u128::from(u32::from_le_bytes(ip.octets())), 4),
            IpAddr::V6(ip) => (u128::from_le_bytes(ip.octets()), 6),
        };
        let (prefix_bits, speed_mbit_s) = (self.prefix_bits, self.speed_mbit_s);
        AddressHello { ip, port, family, prefix_bits, speed_mbit_s }
    }
}
