//! Taking ops, chaining them, and ringing the doorbell.

use super::area::LAZY;
use super::domain::rkey;
use super::peer::{CHAIN, Outcome, SENDS, Sent, State};
use super::rail::{Kind, Name, Verbs};
use super::sys::abi::{RecvWr, SendWr, Sge};
use super::sys::numbers as n;
use crate::base::ids::PeerIndex;
use crate::fabric::{
    DownCause, HEAD_BYTES, Head, LINE_BYTES, Line, LocalSpan, Op, OpId, OpKind, PostError, Posted,
    RemoteSpan, Source,
};
use crate::memory::Errno;
use crate::provider::asides::Aside;
use crate::provider::touch;

/// What a send has besides its memory.
pub(super) struct Shape {
    opcode: i32,
    immediate: u32,
    target: RemoteSpan,
    /// What an add adds.
    value: u64,
    /// Whether it brings an answer, and whether that is a read's.
    fetches: Option<bool>,
}

/// Whom a send belongs to.
pub(super) struct Owner {
    id: OpId,
    pin: u32,
    staged: u32,
    is_loud: bool,
    /// Whether its word follows.
    is_first: bool,
}

impl Owner {
    /// Nobody who waits: done when it is posted.
    const fn quiet(staged: u32) -> Owner {
        Owner { id: OpId(0), pin: 0, staged, is_loud: false, is_first: false }
    }

    /// A line: staged, and where lines may overtake each other its end is told.
    const fn line(id: OpId, staged: u32, is_loud: bool) -> Owner {
        Owner { id, pin: 0, staged, is_loud, is_first: false }
    }

    /// An op that ends with its completion.
    pub(super) const fn loud(id: OpId, pin: u32) -> Owner {
        Owner { id, pin, staged: 0, is_loud: true, is_first: false }
    }
}

pub(super) const NOTHING: Sge = Sge { addr: 0, length: 0, lkey: 0 };
const NOWHERE: RemoteSpan = RemoteSpan { key: crate::fabric::RailKey(0), address: 0 };

