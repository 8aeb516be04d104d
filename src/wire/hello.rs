//! W8: the frames of the side band.
//!
//! One frame is one record of a `SOCK_SEQPACKET` socket (or, over a stream, its own length says
//! where it ends). A link between two endpoints starts with `LinkHello`, `LinkReply`, `LinkReady`;
//! connections are then made on it with `Connect` and answered by `Accepted` or `Refused`.
#![forbid(unsafe_code)]

use super::{DecodeError, WIRE_MAJOR, wire_struct};

/// First four bytes of every frame.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"XTIE");
/// The longest frame in bytes.
pub const FRAME_BYTES_MAX: usize = FrameHeader::SIZE + LinkHello::SIZE;

/// The writer can sleep, and wants its doorbell rung (W8.1).
pub const FEATURE_DOORBELL: u64 = 0x1;
/// The writer can read the reader's memory through the kernel (W8.1).
pub const FEATURE_KERNEL_COPY: u64 = 0x2;
/// Both sides order doorbells with a process-wide barrier (W8.1).
pub const FEATURE_MEMBARRIER: u64 = 0x4;

/// What a frame is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u16)]
pub enum FrameKind {
    /// Connector to listener, first on a link; carries descriptors.
    LinkHello = 1,
    /// Listener to connector; carries descriptors.
    LinkReply = 2,
    /// Connector to listener: the link stands.
    LinkReady = 3,
    /// Connector to listener: make a connection.
    Connect = 4,
    /// Listener to connector: made.
    Accepted = 5,
    /// Either way: not made, or not the link that was meant; a `RefuseReason`.
    Refused = 6,
    /// Either way: this connection is closed.
    Closed = 7,
}

wire_struct! {
    /// W8.0. Before every frame's body.
    FrameHeader [16] {
        /// [`FRAME_MAGIC`].
        magic: u32 = 0,
        /// Wire major version.
        major: u16 = 4,
        /// Wire minor version.
        minor: u16 = 6,
        /// A [`FrameKind`].
        kind: u16 = 8,
        /// Length of the body in bytes.
        length: u16 = 10,
    }
}

impl FrameHeader {
    /// Checks magic, version, kind and that the body is as long as said.
    pub fn decode(frame: &[u8]) -> Result<(FrameKind, u16, &[u8]), DecodeError> {
        let header: &[u8; 16] = frame.first_chunk().ok_or(DecodeError::Short)?;
        let header = FrameHeader::from_bytes(header);
        if header.magic != FRAME_MAGIC {
            return Err(DecodeError::Magic);
        }
        if header.major != WIRE_MAJOR {
            return Err(DecodeError::Version(header.major));
        }
        let kind = match header.kind {
            1 => FrameKind::LinkHello,
            2 => FrameKind::LinkReply,
            3 => FrameKind::LinkReady,
            4 => FrameKind::Connect,
            5 => FrameKind::Accepted,
            6 => FrameKind::Refused,
            7 => FrameKind::Closed,
            _ => return Err(DecodeError::Field),
        };
        let body = &frame[FrameHeader::SIZE..];
        if body.len() < usize::from(header.length) {
            return Err(DecodeError::Short);
        }
        Ok((kind, header.minor, &body[..usize::from(header.length)]))
    }
}

wire_struct! {
    /// W8.1. Body of `LinkHello`, `LinkReply` and `LinkReady`.
    LinkHello [160] {
        /// The writer's host.
        node_id: u64 = 0,
        /// The writer's endpoint.
        endpoint_id: u128 = 8,
        /// The endpoint that the writer means to talk to: its nonce.
        peer_endpoint_id: u128 = 24,
        /// `FEATURE_` bits that the writer offers (`LinkReady`: that both have).
        features: u64 = 40,
        /// Process id, as the writer sees it; for messages to people only.
        pid: u32 = 48,
        /// Page size in bytes.
        page_bytes: u32 = 52,
        /// Where the writer keeps `probe_word`, for a trial of reading its memory.
        probe_address: u64 = 56,
        /// What stands there.
        probe_word: u64 = 64,
        /// Size in bytes of the shared rings' mapping (from the connector).
        arena_bytes: u64 = 72,
        /// Size in bytes of the writer's shared heap; 0: none.
        heap_bytes: u64 = 80,
        /// The program's name, zero-padded UTF-8, for messages to people.
        name_low: u128 = 96,
        /// Continued.
        name_high: u128 = 112,
    }
}

wire_struct! {
    /// W8.2. Body of `Connect` and `Accepted`.
    ConnectHello [128] {
        /// The writer's connection.
        connection: u64 = 0,
        /// `Connect`: the listener. `Accepted`: the reader's connection.
        target: u64 = 8,
        /// Where the connection's rings lie in the arena (from the connector).
        rings_offset: u64 = 16,
        /// Length of one send ring in bytes.
        send_ring_bytes: u32 = 24,
        /// Length of one write ring in bytes.
        write_ring_bytes: u32 = 28,
        /// What the writer's control rail calls its mailbox region.
        mailbox_key: u64 = 32,
        /// Where the writer's mailbox for this connection lies.
        mailbox_address: u64 = 40,
        /// Groups that may be outstanding at the writer.
        groups_max: u32 = 48,
        /// Receives that the writer keeps for this connection: its first credits.
        credits: u32 = 52,
        /// Longest eager payload that the writer takes.
        eager_bytes_max: u32 = 56,
        /// Data rails of the writer.
        data_rails: u32 = 60,
        /// Control rails of the writer.
        control_rails: u32 = 64,
        /// Reserved for protocol features; zero.
        features: u64 = 72,
    }
}

wire_struct! {
    /// W8.3. Body of `Refused` and `Closed`.
    RefusedHello [32] {
        /// The reader's connection.
        target: u64 = 0,
        /// A `RefuseReason`.
        reason: u32 = 8,
        /// Wire major version that the writer speaks.
        major: u16 = 12,
    }
}

/// Why a connection was refused.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u32)]
pub enum RefuseReason {
    /// No such listener (closed, or a handle from an earlier run).
    NoListener = 1,
    /// The listener's endpoint has no connection left.
    Full = 2,
    /// The major versions differ.
    Version = 3,
    /// The frame was not understood.
    Protocol = 4,
    /// Shared memory could not be had there.
    Memory = 5,
    /// The peer closed the connection.
    Closed = 6,
}

impl RefuseReason {
    /// The reason that a number says; unknown ones are `Protocol`.
    pub const fn from_wire(number: u32) -> RefuseReason {
        match number {
            1 => RefuseReason::NoListener,
            2 => RefuseReason::Full,
            3 => RefuseReason::Version,
            5 => RefuseReason::Memory,
            6 => RefuseReason::Closed,
            _ => RefuseReason::Protocol,
        }
    }
}
