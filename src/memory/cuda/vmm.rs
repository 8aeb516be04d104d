//! Memory with an exportable handle: the driver's virtual memory management.
//!
//! Another process gets a descriptor of an allocation, and maps it into its own address space. The
//! allocation lives until the last process has unmapped it. So an importer that dies does no harm.
//! One that forgets to unmap keeps the memory.

use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use crate::base::descriptor;
use crate::base::text::Text;
use core::ffi::{c_char, c_void};
use core::mem::zeroed;
use cudarc::driver::sys::{
    CUdeviceptr, CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocationType,
    CUresult,
};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::vec::Vec;

/// The handle type of descriptors.
const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// The error of an export when this process can open no further descriptor.
const NO_DESCRIPTOR: CudaError =
    CudaError { call: "cuMemExportToShareableHandle", code: 304, name: Text::EMPTY };
/// Address space is taken in steps of this, at least the granularity of every GPU.
const GRANULARITY: usize = 2 << 20;

/// What another process needs to have an allocation.
#[derive(Debug)]
pub enum Handle {
    /// Of memory that has an exportable handle.
    Descriptor(OwnedFd),
    /// Of memory of cudaMalloc.
    Ipc([u8; 64]),
}

/// An allocation, or the part of an address range that one allocation stands behind.
#[derive(Debug)]
pub struct Segment {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// How another process gets it.
    pub handle: Handle,
}

impl Segment {
    /// The allocation around `address`.
    ///
    /// *Errors*: the driver's. Memory without an exportable handle, as cudaMallocAsync gives it,
    /// cannot be shared: then [`is_private`] says so of the error.
    pub fn of(entered: &Entered<'_>, address: u64) -> Result<Segment, CudaError> {
        let library = entered.library();
        let (start, bytes) = range_of(entered, address)?;
        let mut handle: CUmemGenericAllocationHandle = 0;
        // SAFETY: valid for a write; an address that the driver has just named.
        let code = unsafe { (library.handle_retain)(&mut handle, address as *mut c_void) };
        let handle = match library.check("cuMemRetainAllocationHandle", code) {
            Ok(()) => Handle::Descriptor(export(entered, handle)?),
            Err(error) if is_private(&error) => Handle::Ipc(ipc_handle(entered, start)?),
            Err(error) => return Err(error),
        };
        Ok(Segment { start, bytes, handle })
    }
}

/// Whether the driver has said that memory has no such handle, whenever it is asked: what it says
/// of the kind of memory, and not of want of memory or descriptors, or of the GPU.
///
/// *Source*: the results that the driver's manual lists for the three calls.
pub fn is_private(error: &CudaError) -> bool {
    const CODES: [CUresult; 3] = [
        CUresult::CUDA_ERROR_INVALID_VALUE,
        CUresult::CUDA_ERROR_NOT_PERMITTED,
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
    ];
    let is_of_handles = matches!(
        error.call,
        "cuMemRetainAllocationHandle" | "cuMemExportToShareableHandle" | "cuIpcGetMemHandle"
    );
    is_of_handles && CODES.iter().any(|code| *code as u32 == error.code)
}

/// The allocation around an address: its first byte and its length.
pub fn range_of(entered: &Entered<'_>, address: u64) -> Result<(u64, u64), CudaError> {
    let (mut base, mut length) = (0, 0);
    // SAFETY: both are valid for writes; the driver checks the address.
    let code = unsafe { (entered.library().range)(&mut base, &mut length, address) };
    entered.library().check("cuMemGetAddressRange", code)?;
    Ok((base, length as u64))
}

