//! GIN, born in v11: the functions that all its versions share, and one context at a time.

use super::{call, named, number, write};
use crate::abi::props::PropsV11;
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, HANDLE_BYTES_MAX, Logger, PTR_CUDA, PTR_HOST, Rc};
use crate::gin::{self, Coll, Context, DEVICE_TYPE, Table};
use crate::net::{self, Fault, log};
use core::ffi::c_int;
use core::ptr::without_provenance_mut;
use crosstie::connect::group::{HANDLE_BYTES, Listener};
use crosstie::host::gin::{Config, Layout};

/// `netDeviceVersion` up to NCCL 2.29.
const DEVICE_VERSION: c_int = 100;
/// A group of one: a request is one operation.
pub const RECVS_MAX: c_int = 1;

const _: () = assert!(HANDLE_BYTES == HANDLE_BYTES_MAX);

/// Opens the plugin for a communicator.
pub unsafe extern "C" fn init(out: *mut Pointer, _comm: u64, logger: Option<Logger>) -> Rc {
    call(|| {
        let context = net::context_open(logger, None)?;
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { write(out, named(context)) }.inspect_err(|_| {
            let _ = net::context_close(context);
        })
    })
}

/// How many devices there are.
pub unsafe extern "C" fn devices(out: *mut c_int) -> Rc {
    // SAFETY: NULL, or an `int` of NCCL's.
    call(|| unsafe { write(out, gin::device_count(Table::V11) as c_int) })
}

/// What a device is: that of the net tables, with memory of GPUs.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV11) -> Rc {
    // SAFETY: this function's contract is that of the call.
    let rc = unsafe { super::v11::get_properties(number, out) };
    // SAFETY: NULL, or properties of NCCL's, which the call has written where it succeeded.
    if let (0, Some(props)) = (rc, unsafe { out.as_mut() }) {
        props.ptr_support = PTR_HOST | PTR_CUDA;
        props.max_recvs = RECVS_MAX;
        props.net_device_type = DEVICE_TYPE;
        props.net_device_version = DEVICE_VERSION;
    }
    rc
}

/// Opens a listener.
pub unsafe extern "C" fn listen(
    _context: Pointer,
    _device: c_int,
    handle: Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        if handle.is_null() || out.is_null() {
            return Err(Fault::Argument);
        }
        let listener = gin::listen()?;
        // SAFETY: not NULL, so room for a handle.
        unsafe { handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(*listener.handle()) };
        // SAFETY: not NULL, so NCCL's place for it.
        unsafe { write(out, Box::into_raw(listener).cast()) }
    })
}

/// Brings the ranks together. The context may be another one's, or NULL, and is not looked at.
pub unsafe extern "C" fn connect(
    _context: Pointer,
    handles: *mut Pointer,
    ranks: c_int,
    rank: c_int,
    listener: Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        // SAFETY: NULL, or of `listen` and not closed.
        let listener = unsafe { listener.cast::<Listener>().as_ref() }.ok_or(Fault::Argument)?;
        let size = |count: c_int| usize::try_from(count).map_err(|_| Fault::Argument);
        let (ranks, rank) = (size(ranks)?, size(rank)?);
        if handles.is_null() || out.is_null() || rank >= ranks {
            return Err(Fault::Argument);
        }
        // SAFETY: as many handles as ranks, and there is one.
        let first = unsafe { *handles };
        if first.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: not NULL, so a handle.
        let first = unsafe { first.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
        let coll = gin::connect(listener, &first, rank, ranks)?;
        // SAFETY: not NULL, so NCCL's place for it.
        unsafe { write(out, Box::into_raw(coll).cast()) }
    })
}

/// The communicator of a pointer.
///
/// # Safety
/// - `coll` is NULL, or of `connect` and not closed.
pub unsafe fn coll<'a>(coll: Pointer) -> Result<&'a Coll, Fault> {
    // SAFETY: NULL, or a `Coll` by this function's contract.
    unsafe { coll.cast::<Coll>().as_ref() }.ok_or(Fault::Argument)
}

