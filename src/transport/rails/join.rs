//! How lanes join a connection, and on which of them control runs.
//!
//! A path may be dead in one direction alone. So a side uses a lane when the peer has said, on that
//! lane, that our probe has come. The peer's own probe shows the other direction only. A path may
//! also lose long packets alone, if a switch has a smaller MTU than the hosts. So a long probe
//! follows the empty one, and the lane is used when both have come.
//!
//! A reserve lane (`ConnectionSetup::reserve`) carries control while no other lane is in use. When
//! one is, control moves in this order:
//!
//! 1. Control is held.
//! 2. The peer is asked whether everything that was sent on the reserve has come.
//! 3. When it says so, control goes on at the new lane. Nothing is in flight then, so no line can
//!    land behind a newer one.
//!
//! In two cases control goes on as it was, and asks again later:
//!
//! - The peer does not answer soon: our requests must not wait for it.
//! - A receive has ended: our program may leave the library, and the peer must not wait for us.

use super::table::{Answer, Flush, Lane, LaneState, Probe};
use crate::base::seq::Seq;
use crate::base::units::{Instant, Span};
use crate::fabric::{LocalSpan, Provider};
use crate::transport::control::report::ReportError;
use crate::transport::limits::STREAM_KEPT;
use crate::transport::mr::PROBE_BYTES;
use crate::transport::mutant::Mutant;
use crate::transport::net::Net;
use crate::wire::head::{KIND_FLUSH, KIND_FLUSHED, KIND_PROBE, KIND_PROBED, SendHead};

/// How long control is held for the peer's word.
const HELD_MAX: Span = Span::millis(10);
/// How long after that it is held again; and how long after it was let go for what became due.
const PAUSE: Span = Span::millis(50);
const PAUSE_SHORT: Span = Span::millis(1);

