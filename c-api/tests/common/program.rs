//! C programs that are linked against the static library that cargo built along with the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

/// Compiles a program into `out`: sources and options, by their paths from the root of the tree.
pub fn built(out: PathBuf, sources: &[&str], options: &[String]) -> PathBuf {
    let libraries = std::fs::read_to_string(format!("{ROOT}packaging/native-libs")).unwrap();
    let done = Command::new("cc")
        .args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I{ROOT}c-api/include"))
        .args(options)
        .args(sources.iter().map(|source| Path::new(ROOT).join(source)))
        .arg(std::env::current_exe().unwrap().with_file_name("libcrosstie_c.a"))
        .args(libraries.split_whitespace())
        .arg("-o")
        .arg(&out)
        .output()
        .expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    out
}
