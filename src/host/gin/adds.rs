//! Adds to words of windows (NCCL's "VA signals"), which the word's owner performs.
//!
//! A rank asks the owner by its [outbox]. The owner's engine takes what all ranks ask, reads the
//! words into pinned memory, lets its stream write the sums, and answers. It does one such round at
//! a time, so that no add is lost.

extern crate std;

use super::GinError;
use super::road::Pending;
use crate::connect::group::Group;
use crate::hca::ENTRY_BYTES;
use crate::hca::completion::Syndrome;
use crate::hca::outbox::{self, Block, Request, SLOTS};
use crate::host::log::event::tell;
use crate::host::log::gin::GinEvent;
use crate::memory::cuda::words::WORDS_MAX;
use crate::memory::cuda::{CudaError, Entered, Gpu, Pinned, Stream, Words};
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedMapping, ViewMapping};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec;
use std::vec::Vec;

/// Most words that a round changes: with their marker they are written by one call.
const ROUND: usize = WORDS_MAX - 1;
/// The marker stands behind the words, in a cache line of its own.
const MARKER: usize = WORDS_MAX * 8;

/// The own file of requests and answers, before the ranks have exchanged theirs.
#[derive(Debug)]
struct Outbox(SharedMapping);

impl Outbox {
    /// A file for a group of `ranks`, which they may read and not write.
    fn new(ranks: usize) -> Result<Outbox, Errno> {
        let mapping = SharedMapping::create(c"crosstie-adds", bytes(ranks))?;
        mapping.populate(0, bytes(ranks))?;
        match mapping.seal_writes() {
            // a kernel that has no such seal
            Err(Errno(libc::EINVAL)) => mapping.seal_seals()?,
            sealed => sealed?,
        }
        Ok(Outbox(mapping))
    }

    /// The descriptor that the other ranks get.
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

fn bytes(ranks: usize) -> usize {
    (outbox::words(ranks) * 8).next_multiple_of(page_bytes())
}

/// The adds that this rank asks of another one.
#[derive(Debug, Default)]
struct Asked {
    /// Requests without an answer yet, then requests that wait for a slot.
    pending: VecDeque<(Pending, Request)>,
    /// How many were asked, and how many answers were seen.
    asked: u64,
    answered: u64,
}

/// A word that a round changes.
#[derive(Copy, Clone, Debug)]
struct Sum {
    address: u64,
    value: u64,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Step {
    /// Nothing is under way.
    Idle,
    /// The words are being read.
    Reading,
    /// The sums are being written.
    Writing,
}

/// Adds that this rank asks for, and those that it performs.
#[derive(Debug)]
pub struct Adds {
    own: usize,
    /// The own file, which may be written.
    outbox: SharedMapping,
    /// The files of the other ranks.
    files: Vec<Option<ViewMapping>>,
    asked: Vec<Asked>,
    /// How many requests of each rank were taken.
    taken: Vec<u64>,
    /// Ranks whose counts made no sense, and which are not listened to any more.
    deaf: Vec<bool>,
    step: Step,
    /// How many rounds have ended.
    rounds: u64,
    sums: Vec<Sum>,
    issued: u64,
    words: Words,
    stream: Stream,
    pinned: Pinned,
    staging: SharedMapping,
}

impl Adds {
    /// Every rank of the group gives the others its outbox. A collective call.
    pub fn new(gpu: &Arc<Gpu>, group: &mut Group) -> Result<Adds, GinError> {
        let (own, ranks) = (group.rank(), group.ranks());
        let outbox = Outbox::new(ranks);
        let descriptors: Vec<_> = outbox.iter().map(Outbox::fd).collect();
        let parts = group.gather(&[], &descriptors)?;
        let missing = parts.iter().position(|part| part.descriptors.is_empty());
        let outbox = outbox?;
        if let Some(rank) = missing {
            return Err(GinError::Rank(rank));
        }
        let files = parts.into_iter().filter_map(|part| part.descriptors.into_iter().next());
        let mut mappings = Vec::new();
        for (rank, fd) in files.enumerate() {
            let view = (rank != own).then(|| ViewMapping::new(fd, bytes(ranks), bytes(ranks)));
            mappings.push(view.transpose()?);
        }
        let room = MARKER + ENTRY_BYTES;
        let staging = SharedMapping::create(c"crosstie-add-words", room)?;
        staging.populate(0, room)?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(gpu, staging.start(), room) }?;
        Ok(Adds {
            own,
            outbox: outbox.0,
            files: mappings,
            asked: (0..ranks).map(|_| Asked::default()).collect(),
            taken: vec![0; ranks],
            deaf: vec![false; ranks],
            step: Step::Idle,
            rounds: 0,
            sums: Vec::with_capacity(ROUND),
            issued: 0,
            words: Words::new(),
            stream: Stream::new(gpu)?,
            pinned,
            staging,
        })
    }

