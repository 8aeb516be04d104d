//! A loopback that breaks one promise, whichever is asked for.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Caps, CloseError, Completion, DeregisterError, Domain, DownCause, Gather, LONG_SLOTS,
    LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind, PeerLife, PostError, Posted, Provider,
    RailKey, RecvSlot, Region, RegisterError, RemoteSpan, Source,
};
use crosstie::provider::host_domain::HostDomain;
use crosstie::provider::loopback::Loopback;
use crosstie_kit::conformance::ARENA_BYTES;
use crosstie_kit::random::{CERTAIN, Random};

/// Polls between two sends of a provider that is slow to take them.
const SLOW_POLLS: u64 = 64;
/// Longest op that overtakes others.
const OVERTAKING_BYTES: usize = 4096;
/// Parts of a write at most.
const PARTS_MAX: usize = 3;
/// In the id of a write that is a part of another one.
const PART: u64 = 1 << 62;

/// The longest payload towards all peers of a provider that has longer ones towards one.
const SHORT_BYTES: Bytes = Bytes::kib(1);

/// What is broken.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Vice {
    /// The control: breaks nothing.
    None,
    HalfWrite,
    RefusedButWritten,
    RefusedButSent,
    ForgetsCompletion,
    RepeatsCompletion,
    LosesBeyondSlice,
    IgnoresBudget,
    Allocates,
    SwapsMessages,
    SendOvertakes,
    ImmediateFirst,
    ReadsBeside,
    AddsHalf,
    AddsByReading,
    DropsEmpty,
    CutsLongest,
    SendsLate,
    BreaksLine,
    BreaksHead,
    ServesNewest,
    LeaksSlot,
    CutsToCaps,
    SwapsParts,
    SwallowsErrors,
    SpeaksAfterDown,
    AcceptsForTheDead,
    WrongId,
    MasterKey,
    DeregistersEarly,
    OwnDice,
    ClosesAnyway,
    FencesInNameOnly,
    ShortWritesOvertake,
    ShortReadsOvertake,
    RoundsTargets,
    ChangesCaps,
    TellsAnotherCause,
    RefusesShortRegions,
    ThrowsAwayWhatCame,
    TellsEndsLast,
    TakesMoreRegions,
    TakesAnyMemory,
    PromisesMoreReceives,
    WritesThenRefusesWord,
    LeaksHeldAtClose,
    FreesHeldAtDetach,
    OwnPostsPassFence,
    OwnOpsOutliveFence,
    /// The oldest long payload is gone when as many are held as may be.
    HoldsOneLongLess,
    /// None comes when as many are held as may be.
    TakesNoLongMore,
    /// The place of one that is not released as the oldest is lost.
    LeaksLongPlaces,
    /// No vice: longer payloads towards one peer.
    HasLongs,
    /// No vice: it takes a send every so many polls, and says AGAIN until then.
    TakesSendsSlowly,
}

/// Registration that remembers the last whole arena, and may forget a region too early.
#[derive(Copy, Clone)]
pub struct BrokenDomain {
    inner: HostDomain<'static>,
    vice: Vice,
    arena_key: &'static AtomicU64,
}

impl Domain for BrokenDomain {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        let is_short = (1..4096).contains(&region.length.0);
        if self.vice == Vice::RefusesShortRegions && is_short {
            return Err(RegisterError::Fabric(22));
        }
        let kind = match self.vice {
            Vice::TakesAnyMemory => MemoryKind::Host,
            _ => region.kind,
        };
        // SAFETY: handed on as it came, but for its kind.
        let key = match unsafe { self.inner.register(Region { kind, ..region }) } {
            // it has no other name left
            Err(RegisterError::Full) if self.vice == Vice::TakesMoreRegions => RailKey(u64::MAX),
            answer => answer?,
        };
        if region.length == Bytes::of(ARENA_BYTES) {
            self.arena_key.store(key.0, Ordering::Relaxed);
        }
        Ok(key)
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        match self.inner.deregister(key) {
            Err(DeregisterError::Busy) if self.vice == Vice::DeregistersEarly => Ok(()),
            other => other,
        }
    }
}

/// B's name for the one that the suite mostly posts from.
const FROM_A: PeerIndex = crate::common::PEERS[1];

/// What one poll gathers, without allocating.
struct Batch {
    items: [Completion; 64],
    count: usize,
}

