//! The end of the plugin's own threads.
#![forbid(unsafe_code)]

use super::process::{OfProcess, locked};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;

/// How many contexts of one communicator there are, with those whose end is under way.
static ENDS: OfProcess<Mutex<usize>> = OfProcess::new(Mutex::new(0), || Mutex::new(0));

/// Their number.
pub fn ends() -> MutexGuard<'static, usize> {
    locked(ENDS.get())
}

/// Waits for a thread that is about to end, if there is one.
pub fn joined(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        // a panic there was reported when it happened
        let _ = thread.join();
    }
}

/// What becomes of a thread that ends by itself. Where the end of a context is to come, that waits
/// for it; tables up to v10 have none, and what is never joined keeps its stack.
pub fn ended(thread: &mut Option<JoinHandle<()>>) {
    if *ends() == 0 {
        *thread = None;
    }
}
