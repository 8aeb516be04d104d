//! What the data thread remembers of requests that stand for long.
#![forbid(unsafe_code)]

use crate::base::units::Span;
use crate::connect::Watch;
use crate::host::life::suspect::Suspect;
use crate::transport::snapshot::Tick;
use std::sync::Arc;
use std::vec::Vec;

/// Looks within the time after which a request counts as stalled.
const LOOKS: u64 = 8;
/// The time between looks where nothing is reported.
const LOOK_MS_DEFAULT: u64 = 1_250;
const LOOK_MS_MAX: u64 = 10_000;
/// Calls of progress for each of which the clock is read, where no thread says when to look.
const POLLS: u32 = 1024;

/// What the data thread remembers of stalls.
pub(in crate::host) struct Stalls {
    /// Shared with the side band's thread; one of its own where there is no side band.
    pub(in crate::host) watch: Arc<Watch>,
    /// Requests may be open that no look has seen.
    pub(in crate::host) unseen: bool,
    /// Where no side band's thread says when to look: calls of progress, and the next look.
    polls: u32,
    next_ms: u64,
    pub(in crate::host) stall_ms: u32,
    pub(in crate::host) look_ms: u32,
    /// When the peer of each connection was asked for a report; 0: it was not.
    pub(in crate::host) asked_ms: Vec<u64>,
    /// Connections whose rails may have lost something.
    pub(in crate::host) suspects: Vec<Suspect>,
}

impl Stalls {
    /// `after`: how old a request must be to be reported; zero: none is.
    pub(in crate::host) fn new(watch: Arc<Watch>, after: Span, connections: usize) -> Stalls {
        let stall_ms = after.0 / 1_000_000;
        let look_ms = match stall_ms {
            0 => LOOK_MS_DEFAULT,
            stall_ms => (stall_ms / LOOKS).clamp(1, LOOK_MS_MAX),
        };
        Stalls {
            watch,
            unseen: false,
            polls: 0,
            next_ms: 0,
            stall_ms: stall_ms as u32,
            look_ms: look_ms as u32,
            asked_ms: std::vec![0; connections],
            suspects: std::vec![Suspect::NONE; connections],
        }
    }

    /// Time between looks.
    pub(in crate::host) fn look_span(&self) -> Span {
        Span::millis(self.look_ms.into())
    }

    /// Counts calls of progress, and reads the clock now and then: `true` when it is time to look.
    #[inline(always)]
    pub(in crate::host) fn polled(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS) {
            return false;
        }
        let now_ms = self.watch.now_ms();
        let due = now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + u64::from(self.look_ms);
        }
        due
    }

    /// The time of a look.
    pub(in crate::host) fn tick(&self, now_ms: u64) -> Tick {
        Tick::of(now_ms, self.look_ms)
    }
}
