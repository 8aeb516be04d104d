//! Taking ops and handing them to the library.

use super::area::{AHEAD, SENDS};
use super::choice::offer::{INJECT_MAX, Traits};
use super::domain::turns::Act;
use super::keys::Lookup;
use super::message::{Kind, PREFIX_BYTES, Prefix, head_news, news_bytes, word_data};
use super::peer::{Sent, Use};
use super::peers::{PATIENCE, Peers};
use super::sys::calls::{Ioc, MsgAtomic, MsgRma, RmaIoc, RmaIov};
use super::sys::{Code, Port, numbers as n};
use crate::base::ids::PeerIndex;
use crate::fabric::{
    DownCause, HEAD_BYTES, Head, LINE_BYTES, Line, LocalSpan, Op, OpId, PostError, Posted,
    RemoteSpan,
};
use crate::provider::touch;
use core::ffi::c_void;
use core::mem::MaybeUninit;

const _: () = assert!(INJECT_MAX >= AHEAD);

/// Every op on the peer's memory has a completion, when the bytes are there.
const TOUCH: u64 = n::COMPLETION | n::DELIVERY_COMPLETE;

/// Memory of ours, as the library's calls take it.
#[derive(Copy, Clone)]
struct Near {
    address: u64,
    length: u64,
    descriptor: *mut c_void,
    /// The region, plus one; 0: none.
    pin: u32,
}

/// Memory of the peer's, as the library's calls take it.
#[derive(Copy, Clone)]
struct Far {
    address: u64,
    key: u64,
    place: u8,
}

/// What is done with both.
#[derive(Copy, Clone)]
enum Verb {
    Write(Option<u32>),
    Read,
    Add,
}

