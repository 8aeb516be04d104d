//! Why calls of an endpoint fail. Small values; `Display` is the sentence for people.
#![forbid(unsafe_code)]

use crate::connect::descriptor_limit;
pub use crate::connect::{AcceptError, ConnectError, ListenError};
pub use crate::fabric::{DeregisterError, RegisterError};
use crate::transport::limits::LimitsError;
use core::fmt;

/// Why an endpoint could not be opened. Nothing is left behind.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// A limit is zero, too large, or of a wrong shape.
    Limits(LimitsError),
    /// A ring's size, or the eager size, is of a wrong shape.
    Rings,
    /// The block is smaller than [`super::Options::bytes`].
    Storage,
    /// The device cannot be used on this host.
    Device,
    /// `CROSSTIE_RAILS` allows no rail that the device has.
    Rails,
    /// No interface is left that other hosts could reach us by.
    Interface,
    /// `CROSSTIE_SOCKET_IFNAME` cannot be understood.
    InterfaceChoice,
    /// The file of `CROSSTIE_KEY_FILE` cannot be used.
    Key,
    /// The side band could not be opened.
    Band(crate::connect::OpenError),
    /// The kernel refused, with its code.
    System(i32),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Limits(LimitsError::Connections) => {
                f.write_str("connections_max must be from 1 to 65536")
            }
            OpenError::Limits(LimitsError::Requests) => {
                f.write_str("requests_max must be 32 or 64")
            }
            OpenError::Limits(LimitsError::Regions) => {
                f.write_str("regions_max must be from 1 to 65534")
            }
            OpenError::Rings => f.write_str(
                "ring sizes must be powers of two from 4096, and the eager size at most a quarter \
                 of the send ring",
            ),
            OpenError::Storage => f.write_str("the storage is smaller than the endpoint's size"),
            OpenError::Device => f.write_str("the device cannot be used on this host"),
            OpenError::Rails => f.write_str(
                "CROSSTIE_RAILS allows no rail that the device has, or cannot be understood",
            ),
            OpenError::Interface => f.write_str(
                "no interface that is up and chosen (CROSSTIE_SOCKET_IFNAME) has an address, and \
                 the device has no rail but TCP",
            ),
            OpenError::InterfaceChoice => f.write_str(
                "CROSSTIE_SOCKET_IFNAME cannot be understood: names with commas between them, and \
                 ^ or = at most in front of all",
            ),
            OpenError::Key => f.write_str("the file of CROSSTIE_KEY_FILE cannot be used"),
            OpenError::Band(crate::connect::OpenError::Descriptors(limit)) => {
                descriptors(*limit, f)
            }
            OpenError::System(libc::EMFILE) => descriptors(descriptor_limit(), f),
            OpenError::System(libc::ENFILE) => {
                f.write_str("this host may open no more file descriptors (fs.file-max)")
            }
            OpenError::Band(error) => write!(f, "the side band could not be opened: {error:?}"),
            OpenError::System(code) => write!(f, "the kernel refused (errno {code})"),
        }
    }
}

fn descriptors(limit: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "this process may open no more than {limit} file descriptors (ulimit -n)")
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn the_limit_of_descriptors_is_named_with_its_value() {
        let band = OpenError::Band(crate::connect::OpenError::Descriptors(77));
        assert!(band.to_string().contains("no more than 77 file descriptors"), "{band}");
        let system = OpenError::System(libc::EMFILE).to_string();
        assert!(system.contains(&descriptor_limit().to_string()), "{system}");
        assert!(system.contains("ulimit -n"), "{system}");
    }
}
