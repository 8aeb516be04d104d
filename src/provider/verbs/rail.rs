//! The rail: what it keeps, and how it is opened.

use super::area::{Area, RECEIVES};
use super::choice::gid::{self, GidKind};
use super::choice::ports::SYSFS;
use super::choice::software::is_software;
use super::completions::Completions;
use super::domain::VerbsDomain;
use super::mtu::Packets;
use super::neighbour::interface_of;
use super::peer::{Peer, State};
use super::peers::{self, Abilities, Peers};
use super::port::{Health, News, Port};
use super::search::{Place, kind_of};
use super::sends::{Link, PARTS_MAX, SENDS, Sent};
use super::silence::Silence;
use super::sys::abi::{DeviceAttr, Gid, PortAttr};
use super::sys::{CompletionQueue, Device, Library, ProtectionDomain, numbers as n};
use super::{
    Config, ErrorReport, Limits, OpenError, PAYLOAD_BYTES_MAX, PEERS_MAX, REGIONS_MAX, Step,
};
use crate::base::carve::Carver;
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::DownCause;
use crate::memory::Errno;
use crate::provider::asides::Aside;
use core::mem::ManuallyDrop;
use std::path::Path;

/// Events that one look takes at most.
const EVENTS_MAX: u32 = 16;
/// What a completion queue must hold of one peer: all of its two queues, and a marker each.
const COMPLETIONS: u32 = SENDS + RECEIVES as u32 + 2;
/// Reads and adds in flight at most, ours and the peer's: what most devices have.
const READS_MAX: i32 = 16;

/// Bytes that [`Verbs::open`] cuts.
pub fn bytes(limits: &Limits) -> usize {
    VerbsDomain::bytes(limits.regions_max) + peers::bytes(limits.peers_max)
}

/// What the rail keeps, and the sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 4] = [
    ("verbs peer", size_of::<Peer>()),
    ("verbs send", size_of::<Sent>()),
    ("verbs chained send", size_of::<Link>()),
    ("verbs op aside", size_of::<Aside>()),
];

/// The verbs rail of one endpoint.
#[derive(Debug)]
pub struct Verbs<'m> {
    pub(super) domain: VerbsDomain<'m>,
    pub(super) completions: ManuallyDrop<Completions>,
    pub(super) port: Port<'m>,
    pub(super) peers: Peers<'m>,
    /// Whether vendors' extensions are offered to peers: until they were refused, or a queue pair
    /// with them.
    pub(super) extensions: bool,
    /// Whether queue pairs post by the extended interface where the driver has it.
    pub(super) extended_post: bool,
    pub(super) now: Instant,
    pub(super) silence: Silence,
}

// SAFETY: its pointers lead into the reserve and the block, which one thread uses at a time.
unsafe impl Send for Verbs<'_> {}

