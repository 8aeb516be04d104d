//! Memory of GPUs over libfabric: over the strict fabric, whose providers reach the memory of the
//! double of the CUDA driver where they were asked for that.
#![allow(dead_code)] // of the shared parts

mod cuda_support;
mod gpu_support;
mod host_support;
mod libfabric_support;
mod nic_gpu_support;

use crosstie::host::{DeviceKind, Options};
use crosstie::transport::flush::FlushEnd;
use cuda_support::steps::on;
use cuda_support::{control, with_double};
use host_support::pair::{Pair, alone};
use host_support::{Node, Watch, small, stalled};
use libfabric_support::{Layout, counts, dmabufs, strict, strict_environment};
use nic_gpu_support::{
    Memory, SIZES, assert_by, assert_direct, copied, exchange, go_beside, go_in_each_kind, settle,
};
use std::ffi::CStr;

fn pair(library: &CStr, provider: &str) -> Pair {
    let alone = alone();
    for (name, value) in strict_environment(library, provider) {
        host_support::set(name, value);
    }
    let mut options = Options { device: DeviceKind::Host, ..small(4) };
    options.limits.rails_max = 2;
    let [a, b] = [(); 2].map(|()| Node::open(&options));
    let mut pair = Pair::of(alone, a, b, 2);
    settle(&mut pair);
    pair
}

fn goes_by_the_provider(layout: Layout) {
    let Some(library) = strict(layout) else { return };
    on(0);
    for provider in ["strict-gpus", "strict-gpus-domain"] {
        let mut pair = pair(library, provider);
        for gpus in [[Some(0), Some(1)], [Some(1), Some(1)], [Some(0), None], [None, Some(1)]] {
            let (before, named) = (counts(library)[0], dmabufs(library));
            let mut from = Memory::new(&pair.a, gpus[0]);
            let mut into = Memory::new(&pair.b, gpus[1]);
            assert_eq!(counts(library)[0], before + 2, "each side has registered its memory");
            let of_gpus = gpus.iter().flatten().count() as i32;
            let expected = if layout == Layout::Two { of_gpus } else { 0 };
            assert_eq!(dmabufs(library) - named, expected, "those that a dma-buf names");
            for bytes in SIZES {
                let copied_before = copied();
                let lanes = exchange(&mut pair, &mut from, &mut into, bytes);
                if from.gpu.is_none() && bytes <= 4096 {
                    continue; // out of its slot
                }
                assert_by(&lanes, 1, bytes);
                if lanes[0] == 0 {
                    assert_direct(copied_before, bytes);
                }
            }
            from.free(&pair.a);
            into.free(&pair.b);
        }
        pair.close();
    }
}

#[test]
fn provider_that_reaches_gpus_carries_their_memory() {
    with_double("provider_that_reaches_gpus_carries_their_memory", &[], || {
        goes_by_the_provider(Layout::One);
    });
}

#[test]
fn provider_of_libfabric_2_that_reaches_gpus_carries_their_memory() {
    with_double("provider_of_libfabric_2_that_reaches_gpus_carries_their_memory", &[], || {
        goes_by_the_provider(Layout::Two);
    });
}

#[test]
fn each_kind_of_memory_goes_by_the_provider_or_by_the_reserve() {
    let test = "each_kind_of_memory_goes_by_the_provider_or_by_the_reserve";
    with_double(test, &[], || {
        let Some(library) = strict(Layout::Two) else { return };
        on(0);
        let mut pair = pair(library, "strict-gpus");
        go_in_each_kind(&mut pair, true);
        pair.close();
    });
}

/// Flushes by the provider's own endpoint, several at a time.
#[test]
fn flushes_of_a_gpus_memory_go_by_the_provider() {
    with_double("flushes_of_a_gpus_memory_go_by_the_provider", &[], || {
        let Some(library) = strict(Layout::One) else { return };
        on(0);
        let mut pair = pair(library, "strict-gpus");
        let mut from = Memory::new(&pair.a, Some(0));
        let mut into = Memory::new(&pair.b, Some(1));
        exchange(&mut pair, &mut from, &mut into, 70_000);
        let memory = [(into.region, into.start)];
        let begin = |()| pair.b.gpu_flushes().begin(memory.into_iter()).expect("a NIC has it");
        for flush in [(); 3].map(begin) {
            let watch = Watch::start();
            let end = loop {
                pair.progress();
                match pair.b.gpu_flushes().test(flush) {
                    Some(end) => break end,
                    None => watch.look("a flush"),
                }
            };
            assert_eq!(end, FlushEnd::Visible);
        }
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
    });
}

