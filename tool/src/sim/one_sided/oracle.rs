//! What must be true of windows and words, in plain maps and vectors.
#![forbid(unsafe_code)]

use super::bytes::Bytes;
use super::way::{Op, Way};
use super::word::Word;
use crate::sim::memory::Arena;
use std::ops::Range;

/// Signals, counters and barriers of each window.
pub const IDS: usize = 4;
/// The signal that takes any values. Its sum is looked at when all was applied.
pub const ANY: usize = IDS - 1;
/// The signal that also words inside of windows are.
pub const IN_WINDOW: usize = 0;
/// Sums of the word that takes any values.
#[derive(Copy, Clone, Default, Debug)]
struct Sum {
    issued: u64,
    /// What resets have taken away.
    gone: u64,
}

/// One rank's part of a window.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where it lies in the rank's memory.
    pub place: Range<usize>,
    /// Where two words stand behind that, one for each rank to add to, as bytes from its start.
    pub words: Option<usize>,
    /// What is there, but for puts that are under way.
    content: Vec<u8>,
    /// By id and rank.
    signals: [[Word; 2]; IDS],
    any: [Sum; 2],
    pub counters: [Word; IDS],
    /// How often the rank has come to each barrier, and gone on.
    pub entered: [u64; IDS],
    pub passed: [u64; IDS],
    /// How many operations it had issued to each rank when it came last.
    came_at: [[u64; 2]; IDS],
    pub is_open: bool,
    pub is_freed: bool,
}

impl Part {
    /// Where the words lie in the rank's memory.
    pub fn words_place(&self) -> Option<Range<usize>> {
        let start = self.place.start + self.words?;
        Some(start..start + 2 * size_of::<u64>())
    }

    /// The place of all that belongs to the window.
    pub fn whole(&self) -> Range<usize> {
        self.place.start..self.words_place().map_or(self.place.end, |words| words.end)
    }

    /// What a window holds at first.
    pub fn new(place: Range<usize>, words: Option<usize>, content: Vec<u8>) -> Part {
        Part {
            place,
            words,
            content,
            signals: Default::default(),
            any: Default::default(),
            counters: Default::default(),
            entered: [0; IDS],
            passed: [0; IDS],
            came_at: [[0; 2]; IDS],
            is_open: false,
            is_freed: false,
        }
    }
}

/// A get that has not ended.
#[derive(Clone, Debug)]
pub struct Get {
    way: (usize, usize),
    window: usize,
    range: Range<usize>,
    epoch: u64,
    /// What was there when it was issued.
    before: Vec<u8>,
    /// Puts that it may have met.
    puts: Vec<Bytes>,
    is_refused: bool,
}

/// The oracle.
#[derive(Clone, Default, Debug)]
pub struct Oracle {
    /// By window: both ranks' parts, once they are registered.
    pub windows: Vec<[Option<Part>; 2]>,
    ways: [[Way; 2]; 2],
    gets: Vec<(u64, Get)>,
    next_get: u64,
    /// Signals that were refused for sure: from, to and number.
    lost: Vec<(usize, usize, u64)>,
    /// Fences that had something to wait for.
    pub fences_waited: u64,
}

impl Oracle {
    pub fn part(&mut self, window: usize, rank: usize) -> &mut Part {
        self.windows[window][rank].as_mut().expect("registered")
    }

    fn live(&self, window: usize, rank: usize) -> Option<&Part> {
        self.windows[window][rank].as_ref().filter(|part| !part.is_freed)
    }

    fn is_open(&self, window: usize, rank: usize) -> bool {
        self.live(window, rank).is_some_and(|part| part.is_open)
    }

    /// Whether the bytes of a put that may be under way lie there.
    pub fn is_busy(&self, (window, owner): (usize, usize), range: &Range<usize>) -> [bool; 2] {
        [0, 1].map(|from: usize| {
            let ops = self.ways[from][owner].ops.iter().filter(|op| op.window == window);
            ops.filter_map(|op| op.put.as_ref()).any(|put| put.overlaps(range))
        })
    }

