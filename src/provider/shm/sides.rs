//! Both sides of a connection: the words beside their rings, the write ring that we fill, and how
//! the peer is woken.
//!
//! A sleeper stores a number that it has not stored before, and zero when it is awake. The other
//! side cannot clear it. It keeps the number for which it has rung, so that one sleep is rung for
//! once.

use super::board::PeerBoard;
use super::layout::{ARMED_AT, LEFT_AT, LEFT_NOT, RUNG_AT};
use super::record::{Header, INLINE_AT, PREFIX_AT, body_at, lines_for};
use super::ring::{Record, RingWriter};
use super::view::SharedView;
use super::word::{FULL, RELAXED, RELEASE, compiler_fence, fence, u32_at, u64_at};
use crate::base::ids::PeerIndex;
use crate::memory::wake;
use core::sync::atomic::Ordering;

/// The four words before a body.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Prefix {
    pub(super) key: u64,
    pub(super) address: u64,
    /// Bytes to the end of the op; an add's value; a request's length.
    pub(super) amount: u64,
    /// Immediate or serial.
    pub(super) word: u32,
    pub(super) zero: u32,
}

const _: () = assert!(PREFIX_AT + size_of::<Prefix>() == INLINE_AT);

impl Prefix {
    /// Reads a record's prefix, once: the writer may be changing it.
    pub(super) fn of(record: &Record) -> Prefix {
        // SAFETY: the record's first line lies in the ring (`peek`), aligned.
        unsafe { record.at.add(PREFIX_AT).cast::<Prefix>().read_volatile() }
    }
}

/// How a peer is woken.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bell {
    /// Address of the word that says whether it sleeps: the peer's, which we only read.
    armed: u64,
    /// Address of the word that says for which sleep we have rung: ours.
    rung: u64,
    /// The eventfd, or -1.
    doorbell: i32,
    /// Order by a fence of ours.
    use_fence: bool,
}

impl Bell {
    /// Wakes the peer if it sleeps, from any thread. Called after every store that it might wait
    /// for.
    #[inline(always)]
    pub(super) fn ring(self) {
        if self.use_fence {
            // [armed]: our store before our look at the flag
            fence(FULL);
        } else {
            // [armed]: the sleeper's process-wide barrier does the rest
            compiler_fence(FULL);
        }
        // SAFETY: the word lies in the peer's rings, which stay until it is closed (`Sides::bell`).
        let armed = unsafe { SharedView::new(self.armed as *const u8, 8) }.load_u64(0);
        if armed != 0 {
            self.wake_up(armed);
        }
    }

    #[cold]
    fn wake_up(self, armed: u64) {
        // SAFETY: the word lies in our rings, which stay until the peer is closed (`Sides::bell`).
        let rung = unsafe { u64_at(self.rung as *mut u8) };
        // Of several threads that find it armed one rings. One that is late may ring for nothing.
        if rung.load(RELAXED) != armed
            && rung.swap(armed, Ordering::AcqRel) != armed
            && self.doorbell >= 0
        {
            wake::ring(self.doorbell);
        }
    }
}

/// What every op of a connection goes over. Zeroed: of none, and not to be used.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) peer: PeerIndex,
    /// What we write: the words of `layout`, and behind them the rings.
    pub(super) ours: *mut u8,
    /// The same of the peer's.
    pub(super) theirs: SharedView,
    pub(super) board: PeerBoard,
    /// The write ring that we fill.
    pub(super) ring: RingWriter,
    /// Longest body of one write or data record.
    pub(super) chunk_bytes: u32,
    /// The eventfd that wakes the peer, or -1.
    pub(super) doorbell: i32,
    /// Order between our stores and the look whether it sleeps by a fence of ours.
    pub(super) use_fence: bool,
    pub(super) bell_due: bool,
    /// How often we have asked to be woken.
    pub(super) arms: u64,
}

impl Sides {
    /// What wakes the peer, until it is closed.
    #[inline(always)]
    pub(super) fn bell(&self) -> Bell {
        Bell {
            armed: self.theirs.at(ARMED_AT, 8) as u64,
            rung: self.ours.wrapping_add(RUNG_AT) as u64,
            doorbell: self.doorbell,
            use_fence: self.use_fence,
        }
    }

    /// Puts a record into the write ring. `false`: there is no room now.
    ///
    /// # Safety
    /// - `from` is valid for reads of the header's length.
    #[inline]
    pub(super) unsafe fn put(&mut self, header: Header, prefix: Prefix, from: *const u8) -> bool {
        let Some((lines, body)) = self.begin(header, prefix) else { return false };
        // SAFETY: reserved just now; the ring is not memory that a user names.
        unsafe { from.copy_to_nonoverlapping(body, header.length() as usize) };
        self.ring.publish(lines, header);
        true
    }

    /// The same, but for the body and the header, which another thread stores: returns their
    /// places.
    pub(super) fn put_prefix(&mut self, header: Header, prefix: Prefix) -> Option<(u64, u64)> {
        let (lines, body) = self.begin(header, prefix)?;
        Some((body as u64, self.ring.leave(lines) as u64))
    }

    /// Reserves room for a record and stores its prefix. Returns its lines, and its body's place.
    #[inline(always)]
    fn begin(&mut self, header: Header, prefix: Prefix) -> Option<(u32, *mut u8)> {
        let length = header.length() as usize;
        let lines = lines_for(length);
        let at = self.ring.reserve_unheld(lines)?;
        // SAFETY: the first line is reserved, and aligned for the four words.
        unsafe { at.add(PREFIX_AT).cast::<Prefix>().write(prefix) };
        Some((lines, at.wrapping_add(body_at(length))))
    }

    /// Asks to be woken, or not to be.
    pub(super) fn set_armed(&mut self, armed: bool) {
        self.arms += u64::from(armed);
        let number = if armed { self.arms } else { 0 };
        // SAFETY: a word of our flags (`Peer::open`).
        // [armed]: the caller's barrier follows
        unsafe { u64_at(self.ours.add(ARMED_AT)) }.store(number, RELAXED);
    }

    /// What the peer says of its leaving. After it says so, nothing more comes from it.
    #[inline(always)]
    pub(super) fn their_left(&self) -> u32 {
        // acquire: pairs with [left]
        self.theirs.acquire_u32(LEFT_AT)
    }

    /// Tells the peer that we are gone. Stays what it first was.
    pub(super) fn leave(&mut self, how: u32) {
        // SAFETY: a word of our flags, which only we write (`Peer::open`).
        let left = unsafe { u32_at(self.ours.add(LEFT_AT)) };
        if left.load(RELAXED) == LEFT_NOT {
            // release: [left], everything that we ever wrote to the rings comes before
            left.store(how, RELEASE);
            // [left-gone]: what we do with our memory next comes after
            fence(FULL);
            self.bell().ring();
        }
    }
}
