//! A child that is forked while another thread of its parent is in the log callback is not the
//! worse for it.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;

static IN_CALLBACK: Barrier = Barrier::new(2);
static FORKED: Barrier = Barrier::new(2);

unsafe extern "C" fn linger(_: *mut c_void, _: u32, _: *const c_char) {
    IN_CALLBACK.wait();
    FORKED.wait();
}

/// Asks for what cannot be, of which the log is told.
fn complain() {
    let mut config = config(LOOPBACK);
    config.device = 77;
    let mut bytes = 0;
    // SAFETY: both are ours.
    expect(unsafe { xtie_endpoint_size(&config, &mut bytes) }, XTIE_ERR_DEVICE);
}

#[test]
fn child_forked_during_the_log_callback_sets_another_and_logs() {
    // SAFETY: the function follows no pointer.
    expect(unsafe { xtie_log_set(null_mut(), Some(linger)) }, XTIE_OK);
    let speaker = std::thread::spawn(complain);
    IN_CALLBACK.wait();
    // SAFETY: the child makes two calls and is gone.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it waits for ever.
        unsafe { libc::alarm(600) };
        // SAFETY: NULL stands for standard error.
        let result = unsafe { xtie_log_set(null_mut(), None) };
        complain();
        // SAFETY: without the parent's destructors.
        unsafe { libc::_exit(result) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    FORKED.wait();
    speaker.join().unwrap();
    assert_eq!(status, 0, "the child waited");
}
