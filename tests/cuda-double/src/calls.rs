//! Calls: counted by name, and failed where a test asked for it.

use crate::codes::{Answer, Code, NOT_INITIALIZED, STREAM_CAPTURE_UNSUPPORTED, SUCCESS};
use crate::settings::settings;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Functions that may be called before `cuInit`.
const EARLY: &[&str] = &["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"];
/// Functions that break a capture of another thread's, unless the calling thread is relaxed.
const BREAK_CAPTURES: &[&str] = &[
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocHost_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAllocManaged",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoD_v2",
    "cuMemsetD8_v2",
];

/// Capture modes, as numbers of the driver's.
pub const GLOBAL: u32 = 0;
/// The mode in which a thread's calls break no capture.
pub const RELAXED: u32 = 2;

thread_local! {
    /// How calls of this thread treat captures.
    pub static CAPTURE_MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// A call that will fail.
struct Rule {
    name: String,
    /// Calls before it.
    left: u64,
    code: Code,
}

/// What is known of calls.
pub struct Calls {
    counts: BTreeMap<&'static str, u64>,
    rules: Vec<Rule>,
    /// `cuInit` was called.
    pub ready: bool,
    /// Some thread captures, in the global mode.
    pub capturing: bool,
    /// Captures that a call has broken.
    pub captures_broken: u64,
}

/// What is known of calls, locked.
pub fn calls() -> MutexGuard<'static, Calls> {
    static CALLS: OnceLock<Mutex<Calls>> = OnceLock::new();
    let made = || {
        let rule = |(name, nth, code): &(String, u64, u32)| Rule::new(name, *nth, *code);
        Mutex::new(Calls {
            counts: BTreeMap::new(),
            rules: settings().failures.iter().map(rule).collect(),
            ready: false,
            capturing: false,
            captures_broken: 0,
        })
    };
    CALLS.get_or_init(made).lock().expect("no panic while it is locked")
}

impl Rule {
    fn new(name: &str, nth: u64, code: Code) -> Rule {
        Rule { name: name.into(), left: nth.saturating_sub(1), code }
    }
}

impl Calls {
    /// Makes the `nth` next call of `name` fail; 1 is the next one.
    pub fn fail(&mut self, name: &str, nth: u64, code: Code) {
        self.rules.push(Rule::new(name, nth, code));
    }

    /// Calls of `name` so far.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Every function that was called, and how often.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(name, count)| (*name, *count))
    }

    /// Counts from zero again.
    pub fn reset(&mut self) {
        self.counts.clear();
    }

    fn called(&mut self, name: &'static str) -> Answer {
        *self.counts.entry(name).or_insert(0) += 1;
        let mut due = None;
        self.rules.retain_mut(|rule| {
            if rule.name != name {
                return true;
            }
            let is_due = rule.left == 0 && due.is_none();
            rule.left = rule.left.saturating_sub(1);
            due = due.or(is_due.then_some(rule.code));
            !is_due
        });
        if let Some(code) = due {
            return Err(code);
        }
        if !self.ready && !EARLY.contains(&name) {
            return Err(NOT_INITIALIZED);
        }
        if self.capturing && CAPTURE_MODE.get() != RELAXED && BREAK_CAPTURES.contains(&name) {
            self.captures_broken += 1;
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }
}

/// Answers a call of `name` by `body`.
pub fn answer(name: &'static str, body: impl FnOnce() -> Answer) -> Code {
    let called = calls().called(name);
    match called.and_then(|()| body()) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}
