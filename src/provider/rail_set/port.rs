//! A port: of RDMA, of libfabric, or of a vendor. All have the same life of a peer, prepared, told
//! to the other end, joined to that end, and fenced.

use super::port_error::{PortError, PortOpenError, PortPeerError};
use super::port_words::{Complaint, Loss, LossWords};
use crate::base::carve::Carver;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{
    Caps, CloseError, Completion, DeregisterError, Domain, MemoryDomain, MemoryKind, OpId,
    PeerLife, Provider, RailKey, Region, RegisterError,
};
use crate::provider::vendor::VendorDomain;
use crate::provider::vendor::port as vendor;
use crate::provider::{libfabric, verbs};
use crate::wire::pair::LaneEnd;
use core::ffi::c_int;
use core::fmt;
use libfabric::Libfabric;
use vendor::VendorPort;
use verbs::Verbs;
use verbs::mtu::Packets;

/// How large a port is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PortLimits {
    /// Peers at a time.
    pub peers_max: u32,
    /// Regions at a time.
    pub regions_max: u32,
    /// Longest payload of a send.
    pub payload_bytes_max: u32,
}

/// What a port is opened on.
#[derive(Copy, Clone, Debug)]
pub enum PortConfig<'a> {
    /// A port of an RDMA device.
    Verbs(verbs::Config<'a>),
    /// A domain of a libfabric provider.
    Libfabric(libfabric::Config<'a>),
    /// A vendor's rail.
    Vendor(vendor::PortConfig),
}

impl PortConfig<'_> {
    /// Bytes that [`PortRail::open`] cuts.
    pub fn bytes(&self, limits: &PortLimits) -> usize {
        match self {
            PortConfig::Verbs(_) => verbs::bytes(&limits.verbs()),
            PortConfig::Libfabric(_) => libfabric::bytes(&limits.libfabric()),
            PortConfig::Vendor(_) => vendor::bytes(limits.peers_max),
        }
    }
}

impl PortLimits {
    const fn verbs(&self) -> verbs::Limits {
        let PortLimits { peers_max, regions_max, payload_bytes_max } = *self;
        verbs::Limits { peers_max, regions_max, payload_bytes_max }
    }

    const fn libfabric(&self) -> libfabric::Limits {
        let PortLimits { peers_max, regions_max, payload_bytes_max } = *self;
        libfabric::Limits { peers_max, regions_max, payload_bytes_max }
    }
}

/// Registration on a port, shared by copy with every thread that registers.
#[derive(Copy, Clone, Debug)]
pub enum PortDomain<'m> {
    /// Of an RDMA device.
    Verbs(verbs::VerbsDomain<'m>),
    /// Of libfabric.
    Libfabric(libfabric::LibfabricDomain<'m>),
    /// Of a vendor.
    Vendor(VendorDomain<'m>),
}

impl PortDomain<'_> {
    /// Registers memory that payload alone is written to, and no control word. `dmabuf`: a
    /// descriptor of it, and the offset of the region's first byte there.
    ///
    /// # Safety
    /// - as [`Domain::register`]; the descriptor is open until the region was deregistered.
    pub unsafe fn register_payload(
        &self,
        region: Region,
        dmabuf: Option<(c_int, u64)>,
    ) -> Result<RailKey, RegisterError> {
        match (self, dmabuf) {
            (PortDomain::Verbs(domain), Some((file, offset))) => {
                domain.register_dmabuf(region, file, offset)
            }
            // SAFETY: this function's contract.
            (PortDomain::Verbs(domain), None) => unsafe { domain.register_payload(region) },
            // SAFETY: as above; the descriptor stays open as long.
            (PortDomain::Libfabric(domain), _) => unsafe { domain.register_with(region, dmabuf) },
            // a table has no dma-bufs, and says nothing of when a GPU sees what was written
            (PortDomain::Vendor(_), _) if matches!(region.kind, MemoryKind::Cuda(_)) => {
                Err(RegisterError::Kind)
            }
            // SAFETY: as above.
            (PortDomain::Vendor(domain), _) => unsafe { domain.register(region) },
        }
    }

    /// Registers memory, for payload and control words.
    ///
    /// # Safety
    /// - as [`Domain::register`].
    pub unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        match self {
            // SAFETY: this function's contract.
            PortDomain::Verbs(domain) => unsafe { domain.register(region) },
            // SAFETY: as above.
            PortDomain::Libfabric(domain) => unsafe { domain.register(region) },
            // SAFETY: as above.
            PortDomain::Vendor(domain) => unsafe { domain.register(region) },
        }
    }

    /// Whether it may register memory of GPUs by its address.
    pub fn takes_gpu_addresses(&self) -> bool {
        match self {
            PortDomain::Libfabric(domain) => domain.reaches_gpus(),
            PortDomain::Verbs(_) | PortDomain::Vendor(_) => false,
        }
    }

    /// Whether it may register a dma-buf.
    pub fn takes_dmabufs(&self) -> bool {
        match self {
            PortDomain::Verbs(domain) => domain.takes_dmabufs(),
            PortDomain::Libfabric(domain) => domain.takes_dmabufs(),
            PortDomain::Vendor(_) => false,
        }
    }

    /// Forgets memory that no request uses any more, at once or as soon as peers let go of it.
    ///
    /// *Errors*: as [`Domain::deregister`].
    pub fn deregister_soon(&self, key: RailKey) -> Result<(), DeregisterError> {
        match self {
            PortDomain::Verbs(domain) => domain.deregister(key),
            PortDomain::Libfabric(domain) => domain.deregister_soon(key),
            PortDomain::Vendor(domain) => domain.deregister(key),
        }
    }
}

