//! Connections on a link that stands: made, refused, closed (W8.2, W8.3).
#![forbid(unsafe_code)]

use super::connection::{NONE, Phase};
use super::control::Control;
use super::error::ConnectError;
use super::event::{Rail, Side};
use super::idle::NO_CONNECTION;
use super::link::{BUFFER_BYTES, LinkPhase, UNSENT_AT};
use super::memory::{LinkMemory, MemoryError};
use super::note::Note;
use super::os;
use super::tried::Tried;
use crate::base::slab::Handle;
use crate::fabric::completion::DownCause;
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{
    CONNECT_PAIRS, CONNECT_SUMS, CONNECT_SUMS_WANTED, CONNECT_TAKEN, ConnectHello,
    FRAME_BYTES_WRITTEN, Frame, RefuseReason, RefusedHello,
};
use std::io;

impl<M: LinkMemory> Control<M> {
    /// A frame on a link that stands.
    pub fn dialog(&mut self, link: u32, frame: &Frame) {
        let side = self.links[link as usize].side;
        match (frame, side) {
            (Frame::Connect(hello), Side::Listener) => self.asked(link, hello),
            (Frame::Accepted(hello), Side::Connector) => self.accepted(link, hello),
            (Frame::Refused(refused), Side::Connector) => self.refused(link, refused),
            (Frame::Taken(taken), Side::Listener) => self.taken(link, taken),
            (Frame::Closed(closed), _) => self.peer_closed(link, closed),
            (Frame::Addresses(list), _) => self.addresses(link, list),
            (Frame::Ping(ping), _) => self.pinged(link, ping),
            (Frame::Pong(pong), _) => self.ponged(link, pong),
            (Frame::StatusAsk(ask), _) => self.status_asked(link, ask),
            (Frame::Status(said), _) => self.status_said(link, said),
            (Frame::Ports(list), _) => self.ports(link, list),
            (Frame::Pair(pair, end), _) => self.paired(link, pair, end),
            (Frame::Connect(_) | Frame::Accepted(_) | Frame::Refused(_), _)
            | (
                Frame::Taken(_) | Frame::LinkHello(_) | Frame::LinkReply(_) | Frame::LinkReady(_),
                _,
            )
            | (Frame::StreamHello(..), _)
            | (Frame::Knock(_) | Frame::Challenge(_) | Frame::Prove(_) | Frame::Proved(_), _) => {
                self.nonsense(link)
            }
        }
    }

    /// Asks for all connections that waited for the link, in the order in which they were begun.
    pub fn ask_all(&mut self, link: u32) {
        let mut at = self.links[link as usize].first;
        while at != NONE && self.connections[at as usize].link_next != NONE {
            at = self.connections[at as usize].link_next;
        }
        while at != NONE {
            let entry = &self.connections[at as usize];
            let before = entry.link_before;
            if entry.phase == Phase::Connecting && !entry.asked {
                self.ask(at);
            }
            at = before;
        }
    }

    /// Asks for a connection.
    pub fn ask(&mut self, index: u32) {
        let link = self.connections[index as usize].link;
        match self.links[link as usize].rail {
            Rail::Shm => self.ask_rings(index),
            Rail::Tcp => self.ask_streams(index),
        }
    }

    /// A peer asks for a connection: answered here and now, whoever calls accept later.
    fn asked(&mut self, link: u32, hello: &ConnectHello) {
        match self.admit(link, hello) {
            Ok(index) => self.opened(index),
            Err(reason) => self.part(link, hello.connection, reason),
        }
    }

    /// A connection that a peer asked for is made.
    pub fn opened(&mut self, index: u32) {
        self.connection_phase(index, Phase::Open);
        let connection = &mut self.connections[index as usize];
        connection.owes_hello = true;
        connection.untaken = connection.is_told_of_taking();
        let listener = Handle::unpack(connection.listener).index as usize;
        self.listeners[listener].push(&mut self.connections, index);
        self.note_connected(index);
        self.owe(index, true, None);
        self.flush(index);
        self.stalls_start(index);
        self.lanes_start(index);
    }

    /// Whether a number means a listener of ours that is open.
    pub fn is_listener(&self, number: u64) -> bool {
        let listener = Handle::unpack(number);
        let known = self.listeners.get(listener.index as usize);
        known.is_some_and(|known| known.generation.is(listener.generation))
    }

    fn admit(&mut self, link: u32, hello: &ConnectHello) -> Result<u32, RefuseReason> {
        if !self.is_listener(hello.target) {
            return Err(RefuseReason::NoListener);
        }
        if self.links[link as usize].rail != Rail::Shm {
            return Err(RefuseReason::Protocol);
        }
        self.rings_answer(link, hello)?;
        let index = self.slot_acquire().ok_or(RefuseReason::Full)?;
        let connection = &mut self.connections[index as usize];
        connection.side = Side::Listener;
        connection.listener = hello.target;
        connection.rings_offset = hello.rings_offset;
        connection.peer = *hello;
        self.link_join(index, link);
        Ok(index)
    }

