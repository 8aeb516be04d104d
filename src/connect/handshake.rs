//! How a link comes to stand, and how it ends (W8.1).
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::connection::NONE;
use super::control::Control;
use super::dialing::Miss;
use super::ending::Ending;
use super::entry::Waits;
use super::error::{ConnectError, KeyCause};
use super::event::{Rail, Side};
use super::link::{ADDRESSES_AT, LinkPhase, UNSENT_AT, UNSENT_BYTES_MAX};
use super::memory::{LinkMemory, MemoryError};
use super::os;
use super::peer::Peer;
use super::socket::{DESCRIPTORS_MAX, Received};
use super::trust::UserCause;
use crate::base::sync::Ordering;
use crate::fabric::completion::DownCause;
use crate::wire::hello::{AddressList, FEATURE_DOORBELL, FEATURE_KERNEL_COPY, FEATURE_MEMBARRIER};
use crate::wire::hello::{FRAME_BYTES_WRITTEN, Frame, FrameHeader, FrameKind, LinkHello};
use crate::wire::hello::{RAIL_SHM, RAIL_TCP, RefuseReason, RefusedHello};
use crate::wire::{DecodeError, WIRE_MAJOR};
use std::io;
use std::os::fd::OwnedFd;

/// Descriptors that came with a record.
pub(super) type Descriptors = core::array::IntoIter<Option<OwnedFd>, 4>;

impl<M: LinkMemory> Control<M> {
    /// What every hello on a link says.
    pub fn hello_of(&self, index: u32) -> LinkHello {
        let link = &self.links[index as usize];
        let (low, high) = self.name.split_at(16);
        let number = |half: &[u8]| half.iter().rev().fold(0, |n, b| n << 8 | u128::from(*b));
        let hello = LinkHello {
            node_id: self.node_id,
            endpoint_id: self.endpoint_id,
            peer_endpoint_id: link.peer.endpoint_id,
            pid: std::process::id(),
            page_bytes: os::page_bytes() as u32,
            name_low: number(low),
            name_high: number(high),
            nonce: link.nonce,
            rails: self.config.rails,
            streams: link.streams,
            lanes: match link.rail {
                Rail::Shm => 0,
                Rail::Tcp => self.config.lanes_max,
            },
            ..LinkHello::ZERO
        };
        if link.rail == Rail::Tcp {
            return hello;
        }
        let doorbell = if self.memory.doorbell().is_some() { FEATURE_DOORBELL } else { 0 };
        let membarrier = if self.config.membarrier { FEATURE_MEMBARRIER } else { 0 };
        let copy = if link.copies { FEATURE_KERNEL_COPY } else { 0 };
        LinkHello {
            features: doorbell | membarrier | copy,
            probe_address: core::ptr::from_ref(&*self.probe) as u64,
            probe_word: self.probe.load(Ordering::Relaxed),
            arena_bytes: link.arena_bytes,
            heap_bytes: self.memory.heap().map_or(0, |(_, bytes)| bytes),
            ..hello
        }
    }

    /// Sends a hello with the descriptors that belong to it: a fresh socket has room for it.
    pub fn send_hello(&mut self, index: u32, frame: &Frame) -> io::Result<()> {
        let link = &self.links[index as usize];
        let frame = self.proved(index, frame);
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = frame.encode(&mut bytes);
        let socket = match &link.socket {
            Some(Channel::Record(socket)) => socket,
            Some(Channel::Stream(_)) => return self.send_stream(index, &frame),
            None => return Err(io::ErrorKind::NotConnected.into()),
        };
        if matches!(frame, Frame::LinkReady(_)) {
            return socket.send(&bytes[..length], &[]);
        }
        let mut descriptors = [self.poller.as_fd(); DESCRIPTORS_MAX];
        let mut count = 0;
        let arena = link.arena.as_ref().map(|arena| self.memory.arena_fd(arena));
        let heap = self.memory.heap().map(|(fd, _)| fd);
        for fd in [arena, heap, self.memory.doorbell()].into_iter().flatten() {
            descriptors[count] = fd;
            count += 1;
        }
        socket.send(&bytes[..length], &descriptors[..count])
    }