impl<'m> Verbs<'m> {
    /// Cuts a rail out of `block` and opens it on a device.
    ///
    /// *Cost*: control path.
    pub fn open(
        block: &mut Carver<'m>,
        limits: &Limits,
        config: &Config,
    ) -> Result<Verbs<'m>, OpenError> {
        check(limits)?;
        if block.left() < bytes(limits) {
            return Err(OpenError::Block);
        }
        let at = |step| move |errno| OpenError::Refused(step, errno);
        let Found { device, what, port, place } = find(config)?;
        let area = Area::create(limits.peers_max, limits.payload_bytes_max);
        let area = area.map_err(at(Step::Buffers))?;
        let pd = ProtectionDomain::create(&device).map_err(at(Step::ProtectionDomain))?;
        let cq = CompletionQueue::create(&device, completions(limits, &what)? as i32);
        let cq = cq.map_err(at(Step::CompletionQueue))?;
        let has_atomics = what.atomic_cap != n::ATOMIC_NONE;
        let access = (config.relaxed_ordering, has_atomics);
        let domain = VerbsDomain::carve(block, limits.regions_max, device, pd, access);
        let domain = domain.expect(peers::ROOM);
        let abilities = Abilities {
            is_software: is_software(Path::new(SYSFS), config.device),
            has_atomics,
            parts_max: what.max_sge.clamp(1, PARTS_MAX as i32) as u8,
            reads_max: what.max_qp_init_rd_atom.clamp(0, READS_MAX) as u8,
            answers_max: what.max_qp_rd_atom.clamp(0, READS_MAX) as u8,
            message_bytes_max: port.max_msg_sz,
            payload_bytes_max: limits.payload_bytes_max,
            adaptive_bytes_min: most_if_none(config.adaptive_bytes_min),
        };
        Ok(Verbs {
            domain,
            completions: ManuallyDrop::new(Completions::new(cq)),
            port: Port::new(domain.shared(), config, (&port, place), abilities.is_software),
            peers: Peers::carve(block, limits.peers_max, domain, area, abilities),
            extensions: config.extensions,
            extended_post: config.extended_post,
            now: Instant(0),
            silence: Silence::new(config.silence_max),
        })
    }

    /// Whether no peer is open, so that polling is of no use.
    pub fn is_idle(&self) -> bool {
        self.peers.open == 0
    }

    /// Whether something was posted that no poll or flush has handed to the device yet.
    pub fn is_unsent(&self) -> bool {
        !self.peers.dirty.is_empty()
    }

    /// Whether the next poll must be told the time: a peer is ending.
    pub fn wants_time(&self) -> bool {
        self.peers.endings > 0
    }

    /// Whether something that was posted to a living peer has not reached its device yet. Asks the
    /// device to say when it has, so poll and ask again.
    pub fn is_undelivered(&mut self, peer: PeerIndex) -> bool {
        let is_undelivered = |index: &usize| self.peers.records[*index].sends.is_undelivered();
        let Some(index) = self.peers.open_at(peer).ok().filter(is_undelivered) else {
            return false;
        };
        self.peers.ask(index);
        true
    }

    /// What broke the connection to a peer, while it is not closed.
    pub fn error(&self, peer: PeerIndex) -> Option<ErrorReport> {
        self.peers.get(peer)?.report
    }

    /// Whether the queue pair of a peer posts by the extended interface.
    pub fn is_extended(&self, peer: PeerIndex) -> bool {
        let record = self.peers.get(peer);
        record.and_then(|record| record.qp.as_ref()).is_some_and(|qp| qp.is_extended())
    }

    /// How long the packets of a peer's queue pair are; `None`: it is not joined.
    pub fn packets(&self, peer: PeerIndex) -> Option<Packets> {
        let record = self.peers.get(peer)?;
        record.terms.packets()
    }

    /// Posts what a peer's device acknowledges, unless that is under way; `false`: it takes no ops.
    #[cold]
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        let Ok(index) = self.peers.open_at(peer) else { return false };
        self.peers.records[index].looks.heard = false;
        self.peers.ask_anyway(index);
        true
    }

    /// Whether something has come of it since, or was acknowledged; `None`: it takes no ops.
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        let record = self.peers.get(peer).filter(|it| it.takes_ops())?;
        Some(record.looks.heard)
    }

    /// How device and port are.
    pub fn health(&self) -> Health {
        self.port.health
    }

    /// The GID that it stands on, or stood on.
    pub fn gid(&self) -> Gid {
        self.port.place.gid
    }

    /// Largest packet of its port, in bytes.
    pub fn mtu_bytes(&self) -> u32 {
        self.port.mtu_bytes
    }

    /// What becomes readable when there is something to poll for, once [`Verbs::arm`] has said so:
    /// of completions, and of what happens to the device. `None`: nothing does, so nobody sleeps.
    pub fn wait_fds(&self) -> Option<[i32; 2]> {
        Some([self.completions.queue.channel()?.fd(), self.domain.shared().device().event_fd()])
    }

    /// Asks the device to make a descriptor readable with its next completion, and hands over what
    /// was posted. `false`: something is there already, or is due by time; poll instead.
    ///
    /// *Cost*: three system calls.
    pub fn arm(&mut self) -> bool {
        // a descriptor that is readable stays so until it is looked at
        self.look_at_device();
        if self.is_idle() {
            if let Some(channel) = self.completions.queue.channel() {
                channel.drain();
            }
            return true;
        }
        self.peers.ring_all();
        // those that work still end when that has been so for long enough
        let is_port_late = self.health().port_down_since.is_some() && self.peers.has(State::Live);
        // what is not looked at comes without a completion, or was taken already
        self.peers.is_quiet() && !is_port_late && self.completions.arm()
    }

    /// Asks the device now and then whether something has happened to it. *Cost*: a system call
    /// when it is asked.
    #[inline]
    pub(super) fn watch(&mut self) {
        if self.port.health.is_due(self.now) {
            self.silence.tick(self.now);
            let _ = self.look_at_device();
        }
    }

    /// Takes the device's events; `false`: there may be more.
    #[cold]
    fn look_at_device(&mut self) -> bool {
        let mut count = 0;
        while count < EVENTS_MAX
            && let Some(news) = self.port.next_event(self.now, &self.peers)
        {
            count += 1;
            self.take_news(news);
        }
        if self.port.is_late(self.now) {
            // those that know no peer yet may wait for the port
            self.peers.end_all(&[State::Live], DownCause::Broken(libc::ENETDOWN));
        }
        count < EVENTS_MAX
    }

    fn take_news(&mut self, news: News) {
        match news {
            News::None => {}
            News::Lost(code) => self.lose(code),
            News::Failed(element, code) => {
                self.peers.end_element(element, DownCause::Broken(code));
            }
        }
    }

    /// The device failed, its completion queue did, or its GID has gone: every peer ends.
    #[cold]
    pub(super) fn lose(&mut self, code: i32) {
        self.port.lose(code);
        if let (libc::ENODEV, Some(channel)) = (code, self.completions.queue.channel()) {
            channel.mute();
        }
        self.peers.end_all(&[State::Live, State::Prepared], DownCause::Broken(code));
    }

    /// Looks what has become of the port and its GID, and loses the rail where it must.
    ///
    /// *Errors*: as [`Port::check`].
    pub(super) fn check(&mut self) -> Result<(), Errno> {
        let news = self.port.check(&self.peers)?;
        self.take_news(news);
        Ok(())
    }

    /// Whether the rail is of no use now, and could be again without being opened anew.
    pub fn may_revive(&self) -> bool {
        self.port.may_revive()
    }

    /// Goes on with a GID that the rules allow, if the port has one by now: with that of the subnet
    /// which has most bits in common with the one that the rail was opened with, or the last one at
    /// another place; after a while with that which an endpoint would be opened with. `false`: it
    /// has none, is down, the rail does not wait for one, or it is too early to look again.
    ///
    /// A rail that has its GID, and whose port is down for longer than it may be, sees whether it
    /// still is: of one that is up, and of which no event came, no queue pair would ever be made.
    ///
    /// *Cost*: control path; a system call for each event of the device, and one for a port that is
    /// down; where it is time to look, allocates, and a system call for each entry of the port's
    /// table.
    pub fn revive(&mut self, now: Instant) -> bool {
        self.now = now;
        if !self.port.health.is_lost() {
            if self.port.is_late(now) {
                let _ = self.check(); // what is not known now is asked for again
            }
            return false;
        }
        // a port that nobody polled has its news unread: that it has just come up, say
        self.may_revive() && self.look_at_device() && self.port.revive(now)
    }

    /// The last loss of the port, counted from 1, that is a fence by now: each queue pair of before
    /// it was stopped and has given back all that it had, or was destroyed. So nothing of before is
    /// on its way any more. 0: none is. The largest number: no peer has a queue pair that works or
    /// is ending, so that all of before has ended, with a loss or without.
    pub fn fenced_through(&self) -> u32 {
        match (self.peers.has(State::Draining), self.peers.has(State::Live)) {
            (true, _) => 0,
            (false, true) => self.port.health.revivals, // a loss stops all that were there
            (false, false) => u32::MAX,
        }
    }
}

