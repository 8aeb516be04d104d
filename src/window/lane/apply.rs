//! What records of the peer's do here, and the answers to them.

use super::{Arriving, Asked, GetState, Lane, Leaving, Way, What, Why};
use crate::transport::RequestError;
use crate::window::memory::{Span, WORD};
use crate::window::mutant::Mutant;
use crate::window::refusals::Refused;
use crate::window::table::Table;
use crate::window::ticket::first_needed;
use crate::wire::one_sided::{
    APART, INLINE_BYTES_MAX, REFUSED, Record, RecordKind, Refusal, SIGNAL,
};

/// A record that says nothing but its kind.
const EMPTY: Record = Record {
    kind: RecordKind::Got,
    flags: 0,
    id: 0,
    window: 0,
    generation: 0,
    offset: 0,
    length: 0,
    value: 0,
};

impl<L: Copy + core::fmt::Debug> Lane<L> {
    /// Lets a record take effect, or receives the bytes first that it needs.
    #[inline]
    pub(super) fn record_take(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        (record, inline): (&Record, Span),
        reaches_device: impl Fn() -> bool,
    ) -> Result<(), RequestError> {
        let applied = match record.kind {
            RecordKind::Put => self.put_take(rank, table, (record, inline), reaches_device),
            RecordKind::Signal => table.signal_add(rank, record),
            RecordKind::Arrive => table.arrive(rank, record),
            RecordKind::Add => self.add_take(table, record, reaches_device),
            RecordKind::Get => {
                // the answer has the refusal, too
                self.asks.push(*record);
                Ok(())
            }
            RecordKind::Got => return self.got_take(record, inline),
            RecordKind::Refused => {
                let (first, last) = (record.offset, record.offset.saturating_add(record.length));
                if first == 0 || last > self.issued {
                    return Err(RequestError::Protocol);
                }
                self.refused_take(first, last, Refusal::from_wire(record.value));
                Ok(())
            }
            RecordKind::Share => {
                table.share_take(rank, record);
                Ok(())
            }
        };
        if let Err(refusal) = applied {
            self.refusals.keep(self.taken, refusal);
        }
        Ok(())
    }

    fn put_take(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        (record, inline): (&Record, Span),
        reaches_device: impl Fn() -> bool,
    ) -> Result<(), Refusal> {
        let is_apart = record.flags & APART != 0;
        let signal = (record.flags & SIGNAL != 0).then_some((record.id, record.value));
        let memory = match table.memory_for(record) {
            _ if signal.is_some_and(|(id, _)| !table.has_signal(id)) => Err(Refusal::Id),
            Ok(memory) if memory.is_read_only => Err(Refusal::ReadOnly),
            Ok(memory) if memory.is_device && record.length != 0 => {
                if is_apart && reaches_device() { Ok(memory) } else { Err(Refusal::Memory) }
            }
            memory => memory,
        }
        .copied();
        if is_apart {
            let (region, address, length, what) = match &memory {
                Ok(memory) => {
                    let mut later = signal;
                    if self.is_mutant(Mutant::SignalAtRecord)
                        && let Some((id, value)) = later.take()
                    {
                        table.signal_add_at(rank, record.window, id, value)?;
                    }
                    let what = What::Put { window: record.window, signal: later };
                    table.transfer_count(record.window, true);
                    (memory.region, memory.address + record.offset, record.length, what)
                }
                // they come all the same
                Err(_) => (Default::default(), 0, 0, What::Nothing),
            };
            let number = self.taken;
            self.arriving.push(Arriving { way: Way::Waits, region, address, length, number, what });
            return memory.map(|_| ());
        }
        let memory = memory?;
        memory.bytes.part(record.offset, record.length).copy_from(inline);
        match signal {
            Some((id, value)) => table.signal_add_at(rank, record.window, id, value),
            None => Ok(()),
        }
    }

