//! A set of rails with its copy engine, whose registered memory lies in a GPU of the double.
//!
//! A set takes memory of a GPU for reads, for writes and for messages that have come. Its sends,
//! lines and adds are of host memory alone. Here they use the same bytes by the double's view of
//! them, which is registered as memory of the host: so every entry of the suite has its memory.
#![allow(dead_code)]

use crate::cuda_support::control;
use crate::cuda_support::driver::{cuMemFree_v2, cuMemRelease};
use crate::cuda_support::steps::{BLOCK, POSIX, alloc, create, map, ok, on};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::connect::{Trust, Users};
use crosstie::fabric::{
    Caps, CloseError, Completion, DeregisterError, Domain, DownCause, Gather, LocalSpan,
    MemoryDomain, MemoryKind, Op, OpId, OpKind, PeerLife, PostError, Posted, Provider, RailKey,
    RecvSlot, Region, RegisterError, RemoteSpan, Source,
};
use crosstie::host::gpu::{self, GpuMemory};
use crosstie::provider::copy_engine::{Copied, is_device};
use crosstie::provider::rail_set::RailSet;
use crosstie::provider::shm::ShmDomain;
use crosstie_kit::conformance::ARENA_BYTES;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// How long a copy may take before a test says that it hangs.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(600);
/// Ids of the copies that [`GpuRail`] asks for itself.
const OURS: u64 = 0x6a7e << 32;
/// Most parts of a write that are tried.
const PARTS: usize = 16;

/// Where memory lies.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Place {
    Host,
    /// Of cuMemCreate, with a handle that descriptors stand for.
    Exported(i32),
    /// Of cuMemAlloc.
    Alloc(i32),
}

/// Memory of one side.
#[derive(Copy, Clone, Debug)]
pub struct Arena {
    place: Place,
    pub start: u64,
    /// Where the processor reaches it.
    view: u64,
}

impl Arena {
    pub fn new(place: Place) -> Arena {
        let start = match place {
            Place::Host => Box::leak(Box::new(HeapBlock::new(ARENA_BYTES))).start() as u64,
            Place::Alloc(gpu) => {
                on(gpu);
                alloc(ARENA_BYTES)
            }
            Place::Exported(gpu) => {
                on(gpu);
                let handle = create(gpu, POSIX, BLOCK);
                let start = map(handle, gpu, BLOCK);
                ok(cuMemRelease(handle));
                start
            }
        };
        let view = if place == Place::Host { start } else { control::view(start) as u64 };
        Arena { place, start, view }
    }

    /// As a rig names it: the memory, and where the processor reaches it.
    pub fn memory(&self) -> (*mut u8, *mut u8) {
        (self.start as *mut u8, self.view as *mut u8)
    }

    /// Gives it back, where it is the driver's.
    pub fn free(self) {
        match self.place {
            Place::Host => {}
            Place::Alloc(_) => ok(cuMemFree_v2(self.start)),
            Place::Exported(_) => crate::cuda_support::steps::unmap(self.start, BLOCK),
        }
    }

    fn has(&self, region: &Region) -> bool {
        let inside = (self.start..self.start + ARENA_BYTES as u64).contains(&region.address);
        self.place != Place::Host && region.kind == MemoryKind::Host && inside
    }
}

/// One region of a GPU: its key, and that of the same bytes as memory of the host.
#[derive(Copy, Clone, Debug)]
struct Twin {
    device: RailKey,
    host: RailKey,
    /// What lies between an address of the GPU and the view of it.
    apart: u64,
    /// The GPU's was deregistered.
    is_forgotten: bool,
}

/// All that one side has registered, also what it has forgotten.
type Twins = Arc<Mutex<Vec<Twin>>>;

fn twin_of(twins: &Twins, key: RailKey) -> Option<Twin> {
    let twins = twins.lock().unwrap();
    twins.iter().find(|twin| twin.device == key).copied()
}

/// Registers what lies in the arena as memory of its GPU.
#[derive(Clone)]
pub struct GpuDomain {
    rail: ShmDomain<'static>,
    memory: Arc<GpuMemory>,
    arena: Arena,
    twins: Twins,
}

impl Domain for GpuDomain {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        if !self.arena.has(&region) || region.length.0 == 0 {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.rail.register(region) };
        }
        let (address, length) = (region.address, region.length);
        // SAFETY: as above.
        let (_, device, export) = unsafe { gpu::register(&self.memory, address, length) }?;
        self.memory.publish(device, export);
        let apart = self.arena.view.wrapping_sub(self.arena.start);
        let view = Region { address: address.wrapping_add(apart), length, kind: MemoryKind::Host };
        // SAFETY: the view stays as long as the arena.
        let host = unsafe { self.rail.register(view) }?;
        self.twins.lock().unwrap().push(Twin { device, host, apart, is_forgotten: false });
        Ok(device)
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        let mut twins = self.twins.lock().unwrap();
        let Some(twin) = twins.iter_mut().find(|twin| twin.device == key) else {
            return self.rail.deregister(key);
        };
        if !twin.is_forgotten {
            self.rail.deregister(key)?;
            self.memory.withdraw(key);
            twin.is_forgotten = true;
        }
        self.rail.deregister(twin.host)
    }
}

/// The set, with memory of a GPU.
pub struct GpuRail {
    rail: RailSet<'static>,
    domain: GpuDomain,
    /// What the other side has registered.
    theirs: Twins,
    /// Events that came while this waited for a copy of its own.
    waiting: VecDeque<Completion>,
    now: Instant,
    copies: u64,
    /// Payloads have come that are longer than any peer may send.
    has_longs: bool,
}

