//! One send queue: a ring that the GPU fills, a doorbell, and a completion ring that we fill.
//!
//! The GPU says by the doorbell how many entries it has written. Its stores may reach this side in
//! another order, so the doorbell is never trusted alone. Each slot holds a fill pattern until the
//! GPU writes it. An entry is taken when its control segment names this queue and index, and no
//! word of its segments has the pattern. A value may happen to equal the pattern: an entry whose
//! control segment has stood for [`SETTLE_NS`] is taken as it is.

use super::completion::{self, Syndrome};
use super::entry::{self, Entry, Malformed, Slot, Work};
use super::{DEPTH_MAX, ENTRY_WORDS};
use crate::base::bitset::{self, BitSet};
use crate::base::sync::{AtomicU64, Ordering, fence};

/// How long words of an entry may trail its control segment. A store takes about a microsecond to
/// cross the bus; this is fifty times as long.
pub const SETTLE_NS: u64 = 50_000;

/// What kind of operation an index is, as far as order needs it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Class {
    /// Goes to the peer.
    Write,
    /// Comes from the peer.
    Read,
    /// Changes a word of the peer.
    Atomic,
    /// The same, where the peer keeps the order of writes and such changes.
    Ordered,
}

/// The memory of one queue.
#[derive(Debug)]
pub struct Memory<'m> {
    /// Work queue entries, [`ENTRY_WORDS`] words each; the GPU writes them.
    pub ring: &'m [AtomicU64],
    /// Completion queue entries, as many; the GPU reads them.
    pub completions: &'m [AtomicU64],
    /// How many entries the GPU has written since the start.
    pub doorbell: &'m AtomicU64,
    /// Marks of entries that ended before an earlier one: [`bitset::words`] of the depth.
    pub ended: &'m mut [u64],
    /// The class of each entry in flight; as many as the depth.
    pub classes: &'m mut [Class],
}

/// Counts of a queue, for reports.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Counts {
    /// Entries that the doorbell announced.
    pub produced: u64,
    /// Entries that were handed out.
    pub taken: u64,
    /// Entries that have a completion.
    pub completed: u64,
    /// Looks at an entry that was announced and had not come.
    pub unsettled: u64,
    /// Doorbells that were behind an earlier one.
    pub backwards: u64,
}

/// Why a queue failed, and from which index on. Earlier entries complete as they ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Failure {
    /// The entry that failed first.
    pub index: u64,
    /// Its syndrome; later entries are flushed.
    pub syndrome: Syndrome,
}

/// One queue.
#[derive(Debug)]
pub struct Queue<'m> {
    ring: &'m [AtomicU64],
    completions: &'m [AtomicU64],
    doorbell: &'m AtomicU64,
    ended: BitSet<'m>,
    classes: &'m mut [Class],
    number: u32,
    pattern: u64,
    counts: Counts,
    reads: u32,
    writes: u32,
    atomics: u32,
    ordered: u32,
    failure: Option<Failure>,
    /// The doorbell that was flushed last: only another one brings further entries.
    flushed: u64,
    /// Since when the next entry waits for words that still look like the pattern.
    unsettled_since: Option<u64>,
}

/// The next entry of a queue.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Next {
    /// Every announced entry was taken.
    Idle,
    /// The next entry was announced, and has not come whole.
    Unsettled,
    /// The next entry. It stays in its slot until [`Queue::take`].
    Entry(Entry),
    /// The next entry, which makes no sense.
    Malformed(Malformed),
}

