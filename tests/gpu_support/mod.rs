//! Messages with memory of GPUs between two endpoints of this process, over the double of the CUDA
//! driver.
#![allow(dead_code)]

use crate::cuda_support::control;
use crate::cuda_support::driver::*;
use crate::cuda_support::steps::*;
use crate::host_support::pair::{Pair, alone};
use crate::host_support::{self, Node, Watch, small, wait_both};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::host::Options;
use crosstie::transport::{Incoming, Outcome, Outgoing, RequestId, SubmitError};
use std::os::fd::{FromRawFd, OwnedFd};

/// Bytes of each side's memory: two of the pieces that go through cells, and more.
pub const ROOM: usize = 4 << 20;
pub const SIZES: [usize; 7] = [1, 8, 4096, 8192, 70_000, 262_145, ROOM];

/// Where a side's messages lie.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    Host,
    /// Of cuMemAlloc, on a GPU.
    Alloc(i32),
    /// Of cuMemCreate, with a handle that descriptors stand for.
    Exported(i32),
    /// Of cuMemCreate, without a handle that other processes could have.
    Hidden(i32),
    /// Of cuMemAllocAsync, on a GPU.
    Pool(i32),
    /// Two such allocations, one behind the other.
    TwoExported(i32),
    /// Of a handle that came through a descriptor, as another process sends it.
    Imported(i32),
}

/// Registered memory of one endpoint.
pub struct Memory {
    pub kind: Kind,
    pub start: u64,
    pub region: Handle,
    host: Vec<u8>,
}

/// Maps what a descriptor has brought.
fn imported(gpu: i32) -> u64 {
    let made = create(gpu, POSIX, ROOM);
    let file = out(|file: *mut i32| cuMemExportToShareableHandle(file, made, POSIX, 0));
    ok(cuMemRelease(made));
    let handle = out(|handle| cuMemImportFromShareableHandle(handle, file as usize, POSIX));
    // SAFETY: made above, and the handle has what it stands for.
    drop(unsafe { OwnedFd::from_raw_fd(file) });
    let start = map(handle, gpu, ROOM);
    ok(cuMemRelease(handle));
    start
}

pub fn mapped(gpu: i32, count: usize) -> u64 {
    let bytes = ROOM / count;
    let start = out(|start| cuMemAddressReserve(start, ROOM, 0, 0, 0));
    for at in 0..count {
        let handle = create(gpu, POSIX, bytes);
        ok(cuMemMap(start + (at * bytes) as u64, bytes, 0, handle, 0));
        ok(cuMemRelease(handle));
    }
    let access = Access { place: [1, gpu], flags: READ_WRITE };
    ok(cuMemSetAccess(start, ROOM, &raw const access, 1));
    start
}

impl Memory {
    pub fn new(node: &Node, kind: Kind) -> Memory {
        if let Kind::Alloc(gpu) | Kind::Pool(gpu) = kind {
            on(gpu);
        }
        Memory::in_this_context(node, kind)
    }

    /// The same in the thread's context, which is one of the GPU.
    pub fn in_this_context(node: &Node, kind: Kind) -> Memory {
        let mut host = Vec::new();
        let start = match kind {
            Kind::Host => {
                host = vec![0; ROOM];
                host.as_mut_ptr() as u64
            }
            Kind::Alloc(_) => alloc(ROOM),
            Kind::Exported(gpu) => mapped(gpu, 1),
            Kind::Hidden(gpu) => map(create(gpu, 0, ROOM), gpu, ROOM),
            Kind::Pool(_) => out(|start| cuMemAllocAsync(start, ROOM, 0)),
            Kind::TwoExported(gpu) => mapped(gpu, 2),
            Kind::Imported(gpu) => imported(gpu),
        };
        let memory = if kind == Kind::Host { MemoryKind::Host } else { MemoryKind::Cuda(0) };
        // SAFETY: it stays until `free` has deregistered it.
        let region = unsafe { node.shared.register(start, Bytes::of(ROOM), memory) };
        Memory { kind, start, region: region.expect("memory"), host }
    }

    pub fn fill(&mut self, bytes: usize, seed: usize) {
        let pattern = pattern(bytes, seed);
        match self.kind {
            Kind::Host => self.host[..bytes].copy_from_slice(&pattern),
            _ => control::write(self.start, &pattern),
        }
    }

    pub fn holds(&self, bytes: usize, seed: usize) -> bool {
        match self.kind {
            Kind::Host => self.host[..bytes] == pattern(bytes, seed),
            _ => control::read(self.start, bytes) == pattern(bytes, seed),
        }
    }

    pub fn outgoing(&self, bytes: usize) -> Outgoing {
        let (region, address, length) = (self.region, self.start, bytes as u64);
        Outgoing { region, address, length, tag: 0 }
    }

