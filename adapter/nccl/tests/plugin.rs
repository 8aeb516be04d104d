//! The plugin as NCCL meets it: a harness in C loads the built library and goes through what NCCL
//! does, in one process or two, with every version's table. Tests named `point_N` are what
//! NCCL expects of a plugin, point by point.

#[allow(dead_code)] // of the shared parts
mod support;

use std::path::Path;
use std::process::Command;
use support::*;

/// Tables that make devices of several.
const FUSING: [u32; 4] = [9, 10, 11, 12];

fn symbols() -> Vec<String> {
    let said = Command::new("nm").args(["-D", "--defined-only"]).arg(plugin()).output();
    let said = String::from_utf8(said.expect("nm").stdout).unwrap();
    let mut names: Vec<String> =
        said.lines().map(|line| line.split(' ').skip(1).collect::<Vec<_>>().join(" ")).collect();
    names.sort();
    names
}

#[test]
fn point_1_tables_are_data_and_nothing_else_is_visible() {
    let gin = ["11", "13", "14"].map(|v| format!("D ncclGinPlugin_v{v}"));
    let net = ["10", "11", "12", "6", "7", "8", "9"].map(|v| format!("D ncclNetPlugin_v{v}"));
    let rma = ["14", "15"].map(|v| format!("D ncclRmaPlugin_v{v}"));
    let tuner = ["2", "3", "4", "5"].map(|v| format!("D ncclTunerPlugin_v{v}"));
    let expected: Vec<String> = gin.into_iter().chain(net).chain(rma).chain(tuner).collect();
    assert_eq!(symbols(), expected);
}

#[test]
fn point_2_properties_write_every_field() {
    play_alone("properties");
}

#[test]
fn point_4_log_has_a_line_for_each_device() {
    play_alone("lines");
}

#[test]
fn point_5_library_is_reloaded_and_leaves_no_thread() {
    play("reload");
    let said = Command::new("readelf").arg("-d").arg(plugin()).output().expect("readelf").stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("NODELETE") && said.contains("[libnccl-net-crosstie.so]"), "{said}");
}

/// The names of its devices stayed each time.
#[test]
fn point_5_opening_again_and_again_takes_no_more_memory() {
    for rails in RAILS {
        [11, 12].into_iter().for_each(|version| play_one("cycles", version, rails));
    }
}

#[test]
fn point_6_contexts_are_independent() {
    play("crews");
}

#[test]
fn point_7_set_up_never_blocks_when_both_connect_first() {
    play("bytes");
}

#[test]
fn point_7_set_up_does_not_wait_for_a_stopped_peer() {
    play("stopped_in_set_up");
}

#[test]
fn point_7_listener_serves_several_and_has_a_successor() {
    play("listener_reuse");
}

/// The 65th was refused, as if its peer had failed.
#[test]
fn point_7_listener_serves_as_many_as_doc_nccl_says() {
    for (version, rails) in [(6, "shm"), (12, "shm"), (12, "tcp")] {
        play_one("listener_of_many", version, rails);
    }
}

/// It was put where closed connections had taken all places, and its peer was refused.
#[test]
fn point_7_listener_is_where_a_connection_is_left() {
    for (version, rails) in [(6, "shm"), (12, "tcp")] {
        play_one("listener_beside_closed", version, rails);
    }
}

/// The peer was given one that nobody at the other end would ever take.
#[test]
fn point_7_connection_taken_alone_is_the_peers_too() {
    play("taken_alone");
}

/// A connection took 414 KiB on each side, and the first one 18 MB.
#[test]
fn point_7_set_up_touches_no_memory_that_nothing_uses() {
    RAILS.into_iter().for_each(|rails| play_one("costs", 12, rails));
}

#[test]
fn point_8_full_is_null_and_success() {
    play("full");
}

#[test]
fn point_9_done_and_sizes_are_written_as_asked() {
    play("asked");
}

#[test]
fn point_10_sends_match_inside_the_oldest_group() {
    play("groups");
}

