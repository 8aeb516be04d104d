//! The `CROSSTIE_` variables: one table, read at open.
#![forbid(unsafe_code)]

extern crate std;

use super::log::{Level, say};
use super::options::Options;
use crate::base::units::{Bytes, Span};
use std::format;
use std::path::PathBuf;
use std::string::{String, ToString};

/// One variable.
#[derive(Copy, Clone, Debug)]
pub struct Setting {
    /// Its name in the environment.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What its number counts.
    pub unit: &'static str,
    /// What it does.
    pub effect: &'static str,
}

/// All variables.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "CROSSTIE_EAGER_BYTES",
        default: "8192",
        unit: "bytes",
        effect: "longest message that is copied through the ring instead of read in place",
    },
    Setting {
        name: "CROSSTIE_SEND_RING_BYTES",
        default: "65536",
        unit: "bytes, a power of two",
        effect: "shared memory for messages, per connection and direction",
    },
    Setting {
        name: "CROSSTIE_WRITE_RING_BYTES",
        default: "32768",
        unit: "bytes, a power of two",
        effect: "shared memory for control and two-copy transfers, per connection and direction",
    },
    Setting {
        name: "CROSSTIE_HEAP_BYTES",
        default: "68719476736",
        unit: "bytes",
        effect: "address space for xtie_memory_alloc; 0 for none",
    },
    Setting {
        name: "CROSSTIE_KERNEL_COPY",
        default: "1",
        unit: "0 or 1",
        effect: "read a peer's ordinary memory through the kernel where that is allowed",
    },
    Setting {
        name: "CROSSTIE_CONNECT_TIMEOUT_MS",
        default: "10000",
        unit: "milliseconds",
        effect: "how long a peer may take to answer a connect",
    },
    Setting {
        name: "CROSSTIE_SHM_DIR",
        default: "/dev/shm",
        unit: "path",
        effect: "where side-band sockets lie that containers may share",
    },
    Setting {
        name: "CROSSTIE_LOG",
        default: "warning",
        unit: "error, warning or info",
        effect: "what is written to standard error when no log callback is set",
    },
    Setting {
        name: "CROSSTIE_RANK",
        default: "the launcher's",
        unit: "number",
        effect: "of `crosstie perf` and the examples: which of the processes this one is",
    },
    Setting {
        name: "CROSSTIE_SIZE",
        default: "the launcher's",
        unit: "processes",
        effect: "of `crosstie perf` and the examples: how many processes there are",
    },
    Setting {
        name: "CROSSTIE_LOCAL_RANK",
        default: "the launcher's",
        unit: "number",
        effect: "of `crosstie perf` and the examples: which of the processes of its host",
    },
    Setting {
        name: "CROSSTIE_RENDEZVOUS",
        default: "the launcher's",
        unit: "host:port",
        effect: "of `crosstie perf` and the examples: where rank 0 waits for the others",
    },
];

/// What the environment says beside the options.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Read peers' memory through the kernel where allowed.
    pub kernel_copy: bool,
    /// Where path sockets lie.
    pub shm_dir: PathBuf,
}

/// Lets the environment change `options`, and says what it does not understand.
pub fn apply(options: &mut Options) -> Environment {
    unknown_report();
    let mut environment = Environment { kernel_copy: true, shm_dir: PathBuf::from("/dev/shm") };
    if let Some(bytes) = number("CROSSTIE_EAGER_BYTES") {
        options.eager_bytes_max = Bytes(bytes);
    }
    if let Some(bytes) = number("CROSSTIE_SEND_RING_BYTES") {
        options.send_ring_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(bytes) = number("CROSSTIE_WRITE_RING_BYTES") {
        options.write_ring_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(bytes) = number("CROSSTIE_HEAP_BYTES") {
        options.heap_bytes = Bytes(bytes);
    }
    if let Some(allowed) = number("CROSSTIE_KERNEL_COPY") {
        environment.kernel_copy = allowed != 0;
    }
    if let Some(timeout_ms) = number("CROSSTIE_CONNECT_TIMEOUT_MS") {
        options.handshake_deadline = Span::millis(timeout_ms);
    }
    if let Some(dir) = std::env::var_os("CROSSTIE_SHM_DIR") {
        environment.shm_dir = PathBuf::from(dir);
    }
    environment
}

/// What `CROSSTIE_LOG` lets through.
pub fn log_level() -> Level {
    match std::env::var("CROSSTIE_LOG").as_deref() {
        Ok("error") => Level::Error,
        Ok("info") => Level::Info,
        _ => Level::Warning,
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    match text.trim().parse() {
        Ok(value) => Some(value),
        Err(_) => {
            say(Level::Warning, &format!("{name}={text} is not a number and is ignored"));
            None
        }
    }
}

fn unknown_report() {
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if let Some(sentence) = unknown_sentence(name) {
            say(Level::Warning, &sentence);
        }
    }
}

/// What to say of a variable that looks like ours and is not.
pub fn unknown_sentence(name: &str) -> Option<String> {
    if !name.starts_with("CROSSTIE_") || SETTINGS.iter().any(|setting| setting.name == name) {
        return None;
    }
    let nearest = SETTINGS.iter().min_by_key(|setting| distance(setting.name, name))?;
    Some(format!("{name} is not a variable of crosstie; the nearest is {}", nearest.name))
}

/// Edits between two words (Levenshtein).
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: std::vec::Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_string().bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variable_is_reported_with_the_nearest_name() {
        let sentence = unknown_sentence("CROSSTIE_EGER_BYTE").unwrap();
        assert!(sentence.contains("CROSSTIE_EAGER_BYTES"), "{sentence}");
        assert_eq!(unknown_sentence("CROSSTIE_HEAP_BYTES"), None);
        assert_eq!(unknown_sentence("PATH"), None);
    }
}
