//! The rail: what it keeps, and how it is opened.

extern crate std;

use super::area::{Area, RECEIVES};
use super::choice::gid::{self, GidKind};
use super::choice::ports::SYSFS;
use super::choice::software::is_software;
use super::closer::Closer;
use super::domain::VerbsDomain;
use super::events::Health;
use super::mtu::{Packets, mtu_bytes};
use super::neighbour::interface_of;
use super::peer::{Down, Peer, State};
use super::report::SILENT;
use super::revive::Search;
use super::sends::{CHAIN, Chain, Link, PARTS_MAX, Ring, SENDS, Sent};
use super::silence::Silence;
use super::sys::abi::{DeviceAttr, Gid, PortAttr, Wc};
use super::sys::{CompletionQueue, Device, Library, ProtectionDomain, numbers as n};
use super::{
    Config, ErrorReport, Limits, OpenError, PAYLOAD_BYTES_MAX, PEERS_MAX, PathConfig, REGIONS_MAX,
    Step,
};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::{Instant, Span};
use crate::fabric::DownCause;
use crate::memory::Errno;
use crate::provider::asides::Aside;
use crate::provider::fifo::Fifo;
use crate::provider::ops::Ops;
use std::path::Path;

const ROOM: &str = "the block is as long as `bytes` says";
/// Completions that are taken at a time.
pub(super) const BATCH: usize = 32;
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
    pub(super) path: PathConfig,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: Gid,
    /// `IBV_GID_TYPE_…`; `None`: the library does not tell it.
    pub(super) gid_kind: Option<u32>,
    /// The interface of the GID; 0: none.
    pub(super) interface: u32,
    pub(super) lid: u16,
    /// Whether its packets have a global route header even inside of their subnet.
    pub(super) wants_global: bool,
    pub(super) is_ethernet: bool,
    /// Whether its doorbell is a system call.
    pub(super) is_software: bool,
    pub(super) mtu_bytes: u32,
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
    pub(super) port_grace: Span,
    pub(super) health: Health,
    pub(super) search: Search,
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
        let Found { device, what, port, gid, gid_kind, interface } = find(config)?;
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
        Ok(Verbs {
            domain: domain.expect(ROOM),
            cq: core::mem::ManuallyDrop::new(cq),
            limits: *limits,
            path: config.path,
            port: config.port,
            gid_index: config.gid_index,
            gid,
            gid_kind,
            interface,
            lid: port.lid,
            wants_global: wants_global(&port),
            is_ethernet: port.link_layer == n::LINK_LAYER_ETHERNET,
            is_software: is_software(Path::new(SYSFS), config.device),
            mtu_bytes: mtu_bytes(port.active_mtu),
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
            port_grace: config.port_grace,
            health: Health::default(),
            search: Search::new(gid, config),
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
        self.health
    }

    /// The GID that it stands on, or stood on.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Largest packet of its port, in bytes.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
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
                let (local, remote) = (self.gid, record.terms.gid);
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
    gid: Gid,
    gid_kind: Option<u32>,
    interface: u32,
}

pub(super) fn wants_global(port: &PortAttr) -> bool {
    port.flags & n::PORT_GRH_REQUIRED != 0
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
    Ok(Found { device, what, port, gid, gid_kind, interface })
}

/// What packets of a GID of this `IBV_GID_TYPE_…` look like.
pub(super) fn kind_of(number: u32) -> GidKind {
    match number {
        n::GID_ROCE_V1 => GidKind::RoceV1,
        n::GID_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::InfiniBand,
    }
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
