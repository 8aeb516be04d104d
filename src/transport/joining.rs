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
#![forbid(unsafe_code)]

use super::endpoint::Endpoint;
use super::mr::PROBE_BYTES;
use super::rail::{Answer, Flush, Lane, LaneState, Probe};
use super::records::{ConnectionState, Fence, NEVER};
use super::report_error::ReportError;
use crate::base::ids::ConnectionIndex;
use crate::base::seq::Seq;
use crate::base::units::Span;
use crate::fabric::{LocalSpan, Provider, RailKey};
use crate::wire::head::{KIND_FLUSH, KIND_FLUSHED, KIND_PROBE, KIND_PROBED, SendHead};

/// How long control is held for the peer's word.
const HELD_MAX: Span = Span::millis(10);
/// How long after that it is held again; and how long after it was let go for what became due.
const PAUSE: Span = Span::millis(50);
const PAUSE_SHORT: Span = Span::millis(1);

/// A lane that has been opened anew in the rail.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct LaneJoin {
    /// Which use of it, more than the last one.
    pub generation: u32,
    /// What it calls the peer's mailbox; `None`: as before.
    pub mailbox_key: Option<RailKey>,
    /// Whether the peer may not be able to receive on it yet: it is probed when the peer's probe
    /// has come, which this side must be able to receive.
    pub waits: bool,
}

