//! What runs windows of messages, whatever stands at the other end.
#![forbid(unsafe_code)]

use super::rails::Paths;
use super::window::Window;
use crate::Failure;
use crosstie::host::RailView;
use std::time::{Duration, Instant};

/// How a window went.
#[derive(Copy, Clone, Debug)]
pub struct Ran {
    /// How long it took.
    pub took: Duration,
    /// Its rounds: those that it was cut to when its time was over.
    pub rounds: f64,
}

impl Ran {
    /// Nanoseconds that it took.
    pub fn ns(&self) -> f64 {
        self.took.as_nanos() as f64
    }
}

/// What can run windows.
pub trait Bench {
    /// Runs one window to its end, or until its time is over, but one round at least.
    fn window(
        &mut self,
        window: &Window,
        until: Option<Instant>,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Ran, Failure>;

    /// Bytes verified and messages found wrong until now, in both processes.
    fn checked(&self) -> (u64, u64);

    /// Whether streams may go in both directions at once.
    fn has_two_ways(&self) -> bool {
        false
    }

    /// What has arrived at both processes.
    fn paths(&mut self) -> Paths {
        Paths::default()
    }

    /// The rails of the first connection, where it has several.
    fn rails(&mut self) -> Vec<RailView> {
        Vec::new()
    }
}
