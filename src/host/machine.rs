//! The protocol over the rails of a host, or over the loopback alone: one choice per call.
#![forbid(unsafe_code)]

use crate::provider::loopback::Loopback;
use crate::provider::rail_set::RailSet;
use crate::transport;

/// The machine of an endpoint. Its `'static` is the life of the endpoint's block, which
/// [`super::Endpoint::open`]'s caller vouches for.
#[allow(clippy::large_enum_variant)] // one per endpoint, in the caller's storage, never moved
pub(super) enum Machine {
    Host(transport::Endpoint<'static, RailSet<'static>>),
    Loopback(transport::Endpoint<'static, Loopback<'static>>),
}

impl Machine {
    /// Whether something was posted that no poll has handed to the kernel yet. *Cost*: one load.
    #[inline(always)]
    pub(super) fn is_unsent(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.rail().is_unsent(),
            Machine::Loopback(_) => false,
        }
    }

    /// Whether a lane is to be opened anew. *Cost*: one load.
    #[inline(always)]
    pub(super) fn has_lane_down(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.has_lane_down() || endpoint.rail().is_waiting(),
            Machine::Loopback(endpoint) => endpoint.has_lane_down(),
        }
    }

    /// Whether the next poll wants to know the time.
    #[inline(always)]
    pub(super) fn wants_time(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.wants_time() || endpoint.rail().wants_time(),
            Machine::Loopback(_) => false,
        }
    }
}

/// Calls the same thing on each.
macro_rules! each {
    ($machine:expr, $endpoint:ident => $body:expr) => {
        match $machine {
            Machine::Host($endpoint) => $body,
            Machine::Loopback($endpoint) => $body,
        }
    };
}
pub(super) use each;
