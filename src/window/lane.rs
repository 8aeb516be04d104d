//! One rank's traffic with one other rank: records and bytes in both directions.
#![forbid(unsafe_code)]

mod apply;
mod transfer;

use super::carrier::{AddError, Carrier};
use super::fifo::Fifo;
use super::inbox::{Inbox, Read};
use super::memory::Span;
use super::mutant::Mutant;
use super::outbox::{Due, Left, Outbox, TAG};
use super::refusals::{Heard, Refusals};
use super::table::{Count, Table};
use crate::transport::{Incoming, Outgoing, RequestError, SubmitError};
use crate::wire::one_sided::{FENCE, FrameHead, Record, RecordKind};
use transfer::{Arriving, Way, What};
pub(super) use transfer::{Asked, GetState, Leaving, TRANSFERS, Why};

/// Operations whose counter waits until the peer has applied them.
pub(super) const COUNTING: usize = 64;
/// Records that are applied before the peer is told without having asked.
const TELL_EACH: u64 = 64;

/// The connections of a pair of ranks. Both directions of a connection are one, but where a rank
/// is connected with itself.
#[derive(Copy, Clone, Debug)]
pub struct Links<L> {
    /// Carries frames to the peer.
    pub frames_out: L,
    /// Carries the peer's frames.
    pub frames_in: L,
    /// Carries bytes to the peer.
    pub bytes_out: L,
    /// Carries the peer's bytes.
    pub bytes_in: L,
}

/// For how many steps without a new record the peer is not told what has taken effect, although it
/// has asked: a record of this rank's that is issued meanwhile carries it.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Delay {
    pub steps: u8,
    left: u8,
}

/// What travels between this rank and another.
#[derive(Debug)]
pub(super) struct Lane<L> {
    pub links: Links<L>,
    pub outbox: Outbox,
    inbox: Inbox,
    /// Our records: how many there are, and how many have taken effect at the peer.
    pub issued: u64,
    pub applied: u64,
    /// The peer's records: how many were taken in, told as applied, and asked to be told.
    taken: u64,
    told: u64,
    asked_through: u64,
    /// What the head of the frame that is read says.
    frame_applied: u64,
    frame_asks: bool,
    pub leaving: Fifo<Leaving, TRANSFERS>,
    arriving: Fifo<Arriving, TRANSFERS>,
    pub gets: Fifo<Asked, TRANSFERS>,
    /// Gets of the peer's that wait for their answer.
    asks: Fifo<Record, TRANSFERS>,
    pub counting: Fifo<(u64, Count), COUNTING>,
    /// Records that were refused: of the peer's, and of ours.
    refusals: Refusals,
    pub heard: Heard,
    pub failed: Option<RequestError>,
    /// It has failed, and none of its requests touches memory any more.
    is_stopped: bool,
    /// We wait to hear what has taken effect.
    pub wants_applied: bool,
    /// Whether the peer was asked since.
    has_asked: u64,
    /// The next record takes effect after all before it.
    pub fences: bool,
    /// There is nothing to do until a frame comes.
    pub is_quiet: bool,
    pub delay: Delay,
    /// The fault that was planted, if any.
    #[cfg(feature = "proof")]
    pub mutant: Option<Mutant>,
}

impl<L: Copy + core::fmt::Debug> Lane<L> {
    pub fn new(links: Links<L>, outbox: Outbox, inbox: Inbox) -> Lane<L> {
        Lane {
            links,
            outbox,
            inbox,
            issued: 0,
            applied: 0,
            taken: 0,
            told: 0,
            asked_through: 0,
            frame_applied: 0,
            frame_asks: false,
            leaving: Fifo::EMPTY,
            arriving: Fifo::EMPTY,
            gets: Fifo::EMPTY,
            asks: Fifo::EMPTY,
            counting: Fifo::EMPTY,
            refusals: Refusals::NONE,
            heard: Heard::NOTHING,
            failed: None,
            is_stopped: false,
            wants_applied: false,
            has_asked: 0,
            fences: false,
            is_quiet: false,
            delay: Delay::default(),
            #[cfg(feature = "proof")]
            mutant: None,
        }
    }

