//! The guard at the door: which endpoint a pointer means, whether it may be used, and what happens
//! when a bug panics.
//!
//! An endpoint stands at the start of the caller's storage, behind a word that says how it is:
//! open, closed, or poisoned by a panic. Every call looks at that word first. Two loads and two
//! compares are all that this costs a call that succeeds; `catch_unwind` costs it nothing.

use crate::errors::Explain;
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::text::Text;
use crate::xtie_endpoint;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::fmt::Write;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crosstie::host::{self, Shared, log};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

/// What is in the first word of an endpoint's storage: no plain numbers, so that memory which never
/// was an endpoint is recognised.
const OPEN: u64 = 0x7469_6f70_656e_2e31;
const CLOSED: u64 = 0x7469_636c_6f73_2e31;
const POISONED: u64 = 0x7469_706f_6973_2e31;

/// Forks of this process since the first endpoint: in a child it differs from what the endpoints
/// remember.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Where endpoints of this process are open, so that storage is looked into only where one was:
/// what is elsewhere may never have been written. More than these are not remembered.
static OPEN_AT: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Endpoints that were opened in this process: what belongs to one tells it from a later one in the
/// same storage.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

/// Puts `to` in the place of `from`, if there is one. Relaxed: who opens or closes one endpoint
/// from two threads orders that (crosstie.h, "Threads"), and an address tells of nothing else.
fn open_at_set(from: usize, to: usize) {
    let set = |place: &AtomicUsize| {
        place.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let _ = OPEN_AT.iter().any(set);
}

/// Whether an endpoint of this process stands at `storage`, for certain.
pub(crate) fn is_open_at(storage: *const u8) -> bool {
    let known = OPEN_AT.iter().any(|place| place.load(Ordering::Relaxed) == storage.addr());
    known && matches!(room(storage.cast()), Ok(_) | Err(XTIE_ERR_POISONED))
}

/// An endpoint at the start of its storage.
#[repr(C, align(64))]
pub(crate) struct Room {
    state: AtomicU64,
    forks: u32,
    opening: u64,
    error: Mutex<Text>,
    /// The half that any thread may use: beside the endpoint in its block, not inside of it.
    shared: NonNull<Shared>,
    host: UnsafeCell<ManuallyDrop<host::Endpoint>>,
}

/// Bytes at the start of the storage that are the guard's; the rest is the endpoint's block.
pub(crate) const ROOM_BYTES: usize = size_of::<Room>();

/// Puts an opened endpoint behind the guard.
///
/// # Safety
/// - `storage` is aligned to 64 bytes and valid for reads and writes of [`ROOM_BYTES`] until
///   [`take`] has returned, and nobody else touches it.
pub(crate) unsafe fn put(storage: *mut u8, endpoint: host::Endpoint) -> *mut xtie_endpoint {
    let room = Room {
        state: AtomicU64::new(OPEN),
        forks: FORKS.load(Ordering::Relaxed),
        opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
        error: Mutex::new(Text::EMPTY),
        shared: endpoint.shared.place(),
        host: UnsafeCell::new(ManuallyDrop::new(endpoint)),
    };
    let place: *mut Room = storage.cast();
    // SAFETY: aligned and valid for a `Room` by this function's contract.
    unsafe { place.write(room) };
    open_at_set(0, place.addr());
    place.cast()
}

/// Starts to notice forks.
pub(crate) fn forks_watch() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        OPEN_AT.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handler touches atomics, which is allowed after a fork, and lives for
        // ever: the shared library is never unloaded (build.rs).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// The room behind a pointer of the caller's, if it may be entered.
#[inline(always)]
fn room<'a>(endpoint: *const xtie_endpoint) -> Result<&'a Room, xtie_result> {
    let place: *const Room = endpoint.cast();
    if place.is_null() {
        return Err(XTIE_ERR_NULL);
    }
    if !place.is_aligned() {
        return Err(XTIE_ERR_ENDPOINT);
    }
    // SAFETY: the caller gives a pointer of `xtie_endpoint_open` whose storage it still keeps
    // (crosstie.h, "Ownership"); anything else that is readable is told by its first word.
    let state = unsafe { &(*place).state };
    if state.load(Ordering::Relaxed) != OPEN {
        return Err(why_not(state));
    }
    // SAFETY: as above, and the word says that `put` wrote a room here which `take` has not ended.
    let room = unsafe { &*place };
    if room.forks != FORKS.load(Ordering::Relaxed) {
        return Err(XTIE_ERR_FORKED);
    }
    Ok(room)
}

#[cold]
fn why_not(state: &AtomicU64) -> xtie_result {
    match state.load(Ordering::Relaxed) {
        CLOSED => XTIE_ERR_CLOSED,
        POISONED => XTIE_ERR_POISONED,
        _ => XTIE_ERR_ENDPOINT,
    }
}

/// Which opening of an endpoint stands behind a pointer, if it may be entered.
pub(crate) fn opening(endpoint: *const xtie_endpoint) -> Result<u64, xtie_result> {
    room(endpoint).map(|room| room.opening)
}

/// An endpoint inside a call of its one thread.
pub(crate) struct Entered<'a> {
    pub host: &'a mut host::Endpoint,
    room: &'a Room,
}

