//! W8: the frames of the side band.
//!
//! One frame is one record of a `SOCK_SEQPACKET` socket (or, over a stream, its own length says
//! where it ends). A link between two endpoints starts with `LinkHello`, `LinkReply`, `LinkReady`;
//! connections are then made on it with `Connect` and answered by `Accepted` or `Refused`.

pub use super::door::{DoorHello, LOCAL_VERSION};
pub use super::features::*;
use super::pair::{LaneEnd, PairHello, PortList};
pub use super::ping::PingHello;
use super::status::{StatusAsk, StatusHello};
use super::{DecodeError, WIRE_MAJOR, WIRE_MINOR, wire_struct};
use crate::base::hash::{fnv1a, fnv1a_more};
use crate::base::words::numbered;

/// First four bytes of every frame.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"XTIE");
/// The longest frame that this version writes, in bytes.
pub const FRAME_BYTES_WRITTEN: usize = FrameHeader::SIZE + AddressList::BYTES_MAX;
/// The longest frame that a reader takes, in bytes: later minor versions may write longer bodies,
/// of which the known prefix is read.
pub const FRAME_BYTES_MAX: usize = 1024;

/// The writer can sleep, and wants its doorbell rung (W8.1): the frame carries its descriptor.
pub const FEATURE_DOORBELL: u64 = 0x1;
/// The writer has read the reader's `probe_word` through the kernel (W8.1), so it can read the
/// reader's memory. Never set in `LinkHello`, whose writer does not know its reader yet.
pub const FEATURE_KERNEL_COPY: u64 = 0x2;
/// Both sides order doorbells with a process-wide barrier (W8.1).
pub const FEATURE_MEMBARRIER: u64 = 0x4;

/// The rail that two endpoints of one host share: shared memory.
pub const RAIL_SHM: u32 = 0x1;
/// The rail that every host has: TCP.
pub const RAIL_TCP: u32 = 0x2;
/// RDMA ports beside TCP, for further lanes of a connection (W8.14). Bit 0x4 is retired (W8.13).
pub const RAIL_VERBS: u32 = 0x8;
/// Ports of libfabric beside TCP, likewise (W8.14).
pub const RAIL_LIBFABRIC: u32 = 0x10;
/// Rails of vendors beside TCP, likewise (W8.14).
pub const RAIL_VENDOR: u32 = 0x20;
/// Ports of any kind.
pub const RAIL_PORTS: u32 = RAIL_VERBS | RAIL_LIBFABRIC | RAIL_VENDOR;

/// Most addresses in a hello; a host with more says these.
pub const ADDRESSES_MAX: usize = 16;

numbered! {
    /// What a frame is.
    FrameKind: u16 {
        /// Connector to listener, first on a link. Carries descriptors, in this order: the arena,
        /// the writer's heap (when `heap_bytes` is not 0), its doorbell (with
        /// [`FEATURE_DOORBELL`]).
        LinkHello = 1,
        /// Listener to connector. Carries its heap and its doorbell, likewise.
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
        /// Connector to listener, first on a data stream (since minor 1).
        StreamHello = 8,
        /// Either way: are you there? (since minor 1)
        Ping = 9,
        /// The answer to a `Ping`, with its number (since minor 1).
        Pong = 10,
        /// Either way, once, after the writer's hello: all its addresses (since minor 1).
        Addresses = 11,
        /// Either way: how does this connection stand with you? (since minor 1)
        StatusAsk = 12,
        /// The answer to a `StatusAsk`, with its number (since minor 1).
        Status = 13,
        /// Either way, once, before the writer's `Addresses`: its ports (since minor 1).
        Ports = 14,
        /// Either way: one end of a lane between ports (since minor 1).
        Pair = 15,
        /// Connector to listener: its user has the connection (since minor 1).
        Taken = 16,
        /// Within a host, connector to listener, first on a socket: who is there? (W8.15)
        Knock = 17,
        /// Listener to connector: prove that you hold my handle.
        Challenge = 18,
        /// Connector to listener: the proof.
        Prove = 19,
        /// Listener to connector: its own proof. A `LinkHello` may follow.
        Proved = 20,
    }
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
        /// [`FrameHeader::sum_of`] the frame; 0: its writer says none (earlier writers).
        sum: u32 = 12,
    }
}

