//! Building blocks that know nothing of messages: units, numbers that wrap, and containers whose
//! storage the caller owns. Nothing here allocates, blocks or reads a clock.

mod access;
pub mod bitset;
pub mod carve;
#[cfg(feature = "std")]
pub mod descriptor;
#[cfg(feature = "std")]
pub mod errno;
pub mod hash;
pub mod ids;
pub mod integer;
pub mod netlink;
pub mod pool;
pub mod private;
pub mod ranges;
pub mod regions;
pub mod ring;
pub mod seq;
pub mod slab;
pub mod sync;
pub mod text;
pub mod units;
#[cfg(not(loom))]
pub(crate) mod words;

pub use access::{gate, recall, tickets};
