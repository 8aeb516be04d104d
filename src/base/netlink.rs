//! Layout of netlink requests for entries of the kernel's network tables, and of the answers. This
//! module makes no system call; its callers do.
//!
//! *Source*: netlink(7), rtnetlink(7).
#![forbid(unsafe_code)]

use core::net::IpAddr;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// `struct rtattr`: a length that counts itself, and a kind.
const ATTRIBUTE_BYTES: usize = 4;
/// A table's structure of 12 bytes, and two addresses.
const REQUEST_BYTES_MAX: usize = HEADER_BYTES + 12 + 2 * (ATTRIBUTE_BYTES + 16);
/// Room for an answer of one entry.
pub const ANSWER_BYTES: usize = 1024;

/// A request for one entry of a table.
#[derive(Clone, Debug)]
pub struct Request {
    room: [u8; REQUEST_BYTES_MAX],
    length: usize,
}

impl Request {
    /// An `RTM_GET…`, and the structure of its table that follows the header.
    pub fn new(kind: u16, table: &[u8]) -> Request {
        Request::flagged(kind, NLM_F_REQUEST, table)
    }

    /// A request for all entries of a table.
    pub fn all(kind: u16, table: &[u8]) -> Request {
        Request::flagged(kind, NLM_F_REQUEST | NLM_F_DUMP, table)
    }

    fn flagged(kind: u16, flags: u16, table: &[u8]) -> Request {
        // the header ends with a number, and with whose it is: the kernel's business
        let request = Request { room: [0; REQUEST_BYTES_MAX], length: 4 };
        let request = request.and(&kind.to_ne_bytes()).and(&flags.to_ne_bytes());
        request.and(&[0; 8]).and(table)
    }

    /// With an address.
    pub fn with(self, attribute: u16, ip: IpAddr) -> Request {
        match ip {
            IpAddr::V4(ip) => self.attribute(attribute, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(attribute, &ip.octets()),
        }
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Request {
        let length = (ATTRIBUTE_BYTES + value.len()) as u16;
        self.and(&length.to_ne_bytes()).and(&kind.to_ne_bytes()).and(value)
    }

    fn and(mut self, bytes: &[u8]) -> Request {
        self.room[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self.room[..4].copy_from_slice(&(self.length as u32).to_ne_bytes());
        self
    }

    /// As the kernel reads it.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.length]
    }
}

/// What follows the header of an answer that is an entry (`RTM_NEW…`): the table's structure and
/// the attributes.
pub fn answered(bytes: &[u8], entry: u16) -> Option<&[u8]> {
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    bytes.get(HEADER_BYTES..).filter(|_| kind == entry)
}

/// The messages that came in one piece, each with its kind and what follows its header. One that is
/// cut off is as long as what is there.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER_BYTES..length.min(bytes.len()))?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, body))
    })
}

/// The value of an attribute; `None`: it is not there, or the bytes end before it.
pub fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?) as usize;
        let this = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(ATTRIBUTE_BYTES..length)?;
        if this == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_laid_out_as_the_kernel_reads_it() {
        let ip = |octets: [u8; 4]| IpAddr::from(octets);
        let request = Request::new(26, &[2, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let request = request.with(1, ip([10, 2, 0, 9])).with(2, ip([10, 1, 0, 1]));
        let bytes = request.bytes();
        assert_eq!(bytes.len(), 44);
        assert_eq!(bytes[..8], [44u32.to_ne_bytes(), [26, 0, 1, 0]].concat());
        assert_eq!(bytes[16..20], [2, 32, 32, 0]);
        assert_eq!(bytes[28..36], [8, 0, 1, 0, 10, 2, 0, 9]);
        assert_eq!(bytes[36..], [8, 0, 2, 0, 10, 1, 0, 1]);
        assert_eq!(Request::new(26, &[]).with(1, IpAddr::from([0u16; 8])).bytes().len(), 36);
    }

    #[test]
    fn messages_end_where_the_bytes_do() {
        let message = |length: u32, kind: u16, body: &[u8]| {
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
        };
        let bytes = [message(18, 16, &[7, 8, 0, 0]), message(24, 3, &[9])].concat();
        let all: std::vec::Vec<_> = messages(&bytes).collect();
        assert_eq!(all, [(16, &[7, 8][..]), (3, &[9][..])]);
        assert_eq!(messages(&bytes[..15]).count(), 0);
        for length in 0..HEADER_BYTES as u32 {
            assert_eq!(messages(&message(length, 16, &[1])).count(), 0, "shorter than itself");
        }
        assert_eq!(messages(&message(u32::MAX, 16, &[1])).count(), 1);
    }

    #[test]
    fn answer_that_is_an_error_or_cut_off_is_none() {
        let mut bytes = [0; 20];
        bytes[4] = 24;
        assert_eq!(answered(&bytes, 24), Some(&[0; 4][..]));
        assert_eq!(answered(&bytes[..15], 24), None);
        assert_eq!(answered(&bytes[..5], 24), None);
        bytes[4] = 2; // NLMSG_ERROR
        assert_eq!(answered(&bytes, 24), None);
    }

    #[test]
    fn attribute_that_is_cut_off_or_shorter_than_itself_is_none() {
        let mut bytes = [7, 0, 1, 0, 9, 9, 9, 0, 8, 0, 4, 0, 5, 0, 0, 0];
        assert_eq!(attribute(&bytes, 4), Some(&[5, 0, 0, 0][..]));
        assert_eq!(attribute(&bytes, 1), Some(&[9; 3][..]));
        assert_eq!(attribute(&bytes, 9), None);
        for count in 0..bytes.len() {
            assert_eq!(attribute(&bytes[..count], 4), None);
        }
        bytes[0] = 0;
        assert_eq!(attribute(&bytes, 4), None);
    }
}