impl FrameHeader {
    /// The sum of a frame: of the header's fields before it, and of the body.
    pub const fn sum_of(header: &FrameHeader, body: &[u8]) -> u32 {
        let mut hash = fnv1a(&header.magic.to_le_bytes());
        hash = fnv1a_more(hash, &header.major.to_le_bytes());
        hash = fnv1a_more(hash, &header.minor.to_le_bytes());
        hash = fnv1a_more(hash, &header.kind.to_le_bytes());
        hash = fnv1a_more(hash, &header.length.to_le_bytes());
        hash = fnv1a_more(hash, body);
        (hash ^ hash >> 32) as u32
    }

    /// Checks magic, length, sum, version and kind.
    pub fn decode(frame: &[u8]) -> Result<(FrameKind, u16, &[u8]), DecodeError> {
        let header: &[u8; 16] = frame.first_chunk().ok_or(DecodeError::Short)?;
        let header = FrameHeader::from_bytes(header);
        if header.magic != FRAME_MAGIC {
            return Err(DecodeError::Magic);
        }
        let body = frame[FrameHeader::SIZE..].get(..usize::from(header.length));
        if let Some(body) = body
            && header.sum != 0
            && header.sum != FrameHeader::sum_of(&header, body)
        {
            return Err(DecodeError::Checksum);
        }
        if header.major != WIRE_MAJOR {
            return Err(DecodeError::Version(header.major));
        }
        let kind = FrameKind::from_wire(header.kind).ok_or(DecodeError::Field)?;
        Ok((kind, header.minor, body.ok_or(DecodeError::Short)?))
    }
}

wire_struct! {
    /// W8.1. Body of `LinkHello`, `LinkReply` and `LinkReady`.
    LinkHello [256] {
        /// The writer's host.
        node_id: u64 = 0,
        /// The writer's endpoint.
        endpoint_id: u128 = 8,
        /// The endpoint that the writer means to talk to: its nonce.
        peer_endpoint_id: u128 = 24,
        /// `FEATURE_` bits of the writer; what both must offer is the intersection.
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
        /// A random number of this link alone (since minor 1; 0 before).
        nonce: u128 = 128,
        /// `RAIL_` bits: what the writer can use towards the reader (since minor 1; 0 means shared
        /// memory alone).
        rails: u32 = 144,
        /// Data streams of each lane over TCP: the connector's wish, the listener's limit (since
        /// minor 1).
        streams: u32 = 148,
        /// Proof that the writer knows the shared key; 0: it has none (since minor 1).
        proof_low: u128 = 160,
        /// Continued.
        proof_high: u128 = 176,
        /// Most lanes of one connection over TCP that the writer takes; 0 is read as 1 (since
        /// minor 1).
        lanes: u32 = 192,
        /// Shows that the writer was an end of a link whose socket was lost, which this one takes
        /// over (W8.11); 0: a new link (since minor 1).
        resume: u128 = 200,
    }
}

wire_struct! {
    /// W8.5. One address at which the writer's side band answers, in an `Addresses`.
    AddressHello [24] {
        /// The address; IPv4 in the low four bytes, in network order.
        ip: u128 = 0,
        /// Port of the side band's socket.
        port: u16 = 16,
        /// 4 or 6.
        family: u8 = 18,
        /// Length of the subnet's prefix in bits, as the host has configured it.
        prefix_bits: u8 = 19,
        /// Speed of the interface in Mbit/s; 0: not known.
        speed_mbit_s: u32 = 20,
    }
}

/// The addresses of one host, as many as `count`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct AddressList {
    /// How many.
    pub count: usize,
    /// They, at the front.
    pub all: [AddressHello; ADDRESSES_MAX],
    /// A number for the network device of each; 0: not known. Equal numbers are one device (since
    /// minor 1, and not written by earlier writers of it).
    pub devices: [u8; ADDRESSES_MAX],
}

impl AddressList {
    /// Bytes before the addresses: how many there are.
    pub const HEAD_BYTES: usize = 8;
    /// Bytes of a full list.
    pub const BYTES_MAX: usize = Self::HEAD_BYTES + ADDRESSES_MAX * (AddressHello::SIZE + 1);

