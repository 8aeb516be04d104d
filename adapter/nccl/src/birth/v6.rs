//! Born in v6: the baseline.

use super::{Group, call, comm, int_bytes, kept, kind_of, memory, named, number, request, write};
use crate::abi::props::PropsV6;
use crate::abi::table::Pointer;
use crate::abi::{Logger, Rc};
use crate::net::comm::{Comm, REQUESTS, Request};
use crate::net::{self, Fault, close, memory as regions, setup};
use core::ffi::c_int;
use core::ptr::{null, null_mut};
use crosstie::transport::Outgoing;
use crosstie::wire::GROUP_MAX;
use crosstie::wire::handle::HANDLE_BYTES;

/// Most connections of a device; nothing but memory and descriptors limits them.
pub const COMMS_MAX: c_int = 65536;
/// Added to what NCCL assumes of a network; its own sockets say the same.
pub const LATENCY_US: f32 = 0.0;
/// Most receives in a group.
pub const RECVS_MAX: c_int = GROUP_MAX as c_int;

const _: () = assert!(REQUESTS >= 32);

/// Opens the plugin.
pub unsafe extern "C" fn init(logger: Option<Logger>) -> Rc {
    call(|| net::init(logger))
}

/// How many devices there are.
pub unsafe extern "C" fn devices(count: *mut c_int) -> Rc {
    // SAFETY: NULL, or an `int` of NCCL's.
    call(|| unsafe { write(count, net::device_count() as c_int) })
}

/// What a device is.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV6) -> Rc {
    call(|| {
        let (_, device) = net::device(number)?;
        let props = PropsV6 {
            name: device.name.as_ptr(),
            pci_path: device.pci_path.map_or(null(), |path| path.as_ptr()),
            guid: device.guid,
            ptr_support: super::pointers(device),
            speed: crate::cuda::speed_mbps(device),
            port: device.port,
            latency: LATENCY_US,
            max_comms: COMMS_MAX,
            max_recvs: RECVS_MAX,
        };
        // SAFETY: NULL, or properties of NCCL's.
        unsafe { write(out, props) }
    })
}

/// Opens a listener.
pub unsafe extern "C" fn listen(device: c_int, handle: Pointer, out: *mut Pointer) -> Rc {
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { listen_of(0, device, handle, out) })
}

/// Opens a listener of a context.
///
/// # Safety
/// - `handle` is NULL or has room for a handle, `out` is NULL or valid for a write.
pub(super) unsafe fn listen_of(
    context: u64,
    device: c_int,
    handle: Pointer,
    out: *mut Pointer,
) -> Result<(), Fault> {
    if handle.is_null() || out.is_null() {
        return Err(Fault::Argument);
    }
    let (listener, bytes) = setup::listen(context, device)?;
    // SAFETY: not NULL; NCCL has 128 bytes there, of any alignment.
    unsafe { handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(bytes) };
    // SAFETY: by this function's contract.
    unsafe { write(out, named(listener)) }
}

/// Connects to a listener.
pub unsafe extern "C" fn connect(device: c_int, handle: Pointer, out: *mut Pointer) -> Rc {
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { connect_of(0, device, None, handle, out) })
}

/// Connects in a context, with a traffic class where the connection has one of its own.
///
/// # Safety
/// - `handle` is NULL or points to a handle, `out` is NULL or valid for a write.
pub(super) unsafe fn connect_of(
    context: u64,
    device: c_int,
    traffic_class: Option<i32>,
    handle: Pointer,
    out: *mut Pointer,
) -> Result<(), Fault> {
    // SAFETY: by this function's contract. It stays NULL where an error is returned: NCCL would
    // close what it finds there.
    unsafe { write(out, null_mut())? };
    if handle.is_null() {
        return Err(Fault::Argument);
    }
    // SAFETY: not NULL; NCCL has 128 bytes there, of any alignment.
    let bytes = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
    let connection = setup::connect(context, device, traffic_class, handle.addr(), &bytes)?;
    // SAFETY: by this function's contract.
    unsafe { write(out, kept(connection)) }
}

/// Takes a connection.
pub unsafe extern "C" fn accept(listener: Pointer, out: *mut Pointer) -> Rc {
    call(|| {
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { write(out, null_mut())? };
        let connection = setup::accept(number(listener))?;
        // SAFETY: as above.
        unsafe { write(out, kept(connection)) }
    })
}

/// Registers memory of less than 2 GiB.
pub unsafe extern "C" fn reg_mr(
    of: Pointer,
    data: Pointer,
    size: c_int,
    kind: c_int,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        let size = int_bytes(size)? as usize;
        // SAFETY: this function's contract is that of the call.
        unsafe { register(of, data, size, (kind, None), out) }
    })
}

/// Registers memory of a kind, of a GPU also by a dma-buf and the offset in it.
///
/// # Safety
/// - `of` is NULL or a connection, the memory is the connection's to use until it is deregistered,
///   and `out` is NULL or valid for a write.
pub(super) unsafe fn register(
    of: Pointer,
    data: Pointer,
    size: usize,
    (kind, dmabuf): (c_int, Option<(c_int, u64)>),
    out: *mut Pointer,
) -> Result<(), Fault> {
    let kind = kind_of(kind)?;
    // SAFETY: by this function's contract.
    let comm = unsafe { comm(of)? };
    if out.is_null() {
        return Err(Fault::Argument);
    }
    // SAFETY: by this function's contract.
    let handle = unsafe { regions::register(comm, data as u64, size, kind, dmabuf)? };
    // SAFETY: by this function's contract.
    unsafe { write(out, named(handle.pack())) }
}

