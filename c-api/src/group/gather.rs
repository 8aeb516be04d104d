//! AllGathers that are prepared once on a window, and carried out often.

use super::config::timeout;
use super::room::{self, Inside};
use crate::handle::{tag, untag, xtie_all_gather, xtie_group, xtie_window};
use crate::result::xtie_result::*;
use crate::structs::{Sized32, read};
use core::ffi::{c_int, c_void};
use crosstie::collective::Algorithm;
use crosstie::host::gather::Key;
use crosstie::host::gather::error::GatherError;

/// Algorithm of an AllGather: the library chooses by the ranks' hosts.
pub const XTIE_ALGORITHM_AUTO: u32 = 0;
/// Each rank gives its bytes to every other one.
pub const XTIE_ALGORITHM_DIRECT: u32 = 1;
/// A ring over the hosts; each rank passes on within its host what came. Each host has as many
/// ranks, numbered one after another.
pub const XTIE_ALGORITHM_PIPELINE: u32 = 2;

/// What an AllGather is prepared for. Set struct_size and bytes; a field that is zero stands for
/// what its comment says. All but stream and timeout_ms are the same at all ranks.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_all_gather_config {
    /// sizeof(xtie_all_gather_config).
    pub struct_size: u32,
    /// XTIE_ALGORITHM_AUTO, or another.
    pub algorithm: u32,
    /// Where the bytes of rank 0 come in every rank's part of the window, in bytes.
    pub offset: u64,
    /// Room for the bytes of all ranks.
    pub bytes: u64,
    /// The CUDA stream that carries it out, of the primary context of the window's GPU; NULL: the
    /// legacy stream. Not looked at where the window is memory of the host.
    pub stream: *mut c_void,
    /// Most ranks of one host that write to each other's memory directly; 0: all.
    pub team_max: u32,
    /// How long preparing it, and each time that it is carried out, may take, in milliseconds; 0:
    /// as long as the group's timeout. XTIE_NO_TIMEOUT: without end.
    pub timeout_ms: u32,
}

// SAFETY: numbers and a pointer without padding (4 of 4 bytes, 3 of 8), each of which may be zero;
// the snapshot has the offsets.
unsafe impl Sized32 for xtie_all_gather_config {}

/// Prepares an AllGather on a window that all ranks have exchanged, or finds the one that was
/// prepared for the same place, length, algorithm and stream. All ranks call this, in the same
/// order. It maps other ranks' memory of GPUs, once. The first one of a group takes one more of
/// windows_max and of regions_max.
///
/// window: memory of the host, or of a GPU.
/// config: read during the call alone.
/// all_gather_out: for xtie_all_gather_exec, until xtie_all_gather_destroy was called as often.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_STRUCT, XTIE_ERR_WINDOW,
///     XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_READ_ONLY, XTIE_ERR_WINDOWS_FULL; XTIE_ERR_WINDOW_RANGE: it
///     does not lie inside each rank's part; XTIE_ERR_ALGORITHM; XTIE_ERR_ALL_GATHERS_FULL: there
///     are 64; XTIE_ERR_GROUP_MISMATCH: another rank's config differs; XTIE_ERR_RANK_FAILED:
///     another rank has the error; XTIE_ERR_GPU; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED; those of
///     xtie_memory_register, and the cause where a connection has failed. Nothing is left of it.
/// Threads: the endpoint's. Cost: control path; blocks until all ranks have come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_all_gather_init(
    group: *mut xtie_group,
    window: *mut xtie_window,
    config: *const xtie_all_gather_config,
    all_gather_out: *mut *mut xtie_all_gather,
) -> c_int {
    if config.is_null() || all_gather_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        // SAFETY: a structure whose size its first word says (crosstie.h).
        let config = match unsafe { read(config) } {
            Ok(config) => config,
            Err(result) => return inside.entered.fail(&result),
        };
        let algorithm = match config.algorithm {
            XTIE_ALGORITHM_AUTO => None,
            XTIE_ALGORITHM_DIRECT => Some(Algorithm::Direct),
            XTIE_ALGORITHM_PIPELINE => Some(Algorithm::Pipeline),
            _ => return inside.entered.fail(&XTIE_ERR_ALGORITHM),
        };
        let xtie_all_gather_config { offset, bytes, team_max, .. } = config;
        let (window, stream) = (untag(window), config.stream as u64);
        let key = Key { window, offset, bytes, stream, algorithm, team_max };
        let (endpoint, group) = inside.parts();
        let made = group.gather_prepare(endpoint, key, false, timeout(config.timeout_ms));
        match made {
            Ok(request) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { all_gather_out.write(tag(request)) };
                XTIE_OK as c_int
            }
            Err(error) => inside.entered.fail(&error),
        }
    })
}

