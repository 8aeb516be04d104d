//! The windows of a group at one rank: their memory, what the other ranks have told of theirs, and
//! the words that peers add to.
#![forbid(unsafe_code)]

use super::error::WindowError;
use super::limits::Limits;
use super::memory::Span;
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::slab::{Generation, Handle};
use crate::base::sync::{AtomicU64, Ordering};
use crate::wire::one_sided::{DEVICE, READ_ONLY, REFUSED, Record, RecordKind, Refusal};

/// Memory that a window is made of.
#[derive(Copy, Clone, Debug)]
pub struct WindowMemory {
    /// The registered region that it lies in.
    pub region: Handle,
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes; 0: this rank only takes part.
    pub length: u64,
    /// It is a GPU's; else `bytes` is the same memory.
    pub is_device: bool,
    /// Peers may only read it.
    pub is_read_only: bool,
    /// The memory of the host, for short copies by the CPU.
    pub bytes: Span,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum State {
    Free,
    Registered,
    /// Its exchange has this number.
    Exchanging(u32),
    Open,
}

/// One window of this rank.
#[derive(Copy, Clone, Debug)]
pub(super) struct Slot {
    generation: Generation,
    state: State,
    memory: WindowMemory,
    /// Transfers of peers, and adds of NICs, that are under way in its memory.
    transfers: u32,
    /// A NIC's add to one of its counters was lost.
    is_count_lost: bool,
}

/// A counter that grows.
#[derive(Copy, Clone, Debug)]
pub(super) struct Count {
    /// Its place, and which use of that.
    pub at: u32,
    pub generation: u32,
    pub value: u64,
}

/// What one rank has told of its part of a window.
#[derive(Copy, Clone, Debug)]
pub(super) struct Share {
    /// The exchange that it belongs to, from 1 on; 0: nothing was told.
    pub number: u32,
    /// The window's place at its owner.
    pub window: u16,
    pub generation: u16,
    pub length: u64,
    pub signals: u16,
    pub barriers: u16,
    pub flags: u8,
}

const NOTHING_TOLD: Share =
    Share { number: 0, window: 0, generation: 0, length: 0, signals: 0, barriers: 0, flags: 0 };
const NO_MEMORY: WindowMemory = WindowMemory {
    region: Handle { index: 0, generation: 0 },
    address: 0,
    length: 0,
    is_device: false,
    is_read_only: false,
    bytes: Span::EMPTY,
};

/// Which use of its place a window is, as peers name it: the numbers of uses are odd.
const fn use_of(generation: Generation) -> u16 {
    (generation.number() >> 1) as u16
}

/// Set in the count of a barrier while this rank waits there.
const WAITS: u64 = 1 << 63;

/// The windows.
#[derive(Debug)]
pub(super) struct Table<'m> {
    limits: Limits,
    slots: &'m mut [Slot],
    /// By window and rank.
    shares: &'m mut [Share],
    /// What was told before this rank came to the exchange: by rank, and number.
    early: &'m mut [Share],
    /// By window, id and rank.
    signals: &'m mut [u64],
    /// By window and id.
    counters: &'m mut [AtomicU64],
    /// How often each rank has come to each barrier: by window, id and rank.
    arrived: &'m mut [u64],
    /// How often this rank has: by window and id.
    entered: &'m mut [u64],
    /// Exchanges that this rank has begun.
    exchanges: u32,
}

