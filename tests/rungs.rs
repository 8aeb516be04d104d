//! Rungs of `scripts/test` that select tests by name fail when a name selects none.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What cargo and two test programs print for `--list`.
const LIST: &str = "    Finished `test` profile in 0.1s\n     \
    Running unittests src/lib.rs (target/debug/deps/crosstie-1)\n\
    base::ring::tests::wraps: test\nbase::seq::tests::turns: test\n\
    wire::tests::slots: test\n\n3 tests, 0 benchmarks\n     \
    Running tests/kill.rs (target/debug/deps/kill-2)\n\
    peer_that_is_killed: test\n\n1 test, 0 benchmarks\n";
const RUNG: &str = "miri";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a function of `scripts/named.sh` over `list`: whether it succeeds, and what it prints.
fn check(function: &str, words: &[&str], list: &str) -> (bool, String) {
    let mut child = Command::new("bash")
        .args(["-euc", ". scripts/named.sh; \"$@\"", "bash", function, RUNG])
        .args(words)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    (out.status.success(), String::from_utf8(out.stdout).unwrap())
}

fn said(lines: &[&str]) -> (bool, String) {
    (lines.is_empty(), lines.iter().map(|line| format!("{RUNG}: {line}\n")).collect())
}

#[test]
fn each_filter_and_each_skip_must_match_a_test() {
    let select = |words: &[&str]| check("each_selects", words, LIST);
    assert_eq!(select(&[]), said(&[]));
    assert_eq!(select(&["base::", "killed", "--nocapture"]), said(&[]));
    assert_eq!(select(&["base::", "--skip", "base::seq"]), said(&[]));
    assert_eq!(
        select(&["base::", "lower::", "wires"]),
        said(&["filter 'lower::' matches no test", "filter 'wires' matches no test"])
    );
    assert_eq!(
        select(&["wire::", "--skip", "base::ting"]),
        said(&["--skip 'base::ting' matches no test"])
    );
    // What is skipped does not run, so it is no match.
    assert_eq!(select(&["wire::", "--skip", "slots"]), said(&["filter 'wire::' matches no test"]));
    assert_eq!(
        check("each_selects", &[], "0 tests, 0 benchmarks\n"),
        said(&["no test is selected"])
    );
}

#[test]
fn each_program_must_have_a_test() {
    let empty = "     Running tests/loom.rs (target/debug/deps/loom-3)\n0 tests, 0 benchmarks\n";
    let found = |list: &str| check("none_is_empty", &[], list);
    assert_eq!(found(LIST), said(&[]));
    assert_eq!(found(&(LIST.to_string() + empty)), said(&["tests/loom.rs has no test"]));
    assert_eq!(found("error: no such command\n"), said(&["no test program was listed"]));
    let cargo = "error: no test target named `hosst` in `crosstie` package\n";
    let (_, line) = check("no_program", &[], cargo);
    assert_eq!(line, format!("{RUNG}: program 'hosst' is no test program\n"));
}

#[test]
fn each_file_must_exist() {
    let files = |names: &[&str]| check("each_exists", names, "");
    assert_eq!(files(&["Cargo.toml", "src"]), said(&[]));
    assert_eq!(
        files(&["Cargo.toml", "examples-c/*.go"]),
        said(&["'examples-c/*.go' matches no file"])
    );
}

/// A rung that called cargo by itself with a name would pass with a name that matches nothing.
#[test]
fn no_rung_selects_by_name_without_the_check() {
    let script = fs::read_to_string(root().join("scripts/test")).unwrap().replace("\\\n", " ");
    let calls = |line: &&str| !line.trim_start().starts_with('#') && line.contains("cargo ");
    let mut checked = 0;
    for line in script.lines().filter(calls) {
        let by_name = line.contains("--test ") || line.contains(" --test=");
        let filters = line.contains(" test ") && line.contains(" -- ");
        let builds = line.contains("--no-run") || line.contains("cargo clippy");
        if (by_name || filters) && !builds {
            assert!(line.contains("named_tests "), "without `named_tests`: {line}");
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} calls were found");
}
