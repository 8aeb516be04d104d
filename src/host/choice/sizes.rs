//! The bounds of what an endpoint keeps in shared memory.
#![forbid(unsafe_code)]

/// The longest send ring; the block has room to account for its lines.
pub const SEND_RING_BYTES_MAX: u32 = 128 << 10;
/// Shortest ring.
pub const RING_BYTES_MIN: u32 = 4096;
/// Longest write ring.
pub const WRITE_RING_BYTES_MAX: u32 = 16 << 20;
/// No process of the machines that we know can map so much.
pub const HEAP_BYTES_END: u64 = 1 << 47;