    /// Whether a fault is planted.
    #[cfg(not(feature = "proof"))]
    #[inline(always)]
    const fn is_mutant(&self, _mutant: Mutant) -> bool {
        false
    }

    #[cfg(feature = "proof")]
    fn is_mutant(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether a record of so many bytes in its frame can be issued now. One with a fence waits for
    /// gets: the owner does not.
    #[inline]
    pub fn can_issue(&self, bytes: usize, has_fence: bool) -> bool {
        (!has_fence || self.gets.is_empty()) && self.outbox.has_room(bytes)
    }

    /// Issues a record that has room; its number.
    #[inline]
    pub fn issue(&mut self, record: &Record, inline: Span) -> u64 {
        self.outbox.push(record, inline);
        self.is_quiet = false;
        self.issued += 1;
        self.issued
    }

    /// Through which of our records the local buffers are ours again.
    pub fn local_through(&self) -> u64 {
        let leaving = self.leaving.iter().find_map(|leaving| match leaving.why {
            Why::Put(number) => Some(number),
            Why::Answer(_) => None,
        });
        let getting = self.gets.front().map(|get| get.number);
        let first = leaving.unwrap_or(u64::MAX).min(getting.unwrap_or(u64::MAX));
        self.issued.min(first - 1)
    }

    /// Through which of the peer's records all have taken effect here.
    fn applied_here(&self) -> u64 {
        let arriving = self.arriving.front().map_or(u64::MAX, |arriving| arriving.number);
        let refused = self.refusals.first().unwrap_or(u64::MAX);
        self.taken.min(arriving - 1).min(refused - 1)
    }

    /// Moves all on that can move. An error ends the lane, and stays in `failed`.
    #[inline]
    pub fn step<C: Carrier<Link = L>>(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) {
        if self.failed.is_some() {
            return self.stop_step(table, carrier);
        }
        if self.is_quiet {
            match self.inbox.has_frame(carrier) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => return self.fail(error, rank, table, carrier),
            }
        }
        if let Err(error) = self.try_step(rank, table, carrier) {
            self.fail(error, rank, table, carrier);
        }
    }

    /// Sends what was issued, and looks at nothing else.
    #[inline]
    pub fn send<C: Carrier<Link = L>>(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) {
        if self.failed.is_some() || !self.outbox.is_waiting() {
            return;
        }
        let mut sent = self.outbox_step(carrier, false);
        if sent.is_ok() && !self.leaving.is_empty() {
            sent = self.leaving_step(table, carrier);
        }
        if let Err(error) = sent {
            self.fail(error, rank, table, carrier);
        }
    }

    #[cold]
    fn fail<C: Carrier<Link = L>>(
        &mut self,
        error: RequestError,
        rank: u32,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) {
        // what came before the connection failed has come
        let _ = self.inbox_step(rank, table, carrier);
        self.failed = Some(error);
        self.stop_step(table, carrier);
    }

    /// Closes the connections of a lane that has failed. Transfers in windows are under way until
    /// then: the peer may still send their bytes.
    fn stop_step<C: Carrier<Link = L>>(&mut self, table: &mut Table<'_>, carrier: &mut C) {
        if self.is_stopped {
            return;
        }
        let Links { frames_out, frames_in, bytes_out, bytes_in } = self.links;
        let links = [frames_out, frames_in, bytes_out, bytes_in];
        // each is given up at once: none waits for another
        let are_stopped = links.into_iter().filter(|link| !carrier.stop(*link)).count() == 0;
        let adds = self.arriving.iter().filter_map(|arriving| match arriving.way {
            Way::Add(add) => Some(add),
            _ => None,
        });
        let are_added = adds.fold(true, |all, add| all & (carrier.word_added(add) != Ok(false)));
        self.is_stopped = are_stopped && are_added;
        if self.is_stopped {
            self.give_up(table);
        }
    }

