//! W7: the 128-byte handle that a listener hands out.

use super::{DecodeError, WIRE_MAJOR};
use crate::base::hash::fnv1a;

/// Length of a handle in bytes, the same as NCCL's.
pub const HANDLE_BYTES: usize = 128;
/// Most addresses of any family in a handle.
pub const ADDRESSES_MAX: usize = 3;
/// IPv4 addresses that stand where another one leaves room that IPv6 would need.
const BESIDE: usize = 2;
/// Most IPv4 addresses beside others.
pub const MORE_MAX: usize = BESIDE * ADDRESSES_MAX;
/// The listener also answers locally, to peers that speak the handshake of
/// [`LOCAL_VERSION`](super::hello::LOCAL_VERSION).
pub const HANDLE_LOCAL: u32 = 0x2;
/// The same of version 1, which told strangers too much; not written any more.
const HANDLE_LOCAL_OLD: u32 = 0x1;
const MAGIC: [u8; 8] = *b"crosstie";
const CHECKED_BYTES: usize = 120;

/// How an address is to be read.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum Family {
    /// No address.
    #[default]
    None,
    /// The side band of a process on the same host, as an older version said it.
    Local,
    /// IPv4, in the first four bytes.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// One address at which a listener's side band answers.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Address {
    /// How to read it.
    pub family: Family,
    /// Port, where there is one.
    pub port: u16,
    /// The address.
    pub ip: [u8; 16],
}

/// W7. Who listens, and where.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct ListenHandle {
    /// Of the listener's wire format.
    pub minor: u16,
    /// `HANDLE_` bits.
    pub flags: u32,
    /// The listener's host.
    pub node_id: u64,
    /// The listener's endpoint: a random number, also the nonce that a connector must show.
    pub endpoint_id: u128,
    /// The listener within its endpoint.
    pub listener: u64,
    /// Up to three addresses.
    pub addresses: [Address; ADDRESSES_MAX],
    /// IPv4 addresses, two for each of [`ListenHandle::addresses`] that is IPv4 itself; those of
    /// others are not written.
    pub more: [Address; MORE_MAX],
}

impl ListenHandle {
    /// All addresses, those first that every reader knows.
    pub fn all_addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().chain(&self.more)
    }

    /// Takes addresses as far as there is room.
    pub fn addresses_set(&mut self, mut all: impl Iterator<Item = Address>) {
        self.addresses = core::array::from_fn(|_| all.next().unwrap_or_default());
        self.more_set(all);
    }

    /// Whether the listener answers locally as an older version did alone.
    pub fn is_of_older_door(&self) -> bool {
        let local = |address: &Address| address.family == Family::Local;
        let says_local = self.flags & HANDLE_LOCAL_OLD != 0 || self.addresses.iter().any(local);
        says_local && self.flags & HANDLE_LOCAL == 0
    }

    /// Adds IPv4 addresses, as far as there is room; others are left out.
    fn more_set(&mut self, addresses: impl IntoIterator<Item = Address>) {
        let mut rest = addresses.into_iter().filter(|address| address.family == Family::Ipv4);
        for (address, beside) in self.addresses.iter().zip(self.more.chunks_exact_mut(BESIDE)) {
            if address.family == Family::Ipv4 {
                beside.fill_with(|| rest.next().unwrap_or_default());
            }
        }
    }

    /// The 128 bytes.
    pub fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0u8; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&WIRE_MAJOR.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.minor.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.node_id.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.endpoint_id.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.listener.to_le_bytes());
        let beside = self.more.chunks_exact(BESIDE);
        let places = bytes[48..].chunks_exact_mut(20);
        for ((address, beside), at) in self.addresses.iter().zip(beside).zip(places) {
            at[0] = match address.family {
                Family::None => 0,
                Family::Local => 1,
                Family::Ipv4 => 4,
                Family::Ipv6 => 6,
            };
            at[2..4].copy_from_slice(&address.port.to_le_bytes());
            at[4..20].copy_from_slice(&address.ip);
            if address.family == Family::Ipv4 {
                for (address, at) in beside.iter().zip(at[8..].chunks_exact_mut(6)) {
                    at[..2].copy_from_slice(&address.port.to_le_bytes());
                    at[2..].copy_from_slice(&address.ip[..4]);
                }
            }
        }
        let sum = checksum(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Checks and reads a handle.
    pub fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<ListenHandle, DecodeError> {
        if bytes[..8] != MAGIC {
            return Err(DecodeError::Magic);
        }
        if checksum(&bytes[..CHECKED_BYTES]) != u64::from_le_bytes(part(bytes, CHECKED_BYTES)) {
            return Err(DecodeError::Checksum);
        }
        let major = u16::from_le_bytes(part(bytes, 8));
        if major != WIRE_MAJOR {
            return Err(DecodeError::Version(major));
        }
        let mut addresses = [Address::default(); ADDRESSES_MAX];
        let mut more = [Address::default(); MORE_MAX];
        let beside = more.chunks_exact_mut(BESIDE);
        let places = bytes[48..].chunks_exact(20);
        for ((address, beside), at) in addresses.iter_mut().zip(beside).zip(places) {
            let family = match at[0] {
                0 => Family::None,
                1 => Family::Local,
                4 => Family::Ipv4,
                6 => Family::Ipv6,
                _ => return Err(DecodeError::Field),
            };
            let mut ip = [0; 16];
            ip.copy_from_slice(&at[4..20]);
            if family == Family::Ipv4 {
                ip[4..].fill(0);
                for (address, at) in beside.iter_mut().zip(at[8..].chunks_exact(6)) {
                    *address = ipv4_beside(at);
                }
            }
            *address = Address { family, port: u16::from_le_bytes([at[2], at[3]]), ip };
        }
        Ok(ListenHandle {
            minor: u16::from_le_bytes(part(bytes, 10)),
            flags: u32::from_le_bytes(part(bytes, 12)),
            node_id: u64::from_le_bytes(part(bytes, 16)),
            endpoint_id: u128::from_le_bytes(part(bytes, 24)),
            listener: u64::from_le_bytes(part(bytes, 40)),
            addresses,
            more,
        })
    }
}