    fn add_take(
        &mut self,
        table: &mut Table<'_>,
        record: &Record,
        reaches_device: impl Fn() -> bool,
    ) -> Result<(), Refusal> {
        // no word grows that says that bytes are there which are not
        let refused = self.refusals.since(first_needed(self.taken, record.id));
        if let Some(refusal) = refused.filter(|_| !self.is_mutant(Mutant::RefusalIgnored)) {
            return Err(refusal);
        }
        let memory = *table.memory_for(record)?;
        let address = memory.address + record.offset;
        if record.length != WORD || !address.is_multiple_of(WORD) {
            return Err(Refusal::Range);
        }
        if memory.is_read_only {
            return Err(Refusal::ReadOnly);
        }
        if !memory.is_device {
            memory.bytes.part(record.offset, WORD).add(record.value);
            return Ok(());
        }
        if !reaches_device() {
            return Err(Refusal::Memory);
        }
        table.transfer_count(record.window, true);
        self.arriving.push(Arriving {
            way: Way::Waits,
            region: memory.region,
            address,
            length: WORD,
            number: self.taken,
            what: What::Add { window: record.window, value: record.value },
        });
        Ok(())
    }

    /// Records of ours were refused: their counters do not grow.
    fn refused_take(&mut self, first: u64, last: u64, refusal: Refusal) {
        self.heard.take(Refused { first, last, why: refusal });
        for at in 0..self.counting.count() {
            match self.counting.get_mut(at) {
                Some((number, count)) if (first..=last).contains(number) => count.value = 0,
                _ => {}
            }
        }
    }

    /// An answer to the oldest get of ours that has none.
    fn got_take(&mut self, record: &Record, inline: Span) -> Result<(), RequestError> {
        let waiting = self.gets.iter().position(|get| get.state == GetState::Waiting);
        let get = waiting.and_then(|at| self.gets.get_mut(at)).ok_or(RequestError::Protocol)?;
        get.state = GetState::Coming;
        let Asked { number, region, address, length, bytes, is_apart, .. } = *get;
        if record.flags & REFUSED != 0 {
            let refusal = Refusal::from_wire(record.value);
            self.heard.take_get(number, refusal);
            self.refused_take(number, number, refusal);
        } else if record.length != length || (is_apart && record.flags & APART == 0) {
            return Err(RequestError::Protocol);
        } else if record.flags & APART != 0 {
            let (number, what) = (self.taken, What::Answer);
            self.arriving.push(Arriving { way: Way::Waits, region, address, length, number, what });
            return Ok(());
        } else {
            bytes.part(0, length).copy_from(inline);
        }
        // answers come in order, but bytes apart of earlier ones may be on their way
        match self.gets.get_mut(waiting.unwrap_or_default()) {
            Some(get) => get.state = GetState::Done,
            None => return Err(RequestError::Protocol),
        }
        self.gets_forget();
        Ok(())
    }

    /// Answers gets of the peer's, and tells it what was refused, as far as there is room.
    pub(super) fn answers_step(
        &mut self,
        table: &mut Table<'_>,
        reaches_device: impl Fn() -> bool,
    ) {
        while let Some(Refused { first, last, why }) = self.refusals.front() {
            if !self.outbox.has_room(EMPTY.frame_bytes()) {
                return;
            }
            self.refusals.pop();
            let (offset, length, value) = (first, last - first, why as u64);
            let refused = Record { kind: RecordKind::Refused, offset, length, value, ..EMPTY };
            self.issue(&refused, Span::EMPTY);
        }
        while let Some(ask) = self.asks.front().copied() {
            let mut got = Record { length: ask.length, ..EMPTY };
            let memory = table.memory_for(&ask).copied();
            match &memory {
                Ok(_) if ask.length == 0 => {}
                Ok(memory) if memory.is_device && !reaches_device() => {
                    (got.flags, got.value) = (REFUSED, Refusal::Memory as u64);
                }
                Err(refusal) => (got.flags, got.value) = (REFUSED, *refusal as u64),
                Ok(memory) => {
                    let is_apart = memory.is_device
                        || ask.flags & APART != 0
                        || ask.length > INLINE_BYTES_MAX as u64;
                    got.flags = if is_apart { APART } else { 0 };
                }
            }
            let has_room = self.outbox.has_room(got.frame_bytes());
            if !has_room || (got.is_apart() && self.leaving.is_full()) {
                return;
            }
            self.asks.pop();
            let mut inline = Span::EMPTY;
            if let Ok(memory) = memory {
                if got.is_apart() {
                    table.transfer_count(ask.window, true);
                    self.leaving.push(Leaving {
                        request: None,
                        region: memory.region,
                        address: memory.address + ask.offset,
                        length: ask.length,
                        why: Why::Answer(ask.window),
                        count: None,
                    });
                } else if got.flags & REFUSED == 0 {
                    inline = memory.bytes.part(ask.offset, ask.length);
                }
            }
            self.issue(&got, inline);
        }
    }
}
