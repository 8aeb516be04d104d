//! What every entry needs: posts with fresh ids, polls that keep books, memory to look at.

use super::receives::Stock;
use super::{ARENA_BYTES, Failure, Outcome, Rig, Side, Verdict};
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::Bytes;
use crosstie::fabric::{
    Caps, Completion, Domain, DownCause, Gather, Head, LocalSpan, MemoryDomain, MemoryKind, Op,
    OpError, OpId, OpKind, PostError, Posted, Provider, RailKey, RecvSlot, Region, RegisterError,
    RemoteSpan, Source,
};

/// Rounds that are looked at for something that must not come; see [`Rig::advance`]. What must
/// come is waited for by [`Bench::wait_until`].
pub const QUIET: u32 = 128;
/// Ops of one entry at most.
const OPS_MAX: usize = 512;
/// Events of one side at most.
const EVENTS_MAX: usize = 512;
/// Budget of a poll that is not about budgets.
const BUDGET: Bytes = Bytes::kib(64);
/// Of a poll that is to leave a long transfer half-way.
const BUDGET_SHORT: Bytes = Bytes::kib(4);
/// Ops that a long transfer is cut into at most.
pub const PIECES_MAX: usize = 8;
/// Ids start here, so that an id made up by a provider is noticed.
const ID_FIRST: u64 = 0xc0de_0000;

pub type Check<T = ()> = Result<T, Failure>;

/// What has happened to an op.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Fate {
    Refused(PostError),
    Pending,
    Ended(Result<(), OpError>),
}

/// A message or a word that came in.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Arrival {
    Message { slot: RecvSlot, head: Head, length: u32 },
    Word(u32),
    Down,
}

/// What one side has seen, in order.
struct Log {
    arrivals: [Option<Arrival>; EVENTS_MAX],
    count: usize,
}

/// A rig with books.
pub struct Bench<'r, R: Rig> {
    pub rig: &'r mut R,
    pub caps: Caps,
    keys: [RailKey; 2],
    ops: [(Side, Fate); OPS_MAX],
    op_count: usize,
    logs: [Log; 2],
    /// Why each side's peer is gone.
    causes: [Option<DownCause>; 2],
    /// Ops of each side that ended behind its peer.
    ended_behind: [u32; 2],
    /// Of the fence that was asked for last.
    generation: RailGeneration,
    /// Whether messages are released as they come.
    pub release: bool,
    /// Messages that are more than the books above have room for.
    pub stock: Stock,
    /// A number that depends on everything seen so far.
    pub digest: u64,
}

pub const fn fail<T>(promise: u8, why: &'static str) -> Check<T> {
    Err(Failure { promise, why })
}

pub const fn ensure(holds: bool, promise: u8, why: &'static str) -> Check {
    if holds { Ok(()) } else { fail(promise, why) }
}

pub const PASSED: Verdict = Ok(Outcome::Passed);

pub const fn skipped(why: &'static str) -> Verdict {
    Ok(Outcome::Skipped(why))
}

/// Offsets and lengths of the ops that a long transfer takes: one where the rail has transfers of
/// that length, and else several that move as much of it as they can.
pub fn pieces(caps: &Caps, length: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let step = cut(caps, length);
    let whole = length.min(PIECES_MAX * step);
    (0..whole).step_by(step).map(move |at| (at, step.min(whole - at)))
}

fn cut(caps: &Caps, length: usize) -> usize {
    (length as u64).min(caps.transfer_max.0) as usize
}

