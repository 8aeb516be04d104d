//! The queues of one owner, and the order between their entries.
//!
//! The caller asks for the next step of each queue, moves the bytes, and says what became of them:
//!
//! ```text
//! step(queue) -> Operation -> the caller's copy or add -> complete(queue, index, outcome)
//! ```
//!
//! *Order*, which the GPU relies on:
//!
//! | what | rule |
//! |---|---|
//! | entries of one queue | taken in order; their completions are published in order |
//! | writes of one queue | in flight together; the caller keeps their order at the target |
//! | an atomic | starts when all that was taken before it on its queue has ended |
//! | one of a signal, if the peer [keeps the order](Lane::keeps_order) | starts beside writes |
//! | a read | starts when all writes and atomics before it have ended |
//! | a fenced entry, a dump | starts when all before it have ended |
//! | a wait | holds its own queue until the other queue has completed that index |
//!
//! An entry that makes no sense, a key that names nothing, or bytes outside a region fail their
//! queue alone. Others go on.

use super::completion::Syndrome;
use super::entry::{Address, Entry, INLINE_MAX, Malformed, Segment, Work};
use super::keys::{Keys, Kind, Place};
use super::queue::{Class, Next, Queue};

/// A stretch of this rank's memory that was found in bounds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Local {
    /// Where it begins.
    pub at: Place,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What the caller does.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Action {
    /// Copies local bytes to the peer, one stretch behind the other.
    Write {
        /// Where they go.
        to: Place,
        /// Where they are.
        from: [Option<Local>; 2],
    },
    /// Writes bytes to the peer.
    WriteInline {
        /// Where they go.
        to: Place,
        /// The bytes.
        data: [u8; INLINE_MAX],
        /// How many they are.
        bytes: u8,
    },
    /// Copies bytes of the peer to local memory, one stretch behind the other.
    Read {
        /// Where they are.
        from: Place,
        /// Where they go.
        to: [Option<Local>; 2],
    },
    /// Adds to a word.
    Add {
        /// The word.
        word: Place,
        /// What is added.
        value: u64,
        /// Where the old value goes.
        old: Place,
    },
}

/// One operation.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Operation {
    /// Which queue it is of, as a place in the executor's table.
    pub queue: usize,
    /// Which entry it is.
    pub index: u64,
    /// What the caller does.
    pub action: Action,
}

/// What became of a look at a queue.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Step {
    /// Nothing is announced.
    Idle,
    /// The next entry waits: for its own bytes, for others of its queue, or for another queue.
    Blocked,
    /// An entry ended without an operation; there may be more.
    Ended,
    /// The caller's turn.
    Operation(Operation),
    /// The queue has failed; what is announced on it is flushed.
    Failed,
}

/// A queue and the rank that its entries address.
#[derive(Debug)]
pub struct Lane<'m> {
    /// The queue.
    pub queue: Queue<'m>,
    /// The peer's rank; of a companion queue the own one.
    pub rank: usize,
    /// Writes and adds to signals take effect at the peer in the order in which they began. Of an
    /// add behind a write or add that fails nothing takes effect.
    pub keeps_order: bool,
}

/// All queues of one rank. *Shape*: their numbers follow each other in the order of the table.
#[derive(Debug)]
pub struct Executor<'m, 'q> {
    lanes: &'q mut [Lane<'m>],
    own_rank: usize,
}

