//! What the side band tells the data thread, and what it is told at open.
#![forbid(unsafe_code)]

use crate::base::units::Span;
use crate::fabric::completion::DownCause;
use crate::wire::hello::ConnectHello;
use core::num::{NonZeroI32, NonZeroUsize};

/// News for the data thread. Whoever takes one checks its generation first: the connection may have
/// been closed since, and its mappings with it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum BandEvent {
    /// A connection stands.
    Established {
        /// Its slot.
        index: u32,
        /// Which use of the slot.
        generation: u32,
        /// All that the data path needs.
        params: LinkParams,
    },
    /// A connection's peer is gone. Always after its `Established`.
    Gone {
        /// Its slot.
        index: u32,
        /// Which use of the slot.
        generation: u32,
        /// Why.
        cause: DownCause,
    },
    /// A lane is up. Always after the `Established` of its connection.
    Lane {
        /// The connection's slot.
        index: u32,
        /// Which use of the slot.
        generation: u32,
        /// Which lane.
        lane: u8,
        /// Which time it comes up, more than the last time.
        lane_generation: u32,
        /// Descriptors of its data streams, open until
        /// [`Band::lane_wanted`](super::Band::lane_wanted) or `connection_close`: `stream_count` of
        /// them.
        streams: [i32; STREAMS_MAX],
        /// How many data streams there are.
        stream_count: u8,
    },
    /// The peer's end of a lane between ports has come ([`super::Band::pair_end`]), for the end
    /// that was offered last with [`Band::pair_offer`](super::Band::pair_offer). Always after the
    /// `Established` of its connection.
    Pair {
        /// The connection's slot.
        index: u32,
        /// Which use of the slot.
        generation: u32,
        /// Which lane.
        lane: u8,
        /// Which time it comes up, more than the last time.
        lane_generation: u32,
    },
    /// Nothing is heard of a connection's peer over TCP: whether it answers on another lane is to
    /// be found out, and said with [`Band::vouch`](super::Band::vouch). Always after the
    /// `Established` of its connection. One that comes later takes the place of the one before.
    Vouch {
        /// The connection's slot.
        index: u32,
        /// Which use of the slot.
        generation: u32,
        /// How long the answer may take.
        patience: Span,
    },
    /// Packets of a lane vanish, although its peer answers otherwise, or its interface has lost its
    /// carrier (`Broken(ENETDOWN)`). Its streams stay open until
    /// [`Band::lane_wanted`](super::Band::lane_wanted).
    LaneGone {
        /// The connection's slot.
        index: u32,
        /// Which use of the slot.
        generation: u32,
        /// Which lane.
        lane: u8,
        /// Why.
        cause: DownCause,
        /// For how long its peer's host has acknowledged nothing of it.
        silent: Span,
    },
}

/// Which side of a connection we are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Side {
    /// We connected.
    Connector = 0,
    /// We listened.
    Listener = 1,
}

/// Most data streams of one lane.
pub const STREAMS_MAX: usize = 6;

/// What a connection runs over.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Rail {
    /// Rings in shared memory.
    Shm,
    /// Sockets.
    Tcp,
}

/// What the data path needs of a connection. Addresses are of this process, and valid until
/// `connection_close`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct LinkParams {
    /// The peer's numbers; over shared memory its features are those of both.
    pub peer: ConnectHello,
    /// Which side we are.
    pub side: Side,
    /// What the connection runs over; fields that belong to another rail are those of
    /// [`LinkParams::NONE`].
    pub rail: Rail,
    /// Descriptors of the data streams of lane 0, open until `connection_close` or, where there are
    /// several lanes, [`Band::lane_wanted`](super::Band::lane_wanted): `stream_count` of them.
    pub streams: [i32; STREAMS_MAX],
    /// How many data streams each lane has.
    pub stream_count: u8,
    /// How many lanes the connection has, as both sides know. Lane 0 is up, as generation 1; those
    /// behind it are over TCP, whatever `rail` says.
    pub lanes: u8,
    /// Address of the rings that we write.
    pub rings_address: usize,
    /// Address of the rings that the peer writes, mapped for reading.
    pub peer_rings_address: usize,
    /// Length of one send ring in bytes, as the connector chose it.
    pub send_ring_bytes: u32,
    /// Length of one write ring in bytes, as the connector chose it.
    pub write_ring_bytes: u32,
    /// The peer's process, if the kernel lets us read its memory.
    pub kernel_copy_pid: Option<NonZeroI32>,
    /// Whether the peer can read our memory.
    pub peer_copies: bool,
    /// Address and length of the peer's heap, if it has one.
    pub heap: Option<(NonZeroUsize, u64)>,
    /// The peer's doorbell; -1: it never sleeps.
    pub doorbell_fd: i32,
    /// Whether both sides order doorbells with a process-wide barrier.
    pub membarrier: bool,
    /// Whether data streams have sums (W9.1): both sides can, and one wants them.
    pub sums: bool,
}

