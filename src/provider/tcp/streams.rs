//! All streams of a rail: which are open, which have something to send, and which are watched.
//!
//! A watched socket costs at every packet. So few streams are read in turn without asking, and
//! watched only while somebody sleeps over them.
#![forbid(unsafe_code)]

use super::socket::{READY_MAX, Ready, Watch};
use super::stream::{Payload, Stream};
use super::{Limits, NONE};
use crate::memory::Errno;
use crate::provider::fifo::Fifo;
use crate::provider::host_domain::HostDomain;
use core::ops::{Index, IndexMut};

/// Up to so many streams are read without asking first which of them have something.
const DIRECT_MAX: usize = 2;
/// Polls in a row after which whoever slept is taken to be busy.
const POLLS_AWAKE: u32 = 256;

/// The streams, by number: those of one peer stand side by side.
#[derive(Debug)]
pub struct Streams<'m> {
    records: &'m mut [Stream],
    /// Of one peer.
    per_peer: usize,
    /// Those with something to send.
    dirty: Fifo<'m, u32>,
    /// Those in use, the first `open_count`.
    open: &'m mut [u32],
    open_count: usize,
    /// The one that the next poll alone reads; [`NONE`]: all.
    only: u32,
    /// Which of them is read first, where they are read in turn.
    first_read: u32,
    /// Whether a read has left something with the kernel since all of it was taken.
    has_peeked: bool,
    watch: Watch,
    /// Whether the open streams are watched.
    is_watching: bool,
    /// Polls since somebody slept over the watched streams.
    polls_awake: u32,
    /// What the last look at the watched ones gave, and how far it was acted on.
    ready: [Ready; READY_MAX],
    ready_at: usize,
    ready_count: usize,
}

impl Index<usize> for Streams<'_> {
    type Output = Stream;

    #[inline(always)]
    fn index(&self, index: usize) -> &Stream {
        &self.records[index]
    }
}

impl IndexMut<usize> for Streams<'_> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut Stream {
        &mut self.records[index]
    }
}

