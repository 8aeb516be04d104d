//! One connection: its four ring ends, what is outstanding on it, and how it goes down.
//!
//! ```text
//! Closed ──open──► Open ──peer left, failed, or said so from outside──► Draining
//!   ▲                │                                                     │ rings empty
//!   └──── close ─────┴──────────────────── close ──────────────────────── Down (reported once)
//! ```

use super::board::PeerBoard;
use super::held::Held;
use super::layout::{
    LEFT_CLOSED, LEFT_FAILED, LEFT_NOT, RingSizes, SEND_READ_AT, SEND_RING_AT, WRITE_READ_AT,
    rings_bytes, write_ring_at,
};
use super::ops::{Outcome, Work};
use super::pull::Pulls;
use super::push::Pushes;
use super::record::{Header, INLINE_AT, Kind, LINE, PREFIX_AT, body_at, lines_for};
use super::ring::{Corrupt, RingReader, RingWriter};
use super::sides::Sides;
use super::target::Target;
use super::view::SharedView;
use super::word::copy_tiny;
use crate::base::carve::Zeroable;
use crate::base::ids::PeerIndex;
use crate::fabric::{Completion, DownCause, HEAD_BYTES, Head, LocalSpan, PostError, RecvSlot};

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

/// One connection. Zeroed: closed.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: State,
    /// Nothing of this peer is looked at any more (P10).
    fenced: bool,
    reported: bool,
    cause: u8,
    /// Accepted and not yet reported.
    pub(super) in_flight: u32,
    send_out: RingWriter,
    send_in: RingReader,
    held: Held,
    pub(super) sides: Sides,
    pub(super) pushes: Pushes,
    pub(super) pulls: Pulls,
    target: Target,
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
        let lines = |bytes: u32| bytes / LINE as u32;
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
        let ring = unsafe {
            self.send_out = RingWriter::new(at(SEND_RING_AT), lines(sizes.send_bytes), sends_read);
            self.send_in = RingReader::new(sends, at(SEND_READ_AT));
            self.target.ring = RingReader::new(writes, at(WRITE_READ_AT));
            RingWriter::new(at(write_ring_at(sizes)), lines(sizes.write_bytes), writes_read)
        };
        self.sides = Sides {
            peer: index,
            ours: setup.rings,
            theirs,
            board: PeerBoard::attach(setup.heap),
            chunk_bytes: CHUNK_BYTES_MAX.min((ring.lines_max() - 1) * LINE as u32),
            ring,
            doorbell: setup.doorbell.unwrap_or(-1),
            use_fence: setup.use_fence_for_doorbell,
            bell_due: false,
            arms: 0,
        };
        let kernel = setup.kernel_copy_pid.filter(|_| sizes.write_bytes < PIPELINE_BYTES_MIN);
        self.pulls.kernel_pid = kernel.unwrap_or(0);
        self.state = State::Open;
    }

    /// Longest payload of a send that the ring takes.
    #[inline(always)]
    pub(super) fn payload_max(&self) -> u32 {
        self.send_out.lines_max() * LINE as u32 - SEND_OVERHEAD_BYTES
    }

    /// Puts a message into the send ring.
    #[inline]
    pub(super) fn send(&mut self, head: &Head, payload: LocalSpan) -> Result<(), PostError> {
        let length = payload.length().as_usize();
        let lines = lines_for(length);
        let at = self.send_out.reserve(lines).ok_or(PostError::Again)?;
        let from = payload.address() as *const u8;
        // SAFETY: `reserve` gave room for head and payload; the payload's maker vouches for it.
        unsafe {
            at.add(PREFIX_AT).cast::<Head>().write(*head);
            if lines == 1 {
                copy_tiny(from, at.add(INLINE_AT), length);
            } else {
                from.copy_to_nonoverlapping(at.add(body_at(length)), length);
            }
        }
        self.send_out.publish(lines, Header::new(Kind::Send, 0, length as u32));
        self.sides.bell().ring();
        Ok(())
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
        let mut active = work.has_taken(self.sides.peer);
        if active {
            self.target.end_copied(&mut self.sides, work);
        }
        if !self.send_in.is_empty() {
            self.take_sends(work, held_bits)?;
            active = true;
        }
        if !self.target.ring.is_empty() {
            self.target.take(&mut self.sides, &mut self.pulls, work)?;
            active = true;
        }
        if self.has_work() {
            active |= self.move_work(work)?;
        }
        if self.sides.bell_due {
            self.sides.bell_due = false;
            self.sides.bell().ring();
        }
        Ok(active)
    }

    #[inline(always)]
    fn has_work(&self) -> bool {
        !(self.pushes.is_empty() && self.pulls.queued.is_empty() && self.target.has_no_requests())
    }

    fn move_work(&mut self, work: &mut Work) -> Result<bool, Corrupt> {
        let mut active = self.pushes.take_acks(&self.sides, work)?;
        // What a peer on its way down has not finished will end with an error.
        if self.state == State::Open {
            active |= self.pulls.pull(&mut self.sides, work);
            active |= self.target.serve(&mut self.sides, work);
            active |= self.pushes.push(&mut self.sides, work);
        }
        if self.sides.ring.is_broken() || self.send_out.is_broken() {
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
                    const { assert!(8 + HEAD_BYTES == INLINE_AT) };
                    let slot =
                        RecvSlot(u64::from(record.position) << 32 | u64::from(record.length));
                    let (peer, length) = (self.sides.peer, record.length);
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
        let (position, length, lines) = self.held_parts(slot, held_bits);
        let record = self.send_in.lines_at(position, lines);
        // SAFETY: the body of a record of so many bytes lies in its lines (`lines_for`).
        (unsafe { record.add(body_at(length)) }, length)
    }

    /// Gives a held message's space back. *Panics* when the slot is not held.
    #[inline]
    pub(super) fn release(&mut self, slot: RecvSlot, held_bits: &mut [u64]) {
        let (position, _, lines) = self.held_parts(slot, held_bits);
        self.held.release(held_bits, position, lines);
        if self.send_in.retire(self.held.base()) {
            self.sides.bell().ring();
        }
    }

    /// Position, bytes and lines of a held message.
    #[inline(always)]
    fn held_parts(&self, slot: RecvSlot, held_bits: &[u64]) -> (u32, usize, u32) {
        let (position, length) = ((slot.0 >> 32) as u32, slot.0 as u32 as usize);
        let lines = lines_for(length);
        let read = self.send_in.position();
        assert!(self.held.holds(held_bits, position, lines, read), "slot {slot:?} is not held");
        (position, length, lines)
    }

    /// Nothing came and nothing moved: returns space, and sees whether the peer has left.
    #[inline]
    fn idle(&mut self, work: &mut Work) -> bool {
        if self.send_out.is_broken() && self.state == State::Open {
            // no record of its would ever have room
            return self.begin_down(DownCause::Failed);
        }
        if self.send_in.retire_idle(self.held.base())
            | self.target.ring.retire_idle(self.target.ring.position())
        {
            self.sides.bell().ring();
        }
        if self.state == State::Draining {
            self.go_down(work);
            return self.poll_down(work);
        }
        match self.sides.their_left() {
            LEFT_NOT => false,
            LEFT_CLOSED => self.begin_down(DownCause::Closed),
            _ => self.begin_down(DownCause::Failed),
        }
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
        work.settle(self.sides.peer);
        let _ = self.pushes.take_acks(&self.sides, work);
        self.cancel(work, Outcome::PeerDown);
        self.state = State::Down;
        self.sides.leave(LEFT_FAILED);
    }

    /// Lets go of what the peer had asked for, and of what threads had to do, and tells the peer.
    pub(super) fn close(&mut self, work: &mut Work) {
        work.settle(self.sides.peer);
        self.target.clear(work.regions);
        self.sides.leave(LEFT_CLOSED);
    }

    /// Ends everything outstanding.
    fn cancel(&mut self, work: &mut Work, outcome: Outcome) {
        work.settle(self.sides.peer);
        self.pushes.cancel(work, outcome);
        work.finish_all(&mut self.pulls.queued, outcome);
        self.target.clear(work.regions);
    }

    /// From now on nothing of the peer takes effect here (P10): its rings are not read any more,
    /// our own reads have ended, and it finds out that we left.
    pub(super) fn fence(&mut self, work: &mut Work) {
        self.cancel(work, Outcome::Canceled);
        self.fenced = true;
        // closing a connection starts with a fence; who fences because of a failure says so first
        self.sides.leave(LEFT_CLOSED);
    }

    /// Reports once that the peer is down, when it is.
    fn poll_down(&mut self, work: &mut Work) -> bool {
        if self.state == State::Draining {
            self.state = State::Down;
        }
        if self.state == State::Open && self.sides.their_left() != LEFT_NOT {
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
        work.out.push(Completion::PeerDown { peer: self.sides.peer, cause });
        true
    }

    /// Tells the peer everything that it might wait for while we sleep.
    pub(super) fn before_sleep(&mut self) {
        let ring = &mut self.target.ring;
        if self.send_in.retire_all(self.held.base()) | ring.retire_all(ring.position()) {
            self.sides.bell().ring();
        }
    }

    /// Whether a poll would find something to do without the peer's doing anything first.
    pub(super) fn must_stay_awake(&self) -> bool {
        if self.state == State::Draining || (self.state == State::Down && !self.reported) {
            return true;
        }
        if self.state != State::Open {
            return false;
        }
        let has_left = self.sides.their_left() != LEFT_NOT;
        if self.fenced {
            return has_left;
        }
        has_left
            || !self.send_in.is_empty()
            || !self.target.ring.is_empty()
            || !self.target.has_no_requests()
            || self.pushes.must_move(&self.sides)
            || self.pulls.must_move()
    }
}

const fn cause_number(cause: DownCause) -> u8 {
    match cause {
        DownCause::Closed => 0,
        DownCause::Died | DownCause::Severed | DownCause::Unheard => 1,
        DownCause::Failed | DownCause::Silent | DownCause::Broken(_) => 2,
    }
}
