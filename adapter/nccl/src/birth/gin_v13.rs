//! GIN, born in v13: several contexts, properties of v12, and gets. NCCL 2.30.7 takes this table
//! for one of RMA where it finds no newer one.

use super::gin_v11::{RECVS_MAX, context, context_made, count, device_type, put};
use super::{call, named, number, write};
use crate::abi::gin::ConfigV13;
use crate::abi::props::PropsV12;
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, PTR_CUDA, PTR_HOST, Rc};
use crate::net::Fault;
use crate::rma::{Raise, Transfer};
use core::ffi::c_int;
use crosstie::host::gin::{Config, Layout};

/// `netDeviceVersion` from NCCL 2.30.3 on.
pub const DEVICE_VERSION: c_int = 200;

/// What a device is: that of the net tables, with memory of GPUs.
pub unsafe extern "C" fn get_properties<const TABLE: u8>(number: c_int, out: *mut PropsV12) -> Rc {
    // SAFETY: this function's contract is that of the call.
    let rc = unsafe { super::v12::get_properties(number, out) };
    // SAFETY: NULL, or properties of NCCL's, which the call has written where it succeeded.
    if let (0, Some(props)) = (rc, unsafe { out.as_mut() }) {
        props.ptr_support = PTR_HOST | PTR_CUDA;
        props.max_recvs = RECVS_MAX;
        props.net_device_type = device_type::<TABLE>();
        props.net_device_version = DEVICE_VERSION;
    }
    rc
}

/// A configuration of NCCL's.
pub fn config(of: &ConfigV13, layout: Layout) -> Config {
    Config {
        signals: count(of.signals),
        counters: count(of.counters),
        contexts: count(of.contexts),
        depth: count(of.queue_depth),
        layout,
    }
}

/// Makes contexts.
pub unsafe extern "C" fn create_context(
    of: Pointer,
    with: *const ConfigV13,
    out: *mut Pointer,
    handle: *mut *mut DeviceHandle,
) -> Rc {
    call(|| {
        // SAFETY: NULL, or a configuration of NCCL's.
        let with = unsafe { with.as_ref() }.ok_or(Fault::Argument)?;
        let config = config(with, Layout::Nccl30);
        // SAFETY: this function's contract is that of the call.
        unsafe { context_made(of, &config, DEVICE_VERSION, out, handle) }
    })
}

/// Makes progress, where no thread of the plugin does.
pub unsafe extern "C" fn gin_progress(of: Pointer) -> Rc {
    // SAFETY: NULL, or of `create_context` and not destroyed.
    call(|| unsafe { context(of) }?.progress())
}

/// Puts bytes.
pub unsafe extern "C" fn iput(
    of: Pointer,
    context_number: c_int,
    from_offset: u64,
    from: Pointer,
    bytes: usize,
    to_offset: u64,
    to: Pointer,
    rank: u32,
    request: *mut Pointer,
) -> Rc {
    let (from, to) = ((from_offset, number(from)), (to_offset, number(to)));
    let transfer = Transfer { context: context_number, from, bytes, to, rank };
    call(|| {
        // SAFETY: NULL, or of `create_context` and not destroyed.
        let issuer = unsafe { context(of) }?.proxy()?.issuer();
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { put(issuer, &transfer, None, request) }
    })
}

/// Puts bytes, and raises a signal behind them.
pub unsafe extern "C" fn iput_signal(
    of: Pointer,
    context_number: c_int,
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
    let transfer = Transfer { context: context_number, from, bytes, to, rank };
    let raise = Raise { at: (signal_offset, number(signal)), value, operation };
    call(|| {
        // SAFETY: NULL, or of `create_context` and not destroyed.
        let issuer = unsafe { context(of) }?.proxy()?.issuer();
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { put(issuer, &transfer, Some(raise), request) }
    })
}

/// Gets bytes: the remote side stands first.
pub unsafe extern "C" fn iget(
    of: Pointer,
    context_number: c_int,
    from_offset: u64,
    from: Pointer,
    bytes: usize,
    to_offset: u64,
    to: Pointer,
    rank: u32,
    request: *mut Pointer,
) -> Rc {
    let (from, to) = ((from_offset, number(from)), (to_offset, number(to)));
    let transfer = Transfer { context: context_number, from, bytes, to, rank };
    call(|| {
        if request.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: NULL, or of `create_context` and not destroyed.
        let made = unsafe { context(of) }?.proxy()?.issuer().get(&transfer)?;
        // SAFETY: not NULL.
        unsafe { write(request, named(made)) }
    })
}

/// Waits for gets; whatever the memory, all of the context from that rank. NULL where there are
/// none.
pub unsafe extern "C" fn iflush(
    of: Pointer,
    context_number: c_int,
    _memory: Pointer,
    rank: u32,
    request: *mut Pointer,
) -> Rc {
    call(|| {
        if request.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: NULL, or of `create_context` and not destroyed.
        let made = unsafe { context(of) }?.proxy()?.issuer().flush(context_number, rank)?;
        // SAFETY: not NULL.
        unsafe { write(request, named(made)) }
    })
}
