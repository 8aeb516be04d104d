//! Tests over the test double of the CUDA driver (`tests/cuda-double`).
//!
//! A process has one driver, loaded by name. So each test starts itself again as a child process,
//! whose `LD_LIBRARY_PATH` leads to the double: [`with_double`]. Processes that the child starts
//! use the double, too.

#![allow(dead_code, non_snake_case)]

pub mod control;
pub mod driver;
pub mod steps;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name by which the driver is loaded.
const FILE: &str = "libcuda.so.1";
/// Names the test that a child process runs.
const STORY: &str = "XTIE_CUDA_STORY";

/// Runs `story` under the double, in a process of its own. `test` is the whole name of the calling
/// test. `settings` are environment variables: those of the double
/// (`tests/cuda-double/src/settings.rs`), and others.
pub fn with_double(test: &str, settings: &[(&str, &str)], story: impl FnOnce()) {
    within(&library_path(), test, settings, story);
}

/// The same with a driver that has not the functions `without`, as an old one.
pub fn with_old_double(
    test: &str,
    without: &[&str],
    settings: &[(&str, &str)],
    story: impl FnOnce(),
) {
    within(&folder(test, without), test, settings, story);
}

/// Runs `story` under the double, or under the driver of this host when `XTIE_CUDA_REAL` is set.
/// It must not control the double.
pub fn with_driver(test: &str, story: impl FnOnce()) {
    let real = std::env::var_os("XTIE_CUDA_REAL").is_some();
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folder = if real { PathBuf::from(path) } else { library_path() };
    within(&folder, test, &[], story);
}

fn within(folder: &Path, test: &str, settings: &[(&str, &str)], story: impl FnOnce()) {
    if std::env::var(STORY).is_ok_and(|name| name == test) {
        return story();
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    // SAFETY: one call of the system's, which allocates nothing.
    unsafe { command.pre_exec(end_with_the_test) };
    let done = command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(STORY, test)
        .env("LD_LIBRARY_PATH", folder)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(settings.iter().copied())
        .output()
        .expect("this program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{test} under the double: {}\n{said}", done.status);
    print!("{said}");
    assert!(said.contains("1 passed"), "{test} is not the whole name of a test:\n{said}");
}

/// Lets a child process end when the thread of its test does.
fn end_with_the_test() -> std::io::Result<()> {
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    Ok(())
}

/// A folder for `LD_LIBRARY_PATH`, for tests that start their processes themselves.
pub fn library_path() -> PathBuf {
    folder("whole", &[])
}

/// The double, which cargo builds beside the tests.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let file = program.with_file_name("libcrosstie_cuda_double.so");
    assert!(file.is_file(), "{} is not there", file.display());
    file
}

/// A folder with the double under the driver's name.
fn folder(name: &str, without: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_double").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    // Made beside and moved: another test, or another run of this one, may load it just now.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let made = folder.join(format!("{}-{number}", std::process::id()));
    if without.is_empty() {
        std::os::unix::fs::symlink(built(), &made).expect("a link");
    } else {
        let mut library = std::fs::read(built()).expect("the double");
        without.iter().for_each(|function| hide(&mut library, function));
        std::fs::write(&made, library).expect("a file");
    }
    std::fs::rename(&made, folder.join(FILE)).expect("one file system");
    folder
}

/// Changes the name of an exported function, so that it is not found.
fn hide(library: &mut [u8], function: &str) {
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let mut found = 0;
    for at in 0..library.len() - name.len() {
        if library[at..].starts_with(&name) {
            library[at + 1] = b'-';
            found += 1;
        }
    }
    assert!(found > 0, "the double has no {function}");
}
