//! What the library and the archives stand on: nothing of the tool's dependencies reaches them.

use std::collections::BTreeSet;
use std::process::Command;

/// The library with its feature `std`.
const STD: &[&str] = &[
    "block-buffer",
    "cfg-if",
    "cmov",
    "cpufeatures",
    "crc32c",
    "crosstie",
    "crypto-common",
    "ctutils",
    "cudarc",
    "digest",
    "hmac",
    "hybrid-array",
    "libc",
    "libloading",
    "sha2",
    "static_assertions",
    "typenum",
];

/// What `cargo tree` says, a line for each package.
fn tree(words: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none"])
        .args(words)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names of packages");
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// The packages that a package of the workspace is built from, itself among them.
fn packages_of(package: &str) -> BTreeSet<String> {
    let all = tree(&["--edges", "normal", "--package", package]);
    all.iter().filter_map(|line| line.split(' ').next()).map(String::from).collect()
}

/// The tool has more, and an archive that had all of it would be noticed here.
#[test]
fn library_and_archives_are_built_from_the_packages_of_this_list() {
    let core: &[&str] = &["crosstie", "crosstie-kit"];
    for (package, wanted) in
        [("crosstie-core", core), ("crosstie", STD), ("crosstie-c", STD), ("crosstie-nccl", STD)]
    {
        let wanted: BTreeSet<String> =
            wanted.iter().copied().chain([package]).map(String::from).collect();
        assert_eq!(packages_of(package), wanted, "{package}");
    }
    assert!(packages_of("crosstie-tool").contains("serde_json"));
}

/// A package that had other features of a dependency than the workspace would be built twice, and
/// all that uses it: where it is tested alone, and with the others.
#[test]
fn package_by_itself_is_built_as_in_the_workspace() {
    let features = |of: &[&str]| {
        tree(&[&["--edges", "normal,build,dev", "--format", "{p} [{f}]"], of].concat())
    };
    let all = features(&["--workspace"]);
    for package in ["crosstie", "crosstie-c", "crosstie-nccl", "crosstie-tool"] {
        let others: Vec<_> = features(&["--package", package]).difference(&all).cloned().collect();
        assert!(others.is_empty(), "{package}: {others:?}");
    }
}
