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
    run("named.sh", &[&[function, RUNG], words].concat(), list)
}

/// Runs a function of a file in `scripts/`.
fn run(file: &str, words: &[&str], list: &str) -> (bool, String) {
    let script = format!("set -o pipefail; . scripts/{file}; \"$@\" 2>&1");
    let mut child = Command::new("bash")
        .args(["-euc", &script, "bash"])
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

const SIDE_BY_SIDE: &str = "side_by_side.sh";

#[test]
fn test_programs_are_those_that_cargo_names() {
    let artifact = |manifest: &str, name: &str, is_test: bool, file: &str| {
        format!(
            "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///p#p@0.1.0\",\
             \"manifest_path\":\"{manifest}\",\"target\":{{\"kind\":[\"test\"],\
             \"crate_types\":[\"bin\"],\"name\":\"{name}\",\"src_path\":\"/p/{name}.rs\",\
             \"edition\":\"2024\",\"doc\":false,\"doctest\":false,\"test\":true}},\
             \"profile\":{{\"opt_level\":\"1\",\"debuginfo\":1,\"debug_assertions\":true,\
             \"overflow_checks\":true,\"test\":{is_test}}},\"features\":[\"default\"],\
             \"filenames\":[\"{file}\"],\"executable\":\"{file}\",\"fresh\":true}}\n"
        )
    };
    let json = [
        artifact("/p/Cargo.toml", "kill", true, "/p/target/kill-1"),
        artifact("/p/tool/Cargo.toml", "crosstie", false, "/p/target/crosstie"),
        artifact("/p/tool/Cargo.toml", "perf", true, "/p/target/perf-2"),
        "{\"reason\":\"build-finished\",\"success\":true}\n".to_owned(),
    ];
    let list = "kill\t/p\t/p/target/kill-1\ntool/perf\t/p/tool\t/p/target/perf-2\n";
    let found = run(SIDE_BY_SIDE, &["test_programs", "/p"], &json.concat());
    assert_eq!(found, (true, list.to_owned()));
}

#[test]
fn each_program_runs_once_and_those_alone_are_named() {
    let list = "a\t/\t/a\nb\t/\t/b\nc\t/\t/c\n";
    let order = |words: &[&str], list: &str| {
        let (is_good, text) = run(SIDE_BY_SIDE, &[&["in_order"], words].concat(), list);
        (is_good, text.replace("\t/\t/", " "))
    };
    assert_eq!(order(&["c", "a", "together"], list), (true, "c c\nb b\n".to_owned()));
    assert_eq!(order(&["", "a", "alone"], list), (true, "a a\n".to_owned()));
    let (is_good, text) = order(&["d", "e", "together"], list);
    assert!(!is_good && text.contains("d is no test program"), "{text}");
    assert!(text.contains("e is no test program"), "{text}");
    let (is_good, text) = order(&["", "", "together"], "a\t/\t/a\na\t/\t/b\n");
    assert!(!is_good && text.contains("two test programs are called a"), "{text}");
}

/// Two have to meet, which they do only side by side; the third fails.
#[test]
fn programs_run_side_by_side_and_a_failure_is_shown_whole() {
    let folder = std::env::temp_dir().join(format!("xtie-rungs-{}", std::process::id()));
    fs::create_dir_all(folder.join("logs")).unwrap();
    // A shell writes them: a child that another test starts would keep a file of ours open, and
    // what is open for writing cannot be run.
    let program = |name: &str, text: &str| {
        let file = folder.join(name).display().to_string();
        let script = "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod +x \"$1\"";
        let made = Command::new("sh").args(["-c", script, "sh", &file, text]).status().unwrap();
        assert!(made.success());
        format!("of/{name}\t{}\t{file}\n", folder.display())
    };
    let list = [
        program("one", "until [ -p fifo ]; do sleep 0.01; done; echo from one >fifo"),
        program("other", "mkfifo made && mv made fifo && cat fifo && echo $CARGO_MANIFEST_DIR"),
        program("wrong", "echo first line; echo second line >&2; exit 3"),
    ]
    .concat();
    let logs = folder.join("logs").display().to_string();
    let (is_good, text) = run(SIDE_BY_SIDE, &["side_by_side", "2", &logs], &list);
    assert!(!is_good, "{text}");
    for wanted in [" ok      of/one\n", " ok      of/other\n", " FAILED  of/wrong (status 3)"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(text.contains("\nfirst line\nsecond line\n"), "{text}");
    let other = fs::read_to_string(folder.join("logs/of-other")).unwrap();
    assert_eq!(other, format!("from one\n{}\n", folder.display()));
    fs::remove_dir_all(&folder).unwrap();
}

/// What stands in the last lines of a run is often all that one gets to see of it.
#[test]
fn a_failed_rung_says_in_a_few_lines_what_failed() {
    let log = std::env::temp_dir().join(format!("xtie-why-{}", std::process::id()));
    let mut text = String::from("   2 s  FAILED  of/wrong (status 101)\ntest meets ... FAILED\n");
    text += "thread 'meets' (7) panicked at tests/wrong.rs:3:5:\nleft is not right\n";
    text += &"   1 s  ok      of/one\n".repeat(500);
    fs::write(&log, text).unwrap();
    let (is_good, text) = run(SIDE_BY_SIDE, &["why_failed", &log.display().to_string()], "");
    assert!(is_good, "{text}");
    for wanted in ["FAILED  of/wrong", "test meets", "tests/wrong.rs:3:5", "left is not right"] {
        assert!(text.contains(wanted), "{wanted} is not in: {text}");
    }
    assert!(text.lines().count() <= 16, "{text}");
    fs::remove_file(&log).unwrap();
}
