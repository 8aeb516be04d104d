//! What a rank tells of its part of an AllGather while it is prepared.
#![forbid(unsafe_code)]

use super::Key;
use super::board::RECORD_BYTES;
use crate::base::hash::fnv1a;
use crate::collective::Algorithm;
use crate::provider::copy_engine::Exporter;
use std::vec::Vec;

/// The first word of a record. Its last byte counts the forms of records, and of a team's words.
const MAGIC: u64 = u64::from_le_bytes(*b"xtiegat\x02");

/// What a rank tells.
#[derive(Copy, Clone, Debug)]
pub struct Told {
    /// Its part lies in memory of a GPU.
    pub is_device: bool,
    /// Its host.
    pub node: u64,
    /// Where its memory can be had.
    pub exporter: Exporter,
    /// What it calls the region.
    pub region: u64,
    /// The address of its first chunk.
    pub address: u64,
    /// A bit for each slot that it has free.
    pub free: u64,
    /// What all ranks must say alike.
    pub call: u64,
}

impl Told {
    /// A part in memory of the host.
    pub fn of_host(key: &Key, free: u64) -> Told {
        let algorithm: u64 = match key.algorithm {
            None => 0,
            Some(Algorithm::Direct) => 1,
            Some(Algorithm::Pipeline) => 2,
        };
        let words = [key.offset, key.bytes, algorithm, u64::from(key.team_max)];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Told {
            is_device: false,
            node: 0,
            exporter: Exporter::default(),
            region: 0,
            address: 0,
            free,
            call: fnv1a(&bytes),
        }
    }

    /// As a record.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let words = [
            MAGIC,
            u64::from(self.is_device),
            self.node,
            self.exporter.name as u64,
            (self.exporter.name >> 64) as u64,
            self.exporter.secret as u64,
            (self.exporter.secret >> 64) as u64,
            self.region,
            self.address,
            self.free,
            self.call,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse; `None`: the rank could not do its part.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Told> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("8 bytes"));
        let wide = |at: usize| u128::from(word(at)) | u128::from(word(at + 1)) << 64;
        (word(0) == MAGIC).then(|| Told {
            is_device: word(1) != 0,
            node: word(2),
            exporter: Exporter { name: wide(3), secret: wide(5) },
            region: word(7),
            address: word(8),
            free: word(9),
            call: word(10),
        })
    }
}

/// The team of each rank: those of one host whose parts lie in memory of GPUs, at most `team_max`
/// of them; 0: all. A rank whose part lies in memory of the host has one of its own.
pub fn teams(ranks: &[Told], team_max: u32) -> Vec<u32> {
    let most = if team_max == 0 { usize::MAX } else { team_max as usize };
    let mut teams: Vec<u32> = Vec::with_capacity(ranks.len());
    for (rank, told) in ranks.iter().enumerate() {
        let is_mate = |other: usize| {
            let is_near = ranks[other].node == told.node && told.node != 0;
            told.is_device && ranks[other].is_device && is_near
        };
        let has_room = |team: u32| teams.iter().filter(|it| **it == team).count() < most;
        let mut found = (0..rank).filter(|other| is_mate(*other)).map(|other| teams[other]);
        let found = found.rfind(|team| has_room(*team));
        teams.push(found.unwrap_or(rank as u32));
    }
    teams
}
