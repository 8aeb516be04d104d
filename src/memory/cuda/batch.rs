//! Copies that go to the driver in one call, which costs half as much for each as calls of their
//! own.
//!
//! The driver keeps no order within a batch. So a copy that touches what another one of the batch
//! writes, or writes what another one reads, is not taken.

use super::gpu::Entered;
use super::library::CudaError;
use super::stream::Stream;
use core::mem::zeroed;
use cudarc::driver::sys::{CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder};
use std::vec::Vec;

/// Most copies of a batch.
pub const COPIES_MAX: usize = 128;

/// Copies that wait to be posted.
#[derive(Debug)]
pub struct Batch {
    /// Target, source and length of each.
    copies: Vec<[u64; 3]>,
    /// The same as the driver takes it.
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    bytes: Vec<usize>,
}

/// Whether two ranges have a byte in common.
fn touch(a: CUdeviceptr, a_bytes: usize, b: CUdeviceptr, b_bytes: usize) -> bool {
    a < b + b_bytes as u64 && b < a + a_bytes as u64
}

impl Batch {
    /// An empty one.
    pub fn new() -> Batch {
        let room = || Vec::with_capacity(COPIES_MAX);
        let copies = Vec::with_capacity(COPIES_MAX);
        Batch { copies, to: room(), from: room(), bytes: Vec::with_capacity(COPIES_MAX) }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Target, source and length of each copy in the batch.
    pub fn copies(&self) -> &[[u64; 3]] {
        &self.copies
    }

    /// Forgets what was taken.
    pub fn clear(&mut self) {
        self.copies.clear();
    }

    /// Takes a copy; one that goes on where the last one ends becomes a part of it. `false`: it may
    /// not be in this batch.
    pub fn take(&mut self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> bool {
        let is_apart = |&[other_to, other_from, other_bytes]: &[u64; 3]| {
            let other_bytes = other_bytes as usize;
            !touch(to, bytes, other_to, other_bytes)
                && !touch(from, bytes, other_to, other_bytes)
                && !touch(to, bytes, other_from, other_bytes)
        };
        if !self.copies.iter().all(is_apart) {
            return false;
        }
        if let Some([last_to, last_from, last]) = self.copies.last_mut()
            && *last_to + *last == to
            && *last_from + *last == from
        {
            *last += bytes as u64;
            return true;
        }
        let fits = self.copies.len() < COPIES_MAX;
        if fits {
            self.copies.push([to, from, bytes as u64]);
        }
        fits
    }

    /// Posts the batch behind everything that `stream` has; it is empty then. If the driver refuses
    /// the call for all copies, each is posted by itself. `refused` is told of those that it then
    /// refuses: target, source, length.
    ///
    /// # Safety
    /// - all ranges are mapped, and stay so until a later marker of the stream is seen.
    pub unsafe fn post(
        &mut self,
        entered: &Entered<'_>,
        stream: &Stream,
        mut refused: impl FnMut([u64; 3], CudaError),
    ) {
        let library = entered.library();
        let is_posted = match &library.batches {
            Ok(calls) if self.copies.len() > 1 => {
                for &[to, from, bytes] in &self.copies {
                    self.to.push(to);
                    self.from.push(from);
                    self.bytes.push(bytes as usize);
                }
                // SAFETY: integers, for which zero is a value: no hint where memory lies.
                let mut how: CUmemcpyAttributes = unsafe { zeroed() };
                how.srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
                let mut first = 0;
                let (to, from) = (self.to.as_mut_ptr(), self.from.as_mut_ptr());
                let (bytes, count) = (self.bytes.as_mut_ptr(), self.to.len());
                let (how, stream) = (&raw mut how, stream.raw());
                // SAFETY: `count` of each, one attribute for all from the first on; mapped ranges
                // by this function's contract.
                let code =
                    unsafe { (calls.copies)(to, from, bytes, count, how, &mut first, 1, stream) };
                library.check("cuMemcpyBatchAsync", code).is_ok()
            }
            Ok(_) | Err(_) => false,
        };
        for &[to, from, bytes] in self.copies.iter().filter(|_| !is_posted) {
            // SAFETY: by this function's contract. One that was posted already is made again.
            if let Err(error) = unsafe { stream.copy(entered, to, from, bytes as usize) } {
                refused([to, from, bytes], error);
            }
        }
        self.clear();
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_follow_each_other_are_one() {
        let mut batch = Batch::new();
        assert!(batch.take(1000, 5000, 8) && batch.take(1008, 5008, 24));
        assert_eq!(batch.copies(), [[1000, 5000, 32]]);
        assert!(batch.take(1032, 6000, 8) && batch.take(2000, 6008, 8));
        assert_eq!(batch.copies(), [[1000, 5000, 32], [1032, 6000, 8], [2000, 6008, 8]]);
    }

    #[test]
    fn copies_whose_order_counts_are_not_in_one_batch() {
        let mut batch = Batch::new();
        assert!(batch.take(1000, 5000, 16));
        assert!(!batch.take(1015, 7000, 1), "both write");
        assert!(!batch.take(7000, 999, 2), "reads what another writes");
        assert!(!batch.take(4999, 7000, 2), "writes what another reads");
        assert!(batch.take(8000, 5000, 16), "both read");
        assert!(batch.take(1016, 7000, 1) && batch.take(999, 7000, 1), "beside each other");
    }

    #[test]
    fn a_full_batch_takes_no_other_copy() {
        let mut batch = Batch::new();
        for at in 0..COPIES_MAX as u64 {
            assert!(batch.take(1000 + 100 * at, 1_000_000 + 100 * at, 10));
        }
        assert!(!batch.take(500_000, 600_000, 10));
    }
}
