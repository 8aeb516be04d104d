//! W14: what an end on a vendor's rail tells the other end before either sends.

use super::super::DecodeError;

/// Longest blob of a vendor's.
pub const BLOB_BYTES_MAX: usize = 128;
/// Bytes of the numbers before it.
const NUMBERS_BYTES: usize = 8;

/// W14. One end on a vendor's rail, as the other must know it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct VendorEndHello {
    /// What the vendor's `peer_blob` wrote.
    pub blob: [u8; BLOB_BYTES_MAX],
    /// Bytes of it that count.
    pub blob_bytes: u32,
    /// Longest payload of a send to the writer.
    pub payload_bytes_max: u32,
}

impl VendorEndHello {
    /// Length on the wire in bytes.
    pub const SIZE: usize = NUMBERS_BYTES + BLOB_BYTES_MAX;

    /// As bytes: two numbers, little end first, and the blob.
    pub fn encode(&self) -> [u8; VendorEndHello::SIZE] {
        let mut bytes = [0; VendorEndHello::SIZE];
        bytes[..4].copy_from_slice(&self.blob_bytes.to_le_bytes());
        bytes[4..NUMBERS_BYTES].copy_from_slice(&self.payload_bytes_max.to_le_bytes());
        bytes[NUMBERS_BYTES..].copy_from_slice(&self.blob);
        bytes
    }

    /// The inverse, of bytes that may say what cannot be.
    pub fn from_bytes(bytes: &[u8; VendorEndHello::SIZE]) -> VendorEndHello {
        let number = |n: usize| u32::from_le_bytes([0, 1, 2, 3].map(|at| bytes[4 * n + at]));
        let mut blob = [0; BLOB_BYTES_MAX];
        blob.copy_from_slice(&bytes[NUMBERS_BYTES..]);
        VendorEndHello { blob, blob_bytes: number(0), payload_bytes_max: number(1) }
    }

    /// Refuses what cannot be.
    pub fn checked(self) -> Result<VendorEndHello, DecodeError> {
        let length = self.blob_bytes as usize;
        let is_blob = length <= BLOB_BYTES_MAX && self.blob[length..].iter().all(|byte| *byte == 0);
        match is_blob && self.payload_bytes_max > 0 {
            true => Ok(self),
            false => Err(DecodeError::Field),
        }
    }

    /// Reads one, and checks it.
    pub fn decode(bytes: &[u8]) -> Result<VendorEndHello, DecodeError> {
        let bytes = bytes.first_chunk().ok_or(DecodeError::Short)?;
        VendorEndHello::from_bytes(bytes).checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_comes_back_as_it_was_written_and_what_cannot_be_is_refused() {
        let mut blob = [0; BLOB_BYTES_MAX];
        blob[..5].copy_from_slice(b"where");
        let end = VendorEndHello { blob, blob_bytes: 5, payload_bytes_max: 2048 };
        let bytes = end.encode();
        assert_eq!(VendorEndHello::decode(&bytes), Ok(end));
        let short = &bytes[..VendorEndHello::SIZE - 1];
        assert_eq!(VendorEndHello::decode(short), Err(DecodeError::Short));
        for bad in [
            VendorEndHello { blob_bytes: 4, ..end },
            VendorEndHello { blob_bytes: 129, ..end },
            VendorEndHello { payload_bytes_max: 0, ..end },
        ] {
            assert_eq!(VendorEndHello::decode(&bad.encode()), Err(DecodeError::Field), "{bad:?}");
        }
    }
}
