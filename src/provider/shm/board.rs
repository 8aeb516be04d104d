//! The board: a table of a process's registered regions at the start of its shared heap. Peers read
//! it.
//!
//! A peer that pulls looks a key up before the copy and again after it. If both lookups succeed,
//! the memory was registered all along (P7), and the owner need not answer. Writes of a peer are
//! checked by their target against its own table, never against the board.
//!
//! ```text
//! 0       8         16            24            32..64  64
//! | magic | entries | heap start  | heap length | zero  | {generation, start, length, zero} ...
//! ```

use super::view::SharedView;
use super::word::{ACQUIRE, FULL, RELAXED, RELEASE, fence, u32_at, u64_at};
use crate::base::regions::Range;
use crate::base::slab::Handle;
use crate::fabric::RemoteSpan;
use core::sync::atomic::Ordering;

const MAGIC: u64 = u64::from_le_bytes(*b"XTIEbrd1");
const ENTRIES_AT: usize = 64;
const ENTRY_BYTES: usize = 32;

/// Bytes of a board for `regions_max` regions.
pub const fn board_bytes(regions_max: u32) -> usize {
    ENTRIES_AT + regions_max as usize * ENTRY_BYTES
}

/// A shared heap as its owner has mapped it. Its board stands at the start.
#[derive(Copy, Clone, Debug)]
pub struct HeapSpan {
    /// First byte, as mapped here.
    pub start: *mut u8,
    /// Length in bytes.
    pub length: usize,
}

/// The owner's end. Without a heap nothing is published and peers pull through the ring.
#[derive(Copy, Clone, Debug)]
pub struct Board {
    start: *mut u8,
}

// SAFETY: the owner's threads write different entries (each index has one owner at a time, by the
// region table), word by word and atomically.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Lays an empty board for `entries` regions at the start of `heap`.
    ///
    /// # Safety
    /// - the first [`board_bytes`] bytes of the heap are allocated and used for nothing else, for
    ///   as long as the board is used.
    pub unsafe fn create(heap: Option<HeapSpan>, entries: u32) -> Board {
        let Some(heap) = heap else { return Board { start: core::ptr::null_mut() } };
        assert!(heap.length >= board_bytes(entries));
        // SAFETY: the head belongs to us by this function's contract.
        unsafe { heap.start.write_bytes(0, board_bytes(entries)) };
        let board = Board { start: heap.start };
        board.word(8).store(u64::from(entries), RELAXED);
        board.word(16).store(heap.start as u64, RELAXED);
        board.word(24).store(heap.length as u64, RELAXED);
        // release: [board-made], for a peer that maps the heap before we are done
        board.word(0).store(MAGIC, RELEASE);
        board
    }

    /// Shows `range` under `handle`.
    pub fn publish(&self, handle: Handle, range: Range) {
        if self.start.is_null() {
            return;
        }
        let entry = entry_at(handle.index);
        self.generation(entry).store(0, RELAXED);
        // [board-entry]: no reader sees new fields under an old generation
        fence(RELEASE);
        self.word(entry + 8).store(range.start, RELAXED);
        self.word(entry + 16).store(range.length, RELAXED);
        // release: [board-entry], the fields belong to this generation
        self.generation(entry).store(handle.generation, RELEASE);
    }

    /// Shows `handle` no more. A copy that is under way finds out afterwards.
    pub fn withdraw(&self, handle: Handle) {
        if self.start.is_null() {
            return;
        }
        // The index may have been given out again already; then there is nothing to withdraw.
        let _ = self.generation(entry_at(handle.index)).compare_exchange(
            handle.generation,
            0,
            Ordering::AcqRel,
            RELAXED,
        );
        // [board-gone]: what the owner does with the memory next comes after
        fence(FULL);
    }

    fn word(&self, at: usize) -> &core::sync::atomic::AtomicU64 {
        // SAFETY: inside the board (`create`, or an index of the table that it was made for).
        unsafe { u64_at(self.start.add(at)) }
    }

    fn generation(&self, entry: usize) -> &core::sync::atomic::AtomicU32 {
        // SAFETY: inside the board, as above.
        unsafe { u32_at(self.start.add(entry)) }
    }
}

/// A peer's board and heap, as mapped here. Zeroed: none.
#[derive(Copy, Clone, Debug)]
pub struct PeerBoard {
    heap: SharedView,
    entries: u32,
    owner_start: u64,
}

impl PeerBoard {
    /// No board: the peer's memory can be had through the ring only.
    pub const NONE: PeerBoard = PeerBoard { heap: SharedView::EMPTY, entries: 0, owner_start: 0 };

