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

use super::connections::{Connections, PEER_BYTES_MAX};
use super::known::ConnectionRail;
use crate::base::ids::{ConnectionIndex, RailGeneration};
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span};
use crate::connect::{PairEnd, Side};
use crate::fabric::{PeerLife, RailKey};
use crate::host::choice::ports::astray;
use crate::host::choice::rdma;
use crate::host::log::event::tell_briefly;
use crate::host::log::life::{LifeEvent, PortChange, PortFact, TcpAlone};
use crate::host::log::rail_news::RailAt;
use crate::host::machine::{Machine, NIC_BYTES_MAX};
use crate::host::shared::{SetUp, Shared};
use crate::provider::rail_set::{Later, Loss, PortPeerError, PortRail};
use crate::provider::verbs::gid::Gid;
use crate::transport::{LaneJoin, LaneView};
use crate::wire::pair::{LaneEnd, PORTS_MAX};
use crate::wire::status::{STATUS_FRESH, StatusHello};
use core::net::SocketAddr;

/// For how long a peer may owe an answer before it is asked once more.
const OWED: Span = Span::millis(1000);

/// Our ports of the lanes of a connection, from lane 1 on, and how many there are.
pub(in crate::host) type LanePorts = ([u8; PORTS_MAX], usize);

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

/// What people were told of the ports of an endpoint.
pub(in crate::host) struct Pairs {
    /// That a connection has TCP alone although there are ports.
    portless: bool,
    /// Why each port is out of use, as [`PortRail::loss`] says; `None`: it is not.
    lost: [Option<Loss>; PORTS_MAX],
    /// Of which it was said that their library tells of ops that nobody posted.
    strange: [bool; PORTS_MAX],
    /// Why each port refuses ends of lanes, or did when it was asked last.
    refusing: [Option<PortPeerError>; PORTS_MAX],
}

/// From which address to which a lane leads, where that is known.
type Ends = Option<[SocketAddr; 2]>;

impl Pairs {
    /// Nothing was told.
    pub(in crate::host) const NEW: Pairs = Pairs {
        portless: false,
        lost: [None; PORTS_MAX],
        strange: [false; PORTS_MAX],
        refusing: [None; PORTS_MAX],
    };

    /// A connection is in use: its queue pairs are prepared, and the peer is told.
    pub(in crate::host) fn begin(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        pairs: &LanePorts,
    ) {
        for (lane, port) in (1u8..).zip(&pairs.0[..pairs.1]) {
            let Machine::Host(endpoint) = &mut *connections.machine else { return };
            // the first of a region's keys is that of all other rails
            endpoint.lane_key_set(ConnectionIndex(index), lane, port + 1);
            self.prepare(connections, index, lane, usize::from(*port));
        }
    }

    /// Prepares the next queue pair of a lane whose last one is gone.
    #[cold]
    pub(in crate::host) fn offer(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
    ) {
        let now = connections.now();
        let machine = &mut *connections.machine;
        let last = machine.lane_view(index, lane);
        let kind = machine.port(index, lane).map(ConnectionRail::of);
        let wait = last.map_or(Some(Later::Missed), |last| wait_behind(kind, last));
        let Some((rail, peer)) = machine.end_mut(index, lane) else { return };
        let Some(place) = rail.port_of(peer) else { return };
        match wait {
            Some(why) => rail.pair_later(peer, place, now, why),
            None => {
                rail.pair_carried(peer, place, last.is_some_and(|last| last.ended >= ENOUGH));
                self.prepare(connections, index, lane, place);
            }
        }
    }

    /// Prepares a queue pair for a lane on the port at a place, and tells the peer.
    pub(in crate::host) fn prepare(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
        place: usize,
    ) {
        let (now, handle) = (connections.now(), connections.handle(index));
        let view = connections.machine.lane_view(index, lane);
        let generation = RailGeneration(view.map_or(0, |view| view.generation));
        let Some((rail, peer)) = connections.machine.end_mut(index, lane) else { return };
        if rail.port(place).is_some_and(PortRail::is_gone) {
            return self.ports_tell(connections.machine);
        }
        if rail.is_down(place) {
            return rail.pair_later(peer, place, now, Later::Down);
        }
        let random = crate::connect::random().map_or(0, |number| number as u32);
        let prepared = rail.pair_prepare(peer, place, generation, random);
        let mailbox_key = rail.mailbox_key(place).0;
        match (prepared, &connections.shared.set_up) {
            (Ok(end), SetUp::Band(band)) => {
                let end = PairEnd { end, mailbox_key };
                let is_refusing = rail.is_refusing(place);
                if band.pair_offer(handle, lane.into(), &end).is_err() {
                    // the side band has closed the connection: nobody will ask for it
                    let _ = rail.peer_detach(peer);
                }
                if !is_refusing {
                    self.refusal_tell(rail.port(place), place, None);
                }
            }
            // prepared when there is room
            (Err(PortPeerError::AGAIN), _) => rail.pair_later(peer, place, now, Later::Down),
            (Err(PortPeerError::GONE), _) => {
                if !rail.port(place).is_some_and(PortRail::is_gone) {
                    rail.pair_later(peer, place, now, Later::Down);
                }
                self.ports_tell(connections.machine);
            }
            // what it lacks, memory or queue pairs, may be there later
            (Err(error), _) => match (rail.pair_refused(peer, place, now), rail.port(place)) {
                (true, port) => self.refusal_tell(port, place, Some(error)),
                // the lane stays down, and TCP carries what it would have
                (false, Some(port)) => {
                    let fact = PortFact::Refuses { error, again: false };
                    tell_briefly(&PortChange { port, fact });
                }
                (false, None) => {}
            },
            (Ok(_), SetUp::Own(_)) => {}
        }
    }