    /// A hello with our proof.
    fn proved(&self, index: u32, frame: &Frame) -> Frame {
        let prove = |hello: &LinkHello, kind| {
            let (proof_low, proof_high) = self.link_proof(index, kind);
            let resume = match self.links[index as usize].resumes {
                NONE => 0,
                lost => self.resume_proof(index, lost, kind),
            };
            LinkHello { proof_low, proof_high, resume, ..*hello }
        };
        match frame {
            Frame::LinkHello(hello) => Frame::LinkHello(prove(hello, FrameKind::LinkHello)),
            Frame::LinkReply(hello) => Frame::LinkReply(prove(hello, FrameKind::LinkReply)),
            Frame::LinkReady(hello) => Frame::LinkReady(prove(hello, FrameKind::LinkReady)),
            other => *other,
        }
    }

    /// Sends a hello on a stream, and behind those that answer one our ports, if the peer wants
    /// them, and all our addresses. What does not fit is kept.
    fn send_stream(&mut self, index: u32, frame: &Frame) -> io::Result<()> {
        let mut bytes = [0; UNSENT_BYTES_MAX];
        let mut part = [0; FRAME_BYTES_WRITTEN];
        let mut length = frame.encode(&mut part);
        bytes[..length].copy_from_slice(&part[..length]);
        let ports = self.links[index as usize].has_ports.then_some(Frame::Ports(self.config.ports));
        let addresses = Frame::Addresses(self.own_addresses());
        if !matches!(frame, Frame::LinkHello(_)) {
            for more in ports.into_iter().chain([addresses]) {
                let more = more.encode(&mut part);
                bytes[length..length + more].copy_from_slice(&part[..more]);
                length += more;
            }
        }
        self.send_bytes(index, &bytes[..length])
    }

    /// Sends bytes on a link whose buffer is empty, and keeps what a stream has no room for.
    ///
    /// *Errors*: `WouldBlock`: nothing was sent or kept.
    pub fn send_bytes(&mut self, index: u32, bytes: &[u8]) -> io::Result<()> {
        let link = &mut self.links[index as usize];
        let Some(socket) = &link.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let sent = socket.send(bytes).inspect_err(|error| {
            // said once: who reads afterwards sees an end without a cause
            link.failed(error);
        })?;
        let rest = &bytes[sent..];
        if !rest.is_empty() {
            let at = index as usize * super::link::BUFFER_BYTES + UNSENT_AT;
            self.buffers[at..at + rest.len()].copy_from_slice(rest);
            link.unsent = rest.len();
            link.blocked = true;
            self.interest(index);
        }
        Ok(())
    }

    /// Our addresses, with the ports at which we answer; without, where we do not listen.
    pub fn own_addresses(&self) -> AddressList {
        match &self.listening {
            Some(listening) => listening.answered(&self.config.addresses),
            None => self.config.addresses,
        }
    }

    /// The peer's end of the socket is closed, or the socket broke.
    pub fn link_ended(&mut self, index: u32, ending: Ending) {
        let ending = self.silence_before(index).map_or(ending, |silent| ending.after(silent));
        self.links[index as usize].ending = Some(ending);
        let link = &self.links[index as usize];
        let path = link.is_path_dead();
        if link.phase == LinkPhase::HelloSent {
            // it went away before it looked at us, or had no room to greet us
            self.missed(index, if path { Miss::Code(link.code) } else { Miss::Dropped });
            return;
        }
        if path || self.is_resumed(index) {
            self.link_silent(index);
            return;
        }
        if link.rail == Rail::Tcp && link.phase == LinkPhase::Ready {
            // its goodbye may have been lost with the socket
            self.attempts_move(index);
        }
        // also when the socket was reset: a process that ends with unread bytes does that
        self.link_broken(index);
    }

    /// A whole frame has come on a link.
    pub fn record(&mut self, index: u32, bytes: &[u8], received: Option<Received>) {
        let phase = self.links[index as usize].phase;
        self.hearing_note(index);
        let (descriptors_lost, descriptors) = match received {
            Some(received) => (received.descriptors_lost, received.descriptors),
            None => (false, [const { None }; 4]),
        };
        let waits = self.links[index as usize].entry.waits;
        match (Frame::decode(bytes), phase) {
            (Ok(Frame::Challenge(hello)), _) if waits == Waits::Challenge => {
                self.challenged(index, &hello);
            }
            (Ok(Frame::Proved(hello)), _) if waits == Waits::Proof => {
                self.door_opened(index, &hello);
            }
            (Ok(Frame::LinkReply(hello)), LinkPhase::HelloSent) if waits == Waits::Nothing => {
                let minor = FrameHeader::decode(bytes).map_or(0, |(_, minor, _)| minor);
                self.links[index as usize].peer_minor = minor;
                self.reply(index, &hello, descriptors.into_iter(), descriptors_lost);
            }
            (Ok(Frame::LinkReady(hello)), LinkPhase::ReplySent) => self.ready(index, &hello),
            (Ok(Frame::Refused(refused)), LinkPhase::HelloSent) => {
                self.link_refused(index, &refused);
            }
            (Ok(frame), LinkPhase::Ready) => self.dialog(index, &frame),
            (Err(DecodeError::Version(major)), _) => self.other_version(index, major),
            (Ok(_) | Err(_), _) => self.nonsense(index),
        }
    }

