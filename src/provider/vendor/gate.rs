//! When an object may be closed although its endpoint goes on: not while another thread registers
//! memory on it.
#![forbid(unsafe_code)]

use crate::base::sync::{AtomicU32, Ordering};

/// Nobody comes in any more. Below it, how many threads are inside.
const SHUT: u32 = 1 << 31;
/// The object is closed.
const CLOSED: u32 = 1 << 30;

/// Runs a call of an object that another thread may close; `None`: it is closed, or about to be.
pub(super) fn through<T>(gate: &AtomicU32, call: impl FnOnce() -> T) -> Option<T> {
    let is_shut = gate.fetch_add(1, Ordering::Acquire) & SHUT != 0;
    let answer = if is_shut { None } else { Some(call()) };
    gate.fetch_sub(1, Ordering::Release);
    answer
}

/// Lets nobody in any more; says whether nobody is inside.
#[cfg(feature = "std")] // a suite alone closes nothing that goes on
pub(super) fn shut(gate: &AtomicU32) -> bool {
    gate.fetch_or(SHUT, Ordering::AcqRel) & !(SHUT | CLOSED) == 0
}

/// The object is closed: nothing of it is there any more.
#[cfg(feature = "std")]
pub(super) fn closed(gate: &AtomicU32) {
    gate.fetch_or(CLOSED, Ordering::Release);
}

/// Whether it is.
pub(super) fn is_closed(gate: &AtomicU32) -> bool {
    gate.load(Ordering::Acquire) & CLOSED != 0
}
