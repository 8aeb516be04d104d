//! W13: what an end on an endpoint that peers share (libfabric's) tells the other end before either
//! sends.

use super::super::DecodeError;

/// Longest address of an endpoint: those of shared memory are texts.
pub const NAME_BYTES_MAX: usize = 192;
/// Bytes of the numbers before it.
const NUMBERS_BYTES: usize = 20;
/// Bytes of what is told of a region, behind it.
const TOLD_BYTES: usize = 32;
/// A message says in 16 bits from which peer it comes.
const NUMBER_END: u32 = 1 << 16;

/// W13. One end on a shared endpoint, as the other must know it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SharedEndHello {
    /// The endpoint's address, as its library gives it.
    pub name: [u8; NAME_BYTES_MAX],
    /// Bytes of it that count.
    pub name_bytes: u32,
    /// What kind of address it is: libfabric's number.
    pub format: u32,
    /// What the writer calls the reader.
    pub number: u32,
    /// What the reader's messages carry.
    pub token: u32,
    /// Longest payload of a send to the writer.
    pub payload_bytes_max: u32,
    /// A region of the writer's that the reader need not ask for.
    pub told: ToldRegion,
}

/// What the owner of a region tells of it.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct ToldRegion {
    /// What the region's owner calls it towards its peers.
    pub key: u64,
    /// What its library calls it.
    pub library_key: u64,
    /// Its first byte.
    pub start: u64,
    /// Its length; 0: there is no such region.
    pub length: u64,
}

impl ToldRegion {
    /// As bytes: four numbers, little end first.
    pub fn encode(&self) -> [u8; TOLD_BYTES] {
        let mut bytes = [0; TOLD_BYTES];
        let words = [self.key, self.library_key, self.start, self.length];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse.
    pub fn decode(bytes: &[u8; TOLD_BYTES]) -> ToldRegion {
        let word = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| bytes[at + n]));
        ToldRegion { key: word(0), library_key: word(8), start: word(16), length: word(24) }
    }
}

impl SharedEndHello {
    /// Length on the wire in bytes.
    pub const SIZE: usize = NUMBERS_BYTES + NAME_BYTES_MAX + TOLD_BYTES;

    /// The address.
    pub fn name(&self) -> &[u8] {
        &self.name[..(self.name_bytes as usize).min(NAME_BYTES_MAX)]
    }

    /// As bytes: five numbers, little end first, the address, and what is told.
    pub fn encode(&self) -> [u8; SharedEndHello::SIZE] {
        let mut bytes = [0; SharedEndHello::SIZE];
        let numbers =
            [self.name_bytes, self.format, self.number, self.token, self.payload_bytes_max];
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let (name, told) = bytes[NUMBERS_BYTES..].split_at_mut(NAME_BYTES_MAX);
        name.copy_from_slice(&self.name);
        told.copy_from_slice(&self.told.encode());
        bytes
    }

    /// The inverse, of bytes that may say what cannot be.
    pub fn from_bytes(bytes: &[u8; SharedEndHello::SIZE]) -> SharedEndHello {
        let number = |n: usize| u32::from_le_bytes([0, 1, 2, 3].map(|at| bytes[4 * n + at]));
        let mut name = [0; NAME_BYTES_MAX];
        let (address, rest) = bytes[NUMBERS_BYTES..].split_at(NAME_BYTES_MAX);
        name.copy_from_slice(address);
        let mut told = [0; TOLD_BYTES];
        told.copy_from_slice(rest);
        SharedEndHello {
            name,
            name_bytes: number(0),
            format: number(1),
            number: number(2),
            token: number(3),
            payload_bytes_max: number(4),
            told: ToldRegion::decode(&told),
        }
    }

    /// Refuses what cannot be.
    pub fn checked(self) -> Result<SharedEndHello, DecodeError> {
        let is_named = (1..=NAME_BYTES_MAX as u32).contains(&self.name_bytes)
            && self.name[self.name().len()..].iter().all(|byte| *byte == 0);
        match is_named && self.number < NUMBER_END && self.token != 0 {
            true => Ok(self),
            false => Err(DecodeError::Field),
        }
    }

    /// Reads one, and checks it.
    pub fn decode(bytes: &[u8]) -> Result<SharedEndHello, DecodeError> {
        let bytes = bytes.first_chunk().ok_or(DecodeError::Short)?;
        SharedEndHello::from_bytes(bytes).checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_comes_back_as_it_was_written() {
        let mut name = [0; NAME_BYTES_MAX];
        name[..4].copy_from_slice(b"here");
        let told =
            ToldRegion { key: 1 << 40, library_key: u64::MAX - 1, start: 77, length: 1 << 50 };
        let (format, number, token) = (9, 0xffff, 0x8000_0001);
        let hello = SharedEndHello {
            name,
            name_bytes: 4,
            format,
            number,
            token,
            payload_bytes_max: 8192,
            told,
        };
        let bytes = hello.encode();
        assert_eq!(SharedEndHello::decode(&bytes), Ok(hello));
        assert_eq!(hello.name(), b"here");
        let short = &bytes[..SharedEndHello::SIZE - 1];
        assert_eq!(SharedEndHello::decode(short), Err(DecodeError::Short));
        for bad in [
            SharedEndHello { name_bytes: 0, ..hello },
            SharedEndHello { name_bytes: 3, ..hello },
            SharedEndHello { name_bytes: 193, ..hello },
            SharedEndHello { number: 0x1_0000, ..hello },
            SharedEndHello { token: 0, ..hello },
        ] {
            assert_eq!(SharedEndHello::decode(&bad.encode()), Err(DecodeError::Field), "{bad:?}");
        }
    }
}
