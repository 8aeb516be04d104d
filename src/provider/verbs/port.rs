//! The port of a rail: what it is, what happens to it and to its device, and what its queue pairs
//! are told of it.

use super::domain::Shared;
use super::mtu::mtu_bytes;
use super::peer::State;
use super::peers::Peers;
use super::search::{Place, Search};
use super::sys::abi::{AhAttr, AsyncEvent, Gid, GlobalRoute, PortAttr, QpAttr};
use super::sys::{Device, QueuePair, numbers as n};
use super::{Config, PathConfig};
use crate::base::units::{Instant, Span};
use crate::memory::Errno;
use core::ffi::c_int;

/// How often the device is asked, by the clock and by the number of polls, whichever is first.
const EVERY: Span = Span::millis(10);
const EVERY_POLLS: u32 = 4096;
/// How long a peer would wait that found no receive: the shortest there is, since it never does.
const RNR_TIMER: u8 = 1;
/// How often a message that finds no receive is sent again. Credits see to it that there is one;
/// where they do not, waiting would hide the error (NCCL waits for ever).
const RNR_RETRIES: u8 = 0;
/// Most routers on the way, as on the internet.
const HOPS_MAX: u8 = 255;

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

    /// Counts a poll; whether it is time to ask the device.
    #[inline]
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.polls += 1;
        let is_due = self.polls >= EVERY_POLLS || now.since(self.last) >= EVERY;
        if is_due {
            (self.polls, self.last) = (0, now);
        }
        is_due
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

/// What has come of an event, or of a look.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum News {
    /// The rail goes on.
    None,
    /// It is of no use any more, with the code of [`Health::lost_code`].
    Lost(i32),
    /// The queue pair of this element has failed, with an errno.
    Failed(u64, i32),
}

/// The other end of a queue pair.
pub(super) struct OtherEnd {
    pub number: u32,
    pub gid: Gid,
    pub lid: u16,
    pub first_packet: u32,
    /// `IBV_MTU_…` that both ports take.
    pub mtu_code: c_int,
    /// Reads and adds that it may have on their way.
    pub answers_max: u8,
}

/// The port, as far as it was looked at last.
#[derive(Debug)]
pub(super) struct Port<'m> {
    shared: &'m Shared,
    number: u8,
    path: PathConfig,
    /// The GID that the rail stands on, or stood on.
    pub place: Place,
    pub lid: u16,
    /// Whether its packets have a global route header even inside of their subnet.
    wants_global: bool,
    pub is_ethernet: bool,
    pub mtu_bytes: u32,
    grace: Span,
    pub health: Health,
    search: Search,
}

