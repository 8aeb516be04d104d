//! What a process has for itself: a forked child begins with nothing, because the locks of its
//! parent may have been taken, in the moment of the fork, by threads that it does not have.
#![forbid(unsafe_code)]

use crosstie::connect::fork::forks;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A value for each process that a fork has made of the first.
pub struct OfProcess<T: 'static> {
    first: T,
    fresh: fn() -> T,
    later: OnceLock<&'static Later<T>>,
}

struct Later<T: 'static> {
    forks: u32,
    value: T,
    next: OnceLock<&'static Later<T>>,
}

impl<T> OfProcess<T> {
    /// `first` for the process that has loaded the plugin, what `fresh` makes for its children.
    pub const fn new(first: T, fresh: fn() -> T) -> OfProcess<T> {
        OfProcess { first, fresh, later: OnceLock::new() }
    }

    /// This process's. *Cost*: one load where there was no fork.
    pub fn get(&'static self) -> &'static T {
        let now = forks();
        if now == 0 {
            return &self.first;
        }
        let mut place = &self.later;
        loop {
            let made = || {
                let (value, next) = ((self.fresh)(), OnceLock::new());
                &*Box::leak(Box::new(Later { forks: now, value, next }))
            };
            let later = *place.get_or_init(made);
            if later.forks == now {
                return &later.value;
            }
            place = &later.next;
        }
    }
}

/// The first number that a process gives away: no other has the same among its parents, so that
/// what was theirs is never taken for its own.
pub fn first_number() -> u64 {
    (u64::from(forks()) << 40) + 1
}

/// Whether a number was given away by a parent.
pub fn is_of_parent(number: u64) -> bool {
    number != 0 && number < first_number()
}

/// What stands behind a lock, also after a panic.
pub fn locked<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
