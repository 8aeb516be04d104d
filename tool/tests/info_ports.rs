//! `crosstie info` on RDMA ports: those of a false libibverbs, and, where `XTIE_VM` says that this
//! machine is the guest of `tests/vm`, the guest's.

#[path = "../../tests/host_support/mod.rs"]
mod host_support;
#[path = "../../tests/verbs_support/hosts.rs"]
mod hosts;
#[path = "../../tests/verbs_support/mod.rs"]
mod verbs_support;

use hosts::{class, said_before};
use std::path::Path;
use std::process::Command;
use verbs_support::fake::{compile, libraries};

/// What `crosstie info` says of RDMA, of so many devices, with the library of that folder.
fn info(folder: &Path, cards: usize) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.args(["info", "--all"]).env("LD_LIBRARY_PATH", folder).env("FAKE", "cards=8");
    let said = said_before(&class("Ethernet", cards), &command)?;
    let (_, section) = said.split_once("\nrdma\n").expect("a section");
    Some(section.split("\nlibfabric").next().expect("a section").into())
}

/// They were called usable, whatever the library said.
#[test]
fn info_calls_no_port_usable_that_an_endpoint_cannot_use() {
    let Some([new, _]) = libraries() else { return };
    let Some(said) = info(new, 9) else { return };
    let line = |name: &str| {
        let of_it = |line: &&str| line.trim_start().starts_with(&format!("{name} "));
        said.lines().find(of_it).unwrap_or_else(|| panic!("no {name}: {said}"))
    };
    assert!(line("library").contains("verbs_fake_new/libibverbs.so.1 (rdma-core 62 or newer)"));
    for card in 0..7 {
        let port = format!("fake{card}:1");
        assert!(line(&port).contains(" usable by GID 0 10.0.0.1"), "{said}");
    }
    // they have one address, and a connection of two rails takes one of such ports
    assert!(line("companions").contains(" 2 queue pairs on 1 of 1 ports"), "{said}");
    assert!(line("fake7:1").contains("unusable: an endpoint uses seven ports"), "{said}");
    assert!(line("fake8:1").contains("unusable: device file: none: the kernel"), "{said}");
    let strange = compile("strange", "fake.map", &["-Dibv_open_device=ibv_open_nothing"]);
    let said = info(&strange, 1).expect("as before");
    let why = "libibverbs.so.1 is too old, it has no ibv_open_device";
    assert_eq!(said.matches(why).count(), 1, "{said}");
    assert!(said.contains(" unusable: libibverbs cannot be used "), "{said}");
}

#[test]
fn info_shows_the_guests_ports() {
    if std::env::var_os("XTIE_VM").is_none() {
        println!("not in the guest of tests/vm: `make vm` runs this");
        return;
    }
    let program = env!("CARGO_BIN_EXE_crosstie");
    let output = Command::new(program).args(["info", "--all"]).output().expect(program);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |name: &str| {
        let found = text.lines().find(|line| line.split("  ").any(|part| part.trim() == name));
        found.unwrap_or_else(|| panic!("{name} in {text}")).to_string()
    };
    assert!(line("rxe0").contains("channel adapter, no PCI device"), "{text}");
    assert!(line("rxe1 file").contains("/dev/infiniband/uverbs1 opens"), "{text}");
    let usable = "usable by GID 1 10.77.0.1 (RoCE v2, rail0), subnet of 24 bits; active, Ethernet";
    assert!(line("rxe0:1").contains(usable), "{text}");
    assert!(line("companions").contains(" queue pairs on "), "{text}");
    assert!(line("rxe0:1 GIDs").contains("GID 0 fe80::"), "{text}");
    let chosen =
        Command::new(program).args(["info", "--all"]).env("CROSSTIE_IB_HCA", "^=rxe0").output();
    let text = String::from_utf8(chosen.unwrap().stdout).unwrap();
    assert!(text.contains("unusable: left out by CROSSTIE_IB_HCA=^=rxe0"), "{text}");
}
