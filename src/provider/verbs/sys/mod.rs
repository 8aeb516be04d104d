//! libibverbs, as far as we use it: declarations of our own, and its functions by name.
//!
//! The library is loaded when the first device is looked for, so that a program runs where there is
//! none. What it declares inline (posting, polling) goes through the table of the open context.
//!
//! - [`abi`]: structures and numbers, with their sizes and offsets asserted at compile time against
//!   those of libibverbs 44 on 64-bit Linux; `tests/verbs_layout.rs` has a C compiler say the same
//!   of the installed header. They have not moved since libibverbs 1.1 (2007).
//! - [`numbers`]: the numbers, checked likewise.
//! - [`extended`]: the newer way to post, of queue pairs that are made for it.
//! - [`library`]: the functions, and `objects` what they make, given back when it is dropped;
//!   `queue` is where completions come, `channel` what tells of them.

pub mod abi;
pub mod channel;
pub mod extended;
pub mod library;
pub mod numbers;
pub mod objects;
pub mod queue;

pub use channel::CompletionChannel;
pub use library::{Library, LoadError};
pub use objects::{
    Device, FILES_FOLDER, MemoryRegion, ProtectionDomain, QueuePair, guard_from_forks,
};
pub use queue::CompletionQueue;

/// Everything that a C compiler can say of the header, table by table.
pub const FACTS: [&[abi::Fact]; 5] =
    [abi::OPS_FACTS, abi::STRUCT_FACTS, numbers::FACTS, extended::FACTS[0], extended::FACTS[1]];
