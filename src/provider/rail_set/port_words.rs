//! What people are told of a port, or of a peer at it.

use super::port::PortRail;
use crate::base::words::said;
use crate::provider::vendor::port as vendor;
use crate::provider::{libfabric, verbs};
use core::fmt;

/// Why a whole port is of no use: a code, and what is refused with it when it is opened again.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Loss {
    pub(super) step: Option<libfabric::Step>,
    pub(super) code: i32,
}

said! {
    /// What people should know of a peer that stands still. Behind the words for a rail.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum Complaint {
        /// Of libfabric's.
        Libfabric(words: libfabric::Complaint) => "{words}",
        /// Of a vendor's.
        Vendor(words: vendor::Unended) => "{words}",
    }
}

/// Why a port is of no use, in words.
pub struct LossWords<'r, 'a>(pub(super) &'r PortRail<'a>);

impl fmt::Display for LossWords<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            PortRail::Verbs(rail) => {
                f.write_str(verbs::loss_words(rail.health().lost_code, self.0.is_gone()))
            }
            PortRail::Libfabric(rail) => match rail.health().refused {
                Some((step, code)) => {
                    let why = libfabric::PeerOpenError::Refused(step, code);
                    write!(f, "it cannot be opened again ({why}); it is tried again")
                }
                None => Ok(()),
            },
            PortRail::Vendor(_) => Ok(()),
        }
    }
}
