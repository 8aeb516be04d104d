//! What libraries that are loaded at run time have in common.

use crate::base::text::Text;
use core::ffi::{CStr, c_void};
use core::mem::{size_of, transmute_copy};

/// The loader's text for the failed call that this thread made last, cut to its beginning.
pub fn reason() -> Text<120> {
    // SAFETY: takes nothing; what it gives stands until this thread calls the loader again.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return Text::EMPTY;
    }
    // SAFETY: it is not null, and ends with a zero.
    Text::beginning(unsafe { CStr::from_ptr(said) }.to_bytes())
}

/// A function's name as a text.
pub const fn words(name: &'static CStr) -> &'static str {
    match name.to_str() {
        Ok(name) => name,
        Err(_) => "function",
    }
}

/// The function that a symbol names.
///
/// # Safety
/// - `F` is the type of the function that `symbol` points to.
pub unsafe fn function<F: Copy>(symbol: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a function pointer is a pointer (asserted), and the caller vouches for its type.
    unsafe { transmute_copy(&symbol) }
}