    /// The listener has said no to a link that we open.
    fn link_refused(&mut self, index: u32, refused: &RefusedHello) {
        let reason = RefuseReason::from_wire(refused.reason);
        let at_door = self.links[index as usize].entry.waits != Waits::Nothing;
        match reason {
            RefuseReason::Closed if self.resume_refused(index) => return,
            // another endpoint has that port now
            RefuseReason::NoListener if self.is_remote(index) => {
                return self.missed(index, Miss::Code(libc::ECONNREFUSED));
            }
            RefuseReason::NoListener if at_door => return self.door_closed(index),
            RefuseReason::Version if at_door && refused.major == WIRE_MAJOR => {
                return self.local_version(index);
            }
            _ => {}
        }
        match self.refusal_error(index, reason, refused.major) {
            error @ (ConnectError::User(..) | ConnectError::Rail { .. }) => {
                self.turned_away(index, error);
            }
            error => self.link_down(index, DownCause::Failed, error),
        }
    }

    fn is_remote(&self, index: u32) -> bool {
        self.links[index as usize].rail == Rail::Tcp
    }

    /// A peer of another major version.
    fn other_version(&mut self, index: u32, major: u16) {
        self.link_down(index, DownCause::Failed, ConnectError::Version(major));
    }

    /// What came is not what a peer may say now: only this socket is dropped.
    pub fn nonsense(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let peer = link.peer;
        if link.phase == LinkPhase::HelloSent && link.rail == Rail::Tcp {
            // somebody else's server
            self.missed(index, Miss::Code(libc::EPROTO));
            return;
        }
        if !self.link_damaged(index) {
            self.link_down(index, DownCause::Failed, ConnectError::Protocol(peer));
        }
    }

    /// `LinkHello` has come.
    pub fn hello(&mut self, index: u32, hello: &LinkHello, mut fds: Descriptors, lost: bool) {
        let result = self.hello_check(index, hello).and_then(|()| {
            if lost {
                return Err(RefuseReason::Descriptors);
            }
            if self.is_remote(index) {
                return Ok(());
            }
            self.links[index as usize].arena_bytes = hello.arena_bytes;
            self.adopt(index, hello, &mut fds)?;
            self.answer_arena(index)
        });
        if let Err(reason) = result {
            if let Some(socket) = &self.links[index as usize].socket {
                socket.refuse(0, reason);
            }
            match reason {
                RefuseReason::NoListener => {
                    let link = &self.links[index as usize];
                    self.stranger(link.socket.as_ref().and_then(Channel::remote));
                }
                RefuseReason::Descriptors => self.descriptors_short(),
                RefuseReason::Memory => self.memory_short(),
                _ => {}
            }
            self.link_forget(index);
            return;
        }
        if self.links[index as usize].resumes == NONE {
            self.link_chain(index);
        }
        let reply = Frame::LinkReply(self.hello_of(index));
        if let Err(error) = self.watch(index).and_then(|()| self.send_hello(index, &reply)) {
            self.link_ended(index, Ending::of(&error));
        }
    }

    /// Whether a `LinkHello` means us, and may.
    fn hello_check(&mut self, index: u32, hello: &LinkHello) -> Result<(), RefuseReason> {
        if hello.peer_endpoint_id != self.endpoint_id {
            return Err(RefuseReason::NoListener);
        }
        self.take_hello(index, hello)?;
        self.link_verify(index, FrameKind::LinkHello, hello)?;
        if hello.resume != 0 && self.is_remote(index) {
            let lost = self.resume_find(index, hello).ok_or(RefuseReason::Closed)?;
            self.links[index as usize].resumes = lost;
        }
        let link = &mut self.links[index as usize];
        link.nonce = os::random().map_err(|_| RefuseReason::Memory)?;
        Ok(())
    }

