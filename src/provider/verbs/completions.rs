//! What completes: how requests are called, and the queue that says so.

use super::sys::CompletionQueue;
use super::sys::abi::Wc;

/// Completions that are taken at a time.
const BATCH: usize = 32;

/// What a request is called: its peer, which use of it, which of its queues, and where in it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Name {
    pub kind: Kind,
    pub generation: u16,
    pub peer: u16,
    /// Position of a send; cell of a receive.
    pub at: u32,
}

/// The queue that a request went through.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Kind {
    Send = 0,
    Receive = 1,
    /// The last of the sends.
    LastSend = 2,
    /// The last of the receives.
    LastReceive = 3,
}

impl Name {
    pub const GENERATION_MASK: u16 = 0x3fff;

    #[inline]
    pub const fn pack(self) -> u64 {
        (self.kind as u64) << 62
            | ((self.generation & Name::GENERATION_MASK) as u64) << 48
            | (self.peer as u64) << 32
            | self.at as u64
    }

    #[inline]
    pub const fn unpack(word: u64) -> Name {
        let kind = match word >> 62 {
            0 => Kind::Send,
            1 => Kind::Receive,
            2 => Kind::LastSend,
            _ => Kind::LastReceive,
        };
        let generation = (word >> 48) as u16 & Name::GENERATION_MASK;
        Name { kind, generation, peer: (word >> 32) as u16, at: word as u32 }
    }
}

/// The queue reports no completions any more.
#[derive(Copy, Clone, Debug)]
pub struct Broken;

/// The completion queue of a rail, with completions that were taken and not looked at.
#[derive(Debug)]
pub struct Completions {
    pub queue: CompletionQueue,
    batch: [Wc; BATCH],
    at: usize,
    count: usize,
    /// Whether the queue gave fewer than there was room for, so that it has no more.
    is_last: bool,
}

impl Completions {
    pub fn new(queue: CompletionQueue) -> Completions {
        Completions { queue, batch: [Wc::NOTHING; BATCH], at: 0, count: 0, is_last: false }
    }

    /// Whether all that were taken were looked at.
    pub fn is_empty(&self) -> bool {
        self.at == self.count
    }

    /// A poll begins: what has come meanwhile is taken, too.
    #[inline]
    pub fn begin(&mut self) {
        self.is_last = false;
    }

    /// The next; `None`: there is none now.
    #[inline(always)]
    pub fn next(&mut self) -> Result<Option<Wc>, Broken> {
        if self.is_empty() && (self.is_last || !self.refill()?) {
            return Ok(None);
        }
        self.at += 1;
        Ok(Some(self.batch[self.at - 1]))
    }

    #[inline]
    fn refill(&mut self) -> Result<bool, Broken> {
        let count = self.queue.poll(&mut self.batch);
        let count = usize::try_from(count).map_err(|_| Broken)?;
        (self.at, self.count, self.is_last) = (0, count, count < BATCH);
        Ok(count > 0)
    }

    /// Asks the device to make the queue's descriptor readable with the next completion. `false`:
    /// one is there already, or it cannot.
    pub fn arm(&mut self) -> bool {
        // what came before it was asked is told of by nobody
        self.is_empty() && self.queue.ask() && matches!(self.refill(), Ok(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_requests_come_back_as_they_were() {
        for kind in [Kind::Send, Kind::Receive, Kind::LastSend, Kind::LastReceive] {
            let name = Name { kind, generation: 0x3ffe, peer: 0xfffd, at: 0xffff_fffc };
            assert_eq!(Name::unpack(name.pack()), name);
        }
    }
}