impl LinkParams {
    /// Those of no connection.
    pub const NONE: LinkParams = LinkParams {
        peer: ConnectHello::ZERO,
        side: Side::Connector,
        rail: Rail::Shm,
        streams: [-1; STREAMS_MAX],
        stream_count: 0,
        lanes: 1,
        rings_address: 0,
        peer_rings_address: 0,
        send_ring_bytes: 0,
        write_ring_bytes: 0,
        kernel_copy_pid: None,
        peer_copies: false,
        heap: None,
        doorbell_fd: -1,
        membarrier: false,
        sums: false,
    };
}

/// Our own numbers in every `Connect` and `Accepted`.
#[derive(Copy, Clone, Debug)]
pub struct LocalTemplate {
    /// What our control rail calls the mailbox region.
    pub mailbox_key: u64,
    /// Where the mailbox of connection 0 lies.
    pub mailbox_base: u64,
    /// How far it is to the next connection's.
    pub mailbox_stride: u64,
    /// Groups that may be outstanding.
    pub groups_max: u32,
    /// Receives kept per connection.
    pub credits: u32,
    /// Longest eager payload that we take.
    pub eager_bytes_max: u32,
    /// The same over TCP.
    pub tcp_eager_bytes_max: u32,
    /// Data rails over shared memory; over TCP it is the number of lanes.
    pub data_rails: u32,
    /// Control rails, likewise.
    pub control_rails: u32,
    /// Bits of [`crate::wire::hello`] that begin with `CONNECT_`.
    pub features: u64,
    /// Length of one send ring in bytes, when we connect.
    pub send_ring_bytes: u32,
    /// Length of one write ring in bytes, when we connect.
    pub write_ring_bytes: u32,
    /// What one side's rings of such lengths (send, write) take in its arena; `None`: no such
    /// rings. Applied to what a peer claims, too.
    pub rings_bytes: fn(u32, u32) -> Option<u64>,
}

impl LocalTemplate {
    /// What we say of our connection `handle` to `target`, with rings at `rings_offset`.
    pub fn hello(&self, index: u32, handle: u64, target: u64, rings_offset: u64) -> ConnectHello {
        ConnectHello {
            connection: handle,
            target,
            rings_offset,
            send_ring_bytes: self.send_ring_bytes,
            write_ring_bytes: self.write_ring_bytes,
            mailbox_key: self.mailbox_key,
            mailbox_address: self.mailbox_base + u64::from(index) * self.mailbox_stride,
            groups_max: self.groups_max,
            credits: self.credits,
            eager_bytes_max: self.eager_bytes_max,
            data_rails: self.data_rails,
            control_rails: self.control_rails,
            features: self.features,
            streams: 0,
        }
    }
}

/// How the data thread is woken after an event: called with `context`, from any thread, under the
/// side band's lock; it must not block.
#[derive(Copy, Clone, Debug)]
pub struct Wake {
    /// What to call.
    pub call: fn(usize),
    /// What with.
    pub context: usize,
}

/// What the side band has counted since open.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct BandCounters {
    /// Sockets dropped because what came, or did not come, was no hello.
    pub strangers: u64,
    /// Links that stood.
    pub links: u64,
    /// Links lost to a dead or misbehaving peer.
    pub links_lost: u64,
    /// Peers that were not let in because of the shared key.
    pub keys_refused: u64,
    /// Processes of this host that were not let in because of their user.
    pub users_refused: u64,
    /// Peers of this host that speak another version of the handshake within it.
    pub local_versions_refused: u64,
    /// Peers refused because they speak another major version.
    pub versions_refused: u64,
    /// Pings answered.
    pub pongs: u64,
    /// Peers turned away for want of descriptors.
    pub descriptors_short: u64,
    /// Peers turned away for want of memory.
    pub memory_short: u64,
    /// Refusals of the kernel for which shared memory was not taken.
    pub shared_refused: u64,
    /// Lanes given up because their interface had lost its carrier.
    pub carriers_lost: u64,
}
