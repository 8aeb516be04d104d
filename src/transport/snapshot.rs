//! How connections and their open requests stand, as plain data for whoever asks.
//!
//! The data path pays nothing for it: a request has its age from a *watch*, a pass over the records
//! that the owner makes now and then. The watch stamps what it finds open for the first time with
//! its own count, a *tick*, so that ages are right to one of them.
#![forbid(unsafe_code)]

use super::limits::CREDITS_FOR_STARTS;
use super::net::Net;
use super::rails::table::LaneState;
use super::records::{ConnectionState, GroupRecord, NIL, SendRecord, SendState};
use super::recv::groups::Recvs;
use super::recv::matching;
use super::request::RequestError;
use super::send::queue::Sends;
use crate::base::ids::ConnectionIndex;
use crate::base::seq::Seq;
use crate::fabric::Provider;
use crate::wire::status::{RailStanding, RequestStatus, Standing, Status, StatusHello, Waits};

/// Ticks go from 1 to this, and start again.
pub const TICKS: u16 = 0x7fff;
/// Ages stop growing here, well before they would start again.
const AGE_TICKS_MAX: u16 = 0x6000;
/// Beside the tick in a record: the request has been reported.
const REPORTED: u16 = 0x8000;

/// A moment of the watch, and how long a tick is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Tick {
    /// Its count, 1 to [`TICKS`].
    pub at: u16,
    /// Length of a tick in ms.
    pub span_ms: u32,
    /// The time itself in ms, never 0; it starts again after 49 days.
    now_ms: u32,
}

/// Times since something moved stop growing here.
const STILL_MS_MAX: u32 = 1 << 30;

impl Tick {
    /// The tick of a time.
    pub const fn of(now_ms: u64, span_ms: u32) -> Tick {
        let at = (now_ms / span_ms as u64 % TICKS as u64) as u16 + 1;
        let now_ms = if now_ms as u32 == 0 { 1 } else { now_ms as u32 };
        Tick { at, span_ms, now_ms }
    }

    /// ms since the time `then_ms` of another tick; 0: it was never set, or is later.
    const fn ms_after(self, then_ms: u32) -> u32 {
        let since = self.now_ms.wrapping_sub(then_ms);
        if then_ms == 0 || since > u32::MAX / 2 { 0 } else { since }
    }

    /// Ticks since `then`.
    const fn since(self, then: u16) -> u16 {
        let (at, then) = (self.at, then & !REPORTED);
        if at >= then { at - then } else { at + TICKS - then }
    }

    const fn ms_since(self, then: u16) -> u32 {
        match then {
            0 => 0,
            then => self.since(then) as u32 * self.span_ms,
        }
    }

    /// The tick `ticks` before.
    const fn before(self, ticks: u16) -> u16 {
        if self.at > ticks { self.at - ticks } else { self.at + TICKS - ticks }
    }

    /// Stamps what is open for the first time, and keeps old stamps from starting again; gives the
    /// age in ms, and whether it has been reported.
    const fn stamp(self, seen: &mut u16) -> (u32, bool) {
        if *seen == 0 {
            *seen = self.at;
        }
        if self.since(*seen) > AGE_TICKS_MAX {
            *seen = self.before(AGE_TICKS_MAX) | *seen & REPORTED;
        }
        (self.ms_since(*seen), *seen & REPORTED != 0)
    }
}

/// What a watch has found on one connection.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Watched {
    /// Requests that are open.
    pub open: u32,
    /// Those of them that have not been reported.
    pub unreported: u32,
    /// Age of the oldest in ms.
    pub oldest_ms: u32,
    /// Age of the oldest that has not been reported, in ms; 0 also when there is none.
    pub unreported_ms: u32,
}

impl Watched {
    fn count(&mut self, (age_ms, reported): (u32, bool)) {
        self.open += 1;
        self.oldest_ms = self.oldest_ms.max(age_ms);
        if !reported {
            self.unreported += 1;
            self.unreported_ms = self.unreported_ms.max(age_ms);
        }
    }
}

/// A step of a checksum.
fn mix(sum: u32, number: u64) -> u32 {
    let number = number as u32 ^ (number >> 32) as u32;
    (sum ^ number).wrapping_mul(0x0100_0193).rotate_left(5)
}

fn send_is_open(send: &SendRecord) -> bool {
    !matches!(send.state, SendState::Free | SendState::Done)
}