impl<'r, R: Rig> Bench<'r, R> {
    /// Registers both arenas, zeroed.
    pub fn new(rig: &'r mut R) -> Check<Bench<'r, R>> {
        let peer = rig.peer(Side::A);
        let caps = rig.provider(Side::A).caps(peer);
        const NOTHING: Log = Log { arrivals: [None; EVENTS_MAX], count: 0 };
        let mut bench = Bench {
            rig,
            caps,
            keys: [RailKey(0); 2],
            ops: [(Side::A, Fate::Pending); OPS_MAX],
            op_count: 0,
            logs: [NOTHING; 2],
            causes: [None; 2],
            ended_behind: [0; 2],
            generation: RailGeneration(0),
            release: true,
            stock: Stock::EMPTY,
            digest: 0,
        };
        for side in [Side::A, Side::B] {
            bench.fill(side, 0, ARENA_BYTES, 0);
            bench.keys[side.index()] = bench.register(side, 0, ARENA_BYTES)?;
        }
        Ok(bench)
    }

    pub fn register(&mut self, side: Side, offset: usize, length: usize) -> Check<RailKey> {
        assert!(offset + length <= ARENA_BYTES);
        let address = self.rig.arena(side) as u64 + offset as u64;
        let key = self.register_range(side, address, length);
        key.or(fail(7, "memory of the rig could not be registered"))
    }

    /// Registers a range of the arena, or one that must be refused.
    pub fn register_range(
        &mut self,
        side: Side,
        address: u64,
        length: usize,
    ) -> Result<RailKey, RegisterError> {
        self.register_kind(side, address, length, MemoryKind::Host)
    }

    /// The same of memory of any kind.
    pub fn register_kind(
        &mut self,
        side: Side,
        address: u64,
        length: usize,
        kind: MemoryKind,
    ) -> Result<RailKey, RegisterError> {
        let region = Region { address, length: Bytes::of(length), kind };
        // SAFETY: the arena is valid as long as the rig (`Rig::arena`), which owns the provider; of
        // what must be refused nothing is posted, whatever the answer.
        unsafe { self.rig.provider(side).domain().register(region) }
    }

    /// The longest payload that `side` may send to its peer.
    pub fn payload_max(&mut self, side: Side) -> Bytes {
        let peer = self.rig.peer(side);
        self.rig.provider(side).send_payload_max(peer)
    }

    /// So much of a length as one write or read may have.
    pub fn cut(&self, length: usize) -> usize {
        cut(&self.caps, length)
    }

    /// So much of a length as [`pieces`] move.
    pub fn whole(&self, length: usize) -> usize {
        pieces(&self.caps, length).map(|(_, length)| length).sum()
    }

    /// Memory of `side` as it names it itself.
    pub fn local(&mut self, side: Side, offset: usize, length: usize) -> LocalSpan {
        assert!(offset + length <= ARENA_BYTES);
        let address = self.rig.arena(side) as u64 + offset as u64;
        // SAFETY: inside the arena, which is registered in `new` and outlives the provider; an
        // entry that breaks the second obligation does so to see what the provider promises.
        unsafe { LocalSpan::new(address, Bytes::of(length), self.keys[side.index()]) }
    }

    /// Memory of `side` as the other side names it.
    pub fn remote(&mut self, side: Side, offset: usize) -> RemoteSpan {
        let address = self.rig.arena(side) as u64 + offset as u64;
        RemoteSpan { key: self.keys[side.index()], address }
    }

    pub fn fill(&mut self, side: Side, offset: usize, length: usize, byte: u8) {
        assert!(offset + length <= ARENA_BYTES);
        // SAFETY: inside the arena, which nobody else touches but ops of this entry.
        unsafe { self.rig.view(side).add(offset).write_bytes(byte, length) };
    }

    pub fn byte(&mut self, side: Side, offset: usize) -> u8 {
        assert!(offset < ARENA_BYTES);
        // SAFETY: inside the arena; volatile because a device may write it.
        unsafe { self.rig.view(side).add(offset).read_volatile() }
    }

    pub fn set_byte(&mut self, side: Side, offset: usize, byte: u8) {
        self.fill(side, offset, 1, byte);
    }

    pub fn word(&mut self, side: Side, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(side, offset + n);
        }
        u64::from_ne_bytes(bytes)
    }

    /// How many bytes of the range are `byte`.
    pub fn count(&mut self, side: Side, offset: usize, length: usize, byte: u8) -> usize {
        (0..length).filter(|n| self.byte(side, offset + n) == byte).count()
    }

