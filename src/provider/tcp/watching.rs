//! Which streams are watched, and when: a watched socket costs at every packet, so that few streams
//! are read in turn without asking, and watched only while somebody sleeps over them.

use super::rail::{NONE, Tcp};
use crate::base::units::Bytes;
use crate::memory::Errno;

/// Up to so many streams are read without asking first which of them have something.
const DIRECT_MAX: usize = 2;
/// Polls in a row after which whoever slept is taken to be busy.
const POLLS_AWAKE: u32 = 256;

impl Tcp<'_> {
    /// Whether every stream is read, without asking which has something: there are few, or they
    /// could not be watched.
    #[inline]
    pub(super) fn reads_directly(&self) -> bool {
        self.open_count <= DIRECT_MAX || !self.is_watching
    }

    /// Hands over what is staged, and makes ready for sleep. `false`: something is there already.
    pub fn arm(&mut self) -> bool {
        self.flush_dirty(&mut Bytes::mib(1).0);
        if core::mem::take(&mut self.starved) && self.drained {
            return false; // what found no room may find it now
        }
        if self.has_helpers() && !self.arm_aside() {
            return false;
        }
        if !self.watch_all() {
            return false;
        }
        self.polls_awake = 0;
        if !self.peeked_take_all() {
            return false;
        }
        for n in 0..self.dirty.len() {
            let index = *self.dirty.at_mut(n) as usize;
            if !self.streams[index].is_blocked {
                return false;
            }
            self.want_room(index);
        }
        self.ops.none_done()
            && self.scratch.owner == NONE
            && self.endings == 0
            && self.ready_at == self.ready_count
            && self.watch.look(&mut self.ready) == 0
    }

    /// Watches a stream that is about to be open, if the others are.
    pub(super) fn watch_one(&self, fd: i32, index: usize) -> Result<(), Errno> {
        if self.is_watching { self.watch.add(fd, index as u32) } else { Ok(()) }
    }

    /// Many streams are watched all the time. Where the kernel refuses, they are read in turn, and
    /// the next one to be opened tries again.
    pub(super) fn watch_many(&mut self) {
        if self.open_count > DIRECT_MAX {
            let _ = self.watch_all();
        }
    }

    /// Watches all open streams; `false`: the kernel refused, and none is.
    pub(super) fn watch_all(&mut self) -> bool {
        if self.is_watching {
            return true;
        }
        for n in 0..self.open_count {
            let index = self.open_stream(n);
            if self.watch.add(self.streams[index].fd, index as u32).is_err() {
                self.unwatch(n);
                return false;
            }
        }
        self.is_watching = true;
        true
    }

    /// Whether nobody has slept over the streams for a while.
    #[inline]
    pub(super) fn is_awake(&self) -> bool {
        !self.is_watching || self.polls_awake > POLLS_AWAKE
    }

    /// Counts a poll while streams are watched: when they are few, and nobody has slept for a
    /// while, they need not be.
    #[cold]
    pub(super) fn poll_awake(&mut self) {
        self.polls_awake = self.polls_awake.saturating_add(1);
        if self.open_count <= DIRECT_MAX && self.is_awake() {
            self.unwatch(self.open_count);
            (self.ready_at, self.ready_count) = (0, 0);
        }
    }

    /// Forgets the first `count` open streams.
    fn unwatch(&mut self, count: usize) {
        self.ask_nobody();
        for n in 0..count {
            self.watch.remove(self.streams[self.open_stream(n)].fd);
        }
        self.is_watching = false;
    }

    /// A stream has closed: those that are left may be so few that they are read without asking.
    pub(super) fn one_less(&mut self) {
        if self.open_count == DIRECT_MAX && self.is_watching {
            self.ask_nobody();
        }
    }

    /// From now on streams are not asked whether they have room: whoever waits for it tries again.
    fn ask_nobody(&mut self) {
        for n in 0..self.open_count {
            let index = self.open_stream(n);
            if self.streams[index].wants_room {
                self.want_no_room(index);
                self.mark_dirty(index);
            }
        }
    }

    /// Has the wait descriptor tell when the stream, which is watched, has room.
    pub(super) fn want_room(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if !stream.wants_room {
            stream.wants_room = true;
            self.watch.writable(stream.fd, index as u32, true);
        }
    }

    /// The opposite.
    pub(super) fn want_no_room(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if stream.wants_room {
            stream.wants_room = false;
            self.watch.writable(stream.fd, index as u32, false);
        }
    }
}