/// A provider that refuses dma-bufs is given the address.
#[test]
fn provider_without_dma_bufs_takes_the_address() {
    with_double("provider_without_dma_bufs_takes_the_address", &[], || {
        let Some(library) = strict(Layout::Two) else { return };
        on(0);
        let mut pair = pair(library, "strict-gpus-plain");
        let mut from = Memory::new(&pair.a, Some(0));
        let mut into = Memory::new(&pair.b, Some(1));
        let lanes = exchange(&mut pair, &mut from, &mut into, 70_000);
        assert_by(&lanes, 1, 70_000);
        assert_eq!(dmabufs(library), 0);
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
    });
}

/// The NIC fails after some messages, and its endpoint is opened anew.
fn comes_back(layout: Layout, provider: &str) {
    let Some(library) = strict(layout) else { return };
    on(0);
    let mut pair = pair(library, provider);
    let mut from = Memory::new(&pair.a, Some(0));
    let mut into = Memory::new(&pair.b, Some(1));
    let first = pair.views(1)[0].generation;
    let watch = Watch::start();
    loop {
        let lanes = exchange(&mut pair, &mut from, &mut into, 70_000);
        if pair.views(1)[0].generation > first && lanes[1] == 70_000 {
            break;
        }
        watch.look("the NIC to fail, and to carry again");
    }
    from.free(&pair.a);
    into.free(&pair.b);
    pair.close();
}

#[test]
fn memory_of_a_gpu_is_registered_again_when_its_nic_comes_back() {
    with_double("memory_of_a_gpu_is_registered_again_when_its_nic_comes_back", &[], || {
        comes_back(Layout::One, "strict-gpus-overrun");
    });
}

/// By its dma-buf, without which this provider takes nothing.
#[test]
fn dma_buf_is_registered_again_when_its_nic_comes_back() {
    with_double("dma_buf_is_registered_again_when_its_nic_comes_back", &[], || {
        comes_back(Layout::Two, "strict-gpus-dmabufs");
    });
}

/// Memory that a provider does not reach goes over TCP, and the log has one line with the words.
fn goes_beside(words: &str, provider: &str, prepare: fn(), then: fn()) {
    let Some(library) = strict(Layout::One) else { return };
    stalled::listen(&[]);
    prepare();
    let mut pair = pair(library, provider);
    then();
    for gpus in [[Some(0), Some(0)], [Some(0), None]] {
        go_beside(&mut pair, gpus);
    }
    pair.close();
    let said = stalled::said();
    let told: Vec<_> = said.iter().filter(|line| line.contains("no port registers")).collect();
    assert!(told.len() == 1 && told[0].contains(words), "{told:#?}");
}

#[test]
fn provider_without_gpus_leaves_their_memory_to_the_reserve() {
    with_double("provider_without_gpus_leaves_their_memory_to_the_reserve", &[], || {
        goes_beside("its provider has no FI_HMEM", "strict", || _ = on(0), || {});
    });
}

#[test]
fn provider_is_asked_for_gpus_only_where_their_driver_is_loaded() {
    with_double("provider_is_asked_for_gpus_only_where_their_driver_is_loaded", &[], || {
        let words = "no driver was loaded when the endpoint was opened";
        goes_beside(words, "strict-gpus", || {}, || _ = on(0));
    });
}

#[test]
fn gpu_that_needs_flushes_leaves_its_memory_to_the_reserve() {
    with_double("gpu_that_needs_flushes_leaves_its_memory_to_the_reserve", &[], || {
        let set = || {
            on(0);
            control::attribute(0, 118, 0);
        };
        goes_beside("what a NIC writes to it would need a flush", "strict-gpus", set, || {});
    });
}
