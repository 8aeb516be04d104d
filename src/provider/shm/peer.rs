//! One connection: its four ring ends, what is outstanding on it, and how it goes down.
//!
//! ```text
//! Closed ──open──► Open ──peer left, failed, or said so from outside──► Draining
//!   ▲                │                                                     │ rings empty
//!   └──── close ─────┴──────────────────── close ──────────────────────── Down (reported once)
//! ```

use super::board::PeerBoard;
use super::copiers::Copiers;
use super::held::Held;
use super::layout::{
    LEFT_AT, LEFT_CLOSED, LEFT_FAILED, LEFT_NOT, RingSizes, SEND_READ_AT, SEND_RING_AT,
    WRITE_READ_AT, rings_bytes, write_ring_at,
};
use super::ops::{List, Ops, Outcome};
use super::pull::Pulled;
use super::record::{Kind, LINE};
use super::ring::{Corrupt, RingReader, RingWriter};
use super::serve::Serves;
use super::view::SharedView;
use super::word::{FULL, RELAXED, RELEASE, fence, u32_at};
use crate::base::carve::Zeroable;
use crate::base::ids::PeerIndex;
use crate::base::regions::RegionTable;
use crate::base::slab::Handle;
use crate::fabric::{Completion, DownCause, HEAD_BYTES, Head, RecvSlot};
use crate::provider::events::Events;
use crate::provider::notes::Notes;

/// How to reach one peer.
#[derive(Copy, Clone, Debug)]
pub struct PeerSetup {
    /// The rings that we write; [`super::layout::rings_bytes`] long.
    pub rings: *mut u8,
    /// Those that the peer writes, as long, mapped for reading.
    pub peer_rings: *const u8,
    /// Sizes of the rings, the same on both sides.
    pub sizes: RingSizes,
    /// The peer's process, when the kernel lets us read it.
    pub kernel_copy_pid: Option<i32>,
    /// The peer's shared heap as mapped here.
    pub heap: Option<SharedView>,
    /// The eventfd that wakes the peer.
    pub doorbell: Option<i32>,
    /// Order doorbells with a fence at each post, because one side has no process-wide barrier.
    pub use_fence_for_doorbell: bool,
}

/// Bytes of a send's record beside its payload: the record's word and the head.
const SEND_OVERHEAD_BYTES: u32 = 8 + HEAD_BYTES as u32;

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub(super) enum State {
    Closed = 0,
    Open = 1,
    Draining = 2,
    Down = 3,
}

/// What a peer works with and does not own.
pub(super) struct Work<'a, 'm, 'o> {
    pub(super) ops: &'a mut Ops<'m>,
    pub(super) regions: RegionTable<'m>,
    pub(super) out: Events<'o>,
    pub(super) copiers: Option<&'a mut Copiers>,
    pub(super) notes: &'a mut Notes,
    /// Bytes that may still be copied.
    pub(super) budget: u64,
}

impl Work<'_, '_, '_> {
    pub(super) fn charge(&mut self, bytes: u64) {
        self.budget = self.budget.saturating_sub(bytes.max(LINE as u64));
    }

    /// Whether something of the peer's waits for copies.
    #[inline(always)]
    fn has_taken(&self, peer: PeerIndex) -> bool {
        self.copiers.as_ref().is_some_and(|copiers| !copiers.none_taken(peer))
    }

    /// Whether one more record of the peer's may wait for its copy.
    #[inline(always)]
    pub(super) fn has_room_for_taken(&self, peer: PeerIndex) -> bool {
        self.copiers.as_ref().is_none_or(|copiers| copiers.has_room(peer))
    }

    /// Whether a thread reads the memory of that acknowledged op of the peer's.
    pub(super) fn is_read(&self, peer: PeerIndex, op: u32) -> bool {
        self.copiers.as_ref().is_some_and(|copiers| copiers.is_read(peer, op))
    }

    /// Ends an op that is in no list.
    pub(super) fn finish(&mut self, index: u32, outcome: Outcome, code: i32) {
        finish(self.ops, self.regions, index, outcome, code);
    }

    fn finish_all(&mut self, list: &mut List, outcome: Outcome) {
        while let Some(index) = self.ops.take_first(list) {
            self.finish(index, outcome, 0);
        }
    }
}

/// Ends an op that is in no list, and unpins its memory.
pub(super) fn finish(ops: &mut Ops, regions: RegionTable, index: u32, how: Outcome, code: i32) {
    let entry = ops.get(index);
    if entry.pinned {
        entry.pinned = false;
        regions.pin(Handle::unpack(entry.local.key().0).index, -1);
    }
    ops.end(index, how, code);
}