impl<'m, 'q> Executor<'m, 'q> {
    /// Takes `lanes`, whose queues are numbered one after the other.
    ///
    /// *Panics*: when they are not.
    pub fn new(lanes: &'q mut [Lane<'m>], own_rank: usize) -> Executor<'m, 'q> {
        for pair in lanes.windows(2) {
            assert_eq!(pair[0].queue.number() + 1, pair[1].queue.number());
        }
        Executor { lanes, own_rank }
    }

    /// The queues.
    pub fn lanes(&self) -> &[Lane<'m>] {
        self.lanes
    }

    /// The next step of the queue `at`, at the time `now_ns`.
    ///
    /// *Cost*: one load when nothing is announced, else one entry.
    pub fn step(&mut self, at: usize, keys: &Keys<'_>, now_ns: u64) -> Step {
        let queue = &mut self.lanes[at].queue;
        if queue.failure().is_some() {
            queue.flush();
            return Step::Failed;
        }
        let entry = match queue.next(now_ns) {
            Next::Idle => return Step::Idle,
            Next::Unsettled => return Step::Blocked,
            Next::Malformed(why) => return self.fail_next(at, syndrome_of(why)),
            Next::Entry(entry) => entry,
        };
        match self.begin(at, &entry, keys) {
            Ok(step) => step,
            Err(syndrome) => self.fail_next(at, syndrome),
        }
    }

    /// Says what became of an operation.
    pub fn complete(&mut self, operation: &Operation, outcome: Result<(), Syndrome>) {
        self.lanes[operation.queue].queue.complete(operation.index, outcome);
    }

    /// Fails every queue to `rank` with `syndrome`, from its first entry without a completion on.
    pub fn fail_rank(&mut self, rank: usize, syndrome: Syndrome) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.rank == rank) {
            let first = lane.queue.counts().completed;
            lane.queue.fail(first, syndrome);
            lane.queue.flush();
        }
    }

    /// Whether no queue has anything in flight.
    pub fn is_quiet(&self) -> bool {
        self.lanes.iter().all(|lane| lane.queue.is_quiet())
    }

    fn fail_next(&mut self, at: usize, syndrome: Syndrome) -> Step {
        let queue = &mut self.lanes[at].queue;
        let index = queue.counts().taken;
        queue.fail(index, syndrome);
        queue.flush();
        Step::Failed
    }

    fn begin(&mut self, at: usize, entry: &Entry, keys: &Keys<'_>) -> Result<Step, Syndrome> {
        if entry.fenced && !self.lanes[at].queue.is_quiet() {
            return Ok(Step::Blocked);
        }
        let rank = self.lanes[at].rank;
        let (class, action) = match entry.work {
            Work::Nop => return Ok(self.pass(at)),
            Work::Wait { queue, index } => return self.wait(at, queue, index),
            Work::Dump { local } => return self.dump(at, local, keys),
            Work::Write { remote, local } => {
                (Class::Write, self.write(remote, &local, rank, keys)?)
            }
            Work::WriteInline { remote, data, bytes } => {
                let to = keys.place(remote, u64::from(bytes), rank, Syndrome::RemoteAccess)?;
                (Class::Write, Action::WriteInline { to, data, bytes })
            }
            Work::Read { remote, local } => {
                let bytes = length(&local);
                let from = keys.place(remote, bytes, rank, Syndrome::RemoteAccess)?;
                (Class::Read, Action::Read { from, to: self.locals(&local, keys)? })
            }
            Work::FetchAdd { remote, add, local } => self.add(remote, add, local, at, keys)?,
        };
        let queue = &mut self.lanes[at].queue;
        if !queue.may_start(class) {
            return Ok(Step::Blocked);
        }
        let index = queue.take(Some(class));
        Ok(Step::Operation(Operation { queue: at, index, action }))
    }

    fn pass(&mut self, at: usize) -> Step {
        self.lanes[at].queue.take(None);
        Step::Ended
    }

    /// The queue waited for counts modulo 2^32. One that failed before the index never completes
    /// it in truth, so what waits for it is flushed.
    fn wait(&mut self, at: usize, number: u32, index: u32) -> Result<Step, Syndrome> {
        let first = self.lanes[0].queue.number();
        let other = number.checked_sub(first).and_then(|at| self.lanes.get(at as usize));
        let other = &other.ok_or(Syndrome::LocalOperation)?.queue;
        let ahead = |count: u64| (count as u32).wrapping_sub(index) as i32;
        if other.failure().is_some_and(|failure| ahead(failure.index) <= 0) {
            return Err(Syndrome::Flushed);
        }
        Ok(if ahead(other.counts().completed) > 0 { self.pass(at) } else { Step::Blocked })
    }

    fn dump(&mut self, at: usize, local: Segment, keys: &Keys<'_>) -> Result<Step, Syndrome> {
        self.local(&local, keys)?;
        match self.lanes[at].queue.is_quiet() {
            true => Ok(self.pass(at)),
            false => Ok(Step::Blocked),
        }
    }

    fn write(
        &self,
        remote: Address,
        local: &[Segment; 2],
        rank: usize,
        keys: &Keys<'_>,
    ) -> Result<Action, Syndrome> {
        let to = keys.place(remote, length(local), rank, Syndrome::RemoteAccess)?;
        Ok(Action::Write { to, from: self.locals(local, keys)? })
    }

    /// A word of eight bytes at a multiple of eight, and eight bytes for its old value.
    fn add(
        &self,
        remote: Address,
        value: u64,
        local: Segment,
        at: usize,
        keys: &Keys<'_>,
    ) -> Result<(Class, Action), Syndrome> {
        if !remote.offset.is_multiple_of(8) {
            return Err(Syndrome::RemoteAccess);
        }
        let Lane { rank, keeps_order, .. } = self.lanes[at];
        let word = keys.place(remote, 8, rank, Syndrome::RemoteAccess)?;
        let old = keys.place(local.at, 8, self.own_rank, Syndrome::LocalProtection)?;
        // words of windows may be a GPU's, where a later write does not wait for them
        let is_ordered = keeps_order && word.kind == Kind::Signals;
        let class = if is_ordered { Class::Ordered } else { Class::Atomic };
        Ok((class, Action::Add { word, value, old }))
    }

    fn locals(
        &self,
        segments: &[Segment; 2],
        keys: &Keys<'_>,
    ) -> Result<[Option<Local>; 2], Syndrome> {
        let first = self.local(&segments[0], keys)?;
        let second = match segments[1].bytes {
            0 => None,
            _ => Some(self.local(&segments[1], keys)?),
        };
        Ok([Some(first), second])
    }

    fn local(&self, segment: &Segment, keys: &Keys<'_>) -> Result<Local, Syndrome> {
        let at = keys.place(segment.at, segment.bytes, self.own_rank, Syndrome::LocalProtection)?;
        Ok(Local { at, bytes: segment.bytes })
    }
}

/// Each segment is under 2^32 bytes long.
fn length(local: &[Segment; 2]) -> u64 {
    local[0].bytes + local[1].bytes
}

fn syndrome_of(why: Malformed) -> Syndrome {
    match why {
        Malformed::Opcode | Malformed::Segments => Syndrome::LocalOperation,
        Malformed::Length => Syndrome::LocalLength,
    }
}

#[cfg(test)]
mod tests;
