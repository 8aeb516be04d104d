//! Messages in memory of the double's GPUs, over connections of this process that have ports.
#![allow(dead_code)] // each program uses a part

use crate::cuda_support::control;
use crate::cuda_support::driver::*;
use crate::cuda_support::steps::*;
use crate::gpu_support::{self, Kind};
use crate::host_support::pair::Pair;
use crate::host_support::{Node, Watch, wait_both};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::transport::{Incoming, Outgoing};

/// Bytes of each side's memory.
pub const ROOM: usize = 4 << 20;
/// Where the memory of a side begins in its allocation: not at a page.
const SKIPPED: u64 = 12_288 + 512;
pub const SIZES: [usize; 5] = [1, 4096, 70_000, 262_145, ROOM];

/// Registered memory of one endpoint, on a GPU or the host's.
pub struct Memory {
    pub gpu: Option<i32>,
    pub start: u64,
    pub region: Handle,
    pub host: Vec<u8>,
}

impl Memory {
    pub fn new(node: &Node, gpu: Option<i32>) -> Memory {
        let mut host = Vec::new();
        let (start, kind) = match gpu {
            None => {
                host = vec![0; ROOM];
                (host.as_mut_ptr().expose_provenance() as u64, MemoryKind::Host)
            }
            Some(gpu) => {
                on(gpu);
                (alloc(ROOM + 2 * SKIPPED as usize) + SKIPPED, MemoryKind::Cuda(0))
            }
        };
        // SAFETY: it stays until `free` has deregistered it.
        let region = unsafe { node.shared.register(start, Bytes::of(ROOM), kind) };
        Memory { gpu, start, region: region.expect("memory"), host }
    }

    pub fn fill(&mut self, bytes: &[u8]) {
        match self.gpu {
            None => self.host[..bytes.len()].copy_from_slice(bytes),
            Some(_) => control::write(self.start, bytes),
        }
    }

    pub fn read(&self, bytes: usize) -> Vec<u8> {
        match self.gpu {
            None => self.host[..bytes].to_vec(),
            Some(_) => control::read(self.start, bytes),
        }
    }

    pub fn free(self, node: &Node) {
        node.shared.deregister(self.region).expect("idle memory");
        if self.gpu.is_some() {
            ok(cuMemFree_v2(self.start - SKIPPED));
        }
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + seed * 7919) >> (at % 5)) as u8).collect()
}

/// One message from `a` to `b`; the bytes of each lane that it went by.
pub fn exchange(pair: &mut Pair, from: &mut Memory, into: &mut Memory, bytes: usize) -> Vec<u64> {
    from.fill(&pattern(bytes, bytes));
    into.fill(&pattern(bytes, bytes + 1));
    let before = carried(pair);
    let (region, address, length) = (into.region, into.start, bytes as u64);
    let room = Incoming { region, address, length, tag: 0 };
    let received = pair.b.irecv(pair.to_a, &[room]).expect("room for a receive");
    let (region, address) = (from.region, from.start);
    let message = Outgoing { region, address, length, tag: 0 };
    let sent = pair.a.isend(pair.to_b, message).expect("room for a send");
    let outcome = wait_both(&mut pair.b, &mut pair.a, received);
    assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), length), "{bytes} bytes");
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, sent).result, Ok(()));
    assert!(into.read(bytes) == pattern(bytes, bytes), "{bytes} bytes");
    carried(pair).iter().zip(before).map(|(now, before)| now - before).collect()
}

/// Bytes that each lane has carried from `a` in stripes.
pub fn carried(pair: &Pair) -> Vec<u64> {
    (0..).map_while(|lane| pair.view(0, lane)).map(|view| view.stats.bytes).collect()
}

/// A message went by one lane. The reserve, lane 0, may carry a stripe of it: the last of several,
/// or one of a few bytes.
#[track_caller]
pub fn assert_by(lanes: &[u64], lane: usize, bytes: usize) {
    assert_eq!(lanes.iter().sum::<u64>(), bytes as u64, "{lanes:?}");
    match bytes {
        ..512 => {}
        512..100_000 => assert_eq!(lanes[lane], bytes as u64, "{lanes:?}"),
        100_000.. => assert!(lanes[lane] > bytes as u64 / 2, "{lanes:?}"),
    }
}

/// Bytes that GPUs have copied.
pub fn copied() -> u64 {
    ["peer", "same_device", "device_to_host", "host_to_device"].map(control::bytes).iter().sum()
}

/// GPUs have copied nothing of a message that went by a port, but for a stripe of a long one that
/// the reserve began. Copies of a short message before it, out and in, may be counted late.
#[track_caller]
pub fn assert_direct(copied_before: u64, bytes: usize) {
    let copied = copied() - copied_before;
    let most = 2 * 4096 + if bytes < 100_000 { 0 } else { bytes as u64 / 2 };
    assert!(copied <= most, "GPUs have copied {copied} bytes of {bytes}");
}

/// No stripe goes by the port, and every byte comes.
pub fn go_beside(pair: &mut Pair, gpus: [Option<i32>; 2]) {
    let [mut from, mut into] =
        [(&pair.a, gpus[0]), (&pair.b, gpus[1])].map(|(node, gpu)| Memory::new(node, gpu));
    for bytes in SIZES {
        let lanes = exchange(pair, &mut from, &mut into, bytes);
        assert!(lanes[1..].iter().all(|bytes| *bytes == 0), "{lanes:?}");
    }
    from.free(&pair.a);
    into.free(&pair.b);
}

/// Waits until a port carries control, too: until then messages may go over TCP.
pub fn settle(pair: &mut Pair) {
    let watch = Watch::start();
    while pair.views(0).iter().any(|view| view.control) {
        pair.hello();
        watch.look("control to leave the reserve");
    }
}

/// One long message between GPUs in each kind of memory. The NIC takes dma-bufs, and perhaps
/// addresses. The double makes no dma-buf of two allocations; the driver does (580, H200).
pub fn go_in_each_kind(pair: &mut Pair, takes_addresses: bool) {
    on(0);
    for kind in
        [Kind::Alloc, Kind::Exported, Kind::Hidden, Kind::Pool, Kind::Imported, Kind::TwoExported]
    {
        let is_by_nic = takes_addresses || kind(0) != Kind::TwoExported(0);
        let mut from = gpu_support::Memory::new(&pair.a, kind(0));
        let mut into = gpu_support::Memory::new(&pair.b, kind(1));
        let before = carried(pair);
        gpu_support::exchange(pair, &mut from, &mut into, ROOM, false);
        let lanes: Vec<u64> = carried(pair).iter().zip(before).map(|(now, it)| now - it).collect();
        assert_eq!(lanes[1] > lanes[0], is_by_nic, "{:?}: {lanes:?}", from.kind);
        from.free(&pair.a);
        into.free(&pair.b);
    }
}
