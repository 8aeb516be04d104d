//! A group in the caller's storage, and the way to it: which group a pointer means, and whether it
//! and its endpoint may be used.
//!
//! A group stands behind a word that says whether it is open, as an endpoint does. It remembers
//! which opening of its endpoint it belongs to, since another may be opened in the same storage.

use crate::guard::{self, Entered};
use crate::handle::{xtie_endpoint, xtie_group};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use crosstie::base::slab::Handle;
use crosstie::host;
use crosstie::host::group::{Abort, Group, Helper};
use crosstie::host::kernels::Device;

/// What is in the first word of a group's storage.
const OPEN: u64 = 0x7469_6772_6f75_702e;
const CLOSED: u64 = 0x7469_6772_656e_642e;

/// A window in memory that was allocated for it; the memory goes with the window.
#[derive(Copy, Clone, Default)]
pub(super) struct Allocated {
    /// The window, and its memory, while there is one.
    pub pair: Option<(Handle, Handle)>,
}

/// A group at the start of its storage.
#[repr(C, align(64))]
struct Room {
    state: AtomicU64,
    endpoint: *mut xtie_endpoint,
    opening: u64,
    abort: ManuallyDrop<Abort>,
    /// The thread that makes progress, which the endpoint's thread starts and stops.
    helper: UnsafeCell<ManuallyDrop<Option<Helper>>>,
    members: UnsafeCell<ManuallyDrop<Members>>,
}

/// What the endpoint's thread uses.
struct Members {
    group: Group,
    /// One for each window.
    allocated: NonNull<[Allocated]>,
    /// Queues that kernels write.
    device: Option<Box<Device>>,
}

/// Bytes at the start of the storage that are not the group's block, a multiple of 64.
pub(super) const fn room_bytes(windows_max: u32) -> usize {
    let bytes = size_of::<Room>() + windows_max as usize * size_of::<Allocated>();
    bytes.next_multiple_of(align_of::<Room>())
}

/// Puts an opened group into its storage.
///
/// # Safety
/// - `storage` is aligned to 64 bytes and valid for reads and writes of [`room_bytes`] until
///   [`take`] has returned, and nobody else touches it.
pub(super) unsafe fn put(
    storage: *mut u8,
    endpoint: *mut xtie_endpoint,
    opening: u64,
    windows_max: u32,
    group: Group,
) -> *mut xtie_group {
    // SAFETY: behind the room, inside of `room_bytes`; not null, since the storage is not.
    let first = unsafe { NonNull::new_unchecked(storage.add(size_of::<Room>())) };
    let first: NonNull<Allocated> = first.cast();
    for at in 0..windows_max as usize {
        // SAFETY: inside of `room_bytes`, and aligned to 8 as the room's size is.
        unsafe { first.add(at).write(Allocated::default()) };
    }
    let allocated = NonNull::slice_from_raw_parts(first, windows_max as usize);
    let room = Room {
        state: AtomicU64::new(OPEN),
        endpoint,
        opening,
        abort: ManuallyDrop::new(group.abort()),
        helper: UnsafeCell::new(ManuallyDrop::new(None)),
        members: UnsafeCell::new(ManuallyDrop::new(Members { group, allocated, device: None })),
    };
    let place: *mut Room = storage.cast();
    // SAFETY: aligned and valid for a `Room` by this function's contract.
    unsafe { place.write(room) };
    place.cast()
}

/// The room behind a pointer of the caller's, if a group is open there.
#[inline(always)]
fn room<'a>(group: *const xtie_group) -> Result<&'a Room, xtie_result> {
    let place: *const Room = group.cast();
    if place.is_null() {
        return Err(XTIE_ERR_NULL);
    }
    if !place.is_aligned() {
        return Err(XTIE_ERR_NO_GROUP);
    }
    // SAFETY: the caller gives a pointer of `xtie_group_open` whose storage it still keeps
    // (crosstie.h, "Ownership"); anything else that is readable is told by its first word.
    let state = unsafe { &(*place).state };
    match state.load(Ordering::Relaxed) {
        // SAFETY: as above, and the word says that `put` wrote a room here which `take` has not
        // ended.
        OPEN => Ok(unsafe { &*place }),
        CLOSED => Err(XTIE_ERR_GROUP_CLOSED),
        _ => Err(XTIE_ERR_NO_GROUP),
    }
}

/// A group inside a call of its endpoint's one thread.
pub(super) struct Inside<'a> {
    pub entered: Entered<'a>,
    pub group: &'a mut Group,
    /// One for each window.
    pub allocated: &'a mut [Allocated],
    /// Queues that kernels write.
    pub device: &'a mut Option<Box<Device>>,
}