impl<P: Provider> Net<'_, P> {
    /// Whether nothing is due on the lanes of a connection, as is so nearly always: then none of
    /// the steps below has anything to do.
    #[inline]
    pub fn lanes_are_calm(&self, index: usize) -> bool {
        let c = &self.connections[index];
        let owes = c.rails.quarantine
            | c.rails.control_lane.blocked
            | c.send.stream.resend.is_some()
            | c.control.report.is_due()
            | c.rails.is_control_away();
        let lanes = &self.lanes.table[self.lane_at(index, 0)..][..usize::from(c.rails.count)];
        !owes && lanes.iter().all(Lane::is_calm)
    }

    /// The peer cannot be reached by what was written on our old control lane any more: everything
    /// that it may have lost is written again, on another.
    pub fn control_resume(&mut self, index: usize) {
        let from_start = self.is_mutant(Mutant::CursorIgnored);
        let control = self.connections[index].rails.control_next();
        let mailbox_key = self.lane(index, control).mailbox_key;
        self.control_set(index, control);
        let c = &mut self.connections[index];
        (c.rails.control_lane.blocked, c.rails.control_lane.fenced) = (false, false);
        c.control.mailbox.0.key = mailbox_key;
        // lines: whatever the peer may still look for
        c.control.lines.flying = 0;
        c.control.lines.state_flying = false;
        c.recv.delivery_news = true;
        c.send.cursor.canceled_news |= c.send.cursor.canceled.is_some();
        c.recv.offers.canceling = None; // asked once more when all slots are written
        c.recv.offers.again = true;
        c.recv.offers.next = c.recv.offers.passed;
        c.recv.offers.at = 0;
        c.recv.cells.lose();
        // the stream: what the peer has not taken in
        let untaken = c.send.stream.taken_through != c.send.stream.number;
        c.send.stream.resend = untaken.then_some(c.send.stream.taken_through);
        if from_start && c.send.stream.number.0 <= STREAM_KEPT {
            c.send.stream.resend = Some(Seq(0));
        }
        self.stats.control_moves += 1;
        self.due.watch.insert(index);
        self.due.work.insert(index);
    }

    /// Probes lanes that are joining, and answers the peer's probes.
    pub fn probes_step(&mut self, index: usize) -> bool {
        let mut remain = false;
        for lane in 0..self.connections[index].rails.count {
            remain |= self.probe_step(index, lane) | self.answer_step(index, lane);
        }
        remain
    }

    /// `true`: there was no room.
    fn probe_step(&mut self, index: usize, lane: u8) -> bool {
        let entry = self.lane(index, lane);
        let number = entry.generation as i32;
        let (payload, sent) = match entry.probe {
            Probe::Due => (LocalSpan::EMPTY, Probe::Sent),
            Probe::LongDue => (self.probe_long(index, lane), Probe::LongSent),
            Probe::No | Probe::Waits | Probe::Sent | Probe::LongSent => return false,
        };
        let is_sent = self.word_send(index, lane, KIND_PROBE, number, payload);
        if is_sent {
            self.lane_mut(index, lane).probe = sent;
        }
        !is_sent
    }

    /// The same. The second answer goes behind our own long probe: where rails keep the order it is
    /// lost with that, and the peer does not use a lane that we shall have to give up.
    fn answer_step(&mut self, index: usize, lane: u8) -> bool {
        let entry = self.lane(index, lane);
        let is_early =
            matches!(entry.probe, Probe::Waits | Probe::Due | Probe::Sent | Probe::LongDue);
        match entry.answer {
            Answer::Due => {}
            Answer::DueAgain if !is_early => {}
            Answer::No | Answer::Given | Answer::DueAgain => return false,
        }
        let number = entry.generation as i32;
        let is_sent = self.word_send(index, lane, KIND_PROBED, number, LocalSpan::EMPTY);
        if is_sent {
            self.lane_mut(index, lane).answer = Answer::Given;
        }
        !is_sent
    }

    /// What our second probe bears, which nobody reads: as much as a message of the stream may.
    fn probe_long(&mut self, index: usize, lane: u8) -> LocalSpan {
        let most = self.rail.send_payload_max(self.lane_peer_of(index, lane)).0;
        let bytes = [0; PROBE_BYTES];
        let length = self.scratch.length().min(most as usize);
        self.scratch.fill(&bytes[..length])
    }

    /// Takes control from a lane that is there for others to one that is not; says whether
    /// something is due. Also answers the peer, which does the same.
    pub fn flushes_step(&mut self, index: usize) -> bool {
        let mut remain = false;
        for lane in 0..self.connections[index].rails.count {
            if let Some(number) = self.lane(index, lane).flushed_due {
                let told =
                    self.word_send(index, lane, KIND_FLUSHED, number as i32, LocalSpan::EMPTY);
                if told || self.lane(index, lane).state != LaneState::Up {
                    self.lane_mut(index, lane).flushed_due = None;
                }
                remain |= !told;
            }
        }
        remain | self.control_step(index)
    }

    fn control_step(&mut self, index: usize) -> bool {
        let (c, now) = (&self.connections[index], self.now);
        let (control, away) = (c.rails.control_lane.lane, c.rails.is_control_away());
        let landed = c.control.lines.flying == 0 && !c.control.lines.state_flying && !c.state_due();
        let (blocked, resends) = (c.rails.control_lane.blocked, c.send.stream.resend.is_some());
        let entry = self.lane(index, control);
        let (flush, since) = (entry.flush, now.since(entry.failed_at));
        match flush {
            Flush::No if !away || blocked || resends => false,
            Flush::Asked if !away || since > HELD_MAX => {
                // the peer is elsewhere: what waits goes the old way
                self.connections[index].rails.control_lane.blocked = false;
                self.flush_set(index, control, Flush::Later);
                true
            }
            Flush::Holds if !away => {
                self.connections[index].rails.control_lane.blocked = false;
                self.flush_set(index, control, Flush::No);
                true
            }
            Flush::Later if !away => {
                self.flush_set(index, control, Flush::No);
                false
            }
            Flush::Later if since < PAUSE || blocked || resends => true,
            Flush::No | Flush::Later => {
                let number = entry.flush_number.wrapping_add(1);
                if landed
                    && self.word_send(index, control, KIND_FLUSH, number as i32, LocalSpan::EMPTY)
                {
                    self.connections[index].rails.control_lane.blocked = true;
                    self.lane_mut(index, control).flush_number = number;
                    self.flush_set(index, control, Flush::Asked);
                }
                true
            }
            Flush::Asked => true,
            Flush::Holds => {
                self.flush_set(index, control, Flush::No);
                self.control_move(index);
                true
            }
        }
    }

    /// A message has come whose sender must hear of it now, since our program may go elsewhere:
    /// control is not held for the peer's word any more.
    #[cold]
    pub fn control_release(&mut self, index: usize) {
        let control = self.connections[index].rails.control_lane.lane;
        if matches!(self.lane(index, control).flush, Flush::Asked | Flush::Holds) {
            self.connections[index].rails.control_lane.blocked = false;
            self.flush_set(index, control, Flush::Later);
            let early = PAUSE.0 - PAUSE_SHORT.0;
            self.lane_mut(index, control).failed_at.0 = self.now.0.saturating_sub(early);
            self.due.work.insert(index);
        }
    }

    fn flush_set(&mut self, index: usize, lane: u8, flush: Flush) {
        let now = self.now;
        let entry = self.lane_mut(index, lane);
        // of a lane in use nothing else is noted there
        (entry.flush, entry.failed_at) = (flush, now);
    }

    /// All that was sent on the control lane has come, and nothing has left since.
    fn control_move(&mut self, index: usize) {
        let control = self.connections[index].rails.control_next();
        let mailbox_key = self.lane(index, control).mailbox_key;
        self.control_set(index, control);
        let c = &mut self.connections[index];
        c.rails.control_lane.blocked = false;
        c.control.mailbox.0.key = mailbox_key;
        // it came in turn: nothing of it need be kept, should the old lane fail
        c.send.stream.taken_through = c.send.stream.number;
        self.stats.control_moves += 1;
        self.due.watch.insert(index);
        self.due.work.insert(index);
        self.news += 1;
    }

    /// The peer asks whether all has come on a lane. Its lines have landed; where a send of its
    /// stream is still to come, which keeps no order on this rail, it is not answered.
    pub fn flush_asked(
        &mut self,
        index: usize,
        lane: u8,
        head: &SendHead,
    ) -> Result<(), ReportError> {
        if Seq(head.eager_number) == self.connections[index].recv.expected {
            self.lane_mut(index, lane).flushed_due = Some(head.tag as u32);
            self.due.work.insert(index);
        }
        Ok(())
    }

    /// All has come, if this is about the last time that we asked.
    pub fn flush_answered(
        &mut self,
        index: usize,
        lane: u8,
        number: u32,
    ) -> Result<(), ReportError> {
        let entry = self.lane_mut(index, lane);
        if entry.flush == Flush::Asked && entry.flush_number == number {
            entry.flush = Flush::Holds;
            self.due.work.insert(index);
        }
        Ok(())
    }

    /// The provider says that the peer has closed a lane in good order.
    pub fn lane_closed(&mut self, index: usize, lane: u8) {
        let entry = self.lane_mut(index, lane);
        (entry.closed, entry.heard_at) = (true, Instant(0));
        self.trouble(index);
    }
}
