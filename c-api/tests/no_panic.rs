//! A panic of the library does not cross into C: the endpoint is poisoned, says so, and stays so.

mod common;

use common::*;
use crosstie_c::guard::panic_for_tests;
use crosstie_c::*;
use std::ptr::null_mut;

#[test]
fn panic_poisons_the_endpoint_and_no_other() {
    let poisoned = Opened::new(&config(LOOPBACK));
    let other = Opened::new(&config(LOOPBACK));
    let pair = poisoned.join(&poisoned);
    expect(panic_for_tests(poisoned.endpoint), XTIE_ERR_POISONED);
    // SAFETY: one thread.
    let result = unsafe { xtie_endpoint_progress(poisoned.endpoint, null_mut()) };
    expect(result, XTIE_ERR_POISONED);
    expect(poisoned.send(pair.0, &[], null_mut()).0, XTIE_ERR_POISONED);
    // SAFETY: as above.
    expect(unsafe { xtie_endpoint_close(poisoned.endpoint) }, XTIE_ERR_POISONED);
    let text = poisoned.error();
    assert!(text.contains("bug") && text.contains("asked for by a test"), "{text}");
    // the storage of a poisoned endpoint stays for ever: its threads go on
    let mut second = null_mut();
    // SAFETY: refused before the storage is touched.
    let opened = unsafe {
        xtie_endpoint_open(poisoned.endpoint.cast(), usize::MAX, &config(LOOPBACK), &mut second)
    };
    expect(opened, XTIE_ERR_STORAGE_IN_USE);
    std::mem::forget(poisoned);
    other.works(other.join(&other));
    other.close();
}
