//! NCCL's log. Everything that the library says goes there while NCCL uses the plugin.

use super::process::OfProcess;
use crate::abi::{Logger, level, subsystem};
use core::ffi::{c_int, c_ulong};
use crosstie::host::log::{Level, sink_set};
use std::ffi::CString;
use std::sync::RwLock;

static LOGGER: OfProcess<RwLock<Option<Logger>>> =
    OfProcess::new(RwLock::new(None), || RwLock::new(None));

/// What is logged from now on goes to `logger`; `None`: to standard error, as `CROSSTIE_LOG` says.
pub fn set(logger: Option<Logger>) {
    if let Ok(mut place) = LOGGER.get().write() {
        *place = logger;
    }
    let sink = logger.map(|_| (heard as fn(usize, Level, &str), 0));
    sink_set(sink);
}

fn heard(_userdata: usize, level: Level, text: &str) {
    match level {
        Level::Error | Level::Warning => warn(text),
        Level::Info => info(text),
    }
}

/// What the user should know.
pub fn warn(text: &str) {
    say(level::WARN, subsystem::ALL, text);
}

/// What is going on.
pub fn info(text: &str) {
    say(level::INFO, subsystem::INIT | subsystem::NET, text);
}

fn say(level: c_int, subsystems: c_ulong, text: &str) {
    let Some(logger) = LOGGER.get().read().ok().and_then(|place| *place) else { return };
    let text = format!("NET/crosstie : {text}").replace('\0', " ");
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: NCCL's function with its own signature; the text is never taken for a format, and
    // all pointers are to text that ends with a zero and lives until the call returns.
    unsafe { logger(level, subsystems, c"crosstie".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
}
