//! What the archive is, and what it makes of a listener's handle.

use core::ffi::c_int;

use crosstie::wire::handle::{HANDLE_BYTES, ListenHandle};
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};

/// The wire version that this archive speaks: major in the high 16 bits, minor in the low ones.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_version() -> u32 {
    u32::from(WIRE_MAJOR) << 16 | u32::from(WIRE_MINOR)
}

/// Whether the 128 bytes at `handle` are a listener's handle of this version: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_handle_check(handle: *const u8) -> c_int {
    if handle.is_null() {
        return 0;
    }
    // SAFETY: valid for reads of 128 bytes by this function's contract; bytes need no alignment.
    let bytes = unsafe { &*handle.cast::<[u8; HANDLE_BYTES]>() };
    c_int::from(ListenHandle::decode(bytes).is_ok())
}
