//! Connections on a link that stands: made, refused, closed (W8.2, W8.3).
#![forbid(unsafe_code)]

extern crate std;

use super::connection::Phase;
use super::control::Control;
use super::error::ConnectError;
use super::event::Side;
use super::link::LinkPhase;
use super::memory::{LinkMemory, MemoryError};
use super::os;
use crate::base::slab::Handle;
use crate::fabric::completion::DownCause;
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{ConnectHello, FRAME_BYTES_WRITTEN, Frame, RefuseReason, RefusedHello};
use std::io;

impl<M: LinkMemory> Control<M> {
    /// A frame on a link that stands.
    pub fn dialog(&mut self, link: u32, frame: &Frame) {
        let side = self.links[link as usize].side;
        match (frame, side) {
            (Frame::Connect(hello), Side::Listener) => self.asked(link, hello),
            (Frame::Accepted(hello), Side::Connector) => self.accepted(link, hello),
            (Frame::Refused(refused), Side::Connector) => self.refused(link, refused),
            (Frame::Closed(closed), _) => self.peer_closed(link, closed),
            (Frame::Ping(ping), _) => self.pinged(link, ping),
            // that it came at all is the answer
            (Frame::Pong(_), _) => {}
            (Frame::Connect(_) | Frame::Accepted(_) | Frame::Refused(_), _)
            | (Frame::LinkHello(_) | Frame::LinkReply(_) | Frame::LinkReady(_), _)
            | (Frame::StreamHello(..) | Frame::Addresses(_), _) => {
                self.nonsense(link);
            }
        }
    }

    /// Sends `Connect` for all that waited for the link.
    pub fn ask_all(&mut self, link: u32) {
        for index in 0..self.connections.len() as u32 {
            let entry = &self.connections[index as usize];
            if entry.phase == Phase::Connecting && entry.link == link && !entry.asked {
                self.ask(index);
            }
        }
    }

    /// Finds memory for a connection's rings and sends `Connect`.
    pub fn ask(&mut self, index: u32) {
        let link = self.connections[index as usize].link;
        let words = self.arena_words();
        let row = &mut self.arena_used[link as usize * words..][..words];
        let word = row.iter().position(|word| *word != u64::MAX);
        // as many parts as connections, each of which holds one at most
        let word = word.expect("an arena has a part for every connection");
        let slot = word as u32 * 64 + row[word].trailing_ones();
        row[word] |= 1 << (slot % 64);
        let offset = u64::from(slot) * self.rings_bytes;
        let connection = &mut self.connections[index as usize];
        connection.arena_slot = slot;
        connection.rings_offset = offset;
        let arena = self.links[link as usize].arena.as_ref().expect("a link that stands");
        if let Err(error) = self.memory.populate(arena, offset, self.rings_bytes) {
            self.fail(index, local_memory_error(error));
            return;
        }
        let connection = &mut self.connections[index as usize];
        connection.asked = true;
        connection.owes_hello = true;
        self.flush(index);
    }

    /// A peer asks for a connection: answered here and now, whoever calls accept later.
    fn asked(&mut self, link: u32, hello: &ConnectHello) {
        match self.admit(link, hello) {
            Ok(index) => {
                self.owe(index, true, None);
                self.flush(index);
            }
            Err(reason) => {
                let refusal = RefusedHello {
                    target: hello.connection,
                    reason: reason as u32,
                    major: WIRE_MAJOR,
                };
                self.links[link as usize].refusal = Some(refusal);
                self.flush_refusal(link);
            }
        }
    }

    fn admit(&mut self, link: u32, hello: &ConnectHello) -> Result<u32, RefuseReason> {
        let listener = Handle::unpack(hello.target);
        let known = self.listeners.get(listener.index as usize);
        if !known.is_some_and(|known| known.generation.is(listener.generation)) {
            return Err(RefuseReason::NoListener);
        }
        let rings =
            (self.config.template.rings_bytes)(hello.send_ring_bytes, hello.write_ring_bytes);
        let end = rings.and_then(|bytes| hello.rings_offset.checked_add(bytes));
        let arena_bytes = self.links[link as usize].arena_bytes;
        let aligned = hello.rings_offset.is_multiple_of(os::page_bytes());
        if !aligned || end.is_none_or(|end| end > arena_bytes) {
            return Err(RefuseReason::Protocol);
        }
        let index = self.slot_acquire().ok_or(RefuseReason::Full)?;
        let connection = &mut self.connections[index as usize];
        connection.phase = Phase::Open;
        connection.side = Side::Listener;
        connection.link = link;
        connection.listener = hello.target;
        connection.rings_offset = hello.rings_offset;
        connection.peer = *hello;
        connection.owes_hello = true;
        self.links[link as usize].connections += 1;
        self.listeners[listener.index as usize].push(&mut self.connections, index);
        Ok(index)
    }

    /// The peer has made the connection.
    fn accepted(&mut self, link: u32, hello: &ConnectHello) {
        let Some(index) = self.find(link, hello.target, Phase::Connecting) else {
            self.nonsense(link);
            return;
        };
        let connection = &mut self.connections[index as usize];
        connection.phase = Phase::Open;
        connection.peer = *hello;
        if connection.abandoned {
            connection.owes_closed = true;
            self.flush(index);
        } else {
            self.owe(index, true, None);
        }
    }

