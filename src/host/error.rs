//! Why calls of an endpoint fail. Small values; `Display` is the sentence for people.
#![forbid(unsafe_code)]

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
            OpenError::Limits(LimitsError::Rails) => f.write_str("rails_max must be 1, 2, 4 or 8"),
            OpenError::Rings => f.write_str(
                "ring sizes must be powers of two from 4096, and the eager size at most a quarter \
                 of the send ring",
            ),
            OpenError::Storage => f.write_str("the storage is smaller than the endpoint's size"),
            OpenError::Device => f.write_str("the device cannot be used on this host"),
            OpenError::Rails => f.write_str("CROSSTIE_RAILS allows no rail that the device has"),
            OpenError::Interface => f.write_str(
                "no interface that is up and chosen (CROSSTIE_SOCKET_IFNAME) has an address, and \
                 the device has no rail but TCP",
            ),
            OpenError::Key => f.write_str("the file of CROSSTIE_KEY_FILE cannot be used"),
            OpenError::Band(error) => write!(f, "the side band could not be opened: {error:?}"),
            OpenError::System(code) => write!(f, "the kernel refused (errno {code})"),
        }
    }
}