impl<'m> Streams<'m> {
    /// None is open. `dirty` has a power of two of places, and room for all.
    pub fn new(
        limits: &Limits,
        records: &'m mut [Stream],
        dirty: &'m mut [u32],
        open: &'m mut [u32],
    ) -> Result<Streams<'m>, Errno> {
        Ok(Streams {
            records,
            per_peer: limits.streams as usize,
            dirty: Fifo::new(dirty),
            open,
            open_count: 0,
            only: NONE,
            first_read: 0,
            has_peeked: false,
            watch: Watch::create()?,
            is_watching: false,
            polls_awake: 0,
            ready: [Ready { stream: NONE, readable: false, writable: false }; READY_MAX],
            ready_at: 0,
            ready_count: 0,
        })
    }

    /// What tells of the watched ones.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The number of a peer's first stream.
    #[inline(always)]
    pub fn first_of(&self, peer: usize) -> usize {
        peer * self.per_peer
    }

    /// The peer whose stream that is, and which of its streams.
    #[inline]
    pub fn peer_of(&self, index: usize) -> (usize, usize) {
        let streams = self.per_peer;
        if streams == 1 { (index, 0) } else { (index / streams, index % streams) }
    }

    /// The only open one, if there is one alone, and it is not watched.
    #[inline]
    pub fn single(&self) -> Option<usize> {
        (self.open_count == 1 && !self.is_watching).then(|| self.open[0] as usize)
    }

    /// Has a peer's sockets watched, if the others are. Refused: none of them is.
    pub fn watch_added(&self, first: usize, fds: &[i32]) -> Result<(), Errno> {
        if !self.is_watching {
            return Ok(());
        }
        for (n, fd) in fds.iter().enumerate() {
            let added = self.watch.add(*fd, (first + n) as u32);
            added.inspect_err(|_| fds[..n].iter().for_each(|fd| self.watch.remove(*fd)))?;
        }
        Ok(())
    }

    /// Takes one into use. It may be in the list of those with something to send from an earlier
    /// use.
    pub fn add(&mut self, index: usize, stream: Stream) {
        let is_dirty = self.records[index].is_dirty;
        self.records[index] = Stream { is_dirty, ..stream };
        self.open[self.open_count] = index as u32;
        self.open_count += 1;
    }

    /// Stops reading and writing one for good; gives back what had come in part. What was peeked at
    /// is taken out of its socket, which is not touched again.
    pub fn close(&mut self, index: usize, domain: &HostDomain<'_>) -> Payload {
        let stream = &mut self.records[index];
        if !stream.is_open {
            return Payload::default();
        }
        let cut_off = stream.close(domain);
        self.watch.remove(stream.fd);
        let open = &mut self.open[..self.open_count];
        if let Some(at) = open.iter().position(|open| *open == index as u32) {
            open[at] = open[open.len() - 1];
            self.open_count -= 1;
            // those that are left may be so few that they are read without asking
            if self.open_count == DIRECT_MAX && self.is_watching {
                self.ask_nobody();
            }
        }
        cut_off
    }

    /// Puts one among those with something to send.
    #[inline]
    pub fn mark_dirty(&mut self, index: usize) {
        let stream = &mut self.records[index];
        if !stream.is_dirty {
            stream.is_dirty = true;
            self.dirty.push(index as u32);
        }
    }

    /// How many have something to send.
    #[inline(always)]
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Takes the next one with something to send out of their list.
    #[inline]
    pub fn take_dirty(&mut self) -> Option<usize> {
        let index = self.dirty.pop()? as usize;
        self.records[index].is_dirty = false;
        Some(index)
    }

    /// What one has to send waits for room.
    #[inline]
    pub fn waits(&mut self, index: usize) {
        if self.records[index].is_blocked && !self.reads_directly() {
            self.want_room(index);
        } else {
            self.mark_dirty(index);
        }
    }

    /// Has the next poll read this one alone, unless it waits for room: that it has some again is
    /// seen where all are asked.
    #[inline]
    pub fn read_only(&mut self, index: usize) {
        let stream = &self.records[index];
        if stream.is_open && !stream.wants_room {
            self.only = index as u32;
        }
    }

    /// The one that is to be read alone, once.
    #[inline]
    pub fn take_only(&mut self) -> Option<usize> {
        let only = core::mem::replace(&mut self.only, NONE);
        (only != NONE).then_some(only as usize)
    }

    /// The stream that is read next: its number, and a number to ask with for the one after it.
    /// `None`: each that may have something had its turn.
    #[inline]
    pub fn next_readable(&mut self, turn: &mut usize) -> Option<usize> {
        if self.reads_directly() {
            if *turn >= self.open_count {
                return None;
            }
            // others may have closed since
            let first = self.first_read as usize;
            let at = if first < self.open_count { first + *turn } else { *turn };
            let at = if at < self.open_count { at } else { at - self.open_count };
            *turn += 1;
            return self.open[..self.open_count].get(at).map(|index| *index as usize);
        }
        loop {
            if self.ready_at == self.ready_count {
                if *turn > 0 {
                    return None;
                }
                *turn += 1;
                self.ready_count = self.watch.look(&mut self.ready);
                self.ready_at = 0;
                if self.ready_count == 0 {
                    return None;
                }
            }
            let ready = self.ready[self.ready_at];
            self.ready_at += 1;
            let index = ready.stream as usize;
            if ready.stream == NONE {
                continue; // a copy thread has rung
            }
            if ready.writable && self.records[index].is_open {
                self.mark_dirty(index);
            }
            if ready.readable && self.records[index].is_open {
                return Some(index);
            }
        }
    }

    /// So many had their turn: one that has more than a poll takes must not keep the others from
    /// being read.
    #[inline]
    pub fn turns_end(&mut self, turns: usize) {
        let next = self.first_read as usize + turns;
        self.first_read = (next % self.open_count.max(1)) as u32;
    }

    /// A read has left something with the kernel, if it `peeks`.
    #[inline(always)]
    pub fn note_peek(&mut self, peeks: bool) {
        self.has_peeked |= peeks;
    }

    /// Takes what was peeked at on all streams; says whether it was there.
    pub fn peeked_take_all(&mut self) -> bool {
        if !core::mem::take(&mut self.has_peeked) {
            return true;
        }
        let mut all = true;
        for index in &self.open[..self.open_count] {
            let Stream { peeked, fd, .. } = &mut self.records[*index as usize];
            all &= !peeked.is_due() || peeked.take(*fd);
        }
        all
    }

    /// Whether every stream is read, without asking which has something: there are few, or they
    /// could not be watched.
    #[inline]
    fn reads_directly(&self) -> bool {
        self.open_count <= DIRECT_MAX || !self.is_watching
    }

    /// Has the wait descriptor tell of everything that a poll would find. `false`: something is
    /// there already.
    pub fn arm(&mut self) -> bool {
        if !self.watch_all() {
            return false;
        }
        self.polls_awake = 0;
        if !self.peeked_take_all() {
            return false;
        }
        for n in 0..self.dirty.len() {
            let index = *self.dirty.at_mut(n) as usize;
            if !self.records[index].is_blocked {
                return false;
            }
            self.want_room(index);
        }
        true
    }

    /// Whether the watched ones have nothing.
    pub fn are_quiet(&mut self) -> bool {
        self.ready_at == self.ready_count && self.watch.look(&mut self.ready) == 0
    }

    /// Many streams are watched all the time. Where the kernel refuses, they are read in turn, and
    /// the next one to be opened tries again.
    pub fn watch_many(&mut self) {
        if self.open_count > DIRECT_MAX {
            let _ = self.watch_all();
        }
    }

    /// Watches all open streams; `false`: the kernel refused, and none is.
    fn watch_all(&mut self) -> bool {
        if self.is_watching {
            return true;
        }
        for (n, index) in self.open[..self.open_count].iter().enumerate() {
            if self.watch.add(self.records[*index as usize].fd, *index).is_err() {
                self.unwatch(n);
                return false;
            }
        }
        self.is_watching = true;
        true
    }

    /// Whether nobody has slept over the streams for a while.
    #[inline]
    pub fn are_awake(&self) -> bool {
        !self.is_watching || self.polls_awake > POLLS_AWAKE
    }

    /// Counts a poll while streams are watched.
    #[inline(always)]
    pub fn note_poll(&mut self) {
        if self.is_watching {
            self.poll_awake();
        }
    }

    /// When they are few, and nobody has slept for a while, they need not be watched.
    #[cold]
    fn poll_awake(&mut self) {
        self.polls_awake = self.polls_awake.saturating_add(1);
        if self.open_count <= DIRECT_MAX && self.are_awake() {
            self.unwatch(self.open_count);
            (self.ready_at, self.ready_count) = (0, 0);
        }
    }

    /// Forgets the first `count` open streams.
    fn unwatch(&mut self, count: usize) {
        self.ask_nobody();
        for index in &self.open[..count] {
            self.watch.remove(self.records[*index as usize].fd);
        }
        self.is_watching = false;
    }

    /// From now on streams are not asked whether they have room: whoever waits for it tries again.
    fn ask_nobody(&mut self) {
        for n in 0..self.open_count {
            let index = self.open[n] as usize;
            if self.want_no_room(index) {
                self.mark_dirty(index);
            }
        }
    }

    /// Has the wait descriptor tell when the stream, which is watched, has room.
    fn want_room(&mut self, index: usize) {
        let stream = &mut self.records[index];
        if !stream.wants_room {
            stream.wants_room = true;
            self.watch.writable(stream.fd, index as u32, true);
        }
    }

    /// The opposite; says whether it was wanted.
    #[inline]
    pub fn want_no_room(&mut self, index: usize) -> bool {
        let stream = &mut self.records[index];
        let was_wanted = core::mem::take(&mut stream.wants_room);
        if was_wanted {
            self.watch.writable(stream.fd, index as u32, false);
        }
        was_wanted
    }
}

