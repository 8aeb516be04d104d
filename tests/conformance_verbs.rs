//! The verbs rail keeps the contract, over the RDMA devices that this host has.

mod common;

use common::{Pair, Pause};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Span;
use crosstie::provider::verbs::pair::{PairMemory, devices};
use crosstie::provider::verbs::{Config, Limits, PathConfig, Verbs};

/// A quarter of a second until a packet is sent again: emulated devices are slow.
const PATH: PathConfig =
    PathConfig { timeout: 16, retries: 7, pkey_index: 0, service_level: 0, traffic_class: 0 };
const LIMITS: Limits = Limits { peers_max: 2, regions_max: 16, payload_bytes_max: 8192 };

/// Two devices that reach each other, or one twice: RoCE devices of the soft kind by name, as
/// `rxe0` and `rxe2` are on two ends of one wire.
fn ends() -> Option<[String; 2]> {
    match devices() {
        Ok(names) if ["rxe0", "rxe2"].iter().all(|end| names.iter().any(|name| name == end)) => {
            Some(["rxe0", "rxe2"].map(String::from))
        }
        Ok(names) => Some([names[0].clone(), names[0].clone()]),
        Err(why) => {
            println!("SKIP: {why}");
            None
        }
    }
}

fn config(device: &str) -> Config<'_> {
    let (port, gid_index, path) = (1, 1, PATH);
    let port_grace = Span::millis(1000);
    Config { device, port, gid_index, path, relaxed_ordering: false, port_grace }
}

fn pair(ends: &[String; 2]) -> Pair<Verbs<'static>> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(LIMITS)));
    let [a, b] = memory.open(ends.each_ref().map(|end| config(end)));
    Pair { providers: vec![a, b], peers: [PeerIndex(0); 2] }
}

/// Gives emulated devices, which run in the kernel's threads, their turn.
fn wait_for_device(_: &mut Pair<Verbs<'static>>) {
    // SAFETY: no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
}

/// The device moves bytes between polls (the budget), and nothing repeats exactly.
const SKIPS: usize = 2;

#[test]
fn verbs_keep_every_promise() {
    let Some(ends) = ends() else { return };
    println!("over {} and {}", ends[0], ends[1]);
    let pause = Some(Pause { wait: wait_for_device, threads: true });
    common::run_all_pausing(move || pair(&ends), SKIPS, pause);
}
