//! What an endpoint is opened with, and how large its block is.
#![forbid(unsafe_code)]

use super::device::DeviceKind;
pub use super::sizes::{HEAP_BYTES_END, RING_BYTES_MIN, SEND_RING_BYTES_MAX, WRITE_RING_BYTES_MAX};
use crate::base::carve::{bytes_for, lines};
use crate::base::ring::Indices;
use crate::base::sync::{AtomicU32, AtomicU64, Cell};
use crate::base::units::{Bytes, Span};
use crate::connect::BandEvent;
use crate::connect::interfaces::{AddressFamily, Interfaces};
use crate::host::error::{OpenError, RingsError};
use crate::host::life::known::{Known, LaneKnown};
use crate::host::shared::Shared;
use crate::memory::Variables;
use crate::provider::libfabric::names::NicNames;
use crate::provider::verbs::names::PortNames;
use crate::provider::verbs::settings::Names;
use crate::provider::{loopback, rail_set, shm, taken, tcp};
use crate::transport::Limits;

/// How an endpoint is opened.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Options {
    /// On which device.
    pub device: DeviceKind,
    /// Capacities; they alone decide the size of the block.
    pub limits: Limits,
    /// Longest message that is copied instead of read in place; up to a quarter of the send ring.
    pub eager_bytes_max: Bytes,
    /// Shared memory of each direction of a connection, for messages: a power of two.
    pub send_ring_bytes: u32,
    /// Shared memory of each direction of a connection, for control and two-copy transfers: a
    /// power of two.
    pub write_ring_bytes: u32,
    /// Address space that shared memory for the user is cut from; zero for none.
    pub heap_bytes: Bytes,
    /// How long a peer may take to answer a connect.
    pub handshake_deadline: Span,
    /// The interfaces that other hosts reach the endpoint by; none: those that
    /// `CROSSTIE_SOCKET_IFNAME` chooses.
    pub interfaces: Interfaces,
    /// Where none of [`Options::interfaces`] leads to a peer, others may be used that this choice
    /// allows, in the words of `CROSSTIE_SOCKET_IFNAME`; `None`: no others.
    pub interfaces_spare: Option<&'static str>,
    /// Of which family their addresses are.
    pub family: AddressFamily,
    /// Whether receives are offered over shared memory, too, where the peer says the same: messages
    /// that nobody receives yet then never stand before others, whatever their tags. Peers' memory
    /// is not read in place.
    pub push: bool,
    /// Whether a peer's `accept` gives connections that are asked for here only once they have been
    /// given to who asked: who asks for several and stops asking when one is made, as NCCL before
    /// 2.27 does, then shares that one with its peer.
    pub accept_taken: bool,
    /// Whether the thread of set-up ends while there is nothing that it waits for, for who has
    /// nobody to close the endpoint; what is set up next starts it again, and waits until it runs.
    pub thread_retires: bool,
    /// Threads that copy what is long to and from peers of this host, where messages go through
    /// rings ([`Options::push`]), at most [`shm::THREADS_MAX`]; `CROSSTIE_SHM_THREADS` counts
    /// instead.
    pub shm_threads: u32,
    /// Threads that move what is long over TCP where there are no ports, at most
    /// [`tcp::THREADS_MAX`], unless the environment says how many; each has a socket of every
    /// connection.
    pub tcp_threads: u32,
    /// The variables that count in place of the process's environment, for programs that keep
    /// their settings elsewhere; `None`: the environment's.
    pub variables: Option<&'static Variables>,
    /// Whose variables count for RDMA ports.
    pub verbs_names: Names,
    /// The traffic class of RDMA ports, and where it can be one the service level, where the
    /// variables say nothing; `None`: 0.
    pub verbs_traffic_class: Option<u8>,
    /// The RDMA ports that connections may use; `None`: those that the variables choose.
    pub ports: Option<PortNames>,
    /// The domains of libfabric likewise.
    pub nics: Option<NicNames>,
    /// TCP rails of each connection that is made here, where `CROSSTIE_TCP_RAILS` does not say it;
    /// 0: one for each common subnet.
    pub tcp_rails: u32,
    /// Bytes that one call of a TCP rail hands over at most ([`tcp::Settings::call_bytes`]).
    pub tcp_call_bytes: Bytes,
    /// Whether the user flushes what NICs have written to GPUs before compute capability 9.0, as
    /// NCCL does, by [`crate::host::Endpoint::gpu_flushes`]. Else NICs have no memory of such GPUs
    /// that need it.
    pub gpu_flushes: bool,
    /// Whether RDMA ports have companions, which add to counters of this process
    /// ([`crate::host::nic_counter`]). Connections then have one RDMA rail at most, and end when
    /// they lose it.
    pub companions: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: DeviceKind::Host,
            limits: Limits { rails_max: RAILS_MAX_DEFAULT, ..Limits::default() },
            eager_bytes_max: Bytes::kib(8),
            send_ring_bytes: 64 << 10,
            write_ring_bytes: 32 << 10,
            heap_bytes: Bytes(64 << 30),
            handshake_deadline: Span::millis(10_000),
            interfaces: Interfaces::NONE,
            interfaces_spare: None,
            family: AddressFamily::Any,
            push: false,
            accept_taken: false,
            thread_retires: false,
            shm_threads: 0,
            tcp_threads: 0,
            variables: None,
            verbs_names: Names::Own,
            verbs_traffic_class: None,
            ports: None,
            nics: None,
            tcp_rails: 0,
            tcp_call_bytes: tcp::CALL_BYTES,
            gpu_flushes: false,
            companions: false,
        }
    }
}