/// Makes a context, and writes both of its names.
///
/// # Safety
/// - `of` is NULL, or of `connect` and not closed; both places are NULL or valid for writes.
pub unsafe fn context_made(
    of: Pointer,
    config: &Config,
    version: c_int,
    out: *mut Pointer,
    handle: *mut *mut DeviceHandle,
) -> Result<(), Fault> {
    if out.is_null() || handle.is_null() {
        return Err(Fault::Argument);
    }
    // SAFETY: by this function's contract.
    let context = Box::into_raw(unsafe { coll(of) }?.context(config, version)?);
    // SAFETY: not NULL; the handle lives as long as the context.
    unsafe { write(handle, &raw mut (*context).handle) }?;
    // SAFETY: not NULL.
    unsafe { write(out, context.cast()) }
}

/// A count of NCCL's; none where it is negative.
pub fn count(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Makes a context.
pub unsafe extern "C" fn create_context(
    of: Pointer,
    signals: c_int,
    counters: c_int,
    out: *mut Pointer,
    handle: *mut *mut DeviceHandle,
) -> Rc {
    let config = Config {
        signals: count(signals),
        counters: count(counters),
        contexts: 1,
        depth: 0,
        layout: Layout::Nccl28,
    };
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { context_made(of, &config, DEVICE_VERSION, out, handle) })
}

/// Registers memory at all ranks.
pub unsafe extern "C" fn reg_mr_sym(
    of: Pointer,
    data: Pointer,
    bytes: usize,
    kind: c_int,
    _flags: u64,
    out: *mut Pointer,
    handle: *mut Pointer,
) -> Rc {
    call(|| {
        if out.is_null() || handle.is_null() || data.is_null() || bytes == 0 {
            return Err(Fault::Argument);
        }
        if kind != PTR_CUDA {
            log::warn(&format!(
                "GIN registration: memory of kind {kind} is refused; only GPU memory can be \
                 registered"
            ));
            return Err(Fault::Argument);
        }
        // SAFETY: NULL, or of `connect` and not closed.
        let window = unsafe { coll(of) }?.register(data.addr() as u64, bytes)?;
        // SAFETY: not NULL.
        unsafe { write(out, named(u64::from(window.key))) }?;
        // SAFETY: not NULL.
        unsafe { write(handle, without_provenance_mut(window.handle as usize)) }
    })
}

/// The same for memory with a dma-buf, which is not needed: the address says it all.
pub unsafe extern "C" fn reg_mr_sym_dma_buf(
    of: Pointer,
    data: Pointer,
    bytes: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    flags: u64,
    out: *mut Pointer,
    handle: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe { reg_mr_sym(of, data, bytes, kind, flags, out, handle) }
}

/// Ends a registration.
pub unsafe extern "C" fn dereg_mr_sym(of: Pointer, memory: Pointer) -> Rc {
    call(|| {
        // SAFETY: NULL, or of `connect` and not closed.
        unsafe { coll(of) }?.deregister(number(memory) as u32);
        Ok(())
    })
}

/// Ends a context.
pub unsafe extern "C" fn destroy_context(context: Pointer) -> Rc {
    call(|| {
        if !context.is_null() {
            // SAFETY: of `context_made`, and not destroyed before.
            drop(unsafe { Box::from_raw(context.cast::<Context>()) });
        }
        Ok(())
    })
}

/// Ends a communicator.
pub unsafe extern "C" fn close_coll(of: Pointer) -> Rc {
    call(|| {
        if !of.is_null() {
            // SAFETY: of `connect`, and not closed before.
            gin::close(*unsafe { Box::from_raw(of.cast::<Coll>()) });
        }
        Ok(())
    })
}

/// Closes a listener.
pub unsafe extern "C" fn close_listen(listener: Pointer) -> Rc {
    call(|| {
        if !listener.is_null() {
            // SAFETY: of `listen`, and not closed before.
            drop(unsafe { Box::from_raw(listener.cast::<Listener>()) });
        }
        Ok(())
    })
}

/// Nothing: the plugin's thread makes progress.
pub unsafe extern "C" fn gin_progress(_of: Pointer) -> Rc {
    0
}

/// Whether a queue of the context has failed.
pub unsafe extern "C" fn query_last_error(context: Pointer, out: *mut bool) -> Rc {
    call(|| {
        // SAFETY: NULL, or of `context_made` and not destroyed.
        let context = unsafe { context.cast::<Context>().as_ref() };
        let failed = context.is_some_and(Context::has_failed);
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { write(out, failed) }
    })
}

/// Ends the plugin for a communicator.
pub unsafe extern "C" fn finalize(context: Pointer) -> Rc {
    call(|| net::context_close(number(context)))
}
