//! GIN, born in v11: the functions that all its versions share, and one context at a time.

use super::{call, named, number, write};
use crate::abi::props::PropsV11;
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, HANDLE_BYTES_MAX, Logger, PTR_CUDA, PTR_HOST, Rc};
use crate::net::{self, Fault, log};
use crate::one_sided::{self, Coll, Context, Kind, Listener, Table};
use crate::rma::{Issuer, Raise, Transfer};
use core::ffi::c_int;
use core::ptr::without_provenance_mut;
use crosstie::connect::group::HANDLE_BYTES;
use crosstie::host::gin::{Config, Layout};
use std::os::fd::RawFd;

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

/// How many devices the table `TABLE` has.
pub unsafe extern "C" fn devices<const TABLE: u8>(out: *mut c_int) -> Rc {
    let table = Table::of(TABLE);
    // SAFETY: NULL, or an `int` of NCCL's.
    call(|| unsafe { write(out, one_sided::device_count(table) as c_int) })
}

/// The type of a table's devices.
pub fn device_type<const TABLE: u8>() -> c_int {
    let kind = one_sided::kind(Table::of(TABLE));
    kind.unwrap_or(Kind::Hca).device_type() // without devices nobody asks
}

/// What a device is: that of the net tables, with memory of GPUs.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV11) -> Rc {
    // SAFETY: this function's contract is that of the call.
    let rc = unsafe { super::v11::get_properties(number, out) };
    // SAFETY: NULL, or properties of NCCL's, which the call has written where it succeeded.
    if let (0, Some(props)) = (rc, unsafe { out.as_mut() }) {
        props.ptr_support = PTR_HOST | PTR_CUDA;
        props.max_recvs = RECVS_MAX;
        props.net_device_type = device_type::<{ one_sided::GIN_V11 }>();
        props.net_device_version = DEVICE_VERSION;
    }
    rc
}

/// Opens a listener.
pub unsafe extern "C" fn listen<const TABLE: u8>(
    _context: Pointer,
    device: c_int,
    handle: Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        if handle.is_null() || out.is_null() {
            return Err(Fault::Argument);
        }
        let listener = Box::new(Listener::open(Table::of(TABLE), device)?);
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
        let handle = |rank| {
            // SAFETY: as many handles as ranks.
            let handle = unsafe { *handles.add(rank) }.cast::<[u8; HANDLE_BYTES]>();
            // SAFETY: not NULL, so a handle.
            (!handle.is_null()).then(|| unsafe { handle.read_unaligned() }).ok_or(Fault::Argument)
        };
        let handles = (0..ranks).map(handle).collect::<Result<Vec<_>, _>>()?;
        let coll = Box::new(Coll::connect(listener, &handles, rank)?);
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

/// The contexts of a pointer.
///
/// # Safety
/// - `context` is NULL, or of `context_made` and not destroyed.
pub unsafe fn context<'a>(context: Pointer) -> Result<&'a Context, Fault> {
    // SAFETY: NULL, or a `Context` by this function's contract.
    unsafe { context.cast::<Context>().as_ref() }.ok_or(Fault::Argument)
}

/// Makes a context, and writes its name, and its handle for kernels where these ask.
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
    // SAFETY: by this function's contract.
    let coll = unsafe { coll(of) }?;
    if out.is_null() || (handle.is_null() && matches!(coll, Coll::Hca(_))) {
        return Err(Fault::Argument);
    }
    let mut context = Context::open(coll, config, version)?;
    if let Some(its) = context.handle() {
        // SAFETY: not NULL, as the ranks' kernels ask; it lives as long as the context.
        unsafe { write(handle, its) }?;
    }
    // SAFETY: not NULL.
    unsafe { write(out, Box::into_raw(context).cast()) }
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

/// Registers memory at all ranks, with its dma-buf where it has one: what NCCL calls it, and what
/// kernels do.
///
/// # Safety
/// - `of` is NULL, or of `connect` and not closed; the memory stays until it was deregistered.
pub unsafe fn registered(
    of: Pointer,
    (data, bytes): (Pointer, usize),
    kind: c_int,
    dmabuf: Option<(RawFd, u64)>,
) -> Result<(Pointer, Pointer), Fault> {
    let address = data.expose_provenance() as u64;
    // SAFETY: by this function's contract.
    match unsafe { coll(of) }? {
        Coll::Proxy(coll) => {
            let memory = named(coll.register((address, bytes), kind, dmabuf)?);
            Ok((memory, memory))
        }
        Coll::Hca(coll) if address == 0 || bytes == 0 => Err(coll.refuse("the size of the memory")),
        Coll::Hca(coll) if kind != PTR_CUDA => {
            log::warn(&format!(
                "GIN registration: memory of kind {kind} is refused; only GPU memory can be \
                 registered"
            ));
            Err(coll.refuse("the kind of the memory"))
        }
        Coll::Hca(coll) => {
            let window = coll.register(address, bytes)?;
            let handle = without_provenance_mut(window.handle as usize);
            Ok((named(u64::from(window.key)), handle))
        }
    }
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
        if out.is_null() || handle.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: this function's contract is that of the call.
        let (memory, of_kernels) = unsafe { registered(of, (data, bytes), kind, None) }?;
        // SAFETY: not NULL.
        unsafe { write(out, memory) }?;
        // SAFETY: not NULL.
        unsafe { write(handle, of_kernels) }
    })
}

