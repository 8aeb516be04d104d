//! Any provider, made worse within the contract: more `Again`, late completions, failed ops, death.
//!
//! It also works over a rail that is real. Faults of the wire itself, as loss of order and landing
//! after death, are those of [`crate::sim`].
#![forbid(unsafe_code)]

use crate::random::Random;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{
    Caps, CloseError, Completion, DownCause, LocalSpan, MemoryDomain, Op, OpError, OpErrorKind,
    PeerLife, PostError, Posted, Provider, RecvSlot,
};

/// Code of errors that were injected, so that a log tells them from real ones.
pub const INJECTED: i32 = 9998;

/// The chance of each fault per op, in parts of [`crate::random::CERTAIN`].
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Rates {
    /// `post` says `Again`.
    pub again: u32,
    /// The completion is held back for up to `delay_max`.
    pub delay: u32,
    /// The op is reported as failed although it took effect, the harder half of what a lost
    /// acknowledgement may mean.
    pub error: u32,
    /// The peer dies instead of taking the op.
    pub death: u32,
}

/// How often each fault was injected.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Injected {
    /// Posts refused.
    pub agains: u64,
    /// Completions held back.
    pub delays: u64,
    /// Ops reported as failed.
    pub errors: u64,
    /// Peers killed.
    pub deaths: u64,
}

#[derive(Copy, Clone, Debug)]
struct Held {
    due: Instant,
    completion: Completion,
}

/// The wrapper. At most `HELD` completions are held back at a time; beyond that none is delayed.
#[derive(Debug)]
pub struct Fault<P, const HELD: usize = 64> {
    inner: P,
    random: Random,
    rates: Rates,
    delay_max: Span,
    held: [Option<Held>; HELD],
    counts: Injected,
}

impl<P: Provider, const HELD: usize> Fault<P, HELD> {
    /// Wraps a provider.
    pub const fn new(inner: P, seed: u64, rates: Rates, delay_max: Span) -> Fault<P, HELD> {
        let counts = Injected { agains: 0, delays: 0, errors: 0, deaths: 0 };
        let random = Random::new(seed);
        Fault { inner, random, rates, delay_max, held: [None; HELD], counts }
    }

    /// What was injected so far.
    pub const fn counts(&self) -> Injected {
        self.counts
    }

    /// Changes the rates from now on.
    pub const fn rates_set(&mut self, rates: Rates) {
        self.rates = rates;
    }

    /// The provider underneath.
    pub const fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    /// Draws an op's result, if it had succeeded.
    fn spoil(&mut self, result: Result<(), OpError>) -> Result<(), OpError> {
        if result.is_ok() && self.random.chance(self.rates.error) {
            self.counts.errors += 1;
            return Err(OpError { kind: OpErrorKind::Fabric, code: INJECTED });
        }
        result
    }

    /// Holds a completion back if chance and room say so; otherwise hands it back.
    fn hold(&mut self, completion: Completion, now: Instant) -> Option<Completion> {
        if !self.random.chance(self.rates.delay) {
            return Some(completion);
        }
        let late = Span(1 + self.random.below(self.delay_max.0));
        match self.held.iter_mut().find(|cell| cell.is_none()) {
            Some(cell) => {
                self.counts.delays += 1;
                *cell = Some(Held { due: now.after(late), completion });
                None
            }
            None => Some(completion),
        }
    }

    /// An op that has ended at post may be made to end later or badly. A success that nothing was
    /// drawn for, or that finds no room, stays as it is.
    fn posted_done(&mut self, op: &Op, now: Instant) -> Posted {
        let Some(free) = self.held.iter().position(Option::is_none) else {
            return Posted::Done;
        };
        let result = self.spoil(Ok(()));
        let late = self.random.chance(self.rates.delay);
        if result.is_ok() && !late {
            return Posted::Done;
        }
        self.counts.delays += u64::from(late);
        let wait = if late { self.random.below(self.delay_max.0) } else { 0 };
        let completion = Completion::Done { peer: op.peer, id: op.id, result };
        self.held[free] = Some(Held { due: now.after(Span(wait)), completion });
        Posted::Pending
    }

    /// What becomes of a completion on its way up.
    fn pass(&mut self, completion: Completion, now: Instant) -> Option<Completion> {
        match completion {
            Completion::Done { peer, id, result } => {
                let result = self.spoil(result);
                self.hold(Completion::Done { peer, id, result }, now)
            }
            Completion::Fenced { .. } => self.hold(completion, now),
            // Order among these is promised, so they are never held back.
            Completion::Received { .. }
            | Completion::Immediate { .. }
            | Completion::PeerDown { .. } => Some(completion),
        }
    }

    fn release_due(&mut self, out: &mut [Completion], now: Instant) -> usize {
        let mut count = 0;
        for cell in &mut self.held {
            if count == out.len() {
                break;
            }
            if let Some(held) = cell.take_if(|held| held.due <= now) {
                out[count] = held.completion;
                count += 1;
            }
        }
        count
    }
}

/// Whose op has ended, if the event is such an end.
fn ended(completion: &Completion) -> Option<PeerIndex> {
    match *completion {
        Completion::Done { peer, .. } | Completion::Fenced { peer, .. } => Some(peer),
        Completion::Received { .. }
        | Completion::Immediate { .. }
        | Completion::PeerDown { .. } => None,
    }
}

impl<P: Provider, const HELD: usize> MemoryDomain for Fault<P, HELD> {
    type Domain = P::Domain;

    fn domain(&self) -> P::Domain {
        self.inner.domain()
    }
}

impl<P: Provider, const HELD: usize> Provider for Fault<P, HELD> {
    const SEVERAL_LANES: bool = P::SEVERAL_LANES;

    fn caps(&self, peer: PeerIndex) -> Caps {
        self.inner.caps(peer)
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        if self.random.chance(self.rates.again) {
            self.counts.agains += 1;
            return Err(PostError::Again);
        }
        if self.random.chance(self.rates.death) {
            self.counts.deaths += 1;
            self.inner.peer_fail(op.peer, DownCause::Died);
            return Err(PostError::PeerDown);
        }
        match self.inner.post(op, now)? {
            Posted::Done => Ok(self.posted_done(op, now)),
            Posted::Pending => Ok(Posted::Pending),
        }
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let first = self.release_due(out, now);
        let end = first + self.inner.poll(&mut out[first..], budget, now);
        let mut kept = first;
        for index in first..end {
            if let Some(completion) = self.pass(out[index], now) {
                out[kept] = completion;
                kept += 1;
            }
        }
        kept
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

impl<P: Provider, const HELD: usize> PeerLife for Fault<P, HELD> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        self.inner.peer_fail(peer, cause);
    }

    /// Completions that are held back belong to ops in flight, as far as anybody above can tell.
    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let ours = |held: &Held| ended(&held.completion) == Some(peer);
        if self.held.iter().flatten().any(ours) {
            return Err(CloseError::Busy);
        }
        self.inner.peer_close(peer)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let ours = |held: &Held| ended(&held.completion) == Some(peer);
        if self.held.iter().flatten().any(ours) {
            return Err(CloseError::Busy);
        }
        self.inner.peer_detach(peer)
    }
}