/// One connection. Zeroed: closed.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: State,
    /// Nothing of this peer is looked at any more (P10).
    pub(super) fenced: bool,
    pub(super) reported: bool,
    pub(super) use_fence: bool,
    cause: u8,
    /// An earlier part of the incoming write was refused.
    pub(super) part_refused: bool,
    pub(super) acks_unpublished: bool,
    pub(super) bell_due: bool,
    /// The oldest read waits for the peer.
    pub(super) pull_waits: bool,
    pub(super) index: PeerIndex,
    /// What we write: the words of `layout`, and behind them the rings.
    pub(super) ours: *mut u8,
    /// The same of the peer's.
    pub(super) theirs: SharedView,
    /// How often we have asked to be woken.
    pub(super) arms: u64,
    pub(super) send_out: RingWriter,
    pub(super) send_in: RingReader,
    pub(super) write_in: RingReader,
    pub(super) held: Held,
    pub(super) write_out: RingWriter,
    pub(super) doorbell: i32,
    /// 0 where the kernel does not let us, or is not asked.
    pub(super) kernel_pid: i32,
    pub(super) board: PeerBoard,
    /// Accepted and not yet reported.
    pub(super) in_flight: u32,
    /// Longest body of one write or data record.
    pub(super) chunk_bytes: u32,
    /// Not wholly in the ring yet.
    pub(super) writes: List,
    /// In the ring, not acknowledged yet.
    pub(super) acks: List,
    pub(super) reads: List,
    pub(super) acks_posted: u32,
    pub(super) acks_seen: u32,
    pub(super) acks_given: u32,
    pub(super) refused_bits: u64,
    pub(super) serial_next: u32,
    pub(super) serves: Serves,
    pub(super) pulled: Pulled,
}

// SAFETY: integers, raw pointers, and enums and structs of those in which zero is a value (state
// `Closed`, which nothing looks behind); nothing is owned.
unsafe impl Zeroable for Peer {}

/// A part of a transfer: 4 KiB to 16 KiB stream alike through a shared second-level cache; this
/// one keeps a poll's indivisible part near a microsecond.
pub(super) const CHUNK_BYTES_MAX: u32 = 8192;
/// Write rings from here on are not waited for: the peer copies in while we copy out, and both
/// together are faster than the kernel, which copies page by page.
pub(super) const PIPELINE_BYTES_MIN: u32 = 256 << 10;

impl Peer {
    /// A peer that is not open.
    pub(super) const fn closed() -> Peer {
        // SAFETY: zero is a value (`Zeroable` above).
        unsafe { core::mem::zeroed() }
    }

    /// Opens the connection.
    ///
    /// # Safety
    /// - as [`super::Shm::peer_open`] says.
    pub(super) unsafe fn open(&mut self, index: PeerIndex, setup: &PeerSetup) {
        let sizes = setup.sizes;
        let (send_bytes, write_bytes) = (sizes.send_bytes as usize, sizes.write_bytes as usize);
        let (send_lines, write_lines) =
            (sizes.send_bytes / LINE as u32, sizes.write_bytes / LINE as u32);
        let whole = rings_bytes(sizes.send_bytes, sizes.write_bytes);
        // SAFETY: the caller vouches for so many bytes.
        let theirs = unsafe { SharedView::new(setup.peer_rings, whole) };
        // SAFETY: every part lies in the `rings_bytes` bytes that the caller vouches for.
        let at = |offset: usize| unsafe { setup.rings.add(offset) };
        let (sends_read, writes_read) = (theirs.word(SEND_READ_AT), theirs.word(WRITE_READ_AT));
        let (sends, writes) =
            (theirs.part(SEND_RING_AT, send_bytes), theirs.part(write_ring_at(sizes), write_bytes));
        // SAFETY: the parts of `layout` do not overlap, the rings are zeroed, and each side is the
        // only writer of its own and the only reader of the other's (caller).
        unsafe {
            self.send_out = RingWriter::new(at(SEND_RING_AT), send_lines, sends_read);
            self.write_out = RingWriter::new(at(write_ring_at(sizes)), write_lines, writes_read);
            self.send_in = RingReader::new(sends, at(SEND_READ_AT));
            self.write_in = RingReader::new(writes, at(WRITE_READ_AT));
        }
        self.board = PeerBoard::attach(setup.heap);
        let body_lines = self.write_out.lines_max() - 1;
        self.chunk_bytes = CHUNK_BYTES_MAX.min(body_lines * LINE as u32);
        (self.ours, self.theirs) = (setup.rings, theirs);
        self.doorbell = setup.doorbell.unwrap_or(-1);
        let kernel = setup.kernel_copy_pid.filter(|_| sizes.write_bytes < PIPELINE_BYTES_MIN);
        self.kernel_pid = kernel.unwrap_or(0);
        self.use_fence = setup.use_fence_for_doorbell;
        (self.index, self.state) = (index, State::Open);
    }