/// Port and address of six bytes; a port of 0: none.
fn ipv4_beside(at: &[u8]) -> Address {
    let port = u16::from_le_bytes([at[0], at[1]]);
    if port == 0 {
        return Address::default();
    }
    let mut ip = [0; 16];
    ip[..4].copy_from_slice(&at[2..6]);
    Address { family: Family::Ipv4, port, ip }
}

fn part<const N: usize>(bytes: &[u8; HANDLE_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Enough to tell a damaged handle from a whole one.
pub(super) const fn checksum(bytes: &[u8]) -> u64 {
    fnv1a(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::WIRE_MINOR;
    use super::*;

    #[test]
    fn every_damaged_byte_is_noticed() {
        let handle = ListenHandle {
            minor: WIRE_MINOR,
            flags: HANDLE_LOCAL,
            node_id: 1,
            endpoint_id: 2,
            listener: 3,
            addresses: [Address { family: Family::Local, port: 0, ip: [0; 16] }; ADDRESSES_MAX],
            more: [Address::default(); MORE_MAX],
        };
        let bytes = handle.encode();
        assert_eq!(ListenHandle::decode(&bytes), Ok(handle));
        for at in 0..HANDLE_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert!(ListenHandle::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn ipv4_addresses_stand_beside_others_and_an_older_reader_sees_the_first_of_them() {
        let address = |last: u8| {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&[10, 0, last, 1]);
            Address { family: Family::Ipv4, port: 4000 + u16::from(last), ip }
        };
        let six = Address { family: Family::Ipv6, port: 7, ip: [7; 16] };
        let addresses = [address(0), six, address(1)];
        let mut handle = ListenHandle { addresses, ..ListenHandle::default() };
        handle.more_set([address(2), six, address(3), address(4), address(5), address(6)]);
        let bytes = handle.encode();
        let read = ListenHandle::decode(&bytes).unwrap();
        assert_eq!(read, handle);
        let found = |number| read.all_addresses().any(|known| *known == address(number));
        assert!((0..6).all(found) && !found(6), "two beside each that is IPv4");
        assert_eq!(bytes[48..56], [4, 0, 0xa0, 0x0f, 10, 0, 0, 1]);
        assert_eq!(bytes[56..68], [0xa2, 0x0f, 10, 0, 2, 1, 0xa3, 0x0f, 10, 0, 3, 1]);
    }
}
