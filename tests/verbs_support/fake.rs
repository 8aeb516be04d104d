//! A libibverbs of our own (`tests/verbs_fake`), which has the devices, the limits and the refusals
//! that a host here does not have. Stories run in a process of their own, which loads it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Below the project's root: tests of two packages use this.
const FOLDER: &str = "tests/verbs_fake";

/// Folders with the library, and with one of before ECE and dma-bufs. `None`: the header is
/// missing.
pub fn libraries() -> Option<&'static [PathBuf; 2]> {
    static MADE: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
    let compiled = || [compile("new", "fake.map", &[]), compile("old", "old.map", &["-DOLD"])];
    let make = || super::header::is_installed().then(compiled);
    MADE.get_or_init(make).as_ref()
}

/// Compiles the library anew, exporting what the map says.
pub fn compile(name: &str, map: &str, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verbs_fake_{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = package.ancestors().map(|above| above.join(FOLDER));
    let sources = sources.find(|folder| folder.is_dir()).expect("its sources");
    let sources = sources.display();
    // made beside and moved: another run of this test may have it loaded
    let (made, there) = (folder.join(format!("{}", std::process::id())), "libibverbs.so.1");
    let done = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"])
        .arg(format!("-Wl,--version-script={sources}/{map}"))
        .arg(format!("-Wl,-soname,{there}"))
        .args(flags)
        .arg("-o")
        .arg(&made)
        .arg(format!("{sources}/fake.c"))
        .output()
        .expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&made, folder.join(there)).unwrap();
    folder
}

/// What a story says, told in a process that loads libibverbs from `folder`.
pub fn told_in(folder: &Path, story: &str, fake: &str) -> String {
    let done = tell_in(folder, story, fake);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{story}, {fake}: {said}");
    said
}

/// The same, and how it ended.
pub fn tell_in(folder: &Path, story: &str, fake: &str) -> Output {
    story_in(folder, story, fake).output().expect("this program runs")
}

/// The story that this process is to tell. `None`: none, and that one which nobody knows fails was
/// seen.
pub fn story_told() -> Option<String> {
    if let Ok(story) = std::env::var("FAKE_STORY") {
        return Some(story);
    }
    let [folder, _] = libraries()?;
    let done = tell_in(folder, "of nobody", "");
    assert!(!done.status.success(), "a story that nobody knows was told");
    None
}

/// The process that tells a story: the test `storyteller` of this program.
pub fn story_in(folder: &Path, story: &str, fake: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a name");
    let mut command = Command::new(program);
    command
        .args(["--exact", "storyteller", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env("FAKE", fake)
        .env("FAKE_STORY", story);
    command
}
