//! Endpoints with rails of vendors beside those of the host.

use crate::config::{refused, xtie_endpoint_config};
use crate::endpoint::open_in;
use crate::guard;
use crate::handle::xtie_endpoint;
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, read};
use core::ffi::{CStr, c_char, c_int, c_void};
use crosstie::host::vendor::{VendorRail, VendorRailError, network};
use crosstie::provider::vendor::Table;
use crosstie::provider::vendor::port::RailName;

/// Most rails that an endpoint is opened with: one less than a connection may have.
pub const XTIE_VENDOR_RAILS_MAX: u32 = 7;
/// Flag of xtie_vendor_rail: it reaches processes of its own host.
pub const XTIE_VENDOR_RAIL_OWN_HOST: u32 = 0x1;
/// Flag of xtie_vendor_rail: it reaches processes of other hosts.
pub const XTIE_VENDOR_RAIL_OTHER_HOSTS: u32 = 0x2;

/// A vendor's functions: crosstie_provider.h has them, which who brings no rail need not include.
pub struct xtie_provider_ops {
    _opaque: [u8; 0],
}

/// A rail of a vendor's own, for xtie_endpoint_open_with_rails.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_vendor_rail {
    /// sizeof(xtie_vendor_rail).
    pub struct_size: u32,
    /// XTIE_VENDOR_RAIL_ flags; 0: both.
    pub flags: u32,
    /// The vendor's functions, of crosstie_provider.h. Read during the call; the functions stay in
    /// the program until the endpoint is closed.
    pub ops: *const xtie_provider_ops,
    /// What the open of ops gets.
    pub context: *mut c_void,
    /// What people call it, such as acme0: 1 to 32 printed characters without a space.
    pub name: *const c_char,
    /// What network it is on: rails of two endpoints carry a connection together where this is the
    /// same text, the first of each side with the first. NULL: one for all rails without.
    pub network: *const c_char,
    /// Speed in Mbit/s, for people; 0: not known.
    pub speed_mbps: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers and pointers without padding; the snapshot has the offsets.
unsafe impl Sized32 for xtie_vendor_rail {}

/// Opens an endpoint as xtie_endpoint_open does, with rails of vendors beside those of the host.
/// Each is a rail of connections to peers that have one of the same network, for messages, and TCP
/// is their reserve: a message goes on over another rail when one fails. A rail that refuses, or
/// promises too little for this (reads, writes with immediates, sends of 2048 bytes that are copied
/// at post, 48 receives, the fence of one peer), is left out, which the log says. CROSSTIE_RAILS
/// without vendor leaves all out. Peers of this host take shared memory where both allow it.
///
/// storage, storage_bytes, config, endpoint_out: as of xtie_endpoint_open.
/// rails: so many as rails_count says, one behind the other, all of one struct_size; read during
///     the call.
/// rails_count: up to XTIE_VENDOR_RAILS_MAX; a connection has rails_max - 1 of them at most.
/// Results: those of xtie_endpoint_open; XTIE_ERR_VENDOR_RAIL, and the log says which and why.
/// Threads: any, with storage of its own each. Cost: control path; starts a thread for set-up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_open_with_rails(
    storage: *mut c_void,
    storage_bytes: usize,
    config: *const xtie_endpoint_config,
    rails: *const xtie_vendor_rail,
    rails_count: usize,
    endpoint_out: *mut *mut xtie_endpoint,
) -> c_int {
    guard::free(|| {
        if storage.is_null() || endpoint_out.is_null() || (rails.is_null() && rails_count > 0) {
            return XTIE_ERR_NULL;
        }
        // SAFETY: null with none, or as many as it says (crosstie.h).
        let list = match unsafe { list(rails, rails_count) } {
            Ok(list) => list,
            Err(result) => return result,
        };
        // SAFETY: the caller's storage, by this function's comment; `config` is null or a
        // structure whose size its first word says.
        match unsafe { open_in(storage.cast(), storage_bytes, config, &list) } {
            Ok(endpoint) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { endpoint_out.write(endpoint) };
                XTIE_OK
            }
            Err(result) => result,
        }
    })
}

/// The rails of a caller's.
///
/// # Safety
/// - `rails` is valid for reads of `count` structures of the size that the first says, whose
///   pointers are null or what crosstie.h says of them.
unsafe fn list(
    rails: *const xtie_vendor_rail,
    count: usize,
) -> Result<Vec<VendorRail>, xtie_result> {
    if count > XTIE_VENDOR_RAILS_MAX as usize {
        return Err(rail_refused(count, &VendorRailError::TooMany(XTIE_VENDOR_RAILS_MAX as usize)));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: there is one at least, whose first word is its size.
    let stride = unsafe { rails.cast::<u32>().read_unaligned() };
    let mut list = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: by this function's contract.
        let place = unsafe { rails.byte_add(at * stride as usize) };
        // SAFETY: as above.
        let rail = unsafe { rail(place, stride) }.map_err(|error| rail_refused(at, &error))?;
        list.push(rail);
    }
    Ok(list)
}

fn rail_refused(at: usize, error: &VendorRailError) -> xtie_result {
    let text = format_args!("no endpoint was opened: rails[{at}]: {error}");
    match error {
        VendorRailError::TooMany(most) => refused(
            XTIE_ERR_VENDOR_RAIL,
            format_args!("no endpoint was opened: rails_count is {at}: there may be {most}"),
        ),
        _ => refused(XTIE_ERR_VENDOR_RAIL, text),
    }
}

/// # Safety
/// - as [`list`], of one.
unsafe fn rail(place: *const xtie_vendor_rail, stride: u32) -> Result<VendorRail, VendorRailError> {
    // SAFETY: this function's contract.
    let rail = unsafe { read(place) }.map_err(|_| VendorRailError::Struct)?;
    if rail.struct_size != stride {
        return Err(VendorRailError::Struct);
    }
    if rail.reserved != 0 {
        return Err(VendorRailError::Reserved);
    }
    let known = XTIE_VENDOR_RAIL_OWN_HOST | XTIE_VENDOR_RAIL_OTHER_HOSTS;
    if rail.flags & !known != 0 {
        return Err(VendorRailError::Flags);
    }
    let flags = if rail.flags == 0 { known } else { rail.flags };
    // SAFETY: null, or a table whose size its first word says.
    let table = unsafe { Table::check(rail.ops.cast()) }.map_err(VendorRailError::Table)?;
    if rail.name.is_null() {
        return Err(VendorRailError::Name);
    }
    // SAFETY: a text that ends with a zero.
    let name = RailName::new(unsafe { CStr::from_ptr(rail.name) }.to_bytes());
    let on = match rail.network.is_null() {
        true => c"",
        // SAFETY: as above.
        false => unsafe { CStr::from_ptr(rail.network) },
    };
    Ok(VendorRail {
        table,
        context: rail.context,
        name: name.ok_or(VendorRailError::Name)?,
        network: network(on.to_bytes()),
        reaches_own: flags & XTIE_VENDOR_RAIL_OWN_HOST != 0,
        reaches_others: flags & XTIE_VENDOR_RAIL_OTHER_HOSTS != 0,
        speed_mbit_s: rail.speed_mbps,
    })
}
