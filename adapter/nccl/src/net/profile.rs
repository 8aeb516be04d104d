//! NCCL's profiler, from v10 on: it is told when a request begins that it has given a parent for,
//! and when that ends. What is told has the form of NCCL's own sockets, which profilers know.

use crate::abi::ProfilerCallback;
use crate::abi::table::Pointer;
use core::ffi::c_int;
use core::ptr::{from_mut, null_mut};
use crosstie::wire::GROUP_MAX;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// A [`ProfilerCallback`], or NULL. Each message of NCCL's comes here, also where no profiler is
/// loaded: no lock, and nothing that threads write.
static PROFILER: AtomicPtr<()> = AtomicPtr::new(null_mut());

#[inline]
fn profiler() -> Option<ProfilerCallback> {
    let address = PROFILER.load(Ordering::Acquire);
    // SAFETY: NULL, or what `set` was given.
    unsafe { core::mem::transmute::<*mut (), Option<ProfilerCallback>>(address) }
}

/// Kinds of calls.
const START: c_int = 0;
const STOP: c_int = 1;
/// NCCL's sockets in their first version: `(2 << 16) | 1`.
const PLUGIN: i64 = 2 << 16 | 1;
/// An event of a socket.
const OF_SOCKET: u8 = 1;
/// What an event is of.
const SEND: c_int = 0;
const RECEIVE: c_int = 1;

/// What is told with a start: `ncclProfilerNetSockDescr_v1_t`.
#[repr(C)]
struct Event {
    kind: u8,
    spare: [u8; 7],
    socket: c_int,
    operation: c_int,
    bytes: usize,
}

crate::abi::layout!(Event, 24 / 8, kind 0, spare 1, socket 8, operation 12, bytes 16);

/// Who is told from now on; `None` changes nothing, because tables below v10 have none to give.
pub fn set(profiler: Option<ProfilerCallback>) {
    if let Some(profiler) = profiler {
        PROFILER.store(profiler as *mut (), Ordering::Release);
    }
}

/// Events that have begun, and not ended, of one request.
pub struct Spans {
    /// One for each message that has a parent, from the front.
    all: [AtomicPtr<core::ffi::c_void>; GROUP_MAX],
    count: AtomicU8,
}

// Relaxed throughout: the one thread that submits and tests a connection's requests comes here.
const ORDER: Ordering = Ordering::Relaxed;

impl Spans {
    /// Begins an event for a message of a request.
    ///
    /// # Safety
    /// - `parent` is NULL or what NCCL's profiler has given for the request.
    #[inline]
    pub unsafe fn begin(&self, parent: Pointer, is_send: bool, bytes: u64) {
        let count = self.count.load(ORDER);
        let (Some(profiler), Some(place)) = (profiler(), self.all.get(usize::from(count))) else {
            return;
        };
        let operation = if is_send { SEND } else { RECEIVE };
        let mut told =
            Event { kind: OF_SOCKET, spare: [0; 7], socket: -1, operation, bytes: bytes as usize };
        let mut event = null_mut();
        // SAFETY: NCCL's function; `parent` is its own (this function's contract), and what the
        // others point to lives until it returns.
        let rc = unsafe {
            profiler(from_mut(&mut event), START, parent, PLUGIN, from_mut(&mut told).cast())
        };
        // NULL: the profiler's user wants none of these, and there is nothing to end
        if rc == crate::abi::result::SUCCESS && !event.is_null() {
            place.store(event, ORDER);
            self.count.store(count + 1, ORDER);
        }
    }

    /// Ends the events of a request that has ended. *Cost*: a load where there are none.
    #[inline(always)]
    pub fn end(&self) {
        if self.count.load(ORDER) != 0 {
            self.end_all();
        }
    }

    #[cold]
    fn end_all(&self) {
        let count = usize::from(self.count.swap(0, ORDER)).min(GROUP_MAX);
        let Some(profiler) = profiler() else { return };
        for place in &self.all[..count] {
            let mut event = place.swap(null_mut(), ORDER);
            // SAFETY: NCCL's function, with the event that it gave to `begin`.
            unsafe { profiler(from_mut(&mut event), STOP, null_mut(), PLUGIN, null_mut()) };
        }
    }
}
