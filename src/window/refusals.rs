//! Records that were refused: what an owner has to tell, and what an origin was told.
#![forbid(unsafe_code)]

use super::fifo::Fifo;
use super::lane::TRANSFERS;
use crate::wire::one_sided::Refusal;

/// Rows that the peer was not told of.
const ROWS: usize = 16;
/// Rows that an origin keeps.
const HEARD: usize = 8;

/// Records in a row that were refused for one reason.
#[derive(Copy, Clone, Debug)]
pub(super) struct Refused {
    pub first: u64,
    pub last: u64,
    pub why: Refusal,
}

/// Records of the peer's that were refused here.
#[derive(Debug)]
pub(super) struct Refusals {
    rows: Fifo<Refused, ROWS>,
    /// The last one.
    last: Option<(u64, Refusal)>,
}

impl Refusals {
    pub const NONE: Refusals = Refusals { rows: Fifo::EMPTY, last: None };

    /// Whether the peer was told of all.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The first row that the peer was not told of.
    pub fn front(&self) -> Option<&Refused> {
        self.rows.front()
    }

    /// It was told of the first row.
    pub fn pop(&mut self) {
        self.rows.pop();
    }

    /// Keeps that a record was refused, which comes behind all that were before.
    pub fn keep(&mut self, number: u64, why: Refusal) {
        self.last = Some((number, why));
        let is_full = self.rows.is_full();
        let last = self.rows.count().checked_sub(1);
        match last.and_then(|at| self.rows.get_mut(at)) {
            // without room, more are said to be refused than were; none is left out
            Some(row) if is_full || (row.why == why && row.last + 1 == number) => row.last = number,
            _ => {
                self.rows.push(Refused { first: number, last: number, why });
            }
        }
    }

    /// Why a record is refused that needs all from `first` on.
    pub fn since(&self, first: u64) -> Option<Refusal> {
        self.last.filter(|(last, _)| *last >= first).map(|(_, why)| why)
    }
}

/// Records of ours that the peer has refused.
#[derive(Debug)]
pub(super) struct Heard {
    /// The first one that the user was not told of.
    pub first: Option<(u64, Refusal)>,
    rows: Fifo<Refused, HEARD>,
    /// The last gets among them, and where the next one goes.
    gets: [(u64, Refusal); TRANSFERS],
    next: usize,
}

impl Heard {
    pub const NOTHING: Heard =
        Heard { first: None, rows: Fifo::EMPTY, gets: [(0, Refusal::Stale); TRANSFERS], next: 0 };

    /// Takes in a row.
    pub fn take(&mut self, mut row: Refused) {
        self.first.get_or_insert((row.first, row.why));
        // the two oldest rows become one, with what is between them
        if self.rows.is_full()
            && let Some(oldest) = self.rows.pop()
        {
            match self.rows.get_mut(0) {
                Some(second) => second.first = second.first.min(oldest.first),
                None => row.first = row.first.min(oldest.first),
            }
        }
        self.rows.push(row);
    }

    /// Takes in that a get was refused.
    pub fn take_get(&mut self, number: u64, why: Refusal) {
        self.gets[self.next] = (number, why);
        self.next = (self.next + 1) % TRANSFERS;
    }

    /// Why a record was refused, if it was.
    pub fn of(&self, number: u64) -> Option<Refusal> {
        let row = self.rows.iter().find(|row| (row.first..=row.last).contains(&number));
        row.map(|row| row.why)
    }

    /// Why a get was refused, if it was.
    pub fn of_get(&self, number: u64) -> Option<Refusal> {
        let found = self.gets.iter().find(|(refused, _)| *refused == number);
        found.filter(|_| number != 0).map(|(_, why)| *why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_refusal_is_left_out_where_there_is_no_room() {
        let (mut refusals, mut heard) = (Refusals::NONE, Heard::NOTHING);
        let numbers = (1..=100).map(|at| 3 * at);
        numbers.clone().for_each(|number| refusals.keep(number, Refusal::Stale));
        while let Some(row) = refusals.front().copied() {
            refusals.pop();
            heard.take(row);
        }
        for number in numbers {
            assert_eq!(heard.of(number), Some(Refusal::Stale), "record {number}");
        }
        assert_eq!((heard.of(1), heard.of(301)), (None, None));
    }

    #[test]
    fn record_that_needs_one_that_was_refused_is_refused() {
        let mut refusals = Refusals::NONE;
        assert_eq!(refusals.since(0), None);
        refusals.keep(5, Refusal::Range);
        refusals.pop();
        assert_eq!(refusals.since(6), None);
        assert_eq!([5, 1].map(|first| refusals.since(first)), [Some(Refusal::Range); 2]);
    }
}
