//! What the data thread leaves to copy threads: handing over, and hearing.

use super::STREAMS_MAX;
use super::ops::{Entry, List, Outcome};
use super::peer::State;
use super::rail::Tcp;
use super::threads::{Command, Copies, Event, THREADS_MAX};
use crate::base::ids::PeerIndex;
use crate::fabric::{
    Completion, DownCause, LocalSpan, Op, OpError, OpErrorKind, PostError, Posted, RemoteSpan,
};
use crate::provider::events::Events;
use crate::wire::stream::UNANSWERED_MAX;

/// What a peer's record says of the copy threads, one bit or place for each. Zeroed: nothing.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Aside {
    /// Threads that were given streams of the peer.
    all: u8,
    /// Threads that have streams of the peer and have not said that they ended.
    pub up: u8,
    /// Threads that have not said yet that a fence holds.
    pub fencing: u8,
    /// Threads that have not forgotten an earlier use of the peer's number.
    pub closing: u8,
    /// Whether a fence was told.
    pub is_fenced: bool,
    /// Writes that each thread was given and has not reported.
    aloft: [u8; THREADS_MAX],
    /// Fences that wait for threads.
    fences: List,
}

const _: () = assert!(UNANSWERED_MAX < u8::MAX as u32);

impl Aside {
    /// Whether threads were given streams of the peer.
    pub fn is_used(&self) -> bool {
        self.all != 0
    }
}

