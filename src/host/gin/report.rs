//! What queues wait for: told when asked, and once where an entry stays too long.

extern crate std;

use super::clock::Times;
use super::context::Context;
use crate::hca::executor::Lane;
use crate::hca::stuck::Stuck;
use std::format;
use std::string::String;
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

/// Sentences about queues that have stood for too long since the last look.
pub fn stalls(context: &mut Context, ranks: usize, times: &Times) -> Vec<String> {
    let (executor, watch) = context.watched();
    let mut sentences = Vec::new();
    for (at, lane) in executor.lanes().iter().enumerate() {
        let stuck = executor.stuck(at);
        let late = watch.look(at, lane.queue.counts().completed, stuck.is_some(), times);
        if let (true, Some(stuck)) = (late, stuck) {
            sentences.push(sentence(lane, at, &stuck, ranks, watch.age_ms(at, times)));
        }
    }
    sentences
}

/// All queues of a set of contexts: a line for each that has entries without a completion, or has
/// failed, and one for all.
pub fn lines(context: &mut Context, ranks: usize, times: &Times) -> String {
    let number = context.number();
    let (executor, watch) = context.watched();
    let (mut open, mut text) = (0, String::new());
    for (at, lane) in executor.lanes().iter().enumerate() {
        if let Some(stuck) = executor.stuck(at) {
            open += 1;
            let sentence = sentence(lane, at, &stuck, ranks, watch.age_ms(at, times));
            text += &format!("  {sentence}\n");
        } else if let Some(failure) = lane.queue.failure() {
            text += &format!(
                "  {}: {} entries announced, failed from entry {} on ({:?})\n",
                name(lane, at, ranks),
                lane.queue.counts().produced,
                failure.index,
                failure.syndrome
            );
        }
    }
    let queues = executor.lanes().len();
    format!("contexts {number}: {queues} queues, {} without an open entry\n{text}", queues - open)
}

/// How a queue is called: its number, and whose it is.
fn name(lane: &Lane<'_>, at: usize, ranks: usize) -> String {
    let (number, place) = (lane.queue.number(), at / (2 * ranks));
    match at / ranks % 2 {
        0 => format!("queue {number:#x} of context {place} to rank {}", lane.rank),
        _ => format!("queue {number:#x} of context {place}, for counters"),
    }
}

fn sentence(lane: &Lane<'_>, at: usize, stuck: &Stuck, ranks: usize, age_ms: u64) -> String {
    let (name, counts) = (name(lane, at, ranks), lane.queue.counts());
    format!(
        "{name}: {} entries announced, {} taken, {} completed; entry {} is open for {age_ms} ms: \
         {}",
        counts.produced, counts.taken, counts.completed, stuck.index, stuck.why
    )
}
