//! Why the oldest entry of a queue that has no completion has none, for reports.
//!
//! Completions are published in order, so there is one such entry for each queue, and everything
//! behind it waits for it.

use super::completion::Syndrome;
use super::entry::Work;
use super::executor::Executor;
use super::queue::Class;
use core::fmt;

/// Why an entry has no completion yet.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Why {
    /// Its operation has begun and has not ended.
    UnderWay(Class),
    /// The doorbell announced it, and its words have not come whole.
    NotWritten,
    /// It is a wait, and the other queue has not completed what it waits for.
    Waits {
        /// The other queue.
        queue: u32,
        /// The entry waited for, modulo 2^32.
        index: u32,
        /// How many entries the other queue has completed.
        completed: u64,
    },
    /// Nothing holds it: the thread has not come to it.
    NotTaken,
    /// Its queue has failed, and an earlier operation has not ended.
    Failed(Syndrome),
}

/// The oldest entry without a completion.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Stuck {
    /// Its index.
    pub index: u64,
    /// Why.
    pub why: Why,
}

impl Executor<'_, '_> {
    /// The oldest entry of the queue `at` that was announced and has no completion; `None`: there
    /// is none. Changes nothing.
    pub fn stuck(&self, at: usize) -> Option<Stuck> {
        let queue = &self.lanes()[at].queue;
        let (counts, index) = (queue.counts(), queue.counts().completed);
        if counts.produced <= index {
            return None;
        }
        let why = match queue.failure() {
            Some(failure) => Why::Failed(failure.syndrome),
            None if counts.taken > index => Why::UnderWay(queue.class_of(index)),
            None => match queue.peek() {
                None => Why::NotWritten,
                Some(Work::Wait { queue, index }) => self.waits(queue, index),
                Some(_) => Why::NotTaken,
            },
        };
        Some(Stuck { index, why })
    }

    fn waits(&self, queue: u32, index: u32) -> Why {
        let other = self.lanes().iter().find(|lane| lane.queue.number() == queue);
        other.map_or(Why::NotTaken, |lane| {
            let completed = lane.queue.counts().completed;
            Why::Waits { queue, index, completed }
        })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::UnderWay(Class::Write) => f.write_str("its copy to the peer has not ended"),
            Why::UnderWay(Class::Read) => f.write_str("its copy from the peer has not ended"),
            Why::UnderWay(Class::Atomic | Class::Ordered) => {
                f.write_str("the owner of its word has not added to it")
            }
            Why::NotWritten => f.write_str(
                "the doorbell announced it, but the GPU's stores of the entry have not arrived",
            ),
            Why::Waits { queue, index, completed } => {
                write!(
                    f,
                    "it waits for entry {index} of queue {queue:#x}, which has completed \
                     {completed}"
                )
            }
            Why::NotTaken => f.write_str("the thread has not reached it"),
            Why::Failed(syndrome) => {
                write!(f, "the queue has failed ({syndrome:?}), and an earlier copy has not ended")
            }
        }
    }
}