/// What a fast tag sent before its receives were taken stood before the message that they waited
/// for, over shared memory.
#[test]
fn point_10_tag_that_is_ahead_holds_up_no_other() {
    play("tag_ahead");
}

#[test]
fn point_10_longer_than_the_receive_is_an_error_by_test() {
    play("oversize");
}

#[test]
fn point_11_many_connections_of_one_communicator() {
    play("many");
}

#[test]
fn point_11_gpus_of_one_process_work_at_once() {
    play("gpus");
}

#[test]
fn point_13_overlapping_memory_on_a_connection_to_itself() {
    play("loopback");
}

#[test]
fn point_14_null_is_closed_and_wrong_arguments_are_told() {
    play_alone("nulls");
}

#[test]
fn point_14_requests_end_with_their_connection() {
    play("abort_busy");
}

/// A forked child's close ended its parent's connection.
#[test]
fn point_22_forked_child_neither_uses_nor_ends_a_connection() {
    play("forked");
}

/// The child of a process whose other threads were in the plugin waited for their locks for ever.
#[test]
fn point_22_forked_child_is_answered_whatever_other_threads_do() {
    play("forked_busy");
}

/// Under tables up to v10 it found its parent's endpoint, and was refused.
#[test]
fn point_22_forked_child_may_open_the_plugin_for_itself() {
    play("forked_anew");
}

/// It stayed taken until the communicator ended, 4096 pieces in all.
#[test]
fn point_14_what_was_registered_is_given_back_by_close() {
    play("left_registered");
}

/// Over TCP the memory was read on, or its deregistration took ten seconds and was refused.
#[test]
fn point_14_half_written_sends_let_their_memory_go() {
    play("half_written");
}

#[test]
fn point_14_abandoned_connections_are_given_back() {
    play("abandoned");
}

/// A thread of ours lived on for a minute, in a library that NCCL may have unloaded.
#[test]
fn point_14_no_thread_outlives_the_last_finalize() {
    for rails in RAILS {
        [11, 12].into_iter().for_each(|version| play_one("abandoned_late", version, rails));
    }
}

#[test]
fn point_15_dead_peer_is_a_remote_error_by_test() {
    play("peer_dies");
}

/// Of what had come and nobody had asked for, all was lost with the connection.
#[test]
fn point_15_what_a_peer_was_told_is_done_arrives_after_its_death() {
    play("done_and_gone");
}

#[test]
fn point_15_communicator_of_a_dead_peer_is_made_again_with_who_comes_instead() {
    play("peer_returns");
}

#[test]
fn point_16_flush_leaves_no_request() {
    play("flush");
}

#[test]
fn point_17_hint_changes_nothing() {
    play("hinted");
}

#[test]
fn point_18_slots_are_null_only_where_nccl_allows_it() {
    play_alone("table");
}

#[test]
fn point_19_devices_are_the_same_in_every_process() {
    play_alone("order");
}

#[test]
fn point_12_data_path_allocates_nothing() {
    play("no_alloc");
}

#[test]
fn point_12_groups_fit_as_many_as_nccl_guarantees() {
    play("deep");
}

/// A sender of 65 messages that tested none of them before it had all requests stood still.
#[test]
fn point_12_messages_fit_as_many_as_nccl_guarantees_before_any_is_tested() {
    play("untested");
}

/// RCCL looks for `librccl-net-NAME.so` where libraries lie, and for NCCL's tables in it: its first
/// releases for those up to v8, newer ones for all.
#[test]
fn rccl_finds_the_plugin_by_its_name_and_its_own_argument_is_left_alone() {
    const NAME: &str = "librccl-net-crosstie.so";
    let link = own_file(NAME);
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(plugin(), &link).unwrap();
    let folder = link.parent().unwrap().to_str().unwrap();
    for (version, rails) in VERSIONS.into_iter().flat_map(|v| RAILS.map(|rails| (v, rails))) {
        let environment = [
            ("LD_LIBRARY_PATH", folder),
            ("CROSSTIE_SOCKET_IFNAME", "lo"),
            ("CROSSTIE_RAILS", rails),
        ];
        play_in(&environment, harness(), Path::new(NAME), "as_rccl", version);
    }
}

