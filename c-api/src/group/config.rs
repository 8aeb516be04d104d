//! What a group is opened with, and how much storage that takes.

use super::room::room_bytes;
use crate::config::{XTIE_STORAGE_ALIGN, refused};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, read};
use core::ffi::{c_int, c_void};
use crosstie::base::units::Span;
use crosstie::host::group::{Bootstrap, BootstrapError, GroupOptions, TIMEOUT};
use crosstie::window::Limits;
use crosstie::window::limits::{IDS_MAX, RANKS_MAX, WINDOWS_MAX};

/// As a timeout: none.
pub const XTIE_NO_TIMEOUT: u32 = u32::MAX;
/// All ranks of a group, where a function takes that.
pub const XTIE_RANK_ALL: u32 = u32::MAX;

/// Term of XTIE_GROUP_BYTES: a group without anything.
pub const XTIE_BYTES_GROUP: u32 = 1024;
/// Term of XTIE_GROUP_BYTES: a rank.
pub const XTIE_BYTES_GROUP_RANK: u32 = 73728;
/// Term of XTIE_GROUP_BYTES: a window.
pub const XTIE_BYTES_GROUP_WINDOW: u32 = 128;
/// Term of XTIE_GROUP_BYTES: a window at a rank.
pub const XTIE_BYTES_GROUP_SHARE: u32 = 64;
/// Term of XTIE_GROUP_BYTES: a counter, or a signal or a barrier of one rank.
pub const XTIE_BYTES_GROUP_WORD: u32 = 8;

/// Gives bytes of this rank to all, and takes those of all ranks: the program's, by a launcher, MPI
/// or a file. context as of the configuration; mine: bytes bytes of this rank; all: room for
/// ranks * bytes, in the order of the ranks, also this rank's own. It is called twice, with 160
/// bytes; once at all ranks where one cannot open its group. Returns 0 when all ranks have given
/// theirs, or a code of its own in bounded time: a rank does not come. It must not call functions
/// of the group's endpoint.
pub type xtie_gather_function = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        mine: *const c_void,
        bytes: usize,
        all: *mut c_void,
    ) -> c_int,
>;

/// Called again and again while a rank waits for others to connect: 0, or a code of the program's
/// own when one is known to be gone. It must not call functions of the group's endpoint.
pub type xtie_look_function = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// What a group is opened with. Set struct_size, rank, ranks, windows_max and gather; a field that
/// is zero stands for what its comment says.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_group_config {
    /// sizeof(xtie_group_config).
    pub struct_size: u32,
    /// This rank, from 0 on.
    pub rank: u32,
    /// How many ranks there are, 1 to 4096; the same at all.
    pub ranks: u32,
    /// Most windows at a time, 1 to 1024; the same at all.
    pub windows_max: u32,
    /// Signals of each window, 0 to 4096. A rank's signals are those of its own configuration.
    pub signals_max: u32,
    /// Counters of each window, 0 to 4096.
    pub counters_max: u32,
    /// Barriers of each window, 0 to 4096. Ranks meet at those that all of them have.
    pub barriers_max: u32,
    /// How long opening, and each wait whose timeout is zero, may take, in milliseconds; 0: 30000.
    /// XTIE_NO_TIMEOUT: without end.
    pub timeout_ms: u32,
    /// Handed to gather and look, otherwise not looked at.
    pub context: *mut c_void,
    /// How the ranks meet; not NULL.
    pub gather: xtie_gather_function,
    /// NULL: the time alone ends the wait for a rank that is gone.
    pub look: xtie_look_function,
}

// SAFETY: numbers and pointers without padding (8 of 4 bytes, 3 of 8), each of which may be zero;
// a function of the caller's is what crosstie.h says. The snapshot has the offsets.
unsafe impl Sized32 for xtie_group_config {}

/// The user's two functions.
pub(super) struct Functions {
    pub context: *mut c_void,
    pub gather: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int,
    pub look: xtie_look_function,
}

impl Bootstrap for Functions {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: the caller's function takes so many bytes, and writes so many for each rank
        // (crosstie.h, xtie_gather_function).
        code(unsafe { (self.gather)(self.context, from, mine.len(), to) })
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        // SAFETY: the caller's function takes the caller's context.
        self.look.map_or(Ok(()), |look| code(unsafe { look(self.context) }))
    }
}

fn code(code: c_int) -> Result<(), BootstrapError> {
    if code == 0 { Ok(()) } else { Err(BootstrapError(code)) }
}

/// The time that a number of milliseconds stands for; `None`: the group's own.
pub(super) fn timeout(timeout_ms: u32) -> Option<Span> {
    match timeout_ms {
        0 => None,
        XTIE_NO_TIMEOUT => Some(Span(u64::MAX)),
        _ => Some(Span::millis(timeout_ms.into())),
    }
}

/// The options of a configuration, and the configuration.
///
/// # Safety
/// - `config` is null, or valid for reads of the bytes that its first word says.
pub(super) unsafe fn options(
    config: *const xtie_group_config,
) -> Result<(GroupOptions, xtie_group_config), xtie_result> {
    // SAFETY: by this function's contract.
    let config = unsafe { read(config)? };
    let limits = Limits {
        ranks: config.ranks,
        windows_max: config.windows_max,
        signals_max: config.signals_max,
        counters_max: config.counters_max,
        barriers_max: config.barriers_max,
    };
    let ranges = [
        ("ranks", limits.ranks, 1, RANKS_MAX),
        ("windows_max", limits.windows_max, 1, WINDOWS_MAX),
        ("signals_max", limits.signals_max, 0, IDS_MAX),
        ("counters_max", limits.counters_max, 0, IDS_MAX),
        ("barriers_max", limits.barriers_max, 0, IDS_MAX),
    ];
    for (name, value, least, most) in ranges {
        if value < least || value > most {
            let why = format_args!(
                "xtie_group_config: {name} is {value}: it must be from {least} to {most}"
            );
            return Err(refused(XTIE_ERR_GROUP_LIMITS, why));
        }
    }
    if config.rank >= config.ranks {
        let why = format_args!(
            "xtie_group_config: rank is {}: it must be below ranks, {}",
            config.rank, config.ranks
        );
        return Err(refused(XTIE_ERR_RANK, why));
    }
    let timeout = timeout(config.timeout_ms).unwrap_or(TIMEOUT);
    Ok((GroupOptions { limits, rank: config.rank, timeout }, config))
}

/// Bytes of storage for limits: the sum that stands as a macro in the header.
pub(super) fn storage_bytes(limits: &Limits) -> usize {
    let (ranks, windows) = (limits.ranks as usize, limits.windows_max as usize);
    let each_rank = (limits.signals_max + limits.barriers_max) as usize;
    let own = (limits.counters_max + limits.barriers_max) as usize;
    let bytes = XTIE_BYTES_GROUP as usize
        + ranks * XTIE_BYTES_GROUP_RANK as usize
        + windows * XTIE_BYTES_GROUP_WINDOW as usize
        + windows * ranks * XTIE_BYTES_GROUP_SHARE as usize
        + windows * (ranks * each_rank + own) * XTIE_BYTES_GROUP_WORD as usize;
    bytes.next_multiple_of(XTIE_STORAGE_ALIGN as usize)
}

/// For tests: what a group and its room really take.
#[doc(hidden)]
pub fn exact_group_bytes_for_tests(options: &GroupOptions) -> usize {
    room_bytes(options.limits.windows_max) + options.bytes()
}
