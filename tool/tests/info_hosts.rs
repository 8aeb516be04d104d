//! `crosstie info` between hosts that are network namespaces.

#[path = "../../tests/host_support/mod.rs"]
mod host_support;
#[path = "../../tests/namespace_support/mod.rs"]
mod namespace_support;

use host_support::roles;
use namespace_support::two::{Log, Two};
use namespace_support::work::{role_connect, role_listen};
use namespace_support::{Hosts, may};
use std::process::Command;

#[test]
fn role() {
    roles::take(&[("listen", role_listen), ("connect", role_connect)]);
}

/// Nine bridges with the same addresses in each host, listed before its interface to the other.
fn hosts_behind_bridges() -> Hosts {
    let bridge = |n: usize| {
        format!(
            "link add br{n} type bridge\n\
             link add in{n} type veth peer name out{n}\n\
             link set in{n} master br{n}\nlink set in{n} up\nlink set out{n} up\n\
             addr add 172.20.{n}.1/24 dev br{n}\n\
             addr add fd20:{n}::1/64 dev br{n} nodad\nlink set br{n} up\n"
        )
    };
    Hosts::bridged_behind(2, &(1..=9).map(bridge).collect::<String>())
}

#[test]
fn bridges_with_the_same_addresses_on_both_hosts_hide_no_interface_that_works() {
    if !may("bridges_with_the_same_addresses_on_both_hosts_hide_no_interface_that_works") {
        return;
    }
    let hosts = hosts_behind_bridges();
    for (forgotten, peer) in [("", hosts.ipv4(0)), ("-4", hosts.ipv6(0))] {
        if !forgotten.is_empty() {
            (0..2).for_each(|at| hosts.forget(at, forgotten));
        }
        let log = Log::new("bridges");
        let mut two = Two::logged(&hosts, [0, 1], &[("CROSSTIE_LOG", "info")], Some(log.file()));
        two.exchange(20, 0x5eed_0430);
        two.end();
        let said = log.text();
        let warnings = said.lines().filter(|line| line.contains("have no room in a handle"));
        let [line] = warnings.collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert!(line.contains("172.20.9.1 (br9)"), "{line}");
        assert!(!line.contains("10.77.") && !line.contains("fd77"), "{line}");
        let mut tool = Command::new(env!("CARGO_BIN_EXE_crosstie"));
        tool.args(["info", "--peer", &peer]);
        let output = hosts.output(1, tool);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("tcp, over eth0"), "{text}");
    }
}
