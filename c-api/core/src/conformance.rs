//! The conformance suite for a provider in C, and what is wrong with a table.

use core::ffi::{c_char, c_int, c_void};
use crosstie::provider::vendor::abi::*;
use crosstie::provider::vendor::sized::{self, Sized32, SizedError};
use crosstie::provider::vendor::{OpenError, PeerError, Table, TableError};
use crosstie_kit::conformance::{ARENA_BYTES, ENTRY_COUNT};
use crosstie_kit::vendor::{self, JoinError, Setup, Verdict};

use crate::result::xtie_core_result;
use crate::result::xtie_core_result::*;

/// Storage that xtie_conformance_run asks for, in bytes.
pub const XTIE_CONFORMANCE_BYTES: u32 = 1048576;
/// Entries of the suite.
pub const XTIE_CONFORMANCE_ENTRIES: u32 = 45;
/// Room for an entry's name with its zero, in bytes.
pub const XTIE_CONFORMANCE_NAME_BYTES: u32 = 64;
/// Flag of xtie_conformance_setup: bytes move although nobody polls.
pub const XTIE_CONFORMANCE_THREADS: u32 = 0x1;

const _: () = assert!(XTIE_CONFORMANCE_BYTES as usize == 2 * ARENA_BYTES);
const _: () = assert!(XTIE_CONFORMANCE_ENTRIES as usize == ENTRY_COUNT);

/// What the suite runs on. Zeroed but for struct_size, storage and contexts it is complete.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_conformance_setup {
    /// sizeof(xtie_conformance_setup).
    pub struct_size: u32,
    /// XTIE_CONFORMANCE_THREADS, or zero.
    pub flags: u32,
    /// What open gets for the one end.
    pub context_a: *mut c_void,
    /// What it gets for the other. Both may be the same: each end is an object of its own.
    pub context_b: *mut c_void,
    /// Memory that is registered and sent from: XTIE_CONFORMANCE_BYTES, aligned to 64 bytes.
    pub storage: *mut c_void,
    /// Its length in bytes.
    pub storage_bytes: usize,
    /// What the functions below get.
    pub userdata: *mut c_void,
    /// Called before each round of polls, where the rail depends on the world outside: 64 calls are
    /// longer than any delay of the rail. May be NULL.
    pub advance: Option<unsafe extern "C" fn(userdata: *mut c_void)>,
    /// The time in nanoseconds. NULL: the suite counts 10 ms per round, and also tries whether the
    /// same calls have the same answers.
    pub now_ns: Option<unsafe extern "C" fn(userdata: *mut c_void) -> u64>,
    /// How often the calling thread has allocated so far. NULL: nobody counts.
    pub allocations: Option<unsafe extern "C" fn(userdata: *mut c_void) -> u64>,
}

// SAFETY: integers, pointers and functions that may be null; the size comes first.
unsafe impl Sized32 for xtie_conformance_setup {
    const FIRST_BYTES: usize = 72;
}

const _: () = assert!(size_of::<xtie_conformance_setup>() == 72);

/// What a run found.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_conformance_result {
    /// The answer of xtie_conformance_run.
    pub result: i32,
    /// Number of the entry in which it ended; XTIE_CONFORMANCE_ENTRIES when all were run.
    pub entry: u32,
    /// The promise that was broken: 1 for P1; 0 when it is none of them.
    pub promise: u32,
    /// The code that the provider's open, peer_blob or peer_open refused with; else 0.
    pub code: i32,
    /// A bit for each entry that passed.
    pub passed: u64,
    /// A bit for each entry that was skipped, because the caps do not promise what it is about.
    pub skipped: u64,
    /// The entry's name, with a zero; empty when none was run or all were.
    pub entry_name: [c_char; 64],
    /// What was seen, with a zero; empty when nothing was wrong. Of a table the entry that is NULL.
    pub why: [c_char; 128],
}

const NOTHING: xtie_conformance_result = xtie_conformance_result {
    result: 0,
    entry: 0,
    promise: 0,
    code: 0,
    passed: 0,
    skipped: 0,
    entry_name: [0; 64],
    why: [0; 128],
};

