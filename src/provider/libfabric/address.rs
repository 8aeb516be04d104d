//! Addresses of endpoints that are those of sockets, for people: others are their provider's own
//! business.
#![forbid(unsafe_code)]

use super::sys::numbers as n;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;

/// The address of a socket that stands in an endpoint's address (`sockaddr_in`, `sockaddr_in6`);
/// `None`: it is of another kind. `format`: libfabric's number.
pub fn socket_of(format: u32, bytes: &[u8]) -> Option<SocketAddr> {
    if !matches!(format, n::SOCKADDR | n::SOCKADDR_IN | n::SOCKADDR_IN6) {
        return None;
    }
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let ip = match u16::from_ne_bytes(*family) {
        FAMILY_V4 => IpAddr::from(Ipv4Addr::from(*rest.first_chunk::<4>()?)),
        // behind the label of its flow
        FAMILY_V6 => IpAddr::from(Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_addresses_are_read_and_others_are_not() {
        let [family, other] = [FAMILY_V4, FAMILY_V6].map(u16::to_ne_bytes);
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&family);
        bytes[2..8].copy_from_slice(&[0x9c, 0xb0, 10, 0, 0, 7]);
        let four = Some(SocketAddr::from(([10, 0, 0, 7], 40112)));
        for format in [n::SOCKADDR, n::SOCKADDR_IN] {
            assert_eq!(socket_of(format, &bytes[..16]), four);
        }
        const EFA: u32 = 14;
        assert_eq!(socket_of(EFA, &bytes), None, "of another provider");
        assert_eq!(socket_of(n::SOCKADDR, &bytes[..7]), None, "too short");
        bytes[..2].copy_from_slice(&other);
        bytes[4..].fill(0);
        (bytes[8], bytes[23]) = (0xfd, 2);
        let six = socket_of(n::SOCKADDR_IN6, &bytes).unwrap();
        assert_eq!(six, "[fd00::2]:40112".parse().unwrap());
        assert_eq!(socket_of(n::SOCKADDR, &[0; 28]), None, "of no family");
    }
}
