//! The libfabric rail keeps the contract over each software provider of libfabric.

mod common;
mod libfabric_support;

use common::{Pair, Pause, Rejoin};
use crosstie::base::ids::PeerIndex;
use crosstie::provider::libfabric::{Config, Libfabric, OpenError};
use libfabric_support::pair::{PairMemory, connect};
use libfabric_support::{
    LIMITS, Layout, left_behind_remove, let_library_work, reaches_its_own_process, skip,
    strict_config,
};
use std::ffi::CStr;

/// Nothing repeats exactly, the library moves bytes as it likes when it is polled, and no peer may
/// be sent longer payloads than all.
const SKIPS: usize = 3;
/// It keeps no order between messages and writes.
const UNORDERED: usize = 3;
/// It has no atomics.
const NO_ADDS: usize = 1;

fn pair(config: &Config) -> Result<Pair<Libfabric<'static>>, OpenError> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(LIMITS)));
    let [a, b] = memory.open(config)?;
    let mut token = 0x0246_8ace;
    let rejoin: Rejoin<_> = Box::new(move |rails| {
        token += 0x0001_0001;
        connect(rails.try_into().expect("two rails"), PeerIndex(0), token);
    });
    Ok(Pair { providers: vec![a, b], peers: [PeerIndex(0); 2], rejoin: Some(rejoin) })
}

fn keeps_every_promise(provider: &'static CStr, skips: usize) {
    left_behind_remove();
    let config = Config { provider: Some(provider), ..Config::DEFAULT };
    match pair(&config) {
        Ok(pair) if !reaches_its_own_process(&pair.providers[0]) => {
            println!("SKIP: {provider:?} of this version does not work within a process");
        }
        Ok(_) => passes(config, skips),
        Err(why) => skip(&format!("{provider:?}: {why}")),
    }
}

fn passes(config: Config<'static>, skips: usize) {
    let rail = &pair(&config).expect("as before").providers[0];
    println!("over {:?} of {}: {:?}", rail.provider_name(), rail.version(), rail.traits());
    let pause = Some(Pause { wait: |_| let_library_work(), threads: true });
    common::run_all_pausing(move || pair(&config).expect("as before"), skips, pause);
}

/// Over the strict fabric, with the structures of 1.17 and of 2.x, and with both ways to register.
fn strictly(provider: &'static CStr, skips: usize) {
    for layout in [Layout::One, Layout::Two] {
        if let Some(config) = strict_config(layout, provider) {
            passes(config, skips);
        }
    }
}

#[test]
fn tcp_with_rxm_keeps_every_promise() {
    keeps_every_promise(c"tcp;ofi_rxm", SKIPS + NO_ADDS);
}

/// By itself where it has endpoints that peers share, which in 1.17 it has not: there it is under
/// `ofi_rxm`.
#[test]
fn tcp_keeps_every_promise() {
    keeps_every_promise(c"tcp", SKIPS + NO_ADDS);
}

#[test]
fn shm_keeps_every_promise() {
    keeps_every_promise(c"shm", SKIPS + UNORDERED);
}

/// In the guest of tests/vm, whose devices are soft-RoCE.
#[test]
fn verbs_with_rxm_keeps_every_promise() {
    if std::env::var_os("XTIE_VM").is_none() {
        return println!("SKIP: RDMA devices are in the guest of tests/vm alone");
    }
    keeps_every_promise(c"verbs;ofi_rxm", SKIPS + UNORDERED + NO_ADDS);
}

#[test]
fn memory_bound_to_endpoints_keeps_every_promise() {
    strictly(c"strict", SKIPS);
}

/// Turns are taken at every call.
#[test]
fn one_thread_at_a_time_keeps_every_promise() {
    strictly(c"strict-completion", SKIPS);
    strictly(c"strict-one", SKIPS + UNORDERED);
}

#[test]
fn memory_of_domains_by_offset_keeps_every_promise() {
    strictly(c"strict-domain", SKIPS);
}

/// Keys of 32 bits, and words that go as messages.
#[test]
fn short_keys_and_words_keep_every_promise() {
    strictly(c"strict-short", SKIPS + UNORDERED);
}

/// What those of NICs do: words as messages, keys of 4 bytes, order on request.
#[test]
fn providers_of_nics_keep_every_promise() {
    strictly(c"efa", SKIPS + UNORDERED);
    strictly(c"cxi", SKIPS + UNORDERED);
}

/// It says that words go with writes, and refuses them. The order that it keeps is kept all the
/// same.
#[test]
fn library_that_refuses_words_keeps_every_promise() {
    strictly(c"strict-wordless", SKIPS);
}

/// What was sent last comes first.
#[test]
fn library_without_any_order_keeps_every_promise() {
    strictly(c"strict-shuffled", SKIPS + UNORDERED);
}

/// No word goes with a write, and nothing is ordered but messages.
#[test]
fn library_without_words_keeps_every_promise() {
    strictly(c"strict-silent", SKIPS + UNORDERED);
}

/// Memory of devices would have to be registered, and all of ours is.
#[test]
fn library_that_wants_device_memory_registered_keeps_every_promise() {
    strictly(c"strict-hmem", SKIPS);
}

#[test]
fn library_that_often_says_again_keeps_every_promise() {
    strictly(c"strict-again", SKIPS);
}
