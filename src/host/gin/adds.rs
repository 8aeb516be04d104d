//! Adds to words of windows (NCCL's "VA signals"), which the word's owner performs.
//!
//! A rank asks the owner by its [outbox]. The owner's engine takes what all ranks ask, adds
//! them up by rounds of its [`Adder`], and answers.

use super::GinError;
use super::road::Pending;
use crate::base::sync::{AtomicU64, Ordering};
use crate::connect::group::Group;
use crate::hca::completion::Syndrome;
use crate::hca::outbox::{self, Block, Request, SLOTS};
use crate::host::log::event::tell;
use crate::host::log::gin::GinEvent;
use crate::memory::cuda::adder::Round;
use crate::memory::cuda::{Adder, CudaError, Entered, Gpu};
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedMapping, ViewMapping};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

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

/// Adds that this rank asks for, and those that it performs.
#[derive(Debug)]
pub struct Adds {
    own: usize,
    /// The own file, which may be written.
    outbox: SharedMapping,
    /// The files of the other ranks of this host.
    files: Vec<Option<ViewMapping>>,
    asked: Vec<Asked>,
    /// How many requests of each rank were taken.
    taken: Vec<u64>,
    /// Ranks that are not listened to: those of other hosts, those that have ended, and those whose
    /// counts made no sense.
    deaf: Vec<bool>,
    /// How many rounds have ended.
    rounds: u64,
    adder: Adder,
}

impl Adds {
    /// Every rank of the group gives the others its outbox. A collective call.
    pub fn new(gpu: &Arc<Gpu>, group: &mut Group) -> Result<Adds, GinError> {
        let (own, ranks) = (group.rank(), group.ranks());
        let outbox = Outbox::new(ranks);
        let descriptors: Vec<_> = outbox.iter().map(Outbox::fd).collect();
        let parts = group.gather(&[], &descriptors)?;
        let is_near = |rank: &usize| group.members().contains(rank);
        let is_missing = |rank: &usize| is_near(rank) && parts[*rank].descriptors.is_empty();
        let missing = (0..ranks).find(is_missing);
        let outbox = outbox?;
        if let Some(rank) = missing {
            return Err(GinError::Rank(rank));
        }
        let mut mappings = Vec::new();
        for (rank, part) in parts.into_iter().enumerate() {
            // ranks of other hosts give none
            let fd = part.descriptors.into_iter().next().filter(|_| rank != own);
            let view = fd.map(|fd| ViewMapping::new(fd, bytes(ranks), bytes(ranks)));
            mappings.push(view.transpose()?);
        }
        Ok(Adds {
            own,
            outbox: outbox.0,
            files: mappings,
            asked: (0..ranks).map(|_| Asked::default()).collect(),
            taken: vec![0; ranks],
            deaf: (0..ranks).map(|rank| !is_near(&rank)).collect(),
            rounds: 0,
            adder: Adder::new(gpu)?,
        })
    }

    /// The file of a rank of this host; of another rank, the own one.
    fn file(&self, of: usize) -> &[AtomicU64] {
        let words = outbox::words(self.files.len());
        let own = self.outbox.start().cast_const();
        let start = self.files[of].as_ref().map_or(own, ViewMapping::start);
        // SAFETY: as long as the file (`bytes`), aligned, only touched as atomics, and mapped as
        // long as `self`.
        unsafe { core::slice::from_raw_parts(start.cast(), words) }
    }

    /// The block for `to` in the file of `from`.
    fn block(&self, from: usize, to: usize) -> Block<'_> {
        Block::of(self.file(from), to)
    }

    /// Tells the ranks of this host that this one has failed.
    pub fn tell_failure(&self) {
        outbox::failed(self.file(self.own)).store(1, Ordering::Relaxed); // nothing is ordered by it
    }

    /// Another rank of this host that has told so.
    pub fn told_failure(&self) -> Option<usize> {
        let told = |rank: &usize| outbox::failed(self.file(*rank)).load(Ordering::Relaxed) != 0;
        (0..self.files.len()).filter(|rank| self.files[*rank].is_some()).find(told)
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
        self.rounds > due || self.adder.is_idle()
    }

    /// Goes on with a round, or begins one; `find` says where the word of a request lies. Whether
    /// anything was done.
    pub fn serve(
        &mut self,
        entered: &Entered<'_>,
        find: impl Fn(&Request) -> Result<u64, Syndrome>,
    ) -> bool {
        if self.adder.is_idle() {
            let any = (0..self.files.len()).fold(false, |any, rank| any | self.take(rank, &find));
            if !any {
                return false;
            }
            if !self.adder.has_words() {
                self.finish(); // every one was refused
                return true;
            }
        }
        // SAFETY: words of regions in bounds (`find`), which stay until this rank's rounds have
        // ended (`Comm::deregister`).
        match unsafe { self.adder.go_on(entered) } {
            Round::Idle | Round::Waits => return false,
            Round::Moved => {}
            Round::Ended(outcome) => {
                outcome.unwrap_or_else(|error| self.refuse(error));
                self.finish();
            }
        }
        true
    }

    fn take(&mut self, rank: usize, find: &impl Fn(&Request) -> Result<u64, Syndrome>) -> bool {
        if self.deaf[rank] {
            return false;
        }
        let asked = self.block(rank, self.own).asked();
        let first = self.taken[rank];
        if asked == first {
            return false;
        }
        if asked < first || asked - first > SLOTS {
            self.deaf[rank] = true;
            tell(&GinEvent::Adds { rank });
            return false;
        }
        while self.taken[rank] < asked {
            let number = self.taken[rank];
            let request = self.block(rank, self.own).request(number);
            let found = find(&request);
            if found.is_ok_and(|address| !self.adder.take(address, request.value)) {
                break; // the next round takes it
            }
            self.block(self.own, rank).note(number, found.map(|_| ()));
            self.taken[rank] += 1;
        }
        self.taken[rank] > first
    }

    /// A call was refused. Which words were reached is not known: all that the round took has
    /// failed.
    fn refuse(&self, error: CudaError) {
        tell(&GinEvent::AddRefused(error));
        for rank in 0..self.files.len() {
            let block = self.block(self.own, rank);
            for number in block.answered()..self.taken[rank] {
                block.note(number, Err(Syndrome::RemoteOperation));
            }
        }
    }

    /// Answers what the round took.
    fn finish(&mut self) {
        for rank in 0..self.files.len() {
            self.block(self.own, rank).publish(self.taken[rank]);
        }
        self.rounds += 1;
    }
}
