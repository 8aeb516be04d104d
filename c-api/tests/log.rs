//! What the log callback is told of a stalled request is what standard error would be told.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::Instant;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn hear(_: *mut c_void, _: u32, text: *const c_char) {
    // SAFETY: the library's text ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    SAID.lock().unwrap().push(text.to_str().unwrap().to_string());
}

#[test]
fn log_callback_hears_a_stalled_request_to_the_end_of_the_peers_account() {
    // SAFETY: the only test of this program, and nothing has read the environment.
    unsafe { std::env::set_var("CROSSTIE_STALL_MS", "50") };
    // SAFETY: the function follows no pointer but the text.
    expect(unsafe { xtie_log_set(null_mut(), Some(hear)) }, XTIE_OK);
    let it = Opened::new(&config(LOOPBACK));
    let (here, there) = it.join(&it);
    let mut bytes = [0u8; 8192];
    let memory = it.register(&mut bytes);
    let mut wrong = room(&mut bytes[4096..], memory);
    wrong.tag = i32::MIN;
    expect(it.receive(there, &[wrong]).0, XTIE_OK);
    expect(it.send(here, &bytes[..8], memory).0, XTIE_OK);
    let start = Instant::now();
    let text = loop {
        it.progress();
        let said = SAID.lock().unwrap();
        if let Some(text) = said.iter().find(|text| text.starts_with("stalled: receive")) {
            break text.clone();
        }
        drop(said);
        assert!(start.elapsed() < WATCHDOG);
    };
    // longer than the text of an error, which is what it was cut to
    assert!(text.len() > 320, "{text}");
    assert!(text.contains("; peer ") && text.ends_with("epoch 1]"), "{text}");
    // SAFETY: NULL stands for standard error.
    expect(unsafe { xtie_log_set(null_mut(), None) }, XTIE_OK);
}