    /// No address.
    pub const EMPTY: AddressList = AddressList {
        count: 0,
        all: [AddressHello::ZERO; ADDRESSES_MAX],
        devices: [0; ADDRESSES_MAX],
    };

    /// They.
    pub fn as_slice(&self) -> &[AddressHello] {
        &self.all[..self.count]
    }

    /// Adds an address and the number of its device; a full list stays as it is.
    pub fn push(&mut self, address: AddressHello, device: u8) {
        if self.count < ADDRESSES_MAX {
            (self.all[self.count], self.devices[self.count]) = (address, device);
            self.count += 1;
        }
    }

    /// The bytes: how many, the addresses, and behind these their devices, which a reader that does
    /// not know them leaves out. Says how many bytes are used.
    fn encode(&self, out: &mut [u8; Self::BYTES_MAX]) -> usize {
        out[..Self::HEAD_BYTES].copy_from_slice(&(self.count as u64).to_le_bytes());
        let places = out[Self::HEAD_BYTES..].chunks_exact_mut(AddressHello::SIZE);
        for (place, address) in places.zip(self.as_slice()) {
            place.copy_from_slice(&address.encode());
        }
        let end = Self::HEAD_BYTES + self.count * AddressHello::SIZE;
        out[end..][..self.count].copy_from_slice(&self.devices[..self.count]);
        end + self.count
    }

    /// Reads as many as this version keeps; a list that says more than it holds is damaged.
    fn decode(body: &[u8]) -> Result<AddressList, DecodeError> {
        let (head, rest) = body.split_first_chunk().ok_or(DecodeError::Short)?;
        let said = u64::from_le_bytes(*head);
        if said > (rest.len() / AddressHello::SIZE) as u64 {
            return Err(DecodeError::Short);
        }
        let mut list = AddressList { count: (said as usize).min(ADDRESSES_MAX), ..Self::EMPTY };
        let count = list.count;
        let entries = rest.chunks_exact(AddressHello::SIZE);
        for (place, entry) in list.all[..count].iter_mut().zip(entries) {
            let mut bytes = [0; AddressHello::SIZE];
            bytes.copy_from_slice(entry);
            *place = AddressHello::from_bytes(&bytes);
        }
        let devices = rest[said as usize * AddressHello::SIZE..].iter();
        for (place, device) in list.devices[..count].iter_mut().zip(devices) {
            *place = *device;
        }
        Ok(list)
    }
}

wire_struct! {
    /// W8.6. Body of `StreamHello`: this socket is a stream of a connection over TCP. A
    /// `ConnectHello` follows this structure; that of `stream` 0 asks for the connection.
    /// `Accepted` or `Refused` comes over the link. With a `lane_generation` it is one of a lane of
    /// a connection that stands, and nothing answers it.
    StreamHello [64] {
        /// The writer's endpoint.
        endpoint_id: u128 = 0,
        /// The reader's nonce of the link, or, where both have a key, proof of it for this stream.
        proof: u128 = 16,
        /// The writer's connection.
        connection: u64 = 32,
        /// Which stream of the connection.
        stream: u32 = 40,
        /// How many streams it has.
        streams: u32 = 44,
        /// Counts the writer's `StreamHello`s on the link, from 1: none comes twice.
        ask: u64 = 48,
        /// Which lane of the connection.
        lane: u8 = 56,
        /// Which time the lane comes up; 0: lane 0 as the connection is set up.
        lane_generation: u32 = 60,
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
        /// Lanes of the connection: `Connect`, as its writer plans; `Accepted`, as both use. 0 is
        /// read as 1.
        data_rails: u32 = 60,
        /// The same number.
        control_rails: u32 = 64,
        /// `CONNECT_` bits; both use what both say. The rest is reserved.
        features: u64 = 72,
        /// Data streams of the connection over TCP; 0: it runs over shared memory (since minor 1).
        streams: u32 = 80,
    }
}

wire_struct! {
    /// W8.3. Body of `Refused`, `Closed` and `Taken`.
    RefusedHello [32] {
        /// The reader's connection.
        target: u64 = 0,
        /// A `RefuseReason`; 0 in `Taken`.
        reason: u32 = 8,
        /// Wire major version that the writer speaks.
        major: u16 = 12,
    }
}

