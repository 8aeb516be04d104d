//! Memory of GPUs over RDMA ports. The ports are those of a false libibverbs (`tests/verbs_fake`),
//! the GPUs those of the double of the CUDA driver: a write of a port reaches the memory of the
//! dma-buf that was registered, and nothing else. Each story runs in a process of its own.
#![allow(dead_code)] // of the shared parts

mod cuda_support;
#[path = "cuda_support/dmabufs.rs"]
mod dmabufs;
mod gpu_support;
mod host_support;
#[path = "verbs_support/hosts.rs"]
mod hosts;
mod nic_gpu_support;
mod verbs_support;

use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::host::MemoryOptions;
use crosstie::host::gpu::FlushId;
use crosstie::transport::flush::FlushEnd;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Incoming, Outgoing};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::{control, library_path};
use host_support::pair::{Pair, alone};
use host_support::{Watch, wait_both};
use hosts::{class, open, pair, said_before};
use nic_gpu_support::{
    Memory, ROOM, SIZES, assert_by, assert_direct, copied, exchange, go_beside, go_in_each_kind,
    settle,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use verbs_support::fake::{libraries, story_in, story_told};

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "go by the port" => go_by_the_port(),
        "go beside the port" => go_beside_the_port(),
        "go by the port in each kind" => go_by_the_port_in_each_kind(),
        "lose the port meanwhile" => lose_the_port_meanwhile(),
        "go by one of two ports" => go_by_one_of_two_ports(),
        "give a descriptor" => give_a_descriptor(),
        "have no dma-bufs" => go_beside_of_a_gpu(|| control::attribute(0, 124, 0)),
        "need a flush" => go_beside_of_a_gpu(|| control::attribute(0, 118, 0)),
        "flush by two ports" => flush_by_two_ports(),
        "lose a device that keeps a read" => flush_by_a_lost_port("silent", "event=8"),
        "lose an address after a read" => flush_by_a_lost_port("no_reads", "event=18 no_gid"),
        "lose a port that does not stop" => flush_by_a_port_that_does_not_stop(),
        "go by the port after many" => go_by_the_port_after_many(),
        _ => panic!("no story is called {story}"),
    }
}

/// What a story says with so many devices that are as `fake` says.
fn told(story: &str, cards: usize, fake: &str) -> Option<String> {
    let [new, _] = libraries()?;
    let mut command = story_in(new, story, fake);
    let folders = std::env::join_paths([new.clone(), library_path()]).expect("folders");
    command.env("LD_LIBRARY_PATH", folders).env_remove("CUDA_VISIBLE_DEVICES");
    said_before(&class("Ethernet", cards), &command)
}

/// Both sides make progress so often.
fn poll(pair: &mut Pair, times: u32) {
    for _ in 0..times {
        pair.progress();
    }
}

/// Descriptors that are open in this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Two endpoints whose ports carry control, too.
fn settled(cards: u32) -> Pair {
    let mut pair = match cards {
        1 => pair(),
        _ => {
            let turn = alone();
            // of two cards the folder has one address
            let gid = "/sys/class/infiniband/fake1/ports/1/gids/0";
            std::fs::write(gid, hosts::GID.replace("0001", "0002")).unwrap();
            let (a, b) = (open(4), open(4));
            Pair::of(turn, a, b, 1 + cards as u8)
        }
    };
    settle(&mut pair);
    pair
}

/// Every byte goes by the port, out of memory and into it, and no GPU copies; of short messages
/// from the host alone, which lie in a slot, one does.
fn go_by_the_port() {
    let mut pair = settled(1);
    let open_before = descriptors();
    for (from, into) in [(Some(0), Some(1)), (Some(1), Some(1)), (Some(0), None), (None, Some(1))] {
        let (mut from, mut into) = (Memory::new(&pair.a, from), Memory::new(&pair.b, into));
        for bytes in SIZES {
            let copied_before = copied();
            let lanes = exchange(&mut pair, &mut from, &mut into, bytes);
            if from.gpu.is_none() && bytes <= 4096 {
                continue;
            }
            assert_by(&lanes, 1, bytes);
            if lanes[0] == 0 {
                assert_direct(copied_before, bytes);
            }
        }
        from.free(&pair.a);
        into.free(&pair.b);
    }
    let left = descriptors() as i64 - open_before as i64;
    println!("{left} descriptors more, all came");
    pair.close();
}