impl Verbs<'_> {
    /// Whether `count` more sends can be accepted; `fetches` as in [`Peer::follows`].
    ///
    /// On a device of software it is not while it had to wait for an answer: Linux's rxe never
    /// sends a request with the fence bit when a packet of what it waits for was lost (seen with
    /// 6.1 and 1 % loss: an add, a read and a write stand still for ever).
    ///
    /// [`Peer::follows`]: super::peer::Peer::follows
    #[inline]
    pub(super) fn has_room(&mut self, peer: usize, count: usize, fetches: Option<bool>) -> bool {
        let waits = self.is_software && self.peers[peer].waits_for_answer(fetches);
        if waits || self.peers[peer].chained as usize + count > CHAIN {
            self.ring(peer);
        }
        !waits && self.peers[peer].has_room(count)
    }

    #[inline(always)]
    pub(super) fn send(
        &mut self,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
    ) -> Result<Posted, PostError> {
        let index = peer.as_usize();
        let length = payload.length().0;
        if length > self.peers[index].payload_bytes_max.into() {
            return Err(PostError::Unsupported);
        }
        let bytes = HEAD_BYTES as u32 + length as u32;
        let (at, staged) = self.stage(index, bytes)?;
        // SAFETY: a place of `bytes` in the peer's staging, which nobody else uses now.
        unsafe { touch::copy_out(head, at) };
        // SAFETY: behind the head, in the same place; the span's maker vouches for the source.
        unsafe { touch::copy(payload.address(), at + HEAD_BYTES as u64, length) };
        let (opcode, target, value, fetches) = (n::WR_SEND, NOWHERE, 0, None);
        let shape = Shape { opcode, immediate: 0, target, value, fetches };
        self.push_staged(index, at, bytes, &shape, Owner::quiet(staged));
        Ok(Posted::Done)
    }

    /// Writes a line. On a rail whose packets take several ways the next one may land before it,
    /// even if it is for the same place: there it ends with its completion.
    pub(super) fn line(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        let index = peer.as_usize();
        let (at, staged) = self.stage(index, LINE_BYTES as u32)?;
        // SAFETY: a place of a line in the peer's staging, which nobody else uses now.
        unsafe { touch::copy_out(line, at) };
        let shape = write_shape(target, immediate);
        let is_loud = !self.is_ordered();
        let owner = Owner::line(id, staged, is_loud);
        self.push_staged(index, at, LINE_BYTES as u32, &shape, owner);
        Ok(if is_loud { Posted::Pending } else { Posted::Done })
    }

    /// A place in staging: its address, and what it takes of it. There is room for the send, too.
    #[inline(always)]
    fn stage(&mut self, index: usize, bytes: u32) -> Result<(u64, u32), PostError> {
        if !self.has_room(index, 1, None) {
            return Err(PostError::Again);
        }
        let (offset, staged) = self.peers[index].stage(bytes).ok_or(PostError::Again)?;
        Ok((self.area.staging(index, offset) as u64, staged))
    }

    #[inline(always)]
    fn push_staged(&mut self, index: usize, addr: u64, length: u32, shape: &Shape, owner: Owner) {
        let record = &mut self.peers[index];
        record.staged = record.staged.wrapping_add(owner.staged);
        let sge = Sge { addr, length, lkey: record.lkey };
        self.push(index, sge, shape, owner);
    }

    #[inline(always)]
    fn push(&mut self, index: usize, part: Sge, shape: &Shape, owner: Owner) {
        self.push_parts(index, &[part], shape, owner);
    }

    /// Puts a send at the end of the peer's chain. There is room for it.
    #[inline(always)]
    pub(super) fn push_parts(&mut self, index: usize, parts: &[Sge], shape: &Shape, owner: Owner) {
        let record = &mut self.peers[index];
        let length: u32 = parts.iter().map(|part| part.length).sum();
        let waited = owner.is_loud.then_some(u64::from(length));
        let mut send_flags = 0;
        if record.count(owner.staged, waited) {
            send_flags |= n::SEND_SIGNALED;
        }
        let is_short = length > 0 && length <= record.inline_max;
        if is_short && shape.fetches.is_none() && self.may_copy(parts, &owner) {
            send_flags |= n::SEND_INLINE;
        }
        let record = &mut self.peers[index];
        if record.follows(shape.fetches) {
            send_flags |= n::SEND_FENCE;
        }
        let at = record.next;
        let name = Name { kind: Kind::Send, generation: record.generation, peer: index as u16, at };
        let link = &mut self.chains[index * CHAIN + record.chained as usize];
        record.chained += 1;
        record.has_parts |= parts.len() > 1;
        record.next = at.wrapping_add(1);
        record.in_flight += u32::from(owner.is_loud);
        link.parts[..parts.len()].copy_from_slice(parts);
        let is_add = shape.opcode == n::WR_FETCH_ADD;
        let key = rkey(shape.target.key);
        link.wr = SendWr {
            wr_id: name.pack(),
            next: core::ptr::null_mut(),
            sg_list: link.parts.as_mut_ptr(),
            num_sge: if length > 0 { parts.len() as i32 } else { 0 },
            opcode: shape.opcode,
            send_flags,
            imm_data: shape.immediate.to_be(),
            remote_addr: shape.target.address,
            rkey_or_add: if is_add { shape.value } else { SendWr::rkey_field(key) },
            atomic_rkey: if is_add { key } else { 0 },
            ..SendWr::NOTHING
        };
        let Owner { id, pin, staged, is_loud, is_first } = owner;
        self.sent[index * SENDS as usize + (at % SENDS) as usize] =
            Sent { id, pin, staged, is_loud, is_first, outcome: Outcome::Open };
        self.mark_dirty(index);
    }

    /// Whether a post may copy the bytes: some drivers take the first part for all of them, and a
    /// dma-buf is not the processor's to read.
    #[inline]
    fn may_copy(&self, parts: &[Sge], owner: &Owner) -> bool {
        let is_dmabuf = owner.pin.checked_sub(1).is_some_and(|pin| self.domain.is_dmabuf(pin));
        parts.len() == 1 && !is_dmabuf
    }

    #[inline(always)]
    fn mark_dirty(&mut self, index: usize) {
        let record = &mut self.peers[index];
        if !record.is_dirty {
            record.is_dirty = true;
            self.dirty.push(index as u32);
        }
    }

    pub(super) fn write_span(
        &mut self,
        op: &Op,
        span: LocalSpan,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.post_span(op, span, &write_shape(target, immediate))
    }

    pub(super) fn read(
        &mut self,
        op: &Op,
        to: LocalSpan,
        from: RemoteSpan,
    ) -> Result<Posted, PostError> {
        let (opcode, fetches) = (n::WR_READ, Some(true));
        let shape = Shape { opcode, immediate: 0, target: from, value: 0, fetches };
        self.post_span(op, to, &shape)
    }

    fn post_span(&mut self, op: &Op, span: LocalSpan, shape: &Shape) -> Result<Posted, PostError> {
        let index = op.peer.as_usize();
        let length = span.length().0;
        if length > self.transfer_bytes_max() {
            return Err(PostError::Unsupported);
        }
        let has_word = shape.opcode == n::WR_WRITE_IMM;
        let splits = has_word && length >= self.adaptive_bytes_min;
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
        match splits {
            false => self.push(index, sge, shape, Owner::loud(op.id, pin)),
            true => self.push_split(index, &[sge], shape, Owner::loud(op.id, pin)),
        }
        Ok(Posted::Pending)
    }

    /// Data and its word as two requests: packets of the first may take several ways, and the
    /// device sees to it that the second is not received before.
    pub(super) fn push_split(&mut self, index: usize, parts: &[Sge], shape: &Shape, owner: Owner) {
        let word = Owner::loud(owner.id, 0);
        let data = Owner { is_loud: false, is_first: true, ..owner };
        self.push_parts(index, parts, &Shape { opcode: n::WR_WRITE, immediate: 0, ..*shape }, data);
        self.peers[index].wait_for(parts.iter().map(|part| u64::from(part.length)).sum());
        self.push(index, NOTHING, shape, word);
    }

    pub(super) fn add(
        &mut self,
        op: &Op,
        target: RemoteSpan,
        value: u64,
    ) -> Result<Posted, PostError> {
        let index = op.peer.as_usize();
        if !self.has_atomics || !target.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        let (opcode, fetches) = (n::WR_FETCH_ADD, Some(false));
        if !self.has_room(index, 1, fetches) {
            return Err(PostError::Again);
        }
        let addr = self.area.sink(index) as u64;
        let sge = Sge { addr, length: 8, lkey: self.peers[index].lkey };
        let shape = Shape { opcode, immediate: 0, target, value, fetches };
        self.push(index, sge, &shape, Owner::loud(op.id, 0));
        Ok(Posted::Pending)
    }

    /// Accepts an op that ends with `Key`, since a key of ours is none. There is room for it.
    #[cold]
    pub(super) fn refuse(&mut self, id: OpId, peer: PeerIndex) -> Posted {
        let aside = Aside { peer, id, ..Aside::default() };
        let entry = self.asides.acquire(aside).expect("a free entry was seen");
        self.asides.finish(entry);
        self.peers[peer.as_usize()].in_flight += 1;
        Posted::Pending
    }

    pub(super) fn fence(&mut self, op: &Op, generation: u32) -> Result<Posted, PostError> {
        let index = op.peer.as_usize();
        let record = &mut self.peers[index];
        let is_first = record.fences.is_empty();
        self.asides.fence_append(&mut record.fences, op, generation).ok_or(PostError::Again)?;
        self.endings += u32::from(is_first);
        record.in_flight += 1;
        record.is_fenced = true;
        self.drain(index);
        Ok(Posted::Pending)
    }

    /// Hands the chains of all peers to the device.
    #[inline(always)]
    pub(super) fn ring_all(&mut self) {
        while let Some(peer) = self.dirty.pop() {
            let record = &mut self.peers[peer as usize];
            record.is_dirty = false;
            if record.state == State::Live {
                self.ring(peer as usize);
            }
        }
    }

    /// Hands a peer's chain to the device.
    #[inline(always)]
    pub(super) fn ring(&mut self, index: usize) {
        let record = &mut self.peers[index];
        let count = record.chained as usize;
        if count == 0 || record.state != State::Live {
            return;
        }
        let chain = &mut self.chains[index * CHAIN..index * CHAIN + count];
        if record.waits {
            chain[count - 1].wr.send_flags |= n::SEND_SIGNALED;
            record.signalled();
        }
        let first: *mut SendWr = link(chain);
        record.chained = 0;
        let has_parts = core::mem::take(&mut record.has_parts);
        let qp = record.qp.as_mut().expect("a live peer has a queue pair");
        // SAFETY: the chain was just linked, out of requests whose memory lies in the peer's
        // staging, or in regions that are pinned until they have ended.
        if let Err(errno) = unsafe { qp.send(first, has_parts) } {
            self.end(index, DownCause::Broken(errno.0));
        }
    }

    /// Sees to it that the device says when it has done with everything so far.
    pub(super) fn ask(&mut self, index: usize) {
        if !self.peers[index].is_quiet() || !self.has_room(index, 1, None) {
            return;
        }
        self.ask_anew(index);
    }

    /// The same where there may be nothing so far: the device hears from the peer's in any case.
    pub(super) fn ask_anyway(&mut self, index: usize) {
        match self.peers[index].is_undelivered() {
            true => self.ask(index),
            false => self.ask_anew(index),
        }
    }

    fn ask_anew(&mut self, index: usize) {
        self.push(index, NOTHING, &write_shape(NOWHERE, None), Owner::quiet(0));
        self.peers[index].waits = true;
        self.ring(index);
    }

    /// The receive of a cell, and its part.
    #[inline]
    fn receive_request(&self, index: usize, cell: usize) -> (RecvWr, Sge) {
        let record = &self.peers[index];
        let addr = self.area.head(index, cell) as u64;
        let length = HEAD_BYTES as u32 + self.limits.payload_bytes_max;
        let part = Sge { addr, length, lkey: record.lkey };
        let (generation, peer) = (record.generation, index as u16);
        let name = Name { kind: Kind::Receive, generation, peer, at: cell as u32 };
        (RecvWr { wr_id: name.pack(), num_sge: 1, ..RecvWr::NOTHING }, part)
    }

    /// Posts the receive of a cell.
    pub(super) fn receive_post(&mut self, index: usize, cell: usize) -> Result<(), Errno> {
        let (mut request, mut part) = self.receive_request(index, cell);
        request.sg_list = &mut part;
        let qp = self.peers[index].qp.as_mut().expect("a queue pair");
        // SAFETY: a cell of the peer's, registered, which nobody else uses until it has completed;
        // the library copies request and part.
        unsafe { qp.receive(&mut request) }
    }

    /// A cell is to be posted again, if the queue pair has not ended meanwhile. One that does not
    /// know its other end yet takes receives, too.
    #[inline]
    pub(super) fn receive_again(&mut self, index: usize, cell: usize) {
        let record = &mut self.peers[index];
        if !matches!(record.state, State::Prepared | State::Live) {
            return; // the next queue pair gets it
        }
        record.due |= 1 << cell;
        record.due_count += 1;
        self.due = Some(index as u32);
        if usize::from(record.due_count) >= LAZY {
            self.receives_due(index);
        }
    }

    /// Posts the receives of all cells that are to be posted again.
    #[inline(never)]
    pub(super) fn receives_due(&mut self, index: usize) {
        let record = &mut self.peers[index];
        let (mut due, count) = (record.due, usize::from(record.due_count));
        (record.due, record.due_count) = (0, 0);
        if !matches!(record.state, State::Prepared | State::Live) {
            return;
        }
        let mut parts = [NOTHING; LAZY];
        let mut requests = [RecvWr::NOTHING; LAZY];
        for (request, part) in requests.iter_mut().zip(&mut parts).take(count) {
            let cell = due.trailing_zeros() as usize;
            due &= due - 1;
            (*request, *part) = self.receive_request(index, cell);
            request.sg_list = part;
        }
        for at in 1..count {
            requests[at - 1].next = &mut requests[at];
        }
        let qp = self.peers[index].qp.as_mut().expect("a queue pair");
        // SAFETY: cells of the peer's, registered, which nobody else uses until they have
        // completed; the library copies requests and parts.
        if let Err(errno) = unsafe { qp.receive(&mut requests[0]) } {
            self.end(index, DownCause::Broken(errno.0));
        }
    }

    /// Longest write or read.
    pub(super) fn transfer_bytes_max(&self) -> u64 {
        self.message_bytes_max.into()
    }
}

