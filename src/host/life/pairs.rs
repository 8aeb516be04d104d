//! Lanes over ports of RDMA, libfabric or vendors.
//!
//! The data thread prepares an end: a queue pair, or a peer of a shared endpoint. The side band
//! describes it to the peer, and brings the peer's end. Then the two ends are joined.
//!
//! ```text
//! queue pair   closed ─pair_offer─► prepared ─pair_came─► live ─the lane fails─► fenced
//!              fenced ─both sides─► detached ─pair_offer, next generation─► prepared
//! ```
//!
//! The listener connects its end before the connector's may send. It sends after it has heard the
//! peer ([`crate::transport::LaneJoin`]).
#![forbid(unsafe_code)]

use super::known::ConnectionRail;
use crate::base::ids::{ConnectionIndex, PeerIndex, RailGeneration};
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span};
use crate::connect::{PairEnd, Side, TextBuffer};
use crate::fabric::PeerLife;
use crate::host::choice::ports::astray;
use crate::host::choice::rdma;
use crate::host::endpoint::{Endpoint, since};
use crate::host::log::event::tell_briefly;
use crate::host::log::life::{LifeEvent, PortChange, PortFact, TcpAlone};
use crate::host::log::rail_news::RailAt;
use crate::host::log::stall::PEER_BYTES_MAX;
use crate::host::machine::Machine;
use crate::host::shared::SetUp;
use crate::provider::rail_set::{Due, Later, PortError, PortPeerError, PortRail};
use crate::provider::verbs::gid::Gid;
use crate::provider::verbs::mtu::Packets;
use crate::transport::{LaneJoin, LaneView};
use crate::wire::pair::{LaneEnd, PORTS_MAX};
use crate::wire::status::{STATUS_FRESH, StatusHello};
use core::net::SocketAddr;

/// For how long a peer may owe an answer before it is asked once more.
const OWED: Span = Span::millis(1000);

/// Our ports of the lanes of a connection, from lane 1 on, and how many there are.
pub(in crate::host) type LanePorts = ([u8; PORTS_MAX], usize);

/// Longest name of what a port is opened on.
pub(in crate::host) const NIC_BYTES_MAX: usize = 96;

/// What people have not been told of a port.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum PortNews {
    /// It is out of use, or is so for another reason than the one they know.
    Lost,
    Back,
}

/// What is to be told of a port that is lost, or refuses ends, for this reason, or is not and does
/// not, to those who know `told`; they know it then.
fn port_news<T: PartialEq>(told: &mut Option<T>, now: Option<T>) -> Option<PortNews> {
    if *told == now {
        return None;
    }
    *told = now;
    Some(if told.is_none() { PortNews::Back } else { PortNews::Lost })
}

/// So many bytes of stripes that have ended well show that a path carries payload.
const ENOUGH: Bytes = Bytes::mib(16);

/// Whether a lane was lost because its device heard nothing of the peer's. A vendor's codes are its
/// own.
pub(in crate::host) fn is_timeout(rail: Option<ConnectionRail>, code: i32) -> bool {
    code == libc::ETIMEDOUT && rail != Some(ConnectionRail::Vendor)
}

/// Why the next queue pair of a lane has to wait, whose last one is gone. `None`: it has not.
///
/// A silent one has stood for long, and what came before says little: where short packets pass and
/// long ones do not, every one of them joins, and takes messages with it.
fn wait_behind(rail: Option<ConnectionRail>, last: LaneView) -> Option<Later> {
    let is_silent = is_timeout(rail, last.code);
    let has_stood = last.stood.0 != 0 && last.ended < ENOUGH;
    if is_silent && (last.short_alone || has_stood) {
        return Some(Later::Lost(last.stood));
    }
    (!last.carried).then_some(Later::Missed)
}

impl Endpoint {
    fn handle_at(&self, index: u32) -> Handle {
        Handle { index, generation: self.known[index as usize].generation }
    }