    /// Reads the head of a peer's board; [`PeerBoard::NONE`] when there is none that we know.
    pub fn attach(heap: Option<SharedView>) -> PeerBoard {
        let Some(heap) = heap.filter(|heap| heap.length() >= ENTRIES_AT) else {
            return PeerBoard::NONE;
        };
        // acquire: pairs with [board-made]
        if heap.acquire_u64(0) != MAGIC {
            return PeerBoard::NONE;
        }
        let entries = heap.load_u64(8);
        if entries > ((heap.length() - ENTRIES_AT) / ENTRY_BYTES) as u64 {
            return PeerBoard::NONE;
        }
        PeerBoard { heap, entries: entries as u32, owner_start: heap.load_u64(16) }
    }

    /// Whether there is one.
    #[inline]
    pub fn is_some(&self) -> bool {
        !self.heap.is_empty()
    }

    /// Whether the key's region holds `length` bytes at `address` now.
    #[inline]
    pub fn allows(&self, handle: Handle, address: u64, length: u64) -> bool {
        if handle.index >= self.entries || handle.generation & 1 == 0 {
            return false;
        }
        let entry = entry_at(handle.index);
        // acquire: pairs with [board-entry]
        if self.heap.acquire_u32(entry) != handle.generation {
            return false;
        }
        let (start, bytes) = (self.heap.load_u64(entry + 8), self.heap.load_u64(entry + 16));
        // acquire: pairs with the fence of [board-entry], the fields are of one generation
        fence(ACQUIRE);
        let offset = address.wrapping_sub(start);
        self.heap.load_u32(entry) == handle.generation
            && address >= start
            && offset <= bytes
            && length <= bytes - offset
    }

    /// Whether an op there cannot succeed.
    #[inline]
    pub fn refuses(&self, target: RemoteSpan, length: u64) -> bool {
        self.is_some() && !self.allows(Handle::unpack(target.key.0), target.address, length)
    }

    /// Where the peer's `length` bytes at `address` can be read directly, if they lie in its heap.
    #[inline]
    pub fn here(&self, address: u64, length: u64) -> Option<*const u8> {
        let offset = address.wrapping_sub(self.owner_start);
        let whole = self.heap.length() as u64;
        if !self.is_some() || offset > whole || length > whole - offset {
            return None;
        }
        Some(self.heap.at(offset as usize, length as usize))
    }
}

const fn entry_at(index: u32) -> usize {
    ENTRIES_AT + index as usize * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::carve::heap::HeapBlock;

    #[test]
    fn keys_are_allowed_between_publish_and_withdraw_and_inside_only() {
        let mut block = HeapBlock::new(board_bytes(4) + 4096);
        let (start, length) = (block.start(), block.length());
        let heap = Some(HeapSpan { start, length });
        // SAFETY: the block outlives both.
        let (board, view) = unsafe { (Board::create(heap, 4), SharedView::new(start, length)) };
        let peer = PeerBoard::attach(Some(view));
        let (start, length) = (1 << 30, 100);
        let handle = Handle { index: 3, generation: 5 };
        assert!(!peer.allows(handle, start, 1));
        board.publish(handle, Range { start, length, tag: 0 });
        assert!(peer.allows(handle, start, length) && peer.allows(handle, start + 100, 0));
        assert!(!peer.allows(handle, start - 1, 1) && !peer.allows(handle, start, 101));
        assert!(!peer.allows(Handle { index: 4, generation: 5 }, start, 1));
        board.withdraw(Handle { index: 3, generation: 3 });
        assert!(peer.allows(handle, start, 1));
        board.withdraw(handle);
        assert!(!peer.allows(handle, start, 1));
        assert!(!peer.allows(Handle { index: 3, generation: 0 }, start, 1));
    }

    #[test]
    fn only_addresses_of_the_heap_are_here() {
        let mut block = HeapBlock::new(8192);
        let (start, length) = (block.start(), block.length());
        let heap = Some(HeapSpan { start, length });
        // SAFETY: the block outlives both.
        let (_board, view) = unsafe { (Board::create(heap, 4), SharedView::new(start, length)) };
        let peer = PeerBoard::attach(Some(view));
        let base = start as u64;
        assert_eq!(peer.here(base + 5, 3), Some(start.wrapping_add(5).cast_const()));
        assert_eq!(peer.here(base + length as u64 - 1, 2), None);
        assert_eq!(peer.here(base - 1, 1), None);
        assert!(!PeerBoard::attach(None).is_some());
    }
}
