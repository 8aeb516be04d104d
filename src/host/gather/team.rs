//! Ranks of one host whose streams reach each other's memory, and the words that they share: pinned
//! host memory, which streams and services write.

use super::board::SLOTS;
use super::error::GatherError;
use crate::collective::{Word, Words};
use crate::connect::Trust;
use crate::connect::group::{Group, GroupError, HANDLE_BYTES, Listener};
use crate::host::log::event::tell;
use crate::host::log::gather::GatherEvent;
use crate::memory::cuda::{Gpu, Pinned};
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedMapping};
use crate::wire::hello::AddressList;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use std::vec::Vec;

/// The words of one team, as this rank has them. They stay mapped until the group is closed.
#[derive(Debug)]
pub struct Team {
    /// Dropped before the memory.
    pinned: Pinned,
    memory: SharedMapping,
    gpu: Arc<Gpu>,
    /// The team of each rank.
    teams: Vec<u32>,
    /// Place of each rank among the members of its team.
    places: Vec<usize>,
    words: Words,
    members: usize,
}

/// Bytes of the words of a team.
fn bytes(members: usize, words: Words) -> usize {
    (SLOTS * members * words.count() as usize * 8).next_multiple_of(page_bytes())
}

/// What a rank brings to the meeting of its team.
pub struct Share {
    /// The socket that the others dial, if this rank is the first.
    pub listener: Listener,
    /// The first rank's handle.
    pub first: [u8; HANDLE_BYTES],
    /// This rank's place among the members, and how many there are.
    pub place: (usize, usize),
    /// Ranks of the group.
    pub ranks: u32,
    /// How long the members wait for each other.
    pub patience: Duration,
}

/// A socket for the members of a team.
pub fn listen(trust: &Trust) -> Result<Listener, GatherError> {
    // members are of one host
    Listener::new(trust.clone(), 0, &AddressList::EMPTY).map_err(|error| refused(&error))
}

fn refused(error: &GroupError) -> GatherError {
    tell(&GatherEvent::Share(error));
    GatherError::Share
}

/// Meets the other members, and maps the memory that the first one makes. Blocks.
pub fn share(share: &Share) -> Result<SharedMapping, GatherError> {
    let (place, members) = share.place;
    let length = bytes(members, Words { ranks: share.ranks });
    // the first one's is all that members of one host need
    let handles = std::vec![share.first; members];
    let met = Group::form(&share.listener, &handles, place, share.patience);
    let mut group = met.map_err(|error| refused(&error))?;
    let made = (place == 0).then(|| {
        let memory = SharedMapping::create(c"crosstie-gather", length)?;
        memory.populate(0, length)?;
        memory.seal_seals()?;
        Ok(memory)
    });
    let made: Option<SharedMapping> = made.transpose().map_err(GatherError::System)?;
    let descriptors: Vec<BorrowedFd<'_>> = made.iter().map(SharedMapping::fd).collect();
    let parts = group.gather(&[], &descriptors).map_err(|error| refused(&error))?;
    let theirs = parts.into_iter().next().and_then(|part| part.descriptors.into_iter().next());
    match (made, theirs) {
        (Some(memory), _) => Ok(memory),
        (None, Some(fd)) => SharedMapping::from_fd(fd, length).map_err(GatherError::System),
        (None, None) => Err(GatherError::System(Errno(libc::ENOMEM))),
    }
}

impl Team {
    /// The team of `rank`, whose words lie in memory of [`share`].
    pub fn new(
        gpu: &Arc<Gpu>,
        memory: SharedMapping,
        (teams, rank): (&[u32], u32),
    ) -> Result<Team, GatherError> {
        let words = Words { ranks: teams.len() as u32 };
        let place = |rank: usize| teams[..rank].iter().filter(|it| **it == teams[rank]).count();
        let places: Vec<usize> = (0..teams.len()).map(place).collect();
        let members = teams.iter().filter(|team| **team == teams[rank as usize]).count();
        // SAFETY: it is dropped before the mapping is.
        let pinned = unsafe { Pinned::new(gpu, memory.start(), memory.length()) }?;
        Ok(Team { pinned, memory, gpu: gpu.clone(), teams: teams.into(), places, words, members })
    }

    /// Whether it is the one of these ranks and this GPU.
    pub fn is(&self, teams: &[u32], device: i32) -> bool {
        self.teams == teams && self.gpu.device() == device
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn offset(&self, slot: usize, rank: u32, word: Word) -> usize {
        let owner = match word {
            Word::Ready { owner, .. } | Word::Done { owner, .. } | Word::Failed { owner } => owner,
            Word::Go | Word::State | Word::Landed(_) => rank,
        };
        let place = self.places[owner as usize];
        let row = (slot * self.members + place) * self.words.count() as usize;
        (row + self.words.at(word) as usize) * 8
    }

    /// A word of a request as the stream sees it; `rank` is this rank.
    pub fn device(&self, slot: usize, rank: u32, word: Word) -> u64 {
        self.pinned.device() + self.offset(slot, rank, word) as u64
    }

    /// The same for this process.
    pub fn word(&self, slot: usize, rank: u32, word: Word) -> &AtomicU64 {
        let offset = self.offset(slot, rank, word);
        // SAFETY: inside the mapping (`bytes`), aligned, and only touched by whole words.
        unsafe { AtomicU64::from_ptr(self.memory.start().add(offset).cast()) }
    }

    /// A request begins in a slot: no run is under way.
    pub fn clear(&self, slot: usize, rank: u32) {
        let first = self.offset(slot, rank, Word::Go);
        for at in 0..self.words.count() as usize {
            // SAFETY: the words of one owner, inside the mapping.
            let word = unsafe { self.memory.start().add(first + at * 8) };
            // SAFETY: aligned, and only touched by whole words.
            unsafe { AtomicU64::from_ptr(word.cast()) }.store(0, Ordering::Release);
        }
        for by in 0..self.words.ranks {
            self.word(slot, rank, Word::Done { owner: rank, by }).store(1, Ordering::Release);
        }
    }
}
