//! What happens when a bug panics: the program's hook is called, then the processor traps.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// What a program wants to be called with before the trap. It may end the program by itself.
///
/// userdata: as given with it. file: where the bug is, file_bytes long, without a zero behind it.
/// line: in that file.
#[allow(non_camel_case_types)]
pub type xtie_core_panic_hook = Option<
    unsafe extern "C" fn(userdata: *mut c_void, file: *const c_char, file_bytes: usize, line: u32),
>;

/// The hook, and what it gets. Of the whole program, because a panic knows no endpoint.
static HOOK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static USERDATA: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what is called when a bug of the library shows; then the processor traps.
///
/// hook: NULL for none. userdata: what it gets.
/// Threads: any, but not while another one is in this function.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_panic_hook_set(hook: xtie_core_panic_hook, userdata: *mut c_void) {
    // the old hook never sees the new one's argument
    HOOK.store(core::ptr::null_mut(), Ordering::Release);
    USERDATA.store(userdata, Ordering::Release);
    let hook = hook.map_or(core::ptr::null_mut(), |hook| hook as *mut c_void);
    // release: [hook], with its argument
    HOOK.store(hook, Ordering::Release);
}

/// Calls the hook, if there is one.
#[cfg(panic = "abort")]
pub fn tell(file: &str, line: u32) {
    // acquire: pairs with [hook]
    let hook = HOOK.load(Ordering::Acquire);
    // a hook that panics by calling the library traps
    HOOK.store(core::ptr::null_mut(), Ordering::Release);
    // SAFETY: null or a function of that type (`xtie_core_panic_hook_set`).
    let hook: xtie_core_panic_hook = unsafe { core::mem::transmute(hook) };
    if let Some(hook) = hook {
        let userdata = USERDATA.load(Ordering::Acquire);
        // SAFETY: the program's function and its argument; the text is static.
        unsafe { hook(userdata, file.as_ptr().cast(), file.len(), line) };
    }
}

/// Stops the processor where it is.
#[cfg(panic = "abort")]
pub fn trap() -> ! {
    // SAFETY: an instruction that touches no memory and raises an exception.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("ud2", options(noreturn, nostack))
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("brk #1", options(noreturn, nostack))
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    loop {
        core::hint::spin_loop();
    }
}

/// For tests of the archive: a bug. Not in the header, nor in the archive that is shipped.
#[cfg(feature = "panic_for_tests")]
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_panic_for_tests() {
    panic!("asked for by a test");
}
