//! The software HCA: a host channel adapter without hardware.
//!
//! A GPU writes work queue entries in mlx5 format, as the device code of DOCA GPUNetIO does, and
//! NCCL's GIN with it. This room reads them, orders them, hands out operations, takes their
//! completions, and writes completion queue entries. It moves no byte of payload: the caller does.
//!
//! - [`entry`]: the bytes of a work queue entry
//! - [`completion`]: the bytes of a completion queue entry
//! - [`keys`]: memory keys with bounds and generations
//! - [`queue`]: one send queue with its completion queue
//! - [`executor`]: the queues of one owner, and the edges between them
//! - [`stuck`]: why an entry has no completion yet
//! - [`outbox`]: adds to words of device memory, which their owner performs
//! - [`layout`]: the structures that device code reads
//! - `fake_gpu`: writes entries as device code does, for tests
//!
//! Everything is borrowed memory: nothing here allocates, blocks, or reads a clock. The room names
//! neither CUDA nor a window, so that a fake GPU drives it in tests.
#![forbid(unsafe_code)]

pub mod completion;
pub mod entry;
pub mod executor;
#[cfg(any(test, feature = "std"))]
pub mod fake_gpu;
pub mod keys;
pub mod layout;
pub mod outbox;
pub mod queue;
pub mod stuck;

/// Bytes of a work queue entry, and of a completion queue entry.
pub const ENTRY_BYTES: usize = 64;
/// The same in 64-bit words.
pub const ENTRY_WORDS: usize = ENTRY_BYTES / 8;
/// Deepest queue. *Source*: device code keeps the depth in 16 bits.
pub const DEPTH_MAX: usize = 1 << 15;
