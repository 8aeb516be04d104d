//! What the environment says, read once.
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `CUDA_DOUBLE_DEVICES` | GPUs of the host; 2 |
//! | `CUDA_DOUBLE_DELAY_NS` | mean time of a copy, in ns; 0: as fast as it goes |
//! | `CUDA_DOUBLE_SEED` | seed of delays and orders; 1 |
//! | `CUDA_DOUBLE_MEMORY` | bytes of each GPU; 16 GiB |
//! | `CUDA_DOUBLE_GAP` | bytes between two allocations, in steps of 2 MiB; 2 MiB |
//! | `CUDA_DOUBLE_QUEUE` | operations that a stream holds before a call waits; 1024 |
//! | `CUDA_DOUBLE_DENY` | pairs of GPUs without access to each other: `0-1,2-3` |
//! | `CUDA_DOUBLE_FAIL` | calls that fail: `cuMemCreate:1:2,...` is name, which of the next, code |
//! | `CUDA_VISIBLE_DEVICES` | as for the driver: ordinals, in their order |

use crate::space::GRANULARITY;
use std::sync::OnceLock;

/// Most GPUs of a host.
pub const DEVICES_MAX: usize = 16;

/// The settings.
pub struct Settings {
    /// GPUs that this process sees, by their number in the host.
    pub visible: Vec<usize>,
    pub delay_ns: u64,
    pub seed: u64,
    pub memory_bytes: usize,
    /// Free addresses behind each allocation.
    pub gap_bytes: u64,
    /// Operations that wait in a stream at most.
    pub queue_max: usize,
    /// Pairs that have no access to each other.
    pub denied: Vec<(usize, usize)>,
    /// Name, which of the next calls, code.
    pub failures: Vec<(String, u64, u32)>,
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
        Err(_) => default,
    }
}

fn list(name: &str) -> Vec<String> {
    let text = std::env::var(name).unwrap_or_default();
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(String::from).collect()
}

/// As the driver does, the list ends where an entry is no GPU.
fn visible(devices: usize) -> Vec<usize> {
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_none() {
        return (0..devices).collect();
    }
    let entries = list("CUDA_VISIBLE_DEVICES");
    let ordinals = entries.iter().map_while(|entry| entry.parse::<usize>().ok());
    ordinals.take_while(|device| *device < devices).collect()
}

impl Settings {
    fn read() -> Settings {
        let devices = (number("CUDA_DOUBLE_DEVICES", 2) as usize).min(DEVICES_MAX);
        let pair = |text: String| {
            let (a, b) = text.split_once('-').expect("CUDA_DOUBLE_DENY: a-b");
            (a.parse().expect("a number"), b.parse().expect("a number"))
        };
        let failure = |text: String| {
            let parts: Vec<&str> = text.split(':').collect();
            let [name, nth, code] = parts[..] else { panic!("CUDA_DOUBLE_FAIL: name:nth:code") };
            (name.into(), nth.parse().expect("a number"), code.parse().expect("a number"))
        };
        Settings {
            visible: visible(devices),
            delay_ns: number("CUDA_DOUBLE_DELAY_NS", 0),
            seed: number("CUDA_DOUBLE_SEED", 1),
            memory_bytes: number("CUDA_DOUBLE_MEMORY", 16 << 30) as usize,
            gap_bytes: number("CUDA_DOUBLE_GAP", GRANULARITY as u64),
            queue_max: number("CUDA_DOUBLE_QUEUE", 1024) as usize,
            denied: list("CUDA_DOUBLE_DENY").into_iter().map(pair).collect(),
            failures: list("CUDA_DOUBLE_FAIL").into_iter().map(failure).collect(),
        }
    }
}

/// The settings of this process.
pub fn settings() -> &'static Settings {
    static READ: OnceLock<Settings> = OnceLock::new();
    READ.get_or_init(Settings::read)
}