/// Rails of one connection, where nobody says otherwise: one may die.
const RAILS_MAX_DEFAULT: u32 = 2;
/// Longest payload in the send ring.
const SHM_PAYLOAD_MAX: u32 = 16 << 10;
/// Receive slots of one loopback connection: the credits, rounded up.
const LOOPBACK_SLOTS: u32 = 64;
/// Longest eager payload of the loopback device.
const LOOPBACK_PAYLOAD: Bytes = Bytes::kib(1);

/// Longest message that is taken out of a send ring as it comes, where nothing may stay in it.
pub(in crate::host) const TAKEN_BYTES_MAX: Bytes = Bytes(taken::CELL_BYTES as u64);

/// Longest message that one record of a send ring holds.
pub(in crate::host) const fn eager_bytes_max(send_ring_bytes: u32) -> Bytes {
    Bytes((send_ring_bytes / 4 - 64) as u64).min(Bytes(SHM_PAYLOAD_MAX as u64))
}

/// How many times as long as through shared memory they may be over TCP.
const TCP_EAGER_TIMES: u64 = 16;

/// Longest message that we send so where threads move what is long.
pub(in crate::host) const TCP_EAGER_BESIDE_THREADS: Bytes = Bytes::kib(32);

/// Lanes of one connection that the side band may bring.
pub(in crate::host) const fn lanes_each(limits: &Limits) -> usize {
    if limits.rails_max > 1 { limits.rails_max as usize } else { 0 }
}

/// Events that the side band may be ahead of the data thread.
pub(in crate::host) const fn events(limits: &Limits) -> usize {
    // of each connection that it stands and that it is gone, and of each lane the same
    let each = 2 + if limits.rails_max > 1 { 2 * limits.rails_max as usize } else { 0 };
    (each * limits.connections_max as usize).next_power_of_two()
}

/// Ops that a rail may have outstanding, all connections together; a power of two. Short messages
/// take none, and a long one waits its turn: copies are made one after the other anyway.
const fn ops(limits: &Limits) -> u32 {
    let each = limits.connections_max.next_power_of_two();
    if each < 16 { 16 } else { each }
}

const fn shm_limits(limits: &Limits) -> shm::Limits {
    shm::Limits {
        peers_max: limits.peers_max(),
        // the mailboxes, and what memory of GPUs is copied through
        regions_max: limits.regions_max + 2,
        ops_max: ops(limits),
        send_ring_bytes: SEND_RING_BYTES_MAX,
        send_payload_max: SHM_PAYLOAD_MAX,
    }
}

pub(in crate::host) const fn rail_limits(device: DeviceKind, limits: &Limits) -> rail_set::Limits {
    let shm = shm_limits(limits);
    let peers_max = limits.peers_max();
    let shm = if device.rails().shm { shm } else { shm::Limits { peers_max: 0, ..shm } };
    let lane_bits = limits.rails_max.trailing_zeros();
    rail_set::Limits { shm, peers_max, lane_bits }
}

/// Writes of one connection over TCP are cut into stripes: a few of them fly, of many connections.
pub(in crate::host) const fn tcp_limits(limits: &Limits, streams: u32) -> tcp::Limits {
    let ops_max = 4 * ops(limits);
    tcp::Limits { peers_max: limits.peers_max(), ops_max, streams, lanes: limits.rails_max }
}

pub(in crate::host) const fn loopback_limits(limits: &Limits) -> loopback::Limits {
    loopback::Limits {
        peers_max: limits.connections_max,
        slots: LOOPBACK_SLOTS,
        payload_max: LOOPBACK_PAYLOAD,
        regions_max: limits.regions_max + 1,
        jobs: ops(limits),
    }
}

/// What [`Options::storage_bytes`] adds up, in bytes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct StorageTerms {
    /// An endpoint without anything.
    pub fixed: u32,
    /// A connection without requests.
    pub connection: u32,
    /// A send and a group of eight receives of one connection.
    pub request: u32,
    /// A transfer that is under way, and news from the side band.
    pub operation: u32,
    /// Registered memory.
    pub region: u32,
    /// A connection that may have several rails.
    pub several: u32,
    /// Each of them.
    pub rail: u32,
}