impl<'m> Table<'m> {
    pub fn carve(block: &mut Carver<'m>, limits: Limits) -> Result<Table<'m>, BlockTooSmall> {
        let windows = limits.windows_max as usize;
        let slot = Slot {
            generation: Generation::salted(0),
            state: State::Free,
            memory: NO_MEMORY,
            transfers: 0,
            is_count_lost: false,
        };
        Ok(Table {
            limits,
            slots: block.filled(windows, slot)?,
            shares: block.filled(windows * limits.ranks as usize, NOTHING_TOLD)?,
            early: block.filled(windows * limits.ranks as usize, NOTHING_TOLD)?,
            signals: block.slice(limits.words(limits.signals_max))?,
            counters: block.slice(windows * limits.counters_max as usize)?,
            arrived: block.slice(limits.words(limits.barriers_max))?,
            entered: block.slice(windows * limits.barriers_max as usize)?,
            exchanges: 0,
        })
    }

    pub const fn limits(&self) -> Limits {
        self.limits
    }

    fn slot(&self, window: Handle) -> Result<&Slot, WindowError> {
        let slot = self.slots.get(window.index as usize).ok_or(WindowError::Window)?;
        if slot.generation.is(window.generation) { Ok(slot) } else { Err(WindowError::Window) }
    }

    fn open_slot(&self, window: Handle) -> Result<&Slot, WindowError> {
        let slot = self.slot(window)?;
        if slot.state == State::Open { Ok(slot) } else { Err(WindowError::NotExchanged) }
    }

    fn share_at(&self, window: usize, rank: u32) -> usize {
        window * self.limits.ranks as usize + rank as usize
    }

    /// Makes a window of memory.
    pub fn register(&mut self, memory: WindowMemory) -> Result<Handle, WindowError> {
        let free = self.slots.iter().position(|slot| slot.state == State::Free);
        let index = free.ok_or(WindowError::WindowsFull)?;
        let slot = &mut self.slots[index];
        let generation = slot.generation.acquire();
        (slot.state, slot.memory, slot.transfers) = (State::Registered, memory, 0);
        slot.is_count_lost = false;
        self.words_zero(index);
        let first = self.share_at(index, 0);
        self.shares[first..first + self.limits.ranks as usize].fill(NOTHING_TOLD);
        Ok(Handle { index: index as u32, generation })
    }

    fn words_zero(&mut self, window: usize) {
        let zero = |words: &mut [u64], each: usize| {
            words[window * each..(window + 1) * each].fill(0);
        };
        let (ranks, counters) = (self.limits.ranks as usize, self.limits.counters_max as usize);
        let counters = &self.counters[window * counters..(window + 1) * counters];
        counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        zero(self.signals, self.limits.signals_max as usize * ranks);
        zero(self.arrived, self.limits.barriers_max as usize * ranks);
        zero(self.entered, self.limits.barriers_max as usize);
    }

    /// Forgets a window; what peers do with it from now on is refused. `Again`: peers' transfers
    /// are under way in its memory, and it is as before.
    pub fn free(&mut self, window: Handle) -> Result<(), WindowError> {
        let slot = self.slots.get_mut(window.index as usize).ok_or(WindowError::Window)?;
        if !slot.generation.is(window.generation) {
            return Err(WindowError::Window);
        }
        if slot.transfers != 0 {
            return Err(WindowError::Again);
        }
        slot.generation.release();
        (slot.state, slot.memory) = (State::Free, NO_MEMORY);
        Ok(())
    }

    /// Whether the exchange of a window has begun and not ended.
    pub fn is_exchanging(&self, window: Handle) -> Result<bool, WindowError> {
        Ok(matches!(self.slot(window)?.state, State::Exchanging(_)))
    }

    /// What the other ranks are to be told when a window is freed whose exchange has not ended:
    /// this rank takes no part in it.
    pub fn withdrawal(&self, window: Handle) -> Result<Option<Record>, WindowError> {
        let State::Exchanging(number) = self.slot(window)?.state else { return Ok(None) };
        Ok(Some(Record {
            kind: RecordKind::Share,
            flags: REFUSED,
            id: 0,
            window: window.index as u16,
            generation: use_of(self.slots[window.index as usize].generation),
            offset: u64::from(number),
            length: 0,
            value: 0,
        }))
    }

    /// Begins the exchange of a window; gives what the other ranks are to be told.
    pub fn exchange_begin(&mut self, window: Handle) -> Result<Record, WindowError> {
        if self.slot(window)?.state != State::Registered {
            return Err(WindowError::Exchanged);
        }
        self.exchanges += 1;
        let (number, index) = (self.exchanges, window.index as usize);
        self.slots[index].state = State::Exchanging(number);
        for rank in 0..self.limits.ranks {
            let early = self.early[self.early_at(rank, number)];
            if early.number == number {
                let at = self.share_at(index, rank);
                self.shares[at] = early;
            }
        }
        let slot = &self.slots[index];
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        Ok(Record {
            kind: RecordKind::Share,
            flags: flag(slot.memory.is_device, DEVICE) | flag(slot.memory.is_read_only, READ_ONLY),
            id: self.limits.signals_max as u16,
            window: index as u16,
            generation: use_of(slot.generation),
            offset: u64::from(number),
            length: slot.memory.length,
            value: u64::from(self.limits.barriers_max),
        })
    }

    fn early_at(&self, rank: u32, number: u32) -> usize {
        (rank * self.limits.windows_max + number % self.limits.windows_max) as usize
    }

    /// Takes in what a rank tells of its part of a window.
    pub fn share_take(&mut self, rank: u32, record: &Record) {
        let share = Share {
            number: record.offset as u32,
            window: record.window,
            generation: record.generation,
            length: record.length,
            signals: record.id,
            barriers: record.value as u16,
            flags: record.flags,
        };
        let exchanging = State::Exchanging(share.number);
        match self.slots.iter().position(|slot| slot.state == exchanging) {
            Some(window) => {
                let at = self.share_at(window, rank);
                self.shares[at] = share;
            }
            None => self.early[self.early_at(rank, share.number)] = share,
        }
    }

    /// Whether all ranks have told of a window; it is open from then on. An error: the first rank
    /// that has not.
    pub fn exchange_look(&mut self, window: Handle) -> Result<Result<(), u32>, WindowError> {
        let State::Exchanging(number) = self.slot(window)?.state else {
            self.open_slot(window)?;
            return Ok(Ok(()));
        };
        let index = window.index as usize;
        let is_gone = |share: &Share| share.number == number && share.flags & REFUSED != 0;
        let first = self.share_at(index, 0);
        if self.shares[first..first + self.limits.ranks as usize].iter().any(is_gone) {
            // it can be exchanged anew, under the next number
            self.slots[index].state = State::Registered;
            return Err(WindowError::Freed);
        }
        let is_missing = |rank: &u32| self.shares[self.share_at(index, *rank)].number != number;
        if let Some(rank) = (0..self.limits.ranks).find(is_missing) {
            return Ok(Err(rank));
        }
        self.slots[index].state = State::Open;
        Ok(Ok(()))
    }

    /// A rank's part of an open window.
    pub fn share(&self, window: Handle, rank: u32) -> Result<&Share, WindowError> {
        self.open_slot(window)?;
        if rank >= self.limits.ranks {
            return Err(WindowError::Rank);
        }
        Ok(&self.shares[self.share_at(window.index as usize, rank)])
    }

    /// The memory of this rank's part of a window.
    pub fn memory(&self, window: Handle) -> Result<&WindowMemory, WindowError> {
        Ok(&self.slot(window)?.memory)
    }

    /// The memory of a window, for a peer's record.
    pub fn memory_for(&self, record: &Record) -> Result<&WindowMemory, Refusal> {
        let slot = self.slot_for(record)?;
        let memory = &slot.memory;
        let fits = record.offset <= memory.length && record.length <= memory.length - record.offset;
        if fits { Ok(memory) } else { Err(Refusal::Range) }
    }

    /// The window that a peer's record names. It may come before this rank has all shares.
    fn slot_for(&self, record: &Record) -> Result<&Slot, Refusal> {
        let slot = self.slots.get(usize::from(record.window)).ok_or(Refusal::Stale)?;
        let is_shared = matches!(slot.state, State::Exchanging(_) | State::Open);
        let is_same = use_of(slot.generation) == record.generation;
        if is_shared && is_same { Ok(slot) } else { Err(Refusal::Stale) }
    }

    /// Counts a transfer of a peer that begins in a window's memory, or ends.
    pub fn transfer_count(&mut self, window: u16, begins: bool) {
        let transfers = &mut self.slots[usize::from(window)].transfers;
        *transfers = if begins { *transfers + 1 } else { *transfers - 1 };
    }

    /// Adds to the signal of a peer's record.
    pub fn signal_add(&mut self, rank: u32, record: &Record) -> Result<(), Refusal> {
        self.slot_for(record)?;
        self.signal_add_at(rank, record.window, record.id, record.value)
    }

    /// The same where the window was looked at before.
    pub fn signal_add_at(
        &mut self,
        rank: u32,
        window: u16,
        id: u16,
        value: u64,
    ) -> Result<(), Refusal> {
        let at = self.signal_at(usize::from(window), id, rank).ok_or(Refusal::Id)?;
        self.signals[at] = self.signals[at].wrapping_add(value);
        Ok(())
    }

    fn signal_at(&self, window: usize, id: u16, rank: u32) -> Option<usize> {
        let (ids, ranks) = (self.limits.signals_max as usize, self.limits.ranks as usize);
        let id = usize::from(id);
        (id < ids).then(|| (window * ids + id) * ranks + rank as usize)
    }

    /// Whether a signal exists in a peer's record's window.
    pub fn has_signal(&self, id: u16) -> bool {
        u32::from(id) < self.limits.signals_max
    }

    /// A signal: what all ranks have added.
    pub fn signal(&self, window: Handle, id: u16) -> Result<u64, WindowError> {
        self.open_slot(window)?;
        let first = self.signal_at(window.index as usize, id, 0).ok_or(WindowError::Id)?;
        let words = &self.signals[first..first + self.limits.ranks as usize];
        Ok(words.iter().fold(0, |sum, word| sum.wrapping_add(*word)))
    }

    /// A signal: what one rank has added.
    pub fn signal_from(&self, window: Handle, id: u16, rank: u32) -> Result<u64, WindowError> {
        self.open_slot(window)?;
        if rank >= self.limits.ranks {
            return Err(WindowError::Rank);
        }
        let at = self.signal_at(window.index as usize, id, rank).ok_or(WindowError::Id)?;
        Ok(self.signals[at])
    }

    /// Sets a signal to zero: what was applied before is gone, what comes later counts from zero.
    pub fn signal_reset(&mut self, window: Handle, id: u16) -> Result<(), WindowError> {
        self.open_slot(window)?;
        let first = self.signal_at(window.index as usize, id, 0).ok_or(WindowError::Id)?;
        self.signals[first..first + self.limits.ranks as usize].fill(0);
        Ok(())
    }

    /// Where a counter of a window stands.
    pub fn counter_at(&self, window: Handle, id: u16) -> Result<u32, WindowError> {
        self.open_slot(window)?;
        let ids = self.limits.counters_max;
        if u32::from(id) >= ids {
            return Err(WindowError::Id);
        }
        Ok(window.index * ids + u32::from(id))
    }

    /// A counter, and what a NIC has added to it. An error: an add of a NIC to a counter of that
    /// window was lost.
    pub fn counter(&self, at: u32) -> Result<u64, WindowError> {
        if self.slots[(at / self.limits.counters_max) as usize].is_count_lost {
            return Err(WindowError::OutcomeUnknown);
        }
        // acquire: what a NIC has counted is there
        Ok(self.counters[at as usize].load(Ordering::Acquire))
    }

    /// Sets a counter to zero.
    pub fn counter_reset(&mut self, at: u32) {
        self.counters[at as usize].store(0, Ordering::Release);
    }

    /// Where the word of a counter lies, for a NIC.
    pub fn counter_address(&self, at: u32) -> u64 {
        self.counters[at as usize].as_ptr().expose_provenance() as u64
    }

    /// Says that a NIC's add to a counter was lost.
    pub fn count_lost(&mut self, at: u32) {
        self.slots[(at / self.limits.counters_max) as usize].is_count_lost = true;
    }

    /// Lets a counter grow, if its window is still there.
    pub fn counter_add(&mut self, count: Count) {
        let slot = &self.slots[(count.at / self.limits.counters_max) as usize];
        if slot.generation.is(count.generation) {
            self.counters[count.at as usize].fetch_add(count.value, Ordering::Release);
        }
    }

    /// Takes in that a rank has come to a barrier.
    pub fn arrive(&mut self, rank: u32, record: &Record) -> Result<(), Refusal> {
        self.slot_for(record)?;
        let at = self.barrier_at(usize::from(record.window), record.id).ok_or(Refusal::Id)?;
        self.arrived[at * self.limits.ranks as usize + rank as usize] += 1;
        Ok(())
    }

    fn barrier_at(&self, window: usize, id: u16) -> Option<usize> {
        let ids = self.limits.barriers_max as usize;
        (usize::from(id) < ids).then(|| window * ids + usize::from(id))
    }

    /// Has this rank come to a barrier; whether the others are to be told. Where it waits there
    /// already, since a wait has run out of time, it does not come again.
    pub fn barrier_enter(&mut self, window: Handle, id: u16) -> Result<bool, WindowError> {
        self.open_slot(window)?;
        let at = self.barrier_at(window.index as usize, id).ok_or(WindowError::Id)?;
        let first = self.share_at(window.index as usize, 0);
        let shares = &self.shares[first..first + self.limits.ranks as usize];
        if shares.iter().any(|share| id >= share.barriers) {
            return Err(WindowError::Id);
        }
        let entered = &mut self.entered[at];
        let comes = *entered & WAITS == 0;
        if comes {
            *entered = (*entered + 1) | WAITS;
        }
        Ok(comes)
    }

    /// The first rank that has not come to a barrier so often as this one. `None`: this rank goes
    /// on.
    pub fn barrier_missing(&mut self, window: Handle, id: u16) -> Result<Option<u32>, WindowError> {
        self.open_slot(window)?;
        let at = self.barrier_at(window.index as usize, id).ok_or(WindowError::Id)?;
        let (ranks, times) = (self.limits.ranks as usize, self.entered[at] & !WAITS);
        let arrived = &self.arrived[at * ranks..(at + 1) * ranks];
        let missing = arrived.iter().position(|count| *count < times).map(|rank| rank as u32);
        if missing.is_none() {
            self.entered[at] = times;
        }
        Ok(missing)
    }
}
