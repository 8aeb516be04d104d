//! The rails of an endpoint as one provider. Each peer is on exactly one of them.
//!
//! The rails are shared memory, TCP, and up to eight ports: of RDMA devices, of libfabric, or of
//! vendors ([`PortRail`]). One table says which rail each peer is on; a call of
//! [`Provider`] looks there once (`provider`).
//!
//! Shared memory and TCP share one table of regions, so that one key names a region whichever way
//! its user comes. Ports have keys of their own. See `doc/decisions/0006-one-rail-per-peer.md` and
//! `0016-ports-as-devices.md`.

mod gpu;
mod looks;
mod port;
mod port_error;
mod port_words;
mod ports;
mod provider;
mod seats;

use self::gpu::Gpus;
use self::looks::Looks;
pub use self::port::{PortConfig, PortDomain, PortLimits, PortRail};
pub use self::port_error::{PortError, PortOpenError, PortPeerError};
pub use self::port_words::{Complaint, Loss, LossWords};
use self::ports::Port;
pub use self::seats::{Due, Later};
use super::copy_engine::{self, Copied, CopyEngine};
use super::host_domain::HostDomain;
use super::shm::{self, HeapSpan, PeerSetup, Shm};
use super::taken::Taken;
use super::tcp::{self, PeerOpenError, Tcp};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Span};
use crate::fabric::{Caps, MemoryDomain, Provider, Syscalls};
use crate::memory::{Alarm, Errno, Reserve};
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Capacities of one [`RailSet`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Of shared memory, whose table of regions serves TCP, too. No peers: TCP alone.
    pub shm: shm::Limits,
    /// Peers at a time, on all rails together.
    pub peers_max: u32,
    /// Two to the power of this are the peers of one connection, its lanes.
    pub lane_bits: u32,
}

/// What [`RailSet::open`] carves out of its block. The records of TCP and of ports lie outside: in
/// address space that becomes memory with use.
pub const fn bytes(limits: &Limits) -> usize {
    shm::bytes(&limits.shm) + bytes_for::<u8>(limits.peers_max as usize)
}

/// What an open peer that is on no port runs over.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Way {
    /// Shared memory.
    Shm,
    /// Sockets.
    Tcp,
}

// What the table says of a peer.
const CLOSED: u8 = 0;
const ON_SHM: u8 = 1;
/// Shared memory, as one of several lanes.
const ON_LANE: u8 = 2;
const ON_TCP: u8 = 3;
/// The first port; the others follow.
const ON_PORT: u8 = 4;

/// The TCP rail, and when polls look at it.
struct Sockets<'m> {
    tcp: Tcp<'m>,
    /// Whether it is polled before shared memory.
    first: bool,
    /// Whether the last look found something.
    busy: bool,
    /// Polls since then.
    passed: u32,
    /// The records of `tcp`, which is dropped before.
    _records: Reserve,
}

/// What a poll of several rails costs, whichever of them a peer is on.
#[derive(Copy, Clone)]
struct Polled {
    copy_granule: Bytes,
    syscalls: Syscalls,
}

impl Polled {
    const fn of(caps: Caps) -> Polled {
        Polled { copy_granule: caps.copy_granule, syscalls: caps.syscalls }
    }

    /// With one more rail: each may make one indivisible copy.
    const fn and(self, caps: Caps) -> Polled {
        let copy_granule = Bytes(self.copy_granule.0 + caps.copy_granule.0);
        Polled { copy_granule, syscalls: Syscalls::PerBatch }
    }
}

/// All rails, and which of them each peer is on.
pub struct RailSet<'m> {
    shm: Shm<'m>,
    /// Beside shared memory and TCP, for memory of GPUs.
    gpus: Gpus<'m>,
    sockets: Option<Sockets<'m>>,
    ports: Vec<Port<'m>>,
    /// By peer: one of the constants above, a port's with its place added.
    on: &'m mut [u8],
    /// What came through the rings of peers that are `ON_LANE`.
    taken: Option<Taken>,
    lane_bits: u32,
    polled: Polled,
    /// Which of the ports, or the rest, is polled first.
    turn: usize,
    /// When what is no port is polled beside ports.
    looks: Looks,
    /// Wakes a sleeper while ports have peers; `None`: nobody sleeps then.
    alarm: Option<Alarm>,
    nap: Span,
}

