//! What no call of NCCL's moves on.
//!
//! NCCL's threads sleep once all of their requests have ended, and a short send has ended when it
//! was copied. What no socket took then, what was on a rail that dies now, and what a library moves
//! only while it is asked, would wait for NCCL's next collective, and the peer with it. So one
//! thread of the process makes progress in rooms that nobody has entered for a moment.
#![forbid(unsafe_code)]

use super::log;
use super::process::{OfProcess, locked};
use super::threads::{ended, joined};
use crosstie::host::Endpoint;
use crosstie::memory::threads;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long nobody is in a room until it is tended: longer than any loop of NCCL's is away.
const NAP_MIN: Duration = Duration::from_millis(8);
/// Between two looks where nobody has come since the last.
const NAP_MAX: Duration = Duration::from_millis(128);

/// The endpoint of a room, for one thread at a time.
#[derive(Default)]
pub struct Seat(Mutex<Seated>);

/// What the lock of a room is for.
#[derive(Default)]
pub struct Seated {
    /// `None` before it is opened, and after it is closed.
    pub endpoint: Option<Endpoint>,
    /// Calls that had it.
    entries: u64,
    /// How many those were when it was looked at last.
    looked: u64,
    /// A panic inside was reported when it happened; callers alone ask what it left.
    is_broken: bool,
}

impl Seat {
    /// A seat with an endpoint, which is tended until [`Seat::vacate`].
    pub fn with(endpoint: Endpoint) -> Arc<Seat> {
        let seated = Seated { endpoint: Some(endpoint), ..Seated::default() };
        let seat = Arc::new(Seat(Mutex::new(seated)));
        TENDER.get().begin(&seat);
        seat
    }

    /// For a call.
    #[inline]
    pub fn enter(&self) -> MutexGuard<'_, Seated> {
        // a panic inside was reported when it happened; what it left is asked all the same
        let mut seated = locked(&self.0);
        seated.entries = seated.entries.wrapping_add(1);
        seated
    }

    /// Takes the endpoint out, which nobody tends from now on.
    pub fn vacate(self: &Arc<Seat>) -> Option<Endpoint> {
        let endpoint = locked(&self.0).endpoint.take();
        TENDER.get().end(self);
        endpoint
    }

    /// Makes progress, if nobody was here since the last look; whether somebody was.
    fn tend(&self) -> bool {
        let mut seated = match self.0.try_lock() {
            Ok(seated) => seated,
            Err(TryLockError::Poisoned(seated)) => seated.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        let was_entered = seated.entries != seated.looked;
        seated.looked = seated.entries;
        if !was_entered && !seated.is_broken {
            // the thread is of all rooms, and goes on
            let endpoint = seated.endpoint.as_mut();
            let tended = catch_unwind(AssertUnwindSafe(|| endpoint.map(Endpoint::tend)));
            seated.is_broken = tended.is_err();
        }
        was_entered
    }
}

/// The seats of a process, and the thread that tends them: there is one while there are seats.
#[derive(Default)]
struct Tender {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    seats: Vec<Arc<Seat>>,
    /// The thread that was started last, until somebody has waited for it.
    thread: Option<JoinHandle<()>>,
    /// Whether it tends.
    works: bool,
    /// Which thread it is, counted: one that is waited for begins no other's work.
    number: u64,
}

static TENDER: OfProcess<Tender> = OfProcess::new(
    Tender {
        state: Mutex::new(State { seats: Vec::new(), thread: None, works: false, number: 0 }),
        changed: Condvar::new(),
    },
    Tender::default,
);

impl Tender {
    fn begin(&'static self, seat: &Arc<Seat>) {
        let mut state = locked(&self.state);
        state.seats.push(Arc::clone(seat));
        if state.works {
            return;
        }
        joined(state.thread.take());
        state.number += 1;
        let number = state.number;
        match threads::start("crosstie-tender", move || self.work(number)) {
            Ok(thread) => (state.thread, state.works) = (Some(thread), true),
            Err(error) => log::warn(&format!(
                "cannot start a thread ({error}): while sockets are full, sent data may wait for \
                 the next call"
            )),
        }
    }

    fn end(&self, seat: &Arc<Seat>) {
        let mut state = locked(&self.state);
        state.seats.retain(|other| !Arc::ptr_eq(other, seat));
        if state.seats.is_empty() {
            self.changed.notify_all();
        }
    }

    fn work(&self, number: u64) {
        let (mut nap, mut seats) = (NAP_MIN, Vec::new());
        let is_wanted = |state: &State| state.number == number && !state.seats.is_empty();
        let mut state = locked(&self.state);
        while is_wanted(&state) {
            seats.extend(state.seats.iter().cloned());
            drop(state);
            // each has its look, whatever the others say
            let in_use = seats.drain(..).filter(|seat| seat.tend()).count();
            nap = if in_use > 0 { NAP_MIN } else { NAP_MAX.min(2 * nap) };
            state = locked(&self.state);
            if is_wanted(&state) {
                let waited = self.changed.wait_timeout(state, nap);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        // who comes next starts another
        if state.number == number {
            state.works = false;
            ended(&mut state.thread);
        }
    }

    fn finish(&self) {
        let thread = {
            let mut state = locked(&self.state);
            if !state.seats.is_empty() {
                return;
            }
            // a room that is opened meanwhile has a thread of its own
            state.number += 1;
            state.works = false;
            state.thread.take()
        };
        joined(thread);
    }
}

/// Waits for the thread, if nothing is left to tend: NCCL may unload the plugin afterwards.
pub fn finish() {
    TENDER.get().finish();
}

#[cfg(test)]
mod tests {
    use super::super::{context_close, context_open};
    use super::*;

    /// One that was about to end was let go of, and the last finalize did not wait for it.
    #[test]
    fn thread_that_has_ended_is_held_until_somebody_has_waited_for_it() {
        let tender: &'static Tender = Box::leak(Box::default());
        let context = context_open(None, None).unwrap();
        for _ in 0..3 {
            let seat = Arc::new(Seat::default());
            tender.begin(&seat);
            tender.end(&seat);
            while locked(&tender.state).works {
                std::thread::yield_now();
            }
            assert!(locked(&tender.state).thread.is_some());
        }
        tender.finish();
        assert!(locked(&tender.state).thread.is_none());
        context_close(context).unwrap();
    }
}
