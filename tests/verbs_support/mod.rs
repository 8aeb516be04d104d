//! Two verbs rails over the devices of this host, driven by a test.
#![allow(dead_code)]

pub mod fake;
pub mod header;
#[path = "../common/verbs_pair.rs"]
pub mod verbs_pair;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{
    Completion, Domain, LINE_BYTES, LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind, Posted,
    Provider, RailKey, Region, RemoteSpan, Source,
};
use crosstie::provider::verbs::gid::GidRule;
use crosstie::provider::verbs::{Config, Limits, PathConfig, Verbs};
use std::time::Duration;
use verbs_pair::{PairMemory, connect, devices};

/// An eighth of a second until a packet is sent again: emulated devices are slow.
pub const PATH: PathConfig =
    PathConfig { timeout: 15, retries: 7, pkey_index: 0, service_level: 0, traffic_class: 0 };
pub const LIMITS: Limits = Limits { peers_max: 2, regions_max: 16, payload_bytes_max: 8192 };
/// How long what must come is waited for. Emulated devices work between polls.
const PATIENCE: Duration = Duration::from_secs(600);
pub const BLOCK_BYTES: usize = 1 << 20;
pub const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(99), immediate: 0 };

/// Two devices that reach each other, or one twice. Those on two ends of a wire, as in the VM, are
/// known by name.
pub fn ends() -> Option<[String; 2]> {
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

pub fn config(device: &str) -> Config<'_> {
    let (port, gid_index, path) = (1, 1, PATH);
    let port_grace = Span::millis(1000);
    Config {
        device,
        port,
        gid_index,
        gid_chosen: None,
        gid_rule: GidRule::DEFAULT,
        subnet_bits: 24,
        path,
        relaxed_ordering: true,
        extensions: true,
        extended_post: false,
        adaptive_bytes_min: 0,
        port_grace,
        silence_max: Span(0),
    }
}

pub fn rails(ends: &[String; 2], limits: Limits) -> [Verbs<'static>; 2] {
    rails_as(ends, limits, |_| {})
}

/// Rails whose data and words are two requests from this length on; 0: never.
pub fn rails_adaptive(ends: &[String; 2], limits: Limits, bytes: u64) -> [Verbs<'static>; 2] {
    rails_as(ends, limits, |config| config.adaptive_bytes_min = bytes)
}

/// Rails of some other settings.
pub fn rails_as(
    ends: &[String; 2],
    limits: Limits,
    change: impl Fn(&mut Config),
) -> [Verbs<'static>; 2] {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(limits)));
    memory.open(ends.each_ref().map(|end| {
        let mut config = config(end);
        change(&mut config);
        config
    }))
}

/// Gives emulated devices, which run in the kernel's threads, their turn: 64 of these are longer
/// than it takes until a packet is sent again.
pub fn let_device_work() {
    // SAFETY: no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 3) };
}

/// Two rails, joined as peer 0 of each other, with a registered block each.
pub struct World {
    pub rails: [Verbs<'static>; 2],
    pub blocks: [*mut u8; 2],
    pub keys: [RailKey; 2],
    /// What each side has seen.
    pub seen: [Vec<Completion>; 2],
    pub now: Instant,
    start: std::time::Instant,
    next_id: u64,
}

pub const PEER: PeerIndex = PeerIndex(0);
pub const OTHER: PeerIndex = PeerIndex(1);

impl World {
    /// `None`, with a line that says why, where there is no device.
    pub fn new() -> Option<World> {
        World::of(|_| {})
    }

    /// One of some other settings.
    pub fn of(change: impl Fn(&mut Config)) -> Option<World> {
        let ends = ends()?;
        let rails = rails_as(&ends, LIMITS, change);
        let blocks = [(); 2].map(|()| Box::leak(Box::new(HeapBlock::new(BLOCK_BYTES))).start());
        let keys = [0, 1].map(|side| {
            let (address, length) = (blocks[side] as u64, Bytes::of(BLOCK_BYTES));
            let region = Region { address, length, kind: MemoryKind::Host };
            // SAFETY: leaked memory.
            unsafe { rails[side].domain().register(region) }.expect("memory of our own")
        });
        let seen = [Vec::new(), Vec::new()];
        Some(World {
            rails,
            blocks,
            keys,
            seen,
            now: Instant(0),
            start: std::time::Instant::now(),
            next_id: 1 << 32,
        })
    }

    pub fn local(&self, side: usize, offset: usize, length: usize) -> LocalSpan {
        assert!(offset + length <= BLOCK_BYTES);
        let address = self.blocks[side] as u64 + offset as u64;
        // SAFETY: inside a leaked block that is registered.
        unsafe { LocalSpan::new(address, Bytes::of(length), self.keys[side]) }
    }

    pub fn remote(&self, side: usize, offset: usize) -> RemoteSpan {
        RemoteSpan { key: self.keys[side], address: self.blocks[side] as u64 + offset as u64 }
    }

    pub fn fill(&self, side: usize, offset: usize, length: usize, byte: u8) {
        assert!(offset + length <= BLOCK_BYTES);
        // SAFETY: inside a leaked block.
        unsafe { self.blocks[side].add(offset).write_bytes(byte, length) };
    }

