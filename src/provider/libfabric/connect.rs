//! Connections of a rail whose peers have endpoints of their own (`FI_EP_MSG`): asked for, granted,
//! closed.
#![forbid(unsafe_code)]

use super::area::{CELLS, SENDS};
use super::control::AGAIN;
use super::link::{Greeting, Phase};
use super::peer::{Down, KEYS, Sent, State, Use, wants};
use super::poll::{FAILURES_MAX, LOOKS_MAX};
use super::rail::{Cell, Libfabric, Open, events_max};
use super::report::ErrorReport;
use super::sys::calls::FidEp;
use super::sys::{Code, Endpoint, Event, GREETING_BYTES, Info, numbers as n};
use super::turns::Act;
use super::{Hello, PeerOpenError, Step};
use crate::base::units::Span;
use crate::fabric::DownCause;

/// How often events are looked for while every peer is connected: a look is a system call of some
/// providers, and the end of a connection that is in use shows in the completion queue, too.
const LOOK: Span = Span::millis(10);

/// How libraries say of ops and connections that the other end has closed.
const ENDED: [i32; 5] =
    [libc::ECONNRESET, libc::ECANCELED, libc::ENOTCONN, libc::EPIPE, libc::ESHUTDOWN];

impl Libfabric<'_> {
    /// Whether a peer's connection was closed by us, or is being left, and its ops end for that.
    pub(super) fn is_cut(&self, index: usize) -> bool {
        matches!(self.links[index].phase, Phase::Cut | Phase::Leaving)
    }

    /// A peer was joined: who asks is decided alike by both sides.
    pub(super) fn connection_begin(
        &mut self,
        index: usize,
        other: &Hello,
    ) -> Result<(), PeerOpenError> {
        let own_name = &self.name[..self.name_bytes];
        let own = (own_name, index as u32, self.peers[index].token);
        let link = &mut self.links[index];
        link.asks = own < (other.name(), other.number, other.token);
        link.is_wanted = true;
        self.watch.due += 1;
        if link.asks
            && let Some(request) = link.request.take()
        {
            self.reject(request);
        }
        self.connection_open(index).map_err(|(step, code)| PeerOpenError::Refused(step, code))
    }

    /// Opens the endpoint of a peer that is wanted, if what was there before is over, and asks for
    /// the connection or grants it, if it was asked for.
    fn connection_open(&mut self, index: usize) -> Result<(), (Step, Code)> {
        let at = |code| (Step::Connection, code);
        let link = &mut self.links[index];
        if !link.is_wanted || link.phase != Phase::Idle {
            return Ok(());
        }
        let mut request = link.request.take();
        if !link.asks && request.is_none() {
            return Ok(());
        }
        let Some(Open { cq, events: Some(events), .. }) = self.open.as_ref() else {
            return Err(at(Code(libc::ENODEV)));
        };
        let name = &self.names[index][..usize::from(self.peers[index].name_bytes)];
        let address = link.asks.then_some(name);
        let info = request.as_mut().unwrap_or(&mut self.info);
        let turn = self.domain.turn(Act::Control);
        let opened = Endpoint::open_for(&self.library_domain, info, cq, events, address);
        drop(turn);
        let endpoint = match (opened, request) {
            (Ok(endpoint), _) => endpoint,
            (Err(code), request) => {
                if let Some(request) = request {
                    self.reject(request);
                }
                return Err(at(code));
            }
        };
        let port = endpoint.port();
        let link = &mut self.links[index];
        *link.endpoint = Some(endpoint);
        (link.phase, link.is_wanted) = (Phase::Opening, false);
        self.part_bind(index).map_err(|code| (Step::Buffers, code))?;
        self.parts[index].receives = Some(port);
        self.cells_post(index);
        let link = &self.links[index];
        let Some(endpoint) = link.endpoint.as_ref() else { return Err(at(Code(libc::EIO))) };
        let _turn = self.domain.turn(Act::Control);
        if !link.asks {
            return endpoint.accept().map_err(at);
        }
        let record = &self.peers[index];
        let (number, token) = (record.their_number.into(), record.their_token);
        let name = &self.names[index][..usize::from(record.name_bytes)];
        endpoint.connect(name, &Greeting { number, token }.encode()).map_err(at)
    }

    /// Looks for events where some are expected, and now and then, and goes on with what waits.
    /// Those of an endpoint that peers share are never expected.
    #[inline]
    pub(super) fn connections_on(&mut self) {
        let is_due = self.watch.due > 0 || self.watch.has_more;
        if is_due || self.now.since(self.watch.looked_at) >= LOOK {
            self.connections_look();
        }
    }

    #[cold]
    fn connections_look(&mut self) {
        self.watch.looked_at = self.now;
        self.events_take();
        if self.watch.due == 0 {
            return;
        }
        self.watch.due = 0;
        for index in 0..self.links.len() {
            if let Err((step, code)) = self.connection_open(index) {
                if step == Step::Buffers {
                    self.unregistered(index, code);
                }
                self.end(index, DownCause::Broken(code.0));
                self.links[index].is_wanted = false;
            }
            self.watch.due += u32::from(self.links[index].is_due());
        }
    }

    /// Takes events, no more than one poll looks for completions: a queue may have more and more of
    /// what is nobody's. The next poll goes on.
    fn events_take(&mut self) {
        self.watch.has_more = false;
        for _ in 0..LOOKS_MAX {
            let Some(event) = self.event_read() else { return };
            match event {
                Ok(None) => return self.watch.event_failures = 0,
                Ok(Some(event)) => self.event_came(event),
                // a queue that none of its connections needs, and that cannot be read, is none
                Err(_) if !self.traits.connected => return self.watch.is_on = false,
                Err(code) => return self.lose(code.0),
            }
        }
        self.watch.has_more = true;
    }

    /// `None`: there is no queue of events.
    fn event_read(&self) -> Option<Result<Option<Event>, Code>> {
        let Some(Open { events: Some(events), .. }) = self.open.as_ref() else { return None };
        let _turn = self.domain.turn(Act::Poll);
        Some(events.read())
    }

    fn event_came(&mut self, event: Event) {
        if !matches!(event, Event::Failed(..) | Event::Other) {
            self.watch.event_failures = 0;
        }
        match event {
            Event::Request(request, greeting) => self.asked_for(request, &greeting),
            Event::Connected(endpoint) => {
                let Some(index) = self.link_of(endpoint) else { return };
                let link = &mut self.links[index];
                link.phase = Phase::Up;
                self.parts[index].ops = link.endpoint.as_ref().map(Endpoint::port);
            }
            Event::Shutdown(endpoint) => {
                if let Some(index) = self.link_of(endpoint) {
                    self.connection_ended(index, libc::ECONNRESET);
                }
            }
            Event::Failed(endpoint, code, provider_code) => {
                let report = ErrorReport::new(code.0, provider_code);
                if let Some(index) = self.link_of(endpoint) {
                    self.watch.event_failures = 0;
                    self.peers[index].report.get_or_insert(report);
                    self.connection_ended(index, code.0);
                } else if !self.traits.connected {
                    self.failed_beside(report);
                } else {
                    self.failed_of_no_connection(report);
                }
            }
            Event::Other => {}
        }
    }

    /// An endpoint that peers share has failed, by no op of ours: some providers tell of that here
    /// alone (`efa`, which ends the process where nobody can be told).
    #[cold]
    pub(super) fn failed_beside(&mut self, report: ErrorReport) {
        let code = if report.code == 0 { libc::EIO } else { report.code };
        let report = ErrorReport { code, ..report };
        for peer in self.peers.iter_mut().filter(|peer| peer.takes_ops()) {
            peer.report.get_or_insert(report);
        }
        self.lose(code);
    }

    /// A connection that was closed may have failed before, and so may each: of more failures than
    /// the queue has room for, with nothing between them, there is no end.
    #[cold]
    fn failed_of_no_connection(&mut self, report: ErrorReport) {
        self.watch.event_failures += 1;
        if self.watch.event_failures > events_max(&self.limits) + FAILURES_MAX as usize {
            self.watch.event_failures = 0;
            self.failed_beside(ErrorReport { floods: true, ..report });
        }
    }

    /// Whose endpoint it is; `None`: that of one that was closed.
    fn link_of(&self, endpoint: *mut FidEp) -> Option<usize> {
        let is_its =
            |open: &Endpoint| !endpoint.is_null() && core::ptr::eq(open.as_ptr(), endpoint);
        self.links.iter().position(|link| link.endpoint.as_ref().is_some_and(is_its))
    }

    /// Somebody asks for a connection: it is a peer that will be joined, or is and waits for this;
    /// or it is refused.
    fn asked_for(&mut self, request: Info, greeting: &[u8; GREETING_BYTES]) {
        let index = Greeting::decode(greeting).and_then(|greeting| {
            let index = greeting.number as usize;
            let record = self.peers.get(index)?;
            let link = &self.links[index];
            let is_expected = match record.state {
                State::Closed => false,
                State::Prepared => true,
                State::Live => link.is_wanted && !link.asks,
            };
            (record.token == greeting.token && is_expected && !record.is_fenced).then_some(index)
        });
        let Some(index) = index else {
            self.health.strange += 1;
            return self.reject(request);
        };
        // one that asks again has given up what it asked for before
        if let Some(before) = self.links[index].request.replace(request) {
            self.reject(before);
        }
    }

    fn reject(&self, request: Info) {
        if let Some(Open { listener: Some(listener), .. }) = self.open.as_ref() {
            let _turn = self.domain.turn(Act::Control);
            listener.reject(request);
        }
    }

    /// A receive of a peer's endpoint has failed: its connection has ended.
    #[cold]
    pub(super) fn receive_failed(&mut self, cell: usize, report: ErrorReport) {
        let index = cell / CELLS;
        if self.cells[cell] != Cell::Posted {
            return self.unknown();
        }
        self.cells[cell] = Cell::Unused;
        if self.links[index].phase == Phase::Up {
            self.peers[index].report.get_or_insert(report);
            self.end(index, DownCause::Broken(report.code));
        }
    }

    /// The library says that a connection is no more. One that we leave has done its duty.
    fn connection_ended(&mut self, index: usize, code: i32) {
        match self.links[index].phase {
            Phase::Leaving => self.cut(index),
            _ => self.end(index, DownCause::Broken(code)),
        }
    }

    /// Fences a peer by the end of its connection. That end says as little as any: so a peer of
    /// which nothing has failed is told first, and the connection closed when the library has
    /// brought that word there, or handed it to somebody who will. It loses what it still has of
    /// a connection that is closed.
    #[cold]
    pub(super) fn leave(&mut self, index: usize) {
        match self.links[index].phase {
            Phase::Leaving => {}
            Phase::Up if self.peers[index].down == Down::No => {
                self.links[index].phase = Phase::Leaving;
                self.want(index, wants::DRAIN);
            }
            _ => self.cut(index),
        }
    }

    /// Closes a connection that is being left. A peer that takes nothing is not waited for for
    /// long.
    #[cold]
    pub(super) fn leave_on(&mut self, index: usize, waited: Span) {
        let is_said = self.peers[index].wants & wants::DRAIN == 0 && !self.is_draining(index);
        if is_said || waited >= AGAIN || self.peers[index].down != Down::No {
            self.cut(index);
        }
    }

    /// The peer has said that it closes in good order. That counts more than the end of its
    /// connection, which may show first: as an event, or as a failure of what we had posted. Any
    /// other failure stays one.
    #[cold]
    pub(super) fn goodbye_came(&mut self, index: usize, in_order: bool) {
        if !in_order {
            return;
        }
        self.end(index, DownCause::Closed);
        let down = &mut self.peers[index].down;
        if matches!(*down, Down::Due(DownCause::Broken(code)) if ENDED.contains(&code)) {
            *down = Down::Due(DownCause::Closed);
        }
    }

    /// Closes a peer's connection, if there is one: nothing of the peer's can land here any more,
    /// and nothing of ours is done for it, as soon as what the queue still has was taken.
    #[cold]
    pub(super) fn cut(&mut self, index: usize) {
        let link = &mut self.links[index];
        link.is_wanted = false;
        let request = link.request.take();
        if let Some(endpoint) = link.endpoint.take() {
            link.phase = Phase::Cut;
            self.watch.cuts += 1;
            self.endpoint_end(index, endpoint);
        }
        if let Some(request) = request {
            self.reject(request);
        }
        (self.parts[index].receives, self.parts[index].ops) = (None, None);
        let record = &mut self.peers[index];
        record.address = n::ADDR_UNSPEC;
        record.is_attested = true;
        self.told_release_all(index);
        if self.links[index].phase == Phase::Idle {
            self.cut_over(index);
        }
    }

    /// Ends a peer's connection and closes its endpoint, behind what is registered for that.
    fn endpoint_end(&mut self, index: usize, endpoint: Endpoint) {
        let turn = self.domain.turn(Act::Control);
        endpoint.shutdown();
        drop(turn);
        self.bound_close(index);
        let _turn = self.domain.turn(Act::Control);
        drop(endpoint);
    }

    /// The queue was seen empty after connections were closed.
    #[cold]
    pub(super) fn cuts_over(&mut self) {
        for index in 0..self.links.len() {
            if self.links[index].phase == Phase::Cut {
                self.links[index].phase = Phase::Idle;
                self.cut_over(index);
            }
        }
        self.watch.cuts = 0;
    }

    /// The library has nothing of a closed connection any more.
    fn cut_over(&mut self, index: usize) {
        for cell in &mut self.cells[index * CELLS..(index + 1) * CELLS] {
            if *cell == Cell::Posted {
                *cell = Cell::Unused;
            }
        }
        for op in index * SENDS..(index + 1) * SENDS {
            self.op_over(index, op);
        }
        let record = &mut self.peers[index];
        (record.touching, record.reads) = (0, 0);
        // not of a peer that has the number since
        record.is_cut |= record.is_fenced || record.down != Down::No;
    }

    /// An op that the library will not give back. One whose end somebody waits for is answered for
    /// by the peer's end.
    fn op_over(&mut self, index: usize, op: usize) {
        let Sent { used, pin, key_place, .. } = self.sent[op];
        if let Some(region) = pin.checked_sub(1) {
            self.domain.release(region);
        }
        if let Some(place) = key_place.checked_sub(1) {
            let answer = &mut self.answers[index * KEYS + usize::from(place)];
            answer.users = answer.users.saturating_sub(1);
        }
        if matches!(used, Use::Loud | Use::WordDue) {
            (self.sent[op].pin, self.sent[op].key_place) = (0, 0);
        } else {
            let bit = 1 << (op % SENDS);
            self.sent[op] = Sent::FREE;
            self.peers[index].used &= !bit;
            if self.peers[index].left_ops != 0 {
                self.left_retired(index, bit);
            }
        }
    }

    /// Rejects what was asked since events were looked at last: nobody else closes the socket of a
    /// request that its library has taken off the listener. `tcp` and `net` take one at a look, and
    /// see what it says at the next, so that nothing is left when two looks in a row find nothing.
    fn requests_reject(&mut self) {
        let mut nothing = 0;
        if self.open.as_ref().is_none_or(|open| open.listener.is_none()) {
            return;
        }
        for _ in 0..2 * events_max(&self.limits) {
            let Some(event) = self.event_read() else { return };
            match event {
                Ok(Some(Event::Request(request, _))) => {
                    self.reject(request);
                    nothing = 0;
                }
                // what else is there ends with its endpoint
                Ok(Some(_)) => nothing = 0,
                Ok(None) if nothing == 0 => nothing = 1,
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Closes every connection, before the endpoint that listens.
    pub(super) fn connections_close(&mut self) {
        self.requests_reject();
        for index in 0..self.links.len() {
            if let Some(request) = self.links[index].request.take() {
                self.reject(request);
            }
            let link = &mut self.links[index];
            (link.is_wanted, link.phase) = (false, Phase::Idle);
            if let Some(endpoint) = link.endpoint.take() {
                self.endpoint_end(index, endpoint);
            }
        }
        (self.watch.due, self.watch.cuts) = (0, 0);
    }
}