numbered! {
    /// Why a connection was refused.
    RefuseReason: u32 else Protocol {
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
        /// The peer gave up before anybody used the connection.
        Abandoned = 7,
        /// The writer has no file descriptor left.
        Descriptors = 8,
        /// The shared keys differ, or one side alone has one.
        Key = 9,
        /// A rail that one side insists on is not one of the other's.
        Rail = 10,
        /// Over shared memory: the writer does not let the reader's user in.
        User = 11,
    }
}

/// One frame as a value.
#[allow(clippy::large_enum_variant)] // one at a time, on the stack
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Frame {
    /// First on a link.
    LinkHello(LinkHello),
    /// Its answer.
    LinkReply(LinkHello),
    /// The link stands.
    LinkReady(LinkHello),
    /// Make a connection.
    Connect(ConnectHello),
    /// Made.
    Accepted(ConnectHello),
    /// Not made.
    Refused(RefusedHello),
    /// Closed.
    Closed(RefusedHello),
    /// A data stream; with `stream` 0 it asks for the connection.
    StreamHello(StreamHello, ConnectHello),
    /// Are you there?
    Ping(PingHello),
    /// Yes.
    Pong(PingHello),
    /// All addresses of the writer.
    Addresses(AddressList),
    /// How does this connection stand with you?
    StatusAsk(StatusAsk),
    /// So.
    Status(StatusHello),
    /// All ports of the writer that may make lanes.
    Ports(PortList),
    /// How far the writer is with a lane between ports, and its end.
    Pair(PairHello, LaneEnd),
    /// Whoever asked for the connection has it.
    Taken(RefusedHello),
    /// At a local door: who is there?
    Knock(DoorHello),
    /// Prove that you hold the handle.
    Challenge(DoorHello),
    /// The proof.
    Prove(DoorHello),
    /// The listener's own.
    Proved(DoorHello),
}

impl Frame {
    /// Reads one record.
    ///
    /// *Errors*: [`DecodeError::Short`] also when the record is longer than [`FRAME_BYTES_MAX`] and
    /// was cut by its reader.
    pub fn decode(record: &[u8]) -> Result<Frame, DecodeError> {
        let (kind, _minor, body) = FrameHeader::decode(record)?;
        Ok(match kind {
            FrameKind::LinkHello => Frame::LinkHello(link_hello(body)?),
            FrameKind::LinkReply => Frame::LinkReply(link_hello(body)?),
            FrameKind::LinkReady => Frame::LinkReady(link_hello(body)?),
            FrameKind::Connect => Frame::Connect(ConnectHello::from_bytes(prefix(body)?)),
            FrameKind::Accepted => Frame::Accepted(ConnectHello::from_bytes(prefix(body)?)),
            FrameKind::Refused => Frame::Refused(RefusedHello::from_bytes(prefix(body)?)),
            FrameKind::Closed => Frame::Closed(RefusedHello::from_bytes(prefix(body)?)),
            FrameKind::StreamHello => {
                let (stream, rest) = body.split_first_chunk().ok_or(DecodeError::Short)?;
                let connect = ConnectHello::from_bytes(prefix(rest)?);
                Frame::StreamHello(StreamHello::from_bytes(stream), connect)
            }
            FrameKind::Ping => Frame::Ping(PingHello::from_bytes(prefix(body)?)),
            FrameKind::Pong => Frame::Pong(PingHello::from_bytes(prefix(body)?)),
            FrameKind::Addresses => Frame::Addresses(AddressList::decode(body)?),
            FrameKind::StatusAsk => Frame::StatusAsk(StatusAsk::from_bytes(prefix(body)?)),
            FrameKind::Ports => Frame::Ports(PortList::decode(body)?),
            FrameKind::Pair => {
                let (pair, rest) = body.split_first_chunk().ok_or(DecodeError::Short)?;
                let pair = PairHello::from_bytes(pair);
                Frame::Pair(pair, LaneEnd::from_bytes(pair.kind, rest)?)
            }
            FrameKind::Status => Frame::Status(StatusHello::decode(body)?),
            FrameKind::Taken => Frame::Taken(RefusedHello::from_bytes(prefix(body)?)),
            FrameKind::Knock => Frame::Knock(DoorHello::from_bytes(prefix(body)?)),
            FrameKind::Challenge => Frame::Challenge(DoorHello::from_bytes(prefix(body)?)),
            FrameKind::Prove => Frame::Prove(DoorHello::from_bytes(prefix(body)?)),
            FrameKind::Proved => Frame::Proved(DoorHello::from_bytes(prefix(body)?)),
        })
    }