    /// The peer has made the connection.
    fn accepted(&mut self, link: u32, hello: &ConnectHello) {
        let Some(index) = self.find(link, hello.target, Phase::Connecting) else {
            let open = self.find(link, hello.target, Phase::Open).is_some();
            if open || self.is_parted(link, hello.target) {
                // said again because the link was lost
            } else if self.is_former(link, hello.target) {
                // given up while the answer was on its way
                self.part(link, hello.connection, RefuseReason::Abandoned);
            } else {
                self.nonsense(link);
            }
            return;
        };
        self.connection_phase(index, Phase::Open);
        let connection = &mut self.connections[index as usize];
        connection.peer = *hello;
        connection.lanes = connection.lanes.min(hello.data_rails.clamp(1, 255) as u8);
        self.pairs_accepted(index);
        let connection = &mut self.connections[index as usize];
        if connection.abandoned {
            connection.owes_closed = true;
            self.flush(index);
        } else {
            self.note_connected(index);
            self.owe(index, true, None);
            self.stalls_start(index);
            self.lanes_start(index);
        }
    }

    /// The peer has not made the connection.
    fn refused(&mut self, link: u32, refused: &RefusedHello) {
        let Some(index) = self.find(link, refused.target, Phase::Connecting) else {
            if !self.is_former(link, refused.target) {
                self.nonsense(link);
            }
            return;
        };
        let reason = RefuseReason::from_wire(refused.reason);
        let error = self.refusal_error(link, reason, refused.major);
        self.fail(index, error);
    }

    /// Our user has a connection that it asked for: the peer's may accept it.
    pub fn take(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.handed = true;
        connection.owes_taken = connection.is_taking_due();
        if connection.owes_taken {
            self.flush(index);
        }
    }

    /// The peer's user has a connection that it asked for.
    fn taken(&mut self, link: u32, taken: &RefusedHello) {
        let Some(index) = self.find(link, taken.target, Phase::Open) else {
            self.stale_or_nonsense(link, taken.target);
            return;
        };
        self.connections[index as usize].untaken = false;
        // whoever sleeps may accept it
        (self.config.wake.call)(self.config.wake.context);
    }

    /// Something came for a connection that is not there, or is none.
    fn stale_or_nonsense(&mut self, link: u32, target: u64) {
        if !self.is_former(link, target) && !self.is_parted(link, target) {
            self.nonsense(link);
        }
    }

    /// The peer will not touch the connection's rings again.
    fn peer_closed(&mut self, link: u32, closed: &RefusedHello) {
        if closed.target == NO_CONNECTION {
            self.dismissed(link);
            return;
        }
        let Some(index) = self.find(link, closed.target, Phase::Open) else {
            self.stale_or_nonsense(link, closed.target);
            return;
        };
        let connection = &mut self.connections[index as usize];
        connection.peer_closed = true;
        let abandoned = RefuseReason::from_wire(closed.reason) == RefuseReason::Abandoned;
        if connection.queued && (abandoned || connection.untaken) {
            // nobody had it on either side: accept need not hand it out
            self.close(index);
            return;
        }
        if !connection.closed_here && !connection.stalled {
            self.owe(index, false, Some(DownCause::Closed));
        }
        self.lanes_rest(index);
        self.finish(index);
    }

    /// The connection that a peer's number means, if it is one of this link.
    pub fn find(&self, link: u32, number: u64, phase: Phase) -> Option<u32> {
        let handle = Handle::unpack(number);
        let connection = self.connections.get(handle.index as usize)?;
        let meant = connection.phase == phase
            && connection.generation == handle.generation
            && connection.link == link
            && !connection.peer_closed
            && (connection.side == Side::Listener || connection.asked);
        meant.then_some(handle.index)
    }

    /// Whether a number means an attempt over TCP that was given up, or has failed and waits for
    /// its caller: its sockets are closed, so that its slot did not wait for the peer's answer,
    /// which comes later; or comes again, since who was dropped and refused may see the first
    /// before it reads the second, and ask once more.
    fn is_former(&self, link: u32, number: u64) -> bool {
        let handle = Handle::unpack(number);
        let known = self.connections.get(handle.index as usize);
        self.links[link as usize].rail == Rail::Tcp
            && known.is_some_and(|connection| {
                connection.generation != handle.generation
                    || matches!(connection.phase, Phase::Free | Phase::Failed(_))
            })
    }

