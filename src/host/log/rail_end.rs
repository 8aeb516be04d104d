//! What stands at one side of a rail, in words: a NIC's name, a socket's address, or both.
#![forbid(unsafe_code)]

use crate::base::text::Text;
use core::fmt;
use core::net::SocketAddr;

/// Longest text, in bytes: the rest is cut.
pub const END_BYTES_MAX: usize = 63;

/// One side of a rail; empty where nothing is known of it.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct RailEnd(Text<END_BYTES_MAX>);

impl RailEnd {
    /// Both sides: ours has the NIC that its port is opened on, if that has a name, and each its
    /// address, if it has one. An address for which there is no room is left out, not cut.
    pub(in crate::host) fn both(nic: &str, addresses: Option<[SocketAddr; 2]>) -> [RailEnd; 2] {
        let name = Text::beginning(nic.as_bytes());
        let Some(addresses) = addresses else {
            return [RailEnd(name), RailEnd(Text::EMPTY)];
        };
        let [ours, theirs] = addresses.map(|address| Text::written(format_args!("{address}")));
        let ours = match nic {
            "" => ours,
            _ if nic.len() + 1 + ours.length() > END_BYTES_MAX => name,
            _ => Text::written(format_args!("{name} {ours}")),
        };
        [RailEnd(ours), RailEnd(theirs)]
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for RailEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for RailEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    #[test]
    fn nic_and_address_stand_together_where_there_is_room_for_both() {
        let texts = |nic, ends| RailEnd::both(nic, ends).map(|end| end.to_string());
        let four = ["10.0.0.1:4000", "10.0.0.2:4001"].map(|text| text.parse().unwrap());
        assert_eq!(texts("", Some(four)), ["10.0.0.1:4000", "10.0.0.2:4001"]);
        let both = texts("efa efa0", Some(four));
        assert_eq!(both, ["efa efa0 10.0.0.1:4000", "10.0.0.2:4001"]);
        assert_eq!(texts("acme0", None), ["acme0", ""]);
        assert_eq!(texts("", None), ["", ""]);
        let six: SocketAddr = "[fd00:1111:2222:3333:4444:5555:6666:7777]:40112".parse().unwrap();
        let [ours, theirs] = texts("tcp;ofi_rxm enp175s0f0np0", Some([six, six]));
        assert_eq!((ours.as_str(), theirs), ("tcp;ofi_rxm enp175s0f0np0", six.to_string()));
        assert_eq!(texts(&"n".repeat(70), None)[0].len(), END_BYTES_MAX);
    }
}
