//! What `crosstie info --peer` says of settings that no endpoint opens with, or of which some part
//! means nothing, from outside.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// An address for documentation (RFC 5737): of no host, so of none that is ours.
const ELSEWHERE: &str = "203.0.113.9";

/// `crosstie info` with these arguments and variables.
fn info(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.arg("info").args(args).envs(variables.iter().copied()).output().unwrap()
}

/// What a line of its output says.
fn said_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let of = |line: &'a str| line.trim_start().strip_prefix(name)?.strip_prefix("  ");
    text.lines().find_map(of).map(str::trim)
}

/// Its status, and what it says of the rail that is chosen.
fn choice(peer: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = info(&["--peer", peer], variables);
    let text = String::from_utf8(output.stdout).unwrap();
    let choice = said_of(&text, "choice").unwrap_or_else(|| panic!("{text}"));
    (output.status.code(), choice.to_owned())
}

/// It said `choice tcp`, and status 0; and plain `info` that host0 does not open.
#[test]
fn peer_is_reached_by_no_rail_where_one_is_required_that_is_not_there() {
    let library = ("CROSSTIE_OFI_LIBRARY", "/dev/null");
    let of = |rails| choice("127.0.0.1", &[("CROSSTIE_RAILS_REQUIRED", rails), library]);
    let (status, choice) = of("libfabric");
    let wanted = "none: CROSSTIE_RAILS_REQUIRED names libfabric, which cannot be used here";
    assert!(status == Some(1) && choice.starts_with(wanted), "{status:?} {choice}");
    let (status, choice) = of("foo");
    assert!(status == Some(1) && choice.contains("there is no rail foo"), "{status:?} {choice}");
    let (status, choice) = of("shm,tcp");
    assert!(status == Some(0) && choice.starts_with("shm: "), "{status:?} {choice}");
}

/// It named a rail, with status 0, where a program is refused its endpoint.
#[test]
fn peer_is_reached_by_no_rail_where_no_endpoint_opens_and_the_cause_is_named() {
    let key = std::env::temp_dir().join(format!("crosstie-open-key-{}", std::process::id()));
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    for (name, value, words) in [
        (
            "CROSSTIE_KEY_FILE",
            "/nowhere/key",
            "CROSSTIE_KEY_FILE=/nowhere/key: the file cannot be read",
        ),
        ("CROSSTIE_KEY_FILE", key.to_str().unwrap(), "others than its owner may read"),
        ("CROSSTIE_SEND_RING_BYTES", "5000", "CROSSTIE_SEND_RING_BYTES=5000: it must be"),
        ("CROSSTIE_WRITE_RING_BYTES", "33554432", "it must be a power of two from 4096 to "),
        ("CROSSTIE_EAGER_BYTES", "16321", "it may be 16320 at most"),
        ("CROSSTIE_HEAP_BYTES", "140737488355328", "below 140737488355328"),
    ] {
        for peer in ["127.0.0.1", ELSEWHERE] {
            let (status, choice) = choice(peer, &[(name, value)]);
            let none = choice.starts_with("none: ") && choice.contains(words);
            assert!(status == Some(1) && none, "{name}={value}: {status:?} {choice}");
        }
    }
    std::fs::remove_file(&key).unwrap();
}

/// The library says it at open, which `info --peer` passed over in silence.
#[test]
fn variable_that_does_not_exist_is_told_of_as_programs_tell_it() {
    let wrong = ("CROSSTIE_EGER_BYTES", "1");
    let line = "crosstie: CROSSTIE_EGER_BYTES is not a variable of crosstie; the nearest is \
                CROSSTIE_EAGER_BYTES\n";
    let output = info(&["--peer", "127.0.0.1"], &[wrong]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), line);
    assert_eq!(output.status.code(), Some(0));
    let quiet = info(&["--peer", "127.0.0.1"], &[wrong, ("CROSSTIE_LOG", "error")]);
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
    let plain = info(&["--all"], &[wrong]);
    let text = String::from_utf8_lossy(&plain.stdout);
    let words = line["crosstie: ".len()..].trim_end();
    assert!(said_of(&text, wrong.0).is_some_and(|said| said.ends_with(words)), "{text}");
}

/// Where one of several names was of an interface, nobody was told that the others are of none.
#[test]
fn names_of_interfaces_that_are_not_there_are_told_beside_those_that_are() {
    for args in [&["--all"][..], &["--peer", "127.0.0.1"]] {
        let of = |choice: &str| {
            let output = info(args, &[("CROSSTIE_SOCKET_IFNAME", choice)]);
            let text = String::from_utf8(output.stdout).unwrap();
            said_of(&text, "tcp").unwrap_or_default().to_owned()
        };
        let line = of("lo,nobodys0");
        let words = "CROSSTIE_SOCKET_IFNAME=lo,nobodys0: no interface matches nobodys0; there are ";
        assert!(line.starts_with(words), "{args:?}: {line}");
        assert_eq!(of("lo"), "", "{args:?}");
        assert!(of("nobodys0").starts_with("unavailable: "), "{args:?}");
    }
}

/// It said that TCP leads nowhere, which nobody had allowed.
#[test]
fn peer_elsewhere_is_reached_by_none_of_the_rails_that_are_allowed_where_that_is_shm() {
    let (status, choice) = choice(ELSEWHERE, &[("CROSSTIE_RAILS", "shm")]);
    let words = "none: CROSSTIE_RAILS=shm leads to no other host, and the peer is on another, \
                 unless its node id is ours, ";
    assert!(status == Some(1) && choice.starts_with(words), "{status:?} {choice}");
}

/// Leaves a file where it is loaded, and is of no use else.
const LIBRARY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) {
    FILE *file = fopen(getenv("LOADED"), "w");
    if (file)
        fclose(file);
}
"#;

/// An endpoint was opened before, which loads libraries, and takes the time and memory of one.
#[test]
fn peer_of_no_address_is_refused_before_an_endpoint_is_opened() {
    let folder = std::env::temp_dir().join(format!("crosstie-peer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [source, library, loaded] = ["it.c", "it.so", "loaded"].map(|name| folder.join(name));
    std::fs::write(&source, LIBRARY).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    let done = compiler.output().expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let variables = [
        ("CROSSTIE_OFI_LIBRARY", library.to_str().unwrap()),
        ("CROSSTIE_OFI_PROVIDER", "any"),
        ("LOADED", loaded.to_str().unwrap()),
    ];
    for (peer, why) in [("no host", "no host: "), ("0.0.0.0", "stands for")] {
        let output = info(&["--peer", peer], &variables);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() != Some(0) && output.stdout.is_empty(), "{peer}: {said}");
        assert!(said.contains("option --peer: ") && said.contains(why), "{peer}: {said}");
        assert!(!loaded.exists(), "{peer}: the library was loaded");
    }
    info(&["--peer", "127.0.0.1"], &variables);
    assert!(loaded.exists(), "no endpoint was opened for a peer that has an address");
    std::fs::remove_dir_all(&folder).unwrap();
}
