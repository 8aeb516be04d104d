//! A word at each rank for each other one, which a rank raises when it has failed, or an operation
//! of its, in a way that its peers cannot see: their connections with it stand.

use super::Group;
use super::jobs::{Before, Jobs, Until, Work};
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span as Time};
use crate::fabric::MemoryKind;
use crate::host::Endpoint;
use crate::host::error::RegisterError;
use crate::memory::probe::clock_ns;
use crate::memory::{Errno, Reserve};
use crate::window::group::Flushed;
use crate::window::{After, WindowError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;

const WORD: u64 = size_of::<u64>() as u64;

/// Why ranks have no board.
#[derive(Copy, Clone, Debug)]
pub enum BoardError {
    /// Its memory cannot be registered.
    Register(RegisterError),
    /// It is no window.
    Window(WindowError),
    /// That rank did not come in time.
    Missing(u32),
}

/// What a rank tells.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum News {
    /// It has failed.
    Failed,
    /// An operation of its was refused; it goes on.
    Refused,
}

impl News {
    const COUNT: usize = 2;

    /// What a word grows by: each has a half of it.
    const fn value(self) -> u64 {
        match self {
            News::Failed => 1,
            News::Refused => 1 << 32,
        }
    }

    const fn is_in(self, word: u64) -> bool {
        match self {
            News::Failed => word as u32 != 0,
            News::Refused => word >> 32 != 0,
        }
    }
}

/// The board of one rank. It is dropped after its endpoint has closed.
#[derive(Debug)]
pub struct Board {
    rank: u32,
    ranks: u32,
    /// A word that counts, then one for each rank.
    memory: Reserve,
    /// Its region, and its window.
    region: Option<Handle>,
    window: Option<Handle>,
    jobs: Jobs,
}

impl Board {
    /// Memory for a board of `ranks`, of which `rank` is this one.
    ///
    /// *Errors*: as the kernel refuses memory.
    pub fn new(rank: u32, ranks: u32) -> Result<Board, Errno> {
        let memory = Reserve::create(((u64::from(ranks) + 1) * WORD) as usize)?;
        let jobs = Jobs::new(ranks as usize, 2 * News::COUNT * ranks as usize);
        Ok(Board { rank, ranks, memory, region: None, window: None, jobs })
    }

    /// Shows it to the other ranks: a call that all of them make, in a group that has no window
    /// yet. After an error the endpoint is closed before the board is dropped.
    ///
    /// *Cost*: blocks until all have come, or the time is over.
    pub fn open(
        &mut self,
        group: &mut Group,
        endpoint: &mut Endpoint,
        timeout: Time,
    ) -> Result<(), BoardError> {
        let deadline_ns = clock_ns().saturating_add(timeout.0);
        let (address, length) = self.place();
        // SAFETY: the own memory, which stands until the endpoint has closed (`Board`).
        let region = unsafe { endpoint.shared.register(address, Bytes(length), MemoryKind::Host) };
        let region = region.map_err(BoardError::Register)?;
        self.region = Some(region);
        // SAFETY: as above; ranks add to it, and it is only touched as atomics.
        let window = unsafe { group.register(endpoint, (region, address, length), false) };
        let window = window.map_err(BoardError::Window)?;
        group.inner().exchange_begin(window).map_err(BoardError::Window)?;
        loop {
            let inner = group.inner();
            match inner.exchange_look(window).map_err(BoardError::Window)? {
                // the others wait for what this rank tells
                Flushed::Done if !inner.is_unsent() || clock_ns() > deadline_ns => break,
                Flushed::Waiting(rank) if clock_ns() > deadline_ns => {
                    return Err(BoardError::Missing(rank));
                }
                Flushed::Done | Flushed::Waiting(_) => {}
            }
            group.progress(endpoint);
            yield_now();
        }
        self.window = Some(window);
        Ok(())
    }

    /// Its region and first byte, for windows of no bytes; `None`: it is not open.
    pub fn nothing(&self) -> Option<(Handle, u64)> {
        Some((self.region?, self.place().0))
    }

    fn place(&self) -> (u64, u64) {
        let length = (u64::from(self.ranks) + 1) * WORD;
        (self.memory.start().expose_provenance() as u64, length)
    }

    fn word(&self, at: u32) -> &AtomicU64 {
        debug_assert!(at <= self.ranks);
        // SAFETY: inside the memory (`Board::new`), aligned, zeroed, and touched as atomics alone.
        unsafe { &*self.memory.start().cast::<AtomicU64>().add(at as usize) }
    }

    /// Tells all ranks, this one too, of this one. Once, however often it is called.
    pub fn tell(&mut self, news: News) {
        let (Some(window), value) = (self.window, news.value()) else { return };
        if news.is_in(self.word(1 + self.rank).load(Ordering::Relaxed)) {
            return; // this rank alone writes there
        }
        for at in [1 + self.rank, 0] {
            self.word(at).fetch_add(value, Ordering::Relaxed); // nothing is ordered by it
            for rank in (0..self.ranks).filter(|rank| *rank != self.rank) {
                let offset = u64::from(at) * WORD;
                let add = Work::Add { window, offset, value, after: Before::Known(After::Nothing) };
                // there are as many places as adds
                let _ = self.jobs.push(rank, add, Until::Applied);
            }
        }
    }

    /// A rank that has told this.
    #[inline]
    pub fn told(&self, news: News) -> Option<u32> {
        let is_told = |at: u32| news.is_in(self.word(at).load(Ordering::Relaxed));
        // its own word may come later
        is_told(0).then(|| (0..self.ranks).find(|rank| is_told(1 + rank)))?
    }

    /// Issues what is to be told; whether anything moved.
    #[inline]
    pub fn step(&mut self, group: &mut Group, endpoint: &mut Endpoint) -> bool {
        !self.jobs.is_idle() && self.jobs.step(group.inner(), endpoint)
    }
}
