//! A sysfs with devices that this host does not have, before the eyes of a process.
#![allow(dead_code)] // each program uses a part

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const GID: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";

/// A folder that looks like `/sys/class`, with so many devices on links of this kind.
pub fn class(layer: &str, cards: usize) -> PathBuf {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("class-{}-{made}", std::process::id()));
    for card in 0..cards {
        let device = folder.join(format!("infiniband/fake{card}"));
        let kind = if layer == "Ethernet" { "RoCE v2" } else { "IB/RoCE v1" };
        for (name, text) in [
            ("node_type", "1: CA"),
            ("node_guid", "0c42:a103:0064:2b1c"),
            ("device/vendor", "0x0"), // it stands on a bus
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/link_layer", layer),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/gids/0", GID),
            ("ports/1/gid_attrs/types/0", kind),
        ] {
            let path = device.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
    }
    folder
}

/// How a command gets mounts of its own here; `None`, with a line that says so: it does not.
pub fn mounts() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["-m"], &["-Urm"]];
    let works = |way: &&&[&str]| {
        let mount = ["sh", "-c", "mount -t tmpfs none /sys/class"];
        let done = Command::new("unshare").args(**way).args(mount).output();
        done.is_ok_and(|done| done.status.success())
    };
    let way = ways.iter().find(works).copied();
    if way.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no mounts of our own");
        println!("SKIP: no mounts of our own (unshare -m)");
    }
    way
}

/// What a command says before whose eyes those devices stand; `None`: it cannot be.
pub fn said_before(class: &Path, teller: &Command) -> Option<String> {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /sys/class && cp -r \"$1\"/. /sys/class && shift && \
                  exec \"$@\"";
    command.args(mounts()?).args(["sh", "-c", script, "sh"]).arg(class);
    command.arg(teller.get_program()).args(teller.get_args());
    command.envs(teller.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = command.output().expect("unshare runs");
    let said = [&done.stdout, &done.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    let _ = std::fs::remove_dir_all(class);
    let how = done.status;
    assert!(how.success(), "{teller:?}: {how}: {}{}", said[0], said[1]);
    Some(said.concat())
}