impl Tcp<'_> {
    /// Whether long writes are left to threads.
    #[inline]
    pub(super) fn has_helpers(&self) -> bool {
        self.helpers[0].is_some()
    }

    /// Gives copies of all streams but the first to the threads, if any were made.
    pub(super) fn open_aside(&mut self, peer: PeerIndex, copies: &Copies, sums: bool) {
        let count = self.helpers.iter().flatten().count();
        let copies = copies.as_slice();
        let mut up = 0;
        for (helper, slot) in self.helpers[..count].iter_mut().enumerate() {
            let mut own = [-1; STREAMS_MAX];
            let mut taken = 0;
            for copy in copies.iter().skip(helper).step_by(count) {
                own[taken] = *copy;
                taken += 1;
            }
            if taken > 0 {
                up |= 1 << helper;
                let open = Command::Open { peer, fds: own, count: taken, sums };
                let told = slot.as_mut().map(|h| h.tell(open));
                assert!(told == Some(true), "a queue with room for each peer");
            }
        }
        self.peers[peer.as_usize()].aside = Aside { all: up, up, ..Aside::default() };
    }

    /// Hands a long write over. `None`: no thread has streams of the peer.
    pub(super) fn hand_over(
        &mut self,
        op: &Op,
        source: LocalSpan,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Option<Result<Posted, PostError>> {
        let peer = op.peer;
        let up = self.peers[peer.as_usize()].aside.up;
        let queued = |n: &usize| self.helpers[*n].as_ref().map_or(u64::MAX, |helper| helper.queued);
        let helper = (0..THREADS_MAX).filter(|n| up & 1 << n != 0).min_by_key(queued)?;
        let aloft = self.peers[peer.as_usize()].aside.aloft[helper];
        if u32::from(aloft) >= UNANSWERED_MAX || self.ops.is_full() {
            return Some(Err(PostError::Again));
        }
        let Some(pin) = self.pin(source) else { return Some(self.refuse(op)) };
        let length = source.length().0 as u32;
        let entry = Entry { peer, id: op.id, pin, length, ..Entry::default() };
        let number = self.ops.acquire(entry).expect("a free entry was seen");
        let record = &mut self.peers[peer.as_usize()];
        record.in_flight += 1;
        record.aside.aloft[helper] += 1;
        self.tell(helper, Command::Write { op: number, peer, source, target, immediate });
        if let Some(helper) = &mut self.helpers[helper] {
            helper.queued += u64::from(length);
        }
        Some(Ok(Posted::Pending))
    }

    fn tell(&mut self, helper: usize, command: Command) {
        let told = self.helpers[helper].as_mut().is_some_and(|helper| helper.tell(command));
        assert!(told, "a queue with room for everything that may wait");
    }

    /// Tells every thread that has streams of the peer.
    fn tell_all(&mut self, mask: u8, command: Command) {
        for helper in (0..THREADS_MAX).filter(|n| mask & 1 << n != 0) {
            self.tell(helper, command);
        }
    }

    /// The peer is ending here, so it ends there.
    pub(super) fn fail_aside(&mut self, peer: usize) {
        let mask = self.peers[peer].aside.up;
        self.tell_all(mask, Command::Fail { peer: PeerIndex(peer as u32) });
    }

    /// Tells the threads to fence, once.
    pub(super) fn fence_aside(&mut self, peer: usize) {
        let aside = &mut self.peers[peer].aside;
        if aside.is_fenced || self.helpers[0].is_none() {
            return;
        }
        aside.is_fenced = true;
        aside.fencing = aside.up;
        let mask = aside.up;
        self.tell_all(mask, Command::Fence { peer: PeerIndex(peer as u32) });
    }

    /// Ends a fence's op, now or when the threads have fenced.
    pub(super) fn finish_fence(&mut self, peer: usize, op: u32) {
        let aside = &mut self.peers[peer].aside;
        match aside.fencing {
            0 => self.ops.finish(op),
            _ => self.ops.append(&mut aside.fences, op),
        }
    }

    /// Has the threads forget a peer.
    pub(super) fn close_aside(&mut self, peer: usize) {
        let aside = &mut self.peers[peer].aside;
        let all = aside.all;
        aside.closing = all;
        aside.up = 0;
        self.tell_all(all, Command::Close { peer: PeerIndex(peer as u32) });
    }

    /// Takes in what the threads tell, as long as events find room.
    pub(super) fn hear(&mut self, events: &mut Events) {
        for helper in 0..THREADS_MAX {
            while events.has_room() {
                let Some(slot) = &mut self.helpers[helper] else { return };
                let Some(event) = slot.heard() else { break };
                self.act(helper, event, events);
            }
        }
    }

    fn act(&mut self, helper: usize, event: Event, events: &mut Events) {
        let open = |peer: PeerIndex| self.peers[peer.as_usize()].state != State::Closed;
        match event {
            Event::Done { op, result } => self.done_aside(helper, op, result),
            Event::Immediate { peer, immediate } if open(peer) => {
                events.push(Completion::Immediate { peer, immediate });
            }
            Event::Down { peer, cause } if open(peer) => {
                self.peers[peer.as_usize()].aside.up &= !(1 << helper);
                match cause {
                    DownCause::Broken(code) => self.end_unsure(peer.as_usize(), code),
                    cause => self.begin_end(peer.as_usize(), cause, 0),
                }
            }
            Event::Immediate { .. } | Event::Down { .. } => {}
            Event::Fenced { peer } => {
                let aside = &mut self.peers[peer.as_usize()].aside;
                aside.up &= !(1 << helper);
                aside.fencing &= !(1 << helper);
                while aside.fencing == 0
                    && let Some(op) = self.ops.take_first(&mut aside.fences)
                {
                    self.ops.finish(op);
                }
            }
            Event::Closed { peer } => {
                let aside = &mut self.peers[peer.as_usize()].aside;
                aside.closing &= !(1 << helper);
                self.peers_open -= u32::from(aside.closing == 0);
            }
        }
    }

    fn done_aside(&mut self, helper: usize, op: u32, result: Result<(), OpError>) {
        let entry = self.ops.get(op);
        if let Err(error) = result {
            entry.code = error.code;
            entry.outcome = match error.kind {
                OpErrorKind::Key => Outcome::Key,
                OpErrorKind::Canceled => Outcome::Canceled,
                OpErrorKind::PeerDown | OpErrorKind::Fabric => Outcome::PeerDown,
            };
        }
        let (peer, length, pin) = (entry.peer.as_usize(), entry.length, entry.pin);
        if let Some(region) = pin.checked_sub(1) {
            self.domain.pin(region, -1);
        }
        self.ops.finish(op);
        self.peers[peer].aside.aloft[helper] -= 1;
        if let Some(helper) = &mut self.helpers[helper] {
            helper.queued -= u64::from(length);
        }
    }

    /// Says that the data thread is about to sleep. `false`: a thread has news.
    pub(super) fn arm_aside(&mut self) -> bool {
        self.armed = true;
        self.helpers.iter_mut().flatten().all(|helper| helper.arm())
    }

    /// The opposite.
    #[cold]
    pub(super) fn disarm_aside(&mut self) {
        self.armed = false;
        self.helpers.iter_mut().flatten().for_each(|helper| helper.disarm());
        if let Some(wake) = &self.wake {
            wake.drain();
        }
    }
}
