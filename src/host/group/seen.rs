//! Words of a group's windows that kernels see, too: what the group knows of queues that kernels
//! write ([`crate::host::kernels`]).
//!
//! Signals and counters have two homes. What kernels add is in words that the GPU reads. What the
//! group's own calls add is in its table, and is carried over to those words with the group's
//! progress ([`Mirror`]). So a kernel and the group's calls see the same sums.

use crate::base::slab::Handle;
use crate::memory::{SharedMapping, locked};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::vec::Vec;

/// The two words of the host that waiting kernels look at: whether the group was aborted, and how
/// many ranks have ended.
#[derive(Debug)]
pub struct States(SharedMapping);

impl States {
    /// Over a page that the GPU maps, and which is zero.
    pub fn new(mapping: SharedMapping) -> States {
        States(mapping)
    }

    /// One rank more has ended.
    pub fn end_count(&self) {
        // pairs with a kernel's look: what that rank has done is there
        self.word(1).fetch_add(1, Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the page, aligned, and only touched as atomics.
        unsafe { &*self.0.start().cast::<AtomicU64>().add(at) }
    }

    /// Aborts the waits of kernels, or takes that back.
    pub fn abort_set(&self, is_set: bool) {
        // pairs with a kernel's look
        self.word(0).store(is_set.into(), Ordering::Release);
    }
}

/// Ends the waits of a group from any thread, also while the group's own is in one of them.
#[derive(Clone, Default, Debug)]
pub struct Abort(Arc<(AtomicBool, OnceLock<Arc<States>>)>);

impl Abort {
    /// Ends all waits, those under way and those to come, with [`super::WaitError::Aborted`], until
    /// [`Abort::clear`]; waits of kernels, too.
    pub fn set(&self) {
        self.store(true);
    }

    /// Takes an abort back.
    pub fn clear(&self) {
        self.store(false);
    }

    fn store(&self, is_set: bool) {
        // release: pairs with the acquire of a wait
        self.0.0.store(is_set, Ordering::Release);
        self.0.1.get().into_iter().for_each(|states| states.abort_set(is_set));
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    /// Tells kernels, too, from now on; an abort that came before counts.
    pub(super) fn tell(&self, states: &Arc<States>) {
        let _ = self.0.1.set(states.clone());
        states.abort_set(self.is_set());
    }
}

/// A word that kernels see, and how much of the group's table it has.
#[derive(Debug)]
struct Pair {
    word: *const AtomicU64,
    carried: AtomicU64,
}

impl Pair {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: a word of the queues, which stand as long as the window is seen (`Mirror::new`).
        unsafe { &*self.word }
    }

    /// What kernels and the table have added, where the table has `table`.
    fn sum(&self, table: u64) -> u64 {
        let carried = self.carried.load(Ordering::Relaxed); // the group's thread alone
        // pairs with the engine's add, which is released
        let word = self.word().load(Ordering::Acquire);
        word.wrapping_add(table.wrapping_sub(carried))
    }

    fn carry(&self, table: u64) {
        let new = table.wrapping_sub(self.carried.load(Ordering::Relaxed));
        if new != 0 {
            self.carried.store(table, Ordering::Relaxed);
            // pairs with the kernel's acquire: what the group applied before is there
            self.word().fetch_add(new, Ordering::Release);
        }
    }

    /// The table was set to zero.
    fn reset(&self) {
        self.carried.store(0, Ordering::Relaxed);
        self.word().store(0, Ordering::Release);
    }
}

/// The words of one window that kernels see.
#[derive(Debug)]
pub struct Mirror {
    signals: Vec<Pair>,
    counters: Vec<Pair>,
}

// SAFETY: the pointers are to words that are only touched as atomics.
unsafe impl Send for Mirror {}
// SAFETY: as above.
unsafe impl Sync for Mirror {}

/// Which words.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// Signals.
    Signal,
    /// Counters.
    Counter,
}

impl Mirror {
    /// Over words that kernels see: where the first signal and the first counter lie, and how many
    /// there are. All become zero.
    ///
    /// # Safety
    /// - the words stand until the mirror was forgotten ([`Seen::forget`]), or its group is closed.
    pub unsafe fn new(signals: (*mut u8, u32), counters: (*mut u8, u32)) -> Mirror {
        let pair = |start: *mut u8, id: u32| Pair {
            word: start.wrapping_add(id as usize * 8).cast_const().cast(),
            carried: AtomicU64::new(0),
        };
        let pairs = |(start, count): (*mut u8, u32)| (0..count).map(|id| pair(start, id)).collect();
        let mirror = Mirror { signals: pairs(signals), counters: pairs(counters) };
        mirror.signals.iter().chain(&mirror.counters).for_each(Pair::reset);
        mirror
    }

    fn pairs(&self, kind: Kind) -> &[Pair] {
        match kind {
            Kind::Signal => &self.signals,
            Kind::Counter => &self.counters,
        }
    }

    /// A word with what kernels have added, where the table has `table`.
    pub fn sum(&self, kind: Kind, id: u16, table: u64) -> u64 {
        self.pairs(kind).get(usize::from(id)).map_or(table, |pair| pair.sum(table))
    }

    /// The table's word was set to zero.
    pub fn reset(&self, kind: Kind, id: u16) {
        self.pairs(kind).get(usize::from(id)).into_iter().for_each(Pair::reset);
    }

    fn carry(&self, table: impl Fn(Kind, u16) -> Option<u64>) {
        for kind in [Kind::Signal, Kind::Counter] {
            for (id, pair) in (0..).zip(self.pairs(kind)) {
                table(kind, id).into_iter().for_each(|value| pair.carry(value));
            }
        }
    }
}

/// What a group knows of its queues that kernels write.
#[derive(Debug)]
pub struct Seen {
    states: Arc<States>,
    windows: Mutex<Vec<(Handle, Arc<Mirror>)>>,
}

impl Seen {
    /// Of queues without a window yet.
    pub fn new(states: Arc<States>) -> Seen {
        Seen { states, windows: Mutex::default() }
    }

    /// What waiting kernels look at.
    pub fn states(&self) -> &Arc<States> {
        &self.states
    }

    fn windows(&self) -> MutexGuard<'_, Vec<(Handle, Arc<Mirror>)>> {
        locked(&self.windows)
    }

    /// Kernels see a window from now on.
    pub fn add(&self, window: Handle, mirror: Mirror) {
        self.windows().push((window, Arc::new(mirror)));
    }

    /// Kernels see it no more.
    pub fn forget(&self, window: Handle) {
        self.windows().retain(|(it, _)| *it != window);
    }

    /// The words of a window that kernels see, if they see it.
    pub fn mirror(&self, window: Handle) -> Option<Arc<Mirror>> {
        self.windows().iter().find(|(it, _)| *it == window).map(|(_, mirror)| mirror.clone())
    }

    /// Lets kernels see what the group's table has; `table` reads a word of it.
    pub fn carry(&self, table: impl Fn(Handle, Kind, u16) -> Option<u64>) {
        for (window, mirror) in &*self.windows() {
            mirror.carry(|kind, id| table(*window, kind, id));
        }
    }
}
