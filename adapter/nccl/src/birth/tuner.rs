//! The tuner, v2 to v5: they differ in their arguments alone.

use super::{call, named, number, write};
use crate::abi::table::Pointer;
use crate::abi::{Logger, Rc};
use crate::net::{Fault, log};
use crate::tuner::{self, ALGORITHM_RING};
use core::ffi::c_int;

/// Begins a communicator.
pub unsafe extern "C" fn init_v2(
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        if logger.is_some() {
            log::set(logger);
        }
        // SAFETY: NULL, or NCCL's place for it.
        unsafe { write(out, named(u64::from(tuner::answers(ranks, nodes)))) }
    })
}

/// The same with NCCL's model, which is left as it is.
pub unsafe extern "C" fn init_v5(
    out: *mut Pointer,
    _communicator: u64,
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    _domains: Pointer,
    _constants: Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe { init_v2(ranks, nodes, logger, out) }
}

/// Writes an algorithm and a protocol.
pub unsafe extern "C" fn info_v2(
    context: Pointer,
    _kind: c_int,
    bytes: usize,
    _collnet: c_int,
    _nvls: c_int,
    _operations: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> Rc {
    call(|| {
        let Some(choice) = chosen(context, bytes) else { return Ok(()) };
        if let Some(its) = choice.protocol {
            // SAFETY: NULL, or an `int` of NCCL's, here and below.
            unsafe { write(algorithm, ALGORITHM_RING as c_int) }?;
            // SAFETY: as above.
            unsafe { write(protocol, its as c_int) }?;
        }
        // SAFETY: as above.
        choice.channels.map_or(Ok(()), |its| unsafe { write(channels, its) })
    })
}

/// Makes the entry of the choice the cheapest.
pub unsafe extern "C" fn info_v3(
    context: Pointer,
    kind: c_int,
    bytes: usize,
    operations: c_int,
    costs: *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    unsafe { info_v4(context, kind, bytes, operations, costs, algorithms, protocols, 0, channels) }
}

/// The same. Of registered buffers NCCL knows how many channels they take.
pub unsafe extern "C" fn info_v4(
    context: Pointer,
    _kind: c_int,
    bytes: usize,
    _operations: c_int,
    costs: *mut f32,
    algorithms: c_int,
    protocols: c_int,
    is_registered: c_int,
    channels: *mut c_int,
) -> Rc {
    call(|| {
        let Some(choice) = chosen(context, bytes) else { return Ok(()) };
        let lengths = usize::try_from(algorithms).ok().zip(usize::try_from(protocols).ok());
        let (algorithms, protocols) = lengths.ok_or(Fault::Argument)?;
        if costs.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: not NULL, so a table of that many entries, which is NCCL's.
        let costs = unsafe { core::slice::from_raw_parts_mut(costs, algorithms * protocols) };
        let is_chosen = choice.cheapen(costs, protocols);
        match choice.channels.filter(|_| is_chosen && is_registered == 0) {
            // SAFETY: NULL, or an `int` of NCCL's.
            Some(its) => unsafe { write(channels, its) },
            None => Ok(()),
        }
    })
}

fn chosen(context: Pointer, bytes: usize) -> Option<tuner::Choice> {
    (number(context) != 0).then(|| tuner::choice(bytes as u64))
}

/// Ends a communicator, of which nothing is kept.
pub unsafe extern "C" fn end(_context: Pointer) -> Rc {
    call(|| Ok(()))
}
