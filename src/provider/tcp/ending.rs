//! How peers end: by themselves, by the side band, by a fence, by a close.

use super::ops::Outcome;
use super::peer::State;
use super::push::ROOM_FOR_ANSWERS;
use super::rail::{NONE, Tcp};
use super::socket;
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::fabric::{Completion, DownCause};
use crate::provider::events::Events;
use crate::wire::stream::StreamFrame;

/// How long a peer that has closed, as the side band says, may take until its last bytes are here:
/// they come on another way than its word.
const LAST_BYTES: Span = Span::millis(100);
/// How long the side band has to say that a peer whose stream ended without a goodbye has died, or
/// closed a connection that it never used. The kernel ends the sockets of a dead process within
/// microseconds of each other, but who reads them may wait for a processor.
const LAST_WORD: Span = Span::millis(500);
/// Bytes of a peer that is ending which one poll reads.
const ENDING_BYTES: u64 = 256 << 10;
/// Bytes that a fence or a close hands over at most, of what was staged before.
const PARTING_BYTES: u64 = 1 << 20;

impl Tcp<'_> {
    /// Nothing is sent to the peer any more; what has come is still reported, then the end.
    #[cold]
    pub(super) fn begin_end(&mut self, peer: usize, cause: DownCause, code: i32) {
        let record = &mut self.peers[peer];
        if record.state != State::Open {
            return;
        }
        record.end(cause, code);
        self.endings += 1;
        let domain = self.domain;
        for index in self.streams_of(peer) {
            self.streams[index].out.clear(|region| domain.pin(region, -1));
        }
        self.fail_aside(peer);
    }

    /// The side band says that the peer is gone, and why. It knows better than a stream that has
    /// ended without a goodbye: a connection that its owner never used has none.
    #[cold]
    pub(super) fn end_as_told(&mut self, peer: usize, cause: DownCause) {
        let record = &mut self.peers[peer];
        if record.state == State::Ending && record.is_unsure {
            record.is_unsure = false;
            record.has_until = false;
            let (cause, code) = match cause {
                // a link that broke, too, knows no more than the stream
                DownCause::Broken(_) if record.code != 0 => (record.cause(), record.code),
                _ => (cause, record.code),
            };
            return record.end(cause, code);
        }
        match cause {
            DownCause::Broken(libc::EBADMSG) => self.break_off(peer, cause),
            _ => self.begin_end(peer, cause, 0),
        }
    }

    /// A stream has ended without a goodbye, or broke with the system's code: also a peer that
    /// closes without having read everything, or dies, breaks it. Unless the side band says so in
    /// time, the rail is what failed. A lane's end is reported at once: the others go on, and the
    /// side band's word is about all of them. So is one that a copy thread sees: the data thread
    /// hears the side band.
    #[cold]
    pub(super) fn end_unsure(&mut self, peer: usize, code: i32) {
        if self.peers[peer].state == State::Open {
            self.begin_end(peer, DownCause::Broken(code), code);
            let record = &mut self.peers[peer];
            record.is_unsure = !record.is_lane && !self.is_bulk;
        }
    }

    /// A stream has ended with a goodbye. It counts more than a write that failed before it was
    /// read: who has closed takes nothing.
    #[cold]
    pub(super) fn end_with_goodbye(&mut self, peer: usize) {
        let record = &mut self.peers[peer];
        if record.state == State::Ending && matches!(record.cause(), DownCause::Broken(_)) {
            (record.is_unsure, record.has_until) = (false, false);
            return record.end(DownCause::Closed, 0);
        }
        self.begin_end(peer, DownCause::Closed, 0);
    }

    /// The peer broke the wire format, or its bytes were changed on the way: nothing of it is
    /// looked at any more, and it hears of that from its sockets.
    #[cold]
    pub(super) fn break_off(&mut self, peer: usize, cause: DownCause) {
        self.begin_end(peer, cause, 0);
        for index in self.streams_of(peer) {
            socket::shut(self.streams[index].fd);
            self.stream_close(index);
        }
    }

    pub(super) fn streams_of(&self, peer: usize) -> core::ops::Range<usize> {
        let first = self.stream_index(PeerIndex(peer as u32), 0);
        first..first + self.peers[peer].streams as usize
    }

    /// Goes on with every peer that is ending.
    #[cold]
    pub(super) fn end_peers(&mut self, events: &mut Events) {
        for peer in 0..self.peers.len() {
            let owner = self.scratch.owner;
            if !events.has_room() || owner != NONE {
                return; // what was read comes first
            }
            if self.peers[peer].state == State::Ending && self.has_all(peer, events) {
                self.end_peer(peer, events);
            }
        }
    }

    /// Reads on, and says whether nothing more can come.
    fn has_all(&mut self, peer: usize, events: &mut Events) -> bool {
        let mut all = true;
        for index in self.streams_of(peer) {
            if self.streams[index].is_open {
                all &= self.receive_stream(index, events, &mut ENDING_BYTES.clone());
            }
        }
        let record = &mut self.peers[peer];
        let waits = record.cause() == DownCause::Closed || record.is_unsure;
        if core::mem::take(&mut record.is_fresh) && waits {
            return false; // the next poll is told the time, this one may not have been
        }
        if waits && !record.has_until {
            record.has_until = true;
            let span = if record.is_unsure { LAST_WORD } else { LAST_BYTES };
            record.until = self.now.after(span);
        }
        all &= record.aside.up == 0;
        let early = record.has_until && self.now < record.until;
        let unsure = record.is_unsure;
        let more = unsure || self.streams_of(peer).any(|index| self.streams[index].is_open);
        all && !(early && more)
    }

    fn end_peer(&mut self, peer: usize, events: &mut Events) {
        if !events.has_room() {
            return;
        }
        self.streams_close(peer, Outcome::PeerDown);
        let record = &mut self.peers[peer];
        record.state = State::Down;
        self.endings -= 1;
        let cause = record.cause();
        events.push(Completion::PeerDown { peer: PeerIndex(peer as u32), cause });
    }

    /// Stops all streams, and ends what was accepted.
    fn streams_close(&mut self, peer: usize, outcome: Outcome) {
        let code = self.peers[peer].code;
        for index in self.streams_of(peer) {
            self.stream_close(index);
            let stream = &mut self.streams[index];
            for mut list in
                [core::mem::take(&mut stream.flying), core::mem::take(&mut stream.reads)]
            {
                while let Some(op) = self.ops.take_first(&mut list) {
                    let entry = self.ops.get(op);
                    if entry.outcome == Outcome::Success {
                        (entry.outcome, entry.code) = (outcome, code);
                    }
                    if let Some(region) = entry.pin.checked_sub(1) {
                        self.domain.pin(region, -1);
                    }
                    self.ops.finish(op);
                }
            }
        }
    }

    /// Says goodbye behind what was staged, and hands over what the kernel takes of that.
    fn part(&mut self, peer: usize) {
        if !self.peers[peer].takes_ops() {
            return;
        }
        for index in self.streams_of(peer) {
            self.flush_stream(index, &mut PARTING_BYTES.clone());
            if !self.peers[peer].takes_ops() {
                return;
            }
            if self.streams[index].out.has_room(ROOM_FOR_ANSWERS) {
                self.stage(index, &StreamFrame::Bye);
            }
            self.flush_stream(index, &mut PARTING_BYTES.clone());
        }
    }

    /// Nothing of this peer moves here any more, either way, when this returns: only our own calls
    /// move anything, and there will be none.
    pub(super) fn fence(&mut self, peer: usize) {
        self.part(peer);
        for index in self.streams_of(peer) {
            if self.streams[index].is_open {
                socket::shut(self.streams[index].fd);
            }
        }
        self.streams_close(peer, Outcome::Canceled);
        self.peers[peer].is_fenced = true;
        self.fence_aside(peer);
    }

    /// Gives back what a forgotten peer has sent.
    pub(super) fn discard(&mut self, peer: usize) {
        let record = &mut self.peers[peer];
        (record.held, record.long_held, record.in_scratch) = (0, 0, 0);
        self.area.release(peer);
    }

    /// Forgets a peer without ops in flight, but for what it has sent.
    pub(super) fn forget(&mut self, peer: usize) {
        self.part(peer);
        self.streams_close(peer, Outcome::Canceled);
        if self.peers[peer].state == State::Ending {
            self.endings -= 1;
        }
        if self.scratch.holder == peer as u32 {
            let Tcp { peers, area, .. } = self;
            peers[peer].evacuate(area, peer);
            self.scratch.holder = NONE;
        }
        if self.has_helpers() {
            self.close_aside(peer);
        }
        self.peers[peer].state = State::Closed;
        // one that threads still let go of is polled for until they have
        self.peers_open -= u32::from(self.peers[peer].aside.closing == 0);
    }
}