    /// The lanes of a connection that are queue pairs. *Cost*: control path.
    pub(in crate::host) fn pairs_of(&self, connection: Handle) -> LanePorts {
        match (&self.machine, &self.shared.set_up) {
            (Machine::Host(endpoint), SetUp::Band(band)) if endpoint.rail().port_count() != 0 => {
                band.pair_ports(connection)
            }
            _ => ([0; PORTS_MAX], 0),
        }
    }

    /// Whether a lane of a connection in use is a queue pair, or will be one again.
    pub(in crate::host) fn is_pair(&self, index: u32, lane: u8) -> bool {
        let Machine::Host(endpoint) = &self.machine else { return false };
        let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
        endpoint.rail().port_of(peer).is_some()
    }

    /// What a lane of a connection in use runs over, if that is a port.
    pub(in crate::host) fn pair_rail(&self, index: u32, lane: u8) -> Option<ConnectionRail> {
        let Machine::Host(endpoint) = &self.machine else { return None };
        let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
        let place = endpoint.rail().port_of(peer)?;
        self.port_rail(place)
    }

    /// What a port is.
    pub(in crate::host) fn port_rail(&self, place: usize) -> Option<ConnectionRail> {
        let Machine::Host(endpoint) = &self.machine else { return None };
        Some(match endpoint.rail().port(place)? {
            PortRail::Verbs(_) => ConnectionRail::Verbs,
            PortRail::Libfabric(_) => ConnectionRail::Libfabric,
            PortRail::Vendor(_) => ConnectionRail::Vendor,
        })
    }

    /// A connection is in use: its queue pairs are prepared, and the peer is told.
    pub(in crate::host) fn pairs_begin(&mut self, index: u32, pairs: &LanePorts) {
        for (lane, port) in (1u8..).zip(&pairs.0[..pairs.1]) {
            let Machine::Host(endpoint) = &mut self.machine else { return };
            // the first of a region's keys is that of all other rails
            endpoint.lane_key_set(ConnectionIndex(index), lane, port + 1);
            self.pair_prepare(index, lane, usize::from(*port));
        }
    }

    /// Prepares and joins the queue pairs that had to wait.
    #[cold]
    pub(in crate::host) fn pairs_look(&mut self) {
        let now = self.now();
        loop {
            let Machine::Host(endpoint) = &mut self.machine else { return };
            let Some((peer, place, due)) = endpoint.rail_mut().pair_due(now) else { return };
            let (index, lane) = endpoint.lane_of(peer);
            let index = index as u32;
            match due {
                Due::Prepare => self.pair_prepare(index, lane, place),
                Due::Join(generation) => self.pair_came(index, lane, generation),
            }
        }
    }

    /// Prepares the next queue pair of a lane whose last one is gone.
    #[cold]
    pub(in crate::host) fn pair_offer(&mut self, index: u32, lane: u8) {
        let now = self.now();
        let Machine::Host(endpoint) = &mut self.machine else { return };
        let connection = ConnectionIndex(index);
        let peer = endpoint.lane_peer(connection, lane);
        let last = endpoint.lane_view(connection, lane);
        let Some(place) = endpoint.rail().port_of(peer) else { return };
        let kind = self.port_rail(place);
        let wait = last.map_or(Some(Later::Missed), |last| wait_behind(kind, last));
        let Machine::Host(endpoint) = &mut self.machine else { return };
        let rail = endpoint.rail_mut();
        match wait {
            Some(why) => rail.pair_later(peer, place, now, why),
            None => {
                rail.pair_carried(peer, place, last.is_some_and(|last| last.ended >= ENOUGH));
                self.pair_prepare(index, lane, place);
            }
        }
    }

