//! The rail's storage: opening it, opening peers, and the lists that say where work is.

use super::area::{Area, SCRATCH_AT};
use super::helpers::Helpers;
use super::ops::{Entry, Ops, Outcome};
use super::peek::Peeked;
use super::peer::{Peer, State};
use super::scratch::Scratch;
use super::stream::{ROOM_FOR_ANSWERS, Stream, To};
use super::streams::Streams;
use super::threads::{Command, Event};
use super::{Limits, NONE, OpenError, PeerOpenError, STREAMS_MAX, Settings, THREADS_MAX, socket};
use crate::base::carve::{Carver, Zeroable, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{Completion, DownCause, OpError};
use crate::memory::Errno;
use crate::provider::events::Events;
use crate::provider::host_domain::HostDomain;
use crate::provider::notes::{Note, Notes};
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

// SAFETY: integers and enums in which zero is a value; nothing is owned.
unsafe impl Zeroable for Entry {}

/// Bytes that [`Tcp::open`] cuts.
pub const fn bytes(limits: &Limits) -> usize {
    let streams = limits.peers_max as usize * limits.streams as usize;
    bytes_for::<Peer>(limits.peers_max as usize)
        + bytes_for::<Stream>(streams)
        + bytes_for::<Entry>(limits.ops_max as usize)
        + bytes_for::<u32>(streams.next_power_of_two())
        + bytes_for::<u32>(streams)
}

/// What the rail keeps, and the sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 3] = [
    ("tcp peer", size_of::<Peer>()),
    ("tcp stream", size_of::<Stream>()),
    ("tcp op", size_of::<Entry>()),
];

/// The TCP rail of one endpoint.
#[derive(Debug)]
pub struct Tcp<'m> {
    pub(super) domain: HostDomain<'m>,
    pub(super) limits: Limits,
    /// [`Settings::call_bytes`].
    pub(super) call_bytes: u64,
    pub(super) streams: Streams<'m>,
    pub(super) peers: &'m mut [Peer],
    pub(super) ops: Ops<'m>,
    pub(super) peers_open: u32,
    pub(super) area: Area,
    pub(super) scratch: Scratch,
    /// Peers that are ending.
    pub(super) endings: u32,
    pub(super) now: Instant,
    /// Whether anything was sent or received since somebody asked.
    pub(super) moved: bool,
    /// Whether an op was refused for want of room since the user was about to sleep.
    pub(super) starved: bool,
    /// Whether bytes have left since the last op that was refused.
    pub(super) drained: bool,
    /// Whether it is that of a copy thread, which moves long writes alone.
    pub(super) is_bulk: bool,
    pub(super) helpers: Helpers,
}

// SAFETY: the pointers of its records lead into the reserve that it owns.
unsafe impl Send for Tcp<'_> {}

impl<'m> Tcp<'m> {
    /// Takes notes from now on; a peer that sends one before has broken the format.
    pub fn notes_accept(&mut self) {
        self.area.notes = Notes::accepted((self.limits.peers_max * self.limits.streams) as usize);
    }

    /// Whether notes have come.
    #[inline(always)]
    pub fn has_notes(&self) -> bool {
        !self.area.notes.is_empty()
    }

    /// The oldest note that came, and from whom.
    pub fn note_take(&mut self) -> Option<(PeerIndex, Note)> {
        self.area.notes.take()
    }