    /// Longest payload of a send that the ring takes.
    #[inline(always)]
    pub(super) fn payload_max(&self) -> u32 {
        self.send_out.lines_max() * LINE as u32 - SEND_OVERHEAD_BYTES
    }

    /// Whether ops of the given kind may be posted.
    #[inline(always)]
    pub(super) fn takes_ops(&self) -> bool {
        self.state == State::Open && !self.fenced
    }

    /// Takes what came, and moves what is outstanding. Says whether anything was to do.
    #[inline]
    pub(super) fn poll(&mut self, work: &mut Work, held_bits: &mut [u64]) -> bool {
        if self.state == State::Down || self.fenced {
            return self.poll_down(work);
        }
        match self.poll_rings(work, held_bits) {
            Ok(true) => true,
            Ok(false) => self.idle(work),
            Err(Corrupt) => {
                self.cause = cause_number(DownCause::Failed);
                self.go_down(work);
                self.poll_down(work)
            }
        }
    }

    #[inline]
    fn poll_rings(&mut self, work: &mut Work, held_bits: &mut [u64]) -> Result<bool, Corrupt> {
        let mut active = work.has_taken(self.index);
        if active {
            self.end_copied(work);
        }
        if !self.send_in.is_empty() {
            self.take_sends(work, held_bits)?;
            active = true;
        }
        if !self.write_in.is_empty() {
            self.take_writes(work)?;
            active = true;
        }
        if self.has_work() {
            active |= self.move_work(work)?;
        }
        if self.bell_due {
            self.bell_due = false;
            self.ring_bell();
        }
        Ok(active)
    }

    #[inline(always)]
    fn has_work(&self) -> bool {
        !(self.acks.is_empty()
            && self.writes.is_empty()
            && self.reads.is_empty()
            && self.serves.is_empty())
    }

    fn move_work(&mut self, work: &mut Work) -> Result<bool, Corrupt> {
        let mut active = self.take_acks(work)?;
        // What a peer on its way down has not finished will end with an error.
        if self.state == State::Open {
            active |= self.pull(work);
            active |= self.serve(work);
            active |= self.push_writes(work);
        }
        if self.write_out.is_broken() || self.send_out.is_broken() {
            return Err(Corrupt);
        }
        Ok(active)
    }

    #[inline]
    fn take_sends(&mut self, work: &mut Work, held_bits: &mut [u64]) -> Result<(), Corrupt> {
        let mut padded = false;
        while work.out.has_room() {
            let Some(record) = self.send_in.peek()? else { break };
            let end = record.position.wrapping_add(record.lines);
            if end.wrapping_sub(self.held.base()) > self.send_in.lines() {
                return Err(Corrupt);
            }
            match record.kind {
                Kind::Send => {
                    // SAFETY: the record's first line lies in the ring (`peek`).
                    let head = unsafe { record.at.add(8).cast::<Head>().read() };
                    const { assert!(8 + HEAD_BYTES == super::record::INLINE_AT) };
                    let slot = slot_of(record.position, record.length);
                    let (peer, length) = (self.index, record.length);
                    self.send_in.pass(&record);
                    padded = false;
                    work.out.push(Completion::Received { peer, slot, head, length });
                }
                Kind::Pad => {
                    // a pad is followed by the record that did not fit: two in a row never end
                    if core::mem::replace(&mut padded, true) {
                        return Err(Corrupt);
                    }
                    self.send_in.pass(&record);
                    self.send_in.turned(&record);
                    self.held.release(held_bits, record.position, record.lines);
                }
                Kind::Write | Kind::Add | Kind::Read | Kind::Data | Kind::Refuse => {
                    return Err(Corrupt);
                }
            }
        }
        Ok(())
    }

    /// Where a held message's body stands. *Panics* when the slot is not held.
    #[inline]
    pub(super) fn body(&self, slot: RecvSlot, held_bits: &[u64]) -> (*const u8, usize) {
        let (position, length) = slot_parts(slot);
        let lines = super::record::lines_for(length);
        let read = self.send_in.position();
        assert!(self.held.holds(held_bits, position, lines, read), "slot {slot:?} is not held");
        let record = self.send_in.lines_at(position, lines);
        // SAFETY: the body of a record of so many bytes lies in its lines (`lines_for`).
        let body = unsafe { record.add(super::record::body_at(length)) };
        (body, length)
    }

