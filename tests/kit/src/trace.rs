//! Any provider, with a record of what went down into it and what came up.

use crosstie::base::carve::Zeroable;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Caps, CloseError, Completion, DownCause, LocalSpan, MemoryDomain, Op, OpErrorKind, OpId,
    OpKind, PeerLife, PostError, Posted, Provider, RecvSlot,
};

/// What kind of call or event a [`TraceEvent`] is about.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum TraceKind {
    /// Post of a send.
    Send,
    /// Post of a write.
    Write,
    /// Post of a write with immediate.
    WriteImmediate,
    /// Post of a read.
    Read,
    /// Post of an add.
    Add,
    /// Post of a fence.
    Fence,
    /// An op ended.
    Done,
    /// A message arrived.
    Received,
    /// An immediate arrived.
    Immediate,
    /// A fence holds.
    Fenced,
    /// A peer is gone.
    PeerDown,
}

/// How many kinds there are.
pub const TRACE_KINDS: usize = TraceKind::PeerDown as usize + 1;

/// How a call or an event ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum TraceResult {
    /// Well, or there was nothing to go wrong.
    Ok,
    /// Accepted; its completion is to come.
    Pending,
    /// Refused.
    Refused(PostError),
    /// Failed.
    Failed(OpErrorKind),
}

/// One call or event.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct TraceEvent {
    /// The time that was given to the call.
    pub at: Instant,
    /// Whose.
    pub peer: PeerIndex,
    /// The op's id; of an arrival the receive slot or the immediate.
    pub id: u64,
    /// What.
    pub kind: TraceKind,
    /// How.
    pub result: TraceResult,
}

// SAFETY: integers and enums with a stated representation, whose tag zero is `Send` and `Ok`.
unsafe impl Zeroable for TraceEvent {}

/// Where a record goes.
pub trait Sink {
    /// Takes one event. *Cost*: on the data path; must neither block nor allocate.
    fn record(&mut self, event: TraceEvent);
}

impl<S: Sink> Sink for &mut S {
    fn record(&mut self, event: TraceEvent) {
        (**self).record(event);
    }
}

/// The last events, and counts of all of them.
#[derive(Debug)]
pub struct TraceRing<'m> {
    cells: &'m mut [TraceEvent],
    recorded: u64,
    counts: [u64; TRACE_KINDS],
    troubles: u64,
}

impl<'m> TraceRing<'m> {
    /// An empty record over `cells`, at least one.
    pub fn new(cells: &'m mut [TraceEvent]) -> TraceRing<'m> {
        assert!(!cells.is_empty());
        TraceRing { cells, recorded: 0, counts: [0; TRACE_KINDS], troubles: 0 }
    }

    /// How many events of a kind there were.
    pub const fn count(&self, kind: TraceKind) -> u64 {
        self.counts[kind as usize]
    }

    /// How many calls were refused and ops failed.
    pub const fn troubles(&self) -> u64 {
        self.troubles
    }

    /// The events that are still held, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = TraceEvent> {
        let held = self.recorded.min(self.cells.len() as u64);
        let cell = |n: u64| self.cells[(n % self.cells.len() as u64) as usize];
        (self.recorded - held..self.recorded).map(cell)
    }
}

impl Sink for TraceRing<'_> {
    fn record(&mut self, event: TraceEvent) {
        let cell = (self.recorded % self.cells.len() as u64) as usize;
        self.cells[cell] = event;
        self.recorded += 1;
        self.counts[event.kind as usize] += 1;
        let trouble = matches!(event.result, TraceResult::Refused(_) | TraceResult::Failed(_));
        self.troubles += u64::from(trouble);
    }
}

/// The wrapper; it changes nothing.
#[derive(Debug)]
pub struct Trace<P, S> {
    inner: P,
    sink: S,
}

impl<P: Provider, S: Sink> Trace<P, S> {
    /// Wraps a provider.
    pub const fn new(inner: P, sink: S) -> Trace<P, S> {
        Trace { inner, sink }
    }

    /// Where the record went.
    pub const fn sink(&self) -> &S {
        &self.sink
    }

    /// The provider underneath.
    pub const fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }
}