    pub fn byte(&self, side: usize, offset: usize) -> u8 {
        assert!(offset < BLOCK_BYTES);
        // SAFETY: inside a leaked block; volatile because a device may write it.
        unsafe { self.blocks[side].add(offset).read_volatile() }
    }

    pub fn holds(&self, side: usize, offset: usize, length: usize, byte: u8) -> bool {
        (offset..offset + length).all(|at| self.byte(side, at) == byte)
    }

    pub fn word(&self, side: usize, offset: usize) -> u64 {
        assert!(offset + 8 <= BLOCK_BYTES && offset.is_multiple_of(8));
        // SAFETY: an aligned word inside a leaked block; volatile because a device may write it.
        unsafe { self.blocks[side].add(offset).cast::<u64>().read_volatile() }
    }

    /// Posts, polling as long as the answer is `Again`.
    pub fn post_to(&mut self, side: usize, peer: PeerIndex, kind: OpKind) -> OpId {
        let id = OpId(self.next_id);
        self.next_id += 1;
        let start = std::time::Instant::now();
        while start.elapsed() < PATIENCE {
            match self.rails[side].post(&Op { id, peer, kind }, self.now) {
                Ok(Posted::Pending) => return id,
                Ok(Posted::Done) => {
                    self.seen[side].push(Completion::Done { peer, id, result: Ok(()) });
                    return id;
                }
                Err(crosstie::fabric::PostError::Again) => self.poll(),
                Err(error) => panic!("{error:?} for {kind:?}"),
            }
        }
        panic!("there is never room for {kind:?}");
    }

    pub fn post(&mut self, side: usize, kind: OpKind) -> OpId {
        self.post_to(side, PEER, kind)
    }

    pub fn write(&mut self, side: usize, at: usize, length: usize) -> OpId {
        let kind = self.write_kind(side, at, length);
        self.post(side, kind)
    }

    pub fn write_kind(&self, side: usize, at: usize, length: usize) -> OpKind {
        let source = Source::Span(self.local(side, at, length));
        OpKind::Write { source, target: self.remote(1 - side, at), immediate: None }
    }

    /// Data with a word.
    pub fn write_told(&mut self, side: usize, at: usize, length: usize, word: u32) -> OpId {
        let source = Source::Span(self.local(side, at, length));
        let target = self.remote(1 - side, at);
        self.post(side, OpKind::Write { source, target, immediate: Some(word) })
    }

    pub fn line(&mut self, side: usize, at: usize, byte: u8) -> OpId {
        let source = Source::Line([byte; LINE_BYTES]);
        let target = self.remote(1 - side, at);
        self.post(side, OpKind::Write { source, target, immediate: None })
    }

    pub fn send(&mut self, side: usize, number: u8, length: usize) -> OpId {
        let payload = self.local(side, 0, length);
        self.post(side, OpKind::Send { head: [number; 32], payload })
    }

    pub fn add(&mut self, side: usize, peer: PeerIndex, target: RemoteSpan, value: u64) -> OpId {
        self.post_to(side, peer, OpKind::Add { target, value })
    }

    pub fn fence(&mut self, side: usize) -> OpId {
        self.post(side, OpKind::Fence { generation: RailGeneration(1) })
    }

    /// One poll of each.
    pub fn poll(&mut self) {
        self.now = Instant(self.start.elapsed().as_nanos() as u64);
        for side in 0..2 {
            let mut out = [NOTHING; 16];
            let count = self.rails[side].poll(&mut out, Bytes::kib(64), self.now);
            self.seen[side].extend_from_slice(&out[..count]);
        }
        std::thread::yield_now();
    }

    /// Polls until something is so.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let start = std::time::Instant::now();
        while start.elapsed() < PATIENCE {
            if is_so(self) {
                return;
            }
            self.poll();
        }
        let last = self.seen.each_ref().map(|seen| seen.last());
        panic!("{what}, never; last seen: {last:?}");
    }

    pub fn ended(&self, side: usize, wanted: OpId) -> Option<bool> {
        self.seen[side].iter().find_map(|completion| match completion {
            Completion::Done { id, result, .. } if *id == wanted => Some(result.is_ok()),
            Completion::Fenced { id, .. } if *id == wanted => Some(true),
            _ => None,
        })
    }

    pub fn end(&mut self, side: usize, id: OpId) -> bool {
        self.until("an op ends", |world| world.ended(side, id).is_some());
        self.ended(side, id) == Some(true)
    }

    pub fn downs(&self, side: usize) -> usize {
        let is_down = |seen: &&Completion| matches!(seen, Completion::PeerDown { .. });
        self.seen[side].iter().filter(is_down).count()
    }

    /// Joins both rails as the same peer once more.
    pub fn join(&mut self, peer: PeerIndex, generation: u32) {
        connect(&mut self.rails, peer, RailGeneration(generation));
    }
}

/// From now on the kernel says that it is 2.6.
pub fn old_kernel() {
    // SAFETY: numbers; of this process alone, which is one story's.
    let before = unsafe { libc::personality(libc::UNAME26 as _) };
    assert!(before >= 0, "no other version can be said");
}