impl<'m> RailSet<'m> {
    /// Takes its storage: exactly [`bytes`] of the block. Without `tcp` no peer can be reached over
    /// TCP. Ports are added later, with [`RailSet::port_add`].
    ///
    /// *Panics* when the limits contradict each other.
    ///
    /// # Safety
    /// - as [`Shm::open`]: the heap's first bytes are its board's, and it outlives the set;
    /// - with copy threads the carver's memory stays valid until the set was dropped.
    pub unsafe fn open(
        carver: &mut Carver<'m>,
        limits: &Limits,
        heap: Option<HeapSpan>,
        tcp: Option<(tcp::Limits, tcp::Settings)>,
    ) -> Result<RailSet<'m>, tcp::OpenError> {
        // SAFETY: the caller's promise is that of `Shm::open`.
        let shm = unsafe { Shm::open(carver, &limits.shm, heap) }?;
        let on = carver.slice::<u8>(limits.peers_max as usize)?;
        let mut sockets = None;
        if let Some((tcp_limits, settings)) = tcp {
            assert_eq!(tcp_limits.peers_max, limits.peers_max);
            let length = tcp::bytes(&tcp_limits);
            let records = Reserve::create(length).map_err(|e| tcp::OpenError::System(e.0))?;
            // SAFETY: a fresh mapping reads as zero and is aligned to a page; it lives until the
            // rail is gone (order of the fields), and nobody else knows it.
            let mut carver = unsafe { Carver::over_zeroed(records.start(), length) };
            let domain = HostDomain::over(shm.domain().table());
            // SAFETY: the table is that of `shm`, whose memory stays valid until the rail is gone
            // (this function's contract).
            let tcp = unsafe { Tcp::open(&mut carver, &tcp_limits, domain, settings) }?;
            sockets =
                Some(Sockets { tcp, first: false, busy: false, passed: 0, _records: records });
        }
        let nobody = PeerIndex(0);
        let of_shm = Polled::of(shm.caps(nobody));
        let polled = match &sockets {
            None => of_shm,
            Some(Sockets { tcp, .. }) if limits.shm.peers_max == 0 => Polled::of(tcp.caps(nobody)),
            Some(Sockets { tcp, .. }) => of_shm.and(tcp.caps(nobody)),
        };
        Ok(RailSet {
            shm,
            gpus: Gpus(None),
            sockets,
            ports: Vec::new(),
            on,
            taken: None,
            lane_bits: limits.lane_bits,
            polled,
            turn: 0,
            looks: Looks::FIRST,
            alarm: None,
            nap: ports::NAP,
        })
    }

    /// What the table says of a peer.
    #[inline(always)]
    fn on(&self, peer: PeerIndex) -> u8 {
        self.on.get(peer.as_usize()).copied().unwrap_or(CLOSED)
    }

    #[inline(always)]
    fn tcp(&self) -> Option<&Tcp<'m>> {
        self.sockets.as_ref().map(|sockets| &sockets.tcp)
    }

    #[inline(always)]
    fn tcp_mut(&mut self) -> Option<&mut Tcp<'m>> {
        self.sockets.as_mut().map(|sockets| &mut sockets.tcp)
    }

    /// The TCP rail, if the peer is on it.
    fn tcp_of(&self, peer: PeerIndex) -> Option<&Tcp<'m>> {
        self.tcp().filter(|_| self.on(peer) == ON_TCP)
    }

    /// Has threads copy what is long through shared memory; see [`Shm::copy_threads`].
    ///
    /// # Safety
    /// - as there.
    pub unsafe fn copy_threads(&mut self, count: u32) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.shm.copy_threads(count) };
    }

    /// What kept the threads of shared memory from starting; told once.
    pub fn copy_threads_refused(&mut self) -> Option<Errno> {
        self.shm.copy_threads_refused()
    }

    /// What kept the threads of TCP from starting; told once.
    pub fn tcp_threads_refused(&mut self) -> Option<Errno> {
        self.tcp_mut().and_then(Tcp::threads_refused)
    }

    /// Opens a connection through shared memory.
    ///
    /// # Safety
    /// - as [`Shm::peer_open`].
    pub unsafe fn peer_open_shm(
        &mut self,
        peer: PeerIndex,
        setup: &PeerSetup,
    ) -> Result<(), shm::OpenError> {
        if self.on.get(peer.as_usize()) != Some(&CLOSED) {
            return Err(shm::OpenError::Index);
        }
        // SAFETY: the caller's promise is that of `Shm::peer_open`.
        unsafe { self.shm.peer_open(peer, setup) }?;
        self.on[peer.as_usize()] = ON_SHM;
        Ok(())
    }

    /// Opens a connection over sockets, which stay the caller's; see [`Tcp::peer_open_with`].
    pub fn peer_open_tcp(
        &mut self,
        peer: PeerIndex,
        streams: &[i32],
        sums: bool,
    ) -> Result<(), PeerOpenError> {
        if !matches!(self.on(peer), CLOSED | ON_TCP) {
            return Err(PeerOpenError::Index);
        }
        let tcp = self.tcp_mut().ok_or(PeerOpenError::Index)?;
        tcp.peer_open_with(peer, streams, sums)?;
        self.on[peer.as_usize()] = ON_TCP;
        Ok(())
    }

    /// Takes address space for what comes through shared memory on one of several lanes; without
    /// it there are none. Once.
    pub fn lanes_reserve(&mut self) -> Result<(), Errno> {
        self.taken = Some(Taken::create(self.on.len() as u32)?);
        Ok(())
    }

    /// A peer that has just been opened is one of several lanes: over sockets see
    /// [`Tcp::peer_is_lane`]; what comes through shared memory does not stay in its ring.
    ///
    /// *Panics* in shared memory without [`RailSet::lanes_reserve`].
    pub fn peer_is_lane(&mut self, peer: PeerIndex) {
        match (self.on(peer), &mut self.sockets) {
            (ON_SHM, _) => {
                assert!(self.taken.is_some(), "lanes through shared memory were announced");
                self.on[peer.as_usize()] = ON_LANE;
            }
            (ON_TCP, Some(Sockets { tcp, .. })) => tcp.peer_is_lane(peer),
            _ => {}
        }
    }

    /// Lets memory of GPUs be registered, for peers that [`RailSet::peer_has_gpus`] names.
    pub fn gpus_use(&mut self, shared: Arc<copy_engine::Shared>) {
        self.shm.notes_accept();
        if let Some(tcp) = self.tcp_mut() {
            tcp.notes_accept();
        }
        let (regions, peers_max) = (self.shm.domain().table(), self.on.len() as u32);
        self.gpus = Gpus(Some(Box::new(CopyEngine::new(shared, regions, peers_max))));
    }

    /// A peer that was opened through shared memory or over sockets has a copy engine too.
    pub fn peer_has_gpus(&mut self, peer: PeerIndex) {
        if matches!(self.on(peer), ON_SHM | ON_LANE | ON_TCP) {
            self.gpus.open(peer);
        }
    }

    /// How many bytes of GPUs' memory have come, and how.
    pub fn copied(&self) -> Copied {
        self.gpus.copied()
    }

    /// The first socket of a peer over sockets.
    pub fn socket(&self, peer: PeerIndex) -> Option<i32> {
        self.tcp_of(peer)?.socket(peer)
    }

    /// What an open peer runs over that is on no port.
    pub fn way(&self, peer: PeerIndex) -> Option<Way> {
        match self.on(peer) {
            ON_SHM | ON_LANE => Some(Way::Shm),
            ON_TCP => Some(Way::Tcp),
            _ => None,
        }
    }

    /// Whether bytes that were posted to a living peer over sockets have not reached its host yet.
    pub fn is_tcp_undelivered(&self, peer: PeerIndex) -> bool {
        self.tcp_of(peer).is_some_and(|tcp| tcp.is_undelivered(peer))
    }
}
