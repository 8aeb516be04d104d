//! A group that has nothing to do says nothing of stalls: its receives of frames always stand.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::Instant;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn hear(_: *mut c_void, _: u32, text: *const c_char) {
    // SAFETY: the library's text ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    SAID.lock().unwrap().push(text.to_str().unwrap().to_string());
}

/// Of a group of one rank.
unsafe extern "C" fn gather(
    _: *mut c_void,
    mine: *const c_void,
    bytes: usize,
    all: *mut c_void,
) -> c_int {
    // SAFETY: as many bytes at both, by the function's contract.
    unsafe { all.cast::<u8>().copy_from_nonoverlapping(mine.cast(), bytes) };
    0
}

#[test]
fn receives_of_an_idle_group_are_no_stall() {
    // SAFETY: the only test of this program, and nothing has read the environment.
    unsafe { std::env::set_var("CROSSTIE_STALL_MS", "50") };
    // SAFETY: the function follows no pointer but the text.
    expect(unsafe { xtie_log_set(null_mut(), Some(hear)) }, XTIE_OK);
    let mut options = config(HOST);
    options.connections_max = 6;
    let it = Opened::new(&options);
    // SAFETY: numbers, and functions that may be null.
    let mut ranks: xtie_group_config = unsafe { std::mem::zeroed() };
    ranks.struct_size = size_of_val(&ranks) as u32;
    (ranks.ranks, ranks.windows_max) = (1, 1);
    ranks.gather = Some(gather);
    let mut bytes = 0;
    // SAFETY: both are ours.
    expect(unsafe { xtie_group_size(&ranks, &mut bytes) }, XTIE_OK);
    let (mut place, mut group) = (storage(bytes), null_mut());
    let start = place.as_mut_ptr().cast();
    // SAFETY: the storage outlives the group.
    expect(unsafe { xtie_group_open(it.endpoint, start, bytes, &ranks, &mut group) }, XTIE_OK);

    // a later receive that is one, so that the time has come for those of the group
    let (_, there) = it.join(&it);
    let mut buffer = [0u8; 64];
    let memory = it.register(&mut buffer);
    let mut never = room(&mut buffer, memory);
    never.tag = 77;
    expect(it.receive(there, &[never]).0, XTIE_OK);
    let start = Instant::now();
    loop {
        // SAFETY: one thread.
        expect(unsafe { xtie_group_progress(group) }, XTIE_OK);
        let said = SAID.lock().unwrap();
        let mut stalls = said.iter().filter(|text| text.starts_with("stalled"));
        if let Some(text) = stalls.find(|text| !text.contains("tag 77")) {
            panic!("{text}");
        }
        if said.iter().any(|text| text.contains("tag 77")) {
            break;
        }
        drop(said);
        assert!(start.elapsed() < WATCHDOG);
    }
    // SAFETY: one thread.
    expect(unsafe { xtie_group_close(group) }, XTIE_OK);
    it.close();
    // SAFETY: NULL stands for standard error.
    expect(unsafe { xtie_log_set(null_mut(), None) }, XTIE_OK);
}
