//! The driver's functions, one file for each subject.

mod copies;
mod devices;
mod events;
mod graphs;
mod host;
mod ipc;
mod mappings;
mod memory;
mod pointers;
mod streams;

use crate::context::contexts;
use crate::ranges::{Kind, ranges};
use crate::{stream, vmm};

fn ranges_of(wanted: fn(Kind) -> bool) -> u64 {
    ranges().iter().filter(|range| wanted(range.kind)).count() as u64
}

/// How many of something live; `None`: there is no such thing.
pub fn live(what: &str) -> Option<u64> {
    Some(match what {
        "allocations" => ranges_of(|k| matches!(k, Kind::Alloc | Kind::Pool | Kind::Managed)),
        "host_allocations" => ranges_of(|kind| kind == Kind::Host),
        "handles" => vmm::references(),
        "mappings" => ranges_of(|kind| kind == Kind::Mapping),
        "reservations" => ranges().reserved.len() as u64,
        "imports" => ranges_of(|kind| matches!(kind, Kind::Import(_))),
        "registrations" => ranges_of(|kind| kind == Kind::Registered),
        "streams" => stream::handles().len() as u64,
        "events" => events::count(),
        "graphs" => graphs::count(),
        "contexts" => contexts().references(),
        _ => return None,
    })
}