    /// Writes the record to the front of `out` and says how long it is.
    pub fn encode(&self, out: &mut [u8; FRAME_BYTES_WRITTEN]) -> usize {
        match self {
            Frame::LinkHello(body) => record(FrameKind::LinkHello, &body.encode(), out),
            Frame::LinkReply(body) => record(FrameKind::LinkReply, &body.encode(), out),
            Frame::LinkReady(body) => record(FrameKind::LinkReady, &body.encode(), out),
            Frame::Connect(body) => record(FrameKind::Connect, &body.encode(), out),
            Frame::Accepted(body) => record(FrameKind::Accepted, &body.encode(), out),
            Frame::Refused(body) => record(FrameKind::Refused, &body.encode(), out),
            Frame::Closed(body) => record(FrameKind::Closed, &body.encode(), out),
            Frame::Taken(body) => record(FrameKind::Taken, &body.encode(), out),
            Frame::Knock(body) => record(FrameKind::Knock, &body.encode(), out),
            Frame::Challenge(body) => record(FrameKind::Challenge, &body.encode(), out),
            Frame::Prove(body) => record(FrameKind::Prove, &body.encode(), out),
            Frame::Proved(body) => record(FrameKind::Proved, &body.encode(), out),
            Frame::StreamHello(stream, connect) => {
                let mut body = [0; StreamHello::SIZE + ConnectHello::SIZE];
                body[..StreamHello::SIZE].copy_from_slice(&stream.encode());
                body[StreamHello::SIZE..].copy_from_slice(&connect.encode());
                record(FrameKind::StreamHello, &body, out)
            }
            Frame::Ping(body) => record(FrameKind::Ping, &body.encode(), out),
            Frame::Pong(body) => record(FrameKind::Pong, &body.encode(), out),
            Frame::Addresses(list) => {
                let mut body = [0; AddressList::BYTES_MAX];
                let length = list.encode(&mut body);
                record(FrameKind::Addresses, &body[..length], out)
            }
            Frame::StatusAsk(body) => record(FrameKind::StatusAsk, &body.encode(), out),
            Frame::Status(body) => record(FrameKind::Status, &body.encode(), out),
            Frame::Ports(list) => {
                let mut body = [0; PortList::BYTES_MAX];
                let length = list.encode(&mut body);
                record(FrameKind::Ports, &body[..length], out)
            }
            Frame::Pair(pair, end) => {
                let mut body = [0; PairHello::SIZE + LaneEnd::BYTES_MAX];
                let mut bytes = [0; LaneEnd::BYTES_MAX];
                let length = end.encode(&mut bytes);
                let pair = PairHello { kind: end.kind(), ..*pair };
                body[..PairHello::SIZE].copy_from_slice(&pair.encode());
                body[PairHello::SIZE..].copy_from_slice(&bytes);
                record(FrameKind::Pair, &body[..PairHello::SIZE + length], out)
            }
        }
    }
}

/// Bytes of a `LinkHello` of minor version 0.
const LINK_HELLO_FIRST_BYTES: usize = 160;

/// Reads a `LinkHello` of any minor version: what an older writer did not know is zero.
fn link_hello(body: &[u8]) -> Result<LinkHello, DecodeError> {
    if body.len() < LINK_HELLO_FIRST_BYTES {
        return Err(DecodeError::Short);
    }
    let mut bytes = [0; LinkHello::SIZE];
    let known = body.len().min(bytes.len());
    bytes[..known].copy_from_slice(&body[..known]);
    Ok(LinkHello::from_bytes(&bytes))
}