/// Two sets over two arenas, which know of each other's regions.
pub fn gpu_rails(rails: [RailSet<'static>; 2], arenas: [Arena; 2]) -> [GpuRail; 2] {
    let twins: [Twins; 2] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::with_capacity(4096))));
    let mut number = 0;
    rails.map(|mut rail| {
        let (ours, theirs) = (Arc::clone(&twins[number]), Arc::clone(&twins[1 - number]));
        let arena = arenas[number];
        number += 1;
        let memory = GpuMemory::new(rail.domain(), Trust::new(None, Users::default()));
        rail.gpus_use(Arc::clone(memory.gpus()));
        let domain =
            GpuDomain { rail: rail.domain(), memory: Arc::new(memory), arena, twins: ours };
        let waiting = VecDeque::with_capacity(1024);
        GpuRail { rail, domain, theirs, waiting, now: Instant(0), copies: 0, has_longs: false }
    })
}

impl GpuRail {
    /// The set underneath.
    pub fn set(&mut self) -> &mut RailSet<'static> {
        &mut self.rail
    }

    /// How many bytes came, and how.
    pub fn copied(&self) -> Copied {
        self.rail.copied()
    }

    /// Our memory as memory of the host.
    fn near(&self, span: LocalSpan) -> LocalSpan {
        match twin_of(&self.domain.twins, span.key()) {
            // SAFETY: the same bytes, which are registered alike.
            Some(twin) => unsafe {
                LocalSpan::new(span.address().wrapping_add(twin.apart), span.length(), twin.host)
            },
            None => span,
        }
    }

    /// The peer's memory as memory of its host.
    fn far(&self, span: RemoteSpan) -> RemoteSpan {
        match twin_of(&self.theirs, span.key) {
            Some(twin) => {
                RemoteSpan { key: twin.host, address: span.address.wrapping_add(twin.apart) }
            }
            None => span,
        }
    }

    /// Copies a message that has come into our GPU, and waits until it is there. `false`: the set
    /// does not do that.
    fn received_into_gpu(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) -> bool {
        let id = OpId(OURS + self.copies);
        self.copies += 1;
        let start = std::time::Instant::now();
        let mut is_posted = false;
        loop {
            if !is_posted {
                match self.rail.received_read(id, peer, slot, to) {
                    Ok(_) => is_posted = true,
                    Err(PostError::Again) => {}
                    Err(PostError::Unsupported | PostError::PeerDown) => return false,
                }
            }
            let mut out = [super::common::NOTHING; 16];
            let count = self.rail.poll(&mut out, Bytes::kib(64), self.now);
            let mut is_there = false;
            for event in &out[..count] {
                match *event {
                    Completion::Done { id: ended, result, .. } if ended == id => {
                        assert_eq!(result, Ok(()), "a message that goes into a GPU");
                        is_there = true;
                    }
                    event => self.waiting.push_back(event),
                }
            }
            if is_there {
                return true;
            }
            assert!(start.elapsed() < WATCHDOG, "a message never got into a GPU");
            std::thread::yield_now();
        }
    }
}

impl MemoryDomain for GpuRail {
    type Domain = GpuDomain;

    fn domain(&self) -> GpuDomain {
        self.domain.clone()
    }
}

impl Provider for GpuRail {
    /// Those of the peer's rail, but for order, which memory of GPUs does not keep.
    fn caps(&self, peer: PeerIndex) -> Caps {
        Caps { ordered: false, ..self.rail.caps(peer) }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        self.rail.send_payload_max(peer)
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        self.now = now;
        let kind = match op.kind {
            OpKind::Send { head, payload } => OpKind::Send { head, payload: self.near(payload) },
            OpKind::Add { target, value } => OpKind::Add { target: self.far(target), value },
            OpKind::Write { source: source @ Source::Line(_), target, immediate } => {
                OpKind::Write { source, target: self.far(target), immediate }
            }
            kind @ (OpKind::Write { .. } | OpKind::Read { .. } | OpKind::Fence { .. }) => kind,
        };
        self.rail.post(&Op { kind, ..*op }, now)
    }

    fn parts_max(&self, peer: PeerIndex) -> usize {
        self.rail.parts_max(peer).min(PARTS)
    }

    fn post_gather(&mut self, gather: &Gather, now: Instant) -> Result<Posted, PostError> {
        self.now = now;
        let mut parts = [LocalSpan::EMPTY; PARTS + 1];
        for (part, given) in parts.iter_mut().zip(gather.parts) {
            *part = self.near(*given);
        }
        let parts = &parts[..gather.parts.len()];
        let target = self.far(gather.target);
        self.rail.post_gather(&Gather { parts, target, ..*gather }, now)
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        self.now = now;
        let mut count = 0;
        while let (Some(place), false) = (out.get_mut(count), self.waiting.is_empty()) {
            *place = self.waiting.pop_front().expect("looked at above");
            count += 1;
        }
        let end = count + self.rail.poll(&mut out[count..], budget, now);
        for event in &out[..end] {
            if let Completion::Received { peer, length, .. } = *event {
                let most = self.rail.caps(peer).send_payload_max;
                self.has_longs |= Bytes(length.into()) > most;
            }
        }
        end
    }

    fn flush(&mut self, budget: Bytes) {
        self.rail.flush(budget);
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let is_whole = is_device(to.key()) && offset == 0 && to.length().0 > 0;
        // a long one must be released before the next poll
        if !is_whole || self.has_longs || !self.received_into_gpu(peer, slot, to) {
            let to = self.near(to);
            self.rail.received_copy(peer, slot, offset, to);
        }
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        self.rail.received_peek(peer, slot, to);
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.rail.received_release(peer, slot);
    }
}

impl PeerLife for GpuRail {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        self.rail.peer_fail(peer, cause);
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.rail.peer_close(peer)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.rail.peer_detach(peer)
    }
}