fn group_is_open(group: &GroupRecord) -> bool {
    group.used && group.done != matching::full(group.count)
}

/// What an endpoint remembers, to be read.
pub(super) struct View<'a, 'm, P: Provider> {
    pub net: &'a Net<'m, P>,
    pub sends: &'a Sends<'m>,
    pub recvs: &'a Recvs<'m>,
}

impl<P: Provider> View<'_, '_, P> {
    /// Changes when something moves on a connection, but for one time in 65,536.
    fn movement(&self, index: usize) -> u16 {
        let c = &self.net.connections[index];
        let mut sum = self.progress(index);
        for number in [
            c.control.credits.consumed.0,
            c.control.lines.seen,
            c.control.report.seen,
            u32::from(c.rails.up),
        ] {
            sum = mix(sum, number.into());
        }
        let first = self.net.send_at(index, 0);
        let end = first + self.net.limits.requests_max as usize;
        for send in self.sends.records[first..end].iter().filter(|send| send_is_open(send)) {
            sum = mix(mix(sum, send.posted), send.written);
        }
        (sum ^ sum >> 16) as u16
    }

    /// Changes when messages of a connection get further, nearly always: not by what a lane's
    /// failure takes back or says again.
    pub fn progress(&self, index: usize) -> u32 {
        let c = &self.net.connections[index];
        let mut sum = 0u32;
        for number in [
            c.send.stream.number.0,
            c.recv.expected.0,
            c.send.number.0,
            c.send.delivered_through.0,
            c.recv.arrived.through().0,
            c.recv.arrived.mask() as u32,
            c.control.credits.through.0,
            c.send.cursor.group.0,
            c.recv.oldest.0,
        ] {
            sum = mix(sum, number.into());
        }
        let first = self.net.send_at(index, 0);
        let end = first + self.net.limits.requests_max as usize;
        if c.rails.fails_over() {
            let open = (first..end).filter(|at| send_is_open(&self.sends.records[*at]));
            sum = open.fold(sum, |sum, at| mix(sum, self.sends.arrived_of(self.net, at)));
        }
        for at in (first..end).filter(|at| group_is_open(&self.recvs.groups[*at])) {
            let group = &self.recvs.groups[at];
            sum = mix(sum, u64::from(group.bound) << 8 | u64::from(group.done));
            let receives = self.recvs.receives_of(at, group.count);
            sum = receives.fold(sum, |sum, receive| mix(sum, receive.stripes));
        }
        sum
    }

    /// One of the open requests of a connection: `at` goes over the records, sends first, to twice
    /// [`Limits::requests_max`](super::Limits::requests_max).
    pub fn request_status(
        &self,
        connection: ConnectionIndex,
        at: u32,
        tick: Tick,
    ) -> Option<RequestStatus> {
        let (index, records) = (connection.as_usize(), self.net.limits.requests_max);
        let record = (at % records) as u8;
        let place = self.net.send_at(index, record);
        match at / records {
            0 if send_is_open(&self.sends.records[place]) => {
                Some(self.send_status(index, record, tick))
            }
            1 if group_is_open(&self.recvs.groups[place]) => {
                Some(self.group_status(index, record, tick))
            }
            _ => None,
        }
    }

    /// How a connection stands, with its oldest requests.
    pub fn status(&self, connection: ConnectionIndex, tick: Tick) -> StatusHello {
        let index = connection.as_usize();
        let mut hello = StatusHello { status: self.standing(index, tick), ..StatusHello::ZERO };
        for at in 0..2 * self.net.limits.requests_max {
            let Some(request) = self.request_status(connection, at, tick) else { continue };
            let (place, count) = match request.waits().is_receive() {
                true => (&mut hello.receive, &mut hello.status.receives),
                false => (&mut hello.send, &mut hello.status.sends),
            };
            *count += 1;
            // of those that are as old a receive is known by its number, and of the sends the first
            // in the queue is
            let first = match request.waits().is_receive() {
                true => Seq(request.sequence).before(Seq(place.sequence)),
                false => self.net.connections[index].send.queue.head == Some(request.record),
            };
            // what waits for a tag may do so for good, and hide one that has lost something
            let (hides, is_hidden) =
                (request.waits() == Waits::Tag, request.waits() == Waits::Room);
            let ahead = match place.waits() {
                Waits::Tag if is_hidden => true,
                Waits::Room if hides => false,
                _ => request.age_ms > place.age_ms || request.age_ms == place.age_ms && first,
            };
            if place.waits == 0 || ahead {
                *place = request;
            }
        }
        hello
    }

