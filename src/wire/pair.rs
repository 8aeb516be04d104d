//! W8.14: how two endpoints find out which of their ports make lanes, and pair the ends of each.

use super::queue_pair::QueuePairHello;
use super::shared_end::SharedEndHello;
use super::vendor_end::VendorEndHello;
use super::{DecodeError, wire_struct};
use crate::base::words::wraps;

/// Most ports that an endpoint says: one for each lane but the first.
pub const PORTS_MAX: usize = super::RAILS_MAX - 1;

wire_struct! {
    /// W8.14. One port of the writer, in a `Ports`.
    PortHello [24] {
        /// The GID by which it is used, byte for byte; of libfabric and vendors, a hash that ports
        /// of one provider and network have in common.
        gid: u128 = 0,
        /// Bits of the GID's address that name its subnet; of libfabric and vendors, whom
        /// it reaches: 1 ports of its own host, 2 those of others.
        prefix_bits: u8 = 16,
        /// What its packets look like: 1 InfiniBand, 2 RoCE v1, 3 RoCE v2; 4: libfabric knows;
        /// 5: its vendor knows.
        kind: u8 = 17,
        /// Speed in Mbit/s; 0: not known.
        speed_mbit_s: u32 = 20,
    }
}

/// The ports of one endpoint, as many as `count`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PortList {
    /// How many.
    pub count: usize,
    /// They, at the front.
    pub all: [PortHello; PORTS_MAX],
}

impl PortList {
    /// Bytes before the ports: how many there are.
    pub const HEAD_BYTES: usize = 8;
    /// Bytes of the longest list.
    pub const BYTES_MAX: usize = PortList::HEAD_BYTES + PORTS_MAX * PortHello::SIZE;

    /// No port.
    pub const EMPTY: PortList = PortList { count: 0, all: [PortHello::ZERO; PORTS_MAX] };

    /// They.
    pub fn as_slice(&self) -> &[PortHello] {
        &self.all[..self.count]
    }

    /// The bytes; says how many.
    pub fn encode(&self, out: &mut [u8; PortList::BYTES_MAX]) -> usize {
        out[..Self::HEAD_BYTES].copy_from_slice(&(self.count as u64).to_le_bytes());
        let places = out[Self::HEAD_BYTES..].chunks_exact_mut(PortHello::SIZE);
        for (place, port) in places.zip(self.as_slice()) {
            place.copy_from_slice(&port.encode());
        }
        Self::HEAD_BYTES + self.count * PortHello::SIZE
    }

    /// Reads as many as this version keeps; a list that says more than it holds is damaged.
    pub fn decode(body: &[u8]) -> Result<PortList, DecodeError> {
        let (head, rest) = body.split_first_chunk().ok_or(DecodeError::Short)?;
        let said = u64::from_le_bytes(*head);
        if said > (rest.len() / PortHello::SIZE) as u64 {
            return Err(DecodeError::Short);
        }
        let mut list = PortList { count: (said as usize).min(PORTS_MAX), ..Self::EMPTY };
        let count = list.count;
        let (entries, _) = rest.as_chunks();
        for (place, entry) in list.all[..count].iter_mut().zip(entries) {
            *place = PortHello::from_bytes(entry);
        }
        Ok(list)
    }
}

/// `PairHello::word`: the connector's end is prepared; the listener's is asked for.
pub const PAIR_ASK: u8 = 1;
/// `PairHello::word`: the listener's end knows the connector's, and receives.
pub const PAIR_ANSWER: u8 = 2;
/// `PairHello::word`: the writer's end of this generation is no more, or will not be.
pub const PAIR_GONE: u8 = 3;

/// `PairHello::kind`: W11 follows.
const KIND_QUEUE_PAIR: u8 = 0;
/// `PairHello::kind`: W13 follows.
const KIND_SHARED: u8 = 1;
/// `PairHello::kind`: W14 follows.
const KIND_VENDOR: u8 = 2;

wire_struct! {
    /// W8.14. Body of `Pair`: one lane's pair of ends. The writer's end (W11, W13, W14) follows.
    PairHello [32] {
        /// The reader's connection.
        connection: u64 = 0,
        /// What the lane's device calls the writer's mailbox region.
        mailbox_key: u64 = 8,
        /// Which time the lane comes up, by the connector's count.
        lane_generation: u32 = 16,
        /// Which lane of the connection.
        lane: u8 = 20,
        /// One of the `PAIR_` words.
        word: u8 = 21,
        /// What follows: 0 W11, 1 W13, 2 W14.
        kind: u8 = 22,
    }
}