const fn kind_of(kind: &OpKind) -> TraceKind {
    match kind {
        OpKind::Send { .. } => TraceKind::Send,
        OpKind::Write { immediate: None, .. } => TraceKind::Write,
        OpKind::Write { immediate: Some(_), .. } => TraceKind::WriteImmediate,
        OpKind::Read { .. } => TraceKind::Read,
        OpKind::Add { .. } => TraceKind::Add,
        OpKind::Fence { .. } => TraceKind::Fence,
    }
}

fn event_of(completion: &Completion, at: Instant) -> TraceEvent {
    let (peer, id, kind, result) = match *completion {
        Completion::Done { peer, id: OpId(id), result } => {
            let result = match result {
                Ok(()) => TraceResult::Ok,
                Err(error) => TraceResult::Failed(error.kind),
            };
            (peer, id, TraceKind::Done, result)
        }
        Completion::Received { peer, slot, .. } => {
            (peer, slot.0, TraceKind::Received, TraceResult::Ok)
        }
        Completion::Immediate { peer, immediate } => {
            (peer, immediate.into(), TraceKind::Immediate, TraceResult::Ok)
        }
        Completion::Fenced { peer, id: OpId(id), .. } => {
            (peer, id, TraceKind::Fenced, TraceResult::Ok)
        }
        Completion::PeerDown { peer, cause } => {
            (peer, cause_number(cause), TraceKind::PeerDown, TraceResult::Ok)
        }
    };
    TraceEvent { at, peer, id, kind, result }
}

/// A cause as the `id` of its event.
fn cause_number(cause: DownCause) -> u64 {
    match cause {
        DownCause::Closed => 0,
        DownCause::Died => 1,
        DownCause::Failed => 2,
        DownCause::Broken(_) => 3,
        DownCause::Silent => 4,
        DownCause::Unheard => 5,
        DownCause::Severed => 6,
    }
}

impl<P: Provider, S: Sink> MemoryDomain for Trace<P, S> {
    type Domain = P::Domain;

    fn domain(&self) -> P::Domain {
        self.inner.domain()
    }
}

impl<P: Provider, S: Sink> Provider for Trace<P, S> {
    const SEVERAL_LANES: bool = P::SEVERAL_LANES;

    fn caps(&self, peer: PeerIndex) -> Caps {
        self.inner.caps(peer)
    }

    #[inline]
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        let posted = self.inner.post(op, now);
        let result = match posted {
            Ok(Posted::Done) => TraceResult::Ok,
            Ok(Posted::Pending) => TraceResult::Pending,
            Err(error) => TraceResult::Refused(error),
        };
        let kind = kind_of(&op.kind);
        self.sink.record(TraceEvent { at: now, peer: op.peer, id: op.id.0, kind, result });
        posted
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let count = self.inner.poll(out, budget, now);
        for completion in &out[..count] {
            self.sink.record(event_of(completion, now));
        }
        count
    }

    fn flush(&mut self, budget: Bytes) {
        self.inner.flush(budget);
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        self.inner.received_copy(peer, slot, offset, to);
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        self.inner.received_peek(peer, slot, to);
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.inner.received_release(peer, slot);
    }
}

impl<P: Provider, S: Sink> PeerLife for Trace<P, S> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        self.inner.peer_fail(peer, cause);
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.inner.peer_close(peer)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.inner.peer_detach(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: TraceEvent = TraceEvent {
        at: Instant(0),
        peer: PeerIndex(0),
        id: 0,
        kind: TraceKind::Send,
        result: TraceResult::Ok,
    };

    #[test]
    fn ring_keeps_the_last_events_and_counts_all() {
        let mut cells = [EMPTY; 3];
        let mut ring = TraceRing::new(&mut cells);
        assert_eq!(ring.events().count(), 0);
        for id in 0..5 {
            let result = TraceResult::Refused(PostError::Again);
            ring.record(TraceEvent { id, result, ..EMPTY });
        }
        assert!(ring.events().map(|event| event.id).eq(2..5));
        assert_eq!((ring.count(TraceKind::Send), ring.troubles()), (5, 5));
    }
}