impl Peers<'_> {
    /// Whether an op that changes something must wait for what is before it: for reads, or, where
    /// the library was found to refuse words with writes, for words that go behind theirs.
    #[inline(always)]
    fn must_wait(&self, index: usize) -> bool {
        let Traits { ordered, reads_ordered, carries_words, .. } = self.endpoint.traits;
        ordered
            && (!reads_ordered && self.all[index].ops.reads > 0
                || !carries_words && self.has_words(index))
    }

    /// Whether a word waits for its write, or has not left since.
    #[cold]
    fn has_words(&self, index: usize) -> bool {
        self.ops(index).iter().any(|sent| sent.word.is_some())
    }

    /// What a refused call means: no room, or the end of the peer.
    #[cold]
    pub fn call_refused(&mut self, index: usize, code: Code) -> PostError {
        if code == Code::AGAIN {
            self.all[index].was_refused(self.now);
            return PostError::Again;
        }
        self.end(index, DownCause::Broken(code.0));
        PostError::PeerDown
    }

    /// Some libraries have no memory for a call when their queue is full: [`Code::AGAIN`] where
    /// that may be it, because something is under way or has moved since they said so first, or
    /// they have not said so for long. Any other code is as it was.
    #[cold]
    fn refusal(&mut self, index: usize, code: Code) -> Code {
        if !matches!(code, Code(libc::ENOMEM | libc::ENOBUFS)) {
            return code;
        }
        let (now, record) = (self.now, &mut self.all[index]);
        let count = record.sent_count.wrapping_add(record.ops.ended);
        let is_moving = record.under_way() != 0 || record.refusals.refused_count != count;
        match record.refusals.refused_since {
            Some(since) if !is_moving && now.since(since) >= PATIENCE => return code,
            Some(_) if !is_moving => {}
            Some(_) | None => {
                (record.refusals.refused_since, record.refusals.refused_count) = (Some(now), count)
            }
        }
        Code::AGAIN
    }

    /// The prefix of a message to a peer.
    #[inline]
    pub fn prefix(&self, index: usize, kind: Kind, place: u8, word: u32) -> Prefix {
        let record = &self.all[index];
        let (peer, token, number) = (record.their_number, record.their_token, record.sent_count);
        Prefix { kind, place, peer, token, number, word }
    }

    #[inline(never)]
    pub fn send(
        &mut self,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
    ) -> Result<(), PostError> {
        let index = peer.as_usize();
        let length = payload.length().0;
        if length > self.all[index].payload_bytes_max.into() {
            return Err(PostError::Unsupported);
        }
        if self.must_wait(index) {
            return Err(PostError::Again);
        }
        let payload = (payload.address(), length as usize);
        let mut words = [0; HEAD_BYTES];
        let (prefix, head_part): (Prefix, &[u8]) = match self.all[index].reads_brief {
            true => {
                let news = head_news(head, &self.all[index].head_sent, &mut words);
                (self.prefix(index, Kind::Brief, news, 0), &words[..news_bytes(news)])
            }
            false => (self.prefix(index, Kind::Send, 0, 0), head),
        };
        let prefix = &prefix.encode()[..prefix.ahead() - head_part.len()];
        // SAFETY: the span's maker vouches for it.
        let sent = unsafe { self.message(index, &[prefix, head_part], payload, Use::Quiet) };
        sent.map_err(|code| self.call_refused(index, code))?;
        let record = &mut self.all[index];
        record.head_sent = *head;
        record.sent_count = record.sent_count.wrapping_add(1);
        Ok(())
    }

    /// Sends parts as one message: copied by the call, or put together in staging, with its place
    /// in the table in use as `used` says. A request to stop is not copied by the call, so that the
    /// library says how it ends. [`Code::AGAIN`] has changed nothing.
    ///
    /// # Safety
    /// - `last` is valid for reads.
    #[inline]
    pub unsafe fn message(
        &mut self,
        index: usize,
        parts: &[&[u8]],
        last: (u64, usize),
        used: Use,
    ) -> Result<(), Code> {
        let ahead: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = ahead + last.1;
        let to = self.all[index].address.0;
        let port = self.endpoint.port(index)?;
        // zeroes would be written for every message
        let mut stack = MaybeUninit::<[u8; INJECT_MAX]>::uninit();
        let injects = bytes <= self.endpoint.traits.inject_max && used != Use::Drain;
        let op = if injects { None } else { Some(self.free_op(index).ok_or(Code::AGAIN)?) };
        let start = match op {
            None => stack.as_mut_ptr() as u64,
            Some(op) => self.endpoint.area.staging(index * SENDS + op),
        };
        let mut at = start;
        for part in parts {
            // SAFETY: the stack's buffer or a place in staging that is free, long enough for the
            // longest message.
            unsafe { touch::copy_out(part, at) };
            at += part.len() as u64;
        }
        // SAFETY: as above; the caller vouches for the source.
        unsafe { touch::copy(last.0, at, last.1 as u64) };
        let Some(op) = op else {
            let turn = self.endpoint.domain.turn(Act::Post);
            // SAFETY: bytes of the buffer that were just written.
            let sent = unsafe { port.inject(start, bytes, to) };
            drop(turn);
            return sent.map_err(|code| self.refusal(index, code));
        };
        let context = self.endpoint.op_context(index * SENDS + op);
        let descriptor = self.endpoint.part_descriptor(index);
        let turn = self.endpoint.domain.turn(Act::Post);
        // SAFETY: a place in staging, registered with the peer's part, and a context, which are in
        // use from now on.
        let sent = unsafe { port.send((start, bytes), descriptor, to, context) };
        drop(turn);
        sent.map_err(|code| self.refusal(index, code))?;
        self.all[index].ops.used |= 1 << op;
        self.sent[index * SENDS + op] = Sent { used, ..Sent::FREE };
        Ok(())
    }

    /// Sends a word that belongs to no write, or to one whose data is there.
    pub fn word_message(&mut self, index: usize, word: u32) -> Result<(), Code> {
        let prefix = self.prefix(index, Kind::Word, 0, word).encode();
        // SAFETY: no bytes behind the prefix.
        unsafe { self.message(index, &[&prefix], (prefix.as_ptr() as u64, 0), Use::Quiet) }?;
        self.all[index].sent_count = self.all[index].sent_count.wrapping_add(1);
        Ok(())
    }

    /// The data of a write is there: its word goes now, or as soon as there is room.
    #[cold]
    pub fn word_follows(&mut self, index: usize, word: u32) {
        let record = &self.all[index];
        if !record.takes_ops() {
            return;
        }
        if record.ops.words_due == 0 {
            match self.word_message(index, word) {
                Ok(()) => return,
                Err(Code::AGAIN) => {}
                Err(code) => return self.end(index, DownCause::Broken(code.0)),
            }
        }
        // its op has just ended, so there is a free place
        let free = self.free_op(index).expect("the place of the op that has ended");
        self.sent[index * SENDS + free] =
            Sent { used: Use::WordDue, word: Some(word), ..Sent::FREE };
        let ops = &mut self.all[index].ops;
        ops.used |= 1 << free;
        ops.words_due |= 1 << free;
        self.has_chores = true;
    }

    /// Where a range of the peer's is, if its key is known, and asks if it is not; `None`: nowhere.
    #[inline(always)]
    fn reach(
        &mut self,
        index: usize,
        span: RemoteSpan,
        length: u64,
    ) -> Result<Option<Far>, PostError> {
        match self.keys.lookup(index, span.key, span.address, length) {
            Lookup::Found { library_key, start, place } => {
                let address = self.endpoint.traits.library_address(start, span.address);
                return Ok(Some(Far { address, key: library_key, place }));
            }
            Lookup::Bad => return Ok(None),
            Lookup::Wait => {}
            Lookup::Ask(place) => self.ask(index, span.key, place),
        }
        Err(PostError::Again)
    }

    /// Posts an op whose bytes lie in staging.
    #[inline(always)]
    fn post_staged(
        &mut self,
        (id, peer): (OpId, PeerIndex),
        target: RemoteSpan,
        bytes: &[u8],
        verb: Verb,
        is_loud: bool,
    ) -> Result<Option<Posted>, PostError> {
        let (index, length) = (peer.as_usize(), bytes.len() as u64);
        if self.must_wait(index) {
            return Err(PostError::Again);
        }
        let op = self.free_op(index).ok_or(PostError::Again)?;
        let Some(far) = self.reach(index, target, length)? else { return Ok(None) };
        let address = self.endpoint.area.staging(index * SENDS + op);
        // SAFETY: a place in staging that is free.
        unsafe { touch::copy_out(bytes, address) };
        let descriptor = self.endpoint.part_descriptor(index);
        let near = Near { address, length, descriptor, pin: 0 };
        self.hand_over((index, op), near, far, verb, (id, is_loud))?;
        Ok(Some(if is_loud { Posted::Pending } else { Posted::Done }))
    }

    /// Writes a line, and a word behind it. As of all that posts here, `None`: the op is to end
    /// with `Key`, and nothing was changed.
    #[inline(never)]
    pub fn line(
        &mut self,
        op: (OpId, PeerIndex),
        target: RemoteSpan,
        line: &Line,
        immediate: Option<u32>,
    ) -> Result<Option<Posted>, PostError> {
        let is_loud = !self.endpoint.traits.ordered;
        self.post_staged(op, target, line, Verb::Write(immediate), is_loud)
    }

    #[inline(never)]
    pub fn add(
        &mut self,
        op: &Op,
        target: RemoteSpan,
        value: u64,
    ) -> Result<Option<Posted>, PostError> {
        if !self.endpoint.has_atomics || !target.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        self.post_staged((op.id, op.peer), target, &value.to_ne_bytes(), Verb::Add, true)
    }

    #[inline(never)]
    pub fn read_span(
        &mut self,
        op: &Op,
        target: LocalSpan,
        source: RemoteSpan,
    ) -> Result<Option<Posted>, PostError> {
        self.post_span(op, target, source, Verb::Read)
    }

    #[inline(always)]
    pub fn write_span(
        &mut self,
        op: &Op,
        span: LocalSpan,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Result<Option<Posted>, PostError> {
        let index = op.peer.as_usize();
        if self.must_wait(index) {
            return Err(PostError::Again);
        }
        match (span.length().0, immediate) {
            (0, None) => Ok(Some(Posted::Done)),
            (0, Some(word)) => {
                let sent = self.word_message(index, word);
                sent.map_err(|code| self.call_refused(index, code))?;
                Ok(Some(Posted::Done))
            }
            (_, immediate) => self.post_span(op, span, target, Verb::Write(immediate)),
        }
    }

    #[inline(always)]
    fn post_span(
        &mut self,
        op: &Op,
        span: LocalSpan,
        remote: RemoteSpan,
        verb: Verb,
    ) -> Result<Option<Posted>, PostError> {
        let (index, length) = (op.peer.as_usize(), span.length().0);
        if length > self.endpoint.traits.transfer_max {
            return Err(PostError::Unsupported);
        }
        if length == 0 {
            return Ok(Some(Posted::Done));
        }
        let free = self.free_op(index).ok_or(PostError::Again)?;
        let Some(far) = self.reach(index, remote, length)? else { return Ok(None) };
        let held = self.endpoint.domain.hold(span.key(), span.address(), length);
        let Some((region, descriptor)) = held else { return Ok(None) };
        let near = Near { address: span.address(), length, descriptor, pin: region + 1 };
        self.hand_over((index, free), near, far, verb, (op.id, true))?;
        Ok(Some(Posted::Pending))
    }

    /// Gives an op to the library and keeps its books. A refusal has changed nothing, but may have
    /// ended the peer.
    #[inline(always)]
    fn hand_over(
        &mut self,
        (index, op): (usize, usize),
        near: Near,
        far: Far,
        verb: Verb,
        owner: (OpId, bool),
    ) -> Result<(), PostError> {
        let record = &self.all[index];
        let to = (record.address.0, self.endpoint.op_context(index * SENDS + op));
        let word = match verb {
            Verb::Write(word) => word,
            Verb::Read | Verb::Add => None,
        };
        let data = match word {
            Some(word) if self.endpoint.traits.carries_words => {
                Some(word_data(record.their_number, record.their_token, word))
            }
            Some(_) | None => None,
        };
        let taken = match self.endpoint.port(index) {
            Ok(port) => {
                let _turn = self.endpoint.domain.turn(Act::Post);
                call(port, &near, &far, verb, data, to)
            }
            Err(code) => Err(code),
        };
        if let Err(code) = taken {
            self.call_again(index, (near, far), verb, to, code)?;
        }
        let rides = data.is_some() && self.endpoint.traits.carries_words;
        let (id, is_loud) = owner;
        let is_read = matches!(verb, Verb::Read);
        let record = &mut self.all[index];
        record.ops.used |= 1 << op;
        record.ops.touching += 1;
        record.ops.reads += u32::from(is_read);
        record.ops.in_flight += u32::from(is_loud);
        self.sent[index * SENDS + op] = Sent {
            id,
            used: if is_loud { Use::Loud } else { Use::Quiet },
            touches: true,
            is_read,
            pin: near.pin,
            key_place: far.place + 1,
            word: if rides { None } else { word },
        };
        self.keys.use_begin(index, far.place);
        Ok(())
    }

    /// The library has refused a call: for its word, perhaps, and takes it without.
    #[cold]
    #[inline(never)]
    fn call_again(
        &mut self,
        index: usize,
        (near, far): (Near, Far),
        verb: Verb,
        to: (u64, *mut c_void),
        mut code: Code,
    ) -> Result<(), PostError> {
        let had_word = matches!(verb, Verb::Write(Some(_))) && self.endpoint.traits.carries_words;
        if had_word
            && refuses_words(code)
            && let Ok(port) = self.endpoint.port(index)
        {
            let _turn = self.endpoint.domain.turn(Act::Post);
            match call(port, &near, &far, verb, None, to) {
                Ok(()) => {
                    // what it takes without the word, it has refused for the word
                    self.endpoint.traits.carries_words = false;
                    return Ok(());
                }
                Err(again) => code = again,
            }
        }
        if let Some(region) = near.pin.checked_sub(1) {
            self.endpoint.domain.release(region);
        }
        let code = self.refusal(index, code);
        Err(self.call_refused(index, code))
    }
}