    fn standing(&self, index: usize, tick: Tick) -> Status {
        let c = &self.net.connections[index];
        let mut status = Status {
            moved_ms: tick.ms_after(c.moved_at_ms),
            standing: match c.state {
                ConnectionState::Free => Standing::None,
                ConnectionState::Open => Standing::Open,
                ConnectionState::Failing => Standing::Failing,
                ConnectionState::Failed => Standing::Failed,
                ConnectionState::Closing => Standing::Closing,
            } as u8,
            pull: c.pull.into(),
            lane_count: c.rails.count,
            up: c.rails.up,
            control: c.rails.control_lane.lane,
            control_blocked: c.rails.control_lane.blocked.into(),
            queued: list_length(c.send.queue.head, |at| {
                self.sends.queue_after(self.net, index, at)
            }),
            unexpected: list_length(known(c.recv.messages.unexpected.head), |at| {
                known(self.recvs.held.get(index, at).next)
            }),
            eager_number: c.send.stream.number.0,
            eager_expected: c.recv.expected.0,
            send_number: c.send.number.0,
            delivered_through: c.send.delivered_through.0,
            arrived_through: c.recv.arrived.through().0,
            consumed: c.control.credits.consumed.0,
            credits_through: c.control.credits.through.0,
            credits_given: c.control.credits.now().0,
            group_oldest: c.recv.oldest.0,
            group_post: c.recv.post.0,
            slots_next: c.recv.offers.next.0,
            group_next: c.send.cursor.group.0,
            epoch: c.control.epoch,
            peer_epoch: c.control.peer_epoch,
            failure: failure_number(c.failure.0),
            ..Status::ZERO
        };
        if c.recv.messages.unexpected.head != NIL {
            status.unexpected_tag =
                self.recvs.held.get(index, c.recv.messages.unexpected.head).tag as u32;
        }
        for lane in 0..c.rails.count {
            let entry = self.net.lane(index, lane);
            let standing = match entry.state {
                LaneState::Down => RailStanding::Down,
                LaneState::Joining => RailStanding::Joining,
                LaneState::Up => RailStanding::Up,
                LaneState::Failing => RailStanding::Failing,
                LaneState::Fenced => RailStanding::Fenced,
            };
            status.lane_set(lane.into(), entry.generation, standing);
        }
        self.oldest_group(index, &mut status);
        status
    }

    fn oldest_group(&self, index: usize, status: &mut Status) {
        let c = &self.net.connections[index];
        if c.recv.oldest == c.recv.post {
            return;
        }
        let at = self.net.group_at(index, c.recv.oldest);
        let group = &self.recvs.groups[at];
        (status.group_count, status.group_bound) = (group.count, group.bound);
        for (place, receive) in self.recvs.receives_of(at, group.count).enumerate() {
            status.tag_set(place, receive.label as i32);
        }
    }

    fn send_status(&self, index: usize, record: u8, tick: Tick) -> RequestStatus {
        let at = self.net.send_at(index, record);
        let send = &self.sends.records[at];
        let short = self.is_short_send(index, send);
        let number = match send.state {
            SendState::Queued => self.queued_number(index, record, short),
            _ => send.number,
        };
        RequestStatus {
            length: send.length,
            posted: send.posted,
            written: send.written,
            age_ms: tick.ms_since(send.seen),
            tag: send.tag as u32,
            sequence: number.0,
            token: send.token,
            generation: send.generation,
            waits: self.send_waits(index, record) as u8,
            stripes: send.stripes,
            rails: self.send_rails(index, at),
            record,
            short: short.into(),
            ..RequestStatus::ZERO
        }
    }

    fn is_short_send(&self, index: usize, send: &SendRecord) -> bool {
        send.state == SendState::Queued && self.net.is_short(index, send.region, send.length)
    }

