//! The bytes of a put.
#![forbid(unsafe_code)]

use crate::sim::memory::pattern;
use std::ops::Range;
use std::rc::Rc;

/// What a put writes, and where.
#[derive(Clone, Debug)]
pub struct Bytes {
    start: usize,
    bytes: Rc<[u8]>,
}

impl Bytes {
    pub fn new(start: usize, seed: u64, length: usize) -> Bytes {
        Bytes { start, bytes: pattern(seed, length).into() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
    }

    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        self.start < range.end && range.start < self.range().end
    }

    pub fn at(&self, place: usize) -> Option<u8> {
        self.bytes.get(place.checked_sub(self.start)?).copied()
    }

    /// Lays them over those of a window that begin at `start`.
    pub fn lay(&self, content: &mut [u8], start: usize) {
        let end = start + content.len();
        let both = self.start.max(start)..self.range().end.min(end);
        if !both.is_empty() {
            content[both.start - start..both.end - start]
                .copy_from_slice(&self.bytes[both.start - self.start..both.end - self.start]);
        }
    }
}
