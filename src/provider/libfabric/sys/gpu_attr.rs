//! Registration of a GPU's memory, and its attributes.

use super::abi::MrAttr;
use super::calls::FidEp;
use super::numbers as n;
use super::objects::{Code, Domain, Registration};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// `FI_MR_DMABUF`: the attributes name a dma-buf. libfabric has it since 1.20 (`DMABUF_SINCE`), the
/// headers that our numbers are checked against have not.
const MR_DMABUF: u64 = 1 << 40;
/// The first version whose providers take it, or refuse it.
pub const DMABUF_SINCE: u32 = n::version(1, 20);

/// `struct fi_mr_dmabuf`: a part of a dma-buf, and where the buffer would begin in memory.
#[repr(C)]
struct DmabufPart {
    fd: c_int,
    offset: u64,
    length: usize,
    base_address: *mut c_void,
}

impl DmabufPart {
    /// Of memory at an address, which begins at `offset` in the buffer.
    pub fn of((address, length): (u64, usize), (fd, offset): (c_int, u64)) -> DmabufPart {
        let base_address = address.wrapping_sub(offset) as *mut c_void;
        DmabufPart { fd, offset, length, base_address }
    }
}

/// Attributes of a registration of a GPU's memory, with room for what they may be longer by in a
/// library of a later version.
#[repr(C)]
struct GpuAttr {
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

    /// The same of a part of a dma-buf: the library has a union where the part is named.
    pub fn of_dmabuf(part: &DmabufPart, access: u64, key: u64, gpu: u32) -> GpuAttr {
        let none = libc::iovec { iov_base: null_mut(), iov_len: 0 };
        let mut made = GpuAttr::of(&none, access, key, gpu);
        made.attr.mr_iov = core::ptr::from_ref(part).cast();
        made
    }

    /// As the library reads them.
    pub fn get(&self) -> *const MrAttr {
        core::ptr::from_ref(self).cast()
    }
}

impl Domain {
    /// [`Domain::register`] of memory of a GPU of CUDA's, by its number, with a domain of
    /// [`n::HMEM`].
    ///
    /// # Safety
    /// - as [`Domain::register`].
    pub unsafe fn register_gpu(
        &self,
        range: (u64, usize),
        access: u64,
        key: u64,
        endpoint: Option<*mut FidEp>,
        gpu: u32,
    ) -> Result<Registration, Code> {
        let part = libc::iovec { iov_base: range.0 as *mut c_void, iov_len: range.1 };
        // SAFETY: the caller vouches for the range.
        unsafe { self.register_as(&GpuAttr::of(&part, access, key, gpu), 0, endpoint) }
    }

    /// The same by the dma-buf that it lies in, from an offset on: libfabric 1.20 and later.
    ///
    /// # Safety
    /// - as [`Domain::register`]; the descriptor is open during the call.
    pub unsafe fn register_dmabuf(
        &self,
        range: (u64, usize),
        dmabuf: (c_int, u64),
        (access, key): (u64, u64),
        endpoint: Option<*mut FidEp>,
        gpu: u32,
    ) -> Result<Registration, Code> {
        let part = DmabufPart::of(range, dmabuf);
        let attr = GpuAttr::of_dmabuf(&part, access, key, gpu);
        // SAFETY: the caller vouches for the range.
        unsafe { self.register_as(&attr, MR_DMABUF, endpoint) }
    }

    /// # Safety
    /// - as [`Domain::register`], of the memory that the attributes name.
    unsafe fn register_as(
        &self,
        attr: &GpuAttr,
        flags: u64,
        endpoint: Option<*mut FidEp>,
    ) -> Result<Registration, Code> {
        let mut raw = null_mut();
        // SAFETY: an open domain; the caller vouches for the memory. The attributes are read within
        // the call, and what later versions have more of is zero.
        let code = unsafe {
            let reg = (*(*self.raw).mr).regattr;
            reg(self.raw.cast(), attr.get(), flags, &mut raw)
        };
        Code::check(code)?;
        Registration::of(raw, endpoint)
    }
}