    /// Tells people of ports that went out of use, or are used again.
    #[cold]
    pub(in crate::host) fn ports_tell(&mut self, machine: &Machine) {
        for (place, port) in ports(machine) {
            let fact = match port_news(&mut self.lost[place], port.loss()) {
                Some(PortNews::Lost) => PortFact::Lost,
                Some(PortNews::Back) => PortFact::Back,
                None => continue,
            };
            tell_briefly(&PortChange { port, fact });
        }
    }

    /// Tells people, once of each port, of a library that tells of ops that nobody posted.
    pub(in crate::host) fn strange_tell(&mut self, machine: &Machine) {
        for (place, port) in ports(machine).filter(|(_, port)| port.unknown() != 0) {
            if !core::mem::replace(&mut self.strange[place], true) {
                tell_briefly(&PortChange { port, fact: PortFact::Strange(port.unknown()) });
            }
        }
    }

    /// Tells people of a port that refuses ends, or gives them again: not at every try.
    #[cold]
    fn refusal_tell(
        &mut self,
        port: Option<&PortRail<'static>>,
        place: usize,
        why: Option<PortPeerError>,
    ) {
        let Some(told) = self.refusing.get_mut(place) else { return };
        let fact = match (port_news(told, why), why) {
            (Some(PortNews::Lost), Some(error)) => PortFact::Refuses { error, again: true },
            (Some(PortNews::Back), _) => PortFact::Gives,
            (Some(PortNews::Lost), None) | (None, _) => return,
        };
        if let Some(port) = port {
            tell_briefly(&PortChange { port, fact });
        }
    }

    /// The peer's end of a lane has come, for the queue pair that was prepared last. From where to
    /// where the lane leads, if it is joined.
    #[cold]
    pub(in crate::host) fn came(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
        generation: u32,
    ) -> Option<Ends> {
        let (now, handle) = (connections.now(), connections.handle(index));
        let waits = connections.known[index as usize].params.side == Side::Listener;
        let band = connections.shared.band()?;
        let theirs = band.pair_end(handle, lane.into(), generation);
        let Machine::Host(endpoint) = &mut *connections.machine else { return None };
        let connection = ConnectionIndex(index);
        let peer = endpoint.lane_peer(connection, lane);
        let rail = endpoint.rail_mut();
        let place = rail.port_of(peer)?;
        let waits_for_port = rail.is_down(place) || theirs.is_none();
        let joined = match &theirs {
            Some(theirs) if !waits_for_port => rail.pair_connect(peer, &theirs.end),
            Some(_) | None => Err(PortPeerError::Index),
        };
        // it has failed, and is up again, since our end was prepared
        let waits_for_port = waits_for_port || joined == Err(PortPeerError::RAIL_LOST);
        let (Ok(()), Some(theirs)) = (joined, &theirs) else {
            if joined == Err(PortPeerError::NO_ANSWER)
                && rail.pair_unanswered(peer, now, generation)
            {
                return None;
            }
            // it may have ended since it was prepared
            let _ = rail.peer_detach(peer);
            let why = if waits_for_port { Later::Down } else { Later::Missed };
            rail.pair_later(peer, place, now, why);
            if let (Err(error), false) = (joined, waits_for_port) {
                tell_briefly(&LifeEvent::NoSecondEnd { lane, error });
            }
            return None;
        };
        let ends = ends_of(rail.port(place), &theirs.end);
        let mailbox_key = Some(RailKey(theirs.mailbox_key));
        if !endpoint.lane_join(connection, lane, &LaneJoin { generation, mailbox_key, waits }) {
            // the connection has failed meanwhile
            let _ = endpoint.rail_mut().peer_detach(peer);
            return None;
        }
        if waits {
            band.pair_answer(handle, lane.into(), generation);
        }
        Some(ends)
    }

