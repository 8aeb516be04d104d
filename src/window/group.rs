//! The group: what its user calls. Nothing here blocks, and nothing looks at a clock.
#![forbid(unsafe_code)]

use super::carrier::Carrier;
use super::error::WindowError;
use super::inbox::Inbox;
use super::lane::{Asked, GetState, Lane, Leaving, Links, Why};
use super::limits::Limits;
use super::memory::{Span, WORD};
use super::outbox::{FRAMES, Outbox};
use super::table::{Count, Share, Slot, Table, WindowMemory};
use super::ticket::{After, Ticket};
use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::slab::Handle;
use crate::transport::{RequestError, SubmitError};
use crate::wire::one_sided::{
    APART, DEVICE, FENCE, FRAME_BYTES, INLINE_BYTES_MAX, READ_ONLY, RECORD_BYTES, Record,
    RecordKind, SIGNAL,
};

/// A buffer of this rank's, inside registered memory.
#[derive(Copy, Clone, Debug)]
pub struct Local {
    /// The region that it lies in; not looked at when there are no bytes.
    pub region: Handle,
    /// Its first byte.
    pub address: u64,
    /// Its length.
    pub length: u64,
    /// The same memory for short copies by the CPU, if that reaches it: it is not looked at where
    /// the region is a GPU's.
    pub bytes: Span,
}

/// Where a put goes, and what it does beside.
#[derive(Copy, Clone, Debug)]
pub struct Put {
    /// The window.
    pub window: Handle,
    /// Whose part of it.
    pub rank: u32,
    /// Where in that part.
    pub offset: u64,
    /// A signal of the window at that rank, which grows by the value once the bytes are there.
    pub signal: Option<(u16, u64)>,
    /// A counter of the window at this rank, which grows by the value once the local buffer may be
    /// used again.
    pub counter: Option<(u16, u64)>,
}

/// A counter that a NIC adds to.
#[derive(Copy, Clone, Debug)]
pub struct Word {
    at: u32,
    window: u16,
    /// Where it lies.
    pub address: u64,
}

/// What flush asks.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Flushed {
    /// All has taken effect.
    Done,
    /// Not yet, at this rank first.
    Waiting(u32),
}

impl Limits {
    /// Bytes of the block beside its frames.
    pub const fn state_bytes<L>(&self) -> usize {
        let windows = self.windows_max as usize;
        let shares = windows * self.ranks as usize;
        bytes_for::<Lane<L>>(self.ranks as usize)
            + bytes_for::<Slot>(windows)
            + 2 * bytes_for::<Share>(shares)
            + bytes_for::<u64>(self.words(self.signals_max))
            + bytes_for::<u64>(windows * self.counters_max as usize)
            + bytes_for::<u64>(self.words(self.barriers_max))
            + bytes_for::<u64>(windows * self.barriers_max as usize)
    }
}

/// A group of ranks, as one of them sees it. `L` names connections of the carrier.
#[derive(Debug)]
pub struct Group<'m, L> {
    rank: u32,
    table: Table<'m>,
    lanes: &'m mut [Lane<L>],
    /// Something was issued since it was handed over.
    has_issued: bool,
}

