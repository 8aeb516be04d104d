//! Windows for kernels: queues of a group that a GPU writes, and windows as kernels see them.

use super::config::{Functions, timeout, xtie_gather_function};
use super::room::{self, Inside};
use crate::config::refused;
use crate::handle::{untag, xtie_group, xtie_window};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, read};
use core::ffi::{c_int, c_void};
use core::ptr::without_provenance;
use crosstie::connect::group::HANDLE_BYTES;
use crosstie::host::gin::GinError;
use crosstie::host::group::{Bootstrap, TIMEOUT};
use crosstie::host::kernels::{Device, DeviceOptions, Door, SETS_MAX};

/// A window as kernels see it, in memory of the GPU: crosstie_device.cuh has its fields.
pub struct xtie_device_view {
    _opaque: [u8; 0],
}

/// What queues for kernels are opened with. Set struct_size and gather; a field that stays zero
/// has the default.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_group_device_config {
    /// sizeof(xtie_group_device_config).
    pub struct_size: u32,
    /// Sets of queues, 1 to 64: order holds within a queue, which is one of a set to a rank. 0: 1.
    pub sets: u32,
    /// Entries of each queue, 64 to 32768, rounded up to a power of two. 0: 512.
    pub depth: u32,
    /// How long a kernel waits that does not say, in milliseconds; 0: 30000. XTIE_NO_TIMEOUT:
    /// without end.
    pub timeout_ms: u32,
    /// Handed to gather, otherwise not looked at.
    pub context: *mut c_void,
    /// As of xtie_group_config; called once, with 128 bytes.
    pub gather: xtie_gather_function,
}

// SAFETY: numbers and pointers without padding (4 of 4 bytes, 2 of 8), each of which may be zero; a
// function of the caller's is what crosstie.h says. The snapshot has the offsets.
unsafe impl Sized32 for xtie_group_device_config {}

/// Deepest queue, and shallowest.
const DEPTH: core::ops::RangeInclusive<u32> = 64..=32768;

/// The options of a configuration, and the configuration.
///
/// # Safety
/// - `config` is null, or valid for reads of the bytes that its first word says.
unsafe fn options(
    config: *const xtie_group_device_config,
) -> Result<(DeviceOptions, xtie_group_device_config), xtie_result> {
    // SAFETY: by this function's contract.
    let config = unsafe { read(config)? };
    let sets = config.sets.max(1);
    if sets > SETS_MAX {
        let why = format_args!("xtie_group_device_config: sets is {sets}: {SETS_MAX} is the most");
        return Err(refused(XTIE_ERR_GROUP_LIMITS, why));
    }
    if config.depth != 0 && !DEPTH.contains(&config.depth) {
        let (depth, least, most) = (config.depth, DEPTH.start(), DEPTH.end());
        let why = format_args!(
            "xtie_group_device_config: depth is {depth}: it must be from {least} to {most}"
        );
        return Err(refused(XTIE_ERR_GROUP_LIMITS, why));
    }
    let timeout = timeout(config.timeout_ms).unwrap_or(TIMEOUT);
    Ok((DeviceOptions { sets, depth: config.depth, timeout }, config))
}

/// ---- Kernels -----------------------------------------------------------------------------------
///
/// Opens queues that kernels of this rank write (crosstie_device.cuh), and a thread,
/// crosstie-gin, that executes them. Every rank of the group calls this, with the context of its
/// GPU current, and it returns when all have met, within two minutes. The thread reaches ranks of
/// other hosts by an endpoint of its own. The queues stand until xtie_group_close.
///
/// config: read during the call alone; gather is called during it alone.
/// Results: XTIE_OK, also where they are open already; XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE,
///     XTIE_ERR_STRUCT, XTIE_ERR_GROUP_LIMITS: the log says which; XTIE_ERR_BOOTSTRAP;
///     XTIE_ERR_DEVICE_UNAVAILABLE: there is no driver of CUDA; XTIE_ERR_OTHER_HOST;
///     XTIE_ERR_FABRIC: the driver refused; XTIE_ERR_KEY, XTIE_ERR_KEY_FILE, XTIE_ERR_SETTING,
///     XTIE_ERR_SYSTEM; XTIE_ERR_RANK_MISSING, XTIE_ERR_RANK_FAILED. Nothing is left then.
/// Threads: the endpoint's. Cost: control path; makes no progress for the group meanwhile. The
///     thread spins while there is work, and for 2 ms after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_device_open(
    group: *mut xtie_group,
    config: *const xtie_group_device_config,
) -> c_int {
    if config.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        // SAFETY: a structure whose size its first word says (crosstie.h).
        let (options, config) = match unsafe { options(config) } {
            Ok(read) => read,
            Err(result) => return inside.entered.fail(&result),
        };
        let Some(gather) = config.gather else { return inside.entered.fail(&XTIE_ERR_NULL) };
        if inside.device.is_some() {
            return XTIE_OK as c_int;
        }
        let functions = Functions { context: config.context, gather, look: None };
        match open(&inside, functions, options) {
            Ok(device) => {
                inside.group.see(device.seen());
                *inside.device = Some(Box::new(device));
            }
            Err(Refused::Gin(error)) => return inside.entered.fail(&error),
            Err(Refused::Bootstrap) => return inside.entered.fail(&XTIE_ERR_BOOTSTRAP),
        }
        XTIE_OK as c_int
    })
}