    #[inline]
    fn try_step<C: Carrier<Link = L>>(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) -> Result<(), RequestError> {
        let taken = self.taken;
        // not behind what reads frames: an answer to them would wait for it
        self.inbox.post(carrier, self.links.frames_in)?;
        if !self.arriving.is_empty() {
            self.arriving_step(rank, table, carrier)?;
        }
        self.inbox_step(rank, table, carrier)?;
        if !self.leaving.is_empty() {
            self.leaving_step(table, carrier)?;
        }
        if !self.asks.is_empty() || !self.refusals.is_empty() {
            let link = self.links.bytes_out;
            self.answers_step(table, || carrier.reaches_device(link));
        }
        let is_new = self.taken != taken;
        let Delay { steps, left } = self.delay;
        self.delay.left = if is_new { steps } else { left.saturating_sub(1) };
        self.outbox_step(carrier, self.delay.left != 0)?;
        if !self.leaving.is_empty() {
            self.leaving_step(table, carrier)?;
        }
        // an answer to what has come does not wait for this
        self.is_quiet = !is_new && self.has_nothing_to_do();
        Ok(())
    }

    /// Of a rank's lane with itself: whether no frame can come.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.is_quiet && self.issued == self.taken
    }

    /// Whether nothing can happen before a frame comes or something is issued.
    fn has_nothing_to_do(&self) -> bool {
        let are_empty = self.arriving.is_empty() && self.leaving.is_empty();
        let have_answers = self.asks.is_empty() && self.refusals.is_empty();
        let is_due = self.due(self.applied_here(), false) != Due::Nothing;
        are_empty && have_answers && !is_due && self.inbox.is_idle() && self.outbox.is_idle()
    }

    /// What the peer is due where so many of its records have taken effect, now or `later`.
    fn due(&self, applied: u64, later: bool) -> Due {
        let is_asked = self.told < self.asked_through && self.told < applied;
        if (is_asked && !later) || applied - self.told >= TELL_EACH {
            Due::Tell
        } else if self.wants_applied && self.has_asked < self.issued {
            Due::Ask
        } else {
            Due::Nothing
        }
    }

    /// Posts receives into the inbox before anything is exchanged.
    pub fn post<C: Carrier<Link = L>>(&mut self, carrier: &mut C) -> Result<(), RequestError> {
        self.inbox.post(carrier, self.links.frames_in)
    }

    #[inline]
    fn outbox_step<C: Carrier<Link = L>>(
        &mut self,
        carrier: &mut C,
        later: bool,
    ) -> Result<(), RequestError> {
        let applied = self.applied_here();
        let due = self.due(applied, later);
        let head = FrameHead { applied, wants_applied: self.wants_applied };
        let left = self.outbox.step(carrier, self.links.frames_out, (self.told, head), due)?;
        if left == Left::Told {
            self.told = applied;
        }
        if left != Left::Nothing && self.wants_applied {
            self.has_asked = self.issued;
        }
        Ok(())
    }

    /// Sends bytes in the order of their records, and ends those whose sends have ended.
    fn leaving_step<C: Carrier<Link = L>>(
        &mut self,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) -> Result<(), RequestError> {
        for at in 0..self.leaving.count() {
            let Some(leaving) = self.leaving.get_mut(at) else { break };
            if leaving.request.is_some() {
                continue;
            }
            let Leaving { region, address, length, .. } = *leaving;
            match carrier
                .isend(self.links.bytes_out, Outgoing { region, address, length, tag: TAG })
            {
                Ok(request) => leaving.request = Some(request),
                Err(SubmitError::Again) => break,
                Err(SubmitError::Failed(error)) => return Err(error),
                // what was checked when it was issued is not there any more
                Err(_) => return Err(RequestError::Closed),
            }
        }
        while let Some(Leaving { request: Some(request), .. }) = self.leaving.front() {
            match carrier.test(*request) {
                Ok(Some(outcome)) => outcome.result?,
                Ok(None) => break,
                Err(_) => return Err(RequestError::Closed),
            }
            let Some(done) = self.leaving.pop() else { break };
            if let Some(count) = done.count {
                table.counter_add(count);
            }
            if let Why::Answer(window) = done.why {
                table.transfer_count(window, false);
            }
        }
        Ok(())
    }

    /// Receives bytes in the order of their records, and lets those take effect that are whole.
    fn arriving_step<C: Carrier<Link = L>>(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) -> Result<(), RequestError> {
        self.arriving_begin(carrier)?;
        while let Some(arriving) = self.arriving.front() {
            let Arriving { way, length, what, .. } = *arriving;
            let request = match way {
                Way::Waits => break,
                Way::Receive(request) => request,
                Way::Add(add) => {
                    match carrier.word_added(add) {
                        Ok(true) => {}
                        Ok(false) | Err(AddError::Again) => break,
                        Err(AddError::Memory) => return Err(RequestError::Closed),
                    }
                    self.arriving.pop();
                    if let What::Add { window, .. } = what {
                        table.transfer_count(window, false);
                    }
                    continue;
                }
            };
            let outcome = match carrier.test(request) {
                Ok(Some(outcome)) => outcome,
                Ok(None) => break,
                Err(_) => return Err(RequestError::Closed),
            };
            // what has failed stays where it is: no fence behind it is passed any more
            match (outcome.result, what) {
                (Ok(()) | Err(RequestError::Truncated), What::Nothing) => {}
                (Ok(()), _) if outcome.lengths[0] == length => {}
                (Ok(()) | Err(RequestError::Truncated), _) => return Err(RequestError::Protocol),
                (Err(error), _) => return Err(error),
            }
            self.arriving.pop();
            match what {
                What::Nothing | What::Add { .. } => {}
                What::Put { window, signal } => {
                    table.transfer_count(window, false);
                    if let Some((id, value)) = signal {
                        let added = table.signal_add_at(rank, window, id, value);
                        added.map_err(|_| RequestError::Protocol)?;
                    }
                }
                What::Answer => self.get_end()?,
            }
        }
        Ok(())
    }

    /// Posts receives, and begins adds whose turn has come: nothing but adds is before them.
    fn arriving_begin<C: Carrier<Link = L>>(
        &mut self,
        carrier: &mut C,
    ) -> Result<(), RequestError> {
        let mut is_turn = true;
        for at in 0..self.arriving.count() {
            let Some(arriving) = self.arriving.get_mut(at) else { break };
            let Arriving { way, region, address, length, what, .. } = *arriving;
            if !matches!(way, Way::Waits) {
                is_turn &= matches!(way, Way::Add(_));
                continue;
            }
            if let What::Add { value, .. } = what {
                if is_turn {
                    match carrier.word_add(region, address, value) {
                        Ok(add) => arriving.way = Way::Add(add),
                        Err(AddError::Again) => is_turn = false,
                        Err(AddError::Memory) => return Err(RequestError::Closed),
                    }
                }
                continue;
            }
            is_turn = false;
            match carrier
                .irecv(self.links.bytes_in, &[Incoming { region, address, length, tag: TAG }])
            {
                Ok(request) => arriving.way = Way::Receive(request),
                Err(SubmitError::Again) => break,
                Err(SubmitError::Failed(error)) => return Err(error),
                Err(_) => return Err(RequestError::Closed),
            }
        }
        Ok(())
    }

    /// Takes in what has come, up to a record that has to wait.
    #[inline]
    fn inbox_step<C: Carrier<Link = L>>(
        &mut self,
        rank: u32,
        table: &mut Table<'_>,
        carrier: &mut C,
    ) -> Result<(), RequestError> {
        loop {
            match self.inbox.read(carrier)? {
                Read::Nothing => return Ok(()),
                Read::Frame(head) => self.head_take(head)?,
                Read::Asks => self.frame_asks = true,
                Read::Record(record, inline) => {
                    if !self.can_take(&record) {
                        return Ok(());
                    }
                    self.taken += 1;
                    let link = self.links.bytes_in;
                    let reaches = || carrier.reaches_device(link);
                    self.record_take(rank, table, (&record, inline), reaches)?;
                    self.inbox.pass(&record);
                    if !self.arriving.is_empty() {
                        self.arriving_step(rank, table, carrier)?;
                    }
                }
                Read::End => {
                    if core::mem::take(&mut self.frame_asks) {
                        self.asked_through = self.asked_through.max(self.taken);
                    }
                    self.applied_take(table);
                }
            }
        }
    }

    fn head_take(&mut self, head: FrameHead) -> Result<(), RequestError> {
        if head.applied > self.issued || head.applied < self.applied {
            return Err(RequestError::Protocol);
        }
        (self.frame_applied, self.frame_asks) = (head.applied, head.wants_applied);
        Ok(())
    }

    /// A frame was read to its end, so that all is known that the peer had refused before it told
    /// how much it has applied. Counters grow of what was.
    fn applied_take(&mut self, table: &mut Table<'_>) {
        self.applied = self.frame_applied;
        if self.wants_applied && self.applied == self.issued {
            self.wants_applied = false;
        }
        while let Some((number, count)) = self.counting.front().copied() {
            if number > self.applied {
                break;
            }
            self.counting.pop();
            table.counter_add(count);
        }
    }

    /// Tells the peer what has taken effect as if it asked for all that it issues.
    pub fn tell_always(&mut self) {
        (self.asked_through, self.is_quiet) = (u64::MAX, false);
    }

    /// Whether records wait for room, bytes have not left, or the peer waits to be told.
    pub fn is_unsent(&self) -> bool {
        let is_due = self.due(self.applied_here(), false) == Due::Tell;
        self.outbox.is_waiting() || !self.leaving.is_empty() || is_due
    }

    /// Whether the connection failed before counters had grown that were to.
    pub fn has_lost_counts(&self) -> bool {
        self.failed.is_some() && !self.counting.is_empty()
    }

    /// Whether a record of ours has taken effect; asks for it.
    pub fn is_applied(&mut self, number: u64) -> bool {
        if number > self.applied && self.failed.is_none() {
            (self.wants_applied, self.is_quiet) = (true, false);
        }
        number <= self.applied
    }

    /// Whether there is room for what a record takes, and what it waits for has happened.
    #[inline]
    fn can_take(&self, record: &Record) -> bool {
        // gets are no reason: their origin issues no fence before they have ended, so that answers
        // behind a record that waits are not what it waits for
        let has_fence = record.flags & FENCE != 0 && !self.is_mutant(Mutant::FenceIgnored);
        let waits_for_earlier = has_fence && !self.arriving.is_empty();
        let arrives = record.is_apart() || record.kind == RecordKind::Add;
        let waits_for_room = (arrives && self.arriving.is_full())
            || (record.kind == RecordKind::Get && self.asks.is_full());
        !waits_for_earlier && !waits_for_room
    }

    /// Ends the oldest get of ours whose bytes were on their way, and forgets those at the front
    /// that have ended.
    fn get_end(&mut self) -> Result<(), RequestError> {
        let coming = self.gets.iter().position(|get| get.state == GetState::Coming);
        let get = coming.and_then(|at| self.gets.get_mut(at)).ok_or(RequestError::Protocol)?;
        get.state = GetState::Done;
        self.gets_forget();
        Ok(())
    }

    fn gets_forget(&mut self) {
        while self.gets.front().is_some_and(|get| get.state == GetState::Done) {
            self.gets.pop();
        }
    }

    /// The connections are closed: nothing of what was under way touches a window any more.
    fn give_up(&mut self, table: &mut Table<'_>) {
        while let Some(leaving) = self.leaving.pop() {
            if let Why::Answer(window) = leaving.why {
                table.transfer_count(window, false);
            }
            if let Some(count) = leaving.count {
                // it stays among those that never grow; where there is no room, others do
                self.counting.push((u64::MAX, count));
            }
        }
        while let Some(arriving) = self.arriving.pop() {
            if let What::Put { window, .. } | What::Add { window, .. } = arriving.what {
                table.transfer_count(window, false);
            }
        }
    }
}
