//! Data streams: a connection over TCP has sockets of its own (W8.6).
//!
//! The connector dials them and says on each whose it is; that is also how it asks for the
//! connection. The listener gathers them, in whatever order they come, and answers over the link.
//! From then on the data thread reads and writes them; nobody here does.
#![forbid(unsafe_code)]

use super::address;
use super::asks::Ask;
use super::connection::{NONE, Phase};
use super::control::{Control, TOKEN_STREAM};
use super::dialing::system;
use super::error::ConnectError;
use super::event::{Rail, STREAMS_MAX, Side};
use super::link::{LinkPhase, Parting};
use super::memory::LinkMemory;
use super::os;
use super::stream::StreamSocket;
use crate::base::units::{Instant, Span};
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{ConnectHello, FRAME_BYTES_MAX, FRAME_BYTES_WRITTEN, Frame};
use crate::wire::hello::{RefuseReason, RefusedHello, StreamHello};
use std::io;
use std::os::fd::AsFd;

/// How often a stream is looked at on which a hello was sent and nobody has answered: its socket
/// may have been dropped before it was read. Answers come over the link; nothing waits for this.
const STREAM_LOOK: Span = Span::millis(20);

impl<M: LinkMemory> Control<M> {
    /// Streams of each lane of a connection that is about to be asked for, or that a peer may ask
    /// for on a new link: as many as `wanted`, or one where the process has so many descriptors
    /// that streams beside the first are too many.
    /// `expected`: connections that may come besides, each of them with a copy of each such stream.
    pub fn streams_each(&self, wanted: u32, expected: usize) -> u32 {
        let most = self.config.descriptors_max;
        if wanted == 1 || most == u64::MAX {
            return wanted;
        }
        let beside = expected as u64 * 2 * u64::from(wanted - 1);
        if os::descriptor_next().saturating_add(beside) < most { wanted } else { 1 }
    }

    /// Dials a connection's streams and asks for it.
    pub fn ask_streams(&mut self, index: u32) {
        let link = self.connections[index as usize].link;
        let count = self.streams_each(self.links[link as usize].streams, 0);
        let connection = &mut self.connections[index as usize];
        connection.stream_count = count as u8;
        connection.asked = true;
        self.lanes_plan(index);
        for stream in 0..count {
            if let Err(error) = self.stream_dial(index, stream) {
                self.fail(index, error);
                return;
            }
        }
        self.look_by(self.now().after(STREAM_LOOK));
    }

    fn stream_dial(&mut self, index: u32, stream: u32) -> Result<(), ConnectError> {
        let of = self.connections[index as usize].link;
        let link = &self.links[of as usize];
        let peer = link.named();
        let to = link.remote.ok_or(ConnectError::NoListener(peer))?;
        let dialled = StreamSocket::connect_from(self.way_of(of), to, 0);
        let socket = dialled.map_err(|error| stream_error(&error, peer))?;
        self.streams[index as usize][stream as usize] = Some(socket);
        self.stream_say(index, stream)
    }

