//! A wait for what is to come of itself.

use std::time::{Duration, Instant};

/// Longer than a wait takes on a machine that is busy for minutes.
pub const WATCHDOG: Duration = Duration::from_secs(600);

/// Waits until it has come. *Panics* when it does not come.
pub fn wait_until(what: &str, mut has_come: impl FnMut() -> bool) {
    let until = Instant::now() + WATCHDOG;
    while !has_come() {
        assert!(Instant::now() < until, "{what} has not come");
        std::thread::yield_now();
    }
}