impl<'m> Queue<'m> {
    /// A queue numbered `number` over `memory`, whose slots get the fill pattern `pattern`.
    ///
    /// *Panics*: when the depth is no power of two, is over [`DEPTH_MAX`], or the parts of the
    /// memory do not fit each other.
    pub fn new(memory: Memory<'m>, number: u32, pattern: u64) -> Queue<'m> {
        let depth = memory.ring.len() / ENTRY_WORDS;
        assert!(depth.is_power_of_two() && depth <= DEPTH_MAX && number < 1 << 24);
        assert_eq!(memory.ring.len(), memory.completions.len());
        assert_eq!(memory.classes.len(), depth);
        assert_eq!(memory.ended.len(), bitset::words(depth));
        memory.ended.fill(0);
        completion::clear(memory.completions);
        for word in memory.ring {
            word.store(pattern, Ordering::Relaxed);
        }
        Queue {
            ring: memory.ring,
            completions: memory.completions,
            doorbell: memory.doorbell,
            ended: BitSet::new(memory.ended),
            classes: memory.classes,
            number,
            pattern,
            counts: Counts::default(),
            reads: 0,
            writes: 0,
            atomics: 0,
            ordered: 0,
            failure: None,
            flushed: 0,
            unsettled_since: None,
        }
    }

    /// Goes on as if the entries before `index` had come and gone.
    #[cfg(test)]
    pub fn skip_to(&mut self, index: u64) {
        for past in index.saturating_sub(self.depth())..index {
            completion::publish(self.completions, self.number, past, None);
        }
        self.doorbell.store(index, Ordering::Release);
        self.flushed = index;
        self.counts = Counts { produced: index, taken: index, completed: index, ..self.counts };
    }

    /// Its number, which is its completion queue's too.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many entries it has room for.
    pub fn depth(&self) -> u64 {
        self.classes.len() as u64
    }

    /// Its counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where and why it failed, if it did.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether an entry has completed with an error. A queue to a peer that is gone has failed, and
    /// owes nobody an error until something is posted on it.
    pub fn has_completed_with_error(&self) -> bool {
        self.failure.is_some_and(|failure| failure.index < self.counts.completed)
    }

    /// Whether nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.reads + self.writes + self.atomics + self.ordered == 0
    }

    /// Whether an entry of `class` may start beside those in flight.
    ///
    /// As on the adapter: the peer executes a queue in order, and the answer to a read may be
    /// overtaken. So writes stay in flight together and the caller keeps their order; a read waits
    /// for writes and atomics; an atomic waits for everything. Where the peer keeps the order, an
    /// atomic waits for reads and other atomics alone, and nothing but reads waits for it.
    pub fn may_start(&self, class: Class) -> bool {
        match class {
            Class::Write => self.atomics == 0,
            Class::Read => self.atomics + self.ordered + self.writes == 0,
            Class::Atomic => self.is_quiet(),
            Class::Ordered => self.atomics + self.reads == 0,
        }
    }

    /// Looks at the doorbell: whether there is anything to take.
    ///
    /// *Cost*: one load.
    pub fn ring(&mut self) -> bool {
        // pairs with the GPU's release before its doorbell
        let announced = self.doorbell.load(Ordering::Acquire);
        match announced >= self.counts.produced {
            true => self.counts.produced = announced,
            false => self.counts.backwards += 1,
        }
        self.counts.taken < self.counts.produced
    }

    /// The next entry at the time `now_ns`, without taking it.
    ///
    /// A doorbell that announces more entries than the ring holds fails the queue.
    pub fn next(&mut self, now_ns: u64) -> Next {
        if !self.ring() {
            return Next::Idle;
        }
        if self.counts.produced - self.counts.completed > self.depth() {
            return Next::Malformed(Malformed::Length);
        }
        let words = self.slot(self.counts.taken);
        match entry::inspect(&words, self.number, self.counts.taken, self.pattern) {
            Slot::Filled { settled: true } => {}
            Slot::Filled { settled: false } if self.has_waited(now_ns) => {}
            Slot::Filled { settled: false } | Slot::Empty => {
                self.counts.unsettled += 1;
                return Next::Unsettled;
            }
        }
        match entry::decode(&words) {
            Ok(entry) => Next::Entry(entry),
            Err(why) => Next::Malformed(why),
        }
    }

    /// What the next entry does, if it was announced and has come whole and makes sense. Changes
    /// nothing.
    pub fn peek(&self) -> Option<Work> {
        let words = self.slot(self.counts.taken);
        match entry::inspect(&words, self.number, self.counts.taken, self.pattern) {
            Slot::Filled { .. } => entry::decode(&words).ok().map(|entry| entry.work),
            Slot::Empty => None,
        }
    }

