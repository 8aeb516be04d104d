//! Nothing allocates between open and close when C programs use the library: `tests/c/no_alloc.c`,
//! and `no_alloc_group.c` for groups, linked against the static library and an allocator that
//! counts.

#[path = "common/program.rs"]
mod program;

use program::built;
use std::path::{Path, PathBuf};
use std::process::Command;

fn program(folder: &Path, name: &str) -> PathBuf {
    let sources = [&format!("tests/c/{name}.c"), "tests/interpose/malloc_count.c"];
    built(folder.join(name), &sources, &[])
}

#[test]
fn c_programs_do_not_allocate_between_open_and_close() {
    is_without_calls("no_alloc");
}

#[test]
fn groups_do_not_allocate_between_open_and_close() {
    is_without_calls("no_alloc_group");
}

fn is_without_calls(name: &str) {
    if !cfg!(target_env = "gnu") {
        eprintln!("SKIP no_alloc: the allocator that counts knows glibc only");
        return;
    }
    let folder = std::env::temp_dir().join(format!("crosstie-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = program(&folder, name);
    for kernel_copy in ["1", "0"] {
        let said = Command::new(&program).env("CROSSTIE_KERNEL_COPY", kernel_copy).output();
        let said = said.expect("the program");
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "kernel copies {kernel_copy}: {}: {text}", said.status);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
