//! Memory of GPUs by copy engines: NCCL's variables that the plugin sets, and what its tuner
//! answers in each version. Over the test double of the CUDA driver, a process for each case.

#[path = "../../../tests/cuda_support/mod.rs"]
mod cuda_support;

use crosstie_cuda_double as _; // so that cargo builds the double
use crosstie_nccl::abi::table::Pointer;
use crosstie_nccl::{
    ncclNetPlugin_v6 as NET, ncclTunerPlugin_v2 as V2, ncclTunerPlugin_v3 as V3,
    ncclTunerPlugin_v4 as V4, ncclTunerPlugin_v5 as V5,
};
use cuda_support::with_double;
use std::ffi::c_int;
use std::ptr::null_mut;

const COPIES: (&str, &str) = ("CROSSTIE_NCCL_CUDA", "1");
const LO: (&str, &str) = ("CROSSTIE_SOCKET_IFNAME", "lo");

/// Reads a variable as NCCL does.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn init() {
    // SAFETY: as NCCL calls it; without a logger.
    assert_eq!(unsafe { (NET.init)(None) }, 0);
}

/// What NCCL finds of the two variables after the first init.
fn variables(test: &str, settings: &[(&str, &str)], expected: [Option<&str>; 2]) {
    with_double(test, &[&[LO], settings].concat(), || {
        init();
        let found = ["NCCL_NET_GDR_LEVEL", "NCCL_MIN_NCHANNELS"].map(variable);
        assert_eq!(found.each_ref().map(Option::as_deref), expected);
    });
}

#[test]
fn first_init_sets_what_nccl_needs() {
    variables("first_init_sets_what_nccl_needs", &[COPIES], [Some("SYS"), Some("+16")]);
}

#[test]
fn what_the_user_has_set_stays() {
    let set = [COPIES, ("NCCL_NET_GDR_LEVEL", "PIX"), ("NCCL_MIN_NCHANNELS", "2")];
    variables("what_the_user_has_set_stays", &set, [Some("PIX"), Some("2")]);
}

#[test]
fn nothing_is_set_where_the_user_wants_no_memory_of_gpus() {
    let test = "nothing_is_set_where_the_user_wants_no_memory_of_gpus";
    variables(test, &[("CROSSTIE_NCCL_CUDA", "0")], [None, None]);
}

/// What a version of the tuner knows a communicator by.
fn contexts(ranks: usize, nodes: usize) -> [Pointer; 2] {
    let [mut two, mut five] = [null_mut(); 2];
    // SAFETY: as NCCL calls them; without a logger.
    unsafe {
        assert_eq!((V2.init)(ranks, nodes, None, &mut two), 0);
        let (domains, constants) = (null_mut(), null_mut());
        let made = (V5.init)(&mut five, 7, ranks, nodes, None, domains, constants);
        assert_eq!(made, 0);
    }
    [two, five]
}

const ALGORITHMS: usize = 7;
const PROTOCOLS: usize = 3;
/// The ring, and its protocols that are chosen.
const RING: c_int = 1;
const LL: usize = 0;
const SIMPLE: usize = 2;

/// Asks each version: the protocol of the ring and the channels; `None`: it leaves all to NCCL.
fn answers(ranks: usize, nodes: usize, bytes: usize) -> Option<(usize, c_int)> {
    let [two, five] = contexts(ranks, nodes);
    let (mut algorithm, mut protocol, mut channels) = (-1, -1, -1);
    // SAFETY: as NCCL calls it.
    let rc = unsafe {
        let out = (&mut algorithm, &mut protocol, &mut channels);
        (V2.get_coll_info)(two, 4, bytes, 0, 0, 1, out.0, out.1, out.2)
    };
    assert_eq!(rc, 0);
    let all = (algorithm != -1).then(|| {
        assert_eq!(algorithm, RING);
        (protocol as usize, channels)
    });
    for version in [3, 4, 5] {
        let (mut costs, mut channels) = ([1.0_f32; ALGORITHMS * PROTOCOLS], -1);
        let (table, out) = (costs.as_mut_ptr(), &mut channels);
        let lengths = (ALGORITHMS as c_int, PROTOCOLS as c_int);
        // SAFETY: as NCCL calls them, with a table of these lengths.
        let rc = unsafe {
            match version {
                3 => (V3.get_coll_info)(two, 4, bytes, 1, table, lengths.0, lengths.1, out),
                4 => (V4.get_coll_info)(two, 4, bytes, 1, table, lengths.0, lengths.1, 0, out),
                _ => (V5.get_coll_info)(five, 4, bytes, 1, table, lengths.0, lengths.1, 0, out),
            }
        };
        assert_eq!(rc, 0);
        let cheapest: Vec<usize> = (0..costs.len()).filter(|at| costs[*at] == 0.0).collect();
        let found = match cheapest[..] {
            [] => None,
            [at] if at / PROTOCOLS == RING as usize => Some((at % PROTOCOLS, channels)),
            _ => panic!("v{version}: {costs:?}"),
        };
        assert_eq!(found, all, "v{version}");
    }
    // SAFETY: as NCCL calls them, once.
    unsafe {
        assert_eq!((V2.end)(two), 0);
        assert_eq!((V5.end)(five), 0);
    }
    all
}

#[test]
fn tuner_answers_alike_in_each_version() {
    with_double("tuner_answers_alike_in_each_version", &[LO, COPIES], || {
        assert_eq!(answers(2, 2, 8), None, "no network of ours is open");
        init();
        assert_eq!(answers(2, 2, 8), Some((LL, 1)));
        assert_eq!(answers(2, 2, 1 << 20), Some((SIMPLE, 1)));
        assert_eq!(answers(4, 4, 256 << 20), Some((SIMPLE, 16)));
        assert_eq!(answers(4, 2, 8), None, "ranks of a node do not go by the network");
        assert_eq!(answers(1, 1, 8), None);
    });
}

/// What a plugin that was unloaded has set is no wish of the user's.
#[test]
fn tuner_answers_alike_when_the_plugin_is_loaded_again() {
    let set = [LO, COPIES, ("NCCL_MIN_NCHANNELS", "+16")];
    with_double("tuner_answers_alike_when_the_plugin_is_loaded_again", &set, || {
        init();
        assert_eq!(answers(2, 2, 8), Some((LL, 1)));
    });
}

#[test]
fn tuner_leaves_the_channels_that_the_user_has_set() {
    let set = [LO, COPIES, ("NCCL_MIN_NCHANNELS", "16")];
    with_double("tuner_leaves_the_channels_that_the_user_has_set", &set, || {
        init();
        assert_eq!(answers(2, 2, 8), Some((LL, -1)));
    });
}

#[test]
fn tuner_answers_nothing_of_another_network() {
    let other = [LO, COPIES, ("NCCL_NET", "Socket")];
    with_double("tuner_answers_nothing_of_another_network", &other, || {
        init();
        assert_eq!(answers(2, 2, 8), None);
    });
}

#[test]
fn tuner_answers_nothing_without_memory_of_gpus() {
    let none = [LO, ("CROSSTIE_NCCL_CUDA", "0")];
    with_double("tuner_answers_nothing_without_memory_of_gpus", &none, || {
        init();
        assert_eq!(answers(2, 2, 8), None);
    });
}

/// Between hosts no copy engine carries anything, also where GPU memory was asked for.
#[test]
fn tuner_answers_nothing_where_ranks_run_on_several_hosts() {
    let hosts = [LO, COPIES, ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")];
    with_double("tuner_answers_nothing_where_ranks_run_on_several_hosts", &hosts, || {
        init();
        assert_eq!(answers(2, 2, 8), None);
    });
}