/// Carries out an AllGather: the bytes of rank r come to offset + r * bytes of every rank's part.
/// All ranks call it, with the same bytes. Where the window is memory of a GPU, this puts it on the
/// stream and returns; where the stream is captured, it is recorded, and each launch of the graph
/// carries it out, with what send holds then. Between hosts it takes this rank's progress: call
/// xtie_group_progress until the stream is done, or let xtie_group_helper_start do it. Where the
/// window is memory of the host, it has ended on return.
///
/// send: bytes bytes of memory that the stream reaches, or of the host. This rank's own place in
///     the window: nothing is copied at this rank. It must not overlap anything else that is
///     received.
/// bytes: of this rank, also 0; times the ranks at most bytes of the configuration.
/// stream: that of the configuration; NULL for memory of the host.
/// Results: XTIE_OK, XTIE_ERR_WINDOW_RANGE, XTIE_ERR_RANGE: send overlaps; XTIE_ERR_ALL_GATHER:
///     destroyed, its window freed, or another stream; XTIE_ERR_NULL; XTIE_ERR_TIMEOUT,
///     XTIE_ERR_GPU, or the cause where a connection has failed: also if it failed before, and it
///     can only be destroyed then.
/// Threads: the endpoint's. Cost: data path; a few calls of the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_all_gather_exec(
    group: *mut xtie_group,
    all_gather: *mut xtie_all_gather,
    send: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    if send.is_null() && bytes != 0 {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        let (sent, stream) = ((send as u64, bytes as u64), Some(stream as u64));
        let (endpoint, group) = inside.parts();
        // SAFETY: the caller leaves the bytes alone as this function's comment says, and names a
        // stream of its GPU's primary context.
        let ended = unsafe { group.gather(endpoint, untag(all_gather), sent, stream, None) };
        ended_as(&mut inside, ended)
    })
}

/// Whether an AllGather is of use: for those that graphs carry out. A rank that has died, or does
/// not come in time, is told here; the log says it, too. Its stream goes on then, with bytes that
/// are not valid.
///
/// all_gather: NULL: all of the group, also those of xtie_window_all_gather.
/// Results: XTIE_OK, also while it is under way; else those of xtie_all_gather_exec.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_all_gather_check(
    group: *mut xtie_group,
    all_gather: *mut xtie_all_gather,
) -> c_int {
    room::data(group, |mut inside| {
        let request = (!all_gather.is_null()).then(|| untag(all_gather));
        let checked = inside.group.gather_check(request);
        ended_as(&mut inside, checked)
    })
}

/// Gives an AllGather up, in any order with its window and graphs: no stream is in it, and no graph
/// that has it is launched again. xtie_group_close gives up all that are left.
///
/// Results: XTIE_OK, XTIE_ERR_ALL_GATHER.
/// Threads: the endpoint's. Cost: control path; no other rank takes part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_all_gather_destroy(
    group: *mut xtie_group,
    all_gather: *mut xtie_all_gather,
) -> c_int {
    room::data(group, |mut inside| {
        let destroyed = inside.group.gather_destroy(untag(all_gather));
        ended_as(&mut inside, destroyed)
    })
}

/// An AllGather with the arguments of other libraries. The first call with this place, length and
/// stream prepares it as xtie_all_gather_init does, and each carries it out as
/// xtie_all_gather_exec. While the stream is captured, it is recorded; else it runs at once. What
/// it prepares is its own, also beside one of xtie_all_gather_init, and goes with the window. All
/// ranks call it, in the same order.
///
/// send: as of xtie_all_gather_exec.
/// receive: where the bytes of rank 0 come, in this rank's part of the window; at the same offset
///     in every rank's.
/// bytes: of each rank.
/// Results: those of xtie_all_gather_init and xtie_all_gather_exec.
/// Threads: the endpoint's. Cost: that of xtie_all_gather_exec; the first time blocks until all
///     ranks have come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_all_gather(
    group: *mut xtie_group,
    window: *mut xtie_window,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    if (send.is_null() || receive.is_null()) && bytes != 0 {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        let (target, sent) = ((untag(window), receive as u64), (send as u64, bytes as u64));
        let (endpoint, group) = inside.parts();
        // SAFETY: as for `xtie_all_gather_exec`.
        let ended = unsafe { group.all_gather(endpoint, target, sent, Some(stream as u64)) };
        ended_as(&mut inside, ended)
    })
}

fn ended_as(inside: &mut Inside<'_>, ended: Result<(), GatherError>) -> c_int {
    match ended {
        Ok(()) => XTIE_OK as c_int,
        Err(error) => inside.entered.fail(&error),
    }
}