#[test]
fn port_that_takes_dma_bufs_carries_memory_of_gpus() {
    let Some(said) = told("go by the port", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
    assert!(!said.contains("no port registers"), "{said}");
    // six regions of GPUs; the page that a region begins in begins the buffer
    assert_eq!(said.matches("a dma-buf, offset 0\n").count(), 6, "{said}");
}

fn go_by_the_port_in_each_kind() {
    let mut pair = settled(1);
    go_in_each_kind(&mut pair, false);
    println!("all came");
    pair.close();
}

#[test]
fn each_kind_of_memory_goes_by_the_port_or_by_the_reserve() {
    let Some(said) = told("go by the port in each kind", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
}

fn go_beside_the_port() {
    let mut pair = settled(1);
    for gpus in [[Some(0), Some(1)], [Some(0), None]] {
        go_beside(&mut pair, gpus);
    }
    println!("all came");
    pair.close();
}

#[test]
fn port_that_refuses_dma_bufs_leaves_memory_of_gpus_to_the_reserve() {
    let Some(said) = told("go beside the port", 1, "mapped") else { return };
    assert!(said.contains("all came"), "{said}");
    for gpu in [0, 1] {
        let words = format!(
            "no port registers memory of GPU {gpu} (RDMA port fake0:1: the RDMA device or its \
             driver cannot register dma-bufs); messages in it take the other rails"
        );
        assert_eq!(said.matches(&words).count(), 1, "{said}");
    }
    assert!(!said.contains("a dma-buf, offset"), "{said}");
}

#[test]
fn library_without_dma_bufs_leaves_memory_of_gpus_to_the_reserve() {
    let Some([_, old]) = libraries() else { return };
    let mut command = story_in(old, "go beside the port", "dmabufs mapped");
    let folders = std::env::join_paths([old.clone(), library_path()]).expect("folders");
    command.env("LD_LIBRARY_PATH", folders);
    let Some(said) = said_before(&class("Ethernet", 1), &command) else { return };
    assert!(said.contains("all came"), "{said}");
    assert!(said.contains("libibverbs is too old to register dma-bufs"), "{said}");
}

#[test]
fn driver_without_dma_bufs_leaves_memory_of_gpus_to_the_reserve() {
    let Some(said) = told("have no dma-bufs", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
    let words = "no port registers memory of GPU 0 (cuMemGetHandleForAddressRange: ";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(!said.contains("a dma-buf, offset"), "{said}");
}

/// The GPU's own kernels may miss what a NIC has reported.
#[test]
fn gpu_that_needs_flushes_leaves_its_memory_to_the_reserve() {
    let Some(said) = told("need a flush", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
    let words = "no port registers memory of GPU 0 (what a NIC writes to it would need a flush); \
                 messages in it take the other rails";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(!said.contains("a dma-buf, offset"), "{said}");
}

/// The GPU is one for which `set` was called.
fn go_beside_of_a_gpu(set: impl FnOnce()) {
    let mut pair = settled(1);
    on(0);
    set();
    go_beside(&mut pair, [Some(0), Some(0)]);
    println!("all came");
    pair.close();
}

/// A message has come by the port, and a GPU copies it: the lost port is not said to be at rest.
fn lose_the_port_meanwhile() {
    const BYTES: usize = 64;
    let mut pair = settled(1);
    let (mut from, mut into) = (Memory::new(&pair.a, None), Memory::new(&pair.b, Some(0)));
    exchange(&mut pair, &mut from, &mut into, BYTES);
    into.fill(&[0; BYTES]);
    control::hold(0);
    let (region, address, length) = (into.region, into.start, BYTES as u64);
    let room = Incoming { region, address, length, tag: 0 };
    let received = pair.b.irecv(pair.to_a, &[room]).expect("room for a receive");
    let (region, address) = (from.region, from.start);
    let message = Outgoing { region, address, length, tag: 0 };
    let sent = pair.a.isend(pair.to_b, message).expect("room for a send");
    poll(&mut pair, 200);
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", "dmabufs mapped unanswered") };
    let other = pair.a.isend(pair.to_b, message).expect("room for a send");
    let watch = Watch::start();
    while pair.views(1).iter().any(|view| view.state == LaneState::Up) {
        poll(&mut pair, 1);
        watch.look("the port to be lost");
    }
    poll(&mut pair, 2000);
    assert_eq!(pair.views(1)[1].state, LaneState::Failing, "a GPU still copies");
    assert_eq!(pair.b.test(received).unwrap(), None);
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", "dmabufs mapped") };
    control::release(0);
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, received).result, Ok(()));
    assert!(into.read(BYTES) == from.read(BYTES));
    let received = pair.b.irecv(pair.to_a, &[room]).expect("room for a receive");
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, received).result, Ok(()));
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, sent).result, Ok(()));
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, other).result, Ok(()));
    pair.all_up(2);
    from.free(&pair.a);
    into.free(&pair.b);
    println!("all came");
    pair.close();
}

