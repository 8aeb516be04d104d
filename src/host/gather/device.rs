//! An AllGather on a stream of the program's: copies to mates, and words.

use super::error::GatherError;
use super::team::Team;
use crate::collective::program::{BEGUN, has_state};
use crate::collective::{Op, Plan, Word, program};
use crate::memory::cuda::{Batch, CudaError, Entered, Stream, Words};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::vec::Vec;

/// A word that says that a run is under way, once that was looked at.
const SEEN: u64 = 3;

/// What a request in memory of a GPU has.
#[derive(Debug)]
pub struct Device {
    /// The words.
    pub team: Arc<Team>,
    /// The program's stream.
    pub stream: u64,
    /// By rank: where this rank reaches the first chunk at each mate; 0: it is none.
    pub peers: Vec<u64>,
    /// What keeps their memory mapped.
    pub holds: Vec<u32>,
    /// When the run that is under way was first seen.
    seen_ns: u64,
    /// Room for what leaves for the driver together.
    words: Words,
    batch: Batch,
}

/// One call.
#[derive(Copy, Clone, Debug)]
pub struct Call {
    /// What this rank gives.
    pub send: u64,
    /// Where its first chunk lies.
    pub receive: u64,
    /// The length of a chunk.
    pub bytes: u64,
}

impl Device {
    /// One whose memory of peers is not held yet.
    pub fn new(team: Arc<Team>, stream: u64, peers: Vec<u64>) -> Device {
        let (words, batch) = (Words::new(), Batch::new());
        Device { team, stream, peers, holds: Vec::new(), seen_ns: 0, words, batch }
    }

    /// Whether the stream is captured.
    ///
    /// *Errors*: the driver's; nothing was put on the stream.
    pub fn is_recorded(&self) -> Result<bool, GatherError> {
        let entered = self.team.gpu().enter()?;
        Ok(self.stream().is_capturing(&entered)?)
    }

    fn stream(&self) -> Stream {
        // SAFETY: a stream of the caller's, which stays during the call.
        unsafe { Stream::of_user(self.team.gpu(), self.stream as usize as *mut _) }
    }

    /// Puts an AllGather on the stream, or records it where the stream is captured.
    ///
    /// *Errors*: the driver's. A part may be on the stream: [`Device::let_go`] ends its waits.
    pub fn post(
        &mut self,
        slot: usize,
        plan: Plan<'_>,
        call: Call,
        is_recorded: bool,
    ) -> Result<(), GatherError> {
        let (entered, stream) = (self.team.gpu().enter()?, self.stream());
        let (words, batch) = (&mut self.words, &mut self.batch);
        let mut post = Post { entered, stream: &stream, is_recorded, words, batch, refused: None };
        let own = call.receive + u64::from(plan.rank()) * call.bytes;
        for op in program(plan, call.bytes, call.send == own) {
            let word = |word| self.team.device(slot, plan.rank(), word);
            match op {
                Op::Write(name, value) => post.write(word(name), value)?,
                Op::Await(name) => post.wait(word(name))?,
                Op::CopyOwn => post.copy(own, call.send, call.bytes)?,
                Op::Copy { chunk, to } => {
                    let offset = u64::from(chunk) * call.bytes;
                    let is_own = chunk == plan.rank();
                    let from = if is_own { call.send } else { call.receive + offset };
                    post.copy(self.peers[to as usize] + offset, from, call.bytes)?;
                }
            }
        }
        post.words()?;
        post.copies()?;
        Ok(())
    }

    /// Lets the stream go on that waits, or will wait, in a request that has failed.
    pub fn let_go(&self, slot: usize, plan: Plan<'_>) {
        let mates = plan.mates();
        let own = plan.rank();
        let mates =
            mates.flat_map(|by| [Word::Ready { owner: own, by }, Word::Done { owner: own, by }]);
        let last = if plan.has_strangers() { plan.landings() + 1 } else { 0 };
        for word in mates.chain((1..=last).map(Word::Landed)) {
            self.team.word(slot, own, word).store(1, Ordering::Release);
        }
    }

    /// Tells mates that this rank has given the request up.
    pub fn give_up(&self, slot: usize, plan: Plan<'_>) {
        let own = plan.rank();
        self.team.word(slot, own, Word::Failed { owner: own }).store(1, Ordering::Release);
    }

