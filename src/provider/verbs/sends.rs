//! One peer's send queue: what was posted to it and has not been reported.

use super::area::STAGING_BYTES;
use super::completions::Name;
use super::domain::{VerbsDomain, rkey};
use super::sys::abi::{SendWr, Sge};
use super::sys::numbers as n;
use crate::fabric::{OpError, OpId, RailKey, RemoteSpan};

/// Sends of one peer that the device may have: a power of two.
pub const SENDS: u32 = 128;
/// Parts of a write at most.
pub const PARTS_MAX: usize = 4;
/// Sends that go out with one doorbell.
pub const CHAIN: usize = 16;
/// Sends after which one is signalled, so that the queue never fills with what nobody hears of.
const QUIET_MAX: u32 = SENDS / 4;
/// Staged bytes after which one is, likewise.
const QUIET_STAGED_MAX: u32 = STAGING_BYTES / 4;
/// Bytes of ops that wait for their completion after which one is, so that a long write does not
/// wait for the whole chain.
const WAITING_BYTES_MAX: u64 = 64 << 10;

const _: () = assert!(SENDS.is_power_of_two() && CHAIN as u32 <= QUIET_MAX);

/// How an op ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Outcome {
    /// Not yet.
    Open,
    /// Well, and whoever posted it was told at once.
    Quiet,
    /// As is to be reported.
    Loud(Result<(), OpError>),
}

/// One place of the send queue. An op of several parts has a place for each, with the pin of its
/// region, and is what the last of them says.
#[derive(Copy, Clone, Debug)]
pub struct Sent {
    pub id: OpId,
    /// The region of ours that it holds a pin of, plus one; 0: none.
    pub pin: u32,
    /// Bytes of staging that are free when it has ended.
    pub staged: u32,
    /// Whether its end is reported: otherwise it was, with the post.
    pub is_loud: bool,
    /// Whether it is the data of an op whose word is the next: its error is that one's.
    pub is_first: bool,
    pub outcome: Outcome,
}

impl Sent {
    /// Nobody who waits: done when it is posted.
    pub const fn quiet(staged: u32) -> Sent {
        let (id, pin, is_loud, is_first) = (OpId(0), 0, false, false);
        Sent { id, pin, staged, is_loud, is_first, outcome: Outcome::Open }
    }

    /// An op that ends with its completion.
    pub const fn loud(id: OpId, pin: u32) -> Sent {
        Sent { id, pin, is_loud: true, ..Sent::quiet(0) }
    }

    #[inline]
    fn end(&mut self, result: Result<(), OpError>) {
        self.outcome = if self.is_loud { Outcome::Loud(result) } else { Outcome::Quiet };
    }

    #[inline]
    fn unpin(&self, domain: &VerbsDomain) {
        if let Some(region) = self.pin.checked_sub(1) {
            domain.release(region);
        }
    }
}

/// The places of one peer's sends.
pub type Ring = [Sent; SENDS as usize];

/// A request that waits for the doorbell.
#[derive(Copy, Clone, Debug)]
pub struct Link {
    pub wr: SendWr,
    pub parts: [Sge; PARTS_MAX],
}

/// A part of no bytes.
pub const NOTHING: Sge = Sge { addr: 0, length: 0, lkey: 0 };

impl Link {
    pub const FREE: Link = Link { wr: SendWr::NOTHING, parts: [NOTHING; PARTS_MAX] };
}

/// One peer's requests that wait for the doorbell.
pub type Chain = [Link; CHAIN];

/// What a send has besides its memory.
#[derive(Copy, Clone)]
pub struct Shape {
    pub opcode: i32,
    pub immediate: u32,
    pub target: RemoteSpan,
    /// What an add adds.
    pub value: u64,
    /// Whether it brings an answer, and whether that is a read's.
    pub fetches: Option<bool>,
}

impl Shape {
    /// A send.
    pub const SEND: Shape = Shape {
        opcode: n::WR_SEND,
        immediate: 0,
        target: RemoteSpan { key: RailKey(0), address: 0 },
        value: 0,
        fetches: None,
    };
    /// A write of nothing to nowhere.
    pub const EMPTY: Shape = Shape { opcode: n::WR_WRITE, ..Shape::SEND };

    pub const fn write(target: RemoteSpan, immediate: Option<u32>) -> Shape {
        match immediate {
            Some(immediate) => Shape { opcode: n::WR_WRITE_IMM, immediate, target, ..Shape::EMPTY },
            None => Shape { target, ..Shape::EMPTY },
        }
    }
}

/// A send that is to be chained.
pub struct Request<'a> {
    /// With any position.
    pub name: Name,
    pub parts: &'a [Sge],
    /// Bytes of all parts.
    pub length: u32,
    pub shape: &'a Shape,
    /// Whether the post copies the bytes.
    pub is_inline: bool,
}

