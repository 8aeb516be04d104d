//! Records that were refused: what an owner has to tell, and what an origin was told.
#![forbid(unsafe_code)]

use super::fifo::Fifo;
use super::lane::TRANSFERS;
use crate::wire::one_sided::Refusal;

/// Rows that the peer was not told of.
const ROWS: usize = 16;
/// Rows that an origin keeps.
const HEARD: usize = 8;

/// The last records of a pair, of which it is known one by one whether they were refused.
const MARKED: u64 = 1024;
const MARK_WORDS: usize = (MARKED / u64::BITS as u64) as usize;

/// Which of the last records were refused, a bit for each.
#[derive(Debug)]
struct Marks {
    bits: [u64; MARK_WORDS],
    /// The last one that was.
    last: u64,
}

impl Marks {
    const NONE: Marks = Marks { bits: [0; MARK_WORDS], last: 0 };

    fn place(number: u64) -> (usize, u64) {
        let at = number % MARKED;
        ((at / u64::from(u64::BITS)) as usize, 1 << (at % u64::from(u64::BITS)))
    }

    /// Marks records.
    fn set(&mut self, first: u64, last: u64) {
        // the places were earlier ones'
        for number in last.saturating_sub(MARKED - 1).max(self.last.saturating_add(1))..=last {
            let (word, bit) = Marks::place(number);
            self.bits[word] &= !bit;
        }
        self.last = self.last.max(last);
        for number in self.last.saturating_sub(MARKED - 1).max(first)..=last {
            let (word, bit) = Marks::place(number);
            self.bits[word] |= bit;
        }
    }

    /// Whether a record was refused; of one that is too far back: whether it may have been.
    fn may_be(&self, number: u64) -> bool {
        let (word, bit) = Marks::place(number);
        number.saturating_add(MARKED) <= self.last
            || (number <= self.last && self.bits[word] & bit != 0)
    }
}

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
    /// Where there is no room, with others between them.
    rows: Fifo<Refused, ROWS>,
    marks: Marks,
    /// The last one.
    last: Option<(u64, Refusal)>,
}

impl Refusals {
    pub const NONE: Refusals = Refusals { rows: Fifo::EMPTY, marks: Marks::NONE, last: None };

    /// Whether the peer was told of all.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The first record that the peer was not told of.
    pub fn first(&self) -> Option<u64> {
        self.rows.front().map(|row| row.first)
    }

    /// The same, and those behind it that were refused, too.
    pub fn front(&self) -> Option<Refused> {
        let mut row = *self.rows.front()?;
        let others = (row.first + 1..=row.last).find(|number| !self.marks.may_be(*number));
        row.last = others.map_or(row.last, |other| other - 1);
        Some(row)
    }

    /// It was told of them.
    pub fn pop(&mut self) {
        let (Some(told), Some(row)) = (self.front(), self.rows.get_mut(0)) else { return };
        match (told.last + 1..=row.last).find(|number| self.marks.may_be(*number)) {
            Some(next) => row.first = next,
            None => _ = self.rows.pop(),
        }
    }

    /// Keeps that a record was refused, which comes behind all that were before.
    pub fn keep(&mut self, number: u64, why: Refusal) {
        self.last = Some((number, why));
        self.marks.set(number, number);
        let is_full = self.rows.is_full();
        let last = self.rows.count().checked_sub(1);
        match last.and_then(|at| self.rows.get_mut(at)) {
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
    marks: Marks,
    /// The last gets among them, and where the next one goes.
    gets: [(u64, Refusal); TRANSFERS],
    next: usize,
}

impl Heard {
    pub const NOTHING: Heard = Heard {
        first: None,
        rows: Fifo::EMPTY,
        marks: Marks::NONE,
        gets: [(0, Refusal::Stale); TRANSFERS],
        next: 0,
    };

    /// Takes in a row.
    pub fn take(&mut self, mut row: Refused) {
        self.first.get_or_insert((row.first, row.why));
        self.marks.set(row.first, row.last);
        // the two oldest rows become one, with what is between them
        if self.rows.is_full()
            && let Some(oldest) = self.rows.pop()
        {
            match self.rows.get_mut(0) {
                // gets are told of later than what came behind them
                Some(second) => {
                    second.first = second.first.min(oldest.first);
                    second.last = second.last.max(oldest.last);
                }
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

    /// Why a record was refused, if it was; of one that is too far back, if it may have been.
    pub fn of(&self, number: u64) -> Option<Refusal> {
        if !self.marks.may_be(number) {
            return None;
        }
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

    /// What an origin hears of records that were refused.
    fn heard(numbers: impl Iterator<Item = u64>) -> Heard {
        let (mut refusals, mut heard) = (Refusals::NONE, Heard::NOTHING);
        numbers.for_each(|number| refusals.keep(number, Refusal::Stale));
        while let Some(row) = refusals.front() {
            assert_eq!(refusals.first(), Some(row.first));
            refusals.pop();
            heard.take(row);
        }
        heard
    }

    #[test]
    fn each_of_the_last_records_is_told_alone_whatever_room_there_is() {
        for each in [2, 3, 64, 65] {
            for start in [1, 1000, 1 << 40] {
                let is_refused = |number: u64| number.is_multiple_of(each) && number % 7 != 3;
                let numbers = start..start + MARKED;
                let heard = heard(numbers.clone().filter(|number| is_refused(*number)));
                for number in numbers {
                    let told = heard.of(number).is_some();
                    assert_eq!(told, is_refused(number), "record {number} of each {each}");
                }
                assert_eq!(heard.of(start + MARKED), None);
            }
        }
    }

    #[test]
    fn no_refusal_is_left_out_however_many_there_are() {
        let numbers = (1..=10 * MARKED).map(|at| 3 * at);
        let heard = heard(numbers.clone());
        for number in numbers {
            assert_eq!(heard.of(number), Some(Refusal::Stale), "record {number}");
        }
        assert_eq!((heard.of(1), heard.of(30 * MARKED + 1)), (None, None));
    }

    #[test]
    fn get_that_is_told_of_late_hides_no_refusal() {
        let mut heard = Heard::NOTHING;
        let rows = [10, 5].into_iter().chain((1..=HEARD as u64).map(|at| 100 * at));
        rows.clone().for_each(|at| heard.take(Refused { first: at, last: at, why: Refusal::Id }));
        rows.for_each(|at| assert_eq!(heard.of(at), Some(Refusal::Id), "record {at}"));
        assert_eq!((heard.of(6), heard.of(11)), (None, None));
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