impl Batch {
    fn push(&mut self, completion: Completion) {
        self.items[self.count] = completion;
        self.count += 1;
    }
}

pub struct Broken {
    inner: Loopback<'static>,
    vice: Vice,
    arena_key: &'static AtomicU64,
    /// Counts whatever the vice counts.
    count: u64,
    /// Ops kept back, with the polls that are left until they are posted.
    late: VecDeque<(Op, u32)>,
    /// Completions made up.
    made_up: VecDeque<Completion>,
    /// Ends of ops that the next poll keeps back.
    kept_ends: VecDeque<Completion>,
    newest: RecvSlot,
    /// How often the caps were asked for.
    asked: Cell<u32>,
    /// Messages that were taken and not released.
    unreleased: u32,
    /// Whether what was held went with its peer, and nothing has come since.
    is_emptied: bool,
    /// Ops that were taken and have not ended.
    in_flight: u32,
    /// The last write to each peer, as long as it is not fenced.
    writes: [Option<Copied>; 2],
    /// Peers that were fenced.
    is_fenced: [bool; 2],
    /// Long payloads of A's that have come and are not released, the oldest first.
    longs: VecDeque<RecvSlot>,
    /// Places for them that are lost.
    long_places_lost: u32,
    /// A write that outlives its fence, and the polls until it is carried out.
    outliving: Option<(Copied, u32)>,
    /// Words that adds come to, by what they read when they were posted; the addresses.
    sums: Vec<(u64, u64)>,
}

/// A write by hand, between two parts of the process.
#[derive(Copy, Clone)]
struct Copied {
    from: u64,
    to: u64,
    length: usize,
}

impl Copied {
    fn of(kind: &OpKind) -> Option<Copied> {
        let OpKind::Write { source: Source::Span(span), target, .. } = *kind else { return None };
        let length = span.length().as_usize();
        Some(Copied { from: span.address(), to: target.address, length })
    }

    fn of_read(kind: &OpKind) -> Option<Copied> {
        let OpKind::Read { target, source } = *kind else { return None };
        let length = target.length().as_usize();
        Some(Copied { from: source.address, to: target.address(), length })
    }

    fn carry_out(self) {
        // SAFETY: both lie in arenas, which are never freed, and which only this thread touches.
        unsafe { std::ptr::copy(self.from as *const u8, self.to as *mut u8, self.length) };
    }
}

/// Posts of all providers together: the dice of [`Vice::OwnDice`].
static POSTS: AtomicU64 = AtomicU64::new(0);

fn with_length(kind: OpKind, change: impl Fn(u64) -> u64) -> OpKind {
    let cut = |span: LocalSpan| span.part(0, change(span.length().0));
    match kind {
        OpKind::Send { head, payload } => OpKind::Send { head, payload: cut(payload) },
        OpKind::Write { source: Source::Span(span), target, immediate } => {
            OpKind::Write { source: Source::Span(cut(span)), target, immediate }
        }
        OpKind::Read { target, source } => OpKind::Read { target: cut(target), source },
        other => other,
    }
}

fn with_key(kind: OpKind, key: RailKey) -> OpKind {
    let span = |span: RemoteSpan| RemoteSpan { key, ..span };
    match kind {
        OpKind::Write { source, target, immediate } => {
            OpKind::Write { source, target: span(target), immediate }
        }
        OpKind::Read { target, source } => OpKind::Read { target, source: span(source) },
        OpKind::Add { target, value } => OpKind::Add { target: span(target), value },
        other => other,
    }
}

fn length(kind: &OpKind) -> u64 {
    match kind {
        OpKind::Send { payload, .. } => payload.length().0,
        OpKind::Write { source: Source::Span(span), .. } => span.length().0,
        _ => 64,
    }
}

impl Vice {
    /// Whether it is about payloads that are longer than towards all peers.
    pub fn is_of_longs(self) -> bool {
        matches!(
            self,
            Vice::HoldsOneLongLess | Vice::TakesNoLongMore | Vice::LeaksLongPlaces | Vice::HasLongs
        )
    }
}