/// Where one peer's sends stand.
#[derive(Debug, Default)]
pub struct Sends {
    /// Position behind the last op that was accepted.
    next: u32,
    /// Requests that wait for the doorbell, and whether some have more parts than one.
    pub chained: u8,
    has_parts: bool,
    /// Whether its peer stands in the list of those with something to send.
    pub is_dirty: bool,
    /// All before have ended.
    pub ended: u32,
    /// All before were reported.
    pub reported: u32,
    /// Sends since the last one that is signalled, their staged bytes, and bytes of those that
    /// somebody waits for.
    pub quiet: u8,
    quiet_staged: u32,
    pub waiting_bytes: u64,
    /// Whether somebody waits for one of them.
    pub waits: bool,
    /// Position behind the last read or add, and whether it was a read.
    fetch: u32,
    fetch_is_read: bool,
    /// Staged, and free again, since it was opened.
    pub staged: u32,
    unstaged: u32,
    /// Ops accepted and not reported, fences and refused ones with them.
    pub in_flight: u32,
}

impl Sends {
    /// None, with its peer where that stands.
    pub fn closed(&self) -> Sends {
        Sends { is_dirty: self.is_dirty, ..Sends::default() }
    }

    /// Puts a send at the end of the chain. There is room for it.
    #[inline(always)]
    pub fn push(&mut self, ring: &mut Ring, chain: &mut Chain, request: &Request, sent: Sent) {
        let Request { name, parts, length, shape, is_inline } = *request;
        let waited = sent.is_loud.then_some(u64::from(length));
        let mut send_flags = if is_inline { n::SEND_INLINE } else { 0 };
        if self.count(sent.staged, waited) {
            send_flags |= n::SEND_SIGNALED;
        }
        if self.follows(shape.fetches) {
            send_flags |= n::SEND_FENCE;
        }
        let link = &mut chain[usize::from(self.chained)];
        self.chained += 1;
        self.has_parts |= parts.len() > 1;
        self.in_flight += u32::from(sent.is_loud);
        link.parts[..parts.len()].copy_from_slice(parts);
        let is_add = shape.opcode == n::WR_FETCH_ADD;
        let key = rkey(shape.target.key);
        link.wr = SendWr {
            wr_id: Name { at: self.next, ..name }.pack(),
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
        self.place(ring, sent);
    }

    /// Takes the next place. There is one.
    #[inline(always)]
    pub fn place(&mut self, ring: &mut Ring, sent: Sent) {
        ring[(self.next % SENDS) as usize] = sent;
        self.next = self.next.wrapping_add(1);
    }

    /// Links the chain for the doorbell: its first request, and whether some have more parts than
    /// one. `None`: there is none.
    #[inline(always)]
    pub fn take_chain(&mut self, chain: &mut Chain) -> Option<(*mut SendWr, bool)> {
        let chain = &mut chain[..usize::from(self.chained)];
        let last = chain.last_mut()?;
        if self.waits {
            last.wr.send_flags |= n::SEND_SIGNALED;
            self.signalled();
        }
        let mut next = core::ptr::null_mut();
        for link in chain.iter_mut().rev() {
            link.wr.next = next;
            next = &mut link.wr;
        }
        self.chained = 0;
        Some((next, core::mem::take(&mut self.has_parts)))
    }

    /// Whether so many more fit into the chain.
    #[inline]
    pub fn fits_chain(&self, count: usize) -> bool {
        usize::from(self.chained) + count <= CHAIN
    }

    /// Every send up to and with `at` has ended well; `false`: that was known before.
    #[inline]
    pub fn end_through(&mut self, ring: &mut Ring, domain: &VerbsDomain, at: u32) -> bool {
        let count = at.wrapping_sub(self.ended).wrapping_add(1);
        if count > SENDS {
            return false;
        }
        for n in 0..count {
            let sent = &mut ring[(self.ended.wrapping_add(n) % SENDS) as usize];
            self.unstaged = self.unstaged.wrapping_add(sent.staged);
            sent.unpin(domain);
            sent.end(Ok(()));
        }
        self.ended = at.wrapping_add(1);
        true
    }

    /// The send at `at` has failed; what else has not ended ends later.
    pub fn fail(&self, ring: &mut Ring, at: u32, error: OpError) {
        // data's error is that of the op, which its word stands for
        let is_first = ring[(at % SENDS) as usize].is_first;
        let sent = &mut ring[(at.wrapping_add(is_first.into()) % SENDS) as usize];
        if sent.outcome == Outcome::Open {
            sent.end(Err(error));
        }
    }

    /// Ends what was accepted and has not ended: the device has nothing of it any more.
    pub fn cut_off(&mut self, ring: &mut Ring, domain: &VerbsDomain, error: OpError) {
        while self.ended != self.next {
            let sent = &mut ring[(self.ended % SENDS) as usize];
            sent.unpin(domain);
            if sent.outcome == Outcome::Open {
                sent.end(Err(error));
            }
            self.ended = self.ended.wrapping_add(1);
        }
        self.chained = 0;
    }

    /// The oldest send that has ended and was not reported.
    #[inline]
    pub fn oldest<'r>(&self, ring: &'r Ring) -> Option<&'r Sent> {
        (self.reported != self.ended).then(|| &ring[(self.reported % SENDS) as usize])
    }

    /// Whether so many more fit into the send queue.
    #[inline]
    pub fn has_room(&self, count: usize) -> bool {
        self.next.wrapping_sub(self.reported) + count as u32 <= SENDS
    }

    /// Whether the device has something of which we have not heard.
    #[inline]
    pub fn is_undelivered(&self) -> bool {
        self.ended != self.next
    }

    /// A place of so many bytes in staging, with what it takes of it. `None`: there is none now.
    #[inline]
    pub fn stage(&self, length: u32) -> Option<(u32, u32)> {
        let wanted = length.next_multiple_of(64);
        let at = self.staged % STAGING_BYTES;
        // what does not fit before the end of the ring starts anew
        let skipped = if at + wanted > STAGING_BYTES { STAGING_BYTES - at } else { 0 };
        let used = self.staged.wrapping_sub(self.unstaged);
        let takes = skipped + wanted;
        let offset = if skipped == 0 { at } else { 0 };
        (used + takes <= STAGING_BYTES).then_some((offset, takes))
    }

    /// Counts a send in, of which `bytes` are waited for; whether it must be signalled.
    #[inline]
    fn count(&mut self, staged: u32, waited: Option<u64>) -> bool {
        self.quiet += 1;
        self.quiet_staged += staged;
        if let Some(bytes) = waited {
            self.waits = true;
            self.waiting_bytes += bytes;
        }
        let signal = u32::from(self.quiet) >= QUIET_MAX
            || self.quiet_staged >= QUIET_STAGED_MAX
            || self.waiting_bytes >= WAITING_BYTES_MAX;
        if signal {
            self.signalled();
        }
        signal
    }

    /// The last send is signalled.
    #[inline]
    fn signalled(&mut self) {
        (self.quiet, self.quiet_staged, self.waiting_bytes, self.waits) = (0, 0, 0, false);
    }

    /// Whether the next op must wait for a read or an add before it, to keep the order that
    /// [`crate::fabric::Caps::ordered`] promises: the queue pair alone lets later ops overtake
    /// their answers. `fetches`: it is one itself, and whether a read.
    #[inline]
    pub fn waits_for_answer(&self, fetches: Option<bool>) -> bool {
        let outstanding = (self.fetch.wrapping_sub(self.ended) as i32) > 0;
        outstanding && fetches != Some(self.fetch_is_read)
    }

    /// [`Sends::waits_for_answer`] of the op that comes next.
    #[inline]
    fn follows(&mut self, fetches: Option<bool>) -> bool {
        let waits = self.waits_for_answer(fetches);
        if let Some(is_read) = fetches {
            (self.fetch, self.fetch_is_read) = (self.next.wrapping_add(1), is_read);
        } else if !waits {
            self.fetch = self.ended; // so that the comparison never wraps
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_starts_anew_where_a_message_would_not_fit() {
        let mut sends = Sends::default();
        assert_eq!(sends.stage(100), Some((0, 128)));
        (sends.staged, sends.unstaged) = (STAGING_BYTES - 64, STAGING_BYTES - 64);
        assert_eq!(sends.stage(64), Some((STAGING_BYTES - 64, 64)));
        assert_eq!(sends.stage(65), Some((0, 64 + 128)));
        sends.unstaged = 0;
        assert_eq!(sends.stage(65), None, "what the device still has is not written over");
        // the counters run over the end of their numbers
        (sends.staged, sends.unstaged) = (u32::MAX - 63, u32::MAX - 63);
        assert_eq!(sends.stage(128), Some((0, 64 + 128)));
    }

    #[test]
    fn one_of_the_sends_is_signalled_before_the_queue_fills() {
        let mut sends = Sends::default();
        let first = (1..).find(|_| sends.count(64, None)).unwrap();
        assert_eq!(first, QUIET_MAX);
        let mut bytes = 0;
        while !sends.count(8192, None) {
            bytes += 8192;
        }
        assert!(bytes < QUIET_STAGED_MAX);
        assert!(!sends.count(0, Some(WAITING_BYTES_MAX - 1)) && sends.waits);
        assert!(sends.count(0, Some(1)) && !sends.waits);
    }

    #[test]
    fn what_follows_a_read_or_an_add_waits_for_it() {
        let mut sends = Sends::default();
        assert!(!sends.follows(None), "nothing is under way");
        assert!(!sends.follows(Some(true)));
        sends.next = 1;
        assert!(!sends.follows(Some(true)), "a read behind a read");
        sends.next = 2;
        assert!(sends.follows(None), "a write behind a read");
        assert!(sends.follows(Some(false)), "an add behind a read");
        sends.next = 3;
        sends.ended = 3;
        assert!(!sends.follows(None), "all has ended");
    }
}