impl Inside<'_> {
    /// The endpoint and the group at once.
    #[inline(always)]
    pub fn parts(&mut self) -> (&mut host::Endpoint, &mut Group) {
        (self.entered.host, self.group)
    }
}

/// Runs a call that belongs to the one thread of a group's endpoint.
#[inline(always)]
pub(super) fn data(group: *const xtie_group, call: impl FnOnce(Inside<'_>) -> c_int) -> c_int {
    let room = match room(group) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    // SAFETY: the endpoint's one thread alone changes it (crosstie.h, "Threads"), which is in here.
    let helper = unsafe { &*room.helper.get() };
    let _turn = helper.as_ref().map(Helper::enter);
    guard::data(room.endpoint, |entered| {
        if entered.opening() != room.opening {
            return XTIE_ERR_GROUP_CLOSED as c_int;
        }
        // SAFETY: one thread at a time is in here (crosstie.h, "Threads"); others reach the room's
        // other fields alone.
        let members = unsafe { &mut *room.members.get() };
        let Members { group, allocated, device } = &mut **members;
        // SAFETY: written by `put`, and reached through here alone.
        let allocated = unsafe { allocated.as_mut() };
        call(Inside { entered, group, allocated, device })
    })
}

/// Starts the thread that makes progress for a group, if none runs.
pub(super) fn helper_start(group: *const xtie_group) -> c_int {
    let room = match room(group) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    // SAFETY: as in `data`.
    if unsafe { &*room.helper.get() }.is_some() {
        return XTIE_OK as c_int;
    }
    let mut started = None;
    let result = data(group, |mut inside| {
        let (endpoint, group) = inside.parts();
        // SAFETY: both stay in their storage until the helper is stopped, which `take` does, and
        // are entered through `data` alone, which takes its turn (crosstie.h).
        match unsafe { Helper::start(endpoint, group) } {
            Ok(helper) => started = Some(helper),
            Err(_) => return inside.entered.fail(&XTIE_ERR_SYSTEM),
        }
        XTIE_OK as c_int
    });
    // SAFETY: as in `data`, which is over.
    unsafe { **room.helper.get() = started };
    result
}

/// Ends the thread that makes progress for a group, if one runs.
pub(super) fn helper_stop(group: *const xtie_group) -> c_int {
    let room = match room(group) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    // SAFETY: as in `data`.
    drop(unsafe { &mut *room.helper.get() }.take());
    XTIE_OK as c_int
}

/// Keeps the sentence for a pointer that is NULL and must not be, where there is an endpoint to
/// keep it, and gives its code.
#[cold]
#[inline(never)]
pub(super) fn null(group: *const xtie_group) -> c_int {
    match room(group) {
        Ok(room) => guard::null(room.endpoint),
        Err(_) => XTIE_ERR_NULL as c_int,
    }
}

/// Runs a call that any thread may make.
pub(super) fn any(group: *const xtie_group, call: impl FnOnce(&Abort)) -> c_int {
    let room = match room(group) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    match guard::opening(room.endpoint) {
        Ok(opening) if opening == room.opening => {
            call(&room.abort);
            XTIE_OK as c_int
        }
        Ok(_) => XTIE_ERR_GROUP_CLOSED as c_int,
        Err(result) => result as c_int,
    }
}

/// Ends a group. One whose endpoint is closed has nothing left but its own state.
pub(super) fn take(group: *const xtie_group) -> c_int {
    let room = match room(group) {
        Ok(room) => room,
        Err(result) => return result as c_int,
    };
    helper_stop(group);
    let is_orphan = match guard::opening(room.endpoint) {
        Ok(opening) => opening != room.opening,
        Err(XTIE_ERR_CLOSED) => true,
        Err(result) => return result as c_int,
    };
    room.state.store(CLOSED, Ordering::Relaxed);
    let (abort, members) = (&raw const room.abort, room.members.get().cast_const());
    // SAFETY: the state says closed from now on, so nobody reads it a second time; the thread that
    // closes is the endpoint's one thread, and no other is in a call (crosstie.h, "Threads").
    drop(ManuallyDrop::into_inner(unsafe { abort.read() }));
    // SAFETY: as above.
    let Members { group, allocated, device } = ManuallyDrop::into_inner(unsafe { members.read() });
    drop(device); // kernels have ended, or are ended
    if is_orphan {
        return XTIE_OK as c_int;
    }
    guard::data(room.endpoint, |mut entered| {
        let is_still = group.close(entered.host);
        // SAFETY: written by `put`, and the caller's again after this function alone.
        for one in unsafe { allocated.as_ref() } {
            if let Some((_, memory)) = one.pair {
                // else the endpoint's end frees it
                let _ = entered.host.shared.free(memory);
            }
        }
        if is_still { XTIE_OK as c_int } else { entered.fail(&XTIE_ERR_UNFENCED) }
    })
}
