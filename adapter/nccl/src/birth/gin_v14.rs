//! GIN, born in v14: what the plugin can do, and which structures the device code reads.

use super::gin_v11::context_made;
use super::gin_v13::{DEVICE_VERSION, config};
use super::{call, write};
use crate::abi::gin::{ConfigV14, GinPropsV14};
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, Rc};
use crate::net::Fault;
use core::ffi::c_int;
use crosstie::host::gin::Layout;

/// From this version on, contexts keep account of reads.
const BACKEND_WITH_GETS: c_int = 2;

/// Signals cover all that came before them, and words of windows may be signals.
pub unsafe extern "C" fn get_gin_properties(out: *mut GinPropsV14) -> Rc {
    let props = GinPropsV14 { strong_signals: true, va_signals: true };
    // SAFETY: NULL, or properties of NCCL's.
    call(|| unsafe { write(out, props) })
}

/// Makes contexts.
pub unsafe extern "C" fn create_context(
    of: Pointer,
    with: *const ConfigV14,
    out: *mut Pointer,
    handle: *mut *mut DeviceHandle,
) -> Rc {
    call(|| {
        // SAFETY: NULL, or a configuration of NCCL's.
        let with = unsafe { with.as_ref() }.ok_or(Fault::Argument)?;
        let layout = match with.backend_version {
            version if version >= BACKEND_WITH_GETS => Layout::Nccl30Gets,
            _ => Layout::Nccl30,
        };
        let config = config(&with.base, layout);
        // SAFETY: this function's contract is that of the call.
        unsafe { context_made(of, &config, DEVICE_VERSION, out, handle) }
    })
}
