//! Hosts with two interfaces each, which are network namespaces: one device's communicator has
//! rails on both, whichever device that is.

use super::hosts::Hosts;
use super::memory::{Area, Kind, pattern};
use super::table::ADD;
use super::world::{
    Layout, PROCESSES, Rank, all_succeed, each_rank, folder_of, is_child, start_by, wait_until,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Two hosts of one rank each, which find their interfaces themselves.
const WIRED: Layout = Layout {
    name: "wired",
    variables: &[("CROSSTIE_RAILS", "tcp"), ("CROSSTIE_CONNECT_TIMEOUT_MS", "60000")],
    apart: true,
    ..PROCESSES
};
const WIRES: usize = 2;
const BYTES: usize = 1 << 20;
/// So often is each wire cut.
const CUTS: usize = 3;
/// What a rail carries before it counts as used.
const USED: u64 = 4 * BYTES as u64;

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("RMA_FOLDER").unwrap())
}

/// Both ranks put and signal in rounds until the parent says that it is over: every byte comes
/// before its signal, and each signal is counted once.
fn rounds(rank: &mut Rank) {
    let (own, peer) = (rank.own(), 1 - rank.own());
    let source = Area::new(Kind::Host, BYTES, own);
    // bytes, whether rank 0 goes on, and two signals
    let target = Area::new(Kind::Host, BYTES + 24, own);
    let names = [source, target].map(|area| rank.register(area.at(), area.number()));
    let [signal, met] = [8, 16].map(|at| (BYTES + at) as u64);
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let mut goes_on = true;
    while goes_on {
        let round = ROUNDS.fetch_add(1, Ordering::Relaxed) + 1;
        source.write(0, &pattern(round as usize + own, BYTES));
        if own == 0 && folder().join("over").exists() {
            source.write(0, &[255; 8]);
        }
        let raise = |at| Some(((at, names[1]), 1, ADD));
        let put = rank.put_signal(0, ((0, names[0]), BYTES, (0, names[1])), peer, raise(signal));
        wait_until("a round's signal", || target.word(signal as usize) >= round);
        assert_eq!(target.word(signal as usize), round, "a signal was counted twice");
        let (got, expected) = (target.read(0, BYTES), pattern(round as usize + peer, BYTES));
        let is_last = got[..8] == [255; 8];
        assert!(got[8..] == expected[8..] && (is_last || got == expected), "round {round}");
        rank.wait(put);
        goes_on = source.read(0, 8) != [255; 8] && !is_last;
        // both have read what has come
        let request = rank.signal(peer, ((met, names[1]), 1, ADD));
        wait_until("the peer's look", || target.word(met as usize) >= round);
        rank.wait(request);
    }
    rank.meet();
    assert!(!rank.table.has_failed(rank.context));
    rank.meet();
    rank.end(&names);
}

/// Waits until each wire has carried more.
fn both_carry(hosts: &Hosts, what: &str) {
    let before = [0, 1].map(|at| hosts.sent(at));
    wait_until(what, || (0..WIRES).all(|at| hosts.sent(at) >= before[at] + USED));
}

#[test]
fn communicator_has_rails_on_all_interfaces_and_outlives_cuts_of_each() {
    const TEST: &str =
        "interfaces::communicator_has_rails_on_all_interfaces_and_outlives_cuts_of_each";
    if is_child() {
        return each_rank(|place| {
            rounds(&mut Rank::open(place).expect("the ranks come together"));
        });
    }
    let Some(hosts) = Hosts::wired(TEST, WIRES) else { return };
    (0..WIRES).for_each(|at| hosts.settle(at));
    let command = |host, program: &Path| hosts.command(host, program);
    for version in [14, 11] {
        let children = start_by(TEST, version, &WIRED, &[], command);
        both_carry(&hosts, "traffic on both wires");
        for _ in 0..CUTS {
            for at in 0..WIRES {
                hosts.switch(at, false);
                let other = 1 - at;
                let before = hosts.sent(other);
                wait_until("traffic on the other wire", || hosts.sent(other) >= before + USED);
                hosts.switch(at, true);
                both_carry(&hosts, "traffic on the wire that is back");
            }
        }
        std::fs::write(folder_of(TEST, version, &WIRED).join("over"), "").unwrap();
        all_succeed(TEST, children);
    }
}