impl<P: Provider> Endpoint<'_, P> {
    /// A lane of a connection that has just been opened goes by keys of its own: those that were
    /// entered at place `key` of [`super::DataMrs::insert`]. Others go by the first.
    pub fn lane_key_set(&mut self, connection: ConnectionIndex, lane: u8, key: u8) {
        self.lane_mut(connection.as_usize(), lane).key = key;
    }

    /// A lane that was down has been opened anew in the rail, as `generation`: it is probed, and
    /// used again when the peer has said that the probe has come. `false`: the connection is
    /// closed, or the lane is not down.
    pub fn lane_rejoin(&mut self, connection: ConnectionIndex, lane: u8, generation: u32) -> bool {
        let join = LaneJoin { generation, mailbox_key: None, waits: false };
        self.lane_join(connection, lane, &join)
    }

    /// [`Endpoint::lane_rejoin`] of a lane that says more.
    pub fn lane_join(&mut self, connection: ConnectionIndex, lane: u8, join: &LaneJoin) -> bool {
        let generation = join.generation;
        let index = connection.as_usize();
        let c = &self.connections[index];
        let entry = self.lane(index, lane.min(c.rails.count - 1));
        let down = c.state == ConnectionState::Open
            && lane < c.rails.count
            && entry.state == LaneState::Down
            && generation > entry.generation;
        if !down {
            return false;
        }
        let (peer_past, code, key) = (entry.peer_past, entry.code, entry.key);
        let mailbox_key = join.mailbox_key.unwrap_or(entry.mailbox_key);
        *self.lane_mut(index, lane) = Lane {
            state: LaneState::Joining,
            fence: Fence::Needed,
            peer_fenced: false,
            probe: if join.waits { Probe::Waits } else { Probe::Due },
            key,
            generation,
            peer_past,
            code,
            mailbox_key,
            ..Lane::DOWN
        };
        if let Some(meter) = self.meters.get_mut(self.lane_at(index, lane)) {
            meter.joins();
        }
        self.lanes_down.remove(self.lane_at(index, lane));
        self.work.insert(index);
        if generation < peer_past {
            // the peer's end is dead already, and it will not say so again
            self.lane_fail(index, lane, 0);
        }
        true
    }

    /// Probes lanes that are joining, and answers the peer's probes.
    pub(super) fn probes_step(&mut self, index: usize) -> bool {
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

    /// The peer has opened a lane too, and what it sends there comes. Whether what we send gets to
    /// it, its answer to our own probe says; one that gives no answers is believed to hear us.
    pub(super) fn probe_arrived(
        &mut self,
        index: usize,
        lane: u8,
        number: u32,
    ) -> Result<(), ReportError> {
        let answers = self.connections[index].rails.probed;
        let entry = self.lane_mut(index, lane);
        if number != entry.generation {
            return Err(ReportError::Generation);
        }
        if !matches!(entry.state, LaneState::Joining | LaneState::Up) {
            return Ok(());
        }
        if entry.probe == Probe::Waits {
            entry.probe = Probe::Due;
        }
        if answers {
            entry.answer = match entry.answer {
                Answer::No | Answer::Due => Answer::Due,
                Answer::Given | Answer::DueAgain => Answer::DueAgain,
            };
        }
        self.work.insert(index);
        if !answers {
            self.lane_joined(index, lane);
        }
        Ok(())
    }

    /// Our probe of a lane has come to the peer: the long one is next, or the lane is used.
    pub(super) fn probe_answered(
        &mut self,
        index: usize,
        lane: u8,
        number: u32,
    ) -> Result<(), ReportError> {
        if !self.connections[index].rails.probed {
            return Err(ReportError::Malformed);
        }
        let entry = self.lane_mut(index, lane);
        if number != entry.generation {
            return Err(ReportError::Generation);
        }
        match entry.probe {
            Probe::Sent => {
                entry.probe = Probe::LongDue;
                self.work.insert(index);
            }
            Probe::LongSent => {
                entry.probe = Probe::No;
                self.lane_joined(index, lane);
            }
            Probe::No => {} // it has failed since
            Probe::Waits | Probe::Due | Probe::LongDue => return Err(ReportError::Generation),
        }
        Ok(())
    }

    fn lane_joined(&mut self, index: usize, lane: u8) {
        let entry = self.lane_mut(index, lane);
        if entry.state != LaneState::Joining {
            return;
        }
        entry.state = LaneState::Up;
        self.meter_mut(index, lane).stats.joins += 1;
        let c = &mut self.connections[index];
        c.rails.up |= 1 << lane;
        // what this one does not carry either has waited since before
        if !self.has_unknown(index) {
            self.connections[index].rails.stranded_at = NEVER;
        }
        self.stats.lane_joins += 1;
        self.news += 1;
        self.work.insert(index);
    }

    /// Takes control from a lane that is there for others to one that is not; says whether
    /// something is due. Also answers the peer, which does the same.
    pub(super) fn flushes_step(&mut self, index: usize) -> bool {
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
    pub(super) fn control_release(&mut self, index: usize) {
        let control = self.connections[index].rails.control_lane.lane;
        if matches!(self.lane(index, control).flush, Flush::Asked | Flush::Holds) {
            self.connections[index].rails.control_lane.blocked = false;
            self.flush_set(index, control, Flush::Later);
            let early = PAUSE.0 - PAUSE_SHORT.0;
            self.lane_mut(index, control).failed_at.0 = self.now.0.saturating_sub(early);
            self.work.insert(index);
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
        let peer = self.lane_peer_of(index, control);
        let c = &mut self.connections[index];
        c.rails.control_lane.blocked = false;
        (c.rails.control_lane.lane, c.rails.control_lane.peer) = (control, peer);
        c.control.mailbox.0.key = mailbox_key;
        // it came in turn: nothing of it need be kept, should the old lane fail
        c.send.stream.taken_through = c.send.stream.number;
        self.stats.control_moves += 1;
        self.watch.insert(index);
        self.work.insert(index);
        self.news += 1;
    }

    /// The peer asks whether all has come on a lane. Its lines have landed; where a send of its
    /// stream is still to come, which keeps no order on this rail, it is not answered.
    pub(super) fn flush_asked(
        &mut self,
        index: usize,
        lane: u8,
        head: &SendHead,
    ) -> Result<(), ReportError> {
        if Seq(head.eager_number) == self.connections[index].recv.expected {
            self.lane_mut(index, lane).flushed_due = Some(head.tag as u32);
            self.work.insert(index);
        }
        Ok(())
    }

    /// All has come, if this is about the last time that we asked.
    pub(super) fn flush_answered(
        &mut self,
        index: usize,
        lane: u8,
        number: u32,
    ) -> Result<(), ReportError> {
        let entry = self.lane_mut(index, lane);
        if entry.flush == Flush::Asked && entry.flush_number == number {
            entry.flush = Flush::Holds;
            self.work.insert(index);
        }
        Ok(())
    }
}
