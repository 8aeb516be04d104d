//! Flushes of what NICs have written to memory of GPUs, over all ports that have the memory.

use crate::base::ids::RailGeneration;
use crate::base::slab::Handle;
use crate::base::units::{Instant, Span};
use crate::fabric::{OpErrorKind, OpId, RailKey};
use crate::host::machine::Machine;
use crate::provider::rail_set::RailSet;
use crate::transport::DataMrs;
use crate::transport::flush::{Flush, FlushEnd};
use crate::wire::RAILS_MAX;
use std::vec::Vec;

/// Ports that a connection has at most, each with a rail behind that of the host.
const PORTS_MAX: usize = RAILS_MAX - 1;
/// How long a flush may take. A read of a port's takes 2 s, and others may be before it.
const PATIENCE: Span = Span::millis(4000);
/// Room that is there from the beginning.
const ROOM: usize = 64;

/// A flush that was begun.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct FlushId(u64);

impl FlushId {
    /// As a number, from 1 on, and back.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The flush of a number of [`FlushId::number`].
    pub const fn of(number: u64) -> FlushId {
        FlushId(number)
    }
}

/// A flush that stands, or whose end was not asked for.
struct Entry {
    id: FlushId,
    flush: Flush,
    /// What each port reads.
    sources: [(RailKey, u64); PORTS_MAX],
    since: Instant,
    is_forgotten: bool,
}

/// The flushes of an endpoint.
pub(in crate::host) struct Flushes {
    entries: Vec<Entry>,
    last: u64,
}

impl Flushes {
    pub(in crate::host) fn new() -> Flushes {
        Flushes { entries: Vec::new(), last: 0 }
    }

    #[inline(always)]
    pub(in crate::host) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The flushes of an endpoint, with what they need.
pub struct GpuFlushes<'e> {
    pub(in crate::host) flushes: &'e mut Flushes,
    pub(in crate::host) machine: &'e mut Machine,
    pub(in crate::host) regions: &'e DataMrs<'static>,
    pub(in crate::host) now: Instant,
}

impl GpuFlushes<'_> {
    /// Begins a flush: when it has ended, what ports have written before to these regions, of
    /// which an address each is given, is visible to their GPUs. `None`: no port has such memory,
    /// and nothing is to be waited for.
    pub fn begin(&mut self, memory: impl Iterator<Item = (Handle, u64)>) -> Option<FlushId> {
        let (mut rails, mut sources) = (0, [(RailKey(0), 0); PORTS_MAX]);
        for (region, address) in memory {
            let Some(keys) = self.regions.keys_on_gpu(region, address) else { continue };
            for (port, key) in keys[1..].iter().enumerate().filter(|(_, key)| key.0 != 0) {
                (rails, sources[port]) = (rails | 1 << port, (*key, address));
            }
        }
        if rails == 0 {
            return None;
        }
        if self.flushes.last == 0 {
            self.flushes.entries.reserve(ROOM);
        }
        self.flushes.last += 1;
        let id = FlushId(self.flushes.last);
        let flush = Flush::begin(rails, generations(self.machine));
        let entry = Entry { id, flush, sources, since: self.now, is_forgotten: false };
        self.flushes.entries.push(entry);
        self.step();
        Some(id)
    }

    /// How a flush has ended, which is told once; `None`: it stands. Of one that nobody knows
    /// nothing is known.
    pub fn test(&mut self, id: FlushId) -> Option<FlushEnd> {
        self.step();
        let found = self.flushes.entries.iter().position(|entry| entry.id == id);
        let Some(at) = found else { return Some(FlushEnd::Unfenced) };
        let end = self.flushes.entries[at].flush.end()?;
        self.flushes.entries.swap_remove(at);
        Some(end)
    }

    /// Nobody asks for the end of a flush any more.
    pub fn forget(&mut self, id: FlushId) {
        let found = self.flushes.entries.iter_mut().find(|entry| entry.id == id);
        if let Some(entry) = found {
            entry.is_forgotten = true;
        }
        self.step();
    }

    /// Takes what has ended, and posts what has found no room before.
    pub(in crate::host) fn step(&mut self) {
        let Machine::Host(endpoint) = &mut self.machine else { return };
        let (rails, now) = (endpoint.rail_mut(), self.now);
        for port in 0..PORTS_MAX {
            while let Some((id, result)) = rails.flush_end(port, now) {
                let whole = |entry: &&mut Entry| entry.id.0 == id.0;
                let Some(entry) = self.flushes.entries.iter_mut().find(whole) else { continue };
                entry.flush.completed(port as u8, result.is_ok());
                // its endpoint was closed, or its queue pairs are at rest: nothing of before is on
                // its way
                if result.is_err_and(|error| error.kind == OpErrorKind::Canceled) {
                    entry.flush.fenced(port as u8, RailGeneration(u32::MAX));
                }
            }
        }
        for entry in &mut self.flushes.entries {
            entry.step(rails, now);
        }
        self.flushes.entries.retain(|entry| !(entry.is_forgotten && entry.flush.end().is_some()));
    }
}

/// What fences of each port must reach that settle a flush which begins now. They fence the whole
/// port, whatever generation peers are in.
fn generations(machine: &Machine) -> [RailGeneration; RAILS_MAX] {
    let Machine::Host(endpoint) = machine else { return [RailGeneration(0); RAILS_MAX] };
    core::array::from_fn(|port| endpoint.rail().flush_fences(port).0)
}

impl Entry {
    fn step(&mut self, rails: &mut RailSet<'static>, now: Instant) {
        let (id, sources) = (OpId(self.id.0), self.sources);
        self.flush.step(|port| rails.flush_begin(port.into(), id, sources[usize::from(port)], now));
        let mut left = self.flush.unsettled();
        while left != 0 {
            let port = left.trailing_zeros() as u8;
            left &= left - 1;
            self.flush.fenced(port, rails.flush_fences(port.into()).1);
        }
        if now.since(self.since) >= PATIENCE {
            self.flush.give_up();
        }
    }
}