    /// The number that a queued send has when those before it have left in their order: each send
    /// has one in the stream, and a long one is named by that among the long ones.
    fn queued_number(&self, index: usize, record: u8, short: bool) -> Seq {
        let c = &self.net.connections[index];
        let (mut at, mut before) = (c.send.queue.head, 0);
        while let Some(earlier) = at.filter(|at| *at != record) {
            let send = &self.sends.records[self.net.send_at(index, earlier)];
            before += u32::from(short || !self.is_short_send(index, send));
            at = self.sends.queue_after(self.net, index, earlier);
        }
        let next = if short { c.send.stream.number } else { c.send.number };
        next.plus(before)
    }

    /// A bit for each lane that carries stripes which have not completed.
    fn send_rails(&self, index: usize, at: usize) -> u8 {
        let (send, c) = (&self.sends.records[at], &self.net.connections[index]);
        let under_way = send.posted & !send.written;
        if !c.rails.fails_over() {
            return u8::from(under_way != 0 || send.state == SendState::Waiting);
        }
        let carried = self.sends.carried_of(self.net, at);
        (0..c.rails.count).fold(0, |bits, lane| {
            // what a failed lane has carried counts until the peer says what came
            let failed =
                matches!(self.net.lane(index, lane).state, LaneState::Failing | LaneState::Fenced);
            let of_lane = carried[usize::from(lane)] & if failed { u64::MAX } else { under_way };
            bits | u8::from(of_lane != 0) << lane
        })
    }

    fn send_waits(&self, index: usize, record: u8) -> Waits {
        let (send, c) =
            (&self.sends.records[self.net.send_at(index, record)], &self.net.connections[index]);
        match send.state {
            SendState::Free | SendState::Done => Waits::None,
            SendState::Queued if c.rails.control_lane.blocked => Waits::Control,
            SendState::Queued => self.queued_waits(index, record),
            SendState::Writing => Waits::Stripes,
            SendState::Waiting if c.pull => Waits::Reading,
            SendState::Waiting if send.posted != send.written => Waits::Completion,
            SendState::Leaving => Waits::Completion,
            SendState::Waiting => Waits::Delivery,
        }
    }

    fn queued_waits(&self, index: usize, record: u8) -> Waits {
        let (send, c) =
            (&self.sends.records[self.net.send_at(index, record)], &self.net.connections[index]);
        let head = c.send.queue.head == Some(record);
        let credit = c.control.credits.may_consume(if c.pull { 0 } else { CREDITS_FOR_STARTS });
        if c.pull {
            return match head {
                false => Waits::Turn,
                true if credit && c.send.may_number() => Waits::Room,
                true => Waits::Credit,
            };
        }
        if c.send.cursor.count == 0 {
            let short = self.net.is_short(index, send.region, send.length);
            return match head {
                false => Waits::Turn,
                true if short && !credit => Waits::Credit,
                true if short && self.sends.may_go_early(self.net, index, send.length) => {
                    Waits::Room
                }
                true => Waits::Slot,
            };
        }
        let tags =
            (0..c.send.cursor.count).map(|at| self.net.slot_tag(index, c.send.cursor.group, at));
        let start = c.control.credits.may_consume(0) && c.send.may_number();
        match matching::find(tags, c.send.cursor.bound, send.tag) {
            None => Waits::Tag,
            Some(_) if start => Waits::Room,
            Some(_) => Waits::Credit,
        }
    }

    fn group_status(&self, index: usize, record: u8, tick: Tick) -> RequestStatus {
        let at = self.net.send_at(index, record);
        let (group, c) = (&self.recvs.groups[at], &self.net.connections[index]);
        let open = (0..group.count).find(|at| group.done >> at & 1 == 0).unwrap_or(0);
        let receive = &self.recvs.receives[self.recvs.receive_at(at, open)];
        let bound = group.bound >> open & 1 == 1;
        let unwritten = !c.pull && group.number.ahead_of(c.recv.offers.next) >= 0;
        let waits = match bound {
            true => Waits::Arrival,
            false if group.number.ahead_of(c.recv.oldest) > 0 => Waits::Older,
            false if unwritten && c.rails.control_lane.blocked => Waits::Control,
            false if unwritten => Waits::Offer,
            false => Waits::Message,
        };
        // control is waited for in both directions; as a receive it still is one
        let waits = if waits == Waits::Control { Waits::Offer } else { waits };
        RequestStatus {
            length: receive.length,
            posted: receive.stripes,
            age_ms: tick.ms_since(group.seen),
            tag: if bound { 0 } else { receive.label },
            sequence: group.number.0,
            generation: group.generation,
            waits: waits as u8,
            stripes: if bound { receive.total } else { 0 },
            record,
            count: group.count,
            bound: group.bound,
            done: group.done,
            ..RequestStatus::ZERO
        }
    }
}

