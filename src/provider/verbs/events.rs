//! What happens to the device and its port.

use super::mtu::mtu_bytes;
use super::peer::{Peer, State};
use super::rail::{Verbs, wants_global};
use super::sys::abi::{AsyncEvent, Gid, PortAttr};
use super::sys::numbers as n;
use crate::base::units::{Instant, Span};
use crate::fabric::DownCause;
use crate::memory::Errno;

/// How often the device is asked, by the clock and by the number of polls, whichever is first.
const EVERY: Span = Span::millis(10);
const EVERY_POLLS: u32 = 4096;
/// Events that one look takes at most.
const EVENTS_MAX: u32 = 16;

/// How device and port are.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Health {
    /// Whether the port is down, and since when as far as we know.
    pub port_down_since: Option<Instant>,
    /// Why the rail is of no use any more; 0: it is. An errno.
    pub lost_code: i32,
    /// Events that the device has told of.
    pub events: u32,
    /// Times that the port went down.
    pub port_downs: u32,
    /// Queue pairs that were destroyed because they did not give back in time what they had.
    pub undrained: u32,
    /// Times that the rail went on with another GID.
    pub revivals: u32,
    last: Instant,
    polls: u32,
}

impl Health {
    /// Whether the rail is of no use: it must be revived, or opened anew.
    pub const fn is_lost(&self) -> bool {
        self.lost_code != 0
    }
}

/// Why a rail is of no use any more, for the code of [`Health::lost_code`], and whether that is for
/// good.
pub const fn loss_words(code: i32, is_gone: bool) -> &'static str {
    match code {
        libc::ENODEV => {
            "the device failed or was removed; endpoints that are opened later may use it"
        }
        libc::EADDRNOTAVAIL if is_gone => {
            "its GID or LID has gone (did an address change?); endpoints that are opened later may \
             use another (this one would with rdma-core 33 or later)"
        }
        libc::EADDRNOTAVAIL => {
            "its GID or LID has gone (did an address change?); it is used again once it has another"
        }
        libc::EOVERFLOW => "its completion queue overran",
        _ => "its completion queue is broken",
    }
}

