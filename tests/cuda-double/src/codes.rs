//! The driver's result codes, as numbers: a test may ask for one that cudarc has no name for.

use cudarc::driver::sys::CUresult as R;

/// A result code.
pub type Code = u32;
/// What the body of a function gives.
pub type Answer = Result<(), Code>;

macro_rules! codes {
    ($($name:ident = $code:ident,)*) => {
        // A test may ask for one that nothing here answers.
        $(#[allow(dead_code)] pub const $name: Code = R::$code as Code;)*
        /// The driver's name of a code.
        pub fn name(code: Code) -> Option<&'static std::ffi::CStr> {
            const NAMES: &[(Code, &str)] = &[
                $((R::$code as Code, concat!(stringify!($code), "\0")),)*
            ];
            let (_, name) = NAMES.iter().find(|(known, _)| *known == code)?;
            std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).ok()
        }
    };
}

codes! {
    SUCCESS = CUDA_SUCCESS,
    INVALID_VALUE = CUDA_ERROR_INVALID_VALUE,
    OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY,
    NOT_INITIALIZED = CUDA_ERROR_NOT_INITIALIZED,
    NO_DEVICE = CUDA_ERROR_NO_DEVICE,
    INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE,
    INVALID_CONTEXT = CUDA_ERROR_INVALID_CONTEXT,
    PEER_ACCESS_UNSUPPORTED = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
    OPERATING_SYSTEM = CUDA_ERROR_OPERATING_SYSTEM,
    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE,
    ILLEGAL_STATE = CUDA_ERROR_ILLEGAL_STATE,
    NOT_READY = CUDA_ERROR_NOT_READY,
    ILLEGAL_ADDRESS = CUDA_ERROR_ILLEGAL_ADDRESS,
    PEER_ACCESS_ALREADY_ENABLED = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED,
    HOST_MEMORY_ALREADY_REGISTERED = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    LAUNCH_FAILED = CUDA_ERROR_LAUNCH_FAILED,
    NOT_PERMITTED = CUDA_ERROR_NOT_PERMITTED,
    NOT_SUPPORTED = CUDA_ERROR_NOT_SUPPORTED,
    STREAM_CAPTURE_UNSUPPORTED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    UNKNOWN = CUDA_ERROR_UNKNOWN,
}

/// Writes an output of a call.
pub fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: an output of an exported function, valid by its contract.
    unsafe { out.write_unaligned(value) };
    Ok(())
}