    /// A value for a signal, if bits are left.
    pub fn signal_take(
        &mut self,
        (from, to): (usize, usize),
        window: usize,
        id: usize,
    ) -> Option<u64> {
        match self.windows[window][to].as_mut() {
            Some(part) => part.signals[id][from].take(),
            None => None,
        }
    }

    /// A value that was taken is not used.
    pub fn signal_give_back(
        &mut self,
        (from, to): (usize, usize),
        window: usize,
        id: usize,
        value: u64,
    ) {
        self.part(window, to).signals[id][from].give_back(value);
    }

    pub fn fence(&mut self, (from, to): (usize, usize)) {
        self.ways[from][to].fences = true;
    }

    /// An operation was accepted; `fence`: it has one of its own.
    fn count(&mut self, (from, to): (usize, usize), fence: bool) -> (u64, u64) {
        let way = &mut self.ways[from][to];
        way.issued += 1;
        if core::mem::take(&mut way.fences) | fence {
            way.epoch += 1;
            self.fences_waited += u64::from(!way.ops.is_empty());
        }
        (way.issued, way.epoch)
    }

    /// An add was accepted that needs all from operation `first` on; its number.
    pub fn issue_needing(
        &mut self,
        (from, to): (usize, usize),
        window: usize,
        signal: (usize, u64),
        first: u64,
    ) -> u64 {
        let number = self.issue((from, to), window, None, Some(signal), true);
        let way = &mut self.ways[from][to];
        if let Some(op) = way.ops.iter_mut().find(|op| op.number == number) {
            op.first = Some(first);
        }
        self.lost.extend(way.needs_look().into_iter().map(|number| (from, to, number)));
        number
    }

    /// A put or signal was accepted; its number.
    pub fn issue(
        &mut self,
        way: (usize, usize),
        window: usize,
        put: Option<Bytes>,
        signal: Option<(usize, u64)>,
        fence: bool,
    ) -> u64 {
        let (number, epoch) = self.count(way, fence);
        let (from, to) = way;
        if self.live(window, to).is_none() {
            self.ways[from][to].refuses = true;
            self.ways[from][to].refused.push(number);
            self.lost.push((from, to, number));
            return number;
        }
        if let Some((ANY, value)) = signal {
            let sum = &mut self.part(window, to).any[from];
            sum.issued = sum.issued.wrapping_add(value);
        }
        if let Some(put) = &put {
            let meets = |get: &Get| {
                let is_before = get.way == way && epoch > get.epoch;
                get.window == window && get.way.1 == to && put.overlaps(&get.range) && !is_before
            };
            for (_, get) in self.gets.iter_mut().filter(|(_, get)| meets(get)) {
                get.puts.push(put.clone());
            }
        }
        let signal = signal.filter(|(id, _)| *id != ANY);
        let (first, may_be_refused) = (None, false);
        let op = Op { number, epoch, window, put, signal, first, may_be_refused };
        self.ways[from][to].ops.push(op);
        number
    }

    /// A get was accepted; its name here.
    pub fn issue_get(&mut self, way: (usize, usize), window: usize, range: Range<usize>) -> u64 {
        let (_, epoch) = self.count(way, false);
        let (from, to) = way;
        let is_refused = self.live(window, to).is_none();
        self.ways[from][to].refuses |= is_refused;
        let mut get = Get {
            way,
            window,
            range: range.clone(),
            epoch,
            before: Vec::new(),
            puts: Vec::new(),
            is_refused,
        };
        if !is_refused {
            get.before = self.part(window, to).content[range.clone()].to_vec();
            for other in 0..2 {
                let ops = self.ways[other][to].ops.iter().filter(|op| op.window == window);
                for op in ops {
                    let Some(put) = op.put.as_ref().filter(|put| put.overlaps(&range)) else {
                        continue;
                    };
                    if other == from && op.epoch < epoch {
                        put.lay(&mut get.before, range.start);
                    } else {
                        get.puts.push(put.clone());
                    }
                }
            }
        }
        self.next_get += 1;
        self.gets.push((self.next_get, get));
        self.next_get
    }

