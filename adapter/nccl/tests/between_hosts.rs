//! The plugin between two hosts, which are network namespaces of this machine: devices of several
//! interfaces, alike and not, hosts that number theirs otherwise, and such as cannot meet.

#[allow(dead_code)] // of the shared parts
mod support;

use std::process::Command;
use support::hosts::{Hosts, may};
use support::{VERSIONS, harness, play_between, play_between_with, plugin};

/// Tables that make devices of several.
const FUSING: [u32; 4] = [9, 10, 11, 12];

#[test]
fn device_of_several_interfaces_has_a_rail_on_each() {
    let Some(hosts) = Hosts::wired("device_of_several_interfaces_has_a_rail_on_each", 8) else {
        return;
    };
    FUSING.into_iter().for_each(|version| play_between(&hosts, "fused", version));
    FUSING.into_iter().for_each(|version| play_between(&hosts, "fused_and_plain", version));
}

#[test]
fn peers_of_one_host_take_shared_memory_under_a_fused_device_too() {
    let test = "peers_of_one_host_take_shared_memory_under_a_fused_device_too";
    let Some(hosts) = Hosts::wired(test, 2) else { return };
    let both = hosts.one();
    for version in FUSING {
        let both = [("HARNESS_HOSTS", both.as_str())];
        play_between_with(&hosts, "fused_on_one_host", version, &both);
    }
}

/// What no socket took when its send was done waited for the next call of who had sent it.
#[test]
fn what_is_done_arrives_though_its_sender_calls_no_more() {
    let test = "what_is_done_arrives_though_its_sender_calls_no_more";
    let Some(hosts) = Hosts::wired(test, 1) else { return };
    hosts.scanty(16384);
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "asleep", version));
}

/// Whose members, and which of them meet; of the first host, then of the second.
fn uneven(hosts: &Hosts, scenario: &str, version: u32, members: &str, common: &str) {
    let more = [("HARNESS_MEMBERS", members), ("HARNESS_COMMON", common)];
    play_between_with(hosts, scenario, version, &more);
}

#[test]
fn devices_that_are_not_alike_use_the_subnets_that_both_are_in() {
    let test = "devices_that_are_not_alike_use_the_subnets_that_both_are_in";
    let Some(hosts) = Hosts::wired(test, 8) else { return };
    for version in [9, 12] {
        uneven(&hosts, "uneven", version, "0,1,2,3;0", "0;0");
        uneven(&hosts, "uneven", version, "2;0,1,2,3", "2;2");
        uneven(&hosts, "uneven", version, "0,1;1,2,3", "1;1");
        uneven(&hosts, "uneven", version, "0,1,2;3,2,1", "1,2;1,2");
        // the one that meets is the last of four
        uneven(&hosts, "uneven", version, "0,1,2,3;3", "3;3");
    }
    uneven(&hosts, "uneven", 12, "0,1,2,3,4,5,6,7;7,6,5,4", "4,5,6,7;4,5,6,7");
    uneven(&hosts, "uneven", 12, "7;0,1,2,3,4,5,6,7", "7;7");
}

#[test]
fn four_interfaces_reach_one_by_a_rail_each() {
    let test = "four_interfaces_reach_one_by_a_rail_each";
    let Some(hosts) = Hosts::flat(test, [4, 1]) else { return };
    for version in FUSING {
        uneven(&hosts, "uneven", version, "0,1,2,3;0", "0,1,2,3;0");
    }
}

#[test]
fn rail_of_a_fused_device_may_go_and_come_while_messages_flow() {
    let test = "rail_of_a_fused_device_may_go_and_come_while_messages_flow";
    let Some(hosts) = Hosts::wired(test, 8) else { return };
    uneven(&hosts, "wire_pulled", 9, "0,1,2,3;0,1,2,3", "0,1,2,3");
    uneven(&hosts, "wire_pulled", 12, "0,1;1,2,0", "0,1");
}

#[test]
fn point_20_hosts_number_their_interfaces_as_they_like() {
    let test = "point_20_hosts_number_their_interfaces_as_they_like";
    let Some(hosts) = Hosts::crossed(test, 3) else { return };
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "numbered_otherwise", version));
}