    fn pair_prepare(&mut self, index: u32, lane: u8, place: usize) {
        let Machine::Host(endpoint) = &mut self.machine else { return };
        let connection = ConnectionIndex(index);
        let peer = endpoint.lane_peer(connection, lane);
        if endpoint.rail().port(place).is_some_and(PortRail::is_gone) {
            return self.ports_tell();
        }
        if endpoint.rail().is_down(place) {
            return self.pair_wait(peer, place);
        }
        let generation = endpoint.lane_view(connection, lane).map_or(0, |view| view.generation);
        let random = crate::connect::random().map_or(0, |number| number as u32);
        let rail = endpoint.rail_mut();
        let prepared = rail.pair_prepare(peer, place, RailGeneration(generation), random);
        let mailbox_key = rail.mailbox_key(place).0;
        match (prepared, &self.shared.set_up) {
            (Ok(end), SetUp::Band(band)) => {
                let end = PairEnd { end, mailbox_key };
                let is_refusing = rail.is_refusing(place);
                let connection = self.handle_at(index);
                if band.pair_offer(connection, lane.into(), &end).is_err() {
                    // the side band has closed the connection: nobody will ask for it
                    self.pair_drop(peer);
                }
                if !is_refusing {
                    self.refusal_tell(place, None);
                }
            }
            (Err(PortPeerError::AGAIN), _) => self.pair_wait(peer, place),
            (Err(PortPeerError::GONE), _) => {
                if !rail.port(place).is_some_and(PortRail::is_gone) {
                    self.pair_wait(peer, place);
                }
                self.ports_tell();
            }
            // what it lacks, memory or queue pairs, may be there later
            (Err(error), _) => {
                let now = since(self.opened_ns);
                match rail.pair_refused(peer, place, now) {
                    true => self.refusal_tell(place, Some(error)),
                    false => self.pair_error(place, &error),
                }
            }
            (Ok(_), SetUp::Own(_)) => {}
        }
    }

    /// Prepares it when its port is up, or has room.
    fn pair_wait(&mut self, peer: PeerIndex, place: usize) {
        let now = self.now();
        if let Machine::Host(endpoint) = &mut self.machine {
            endpoint.rail_mut().pair_later(peer, place, now, Later::Down);
        }
    }

    /// Tells people of ports that went out of use, or are used again.
    #[cold]
    pub(in crate::host) fn ports_tell(&mut self) {
        let Machine::Host(endpoint) = &self.machine else { return };
        let rail = endpoint.rail();
        for place in 0..rail.port_count() {
            let Some(port) = rail.port(place) else { continue };
            let fact = match port_news(&mut self.lanes_told.ports_lost[place], port.loss()) {
                Some(PortNews::Lost) => PortFact::Lost,
                Some(PortNews::Back) => PortFact::Back,
                None => continue,
            };
            tell_briefly(&PortChange { port, fact });
        }
    }

    /// Tells people, once of each port, of a library that tells of ops that nobody posted.
    pub(in crate::host) fn strange_tell(&mut self) {
        let Machine::Host(endpoint) = &self.machine else { return };
        let rail = endpoint.rail();
        for place in 0..rail.port_count() {
            let Some(port) = rail.port(place).filter(|port| port.unknown() != 0) else {
                continue;
            };
            if !core::mem::replace(&mut self.lanes_told.ports_strange[place], true) {
                tell_briefly(&PortChange { port, fact: PortFact::Strange(port.unknown()) });
            }
        }
    }

    fn pair_drop(&mut self, peer: PeerIndex) {
        if let Machine::Host(endpoint) = &mut self.machine {
            let _ = endpoint.rail_mut().peer_detach(peer);
        }
    }

    /// Tells people of a port that refuses ends, or gives them again: not at every try.
    #[cold]
    fn refusal_tell(&mut self, place: usize, why: Option<PortPeerError>) {
        let Some(told) = self.lanes_told.ports_refusing.get_mut(place) else { return };
        let news = port_news(told, why);
        let Machine::Host(endpoint) = &self.machine else { return };
        let Some(port) = endpoint.rail().port(place) else { return };
        let fact = match (news, why) {
            (Some(PortNews::Lost), Some(error)) => PortFact::Refuses { error, again: true },
            (Some(PortNews::Back), _) => PortFact::Gives,
            (Some(PortNews::Lost), None) | (None, _) => return,
        };
        tell_briefly(&PortChange { port, fact });
    }