    /// Gives a held message's space back.
    #[inline]
    pub(super) fn release(&mut self, slot: RecvSlot, held_bits: &mut [u64]) {
        let (position, length) = slot_parts(slot);
        let lines = super::record::lines_for(length);
        let read = self.send_in.position();
        assert!(self.held.holds(held_bits, position, lines, read), "slot {slot:?} is not held");
        self.held.release(held_bits, position, lines);
        if self.send_in.retire(self.held.base()) {
            self.ring_bell();
        }
    }

    /// Nothing came and nothing moved: returns space, and sees whether the peer has left.
    #[inline]
    fn idle(&mut self, work: &mut Work) -> bool {
        if self.send_out.is_broken() && self.state == State::Open {
            // no record of its would ever have room
            return self.begin_down(DownCause::Failed);
        }
        if self.send_in.retire_idle(self.held.base())
            | self.write_in.retire_idle(self.write_in.position())
        {
            self.ring_bell();
        }
        if self.state == State::Draining {
            self.go_down(work);
            return self.poll_down(work);
        }
        match self.their_left() {
            LEFT_NOT => false,
            LEFT_CLOSED => self.begin_down(DownCause::Closed),
            _ => self.begin_down(DownCause::Failed),
        }
    }

    /// What the peer says of its leaving. After it says so, nothing more comes from it.
    #[inline(always)]
    pub(super) fn their_left(&self) -> u32 {
        // acquire: pairs with [left]
        self.theirs.acquire_u32(LEFT_AT)
    }

    /// Starts to take what had come, after which the peer is down.
    #[cold]
    pub(super) fn begin_down(&mut self, cause: DownCause) -> bool {
        if self.state == State::Open {
            self.state = State::Draining;
            self.cause = cause_number(cause);
        }
        true
    }

    #[cold]
    fn go_down(&mut self, work: &mut Work) {
        self.settle(work);
        let _ = self.take_acks(work);
        self.cancel(work, Outcome::PeerDown);
        self.state = State::Down;
        self.leave(LEFT_FAILED);
    }

    /// Lets go of what the peer had asked for, and of what threads had to do.
    pub(super) fn close(&mut self, work: &mut Work) {
        self.settle(work);
        self.serves.clear(work.regions);
    }

    /// Ends everything outstanding.
    fn cancel(&mut self, work: &mut Work, outcome: Outcome) {
        self.settle(work);
        let mut lists = [self.acks, self.writes, self.reads];
        (self.acks, self.writes, self.reads) = (List::default(), List::default(), List::default());
        for list in &mut lists {
            work.finish_all(list, outcome);
        }
        self.serves.clear(work.regions);
    }

    /// From now on nothing of the peer takes effect here (P10): its rings are not read any more,
    /// our own reads have ended, and it finds out that we left.
    pub(super) fn fence(&mut self, work: &mut Work) {
        self.cancel(work, Outcome::Canceled);
        self.fenced = true;
        // closing a connection starts with a fence; who fences because of a failure says so first
        self.leave(LEFT_CLOSED);
    }

    /// Reports once that the peer is down, when it is.
    fn poll_down(&mut self, work: &mut Work) -> bool {
        if self.state == State::Draining {
            self.state = State::Down;
        }
        if self.state == State::Open && self.their_left() != LEFT_NOT {
            self.begin_down(DownCause::Failed);
            return true;
        }
        if self.state != State::Down || self.reported || !work.out.has_room() {
            return false;
        }
        self.reported = true;
        let cause = match self.cause {
            0 => DownCause::Closed,
            1 => DownCause::Died,
            // nothing carries shared memory that could break
            _ => DownCause::Failed,
        };
        work.out.push(Completion::PeerDown { peer: self.index, cause });
        true
    }

    /// Tells the peer that we are gone. Stays what it first was.
    pub(super) fn leave(&mut self, how: u32) {
        // SAFETY: a word of our flags, which only we write (`open`).
        let left = unsafe { u32_at(self.ours.add(LEFT_AT)) };
        if left.load(RELAXED) == LEFT_NOT {
            // release: [left], everything that we ever wrote to the rings comes before
            left.store(how, RELEASE);
            // [left-gone]: what we do with our memory next comes after
            fence(FULL);
            self.ring_bell();
        }
    }
}

const fn cause_number(cause: DownCause) -> u8 {
    match cause {
        DownCause::Closed => 0,
        DownCause::Died | DownCause::Severed | DownCause::Unheard => 1,
        DownCause::Failed | DownCause::Silent | DownCause::Broken(_) => 2,
    }
}

const fn slot_of(position: u32, length: u32) -> RecvSlot {
    RecvSlot((position as u64) << 32 | length as u64)
}

const fn slot_parts(slot: RecvSlot) -> (u32, usize) {
    ((slot.0 >> 32) as u32, slot.0 as u32 as usize)
}
