//! `crosstie perf --memory cuda:N`, over the test double of the CUDA driver.

#[path = "../../tests/cuda_support/mod.rs"]
mod cuda_support;

use cuda_support::library_path;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Seconds after which a program hangs.
const WATCHDOG: &str = "600";
const SHORT: [&str; 4] = ["--seconds", "0.02", "--json", "--no-pin"];

/// `crosstie perf` under a watchdog, with a driver of this folder.
fn perf(driver: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", WATCHDOG, env!("CARGO_BIN_EXE_crosstie"), "perf"]).args(args);
    command.env("LD_LIBRARY_PATH", driver).env_remove("CUDA_VISIBLE_DEVICES");
    command
}

fn errors_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output of a run that must succeed.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, errors_of(output));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// A number of the JSON line of paths.
fn paths(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.contains("\"paths\"")).expect(text);
    let (_, rest) = line.split_once(&format!("\"{name}\":")).expect(line);
    rest.split([',', '}']).next().unwrap().parse().expect(line)
}

/// One run between two kinds of memory: what the copy engine brought, what was staged, and the
/// rest.
fn ran(memory: &str, settings: &[(&str, &str)]) -> (u64, u64, u64) {
    let args = ["latency", "bandwidth", "--both", "--sizes", "8,100K,1M", "--memory", memory];
    let mut command = perf(&library_path(), &[&args[..], &SHORT].concat());
    let text = said(&command.envs(settings.iter().copied()).output().unwrap());
    let is_row = |line: &&str| line.contains("verified_bytes");
    assert_eq!(text.lines().filter(is_row).count(), 6, "{text}");
    for row in text.lines().filter(is_row) {
        assert!(!row.contains("\"verified_bytes\":0,"), "{row}");
        assert!(row.contains(&format!("\"memory\":\"{memory}\"")), "{row}");
    }
    let of = |name| paths(&text, name);
    (of("copy_engine_bytes"), of("staged_bytes"), of("other_bytes"))
}

#[test]
fn messages_between_gpus_are_verified_and_counted_by_the_copy_engine() {
    let (engine, staged, others) = ran("cuda:0,cuda:1", &[("CROSSTIE_RAILS", "shm")]);
    assert!(engine > 0 && staged == 0, "{engine} {staged} {others}");
}

/// Bytes that went through the host would look like a copy engine's.
#[test]
fn bytes_that_are_staged_do_not_count_as_copy_engine() {
    let shm = ("CROSSTIE_RAILS", "shm");
    let tcp = [("CROSSTIE_RAILS", "tcp"), ("CROSSTIE_SOCKET_IFNAME", "=lo")];
    for (memory, settings) in [
        ("cuda:0,cuda:1", &[shm, ("CUDA_DOUBLE_DENY", "0-1")][..]),
        ("cuda:0,cuda:1", &tcp),
        ("host,cuda:1", &[shm]),
        ("cuda:0,host", &[shm]),
    ] {
        let (engine, staged, others) = ran(memory, settings);
        assert!(engine == 0 && staged > 0, "{memory}: {engine} {staged} {others}");
    }
}

#[test]
fn table_of_paths_stands_below_the_rows() {
    let args = ["latency", "--sizes", "64K", "--memory", "cuda:1", "--seconds", "0.02"];
    let text = said(&perf(&library_path(), &args).output().unwrap());
    let (rows, below) = text.split_once("bytes that arrived in both processes, by path").unwrap();
    assert!(rows.contains("cuda:1,cuda:1"), "{text}");
    for path in ["copy engine", "staged through the host", "others"] {
        assert!(below.contains(path), "{text}");
    }
    assert!(below.ends_with(" bytes verified, none wrong\n"), "{text}");
}

#[test]
fn server_takes_memory_of_its_gpu() {
    let mut command = perf(&library_path(), &["--listen", "0"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    let port = first.split_whitespace().nth(3).expect("a port");
    let args = ["localhost", port, "latency", "--sizes", "8,64K", "--memory", "cuda:0,cuda:1"];
    let text = said(&perf(&library_path(), &[&args[..], &SHORT].concat()).output().unwrap());
    assert!(paths(&text, "copy_engine_bytes") > 0, "{text}");
    let last = lines.last().unwrap();
    assert!(child.wait().unwrap().success() && last.ends_with("none wrong"), "{last}");
}

fn is_refused(driver: &Path, args: &[&str], settings: &[(&str, &str)], wanted: &str) {
    let output = perf(driver, args).envs(settings.iter().copied()).output().unwrap();
    let errors = errors_of(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
    assert!(errors.contains(wanted) && errors.lines().count() == 1, "{args:?}: {errors}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

#[test]
fn one_line_says_why_there_is_no_memory_of_a_gpu() {
    let none = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_driver");
    std::fs::create_dir_all(&none).unwrap();
    std::fs::write(none.join("libcuda.so.1"), "no library").unwrap();
    for memory in ["cuda:0", "cuda:0,host", "host,cuda:1"] {
        let args = ["latency", "--sizes", "8", "--memory", memory];
        is_refused(&none, &args, &[], "option --memory: CUDA: libcuda.so.1 cannot be loaded (");
        let hidden = [("CUDA_VISIBLE_DEVICES", "")];
        is_refused(&library_path(), &args, &hidden, "option --memory: CUDA: cuInit: ");
    }
    let (double, loopback) = (library_path(), ["--device", "loopback0", "--memory", "cuda:0"]);
    is_refused(&double, &["latency", "--memory", "cuda:9"], &[], "option --memory: cuDeviceGet: ");
    is_refused(&double, &loopback, &[], "option --memory: loopback0 has private memory only");
    let ranks = ["latency", "--pattern", "pair", "--memory", "cuda:0"];
    is_refused(&double, &ranks, &[], "option --memory: not among ranks of a pattern");
    let small = [("CUDA_DOUBLE_MEMORY", "1048576")];
    let args = ["bandwidth", "--sizes", "1M", "--memory", "cuda:0"];
    is_refused(&double, &args, &small, "option --memory: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
}

#[test]
fn info_shows_the_gpus_and_the_ways_between_them() {
    let info = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
        command.arg("info").args(more).env("LD_LIBRARY_PATH", library_path());
        command.envs([("CUDA_DOUBLE_DEVICES", "3"), ("CUDA_DOUBLE_DENY", "0-2")]);
        said(&command.env_remove("CUDA_VISIBLE_DEVICES").output().unwrap())
    };
    let line_of = |text: &str, name: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in:\n{text}")).to_string()
    };
    let short = line_of(&info(&[]), "GPUs");
    assert!(short.contains("3 (") && short.contains("of 6 ways through host memory"), "{short}");
    let all = info(&["--all"]);
    let first = line_of(&all, "GPU 0");
    assert!(first.contains("to 1 by copy engine over NVLink; to 2 through host memory"), "{first}");
    let second = line_of(&all, "GPU 1");
    assert!(second.ends_with("to 0, 2 by copy engine over NVLink"), "{second}");
}
