//! Endpoints in a network of a test's own, with a rail of libfabric behind rail 0, which is TCP.
//! That rail is over the strict fabric, which is no part of the network, and stays when it goes.
#![allow(dead_code)]

use crate::common_network::own_network;
use crate::host_support::pair::{Pair, alone};
use crate::host_support::{Node, small};
use crate::libfabric_support::{Layout, strict, strict_environment};
use crosstie::host::{DeviceKind, Options};
use std::io::Write;

/// How long a peer may be silent.
const SILENT_MS: u32 = 1000;

/// What each of them is opened with.
pub fn options() -> Options {
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = 2;
    options
}

/// Two of them, with one connection.
pub fn pair(provider: &str) -> Option<Pair> {
    let alone = alone();
    let library = strict(Layout::One)?;
    if let Err(error) = own_network() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no network of our own: {error}");
        return None;
    }
    for (name, value) in strict_environment(library, provider) {
        crate::host_support::set(name, value);
    }
    crate::host_support::set("CROSSTIE_PEER_TIMEOUT_MS", SILENT_MS.to_string());
    let (a, b) = (Node::open(&options()), Node::open(&options()));
    Some(Pair::of(alone, a, b, 2))
}

/// In a thread of its own, which has its own network.
pub fn apart(story: impl FnOnce() + Send + 'static) {
    std::thread::spawn(story).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