/// A number for each error; 0: closed here, or none.
fn failure_number(error: RequestError) -> u32 {
    match error {
        RequestError::Closed => 0,
        RequestError::Truncated => 1,
        RequestError::PeerClosed => 2,
        RequestError::PeerDied => 3,
        RequestError::Canceled => 4,
        RequestError::Protocol => 5,
        RequestError::Fabric(_) => 6,
        RequestError::RailsLost(_) => 7,
        RequestError::NoAnswer => 8,
        RequestError::Unfenced => 9,
        RequestError::Silent => 10,
        RequestError::PeerGaveUp => 11,
    }
}

fn known(record: u8) -> Option<u8> {
    (record != NIL).then_some(record)
}

fn list_length(head: Option<u8>, next: impl Fn(u8) -> Option<u8>) -> u16 {
    core::iter::successors(head, |at| next(*at)).count() as u16
}

/// Looks at the open requests of a connection; those that it sees first begin to age.
///
/// *Cost*: reads each record of the connection.
pub(super) fn watch<P: Provider>(
    (net, sends, recvs): (&mut Net<'_, P>, &mut Sends<'_>, &mut Recvs<'_>),
    connection: ConnectionIndex,
    tick: Tick,
) -> Watched {
    let index = connection.as_usize();
    let mut watched = Watched::default();
    let c = &net.connections[index];
    if c.state == ConnectionState::Free {
        return watched;
    }
    let moved = View { net: &*net, sends: &*sends, recvs: &*recvs }.movement(index);
    let c = &mut net.connections[index];
    if c.moved != moved || c.moved_at_ms == 0 {
        (c.moved, c.moved_at_ms) = (moved, tick.now_ms);
    }
    if tick.ms_after(c.moved_at_ms) > STILL_MS_MAX {
        c.moved_at_ms = tick.now_ms.wrapping_sub(STILL_MS_MAX).max(1);
    }
    let first = net.send_at(index, 0);
    let end = first + net.limits.requests_max as usize;
    for send in sends.records[first..end].iter_mut().filter(|send| send_is_open(send)) {
        watched.count(tick.stamp(&mut send.seen));
    }
    for group in recvs.groups[first..end].iter_mut().filter(|group| group_is_open(group)) {
        watched.count(tick.stamp(&mut group.seen));
    }
    watched
}

/// The next open request of a connection that is older than `age_ms` and was not given before.
pub(super) fn next_stalled<P: Provider>(
    (net, sends, recvs): (&mut Net<'_, P>, &mut Sends<'_>, &mut Recvs<'_>),
    connection: ConnectionIndex,
    age_ms: u32,
    tick: Tick,
) -> Option<RequestStatus> {
    let index = connection.as_usize();
    let old = |seen: u16| seen != 0 && seen & REPORTED == 0 && tick.ms_since(seen) >= age_ms;
    for record in net.records() {
        let at = net.send_at(index, record);
        if send_is_open(&sends.records[at]) && old(sends.records[at].seen) {
            sends.records[at].seen |= REPORTED;
            return Some(
                View { net: &*net, sends: &*sends, recvs: &*recvs }
                    .send_status(index, record, tick),
            );
        }
        if group_is_open(&recvs.groups[at]) && old(recvs.groups[at].seen) {
            recvs.groups[at].seen |= REPORTED;
            return Some(
                View { net: &*net, sends: &*sends, recvs: &*recvs }
                    .group_status(index, record, tick),
            );
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_grow_with_ticks_and_stop_before_they_would_start_again() {
        let mut seen = 0;
        let mut now_ms = 5_000u64;
        assert_eq!(Tick::of(now_ms, 10).stamp(&mut seen), (0, false));
        now_ms += 12_340;
        assert_eq!(Tick::of(now_ms, 10).stamp(&mut seen), (12_340, false));
        seen |= REPORTED;
        for _ in 0..100 {
            now_ms += 10 * 5_000;
            let (age_ms, reported) = Tick::of(now_ms, 10).stamp(&mut seen);
            assert!(reported && age_ms >= 62_340 && age_ms <= 10 * u32::from(AGE_TICKS_MAX));
        }
    }
}
