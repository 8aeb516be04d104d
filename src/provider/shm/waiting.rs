//! Polls that find nothing: after some of them this thread gives its processor up.
//!
//! A ring moves no more than it holds each time that both its ends have run. Where they share a
//! processor and both spin, each keeps it for a whole slice of the scheduler, some milliseconds.
//!
//! How many empty polls come first follows from what happened in the last offer:
//!
//! | the offer took | who ran meanwhile | polls before the next |
//! |---|---|---|
//! | no time | nobody: this thread has the processor alone | twice as many |
//! | a moment | somebody who waits, too: perhaps the peer | the fewest |
//! | long | somebody who computes: offers are dear | the most |
//!
//! The scheduler offers a processor only to threads of the same group (cgroup, session). Where
//! another group has taken it while this thread waited, this thread sleeps a moment instead.

use super::word::RELAXED;
use crate::memory::{probe, processor};
use core::sync::atomic::AtomicBool;

/// Most empty polls before an offer: longer than a peer that runs takes to move a part.
const POLLS_MAX: u32 = 1024;
/// Fewest: a look at each ring, some times.
const POLLS_MIN: u32 = 16;
/// An offer that took less was taken by nobody: it costs some 300 ns.
const MOMENT_NS: u64 = 2_000;
/// Somebody who keeps a processor for longer computes; so does, from here on, a group that has
/// taken it.
const LONG_NS: u64 = 500_000;
/// Offers that nobody took, before this thread sleeps instead.
const OFFERS: u32 = 2;
/// So often this thread sleeps before it finds out anew whether another group takes the processor.
const NAPS: u32 = 512;

/// Whether a rail of this process has found something since one slept last: a thread may serve
/// several, and none of them waits for it to wake. Only a hint: nothing is ordered by it.
static FOUND: AtomicBool = AtomicBool::new(false);

/// What one rail knows of its empty polls.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Since something was found, or since the last offer.
    polls: u32,
    /// So many of them call for an offer.
    polls_most: u32,
    /// Offers since something was found.
    offers: u32,
    /// Sleeps that are left before the next try without.
    naps: u32,
    /// When the last offer ended.
    offered_ns: u64,
    /// How often the scheduler had taken the processor away by then.
    taken: u64,
}

impl Waiting {
    pub(super) const NEW: Waiting =
        Waiting { polls: 0, polls_most: POLLS_MAX, offers: 0, naps: 0, offered_ns: 0, taken: 0 };

    /// A poll has found something.
    #[inline(always)]
    pub(super) fn found(&mut self) {
        self.polls = 0;
        // relaxed: see there; it is read far more often than written
        if !FOUND.load(RELAXED) {
            FOUND.store(true, RELAXED);
        }
        if self.offers != 0 {
            self.end();
        }
    }

    /// A poll has found nothing.
    #[inline(always)]
    pub(super) fn nothing(&mut self) {
        self.polls += 1;
        if self.polls >= self.polls_most {
            self.offer();
        }
    }

    #[cold]
    fn end(&mut self) {
        self.look(probe::clock_ns());
        self.offers = 0;
    }

    /// Whether another group has taken the processor since the last offer.
    fn look(&mut self, now_ns: u64) {
        let is_long = now_ns.saturating_sub(self.offered_ns) >= LONG_NS;
        if self.offers != 0 && is_long && processor::taken() != self.taken {
            self.naps = NAPS;
        }
    }

    #[cold]
    #[inline(never)]
    fn offer(&mut self) {
        let began_ns = probe::clock_ns();
        self.look(began_ns);
        // relaxed: see there
        let sleeps = self.naps != 0 && self.offers >= OFFERS && !FOUND.swap(false, RELAXED);
        if sleeps {
            self.naps -= 1;
            processor::nap();
            self.offered_ns = probe::clock_ns();
        } else {
            processor::offer();
            self.offered_ns = probe::clock_ns();
            self.polls_most = match self.offered_ns.saturating_sub(began_ns) {
                0..MOMENT_NS => (self.polls_most * 2).min(POLLS_MAX),
                MOMENT_NS..LONG_NS => POLLS_MIN,
                _ => POLLS_MAX,
            };
        }
        self.taken = processor::taken();
        (self.polls, self.offers) = (0, self.offers.saturating_add(1));
    }
}
