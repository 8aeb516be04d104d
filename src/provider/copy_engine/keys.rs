//! How regions of GPUs are told from others by their keys alone.
#![forbid(unsafe_code)]

use crate::base::regions::RegionTable;
use crate::base::slab::Handle;
use crate::fabric::RailKey;

/// In the key of a region of a GPU. Tables of regions are shorter, so that no other rail finds it.
pub const DEVICE_KEY: u64 = 1 << 31;

/// Whether a key is of memory of a GPU.
#[inline(always)]
pub const fn is_device(key: RailKey) -> bool {
    key.0 & DEVICE_KEY != 0
}

/// What a key stands for in the table of regions.
pub const fn handle_of(key: RailKey) -> Handle {
    Handle::unpack(key.0 & !DEVICE_KEY)
}

/// The GPU that a region of ours lies in, if there is such a region.
pub fn gpu_of(regions: RegionTable<'_>, key: RailKey) -> Option<u8> {
    let range = regions.get(handle_of(key))?;
    range.tag.checked_sub(1).map(|gpu| gpu as u8)
}