    /// The block for `to` in the file of `from`.
    fn block(&self, from: usize, to: usize) -> Block<'_> {
        let words = outbox::words(self.files.len());
        let own = self.outbox.start().cast_const();
        let start = self.files[from].as_ref().map_or(own, ViewMapping::start);
        // SAFETY: as long as the file (`bytes`), aligned, only touched as atomics, and mapped as
        // long as `self`.
        let file = unsafe { core::slice::from_raw_parts(start.cast(), words) };
        Block::of(file, to)
    }

    /// Asks `owner` for an add, whose operation is `pending`.
    pub fn ask(&mut self, owner: usize, pending: Pending, request: Request) {
        self.asked[owner].pending.push_back((pending, request));
        self.send(owner);
    }

    fn send(&mut self, owner: usize) {
        let block = self.block(self.own, owner);
        let Asked { pending, asked, answered } = &self.asked[owner];
        let mut number = *asked;
        while number - answered < SLOTS {
            let Some((_, request)) = pending.get((number - answered) as usize) else { break };
            block.ask(number, request);
            number += 1;
        }
        self.asked[owner].asked = number;
    }

    /// The next add of this rank that has ended.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        for owner in 0..self.asked.len() {
            let asked = &self.asked[owner];
            if asked.asked == asked.answered {
                continue;
            }
            let block = self.block(owner, self.own);
            if block.answered() <= asked.answered {
                continue;
            }
            let outcome = block.outcome(asked.answered);
            let asked = &mut self.asked[owner];
            asked.answered += 1;
            let ended = asked.pending.pop_front();
            self.send(owner);
            return ended.map(|(pending, _)| (pending, outcome));
        }
        None
    }

    /// Takes back what was asked of `owner`, which has ended.
    pub fn lose(&mut self, owner: usize) -> impl Iterator<Item = Pending> {
        self.deaf[owner] = true;
        let asked = &mut self.asked[owner];
        asked.answered = asked.asked;
        core::mem::take(&mut asked.pending).into_iter().map(|(pending, _)| pending)
    }

    /// The number of the round that is under way, or comes next.
    pub fn due(&self) -> u64 {
        self.rounds
    }

    /// Whether the round `due` changes no word any more.
    pub fn has_reached(&self, due: u64) -> bool {
        self.rounds > due || self.step == Step::Idle
    }

    /// Goes on with a round, or begins one; `find` says where the word of a request lies. Whether
    /// anything was done.
    pub fn serve(
        &mut self,
        entered: &Entered<'_>,
        find: impl Fn(&Request) -> Result<u64, Syndrome>,
    ) -> bool {
        match self.step {
            Step::Idle => self.begin(entered, find),
            Step::Reading | Step::Writing if !self.has_come() => false,
            Step::Reading => {
                let written = self.write(entered);
                self.go_on(Step::Writing, written);
                true
            }
            Step::Writing => {
                self.finish();
                true
            }
        }
    }

    /// Takes requests of all ranks, and asks the stream for their words.
    fn begin(
        &mut self,
        entered: &Entered<'_>,
        find: impl Fn(&Request) -> Result<u64, Syndrome>,
    ) -> bool {
        let mut any = false;
        for rank in 0..self.files.len() {
            any |= self.take(rank, &find);
        }
        if !any {
            return false;
        }
        if self.sums.is_empty() {
            self.finish(); // every one was refused
            return true;
        }
        let read = self.read(entered);
        self.go_on(Step::Reading, read);
        true
    }

    fn take(&mut self, rank: usize, find: &impl Fn(&Request) -> Result<u64, Syndrome>) -> bool {
        let asked = self.block(rank, self.own).asked();
        let first = self.taken[rank];
        if self.deaf[rank] || asked == first {
            return false;
        }
        if asked < first || asked - first > SLOTS {
            self.deaf[rank] = true;
            tell(&GinEvent::Adds { rank });
            return false;
        }
        while self.taken[rank] < asked && self.sums.len() < ROUND {
            let number = self.taken[rank];
            let request = self.block(rank, self.own).request(number);
            let found = find(&request);
            self.block(self.own, rank).note(number, found.map(|_| ()));
            if let Ok(address) = found {
                self.count(address, request.value);
            }
            self.taken[rank] += 1;
        }
        self.taken[rank] > first
    }

    fn count(&mut self, address: u64, value: u64) {
        match self.sums.iter_mut().find(|sum| sum.address == address) {
            Some(sum) => sum.value = sum.value.wrapping_add(value),
            None => self.sums.push(Sum { address, value }),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping (`new`), aligned, and only touched as an atomic.
        unsafe { &*self.staging.start().add(at).cast::<AtomicU64>() }
    }

    fn has_come(&self) -> bool {
        // pairs with the stream's write, which is fenced behind its copies
        self.word(MARKER).load(Ordering::Acquire) >= self.issued
    }

    fn read(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        for (at, sum) in self.sums.iter().enumerate() {
            let to = self.staging.start().wrapping_add(at * 8);
            // SAFETY: a word of the staging, and one of a region in bounds (`find`), which stays
            // until this rank's rounds have ended (`Comm::deregister`).
            unsafe { self.stream.copy_out(entered, to, sum.address, 8) }?;
        }
        self.mark(entered)
    }

    fn write(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        for (at, sum) in self.sums.iter().enumerate() {
            let value = self.word(at * 8).load(Ordering::Relaxed).wrapping_add(sum.value);
            let taken = self.words.take(sum.address, &value.to_le_bytes());
            debug_assert!(taken, "an aligned word (`find`), and there is room for a round");
        }
        self.mark(entered)
    }

    fn mark(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        self.issued += 1;
        let at = self.pinned.device() + MARKER as u64;
        let taken = self.words.take(at, &self.issued.to_le_bytes());
        debug_assert!(taken, "there is room for a round and its marker");
        // SAFETY: a word of the pinned mapping, which stands as long as the stream; sums go where
        // `read` found the words.
        unsafe { self.words.post(entered, &self.stream) }
    }

    /// The next step, or the end of a round of which a call was refused.
    fn go_on(&mut self, step: Step, outcome: Result<(), CudaError>) {
        self.step = step;
        let Err(error) = outcome else { return };
        tell(&GinEvent::AddRefused(error));
        // which words were reached is not known: all that the round took has failed
        for rank in 0..self.files.len() {
            let block = self.block(self.own, rank);
            for number in block.answered()..self.taken[rank] {
                block.note(number, Err(Syndrome::RemoteOperation));
            }
        }
        self.finish();
    }

    /// Answers what the round took.
    fn finish(&mut self) {
        for rank in 0..self.files.len() {
            self.block(self.own, rank).publish(self.taken[rank]);
        }
        self.sums.clear();
        self.step = Step::Idle;
        self.rounds += 1;
    }
}
