//! The machine over a rail that has room for one line at a time.

use super::*;
use crate::base::ids::PeerIndex;
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, LocalSpan, MemoryDomain, Op, OpKind, PeerLife,
    PostError, Posted, RecvSlot, Source,
};

/// A rail that refuses every second post to each peer, if it is one of those, and longer ops than
/// it says.
pub(super) struct Narrow<'m> {
    pub(super) inner: Loopback<'m>,
    pub(super) refuses: Option<[bool; 2]>,
    /// By peer.
    pub(super) transfer_max: [Bytes; 2],
}

impl<'m> MemoryDomain for Narrow<'m> {
    type Domain = <Loopback<'m> as MemoryDomain>::Domain;

    fn domain(&self) -> Self::Domain {
        self.inner.domain()
    }
}

impl<'m> Provider for Narrow<'m> {
    fn caps(&self, peer: PeerIndex) -> Caps {
        Caps { transfer_max: self.transfer_max[peer.as_usize()], ..self.inner.caps(peer) }
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        if let Some(refuses) = self.refuses.as_mut().map(|all| &mut all[op.peer.as_usize()]) {
            *refuses = !*refuses;
            if !*refuses {
                return Err(PostError::Again);
            }
        }
        match op.kind {
            OpKind::Write { source: Source::Span(span), .. }
            | OpKind::Read { target: span, .. }
                if span.length() > self.transfer_max[op.peer.as_usize()] =>
            {
                Err(PostError::Unsupported)
            }
            _ => self.inner.post(op, now),
        }
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        self.inner.poll(out, budget, now)
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

impl<'m> PeerLife for Narrow<'m> {
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

/// The two lines of a region's cell once were begun anew when the second found no room, and a rail
/// that refuses every second post never took both.
#[test]
fn region_cells_are_written_on_a_rail_that_refuses_every_second_post() {
    const REGIONS: usize = crate::transport::limits::CELLS + 3;
    // interpreted, one of them takes half a minute
    let first_refused: &[bool] = if cfg!(miri) { &[false] } else { &[false, true] };
    for &refuses in first_refused {
        let mut block = block();
        let transfer_max = [Bytes::mib(1); 2];
        let wrap = |inner| Narrow { inner, refuses: Some([refuses; 2]), transfer_max };
        let mut pair = Pair::open_over(&mut block, false, wrap);
        let mut source = pattern(LONG, 5);
        let from = pair.register(&mut source);
        // more regions than cells: they are written anew
        let mut targets = vec![vec![0u8; LONG]; REGIONS];
        let regions: Vec<_> = targets.iter_mut().map(|target| pair.register(target)).collect();
        for round in 0..2 {
            source.copy_from_slice(&pattern(LONG, 5 + round));
            for (target, to) in targets.iter().zip(&regions) {
                let receive = pair.endpoint.irecv(B, &[incoming(*to, target, 7)]).unwrap();
                let send = pair.endpoint.isend(A, outgoing(from, &source, 7)).unwrap();
                assert_eq!(pair.finish(receive).result, Ok(()));
                assert_eq!(pair.finish(send).result, Ok(()));
                assert!(*target == source);
            }
        }
    }
}

/// A message that took more than 64 ops of the rail's longest was accepted, and never ended: nor
/// did the receive, long enough or not, nor a pulled one that was longer than one op.
#[test]
fn message_that_the_rail_cannot_carry_is_refused_and_the_longest_that_it_can_crosses() {
    const MOST: Bytes = Bytes(700);
    for pull in [false, true] {
        let mut block = block();
        let transfer_max = if pull { Bytes::kib(10) } else { MOST };
        let wrap = |inner| Narrow { inner, refuses: None, transfer_max: [transfer_max; 2] };
        let mut pair = Pair::open_with(&mut block, LIMITS, Bytes(512), pull, wrap);
        // whole pairs of cache lines
        let most = if pull { transfer_max.as_usize() } else { 64 * 640 };
        let (mut source, mut target) = (pattern(most + 1, 5), vec![0u8; most + 1]);
        let (from, to) = (pair.register(&mut source), pair.register(&mut target));
        let longer = pair.endpoint.isend(A, outgoing(from, &source, 7));
        assert_eq!(longer, Err(SubmitError::TooLong), "pull {pull}");
        let receive = pair.endpoint.irecv(B, &[incoming(to, &target, 7)]).unwrap();
        let send = pair.endpoint.isend(A, outgoing(from, &source[..most], 7)).unwrap();
        assert_eq!(pair.finish(receive).result, Ok(()));
        assert_eq!(pair.finish(send).result, Ok(()));
        assert!(target[..most] == source[..most]);
    }
}

/// What an endpoint's narrowest rail carried was once the limit of all its connections.
#[test]
fn each_connection_has_the_limits_of_its_own_rail() {
    const BYTES: [usize; 2] = [10 << 10, 12 << 10];
    let mut block = block();
    let transfer_max = BYTES.map(Bytes::of);
    let wrap = |inner| Narrow { inner, refuses: None, transfer_max };
    let mut pair = Pair::open_with(&mut block, LIMITS, Bytes(512), true, wrap);
    let mut source = pattern(BYTES[1] + 1, 5);
    let from = pair.register(&mut source);
    for (connection, most) in [A, B].into_iter().zip(BYTES) {
        let longer = pair.endpoint.isend(connection, outgoing(from, &source[..=most], 7));
        assert_eq!(longer, Err(SubmitError::TooLong));
        assert!(pair.endpoint.isend(connection, outgoing(from, &source[..most], 7)).is_ok());
    }
}
