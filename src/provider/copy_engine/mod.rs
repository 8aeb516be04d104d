//! The copy engine: memory of GPUs.
//!
//! It stands beside shared memory and TCP, under the same peers. These carry messages, credits and
//! offers as ever; a transfer from or to memory of a GPU is carried out here.
//!
//! | op | how it moves |
//! |---|---|
//! | read of a GPU's memory | the peer's allocation is mapped here; a stream copies out of it |
//! | write from or to a GPU's memory | its target is asked to make the copy ([`note`]) |
//! | short message into a GPU's memory | out of its slot, through a pinned cell |
//! | whatever else has a GPU on one side | through pinned cells, piece by piece ([`chunks`]) |
//!
//! So whoever owns the target copies, always. That its own stream has reached a number is then all
//! there is to a completion and to a fence, and nobody writes into another process's GPU.
//!
//! A region of a GPU has the bit [`DEVICE_KEY`] in its key, at both ends. No other rail knows such
//! a key: an op that comes to one by mistake ends with an error, and no byte is touched.
//!
//! A helper thread of the host maps what peers have ([`imports`]); until then ops wait. What cannot
//! be mapped, on another host or without access, its owner copies out into host memory, which the
//! rail below reads ([`lends`]). What waits is looked at in each poll: a thread that has something
//! under way does not sleep.

mod chunks;
mod engine;
mod fetch;
pub mod imports;
pub mod keys;
pub mod lanes;
mod lends;
pub mod note;
mod peers;
pub mod shared;
pub mod under;

pub use engine::{Copied, CopyEngine};
pub use imports::Imports;
pub use keys::{DEVICE_KEY, is_device};
pub use lanes::{Cells, LaneError, Lanes, OVERDUE, Progress};
pub use note::Exporter;
pub use shared::{GPUS_MAX, Shared};
pub use under::Under;
