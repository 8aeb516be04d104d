//! RMA, born in v15: flags, all of which are hints.

use super::{gin_v13, rma_v14};
use crate::abi::Rc;
use crate::abi::table::Pointer;
use core::ffi::c_int;

/// Puts bytes.
pub unsafe extern "C" fn iput(
    of: Pointer,
    context: c_int,
    from_offset: u64,
    from: Pointer,
    bytes: usize,
    to_offset: u64,
    to: Pointer,
    rank: u32,
    _flags: u32,
    request: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe { gin_v13::iput(of, context, from_offset, from, bytes, to_offset, to, rank, request) }
}

/// Puts bytes, and raises a signal behind them.
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
    is_strong: u8,
    _flags: u32,
    request: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe {
        rma_v14::iput_signal(
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
            is_strong,
            request,
        )
    }
}

/// Gets bytes: the remote side stands first.
pub unsafe extern "C" fn iget(
    of: Pointer,
    context: c_int,
    from_offset: u64,
    from: Pointer,
    bytes: usize,
    to_offset: u64,
    to: Pointer,
    rank: u32,
    _flags: u32,
    request: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe { gin_v13::iget(of, context, from_offset, from, bytes, to_offset, to, rank, request) }
}
