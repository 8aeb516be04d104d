//! The table of other processes' GPU memory that is mapped here.
//!
//! The data thread asks for an entry and uses it; a helper thread, which may block in the driver,
//! fills and ends it.

use super::note::Exporter;
use crate::memory::{WakeFd, locked};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::vec::Vec;

/// Regions of peers that may be mapped at a time, by one endpoint.
const ENTRIES: usize = 2048;

// What an entry is.
const FREE: u32 = 0;
const WANTED: u32 = 1;
const READY: u32 = 2;
const FAILED: u32 = 3;
/// The owner has forgotten it: it goes once nobody uses it.
const GONE: u32 = 4;

/// Whose memory, and for which GPU of ours.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Wanted {
    /// The owner.
    pub exporter: Exporter,
    /// What it calls the region.
    pub key: u64,
    /// The GPU that will reach it, by number.
    pub gpu: u32,
}

/// Where mapped memory is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Mapped {
    /// Address of the region's first byte at its owner.
    pub theirs: u64,
    /// The same byte here.
    pub ours: u64,
    /// Bytes of the region.
    pub length: u64,
    /// Whether it lies on the GPU that reaches it.
    pub is_within: bool,
}

#[derive(Debug, Default)]
struct Entry {
    state: AtomicU32,
    /// Copies that use it; the data thread counts.
    users: AtomicU32,
    code: AtomicI32,
    theirs: AtomicU64,
    ours: AtomicU64,
    length: AtomicU64,
    is_within: AtomicBool,
    wanted: Mutex<Wanted>,
}

/// What an entry says.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Look {
    /// It is being mapped.
    Pending,
    /// It is mapped.
    Ready(Mapped),
    /// It cannot be mapped: the driver's code, or an errno below 0.
    Failed(i32),
}

/// The table, which the two threads share.
#[derive(Debug)]
pub struct Imports {
    /// Made with the helper thread.
    entries: OnceLock<Vec<Entry>>,
    /// Entries that are to be mapped.
    queue: Mutex<Vec<u32>>,
    wake: OnceLock<WakeFd>,
}

impl Default for Imports {
    fn default() -> Imports {
        Imports::new()
    }
}

impl Imports {
    /// An empty table.
    pub fn new() -> Imports {
        let (entries, wake) = (OnceLock::new(), OnceLock::new());
        Imports { entries, queue: Mutex::new(Vec::with_capacity(ENTRIES)), wake }
    }

    /// What wakes the helper thread, if there is one.
    pub fn wake(&self) -> Option<&WakeFd> {
        self.wake.get()
    }

    /// There is a helper thread from now on, which this wakes.
    pub fn wake_set(&self, wake: WakeFd) {
        self.entries.get_or_init(|| (0..ENTRIES).map(|_| Entry::default()).collect());
        let _ = self.wake.set(wake);
    }

    /// All of them; none without a helper thread.
    fn entries(&self) -> &[Entry] {
        self.entries.get().map_or(&[], |entries| entries)
    }

    fn ring(&self) {
        if let Some(wake) = self.wake.get() {
            wake.ring();
        }
    }

    /// The data thread wants to use an entry: counts it as a user. `None`: the table is full; one
    /// that nobody uses, if there is any, makes room soon.
    pub fn hold(&self, wanted: &Wanted) -> Option<u32> {
        let first = (wanted.key ^ wanted.exporter.name as u64 ^ u64::from(wanted.gpu)) as usize;
        let mut free = None;
        let count = self.entries().len();
        for step in 0..count {
            let at = first.wrapping_add(step) % count;
            let entry = &self.entries()[at];
            match entry.state.load(Ordering::Acquire) {
                // what was mapped behind a place that is free now is mapped once more
                FREE => {
                    free = Some(at);
                    break;
                }
                GONE => {}
                _ if *locked(&entry.wanted) == *wanted => {
                    // [hold]: our count before our look
                    entry.users.fetch_add(1, Ordering::SeqCst);
                    if !matches!(entry.state.load(Ordering::SeqCst), GONE | FREE) {
                        return Some(at as u32);
                    }
                    entry.users.fetch_sub(1, Ordering::SeqCst);
                }
                _ => {}
            }
        }
        let Some(at) = free else {
            self.evict(first);
            return None;
        };
        let entry = &self.entries()[at];
        *locked(&entry.wanted) = *wanted;
        entry.users.store(1, Ordering::SeqCst);
        entry.state.store(WANTED, Ordering::SeqCst);
        locked(&self.queue).push(at as u32);
        self.ring();
        Some(at as u32)
    }

    /// Has the helper take one out that nobody uses, the first from a place on.
    fn evict(&self, first: usize) {
        let count = self.entries().len();
        let all = (0..count).map(|step| &self.entries()[first.wrapping_add(step) % count]);
        let is_idle = |entry: &&Entry| {
            let state = entry.state.load(Ordering::Acquire);
            matches!(state, READY | FAILED) && entry.users.load(Ordering::SeqCst) == 0
        };
        if let Some(entry) = all.into_iter().find(is_idle) {
            entry.state.store(GONE, Ordering::SeqCst);
            self.ring();
        }
    }

