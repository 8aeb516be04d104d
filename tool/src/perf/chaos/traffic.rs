//! Messages of mixed lengths, both ways at once, every byte of each compared with what its number
//! stands for: one that is lost, doubled, late or damaged is the wrong one for its receive.
#![forbid(unsafe_code)]

use super::super::side::Side;
use crate::Failure;
use crate::owned::{Backing, Buffer};
use crosstie::base::slab::Handle;
use crosstie::memory::probe::clock_ns;
use crosstie::transport::{Outcome, RequestId, SubmitError};

/// Messages that stand in each direction.
const DEPTH: usize = 16;
/// Empty, short, just copied, just not, and cut into stripes.
const LENGTHS: [u64; 12] =
    [0, 8, 24, 1000, 4096, 8192, 8193, 65_537, 100_000, 262_144, 700_001, LENGTH_MAX];
const LENGTH_MAX: u64 = 1 << 20;
/// Longer ones are done when the peer has said that they are there.
const COPIED_MAX: u64 = 8192;
/// Ends that are remembered: a kill is heard of some microseconds late.
const ENDS: usize = 1024;

/// A message that was done: since when it stood, and when it was.
#[derive(Copy, Clone, Default)]
struct End {
    begun_ns: u64,
    ended_ns: u64,
}

/// The last ends of one direction.
struct Ends {
    ring: [End; ENDS],
    count: usize,
}

impl Ends {
    fn note(&mut self, begun_ns: u64) {
        self.ring[self.count % ENDS] = End { begun_ns, ended_ns: clock_ns() };
        self.count += 1;
    }

    /// The earliest end, after `since`, of those that `counts` chooses.
    fn first_after(&self, since: u64, counts: impl Fn(&End) -> bool) -> Option<u64> {
        let known = &self.ring[..self.count.min(ENDS)];
        let after = known.iter().filter(|end| end.ended_ns > since && counts(end));
        after.map(|end| end.ended_ns).min()
    }
}

#[derive(Copy, Clone)]
struct Sent {
    request: RequestId,
    length: u64,
    begun_ns: u64,
}

/// One side's messages.
pub struct Traffic {
    connection: Handle,
    number_of_side: u64,
    out: Buffer,
    into: Buffer,
    sends: [Option<Sent>; DEPTH],
    receives: [Option<RequestId>; DEPTH],
    posted: u64,
    sends_done: Ends,
    receives_done: Ends,
    /// Messages sent so far.
    pub sent: u64,
    /// Messages received so far, in their order, all bytes right.
    pub received: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// No more is to be sent.
    pub stopped: bool,
}

impl Traffic {
    /// Nothing yet, of side 0 or 1 of a connection.
    pub fn new(side: &mut Side, connection: Handle, number_of_side: u64) -> Result<Self, Failure> {
        let mut buffer = || {
            let made = side.owned.buffer(Backing::Private, DEPTH as u64 * LENGTH_MAX);
            made.map_err(|error| format!("memory for messages: {error:?}"))
        };
        let ends = || Ends { ring: [End::default(); ENDS], count: 0 };
        Ok(Traffic {
            connection,
            number_of_side,
            out: buffer()?,
            into: buffer()?,
            sends: [None; DEPTH],
            receives: [None; DEPTH],
            posted: 0,
            sends_done: ends(),
            receives_done: ends(),
            sent: 0,
            received: 0,
            received_bytes: 0,
            stopped: false,
        })
    }

    /// Starts what can be started, and takes what has ended.
    pub fn step(&mut self, side: &mut Side) -> Result<(), Failure> {
        while self.posted < self.received + DEPTH as u64 {
            let at = self.posted as usize % DEPTH;
            let room = side.owned.incoming(self.into, at as u64 * LENGTH_MAX, LENGTH_MAX, 1);
            match side.owned.endpoint().irecv(self.connection, &[room]) {
                Ok(request) => self.receives[at] = Some(request),
                Err(SubmitError::Again) => break,
                Err(error) => return Err(format!("a receive was refused: {error:?}")),
            }
            self.posted += 1;
        }
        self.sends_start(side)?;
        side.owned.endpoint().progress();
        while self.receive_end(side)? {}
        self.sends_end(side)
    }

