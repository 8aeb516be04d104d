//! Nothing allocates between open and close when C programs use the library: `tests/c/no_alloc.c`,
//! linked against the static library and an allocator that counts.

use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The static library that cargo built along with this test.
fn static_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name("libcrosstie_c.a")
}

fn program(folder: &Path) -> PathBuf {
    let out = folder.join("no_alloc");
    let libraries = std::fs::read_to_string(format!("{ROOT}/packaging/native-libs")).unwrap();
    let built = Command::new("cc")
        .args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(format!("{ROOT}/c-api/include"))
        .arg(format!("{ROOT}/tests/c/no_alloc.c"))
        .arg(format!("{ROOT}/tests/interpose/malloc_count.c"))
        .arg(static_library())
        .args(libraries.split_whitespace())
        .arg("-o")
        .arg(&out)
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    out
}

#[test]
fn c_programs_do_not_allocate_between_open_and_close() {
    if !cfg!(target_env = "gnu") {
        eprintln!("SKIP no_alloc: the allocator that counts knows glibc only");
        return;
    }
    let folder = std::env::temp_dir().join(format!("crosstie-no-alloc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = program(&folder);
    for kernel_copy in ["1", "0"] {
        let said = Command::new(&program).env("CROSSTIE_KERNEL_COPY", kernel_copy).output();
        let said = said.expect("the program");
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "kernel copies {kernel_copy}: {}: {text}", said.status);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