    /// Whether a number means a connection over TCP that the peer has closed, or that has ended
    /// with a lost path: the peer says so again when its link is back.
    fn is_parted(&self, link: u32, number: u64) -> bool {
        let handle = Handle::unpack(number);
        let known = self.connections.get(handle.index as usize);
        self.links[link as usize].rail == Rail::Tcp
            && known.is_some_and(|connection| {
                connection.generation == handle.generation
                    && connection.link == link
                    && connection.peer_closed
            })
    }

    /// Ends an attempt to connect; its caller sees the error at the next poll.
    pub fn fail(&mut self, index: u32, error: ConnectError) {
        self.link_leave(index);
        self.streams_close(index);
        self.connection_phase(index, Phase::Failed(error));
        let connection = &mut self.connections[index as usize];
        connection.owes_hello = false;
        // whoever sleeps asks how its attempt ended
        (self.config.wake.call)(self.config.wake.context);
        if connection.abandoned {
            self.slot_release(index);
        }
    }

    /// The link of a connection is dead.
    pub fn connection_lost(&mut self, index: u32, cause: DownCause, error: ConnectError) {
        let connection = &mut self.connections[index as usize];
        match connection.phase {
            Phase::Connecting => self.fail(index, error),
            Phase::Gathering => self.gathering_end(index),
            Phase::Open => {
                connection.owes_hello = false;
                connection.owes_taken = false;
                connection.owes_closed = false;
                connection.owes_pairs = 0;
                let known = connection.peer_closed || connection.stalled;
                connection.peer_closed = true;
                if connection.queued && connection.untaken && cause == DownCause::Closed {
                    // nobody had it on either side
                    return self.close(index);
                }
                // somebody may have had it there: who accepts it learns how it ended
                connection.untaken = false;
                if !connection.closed_here && !known {
                    self.owe(index, false, Some(cause));
                }
                self.lanes_rest(index);
                self.finish(index);
            }
            Phase::Free | Phase::Failed(_) => {}
        }
    }

    /// Tells people of a connection that stands now.
    fn note_connected(&self, index: u32) {
        let connection = &self.connections[index as usize];
        let (link, side) = (&self.links[connection.link as usize], connection.side);
        let (rail, lanes, pairs) = (link.rail, connection.lanes, connection.pairs);
        let mut peer = link.named();
        if side == Side::Connector && lanes > 1 && pairs == 0 && !self.lanes.is_empty() {
            let first = self.lane_place(index, 0) as usize;
            let of = &self.lanes[first..first + usize::from(lanes)];
            peer.tried = Tried::of(of.iter().filter_map(|l| l.path.to.or(link.remote)));
        }
        (self.config.note)(Note::Connected { peer, rail, lanes, pairs, side });
        let (theirs, ours) = (connection.peer.features, self.config.template.features);
        if rail == Rail::Tcp && ours & CONNECT_SUMS_WANTED != 0 && theirs & CONNECT_SUMS == 0 {
            (self.config.note)(Note::Unchecked(link.named()));
        }
    }

    /// Closes our side of an open connection.
    pub fn close(&mut self, index: u32) {
        let connection = self.connections[index as usize];
        (self.config.note)(Note::Closed(self.links[connection.link as usize].named()));
        if connection.queued {
            let listener = Handle::unpack(connection.listener).index as usize;
            self.listeners[listener].remove(&mut self.connections, index);
        }
        self.slot_stale(index);
        self.owe_nothing(index);
        // the data thread has let go of them
        self.streams_close(index);
        let alive = self.links[connection.link as usize].stands();
        let connection = &mut self.connections[index as usize];
        connection.closed_here = true;
        connection.owes_pairs = 0;
        connection.owes_closed = alive;
        self.flush(index);
    }

    /// Frees a connection that both sides are done with.
    fn finish(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let owes = connection.owes_hello || connection.owes_closed;
        if connection.phase == Phase::Open
            && connection.closed_here
            && connection.peer_closed
            && !owes
        {
            self.link_leave(index);
            self.slot_release(index);
        }
    }

    /// Sends what a connection owes its peer, as far as the socket has room.
    pub fn flush(&mut self, index: u32) {
        while let Some(frame) = self.owed_frame(index) {
            let link = self.connections[index as usize].link;
            match self.send(link, &frame) {
                Sent::Whole => {
                    let connection = &mut self.connections[index as usize];
                    match &frame {
                        Frame::Pair(pair, _) => connection.owes_pairs &= !(1 << pair.lane),
                        Frame::Taken(_) => connection.owes_taken = false,
                        Frame::Closed(_) => connection.owes_closed = false,
                        _ => connection.owes_hello = false,
                    }
                }
                Sent::Blocked => return,
                // the reader notices, and says what became of the connections
                Sent::Broken => return,
            }
        }
        self.finish(index);
    }