pub(super) const fn write_shape(target: RemoteSpan, immediate: Option<u32>) -> Shape {
    let (value, fetches) = (0, None);
    match immediate {
        Some(immediate) => Shape { opcode: n::WR_WRITE_IMM, immediate, target, value, fetches },
        None => Shape { opcode: n::WR_WRITE, immediate: 0, target, value, fetches },
    }
}

/// Links a chain and says where it starts.
fn link(chain: &mut [super::rail::Link]) -> *mut SendWr {
    let mut next = core::ptr::null_mut();
    for link in chain.iter_mut().rev() {
        link.wr.next = next;
        next = &mut link.wr;
    }
    next
}

impl Verbs<'_> {
    /// Any op.
    pub(super) fn post_op(&mut self, op: &Op) -> Result<Posted, PostError> {
        match &op.kind {
            OpKind::Send { head, payload } => self.send(op.peer, head, *payload),
            OpKind::Write { source: Source::Line(line), target, immediate } => {
                self.line(op.id, op.peer, *target, line, *immediate)
            }
            OpKind::Write { source: Source::Span(span), target, immediate } => {
                self.write_span(op, *span, *target, *immediate)
            }
            OpKind::Read { target, source } => self.read(op, *target, *source),
            OpKind::Add { target, value } => self.add(op, *target, *value),
            OpKind::Fence { generation } => self.fence(op, generation.0),
        }
    }
}
