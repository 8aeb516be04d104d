//! Rails of vendors: what a program gives an endpoint beside the rails of the host, and what peers
//! are told of them.

use crate::base::hash::fnv1a_128;
use crate::host::error::OpenError;
pub use crate::host::error::VendorRailError;
use crate::host::log::event::tell;
use crate::host::log::network::{NetworkEvent, VendorOut};
use crate::provider::vendor::Table;
use crate::provider::vendor::port::{PortConfig, RECV_SLOTS_MIN, RailName};
use crate::transport::limits::CREDITS;
use crate::wire::pair::{PORTS_MAX, PortHello};
use core::ffi::c_void;
use std::vec::Vec;

/// What is sent without asking finds a receive.
const _: () = assert!(RECV_SLOTS_MIN >= CREDITS);

/// `PortHello::kind` of such a rail.
pub(in crate::host) const KIND: u8 = 5;

/// A rail of a vendor's, as a program gives it.
#[derive(Copy, Clone, Debug)]
pub struct VendorRail {
    /// The vendor's functions.
    pub table: Table,
    /// What its `open` gets.
    pub context: *mut c_void,
    /// What people call it.
    pub name: RailName,
    /// Rails make a pair where this is the same; made by [`network`].
    pub network: u128,
    /// Whether it reaches processes of its own host.
    pub reaches_own: bool,
    /// Whether it reaches those of others.
    pub reaches_others: bool,
    /// Speed in Mbit/s; 0: not known.
    pub speed_mbit_s: u32,
}

/// What stands for a network of a vendor's, by its name.
pub fn network(name: &[u8]) -> u128 {
    fnv1a_128([b"vendor", &[0], name])
}

/// The rails as a list; refuses more than a connection can have lanes for.
pub(in crate::host) fn listed(rails: &[VendorRail]) -> Result<Vec<VendorRail>, OpenError> {
    match rails.len() > PORTS_MAX {
        true => Err(OpenError::VendorRail(VendorRailError::TooMany(PORTS_MAX))),
        false => Ok(rails.to_vec()),
    }
}

/// Says of each rail that the endpoint does without it.
pub(in crate::host) fn left_out(rails: &[VendorRail], why: VendorOut) {
    for rail in rails {
        tell(&NetworkEvent::VendorOut { rail: rail.name.as_str(), why });
    }
}

/// What a peer is told of a rail.
pub(in crate::host) fn hello_of(rail: &VendorRail) -> PortHello {
    let prefix_bits = super::device::reach_bits(rail.reaches_own, rail.reaches_others);
    let VendorRail { network: gid, speed_mbit_s, .. } = *rail;
    PortHello { gid, prefix_bits, kind: KIND, speed_mbit_s }
}

/// What a port is opened with.
pub(in crate::host) fn config_of(rail: &VendorRail) -> PortConfig {
    PortConfig { table: rail.table, context: rail.context, name: rail.name }
}
