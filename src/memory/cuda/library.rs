//! The CUDA driver, loaded at run time.
//!
//! Types are cudarc's; the functions are found by name here, because cudarc panics where the
//! library or a symbol is missing.

use crate::base::text::Text;
use crate::base::words::said;
use crate::memory::loader::{function, reason, words};
use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use core::fmt;
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr,
    CUfunction, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemRangeHandleType, CUmemcpyAttributes, CUmodule,
    CUpointer_attribute, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUuuid,
};
use std::sync::OnceLock;

/// The file, by the name that has stood since CUDA 1.
const FILE: &CStr = c"libcuda.so.1";

/// A driver call that failed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct CudaError {
    /// The call.
    pub call: &'static str,
    /// The driver's code.
    pub code: u32,
    /// The driver's name of it.
    pub name: Text<40>,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {} (error {})", self.call, self.name, self.code)
    }
}

said! {
    /// Why the driver cannot be used.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum LoadError {
        /// It is not installed, or cannot be loaded; the loader's words.
        Missing(why: Text<120>) =>
            "CUDA: libcuda.so.1 cannot be loaded ({why}); is a driver installed?",
        /// It has no such function.
        Old(name: &'static str) => "CUDA: the driver is too old, it has no {name}",
        /// It does not start.
        Init(error: CudaError) => "CUDA: {error}; is a GPU visible?",
    }
}