    fn owed_frame(&self, index: u32) -> Option<Frame> {
        let connection = &self.connections[index as usize];
        if connection.owes_hello {
            let hello = self.connect_hello(index);
            return Some(match connection.side {
                Side::Connector => Frame::Connect(hello),
                Side::Listener => Frame::Accepted(hello),
            });
        }
        if connection.owes_pairs != 0 && !connection.owes_closed {
            return self.pair_frame(index);
        }
        let reason =
            if connection.abandoned { RefuseReason::Abandoned } else { RefuseReason::Closed };
        let target = connection.peer.connection;
        let body = RefusedHello { target, reason: reason as u32, major: WIRE_MAJOR };
        if connection.owes_taken {
            return Some(Frame::Taken(RefusedHello { reason: 0, ..body }));
        }
        connection.owes_closed.then_some(Frame::Closed(body))
    }

    /// What we say of a connection, when we ask for it or answer.
    pub fn connect_hello(&self, index: u32) -> ConnectHello {
        let connection = &self.connections[index as usize];
        let target = match connection.side {
            Side::Connector => connection.listener,
            Side::Listener => connection.peer.connection,
        };
        let handle = connection.handle(index).pack();
        let template = &self.config.template;
        let hello = template.hello(index, handle, target, connection.rings_offset);
        let taken = match connection.side {
            Side::Connector => self.config.accept_taken,
            Side::Listener => connection.is_told_of_taking(),
        };
        let features = hello.features | if taken { CONNECT_TAKEN } else { 0 };
        let hello = ConnectHello { features, ..hello };
        match connection.stream_count {
            0 => hello,
            streams => {
                let (streams, lanes) = (u32::from(streams), u32::from(connection.lanes));
                let pairs = if connection.pairs == 0 { 0 } else { CONNECT_PAIRS };
                let features = hello.features | pairs;
                ConnectHello {
                    streams,
                    data_rails: lanes,
                    control_rails: lanes,
                    eager_bytes_max: template.tcp_eager_bytes_max,
                    features,
                    ..hello
                }
            }
        }
    }

    /// The socket of a link has room again.
    pub fn flush_link(&mut self, link: u32) {
        self.links[link as usize].blocked = false;
        self.flush_unsent(link);
        self.flush_parting(link);
        self.flush_pong(link);
        let mut at = self.links[link as usize].first;
        while at != NONE && !self.links[link as usize].blocked {
            let entry = &self.connections[at as usize];
            let next = entry.link_next;
            let words = entry.owes_hello || entry.owes_taken || entry.owes_closed;
            if words || entry.owes_pairs != 0 {
                self.flush(at);
            }
            at = next;
        }
        self.interest(link);
    }

    /// Sends the rest of a frame.
    fn flush_unsent(&mut self, link: u32) {
        let entry = &mut self.links[link as usize];
        let Some(socket) = entry.socket.as_ref().filter(|_| entry.unsent > 0) else { return };
        let at = link as usize * BUFFER_BYTES + UNSENT_AT;
        let row = &mut self.buffers[at..at + entry.unsent];
        match socket.send(row) {
            Ok(sent) => {
                row.copy_within(sent.., 0);
                entry.unsent -= sent;
                entry.blocked = entry.unsent > 0;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => entry.blocked = true,
            // the reader notices
            Err(_) => entry.unsent = 0,
        }
    }

    /// Says a link's last word, if one waits.
    pub fn flush_parting(&mut self, link: u32) {
        let Some(parting) = self.links[link as usize].parting else { return };
        match self.send(link, &parting.frame()) {
            Sent::Whole | Sent::Broken => self.links[link as usize].parting = None,
            Sent::Blocked => self.interest(link),
        }
    }

    /// Sends a frame, whole or not at all: a stream's rest is kept.
    pub fn send(&mut self, link: u32, frame: &Frame) -> Sent {
        let entry = &mut self.links[link as usize];
        if entry.socket.is_none() {
            return Sent::Broken;
        }
        // what is owed while it is lost is said when it is back
        if entry.blocked || entry.phase == LinkPhase::Lost {
            return Sent::Blocked;
        }
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = frame.encode(&mut bytes);
        match self.send_bytes(link, &bytes[..length]) {
            Ok(()) => Sent::Whole,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.links[link as usize].blocked = true;
                self.interest(link);
                Sent::Blocked
            }
            Err(_) => Sent::Broken,
        }
    }
}

/// What became of a frame.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Sent {
    /// It is the kernel's, or kept to be its next.
    Whole,
    /// There is no room.
    Blocked,
    /// The socket is at its end.
    Broken,
}

pub(super) fn local_memory_error(error: MemoryError) -> ConnectError {
    match error {
        MemoryError::Exhausted => ConnectError::Memory,
        MemoryError::Descriptors => ConnectError::Descriptors(os::descriptor_limit()),
        MemoryError::System(code) => ConnectError::System(code),
    }
}
