//! Lanes that show whether the peer is alive while its link is lost.
//!
//! For sockets, this thread asks the kernel when the peer was heard. All other lanes belong to the
//! data thread. So an event asks that thread whether the peer answers on one of them
//! ([`BandEvent::Vouch`]), and it replies with a [`Vouch`].
//!
//! - On a queue pair the peer's device answers, also for a stopped process. For a dead process it
//!   answers while a forked child holds the queue pair. So where the sockets have ended, as when a
//!   process dies, the peer's program must have sent something lately.
//! - Over libfabric the peer's program answers. A program that does not call the library is not
//!   heard.
//! - On a vendor's rail nothing vouches: the library may only say that it has taken the bytes.
//!
//! If our own program does not call the library, nothing is known about the peer. The peer is not
//! given up meanwhile: the question waits for the next call.
#![forbid(unsafe_code)]

use super::control::Control;
use super::event::BandEvent;
use super::lanes::LaneState;
use super::memory::LinkMemory;
use crate::base::slab::Handle;
use crate::base::units::{Instant, Span};

/// How long an answer may take where all sockets have ended, as they do when a process
/// dies. A network takes microseconds; what it loses is sent again later than this, by default
/// after 4.3 s. Where sockets are only silent it may take as long as they may be: a queue pair that
/// is silent for less than that has ended by itself.
pub(super) const ANSWER: Span = Span::millis(1000);

/// What the data thread has found out about a connection's peer.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Vouch {
    /// It has answered on a lane since it was asked for.
    Heard {
        /// Its program has sent something on one since this was said last.
        spoken: bool,
    },
    /// It was given something to answer on each that works, and has not for too long; or none
    /// works.
    Silent,
}

/// What is known of one connection.
#[derive(Copy, Clone, Debug)]
pub(super) struct Vouched {
    /// When the peer was heard last on such a lane; 0: never.
    pub heard: Instant,
    /// When it was known last that its program had sent something there; 0: never.
    spoken: Instant,
    /// What was found out last.
    last: Option<Vouch>,
    /// It is to be found out, within so long, and was not yet.
    pending: Option<Span>,
    /// The data thread has not been told that it is.
    pub owed: bool,
}

impl Vouched {
    /// Nothing.
    pub const NONE: Vouched =
        Vouched { heard: Instant(0), spoken: Instant(0), last: None, pending: None, owed: false };
}

impl<M: LinkMemory> Control<M> {
    /// Whether a connection has a lane that may vouch.
    fn has_voucher(&self, index: u32) -> bool {
        let is_one = |lane| {
            let place = self.lane_place(index, lane) as usize;
            let entry = &self.lanes[place];
            let stands = entry.state == LaneState::Held && entry.generation != 0 && !entry.stalled;
            stands && self.pairs[place].may_vouch()
        };
        (1..=u32::from(self.connections[index as usize].pairs)).any(is_one)
    }

    /// Has the data thread find out whether lanes hear the peer of a lost link. `anew`: also
    /// where they have not, or where that was asked during an earlier outage. `patience`: how long
    /// an answer may take from when the data thread has asked.
    pub fn vouch_ask(&mut self, link: u32, anew: bool, patience: Span) {
        self.each_joined(link, |control, at| {
            let Vouched { last, pending, .. } = control.connections[at as usize].vouched;
            let wanted = match pending {
                Some(pending) => patience < pending,
                None => anew || matches!(last, Some(Vouch::Heard { .. })),
            };
            if wanted && control.is_kept(at) && control.has_voucher(at) {
                let vouched = &mut control.connections[at as usize].vouched;
                (vouched.pending, vouched.owed) = (Some(patience), true);
                control.owe(at, false, None);
            }
        });
    }

    /// Tells the data thread; `false`: the queue is full.
    pub fn announce_vouch(&mut self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let (generation, pending) = (connection.generation, connection.vouched.pending);
        let patience = pending.unwrap_or(Span(0));
        let event = BandEvent::Vouch { index, generation, patience };
        let told = self.tables.events.push(event).is_ok();
        self.connections[index as usize].vouched.owed = !told;
        told
    }

    /// The data thread has found out.
    pub fn vouch(&mut self, handle: Handle, vouch: Vouch) {
        let Some(index) = self.live(handle) else { return };
        let now = self.now();
        let vouched = &mut self.connections[index as usize].vouched;
        // what was found out before is told, and will be again
        if vouched.pending.is_none() || vouched.owed {
            return;
        }
        (vouched.pending, vouched.last) = (None, Some(vouch));
        match vouch {
            Vouch::Heard { spoken } => {
                vouched.heard = now;
                vouched.spoken = if spoken { now } else { vouched.spoken };
            }
            Vouch::Silent => self.look_by(now),
        }
    }

    /// Whether it is still to be found out if a lane hears a connection's peer.
    pub fn is_vouch_pending(&self, index: u32) -> bool {
        self.connections[index as usize].vouched.pending.is_some() && self.has_voucher(index)
    }

    /// Whether a lane has heard a connection's peer, as far as is known, and since `lately`
    /// also its program.
    pub fn is_vouched_for(&self, index: u32, lately: Instant) -> bool {
        let Vouched { spoken, last, pending, .. } = self.connections[index as usize].vouched;
        let is_heard = matches!(last, Some(Vouch::Heard { .. })) && spoken >= lately;
        (pending.is_some() || is_heard) && self.has_voucher(index)
    }

    /// When such a lane of a connection has heard its peer last.
    pub fn when_vouched(&self, index: u32) -> Instant {
        match self.has_voucher(index) {
            true => self.connections[index as usize].vouched.heard,
            false => Instant(0),
        }
    }
}