/// One end of a lane that has no sockets.
#[allow(clippy::large_enum_variant)] // kept in tables of such ends, one size for all
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum LaneEnd {
    /// A queue pair.
    QueuePair(QueuePairHello),
    /// A peer of an endpoint that others share.
    Shared(SharedEndHello),
    /// A peer on a vendor's rail.
    Vendor(VendorEndHello),
}

impl LaneEnd {
    /// No end: of a lane that nothing was said of.
    pub const NONE: LaneEnd = LaneEnd::QueuePair(QueuePairHello::ZERO);
    /// Bytes of the longest.
    pub const BYTES_MAX: usize = SharedEndHello::SIZE;

    /// What [`PairHello::kind`] is before it.
    pub const fn kind(&self) -> u8 {
        match self {
            LaneEnd::QueuePair(_) => KIND_QUEUE_PAIR,
            LaneEnd::Shared(_) => KIND_SHARED,
            LaneEnd::Vendor(_) => KIND_VENDOR,
        }
    }

    /// The bytes; says how many.
    pub fn encode(&self, out: &mut [u8; LaneEnd::BYTES_MAX]) -> usize {
        match self {
            LaneEnd::QueuePair(hello) => {
                out[..QueuePairHello::SIZE].copy_from_slice(&hello.encode());
                QueuePairHello::SIZE
            }
            LaneEnd::Shared(hello) => {
                *out = hello.encode();
                SharedEndHello::SIZE
            }
            LaneEnd::Vendor(hello) => {
                out[..VendorEndHello::SIZE].copy_from_slice(&hello.encode());
                VendorEndHello::SIZE
            }
        }
    }

    /// Reads one of a kind, which may say what cannot be.
    pub fn from_bytes(kind: u8, bytes: &[u8]) -> Result<LaneEnd, DecodeError> {
        match kind {
            KIND_QUEUE_PAIR => {
                let bytes = bytes.first_chunk().ok_or(DecodeError::Short)?;
                Ok(LaneEnd::QueuePair(QueuePairHello::from_bytes(bytes)))
            }
            KIND_SHARED => {
                let bytes = bytes.first_chunk().ok_or(DecodeError::Short)?;
                Ok(LaneEnd::Shared(SharedEndHello::from_bytes(bytes)))
            }
            KIND_VENDOR => {
                let bytes = bytes.first_chunk().ok_or(DecodeError::Short)?;
                Ok(LaneEnd::Vendor(VendorEndHello::from_bytes(bytes)))
            }
            _ => Err(DecodeError::Field),
        }
    }

    /// Refuses what cannot be.
    pub fn checked(self) -> Result<LaneEnd, DecodeError> {
        match self {
            LaneEnd::QueuePair(hello) => hello.checked().map(LaneEnd::QueuePair),
            LaneEnd::Shared(hello) => hello.checked().map(LaneEnd::Shared),
            LaneEnd::Vendor(hello) => hello.checked().map(LaneEnd::Vendor),
        }
    }
}

wraps!(LaneEnd: QueuePair(QueuePairHello), Vendor(VendorEndHello), Shared(SharedEndHello));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_short_ones_are_refused() {
        for count in 0..=PORTS_MAX {
            let mut list = PortList { count, ..PortList::EMPTY };
            for (at, port) in list.all[..count].iter_mut().enumerate() {
                *port = PortHello { gid: at as u128, prefix_bits: 24, kind: 3, speed_mbit_s: 7 };
            }
            let mut bytes = [0; PortList::BYTES_MAX];
            let length = list.encode(&mut bytes);
            assert_eq!(PortList::decode(&bytes[..length]), Ok(list));
            for cut in 0..length {
                assert_eq!(PortList::decode(&bytes[..cut]), Err(DecodeError::Short));
            }
        }
    }

    #[test]
    fn what_a_later_version_says_beyond_our_room_is_left_out() {
        let mut bytes = [0; PortList::HEAD_BYTES + (PORTS_MAX + 1) * PortHello::SIZE];
        bytes[0] = PORTS_MAX as u8 + 1;
        assert_eq!(PortList::decode(&bytes).map(|list| list.count), Ok(PORTS_MAX));
    }
}