/// One port.
#[allow(clippy::large_enum_variant)] // a few per endpoint, in a table that does not grow
pub enum PortRail<'m> {
    /// Of an RDMA device.
    Verbs(Verbs<'m>),
    /// Of libfabric.
    Libfabric(Libfabric<'m>),
    /// Of a vendor.
    Vendor(VendorPort<'m>),
}

macro_rules! on {
    ($port:expr, $rail:ident => $body:expr) => {
        match $port {
            PortRail::Verbs($rail) => $body,
            PortRail::Libfabric($rail) => $body,
            PortRail::Vendor($rail) => $body,
        }
    };
}

impl<'m> PortRail<'m> {
    /// Cuts a port out of `block` and opens it.
    ///
    /// # Safety
    /// - copies of its domain are used no more when the result is dropped;
    /// - of a vendor: as [`crate::provider::vendor::Vendor::open`].
    pub unsafe fn open(
        block: &mut Carver<'m>,
        limits: &PortLimits,
        config: &PortConfig,
    ) -> Result<PortRail<'m>, PortOpenError> {
        match config {
            PortConfig::Verbs(config) => {
                let rail = Verbs::open(block, &limits.verbs(), config);
                rail.map(PortRail::Verbs).map_err(PortOpenError::Verbs)
            }
            PortConfig::Libfabric(config) => {
                let rail = Libfabric::open(block, &limits.libfabric(), config);
                rail.map(PortRail::Libfabric).map_err(PortOpenError::Libfabric)
            }
            PortConfig::Vendor(config) => {
                let PortLimits { peers_max, regions_max, payload_bytes_max } = *limits;
                // SAFETY: this function's contract.
                let rail = unsafe {
                    VendorPort::open(block, peers_max, regions_max, payload_bytes_max, config)
                };
                rail.map(PortRail::Vendor).map_err(PortOpenError::Vendor)
            }
        }
    }

    /// Registration on it.
    pub fn port_domain(&self) -> PortDomain<'m> {
        match self {
            PortRail::Verbs(rail) => PortDomain::Verbs(rail.domain()),
            PortRail::Libfabric(rail) => PortDomain::Libfabric(rail.domain()),
            PortRail::Vendor(rail) => PortDomain::Vendor(rail.domain()),
        }
    }

    /// Whether no peer is open, so that polling is of no use.
    #[inline]
    pub fn is_idle(&self) -> bool {
        match self {
            PortRail::Verbs(rail) => rail.is_idle(),
            PortRail::Libfabric(rail) => rail.is_idle() && !rail.health().is_lost(),
            PortRail::Vendor(rail) => rail.is_idle(),
        }
    }

    /// Whether something was posted that no poll or flush has handed over yet.
    #[inline]
    pub fn is_unsent(&self) -> bool {
        on!(self, rail => rail.is_unsent())
    }

    /// Whether the next poll must be told the time.
    #[inline]
    pub fn wants_time(&self) -> bool {
        match self {
            PortRail::Verbs(rail) => rail.wants_time(),
            PortRail::Libfabric(rail) => rail.wants_time(),
            PortRail::Vendor(rail) => !rail.is_idle(),
        }
    }

    /// Whether something that was posted to a living peer has not reached its host yet.
    pub fn is_undelivered(&mut self, peer: PeerIndex) -> bool {
        on!(self, rail => rail.is_undelivered(peer))
    }

    /// The same, but of a rail on which bytes arrive only while the peer polls, of that alone whose
    /// arrival `awaits` says that somebody waits for.
    pub fn is_awaiting(&mut self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool {
        match self {
            PortRail::Libfabric(rail) => rail.is_awaiting(peer, awaits),
            PortRail::Verbs(_) | PortRail::Vendor(_) => self.is_undelivered(peer),
        }
    }

    /// Posts to a peer what its device answers, though its program be stopped, or, over libfabric,
    /// its program; `false`: there is no such thing, or no peer.
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        match self {
            PortRail::Verbs(rail) => rail.hear_begin(peer),
            PortRail::Libfabric(rail) => rail.hear_begin(peer),
            PortRail::Vendor(_) => false,
        }
    }

    /// Whether that has answered, or anything else has been heard; `None`: as above.
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        match self {
            PortRail::Verbs(rail) => rail.is_heard(peer),
            PortRail::Libfabric(rail) => rail.is_heard(peer),
            PortRail::Vendor(_) => None,
        }
    }

    /// Whether what has answered was the peer's program, as far as the rail can tell.
    pub fn has_answered(&self, peer: PeerIndex) -> bool {
        match self {
            PortRail::Libfabric(rail) => rail.has_answered(peer),
            PortRail::Verbs(_) | PortRail::Vendor(_) => false,
        }
    }

    /// What becomes readable when there is something to poll for, once [`PortRail::arm`] has said
    /// so. `None`: nothing does, so nobody sleeps.
    pub fn wait_fds(&self) -> Option<[i32; 2]> {
        match self {
            PortRail::Verbs(rail) => rail.wait_fds(),
            PortRail::Libfabric(_) | PortRail::Vendor(_) => None,
        }
    }

    /// Before its user sleeps. `false`: poll instead; while a port of libfabric or of a vendor has
    /// peers, which move data when they are polled, nobody sleeps.
    pub fn arm(&mut self) -> bool {
        match self {
            PortRail::Verbs(rail) => rail.arm(),
            PortRail::Libfabric(_) | PortRail::Vendor(_) => self.is_idle(),
        }
    }

    /// Whether it is down: no peer can be joined.
    pub fn is_down(&self) -> bool {
        match self {
            PortRail::Verbs(rail) => {
                let health = rail.health();
                health.port_down_since.is_some() || health.is_lost()
            }
            PortRail::Libfabric(rail) => rail.health().is_lost(),
            PortRail::Vendor(rail) => rail.is_lost(),
        }
    }

    /// Brings up what is down, if that takes an act of ours: an RDMA port whose GID has gone takes
    /// another; libfabric's endpoint is closed and opened anew, and every peer of it ends.
    ///
    /// *Cost*: control path.
    #[cold]
    pub fn revive(&mut self, now: Instant) {
        match self {
            // and sees whether its port is up
            PortRail::Verbs(rail) => drop(rail.revive(now)),
            PortRail::Vendor(_) => {} // what has broken its promises is not trusted again
            // what is refused is tried again, and its health says why
            PortRail::Libfabric(rail) => drop(rail.reopen()),
        }
    }

    /// Whether it is of no use for good: nobody needs to wait for it.
    pub fn is_gone(&self) -> bool {
        match self {
            PortRail::Verbs(rail) => rail.health().is_lost() && !rail.may_revive(),
            PortRail::Vendor(rail) => rail.is_lost(),
            PortRail::Libfabric(_) => false,
        }
    }

    /// Why the whole port is of no use, for people, who are told it by [`PortRail::loss_words`],
    /// and once more where the reason is another.
    pub fn loss(&self) -> Option<Loss> {
        match self {
            PortRail::Verbs(rail) => match rail.health().lost_code {
                0 => None,
                code => Some(Loss { step: None, code }),
            },
            PortRail::Libfabric(rail) => {
                let (step, code) = rail.health().refused?;
                Some(Loss { step: Some(step), code: code.0 })
            }
            PortRail::Vendor(_) => None,
        }
    }

    /// The same in words.
    pub fn loss_words(&self) -> LossWords<'_, 'm> {
        LossWords(self)
    }

    /// Whether [`PortRail::doubted`] or [`PortRail::complaint`] may have a peer to name.
    #[inline]
    pub fn has_words(&self) -> bool {
        match self {
            PortRail::Libfabric(rail) => rail.has_doubts() || rail.has_complaints(),
            PortRail::Vendor(rail) => rail.has_complaints(),
            PortRail::Verbs(_) => false,
        }
    }

    /// The next peer of which is to be known whether its program has polled within that time; see
    /// [`Libfabric::doubted`].
    pub fn doubted(&mut self) -> Option<(PeerIndex, Span)> {
        match self {
            PortRail::Libfabric(rail) => rail.doubted(),
            PortRail::Verbs(_) | PortRail::Vendor(_) => None,
        }
    }

    /// The next peer that people should know something of; see [`Libfabric::complaint`] and
    /// [`VendorPort::complaint`].
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        match self {
            PortRail::Libfabric(rail) => {
                rail.complaint().map(|(peer, words)| (peer, Complaint::Libfabric(words)))
            }
            PortRail::Vendor(rail) => {
                rail.complaint().map(|(peer, words)| (peer, Complaint::Vendor(words)))
            }
            PortRail::Verbs(_) => None,
        }
    }

    /// It has.
    pub fn peer_polls(&mut self, peer: PeerIndex) {
        match self {
            PortRail::Libfabric(rail) => rail.peer_polls(peer),
            PortRail::Verbs(_) | PortRail::Vendor(_) => {}
        }
    }

    /// How many completions its library has told of ops that nobody posted.
    pub fn unknown(&self) -> u32 {
        match self {
            PortRail::Libfabric(rail) => rail.health().unknown,
            PortRail::Verbs(_) | PortRail::Vendor(_) => 0,
        }
    }

    /// What it is opened on, for who names its kind beside: nothing of an RDMA port, whose
    /// addresses are named.
    pub fn nic_write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        match self {
            PortRail::Verbs(_) => Ok(()),
            PortRail::Libfabric(rail) => write!(out, "{}", rail.nic()),
            PortRail::Vendor(rail) => write!(out, "{}", rail.name()),
        }
    }

    /// What broke the connection to a peer, while it is not closed.
    pub fn error(&self, peer: PeerIndex) -> Option<PortError> {
        match self {
            PortRail::Verbs(rail) => rail.error(peer).map(PortError::Verbs),
            PortRail::Libfabric(rail) => rail.error(peer).map(PortError::Libfabric),
            PortRail::Vendor(rail) => rail.error(peer).map(PortError::Vendor),
        }
    }

    /// How long the packets of a peer's queue pair are; `None`: it has none, or is not joined.
    pub fn packets(&self, peer: PeerIndex) -> Option<Packets> {
        match self {
            PortRail::Verbs(rail) => rail.packets(peer),
            PortRail::Libfabric(_) | PortRail::Vendor(_) => None,
        }
    }

    /// Prepares a peer, and says what its other end must know. `random`: strangers do not guess it;
    /// `mailbox_key`: what it calls our mailboxes.
    pub fn peer_prepare(
        &mut self,
        peer: PeerIndex,
        generation: RailGeneration,
        random: u32,
        mailbox_key: RailKey,
    ) -> Result<LaneEnd, PortPeerError> {
        match self {
            PortRail::Verbs(rail) => {
                let hello = rail.peer_prepare(peer, generation, random);
                hello.map(LaneEnd::QueuePair).map_err(PortPeerError::Verbs)
            }
            PortRail::Libfabric(rail) => {
                let hello = rail.peer_prepare_telling(peer, random.max(1), mailbox_key);
                hello.map(LaneEnd::Shared).map_err(PortPeerError::Libfabric)
            }
            PortRail::Vendor(rail) => {
                rail.peer_prepare(peer).map(LaneEnd::Vendor).map_err(PortPeerError::Vendor)
            }
        }
    }

    /// Joins a prepared peer to its other end.
    pub fn peer_connect(&mut self, peer: PeerIndex, end: &LaneEnd) -> Result<(), PortPeerError> {
        match (self, end) {
            (PortRail::Verbs(rail), LaneEnd::QueuePair(hello)) => {
                rail.peer_connect(peer, hello).map_err(PortPeerError::Verbs)
            }
            (PortRail::Libfabric(rail), LaneEnd::Shared(hello)) => {
                rail.peer_connect(peer, hello).map_err(PortPeerError::Libfabric)
            }
            (PortRail::Vendor(rail), LaneEnd::Vendor(hello)) => {
                rail.peer_connect(peer, hello).map_err(PortPeerError::Vendor)
            }
            (PortRail::Verbs(_), _) | (PortRail::Libfabric(_), _) | (PortRail::Vendor(_), _) => {
                Err(PortPeerError::Kind)
            }
        }
    }

    pub(super) fn caps(&self) -> Caps {
        on!(self, rail => rail.caps(PeerIndex(0))) // the same of each peer
    }

    #[inline]
    pub(super) fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        on!(self, rail => rail.poll(out, budget, now))
    }

    #[inline]
    pub(super) fn flush(&mut self, budget: Bytes) {
        on!(self, rail => rail.flush(budget));
    }

    pub(super) fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        on!(self, rail => rail.peer_detach(peer))
    }
}

/// `RDMA port 10.0.0.1`, `libfabric's tcp;ofi_rxm eth0`, `vendor's rail acme0`.
impl fmt::Display for PortRail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            PortRail::Verbs(rail) => write!(f, "RDMA port {}", verbs::gid::Gid(rail.gid().0)),
            PortRail::Libfabric(rail) => write!(f, "libfabric's {}", rail.nic()),
            PortRail::Vendor(rail) => write!(f, "vendor's rail {}", rail.name()),
        }
    }
}
