//! Functions of the driver as tests call them: found by name in the library that is loaded.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The address of a function of the driver.
pub fn find(name: &str) -> *mut c_void {
    static LOADED: OnceLock<usize> = OnceLock::new();
    let library = LOADED.get_or_init(|| {
        // SAFETY: a name that ends with a zero; the double's initialisers are those of Rust.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "libcuda.so.1 is not there");
        library as usize
    });
    let text = CString::new(name).expect("no zero");
    // SAFETY: an open library, and a name that ends with a zero.
    let symbol = unsafe { libc::dlsym(*library as *mut c_void, text.as_ptr()) };
    assert!(!symbol.is_null(), "the driver has no {name}");
    symbol
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => { $(
        /// The driver's function of this name, and its code.
        #[allow(clippy::too_many_arguments)]
        pub fn $name($($argument: $type),*) -> u32 {
            type Function = unsafe extern "C" fn($($type),*) -> u32;
            // SAFETY: the driver's function of this name has this type.
            let function: Function = unsafe { std::mem::transmute(find(stringify!($name))) };
            // SAFETY: pointers of a test's own variables.
            unsafe { function($($argument),*) }
        }
    )* };
}

/// Of `cuStreamBatchMemOp`.
#[repr(C)]
#[derive(Copy, Clone, Default)]
pub struct WordOp {
    pub operation: u32,
    pub address: u64,
    pub value: u64,
    pub flags: u32,
    pub rest: [u64; 2],
}

/// Of `cuMemCreate`.
#[repr(C)]
#[derive(Copy, Clone, Default)]
pub struct Wanted {
    pub kind: u32,
    pub handle_types: u32,
    pub place: [i32; 2],
    pub rest: [u64; 2],
}

/// Of `cuMemSetAccess`.
#[repr(C)]
#[derive(Copy, Clone, Default)]
pub struct Access {
    pub place: [i32; 2],
    pub flags: u32,
}

/// Of `cuMemcpyBatchAsync`.
#[repr(C)]
#[derive(Copy, Clone, Default)]
pub struct How {
    pub order: u32,
    pub rest: [u32; 5],
}

/// Of `cuIpcGetMemHandle`.
#[repr(C)]
#[derive(Copy, Clone, Default)]
pub struct IpcHandle(pub [u64; 8]);

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(out: *mut c_int);
    cuGetErrorName(code: u32, out: *mut *const c_char);
    cuDeviceGetCount(out: *mut c_int);
    cuDeviceGetName(out: *mut c_char, bytes: c_int, gpu: c_int);
    cuDeviceGetPCIBusId(out: *mut c_char, bytes: c_int, gpu: c_int);
    cuDeviceGetUuid_v2(out: *mut [u8; 16], gpu: c_int);
    cuDeviceGetAttribute(out: *mut c_int, attribute: u32, gpu: c_int);
    cuDeviceCanAccessPeer(out: *mut c_int, gpu: c_int, peer: c_int);
    cuDeviceGetP2PAttribute(out: *mut c_int, attribute: u32, gpu: c_int, peer: c_int);
    cuDevicePrimaryCtxRetain(out: *mut usize, gpu: c_int);
    cuDevicePrimaryCtxRelease_v2(gpu: c_int);
    cuCtxCreate_v2(out: *mut usize, flags: c_uint, gpu: c_int);
    cuCtxDestroy_v2(context: usize);
    cuCtxPushCurrent_v2(context: usize);
    cuCtxPopCurrent_v2(out: *mut usize);
    cuCtxSetCurrent(context: usize);
    cuCtxGetCurrent(out: *mut usize);
    cuCtxEnablePeerAccess(context: usize, flags: c_uint);
    cuCtxSynchronize();
    cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    cuMemAlloc_v2(out: *mut u64, bytes: usize);
    cuMemFree_v2(start: u64);
    cuMemAllocManaged(out: *mut u64, bytes: usize, flags: c_uint);
    cuMemAllocAsync(out: *mut u64, bytes: usize, stream: usize);
    cuMemFreeAsync(start: u64, stream: usize);
    cuMemAllocHost_v2(out: *mut u64, bytes: usize);
    cuMemFreeHost(start: u64);
    cuMemHostRegister_v2(start: *mut u8, bytes: usize, flags: c_uint);
    cuMemHostUnregister(start: *mut u8);
    cuMemHostGetDevicePointer_v2(out: *mut u64, address: *mut u8, flags: c_uint);
    cuMemGetAddressRange_v2(start: *mut u64, bytes: *mut usize, address: u64);
    cuMemCreate(out: *mut u64, bytes: usize, wanted: *const Wanted, flags: u64);
    cuMemRelease(handle: u64);
    cuMemRetainAllocationHandle(out: *mut u64, address: u64);
    cuMemExportToShareableHandle(out: *mut c_int, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle(out: *mut u64, descriptor: usize, kind: u32);
    cuMemAddressReserve(out: *mut u64, bytes: usize, alignment: usize, wish: u64, flags: u64);
    cuMemAddressFree(start: u64, bytes: usize);
    cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(start: u64, bytes: usize);
    cuMemSetAccess(start: u64, bytes: usize, wanted: *const Access, count: usize);
    cuMemGetAccess(out: *mut u64, place: *const [i32; 2], address: u64);
    cuMemGetHandleForAddressRange(out: *mut c_int, start: u64, bytes: usize, kind: u32, flags: u64);
    cuIpcGetMemHandle(out: *mut IpcHandle, address: u64);
    cuIpcOpenMemHandle_v2(out: *mut u64, handle: IpcHandle, flags: c_uint);
    cuIpcCloseMemHandle(start: u64);
    cuPointerGetAttribute(out: *mut c_void, attribute: u32, address: u64);
    cuPointerGetAttributes(
        count: c_uint, attributes: *const u32, outs: *const *mut c_void, address: u64
    );
    cuStreamCreateWithPriority(out: *mut usize, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: usize);
    cuStreamQuery(stream: usize);
    cuStreamSynchronize(stream: usize);
    cuStreamGetPriority(stream: usize, out: *mut c_int);
    cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint);
    cuStreamBatchMemOp_v2(stream: usize, count: c_uint, words: *const WordOp, flags: c_uint);
    cuStreamBeginCapture_v2(stream: usize, mode: u32);
    cuStreamEndCapture(stream: usize, out: *mut usize);
    cuGraphGetNodes(graph: usize, out: *mut usize, count: *mut usize);
    cuGraphNodeGetType(node: usize, out: *mut u32);
    cuGraphInstantiateWithFlags(out: *mut usize, graph: usize, flags: u64);
    cuGraphLaunch(graph: usize, stream: usize);
    cuGraphExecDestroy(graph: usize);
    cuGraphDestroy(graph: usize);
    cuEventCreate(out: *mut usize, flags: c_uint);
    cuEventDestroy_v2(event: usize);
    cuEventRecord(event: usize, stream: usize);
    cuEventQuery(event: usize);
    cuEventSynchronize(event: usize);
    cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: usize);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize);
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize);
    cuMemsetD8_v2(to: u64, byte: u8, bytes: usize);
    cuMemGetAllocationGranularity(out: *mut usize, wanted: *const Wanted, option: u32);
    cuMemHostAlloc(out: *mut u64, bytes: usize, flags: c_uint);
    cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, bytes: *const usize, count: usize, how: *const How,
        first: *const usize, hows: usize, failed: *mut usize, stream: usize
    );
    cuMemcpyBatchAsync_v2(
        to: *const u64, from: *const u64, bytes: *const usize, count: usize, how: *const How,
        first: *const usize, hows: usize, stream: usize
    );
}
