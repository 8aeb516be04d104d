//! One peer: its queue pair, what was posted to it, and how it ends.

use super::area::RECEIVES;
use super::closer::Closer;
use super::completions::{Kind, Name};
use super::mtu::{Packets, mtu_bytes};
use super::report::ErrorReport;
use super::sends::Sends;
use super::silence::Looks;
use super::sys::abi::{Gid, RecvWr, SendWr};
use super::sys::{MemoryRegion, QueuePair, numbers as n};
use crate::base::units::{Instant, Span};
use crate::fabric::{DownCause, OpError, OpErrorKind};
use crate::provider::ops::List;
use core::mem::ManuallyDrop;

const _: () = assert!(RECEIVES == u64::BITS as usize);

/// How long a stopped queue pair may take to give back what it had. Devices do so within
/// milliseconds; one that does not is past asking, and its queue pair is destroyed.
const DRAIN: Span = Span::millis(2000);

/// How far a peer's queue pair has come.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum State {
    /// There is none.
    Closed,
    /// It has receives, and does not know the other end.
    Prepared,
    /// It works.
    Live,
    /// It moves nothing any more; what it had is coming back.
    Draining,
    /// All of that has come back: it touches nothing.
    Drained,
}

/// Whether the end of a peer was reported.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Down {
    /// It has not ended.
    No,
    /// It has, and nobody was told.
    Due(DownCause),
    /// It was reported.
    Told,
}

/// One peer's receive cells, a bit each.
#[derive(Copy, Clone, Default, Debug)]
pub struct Receives {
    /// Those whose message is held.
    pub held: u64,
    /// Those that are free, and to be posted again.
    pub due: u64,
}

impl Receives {
    /// Whether there is such a cell, and its message is held.
    #[inline]
    pub fn is_held(&self, cell: usize) -> bool {
        cell < RECEIVES && self.held & 1 << cell != 0
    }

    /// How many cells are to be posted again.
    #[inline]
    pub fn due_count(&self) -> usize {
        self.due.count_ones() as usize
    }
}

/// What the queue pair was made with, and what both ends agreed on.
#[derive(Copy, Clone, Default, Debug)]
pub struct Terms {
    /// Bytes that a post may copy.
    pub inline_max: u32,
    /// Most parts of a write.
    pub parts_max: u8,
    /// `IBV_MTU_…` that the peer was told of our port.
    pub mtu_code: u8,
    /// That of the peer's port; 0: not joined.
    pub mtu_code_theirs: u8,
    /// Whether the peer was told of our extensions.
    pub offered: bool,
    /// Longest payload of a send.
    pub payload_bytes_max: u32,
    /// The peer's GID.
    pub gid: Gid,
    /// The first packet that we send.
    pub first_packet: u32,
}

impl Terms {
    /// How long the packets are; `None`: the queue pair is not joined.
    pub fn packets(&self) -> Option<Packets> {
        (self.mtu_code_theirs != 0).then(|| Packets {
            ours_bytes: mtu_bytes(self.mtu_code.into()),
            theirs_bytes: mtu_bytes(self.mtu_code_theirs.into()),
        })
    }
}

/// How a queue pair that was stopped gives back what it had.
#[derive(Copy, Clone, Default, Debug)]
pub struct Draining {
    /// Whether the end of its sends, and of its receives, has come back.
    pub sends: bool,
    pub receives: bool,
    /// Whether the device has said that it stopped the queue pair.
    pub is_stopped: bool,
    /// Whether the queue pair did not take a marker, so that none of that will.
    pub is_unmarked: bool,
    /// Whether `since` is set.
    pub is_timed: bool,
    pub since: Instant,
}

impl Draining {
    /// Whether everything that was posted has come back since it was stopped.
    pub fn is_done(&self) -> bool {
        self.sends && self.receives
    }
}

/// The record of one peer.
#[derive(Debug)]
pub struct Peer {
    pub state: State,
    pub down: Down,
    /// Whether a fence was posted: nothing is received any more.
    pub is_fenced: bool,
    /// Which use of this number: completions of an earlier one are dropped. 14 bits.
    pub generation: u16,
    pub qp: ManuallyDrop<Option<QueuePair>>,
    pub mr: ManuallyDrop<Option<MemoryRegion>>,
    pub lkey: u32,
    pub terms: Terms,
    pub sends: Sends,
    pub receives: Receives,
    pub draining: Draining,
    pub looks: Looks,
    /// Fences that wait for the end of the queue pair.
    pub fences: List,
    /// What broke it.
    pub report: Option<ErrorReport>,
}

impl Peer {
    /// Nobody, before its first use.
    pub fn unused() -> Peer {
        Peer {
            state: State::Closed,
            down: Down::No,
            is_fenced: false,
            generation: 0,
            qp: ManuallyDrop::new(None),
            mr: ManuallyDrop::new(None),
            lkey: 0,
            terms: Terms::default(),
            sends: Sends::default(),
            receives: Receives::default(),
            draining: Draining::default(),
            looks: Looks::default(),
            fences: List::default(),
            report: None,
        }
    }

