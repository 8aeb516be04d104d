//! How peers end: by a failed request, by the side band, by a fence, by a close.

use super::completions::Kind;
use super::peer::{Down, Receives, State};
use super::port::stop;
use super::rail::Verbs;
use super::sys::abi::{RecvWr, SendWr};
use super::sys::numbers as n;
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::fabric::{Completion, DownCause};
use crate::provider::events::Events;
use core::mem::ManuallyDrop;

/// How long a stopped queue pair may take to give back what it had. Devices do so within
/// milliseconds; one that does not is past asking, and its queue pair is destroyed.
const DRAIN: Span = Span::millis(2000);

impl Verbs<'_> {
    /// The peer is gone, for the first cause that is heard: nothing is sent to it any more; what
    /// has come is still reported, then its end.
    #[cold]
    pub(super) fn end(&mut self, index: usize, cause: DownCause) {
        let record = &mut self.peers[index];
        if record.down != Down::No || record.state == State::Closed {
            return;
        }
        record.down = Down::Due(cause);
        self.endings += 1;
        self.drain(index);
    }

    /// Stops a queue pair and has a marker come back at the end of each of its queues.
    #[cold]
    pub(super) fn drain(&mut self, index: usize) {
        match self.peers[index].state {
            State::Closed | State::Draining | State::Drained => return,
            State::Prepared => {
                // it takes no marker, and has nothing of anybody's
                let record = &mut self.peers[index];
                drop(record.qp.take());
                record.state = State::Drained;
                return;
            }
            State::Live => {}
        }
        self.peers[index].state = State::Draining;
        self.mark(index);
        // where a queue pair is in that state already, doing it again gives back what was posted
        // since; one that cannot be stopped is destroyed when its time is up
        let record = &mut self.peers[index];
        record.draining.is_stopped = stop(record.pair()).is_ok();
    }

    fn mark(&mut self, index: usize) {
        let record = &mut self.peers[index];
        let names =
            [Kind::LastSend, Kind::LastReceive].map(|kind| record.name(index, kind, 0).pack());
        let mut send = SendWr {
            wr_id: names[0],
            opcode: n::WR_WRITE,
            send_flags: n::SEND_SIGNALED,
            ..SendWr::NOTHING
        };
        // SAFETY: one request without memory; the library copies it. A place is kept for it.
        let sent = unsafe { record.pair().send(&mut send, false) };
        let mut receive = RecvWr { wr_id: names[1], ..RecvWr::NOTHING };
        // SAFETY: as above.
        let received = unsafe { record.pair().receive(&mut receive) };
        // `bnxt_re` of before its rewrite refuses requests of a queue pair that has failed
        record.draining.is_unmarked = sent.is_err() || received.is_err();
    }

    /// Goes on with every peer that is ending or being fenced.
    #[cold]
    pub(super) fn end_peers(&mut self, events: &mut Events) {
        for index in 0..self.peers.len() {
            if self.peers[index].state == State::Draining {
                let is_empty = self.batch_at == self.batch_count && events.has_room();
                self.drain_on(index, is_empty);
            }
            if self.peers[index].state == State::Drained && self.report(index, events) {
                self.finish_end(index, events);
            }
        }
    }

    /// Whether everything has come back by now; if it takes too long, or nothing would tell of it,
    /// the queue pair is destroyed: not before what is in the queue was taken, `is_empty`. One that
    /// the device does not destroy may be moving bytes still, and is not over.
    fn drain_on(&mut self, index: usize, is_empty: bool) {
        let (now, is_gone) = (self.now, self.port.health.lost_code == libc::ENODEV);
        let record = &mut self.peers[index];
        let draining = &mut record.draining;
        let done = draining.is_done();
        if !draining.is_timed {
            (draining.is_timed, draining.since) = (true, now);
        }
        let is_late = draining.is_unmarked || now.since(draining.since) >= DRAIN;
        let is_over = done || is_late && is_empty;
        if !is_over {
            return;
        }
        if !done && let Some(qp) = record.qp.take() {
            match qp.destroy() {
                Ok(()) => {}
                Err(kept) if !is_gone => {
                    record.qp = ManuallyDrop::new(Some(kept));
                    (draining.is_unmarked, draining.since) = (false, now);
                    return;
                }
                Err(gone) => core::mem::forget(gone), // the kernel has, with the device
            }
            self.port.health.undrained += u32::from(!draining.is_unmarked);
        }
        record.state = State::Drained;
        let error = record.cut_off();
        record.sends.cut_off(&mut self.sent[index], &self.domain, error);
    }

    /// All ops but fences are reported: so are those now, and the end.
    fn finish_end(&mut self, index: usize, events: &mut Events) {
        let mut fences = core::mem::take(&mut self.peers[index].fences);
        self.endings -= u32::from(!fences.is_empty());
        while let Some(fence) = self.asides.take_first(&mut fences) {
            self.asides.finish(fence);
        }
        let record = &mut self.peers[index];
        if let Down::Due(cause) = record.down
            && events.has_room()
        {
            record.down = Down::Told;
            self.endings -= 1;
            events.push(Completion::PeerDown { peer: PeerIndex(index as u32), cause });
        }
    }

    /// The device failed, its completion queue did, or its GID has gone: every peer ends.
    #[cold]
    pub(super) fn lose(&mut self, code: i32) {
        self.port.lose(code);
        if code == libc::ENODEV {
            self.cq.mute();
        }
        self.end_all(&[State::Live, State::Prepared], DownCause::Broken(code));
    }

    /// The last loss of the port, counted from 1, that is a fence by now: each queue pair of before
    /// it was stopped and has given back all that it had, or was destroyed. So nothing of before is
    /// on its way any more. 0: none is. The largest number: no peer has a queue pair that works or
    /// is ending, so that all of before has ended, with a loss or without.
    pub fn fenced_through(&self) -> u32 {
        let has = |state| self.peers.iter().any(|peer| peer.state == state);
        match (has(State::Draining), has(State::Live)) {
            (true, _) => 0,
            (false, true) => self.port.health.revivals, // a loss stops all that were there
            (false, false) => u32::MAX,
        }
    }

    /// Ends every peer in one of these states.
    #[cold]
    pub(super) fn end_all(&mut self, states: &[State], cause: DownCause) {
        for index in 0..self.peers.len() {
            if states.contains(&self.peers[index].state) {
                self.end(index, cause);
            }
        }
    }

    /// Forgets a peer without ops in flight. What it sent and is held stays, unless it is to be
    /// discarded.
    pub(super) fn forget(&mut self, index: usize, discard: bool) {
        self.ring(index);
        let record = &mut self.peers[index];
        self.endings -= u32::from(matches!(record.down, Down::Due(_)));
        self.queue_pair_close(index);
        let record = &mut self.peers[index];
        *record = record.closed(record.generation);
        if discard {
            record.receives = Receives::default();
            self.area.release(index);
        }
        self.peers_open -= 1;
    }
}
