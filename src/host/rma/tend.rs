//! The thread that makes progress for a communicator while its user does not, so that what peers
//! send takes effect although this rank computes. It leaves a user alone that makes progress.

use super::comm::Seat;
use crate::host::group::doze;
use crate::memory::{Errno, threads};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, yield_now};
use std::time::Duration;

/// Between two looks at whether the user makes progress.
const NAP: Duration = Duration::from_millis(1);
/// Steps without an event before the thread sleeps.
const IDLE_MAX: u32 = 256;

/// The thread, `crosstie-rma`.
pub(super) struct Tender {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Tender {
    pub fn start(seat: Arc<Seat>) -> Result<Tender, Errno> {
        let stop = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&stop);
        let thread = threads::start("crosstie-rma", move || tend(&seat, &its))?;
        Ok(Tender { stop, thread })
    }

    /// Ends it.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release); // pairs with the load in `tend`
        let _ = self.thread.join(); // a panic there was told when it happened
    }
}

fn tend(seat: &Seat, stop: &AtomicBool) {
    let (mut seen, mut idle) = (u64::MAX, 0);
    while !stop.load(Ordering::Acquire) {
        let calls = seat.calls.load(Ordering::Relaxed); // a hint alone
        if calls != seen {
            (seen, idle) = (calls, 0);
            sleep(NAP);
            continue;
        }
        let mut core = seat.poll();
        idle = if core.step() { 0 } else { idle + 1 };
        if idle < IDLE_MAX {
            drop(core);
            // bytes that move are worth the whole slice: where many threads want the CPU, each
            // turn that is given up costs all of theirs
            if idle > 0 {
                yield_now();
            }
            continue;
        }
        let fd = core.arm();
        drop(core);
        match fd {
            Some(fd) => doze(fd),
            None => yield_now(),
        }
    }
}