impl Broken {
    pub fn new(inner: Loopback<'static>, vice: Vice) -> Broken {
        let arena_key = Box::leak(Box::new(AtomicU64::new(0)));
        let (late, made_up) = (VecDeque::with_capacity(64), VecDeque::with_capacity(64));
        let (newest, asked) = (RecvSlot(0), Cell::new(0));
        Broken {
            inner,
            vice,
            arena_key,
            count: 0,
            late,
            made_up,
            kept_ends: VecDeque::with_capacity(64),
            newest,
            asked,
            unreleased: 0,
            is_emptied: false,
            in_flight: 0,
            writes: [None; 2],
            is_fenced: [false; 2],
            longs: VecDeque::with_capacity(64),
            long_places_lost: 0,
            outliving: None,
            sums: Vec::new(),
        }
    }

    /// True every `n`-th time.
    fn every(&mut self, n: u64) -> bool {
        self.count += 1;
        self.count.is_multiple_of(n)
    }

    fn later(&mut self, op: Op, polls: u32) -> Result<Posted, PostError> {
        self.late.push_back((op, polls));
        Ok(Posted::Pending)
    }

    fn post_late(&mut self, now: Instant) {
        for (_, polls) in &mut self.late {
            *polls = polls.saturating_sub(1);
        }
        while let Some((op, 0)) = self.late.front().copied() {
            match self.inner.post(&op, now) {
                Ok(Posted::Pending) => {}
                Ok(Posted::Done) => self.made_up.push_back(done(op.peer, op.id)),
                Err(_) => return,
            }
            self.late.pop_front();
        }
    }

    /// Whether each receive of a peer is taken.
    fn is_full(&self) -> bool {
        self.unreleased >= self.inner.caps(FROM_A).recv_slots
    }

    /// Whether there is no place for a long payload from A.
    fn is_full_of_longs(&self) -> bool {
        let held = self.longs.len() as u32;
        match self.vice {
            Vice::TakesNoLongMore => held >= LONG_SLOTS,
            Vice::LeaksLongPlaces => held + self.long_places_lost > LONG_SLOTS,
            _ => false,
        }
    }

    /// The end of a write that was under way when its fence held.
    fn outlive(&mut self) {
        let Some((write, polls)) = &mut self.outliving else { return };
        *polls -= 1;
        if *polls == 0 {
            write.carry_out();
            self.outliving = None;
        }
    }

    /// What a short op moves that does not wait behind others.
    fn overtaking(&self, kind: &OpKind) -> Option<Copied> {
        let is_there = |span: RemoteSpan| span.key.0 == self.arena_key.load(Ordering::Relaxed);
        let copied = match (self.vice, *kind) {
            (Vice::ShortWritesOvertake, OpKind::Write { target, .. }) if is_there(target) => {
                Copied::of(kind)
            }
            (Vice::ShortReadsOvertake, OpKind::Read { source, .. }) if is_there(source) => {
                Copied::of_read(kind)
            }
            _ => None,
        };
        copied.filter(|copied| copied.length <= OVERTAKING_BYTES && self.in_flight > 0)
    }

    fn post_send(&mut self, op: Op, now: Instant) -> Result<Posted, PostError> {
        let longest = self.inner.caps(op.peer).send_payload_max.0;
        let vice = self.vice;
        match vice {
            Vice::RefusedButSent if self.every(3) => {
                self.inner.post(&op, now)?;
                Err(PostError::Again)
            }
            Vice::LeaksHeldAtClose if self.is_full() => Err(PostError::Again),
            _ if length(&op.kind) > SHORT_BYTES.0 && self.is_full_of_longs() => {
                Err(PostError::Again)
            }
            Vice::TakesSendsSlowly if self.count > 0 => Err(PostError::Again),
            Vice::TakesSendsSlowly => {
                let posted = self.inner.post(&op, now)?;
                self.count = SLOW_POLLS;
                Ok(posted)
            }
            Vice::DropsEmpty if length(&op.kind) == 0 => Ok(Posted::Done),
            Vice::SendsLate => self.later(op, 2),
            Vice::CutsLongest if length(&op.kind) == longest => {
                self.inner.post(&Op { kind: with_length(op.kind, |n| n - 1), ..op }, now)
            }
            Vice::CutsToCaps => {
                self.inner.post(&Op { kind: with_length(op.kind, |n| n.min(longest)), ..op }, now)
            }
            Vice::BreaksHead => {
                let OpKind::Send { mut head, payload } = op.kind else { unreachable!() };
                head[31] ^= 1;
                self.inner.post(&Op { kind: OpKind::Send { head, payload }, ..op }, now)
            }
            _ => self.inner.post(&op, now),
        }
    }