    /// What became of an entry that is held.
    #[inline]
    pub fn look(&self, entry: u32) -> Look {
        let entry = &self.entries()[entry as usize];
        match entry.state.load(Ordering::Acquire) {
            WANTED => Look::Pending,
            _ if entry.code.load(Ordering::Relaxed) != 0 => {
                Look::Failed(entry.code.load(Ordering::Relaxed))
            }
            _ => Look::Ready(Mapped {
                theirs: entry.theirs.load(Ordering::Relaxed),
                ours: entry.ours.load(Ordering::Relaxed),
                length: entry.length.load(Ordering::Relaxed),
                is_within: entry.is_within.load(Ordering::Relaxed),
            }),
        }
    }

    /// The data thread uses an entry no more.
    pub fn release(&self, entry: u32) {
        let entry = &self.entries()[entry as usize];
        let users = entry.users.fetch_sub(1, Ordering::SeqCst) - 1;
        if users == 0 && entry.state.load(Ordering::SeqCst) == GONE {
            self.ring(); // the helper takes it out
        }
    }

    /// For the helper: entries that are to be mapped.
    pub fn wanted(&self) -> Vec<(u32, Wanted)> {
        let taken: Vec<u32> = locked(&self.queue).drain(..).collect();
        let of = |at: u32| (at, *locked(&self.entries()[at as usize].wanted));
        taken.into_iter().map(of).collect()
    }

    /// For the helper: an entry is mapped, or cannot be, with a code that is not 0. Nobody asks the
    /// driver again then, until the owner forgets the region, or its place is needed.
    pub fn answer(&self, entry: u32, result: Result<Mapped, i32>) {
        let entry = &self.entries()[entry as usize];
        match result {
            Ok(mapped) => {
                entry.theirs.store(mapped.theirs, Ordering::Relaxed);
                entry.ours.store(mapped.ours, Ordering::Relaxed);
                entry.length.store(mapped.length, Ordering::Relaxed);
                entry.is_within.store(mapped.is_within, Ordering::Relaxed);
                entry.code.store(0, Ordering::Relaxed);
                entry.state.store(READY, Ordering::SeqCst);
            }
            Err(code) => {
                entry.code.store(code, Ordering::Relaxed);
                entry.state.store(FAILED, Ordering::SeqCst);
            }
        }
    }

    /// For the helper: the owner has forgotten a region, or has ended (`key` is `None`).
    pub fn forget(&self, exporter: Exporter, key: Option<u64>) {
        for entry in self.entries() {
            let state = entry.state.load(Ordering::SeqCst);
            let wanted = *locked(&entry.wanted);
            let is_meant = wanted.exporter == exporter && key.is_none_or(|key| key == wanted.key);
            match state {
                READY | FAILED if is_meant => entry.state.store(GONE, Ordering::SeqCst),
                WANTED if is_meant => {
                    entry.code.store(-libc::ECONNRESET, Ordering::Relaxed);
                    entry.state.store(FAILED, Ordering::SeqCst);
                }
                _ => {}
            }
        }
    }

    /// For the helper: frees entries that are over and that nobody uses; their numbers.
    pub fn sweep(&self) -> Vec<u32> {
        let mut swept = Vec::new();
        for (at, entry) in self.entries().iter().enumerate() {
            let state = entry.state.load(Ordering::SeqCst);
            // [hold]: GONE was stored before this look
            if state == GONE && entry.users.load(Ordering::SeqCst) == 0 {
                entry.state.store(FREE, Ordering::SeqCst);
                swept.push(at as u32);
            }
        }
        swept
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    const MAPPED: Mapped = Mapped { theirs: 4096, ours: 8192, length: 64, is_within: false };

    fn wanted(key: usize) -> Wanted {
        Wanted { key: key as u64, ..Wanted::default() }
    }

    fn table() -> Imports {
        let imports = Imports::new();
        imports.wake_set(WakeFd::create().expect("a descriptor"));
        imports
    }

    fn held(imports: &Imports, key: usize, result: Result<Mapped, i32>) -> u32 {
        let entry = imports.hold(&wanted(key)).expect("room");
        assert_eq!(imports.wanted(), [(entry, wanted(key))]);
        imports.answer(entry, result);
        entry
    }

    #[test]
    fn full_table_gives_up_what_nobody_uses() {
        let imports = table();
        let all: Vec<u32> = (0..ENTRIES).map(|key| held(&imports, key, Ok(MAPPED))).collect();
        assert_eq!(imports.hold(&wanted(ENTRIES)), None);
        assert!(imports.sweep().is_empty(), "all are in use");
        imports.release(all[7]);
        assert_eq!(imports.hold(&wanted(ENTRIES)), None);
        assert_eq!(imports.sweep(), [all[7]]);
        held(&imports, ENTRIES, Ok(MAPPED));
        assert_eq!(imports.look(all[8]), Look::Ready(MAPPED));
    }

    #[test]
    fn failure_is_known_until_its_region_is_forgotten() {
        let imports = table();
        let entry = held(&imports, 3, Err(201));
        imports.release(entry);
        assert!(imports.sweep().is_empty());
        assert_eq!(imports.hold(&wanted(3)), Some(entry));
        assert!(imports.wanted().is_empty(), "the driver is asked again");
        assert_eq!(imports.look(entry), Look::Failed(201));
        imports.release(entry);
        imports.forget(Exporter::default(), Some(3));
        assert_eq!(imports.sweep(), [entry]);
        held(&imports, 3, Ok(MAPPED));
    }
}