    /// Says which ports a connection over TCP that comes into use does without, because they do not
    /// lead to its peer's host; and, the first time as a warning, that it has TCP alone although we
    /// have ports. `pairs`: how many of its lanes are on ports.
    #[cold]
    pub(in crate::host) fn unused_say(
        &mut self,
        connections: &Connections<'_>,
        index: u32,
        pairs: usize,
    ) {
        let (Machine::Host(endpoint), Some(band)) =
            (&*connections.machine, connections.shared.band())
        else {
            return;
        };
        let Some((ports, theirs, same_host)) = band.ports_towards(connections.handle(index)) else {
            return;
        };
        let mut name = [0; PEER_BYTES_MAX];
        let peer = connections.peer_name(index, &mut name);
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
        let again = core::mem::replace(&mut self.portless, true);
        tell_briefly(&PortChange { port, fact: PortFact::TcpAlone { peer, why, again } });
    }
}

/// The ports of an endpoint, with their places.
fn ports(machine: &Machine) -> impl Iterator<Item = (usize, &PortRail<'static>)> {
    let rail = match machine {
        Machine::Host(endpoint) => Some(endpoint.rail()),
        Machine::Loopback(_) => None,
    };
    rail.into_iter().flat_map(|rail| {
        (0..rail.port_count()).filter_map(|place| Some((place, rail.port(place)?)))
    })
}

/// From where to where a lane between our port and an end of the peer's leads.
fn ends_of(port: Option<&PortRail<'_>>, theirs: &LaneEnd) -> Ends {
    match (port?, theirs) {
        (PortRail::Verbs(port), LaneEnd::QueuePair(hello)) => {
            let ends = [Gid(port.gid().0).ip(), Gid(hello.gid.to_le_bytes()).ip()];
            Some(ends.map(|ip| SocketAddr::new(ip, 0)))
        }
        (PortRail::Libfabric(port), LaneEnd::Shared(hello)) => port.ends(hello),
        _ => None,
    }
}

/// The lanes of a connection that are queue pairs. *Cost*: control path.
pub(in crate::host) fn pairs_of(
    machine: &Machine,
    shared: &Shared,
    connection: Handle,
) -> LanePorts {
    match (machine, shared.band()) {
        (Machine::Host(endpoint), Some(band)) if endpoint.rail().port_count() != 0 => {
            band.pair_ports(connection)
        }
        _ => ([0; PORTS_MAX], 0),
    }
}

/// Looks after peers of whose ops nothing ends, and tells what ports hear of others.
#[inline]
pub(in crate::host) fn doubts_look(connections: &mut Connections<'_>) {
    if matches!(&*connections.machine, Machine::Host(endpoint) if endpoint.rail().has_words()) {
        doubts_settle(connections);
        complaints_tell(connections);
    }
}

/// Tells of peers what their ports say, but not of connections that are gone.
#[cold]
#[inline(never)]
fn complaints_tell(connections: &mut Connections<'_>) {
    while let Machine::Host(endpoint) = &mut *connections.machine
        && let Some((peer, complaint)) = endpoint.rail_mut().complaint()
    {
        let (index, lane) = endpoint.lane_of(peer);
        let index = index as u32;
        let (mut name, mut nic) = ([0; PEER_BYTES_MAX], [0; NIC_BYTES_MAX]);
        let peer = connections.peer_name(index, &mut name);
        let nic = connections.machine.nic(index, lane, &mut nic);
        let rail = connections.lane_rail(index, lane);
        let at = RailAt { rail, lane, peer, ends: None, nic };
        tell_briefly(&LifeEvent::Complaint { at: &at, complaint });
    }
}

/// Finds out of peers of whose ops nothing ends whether their programs poll: what they have
/// said over the side band, and asks them for the next time.
#[cold]
#[inline(never)]
fn doubts_settle(connections: &mut Connections<'_>) {
    let Some(band) = connections.shared.band() else { return };
    while let Machine::Host(endpoint) = &mut *connections.machine
        && let Some((peer, within)) = endpoint.rail_mut().doubted()
    {
        let (index, _) = endpoint.lane_of(peer);
        let connection = connections.known[index].handle(index as u32);
        let has_polled = |said: StatusHello| {
            let left_ns = u64::from(said.status.left_ms) * 1_000_000;
            said.status.flags & STATUS_FRESH != 0 && left_ns <= within.0
        };
        if band.status_of_peer(connection).is_some_and(has_polled)
            && let Some((port, peer)) = endpoint.rail_mut().port_end_mut(peer)
        {
            port.peer_polls(peer);
        }
        // a second question would make the answer to the first one late
        let owed = band.status_owed_ms(connection);
        if owed.is_none_or(|owed_ms| u64::from(owed_ms) * 1_000_000 >= within.0.max(OWED.0)) {
            // one that cannot be asked is not given up
            let _ = band.status_ask(connection);
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
