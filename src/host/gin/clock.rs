//! Times of the thread that executes what GPUs queue.

use std::time::Duration;

/// How long the thread sleeps at a time when nothing has come for a while.
pub const NAP: Duration = Duration::from_micros(50);

/// Times of the thread's clock, for what is told of queues.
#[derive(Copy, Clone, Debug)]
pub struct Times {
    /// Now.
    pub now_ns: u64,
    /// How long an entry may stay open before that is said; 0: for ever.
    pub stall_ns: u64,
}