    pub fn holds(&mut self, side: Side, offset: usize, length: usize, byte: u8) -> bool {
        self.count(side, offset, length, byte) == length
    }

    /// Posts once and keeps the books.
    pub fn post(&mut self, side: Side, kind: OpKind) -> Check<OpId> {
        assert!(self.op_count < OPS_MAX);
        let id = OpId(ID_FIRST + self.op_count as u64);
        let op = Op { id, peer: self.rig.peer(side), kind };
        let now = self.rig.now();
        let posted = self.rig.provider(side).post(&op, now);
        self.posted(side, id, posted);
        Ok(id)
    }

    /// The same of a write of several parts.
    pub fn post_gather(
        &mut self,
        side: Side,
        parts: &[LocalSpan],
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Check<OpId> {
        assert!(self.op_count < OPS_MAX);
        let id = OpId(ID_FIRST + self.op_count as u64);
        let (peer, now) = (self.rig.peer(side), self.rig.now());
        let provider = self.rig.provider(side);
        let posted = provider.post_gather(&Gather { id, peer, parts, target, immediate }, now);
        self.posted(side, id, posted);
        Ok(id)
    }

    fn posted(&mut self, side: Side, id: OpId, posted: Result<Posted, PostError>) {
        let fate = match posted {
            Ok(Posted::Pending) => Fate::Pending,
            Ok(Posted::Done) => Fate::Ended(Ok(())),
            Err(error) => Fate::Refused(error),
        };
        self.note(matches!(fate, Fate::Pending).into(), id.0);
        self.ops[self.op_count] = (side, fate);
        self.op_count += 1;
    }

    /// Posts, polling as long as the answer is `Again`.
    pub fn post_past_again(&mut self, side: Side, kind: OpKind) -> Check<OpId> {
        self.past_again(|bench| bench.post(side, kind))
    }

    /// Posts by `post` as long as the answer is `Again`, and polls in between.
    pub fn past_again(&mut self, post: impl Fn(&mut Self) -> Check<OpId>) -> Check<OpId> {
        let mut rounds = 0;
        loop {
            let id = post(self)?;
            if self.fate(id) != Fate::Refused(PostError::Again) {
                return Ok(id);
            }
            self.forget_last();
            ensure(self.rig.is_patient(rounds), 1, "post never stops saying Again")?;
            self.round()?;
            rounds += 1;
        }
    }

    /// The same for an op that must be accepted in the end.
    pub fn post_patiently(&mut self, side: Side, kind: OpKind) -> Check<OpId> {
        let id = self.post_past_again(side, kind)?;
        match self.fate(id) {
            Fate::Refused(_) => fail(1, "an op that Caps allows was refused for good"),
            Fate::Pending | Fate::Ended(_) => Ok(id),
        }
    }

    pub fn send(&mut self, side: Side, number: u8, payload: LocalSpan) -> Check<OpId> {
        self.post_patiently(side, OpKind::Send { head: [number; 32], payload })
    }

    /// Writes a part of the arena to the same place of the other one.
    pub fn write(&mut self, side: Side, at: usize, length: usize) -> Check<OpId> {
        let kind = self.write_kind(side, at, length);
        self.post_patiently(side, kind)
    }

    pub fn write_kind(&mut self, side: Side, at: usize, length: usize) -> OpKind {
        let source = Source::Span(self.local(side, at, length));
        OpKind::Write { source, target: self.remote(side.other(), at), immediate: None }
    }

    /// Reads a part of the other arena to the same place of ours.
    pub fn read(&mut self, side: Side, at: usize, length: usize) -> Check<OpId> {
        let source = self.remote(side.other(), at);
        let target = self.local(side, at, length);
        self.post_patiently(side, OpKind::Read { target, source })
    }

    /// Posts a fence, polling as long as the answer is `Again`.
    pub fn fence(&mut self, side: Side, generation: RailGeneration) -> Check<OpId> {
        self.generation = generation;
        self.post_past_again(side, OpKind::Fence { generation })
    }

    /// Why the peer of `side` is gone, once it is.
    pub fn cause(&self, side: Side) -> Option<DownCause> {
        self.causes[side.index()]
    }

    /// How many ops of `side` have ended after it was told that its peer is gone.
    pub fn ended_behind(&self, side: Side) -> u32 {
        self.ended_behind[side.index()]
    }

    pub fn fate(&self, id: OpId) -> Fate {
        self.ops[(id.0 - ID_FIRST) as usize].1
    }

    /// Forgets the op that was posted last, which was refused: the next one has its id.
    pub fn forget_last(&mut self) {
        self.op_count -= 1;
        debug_assert!(matches!(self.ops[self.op_count].1, Fate::Refused(_)));
    }

    /// Whether an op that was taken has failed.
    pub fn has_failed(&self) -> bool {
        self.ops[..self.op_count].iter().any(|(_, fate)| matches!(fate, Fate::Ended(Err(_))))
    }

    pub fn succeeded(&self, id: OpId) -> bool {
        self.fate(id) == Fate::Ended(Ok(()))
    }

    /// Whether an op was taken and has not ended.
    pub fn is_pending(&self) -> bool {
        self.ops[..self.op_count].iter().any(|(_, fate)| *fate == Fate::Pending)
    }

    pub fn arrival(&self, side: Side, n: usize) -> Option<Arrival> {
        self.arrivals(side).nth(n)
    }

    pub fn arrivals(&self, side: Side) -> impl Iterator<Item = Arrival> {
        let log = &self.logs[side.index()];
        log.arrivals[..log.count].iter().flatten().copied()
    }

    pub fn arrived(&self, side: Side) -> usize {
        self.logs[side.index()].count
    }

    /// One poll of each provider.
    pub fn round(&mut self) -> Check {
        self.round_within(BUDGET)
    }

    fn round_within(&mut self, budget: Bytes) -> Check {
        self.rig.advance();
        self.poll(Side::A, budget)?;
        if !self.rig.shared() {
            self.poll(Side::B, budget)?;
        }
        Ok(())
    }

    pub fn poll(&mut self, side: Side, budget: Bytes) -> Check<usize> {
        let nothing = Completion::Immediate { peer: PeerIndex(u32::MAX), immediate: 0 };
        let mut out = [nothing; 16];
        self.poll_into(side, &mut out, budget)
    }

    pub fn poll_into(&mut self, side: Side, out: &mut [Completion], budget: Bytes) -> Check<usize> {
        let now = self.rig.now();
        let count = self.rig.provider(side).poll(out, budget, now);
        ensure(count <= out.len(), 3, "poll counted more events than its slice holds")?;
        for completion in &out[..count] {
            self.take(side, completion)?;
        }
        Ok(count)
    }

    pub fn rounds(&mut self, count: u32) -> Check {
        for _ in 0..count {
            self.round()?;
        }
        Ok(())
    }

    /// Polls until it has come, which must come: `(promise, why)` says what is broken else.
    pub fn wait_until(
        &mut self,
        broken: (u8, &'static str),
        has_come: impl FnMut(&mut Self) -> bool,
    ) -> Check {
        self.wait_within(BUDGET, broken, has_come)
    }

    fn wait_within(
        &mut self,
        budget: Bytes,
        (promise, why): (u8, &'static str),
        mut has_come: impl FnMut(&mut Self) -> bool,
    ) -> Check {
        let mut rounds = 0;
        while !has_come(self) {
            ensure(self.rig.is_patient(rounds), promise, why)?;
            self.round_within(budget)?;
            rounds += 1;
        }
        Ok(())
    }

    /// Polls until every accepted op has ended.
    pub fn finish(&mut self, promise: u8) -> Check {
        let broken = (promise, "an accepted op never completed");
        self.wait_until(broken, |bench| !bench.is_pending())
    }

    /// Polls until both sides, or one, have been told that the peer is gone.
    pub fn await_ends(&mut self, sides: &[Side]) -> Check {
        let broken = (6, "the end of a peer was never told");
        self.wait_until(broken, |bench| sides.iter().all(|side| bench.cause(*side).is_some()))
    }

    /// Polls until so many messages, words and ends have arrived at `side`.
    pub fn await_arrivals(&mut self, side: Side, count: usize, promise: u8) -> Check {
        self.await_within(BUDGET, side, count, promise)
    }

    /// The same by polls of which none has time for a long transfer.
    pub fn await_slowly(&mut self, side: Side, count: usize, promise: u8) -> Check {
        self.await_within(BUDGET_SHORT, side, count, promise)
    }

    fn await_within(&mut self, budget: Bytes, side: Side, count: usize, promise: u8) -> Check {
        let broken = (promise, "something accepted never arrived");
        self.wait_within(budget, broken, |bench| bench.arrived(side) >= count)
    }

    /// Which side an event of the polled provider belongs to.
    fn side_of(&self, polled: Side, peer: PeerIndex) -> Check<Side> {
        if self.rig.peer(polled) == peer {
            Ok(polled)
        } else if self.rig.shared() && self.rig.peer(polled.other()) == peer {
            Ok(polled.other())
        } else {
            fail(6, "an event names a peer that is not open")
        }
    }

    fn take(&mut self, polled: Side, completion: &Completion) -> Check {
        match *completion {
            Completion::Done { peer, id, result } => {
                let side = self.side_of(polled, peer)?;
                self.end(side, id, result)
            }
            Completion::Fenced { peer, id, generation } => {
                let side = self.side_of(polled, peer)?;
                let why = "a fence holds of another generation than was asked for";
                ensure(generation == self.generation, 10, why)?;
                self.end(side, id, Ok(()))
            }
            Completion::Received { peer, slot, head, length } => {
                let side = self.side_of(polled, peer)?;
                if self.stock.is_open && side == Side::B {
                    return self.stock.arrive(slot, &head, length);
                }
                if self.release {
                    self.rig.provider(side).received_release(peer, slot);
                }
                self.arrive(side, Arrival::Message { slot, head, length })
            }
            Completion::Immediate { peer, immediate } => {
                let side = self.side_of(polled, peer)?;
                self.arrive(side, Arrival::Word(immediate))
            }
            Completion::PeerDown { peer, cause } => {
                let side = self.side_of(polled, peer)?;
                self.causes[side.index()] = Some(cause);
                self.arrive(side, Arrival::Down)
            }
        }
    }

    fn end(&mut self, side: Side, id: OpId, result: Result<(), OpError>) -> Check {
        self.note(2 + u64::from(result.is_ok()), id.0);
        if Stock::has_posted(id) {
            return self.stock.end(id, result);
        }
        let index = id.0.wrapping_sub(ID_FIRST) as usize;
        if index >= self.op_count {
            return fail(6, "a completion names an op that was never posted");
        }
        let (posted_by, fate) = self.ops[index];
        ensure(posted_by == side, 6, "a completion names the wrong peer")?;
        match fate {
            Fate::Refused(_) => return fail(1, "an op completed that was refused"),
            Fate::Ended(_) => return fail(2, "an op completed twice"),
            Fate::Pending => {}
        }
        self.ops[index].1 = Fate::Ended(result);
        self.ended_behind[side.index()] += u32::from(self.causes[side.index()].is_some());
        Ok(())
    }

    fn arrive(&mut self, side: Side, arrival: Arrival) -> Check {
        let (kind, word) = match arrival {
            Arrival::Message { head, .. } => (4, head[0].into()),
            Arrival::Word(word) => (5, word.into()),
            Arrival::Down => (6, 0),
        };
        self.note(kind + 8 * side.index() as u64, word);
        let log = &mut self.logs[side.index()];
        ensure(log.count < EVENTS_MAX, 2, "more events came than were caused")?;
        log.arrivals[log.count] = Some(arrival);
        log.count += 1;
        Ok(())
    }

    fn note(&mut self, kind: u64, word: u64) {
        self.digest = (self.digest ^ (kind << 56 | word)).wrapping_mul(0x0000_0100_0000_01b3);
        self.digest ^= self.digest >> 29;
    }
}
