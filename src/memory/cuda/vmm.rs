//! Memory with an exportable handle: the driver's virtual memory management.
//!
//! Another process gets a descriptor of an allocation, and maps it into its own address space. The
//! allocation lives until the last process has unmapped it. So an importer that dies does no harm.
//! One that forgets to unmap keeps the memory.

extern crate std;

use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use crate::base::descriptor;
use crate::base::text::Text;
use core::ffi::c_void;
use core::mem::zeroed;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocationType,
};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The handle type of descriptors.
const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// The error of an export when this process can open no further descriptor.
const NO_DESCRIPTOR: CudaError =
    CudaError { call: "cuMemExportToShareableHandle", code: 304, name: Text::EMPTY };
/// Address space is taken in steps of this, at least the granularity of every GPU.
const GRANULARITY: usize = 2 << 20;

/// An allocation as another process can map it.
#[derive(Debug)]
pub struct Export {
    /// The descriptor for the other process.
    pub descriptor: OwnedFd,
    /// Bytes of the allocation.
    pub bytes: usize,
    /// Where the exported address lies in it.
    pub offset: usize,
}

impl Export {
    /// Exports the allocation around `address`, which must hold `bytes` from there on.
    ///
    /// *Errors*: the driver's. Memory of cudaMalloc and memory without a handle type cannot be
    /// exported. An allocation that ends before the range is refused, too.
    pub fn of(entered: &Entered<'_>, address: u64, bytes: usize) -> Result<Export, CudaError> {
        let library = entered.library();
        let (mut base, mut length) = (0, 0);
        // SAFETY: both are valid for writes; the driver checks the address.
        let code = unsafe { (library.range)(&mut base, &mut length, address) };
        library.check("cuMemGetAddressRange", code)?;
        let mut handle: CUmemGenericAllocationHandle = 0;
        // SAFETY: valid for a write; an address that the driver has just named.
        let code = unsafe { (library.handle_retain)(&mut handle, base as *mut c_void) };
        library.check("cuMemRetainAllocationHandle", code)?;
        let descriptor = export(entered, handle)?;
        let offset = (address - base) as usize;
        if length - offset < bytes {
            let name = Text::beginning(b"one allocation must hold all of it");
            return Err(CudaError { call: "cuMemGetAddressRange", code: 1, name });
        }
        Ok(Export { descriptor, bytes: length, offset })
    }
}

/// Makes an allocation of this GPU for other processes to map, and returns its descriptor. It lives
/// as long as the descriptor and the mappings.
///
/// *Shape*: `bytes` is a multiple of 2 MiB.
pub fn create_exported(entered: &Entered<'_>, bytes: usize) -> Result<OwnedFd, CudaError> {
    // SAFETY: a plain structure of numbers, for which zero is a value.
    let mut wanted: CUmemAllocationProp = unsafe { zeroed() };
    wanted.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = POSIX;
    wanted.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = entered.gpu().device();
    let mut handle: CUmemGenericAllocationHandle = 0;
    // SAFETY: valid for a write, and a whole description.
    let code = unsafe { (entered.library().create)(&mut handle, bytes, &wanted, 0) };
    entered.library().check("cuMemCreate", code)?;
    export(entered, handle)
}

/// A descriptor for a handle, whose reference is given back.
fn export(
    entered: &Entered<'_>,
    handle: CUmemGenericAllocationHandle,
) -> Result<OwnedFd, CudaError> {
    let library = entered.library();
    let mut raw: i32 = -1;
    // SAFETY: room for a descriptor, which is what this handle type gives.
    let code = unsafe { (library.handle_export)((&raw mut raw).cast(), handle, POSIX, 0) };
    // SAFETY: a reference of the caller's.
    unsafe { (library.handle_release)(handle) };
    library.check("cuMemExportToShareableHandle", code)?;
    descriptor::made(|| raw).map_err(|_| NO_DESCRIPTOR)
}

/// Another process's allocation, mapped here until it is dropped.
#[derive(Debug)]
pub struct Import {
    gpu: Arc<Gpu>,
    start: CUdeviceptr,
    bytes: usize,
}

impl Import {
    /// Maps the allocation of `bytes` behind a descriptor for `gpu`.
    ///
    /// *Errors*: the driver's; nothing stays mapped then.
    pub fn new(
        gpu: &Arc<Gpu>,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Import, CudaError> {
        let entered = gpu.enter()?;
        let library = entered.library();
        let mut handle: CUmemGenericAllocationHandle = 0;
        let raw = descriptor.as_raw_fd() as usize as *mut c_void;
        // SAFETY: valid for a write; for this handle type the pointer is the descriptor's number.
        let code = unsafe { (library.handle_import)(&mut handle, raw, POSIX) };
        library.check("cuMemImportFromShareableHandle", code)?;
        let mut start = 0;
        // SAFETY: valid for a write.
        let code = unsafe { (library.reserve)(&mut start, bytes, GRANULARITY, 0, 0) };
        let mapped = library.check("cuMemAddressReserve", code).and_then(|()| {
            // SAFETY: address space taken above, and a handle of as many bytes.
            let code = unsafe { (library.map)(start, bytes, 0, handle, 0) };
            library.check("cuMemMap", code).inspect_err(|_| {
                // SAFETY: taken above, with nothing in it.
                unsafe { (library.reserve_free)(start, bytes) };
            })
        });
        // SAFETY: the reference of the import; a mapping keeps its own.
        unsafe { (library.handle_release)(handle) };
        mapped?;
        let import = Import { gpu: gpu.clone(), start, bytes };
        import.allow(&entered)?;
        Ok(import)
    }

    /// Lets the GPU read and write it.
    fn allow(&self, entered: &Entered<'_>) -> Result<(), CudaError> {
        // SAFETY: a plain structure of numbers, for which zero is a value.
        let mut access: CUmemAccessDesc = unsafe { zeroed() };
        access.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = self.gpu.device();
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let library = entered.library();
        // SAFETY: a range that is mapped, and one description.
        let code = unsafe { (library.access)(self.start, self.bytes, &access, 1) };
        library.check("cuMemSetAccess", code)
    }

    /// Its first byte, as device address.
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let Ok(entered) = self.gpu.enter() else { return };
        let library = entered.library();
        // SAFETY: mapped in `new`, and nobody's but ours.
        unsafe { (library.unmap)(self.start, self.bytes) };
        // SAFETY: as above.
        unsafe { (library.reserve_free)(self.start, self.bytes) };
    }
}
