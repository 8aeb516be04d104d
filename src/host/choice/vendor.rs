//! Rails of vendors: what a program gives an endpoint beside the rails of the host, and what peers
//! are told of them.

extern crate std;

use crate::base::hash::fnv1a_128;
use crate::host::error::OpenError;
use crate::host::log::{Level, say};
use crate::provider::vendor::port::{PortConfig, RECV_SLOTS_MIN, RailName};
use crate::provider::vendor::{Table, TableError};
use crate::transport::limits::CREDITS;
use crate::wire::pair::{PORTS_MAX, PortHello};
use core::ffi::c_void;
use core::fmt;
use std::vec::Vec;

/// What is sent without asking finds a receive.
const _: () = assert!(RECV_SLOTS_MIN >= CREDITS);

/// Of a device that has none: why a rail is left out.
pub(in crate::host) const NOT_HERE: &str = "this device has no rails of vendors; host0 has";

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

/// Why a rail that a program gives is none. The endpoint is not opened.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum VendorRailError {
    /// The structure, or its size.
    Struct,
    /// What is reserved is not zero.
    Reserved,
    /// The table.
    Table(TableError),
    /// The name is missing, too long, or not of printed characters.
    Name,
    /// It reaches nobody, or its flags are unknown.
    Flags,
    /// There are more than so many.
    TooMany(usize),
}

impl fmt::Display for VendorRailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VendorRailError::Struct => f.write_str("struct_size is that of no version"),
            VendorRailError::Reserved => f.write_str("reserved is not zero"),
            VendorRailError::Table(TableError::Null) => f.write_str("ops is NULL"),
            VendorRailError::Table(TableError::Size) => {
                f.write_str("struct_size of its ops is that of no version")
            }
            VendorRailError::Table(TableError::Longer) => {
                f.write_str("its ops have entries that this version does not know")
            }
            VendorRailError::Table(TableError::Reserved) => {
                f.write_str("reserved of its ops is not zero")
            }
            VendorRailError::Table(TableError::Entry(name)) => {
                write!(f, "the entry {name} of its ops is NULL")
            }
            VendorRailError::Name => {
                f.write_str("its name is not 1 to 32 printed characters without a space")
            }
            VendorRailError::Flags => {
                f.write_str("flags say that it reaches nobody, or what is unknown")
            }
            VendorRailError::TooMany(most) => write!(f, "there are more than {most}"),
        }
    }
}

/// The rails as a list; refuses more than a connection can have lanes for.
pub(in crate::host) fn listed(rails: &[VendorRail]) -> Result<Vec<VendorRail>, OpenError> {
    match rails.len() > PORTS_MAX {
        true => Err(OpenError::VendorRail(VendorRailError::TooMany(PORTS_MAX))),
        false => Ok(rails.to_vec()),
    }
}

/// Says of each rail that the endpoint does without it.
pub(in crate::host) fn left_out(rails: &[VendorRail], why: &str) {
    for rail in rails {
        let text = std::format!("vendor's rail {} is left out: {why}", rail.name.as_str());
        say(Level::Warning, &text);
    }
}

/// What a peer is told of a rail.
pub(in crate::host) fn hello_of(rail: &VendorRail) -> PortHello {
    let prefix_bits = super::ports::reach_bits(rail.reaches_own, rail.reaches_others);
    let VendorRail { network: gid, speed_mbit_s, .. } = *rail;
    PortHello { gid, prefix_bits, kind: KIND, speed_mbit_s }
}

/// What a port is opened with.
pub(in crate::host) fn config_of(rail: &VendorRail) -> PortConfig {
    PortConfig { table: rail.table, context: rail.context, name: rail.name }
}
