//! Device addresses: one region of the process without access, so that a processor that touches
//! one gets SIGSEGV, as with a real GPU.
//!
//! Addresses are given out in order and not again until the region is used up. So an address of
//! freed memory is never an address of other memory.

use crate::codes::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use crate::settings::settings;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Bytes of the region.
const REGION_BYTES: u64 = 4 << 40;
/// Granularity of device memory, as of a real GPU.
pub const GRANULARITY: usize = 2 << 20;

/// The region's first address.
fn region() -> u64 {
    static REGION: OnceLock<u64> = OnceLock::new();
    *REGION.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = REGION_BYTES as usize;
        // SAFETY: a new mapping, where the system likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED, "no room for device addresses");
        (at as u64).next_multiple_of(GRANULARITY as u64)
    })
}

/// Whether an address is one of a device's.
pub fn is_device(address: u64) -> bool {
    (region()..region() + REGION_BYTES - GRANULARITY as u64).contains(&address)
}

/// Which addresses are taken.
#[derive(Default)]
pub struct Space {
    taken: BTreeMap<u64, u64>,
    /// Where the next one is looked for, from the region's start on.
    next: u64,
}

impl Space {
    /// Takes `bytes`, rounded up to the granularity, and leaves a gap behind them.
    pub fn take(&mut self, bytes: usize, alignment: usize) -> Result<u64, Code> {
        let alignment = alignment.max(GRANULARITY) as u64;
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let bytes = (bytes as u64).next_multiple_of(GRANULARITY as u64);
        let end = region() + REGION_BYTES - GRANULARITY as u64;
        for _ in 0..2 {
            let mut at = (region() + self.next).next_multiple_of(alignment);
            for (start, length) in self.taken.range(..).map(|(start, length)| (*start, *length)) {
                if start < at + bytes && at < start + length {
                    at = (start + length).next_multiple_of(alignment);
                }
            }
            if at.checked_add(bytes).is_some_and(|last| last < end) {
                self.taken.insert(at, bytes);
                self.next = at + bytes + settings().gap_bytes - region();
                return Ok(at);
            }
            self.next = 0;
        }
        Err(OUT_OF_MEMORY)
    }

    /// Gives back what was taken at `start`.
    pub fn give(&mut self, start: u64) {
        self.taken.remove(&start);
    }
}
