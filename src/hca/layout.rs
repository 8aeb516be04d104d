//! The structures that NCCL's device code reads, in the layouts of its releases.
//!
//! The plugin fills them and copies them to device memory. Pointers are device addresses. Every
//! offset is asserted below, and `tests/hca_headers.rs` compares each field with the headers.
//!
//! *Source*: `doca_gpunetio_verbs_dev.h` and `gin_gdaki_device_host_common.h` of NCCL 2.28.9 to
//! 2.32.3.

use core::mem::{offset_of, size_of};

/// Who rings: a processor, to which the GPU says a 64-bit producer index.
pub const HANDLER_CPU_PROXY: u32 = 1;
/// Entries and completions are reached as memory that the GPU maps.
pub const MEMORY_GPU: u32 = 2;

/// The completion queue of a queue pair up to NCCL 2.29.7; later ones have eight more bytes.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct CompletionQueue {
    /// Completion queue entries.
    pub entries: u64,
    /// The queue's number.
    pub number: u32,
    /// How many entries there are: a power of two.
    pub count: u32,
    /// Unused: nothing is told of the consumer index.
    pub doorbell_record: u64,
    /// The GPU's consumer index.
    pub consumer: u64,
    /// `count` less one.
    pub mask: u32,
    /// Bytes of an entry: 64. The headers have a byte here. The next byte is a kind in 2.32.3, and
    /// its 0 means a ring of entries.
    pub entry_bytes: u32,
    /// Entries polled before the first.
    pub reserved_before: u64,
    /// [`MEMORY_GPU`].
    pub memory: u32,
    pad: u32,
}

/// The part of a queue pair that both layouts share, up to the numbers with segment counts.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
struct Head {
    reserved: u64,
    ready: u64,
    produced: u64,
    number: u32,
    number_shifted: u32,
    /// Big-endian: the shifted number, and the same with 1 to 4 segments.
    announced: [u32; 5],
    /// The lock of the older layout; the number with 5 segments in the later.
    sixth: u32,
}

/// The ring's part of a queue pair.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
struct Ring {
    entries: u64,
    doorbell_record: u64,
    doorbell: u64,
}

/// A queue pair of NCCL 2.28.7 to 2.29.7.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct QueuePair28 {
    head: Head,
    depth: u16,
    mask: u16,
    pad: u32,
    ring: Ring,
    gap: [u64; 9],
    completions: CompletionQueue,
    gap_behind: [u64; 7],
    handler: u32,
    memory: u32,
}

/// A queue pair of NCCL 2.30.3 and later.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct QueuePair30 {
    head: Head,
    lock: u32,
    depth: u16,
    mask: u16,
    ring: Ring,
    gap: [u64; 9],
    completions: CompletionQueue,
    gap_behind: [u64; 9],
    handler: u32,
    memory: u32,
}

/// Words that many peers may add to, and their keys.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct WordTable {
    /// The words of this rank.
    pub words: u64,
    /// A key for each rank.
    pub remote_keys: u64,
    /// The key of this rank's words.
    pub local_key: u32,
    /// The first word of this context; read since 2.29.7.
    pub offset: u32,
}

/// A context of NCCL 2.28.7 to 2.30.4, and of programs that were built with their headers.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Context72 {
    /// Queue pairs, one for each rank.
    pub queues: u64,
    /// Companion queue pairs, one for each rank.
    pub companions: u64,
    /// The counters.
    pub counters: WordTable,
    /// The signals.
    pub signals: WordTable,
    /// The key of what old values go to.
    pub sink_key: u32,
    /// 2.32.3 has a flag in the first byte: whether a flush of reads needs a dump. Ours does not.
    pad: u32,
}

/// A context of NCCL 2.30.7 and later.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Context88 {
    /// As before.
    pub base: Context72,
    /// The last read issued to each rank, plus one.
    pub issued_gets: u64,
    /// The last read that is visible, plus one.
    pub visible_gets: u64,
}

/// What a window handle points to.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct WindowHandle {
    /// A key for each rank.
    pub remote_keys: u64,
    /// The key of this rank's memory.
    pub local_key: u32,
    pad: u32,
}

/// One rank's part of a window, as `device/crosstie_device.cuh` has it.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct DevicePeer {
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes from that rank's first word to the first signal of this window.
    pub signals_offset: u64,
    /// The key of its memory.
    pub key: u32,
    /// How many signals it has.
    pub signals: u32,
    /// The key of its words.
    pub signals_key: u32,
    /// [`DEVICE_READ_ONLY`], or zero.
    pub flags: u32,
}

/// Other ranks may only read that part of a window.
pub const DEVICE_READ_ONLY: u32 = 1;
/// Which [`DeviceWindow`] this is.
pub const DEVICE_VERSION: u32 = 1;