impl StorageTerms {
    /// Of all devices but the loopback.
    pub const HOST: StorageTerms = StorageTerms {
        fixed: 8192,
        connection: 4096,
        request: 880,
        operation: 512,
        region: 144,
        several: 10240,
        rail: 2560,
    };
    /// Of the loopback device.
    pub const LOOPBACK: StorageTerms = StorageTerms {
        connection: StorageTerms::HOST.connection + 90112,
        operation: StorageTerms::HOST.operation + 512,
        ..StorageTerms::HOST
    };
}

/// What the side band and the data thread keep of connections, and their sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 5] = [
    ("Known", size_of::<Known>()),
    ("LaneKnown", size_of::<LaneKnown>()),
    ("BandEvent", size_of::<Cell<BandEvent>>()),
    ("Indices", size_of::<Indices>()),
    ("Shared", size_of::<Shared>()),
];

impl Options {
    /// Checks every value.
    pub fn check(&self) -> Result<(), OpenError> {
        self.limits.check().map_err(OpenError::Limits)?;
        let ring = |bytes: u32, max: u32| {
            bytes.is_power_of_two() && (RING_BYTES_MIN..=max).contains(&bytes)
        };
        let (send, write) = (self.send_ring_bytes, self.write_ring_bytes);
        if !ring(send, SEND_RING_BYTES_MAX) {
            return Err(OpenError::Rings(RingsError::Send(send)));
        }
        if !ring(write, WRITE_RING_BYTES_MAX) {
            return Err(OpenError::Rings(RingsError::Write(write)));
        }
        if self.heap_bytes.0 >= HEAP_BYTES_END {
            return Err(OpenError::Rings(RingsError::Heap(self.heap_bytes.0)));
        }
        let (bytes, most) = (self.eager_bytes_max.0, eager_bytes_max(send).0);
        if bytes > most {
            return Err(OpenError::Rings(RingsError::Eager { bytes, most, ring: send }));
        }
        Ok(())
    }

    /// Longest message that is taken over TCP before its receive was offered. The offer, and the
    /// word that a message has come, are packets of their own there, and take longer than a copy.
    pub(in crate::host) fn tcp_eager_bytes_max(&self) -> Bytes {
        let bytes = self.eager_bytes_max.0.saturating_mul(TCP_EAGER_TIMES);
        Bytes(bytes.min(tcp::SEND_BYTES_MAX.into()))
    }

    /// Shortens what is copied through the send ring to what this takes, if it is a ring at all.
    pub fn eager_bytes_fit(&mut self) {
        if self.send_ring_bytes >= RING_BYTES_MIN {
            let most = eager_bytes_max(self.send_ring_bytes);
            self.eager_bytes_max = self.eager_bytes_max.min(most);
        }
    }

    /// Bytes of storage that a program gives: the sum that stands as a macro in the C header. It
    /// has some room to spare, so that a later library of the same ABI still fits into a program's
    /// arrays.
    pub fn storage_bytes(&self) -> usize {
        let Limits { connections_max, requests_max, regions_max, rails_max } = self.limits;
        let connections = connections_max as usize;
        let operations = connections.next_power_of_two().max(16);
        let terms = match self.device {
            DeviceKind::Loopback => StorageTerms::LOOPBACK,
            DeviceKind::Host | DeviceKind::SharedMemory | DeviceKind::Tcp => StorageTerms::HOST,
        };
        terms.fixed as usize
            + connections * terms.connection as usize
            + connections * requests_max as usize * terms.request as usize
            + operations * terms.operation as usize
            + regions_max as usize * terms.region as usize
            + match rails_max {
                1 => 0,
                _ => connections * (terms.several + rails_max * terms.rail) as usize,
            }
    }

    /// The options as they are used: where a connection cannot have a second rail, or a third,
    /// nothing is kept for one.
    pub(in crate::host) const fn effective(mut self) -> Options {
        if matches!(self.device, DeviceKind::Loopback | DeviceKind::SharedMemory) {
            self.limits.rails_max = 1;
        }
        // TCP and a port
        if self.companions && self.limits.rails_max > 2 {
            self.limits.rails_max = 2;
        }
        self
    }

    /// Bytes of the block for these options: what [`crate::host::Endpoint::open`] cuts, exactly.
    pub const fn bytes(&self) -> usize {
        self.effective().bytes_cut()
    }

    const fn bytes_cut(&self) -> usize {
        let connections = self.limits.connections_max as usize;
        let band = bytes_for::<AtomicU64>(1)
            + 2 * bytes_for::<AtomicU32>(connections)
            + lines(core::mem::size_of::<Indices>())
            + bytes_for::<Cell<BandEvent>>(events(&self.limits))
            + bytes_for::<Known>(connections)
            + bytes_for::<LaneKnown>(connections * lanes_each(&self.limits))
            + bytes_for::<Shared>(1);
        let rail = match self.device {
            DeviceKind::Host | DeviceKind::SharedMemory | DeviceKind::Tcp => {
                rail_set::bytes(&rail_limits(self.device, &self.limits))
            }
            DeviceKind::Loopback => loopback::Loopback::bytes(loopback_limits(&self.limits)),
        };
        band + rail + self.limits.regions_bytes() + self.limits.machine_bytes()
    }
}