/// Declares a table of functions, which may hold another table, and how it is filled.
macro_rules! functions {
    (
        $(#[$about:meta])* $table:ident $($part:ident: $parts:ident),*;
        $($(#[$doc:meta])* $field:ident($($argument:ty),*) = $name:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Copy, Clone, Debug)]
        pub struct $table {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) -> CUresult,)*
            $(
                /// Functions that only a part of the library needs, or which of them is missing.
                pub $part: Result<$parts, LoadError>,
            )*
        }

        impl $table {
            /// # Safety
            /// - `handle` is the driver, and is never closed.
            unsafe fn find(handle: *mut c_void) -> Result<$table, LoadError> {
                Ok($table {
                    $($field: {
                        let name: &'static CStr = $name;
                        // SAFETY: an open library, and a name that ends with a zero.
                        let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
                        if symbol.is_null() {
                            return Err(LoadError::Old(words(name)));
                        }
                        // SAFETY: the driver's function of this name and version has this type.
                        unsafe { function(symbol) }
                    },)*
                    $(
                        // SAFETY: by this function's contract.
                        $part: unsafe { $parts::find(handle) },
                    )*
                })
            }
        }
    };
}

functions! {
    /// The functions that launch our kernel.
    Kernels;
    /// Loads a program, as text.
    module_load(*mut CUmodule, *const c_void) = c"cuModuleLoadData",
    /// Unloads it.
    module_unload(CUmodule) = c"cuModuleUnload",
    /// A kernel of a program, by name.
    module_function(*mut CUfunction, CUmodule, *const c_char) = c"cuModuleGetFunction",
    /// Launches a kernel: blocks, threads, bytes of shared memory, stream, parameters.
    launch(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void, *mut *mut c_void
    ) = c"cuLaunchKernel",
}

functions! {
    /// The function that copies many ranges by one call: CUDA 13 and later.
    Batches;
    /// Copies: targets, sources, bytes, how many; attributes, from which copy on each, how many;
    /// stream.
    copies(
        *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes,
        *mut usize, usize, CUstream
    ) = c"cuMemcpyBatchAsync_v2",
}

functions! {
    /// The function that tells whether a stream is recorded: CUDA 10 and later.
    Captures;
    /// Whether it is.
    is_capturing(CUstream, *mut CUstreamCaptureStatus) = c"cuStreamIsCapturing",
}

functions! {
    /// The functions about memory that NICs write: CUDA 11.7 and later.
    DmaBufs;
    /// An attribute of a GPU.
    attribute(*mut c_int, CUdevice_attribute, CUdevice) = c"cuDeviceGetAttribute",
    /// A handle for a range: where to, first byte, bytes, kind, flags.
    of_range(*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong)
        = c"cuMemGetHandleForAddressRange",
}

functions! {
    /// The functions that tell kinds of memory apart, and share what cuMemAlloc has given.
    Pointers;
    /// What the driver knows of an address.
    attribute(*mut c_void, CUpointer_attribute, CUdeviceptr) = c"cuPointerGetAttribute",
    /// How many GPUs this process sees.
    device_count(*mut c_int) = c"cuDeviceGetCount",
    /// One of them, by number.
    device_at(*mut CUdevice, c_int) = c"cuDeviceGet",
    /// Its name: where to, how many bytes there is room for.
    device_name(*mut c_char, c_int, CUdevice) = c"cuDeviceGetName",
    /// Whether the first GPU can reach memory of the second.
    can_access(*mut c_int, CUdevice, CUdevice) = c"cuDeviceCanAccessPeer",
    /// What another process needs to open an allocation of cuMemAlloc.
    ipc_handle(*mut CUipcMemHandle, CUdeviceptr) = c"cuIpcGetMemHandle",
    /// Opens it.
    ipc_open(*mut CUdeviceptr, CUipcMemHandle, c_uint) = c"cuIpcOpenMemHandle_v2",
    /// Closes it.
    ipc_close(CUdeviceptr) = c"cuIpcCloseMemHandle",
    /// Makes a context beside the primary one, and the calling thread's.
    context_create(*mut CUcontext, c_uint, CUdevice) = c"cuCtxCreate_v2",
    /// Ends it.
    context_destroy(CUcontext) = c"cuCtxDestroy_v2",
    /// Lets a context reach memory of another one's GPU.
    peer_enable(CUcontext, c_uint) = c"cuCtxEnablePeerAccess",
}

functions! {
    /// The function that tells links between GPUs apart.
    Links;
    /// What the link from the first GPU to the second can do.
    attribute(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice) = c"cuDeviceGetP2PAttribute",
}

functions! {
    /// The functions. They stay good for ever: the library is never unloaded.
    Library kernels: Kernels, batches: Batches, pointers: Pointers, dmabufs: DmaBufs,
        captures: Captures, links: Links;
    /// Starts the driver.
    init(c_uint) = c"cuInit",
    /// The name of an error.
    error_name(CUresult, *mut *const c_char) = c"cuGetErrorName",
    /// The GPU of that context.
    context_device(*mut CUdevice) = c"cuCtxGetDevice",
    /// The id of a GPU, the same in every process.
    device_uuid(*mut CUuuid, CUdevice) = c"cuDeviceGetUuid_v2",
    /// Makes a context the calling thread's.
    context_push(CUcontext) = c"cuCtxPushCurrent_v2",
    /// Makes the one before it the calling thread's.
    context_pop(*mut CUcontext) = c"cuCtxPopCurrent_v2",
    /// Priorities that streams may have: least, greatest.
    priorities(*mut c_int, *mut c_int) = c"cuCtxGetStreamPriorityRange",
    /// Takes a reference to a GPU's primary context.
    primary_retain(*mut CUcontext, CUdevice) = c"cuDevicePrimaryCtxRetain",
    /// Gives it back.
    primary_release(CUdevice) = c"cuDevicePrimaryCtxRelease_v2",
    /// Sets how this thread's calls treat captures; gives the value before.
    capture_mode(*mut CUstreamCaptureMode) = c"cuThreadExchangeStreamCaptureMode",
    /// The allocation around an address.
    range(*mut CUdeviceptr, *mut usize, CUdeviceptr) = c"cuMemGetAddressRange_v2",
    /// Allocates device memory.
    alloc(*mut CUdeviceptr, usize) = c"cuMemAlloc_v2",
    /// Frees it.
    free(CUdeviceptr) = c"cuMemFree_v2",
    /// Copies host memory to a device, and waits.
    upload(CUdeviceptr, *const c_void, usize) = c"cuMemcpyHtoD_v2",
    /// Copies device memory to the host, and waits.
    download(*mut c_void, CUdeviceptr, usize) = c"cuMemcpyDtoH_v2",
    /// Waits for all that the thread's context has.
    synchronize() = c"cuCtxSynchronize",
    /// Makes host memory reachable for GPUs.
    host_register(*mut c_void, usize, c_uint) = c"cuMemHostRegister_v2",
    /// Ends that.
    host_unregister(*mut c_void) = c"cuMemHostUnregister",
    /// Where the GPU sees registered host memory.
    host_pointer(*mut CUdeviceptr, *mut c_void, c_uint) = c"cuMemHostGetDevicePointer_v2",
    /// Allocates device memory that is mapped nowhere yet.
    create(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong)
        = c"cuMemCreate",
    /// The handle of the allocation around an address, counted.
    handle_retain(*mut CUmemGenericAllocationHandle, *mut c_void)
        = c"cuMemRetainAllocationHandle",
    /// Gives a handle back.
    handle_release(CUmemGenericAllocationHandle) = c"cuMemRelease",
    /// A descriptor for a handle.
    handle_export(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong)
        = c"cuMemExportToShareableHandle",
    /// A handle for a descriptor.
    handle_import(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType)
        = c"cuMemImportFromShareableHandle",
    /// Takes address space.
    reserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong) = c"cuMemAddressReserve",
    /// Gives it back.
    reserve_free(CUdeviceptr, usize) = c"cuMemAddressFree",
    /// Puts an allocation into address space.
    map(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong) = c"cuMemMap",
    /// Takes it out.
    unmap(CUdeviceptr, usize) = c"cuMemUnmap",
    /// Says which GPUs may touch it.
    access(CUdeviceptr, usize, *const CUmemAccessDesc, usize) = c"cuMemSetAccess",
    /// Makes a stream.
    stream_create(*mut CUstream, c_uint, c_int) = c"cuStreamCreateWithPriority",
    /// Ends a stream once its work is done.
    stream_destroy(CUstream) = c"cuStreamDestroy_v2",
    /// Whether all that a stream has is done.
    stream_query(CUstream) = c"cuStreamQuery",
    /// Copies between device addresses.
    copy(CUdeviceptr, CUdeviceptr, usize, CUstream) = c"cuMemcpyDtoDAsync_v2",
    /// Copies pinned host memory to a device.
    copy_in(CUdeviceptr, *const c_void, usize, CUstream) = c"cuMemcpyHtoDAsync_v2",
    /// Copies rows.
    copy_rows(*const CUDA_MEMCPY2D, CUstream) = c"cuMemcpy2DAsync_v2",
    /// Copies device memory to pinned host memory.
    copy_out(*mut c_void, CUdeviceptr, usize, CUstream) = c"cuMemcpyDtoHAsync_v2",
    /// Writes words behind what the stream did before: how many, what each is.
    write(CUstream, c_uint, *mut CUstreamBatchMemOpParams, c_uint) = c"cuStreamBatchMemOp_v2",
}

