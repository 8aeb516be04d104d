//! The core of crosstie as an archive for programs without an operating system: no `std`, no
//! allocator, no unwinder. `cargo build -p crosstie-core --profile core` makes it; the rung `core`
//! of `scripts/test` checks what it leaves undefined.
//!
//! The panic handler exists only where panics abort (profile `core`): in a workspace build, where
//! `std` is linked too, a second handler would be an error.
#![no_std]

mod loopback;

use core::ffi::c_int;

use crosstie::wire::handle::{HANDLE_BYTES, ListenHandle};
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

// The precompiled `core` refers to this name even where nothing unwinds. Weak, so that a program
// which links another Rust library keeps that one's.
#[cfg(panic = "abort")]
core::arch::global_asm!(".weak rust_eh_personality", "rust_eh_personality:", "ud2");

/// The wire version that this archive speaks: major in the high 16 bits, minor in the low ones.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_version() -> u32 {
    u32::from(WIRE_MAJOR) << 16 | u32::from(WIRE_MINOR)
}

/// Whether the 128 bytes at `handle` are a listener's handle of this version: 1 or 0.
///
/// # Safety
/// - `handle` is NULL (the answer is 0) or valid for reads of 128 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_handle_check(handle: *const u8) -> c_int {
    if handle.is_null() {
        return 0;
    }
    // SAFETY: valid for reads of 128 bytes by this function's contract; bytes need no alignment.
    let bytes = unsafe { &*handle.cast::<[u8; HANDLE_BYTES]>() };
    c_int::from(ListenHandle::decode(bytes).is_ok())
}
