//! Another Rust library in the process: threads, thread-locals with destructors, and panics of its
//! own. Built by the test with `rustc`, with unwinding or aborting panics.

use std::cell::RefCell;
use std::sync::Mutex;

struct Counted(u32);

static ENDED: Mutex<u32> = Mutex::new(0);

impl Drop for Counted {
    fn drop(&mut self) {
        *ENDED.lock().unwrap() += self.0;
    }
}

thread_local!(static OWN: RefCell<Vec<Counted>> = const { RefCell::new(Vec::new()) });

/// 0: all was as it must be.
#[unsafe(no_mangle)]
pub extern "C" fn neighbour() -> i32 {
    let before = *ENDED.lock().unwrap();
    let thread = std::thread::spawn(|| OWN.with(|own| own.borrow_mut().push(Counted(1))));
    if thread.join().is_err() || *ENDED.lock().unwrap() != before + 1 {
        return 1;
    }
    // where panics abort there is nothing to catch
    if cfg!(panic = "unwind") {
        std::panic::set_hook(Box::new(|_| ()));
        let caught = std::panic::catch_unwind(|| panic!("a neighbour's"));
        let text = caught.expect_err("it panics").downcast_ref::<&str>().map(|text| text.len());
        if text != Some("a neighbour's".len()) {
            return 2;
        }
    }
    0
}