/// Why queues were not opened.
enum Refused {
    Gin(GinError),
    Bootstrap,
}

/// Every rank gives its handle, also one that cannot take part: zeros.
fn open(
    inside: &Inside<'_>,
    mut functions: Functions,
    options: DeviceOptions,
) -> Result<Device, Refused> {
    let (rank, limits) = (inside.group.view().rank(), inside.group.view().limits());
    let door = Door::open();
    let mine = door.as_ref().map_or([0; HANDLE_BYTES], |door| *door.handle());
    let mut all = vec![0; HANDLE_BYTES * limits.ranks as usize];
    functions.gather(&mine, &mut all).map_err(|_| Refused::Bootstrap)?;
    let door = door.map_err(Refused::Gin)?;
    let missing = all.chunks_exact(HANDLE_BYTES).position(|handle| handle == [0; HANDLE_BYTES]);
    if let Some(rank) = missing {
        return Err(Refused::Gin(GinError::Rank(rank)));
    }
    let handles: Vec<_> = all
        .chunks_exact(HANDLE_BYTES)
        .map(|handle| handle.try_into().expect("so many bytes"))
        .collect();
    Device::open(&door, &handles, rank, limits, options).map_err(Refused::Gin)
}

/// Lets kernels of this rank use a window: puts into it, and out of this rank's part; its signals
/// and counters. The first call for a window is made by all ranks, for their windows in the same
/// order, and blocks until all have made it. Kernels must not use the window when xtie_window_free
/// is called for it. A signal or counter of the window is one sum, whoever adds: what functions of
/// this library add is seen by a kernel once this rank has made progress.
///
/// window: exchanged; this rank's part is memory of its GPU, and not empty. Memory of ncclMemAlloc
///     or cuMemCreate, with an exportable handle, or of cudaMalloc.
/// view_out: an address of the GPU, to be handed to kernels.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_NO_QUEUES;
///     XTIE_ERR_MEMORY_KIND: it is no memory that the GPUs of other ranks can map;
///     XTIE_ERR_WINDOWS_FULL: more than 1,000 windows; XTIE_ERR_FABRIC: the driver refused;
///     XTIE_ERR_RANK_FAILED: another rank could not, or has ended; XTIE_ERR_RANK_MISSING.
/// Threads: the endpoint's. Cost: control path; makes no progress for the group meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_device_window(
    group: *mut xtie_group,
    window: *mut xtie_window,
    view_out: *mut *const xtie_device_view,
) -> c_int {
    if view_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        let window = untag(window);
        let (view, rank) = (inside.group.view(), inside.group.view().rank());
        // one that was exchanged
        let memory = match view.length(window, rank).and_then(|_| view.memory(window)) {
            Ok(memory) => memory,
            Err(error) => return inside.entered.fail(&error),
        };
        let Some(device) = inside.device else { return inside.entered.fail(&XTIE_ERR_NO_QUEUES) };
        let address = match device.attach(window, &memory) {
            Ok(address) => address,
            Err(error) => return inside.entered.fail(&error),
        };
        // SAFETY: not null, and the caller's to be written.
        unsafe { view_out.write(without_provenance(address as usize)) };
        XTIE_OK as c_int
    })
}
