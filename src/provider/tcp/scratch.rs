//! The scratch buffer: what was read last and not looked at yet.

use super::NONE;
use crate::provider::touch;

/// Where the bytes lie, and whose they are.
#[derive(Debug)]
pub struct Scratch {
    /// Whether the last read gave as much as was asked for.
    pub is_full: bool,
    /// Where the buffer starts; there is room for the start of a frame before it.
    start: *mut u8,
    /// How many of the bytes before the buffer were carried there and not looked at.
    before: usize,
    /// The next byte, and the end.
    at: usize,
    end: usize,
    /// Whose bytes they are; [`NONE`]: all were looked at.
    pub owner: u32,
    /// Whose messages may lie in the buffer.
    pub holder: u32,
    /// Whether this poll has a long message: no more is read before it was looked at, since what
    /// is held in the buffer then moves, and there are few cells for such.
    pub has_long: bool,
    /// Whether a long message waits for one that this poll has reported to be given back.
    pub waits: bool,
}

impl Scratch {
    /// An empty one.
    ///
    /// # Safety
    /// - [`super::area::SCRATCH_BYTES`] from `start` on, and [`super::area::SCRATCH_AT`] before
    ///   it, are valid and initialised for as long as it is used; nobody else touches them.
    pub unsafe fn new(start: *mut u8) -> Scratch {
        let (is_full, has_long, waits) = (false, false, false);
        let (before, at, end, owner, holder) = (0, 0, 0, NONE, NONE);
        Scratch { is_full, start, before, at, end, owner, holder, has_long, waits }
    }

    /// Where a read puts its bytes. *Panics* while some were not looked at.
    #[inline]
    pub fn place(&mut self) -> *mut u8 {
        assert!(self.owner == NONE, "bytes that were not looked at are not written over");
        self.start
    }

    /// Puts the start of a frame, fewer bytes than there is room for, before the buffer.
    #[inline]
    pub fn carry(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= super::area::SCRATCH_AT);
        // SAFETY: there is as much room before the buffer (`new`).
        let before = unsafe { self.start.sub(bytes.len()) };
        // SAFETY: as above.
        unsafe { touch::copy_out(bytes, before as u64) };
    }

    /// A read has given so many bytes of stream `owner`, behind those that were carried. `is_full`:
    /// as many as it could.
    #[inline]
    pub fn filled(&mut self, owner: usize, carried: usize, bytes: usize, is_full: bool) {
        (self.at, self.end, self.before) = (0, bytes, carried);
        (self.owner, self.is_full) = (owner as u32, is_full);
    }

    /// How many bytes were not looked at.
    #[inline]
    pub fn left(&self) -> usize {
        self.end - self.at + self.before
    }

    /// The bytes that were not looked at.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `before` bytes before the buffer and those up to `end` were written, and nobody
        // writes them while they are looked at.
        unsafe {
            let at = self.start.add(self.at).sub(self.before);
            core::slice::from_raw_parts(at, self.left())
        }
    }

    /// Passes over bytes that were looked at.
    #[inline]
    pub fn pass(&mut self, bytes: usize) {
        let carried = self.before.min(bytes);
        self.before -= carried;
        self.at += bytes - carried;
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::{SCRATCH_AT, SCRATCH_BYTES};
    use super::*;
    use crate::base::carve::heap::HeapBlock;

    #[test]
    fn bytes_that_were_carried_come_before_those_that_were_read() {
        let mut block = HeapBlock::new(SCRATCH_AT + SCRATCH_BYTES);
        // SAFETY: inside the block, which outlives the buffer.
        let mut scratch = unsafe { Scratch::new(block.start().add(SCRATCH_AT)) };
        scratch.carry(&[1, 2, 3]);
        // SAFETY: as above.
        unsafe { touch::copy_out(&[4, 5], scratch.place() as u64) };
        scratch.filled(7, 3, 2, false);
        assert_eq!((scratch.bytes(), scratch.owner), (&[1, 2, 3, 4, 5][..], 7));
        scratch.pass(2);
        assert_eq!(scratch.bytes(), [3, 4, 5]);
        scratch.pass(2);
        assert_eq!((scratch.bytes(), scratch.left()), (&[5][..], 1));
    }
}