    /// What both hellos say besides memory.
    fn take_hello(&mut self, index: u32, hello: &LinkHello) -> Result<(), RefuseReason> {
        let link = &mut self.links[index as usize];
        let rail = match link.rail {
            Rail::Shm => RAIL_SHM,
            Rail::Tcp => RAIL_TCP,
        };
        // a peer of minor 0 knows shared memory alone, and says nothing
        let theirs = if hello.rails == 0 { RAIL_SHM } else { hello.rails };
        if theirs & self.config.rails & rail == 0 {
            return Err(RefuseReason::Rail);
        }
        if link.rail == Rail::Tcp && hello.nonce == 0 && link.peer_minor >= 1 {
            return Err(RefuseReason::Protocol);
        }
        link.peer_nonce = hello.nonce;
        link.streams = link.streams.min(hello.streams.max(1));
        if link.rail == Rail::Tcp {
            link.lanes = self.config.lanes_max.min(hello.lanes.max(1));
        }
        self.ports_take(index, hello.rails);
        Ok(())
    }

    /// `LinkReply` has come.
    fn reply(&mut self, index: u32, hello: &LinkHello, mut fds: Descriptors, lost: bool) {
        let link = &mut self.links[index as usize];
        let meant = hello.endpoint_id == link.peer.endpoint_id
            && hello.peer_endpoint_id == self.endpoint_id;
        if !meant {
            self.nonsense(index);
            return;
        }
        link.peer = Peer::of(hello, link.pid);
        let adopted = self.take_hello(index, hello).and_then(|()| {
            self.link_verify(index, FrameKind::LinkReply, hello)?;
            self.resume_check(index, FrameKind::LinkReply, hello)?;
            if lost {
                return Err(RefuseReason::Descriptors);
            }
            if self.is_remote(index) { Ok(()) } else { self.adopt(index, hello, &mut fds) }
        });
        if let Err(reason) = adopted {
            if reason == RefuseReason::Rail {
                let error = self.rail_error(index, hello.rails);
                self.turned_away(index, error);
                return;
            }
            let peer = self.links[index as usize].named();
            let error = match reason {
                RefuseReason::Descriptors => ConnectError::Descriptors(os::descriptor_limit()),
                RefuseReason::Key => {
                    ConnectError::Key(peer, self.key_cause((hello.proof_low, hello.proof_high)))
                }
                RefuseReason::Protocol => ConnectError::Protocol(peer),
                _ => ConnectError::Memory,
            };
            self.link_down(index, DownCause::Failed, error);
            return;
        }
        if let Some(Channel::Stream(socket)) = &self.links[index as usize].socket {
            // what it was dialled with was the handshake's deadline; refused, it stays that
            let _ = socket.give_up_after(self.silence_ms());
        }
        let ready = Frame::LinkReady(self.hello_of(index));
        if self.send_hello(index, &ready).is_err() {
            // it has gone, or needed our place for another: dialling again tells
            self.missed(index, Miss::Dropped);
            return;
        }
        if self.links[index as usize].resumes != NONE {
            self.resumed(index);
            return;
        }
        self.link_phase(index, LinkPhase::Ready);
        self.counters.links += 1;
        self.hearing_start(index);
        if self.links[index as usize].is_askable() {
            self.ask_all(index);
        }
    }

    /// `LinkReady` has come.
    fn ready(&mut self, index: u32, hello: &LinkHello) {
        let verified = self.link_verify(index, FrameKind::LinkReady, hello);
        let verified =
            verified.and_then(|()| self.resume_check(index, FrameKind::LinkReady, hello));
        if let Err(reason) = verified {
            if let Some(socket) = &self.links[index as usize].socket {
                socket.refuse(0, reason);
            }
            let peer = self.links[index as usize].named();
            let error =
                ConnectError::Key(peer, self.key_cause((hello.proof_low, hello.proof_high)));
            self.link_down(index, DownCause::Failed, error);
            return;
        }
        if self.links[index as usize].resumes != NONE {
            self.resumed(index);
            return;
        }
        // now the peer knows whether it can read our memory
        self.links[index as usize].features = hello.features;
        self.link_phase(index, LinkPhase::Ready);
        self.counters.links += 1;
        self.hearing_start(index);
        self.gathered_all(index);
    }

    /// The peer's addresses, kept for lanes that come later. Connections that waited for them are
    /// asked for.
    pub fn addresses(&mut self, index: u32, list: &AddressList) {
        if !self.links[index as usize].has_streams() {
            return;
        }
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::Addresses(*list).encode(&mut bytes);
        let at = index as usize * super::link::BUFFER_BYTES + ADDRESSES_AT;
        self.buffers[at..at + length].copy_from_slice(&bytes[..length]);
        let link = &mut self.links[index as usize];
        let known = core::mem::replace(&mut link.addressed, true);
        if !known && link.side == Side::Connector && link.is_askable() {
            self.ask_all(index);
        }
    }