/// A window of a group, as `device/crosstie_device.cuh` has it.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct DeviceWindow {
    /// [`DEVICE_VERSION`].
    pub version: u32,
    /// The own rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// How many contexts there are.
    pub sets: u32,
    /// A [`DevicePeer`] for each rank.
    pub peers: u64,
    /// A [`Context72`] for each set of queues, whose queue pairs are [`QueuePair30`].
    pub queues: u64,
    /// The own part.
    pub data: u64,
    /// The own words.
    pub signals: u64,
    /// The own counters.
    pub counters: u64,
    /// Bytes from the first counter to the first of this window.
    pub counters_offset: u64,
    /// How many signals this rank has.
    pub signals_max: u32,
    /// How many counters.
    pub counters_max: u32,
    /// The key of the counters.
    pub counters_key: u32,
    /// Zero.
    pub pad: u32,
    /// Two words of the host: whether the group was aborted, and how many ranks have ended.
    pub state: u64,
    /// How long a wait takes that does not say.
    pub timeout_ns: u64,
    /// Zero.
    pub rest: [u64; 5],
}

const _: () = {
    assert!(size_of::<DevicePeer>() == 32);
    assert!(size_of::<DeviceWindow>() == 136);
    assert!(offset_of!(DeviceWindow, counters_key) == 72);
    assert!(offset_of!(DeviceWindow, timeout_ns) == 88);
    assert!(size_of::<CompletionQueue>() == 56);
    assert!(offset_of!(CompletionQueue, consumer) == 24);
    assert!(offset_of!(CompletionQueue, mask) == 32);
    assert!(offset_of!(CompletionQueue, reserved_before) == 40);
    assert!(offset_of!(CompletionQueue, memory) == 48);
    assert!(size_of::<QueuePair28>() == 280);
    assert!(offset_of!(Head, announced) == 32);
    assert!(offset_of!(Head, sixth) == 52);
    assert!(offset_of!(QueuePair28, depth) == 56);
    assert!(offset_of!(QueuePair28, ring) == 64);
    assert!(offset_of!(QueuePair28, completions) == 160);
    assert!(offset_of!(QueuePair28, handler) == 272);
    assert!(size_of::<QueuePair30>() == 296);
    assert!(offset_of!(QueuePair30, lock) == 56);
    assert!(offset_of!(QueuePair30, depth) == 60);
    assert!(offset_of!(QueuePair30, ring) == 64);
    assert!(offset_of!(QueuePair30, completions) == 160);
    assert!(offset_of!(QueuePair30, handler) == 288);
    assert!(size_of::<WordTable>() == 24);
    assert!(size_of::<Context72>() == 72);
    assert!(offset_of!(Context72, signals) == 40);
    assert!(offset_of!(Context72, sink_key) == 64);
    assert!(size_of::<Context88>() == 88);
    assert!(offset_of!(Context88, issued_gets) == 72);
    assert!(size_of::<WindowHandle>() == 16);
};

/// Where the parts of one queue lie, as the GPU sees them.
#[derive(Copy, Clone, Debug)]
pub struct QueueAddresses {
    /// Work queue entries.
    pub entries: u64,
    /// Completion queue entries.
    pub completions: u64,
    /// The doorbell.
    pub doorbell: u64,
    /// A word that the GPU may write and nothing reads.
    pub doorbell_record: u64,
}

impl Head {
    fn new(number: u32, sixth: u32) -> Head {
        let shifted = number << 8;
        let announced = core::array::from_fn(|segments| (shifted | segments as u32).to_be());
        Head { number, number_shifted: shifted, announced, sixth, ..Head::default() }
    }
}

impl Ring {
    fn new(at: &QueueAddresses) -> Ring {
        Ring { entries: at.entries, doorbell_record: at.doorbell_record, doorbell: at.doorbell }
    }
}

impl CompletionQueue {
    fn new(number: u32, depth: u16, at: &QueueAddresses) -> CompletionQueue {
        CompletionQueue {
            entries: at.completions,
            number,
            count: u32::from(depth),
            mask: u32::from(depth) - 1,
            entry_bytes: super::ENTRY_BYTES as u32,
            memory: MEMORY_GPU,
            ..CompletionQueue::default()
        }
    }
}

impl QueuePair28 {
    /// The queue `number` of `depth` entries.
    pub fn new(number: u32, depth: u16, at: &QueueAddresses) -> QueuePair28 {
        QueuePair28 {
            head: Head::new(number, 0),
            depth,
            mask: depth - 1,
            pad: 0,
            ring: Ring::new(at),
            gap: [0; 9],
            completions: CompletionQueue::new(number, depth, at),
            gap_behind: [0; 7],
            handler: HANDLER_CPU_PROXY,
            memory: MEMORY_GPU,
        }
    }
}

impl QueuePair30 {
    /// The queue `number` of `depth` entries.
    pub fn new(number: u32, depth: u16, at: &QueueAddresses) -> QueuePair30 {
        QueuePair30 {
            head: Head::new(number, (number << 8 | 5).to_be()),
            lock: 0,
            depth,
            mask: depth - 1,
            ring: Ring::new(at),
            gap: [0; 9],
            completions: CompletionQueue::new(number, depth, at),
            gap_behind: [0; 9],
            handler: HANDLER_CPU_PROXY,
            memory: MEMORY_GPU,
        }
    }
}

impl Context72 {
    /// A context.
    pub fn new(
        queues: u64,
        companions: u64,
        counters: WordTable,
        signals: WordTable,
        sink_key: u32,
    ) -> Context72 {
        Context72 { queues, companions, counters, signals, sink_key, pad: 0 }
    }
}

impl WindowHandle {
    /// A handle.
    pub fn new(remote_keys: u64, local_key: u32) -> WindowHandle {
        WindowHandle { remote_keys, local_key, pad: 0 }
    }
}
