//! Warnings of several processes of one measurement, which have the same settings: what each of
//! them would say, the one that says it first says alone.
//!
//! The measuring process opens its endpoint, and then tells those that it starts what it has warned
//! of meanwhile. Errors, and what is going on, each process says by itself.
#![forbid(unsafe_code)]

use crate::arguments::hidden;
use clap::{Arg, ArgMatches};
use crosstie::base::hash::fnv1a;
use crosstie::host::log::{self, Level};
use std::sync::{Mutex, PoisonError};

/// What a process is told that is started: hashes of warnings that were said.
pub const WARNED: &str = "--warned";

/// The option of it.
pub fn warned_option() -> Arg {
    hidden("warned")
}

struct Warnings {
    elsewhere: Vec<u64>,
    here: Vec<u64>,
}

static WARNINGS: Mutex<Warnings> = Mutex::new(Warnings { elsewhere: Vec::new(), here: Vec::new() });

/// From now on warnings are remembered, and those that this process was told of are not said.
pub fn listen(given: &ArgMatches) {
    let told = given.get_one::<String>("warned").map_or("", |list| list);
    let hashes = told.split(',').filter_map(|hash| u64::from_str_radix(hash, 16).ok());
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).elsewhere.extend(hashes);
    log::sink_set(Some((hear, 0)));
}

/// What was warned of until now, for the processes that are started.
pub fn warned() -> String {
    let warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = warnings.elsewhere.iter().chain(&warnings.here);
    all.map(|hash| format!("{hash:x}")).collect::<Vec<_>>().join(",")
}

fn hear(_: usize, level: Level, text: &str) {
    if !log::is_told(level) {
        return;
    }
    if level == Level::Warning {
        let hash = fnv1a(text.as_bytes());
        let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.elsewhere.contains(&hash) {
            return;
        }
        warnings.here.push(hash);
    }
    log::line_write(text);
}
