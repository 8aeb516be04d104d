//! Bytes of frames and windows: the one file of this room that touches memory by address.

use crate::wire::one_sided::{
    FRAME_HEAD_BYTES, FrameHead, GREETING_BYTES, Greeting, RECORD_BYTES, Record, SHORT_FRAME_BYTES,
    Short,
};
use core::ptr::{copy, copy_nonoverlapping};
use core::sync::atomic::{AtomicU64, Ordering};

/// A length that is common, and that one access copies.
pub(super) const WORD: u64 = 8;

/// Memory of this process whose maker vouches for it.
#[derive(Copy, Clone, Debug)]
pub struct Span {
    address: u64,
    length: u64,
}

impl Span {
    /// The span of no bytes.
    pub const EMPTY: Span = Span { address: 0, length: 0 };

    /// Vouches for memory of the host.
    ///
    /// # Safety
    /// - `address..address + length` stays valid for reads and writes as long as the span, or a
    ///   part of it, is used;
    /// - who else reads or writes it meanwhile finds, or leaves, any bytes, and nothing worse.
    pub const unsafe fn new(address: u64, length: u64) -> Span {
        Span { address, length }
    }

    /// Address of the first byte.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Its length.
    pub const fn length(self) -> u64 {
        self.length
    }

    /// The part that starts `offset` bytes later. *Panics* when it does not lie inside.
    #[inline]
    pub const fn part(self, offset: u64, length: u64) -> Span {
        assert!(offset <= self.length && length <= self.length - offset);
        Span { address: self.address + offset, length }
    }

    /// Copies `bytes` to the start. *Panics* when they are more than it has.
    #[inline]
    pub fn write(self, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.length);
        // SAFETY: valid for so many bytes by the contract of `new`, and `bytes` are borrowed from
        // other memory.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), self.pointer(), bytes.len()) };
    }

    /// Copies another span of the same length to here; the two may overlap.
    #[inline]
    pub fn copy_from(self, other: Span) {
        assert!(other.length == self.length);
        if self.length == WORD {
            // SAFETY: both are valid for so many bytes by the contract of `new`. A call that copies
            // any length takes longer than a word.
            let word = unsafe { other.pointer().cast::<u64>().read_unaligned() };
            // SAFETY: as above.
            unsafe { self.pointer().cast::<u64>().write_unaligned(word) };
            return;
        }
        // SAFETY: both are valid for so many bytes by the contract of `new`.
        unsafe { copy(other.pointer().cast_const(), self.pointer(), self.length as usize) };
    }

    /// Adds to the word at its start, which others may add to and read at the same time. *Panics*
    /// when it is shorter than a word, or not aligned.
    #[inline]
    pub fn add(self, value: u64) {
        assert!(self.length >= WORD && self.address.is_multiple_of(WORD));
        // SAFETY: valid for a word by the contract of `new`, aligned; who else touches it does so
        // by whole words, or finds any bytes.
        let word = unsafe { AtomicU64::from_ptr(self.pointer().cast()) };
        word.fetch_add(value, Ordering::Release); // bytes that came before are seen with it
    }

    /// The head of the frame that it holds.
    #[inline]
    pub fn frame_head(self) -> Option<FrameHead> {
        FrameHead::from_bytes(&self.start::<FRAME_HEAD_BYTES>()?)
    }

    /// The record at its start.
    #[inline]
    pub fn record(self) -> Option<Record> {
        Record::from_bytes(&self.start::<RECORD_BYTES>()?)
    }

    /// The record of the short frame that it holds.
    #[inline]
    pub fn short_frame(self) -> Option<Short> {
        Short::from_bytes(&self.start::<SHORT_FRAME_BYTES>()?)
    }

    /// The greeting at its start.
    pub fn greeting(self) -> Option<Greeting> {
        Greeting::from_bytes(&self.start::<GREETING_BYTES>()?)
    }

    fn start<const N: usize>(self) -> Option<[u8; N]> {
        // SAFETY: valid for so many bytes by the contract of `new`, where it is long enough.
        (self.length >= N as u64)
            .then(|| unsafe { self.pointer().cast::<[u8; N]>().read_unaligned() })
    }

    fn pointer(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}