    /// A mate that has given the request up: this rank may hold bytes of another run of it.
    pub fn given_up(&self, slot: usize, plan: Plan<'_>) -> Option<u32> {
        let own = plan.rank();
        let word = |mate| self.team.word(slot, own, Word::Failed { owner: mate });
        plan.mates().find(|mate| word(*mate).load(Ordering::Acquire) != 0)
    }

    /// Whether one run is under way for longer than `patience_ns`.
    pub fn is_late(&mut self, slot: usize, plan: Plan<'_>, now_ns: u64, patience_ns: u64) -> bool {
        let (mut is_new, mut is_known) = (false, false);
        for (word, running) in self.running(slot, plan) {
            // a stream that ends the run, or begins another, writes over it
            let seen = word.compare_exchange(running, SEEN, Ordering::Relaxed, Ordering::Relaxed);
            is_new |= seen.is_ok();
            is_known |= seen == Err(SEEN);
        }
        if is_new {
            self.seen_ns = now_ns;
        }
        is_known && now_ns.saturating_sub(self.seen_ns) > patience_ns
    }

    /// Whether the stream is in a run.
    pub fn is_under_way(&self, slot: usize, plan: Plan<'_>) -> bool {
        let mut all = self.running(slot, plan);
        all.any(|(word, running)| [running, SEEN].contains(&word.load(Ordering::Relaxed)))
    }

    /// The words of which one at least has the value beside it while a run is under way.
    fn running(&self, slot: usize, plan: Plan<'_>) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let own = plan.rank();
        let state = has_state(plan).then_some((Word::State, BEGUN));
        let by_mates = (!has_state(plan)).then(|| plan.mates());
        let mates = by_mates.into_iter().flatten();
        let all = state.into_iter().chain(mates.map(move |by| (Word::Done { owner: own, by }, 0)));
        all.map(move |(word, value)| (self.team.word(slot, own, word), value))
    }

    /// The length of a chunk where the stream wants the service to begin.
    pub fn go(&self, slot: usize, rank: u32) -> Option<u64> {
        let word = self.team.word(slot, rank, Word::Go);
        // acquire: the stream has written what is put behind nothing but this word
        let is_set = word.load(Ordering::Acquire) != 0;
        is_set.then(|| word.swap(0, Ordering::AcqRel))
    }

    /// Tells the stream of a landing.
    pub fn landed(&self, slot: usize, rank: u32, landing: u32) {
        let word = self.team.word(slot, rank, Word::Landed(landing));
        word.store(1, Ordering::Release);
    }
}

/// Steps that leave for the driver together.
struct Post<'a> {
    entered: Entered<'a>,
    stream: &'a Stream,
    is_recorded: bool,
    words: &'a mut Words,
    batch: &'a mut Batch,
    refused: Option<CudaError>,
}

impl Post<'_> {
    fn write(&mut self, to: u64, value: u64) -> Result<(), CudaError> {
        self.copies()?;
        if !self.words.take(to, &value.to_le_bytes()) {
            self.words()?;
            self.words.take(to, &value.to_le_bytes());
        }
        Ok(())
    }

    fn wait(&mut self, at: u64) -> Result<(), CudaError> {
        self.copies()?;
        if !self.words.take_wait(at, 1) {
            self.words()?;
            self.words.take_wait(at, 1);
        }
        Ok(())
    }

    fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        self.words()?;
        if self.is_recorded {
            // SAFETY: the caller's memory and windows, which stay while the AllGather is used.
            return unsafe { self.stream.copy(&self.entered, to, from, bytes as usize) };
        }
        if !self.batch.take(to, from, bytes as usize) {
            self.copies()?;
            self.batch.take(to, from, bytes as usize);
        }
        Ok(())
    }

    fn words(&mut self) -> Result<(), CudaError> {
        // SAFETY: words of the team, which stay mapped until the group is closed.
        unsafe { self.words.post(&self.entered, self.stream) }
    }

    fn copies(&mut self) -> Result<(), CudaError> {
        let refused = &mut self.refused;
        // SAFETY: as for one copy.
        unsafe {
            self.batch.post(&self.entered, self.stream, |_, error| *refused = Some(error));
        }
        self.refused.take().map_or(Ok(()), Err)
    }
}