impl Drop for Streams<'_> {
    /// The kernel resets the peer of a socket that is closed with something unread, and drops what
    /// was sent to it and has not arrived.
    fn drop(&mut self) {
        self.peeked_take_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::carve::Zeroable;

    #[test]
    fn open_streams_have_their_turns_from_the_one_behind_the_last() {
        let mut records = [(); 4].map(|()| Stream::zeroed());
        let (mut dirty, mut open) = ([0; 4], [0; 4]);
        let limits = Limits { peers_max: 2, ops_max: 8, streams: 2, lanes: 1 };
        let mut streams = Streams::new(&limits, &mut records, &mut dirty, &mut open).unwrap();
        assert_eq!((streams.first_of(1), streams.peer_of(3), streams.single()), (2, (1, 1), None));
        streams.add(3, Stream { fd: -1, is_open: true, ..Stream::zeroed() });
        assert_eq!(streams.single(), Some(3));
        streams.add(0, Stream { fd: -1, is_open: true, ..Stream::zeroed() });
        for (turns, first) in [(1, 3), (1, 0), (2, 3)] {
            let mut turn = 0;
            assert_eq!(streams.next_readable(&mut turn), Some(first));
            streams.turns_end(turns);
        }
        streams.mark_dirty(0);
        streams.mark_dirty(0);
        assert_eq!((streams.take_dirty(), streams.take_dirty()), (Some(0), None));
        streams.read_only(0);
        assert_eq!((streams.take_only(), streams.take_only()), (Some(0), None));
    }
}
