//! Runs the harness: builds it, chooses the plugin, and says what it said when it fails.

pub mod hosts;

use hosts::Hosts;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Scenarios of the harness that ask the same of every kind of device.
pub const CONTRACT: [&str; 27] = [
    "bytes",
    "asked",
    "groups",
    "tag_ahead",
    "oversize",
    "full",
    "deep",
    "untested",
    "flush",
    "hinted",
    "loopback",
    "listener_reuse",
    "gpus",
    "crews",
    "no_alloc",
    "counters",
    "numbering",
    "left_registered",
    "half_written",
    "abort_busy",
    "abandoned",
    "reload",
    "forked",
    "rough",
    "nonsense",
    "peer_dies",
    "peer_returns",
];

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
pub const VERSIONS: [u32; 7] = [6, 7, 8, 9, 10, 11, 12];
pub const RAILS: [&str; 2] = ["shm", "tcp"];

/// The plugin that cargo built along with this test, or the installed one that `HARNESS_PLUGIN`
/// names.
pub fn plugin() -> PathBuf {
    let built = || std::env::current_exe().unwrap().with_file_name("libcrosstie_nccl.so");
    std::env::var_os("HARNESS_PLUGIN").map_or_else(built, PathBuf::from)
}

/// A file of this test program alone: others may run beside it.
pub fn own_file(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program.file_name().unwrap());
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// The harness, built once.
pub fn harness() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let binary = own_file("nccl-harness");
        if is_newer_than_sources(&binary) {
            // compilers are slow in a guest
            return binary;
        }
        let built = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"])
            .arg(&binary)
            .arg(Path::new(ROOT).join("tests/harness/harness.c"))
            // its allocator takes the plugin's calls, too
            .args(["-rdynamic", "-ldl", "-lpthread"])
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        binary
    })
}

fn is_newer_than_sources(binary: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    let sources = std::fs::read_dir(Path::new(ROOT).join("tests/harness")).unwrap();
    let latest = sources.filter_map(|it| changed(&it.unwrap().path())).max();
    changed(binary).is_some_and(|built| Some(built) > latest)
}

/// The harness with the plugin inside, linked as doc/linking.md says.
pub fn harness_with_plugin() -> PathBuf {
    let binary = own_file("nccl-harness-static");
    let archive = std::env::current_exe().unwrap().with_file_name("libcrosstie_nccl.a");
    let packaging = Path::new(ROOT).join("../../packaging");
    let flags = |name| std::fs::read_to_string(packaging.join(name)).unwrap();
    let (symbols, libraries) = (flags("nccl-symbols"), flags("native-libs"));
    let built = Command::new("cc")
        .args(["-std=c11", "-O1", "-o"])
        .arg(&binary)
        .arg(Path::new(ROOT).join("tests/harness/harness.c"))
        .args(symbols.split_whitespace())
        .arg(archive)
        .arg("-Wl,--gc-sections")
        .args(libraries.split_whitespace())
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    binary
}

/// One scenario with one table over one rail.
pub fn play_one(scenario: &str, version: u32, rails: &str) {
    play_with(harness(), &plugin(), scenario, version, rails);
}

pub fn play_with(harness: &Path, plugin: &Path, scenario: &str, version: u32, rails: &str) {
    // with whatever else there is, where several devices are wanted
    let interfaces = if scenario == "numbering" { "lo,eth,en" } else { "lo" };
    let environment = [("CROSSTIE_SOCKET_IFNAME", interfaces), ("CROSSTIE_RAILS", rails)];
    play_in(&environment, harness, plugin, scenario, version);
}

/// One scenario between two hosts, over TCP by all that joins them.
pub fn play_between(hosts: &Hosts, scenario: &str, version: u32) {
    play_between_with(hosts, scenario, version, &[]);
}

/// The same, with more in its environment.
pub fn play_between_with(hosts: &Hosts, scenario: &str, version: u32, more: &[(&str, &str)]) {
    let names = hosts.names();
    let mut environment = vec![
        ("HARNESS_HOSTS", names.as_str()),
        ("CROSSTIE_SOCKET_IFNAME", "eth"),
        ("CROSSTIE_RAILS", "tcp"),
    ];
    environment.extend(more);
    play_in(&environment, harness(), &plugin(), scenario, version);
}

pub fn play_in(
    environment: &[(&str, &str)],
    harness: &Path,
    plugin: &Path,
    scenario: &str,
    version: u32,
) {
    let said = Command::new(harness)
        .arg(plugin)
        .args([&version.to_string(), scenario])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(
        said.status.success(),
        "{scenario} with v{version}, {environment:?}: {}\n{}",
        said.status,
        String::from_utf8_lossy(&said.stderr)
    );
}

/// One scenario with every table over every rail.
pub fn play(scenario: &str) {
    for rails in RAILS {
        VERSIONS.into_iter().for_each(|version| play_one(scenario, version, rails));
    }
}

/// One that does not talk to anybody.
pub fn play_alone(scenario: &str) {
    VERSIONS.into_iter().for_each(|version| play_one(scenario, version, "shm,tcp"));
}