#[test]
fn fence_of_a_port_waits_for_a_copy_of_what_came_by_it() {
    let Some(said) = told("lose the port meanwhile", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
}

fn go_by_one_of_two_ports() {
    let mut pair = settled(2);
    let (mut from, mut into) = (Memory::new(&pair.a, Some(0)), Memory::new(&pair.b, Some(1)));
    for bytes in SIZES.into_iter().cycle().take(20) {
        let lanes = exchange(&mut pair, &mut from, &mut into, bytes);
        assert_by(&lanes, 2, bytes);
        assert_eq!(lanes[1], 0, "the port that has refused it");
    }
    from.free(&pair.a);
    into.free(&pair.b);
    println!("all came");
    pair.close();
}

#[test]
fn of_two_ports_the_one_that_has_taken_the_memory_carries_it() {
    let fake = "cards=2 gid_by_card dmabufs mapped dmabufs_card=1";
    let Some(said) = told("go by one of two ports", 2, fake) else { return };
    assert!(said.contains("all came"), "{said}");
    let words = "RDMA port fake0:1 does not register memory of GPUs (the RDMA device or its driver \
                 cannot register dma-bufs); messages in it take the other rails";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(!said.contains("no port registers"), "{said}");
}

/// From now on the devices are as `fake` says.
fn turn(fake: &str) {
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FAKE", fake) };
}

fn flush_begin(pair: &mut Pair, into: &Memory) -> FlushId {
    let memory = [(into.region, into.start + 64)].into_iter();
    pair.b.gpu_flushes().begin(memory).expect("ports have the memory")
}

fn flush_end(pair: &mut Pair, flush: FlushId) -> FlushEnd {
    let watch = Watch::start();
    loop {
        if let Some(end) = pair.b.gpu_flushes().test(flush) {
            return end;
        }
        pair.progress();
        watch.look("a flush");
    }
}

/// Each port reads once for each flush. Reads that the device keeps for itself fail in time, and
/// those behind them, which found no room before, go on.
fn flush_by_two_ports() {
    const FAKE: &str = "cards=2 gid_by_card dmabufs mapped say_posts";
    let mut pair = settled(2);
    let (mut from, mut into) = (Memory::new(&pair.a, Some(0)), Memory::new(&pair.b, Some(1)));
    exchange(&mut pair, &mut from, &mut into, 70_000);
    for flush in [(); 3].map(|()| flush_begin(&mut pair, &into)) {
        assert_eq!(flush_end(&mut pair, flush), FlushEnd::Visible);
    }
    turn(&format!("{FAKE} silent"));
    let kept = flush_begin(&mut pair, &into);
    turn(FAKE);
    let behind = flush_begin(&mut pair, &into);
    assert_eq!(pair.b.gpu_flushes().test(behind), None, "no port has room for its read");
    assert_eq!(flush_end(&mut pair, behind), FlushEnd::Visible);
    // its own queue pairs are gone; those of messages go on, and so nothing is known of them
    assert_eq!(flush_end(&mut pair, kept), FlushEnd::Unfenced);
    let host = Memory::new(&pair.b, None);
    let none = pair.b.gpu_flushes().begin([(host.region, host.start)].into_iter());
    assert_eq!(none, None, "memory of the host needs no flush");
    let lost = flush_begin(&mut pair, &into);
    pair.b.gpu_flushes().forget(lost);
    host.free(&pair.b);
    from.free(&pair.a);
    into.free(&pair.b);
    println!("all came");
    pair.close();
}

#[test]
fn flush_reads_once_by_each_port_that_has_the_memory() {
    let fake = "cards=2 gid_by_card dmabufs mapped say_posts";
    let Some(said) = told("flush by two ports", 2, fake) else { return };
    assert!(said.contains("all came"), "{said}");
    // three flushes, the one behind and the last one, by two ports; what is kept is not said
    assert_eq!(said.matches("post 4 of 64 bytes, signalled\n").count(), 10, "{said}");
}

/// A flush stands whose read the device keeps, or has failed. Then the port is lost.
fn flush_by_a_lost_port(read: &str, loss: &str) {
    const FAKE: &str = "dmabufs mapped";
    let mut pair = settled(1);
    let (mut from, mut into) = (Memory::new(&pair.a, Some(0)), Memory::new(&pair.b, Some(1)));
    exchange(&mut pair, &mut from, &mut into, 70_000);
    turn(&format!("{FAKE} {read}"));
    let before = flush_begin(&mut pair, &into);
    turn(FAKE);
    assert_eq!(pair.b.gpu_flushes().test(before), None, "it wants a fence");
    turn(&format!("{FAKE} {loss}"));
    assert_eq!(flush_end(&mut pair, before), FlushEnd::Visible);
    for _ in 0..3 {
        let after = flush_begin(&mut pair, &into);
        assert_eq!(flush_end(&mut pair, after), FlushEnd::Visible);
    }
    from.free(&pair.a);
    into.free(&pair.b);
    println!("all came");
    pair.close();
}

#[test]
fn flush_is_done_where_the_queue_pairs_of_a_lost_port_are_at_rest() {
    for story in ["lose a device that keeps a read", "lose an address after a read"] {
        let Some(said) = told(story, 1, "dmabufs mapped") else { return };
        assert!(said.contains("all came"), "{said}");
    }
}

/// Its queue pairs are neither stopped nor destroyed, and may bring bytes still.
fn flush_by_a_port_that_does_not_stop() {
    let mut pair = settled(1);
    let (mut from, mut into) = (Memory::new(&pair.a, Some(0)), Memory::new(&pair.b, Some(1)));
    exchange(&mut pair, &mut from, &mut into, 70_000);
    turn("dmabufs mapped event=18 no_gid stuck");
    poll(&mut pair, 5000); // the device is asked once in 4096
    let flush = flush_begin(&mut pair, &into);
    assert_eq!(flush_end(&mut pair, flush), FlushEnd::Unfenced);
    turn("dmabufs mapped no_gid");
    let watch = Watch::start();
    loop {
        let flush = flush_begin(&mut pair, &into);
        if flush_end(&mut pair, flush) == FlushEnd::Visible {
            break;
        }
        watch.look("the queue pairs to be destroyed");
    }
    from.free(&pair.a);
    into.free(&pair.b);
    println!("all came");
    pair.close();
}

#[test]
fn flush_fails_where_the_queue_pairs_of_a_lost_port_do_not_stop() {
    let Some(said) = told("lose a port that does not stop", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
}

/// The descriptor is of the whole allocation, and is closed before the first message.
fn give_a_descriptor() {
    let mut pair = settled(1);
    on(0);
    let whole = ROOM + (1 << 20);
    let start = alloc(whole);
    let made = out(|out: *mut i32| cuMemGetHandleForAddressRange(out, start, whole, 1, 0));
    // SAFETY: made above, and ours.
    let file = unsafe { OwnedFd::from_raw_fd(made) };
    let mut from = Memory::new(&pair.a, Some(1));
    Memory::new(&pair.b, Some(0)).free(&pair.b); // what the GPU's first region opens stays
    for offset in [0, 4096, 4096 + 512, 1 << 20] {
        let open_before = descriptors();
        let dmabuf = Some((file.as_raw_fd(), offset));
        let kind = MemoryKind::Cuda(0);
        let options = MemoryOptions { kind, device: Some(0), dmabuf };
        let (at, length) = (start + offset, Bytes::of(ROOM));
        // SAFETY: it stays until it is deregistered.
        let region = unsafe { pair.b.shared.register_with(at, length, &options) }.expect("memory");
        let (gpu, host) = (Some(0), Vec::new());
        let mut into = Memory { gpu, start: at, region, host };
        for bytes in SIZES {
            let lanes = exchange(&mut pair, &mut from, &mut into, bytes);
            assert_by(&lanes, 1, bytes);
        }
        pair.b.shared.deregister(region).expect("idle memory");
        assert_eq!(descriptors(), open_before, "a duplicate stays open");
    }
    from.free(&pair.a);
    println!("all came");
    pair.close();
}

#[test]
fn descriptor_of_the_users_is_registered_at_its_offset() {
    let Some(said) = told("give a descriptor", 1, "dmabufs mapped") else { return };
    assert!(said.contains("all came"), "{said}");
    // 4608 is within the page that 4096 begins
    for (offset, times) in [(0, 3), (4096, 2), (1 << 20, 1)] {
        let words = format!("a dma-buf, offset {offset}\n");
        assert_eq!(said.matches(&words).count(), times, "{offset}: {said}");
    }
}

/// A port's key says how often its place was used, in bits that mark a GPU's memory elsewhere.
fn go_by_the_port_after_many() {
    let mut pair = settled(1);
    let (mut from, page) = (Memory::new(&pair.a, None), vec![0u8; 8192]);
    let start = page.as_ptr().expose_provenance() as u64;
    for node in [&pair.a, &pair.b] {
        for _ in 0..17_000 {
            // SAFETY: it stays until it is deregistered.
            let made = unsafe { node.shared.register(start, Bytes::of(4096), MemoryKind::Host) };
            node.shared.deregister(made.expect("memory")).expect("idle memory");
        }
    }
    let mut into = Memory::new(&pair.b, None);
    let lanes = exchange(&mut pair, &mut from, &mut into, ROOM);
    assert_by(&lanes, 1, ROOM);
    println!("all came");
    pair.close();
}

#[test]
fn key_of_a_port_is_never_taken_for_one_of_a_gpu() {
    let Some(said) = told("go by the port after many", 1, "") else { return };
    assert!(said.contains("all came"), "{}", &said[said.len().saturating_sub(2000)..]);
}
