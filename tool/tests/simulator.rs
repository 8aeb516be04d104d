//! The simulator as a command: what it prints, how it exits, that a seed repeats a schedule.
//!
//! That a machine which is wrong would be noticed is tested beside the simulator itself, with
//! oracles that are wrong (`tool/src/sim`).

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.arg("sim").args(arguments).output().expect("the tool runs")
}

/// Standard output of a run that passed.
fn passed(arguments: &[&str]) -> String {
    let output = sim(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {:?}\n{out}{err}", output.status);
    out
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The count in front of a class.
fn count(out: &str, class: &str) -> u64 {
    let line = out.lines().find(|line| line.ends_with(&format!("  {class}")));
    let line = line.unwrap_or_else(|| panic!("no {class} in\n{out}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn schedules_pass_and_every_class_of_events_and_faults_occurs() {
    let out = passed(&["--seed", "40000", "--schedules", "1000"]);
    assert!(
        out.starts_with("1000 schedules, seeds 40000 to 40999: all as the oracle says"),
        "{out}"
    );
    for class in ["pushed", "pulled", "truncated", "canceled", "fault: rail death"] {
        assert!(count(&out, class) > 0, "{class}");
    }
    assert!(count(&out, "events per schedule") >= 200);
}

#[test]
fn one_sided_schedules_pass_and_every_class_of_operations_occurs() {
    let out = passed(&["--one-sided", "--seed", "40000", "--schedules", "1000"]);
    assert!(out.starts_with("1000 schedules, seeds 40000 to 40999: all as the oracle"), "{out}");
    for class in ["puts apart from their record", "signals added as a lane died", "bytes held back"]
    {
        assert!(count(&out, class) > 0, "{class}");
    }
    assert!(text(&sim(&["--help"]).stdout).contains("--one-sided"));
    assert_eq!(sim(&["--one-sided", "--peers", "2"]).status.code(), Some(2));
}

#[test]
fn seed_repeats_its_schedule_whatever_the_threads() {
    for seed in ["7", "12345"] {
        let once = passed(&["--seed", seed, "--schedules", "3", "--threads", "1"]);
        assert_eq!(once, passed(&["--seed", seed, "--schedules", "3", "--threads", "1"]));
        assert_eq!(once, passed(&["--seed", seed, "--schedules", "3", "--threads", "3"]));
    }
    let one = |seed| passed(&["--seed", seed, "--schedules", "1"]);
    assert_eq!(one("9"), one("9"));
    assert_ne!(one("9").lines().nth(1), one("10").lines().nth(1));
}

#[test]
fn wrong_options_end_with_status_2_and_name_themselves() {
    for (arguments, name) in [
        (&["--seed"][..], "--seed"),
        (&["--seed", "x"], "--seed"),
        (&["--schedule", "5"], "--schedule"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(name), "{arguments:?}");
    }
}

#[test]
fn account_of_many_peers_says_bytes_and_times() {
    let output = sim(&["--peers", "500"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("500 peers") && text.contains("per peer"), "{text}");
    let refused = sim(&["--peers", "20001"]);
    assert_eq!(refused.status.code(), Some(2));
}