/// NCCL pairs devices of two hosts as its rings want, and asks nobody which subnets they are in.
#[test]
fn devices_in_different_subnets_meet_over_what_leads_there() {
    let test = "devices_in_different_subnets_meet_over_what_leads_there";
    let Some(hosts) = Hosts::wired(test, 2) else { return };
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "unlike", version));
}

#[test]
fn point_2_properties_of_many_devices_differ_in_name() {
    let Some(hosts) = Hosts::wired("point_2_properties_of_many_devices_differ_in_name", 8) else {
        return;
    };
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "properties", version));
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "lines", version));
}

/// One without a cable was a device as any, and the first of all where it was said to be fast.
#[test]
fn interface_without_a_carrier_is_a_device_when_it_is_named() {
    let test = "interface_without_a_carrier_is_a_device_when_it_is_named";
    let Some(hosts) = Hosts::wired(test, 3) else { return };
    hosts.unplug(1);
    let both = hosts.one();
    let shown = |choice: &str, wires: &str| {
        let more = [
            ("HARNESS_HOSTS", both.as_str()),
            ("CROSSTIE_SOCKET_IFNAME", choice),
            ("HARNESS_WIRES", wires),
        ];
        play_between_with(&hosts, "wires_shown", 12, &more);
    };
    shown("", "eth0 eth2 ");
    shown("^docker", "eth0 eth2 ");
    shown("eth", "eth0 eth1 eth2 ");
    shown("=eth1", "eth1 ");
}

#[test]
fn point_19_many_devices_have_one_order_in_every_process() {
    let test = "point_19_many_devices_have_one_order_in_every_process";
    let Some(hosts) = Hosts::wired(test, 8) else { return };
    let both = [("HARNESS_HOSTS", hosts.one())];
    let both = both.each_ref().map(|(name, value)| (*name, value.as_str()));
    for version in VERSIONS {
        play_between_with(&hosts, "order", version, &both);
    }
}

#[test]
fn hosts_without_a_common_subnet_are_told_so() {
    let Some(hosts) = Hosts::strangers("hosts_without_a_common_subnet_are_told_so") else {
        return;
    };
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "no_subnet", version));
}

#[test]
fn hosts_whose_packets_vanish_are_told_so_within_the_connect_timeout() {
    let test = "hosts_whose_packets_vanish_are_told_so_within_the_connect_timeout";
    let Some(hosts) = Hosts::lost(test) else { return };
    VERSIONS.into_iter().for_each(|version| play_between(&hosts, "no_answer", version));
}

/// What came for it was written into memory that was the caller's again.
#[test]
fn point_14_receive_that_was_closed_while_it_was_offered_is_not_written() {
    let test = "point_14_receive_that_was_closed_while_it_was_offered_is_not_written";
    let Some(hosts) = Hosts::wired(test, 1) else { return };
    VERSIONS.into_iter().for_each(|v| play_between(&hosts, "closed_while_offered", v));
}

/// Memory was let go after ten seconds, or not at all, and finalize waited as long as a peer may be
/// silent.
#[test]
fn point_14_host_that_is_cut_off_is_not_waited_for() {
    let test = "point_14_host_that_is_cut_off_is_not_waited_for";
    for version in VERSIONS {
        // what was lost on one wire would be sent again on the next process's
        let Some(hosts) = Hosts::wired(test, 1) else { return };
        play_between(&hosts, "cut_off", version);
    }
}

/// Who tried one by hand silenced his own. Run in a namespace where nothing can be silenced.
#[test]
fn scenario_that_silences_interfaces_wants_hosts_of_its_own() {
    if !may("scenario_that_silences_interfaces_wants_hosts_of_its_own") {
        return;
    }
    for scenario in ["closed_while_offered", "cut_off", "wire_pulled", "ports_link_pulled"] {
        let mut command = Command::new("unshare");
        command.arg("--net").args([harness(), &plugin()]).args(["12", scenario]);
        let said = command.env_remove("HARNESS_HOSTS").env_remove("XTIE_VM").output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && text.lines().count() == 1, "{scenario}: {text}");
        assert!(text.contains("silences interfaces: it wants network namespaces"), "{text}");
    }
}
