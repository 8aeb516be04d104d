//! What `tests/gpu/run` takes for a proof: its checks, over logs of NCCL's that were made up.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;

/// Whether a check holds of logs, and what it says.
fn check(words: &str, logs: &[&str]) -> (bool, String) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed); // a name, no order
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-checks-{number}"));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &format!(". tests/gpu/checks.sh; {words} \"$@\""), "checks"]);
    for (at, log) in logs.iter().enumerate() {
        let path = folder.join(at.to_string());
        std::fs::write(&path, log).unwrap();
        command.arg(path);
    }
    let said = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("bash");
    assert!(said.stderr.is_empty(), "{}", String::from_utf8_lossy(&said.stderr));
    (said.status.success(), String::from_utf8_lossy(&said.stdout).into_owned())
}

fn info(process: u32, text: &str) -> String {
    format!("train-1:{process}:{} [0] NCCL INFO {text}\n", process + 7)
}

fn of_rank(process: u32, network: &str, sent: u64) -> String {
    let peer = format!("train (pid 3) on host 1:{process}:9 in 24 messages; rail 0 Shm");
    let bytes = format!("NET/crosstie : lo+eth0: {sent} bytes sent to {peer}");
    info(process, &format!("Using network {network}")) + &info(process, &bytes)
}

#[test]
fn run_counts_that_the_plugin_carried_on_every_rank() {
    let both = of_rank(11, "crosstie", 4096) + "step 3\n" + &of_rank(12, "crosstie", 1 << 40);
    let newer = both.replace("Using network crosstie", "Assigned NET plugin crosstie to comm");
    for log in [&both, &newer] {
        assert_eq!(check("carried 2", &[log]), (true, String::new()));
    }
    let apart = [of_rank(11, "crosstie", 1), of_rank(12, "crosstie", 1)];
    assert_eq!(check("carried 2", &[&apart[0], &apart[1]]), (true, String::new()));
}

/// PyTorch's runs counted whatever network NCCL had taken.
#[test]
fn run_over_another_network_does_not_count() {
    let log = of_rank(11, "crosstie", 4096) + &of_rank(12, "Socket", 4096);
    let (counts, said) = check("carried 2", &[&log]);
    assert!(!counts && said.contains("process 12 used the network Socket, not crosstie"), "{said}");
    assert!(said.contains("1 of 2 ranks say that they use crosstie"), "{said}");
    let (counts, said) = check("carried 2", &["every value right\n"]);
    assert!(!counts && said.contains("0 of 2 ranks say that they use crosstie"), "{said}");
    // one that takes it besides
    let log = of_rank(11, "crosstie", 1) + &of_rank(12, "crosstie", 1) + &of_rank(12, "IB", 1);
    assert!(!check("carried 2", &[&log]).0);
    assert!(check("network_is Socket 1", &[&info(5, "Using network Socket")]).0);
}

/// NCCL names the network also where it goes by another way.
#[test]
fn run_whose_bytes_the_plugin_did_not_carry_does_not_count() {
    let uses = info(12, "Using network crosstie");
    for silent in [uses, of_rank(12, "crosstie", 0)] {
        let (counts, said) = check("carried 2", &[&(of_rank(11, "crosstie", 4096) + &silent)]);
        let wanted = "1 of 2 ranks say that crosstie has carried bytes of theirs";
        assert!(!counts && said.contains(wanted), "{said}");
    }
}

/// The last rank of a broadcast sends nothing, and its run was called wrong.
#[test]
fn rank_that_only_receives_counts() {
    let received = info(12, "NET/crosstie : eth0: 4096 bytes received from train (pid 3)");
    let log = of_rank(11, "crosstie", 4096) + &of_rank(12, "crosstie", 0) + &received;
    assert_eq!(check("carried 2", &[&log]), (true, String::new()));
}

#[test]
fn run_that_is_right_over_the_plugin_counts_and_no_other() {
    let ranks = of_rank(11, "crosstie", 4096) + &of_rank(12, "crosstie", 4096);
    let found = "# Out of bounds values : 0 OK\n";
    let back = "rail 0 to perf was lost: errno 32\nrail 0 to perf carries bytes again\n";
    assert!(check("right", &[&(ranks.clone() + found)]).0);
    assert!(!check("right", &[&ranks]).0);
    assert!(!check("right", &[&(of_rank(11, "crosstie", 4096) + found)]).0);
    assert!(check("came_back", &[&(ranks.clone() + found + back)]).0);
    assert!(!check("came_back", &[&(ranks + found)]).0);
}

#[test]
fn ranks_that_abort_count_when_each_has_come_to_its_end_over_the_plugin() {
    let rank = |number: u32| {
        let end = format!("rank {number}: 20 aborts, every round right\n");
        of_rank(11 + number, "crosstie", 4096).repeat(20) + &end
    };
    assert_eq!(check("all_rounds shm", &[&rank(0), &rank(1)]), (true, String::new()));
    let sockets = rank(1).replace("network crosstie", "network Socket");
    assert!(!check("all_rounds shm", &[&rank(0), &sockets]).0);
    let (counts, said) = check("all_rounds shm", &[&rank(0), &of_rank(12, "crosstie", 4096)]);
    assert!(!counts && said.contains("not every round was right"), "{said}");
}

/// Without GDRDMA in its log NCCL copies through host memory, and the run says nothing of GPUs.
#[test]
fn run_over_gpu_memory_counts_when_each_rank_says_gdrdma() {
    let channel = |rank: u32, how: &str| {
        info(11 + rank, &format!("Channel 00/0 : {rank}[0] -> 1[1] [send] via NET/crosstie/0{how}"))
    };
    let both = channel(0, "/GDRDMA") + &channel(1, "/GDRDMA").repeat(3);
    let one = channel(0, "/GDRDMA") + &channel(1, "");
    let none = channel(0, "") + &channel(1, "");
    for (way, log, counts) in
        [("gpu", &both, true), ("gpu", &one, false), ("shm", &one, false), ("shm", &none, true)]
    {
        assert_eq!(check(&format!("by_memory {way} 2"), &[log]).0, counts, "{way}: {log}");
    }
    let (_, said) = check("by_memory gpu 2", &[&one]);
    assert_eq!(said, "1 ranks have channels with GDRDMA, and 2 are meant to\n");
}
