//! The core of crosstie as an archive for programs without an operating system: no `std`, no
//! allocator, no unwinder. `cargo build -p crosstie-core --profile core` makes it; the rung `core`
//! of `scripts/test` checks what it leaves undefined.
//!
//! The panic handler exists only where panics abort (profile `core`): in a workspace build, where
//! `std` is linked too, a second handler would be an error.
//!
//! What a build needs that brings its own provider in C is here too: the conformance suite over its
//! table, and endpoints on it. `crosstie_provider.h` is made from these files and the library's
//! `provider/vendor/abi.rs`.
#![no_std]
// The names are C's; each function's contract is its comment, which is written for C.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod conformance;
mod connection;
mod endpoint;
mod library;
mod loopback;
mod panic;
mod result;

#[cfg(panic = "abort")]
#[panic_handler]
fn handler(info: &core::panic::PanicInfo<'_>) -> ! {
    let (file, line) = info.location().map_or(("", 0), |place| (place.file(), place.line()));
    panic::tell(file, line);
    panic::trap()
}

// The precompiled `core` refers to this name even where nothing unwinds. Weak, so that a program
// which links another Rust library keeps that one's.
#[cfg(all(panic = "abort", target_arch = "x86_64"))]
core::arch::global_asm!(".weak rust_eh_personality", "rust_eh_personality:", "ud2");
#[cfg(all(panic = "abort", target_arch = "aarch64"))]
core::arch::global_asm!(".weak rust_eh_personality", "rust_eh_personality:", "brk #1");
