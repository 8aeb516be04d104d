//! Names the shared library for the dynamic linker.
#![forbid(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number steps when a program linked against an older header would break; doc/abi.md.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcrosstie.so.0");
    // A handshake thread may be running when the program calls dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
