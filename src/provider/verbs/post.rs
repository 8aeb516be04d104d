//! Taking ops, chaining them, and ringing the doorbell.

use super::area::LAZY;
use super::completions::Kind;
use super::peer::State;
use super::peers::Peers;
use super::sends::{NOTHING, PARTS_MAX, Request, Sent, Shape};
use super::sys::abi::{RecvWr, Sge};
use super::sys::numbers as n;
use crate::base::ids::PeerIndex;
use crate::fabric::{
    DownCause, Gather, HEAD_BYTES, Head, LINE_BYTES, Line, LocalSpan, Op, OpId, OpKind, PostError,
    Posted, RemoteSpan, Source,
};
use crate::memory::Errno;
use crate::provider::asides::Aside;
use crate::provider::touch;

/// Parts whose regions are pinned.
struct Held {
    pins: [u32; PARTS_MAX],
    parts: [Sge; PARTS_MAX],
    count: usize,
}

impl Peers<'_> {
    /// Whether `count` more sends can be accepted; `fetches` as in [`Sends::follows`].
    ///
    /// On a device of software it is not while it had to wait for an answer: Linux's rxe never
    /// sends a request with the fence bit when a packet of what it waits for was lost (seen with
    /// 6.1 and 1 % loss: an add, a read and a write stand still for ever).
    ///
    /// [`Sends::follows`]: super::sends::Sends::follows
    #[inline]
    fn has_room(&mut self, peer: usize, count: usize, fetches: Option<bool>) -> bool {
        let sends = &self.records[peer].sends;
        let waits = self.abilities.is_software && sends.waits_for_answer(fetches);
        if waits || !sends.fits_chain(count) {
            self.ring(peer);
        }
        !waits && self.records[peer].sends.has_room(count)
    }

    #[inline(always)]
    pub fn send(
        &mut self,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
    ) -> Result<Posted, PostError> {
        let index = self.open_at(peer)?;
        let length = payload.length().0;
        if length > self.records[index].terms.payload_bytes_max.into() {
            return Err(PostError::Unsupported);
        }
        let bytes = HEAD_BYTES as u32 + length as u32;
        let (at, staged) = self.stage(index, bytes)?;
        // SAFETY: a place of `bytes` in the peer's staging, which nobody else uses now.
        unsafe { touch::copy_out(head, at) };
        // SAFETY: behind the head, in the same place; the span's maker vouches for the source.
        unsafe { touch::copy(payload.address(), at + HEAD_BYTES as u64, length) };
        self.push_staged(index, at, bytes, &Shape::SEND, Sent::quiet(staged));
        Ok(Posted::Done)
    }

    /// Writes a line. On a rail whose packets take several ways the next one may land before it,
    /// even if it is for the same place: there it ends with its completion.
    pub fn line(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        let index = self.open_at(peer)?;
        let (at, staged) = self.stage(index, LINE_BYTES as u32)?;
        // SAFETY: a place of a line in the peer's staging, which nobody else uses now.
        unsafe { touch::copy_out(line, at) };
        let shape = Shape::write(target, immediate);
        let is_loud = !self.abilities.is_ordered();
        let sent = Sent { id, is_loud, ..Sent::quiet(staged) };
        self.push_staged(index, at, LINE_BYTES as u32, &shape, sent);
        Ok(if is_loud { Posted::Pending } else { Posted::Done })
    }

    /// A place in staging: its address, and what it takes of it. There is room for the send, too.
    #[inline(always)]
    fn stage(&mut self, index: usize, bytes: u32) -> Result<(u64, u32), PostError> {
        if !self.has_room(index, 1, None) {
            return Err(PostError::Again);
        }
        let (offset, staged) = self.records[index].sends.stage(bytes).ok_or(PostError::Again)?;
        Ok((self.area.staging(index, offset) as u64, staged))
    }

    #[inline(always)]
    fn push_staged(&mut self, index: usize, addr: u64, length: u32, shape: &Shape, sent: Sent) {
        let record = &mut self.records[index];
        record.sends.staged = record.sends.staged.wrapping_add(sent.staged);
        let sge = Sge { addr, length, lkey: record.lkey };
        self.push(index, &[sge], shape, sent);
    }

    /// Puts a send at the end of the peer's chain. There is room for it.
    #[inline(always)]
    fn push(&mut self, index: usize, parts: &[Sge], shape: &Shape, sent: Sent) {
        let record = &mut self.records[index];
        let length: u32 = parts.iter().map(|part| part.length).sum();
        let is_short = length > 0 && length <= record.terms.inline_max;
        // some drivers take the first part for all of them, and a dma-buf is not the processor's to
        // read
        let may_copy = || {
            let is_dmabuf = sent.pin.checked_sub(1).is_some_and(|pin| self.domain.is_dmabuf(pin));
            parts.len() == 1 && !is_dmabuf
        };
        let is_inline = is_short && shape.fetches.is_none() && may_copy();
        let name = record.name(index, Kind::Send, 0);
        let request = Request { name, parts, length, shape, is_inline };
        record.sends.push(&mut self.sent[index], &mut self.chains[index], &request, sent);
        if !record.sends.is_dirty {
            record.sends.is_dirty = true;
            self.dirty.push(index as u32);
        }
    }

    fn post_span(&mut self, op: &Op, span: LocalSpan, shape: &Shape) -> Result<Posted, PostError> {
        let index = self.open_at(op.peer)?;
        let length = span.length().0;
        if length > u64::from(self.abilities.message_bytes_max) {
            return Err(PostError::Unsupported);
        }
        let has_word = shape.opcode == n::WR_WRITE_IMM;
        let splits = has_word && length >= self.abilities.adaptive_bytes_min;
        let count = 1 + usize::from(splits);
        if !self.has_room(index, count, shape.fetches) || self.asides.is_full() {
            return Err(PostError::Again);
        }
        let (pin, lkey) = match length {
            0 => (0, 0),
            _ => match self.domain.hold(span.key(), span.address(), length) {
                Some((region, lkey)) => (region + 1, lkey),
                None => return Ok(self.refuse(op.id, op.peer)),
            },
        };
        let sge = Sge { addr: span.address(), length: length as u32, lkey };
        self.push_whole(index, &[sge], shape, Sent::loud(op.id, pin), splits);
        Ok(Posted::Pending)
    }

    /// Data with its word, or both as two requests where it `splits`: packets of the first may
    /// take several ways, and the device sees to it that the second is not received before.
    #[inline(always)]
    fn push_whole(&mut self, index: usize, parts: &[Sge], shape: &Shape, sent: Sent, splits: bool) {
        if !splits {
            return self.push(index, parts, shape, sent);
        }
        let data = Sent { is_loud: false, is_first: true, ..sent };
        self.push(index, parts, &Shape { opcode: n::WR_WRITE, immediate: 0, ..*shape }, data);
        let bytes: u64 = parts.iter().map(|part| u64::from(part.length)).sum();
        self.records[index].sends.waiting_bytes += bytes; // the word's end tells theirs
        self.push(index, &[NOTHING], shape, Sent::loud(sent.id, 0));
    }

    /// A write of several parts, one behind the other.
    pub fn gather(&mut self, gather: &Gather) -> Result<Posted, PostError> {
        let Gather { id, peer, parts, target, immediate } = *gather;
        let index = self.open_at(peer)?;
        let length = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.length().0));
        let most = u64::from(self.abilities.message_bytes_max);
        let parts_max = self.records[index].terms.parts_max.into();
        let length = length.filter(|length| parts.len() <= parts_max && *length <= most);
        let length = length.ok_or(PostError::Unsupported)?;
        let splits = immediate.is_some() && length >= self.abilities.adaptive_bytes_min;
        // a place for the pin of each, and one for the word
        let places = parts.len().max(1) + usize::from(splits);
        if !self.has_room(index, places, None) || self.asides.is_full() {
            return Err(PostError::Again);
        }
        let Some(held) = self.hold_all(parts) else { return Ok(self.refuse(id, peer)) };
        let Held { pins, parts, count } = held;
        let last = count.max(1) - 1;
        for pin in &pins[..last] {
            let pinned = Sent { pin: *pin, ..Sent::quiet(0) };
            self.records[index].sends.place(&mut self.sent[index], pinned);
        }
        let (shape, sent) = (Shape::write(target, immediate), Sent::loud(id, pins[last]));
        self.push_whole(index, &parts[..=last], &shape, sent, splits);
        Ok(Posted::Pending)
    }

    /// Pins the regions of all parts that have bytes, or of none.
    fn hold_all(&mut self, parts: &[LocalSpan]) -> Option<Held> {
        let mut held = Held { pins: [0; PARTS_MAX], parts: [NOTHING; PARTS_MAX], count: 0 };
        for part in parts.iter().filter(|part| part.length().0 > 0) {
            let (addr, length) = (part.address(), part.length().0);
            let Some((region, lkey)) = self.domain.hold(part.key(), addr, length) else {
                held.pins[..held.count].iter().for_each(|pin| self.domain.release(pin - 1));
                return None;
            };
            held.pins[held.count] = region + 1;
            held.parts[held.count] = Sge { addr, length: length as u32, lkey };
            held.count += 1;
        }
        Some(held)
    }

    fn add(&mut self, op: &Op, target: RemoteSpan, value: u64) -> Result<Posted, PostError> {
        let index = self.open_at(op.peer)?;
        if !self.abilities.has_atomics || !target.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        let (opcode, fetches) = (n::WR_FETCH_ADD, Some(false));
        if !self.has_room(index, 1, fetches) {
            return Err(PostError::Again);
        }
        let addr = self.area.sink(index) as u64;
        let sge = Sge { addr, length: 8, lkey: self.records[index].lkey };
        let shape = Shape { opcode, immediate: 0, target, value, fetches };
        self.push(index, &[sge], &shape, Sent::loud(op.id, 0));
        Ok(Posted::Pending)
    }

    /// Accepts an op that ends with `Key`, since a key of ours is none. There is room for it.
    #[cold]
    fn refuse(&mut self, id: OpId, peer: PeerIndex) -> Posted {
        let aside = Aside { peer, id, ..Aside::default() };
        let entry = self.asides.acquire(aside).expect("a free entry was seen");
        self.asides.finish(entry);
        self.records[peer.as_usize()].sends.in_flight += 1;
        Posted::Pending
    }

    fn fence(&mut self, op: &Op, generation: u32) -> Result<Posted, PostError> {
        let index = op.peer.as_usize();
        let record = self.records.get_mut(index).filter(|record| record.state != State::Closed);
        let record = record.ok_or(PostError::PeerDown)?;
        let is_first = record.fences.is_empty();
        self.asides.fence_append(&mut record.fences, op, generation).ok_or(PostError::Again)?;
        self.endings += u32::from(is_first);
        record.sends.in_flight += 1;
        record.is_fenced = true;
        record.drain(index);
        Ok(Posted::Pending)
    }

    /// Hands the chains of all peers to the device.
    #[inline(always)]
    pub fn ring_all(&mut self) {
        while let Some(peer) = self.dirty.pop() {
            let record = &mut self.records[peer as usize];
            record.sends.is_dirty = false;
            if record.state == State::Live {
                self.ring(peer as usize);
            }
        }
    }

    /// Hands a peer's chain to the device.
    #[inline(always)]
    pub fn ring(&mut self, index: usize) {
        let record = &mut self.records[index];
        if record.state != State::Live {
            return;
        }
        let chain = record.sends.take_chain(&mut self.chains[index]);
        let Some((first, has_parts)) = chain else { return };
        // SAFETY: the chain was just linked, out of requests whose memory lies in the peer's
        // staging, or in regions that are pinned until they have ended.
        if let Err(errno) = unsafe { record.pair().send(first, has_parts) } {
            self.end(index, DownCause::Broken(errno.0));
        }
    }

    /// Sees to it that the device says when it has done with everything so far.
    pub fn ask(&mut self, index: usize) {
        if self.records[index].sends.quiet == 0 || !self.has_room(index, 1, None) {
            return;
        }
        self.ask_anew(index);
    }

    /// The same where there may be nothing so far: the device hears from the peer's in any case.
    pub fn ask_anyway(&mut self, index: usize) {
        match self.records[index].sends.is_undelivered() {
            true => self.ask(index),
            false => self.ask_anew(index),
        }
    }

    fn ask_anew(&mut self, index: usize) {
        self.push(index, &[NOTHING], &Shape::EMPTY, Sent::quiet(0));
        self.records[index].sends.waits = true;
        self.ring(index);
    }

    /// A cell is to be posted again, if the queue pair has not ended meanwhile. One that does not
    /// know its other end yet takes receives, too.
    #[inline]
    pub fn receive_again(&mut self, index: usize, cell: usize) {
        let record = &mut self.records[index];
        if !record.takes_receives() {
            return; // the next queue pair gets it
        }
        record.receives.due |= 1 << cell;
        self.due = Some(index as u32);
        if record.receives.due_count() >= LAZY {
            self.receives_due(index);
        }
    }

    /// Posts those of the peer that had the last one, if they are some.
    #[inline]
    pub fn receives_late(&mut self) {
        if let Some(index) = self.due.take().map(|index| index as usize)
            && self.records[index].receives.due_count() >= LAZY / 2
        {
            self.receives_due(index);
        }
    }

    #[inline(never)]
    fn receives_due(&mut self, index: usize) {
        if self.records[index].takes_receives()
            && let Err(errno) = self.receives_post(index)
        {
            self.end(index, DownCause::Broken(errno.0));
        }
    }

    /// Posts the receives of all cells that are to be posted again.
    pub fn receives_post(&mut self, index: usize) -> Result<(), Errno> {
        let record = &mut self.records[index];
        let length = HEAD_BYTES as u32 + self.abilities.payload_bytes_max;
        while record.receives.due != 0 {
            let (mut parts, mut requests) = ([NOTHING; LAZY], [RecvWr::NOTHING; LAZY]);
            let mut count = 0;
            while count < LAZY && record.receives.due != 0 {
                let cell = record.receives.due.trailing_zeros() as usize;
                record.receives.due &= record.receives.due - 1;
                let addr = self.area.head(index, cell) as u64;
                parts[count] = Sge { addr, length, lkey: record.lkey };
                let wr_id = record.name(index, Kind::Receive, cell as u32).pack();
                let (next, sg_list) = (core::ptr::null_mut(), &mut parts[count] as *mut Sge);
                requests[count] = RecvWr { wr_id, next, sg_list, num_sge: 1 };
                count += 1;
            }
            for at in 1..count {
                requests[at - 1].next = &mut requests[at];
            }
            // SAFETY: cells of the peer's, registered, which nobody else uses until they have
            // completed; the library copies requests and parts.
            unsafe { record.pair().receive(&mut requests[0]) }?;
        }
        Ok(())
    }

    /// Any op.
    pub fn post_op(&mut self, op: &Op) -> Result<Posted, PostError> {
        match op.kind {
            OpKind::Send { ref head, payload } => self.send(op.peer, head, payload),
            OpKind::Write { source: Source::Line(ref line), target, immediate } => {
                self.line(op.id, op.peer, target, line, immediate)
            }
            OpKind::Write { source: Source::Span(span), target, immediate } => {
                self.post_span(op, span, &Shape::write(target, immediate))
            }
            OpKind::Read { target, source } => {
                let (opcode, fetches) = (n::WR_READ, Some(true));
                let shape = Shape { opcode, target: source, fetches, ..Shape::SEND };
                self.post_span(op, target, &shape)
            }
            OpKind::Add { target, value } => self.add(op, target, value),
            OpKind::Fence { generation } => self.fence(op, generation.0),
        }
    }
}
