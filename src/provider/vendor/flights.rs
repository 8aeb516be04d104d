//! Ops that a vendor has taken and not ended: what its completions are held against.
//!
//! The vendor is told a name of ours, the op's place in a table and how often that place was used,
//! and the poster's name stays here. A completion of anything but an op that is in flight to the
//! peer it names is so found by an index and a comparison, before anybody acts on it.

use crate::base::carve::{BlockTooSmall, Carver, Zeroable, bytes_for};
use crate::base::ids::PeerIndex;
#[cfg(feature = "std")]
use crate::base::ids::RailGeneration;
use crate::base::sync::AtomicU32;
use crate::fabric::OpId;

/// A place of the table. Zeroed: it was never used.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
struct Flight {
    /// The poster's name for the op.
    id: OpId,
    /// How often it was used, above the two bits of [`Kind`].
    mark: u32,
    /// The generation of a fence; of a free place the next free one, as index in the peer's part
    /// plus one.
    word: u32,
}

// SAFETY: integers; zero is a place that was never used.
unsafe impl Zeroable for Flight {}

/// One peer's part.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
struct Head {
    /// The first free place, as index in the part plus one.
    free: u32,
    in_flight: u32,
    /// 1: open.
    is_open: u32,
}

// SAFETY: integers; zero is a peer that is closed.
unsafe impl Zeroable for Head {}

/// What is in a place, as the low bits of its mark; 0: nothing.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    Op = 1,
    Fence = 2,
}

const KIND_BITS: u32 = 3;
const USE: u32 = KIND_BITS + 1;

/// What is in flight, for all peers, and what other threads must know of the object.
#[derive(Debug)]
pub struct Flights<'m> {
    flights: &'m mut [Flight],
    heads: &'m mut [Head],
    /// Threads that are registering memory; see [`super::gate`].
    pub(super) gate: &'m AtomicU32,
    ops_max: u32,
}

/// Bytes that [`Flights::carve`] cuts.
pub const fn bytes(peers_max: u32, ops_max: u32) -> usize {
    bytes_for::<Flight>(peers_max as usize * ops_max as usize)
        + bytes_for::<Head>(peers_max as usize)
        + bytes_for::<AtomicU32>(1)
}

impl<'m> Flights<'m> {
    /// A table for so many ops of each of so many peers, one of them a fence.
    pub fn carve(
        block: &mut Carver<'m>,
        peers_max: u32,
        ops_max: u32,
    ) -> Result<Flights<'m>, BlockTooSmall> {
        let flights = block.slice(peers_max as usize * ops_max as usize)?;
        let heads = block.slice(peers_max as usize)?;
        let gate: &'m [AtomicU32] = block.slice(1)?;
        Ok(Flights { flights, heads, gate: &gate[0], ops_max })
    }

    pub(super) fn peers_max(&self) -> u32 {
        self.heads.len() as u32
    }

    pub(super) fn is_open(&self, peer: PeerIndex) -> bool {
        self.heads.get(peer.as_usize()).is_some_and(|head| head.is_open != 0)
    }

    #[cfg(feature = "std")]
    pub(super) fn in_flight(&self, peer: PeerIndex) -> u32 {
        self.heads.get(peer.as_usize()).map_or(0, |head| head.in_flight)
    }

    /// Nothing is in flight to a peer, which is open from now on.
    pub(super) fn open(&mut self, peer: PeerIndex) {
        let ops_max = self.ops_max as usize;
        let part = &mut self.flights[peer.as_usize() * ops_max..][..ops_max];
        for (at, flight) in part.iter_mut().enumerate() {
            flight.mark = (flight.mark | KIND_BITS).wrapping_add(1);
            flight.word = if at + 1 < ops_max { at as u32 + 2 } else { 0 };
        }
        self.heads[peer.as_usize()] = Head { free: 1, in_flight: 0, is_open: 1 };
    }

    /// What is in flight to a peer is forgotten.
    pub(super) fn close(&mut self, peer: PeerIndex) {
        if let Some(head) = self.heads.get_mut(peer.as_usize()) {
            (head.is_open, head.free, head.in_flight) = (0, 0, 0);
        }
    }

    /// A place for an op to an open peer; `None`: all are taken, but for the last, which is kept
    /// for a fence.
    #[inline]
    pub(super) fn place(&self, peer: PeerIndex, kind: Kind) -> Option<u32> {
        let first = self.heads[peer.as_usize()].free.checked_sub(1)?;
        let place = peer.0 * self.ops_max + first;
        let is_last = self.flights[place as usize].word == 0;
        (kind == Kind::Fence || !is_last).then_some(place)
    }

    /// What the vendor is to call the op that takes a place.
    #[inline]
    pub(super) fn name(&self, place: u32, kind: Kind) -> u64 {
        u64::from(self.flights[place as usize].mark | kind as u32) << 32 | u64::from(place)
    }

    /// The vendor has taken the op.
    #[inline]
    pub(super) fn take(&mut self, peer: PeerIndex, place: u32, kind: Kind, id: OpId, word: u32) {
        let flight = &mut self.flights[place as usize];
        let head = &mut self.heads[peer.as_usize()];
        head.free = flight.word;
        head.in_flight += 1;
        *flight = Flight { id, mark: flight.mark | kind as u32, word };
    }

    /// The op is complete already: its name comes back no more.
    #[inline]
    pub(super) fn skip(&mut self, place: u32) {
        let flight = &mut self.flights[place as usize];
        flight.mark = flight.mark.wrapping_add(USE);
    }

    /// The op of that name to that peer ends; `None`: none of that kind is in flight.
    #[inline]
    pub(super) fn end(&mut self, peer: PeerIndex, name: u64, kind: Kind) -> Option<(OpId, u32)> {
        let place = name as u32;
        let flight = self.flights.get(place as usize)?;
        let is_it = flight.mark == (name >> 32) as u32
            && flight.mark & KIND_BITS == kind as u32
            && place / self.ops_max == peer.0
            && self.is_open(peer);
        is_it.then(|| self.free(peer, place))
    }

    fn free(&mut self, peer: PeerIndex, place: u32) -> (OpId, u32) {
        let head = &mut self.heads[peer.as_usize()];
        let flight = &mut self.flights[place as usize];
        let ended = (flight.id, flight.word);
        flight.mark = (flight.mark | KIND_BITS).wrapping_add(1);
        flight.word = head.free;
        head.free = place - peer.0 * self.ops_max + 1;
        head.in_flight -= 1;
        ended
    }

    /// Takes out one of what is in flight to a peer, fences last: an op's name, or a fence's and
    /// its generation.
    #[cfg(feature = "std")]
    #[cold]
    pub(super) fn drain(&mut self, peer: PeerIndex) -> Option<(OpId, Option<RailGeneration>)> {
        if self.in_flight(peer) == 0 {
            return None;
        }
        let first = peer.0 * self.ops_max;
        let of = |kind: Kind| {
            let is_it = |place: &u32| self.flights[*place as usize].mark & KIND_BITS == kind as u32;
            (first..first + self.ops_max).find(is_it)
        };
        let (place, is_fence) = match of(Kind::Op) {
            Some(place) => (place, false),
            None => (of(Kind::Fence)?, true),
        };
        let (id, word) = self.free(peer, place);
        Some((id, is_fence.then_some(RailGeneration(word))))
    }
}