    /// Cuts a rail out of `block`. `domain` may share its table with another rail.
    ///
    /// # Safety
    /// - with copy threads (`settings.threads`), the memory of `domain` stays valid until the rail
    ///   was dropped, which ends them: not only as long as it is borrowed.
    pub unsafe fn open(
        block: &mut Carver<'m>,
        limits: &Limits,
        domain: HostDomain<'m>,
        settings: Settings,
    ) -> Result<Tcp<'m>, OpenError> {
        let fits = (1..=STREAMS_MAX as u32).contains(&limits.streams);
        if !fits || limits.peers_max == 0 || limits.lanes == 0 || settings.threads >= limits.streams
        {
            return Err(OpenError::Settings);
        }
        let count = limits.peers_max as usize * limits.streams as usize;
        let peers = block.slice::<Peer>(limits.peers_max as usize)?;
        let streams = block.slice::<Stream>(count)?;
        let ops = Ops::new(block.slice::<Entry>(limits.ops_max as usize)?);
        let dirty = block.slice::<u32>(count.next_power_of_two())?;
        let open = block.slice::<u32>(count)?;
        let streams = Streams::new(limits, streams, dirty, open)
            .map_err(|errno| OpenError::System(errno.0))?;
        let area = Area::create(limits).map_err(OpenError::System)?;
        // SAFETY: the buffer's part of the reserve, which the rail owns, behind the room for starts
        // of frames.
        let scratch = unsafe { Scratch::new(area.scratch().add(SCRATCH_AT)) };
        Ok(Tcp {
            domain,
            limits: *limits,
            call_bytes: settings.call_bytes.0,
            streams,
            peers,
            ops,
            peers_open: 0,
            area,
            scratch,
            endings: 0,
            now: Instant(0),
            moved: false,
            starved: false,
            drained: false,
            is_bulk: false,
            helpers: Helpers::new(&settings)?,
        })
    }

    /// What kept the copy threads from starting, or from having the streams of a peer, which the
    /// thread that polls moves then; told once.
    pub fn threads_refused(&mut self) -> Option<Errno> {
        self.helpers.refused()
    }

    /// Whether what is long goes to a peer on one stream.
    pub fn is_single_stream(&self, peer: PeerIndex) -> bool {
        let record = &self.peers[peer.as_usize()];
        record.streams == 1 && !record.aside.is_used()
    }

    /// Takes a peer into use, over connected sockets of which the first carries sends and lines.
    /// They stay the caller's, who closes them after [`crate::fabric::PeerLife::peer_close`].
    pub fn peer_open(&mut self, peer: PeerIndex, fds: &[i32]) -> Result<(), PeerOpenError> {
        self.peer_open_with(peer, fds, false)
    }

    /// The same with sums behind headers and payloads, as both sides have agreed (W9.1), or
    /// without.
    pub fn peer_open_with(
        &mut self,
        peer: PeerIndex,
        fds: &[i32],
        sums: bool,
    ) -> Result<(), PeerOpenError> {
        match self.peers.get(peer.as_usize()) {
            Some(record) if record.state == State::Closed => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        if fds.is_empty() || fds.len() > self.limits.streams as usize {
            return Err(PeerOpenError::Streams);
        }
        // SAFETY: the contract of `open`.
        unsafe { self.helpers.start(&self.limits, self.streams.watch(), self.domain) };
        if self.peers[peer.as_usize()].aside.is_closing() {
            return Err(PeerOpenError::Again);
        }
        let (fds, aside) = self.helpers.divided(fds);
        for fd in fds {
            socket::without_delay(*fd);
            socket::unpaced_within_host(*fd);
        }
        let first = self.streams.first_of(peer.as_usize());
        self.streams.watch_added(first, fds).map_err(|errno| {
            aside.close();
            PeerOpenError::System(errno.0)
        })?;
        let aside = self.helpers.open(peer, &aside, sums);
        let record = &mut self.peers[peer.as_usize()];
        *record = Peer::opened(fds.len() as u32, aside, (record.held, record.long_held));
        for (n, fd) in fds.iter().enumerate() {
            // the first alone carries messages
            let peeked = Peeked::opened(n == 0 && !self.is_bulk && socket::remember_peeks(*fd));
            let out = self.area.out(peer.as_usize(), n);
            self.streams.add(first + n, Stream::opened(*fd, sums, peeked, out));
        }
        self.peers_open += 1;
        self.streams.watch_many();
        Ok(())
    }

    /// An open peer is one of several ways to one process: that a stream of it has ended says
    /// nothing of the process, and is reported without waiting for what the side band knows.
    pub fn peer_is_lane(&mut self, peer: PeerIndex) {
        self.peers[peer.as_usize()].is_lane = true;
    }

    /// The first socket of a peer that is open.
    pub fn socket(&self, peer: PeerIndex) -> Option<i32> {
        let record = self.peers.get(peer.as_usize()).filter(|record| record.takes_ops())?;
        (record.streams > 0).then(|| self.streams[self.streams.first_of(peer.as_usize())].fd)
    }

    /// Whether the next poll must be told the time: a peer is ending.
    #[inline(always)]
    pub fn wants_time(&self) -> bool {
        self.endings > 0
    }

    /// Whether no peer is open, or held by a thread, so that polling is of no use.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.peers_open == 0
    }

    /// Whether something was posted that no poll has handed to the kernel yet.
    #[inline]
    pub fn is_unsent(&self) -> bool {
        self.streams.dirty_count() != 0
    }

    /// Whether something that was posted to a living peer has not reached its host yet: it is
    /// staged here, or the kernel has it and no acknowledgement. Of one of several ways to it, also
    /// while its end is to be reported. *Cost*: a system call per stream.
    pub fn is_undelivered(&self, peer: PeerIndex) -> bool {
        match self.peers.get(peer.as_usize()) {
            Some(record) if record.takes_ops() => {}
            Some(record) if record.is_lane && record.state == State::Ending => return true,
            Some(_) | None => return false,
        }
        self.streams_of(peer.as_usize()).map(|index| &self.streams[index]).any(|stream| {
            stream.is_open && (stream.out.queued() > 0 || socket::unacknowledged(stream.fd) > 0)
        })
    }

    /// The same of messages alone, and of what stands before them on their stream.
    pub fn is_message_undelivered(&self, peer: PeerIndex) -> bool {
        let stream = &self.streams[self.streams.first_of(peer.as_usize())];
        self.is_undelivered(peer)
            && (!stream.is_open
                || stream.out.is_message_left(socket::unacknowledged(stream.fd).into()))
    }

    /// A descriptor that is readable while a poll would find something, once [`Tcp::arm`] has said
    /// so.
    pub fn wait_fd(&self) -> i32 {
        self.streams.watch().fd()
    }

    /// Hands over what is staged, and makes ready for sleep. `false`: something is there already.
    pub fn arm(&mut self) -> bool {
        self.flush_dirty(&mut Bytes::mib(1).0);
        if core::mem::take(&mut self.starved) && self.drained {
            return false; // what found no room may find it now
        }
        if self.helpers.are_up() && !self.helpers.arm() {
            return false;
        }
        self.streams.arm()
            && self.ops.none_done()
            && self.scratch.owner == NONE
            && self.endings == 0
            && self.streams.are_quiet()
    }

    /// Whether anything was sent or received since the last call.
    pub fn take_moved(&mut self) -> bool {
        core::mem::take(&mut self.moved)
    }

    #[cold]
    pub(super) fn report_done(&mut self, events: &mut Events) {
        while events.has_room() {
            let Some(entry) = self.ops.take_done() else { break };
            self.peers[entry.peer.as_usize()].in_flight -= 1;
            events.push(entry.completion());
        }
    }

    /// Takes in what copy threads tell, as long as events find room.
    pub(super) fn hear(&mut self, events: &mut Events) {
        for thread in 0..THREADS_MAX {
            while events.has_room()
                && let Some(event) = self.helpers.heard(thread)
            {
                self.act(thread, event, events);
            }
        }
    }

    fn act(&mut self, thread: usize, event: Event, events: &mut Events) {
        let open = |peer: PeerIndex| self.peers[peer.as_usize()].state != State::Closed;
        match event {
            Event::Done { op, result } => self.written_aside(thread, op, result),
            Event::Immediate { peer, immediate } if open(peer) => {
                events.push(Completion::Immediate { peer, immediate });
            }
            Event::Down { peer, cause } if open(peer) => {
                self.peers[peer.as_usize()].aside.down(thread);
                match cause {
                    DownCause::Broken(code) => self.end_unsure(peer.as_usize(), code),
                    cause => self.begin_end(peer.as_usize(), cause, 0),
                }
            }
            Event::Immediate { .. } | Event::Down { .. } => {}
            Event::Fenced { peer } => {
                self.peers[peer.as_usize()].aside.fenced(thread, &mut self.ops);
            }
            Event::Closed { peer } => {
                let is_last = self.peers[peer.as_usize()].aside.closed(thread);
                self.peers_open -= u32::from(is_last);
            }
        }
    }

    /// A write that was handed to a copy thread has ended.
    fn written_aside(&mut self, thread: usize, op: u32, result: Result<(), OpError>) {
        let entry = self.ops.get(op);
        if let Err(error) = result {
            entry.code = error.code;
            entry.outcome = error.kind.into();
        }
        let (peer, length) = (entry.peer.as_usize(), entry.length);
        self.domain.unpin(entry.pin);
        self.ops.finish(op);
        self.peers[peer].aside.write_ends(thread);
        self.helpers.written(thread, length);
    }

    // How peers end: by themselves, by the side band, by a fence, by a close.

    /// Nothing is sent to the peer any more; what has come is still reported, then the end.
    #[cold]
    pub(super) fn begin_end(&mut self, peer: usize, cause: DownCause, code: i32) {
        let record = &mut self.peers[peer];
        if record.state != State::Open {
            return;
        }
        record.end(cause, code);
        self.endings += 1;
        for index in self.streams_of(peer) {
            self.streams[index].out.clear(|region| self.domain.pin(region, -1));
        }
        let up = self.peers[peer].aside.up;
        self.helpers.tell_all(up, Command::Fail { peer: PeerIndex(peer as u32) });
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
        let first = self.streams.first_of(peer);
        first..first + self.peers[peer].streams as usize
    }

    /// Goes on with every peer that is ending.
    #[cold]
    pub(super) fn end_peers(&mut self, events: &mut Events) {
        for peer in 0..self.peers.len() {
            if !events.has_room() || self.scratch.owner != NONE {
                return; // what was read comes first
            }
            if self.peers[peer].state == State::Ending
                && self.has_all(peer, events)
                && events.has_room()
            {
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
        self.streams_close(peer, Outcome::PeerDown);
        let record = &mut self.peers[peer];
        record.state = State::Down;
        self.endings -= 1;
        let cause = record.cause();
        events.push(Completion::PeerDown { peer: PeerIndex(peer as u32), cause });
    }

    /// Stops reading and writing a stream for good.
    pub(super) fn stream_close(&mut self, index: usize) {
        let cut_off = self.streams.close(index, &self.domain);
        if cut_off.to == To::Cell {
            // nobody is told of it, who would give it back
            let (peer, _) = self.streams.peer_of(index);
            self.peers[peer].slot_release(&self.area, peer, cut_off.slot.into());
        }
        if self.scratch.owner == index as u32 {
            self.scratch.owner = NONE;
        }
    }

    /// Stops all streams, and ends what was accepted.
    fn streams_close(&mut self, peer: usize, outcome: Outcome) {
        let code = self.peers[peer].code;
        for index in self.streams_of(peer) {
            self.stream_close(index);
            self.streams[index].end_ops(&mut self.ops, &self.domain, outcome, code);
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
                self.streams[index].stage(&StreamFrame::Bye);
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
        let told = self.peers[peer].aside.fence();
        self.helpers.tell_all(told, Command::Fence { peer: PeerIndex(peer as u32) });
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
            self.evacuate();
        }
        let record = &mut self.peers[peer];
        record.state = State::Closed;
        let told = record.aside.close();
        // one that threads still let go of is polled for until they have
        self.peers_open -= u32::from(!record.aside.is_closing());
        self.helpers.tell_all(told, Command::Close { peer: PeerIndex(peer as u32) });
    }
}
