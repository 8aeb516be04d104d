//! The machine over whichever rail the device has: one choice per call, none per operation.
#![forbid(unsafe_code)]

use crate::provider::loopback::Loopback;
use crate::provider::shm::Shm;
use crate::transport;

/// The machine of an endpoint. Its `'static` is the life of the endpoint's block, which
/// [`super::Endpoint::open`]'s caller vouches for.
pub(super) enum Machine {
    Shm(transport::Endpoint<'static, Shm<'static>>),
    Loopback(transport::Endpoint<'static, Loopback<'static>>),
}

/// Calls the same thing on either.
macro_rules! each {
    ($machine:expr, $endpoint:ident => $body:expr) => {
        match $machine {
            Machine::Shm($endpoint) => $body,
            Machine::Loopback($endpoint) => $body,
        }
    };
}
pub(super) use each;
