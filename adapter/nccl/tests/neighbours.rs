//! The plugin in a process with other libraries: another network of NCCL's with the same symbols,
//! Rust libraries with runtimes of their own, and a second copy of itself.

#[allow(dead_code)] // of the shared parts
mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{RAILS, VERSIONS, harness, own_file, play_in, plugin};

fn built(command: &mut Command) {
    let said = command.output().unwrap();
    assert!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
}

/// A Rust library, whose panics do `panic`.
fn rust_library(panic: &str) -> PathBuf {
    let library = own_file(&format!("neighbour-{panic}.so"));
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    built(
        Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "-C"])
            .arg(format!("panic={panic}"))
            .arg("-o")
            .arg(&library)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/neighbours/rust.rs")),
    );
    library
}

#[test]
fn other_plugins_rust_libraries_and_a_second_copy_are_no_hindrance() {
    let other = own_file("other-plugin.so");
    built(
        Command::new("cc")
            .args(["-std=c11", "-shared", "-fPIC", "-o"])
            .arg(&other)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/neighbours/plugin.c")),
    );
    let twin = own_file("librccl-net-crosstie.so");
    std::fs::copy(plugin(), &twin).unwrap();
    let all = [other, rust_library("unwind"), rust_library("abort")];
    let names = all.map(|library| library.to_str().unwrap().to_string()).join(",");
    for (version, rails) in VERSIONS.into_iter().flat_map(|v| RAILS.map(|rails| (v, rails))) {
        let environment = [
            ("HARNESS_NEIGHBOURS", names.as_str()),
            ("HARNESS_TWIN", twin.to_str().unwrap()),
            ("CROSSTIE_SOCKET_IFNAME", "lo"),
            ("CROSSTIE_RAILS", rails),
        ];
        play_in(&environment, harness(), &plugin(), "neighbours", version);
    }
}