    /// Says whose a stream is, as soon as it has connected.
    fn stream_say(&mut self, index: u32, stream: u32) -> Result<(), ConnectError> {
        let (bytes, length) = self.stream_hello_bytes(index, stream, (0, 0));
        let link = self.connections[index as usize].link;
        let peer = self.links[link as usize].named();
        let Some(socket) = &self.streams[index as usize][stream as usize] else { return Ok(()) };
        let bit = 1 << stream;
        match socket.send(&bytes[..length]) {
            Ok(sent) if sent == length => {
                let connection = &mut self.connections[index as usize];
                if connection.streams_unsent & bit != 0 {
                    connection.streams_unsent &= !bit;
                    self.poller.remove(socket.as_fd());
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let connection = &mut self.connections[index as usize];
                if connection.streams_unsent & bit == 0 {
                    let place = index as usize * STREAMS_MAX + stream as usize;
                    let token = TOKEN_STREAM | place as u64;
                    let added = self.poller.add_for(socket.as_fd(), token, false, true);
                    added.map_err(|error| system(&error))?;
                    connection.streams_unsent |= bit;
                }
                Ok(())
            }
            // a fresh socket takes more than a hello, so this one is of no use
            Ok(_) => Err(ConnectError::Unreachable(peer, libc::ENOBUFS)),
            Err(error) => Err(stream_error(&error, peer)),
        }
    }

    /// What is said on a stream that we dial, and its length: of a new connection, or of a lane's
    /// generation.
    pub fn stream_hello_bytes(
        &mut self,
        index: u32,
        stream: u32,
        (lane, lane_generation): (u8, u32),
    ) -> ([u8; FRAME_BYTES_WRITTEN], usize) {
        let connection = &self.connections[index as usize];
        let (number, link) = (connection.handle(index).pack(), connection.link);
        let mut hello = StreamHello {
            endpoint_id: self.endpoint_id,
            proof: 0,
            connection: number,
            stream,
            streams: u32::from(connection.stream_count),
            ask: self.links[link as usize].asks.next(),
            lane,
            lane_generation,
        };
        hello.proof = self.stream_proof(link, &hello);
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::StreamHello(hello, self.connect_hello(index)).encode(&mut bytes);
        (bytes, length)
    }

    /// A stream has connected, or failed.
    pub fn stream_ready(&mut self, place: u32) {
        let (index, stream) = (place / STREAMS_MAX as u32, place % STREAMS_MAX as u32);
        let Some(connection) = self.connections.get(index as usize) else { return };
        let waiting = connection.streams_unsent & (1 << stream) != 0;
        if connection.phase != Phase::Connecting || !waiting {
            return;
        }
        if let Err(error) = self.stream_say(index, stream) {
            self.fail(index, error);
        }
    }

    /// Looks whether the streams of an attempt were dropped unread, or refused on the spot.
    pub fn streams_look(&mut self, index: u32, now: Instant) {
        let connection = &self.connections[index as usize];
        if connection.phase == Phase::Gathering {
            self.gathering_look(index, now);
            return;
        }
        let gathers = connection.phase == Phase::Connecting
            && connection.stream_count > 0
            && self.links[connection.link as usize].rail == Rail::Tcp;
        if !gathers {
            return;
        }
        let count = u32::from(connection.stream_count);
        self.look_by(now.after(STREAM_LOOK));
        for stream in 0..count {
            let connection = &self.connections[index as usize];
            if connection.phase != Phase::Connecting {
                return;
            }
            if connection.streams_unsent & (1 << stream) != 0 {
                continue;
            }
            let mut bytes = [0; FRAME_BYTES_MAX];
            let Some(socket) = &self.streams[index as usize][stream as usize] else { continue };
            let result = match socket.peek(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => self.stream_dial(index, stream),
                Ok(length) => match Frame::decode(&bytes[..length]) {
                    Ok(Frame::Refused(refused)) => {
                        let reason = RefuseReason::from_wire(refused.reason);
                        Err(self.refusal_error(connection.link, reason, refused.major))
                    }
                    // the peer uses it already: that it was accepted is still to be read
                    _ => continue,
                },
            };
            if let Err(error) = result {
                self.fail(index, error);
                return;
            }
        }
    }

    /// Looks whether a peer gave up while its streams were gathered.
    fn gathering_look(&mut self, index: u32, now: Instant) {
        if self.is_given_up(index) {
            self.gathering_end(index);
        } else {
            self.look_by(now.after(STREAM_LOOK));
        }
    }

    /// Whether a peer has closed a stream, or sent on it, before we answered.
    fn is_given_up(&self, index: u32) -> bool {
        let waits = |socket: &StreamSocket| {
            let received = socket.peek(&mut [0; 1]);
            received.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        !self.streams[index as usize].iter().flatten().all(waits)
    }

    /// Forgets a connection that was still being gathered.
    pub fn gathering_end(&mut self, index: u32) {
        self.link_leave(index);
        self.slot_stale(index);
        self.slot_release(index);
    }

    /// The link, of those on which a peer connects to us, that a stream's proof belongs to.
    pub fn link_of_stream(&self, hello: &StreamHello) -> Option<u32> {
        self.chained(hello.endpoint_id).find(|at| {
            let link = &self.links[*at as usize];
            let fits = link.has_streams()
                && link.side == Side::Listener
                && (link.phase == LinkPhase::ReplySent || link.stands());
            fits && self.stream_verify(*at, hello)
        })
    }

    /// A peer has dialled a stream.
    pub fn stream_hello(
        &mut self,
        socket: StreamSocket,
        hello: &StreamHello,
        connect: &ConnectHello,
    ) {
        let place = hello.stream as usize;
        let joins = hello.lane_generation != 0;
        let sound = hello.stream < hello.streams
            && connect.connection == hello.connection
            && (joins || hello.lane == 0);
        let limit = |link: &u32| {
            let link = &self.links[*link as usize];
            // on one host a connection is asked for over the link
            let asks = joins || link.rail == Rail::Tcp;
            // a lane that comes back has the streams of its connection
            sound && asks && (joins || hello.streams <= link.streams)
        };
        let Some(link) = self.link_of_stream(hello).filter(limit) else {
            if !self.dismissed.knows(hello.endpoint_id) {
                self.stranger(socket.peer().ok());
            }
            return;
        };
        if self.links[link as usize].phase == LinkPhase::ReplySent {
            // the link's last word was sent before, and is mostly there
            self.pump(link);
            if self.link_of_stream(hello) != Some(link) {
                return;
            }
        }
        match self.links[link as usize].asks.take(hello.ask) {
            Ask::Fresh => {}
            // long overtaken: its writer asks again
            Ask::Late => return,
            Ask::Seen => {
                // somebody has recorded it
                self.stranger(socket.peer().ok());
                return;
            }
        }
        if socket.be_patient().is_err() {
            // reset since: its peer will know
            return;
        }
        if joins {
            self.lane_hello(link, socket, hello);
            return;
        }
        let Some(index) = self.gather(link, hello, connect) else { return };
        self.streams[index as usize][place] = Some(socket);
        if place == 0 {
            let connection = &mut self.connections[index as usize];
            connection.streams_asked = true;
            connection.peer = *connect;
            connection.listener = connect.target;
        }
        self.gathered(index);
    }

    /// The connection that a stream belongs to; a new one for the first that comes.
    fn gather(&mut self, link: u32, hello: &StreamHello, connect: &ConnectHello) -> Option<u32> {
        if let Some(index) = self.met_find(link, hello.connection) {
            let known = &self.connections[index as usize];
            let here = &self.streams[index as usize][hello.stream as usize];
            let fits = known.phase == Phase::Gathering
                && u32::from(known.stream_count) == hello.streams
                && here.is_none();
            // else its peer dialled again what we have answered since
            return fits.then_some(index);
        }
        let Some(index) = self.slot_acquire() else {
            if hello.stream == 0 {
                self.part(link, hello.connection, RefuseReason::Full);
            }
            return None;
        };
        let deadline = self.deadline();
        let connection = &mut self.connections[index as usize];
        connection.side = Side::Listener;
        connection.stream_count = hello.streams as u8;
        connection.deadline = deadline;
        connection.peer = ConnectHello { connection: hello.connection, ..*connect };
        self.connection_phase(index, Phase::Gathering);
        self.link_join(index, link);
        self.met_insert(index);
        if hello.streams > 1 {
            self.look_by(self.now().after(STREAM_LOOK));
        }
        self.look_by(deadline);
        Some(index)
    }

    /// The connection over TCP that a link's peer calls by that number.
    pub fn met_find(&self, link: u32, number: u64) -> Option<u32> {
        let mut at = self.met.first(met_key(link, number));
        while at != NONE {
            let connection = &self.connections[at as usize];
            if connection.link == link && connection.peer.connection == number {
                return Some(at);
            }
            at = connection.met_next;
        }
        None
    }

    /// Makes a connection known by what the peer calls it.
    pub fn met_insert(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let head = self.met.head(met_key(connection.link, connection.peer.connection));
        connection.met_next = core::mem::replace(head, index);
    }

    /// Forgets what the peer calls a connection.
    pub fn met_remove(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let next = connection.met_next;
        let key = met_key(connection.link, connection.peer.connection);
        let mut at = self.met.first(key);
        if at == index {
            *self.met.head(key) = next;
            return;
        }
        while self.connections[at as usize].met_next != index {
            at = self.connections[at as usize].met_next;
        }
        self.connections[at as usize].met_next = next;
    }

    /// Makes the connection once all of its streams are here, and the link stands.
    fn gathered(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let here = self.streams[index as usize].iter().flatten().count();
        let link = connection.link;
        let whole = here == usize::from(connection.stream_count) && connection.streams_asked;
        if !whole || self.links[link as usize].phase != LinkPhase::Ready || self.awaits_ports(index)
        {
            return;
        }
        if self.is_given_up(index) {
            self.gathering_end(index);
            return;
        }
        let hello = self.connections[index as usize].peer;
        if !self.is_listener(hello.target) {
            self.gathering_end(index);
            self.part(link, hello.connection, RefuseReason::NoListener);
            return;
        }
        let lanes = self.links[link as usize].lanes.min(hello.data_rails.max(1));
        self.connections[index as usize].lanes = lanes as u8;
        self.pairs_admit(index);
        self.opened(index);
    }

    /// A link stands: connections whose streams were faster are made.
    pub fn gathered_all(&mut self, link: u32) {
        self.each_joined(link, |control, at| {
            if control.connections[at as usize].phase == Phase::Gathering {
                control.gathered(at);
            }
        });
    }

    /// Says a last word to a peer's connection. If one waits already, this one is not said, and the
    /// peer asks again when it sees its stream's end.
    pub fn part(&mut self, link: u32, target: u64, reason: RefuseReason) {
        let entry = &self.links[link as usize];
        if entry.parting.is_some() || entry.phase == LinkPhase::Lost {
            return;
        }
        let body = RefusedHello { target, reason: reason as u32, major: WIRE_MAJOR };
        self.links[link as usize].parting = Some(match reason {
            RefuseReason::Abandoned => Parting::Closed(body),
            _ => Parting::Refused(body),
        });
        self.flush_parting(link);
    }

    /// Closes a connection's streams, of all lanes.
    pub fn streams_close(&mut self, index: u32) {
        self.lanes_close(index);
        let unsent = core::mem::take(&mut self.connections[index as usize].streams_unsent);
        if self.connections[index as usize].stream_count == 0 {
            return;
        }
        for (stream, socket) in self.streams[index as usize].iter_mut().enumerate() {
            let Some(socket) = socket.take() else { continue };
            if unsent & (1 << stream) != 0 {
                self.poller.remove(socket.as_fd());
            }
        }
    }
}

/// Where a peer's connection stands among those that we have met: mixed, because numbers of
/// different peers are alike.
fn met_key(link: u32, number: u64) -> u128 {
    let mixed = (number ^ u64::from(link).rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(mixed >> 32)
}

/// What it means that a stream cannot be dialled, although its link stands.
fn stream_error(error: &io::Error, peer: super::peer::Peer) -> ConnectError {
    match error.raw_os_error() {
        _ if address::is_out_of_descriptors(error) => system(error),
        Some(libc::ECONNREFUSED) => ConnectError::NoListener(peer),
        code => ConnectError::Unreachable(peer, code.unwrap_or(0)),
    }
}