#[test]
fn point_20_peers_number_their_devices_as_they_like() {
    play("numbering");
}

#[test]
fn point_21_strangers_at_the_port_are_ignored() {
    VERSIONS.into_iter().for_each(|version| play_one("strangers", version, "tcp"));
}

#[test]
fn point_22_threads_keep_the_affinity_and_forks_are_refused() {
    play("affinity_and_fork");
}

#[test]
fn mistaken_layout_of_v8_is_read_shifted_and_ours_is_not() {
    play_one("mistaken", 8, "shm");
}

#[test]
fn plugin_is_found_in_the_program_that_it_is_linked_into() {
    let harness = harness_with_plugin();
    for version in VERSIONS {
        play_with(&harness, Path::new(""), "bytes", version, "shm");
    }
}

/// Where a rank may use few CPUs, as here, it has no threads that copy unless it is told to.
#[test]
fn threads_that_copy_change_nothing_but_speed() {
    let shm = [("CROSSTIE_RAILS", "shm"), ("CROSSTIE_SHM_THREADS", "2")];
    let tcp = [("CROSSTIE_RAILS", "tcp"), ("CROSSTIE_TCP_THREADS", "5")];
    for rails in [shm, tcp] {
        let environment = [rails[0], rails[1], ("CROSSTIE_SOCKET_IFNAME", "lo")];
        for scenario in ["bytes", "traffic", "rough", "abort_busy", "peer_dies", "reload"] {
            play_in(&environment, harness(), &plugin(), scenario, 12);
        }
    }
}

#[test]
fn point_14_closing_does_not_wait_for_a_stopped_peer() {
    play("peer_stops");
}

/// Its listeners were closed while another communicator waited at them.
#[test]
fn point_14_end_of_a_communicator_leaves_what_its_sharers_set_up() {
    for rails in RAILS {
        [11, 12].into_iter().for_each(|version| play_one("sharers", version, rails));
    }
}

/// It waited for every thread of the process, and all other communicators' begins and ends with it.
#[test]
fn point_14_end_of_a_communicator_waits_for_no_other_communicators_peer() {
    [11, 12].into_iter().for_each(|version| play_one("ends_apart", version, "tcp"));
}

#[test]
fn point_23_settings_are_read_at_init_and_logged() {
    play_alone("settings");
}

#[test]
fn point_23_setting_that_cannot_be_meant_is_an_error_by_name_and_nccl_goes_on_without() {
    play_alone("settings_wrong");
    play_alone("nowhere");
}

/// Of `eth0,eth7` nobody was told that eth7 is not there. By tables with an end, as below.
#[test]
fn point_23_names_of_no_interface_are_said_with_what_becomes_of_it() {
    [11, 12].into_iter().for_each(|version| play_one("nowhere_of_ours", version, "shm,tcp"));
}

/// The first line said that interfaces are the devices, or that hosts talk over TCP.
#[test]
fn point_23_rail_that_must_be_there_and_is_not_is_said_to_be_done_without_by_no_line() {
    play_alone("required");
}

/// A comma at the end cost all other hosts, or all RDMA ports.
#[test]
fn point_23_empty_names_are_passed_over_as_nccl_does() {
    [11, 12].into_iter().for_each(|version| play_one("empty_names", version, "shm,tcp"));
}

#[test]
fn point_23_environment_of_later_changes_nothing() {
    play_alone("read_once");
}

#[test]
fn devices_that_cannot_be_made_are_refused() {
    FUSING.into_iter().for_each(|version| play_one("unfit", version, "tcp"));
}

/// Each communicator of NCCL 2.28.3 had devices of its own, made of the same.
#[test]
fn device_that_was_made_keeps_its_number() {
    FUSING.into_iter().for_each(|version| play_one("fused_again", version, "tcp"));
}

/// It was of another interface, where interfaces had come or gone while no communicator was there.
#[test]
fn number_of_a_device_stays_for_an_nccl_that_stays() {
    [11, 12].into_iter().for_each(|version| play_one("numbers_held", version, "tcp"));
}