    /// A get has ended, and its buffer holds `bytes`. Whether it may have been refused.
    pub fn get_end(&mut self, name: u64, bytes: &[u8]) -> Result<bool, String> {
        let at = self.gets.iter().position(|(number, _)| *number == name).expect("a get");
        let (_, get) = self.gets.swap_remove(at);
        if get.is_refused {
            return Ok(true);
        }
        let met = |at: usize| {
            let byte = bytes[at];
            let place = get.range.start + at;
            byte == get.before[at] || get.puts.iter().any(|put| put.at(place) == Some(byte))
        };
        match bytes == get.before || (0..bytes.len()).all(met) {
            true => Ok(false),
            false => Err(format!("a get has bytes that were never there: {:?}", get.way)),
        }
    }

    /// What the words of a rank say now: by window, id and the rank that has added. How many
    /// operations were seen for the first time.
    pub fn look(
        &mut self,
        owner: usize,
        read: impl Fn(usize, usize, usize) -> u64,
        arena: &mut Arena,
    ) -> Result<usize, String> {
        let mut seen = Vec::new();
        for window in 0..self.windows.len() {
            if !self.is_open(window, owner) {
                continue;
            }
            for (id, from) in (0..ANY).flat_map(|id| [(id, 0), (id, 1)]) {
                let word = &mut self.part(window, owner).signals[id][from];
                let new = word.look(read(window, id, from));
                let told =
                    |error| format!("signal {id} of window {window} at rank {owner}: {error}");
                self.new_ops((from, owner), (window, id), new.map_err(told)?, &mut seen)
                    .map_err(told)?;
            }
        }
        seen.sort_unstable();
        let of = |rank| seen.iter().filter(|it| it.2 == rank).map(|it| it.0).collect::<Vec<_>>();
        let numbers = [of(0), of(1)];
        for (number, epoch, from) in &seen {
            self.settle((*from, owner), &numbers[*from], arena, |op| {
                op.number == *number || op.epoch < *epoch
            })?;
        }
        Ok(seen.len())
    }

    /// The operations whose values were added to a word just now.
    fn new_ops(
        &self,
        (from, owner): (usize, usize),
        (window, id): (usize, usize),
        new: u64,
        seen: &mut Vec<(u64, u64, usize)>,
    ) -> Result<(), String> {
        let before = seen.len();
        for op in self.ways[from][owner].ops.iter().filter(|op| op.window == window) {
            if op.signal.is_some_and(|(of, value)| of == id && value & new != 0) {
                seen.push((op.number, op.epoch, from));
            }
        }
        match seen.len() - before == new.count_ones() as usize {
            true => Ok(()),
            false => Err(format!("{new:x} was added by nobody")),
        }
    }

    /// These have taken effect. `seen`: those whose signals were.
    fn settle(
        &mut self,
        (from, owner): (usize, usize),
        seen: &[u64],
        arena: &mut Arena,
        has: impl Fn(&Op) -> bool,
    ) -> Result<(), String> {
        // words of a window that is not open at its owner cannot be read yet
        let is_told = |oracle: &Oracle, op: &Op| has(op) && oracle.is_open(op.window, owner);
        let next = |oracle: &Oracle| {
            oracle.ways[from][owner].ops.iter().position(|op| is_told(oracle, op))
        };
        while let Some(at) = next(self) {
            let op = self.ways[from][owner].ops.remove(at);
            if op.signal.is_some() && !seen.contains(&op.number) && !op.may_be_refused {
                return Err(format!(
                    "operation {} of rank {from} at rank {owner} was to have taken effect, and \
                     its signal was not added",
                    op.number
                ));
            }
            if let Some(put) = op.put {
                self.put_check((from, owner), op.window, (op.number, &put), arena)?;
                put.lay(&mut self.part(op.window, owner).content, 0);
            }
        }
        Ok(())
    }

