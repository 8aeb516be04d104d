//! The rail: what it keeps, and how it is opened.

extern crate std;

use super::area::{Area, RECEIVES};
use super::choice::gid::{self, GidKind};
use super::choice::ports::SYSFS;
use super::choice::software::is_software;
use super::closer::Closer;
use super::domain::VerbsDomain;
use super::mtu::Packets;
use super::neighbour::interface_of;
use super::peer::{Down, Peer, State};
use super::port::{Health, News, Port, Uses};
use super::report::SILENT;
use super::search::{Place, kind_of};
use super::sends::{CHAIN, Chain, Link, PARTS_MAX, Ring, SENDS, Sent};
use super::silence::Silence;
use super::sys::abi::{DeviceAttr, Gid, PortAttr, Wc};
use super::sys::{CompletionQueue, Device, Library, ProtectionDomain, numbers as n};
use super::{
    Config, ErrorReport, Limits, OpenError, PAYLOAD_BYTES_MAX, PEERS_MAX, REGIONS_MAX, Step,
};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::DownCause;
use crate::memory::Errno;
use crate::provider::asides::Aside;
use crate::provider::fifo::Fifo;
use crate::provider::ops::Ops;
use std::path::Path;

const ROOM: &str = "the block is as long as `bytes` says";
/// Completions that are taken at a time.
pub(super) const BATCH: usize = 32;
/// Events that one look takes at most.
const EVENTS_MAX: u32 = 16;
/// Fences, and ops that were refused for a key of our own, per peer.
const ASIDES: u32 = 4;
/// What a completion queue must hold of one peer: all of its two queues, and a marker each.
const COMPLETIONS: u32 = SENDS + RECEIVES as u32 + 2;
/// Reads and adds in flight at most, ours and the peer's: what most devices have.
const READS_MAX: i32 = 16;

fn asides(limits: &Limits) -> usize {
    (limits.peers_max * ASIDES) as usize
}