    fn sends_start(&mut self, side: &mut Side) -> Result<(), Failure> {
        for at in 0..DEPTH {
            if self.stopped || self.sends[at].is_some() {
                continue;
            }
            let seed = self.seed(self.sent, true);
            let (length, offset) = (length(seed), at as u64 * LENGTH_MAX);
            side.owned.fill(self.out, offset, length, seed)?;
            let message = side.owned.outgoing(self.out, offset, length, 1);
            let begun_ns = clock_ns();
            match side.owned.endpoint().isend(self.connection, message) {
                Ok(request) => self.sends[at] = Some(Sent { request, length, begun_ns }),
                Err(SubmitError::Again) => break,
                Err(error) => return Err(format!("a send was refused: {error:?}")),
            }
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes the next message, if it is there.
    fn receive_end(&mut self, side: &mut Side) -> Result<bool, Failure> {
        let number = self.received;
        let at = number as usize % DEPTH;
        let Some(request) = self.receives[at] else { return Ok(false) };
        let Some(outcome) = ended(side, request)? else { return Ok(false) };
        if let Err(error) = outcome.result {
            return Err(format!("the receive of message {number} ended with {error:?}"));
        }
        let seed = self.seed(number, false);
        let (expected, came) = (length(seed), outcome.lengths[0]);
        if came != expected {
            return Err(format!("message {number}: {came} bytes instead of {expected}"));
        }
        if !side.owned.check(self.into, at as u64 * LENGTH_MAX, expected, seed)? {
            return Err(format!("message {number} of {expected} bytes: wrong bytes"));
        }
        self.receives[at] = None;
        self.receives_done.note(0);
        self.received += 1;
        self.received_bytes += expected;
        Ok(true)
    }

    fn sends_end(&mut self, side: &mut Side) -> Result<(), Failure> {
        for at in 0..DEPTH {
            let Some(Sent { request, length, begun_ns }) = self.sends[at] else { continue };
            let Some(outcome) = ended(side, request)? else { continue };
            if let Err(error) = outcome.result {
                return Err(format!("a send of {length} bytes ended with {error:?}"));
            }
            self.sends[at] = None;
            if length > COPIED_MAX {
                self.sends_done.note(begun_ns);
            }
        }
        Ok(())
    }

    /// Whether nothing that was sent is outstanding.
    pub fn all_delivered(&self) -> bool {
        self.sends.iter().all(Option::is_none)
    }

    /// What the bytes of a message are made from: other on each way.
    fn seed(&self, number: u64, ours: bool) -> u64 {
        let side = if ours { self.number_of_side } else { 1 - self.number_of_side };
        number * 2 + side
    }

    /// When a message came first after that moment.
    pub fn received_after(&self, since: u64) -> Option<u64> {
        self.receives_done.first_after(since, |_| true)
    }

    /// When a message that was begun after that moment was first known to be there.
    pub fn delivered_after(&self, since: u64) -> Option<u64> {
        self.sends_done.first_after(since, |end| end.begun_ns > since)
    }
}

fn ended(side: &mut Side, request: RequestId) -> Result<Option<Outcome>, Failure> {
    side.owned.endpoint().test(request).map_err(|error| format!("test: {error:?}"))
}

/// The length of a message: each in its turn, in an order that does not repeat soon.
fn length(seed: u64) -> u64 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    LENGTHS[(mixed % LENGTHS.len() as u64) as usize]
}

/// Numbers of a line.
pub fn numbers(words: &[&str]) -> Option<Vec<u64>> {
    words.iter().map(|word| word.parse().ok()).collect()
}