    fn post_write(&mut self, op: Op, now: Instant) -> Result<Posted, PostError> {
        let OpKind::Write { source, target, immediate } = op.kind else { unreachable!() };
        match (self.vice, source, immediate) {
            (Vice::HalfWrite, Source::Span(_), _) if self.every(3) => {
                self.inner.post(&Op { kind: with_length(op.kind, |n| n / 2), ..op }, now)?;
                Err(PostError::Again)
            }
            (Vice::RefusedButWritten, ..) => {
                let posted = self.inner.post(&op, now);
                if posted == Err(PostError::Again) {
                    Copied::of(&op.kind).into_iter().for_each(Copied::carry_out);
                }
                posted
            }
            (Vice::WritesThenRefusesWord, _, Some(_)) if self.is_full() => {
                Copied::of(&op.kind).into_iter().for_each(Copied::carry_out);
                Err(PostError::Again)
            }
            (Vice::DropsEmpty, ..) if length(&op.kind) == 0 => Ok(Posted::Done),
            (Vice::SendOvertakes, Source::Span(_), _) => self.later(op, 3),
            (Vice::ImmediateFirst, _, Some(immediate)) => {
                let peer = PeerIndex(1 - op.peer.0);
                self.made_up.push_back(Completion::Immediate { peer, immediate });
                let kind = OpKind::Write { source, target, immediate: None };
                self.later(Op { kind, ..op }, 3)
            }
            (Vice::RoundsTargets, Source::Span(_), _) => {
                let target = RemoteSpan { address: target.address & !7, ..target };
                self.inner
                    .post(&Op { kind: OpKind::Write { source, target, immediate }, ..op }, now)
            }
            (Vice::BreaksLine, Source::Line(mut line), _) => {
                line[63] = 0;
                let kind = OpKind::Write { source: Source::Line(line), target, immediate };
                self.inner.post(&Op { kind, ..op }, now)
            }
            _ => self.inner.post(&op, now),
        }
    }

    fn post_other(&mut self, op: Op, now: Instant) -> Result<Posted, PostError> {
        if let OpKind::Fence { .. } = op.kind {
            let peer = op.peer.as_usize();
            self.is_fenced[peer] = true;
            if self.vice == Vice::OwnOpsOutliveFence {
                self.outliving = self.writes[peer].take().map(|write| (write, 16));
            }
        }
        let kind = match (self.vice, op.kind) {
            (Vice::ReadsBeside, OpKind::Read { target, source }) => {
                OpKind::Read { target, source: source.plus(1) }
            }
            (Vice::AddsHalf, OpKind::Add { target, value }) => {
                OpKind::Add { target, value: value & 0xffff_ffff }
            }
            (Vice::AddsByReading, OpKind::Add { target, value }) if value > 1 => {
                // SAFETY: memory of the bench's, which nobody writes meanwhile.
                let read = unsafe { (target.address as *const u64).read() };
                self.sums.push((target.address, read.wrapping_add(value)));
                OpKind::Add { target, value: 0 }
            }
            (Vice::FencesInNameOnly, OpKind::Fence { generation }) => {
                let fenced = Completion::Fenced { peer: op.peer, id: op.id, generation };
                self.made_up.push_back(fenced);
                return Ok(Posted::Pending);
            }
            (_, kind) => kind,
        };
        self.inner.post(&Op { kind, ..op }, now)
    }

    /// What becomes of a true completion.
    fn pass(&mut self, completion: Completion, out: &mut Batch) {
        let is_end = matches!(completion, Completion::Done { .. } | Completion::Fenced { .. });
        self.in_flight = self.in_flight.saturating_sub(is_end.into());
        match (self.vice, completion) {
            (_, Completion::Done { id, .. }) if id.0 & PART != 0 => {}
            (Vice::ForgetsCompletion, Completion::Done { .. }) if self.every(5) => {}
            (Vice::RepeatsCompletion, Completion::Done { .. }) if self.every(5) => {
                self.made_up.push_back(completion);
                out.push(completion);
            }
            (Vice::TellsAnotherCause, Completion::PeerDown { peer, .. }) => {
                out.push(Completion::PeerDown { peer, cause: DownCause::Silent });
            }
            (Vice::SwallowsErrors, Completion::Done { result: Err(_), .. }) => {}
            (Vice::SpeaksAfterDown, Completion::PeerDown { peer, .. }) => {
                out.push(completion);
                self.made_up.push_back(Completion::Immediate { peer, immediate: 5 });
            }
            (Vice::WrongId, Completion::Done { peer, id, result: result @ Err(_) }) => {
                out.push(Completion::Done { peer, id: OpId(id.0 ^ 1 << 40), result });
            }
            (_, Completion::Received { peer, slot, length, .. }) => {
                if peer == FROM_A && Bytes(length.into()) > SHORT_BYTES {
                    self.longs.push_back(slot);
                }
                self.newest = slot;
                self.is_emptied = false;
                out.push(completion);
            }
            _ => out.push(completion),
        }
    }