    /// A lane stays down, and TCP carries what it would have.
    #[cold]
    fn pair_error(&mut self, place: usize, error: &PortPeerError) {
        let Machine::Host(endpoint) = &self.machine else { return };
        if let Some(port) = endpoint.rail().port(place) {
            let fact = PortFact::Refuses { error: *error, again: false };
            tell_briefly(&PortChange { port, fact });
        }
    }

    /// The peer's end of a lane has come, for the queue pair that was prepared last.
    #[cold]
    pub(in crate::host) fn pair_came(&mut self, index: u32, lane: u8, lane_generation: u32) {
        let waits = self.known[index as usize].params.side == Side::Listener;
        let handle = self.handle_at(index);
        let SetUp::Band(band) = &self.shared.set_up else { return };
        let theirs = band.pair_end(handle, lane.into(), lane_generation);
        let Machine::Host(endpoint) = &mut self.machine else { return };
        let connection = ConnectionIndex(index);
        let peer = endpoint.lane_peer(connection, lane);
        let rail = endpoint.rail_mut();
        let Some(place) = rail.port_of(peer) else { return };
        let waits_for_port = rail.is_down(place) || theirs.is_none();
        let joined = match &theirs {
            Some(theirs) if !waits_for_port => rail.pair_connect(peer, &theirs.end),
            Some(_) | None => Err(PortPeerError::Index),
        };
        // it has failed, and is up again, since our end was prepared
        let waits_for_port = waits_for_port || joined == Err(PortPeerError::RAIL_LOST);
        let (Ok(()), Some(theirs)) = (joined, &theirs) else {
            let now = since(self.opened_ns);
            if joined == Err(PortPeerError::NO_ANSWER)
                && rail.pair_unanswered(peer, now, lane_generation)
            {
                return;
            }
            // it may have ended since it was prepared
            let _ = rail.peer_detach(peer);
            let why = if waits_for_port { Later::Down } else { Later::Missed };
            rail.pair_later(peer, place, now, why);
            if let (Err(error), false) = (joined, waits_for_port) {
                tell_briefly(&LifeEvent::NoSecondEnd { lane, error });
            }
            return;
        };
        let ends = match (rail.port(place), &theirs.end) {
            (Some(PortRail::Verbs(port)), LaneEnd::QueuePair(hello)) => {
                let ends = [Gid(port.gid().0).ip(), Gid(hello.gid.to_le_bytes()).ip()];
                Some(ends.map(|ip| SocketAddr::new(ip, 0)))
            }
            (Some(PortRail::Libfabric(port)), LaneEnd::Shared(hello)) => port.ends(hello),
            _ => None,
        };
        let mailbox_key = Some(crate::fabric::RailKey(theirs.mailbox_key));
        let join = LaneJoin { generation: lane_generation, mailbox_key, waits };
        if !endpoint.lane_join(connection, lane, &join) {
            // the connection has failed meanwhile
            let _ = endpoint.rail_mut().peer_detach(peer);
            return;
        }
        let place = self.lane_place(index, lane);
        if let Some(known) = self.lanes.get_mut(place) {
            known.ends = ends;
        }
        if waits {
            band.pair_answer(handle, lane.into(), lane_generation);
        }
    }

    /// Says which ports a connection over TCP that comes into use does without, because they do not
    /// lead to its peer's host; and, the first time as a warning, that it has TCP alone although we
    /// have ports.
    #[cold]
    pub(in crate::host) fn ports_unused_say(
        &mut self,
        index: u32,
        connection: Handle,
        pairs: usize,
    ) {
        let (Machine::Host(endpoint), SetUp::Band(band)) = (&self.machine, &self.shared.set_up)
        else {
            return;
        };
        let Some((ports, theirs, same_host)) = band.ports_towards(connection) else { return };
        let mut name = [0; PEER_BYTES_MAX];
        let peer = self.peer_name(index, &mut name);
        let hellos = ports.as_slice();
        let why = |place: usize| hellos.get(place).and_then(|port| astray(port, same_host));
        let leading = (0..hellos.len()).find(|place| why(*place).is_none());
        // where none leads there, the line below has the first
        let is_alone = pairs == 0 && leading.is_none();
        for place in usize::from(is_alone)..hellos.len() {
            if let (Some(port), Some(why)) = (endpoint.rail().port(place), why(place)) {
                tell_briefly(&PortChange { port, fact: PortFact::Unused { peer, why } });
            }
        }
        let (Some(port), 0) = (endpoint.rail().port(leading.unwrap_or(0)), pairs) else { return };
        let apart = rdma::Apart::of(hellos, theirs.as_slice(), same_host);
        let why = match (why(0).filter(|_| is_alone), theirs.as_slice()) {
            (Some(why), _) => TcpAlone::Astray(why),
            (None, []) => TcpAlone::NoPort(&apart),
            (None, _) => TcpAlone::NoPair(&apart),
        };
        let fact = PortFact::TcpAlone { peer, why, again: self.lanes_told.portless };
        tell_briefly(&PortChange { port, fact });
        self.lanes_told.portless = true;
    }