/// The same for memory with a dma-buf, which stays NCCL's.
pub unsafe extern "C" fn reg_mr_sym_dma_buf(
    of: Pointer,
    data: Pointer,
    bytes: usize,
    kind: c_int,
    offset: u64,
    descriptor: c_int,
    _flags: u64,
    out: *mut Pointer,
    handle: *mut Pointer,
) -> Rc {
    call(|| {
        if out.is_null() || handle.is_null() {
            return Err(Fault::Argument);
        }
        let dmabuf = Some((descriptor, offset));
        // SAFETY: this function's contract is that of the call.
        let (memory, of_kernels) = unsafe { registered(of, (data, bytes), kind, dmabuf) }?;
        // SAFETY: not NULL.
        unsafe { write(out, memory) }?;
        // SAFETY: not NULL.
        unsafe { write(handle, of_kernels) }
    })
}

/// Ends a registration.
pub unsafe extern "C" fn dereg_mr_sym(of: Pointer, memory: Pointer) -> Rc {
    call(|| {
        // SAFETY: NULL, or of `connect` and not closed.
        match unsafe { coll(of) }? {
            _ if memory.is_null() => Ok(()),
            Coll::Hca(coll) => {
                coll.deregister(number(memory) as u32);
                Ok(())
            }
            Coll::Proxy(coll) => coll.deregister(number(memory)),
        }
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
            unsafe { Box::from_raw(of.cast::<Coll>()) }.close();
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

/// Puts bytes.
pub unsafe extern "C" fn iput(
    of: Pointer,
    from_offset: u64,
    from: Pointer,
    bytes: usize,
    to_offset: u64,
    to: Pointer,
    rank: u32,
    request: *mut Pointer,
) -> Rc {
    let (from, to) = ((from_offset, number(from)), (to_offset, number(to)));
    call(|| {
        // SAFETY: NULL, or of `connect` and not closed.
        let issuer = unsafe { coll(of) }?.proxy()?.issuer();
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { put(issuer, &Transfer { context: 0, from, bytes, to, rank }, None, request) }
    })
}

/// Puts bytes, and raises a signal behind them.
pub unsafe extern "C" fn iput_signal(
    of: Pointer,
    from_offset: u64,
    from: Pointer,
    bytes: usize,
    to_offset: u64,
    to: Pointer,
    rank: u32,
    signal_offset: u64,
    signal: Pointer,
    value: u64,
    operation: u32,
    request: *mut Pointer,
) -> Rc {
    let (from, to) = ((from_offset, number(from)), (to_offset, number(to)));
    let raise = Raise { at: (signal_offset, number(signal)), value, operation };
    call(|| {
        // SAFETY: NULL, or of `connect` and not closed.
        let issuer = unsafe { coll(of) }?.proxy()?.issuer();
        let transfer = Transfer { context: 0, from, bytes, to, rank };
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { put(issuer, &transfer, Some(raise), request) }
    })
}

/// Issues a put, and writes its request.
///
/// # Safety
/// - `request` is NULL, or valid for a write.
#[inline]
pub unsafe fn put(
    issuer: Issuer<'_>,
    transfer: &Transfer,
    raise: Option<Raise>,
    request: *mut Pointer,
) -> Result<(), Fault> {
    if request.is_null() {
        return Err(Fault::Argument);
    }
    let made = issuer.put(transfer, raise)?;
    // SAFETY: not NULL.
    unsafe { write(request, named(made)) }
}

/// How a request stands, with progress for all.
pub unsafe extern "C" fn test(of: Pointer, request: Pointer, done: *mut c_int) -> Rc {
    call(|| {
        // SAFETY: NULL, or an `int` of NCCL's.
        unsafe { write(done, 0) }?;
        // SAFETY: NULL, or of `connect` and not closed.
        let has_ended = unsafe { coll(of) }?.proxy()?.test(number(request))?;
        // SAFETY: not NULL.
        unsafe { write(done, has_ended.into()) }
    })
}

/// Makes progress, where no thread of the plugin does.
pub unsafe extern "C" fn gin_progress(of: Pointer) -> Rc {
    // SAFETY: NULL, or of `connect` and not closed.
    call(|| match unsafe { coll(of) }? {
        Coll::Hca(_) => Ok(()),
        Coll::Proxy(coll) => coll.progress(),
    })
}

/// Whether something of a context has failed. Releases of NCCL ask with a pointer of their own
/// where their threads ask for operations: such a one has not failed.
pub unsafe extern "C" fn query_last_error(of: Pointer, out: *mut bool) -> Rc {
    call(|| {
        let failed = match Context::is_one(of.addr()) {
            false => false,
            // SAFETY: it is one that was made, and not destroyed.
            true => unsafe { context(of) }?.has_failed(),
        };
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { write(out, failed) }
    })
}

/// Ends the plugin for a communicator.
pub unsafe extern "C" fn finalize(context: Pointer) -> Rc {
    call(|| net::context_close(number(context)))
}