#[test]
fn point_18_hints_are_taken() {
    [11, 12].into_iter().for_each(|version| play_one("hints", version, "shm"));
}

/// It was passed over without a word.
#[test]
fn traffic_class_is_taken_or_said_to_be_ignored() {
    [10, 11, 12].into_iter().for_each(|version| play_one("classes", version, "tcp"));
}

/// The log ended with the parent's finalize.
#[test]
fn communicator_that_outlives_its_parent_keeps_the_log() {
    for rails in ["shm", "tcp"] {
        [11, 12].into_iter().for_each(|version| play_one("outlived", version, rails));
    }
}

#[test]
fn profiler_is_told_of_each_message_that_has_a_parent() {
    for rails in RAILS {
        [10, 11, 12].into_iter().for_each(|version| play_one("profiled", version, rails));
    }
}

/// Its end was told all the same, with NULL for the event.
#[test]
fn profiler_that_wants_no_event_is_told_of_no_end() {
    for rails in RAILS {
        [10, 11, 12]
            .into_iter()
            .for_each(|version| play_one("profiled_without_events", version, rails));
    }
}

#[test]
fn stalled_receive_is_a_warning_in_the_log() {
    play("stalled");
}

#[test]
fn bytes_of_a_connection_are_told_when_it_is_closed() {
    play("counters");
}

#[test]
fn limit_of_descriptors_is_named_with_its_value() {
    play_alone("descriptors");
}

/// It was "System(11)".
#[test]
fn limit_of_threads_is_named_with_its_value() {
    play_alone("threads_scarce");
}

#[test]
fn limit_of_descriptors_in_set_up_is_named_on_both_sides() {
    play("descriptors_in_set_up");
}

/// They were "errno 2, no such file", "errno 1", and no word of a limit.
#[test]
fn what_a_container_does_not_give_is_named() {
    for scenario in ["without_memfd", "without_local_sockets", "without_file_bytes"] {
        play_one(scenario, 12, "shm");
    }
    for scenario in ["without_memfd", "without_local_sockets"] {
        play_one(scenario, 12, "shm,tcp");
    }
    // who is no user of its own may mount nothing
    if Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|it| it.success()) {
        play_one("without_proc", 12, "shm,tcp");
    }
}

#[test]
fn limit_of_locked_memory_changes_nothing() {
    play("locked_memory");
}

#[test]
fn peers_of_one_host_take_shared_memory_unless_told_otherwise() {
    play_alone("same_host");
}

#[test]
fn plugin_on_one_rank_alone_is_told_by_name() {
    play("one_rank_alone");
}

#[test]
fn listener_that_was_served_waits_anew() {
    play("patience_anew");
}

#[test]
fn handle_of_another_version_says_which_side_to_upgrade() {
    play_alone("versions");
}

#[test]
fn peers_of_other_wire_versions_work_or_say_which_side_to_upgrade() {
    for version in VERSIONS {
        let frames = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/hello");
        let environment = [("HARNESS_FRAMES", frames), ("CROSSTIE_RAILS", "shm")];
        play_in(&environment, harness(), &plugin(), "mixed_versions", version);
    }
}

#[test]
fn family_of_addresses_is_as_nccl_says() {
    VERSIONS.into_iter().for_each(|version| play_one("family", version, "tcp"));
}

#[test]
fn rough_order_of_calls_loses_and_doubles_nothing() {
    play("rough");
}

/// `doc/testing.md` says how it is run for longer.
#[test]
fn rough_traffic_at_random_arrives_whole() {
    for rails in ["shm", "tcp"] {
        play_one("traffic", 12, rails);
    }
}

#[test]
fn rough_communicators_come_and_go_beside_others() {
    play("comes_and_goes");
}

#[test]
fn rough_arguments_are_refused_and_change_nothing() {
    play("nonsense");
}

#[test]
fn rough_death_at_any_time_is_of_one_communicator() {
    play("dies_at_any_time");
}