    /// A put has taken effect: its bytes are there, or those of later ones.
    fn put_check(
        &self,
        (from, owner): (usize, usize),
        window: usize,
        (number, put): (u64, &Bytes),
        arena: &mut Arena,
    ) -> Result<(), String> {
        let Some(part) = self.live(window, owner) else { return Ok(()) };
        let there = &arena.bytes(&part.place)[put.range()];
        if there == put.bytes() {
            return Ok(());
        }
        let ops = self.ways[from][owner].ops.iter();
        let later = ops.filter(|op| op.window == window && op.number > number);
        let later: Vec<&Bytes> = later.filter_map(|op| op.put.as_ref()).collect();
        let is_there = |(at, byte): (usize, &u8)| {
            let place = put.range().start + at;
            *byte == put.bytes()[at] || later.iter().any(|put| put.at(place) == Some(*byte))
        };
        match there.iter().enumerate().position(|it| !is_there(it)) {
            None => Ok(()),
            Some(at) => Err(format!(
                "put {number} of {} bytes from rank {from} to window {window} of rank {owner} took \
                 effect, and its byte {at} is not there",
                put.bytes().len()
            )),
        }
    }

    /// A rank has heard that all it issued to another has taken effect, or was refused.
    pub fn flushed(
        &mut self,
        (from, owner): (usize, usize),
        is_refused: bool,
        any: impl Fn(usize) -> u64,
        arena: &mut Arena,
    ) -> Result<(), String> {
        self.settle((from, owner), &[], arena, |_| true)
            .map_err(|error| format!("flush: {error}"))?;
        let way = &mut self.ways[from][owner];
        if way.refuses && !is_refused {
            return Err(format!("flush of rank {from} to {owner} did not tell of a refusal"));
        }
        if is_refused && !way.refuses && !way.may_refuse {
            return Err(format!("flush of rank {from} to {owner} tells of a refusal"));
        }
        (way.refuses, way.may_refuse) = (false, false);
        for window in 0..self.windows.len() {
            let Some(part) = self.live(window, owner).filter(|part| part.is_open) else { continue };
            let Sum { issued, gone } = part.any[from];
            if any(window).wrapping_add(gone) != issued {
                return Err(format!("flush: a signal of window {window} lacks something"));
            }
        }
        Ok(())
    }

    /// An owner sets a signal to zero; what it is now.
    pub fn reset(&mut self, owner: usize, window: usize, id: usize, word: impl Fn(usize) -> u64) {
        let part = self.part(window, owner);
        for from in 0..2 {
            part.signals[id][from].reset();
            if id == ANY {
                part.any[from].gone = part.any[from].gone.wrapping_add(word(from));
            }
        }
    }

    /// A rank looks at its counters; the values of operations that were added.
    pub fn counter_look(
        &mut self,
        (window, rank): (usize, usize),
        id: usize,
        word: u64,
    ) -> Result<u64, String> {
        let new = self.part(window, rank).counters[id].look(word);
        new.map_err(|error| format!("counter {id} of window {window} at rank {rank}: {error}"))
    }

    /// A counter is set to zero.
    pub fn counter_reset(&mut self, (window, rank): (usize, usize), id: usize) {
        self.part(window, rank).counters[id].reset();
    }

    /// Whether a signal may have been added.
    pub fn may_be_added(&self, (from, to): (usize, usize), number: u64) -> bool {
        let op = self.ways[from][to].ops.iter().find(|op| op.number == number);
        let is_waiting = op.is_some_and(|op| op.signal.is_some() && self.is_open(op.window, to));
        !is_waiting && !self.lost.contains(&(from, to, number))
    }

    /// Whether a rank has given up its part of a window.
    pub fn is_freed(&self, window: usize, rank: usize) -> bool {
        self.live(window, rank).is_none()
    }

    /// A rank comes to a barrier.
    pub fn enter(&mut self, rank: usize, window: usize, id: usize) {
        for to in 0..2 {
            self.ways[rank][to].fences = false;
            self.count((rank, to), true);
        }
        let at = [0, 1].map(|to: usize| self.ways[rank][to].issued);
        let part = self.part(window, rank);
        part.entered[id] += 1;
        part.came_at[id] = at;
    }