/// Registers memory of a GPU that lies in a dma-buf from `offset` on. The descriptor stays NCCL's.
pub unsafe extern "C" fn reg_mr_dma_buf(
    of: Pointer,
    data: Pointer,
    size: usize,
    kind: c_int,
    offset: u64,
    descriptor: c_int,
    out: *mut Pointer,
) -> Rc {
    let dmabuf = Some((descriptor, offset));
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { register(of, data, size, (kind, dmabuf), out) })
}

/// Forgets memory.
pub unsafe extern "C" fn dereg_mr(of: Pointer, handle: Pointer) -> Rc {
    call(|| {
        if of.is_null() || handle.is_null() {
            return Ok(());
        }
        // SAFETY: a connection that is not closed.
        regions::deregister(unsafe { comm(of)? }, memory(handle))
    })
}

/// Sends a message.
pub unsafe extern "C" fn isend(
    of: Pointer,
    data: Pointer,
    size: c_int,
    tag: c_int,
    handle: Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        let (region, address) = (memory(handle), data as u64);
        let message = int_bytes(size).map(|length| Outgoing { region, address, length, tag });
        // SAFETY: this function's contract is that of the call.
        unsafe { send(of, message, out) }
    })
}

/// Sends a message.
///
/// # Safety
/// - `of` is NULL or a connection, and `out` is NULL or valid for a write.
#[inline(always)]
pub(super) unsafe fn send(
    of: Pointer,
    message: Result<Outgoing, Fault>,
    out: *mut Pointer,
) -> Result<(), Fault> {
    // SAFETY: by this function's contract. NCCL's place holds an old request.
    unsafe { write(out, null_mut())? };
    // SAFETY: by this function's contract.
    let sent = unsafe { comm(of)? }.isend(message?)?;
    // SAFETY: as above.
    unsafe { write(out, request(sent)) }
}

/// Receives a group of messages.
#[allow(clippy::too_many_arguments)] // NCCL's
pub unsafe extern "C" fn irecv(
    of: Pointer,
    count: c_int,
    data: *mut Pointer,
    sizes: *mut c_int,
    tags: *mut c_int,
    handles: *mut Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        // SAFETY: NCCL's arrays have `count` entries.
        let group = unsafe { Group::read(count, (data, sizes), (tags, handles), int_bytes) };
        // SAFETY: this function's contract is that of the call.
        unsafe { receive(of, group, out) }
    })
}

/// Receives a group of messages.
///
/// # Safety
/// - `of` is NULL or a connection, and `out` is NULL or valid for a write.
#[inline(always)]
pub(super) unsafe fn receive(
    of: Pointer,
    group: Result<Group, Fault>,
    out: *mut Pointer,
) -> Result<(), Fault> {
    // SAFETY: by this function's contract. NCCL's place holds an old request, or its hint that it
    // need not know of the end, which it is told all the same.
    unsafe { write(out, null_mut())? };
    // SAFETY: by this function's contract.
    let received = unsafe { comm(of)? }.irecv(group?.receives())?;
    // SAFETY: as above.
    unsafe { write(out, request(received)) }
}

/// Makes what receives have brought visible to a GPU, where NICs have memory of GPUs. Elsewhere
/// there is nothing to do: host memory is seen as it is written, and copies have ended in a stream
/// of the GPU's own.
pub unsafe extern "C" fn iflush(
    of: Pointer,
    count: c_int,
    data: *mut Pointer,
    _sizes: *mut c_int,
    handles: *mut Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        // SAFETY: NULL, or NCCL's place for a request.
        unsafe { write(out, null_mut())? };
        // SAFETY: NULL, or a connection that is not closed.
        let comm = unsafe { of.cast::<Comm>().as_ref() };
        let Some(comm) = comm.filter(|comm| comm.is_flushed()) else { return Ok(()) };
        let count = usize::try_from(count).ok().filter(|count| *count <= GROUP_MAX);
        let count = count.filter(|_| !data.is_null() && !handles.is_null());
        let receives = (0..count.ok_or(Fault::Argument)?).map(|at| {
            // SAFETY: `at` is less than `count`, and each array has an entry for each receive.
            let (data, handle) = unsafe { (*data.add(at), *handles.add(at)) };
            (memory(handle), data as u64)
        });
        let begun = comm.iflush(receives)?;
        // SAFETY: as above.
        unsafe { write(out, request(begun)) }
    })
}

/// Asks for the end of a request.
pub unsafe extern "C" fn test(asked: Pointer, done: *mut c_int, sizes: *mut c_int) -> Rc {
    call(|| {
        // SAFETY: NULL, or an `int` of NCCL's, which it has not set.
        unsafe { write(done, 0)? };
        // SAFETY: NULL, or of isend or irecv on a connection that is not closed.
        let asked = unsafe { asked.cast::<Request>().as_ref() }.ok_or(Fault::Argument)?;
        // SAFETY: as above.
        let tested = unsafe { asked.test() };
        if matches!(tested, Ok(None)) {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { write(done, 1)? };
        let Some(outcome) = tested? else { return Ok(()) };
        for (at, length) in outcome.lengths.iter().enumerate().take(outcome.count.into()) {
            if !sizes.is_null() {
                // SAFETY: not NULL, so it has an entry for each buffer.
                unsafe { sizes.add(at).write(c_int::try_from(*length).unwrap_or(c_int::MAX)) };
            }
        }
        Ok(())
    })
}

/// Closes a connection.
pub unsafe extern "C" fn close(of: Pointer) -> Rc {
    call(|| {
        if !of.is_null() {
            // SAFETY: `kept` has given it, and NCCL closes it once.
            close::close(unsafe { Box::from_raw(of.cast::<Comm>()) });
        }
        Ok(())
    })
}

/// Closes a listener.
pub unsafe extern "C" fn close_listen(of: Pointer) -> Rc {
    call(|| {
        setup::listener_close(number(of));
        Ok(())
    })
}