    fn swap_messages(&self, out: &mut [Completion]) {
        let message = |c: &Completion| matches!(c, Completion::Received { .. });
        if self.vice == Vice::SwapsMessages && out.len() > 1 && out[..2].iter().all(message) {
            out.swap(0, 1);
        }
    }
}

fn done(peer: PeerIndex, id: OpId) -> Completion {
    Completion::Done { peer, id, result: Ok(()) }
}

impl MemoryDomain for Broken {
    type Domain = BrokenDomain;

    fn domain(&self) -> BrokenDomain {
        let (inner, vice, arena_key) = (self.inner.domain(), self.vice, self.arena_key);
        BrokenDomain { inner, vice, arena_key }
    }
}

impl Provider for Broken {
    fn caps(&self, peer: PeerIndex) -> Caps {
        let caps = self.inner.caps(peer);
        self.asked.set(self.asked.get() + 1);
        match self.vice {
            Vice::ChangesCaps => {
                Caps { recv_slots: caps.recv_slots - self.asked.get() % 2, ..caps }
            }
            vice if vice.is_of_longs() => Caps { send_payload_max: SHORT_BYTES, ..caps },
            Vice::PromisesMoreReceives => Caps { recv_slots: caps.recv_slots + 1, ..caps },
            _ => caps,
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        self.inner.caps(peer).send_payload_max
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        let mut op = *op;
        if self.vice == Vice::MasterKey {
            op.kind = with_key(op.kind, RailKey(self.arena_key.load(Ordering::Relaxed)));
        }
        let dice = || Random::new(POSTS.fetch_add(1, Ordering::Relaxed)).chance(CERTAIN / 4);
        if self.vice == Vice::OwnDice && dice() {
            return Err(PostError::Again);
        }
        let peer = op.peer.as_usize();
        if let Some(write) = Copied::of(&op.kind) {
            if self.vice == Vice::OwnPostsPassFence && self.is_fenced[peer] {
                write.carry_out();
                return Ok(Posted::Done);
            }
            self.writes[peer] = Some(write);
        }
        let overtaking = self.overtaking(&op.kind);
        if overtaking.is_some() {
            op.kind = with_length(op.kind, |_| 0);
        }
        let posted = match op.kind {
            OpKind::Send { .. } => {
                let posted = self.post_send(op, now);
                self.unreleased += u32::from(posted.is_ok());
                posted
            }
            OpKind::Write { .. } => self.post_write(op, now),
            OpKind::Read { .. } | OpKind::Add { .. } | OpKind::Fence { .. } => {
                self.post_other(op, now)
            }
        };
        if posted.is_ok() {
            overtaking.into_iter().for_each(Copied::carry_out);
        }
        self.in_flight += u32::from(posted == Ok(Posted::Pending));
        match posted {
            Err(PostError::PeerDown) if self.vice == Vice::AcceptsForTheDead => Ok(Posted::Done),
            posted => posted,
        }
    }

    fn parts_max(&self, _peer: PeerIndex) -> usize {
        PARTS_MAX
    }

    /// Parts as writes of their own, of which the last is the op. One that found no room is posted
    /// again with all the others, which does no harm.
    fn post_gather(&mut self, gather: &Gather, now: Instant) -> Result<Posted, PostError> {
        let Gather { id, peer, parts, target, immediate } = *gather;
        if parts.len() > PARTS_MAX {
            return Err(PostError::Unsupported);
        }
        let (mut parts, mut at) = (parts.to_vec(), 0);
        if self.vice == Vice::SwapsParts {
            parts.reverse();
        }
        let (last, first) = parts.split_last().ok_or(PostError::Unsupported)?;
        let write = |span: LocalSpan, at: u64, immediate| OpKind::Write {
            source: Source::Span(span),
            target: target.plus(at),
            immediate,
        };
        for part in first {
            let kind = write(*part, at, None);
            self.inner.post(&Op { id: OpId(id.0 | PART), peer, kind }, now)?;
            at += part.length().0;
        }
        self.inner.post(&Op { id, peer, kind: write(*last, at, immediate) }, now)
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        for (address, sum) in self.sums.drain(..) {
            // SAFETY: as when it was read.
            unsafe { (address as *mut u64).write(sum) };
        }
        let room = match self.vice {
            Vice::LosesBeyondSlice => 16,
            _ => out.len().saturating_sub(self.made_up.len()),
        };
        let budget = if self.vice == Vice::IgnoresBudget { Bytes(u64::MAX) } else { budget };
        let mut all = Batch { items: [crate::NOTHING; 64], count: 0 };
        for completion in self.made_up.drain(..) {
            all.push(completion);
        }
        if self.vice == Vice::TakesSendsSlowly {
            self.count = self.count.saturating_sub(1);
        }
        if self.vice == Vice::Allocates {
            drop(std::hint::black_box(Box::new(room)));
        }
        let mut raw = [crate::NOTHING; 16];
        let count = self.inner.poll(&mut raw[..room.min(16)], budget, now);
        for completion in &raw[..count] {
            self.pass(*completion, &mut all);
        }
        self.made_up.extend(self.kept_ends.drain(..));
        self.post_late(now);
        self.outlive();
        self.swap_messages(&mut all.items[..all.count]);
        let count = all.count.min(out.len());
        out[..count].copy_from_slice(&all.items[..count]);
        count
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        if self.is_emptied {
            return; // nothing is there
        }
        let is_oldest = peer == FROM_A && self.longs.front() == Some(&slot);
        let is_last = self.longs.len() >= LONG_SLOTS as usize;
        if self.vice == Vice::HoldsOneLongLess && is_oldest && is_last {
            return; // its bytes are gone
        }
        let slot = if self.vice == Vice::ServesNewest { self.newest } else { slot };
        self.inner.received_copy(peer, slot, offset, to);
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        self.inner.received_peek(peer, slot, to);
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        if self.vice != Vice::LeaksSlot || !self.every(3) {
            self.unreleased = self.unreleased.saturating_sub(1);
            let long = self.longs.iter().position(|long| peer == FROM_A && *long == slot);
            if let Some(at) = long {
                self.longs.remove(at);
                // the one behind those that are held has no place of its own
                let is_extra = at as u32 == LONG_SLOTS;
                self.long_places_lost += u32::from(at > 0 && !is_extra);
            }
            self.inner.received_release(peer, slot);
        }
    }
}

impl PeerLife for Broken {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if self.vice == Vice::ThrowsAwayWhatCame {
            let mut raw = [crate::NOTHING; 16];
            let count = self.inner.poll(&mut raw, Bytes::ZERO, Instant(0));
            let came = |c: &&Completion| {
                !matches!(c, Completion::Received { .. } | Completion::Immediate { .. })
            };
            self.made_up.extend(raw[..count].iter().filter(came));
        }
        if self.vice == Vice::TellsEndsLast {
            let mut raw = [crate::NOTHING; 16];
            let count = self.inner.poll(&mut raw, Bytes::ZERO, Instant(0));
            let is_end = |c: &&Completion| matches!(c, Completion::Done { .. });
            self.kept_ends.extend(raw[..count].iter().filter(is_end));
            self.made_up.extend(raw[..count].iter().filter(|c| !is_end(c)));
        }
        self.inner.peer_fail(peer, cause);
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.inner.peer_close(peer) {
            Err(CloseError::Busy) if self.vice == Vice::ClosesAnyway => Ok(()),
            Ok(()) if self.vice != Vice::LeaksHeldAtClose => {
                self.unreleased = 0;
                Ok(())
            }
            other => other,
        }
    }

    /// The loopback below has none, so only one that does it wrongly can be made of it.
    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.vice {
            Vice::FreesHeldAtDetach => {
                self.inner.peer_close(peer)?;
                self.is_emptied = true;
                Ok(())
            }
            _ => self.inner.peer_detach(peer),
        }
    }
}

impl crate::common::OverLoopback for Broken {
    fn loopback(&mut self) -> &mut Loopback<'static> {
        &mut self.inner
    }
}