    pub fn incoming(&self, bytes: usize) -> Incoming {
        let (region, address, length) = (self.region, self.start, bytes as u64);
        Incoming { region, address, length, tag: 0 }
    }

    pub fn free(self, node: &Node) {
        node.shared.deregister(self.region).expect("idle memory");
        match self.kind {
            Kind::Host => {}
            Kind::Alloc(_) | Kind::Pool(_) => ok(cuMemFree_v2(self.start)),
            Kind::Exported(_) | Kind::Hidden(_) | Kind::Imported(_) => unmap(self.start, 1),
            Kind::TwoExported(_) => unmap(self.start, 2),
        }
    }
}

pub fn unmap(start: u64, count: usize) {
    let bytes = ROOM / count;
    (0..count).for_each(|at| ok(cuMemUnmap(start + (at * bytes) as u64, bytes)));
    ok(cuMemAddressFree(start, ROOM));
}

pub fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + seed * 7919) >> (at % 5)) as u8).collect()
}

/// How two endpoints meet.
#[derive(Copy, Clone, Debug)]
pub enum Way {
    Pull,
    Push,
    Tcp,
}

pub fn pair(way: Way) -> Pair {
    pair_of(way, 1)
}

/// The same with so many rails, which only TCP has more than one of.
pub fn pair_of(way: Way, rails: u8) -> Pair {
    let turn = alone();
    let mut options = small(4);
    match way {
        Way::Pull => host_support::set("CROSSTIE_RAILS", "shm"),
        Way::Push => {
            host_support::set("CROSSTIE_RAILS", "shm");
            options = Options { push: true, heap_bytes: Bytes::ZERO, ..options };
        }
        Way::Tcp => {
            host_support::set("CROSSTIE_RAILS", "tcp");
            host_support::set("CROSSTIE_SOCKET_IFNAME", "lo");
            host_support::set("CROSSTIE_TCP_RAILS", rails.to_string());
        }
    }
    let (a, b) = (Node::open(&options), Node::open(&options));
    Pair::of(turn, a, b, rails)
}

pub fn submitted(
    node: &mut Node,
    mut submit: impl FnMut(&mut Node) -> Result<RequestId, SubmitError>,
) -> RequestId {
    let watch = Watch::start();
    loop {
        match submit(node) {
            Err(SubmitError::Again) => node.progress(),
            other => return other.expect("a request"),
        };
        watch.look("a request that finds room");
    }
}

/// Makes another connection the one that [`exchange`] uses.
pub fn swap(pair: &mut Pair, other: &mut (Handle, Handle)) {
    let now = (pair.to_b, pair.to_a);
    (pair.to_b, pair.to_a) = *other;
    *other = now;
}

/// A message that is on its way: the requests at `a` and `b`.
pub fn begin_of(
    pair: &mut Pair,
    from: &Memory,
    into: &Memory,
    bytes: usize,
) -> (RequestId, RequestId) {
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let (room, outgoing) = (into.incoming(bytes), from.outgoing(bytes));
    let received = submitted(&mut pair.b, |node| node.irecv(to_a, &[room]));
    let sent = submitted(&mut pair.a, |node| node.isend(to_b, outgoing));
    (sent, received)
}

/// What became of it, at `a` and `b`.
pub fn end(pair: &mut Pair, (sent, received): (RequestId, RequestId)) -> [Outcome; 2] {
    let received = wait_both(&mut pair.b, &mut pair.a, received);
    [wait_both(&mut pair.a, &mut pair.b, sent), received]
}

/// One message from `a` to `b`.
pub fn exchange(pair: &mut Pair, from: &mut Memory, into: &mut Memory, bytes: usize, early: bool) {
    from.fill(bytes, bytes);
    into.fill(bytes, bytes + 1);
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let receive = |pair: &mut Pair, into: &Memory| {
        let room = into.incoming(bytes);
        submitted(&mut pair.b, |node| node.irecv(to_a, &[room]))
    };
    let posted = (!early).then(|| receive(pair, into));
    let outgoing = from.outgoing(bytes);
    let sent = submitted(&mut pair.a, |node| node.isend(to_b, outgoing));
    for _ in 0..if early { 200 } else { 0 } {
        pair.a.progress();
        pair.b.progress();
    }
    let received = posted.unwrap_or_else(|| receive(pair, into));
    let outcome = wait_both(&mut pair.b, &mut pair.a, received);
    assert_eq!(outcome.result, Ok(()), "{bytes} bytes");
    assert_eq!(outcome.lengths[0], bytes as u64);
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, sent).result, Ok(()));
    assert!(into.holds(bytes, bytes), "{:?} to {:?}, {bytes} bytes", from.kind, into.kind);
}