/// The part of a body that this version knows. Bodies only grow from one minor version to the next,
/// and none was ever shorter than minor 0's, so that a shorter one is damaged.
fn prefix<const N: usize>(body: &[u8]) -> Result<&[u8; N], DecodeError> {
    body.first_chunk().ok_or(DecodeError::Short)
}

fn record(kind: FrameKind, body: &[u8], out: &mut [u8; FRAME_BYTES_WRITTEN]) -> usize {
    let header = FrameHeader {
        magic: FRAME_MAGIC,
        major: WIRE_MAJOR,
        minor: WIRE_MINOR,
        kind: kind as u16,
        length: body.len() as u16,
        sum: 0,
    };
    let header = FrameHeader { sum: FrameHeader::sum_of(&header, body), ..header };
    out[..FrameHeader::SIZE].copy_from_slice(&header.encode());
    out[FrameHeader::SIZE..FrameHeader::SIZE + body.len()].copy_from_slice(body);
    FrameHeader::SIZE + body.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::queue_pair::QueuePairHello;
    use crate::wire::shared_end::{NAME_BYTES_MAX, SharedEndHello, ToldRegion};

    const LINK: LinkHello = LinkHello {
        node_id: 1,
        endpoint_id: 2,
        peer_endpoint_id: 3,
        features: FEATURE_DOORBELL,
        pid: 4,
        page_bytes: 4096,
        probe_address: 5,
        probe_word: 6,
        arena_bytes: 7,
        heap_bytes: 8,
        name_low: 9,
        name_high: 10,
        nonce: 14,
        rails: RAIL_SHM | RAIL_TCP,
        streams: 1,
        proof_low: 15,
        proof_high: 16,
        lanes: 8,
        resume: 17,
    };

    fn frames() -> [Frame; 21] {
        let door = DoorHello { version: LOCAL_VERSION, door: 5, nonce: 6, ..DoorHello::ZERO };
        let connect = ConnectHello { connection: 11, target: 12, ..Default::default() };
        let refused = RefusedHello { target: 13, reason: 2, major: 1 };
        [
            Frame::LinkHello(LINK),
            Frame::LinkReply(LINK),
            Frame::LinkReady(LINK),
            Frame::Connect(connect),
            Frame::Accepted(connect),
            Frame::Refused(refused),
            Frame::Closed(refused),
            Frame::Taken(RefusedHello { reason: 0, ..refused }),
            Frame::Knock(door),
            Frame::Challenge(door),
            Frame::Prove(door),
            Frame::Proved(door),
            Frame::StreamHello(
                StreamHello {
                    streams: 2,
                    stream: 1,
                    lane: 7,
                    lane_generation: 9,
                    ..StreamHello::ZERO
                },
                connect,
            ),
            Frame::Ping(PingHello { number: 17 }),
            Frame::Pong(PingHello { number: 18 }),
            Frame::Addresses(AddressList {
                count: 2,
                devices: core::array::from_fn(|at| if at < 2 { 7 } else { 0 }),
                ..AddressList::EMPTY
            }),
            Frame::StatusAsk(StatusAsk { target: 19, connection: 20, number: 21, flags: 1 }),
            Frame::Status(StatusHello::ZERO),
            Frame::Ports(PortList { count: 2, ..PortList::EMPTY }),
            Frame::Pair(
                PairHello { connection: 22, lane: 1, ..PairHello::ZERO },
                QueuePairHello { number: 23, ..QueuePairHello::ZERO }.into(),
            ),
            Frame::Pair(
                PairHello { connection: 24, lane: 2, kind: 1, ..PairHello::ZERO },
                LaneEnd::Shared(SharedEndHello {
                    name: [25; NAME_BYTES_MAX],
                    name_bytes: 26,
                    format: 27,
                    number: 28,
                    token: 29,
                    payload_bytes_max: 30,
                    told: ToldRegion { key: 31, library_key: 32, start: 33, length: 34 },
                }),
            ),
        ]
    }

    #[test]
    fn every_frame_comes_back_as_it_was_written() {
        for frame in frames() {
            let mut out = [0; FRAME_BYTES_WRITTEN];
            let length = frame.encode(&mut out);
            assert_eq!(Frame::decode(&out[..length]), Ok(frame));
        }
    }

    #[test]
    fn every_truncated_frame_is_refused() {
        for frame in frames() {
            let mut out = [0; FRAME_BYTES_WRITTEN];
            let length = frame.encode(&mut out);
            for cut in 0..length {
                assert_eq!(Frame::decode(&out[..cut]), Err(DecodeError::Short), "{frame:?} {cut}");
            }
        }
    }

    #[test]
    fn addresses_of_a_writer_that_says_no_devices_are_read_and_so_are_they_by_such_a_reader() {
        let mut list = AddressList::EMPTY;
        for port in 1..=3 {
            list.push(AddressHello { port, family: 4, ..AddressHello::ZERO }, 9);
        }
        let mut out = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::Addresses(list).encode(&mut out);
        // what such a reader goes by: the count, and entries of one length behind it
        let plain = AddressList::HEAD_BYTES + 3 * AddressHello::SIZE;
        assert_eq!((out[FrameHeader::SIZE], length), (3, FrameHeader::SIZE + plain + 3));
        out[10..12].copy_from_slice(&(plain as u16).to_le_bytes());
        out[12..16].fill(0);
        let older = AddressList { devices: [0; ADDRESSES_MAX], ..list };
        let read = Frame::decode(&out[..FrameHeader::SIZE + plain]);
        assert_eq!(read, Ok(Frame::Addresses(older)));
    }

    #[test]
    fn a_longer_body_of_a_later_minor_version_is_read_by_its_prefix() {
        let mut bytes = [0xaa; FRAME_BYTES_MAX];
        let mut out = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::LinkHello(LINK).encode(&mut out);
        bytes[..length].copy_from_slice(&out[..length]);
        bytes[12..16].fill(0);
        bytes[6..8].copy_from_slice(&(WIRE_MINOR + 1).to_le_bytes());
        let body = (FRAME_BYTES_MAX - FrameHeader::SIZE) as u16;
        bytes[10..12].copy_from_slice(&body.to_le_bytes());
        assert_eq!(Frame::decode(&bytes), Ok(Frame::LinkHello(LINK)));
    }

    #[test]
    fn an_oversized_length_is_refused() {
        let mut out = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::LinkHello(LINK).encode(&mut out);
        out[10..12].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(Frame::decode(&out[..length]), Err(DecodeError::Short));
    }

    #[test]
    fn another_major_version_is_named() {
        let mut out = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::LinkHello(LINK).encode(&mut out);
        out[4..6].copy_from_slice(&(WIRE_MAJOR + 1).to_le_bytes());
        assert_eq!(Frame::decode(&out[..length]), Err(DecodeError::Checksum));
        out[12..16].fill(0);
        assert_eq!(Frame::decode(&out[..length]), Err(DecodeError::Version(WIRE_MAJOR + 1)));
    }

    #[test]
    fn every_changed_bit_of_a_frame_is_noticed() {
        for frame in frames() {
            let mut out = [0; FRAME_BYTES_WRITTEN];
            let length = frame.encode(&mut out);
            assert_ne!(out[12..16], [0; 4], "a sum of zero is none");
            for bit in 0..8 * length {
                out[bit / 8] ^= 1 << (bit % 8);
                assert!(Frame::decode(&out[..length]).is_err(), "{frame:?} bit {bit}");
                out[bit / 8] ^= 1 << (bit % 8);
            }
            out[12..16].fill(0);
            assert_eq!(Frame::decode(&out[..length]), Ok(frame), "an earlier writer's");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        const SEED: u64 = 0x5eed_0008;
        let mut state = SEED;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            let mut bytes = [0u8; FRAME_BYTES_WRITTEN + 8];
            bytes.fill_with(|| next() as u8);
            if next() & 3 != 0 {
                // half-way plausible, so that the decoder gets past its first checks
                bytes[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
                bytes[4..6].copy_from_slice(&WIRE_MAJOR.to_le_bytes());
                bytes[8..10].copy_from_slice(&((next() % 17) as u16).to_le_bytes());
                bytes[10..12].copy_from_slice(&((next() % 256) as u16).to_le_bytes());
            }
            let length = next() as usize % (bytes.len() + 1);
            let _ = Frame::decode(&bytes[..length]);
        }
    }
}