impl Verbs<'_> {
    /// Asks the device now and then whether something has happened to it. *Cost*: a system call
    /// when it is asked.
    #[inline]
    pub(super) fn watch(&mut self) {
        let health = &mut self.health;
        health.polls += 1;
        if health.polls >= EVERY_POLLS || self.now.since(health.last) >= EVERY {
            (health.polls, health.last) = (0, self.now);
            self.silence.tick(self.now);
            let _ = self.look_at_device();
        }
    }

    /// Takes the device's events; `false`: there may be more.
    #[cold]
    pub(super) fn look_at_device(&mut self) -> bool {
        let mut count = 0;
        while count < EVENTS_MAX
            && let Some(event) = self.domain.shared().device().event()
        {
            count += 1;
            self.health.events = self.health.events.wrapping_add(1);
            self.happened(&event);
        }
        if let Some(since) = self.health.port_down_since
            && self.now.since(since) >= self.port_grace
        {
            // those that know no peer yet may wait for the port
            self.end_all(&[State::Live], DownCause::Broken(libc::ENETDOWN));
        }
        count < EVENTS_MAX
    }

    fn happened(&mut self, event: &AsyncEvent) {
        // the element of a port's event is its number
        let is_ours = event.element as u32 == u32::from(self.port);
        match event.event_type {
            n::EVENT_DEVICE_FATAL => self.lose(libc::ENODEV),
            n::EVENT_CQ_ERR => self.lose(libc::EOVERFLOW),
            n::EVENT_PORT_ERR if is_ours => {
                self.health.port_downs += 1;
                self.health.port_down_since.get_or_insert(self.now);
            }
            n::EVENT_PORT_ACTIVE if is_ours => {
                self.health.port_down_since = None;
                self.search.begin();
                self.check_up();
            }
            n::EVENT_GID_CHANGE if is_ours => {
                self.search.hasten();
                let _ = self.check_gid(); // as above
            }
            n::EVENT_LID_CHANGE if is_ours && !self.is_ethernet => {
                self.search.hasten();
                self.lose(libc::EADDRNOTAVAIL);
            }
            n::EVENT_QP_FATAL | n::EVENT_QP_REQ_ERR | n::EVENT_QP_ACCESS_ERR => {
                self.queue_pair_failed(event);
            }
            _ => {}
        }
    }

    /// Looks what has become of the port's name while it was down.
    fn check_up(&mut self) {
        self.check_port();
        // one that is not known now is asked for before the next queue pair
        let _ = self.check_gid();
    }

    /// A port that has been down for longer than it may be is looked at without being told: of one
    /// that is up, and of which no event came, no queue pair would ever be made again.
    pub(super) fn look_at_port(&mut self) {
        let is_over = |since: Instant| self.now.since(since) >= self.port_grace;
        if self.health.port_down_since.is_some_and(is_over) {
            self.check_up();
        }
    }

    /// Whether the device says so now: its event may come later than what it is the cause of.
    pub(super) fn is_port_down(&self) -> bool {
        let port = self.domain.shared().device().port(self.port);
        port.is_ok_and(|port| port.state != n::PORT_ACTIVE)
    }

    /// A port that comes up may have another LID and take other packets than before, and so may one
    /// whose link is managed anew, of which not every device tells. Queue pairs stand on the LID.
    pub(super) fn check_port(&mut self) {
        let port = self.domain.shared().device().port(self.port);
        let Some(port) = port.ok().filter(|port| port.state == n::PORT_ACTIVE) else { return };
        // of which its event has told, or would have
        if self.health.port_down_since.take().is_some() {
            self.search.begin();
        }
        // those that are prepared have said the LID to their peers
        let stands = |peer: &Peer| matches!(peer.state, State::Prepared | State::Live);
        let is_used = self.peers.iter().any(stands);
        if !self.is_ethernet && port.lid != self.lid && is_used {
            return self.lose(libc::EADDRNOTAVAIL);
        }
        self.port_take(&port);
    }

    /// What queue pairs that are made from now on are told of the port.
    pub(super) fn port_take(&mut self, port: &PortAttr) {
        (self.lid, self.mtu_bytes) = (port.lid, mtu_bytes(port.active_mtu));
        self.wants_global = wants_global(port);
    }

    /// The rail stands on its GID: when another one has its place, packets of ours would name a
    /// stranger, and when it is of another version of RoCE, nobody would take them. It is given up,
    /// too, for one of its subnet that is back. A rail that is lost stands on none.
    ///
    /// *Errors*: what stands there cannot be known now, for want of descriptors, say: nothing is
    /// lost by that.
    pub(super) fn check_gid(&mut self) -> Result<(), Errno> {
        if self.health.is_lost() {
            return Ok(());
        }
        if self.gid_there()? != Some((self.gid, self.gid_kind)) || self.may_go_home() {
            self.lose(libc::EADDRNOTAVAIL);
        }
        Ok(())
    }

    /// What stands at the place of our GID, as far as the library has told at the beginning;
    /// `None`: nothing.
    fn gid_there(&self) -> Result<Option<(Gid, Option<u32>)>, Errno> {
        let device = self.domain.shared().device();
        if self.gid_kind.is_none() {
            return device.gid(self.port, self.gid_index).map(|gid| Some((gid, None)));
        }
        match device.gid_entry(self.port, self.gid_index.into()) {
            Ok(entry) => Ok(Some((entry.gid, Some(entry.gid_type)))),
            Err(Errno(libc::ENODATA)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn queue_pair_failed(&mut self, event: &AsyncEvent) {
        let code = match event.event_type {
            n::EVENT_QP_ACCESS_ERR => libc::EACCES,
            n::EVENT_QP_REQ_ERR => libc::EPROTO,
            _ => libc::EIO,
        };
        for index in 0..self.peers.len() {
            let qp = self.peers[index].qp.as_ref();
            if qp.is_some_and(|qp| qp.is(event.element)) {
                self.end(index, DownCause::Broken(code));
            }
        }
    }
}