    /// The peer has not made the connection.
    fn refused(&mut self, link: u32, refused: &RefusedHello) {
        let Some(index) = self.find(link, refused.target, Phase::Connecting) else {
            self.nonsense(link);
            return;
        };
        let reason = RefuseReason::from_wire(refused.reason);
        let error = self.refusal_error(link, reason, refused.major);
        self.fail(index, error);
    }

    /// The peer will not touch the connection's rings again.
    fn peer_closed(&mut self, link: u32, closed: &RefusedHello) {
        let Some(index) = self.find(link, closed.target, Phase::Open) else {
            self.nonsense(link);
            return;
        };
        let connection = &mut self.connections[index as usize];
        connection.peer_closed = true;
        let abandoned = RefuseReason::from_wire(closed.reason) == RefuseReason::Abandoned;
        if connection.queued && abandoned {
            // nobody had it on either side: accept need not hand it out
            self.close(index);
            return;
        }
        if !connection.closed_here {
            self.owe(index, false, Some(DownCause::Closed));
        }
        self.finish(index);
    }

    /// The connection that a peer's number means, if it is one of this link.
    fn find(&self, link: u32, number: u64, phase: Phase) -> Option<u32> {
        let handle = Handle::unpack(number);
        let connection = self.connections.get(handle.index as usize)?;
        let meant = connection.phase == phase
            && connection.generation == handle.generation
            && connection.link == link
            && !connection.peer_closed
            && (connection.side == Side::Listener || connection.asked);
        meant.then_some(handle.index)
    }

    /// Ends an attempt to connect; its caller sees the error at the next poll.
    pub fn fail(&mut self, index: u32, error: ConnectError) {
        self.link_leave(index);
        let connection = &mut self.connections[index as usize];
        connection.phase = Phase::Failed(error);
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
            Phase::Open => {
                connection.owes_hello = false;
                connection.owes_closed = false;
                let known = connection.peer_closed;
                connection.peer_closed = true;
                if !connection.closed_here && !known {
                    self.owe(index, false, Some(cause));
                }
                self.finish(index);
            }
            Phase::Free | Phase::Failed(_) => {}
        }
    }

    /// Closes our side of an open connection.
    pub fn close(&mut self, index: u32) {
        let connection = self.connections[index as usize];
        if connection.queued {
            let listener = Handle::unpack(connection.listener).index as usize;
            self.listeners[listener].remove(&mut self.connections, index);
        }
        self.slot_stale(index);
        self.owe_nothing(index);
        let alive = self.links[connection.link as usize].phase == LinkPhase::Ready;
        let connection = &mut self.connections[index as usize];
        connection.closed_here = true;
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
                    if connection.owes_hello {
                        connection.owes_hello = false;
                    } else {
                        connection.owes_closed = false;
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
            let target = match connection.side {
                Side::Connector => connection.listener,
                Side::Listener => connection.peer.connection,
            };
            let handle = connection.handle(index).pack();
            let template = &self.config.template;
            let hello = template.hello(index, handle, target, connection.rings_offset);
            return Some(match connection.side {
                Side::Connector => Frame::Connect(hello),
                Side::Listener => Frame::Accepted(hello),
            });
        }
        let reason =
            if connection.abandoned { RefuseReason::Abandoned } else { RefuseReason::Closed };
        connection.owes_closed.then_some(Frame::Closed(RefusedHello {
            target: connection.peer.connection,
            reason: reason as u32,
            major: WIRE_MAJOR,
        }))
    }

    /// The socket of a link has room again.
    pub fn flush_link(&mut self, link: u32) {
        self.links[link as usize].blocked = false;
        self.flush_refusal(link);
        self.flush_pong(link);
        for index in 0..self.connections.len() as u32 {
            if self.links[link as usize].blocked {
                break;
            }
            let entry = &self.connections[index as usize];
            if entry.link == link && (entry.owes_hello || entry.owes_closed) {
                self.flush(index);
            }
        }
        self.interest(link);
    }

    fn flush_refusal(&mut self, link: u32) {
        let Some(refusal) = self.links[link as usize].refusal else { return };
        match self.send(link, &Frame::Refused(refusal)) {
            Sent::Whole | Sent::Broken => self.links[link as usize].refusal = None,
            Sent::Blocked => self.interest(link),
        }
    }

    pub fn send(&mut self, link: u32, frame: &Frame) -> Sent {
        let entry = &mut self.links[link as usize];
        let Some(socket) = &entry.socket else { return Sent::Broken };
        if entry.blocked {
            return Sent::Blocked;
        }
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = frame.encode(&mut bytes);
        match socket.send(&bytes[..length], &[]) {
            Ok(()) => Sent::Whole,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                entry.blocked = true;
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
    Whole,
    Blocked,
    Broken,
}

fn local_memory_error(error: MemoryError) -> ConnectError {
    match error {
        MemoryError::Exhausted => ConnectError::Memory,
        MemoryError::Descriptors => ConnectError::Descriptors(os::descriptor_limit()),
        MemoryError::System(code) => ConnectError::System(code),
    }
}
