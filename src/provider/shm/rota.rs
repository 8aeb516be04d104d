//! In which order peers are polled when there are many: the busy ones always, the others in turn.
#![forbid(unsafe_code)]

/// Peers that every poll looks at; with no more than these open, it looks at all.
pub const HOT_MAX: usize = 16;
/// Further peers that one poll looks at.
pub const COLD_BATCH: usize = 16;

/// A dense list of open peers: the hot ones first.
#[derive(Debug)]
pub struct Rota<'m> {
    list: &'m mut [u32],
    count: usize,
    /// Where the next poll starts among the hot ones, so that none starves when completions
    /// outnumber the caller's slots.
    first: usize,
    cold_next: usize,
    victim: usize,
}

impl<'m> Rota<'m> {
    /// An empty list over storage for all peers.
    pub fn new(list: &'m mut [u32]) -> Rota<'m> {
        Rota { list, count: 0, first: 0, cold_next: 0, victim: 0 }
    }

    /// Puts a peer in.
    pub fn insert(&mut self, peer: u32) {
        self.list[self.count] = peer;
        self.count += 1;
    }

    /// Takes a peer out. *Cost*: a walk.
    pub fn remove(&mut self, peer: u32) {
        let found = self.list[..self.count].iter().position(|other| *other == peer);
        let at = found.expect("an open peer is in the list");
        self.count -= 1;
        let hot = HOT_MAX.min(self.count);
        // A hot place is filled from the last hot one, so that the hot ones stay hot.
        if at < hot {
            self.list[at] = self.list[hot];
            self.list[hot] = self.list[self.count];
        } else {
            self.list[at] = self.list[self.count];
        }
    }

    /// All peers in it.
    pub fn all(&self) -> &[u32] {
        &self.list[..self.count]
    }

    /// How many the next poll looks at, as places for [`Rota::at`].
    #[inline(always)]
    pub fn turns(&self) -> usize {
        if self.count <= HOT_MAX { self.count } else { HOT_MAX + self.cold().min(COLD_BATCH) }
    }

    /// The place of a turn, and the peer that stands there.
    #[inline(always)]
    pub fn at(&self, turn: usize) -> (usize, u32) {
        let hot = HOT_MAX.min(self.count);
        let place = if turn < hot {
            wrap(self.first + turn, hot)
        } else {
            hot + wrap(self.cold_next + turn - hot, self.cold())
        };
        (place, self.list[place])
    }

    /// Ends a poll after `turns` turns.
    #[inline(always)]
    pub fn end(&mut self, turns: usize) {
        let hot = HOT_MAX.min(self.count);
        if turns < hot {
            self.first = wrap(self.first + turns, hot);
        } else if self.count > HOT_MAX {
            self.cold_next = wrap(self.cold_next + turns - hot, self.cold());
        }
    }

    /// The peer at `place` was busy: if it was cold, it changes places with a hot one.
    #[inline(always)]
    pub fn busy(&mut self, place: usize) {
        if place >= HOT_MAX {
            self.list.swap(place, self.victim);
            self.victim = wrap(self.victim + 1, HOT_MAX);
        }
    }

    fn cold(&self) -> usize {
        self.count.saturating_sub(HOT_MAX)
    }
}

/// `place` modulo `count`, for places below twice the count and counts that may have shrunk.
#[inline(always)]
fn wrap(place: usize, count: usize) -> usize {
    let mut place = place;
    while place >= count {
        place -= count;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn poll(rota: &mut Rota, busy: &[u32]) -> Vec<u32> {
        let turns = rota.turns();
        let mut seen = Vec::new();
        for turn in 0..turns {
            let (place, peer) = rota.at(turn);
            seen.push(peer);
            if busy.contains(&peer) {
                rota.busy(place);
            }
        }
        rota.end(turns);
        seen
    }

    #[test]
    fn busy_peers_are_seen_always_and_all_others_in_turn() {
        let mut storage = [0u32; 100];
        let mut rota = Rota::new(&mut storage);
        for peer in 0..100 {
            rota.insert(peer);
        }
        let mut seen = BTreeSet::new();
        for _ in 0..8 {
            seen.extend(poll(&mut rota, &[77]));
        }
        assert_eq!(seen.len(), 100);
        for _ in 0..20 {
            assert!(poll(&mut rota, &[77]).contains(&77));
        }
        for peer in (0..100).rev().step_by(3) {
            rota.remove(peer);
        }
        let left: BTreeSet<u32> = rota.all().iter().copied().collect();
        assert_eq!(left.len(), 66);
        assert!(left.iter().all(|peer| (99 - peer) % 3 != 0));
    }

    #[test]
    fn short_polls_reach_every_hot_peer() {
        let mut storage = [0u32; 4];
        let mut rota = Rota::new(&mut storage);
        for peer in 0..4 {
            rota.insert(peer);
        }
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(rota.at(0).1);
            rota.end(1);
        }
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}