/// The function that knows an address.
pub(super) type Attribute =
    unsafe extern "C" fn(*mut c_void, CUpointer_attribute, CUdeviceptr) -> CUresult;

static LOADED: OnceLock<Result<Library, LoadError>> = OnceLock::new();

/// That function, where somebody in the process has loaded the driver.
pub(super) fn attribute_where_loaded() -> Option<Attribute> {
    static FOUND: OnceLock<Attribute> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(*found);
    }
    if !is_loaded() {
        return None;
    }
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: a name that ends with a zero. Nothing is loaded that is not there.
    let handle = unsafe { libc::dlopen(FILE.as_ptr(), flags) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: an open library, and a name that ends with a zero.
    let symbol = unsafe { libc::dlsym(handle, c"cuPointerGetAttribute".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the driver's function of this name has this type, and the driver stays.
    Some(*FOUND.get_or_init(|| unsafe { function(symbol) }))
}

/// Whether somebody in the process has loaded the driver.
fn is_loaded() -> bool {
    let mut is_loaded = false;
    // SAFETY: the function takes a flag, which lives during the call.
    unsafe { libc::dl_iterate_phdr(Some(is_driver), (&raw mut is_loaded).cast()) };
    is_loaded
}

/// Raises a flag at the driver, which ends the walk through the process's libraries. Asking the
/// loader for it instead would look for the file on disk, and allocate.
unsafe extern "C" fn is_driver(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    flag: *mut c_void,
) -> c_int {
    // SAFETY: the loader's, valid during the call.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: a text of the loader's, which ends with a zero.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let is_driver = file.starts_with(b"libcuda.so");
    if is_driver {
        // SAFETY: the flag of the caller's.
        unsafe { flag.cast::<bool>().write(true) };
    }
    c_int::from(is_driver)
}

impl Library {
    fn open() -> Result<Library, LoadError> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: a name that ends with a zero; the library's initialisers are trusted, as those of
        // a library that is linked.
        let handle = unsafe { libc::dlopen(FILE.as_ptr(), flags) };
        if handle.is_null() {
            return Err(LoadError::Missing(reason()));
        }
        // SAFETY: opened above, to stay.
        unsafe { Library::find(handle) }
    }

    /// The driver, loaded and started once for the process.
    ///
    /// *Errors*: [`LoadError`], the same at every call.
    pub fn load() -> Result<&'static Library, LoadError> {
        LOADED
            .get_or_init(|| {
                let library = Library::open()?;
                // SAFETY: takes a number, which must be zero.
                let code = unsafe { (library.init)(0) };
                library.check("cuInit", code).map_err(LoadError::Init)?;
                Ok(library)
            })
            .as_ref()
            .map_err(|error| *error)
    }

    /// The driver, if the process has it already: before, no memory of a GPU can be there.
    pub fn loaded() -> Option<&'static Library> {
        if !is_loaded() {
            return None;
        }
        Library::load().ok()
    }

    /// The functions that tell kinds of memory apart; an error where the driver lacks one.
    pub fn pointers(&self) -> Result<&Pointers, CudaError> {
        self.pointers.as_ref().map_err(|error| old(error, "cuPointerGetAttribute"))
    }

    /// The function that tells whether a stream is recorded; an error where the driver lacks it.
    pub fn captures(&self) -> Result<&Captures, CudaError> {
        self.captures.as_ref().map_err(|error| old(error, "cuStreamIsCapturing"))
    }

    /// The result of `call`.
    pub fn check(&self, call: &'static str, code: CUresult) -> Result<(), CudaError> {
        if code == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let mut name = core::ptr::null();
        // SAFETY: valid for a write; the text is the driver's own, and stands for ever.
        let known = unsafe { (self.error_name)(code, &mut name) };
        let name = match known == CUresult::CUDA_SUCCESS && !name.is_null() {
            // SAFETY: a text of the driver's, which ends with a zero.
            true => Text::beginning(unsafe { CStr::from_ptr(name) }.to_bytes()),
            false => Text::EMPTY,
        };
        Err(CudaError { call, code: code as u32, name })
    }
}

/// The error of a function that the driver does not have.
fn old(error: &LoadError, first: &'static str) -> CudaError {
    let call = match error {
        LoadError::Old(name) => name,
        LoadError::Missing(_) | LoadError::Init(_) => first,
    };
    CudaError { call, code: 500, name: Text::beginning(b"the driver is too old") }
}
