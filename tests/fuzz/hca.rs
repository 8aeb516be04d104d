//! What a GPU may write into a queue: anything, at any time, and doorbells that say anything.

use arbitrary::Arbitrary;
use crosstie::base::bitset;
use crosstie::base::sync::{AtomicU64, Ordering};
use crosstie::hca::ENTRY_WORDS;
use crosstie::hca::completion::Syndrome;
use crosstie::hca::executor::{Executor, Lane, Step};
use crosstie::hca::keys::{Keys, Kind, Slot};
use crosstie::hca::queue::{Class, Memory, Queue};

const DEPTH: usize = 8;
const FIRST: u32 = 1;
const RANKS: usize = 2;
const WINDOW_BYTES: u64 = 256;
/// Deeds of one input that are looked at.
const STEPS_MAX: usize = 512;

/// What one side does to one of the two queues.
#[derive(Arbitrary, Debug)]
pub struct Deed {
    second_queue: bool,
    what: What,
}

#[derive(Arbitrary, Debug)]
enum What {
    /// The doorbell says anything.
    Doorbell(u64),
    /// The doorbell says how much was written.
    Announce,
    /// A slot is filled.
    Write([u64; ENTRY_WORDS]),
    /// An operation that was handed out ends; one in eight fails.
    End { operation: u8, result: u8 },
    /// The executor looks at the queue.
    Step,
}

/// Fills a slot with input, of which the head claims to be of this queue and index.
fn garble(ring: &[AtomicU64], queue: u32, index: u64, words: &[u64; ENTRY_WORDS]) {
    let slot = &ring[(index as usize % DEPTH) * ENTRY_WORDS..][..ENTRY_WORDS];
    for (place, word) in slot.iter().zip(words) {
        place.store(*word, Ordering::Relaxed);
    }
    let garbage = words[0];
    let head = ((index as u32 & 0xffff) << 8 | (garbage as u32 & 0xff)).to_be();
    let tail = (queue << 8 | (garbage >> 32) as u32 & 7).to_be();
    slot[0].store(u64::from(head) | u64::from(tail) << 32, Ordering::Relaxed);
}

/// Two queues that both sides touch in the order of the input. What is handed out lies in bounds,
/// ends once, and is never more than the queue holds.
pub fn hca(deeds: &[Deed]) {
    let zeros = || (0..DEPTH * ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (rings, completions) = ([zeros(), zeros()], [zeros(), zeros()]);
    let doorbells = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut ended = [[0; bitset::words(DEPTH)]; 2];
    let mut classes = [[Class::Write; DEPTH]; 2];
    let (mut slots, mut sizes) = ([Slot::default(); 3], [0; 3 * RANKS]);
    let mut keys = Keys::new(&mut slots, &mut sizes, RANKS);
    let _ = keys.register(Kind::Window, &[WINDOW_BYTES; RANKS]);
    let _ = keys.register(Kind::Signals, &[64; RANKS]);
    let _ = keys.register(Kind::Sink, &[8; RANKS]);
    let parts = ended.iter_mut().zip(&mut classes).enumerate();
    let mut lanes: Vec<Lane<'_>> = parts
        .map(|(at, (ended, classes))| {
            let memory = Memory {
                ring: &rings[at],
                completions: &completions[at],
                doorbell: &doorbells[at],
                ended,
                classes,
            };
            let queue = Queue::new(memory, FIRST + at as u32, 0x1234_5678_9abc_def0);
            Lane { queue, rank: at, keeps_order: at == 1 }
        })
        .collect();
    let mut executor = Executor::new(&mut lanes, 0);
    let mut flying = Vec::new();
    let mut written = [0u64; 2];
    for (now, deed) in deeds.iter().take(STEPS_MAX).enumerate() {
        let at = usize::from(deed.second_queue);
        match &deed.what {
            What::Doorbell(number) => doorbells[at].store(*number, Ordering::Release),
            What::Announce => doorbells[at].store(written[at], Ordering::Release),
            What::Write(words) => {
                garble(&rings[at], FIRST + at as u32, written[at], words);
                written[at] += 1;
            }
            What::End { operation, result } if !flying.is_empty() => {
                let operation = flying.swap_remove(usize::from(*operation) % flying.len());
                let failed = result & 7 == 0;
                let outcome = if failed { Err(Syndrome::RemoteOperation) } else { Ok(()) };
                executor.complete(&operation, outcome);
            }
            What::End { .. } | What::Step => {
                if let Step::Operation(operation) = executor.step(at, &keys, now as u64 * 100_000) {
                    flying.push(operation);
                    assert!(flying.len() <= 2 * DEPTH);
                }
            }
        }
        for lane in executor.lanes() {
            let counts = lane.queue.counts();
            assert!(counts.completed <= counts.taken);
            assert!(counts.taken - counts.completed <= DEPTH as u64);
        }
    }
}