    /// Nobody, with what an earlier use has left: held cells, and a place in a list.
    pub fn closed(&self, generation: u16) -> Peer {
        let receives = Receives { due: 0, ..self.receives };
        Peer { generation, sends: self.sends.closed(), receives, ..Peer::unused() }
    }

    /// Whether ops other than fences are accepted.
    #[inline]
    pub fn takes_ops(&self) -> bool {
        self.state == State::Live && !self.is_fenced && self.down == Down::No
    }

    /// Whether it takes receives: one that does not know its other end yet does, too.
    #[inline]
    pub fn takes_receives(&self) -> bool {
        matches!(self.state, State::Prepared | State::Live)
    }

    /// Its queue pair, which is there from [`State::Prepared`] to [`State::Draining`].
    #[inline]
    pub fn pair(&mut self) -> &mut QueuePair {
        self.qp.as_mut().expect("a queue pair")
    }

    /// How a request of it is called.
    #[inline]
    pub fn name(&self, index: usize, kind: Kind, at: u32) -> Name {
        Name { kind, generation: self.generation, peer: index as u16, at }
    }

    /// Stops the queue pair and has a marker come back at the end of each of its queues.
    #[cold]
    pub fn drain(&mut self, index: usize) {
        match self.state {
            State::Closed | State::Draining | State::Drained => {}
            State::Prepared => {
                // it takes no marker, and has nothing of anybody's
                drop(self.qp.take());
                self.state = State::Drained;
            }
            State::Live => {
                self.state = State::Draining;
                self.mark(index);
                // where a queue pair is in that state already, doing it again gives back what was
                // posted since; one that cannot be stopped is destroyed when its time is up
                self.draining.is_stopped = self.pair().stop().is_ok();
            }
        }
    }

    fn mark(&mut self, index: usize) {
        let names =
            [Kind::LastSend, Kind::LastReceive].map(|kind| self.name(index, kind, 0).pack());
        let mut send = SendWr {
            wr_id: names[0],
            opcode: n::WR_WRITE,
            send_flags: n::SEND_SIGNALED,
            ..SendWr::NOTHING
        };
        // SAFETY: one request without memory; the library copies it. A place is kept for it.
        let sent = unsafe { self.pair().send(&mut send, false) };
        let mut receive = RecvWr { wr_id: names[1], ..RecvWr::NOTHING };
        // SAFETY: as above.
        let received = unsafe { self.pair().receive(&mut receive) };
        // `bnxt_re` of before its rewrite refuses requests of a queue pair that has failed
        self.draining.is_unmarked = sent.is_err() || received.is_err();
    }

    /// Whether everything has come back by now; if it takes too long, or nothing would tell of it,
    /// the queue pair is destroyed: not before what is in the queue was taken, `is_empty`. One that
    /// the device does not destroy may be moving bytes still, and is not over, unless the device
    /// `is_gone`. `undrained` counts those that were late.
    pub fn drain_on(
        &mut self,
        now: Instant,
        is_gone: bool,
        is_empty: bool,
        undrained: &mut u32,
    ) -> bool {
        let draining = &mut self.draining;
        let done = draining.is_done();
        if !draining.is_timed {
            (draining.is_timed, draining.since) = (true, now);
        }
        let is_late = draining.is_unmarked || now.since(draining.since) >= DRAIN;
        let is_over = done || is_late && is_empty;
        if !is_over {
            return false;
        }
        if !done && let Some(qp) = self.qp.take() {
            match qp.destroy() {
                Ok(()) => {}
                Err(kept) if !is_gone => {
                    self.qp = ManuallyDrop::new(Some(kept));
                    (draining.is_unmarked, draining.since) = (false, now);
                    return false;
                }
                Err(gone) => core::mem::forget(gone), // the kernel has, with the device
            }
            *undrained += u32::from(!draining.is_unmarked);
        }
        self.state = State::Drained;
        true
    }

    /// Destroys the queue pair, after which the device touches nothing on the peer's behalf, and
    /// gives its registration back. One that was stopped, and has given back everything, touches
    /// nothing any more: it is destroyed aside.
    pub fn close(&mut self, closer: &mut Closer) {
        let is_over = self.draining.is_stopped && self.draining.is_done();
        match self.qp.take() {
            Some(over) if is_over => closer.take(over),
            other => drop(other),
        }
        drop(self.mr.take());
        self.state = State::Closed;
    }

    /// An error of this peer's end, for ops that were under way.
    pub fn cut_off(&self) -> OpError {
        let code = self.report.map_or(0, |report| report.errno());
        let kind = if self.is_fenced { OpErrorKind::Canceled } else { OpErrorKind::PeerDown };
        OpError { kind, code }
    }
}