/// Puts text and a zero into room that has at least one byte; what does not fit is cut.
fn put(room: &mut [c_char], text: &str) {
    let fits = text.len().min(room.len() - 1);
    for (place, byte) in room.iter_mut().zip(&text.as_bytes()[..fits]) {
        *place = *byte as c_char;
    }
    room[fits] = 0;
}

fn sized_result(error: SizedError) -> xtie_core_result {
    TableError::from(error).into()
}

/// The setup in our terms, or what is wrong with it.
fn told(table: Table, setup: &xtie_conformance_setup) -> Result<Setup, xtie_core_result> {
    if setup.flags & !XTIE_CONFORMANCE_THREADS != 0 {
        return Err(XTIE_CORE_ERR_FLAGS);
    }
    if setup.storage.is_null() {
        return Err(XTIE_CORE_ERR_NULL);
    }
    if !setup.storage.addr().is_multiple_of(64) {
        return Err(XTIE_CORE_ERR_STORAGE_ALIGN);
    }
    if setup.storage_bytes < XTIE_CONFORMANCE_BYTES as usize {
        return Err(XTIE_CORE_ERR_STORAGE_SIZE);
    }
    let first: *mut u8 = setup.storage.cast();
    first.expose_provenance(); // the rail reaches it by address
    // SAFETY: the storage is as long as both arenas (above).
    let second = unsafe { first.add(ARENA_BYTES) };
    Ok(Setup {
        table,
        contexts: [setup.context_a, setup.context_b],
        arenas: [first, second],
        threads: setup.flags & XTIE_CONFORMANCE_THREADS != 0,
        advance: setup.advance,
        now: setup.now_ns,
        allocations: setup.allocations,
        user: setup.userdata,
    })
}

/// Runs the house's conformance suite over a provider: opens two of its objects, joins them, tries
/// what they promise, and ends them, for each entry anew. Ends at the first entry that finds
/// something wrong.
///
/// ops: the provider. setup: what it runs on; read during the call. result_out: what was found, as
/// a value; always written when it is not NULL.
/// Returns XTIE_CORE_OK when every entry passed or was skipped. XTIE_CORE_ERR_PROMISE: an entry
/// found a promise broken, and result_out names both. XTIE_CORE_ERR_BREACH: the provider gave an
/// answer or an event that is none. XTIE_CORE_ERR_OPEN, _PEER, _BLOB, _CAPS_: no two objects could
/// be had. Else a code for a pointer, structure, table or storage that is wrong; nothing was called
/// then.
/// Threads: any one. Cost: some thousand calls of the provider; 320 KiB of stack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_conformance_run(
    ops: *const xtie_provider_ops,
    setup: *const xtie_conformance_setup,
    result_out: *mut xtie_conformance_result,
) -> c_int {
    let mut out = NOTHING;
    // SAFETY: by this function's contract.
    let result = unsafe { run(ops, setup, &mut out) };
    out.result = result as i32;
    if !result_out.is_null() {
        // SAFETY: by this function's contract.
        unsafe { result_out.write(out) };
    }
    result as c_int
}

/// # Safety
/// - as [`xtie_conformance_run`].
unsafe fn run(
    ops: *const xtie_provider_ops,
    setup: *const xtie_conformance_setup,
    out: &mut xtie_conformance_result,
) -> xtie_core_result {
    // SAFETY: by this function's contract.
    let table = match unsafe { Table::check(ops) } {
        Ok(table) => table,
        Err(error) => {
            if let TableError::Entry(name) = error {
                put(&mut out.why, name);
            }
            return error.into();
        }
    };
    // SAFETY: by this function's contract.
    let setup = match unsafe { sized::read(setup) }.map_err(sized_result) {
        Ok(setup) => told(table, &setup),
        Err(error) => Err(error),
    };
    let setup = match setup {
        Ok(setup) => setup,
        Err(result) => return result,
    };
    // SAFETY: the table is checked, the storage long enough, and both the caller's word.
    let report = unsafe { vendor::run(&setup) };
    out.passed = report.passed;
    out.skipped = report.skipped;
    verdict(&report.verdict, out)
}