/// Whether a write may be refused so for the word that goes with it.
fn refuses_words(code: Code) -> bool {
    matches!(code, Code(n::EBADFLAGS | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// The library's call for a verb.
#[inline(always)]
fn call(
    port: Port,
    near: &Near,
    far: &Far,
    verb: Verb,
    data: Option<u64>,
    (to, context): (u64, *mut c_void),
) -> Result<(), Code> {
    let mut descriptor = near.descriptor;
    let (address, length) = (near.address as *mut c_void, near.length as usize);
    let rma_iov_count = 1;
    if let Verb::Add = verb {
        let operand = Ioc { addr: address, count: 1 };
        let words = RmaIoc { addr: far.address, count: 1, key: far.key };
        let message = MsgAtomic {
            msg_iov: &operand,
            desc: &mut descriptor,
            iov_count: 1,
            addr: to,
            rma_iov: &words,
            rma_iov_count,
            datatype: n::UINT64,
            op: n::SUM,
            context,
            data: 0,
        };
        // SAFETY: an operand in staging, in use until the op has ended; the rest is copied.
        return unsafe { port.add(&message, TOUCH) };
    }
    let part = libc::iovec { iov_base: address, iov_len: length };
    let words = RmaIov { addr: far.address, len: length, key: far.key };
    let message = MsgRma {
        msg_iov: &part,
        desc: &mut descriptor,
        iov_count: 1,
        addr: to,
        rma_iov: &words,
        rma_iov_count,
        context,
        data: data.unwrap_or(0),
    };
    match verb {
        // SAFETY: memory of ours that is pinned, or in staging, until the op has ended; the rest is
        // copied.
        Verb::Read => unsafe { port.read(&message, n::COMPLETION) },
        Verb::Write(_) | Verb::Add => {
            let flags = if data.is_some() { TOUCH | n::REMOTE_CQ_DATA } else { TOUCH };
            // SAFETY: as above.
            unsafe { port.write(&message, flags) }
        }
    }
}

const _: () = assert!(PREFIX_BYTES + LINE_BYTES <= INJECT_MAX);
