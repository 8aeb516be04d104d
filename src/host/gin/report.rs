//! What queues wait for: told when asked, and once where an entry stays too long.

use super::clock::Times;
use crate::hca::executor::Executor;
use crate::host::log::gin::{FailedQueue, OpenEntry, Queue, Queues};
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

/// Name of the door at which `crosstie report` asks.
pub const DOOR: &str = "crosstie-gin";

/// How long one queue has stood.
#[derive(Copy, Clone, Default, Debug)]
struct Seen {
    completed: u64,
    since_ns: u64,
    said: bool,
}

/// How long the queues of a set of contexts have stood.
#[derive(Debug)]
pub struct Watch(Vec<Seen>);

impl Watch {
    /// A watch over `queues` queues, in which nothing was seen yet.
    pub fn new(queues: usize) -> Watch {
        Watch(vec![Seen::default(); queues])
    }

    /// Looks at a queue that has completed so many entries; whether it stands for too long, which
    /// is said once.
    fn look(&mut self, at: usize, completed: u64, is_open: bool, times: &Times) -> bool {
        let seen = &mut self.0[at];
        if !is_open || seen.completed != completed {
            *seen = Seen { completed, since_ns: times.now_ns, said: false };
            return false;
        }
        let age_ns = times.now_ns.saturating_sub(seen.since_ns);
        let late = times.stall_ns != 0 && age_ns >= times.stall_ns;
        late && !core::mem::replace(&mut seen.said, true)
    }

    fn age_ms(&self, at: usize, times: &Times) -> u64 {
        times.now_ns.saturating_sub(self.0[at].since_ns) / 1_000_000
    }
}

/// The queues of a set of contexts, and how long each has stood.
pub type Watched<'a> = (&'a Executor<'static, 'static>, &'a mut Watch);

/// What is told of a communicator's queues, beside themselves.
#[derive(Debug)]
pub struct Told<'a> {
    /// By rank, operations with it that have not ended; `None`: it is of this host.
    pub beyond: &'a [Option<u64>],
    /// When, and when an entry is late.
    pub times: Times,
}

/// Sentences about queues that have stood for too long since the last look.
pub fn stalls((executor, watch): Watched<'_>, told: &Told<'_>) -> Vec<String> {
    let (ranks, times) = (told.beyond.len(), &told.times);
    let mut sentences = Vec::new();
    for (at, lane) in executor.lanes().iter().enumerate() {
        let stuck = executor.stuck(at);
        let late = watch.look(at, lane.queue.counts().completed, stuck.is_some(), times);
        if let (true, Some(stuck)) = (late, stuck) {
            let (queue, age_ms) = (Queue { lane, at, ranks }, watch.age_ms(at, times));
            let beyond = told.beyond[lane.rank];
            sentences.push(OpenEntry { queue, stuck: &stuck, age_ms, beyond }.to_string());
        }
    }
    sentences
}

/// All queues of a set of contexts: a line for each that has entries without a completion, or has
/// failed, and one for all.
pub fn lines(number: u64, (executor, watch): Watched<'_>, told: &Told<'_>) -> String {
    let (ranks, times) = (told.beyond.len(), &told.times);
    let (mut open, mut text) = (0, String::new());
    for (at, lane) in executor.lanes().iter().enumerate() {
        let queue = Queue { lane, at, ranks };
        if let Some(stuck) = executor.stuck(at) {
            open += 1;
            let age_ms = watch.age_ms(at, times);
            let beyond = told.beyond[lane.rank];
            text += &format!("  {}\n", OpenEntry { queue, stuck: &stuck, age_ms, beyond });
        } else if let Some(failure) = lane.queue.failure() {
            text += &format!("  {}\n", FailedQueue { queue, failure });
        }
    }
    let queues = executor.lanes().len();
    format!("{}\n{text}", Queues { number, queues, open })
}
