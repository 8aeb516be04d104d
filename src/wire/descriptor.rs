//! W2: where a message lies in the sender's memory, for a receiver that pulls.

use super::{DecodeError, RAILS_MAX};

/// W2. Payload of a send of kind `KIND_DESCRIPTOR`: 16 bytes and 8 for each data rail.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Descriptor {
    /// Address in the sender's process.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// What each data rail calls the sender's region.
    pub keys: [u64; RAILS_MAX],
    /// How many of `keys` are said.
    pub rails: usize,
}

/// The longest descriptor in bytes.
pub const DESCRIPTOR_BYTES_MAX: usize = 16 + 8 * RAILS_MAX;

impl Descriptor {
    /// Length on the wire of a descriptor for `rails` data rails.
    pub const fn bytes(rails: usize) -> usize {
        16 + 8 * rails
    }

    /// Writes the descriptor; the first `Descriptor::bytes(rails)` bytes of the result count.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES_MAX] {
        let mut bytes = [0u8; DESCRIPTOR_BYTES_MAX];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        for (key, at) in self.keys.iter().zip(bytes[16..].chunks_exact_mut(8)) {
            at.copy_from_slice(&key.to_le_bytes());
        }
        bytes
    }

    /// Reads a descriptor from a payload.
    pub fn decode(payload: &[u8]) -> Result<Descriptor, DecodeError> {
        let rails = payload.len().checked_sub(16).ok_or(DecodeError::Short)? / 8;
        if rails == 0 {
            return Err(DecodeError::Short);
        }
        if rails > RAILS_MAX || !payload.len().is_multiple_of(8) {
            return Err(DecodeError::Field);
        }
        let mut words = payload.chunks_exact(8).map(|word| {
            let mut bytes = [0u8; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let mut next = || words.next().ok_or(DecodeError::Short);
        let (address, length) = (next()?, next()?);
        let mut keys = [0; RAILS_MAX];
        for key in &mut keys[..rails] {
            *key = next()?;
        }
        Ok(Descriptor { address, length, keys, rails })
    }
}
