//! The environment is read once: threads of the program may change it after the first call.
//!
//! The only test of this program, since it changes the environment of the process.
#![allow(dead_code)] // of the shared parts

mod host_support;

use crosstie::host::{DeviceKind, Options};
use host_support::{Node, small};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

const NAMES: usize = 40_000;
const OPENS: usize = 3_000;
/// A value of each length in turn: another length has the list of variables move.
const VALUES: [&str; 2] = ["1", "a value that is longer than the other"];

/// Sets and unsets many names, as a program in C does: without the standard library's lock, which
/// would keep our own reader from the list.
fn change(ended: &AtomicBool) {
    let names: Vec<CString> =
        (0..NAMES).map(|n| CString::new(format!("TEST_NAME_{n}")).unwrap()).collect();
    let values = VALUES.map(|value| CString::new(value).unwrap());
    for round in 0.. {
        for (at, name) in names.iter().enumerate() {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            let value = &values[(round + at) % VALUES.len()];
            // SAFETY: two texts that end with a zero. Nobody else changes the environment, and
            // whether anybody reads it is what the test asks.
            unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
        for name in &names {
            // SAFETY: as above.
            unsafe { libc::unsetenv(name.as_ptr()) };
        }
    }
}

#[test]
fn endpoints_open_and_close_while_another_thread_changes_the_environment() {
    // a device without a thread first, so that those of the others start later
    let of = |device| Options { device, ..small(1) };
    Node::open(&of(DeviceKind::Loopback)).close();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| change(&ended));
        for round in 0..OPENS {
            let device = match round % 30 {
                0 => DeviceKind::Tcp,
                1 => DeviceKind::SharedMemory,
                _ => DeviceKind::Loopback,
            };
            Node::open(&of(device)).close();
        }
        ended.store(true, Ordering::Relaxed);
    });
}