    /// What a port has told of an end of a lane that failed, if that is not closed yet.
    pub(in crate::host) fn pair_error_of(&self, index: u32, lane: u8) -> Option<PortError> {
        let Machine::Host(endpoint) = &self.machine else { return None };
        endpoint.rail().error(endpoint.lane_peer(ConnectionIndex(index), lane))
    }

    /// How long the packets of a lane are, where both ends have told what they take.
    pub(in crate::host) fn pair_packets(&self, index: u32, lane: u8) -> Option<Packets> {
        let Machine::Host(endpoint) = &self.machine else { return None };
        endpoint.rail().packets(endpoint.lane_peer(ConnectionIndex(index), lane))
    }

    /// The port of a lane, if it is on one.
    fn pair_port(&self, index: u32, lane: u8) -> Option<&PortRail<'static>> {
        let Machine::Host(endpoint) = &self.machine else { return None };
        let place = endpoint.rail().port_of(endpoint.lane_peer(ConnectionIndex(index), lane))?;
        endpoint.rail().port(place)
    }

    /// Whether the port of a lane is of no use for good.
    pub(in crate::host) fn is_pair_gone(&self, index: u32, lane: u8) -> bool {
        self.pair_port(index, lane).is_some_and(PortRail::is_gone)
    }

    /// What the port of a lane is opened on, where it says so; see [`PortRail::nic_write`].
    pub(in crate::host) fn pair_nic<'t>(
        &self,
        index: u32,
        lane: u8,
        text: &'t mut [u8],
    ) -> &'t str {
        let mut buffer = TextBuffer::new(text);
        if let Some(port) = self.pair_port(index, lane) {
            let _ = port.nic_write(&mut buffer);
        }
        let length = buffer.length();
        core::str::from_utf8(&text[..length]).unwrap_or("")
    }

    /// Looks after peers of whose ops nothing ends, and tells what ports hear of others.
    #[inline]
    pub(in crate::host) fn doubts_look(&mut self) {
        if matches!(&self.machine, Machine::Host(endpoint) if endpoint.rail().has_words()) {
            self.doubts_settle();
            self.complaints_tell();
        }
    }

    /// Tells of peers what their ports say, but not of connections that are gone.
    #[cold]
    #[inline(never)]
    fn complaints_tell(&mut self) {
        loop {
            let Machine::Host(endpoint) = &mut self.machine else { return };
            let Some((peer, complaint)) = endpoint.rail_mut().complaint() else { return };
            let (index, lane) = endpoint.lane_of(peer);
            let index = index as u32;
            let (mut name, mut nic) = ([0; PEER_BYTES_MAX], [0; NIC_BYTES_MAX]);
            let peer = self.peer_name(index, &mut name);
            let nic = self.pair_nic(index, lane, &mut nic);
            let rail = self.lane_rail(index, lane);
            let at = RailAt { rail, lane, peer, ends: None, nic };
            tell_briefly(&LifeEvent::Complaint { at: &at, complaint });
        }
    }

    /// Finds out of peers of whose ops nothing ends whether their programs poll: what they have
    /// said over the side band, and asks them for the next time.
    #[cold]
    #[inline(never)]
    fn doubts_settle(&mut self) {
        loop {
            let (Machine::Host(endpoint), SetUp::Band(band)) =
                (&mut self.machine, &self.shared.set_up)
            else {
                return;
            };
            let Some((peer, within)) = endpoint.rail_mut().doubted() else { return };
            let (index, _) = endpoint.lane_of(peer);
            let generation = self.known[index].generation;
            let connection = Handle { index: index as u32, generation };
            let has_polled = |said: StatusHello| {
                let left_ns = u64::from(said.status.left_ms) * 1_000_000;
                said.status.flags & STATUS_FRESH != 0 && left_ns <= within.0
            };
            if band.status_of_peer(connection).is_some_and(has_polled) {
                endpoint.rail_mut().peer_polls(peer);
            }
            // a second question would make the answer to the first one late
            let owed = band.status_owed_ms(connection);
            if owed.is_none_or(|owed_ms| u64::from(owed_ms) * 1_000_000 >= within.0.max(OWED.0)) {
                // one that cannot be asked is not given up
                let _ = band.status_ask(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rail::{LaneState, LaneStats};

    /// One that had carried a stripe of the peer's was prepared at once, although all of ours had
    /// vanished.
    #[test]
    fn queue_pair_behind_one_that_lost_payload_in_silence_waits_and_behind_one_that_worked_not() {
        let works = LaneView {
            state: LaneState::Down,
            generation: 3,
            code: libc::ETIMEDOUT,
            speed: 0,
            control: false,
            carried: true,
            ended: ENOUGH,
            stood: Span::millis(6250),
            short_alone: false,
            stats: LaneStats::default(),
        };
        let lost = Some(Later::Lost(Span::millis(6250)));
        let none = Bytes(0);
        let wait_behind = |last| wait_behind(Some(ConnectionRail::Verbs), last);
        assert_eq!(wait_behind(works), None);
        assert_eq!(wait_behind(LaneView { ended: none, ..works }), lost);
        let joining = LaneView { ended: none, stood: Span(0), carried: false, ..works };
        assert_eq!(wait_behind(joining), Some(Later::Missed), "nothing came to the peer");
        let probed = LaneView { short_alone: true, ..joining };
        assert_eq!(wait_behind(probed), Some(Later::Lost(Span(0))));
        // its port went down, or the peer gave it up
        assert_eq!(wait_behind(LaneView { code: libc::ENETDOWN, ended: none, ..works }), None);
        assert_eq!(wait_behind(LaneView { code: 0, ended: none, ..works }), None);
        // what a vendor calls 110 is its own
        let vendor = Some(ConnectionRail::Vendor);
        assert_eq!(super::wait_behind(vendor, LaneView { ended: none, ..works }), None);
    }

    /// It is asked again for as long as the connection stands.
    #[test]
    fn port_that_refuses_is_told_of_once_for_each_reason() {
        use crate::provider::vendor::PeerError;
        use crate::provider::vendor::port::PortPeerError as Why;
        let mut told = None;
        let code = |code| Some(PortPeerError::Vendor(Why::Peer(PeerError::Refused(code))));
        for (why, news) in [
            (None, None),
            (code(libc::ENOMEM), Some(PortNews::Lost)),
            (code(libc::ENOMEM), None),
            (code(libc::EIO), Some(PortNews::Lost)),
            (None, Some(PortNews::Back)),
            (None, None),
        ] {
            assert_eq!(port_news(&mut told, why), news, "{why:?}");
        }
    }

    /// One that waits for another GID may be gone for good then.
    #[test]
    fn port_that_is_lost_for_another_reason_is_told_of_again() {
        let mut told = None;
        for (code, news) in [
            (None, None),
            (Some(libc::EADDRNOTAVAIL), Some(PortNews::Lost)),
            (Some(libc::EADDRNOTAVAIL), None),
            (Some(libc::ENODEV), Some(PortNews::Lost)),
            (Some(libc::ENODEV), None),
            (None, Some(PortNews::Back)),
            (None, None),
        ] {
            assert_eq!(port_news(&mut told, code), news, "{code:?}");
        }
    }
}