fn ipc_handle(entered: &Entered<'_>, start: u64) -> Result<[u8; 64], CudaError> {
    let library = entered.library();
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: valid for a write; the first byte of an allocation.
    let code = unsafe { (library.pointers()?.ipc_handle)(&mut handle, start) };
    library.check("cuIpcGetMemHandle", code)?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// An allocation as another process can map it.
#[derive(Debug)]
pub struct Export {
    /// The descriptor for the other process. It leads nowhere where the handle is an IPC one.
    pub descriptor: OwnedFd,
    /// Bytes of the allocation.
    pub bytes: usize,
    /// Where the exported address lies in it.
    pub offset: usize,
    /// The handle of memory of cudaMalloc.
    ipc: Option<[u8; 64]>,
}

/// Numbers that go with an [`Export`]'s descriptor.
pub const EXPORT_WORDS: usize = 11;

impl Export {
    /// Exports the allocation around `address`, which must hold `bytes` from there on.
    ///
    /// *Errors*: the driver's. Memory without a handle type cannot be exported. An allocation that
    /// ends before the range is refused, too.
    pub fn of(entered: &Entered<'_>, address: u64, bytes: usize) -> Result<Export, CudaError> {
        let segment = Segment::of(entered, address)?;
        let (length, offset) = (segment.bytes as usize, (address - segment.start) as usize);
        if length - offset < bytes {
            let name = Text::beginning(b"one allocation must hold all of it");
            return Err(CudaError { call: "cuMemGetAddressRange", code: 1, name });
        }
        let (descriptor, ipc) = match segment.handle {
            Handle::Descriptor(descriptor) => (descriptor, None),
            Handle::Ipc(handle) => {
                // SAFETY: takes numbers.
                let none = descriptor::made(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
                (none.map_err(|_| NO_DESCRIPTOR)?, Some(handle))
            }
        };
        Ok(Export { descriptor, bytes: length, offset, ipc })
    }

    /// What the other process needs beside the descriptor, for [`Import::of_export`].
    pub fn words(&self) -> [u64; EXPORT_WORDS] {
        let mut words = [0; EXPORT_WORDS];
        words[..3].copy_from_slice(&[
            self.bytes as u64,
            self.offset as u64,
            self.ipc.is_some().into(),
        ]);
        for (word, bytes) in words[3..].iter_mut().zip(self.ipc.unwrap_or([0; 64]).chunks(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        words
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

/// Another process's memory, mapped here until it is dropped.
#[derive(Debug)]
pub struct Import {
    gpu: Arc<Gpu>,
    start: CUdeviceptr,
    bytes: usize,
    /// How many bytes each allocation has that is mapped.
    parts: Vec<usize>,
    /// Whether it was opened by its IPC handle instead.
    is_opened: bool,
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
        Import::of(gpu, &[(descriptor, bytes)])
    }

    /// Maps allocations one behind the other.
    ///
    /// *Errors*: the driver's; nothing stays mapped then.
    pub fn of(gpu: &Arc<Gpu>, parts: &[(BorrowedFd<'_>, usize)]) -> Result<Import, CudaError> {
        let entered = gpu.enter()?;
        let library = entered.library();
        let bytes = parts.iter().map(|(_, bytes)| bytes).sum();
        let mut start = 0;
        // SAFETY: valid for a write.
        let code = unsafe { (library.reserve)(&mut start, bytes, GRANULARITY, 0, 0) };
        library.check("cuMemAddressReserve", code)?;
        // what is mapped already goes with it
        let mut import =
            Import { gpu: gpu.clone(), start, bytes, parts: Vec::new(), is_opened: false };
        for (descriptor, bytes) in parts {
            import.map(&entered, *descriptor, *bytes)?;
        }
        import.allow(&entered)?;
        Ok(import)
    }

    /// Maps what another process has exported: the mapping, and where its address lies in it.
    ///
    /// *Errors*: the driver's; nothing stays mapped then.
    pub fn of_export(
        gpu: &Arc<Gpu>,
        descriptor: BorrowedFd<'_>,
        words: &[u64; EXPORT_WORDS],
    ) -> Result<(Import, u64), CudaError> {
        let [bytes, offset, is_ipc, ..] = *words;
        let import = match is_ipc {
            0 => Import::new(gpu, descriptor, bytes as usize)?,
            _ => {
                let mut handle = [0; 64];
                for (to, word) in handle.chunks_exact_mut(8).zip(&words[3..]) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                Import::ipc(gpu, &handle, bytes as usize)?
            }
        };
        Ok((import, offset))
    }

    /// Opens an allocation of cudaMalloc in another process.
    pub fn ipc(gpu: &Arc<Gpu>, handle: &[u8; 64], bytes: usize) -> Result<Import, CudaError> {
        let entered = gpu.enter()?;
        let library = entered.library();
        let handle = CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let mut start = 0;
        // SAFETY: valid for a write; the flag lets GPUs reach each other as they can.
        let code = unsafe { (library.pointers()?.ipc_open)(&mut start, handle, 1) };
        library.check("cuIpcOpenMemHandle", code)?;
        Ok(Import { gpu: gpu.clone(), start, bytes, parts: Vec::new(), is_opened: true })
    }

    /// Maps one more allocation behind the others.
    fn map(
        &mut self,
        entered: &Entered<'_>,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let library = entered.library();
        let mut handle: CUmemGenericAllocationHandle = 0;
        let raw = descriptor.as_raw_fd() as usize as *mut c_void;
        // SAFETY: valid for a write; for this handle type the pointer is the descriptor's number.
        let code = unsafe { (library.handle_import)(&mut handle, raw, POSIX) };
        library.check("cuMemImportFromShareableHandle", code)?;
        let at = self.start + self.parts.iter().sum::<usize>() as u64;
        // SAFETY: address space taken by `of`, and a handle of as many bytes.
        let code = unsafe { (library.map)(at, bytes, 0, handle, 0) };
        // SAFETY: the reference of the import; a mapping keeps its own.
        unsafe { (library.handle_release)(handle) };
        library.check("cuMemMap", code)?;
        self.parts.push(bytes);
        Ok(())
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

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let Ok(entered) = self.gpu.enter() else { return };
        let library = entered.library();
        if let (true, Ok(pointers)) = (self.is_opened, library.pointers()) {
            // SAFETY: opened in `ipc`, and nobody's but ours.
            unsafe { (pointers.ipc_close)(self.start) };
            return;
        }
        let mut at = self.start;
        for bytes in &self.parts {
            // SAFETY: mapped in `map`, and nobody's but ours.
            unsafe { (library.unmap)(at, *bytes) };
            at += *bytes as u64;
        }
        // SAFETY: taken in `of`, with nothing in it.
        unsafe { (library.reserve_free)(self.start, self.bytes) };
    }
}
