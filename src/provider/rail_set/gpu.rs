//! The copy engine within the set: what goes to it, and what comes back.

use super::{ON_LANE, ON_SHM, ON_TCP, Sockets};
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::{
    CloseError, Completion, DownCause, LocalSpan, Op, OpId, OpKind, PeerLife, PostError, Posted,
    Provider, RemoteSpan, Source,
};
use crate::provider::copy_engine::{Copied, CopyEngine, Under, is_device};
use crate::provider::events::Events;
use crate::provider::notes::{NOTE_KEY, Note, line_of};
use crate::provider::shm::Shm;
use std::boxed::Box;

/// The rails that are no ports, as the copy engine uses them.
pub(super) struct Beneath<'a, 'm> {
    pub shm: &'a mut Shm<'m>,
    pub sockets: &'a mut Option<Sockets<'m>>,
    /// Which of them each peer is on.
    pub on: &'a [u8],
}

impl Under for Beneath<'_, '_> {
    fn note_send(&mut self, peer: PeerIndex, note: &Note, now: Instant) -> bool {
        match (self.on[peer.as_usize()], &mut self.sockets) {
            (ON_TCP, Some(Sockets { tcp, .. })) => {
                let target = RemoteSpan { key: NOTE_KEY, address: 0 };
                tcp.post_line(OpId(0), peer, target, &line_of(note), now).is_ok()
            }
            _ => self.shm.note_send(peer, note),
        }
    }

    fn note_take(&mut self) -> Option<(PeerIndex, Note)> {
        let of_tcp = |sockets: &mut Sockets<'_>| sockets.tcp.note_take();
        self.shm.note_take().or_else(|| self.sockets.as_mut().and_then(of_tcp))
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        match (self.on[op.peer.as_usize()], &mut self.sockets) {
            (ON_TCP, Some(Sockets { tcp, .. })) => tcp.post(op, now),
            _ => self.shm.post(op, now),
        }
    }

    fn fail(&mut self, peer: PeerIndex) {
        match (self.on[peer.as_usize()], &mut self.sockets) {
            (ON_TCP, Some(Sockets { tcp, .. })) => tcp.peer_fail(peer, DownCause::Failed),
            _ => self.shm.peer_fail(peer, DownCause::Failed),
        }
    }

    fn is_near(&self, peer: PeerIndex) -> bool {
        matches!(self.on[peer.as_usize()], ON_SHM | ON_LANE)
    }
}

impl Beneath<'_, '_> {
    fn has_notes(&self) -> bool {
        self.shm.has_notes() || self.sockets.as_ref().is_some_and(|it| it.tcp.has_notes())
    }
}

/// The copy engine, where there is one.
#[derive(Debug, Default)]
pub(super) struct Gpus<'m>(pub Option<Box<CopyEngine<'m>>>);

/// Whether an op has memory of a GPU on one side.
#[inline(always)]
pub(super) fn has_device(op: &Op) -> bool {
    match &op.kind {
        OpKind::Write { source: Source::Span(source), target, .. } => {
            is_device(source.key()) || is_device(target.key)
        }
        OpKind::Read { target, source } => is_device(target.key()) || is_device(source.key),
        OpKind::Write { .. } | OpKind::Send { .. } | OpKind::Add { .. } | OpKind::Fence { .. } => {
            false
        }
    }
}

impl<'m> Gpus<'m> {
    /// How many bytes it has brought, and how.
    pub fn copied(&self) -> Copied {
        self.0.as_ref().map(|engine| engine.copied()).unwrap_or_default()
    }

    /// Whether it has something under way.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.0.as_ref().is_some_and(|engine| !engine.is_idle())
    }

    /// Takes an op that has memory of a GPU on one side.
    #[cold]
    #[inline(never)]
    pub fn post(
        &mut self,
        mut beneath: Beneath<'_, 'm>,
        op: &Op,
        now: Instant,
    ) -> Result<Posted, PostError> {
        let engine = self.0.as_mut().filter(|engine| engine.has(op.peer));
        let Some(engine) = engine else { return Err(PostError::Unsupported) };
        let ends = (op.id, op.peer);
        match op.kind {
            OpKind::Write { source: Source::Span(source), target, immediate } => {
                engine.write(&mut beneath, (op.id, op.peer, now), source, (target, immediate))
            }
            OpKind::Read { target, source } => engine.read(ends, target, source),
            _ => Err(PostError::Unsupported),
        }
    }

    /// The peer's rail has taken a fence.
    #[cold]
    #[inline(never)]
    pub fn fence(&mut self, peer: PeerIndex) {
        if let Some(engine) = &mut self.0 {
            engine.fence(peer);
        }
    }

    /// [`Provider::received_read`]; `copy` copies out of the slot.
    pub fn received(
        &mut self,
        (id, peer): (OpId, PeerIndex),
        to: LocalSpan,
        copy: impl FnOnce(LocalSpan),
    ) -> Result<Posted, PostError> {
        match &mut self.0 {
            Some(engine) => engine.received((id, peer), to, copy),
            None => Err(PostError::Unsupported),
        }
    }

    /// Moves it on, after a poll of the rails beneath that has filled the first `found` places; how
    /// many are filled now.
    #[cold]
    #[inline(never)]
    pub fn poll(
        &mut self,
        mut beneath: Beneath<'_, 'm>,
        (out, found): (&mut [Completion], usize),
        now: Instant,
    ) -> usize {
        let Some(engine) = &mut self.0 else { return found };
        if engine.is_idle() && !beneath.has_notes() {
            return found;
        }
        let mut kept = 0;
        for at in 0..found {
            let is_ours = match out[at] {
                Completion::Done { id, result, .. } => engine.piece_read(id, result.is_ok()),
                Completion::PeerDown { peer, cause } => engine.peer_down(peer, cause),
                Completion::Fenced { peer, id, generation } => engine.fenced(peer, id, generation),
                _ => false,
            };
            if !is_ours {
                out[kept] = out[at];
                kept += 1;
            }
        }
        let mut events = Events { slots: out, used: kept };
        engine.poll(&mut beneath, &mut events, now);
        events.used
    }

    /// Of the events of a port, takes out the fences of peers of whose messages a GPU copies one:
    /// they are reported when it has. How many are left.
    #[cold]
    #[inline(never)]
    pub fn fences_hold(&mut self, out: &mut [Completion]) -> usize {
        let Some(engine) = &mut self.0 else { return out.len() };
        let mut kept = 0;
        for at in 0..out.len() {
            let is_held = match out[at] {
                Completion::Fenced { peer, id, generation } => engine.fenced(peer, id, generation),
                _ => false,
            };
            if !is_held {
                out[kept] = out[at];
                kept += 1;
            }
        }
        kept
    }

    /// A peer was opened that has a copy engine, too.
    pub fn open(&mut self, peer: PeerIndex) {
        if let Some(engine) = &mut self.0 {
            engine.peer_open(peer);
        }
    }

    /// Whether memory of GPUs moves to a peer and from it.
    pub fn reaches(&self, peer: PeerIndex) -> bool {
        self.0.as_ref().is_some_and(|engine| engine.has(peer))
    }

    /// Whether a peer may be closed.
    pub fn may_close(&self, peer: PeerIndex) -> Result<(), CloseError> {
        match &self.0 {
            Some(engine) if engine.in_flight(peer) != 0 => Err(CloseError::Busy),
            _ => Ok(()),
        }
    }

    /// A peer was closed.
    pub fn close(&mut self, peer: PeerIndex) {
        if let Some(engine) = &mut self.0 {
            engine.peer_close(peer);
        }
    }
}
