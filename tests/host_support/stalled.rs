//! What the library says of stalled requests, as it is told to the log callback.

use super::roles::Process;
use crosstie::host::log;
use std::sync::{Mutex, Once};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Listens from now on, with these settings. Every test of a program begins with it, and with the
/// same settings.
pub fn listen(settings: &[(&str, &str)]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, value) in settings {
            super::set(name, value);
        }
        log::sink_set(Some((|_, _, text| SAID.lock().unwrap().push(text.into()), 0)));
    });
}

/// All that was said so far.
pub fn said() -> Vec<String> {
    SAID.lock().unwrap().clone()
}

/// The sentences about a process so far.
pub fn said_of(process: &Process) -> Vec<String> {
    let pid = format!("(pid {})", process.id());
    let of_process = |text: &String| text.contains(&pid) && text.starts_with("stalled");
    said().into_iter().filter(of_process).collect()
}
