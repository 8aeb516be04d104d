//! Programs of `tests/gpu` that need nothing but the library, and the example of AllGathers, over
//! the test double of the CUDA driver.

#[path = "../../tests/cuda_support/mod.rs"]
mod cuda_support;
#[path = "common/program.rs"]
mod program;

use cuda_support::library_path;
use program::{ROOT, built};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of that name.
fn program(name: &str) -> PathBuf {
    let options = ["-pedantic".to_string(), format!("-I{ROOT}examples-c")];
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    built(out, &[&format!("tests/gpu/{name}.c")], &options)
}

/// An example of that name.
fn example(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    built(out, &[&format!("examples-c/{name}.c")], &["-pedantic".to_string()])
}

/// What a program says that finds everything right.
fn said(program: &Path, settings: &[(&str, &str)]) -> String {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "600"]).arg(program);
    command.env("LD_LIBRARY_PATH", library_path()).env_remove("CUDA_VISIBLE_DEVICES");
    let done = command.envs(settings.iter().copied()).output().expect("the program");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}\n{text}\n{errors}", done.status);
    assert!(!text.contains("WRONG"), "{text}");
    text
}

#[test]
fn each_kind_of_memory_is_passed_or_refused_as_the_page_says() {
    let program = program("memory");
    for settings in [&[][..], &[("CUDA_DOUBLE_DENY", "0-1")]] {
        let text = said(&program, settings);
        for path in ["copy engine", "TCP", "bad input", "GPUs hidden"] {
            assert!(text.contains(&format!("ok    {path} ")), "{text}");
        }
    }
}

#[test]
fn killed_peers_and_failed_gpus_leave_the_rest_alone() {
    let text = said(&program("failures"), &[("CUDA_DOUBLE_DELAY_NS", "2000")]);
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 4, "{text}");
}

#[test]
fn all_gathers_are_recorded_and_replayed_by_the_c_functions() {
    let program = example("allgather_graph");
    for hosts in ["one", "two"] {
        let text = said(&program, &[("GATHER_SHORT", "1"), ("GATHER_HOSTS", hosts)]);
        assert!(text.contains("every byte verified"), "{text}");
    }
}