    /// The class of an entry in flight.
    pub fn class_of(&self, index: u64) -> Class {
        self.classes[(index % self.depth()) as usize]
    }

    fn has_waited(&mut self, now_ns: u64) -> bool {
        let since = *self.unsettled_since.get_or_insert(now_ns);
        now_ns.saturating_sub(since) >= SETTLE_NS
    }

    /// A copy of the slot of `index`.
    fn slot(&self, index: u64) -> [u64; ENTRY_WORDS] {
        let at = (index % self.depth()) as usize * ENTRY_WORDS;
        let mut words = [0; ENTRY_WORDS];
        for (word, place) in words.iter_mut().zip(&self.ring[at..at + ENTRY_WORDS]) {
            *word = place.load(Ordering::Relaxed);
        }
        // what the entry covers was written before its words
        fence(Ordering::Acquire);
        words
    }

    /// Takes the next entry, and fills its slot with the pattern again; its index.
    pub fn take(&mut self, class: Option<Class>) -> u64 {
        let index = self.counts.taken;
        let at = (index % self.depth()) as usize;
        for word in &self.ring[at * ENTRY_WORDS..][..ENTRY_WORDS] {
            word.store(self.pattern, Ordering::Relaxed);
        }
        self.unsettled_since = None;
        self.counts.taken += 1;
        match class {
            None => self.end(index),
            Some(class) => {
                self.classes[at] = class;
                *self.flying(class) += 1;
            }
        }
        index
    }

    fn flying(&mut self, class: Class) -> &mut u32 {
        match class {
            Class::Write => &mut self.writes,
            Class::Read => &mut self.reads,
            Class::Atomic => &mut self.atomics,
            Class::Ordered => &mut self.ordered,
        }
    }

    /// The operation of `index` has ended: its bytes are where they belong, or it failed.
    pub fn complete(&mut self, index: u64, outcome: Result<(), Syndrome>) {
        let class = self.class_of(index);
        *self.flying(class) -= 1;
        if let Err(syndrome) = outcome {
            self.fail(index, syndrome);
        }
        self.end(index);
    }

    fn end(&mut self, index: u64) {
        self.ended.insert((index % self.depth()) as usize);
        while self.counts.completed < self.counts.taken {
            let at = (self.counts.completed % self.depth()) as usize;
            if !self.ended.contains(at) {
                break;
            }
            self.ended.remove(at);
            self.publish();
        }
    }

    fn publish(&mut self) {
        let index = self.counts.completed;
        let syndrome = match self.failure {
            Some(failure) if index == failure.index => Some(failure.syndrome),
            Some(failure) if index > failure.index => Some(Syndrome::Flushed),
            Some(_) | None => None,
        };
        completion::publish(self.completions, self.number, index, syndrome);
        self.counts.completed += 1;
    }

    /// Fails the queue from `index` on: that entry completes with `syndrome`, later ones as
    /// flushed. Of two failures the earlier index counts.
    pub fn fail(&mut self, index: u64, syndrome: Syndrome) {
        if self.failure.is_none_or(|failure| index < failure.index) {
            self.failure = Some(Failure { index, syndrome });
        }
    }

    /// Completes what was announced on a failed queue, once nothing of it is in flight; later
    /// entries at a later call.
    ///
    /// *Cost*: one store for each entry, at most as many as the queue is deep.
    pub fn flush(&mut self) {
        if self.failure.is_none() || !self.is_quiet() {
            return;
        }
        // pairs with the GPU's release before its doorbell
        let announced = self.doorbell.load(Ordering::Acquire);
        if announced != self.flushed {
            self.counts.produced = self.counts.produced.max(announced);
        }
        self.flushed = announced;
        // a doorbell beyond the ring is garbage: there are no more entries than slots
        self.counts.produced = self.counts.produced.min(self.counts.completed + self.depth());
        while self.counts.completed < self.counts.produced {
            self.publish();
        }
        self.counts.taken = self.counts.taken.max(self.counts.completed);
    }
}