impl<'m> Port<'m> {
    pub fn new(
        shared: &'m Shared,
        config: &Config,
        (attr, place): (&PortAttr, Place),
        is_software: bool,
    ) -> Port<'m> {
        // 7 is the most that the field holds. Linux's rxe takes that for "for ever" (`rxe_comp.c`,
        // `COMPST_ERROR_RETRY`), and a peer that is gone would never be noticed.
        let retries = config.path.retries.min(if is_software { 6 } else { 7 });
        let mut port = Port {
            shared,
            number: config.port,
            path: PathConfig { retries, ..config.path },
            place,
            lid: 0,
            wants_global: false,
            is_ethernet: attr.link_layer == n::LINK_LAYER_ETHERNET,
            mtu_bytes: 0,
            grace: config.port_grace,
            health: Health::default(),
            search: Search::new(place.gid, config),
        };
        port.take(attr);
        port
    }

    fn device(&self) -> &'m Device {
        self.shared.device()
    }

    /// The port, if it is up.
    fn active(&self) -> Option<PortAttr> {
        self.device().port(self.number).ok().filter(|port| port.state == n::PORT_ACTIVE)
    }

    /// Whether the device says so now: its event may come later than what it is the cause of.
    pub fn is_down(&self) -> bool {
        self.device().port(self.number).is_ok_and(|port| port.state != n::PORT_ACTIVE)
    }

    /// Whether it has been down for longer than it may be.
    pub fn is_late(&self, now: Instant) -> bool {
        self.health.port_down_since.is_some_and(|since| now.since(since) >= self.grace)
    }

    /// The next event of the device, and what comes of it; `None`: there is none.
    pub fn next_event(&mut self, now: Instant, peers: &Peers) -> Option<News> {
        let event = self.device().event()?;
        self.health.events = self.health.events.wrapping_add(1);
        Some(self.happened(&event, now, peers))
    }

    fn happened(&mut self, event: &AsyncEvent, now: Instant, peers: &Peers) -> News {
        // the element of a port's event is its number
        let is_ours = event.element as u32 == u32::from(self.number);
        match event.event_type {
            n::EVENT_DEVICE_FATAL => return News::Lost(libc::ENODEV),
            n::EVENT_CQ_ERR => return News::Lost(libc::EOVERFLOW),
            n::EVENT_PORT_ERR if is_ours => {
                self.health.port_downs += 1;
                self.health.port_down_since.get_or_insert(now);
            }
            n::EVENT_PORT_ACTIVE if is_ours => {
                self.health.port_down_since = None;
                self.search.begin();
                // one that is not known now is asked for before the next queue pair
                return self.check(peers).unwrap_or(News::None);
            }
            n::EVENT_GID_CHANGE if is_ours => {
                self.search.hasten();
                return self.check_gid(peers).unwrap_or(News::None); // as above
            }
            n::EVENT_LID_CHANGE if is_ours && !self.is_ethernet => {
                self.search.hasten();
                return News::Lost(libc::EADDRNOTAVAIL);
            }
            n::EVENT_QP_ACCESS_ERR => return News::Failed(event.element, libc::EACCES),
            n::EVENT_QP_REQ_ERR => return News::Failed(event.element, libc::EPROTO),
            n::EVENT_QP_FATAL => return News::Failed(event.element, libc::EIO),
            _ => {}
        }
        News::None
    }

    /// The first cause stays, but for that a GID comes back and the others do not: they take its
    /// place.
    pub fn lose(&mut self, code: i32) {
        if self.health.lost_code == 0 {
            self.search.begin();
        }
        if matches!(self.health.lost_code, 0 | libc::EADDRNOTAVAIL) {
            self.health.lost_code = code;
        }
    }

    /// Looks what has become of the port and its name: of that not every device tells.
    ///
    /// *Errors*: what stands at the place of the GID cannot be known now, for want of descriptors,
    /// say: nothing is lost by that.
    pub fn check(&mut self, peers: &Peers) -> Result<News, Errno> {
        match self.check_port(peers) {
            News::None => self.check_gid(peers),
            news => Ok(news),
        }
    }

    /// A port that comes up may have another LID and take other packets than before, and so may one
    /// whose link is managed anew, of which not every device tells. Queue pairs stand on the LID.
    fn check_port(&mut self, peers: &Peers) -> News {
        let Some(port) = self.active() else { return News::None };
        // of which its event has told, or would have
        if self.health.port_down_since.take().is_some() {
            self.search.begin();
        }
        if !self.is_ethernet
            && port.lid != self.lid
            && (peers.has(State::Live) || peers.has(State::Prepared))
        {
            return News::Lost(libc::EADDRNOTAVAIL);
        }
        self.take(&port);
        News::None
    }

    /// What queue pairs that are made from now on are told of the port.
    fn take(&mut self, port: &PortAttr) {
        (self.lid, self.mtu_bytes) = (port.lid, mtu_bytes(port.active_mtu));
        self.wants_global = port.flags & n::PORT_GRH_REQUIRED != 0;
    }

    /// The rail stands on its GID: when another one has its place, packets of ours would name a
    /// stranger, and when it is of another version of RoCE, nobody would take them. It is given up,
    /// too, for one of its subnet that is back. A rail that is lost stands on none.
    ///
    /// *Errors*: as [`Port::check`].
    fn check_gid(&self, peers: &Peers) -> Result<News, Errno> {
        if self.health.is_lost() {
            return Ok(News::None);
        }
        let stands = self.gid_there()? == Some((self.place.gid, self.place.kind));
        match stands && !self.may_go_home(peers) {
            true => Ok(News::None),
            false => Ok(News::Lost(libc::EADDRNOTAVAIL)),
        }
    }

    /// What stands at the place of our GID, as far as the library has told at the beginning;
    /// `None`: nothing.
    fn gid_there(&self) -> Result<Option<(Gid, Option<u32>)>, Errno> {
        let device = self.device();
        if self.place.kind.is_none() {
            return device.gid(self.number, self.place.index).map(|gid| Some((gid, None)));
        }
        match device.gid_entry(self.number, self.place.index.into()) {
            Ok(entry) => Ok(Some((entry.gid, Some(entry.gid_type)))),
            Err(Errno(libc::ENODATA)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the rail stands on a GID of another subnet, from which peers may not be reached, and
    /// would stand on one of its own if it were revived now. It stays where peers are reached.
    ///
    /// *Cost*: of a rail on another subnet, as [`Port::revive`].
    fn may_go_home(&self, peers: &Peers) -> bool {
        if self.search.is_home(self.place.gid) || peers.has(State::Live) {
            return false;
        }
        let found = self.active().and_then(|port| self.find(&port, false));
        found.is_some_and(|found| self.search.is_home(found.gid))
    }

    fn find(&self, port: &PortAttr, is_late: bool) -> Option<Place> {
        let at = (self.device(), self.number);
        self.search.find(at, port, self.place.gid, is_late)
    }

    /// Whether the rail is of no use now, and could be again without being opened anew.
    pub fn may_revive(&self) -> bool {
        self.health.lost_code == libc::EADDRNOTAVAIL && self.device().has_gid_entries()
    }

    /// Goes on with a GID that the rules allow, if the port has one by now. `false`: it has none,
    /// is down, the rail does not wait for one, or it is too early to look again.
    ///
    /// *Cost*: as [`Search::find`], where it is time to look.
    pub fn revive(&mut self, now: Instant) -> bool {
        if !self.may_revive() || !self.search.is_due(now) {
            return false;
        }
        let port = self.active();
        let is_late = self.search.is_late(now, port.is_some());
        let found = port.and_then(|port| Some((port, self.find(&port, is_late)?)));
        let Some((port, place)) = found else { return false };
        self.place = place;
        self.take(&port);
        (self.health.lost_code, self.health.port_down_since) = (0, None);
        self.health.revivals += 1;
        true
    }

    /// Gives a queue pair the port; peers may do in our memory what `access` says.
    pub fn begin(&self, pair: &mut QueuePair, access: c_int) -> Result<(), Errno> {
        let mut attr = QpAttr::to(n::QPS_INIT);
        attr.pkey_index = self.path.pkey_index;
        attr.port_num = self.number;
        attr.qp_access_flags = access as u32;
        pair.modify(&mut attr, n::QP_STATE | n::QP_PKEY_INDEX | n::QP_PORT | n::QP_ACCESS_FLAGS)
    }

    /// Gives it its other end: it receives.
    pub fn join(&self, pair: &mut QueuePair, other: &OtherEnd) -> Result<(), Errno> {
        let mut attr = QpAttr::to(n::QPS_RTR);
        attr.path_mtu = other.mtu_code;
        attr.dest_qp_num = other.number;
        attr.rq_psn = other.first_packet;
        attr.max_dest_rd_atomic = other.answers_max;
        attr.min_rnr_timer = RNR_TIMER;
        attr.ah_attr = self.way_to(other.gid, other.lid);
        let mask = n::QP_STATE
            | n::QP_AV
            | n::QP_PATH_MTU
            | n::QP_DEST_QPN
            | n::QP_RQ_PSN
            | n::QP_MAX_DEST_RD_ATOMIC
            | n::QP_MIN_RNR_TIMER;
        pair.modify(&mut attr, mask)
    }

    /// Lets it send, with so many reads and adds on their way.
    pub fn start(&self, pair: &mut QueuePair, first_packet: u32, reads: u8) -> Result<(), Errno> {
        let mut attr = QpAttr::to(n::QPS_RTS);
        attr.timeout = self.path.timeout;
        attr.retry_cnt = self.path.retries;
        attr.rnr_retry = RNR_RETRIES;
        attr.sq_psn = first_packet;
        attr.max_rd_atomic = reads;
        let mask = n::QP_STATE
            | n::QP_TIMEOUT
            | n::QP_RETRY_CNT
            | n::QP_RNR_RETRY
            | n::QP_SQ_PSN
            | n::QP_MAX_RD_ATOMIC;
        pair.modify(&mut attr, mask)
    }

    /// The way to a peer: RoCE has GIDs alone; InfiniBand has a LID inside a subnet.
    fn way_to(&self, dgid: Gid, lid: u16) -> AhAttr {
        let (flow_label, hop_limit) = (0, HOPS_MAX);
        let (sgid_index, traffic_class) = (self.place.index, self.path.traffic_class);
        let same_subnet = dgid.0[..8] == self.place.gid.0[..8];
        let is_global = self.is_ethernet || self.wants_global || lid == 0 || !same_subnet;
        AhAttr {
            grh: GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class },
            dlid: lid,
            sl: self.path.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(is_global),
            port_num: self.number,
        }
    }
}