/// Bytes that [`Verbs::open`] cuts.
pub fn bytes(limits: &Limits) -> usize {
    let peers = limits.peers_max as usize;
    VerbsDomain::bytes(limits.regions_max)
        + bytes_for::<Peer>(peers)
        + bytes_for::<Ring>(peers)
        + bytes_for::<Chain>(peers)
        + bytes_for::<Aside>(asides(limits))
        + 2 * bytes_for::<u32>(peers.next_power_of_two())
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
    pub(super) cq: core::mem::ManuallyDrop<CompletionQueue>,
    pub(super) limits: Limits,
    pub(super) port: Port<'m>,
    pub(super) message_bytes_max: u32,
    pub(super) has_atomics: bool,
    /// Whether vendors' extensions are offered to peers: until they were refused, or a queue pair
    /// with them.
    pub(super) extensions: bool,
    /// Whether queue pairs post by the extended interface where the driver has it.
    pub(super) extended_post: bool,
    /// Most parts of a write that are asked for.
    pub(super) parts_max: u8,
    /// See [`Config::adaptive_bytes_min`]; the largest number: never.
    pub(super) adaptive_bytes_min: u64,
    /// Reads and adds in flight at most: ours to one peer, and a peer's to us.
    pub(super) reads_max: u8,
    pub(super) answers_max: u8,
    pub(super) peers: &'m mut [Peer],
    pub(super) sent: &'m mut [Ring],
    pub(super) chains: &'m mut [Chain],
    pub(super) asides: Ops<'m, Aside>,
    /// Peers with something to send.
    pub(super) dirty: Fifo<'m, u32>,
    /// Peers with ends to report that found no room; each once.
    pub(super) owing: Fifo<'m, u32>,
    /// The last peer that has cells to be posted again.
    pub(super) due: Option<u32>,
    pub(super) area: Area,
    /// Completions taken and not looked at.
    pub(super) batch: [Wc; BATCH],
    pub(super) batch_at: usize,
    pub(super) batch_count: usize,
    pub(super) peers_open: u32,
    /// Ends that are to be told, and peers whose fences wait.
    pub(super) endings: u32,
    pub(super) now: Instant,
    pub(super) silence: Silence,
    pub(super) closer: Closer,
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
        let count = limits.peers_max as usize;
        let peers = block.filled_with(count, Peer::unused).expect(ROOM);
        let sent = block.filled(count, [Sent::quiet(0); SENDS as usize]).expect(ROOM);
        let chains = block.filled(count, [Link::FREE; CHAIN]).expect(ROOM);
        let asides = Ops::new(block.slice::<Aside>(asides(limits)).expect(ROOM));
        let queue = count.next_power_of_two();
        let [dirty, owing] = [(); 2].map(|()| Fifo::new(block.slice::<u32>(queue).expect(ROOM)));
        let has_atomics = what.atomic_cap != n::ATOMIC_NONE;
        let access = (config.relaxed_ordering, has_atomics);
        let domain = VerbsDomain::carve(block, limits.regions_max, device, pd, access);
        let domain = domain.expect(ROOM);
        let is_software = is_software(Path::new(SYSFS), config.device);
        Ok(Verbs {
            domain,
            cq: core::mem::ManuallyDrop::new(cq),
            limits: *limits,
            port: Port::new(domain.shared(), config, (&port, place), is_software),
            message_bytes_max: port.max_msg_sz,
            has_atomics,
            extensions: config.extensions,
            extended_post: config.extended_post,
            parts_max: what.max_sge.clamp(1, PARTS_MAX as i32) as u8,
            adaptive_bytes_min: most_if_none(config.adaptive_bytes_min),
            reads_max: what.max_qp_init_rd_atom.clamp(0, READS_MAX) as u8,
            answers_max: what.max_qp_rd_atom.clamp(0, READS_MAX) as u8,
            peers,
            sent,
            chains,
            asides,
            dirty,
            owing,
            due: None,
            area,
            batch: [Wc::NOTHING; BATCH],
            batch_at: 0,
            batch_count: 0,
            peers_open: 0,
            endings: 0,
            now: Instant(0),
            silence: Silence::new(config.silence_max),
            closer: Closer::new(limits.peers_max),
        })
    }

    /// Whether packets of a queue pair take one way, so that writes land in the order of posts.
    #[inline]
    pub(super) fn is_ordered(&self) -> bool {
        self.adaptive_bytes_min == u64::MAX
    }

    /// Whether no peer is open, so that polling is of no use.
    pub fn is_idle(&self) -> bool {
        self.peers_open == 0
    }

    /// Whether something was posted that no poll or flush has handed to the device yet.
    pub fn is_unsent(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether the next poll must be told the time: a peer is ending.
    pub fn wants_time(&self) -> bool {
        self.endings > 0
    }

    /// Whether something that was posted to a living peer has not reached its device yet. Asks the
    /// device to say when it has, so poll and ask again.
    pub fn is_undelivered(&mut self, peer: PeerIndex) -> bool {
        match self.peers.get(peer.as_usize()) {
            Some(record) if record.takes_ops() && record.sends.is_undelivered() => {}
            Some(_) | None => return false,
        }
        self.ask(peer.as_usize());
        true
    }

    /// What broke the connection to a peer, while it is not closed.
    pub fn error(&self, peer: PeerIndex) -> Option<ErrorReport> {
        self.peers.get(peer.as_usize())?.report
    }

    /// Whether the queue pair of a peer posts by the extended interface.
    pub fn is_extended(&self, peer: PeerIndex) -> bool {
        let record = self.peers.get(peer.as_usize());
        record.and_then(|record| record.qp.as_ref()).is_some_and(|qp| qp.is_extended())
    }

    /// How long the packets of a peer's queue pair are; `None`: it is not joined.
    pub fn packets(&self, peer: PeerIndex) -> Option<Packets> {
        let record = self.peers.get(peer.as_usize())?;
        record.terms.packets()
    }

    /// Posts what a peer's device acknowledges, unless that is under way; `false`: it takes no ops.
    #[cold]
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        let Some(record) = self.peers.get_mut(peer.as_usize()).filter(|it| it.takes_ops()) else {
            return false;
        };
        record.looks.heard = false;
        self.ask_anyway(peer.as_usize());
        true
    }

    /// Whether something has come of it since, or was acknowledged; `None`: it takes no ops.
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        let record = self.peers.get(peer.as_usize()).filter(|it| it.takes_ops())?;
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
        Some([self.cq.channel()?.fd(), self.domain.shared().device().event_fd()])
    }

    /// Asks the device to make a descriptor readable with its next completion, and hands over what
    /// was posted. `false`: something is there already, or is due by time; poll instead.
    ///
    /// *Cost*: three system calls.
    pub fn arm(&mut self) -> bool {
        // a descriptor that is readable stays so until it is looked at
        self.look_at_device();
        if self.is_idle() {
            self.cq.hush();
            return true;
        }
        if !self.dirty.is_empty() {
            self.ring_all();
        }
        // those that work still end when that has been so for long enough
        let is_port_late = self.health().port_down_since.is_some()
            && self.peers.iter().any(|peer| peer.state == State::Live);
        // what is not looked at comes without a completion, or was taken already
        let is_quiet = self.dirty.is_empty()
            && self.owing.is_empty()
            && self.asides.none_done()
            && self.endings == 0
            && self.batch_at == self.batch_count
            && !is_port_late;
        is_quiet && self.cq.ask() && {
            // what came before it was asked is told of by nobody
            let count = self.cq.poll(&mut self.batch);
            (self.batch_at, self.batch_count) = (0, count.max(0) as usize);
            count == 0
        }
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
            && let Some(news) = self.port.next_event(self.now, || uses(self.peers))
        {
            count += 1;
            self.take_news(news);
        }
        if self.port.is_late(self.now) {
            // those that know no peer yet may wait for the port
            self.end_all(&[State::Live], DownCause::Broken(libc::ENETDOWN));
        }
        count < EVENTS_MAX
    }

    fn take_news(&mut self, news: News) {
        match news {
            News::None => {}
            News::Lost(code) => self.lose(code),
            News::Failed(element, code) => {
                for index in 0..self.peers.len() {
                    let qp = self.peers[index].qp.as_ref();
                    if qp.is_some_and(|qp| qp.is(element)) {
                        self.end(index, DownCause::Broken(code));
                    }
                }
            }
        }
    }

    /// Looks what has become of the port and its GID, and loses the rail where it must.
    ///
    /// *Errors*: as [`Port::check`].
    pub(super) fn check(&mut self) -> Result<(), Errno> {
        let news = self.port.check(uses(self.peers))?;
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

    /// Looks at all peers, behind a poll that has taken every completion there was.
    #[cold]
    pub(super) fn silence_look(&mut self) {
        self.silence.begin(self.now);
        for index in 0..self.peers.len() {
            let record = &mut self.peers[index];
            if !record.takes_ops() {
                continue;
            }
            if record.looks.is_silent(record.sends.ended(), record.sends.is_undelivered()) {
                let (status, vendor, was_send) = (SILENT, 0, true);
                let (local, remote) = (self.port.place.gid, record.terms.gid);
                let report = ErrorReport { status, vendor, was_send, local, remote };
                record.report.get_or_insert(report);
                self.end(index, DownCause::Broken(libc::ETIMEDOUT));
            } else {
                // of what nobody waits for nothing would be heard
                self.ask(index);
            }
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

fn uses(peers: &[Peer]) -> Uses {
    let has = |state| peers.iter().any(|peer| peer.state == state);
    Uses { live: has(State::Live), prepared: has(State::Prepared) }
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
        for index in 0..self.peers.len() {
            if self.peers[index].state != State::Closed {
                self.peers[index].down = Down::Told;
                self.queue_pair_close(index);
            }
        }
        self.closer.finish();
        // SAFETY: dropped once, after its queue pairs and before its device.
        unsafe { core::mem::ManuallyDrop::drop(&mut self.cq) };
        // SAFETY: called once; nothing of ours uses the device afterwards.
        unsafe { self.domain.close() };
    }
}