impl<'m, L: Copy + core::fmt::Debug> Group<'m, L> {
    /// Cuts a group out of a block, as [`Limits::state_bytes`] counts. `frames` has
    /// [`Limits::frames_bytes`], and lies in `region`; `links` gives the connections to each rank.
    pub fn open(
        block: &mut Carver<'m>,
        limits: Limits,
        rank: u32,
        (frames, region): (Span, Handle),
        mut links: impl FnMut(u32) -> Links<L>,
    ) -> Result<Group<'m, L>, BlockTooSmall> {
        let table = Table::carve(block, limits)?;
        let mut other = 0;
        let half = (FRAMES * FRAME_BYTES) as u64;
        let lanes = block.filled_with(limits.ranks as usize, || {
            let start = u64::from(other) * 2 * half;
            let outbox = Outbox::new(frames.part(start, half), region);
            let inbox = Inbox::new(frames.part(start + half, half), region);
            let lane = Lane::new(links(other), outbox, inbox);
            other += 1;
            lane
        })?;
        Ok(Group { rank, table, lanes, has_issued: false })
    }

    /// This rank's number.
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// What it was opened with.
    pub const fn limits(&self) -> Limits {
        self.table.limits()
    }

    /// How many ranks there are.
    pub const fn ranks(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// Posts the receives of all frames: peers may send from then on.
    pub fn begin<C: Carrier<Link = L>>(&mut self, carrier: &mut C) -> Result<(), WindowError> {
        for (rank, lane) in self.lanes.iter_mut().enumerate() {
            let posted = lane.post(carrier);
            posted.map_err(|error| WindowError::Failed(rank as u32, error))?;
        }
        Ok(())
    }

    /// Hands over what was issued, and applies what has come. The carrier makes its own progress.
    #[inline]
    pub fn step<C: Carrier<Link = L>>(&mut self, carrier: &mut C) {
        for (rank, lane) in self.lanes.iter_mut().enumerate() {
            let rank = rank as u32;
            if rank != self.rank || !lane.is_silent() {
                lane.step(rank, &mut self.table, carrier);
            }
        }
    }

    /// Hands over what was issued, as [`Group::step`] does, and looks at nothing else: before the
    /// carrier looks for what has come, which takes as long as a short message.
    #[inline]
    pub fn send<C: Carrier<Link = L>>(&mut self, carrier: &mut C) {
        if !core::mem::take(&mut self.has_issued) {
            return;
        }
        for (rank, lane) in self.lanes.iter_mut().enumerate() {
            lane.send(rank as u32, &mut self.table, carrier);
        }
    }

    /// Has a peer that asks told what has taken effect so many steps later, unless a record carries
    /// it before: for users that step again soon.
    pub fn tell_later(&mut self, steps: u8) {
        self.lanes.iter_mut().for_each(|lane| lane.delay.steps = steps);
    }

    /// The first rank whose connection has failed.
    pub fn failed(&self) -> Option<(u32, RequestError)> {
        let failed = |(rank, lane): (usize, &Lane<L>)| Some((rank as u32, lane.failed?));
        self.lanes.iter().enumerate().find_map(failed)
    }

    /// Why the connection to a rank has failed, if it has.
    pub fn failure_of(&self, rank: u32) -> Result<(), WindowError> {
        let lane = self.lanes.get(rank as usize).ok_or(WindowError::Rank)?;
        lane.failed.map_or(Ok(()), |error| Err(WindowError::Failed(rank, error)))
    }

    /// Makes a window of registered memory. It can be used after its exchange.
    pub fn register(&mut self, memory: WindowMemory) -> Result<Handle, WindowError> {
        self.table.register(memory)
    }

    /// Begins the exchange of a window, once however often it is called before the exchange has
    /// ended: every rank does, in the same order of windows.
    pub fn exchange_begin(&mut self, window: Handle) -> Result<(), WindowError> {
        if self.table.is_exchanging(window)? {
            return Ok(());
        }
        self.have_room(false)?;
        let share = self.table.exchange_begin(window)?;
        self.tell_all(&share);
        Ok(())
    }

    /// Tells each rank what of its has taken effect, asked or not: it cannot ask any more. For who
    /// closes, before [`Group::is_unsent`].
    pub fn tell_all_applied(&mut self) {
        self.lanes.iter_mut().for_each(Lane::tell_always);
    }

    /// Whether records wait for room, bytes have not left, or a rank waits to be told.
    pub fn is_unsent(&self) -> bool {
        self.lanes.iter().any(|lane| lane.failed.is_none() && lane.is_unsent())
    }

    /// Whether all ranks have come to the exchange of a window: `Waiting` has the first that has
    /// not. `Failed`: the connection to that one has failed.
    pub fn exchange_look(&mut self, window: Handle) -> Result<Flushed, WindowError> {
        match self.table.exchange_look(window)? {
            Ok(()) => Ok(Flushed::Done),
            Err(rank) => self.failure_of(rank).map(|()| Flushed::Waiting(rank)),
        }
    }

    /// Gives up a window: peers are refused. `Again`: their transfers are under way in its memory.
    pub fn free(&mut self, window: Handle) -> Result<(), WindowError> {
        if let Ok(Some(withdrawal)) = self.table.withdrawal(window) {
            self.have_room(false)?;
            self.tell_all(&withdrawal);
        }
        self.table.free(window)
    }

    /// Whether a record can be issued to all ranks now.
    fn have_room(&self, has_fence: bool) -> Result<(), WindowError> {
        let can_issue =
            |lane: &Lane<L>| lane.failed.is_some() || lane.can_issue(RECORD_BYTES, has_fence);
        if self.lanes.iter().all(can_issue) { Ok(()) } else { Err(WindowError::Again) }
    }

    /// Issues a record to all ranks, which have room.
    fn tell_all(&mut self, record: &Record) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.failed.is_none()) {
            lane.issue(record, Span::EMPTY);
        }
    }

    /// The first rank whose connection failed before counters of this rank had grown.
    pub fn failed_counts(&self) -> Option<(u32, RequestError)> {
        let lost = |(_, lane): &(usize, &Lane<L>)| lane.has_lost_counts();
        let (rank, lane) = self.lanes.iter().enumerate().find(lost)?;
        Some((rank as u32, lane.failed?))
    }

    /// The memory of this rank's part of a window.
    pub fn memory(&self, window: Handle) -> Result<WindowMemory, WindowError> {
        self.table.memory(window).copied()
    }

    /// Bytes of a rank's part of a window.
    pub fn length(&self, window: Handle, rank: u32) -> Result<u64, WindowError> {
        Ok(self.table.share(window, rank)?.length)
    }

    fn lane(&mut self, rank: u32) -> Result<&mut Lane<L>, WindowError> {
        self.has_issued = true;
        let lane = self.lanes.get_mut(rank as usize).ok_or(WindowError::Rank)?;
        lane.failed.map_or(Ok(()), |error| Err(WindowError::Failed(rank, error)))?;
        Ok(lane)
    }

    /// A record for a rank's part of a window, whose range is inside.
    fn record(
        &self,
        kind: RecordKind,
        (window, rank): (Handle, u32),
        (offset, length): (u64, u64),
    ) -> Result<(Record, u8, u16), WindowError> {
        let share = self.table.share(window, rank)?;
        if offset > share.length || length > share.length - offset {
            return Err(WindowError::Range(share.length));
        }
        let (window, generation) = (share.window, share.generation);
        let record = Record { kind, flags: 0, id: 0, window, generation, offset, length, value: 0 };
        Ok((record, share.flags, share.signals))
    }

    /// Puts the bytes of a local buffer into a rank's part of a window.
    #[inline]
    pub fn put<C: Carrier<Link = L>>(
        &mut self,
        carrier: &C,
        put: &Put,
        local: &Local,
    ) -> Result<Ticket, WindowError> {
        let target = (put.window, put.rank);
        let (mut record, flags, signals) =
            self.record(RecordKind::Put, target, (put.offset, local.length))?;
        if flags & READ_ONLY != 0 {
            return Err(WindowError::ReadOnly);
        }
        if let Some((id, value)) = put.signal {
            if id >= signals {
                return Err(WindowError::Id);
            }
            (record.flags, record.id, record.value) = (SIGNAL, id, value);
        }
        let count = self.count(put.window, put.counter)?;
        let is_apart = self.is_apart(carrier, put.rank, local, flags)?;
        let lane = self.lane(put.rank)?;
        if is_apart {
            record.flags |= APART;
        }
        let can_issue = lane.can_issue(record.frame_bytes(), lane.fences);
        if !can_issue || (is_apart && lane.leaving.is_full()) {
            return Err(WindowError::Again);
        }
        if core::mem::take(&mut lane.fences) {
            record.flags |= FENCE;
        }
        let number = lane.issue(&record, if is_apart { Span::EMPTY } else { local.bytes });
        if is_apart {
            lane.leaving.push(Leaving {
                request: None,
                region: local.region,
                address: local.address,
                length: local.length,
                why: Why::Put(number),
                count,
            });
        } else if let Some(count) = count {
            self.table.counter_add(count);
        }
        Ok(Ticket::new(put.rank, number))
    }

    fn count(
        &self,
        window: Handle,
        counter: Option<(u16, u64)>,
    ) -> Result<Option<Count>, WindowError> {
        let Some((id, value)) = counter else { return Ok(None) };
        let at = self.table.counter_at(window, id)?;
        Ok(Some(Count { at, generation: window.generation, value }))
    }

    /// Gets bytes of a rank's part of a window into a local buffer. They are there when the ticket
    /// has ended.
    pub fn get<C: Carrier<Link = L>>(
        &mut self,
        carrier: &C,
        (window, rank): (Handle, u32),
        offset: u64,
        local: &Local,
    ) -> Result<Ticket, WindowError> {
        let (mut record, flags, _) =
            self.record(RecordKind::Get, (window, rank), (offset, local.length))?;
        let is_apart = self.is_apart(carrier, rank, local, flags)?;
        if is_apart {
            record.flags |= APART;
        }
        let lane = self.lane(rank)?;
        if !lane.can_issue(record.frame_bytes(), lane.fences) || lane.gets.is_full() {
            return Err(WindowError::Again);
        }
        if core::mem::take(&mut lane.fences) {
            record.flags |= FENCE;
        }
        let number = lane.issue(&record, Span::EMPTY);
        let Local { region, address, length, bytes } = *local;
        let state = GetState::Waiting;
        lane.gets.push(Asked { number, region, address, length, bytes, is_apart, state });
        Ok(Ticket::new(rank, number))
    }

    /// Adds to a signal of a window at a rank. With `fence`, after all that was issued to the rank
    /// before has taken effect; without, it may pass puts. A counter grows once the signal has.
    #[inline]
    pub fn signal(
        &mut self,
        (window, rank): (Handle, u32),
        (id, value): (u16, u64),
        fence: bool,
        counter: Option<(u16, u64)>,
    ) -> Result<Ticket, WindowError> {
        let (mut record, _, signals) = self.record(RecordKind::Signal, (window, rank), (0, 0))?;
        if id >= signals {
            return Err(WindowError::Id);
        }
        (record.id, record.value) = (id, value);
        let count = self.count(window, counter)?;
        let lane = self.lane(rank)?;
        let can_issue = lane.can_issue(record.frame_bytes(), fence || lane.fences);
        if !can_issue || (count.is_some() && lane.counting.is_full()) {
            return Err(WindowError::Again);
        }
        if core::mem::take(&mut lane.fences) || fence {
            record.flags |= FENCE;
        }
        let number = lane.issue(&record, Span::EMPTY);
        if let Some(count) = count {
            lane.counting.push((number, count));
            (lane.wants_applied, lane.is_quiet) = (true, false);
        }
        Ok(Ticket::new(rank, number))
    }

    /// Adds to an aligned word of 8 bytes in a rank's part of a window, modulo 2^64. After nothing,
    /// it may pass puts to memory of the host.
    pub fn add(
        &mut self,
        (window, rank): (Handle, u32),
        offset: u64,
        value: u64,
        after: After,
    ) -> Result<Ticket, WindowError> {
        let (mut record, flags, _) =
            self.record(RecordKind::Add, (window, rank), (offset, WORD))?;
        if !offset.is_multiple_of(WORD) {
            return Err(WindowError::Range(self.length(window, rank)?));
        }
        if flags & READ_ONLY != 0 {
            return Err(WindowError::ReadOnly);
        }
        let lane = self.lane(rank)?;
        let needs = after.needs(rank, lane.issued).ok_or(WindowError::Rank)?;
        (record.id, record.value) = (needs, value);
        let fence = after != After::Nothing;
        if !lane.can_issue(record.frame_bytes(), fence || lane.fences) {
            return Err(WindowError::Again);
        }
        // an owner adds to words of GPUs after all bytes before, and need not stop reading for it
        if core::mem::take(&mut lane.fences) || (fence && flags & DEVICE == 0) {
            record.flags |= FENCE;
        }
        let number = lane.issue(&record, Span::EMPTY);
        Ok(Ticket::new(rank, number))
    }

    /// Whether an operation has taken effect at its rank; asks that rank to say so. What was
    /// refused counts, too: see [`Group::refusal_of`].
    pub fn is_applied(&mut self, ticket: Ticket) -> Result<bool, WindowError> {
        let rank = ticket.rank();
        let lane = self.lanes.get_mut(rank as usize).ok_or(WindowError::Rank)?;
        if ticket.number() > lane.issued {
            return Err(WindowError::Rank);
        }
        if lane.is_applied(ticket.number()) {
            return Ok(true);
        }
        lane.failed.map_or(Ok(false), |error| Err(WindowError::Failed(rank, error)))
    }

    /// Why an operation that counts as applied was refused, if it was. Of one that 1024 others came
    /// after: if it may have been.
    pub fn refusal_of(&self, ticket: Ticket) -> Option<WindowError> {
        Some(self.lanes.get(ticket.rank() as usize)?.heard.of(ticket.number())?.into())
    }

    /// Has what is issued to a rank from now on take effect after all that was issued before.
    pub fn fence(&mut self, rank: u32) -> Result<(), WindowError> {
        self.lane(rank)?.fences = true;
        Ok(())
    }

    /// Whether the local buffer of an operation may be used again. An error: the operation was
    /// refused, or the connection has failed before it ended.
    pub fn is_local_done(&self, ticket: Ticket) -> Result<bool, WindowError> {
        let lane = self.lanes.get(ticket.rank() as usize).ok_or(WindowError::Rank)?;
        if ticket.number() > lane.issued {
            return Err(WindowError::Rank);
        }
        if ticket.number() <= lane.local_through() {
            return lane.heard.of_get(ticket.number()).map_or(Ok(true), |why| Err(why.into()));
        }
        lane.failed.map_or(Ok(false), |error| Err(WindowError::Failed(ticket.rank(), error)))
    }

    /// The same; an error also where its rank is known to have refused it, as it is after a flush.
    pub fn has_ended(&self, ticket: Ticket) -> Result<bool, WindowError> {
        let has_ended = self.is_local_done(ticket)?;
        let refusal = self.refusal_of(ticket).filter(|_| has_ended);
        refusal.map_or(Ok(has_ended), Err)
    }

    /// Asks a rank to say when all that was issued to it has taken effect, and whether it has; then
    /// local buffers may be used again, too. An error: something was refused since the last flush;
    /// the rest has taken effect. `Failed`: the connection failed before it was known that all had.
    pub fn flush(&mut self, rank: u32) -> Result<Flushed, WindowError> {
        let lane = self.lanes.get_mut(rank as usize).ok_or(WindowError::Rank)?;
        let has_ended = lane.applied == lane.issued && lane.local_through() == lane.issued;
        if has_ended {
            let refusal = lane.heard.first.take();
            return refusal.map_or(Ok(Flushed::Done), |(_, refusal)| Err(refusal.into()));
        }
        if let Some(error) = lane.failed {
            return Err(WindowError::Failed(rank, error));
        }
        self.has_issued = true;
        lane.is_applied(lane.issued);
        Ok(Flushed::Waiting(rank))
    }

    /// A signal of this rank: the sum of what all ranks have added.
    #[inline]
    pub fn signal_read(&self, window: Handle, id: u16) -> Result<u64, WindowError> {
        self.table.signal(window, id)
    }

    /// A signal of this rank: what one rank has added.
    #[inline]
    pub fn signal_read_from(&self, window: Handle, id: u16, rank: u32) -> Result<u64, WindowError> {
        self.table.signal_from(window, id, rank)
    }

    /// Sets a signal of this rank to zero. What was applied before is gone; what is applied later,
    /// also what is on its way now, counts from zero.
    pub fn signal_reset(&mut self, window: Handle, id: u16) -> Result<(), WindowError> {
        self.table.signal_reset(window, id)
    }

    /// A counter of this rank.
    #[inline]
    pub fn counter_read(&self, window: Handle, id: u16) -> Result<u64, WindowError> {
        self.table.counter(self.table.counter_at(window, id)?)
    }

    /// Sets a counter of this rank to zero; operations that have not ended add to it later.
    pub fn counter_reset(&mut self, window: Handle, id: u16) -> Result<(), WindowError> {
        let at = self.table.counter_at(window, id)?;
        self.table.counter_reset(at);
        Ok(())
    }

    /// A counter of this rank as a word that a NIC adds to. The window stays until
    /// [`Group::word_end`].
    pub fn word_begin(&mut self, window: Handle, id: u16) -> Result<Word, WindowError> {
        let at = self.table.counter_at(window, id)?;
        self.table.transfer_count(window.index as u16, true);
        Ok(Word { at, window: window.index as u16, address: self.table.counter_address(at) })
    }

    /// The NIC has added, or will not; or nobody knows whether it has.
    pub fn word_end(&mut self, word: Word, is_known: bool) {
        self.table.transfer_count(word.window, false);
        if !is_known {
            self.table.count_lost(word.at);
        }
    }

    /// Comes to a barrier of a window, once however often it is called before the barrier is
    /// passed. Each rank has seen all that the others had issued before they came.
    pub fn barrier_enter(&mut self, window: Handle, id: u16) -> Result<(), WindowError> {
        self.have_room(true)?;
        if !self.table.barrier_enter(window, id)? {
            return Ok(());
        }
        for rank in 0..self.ranks() {
            let (record, _, _) = self.record(RecordKind::Arrive, (window, rank), (0, 0))?;
            let lane = &mut self.lanes[rank as usize];
            if lane.failed.is_none() {
                lane.fences = false;
                lane.issue(&Record { id, flags: FENCE, ..record }, Span::EMPTY);
            }
        }
        Ok(())
    }

    /// Whether all ranks have come to a barrier; `Waiting` has the first that has not. `Failed`:
    /// the connection to that one has failed.
    pub fn barrier_look(&mut self, window: Handle, id: u16) -> Result<Flushed, WindowError> {
        match self.table.barrier_missing(window, id)? {
            None => Ok(Flushed::Done),
            Some(rank) => self.failure_of(rank).map(|()| Flushed::Waiting(rank)),
        }
    }

    /// Plants a fault in what comes to this rank.
    #[cfg(feature = "proof")]
    pub fn mutant_set(&mut self, mutant: Option<super::mutant::Mutant>) {
        self.lanes.iter_mut().for_each(|lane| lane.mutant = mutant);
    }

    /// Whether the bytes of a local buffer travel apart from their record, to or from a part of a
    /// window with `flags`. Checks the buffer.
    #[inline]
    fn is_apart<C: Carrier<Link = L>>(
        &self,
        carrier: &C,
        rank: u32,
        local: &Local,
        flags: u8,
    ) -> Result<bool, WindowError> {
        if local.length == 0 {
            return Ok(false);
        }
        let located = carrier.locate(local.region, local.address, local.length);
        let is_device = located.map_err(WindowError::Buffer)? || flags & DEVICE != 0;
        let lane = self.lanes.get(rank as usize).ok_or(WindowError::Rank)?;
        if is_device && lane.failed.is_none() && !carrier.reaches_device(lane.links.bytes_out) {
            return Err(WindowError::Buffer(SubmitError::Device));
        }
        Ok(is_device || local.length > INLINE_BYTES_MAX as u64)
    }
}