fn verdict(verdict: &Verdict, out: &mut xtie_conformance_result) -> xtie_core_result {
    let at = match verdict {
        Verdict::Passed => {
            out.entry = XTIE_CONFORMANCE_ENTRIES;
            return XTIE_CORE_OK;
        }
        Verdict::Failed(at, _) | Verdict::Breach(at, _) | Verdict::NoPair(at, _) => *at,
    };
    out.entry = at as u32;
    if let Some((_, name)) = vendor::entry(at) {
        put(&mut out.entry_name, name);
    }
    match verdict {
        Verdict::Passed => XTIE_CORE_OK,
        Verdict::Failed(_, failure) => {
            out.promise = failure.promise.into();
            put(&mut out.why, failure.why);
            XTIE_CORE_ERR_PROMISE
        }
        Verdict::Breach(_, breach) | Verdict::NoPair(_, JoinError::Breach(breach)) => {
            put(&mut out.why, breach.entry);
            let length = breach.entry.len();
            put(&mut out.why[length..], ": ");
            put(&mut out.why[length + 2..], breach.why);
            XTIE_CORE_ERR_BREACH
        }
        Verdict::NoPair(_, JoinError::Open(error)) => {
            match error {
                OpenError::Refused(code) => {
                    out.code = *code;
                    put(&mut out.why, "open refused");
                }
                OpenError::Caps(caps) => put(&mut out.why, caps.words()),
            }
            (*error).into()
        }
        Verdict::NoPair(_, JoinError::Peer(error)) => {
            let why = match error {
                PeerError::Again => "peer_open never stopped saying XTIE_PROVIDER_AGAIN",
                PeerError::Blob => "peer_open does not know the other end's blob",
                PeerError::Refused(code) => {
                    out.code = *code;
                    "peer_blob or peer_open refused"
                }
            };
            put(&mut out.why, why);
            match (*error).into() {
                XTIE_CORE_AGAIN => XTIE_CORE_ERR_PEER, // it was waited for long enough
                result => result,
            }
        }
    }
}

/// Name and promise of an entry of the suite.
///
/// entry: below XTIE_CONFORMANCE_ENTRIES. name_out: room for XTIE_CONFORMANCE_NAME_BYTES; gets the
/// name with a zero. promise_out: its number, 1 for P1; may be NULL.
/// Returns XTIE_CORE_OK, XTIE_CORE_ERR_NULL, or XTIE_CORE_ERR_RANGE: there is no such entry.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_conformance_entry(
    entry: u32,
    name_out: *mut c_char,
    promise_out: *mut u32,
) -> c_int {
    if name_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    let Some((promise, name)) = vendor::entry(entry as usize) else {
        return XTIE_CORE_ERR_RANGE as c_int;
    };
    let mut text = [0; XTIE_CONFORMANCE_NAME_BYTES as usize];
    put(&mut text, name);
    // SAFETY: room for as many bytes, by this function's contract.
    unsafe { name_out.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    if !promise_out.is_null() {
        // SAFETY: by this function's contract.
        unsafe { promise_out.write(promise.into()) };
    }
    XTIE_CORE_OK as c_int
}

/// Checks a provider's table without calling it.
///
/// ops: the table. name_out: room for XTIE_CONFORMANCE_NAME_BYTES, or NULL; gets the name of the
/// entry that is NULL, with a zero, or an empty text.
/// Returns XTIE_CORE_OK, XTIE_CORE_ERR_NULL (there is no table), _STRUCT_SIZE, _STRUCT (entries
/// that are unknown here), _RESERVED, or XTIE_CORE_ERR_ENTRY.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_provider_ops_check(
    ops: *const xtie_provider_ops,
    name_out: *mut c_char,
) -> c_int {
    // SAFETY: by this function's contract; the entries are not called.
    let checked = unsafe { Table::check(ops) };
    let mut text = [0; XTIE_CONFORMANCE_NAME_BYTES as usize];
    if let Err(TableError::Entry(name)) = checked {
        put(&mut text, name);
    }
    if !name_out.is_null() {
        // SAFETY: room for as many bytes, by this function's contract.
        unsafe { name_out.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
    checked.map_or_else(xtie_core_result::from, |_| XTIE_CORE_OK) as c_int
}