impl Entered<'_> {
    /// Which opening of an endpoint this one is.
    pub fn opening(&self) -> u64 {
        self.room.opening
    }

    /// Keeps the sentence for an error, and gives its code.
    #[cold]
    #[inline(never)]
    pub fn fail(&mut self, error: &dyn Explain) -> c_int {
        failed(self.room, error)
    }
}

/// Runs a call that belongs to the endpoint's one thread. The call gives its code and nothing
/// else, because a larger answer would be carried through memory in every call that succeeds.
#[inline(always)]
pub(crate) fn data(
    endpoint: *const xtie_endpoint,
    call: impl FnOnce(Entered<'_>) -> c_int,
) -> c_int {
    let room = match room(endpoint) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    let host = room.host.get();
    // SAFETY: one thread at a time is in here (crosstie.h, "Threads"); other threads reach the
    // room's other fields and the shared half, which lies outside of this.
    match catch_unwind(AssertUnwindSafe(|| call(Entered { host: unsafe { &mut *host }, room }))) {
        Ok(result) => result,
        Err(payload) => poison(room, payload),
    }
}

/// Runs a call that any thread may make.
#[inline(always)]
pub(crate) fn shared<E: Explain>(
    endpoint: *const xtie_endpoint,
    call: impl FnOnce(&Shared) -> Result<xtie_result, E>,
) -> c_int {
    let room = match room(endpoint) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    match catch_unwind(AssertUnwindSafe(|| call(shared_half(room)))) {
        Ok(Ok(result)) => result as c_int,
        Ok(Err(error)) => failed(room, &error),
        Err(payload) => poison(room, payload),
    }
}

/// The half that any thread may use, without touching the other.
fn shared_half(room: &Room) -> &Shared {
    // SAFETY: it stands until `take`, when no other thread is in a call (crosstie.h, "Threads").
    unsafe { room.shared.as_ref() }
}

/// Keeps the sentence for a pointer that is NULL and must not be, where there is an endpoint to
/// keep it, and gives its code.
#[cold]
#[inline(never)]
pub(crate) fn null(endpoint: *const xtie_endpoint) -> c_int {
    match room(endpoint) {
        Ok(room) => failed(room, &XTIE_ERR_NULL),
        Err(_) => XTIE_ERR_NULL as c_int,
    }
}

#[cold]
#[inline(never)]
fn failed(room: &Room, error: &dyn Explain) -> c_int {
    let text: Text = Text::of(|text| error.explain(shared_half(room), text));
    *room.error.lock().unwrap_or_else(PoisonError::into_inner) = text;
    error.result() as c_int
}

#[cold]
#[inline(never)]
fn poison(room: &Room, payload: Box<dyn std::any::Any + Send>) -> c_int {
    // it stays open: its threads go on using the storage
    room.state.store(POISONED, Ordering::Relaxed);
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let said = said.unwrap_or("a panic without words");
    let text: Text = Text::of(|text| write!(text, "a bug of the library: {said}"));
    log::say(log::Level::Error, text.as_str());
    *room.error.lock().unwrap_or_else(PoisonError::into_inner) = text;
    // Its destructor could panic, here where nothing catches it.
    core::mem::forget(payload);
    XTIE_ERR_POISONED as c_int
}

/// Runs a call that needs no endpoint; a panic is an error and nothing else.
pub(crate) fn free(call: impl FnOnce() -> xtie_result) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result as c_int,
        Err(payload) => {
            core::mem::forget(payload);
            XTIE_ERR_POISONED as c_int
        }
    }
}

/// The sentence of the last call that failed, also of an endpoint that is poisoned.
pub(crate) fn last_error(endpoint: *const xtie_endpoint) -> Result<Text, xtie_result> {
    match room(endpoint) {
        Ok(room) => Ok(*room.error.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(XTIE_ERR_POISONED) => {
            // SAFETY: `room` found its word there; a poisoned room keeps all its fields.
            let room = unsafe { &*endpoint.cast::<Room>() };
            Ok(*room.error.lock().unwrap_or_else(PoisonError::into_inner))
        }
        Err(result) => Err(result),
    }
}

/// Ends an endpoint. A poisoned one is left as it stands: its parts may be in any state.
pub(crate) fn take(endpoint: *const xtie_endpoint) -> c_int {
    let room = match room(endpoint) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    let host: *const ManuallyDrop<host::Endpoint> = room.host.get();
    room.state.store(CLOSED, Ordering::Relaxed);
    // SAFETY: the state says closed from now on, so nobody reads it a second time; the thread that
    // closes is the endpoint's one thread, and no other is in a call (crosstie.h, "Threads").
    let host = unsafe { host.read() };
    let close = || ManuallyDrop::into_inner(host).close();
    match catch_unwind(AssertUnwindSafe(close)) {
        Ok(()) => {
            open_at_set(endpoint.addr(), 0);
            XTIE_OK as c_int
        }
        Err(payload) => poison(room, payload),
    }
}

/// For tests: a call in which the library panics. Not exported to C.
#[doc(hidden)]
pub fn panic_for_tests(endpoint: *const xtie_endpoint) -> c_int {
    data(endpoint, |_| panic!("asked for by a test"))
}
