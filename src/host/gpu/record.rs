//! What processes say where one asks the other for memory of its GPUs. One record each; both ends
//! run on one host, so words are in its byte order.
#![forbid(unsafe_code)]

/// Words of every record.
const WORDS: usize = 20;
/// Bytes of every record.
pub(super) const BYTES: usize = WORDS * 8;
/// First word of every record; its last byte is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"xtiegpu\x02");

const ASK: u64 = 1;
const PART: u64 = 2;
const NONE: u64 = 3;
const GONE: u64 = 4;

/// How an allocation is handed over.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum How {
    /// A descriptor comes with the record.
    Descriptor,
    /// By this IPC handle.
    Ipc([u8; 64]),
}

/// One of the allocations that a region lies in.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Part {
    /// The asker's number.
    pub entry: u32,
    /// Which one it is, of how many.
    pub index: u16,
    pub count: u16,
    /// The owner's process: a number that no other has.
    pub process: u64,
    /// Its first byte at the owner, and its length.
    pub start: u64,
    pub bytes: u64,
    /// The region.
    pub region_start: u64,
    pub region_bytes: u64,
    /// The id of its GPU.
    pub gpu: u128,
    pub how: How,
}

/// One record.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Record {
    /// Asks for a region, and proves that the asker was told where.
    Ask { secret: u128, entry: u32, key: u64 },
    /// An allocation of it.
    Part(Part),
    /// There is no such region.
    None { entry: u32 },
    /// The owner has forgotten a region.
    Gone { key: u64 },
}

impl Record {
    pub fn encode(&self) -> [u8; BYTES] {
        let mut words = [0u64; WORDS];
        words[0] = MAGIC;
        match *self {
            Record::Ask { secret, entry, key } => {
                words[1..6].copy_from_slice(&[
                    ASK,
                    entry.into(),
                    key,
                    secret as u64,
                    (secret >> 64) as u64,
                ]);
            }
            Record::Part(part) => {
                let place = u64::from(part.index) | u64::from(part.count) << 16;
                words[1..4].copy_from_slice(&[PART, part.entry.into(), place]);
                words[4..9].copy_from_slice(&[
                    part.process,
                    part.start,
                    part.bytes,
                    part.region_start,
                    part.region_bytes,
                ]);
                words[18..].copy_from_slice(&[part.gpu as u64, (part.gpu >> 64) as u64]);
                if let How::Ipc(handle) = part.how {
                    words[9] = 1;
                    for (word, bytes) in words[10..18].iter_mut().zip(handle.chunks_exact(8)) {
                        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
                    }
                }
            }
            Record::None { entry } => words[1..3].copy_from_slice(&[NONE, entry.into()]),
            Record::Gone { key } => words[1..3].copy_from_slice(&[GONE, key]),
        }
        let mut bytes = [0; BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// What a record says; `None`: it breaks the format.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut words = [0u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        if words[0] != MAGIC {
            return None;
        }
        let entry = words[2] as u32;
        match words[1] {
            ASK => {
                let secret = u128::from(words[4]) | u128::from(words[5]) << 64;
                Some(Record::Ask { secret, entry, key: words[3] })
            }
            PART => {
                let how = match words[9] {
                    0 => How::Descriptor,
                    _ => How::Ipc(bytes[80..144].try_into().expect("sixty-four bytes")),
                };
                Some(Record::Part(Part {
                    entry,
                    index: words[3] as u16,
                    count: (words[3] >> 16) as u16,
                    process: words[4],
                    start: words[5],
                    bytes: words[6],
                    region_start: words[7],
                    region_bytes: words[8],
                    gpu: u128::from(words[18]) | u128::from(words[19]) << 64,
                    how,
                }))
            }
            NONE => Some(Record::None { entry }),
            GONE => Some(Record::Gone { key: words[2] }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in() {
        let part = Part {
            entry: 7,
            index: 3,
            count: 9,
            process: u64::MAX,
            start: 1 << 40,
            bytes: 2 << 20,
            region_start: 5,
            region_bytes: 6,
            gpu: 5 << 90 | 3,
            how: How::Descriptor,
        };
        let records = [
            Record::Ask { secret: 3 << 100 | 1, entry: u32::MAX, key: 9 },
            Record::Part(part),
            Record::Part(Part { how: How::Ipc([0xa5; 64]), ..part }),
            Record::None { entry: 1 },
            Record::Gone { key: 1 << 63 },
        ];
        for record in records {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(Record::decode(&[0; BYTES]), None);
        assert_eq!(Record::decode(&records[0].encode()[1..]), None);
    }
}
