//! W12: what one end of a connection of the core archive tells the other, by whatever way the
//! program has.

use super::handle::checksum;
use super::{DecodeError, WIRE_MAJOR, WIRE_MINOR, wire_struct};

/// Length of a blob in bytes.
pub const BLOB_BYTES: usize = HEAD_BYTES + RAIL_BLOB_BYTES_MAX;
/// Most bytes of a rail's own part.
pub const RAIL_BLOB_BYTES_MAX: usize = 128;
/// The writer's rail reads.
pub const BLOB_PULL: u32 = 0x1;
/// The writer's rail writes with immediates, and reports them.
pub const BLOB_IMMEDIATE: u32 = 0x2;
/// The writer reads slots that speak for several groups.
pub const BLOB_RUNS: u32 = 0x4;
const HEAD_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"tie-blob");
/// The checksum covers all but itself.
const SUM_AT: usize = 56;

wire_struct! {
    /// W12. All but the rail's own part.
    Head [64] {
        /// What makes it a blob of ours.
        magic: u64 = 0,
        /// Of the writer's wire format.
        major: u16 = 8,
        /// Of the writer's wire format.
        minor: u16 = 10,
        /// Length of the rail's part.
        rail_bytes: u32 = 12,
        /// Key of the writer's mailbox for the connection.
        mailbox_key: u64 = 16,
        /// Its address.
        mailbox_address: u64 = 24,
        /// Longest eager payload that the writer takes.
        eager_bytes_max: u32 = 32,
        /// Receives that it keeps for the reader.
        credits: u32 = 36,
        /// Groups that may be outstanding at it.
        groups_max: u32 = 40,
        /// `BLOB_` bits.
        flags: u32 = 44,
        /// Longest read or write of the writer's rail in one op.
        transfer_bytes_max: u64 = 48,
        /// FNV-1a of all other bytes.
        sum: u64 = 56,
    }
}

/// W12. One end of a connection.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct ConnectionBlob {
    /// Key of the writer's mailbox for the connection.
    pub mailbox_key: u64,
    /// Its address.
    pub mailbox_address: u64,
    /// Longest eager payload that the writer takes.
    pub eager_bytes_max: u32,
    /// Receives that it keeps for the reader.
    pub credits: u32,
    /// Groups that may be outstanding at it.
    pub groups_max: u32,
    /// `BLOB_` bits.
    pub flags: u32,
    /// Longest read or write of the writer's rail in one op.
    pub transfer_bytes_max: u64,
    /// Length of the rail's part.
    pub rail_bytes: u32,
    /// The rail's part, zero behind its end.
    pub rail: [u8; RAIL_BLOB_BYTES_MAX],
}

impl ConnectionBlob {
    /// The bytes.
    pub fn encode(&self) -> [u8; BLOB_BYTES] {
        let mut bytes = [0; BLOB_BYTES];
        let head = Head {
            magic: MAGIC,
            major: WIRE_MAJOR,
            minor: WIRE_MINOR,
            rail_bytes: self.rail_bytes,
            mailbox_key: self.mailbox_key,
            mailbox_address: self.mailbox_address,
            eager_bytes_max: self.eager_bytes_max,
            credits: self.credits,
            groups_max: self.groups_max,
            flags: self.flags,
            transfer_bytes_max: self.transfer_bytes_max,
            sum: 0,
        };
        bytes[..HEAD_BYTES].copy_from_slice(&head.encode());
        bytes[HEAD_BYTES..].copy_from_slice(&self.rail);
        let sum = checksum(&bytes);
        bytes[SUM_AT..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Checks and reads a blob.
    pub fn decode(bytes: &[u8; BLOB_BYTES]) -> Result<ConnectionBlob, DecodeError> {
        let head = Head::from_bytes(bytes.first_chunk().ok_or(DecodeError::Short)?);
        if head.magic != MAGIC {
            return Err(DecodeError::Magic);
        }
        let mut summed = *bytes;
        summed[SUM_AT..HEAD_BYTES].fill(0);
        if checksum(&summed) != head.sum {
            return Err(DecodeError::Checksum);
        }
        if head.major != WIRE_MAJOR {
            return Err(DecodeError::Version(head.major));
        }
        let rail = *bytes.last_chunk().ok_or(DecodeError::Short)?;
        if head.rail_bytes as usize > RAIL_BLOB_BYTES_MAX {
            return Err(DecodeError::Field);
        }
        Ok(ConnectionBlob {
            mailbox_key: head.mailbox_key,
            mailbox_address: head.mailbox_address,
            eager_bytes_max: head.eager_bytes_max,
            credits: head.credits,
            groups_max: head.groups_max,
            flags: head.flags,
            transfer_bytes_max: head.transfer_bytes_max,
            rail_bytes: head.rail_bytes,
            rail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: ConnectionBlob = ConnectionBlob {
        mailbox_key: 0x1122_3344_5566_7788,
        mailbox_address: 0x7fff_0000_1000,
        eager_bytes_max: 8192,
        credits: 48,
        groups_max: 32,
        flags: BLOB_PULL | BLOB_IMMEDIATE,
        transfer_bytes_max: 1 << 40,
        rail_bytes: 3,
        rail: {
            let mut rail = [0; RAIL_BLOB_BYTES_MAX];
            rail[2] = 9;
            rail
        },
    };

    #[test]
    fn blob_comes_back_as_it_was_written() {
        assert_eq!(ConnectionBlob::decode(&GOOD.encode()), Ok(GOOD));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        for at in 0..BLOB_BYTES {
            let mut bytes = GOOD.encode();
            bytes[at] ^= 1;
            assert!(ConnectionBlob::decode(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn other_versions_and_lengths_that_cannot_be_are_named() {
        let signed = |change: fn(&mut [u8; BLOB_BYTES])| {
            let mut bytes = GOOD.encode();
            change(&mut bytes);
            bytes[SUM_AT..HEAD_BYTES].fill(0);
            let sum = checksum(&bytes);
            bytes[SUM_AT..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
            ConnectionBlob::decode(&bytes)
        };
        assert_eq!(signed(|bytes| bytes[8] = 2), Err(DecodeError::Version(2)));
        assert_eq!(signed(|bytes| bytes[12] = 129), Err(DecodeError::Field));
    }
}