    /// The addresses that the peer of a link has said.
    pub fn addresses_of(&self, index: u32) -> AddressList {
        let at = index as usize * super::link::BUFFER_BYTES + ADDRESSES_AT;
        let bytes = self.buffers.get(at..at + FRAME_BYTES_WRITTEN);
        match bytes.map(Frame::decode) {
            Some(Ok(Frame::Addresses(list))) => list,
            _ => AddressList::EMPTY,
        }
    }

    /// Makes our arena where a connector has brought its own: as long, since rings of a connection
    /// lie at the same place of both.
    fn answer_arena(&mut self, index: u32) -> Result<(), RefuseReason> {
        let bytes = self.links[index as usize].arena_bytes;
        let arena = self.memory.create_arena(bytes).map_err(|error| self.refuse(error))?;
        self.links[index as usize].arena = Some(arena);
        Ok(())
    }

    /// Takes what both hellos bring, and tries to read the writer's memory.
    fn adopt(
        &mut self,
        index: u32,
        hello: &LinkHello,
        fds: &mut Descriptors,
    ) -> Result<(), RefuseReason> {
        if hello.arena_bytes != self.links[index as usize].arena_bytes {
            return Err(RefuseReason::Protocol);
        }
        let fd = fds.next().flatten().ok_or(RefuseReason::Protocol)?;
        let arena = self.memory.map_arena(fd, hello.arena_bytes);
        let arena = arena.map_err(|error| self.refuse(error))?;
        self.links[index as usize].peer_arena = Some(arena);
        if hello.heap_bytes != 0 {
            let fd = fds.next().flatten().ok_or(RefuseReason::Protocol)?;
            let heap = self.memory.map_heap(fd, hello.heap_bytes);
            let heap = heap.map_err(|error| self.refuse(error))?;
            self.links[index as usize].heap = Some(heap);
        }
        if hello.features & FEATURE_DOORBELL != 0 {
            let fd = fds.next().flatten().ok_or(RefuseReason::Protocol)?;
            self.links[index as usize].doorbell = Some(fd);
        }
        self.memory.allow_tracer();
        let pid = self.links[index as usize].pid;
        let copies = pid > 0 && self.memory.probe(pid, hello.probe_address, hello.probe_word);
        let link = &mut self.links[index as usize];
        link.copies = copies;
        link.features = hello.features;
        Ok(())
    }

    /// What a refusal means to who asked.
    pub fn refusal_error(&self, index: u32, reason: RefuseReason, major: u16) -> ConnectError {
        let peer = self.links[index as usize].named();
        match reason {
            RefuseReason::NoListener => ConnectError::NoListener(peer),
            RefuseReason::Full => ConnectError::PeerFull(peer),
            RefuseReason::Version => ConnectError::Version(major),
            RefuseReason::Memory => ConnectError::PeerMemory(peer),
            RefuseReason::Descriptors => ConnectError::PeerDescriptors(peer),
            RefuseReason::Closed | RefuseReason::Abandoned => ConnectError::PeerDied(peer),
            RefuseReason::Key => ConnectError::Key(
                peer,
                match self.config.trust.key {
                    // it has refused what proves nothing
                    None => KeyCause::NoneHere,
                    Some(_) => KeyCause::Unclear,
                },
            ),
            RefuseReason::User => ConnectError::User(peer, UserCause::Ours(os::user())),
            RefuseReason::Rail => self.rail_error(index, 0),
            RefuseReason::Protocol => ConnectError::Protocol(peer),
        }
    }
}

impl<M: LinkMemory> Control<M> {
    /// No rail is allowed by both; `said`: what the peer's hello says of its own.
    fn rail_error(&self, index: u32, said: u32) -> ConnectError {
        let link = &self.links[index as usize];
        let theirs = if said != 0 { said } else { link.peer_rails };
        let same_host = link.peer.node_id == self.node_id;
        ConnectError::Rail { peer: link.named(), ours: self.config.rails, theirs, same_host }
    }

    /// What a peer is told whose memory we cannot have.
    fn refuse(&mut self, error: MemoryError) -> RefuseReason {
        match error {
            MemoryError::Exhausted => RefuseReason::Memory,
            MemoryError::Descriptors => RefuseReason::Descriptors,
            MemoryError::System(code) => {
                self.shared_refused(code);
                RefuseReason::Rail
            }
        }
    }
}
