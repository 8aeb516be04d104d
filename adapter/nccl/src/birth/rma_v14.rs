//! RMA, born in v14: contexts without signals and counters, memory without a name for kernels, and
//! signals that say whether they are strong. All of ours are.

use super::gin_v11::{context_made, count, registered};
use super::gin_v13::{self, DEVICE_VERSION};
use super::{call, write};
use crate::abi::Rc;
use crate::abi::rma::ConfigV14;
use crate::abi::table::Pointer;
use crate::net::Fault;
use core::ffi::c_int;
use core::ptr::null_mut;
use crosstie::host::gin::{Config, Layout};

/// Makes contexts.
pub unsafe extern "C" fn create_context(
    of: Pointer,
    with: *const ConfigV14,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        // SAFETY: NULL, or a configuration of NCCL's.
        let with = unsafe { with.as_ref() }.ok_or(Fault::Argument)?;
        let config = Config {
            signals: 0,
            counters: 0,
            contexts: count(with.contexts),
            depth: 0,
            layout: Layout::Nccl30,
        };
        // SAFETY: this function's contract is that of the call; hosts ask for operations.
        unsafe { context_made(of, &config, DEVICE_VERSION, out, null_mut()) }
    })
}

/// Registers memory at all ranks.
pub unsafe extern "C" fn reg_mr_sym(
    of: Pointer,
    data: Pointer,
    bytes: usize,
    kind: c_int,
    _flags: u64,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        if out.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: this function's contract is that of the call.
        let (memory, _) = unsafe { registered(of, (data, bytes), kind, None) }?;
        // SAFETY: not NULL.
        unsafe { write(out, memory) }
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
) -> Rc {
    call(|| {
        if out.is_null() {
            return Err(Fault::Argument);
        }
        let dmabuf = Some((descriptor, offset));
        // SAFETY: this function's contract is that of the call.
        let (memory, _) = unsafe { registered(of, (data, bytes), kind, dmabuf) }?;
        // SAFETY: not NULL.
        unsafe { write(out, memory) }
    })
}

/// Puts bytes, and raises a signal behind them, which is strong whatever is asked.
pub unsafe extern "C" fn iput_signal(
    of: Pointer,
    context: c_int,
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
    _is_strong: u8,
    request: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe {
        gin_v13::iput_signal(
            of,
            context,
            from_offset,
            from,
            bytes,
            to_offset,
            to,
            rank,
            signal_offset,
            signal,
            value,
            operation,
            request,
        )
    }
}