/// A device that can serve.
struct Found {
    device: Device,
    what: DeviceAttr,
    port: PortAttr,
    place: Place,
}

/// A threshold that nothing reaches, in place of none.
fn most_if_none(bytes: u64) -> u64 {
    if bytes == 0 { u64::MAX } else { bytes }
}

fn find(config: &Config) -> Result<Found, OpenError> {
    let at = |step| move |errno| OpenError::Refused(step, errno);
    let library = Library::load().map_err(OpenError::Library)?;
    let device = Device::open(library, config.device).map_err(|errno| match errno {
        Errno(libc::ENODEV) => OpenError::NoDevice,
        errno => OpenError::Refused(Step::Device, errno),
    })?;
    device.events_do_not_block().map_err(at(Step::Device))?;
    let what = device.attributes().map_err(at(Step::Device))?;
    let port = device.port(config.port).map_err(at(Step::Port))?;
    if port.state != n::PORT_ACTIVE {
        return Err(OpenError::PortDown);
    }
    let found = device.gid_and_kind(config.port, config.gid_index);
    let (gid, gid_kind) = found.map_err(at(Step::Gid))?;
    if gid == Gid::default() {
        return Err(OpenError::NoGid);
    }
    if config.gid_chosen.is_some_and(|chosen| !is_chosen(gid, gid_kind, chosen)) {
        return Err(OpenError::GidChanged);
    }
    let interface = match port.link_layer {
        n::LINK_LAYER_ETHERNET => {
            let ip = gid::Gid(gid.0).ip();
            interface_of(config.device, config.port, config.gid_index, ip)
        }
        _ => 0,
    };
    let place = Place { index: config.gid_index, gid, kind: gid_kind, interface };
    Ok(Found { device, what, port, place })
}

/// Whether a GID is the one that was chosen, as far as the library tells.
fn is_chosen(gid: Gid, kind: Option<u32>, chosen: (gid::Gid, GidKind)) -> bool {
    gid.0 == chosen.0.0 && kind.is_none_or(|number| kind_of(number) == chosen.1)
}

/// How many the queue of a rail has room for.
fn completions(limits: &Limits, what: &DeviceAttr) -> Result<u32, OpenError> {
    let (wanted, most) = (limits.peers_max * COMPLETIONS, what.max_cqe as u32);
    if wanted <= most { Ok(wanted) } else { Err(OpenError::Completions { wanted, most }) }
}

fn check(limits: &Limits) -> Result<(), OpenError> {
    let peers = (1..=PEERS_MAX).contains(&limits.peers_max);
    let payload = limits.payload_bytes_max <= PAYLOAD_BYTES_MAX;
    match peers && payload && limits.regions_max <= REGIONS_MAX {
        true => Ok(()),
        false => Err(OpenError::Limits),
    }
}

impl Drop for Verbs<'_> {
    fn drop(&mut self) {
        self.peers.close_all();
        // SAFETY: dropped once, after its queue pairs and before its device.
        unsafe { ManuallyDrop::drop(&mut self.completions) };
        // SAFETY: called once; nothing of ours uses the device afterwards.
        unsafe { self.domain.close() };
    }
}
