//! The attributes of a registration of a GPU's memory.
#![forbid(unsafe_code)]

use super::abi::MrAttr;
use super::numbers as n;
use core::ptr::null_mut;

/// Attributes of a registration of a GPU's memory, with room for what they may be longer by in a
/// library of a later version.
#[repr(C)]
pub(super) struct GpuAttr {
    attr: MrAttr,
    rest: [u64; 8],
}

// the number of a GPU is an int in the first bytes of a longer field
const _: () = assert!(cfg!(target_endian = "little"));

impl GpuAttr {
    /// Of one part, on the GPU of this number in CUDA.
    pub fn of(part: &libc::iovec, access: u64, key: u64, gpu: u32) -> GpuAttr {
        let attr = MrAttr {
            mr_iov: part,
            iov_count: 1,
            access,
            offset: 0,
            requested_key: key,
            context: null_mut(),
            auth_key_size: 0,
            auth_key: null_mut(),
            iface: n::HMEM_CUDA,
            device: gpu.into(),
        };
        GpuAttr { attr, rest: [0; 8] }
    }

    /// As the library reads them.
    pub fn get(&self) -> *const MrAttr {
        core::ptr::from_ref(self).cast()
    }
}
