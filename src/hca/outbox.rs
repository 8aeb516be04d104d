//! Adds to words of another rank's device memory: what is asked, and what became of it.
//!
//! A CPU cannot add to a word of a GPU's memory, and two ranks that each read, add and write would
//! lose one of the adds. So the rank that owns the word adds for all.
//!
//! *Shape*: each rank has a file that it alone writes, with a block for each other rank and itself.
//! A block holds requests to that rank, and answers to that rank's requests:
//!
//! ```text
//! file of rank a, block b:  requests of a to b │ answers of a to b
//! behind the last block:    whether a has failed
//! ```
//!
//! Requests and answers are numbered from zero, and go in order.

use super::completion::Syndrome;
use crate::base::sync::{AtomicU64, Ordering};

/// Requests of one rank to another that may be without an answer.
pub const SLOTS: u64 = 64;
/// Words of a cache line, so that a count has one.
const LINE: usize = 8;
/// Words of a request: key, offset, value, and one that is not used.
const REQUEST: usize = 4;
/// Where the answers of a block begin.
const ANSWERS: usize = LINE + SLOTS as usize * REQUEST;
/// Words of a block.
const BLOCK: usize = ANSWERS + LINE + SLOTS as usize;

/// An add that is asked for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Request {
    /// The owner's key of the region.
    pub key: u32,
    /// Bytes from the start of the owner's part.
    pub offset: u64,
    /// What is added.
    pub value: u64,
}

/// How many words the file of a rank has, among `ranks`.
pub const fn words(ranks: usize) -> usize {
    ranks * BLOCK + 1
}

/// The last word of a file: not zero once its rank has failed.
pub fn failed(file: &[AtomicU64]) -> &AtomicU64 {
    &file[file.len() - 1]
}

/// One block of a file.
#[derive(Copy, Clone, Debug)]
pub struct Block<'m>(&'m [AtomicU64]);

impl<'m> Block<'m> {
    /// The block for `rank` in a file.
    ///
    /// *Panics*: when the file has none.
    pub fn of(file: &'m [AtomicU64], rank: usize) -> Block<'m> {
        Block(&file[rank * BLOCK..][..BLOCK])
    }

    fn request_words(&self, number: u64) -> &'m [AtomicU64] {
        &self.0[LINE + (number % SLOTS) as usize * REQUEST..][..REQUEST]
    }

    fn answer_word(&self, number: u64) -> &'m AtomicU64 {
        &self.0[ANSWERS + LINE + (number % SLOTS) as usize]
    }

    /// Asks. Fewer than [`SLOTS`] requests are without an answer.
    pub fn ask(&self, number: u64, request: &Request) {
        let [key, offset, value, _] = self.request_words(number) else { unreachable!() };
        key.store(request.key.into(), Ordering::Relaxed);
        offset.store(request.offset, Ordering::Relaxed);
        value.store(request.value, Ordering::Relaxed);
        // pairs with `asked`
        self.0[0].store(number + 1, Ordering::Release);
    }

    /// How many requests there were.
    pub fn asked(&self) -> u64 {
        // pairs with `ask`
        self.0[0].load(Ordering::Acquire)
    }

    /// A request that was asked and has no answer yet.
    pub fn request(&self, number: u64) -> Request {
        let [key, offset, value, _] = self.request_words(number) else { unreachable!() };
        Request {
            key: key.load(Ordering::Relaxed) as u32,
            offset: offset.load(Ordering::Relaxed),
            value: value.load(Ordering::Relaxed),
        }
    }

    /// Notes what became of a request. The asker sees it after [`Block::answered`].
    pub fn note(&self, number: u64, outcome: Result<(), Syndrome>) {
        let word = outcome.err().map_or(0, |syndrome| syndrome as u64);
        self.answer_word(number).store(word, Ordering::Relaxed);
    }

    /// Publishes the answers before `count`.
    pub fn publish(&self, count: u64) {
        // pairs with `answered`
        self.0[ANSWERS].store(count, Ordering::Release);
    }

    /// How many answers there were.
    pub fn answered(&self) -> u64 {
        // pairs with `publish`
        self.0[ANSWERS].load(Ordering::Acquire)
    }

    /// An answer that was published.
    pub fn outcome(&self, number: u64) -> Result<(), Syndrome> {
        match self.answer_word(number).load(Ordering::Relaxed) {
            0 => Ok(()),
            word if word == Syndrome::RemoteAccess as u64 => Err(Syndrome::RemoteAccess),
            _ => Err(Syndrome::RemoteOperation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_of_each_pair_stand_apart() {
        let file: [AtomicU64; words(2)] = core::array::from_fn(|_| AtomicU64::new(0));
        let request = |number: u64| Request { key: 7, offset: 8 * number, value: number << 40 };
        for number in 0..3 * SLOTS {
            Block::of(&file, 0).ask(number, &request(number));
            Block::of(&file, 1).ask(number, &request(number + 1));
            assert_eq!(Block::of(&file, 0).asked(), number + 1);
            assert_eq!(Block::of(&file, 0).request(number), request(number));
            assert_eq!(Block::of(&file, 1).request(number), request(number + 1));
        }
        assert_eq!(Block::of(&file, 0).answered(), 0);
    }

    #[test]
    fn outcomes_arrive_as_they_were_noted() {
        let file: [AtomicU64; words(1)] = core::array::from_fn(|_| AtomicU64::new(0));
        let block = Block::of(&file, 0);
        let all = [Ok(()), Err(Syndrome::RemoteAccess), Err(Syndrome::RemoteOperation)];
        for (number, outcome) in (0..).zip(all) {
            block.note(number, outcome);
        }
        block.publish(3);
        assert_eq!(block.answered(), 3);
        assert_eq!([0, 1, 2].map(|number| block.outcome(number)), all);
    }
}
