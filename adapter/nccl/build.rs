//! Names the plugin for the dynamic linker, and keeps it mapped.
#![forbid(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-crosstie.so");
    // Tables up to v10 have no finalize: a thread of ours may run when NCCL calls dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The archives that the plugin is made of show none of their symbols.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
