//! NCCL's logger: prints what the plugin says, and keeps it.

use crosstie_nccl::abi::Logger;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::Mutex;

/// NCCL's logger, which the plugin calls with a format of one text.
unsafe extern "C" fn log(
    _level: c_int,
    _subsystems: c_ulong,
    _file: *const c_char,
    _line: c_int,
    _format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    eprintln!("{text}");
    if VANISHES.lock().unwrap().is_some_and(|words| text.contains(words)) {
        std::process::abort();
    }
    LINES.lock().unwrap().push(text);
}

static VANISHES: Mutex<Option<&str>> = Mutex::new(None);

/// Has this process end when it logs these words.
pub fn vanish_when_it_says(words: &'static str) {
    *VANISHES.lock().unwrap() = Some(words);
}

/// What the ranks of this process have logged.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// How many lines were logged that have these words.
pub fn said(words: &str) -> usize {
    LINES.lock().unwrap().iter().filter(|line| line.contains(words)).count()
}

pub fn logger() -> Option<Logger> {
    let log = log as *const c_void;
    // SAFETY: with Linux's calling conventions of x86-64 and aarch64, pointers are passed alike
    // whether or not a function takes any number of them.
    Some(unsafe { std::mem::transmute::<*const c_void, Logger>(log) })
}

/// What was logged.
pub fn lines() -> Vec<String> {
    LINES.lock().unwrap().clone()
}