    /// A rank goes on from a barrier.
    pub fn pass(
        &mut self,
        rank: usize,
        window: usize,
        id: usize,
        arena: &mut Arena,
    ) -> Result<(), String> {
        let times = self.part(window, rank).entered[id];
        self.part(window, rank).passed[id] = times;
        for from in 0..2 {
            let part = self.part(window, from);
            if part.entered[id] < times {
                return Err(format!("rank {rank} passed barrier {id} before rank {from} came"));
            }
            let through = part.came_at[id][rank];
            let is_last = part.entered[id] == times;
            if is_last {
                self.settle((from, rank), &[], arena, |op| op.number <= through)
                    .map_err(|error| format!("barrier: {error}"))?;
            }
        }
        Ok(())
    }

    /// Whether both ranks have their part of a window.
    pub fn is_whole(&self, window: usize) -> bool {
        (0..2).all(|rank| self.live(window, rank).is_some())
    }

    /// Barriers that the other rank has come to more often than this one.
    pub fn missing(&self, rank: usize, window: usize) -> Vec<usize> {
        let (Some(here), Some(there)) = (self.live(window, rank), self.live(window, 1 - rank))
        else {
            return Vec::new();
        };
        (0..IDS).filter(|id| here.entered[*id] < there.entered[*id]).collect()
    }

    /// Whether a rank may give up a window: nobody waits at its barriers.
    pub fn is_idle(&self, window: usize) -> bool {
        let [Some(a), Some(b)] = &self.windows[window] else { return false };
        a.entered == b.entered && a.passed == a.entered && b.passed == b.entered
    }

    /// An owner has given up a window: what was not seen is refused.
    pub fn free(&mut self, owner: usize, window: usize, arena: &mut Arena) -> Result<(), String> {
        self.part_check(owner, window, arena)?;
        for from in 0..2 {
            let way = &mut self.ways[from][owner];
            for op in way.ops.iter().filter(|op| op.window == window) {
                way.refuses |= op.signal.is_some();
                self.lost.extend(op.signal.map(|_| (from, owner, op.number)));
                way.may_refuse = true;
                match op.signal {
                    Some(_) => way.refused.push(op.number),
                    None => way.doubtful.push(op.number),
                }
            }
            way.ops.retain(|op| op.window != window);
            self.lost.extend(way.needs_look().into_iter().map(|number| (from, owner, number)));
        }
        for (_, get) in &mut self.gets {
            if get.window == window && get.way.1 == owner {
                get.is_refused = true;
                self.ways[get.way.0][owner].may_refuse = true;
            }
        }
        self.part(window, owner).is_freed = true;
        Ok(())
    }

    /// Compares a part of a window with what must be there, and may be.
    pub fn part_check(&self, owner: usize, window: usize, arena: &mut Arena) -> Result<(), String> {
        let Some(part) = self.live(window, owner) else { return Ok(()) };
        let there = arena.bytes(&part.place);
        if there == part.content {
            return Ok(());
        }
        let ops = self.ways.iter().flat_map(|ways| &ways[owner].ops);
        let puts = ops.filter(|op| op.window == window).filter_map(|op| op.put.as_ref());
        let puts: Vec<&Bytes> = puts.collect();
        let is_right = |at: usize| {
            let byte = there[at];
            byte == part.content[at] || puts.iter().any(|put| put.at(at) == Some(byte))
        };
        match (0..there.len()).find(|at| !is_right(*at)) {
            None => Ok(()),
            Some(at) => {
                Err(format!("byte {at} of window {window} at rank {owner} was written by nobody"))
            }
        }
    }

    /// What was not seen to take effect, for a report.
    pub fn debts(&self) -> String {
        let of = |(from, to): (usize, usize)| {
            let ops = self.ways[from][to].ops.iter();
            let gets = self.gets.iter().filter(|(_, get)| get.way == (from, to)).count();
            let numbers: Vec<u64> = ops.map(|op| op.number).take(8).collect();
            format!("rank {from} to {to}: operations {numbers:?}, {gets} gets")
        };
        [(0, 0), (0, 1), (1, 0), (1, 1)].map(of).join("; ")
    }
}
