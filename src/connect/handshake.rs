//! How a link comes to stand, and how it ends (W8.1).
#![forbid(unsafe_code)]

extern crate std;

use super::address;
use super::control::{Control, RETRY, send_refusal};
use super::error::ConnectError;
use super::event::Side;
use super::key::Step;
use super::link::LinkPhase;
use super::memory::{LinkMemory, MemoryError};
use super::os;
use super::peer::Peer;
use super::socket::{DESCRIPTORS_MAX, Received};
use crate::base::sync::Ordering;
use crate::fabric::completion::DownCause;
use crate::wire::DecodeError;
use crate::wire::hello::{FEATURE_DOORBELL, FEATURE_KERNEL_COPY, FEATURE_MEMBARRIER};
use crate::wire::hello::{FRAME_BYTES_MAX, FRAME_BYTES_WRITTEN, Frame, LinkHello, RefuseReason};
use std::io;
use std::os::fd::OwnedFd;

/// Records read from one link at a time, so that one peer cannot hold the lock.
const RECORDS_MAX: usize = 64;

/// Descriptors that came with a record.
type Descriptors = core::array::IntoIter<Option<OwnedFd>, 4>;

impl<M: LinkMemory> Control<M> {
    /// Begins a link to `peer`, or leaves nothing behind.
    pub fn link_open(&mut self, peer: Peer) -> Result<u32, ConnectError> {
        let address = address::Address::new(&self.config.shm_dir, peer.endpoint_id);
        let index = self.link_acquire().ok_or(ConnectError::LinksFull)?;
        let nonce = os::random()
            .map_err(|error| ConnectError::System(error.raw_os_error().unwrap_or(0)))?;
        let deadline = self.deadline();
        let link = &mut self.links[index as usize];
        link.phase = LinkPhase::Dialing;
        link.side = Side::Connector;
        link.address = address;
        link.peer = peer;
        link.nonce = nonce;
        link.deadline = deadline;
        if let Err(error) = self.dial(index) {
            self.link_forget(index);
            return Err(error);
        }
        self.look_by(deadline);
        if self.links[index as usize].phase == LinkPhase::Dialing {
            self.look_by(self.now().after(RETRY));
        }
        Ok(index)
    }

    /// Dials again after the listener's queue was full.
    pub fn dial_again(&mut self, index: u32) {
        if let Err(error) = self.dial(index) {
            self.link_down(index, DownCause::Failed, error);
        }
    }

    fn dial(&mut self, index: u32) -> Result<(), ConnectError> {
        let link = &mut self.links[index as usize];
        let address = link.address.as_ref().expect("a link that we dial has an address");
        let socket = match address.dial() {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(self.dial_error(index, &error)),
        };
        let credentials = socket.credentials();
        link.pid = credentials.map_or(0, |peer| peer.pid);
        link.peer.pid = link.pid.max(0) as u32;
        link.socket = Some(socket);
        match self.say_hello(index) {
            Ok(()) => {}
            // turned away before we spoke: why, is there to be read
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(self.dial_error(index, &error)),
        }
        self.links[index as usize].phase = LinkPhase::HelloSent;
        Ok(())
    }

    fn dial_error(&mut self, index: u32, error: &io::Error) -> ConnectError {
        let link = &self.links[index as usize];
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                if let Some(address) = &link.address {
                    address.remove_if_stale();
                }
                ConnectError::NoListener(link.peer)
            }
            io::ErrorKind::OutOfMemory => ConnectError::Memory,
            _ if address::is_out_of_descriptors(error) => {
                ConnectError::Descriptors(os::descriptor_limit())
            }
            _ => ConnectError::System(error.raw_os_error().unwrap_or(0)),
        }
    }

    /// Makes the arena and sends `LinkHello`.
    fn say_hello(&mut self, index: u32) -> io::Result<()> {
        let arena_bytes = self.rings_bytes * self.connections.len() as u64;
        let arena = self.memory.create_arena(arena_bytes).map_err(|error| match error {
            MemoryError::Exhausted => io::Error::from(io::ErrorKind::OutOfMemory),
            MemoryError::Descriptors => io::Error::from_raw_os_error(libc::EMFILE),
            MemoryError::System(code) => io::Error::from_raw_os_error(code),
        })?;
        let link = &mut self.links[index as usize];
        link.arena = Some(arena);
        link.arena_bytes = arena_bytes;
        self.watch_socket(index)?;
        self.watch(index)?;
        self.memory.allow_tracer();
        let hello = LinkHello { arena_bytes, ..self.hello_of(index) };
        let hello = self.signed(index, Step::Hello, hello);
        self.send_hello(index, &Frame::LinkHello(hello))
    }

    /// What every hello on a link says.
    fn hello_of(&self, index: u32) -> LinkHello {
        let link = &self.links[index as usize];
        let doorbell = if self.memory.doorbell().is_some() { FEATURE_DOORBELL } else { 0 };
        let membarrier = if self.config.membarrier { FEATURE_MEMBARRIER } else { 0 };
        let copy = if link.copies { FEATURE_KERNEL_COPY } else { 0 };
        let (low, high) = self.name.split_at(16);
        let number = |half: &[u8]| half.iter().rev().fold(0, |n, b| n << 8 | u128::from(*b));
        LinkHello {
            node_id: self.node_id,
            endpoint_id: self.endpoint_id,
            peer_endpoint_id: link.peer.endpoint_id,
            features: doorbell | membarrier | copy,
            pid: std::process::id(),
            page_bytes: os::page_bytes() as u32,
            probe_address: core::ptr::from_ref(&*self.probe) as u64,
            probe_word: self.probe.load(Ordering::Relaxed),
            arena_bytes: 0,
            heap_bytes: self.memory.heap().map_or(0, |(_, bytes)| bytes),
            name_low: number(low),
            name_high: number(high),
            rails: crate::wire::hello::RAIL_SHM,
            ..LinkHello::ZERO
        }
    }

    /// Sends a hello with the descriptors that belong to it: a fresh socket has room for it.
    fn send_hello(&self, index: u32, frame: &Frame) -> io::Result<()> {
        let link = &self.links[index as usize];
        let Some(socket) = &link.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = frame.encode(&mut bytes);
        if matches!(frame, Frame::LinkReady(_)) {
            return socket.send(&bytes[..length], &[]);
        }
        let mut descriptors = [self.poller.as_fd(); DESCRIPTORS_MAX];
        let mut count = 0;
        let arena = match link.side {
            Side::Connector => link.arena.as_ref().map(|arena| self.memory.arena_fd(arena)),
            Side::Listener => None,
        };
        let heap = self.memory.heap().map(|(fd, _)| fd);
        for fd in [arena, heap, self.memory.doorbell()].into_iter().flatten() {
            descriptors[count] = fd;
            count += 1;
        }
        socket.send(&bytes[..length], &descriptors[..count])
    }

    /// A link's socket is readable, or has room again.
    pub fn link_ready(&mut self, index: u32) {
        if self.links[index as usize].blocked {
            self.flush_link(index);
        }
        self.pump(index);
    }

    /// Reads records from a link; `true`: there may be more.
    pub fn pump(&mut self, index: u32) -> bool {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let mut reset = false;
        for _ in 0..RECORDS_MAX {
            let link = &self.links[index as usize];
            let Some(socket) = &link.socket else { return false };
            if link.refusal.is_some() {
                return false;
            }
            match socket.receive(&mut bytes) {
                Ok(received) if received.length == 0 => {
                    self.link_ended(index);
                    return false;
                }
                Ok(received) => self.record(index, &bytes[..received.length], received),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted => {}
                    // said once when the peer closed with records of ours unread; what it had sent
                    // before is still there
                    io::ErrorKind::ConnectionReset if !reset => reset = true,
                    _ => {
                        self.link_ended(index);
                        return false;
                    }
                },
            }
        }
        true
    }

    /// The peer's end of the socket is closed.
    fn link_ended(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let peer = link.peer;
        let error = match link.phase {
            // its listening socket went away before it looked at us
            LinkPhase::HelloSent => ConnectError::NoListener(peer),
            _ => ConnectError::PeerDied(peer),
        };
        self.link_down(index, DownCause::Died, error);
    }

    fn record(&mut self, index: u32, bytes: &[u8], received: Received) {
        let phase = self.links[index as usize].phase;
        self.hearing_note(index);
        let descriptors_lost = received.descriptors_lost;
        let descriptors = received.descriptors.into_iter();
        match (Frame::decode(bytes), phase) {
            (Ok(Frame::LinkHello(hello)), LinkPhase::Greeting) => {
                self.hello(index, &hello, descriptors, descriptors_lost);
            }
            (Ok(Frame::LinkReply(hello)), LinkPhase::HelloSent) => {
                self.reply(index, &hello, descriptors, descriptors_lost);
            }
            (Ok(Frame::LinkReady(hello)), LinkPhase::ReplySent) => self.ready(index, &hello),
            (Ok(Frame::Refused(refused)), LinkPhase::HelloSent | LinkPhase::ReplySent) => {
                self.link_refused(index, &refused);
            }
            (Ok(frame), LinkPhase::Ready) => self.dialog(index, &frame),
            (Err(DecodeError::Version(major)), _) => self.other_version(index, major),
            (Ok(_) | Err(_), _) => self.nonsense(index),
        }
    }

    /// A peer of another major version: it is told ours, and the link ends.
    fn other_version(&mut self, index: u32, major: u16) {
        let link = &self.links[index as usize];
        if let (Some(socket), LinkPhase::Greeting) = (&link.socket, link.phase) {
            send_refusal(socket, 0, RefuseReason::Version);
        }
        self.link_down(index, DownCause::Failed, ConnectError::Version(major));
    }

    /// What came is not what a peer may say now: only this socket is dropped.
    pub fn nonsense(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let peer = link.peer;
        if link.phase == LinkPhase::Greeting {
            self.stranger();
        }
        self.link_down(index, DownCause::Failed, ConnectError::Protocol(peer));
    }

    /// `LinkHello` has come.
    fn hello(&mut self, index: u32, hello: &LinkHello, mut fds: Descriptors, lost: bool) {
        let link = &mut self.links[index as usize];
        link.peer = Peer::of(hello, link.pid);
        link.peer_nonce = hello.nonce;
        let nonce = os::random();
        link.nonce = *nonce.as_ref().unwrap_or(&0);
        let result = if hello.peer_endpoint_id != self.endpoint_id {
            Err(RefuseReason::NoListener)
        } else if nonce.is_err() {
            Err(RefuseReason::Protocol)
        } else if !self.proves(index, Step::Hello, hello) {
            self.key_stranger(index);
            Err(RefuseReason::Key)
        } else if lost {
            Err(RefuseReason::Descriptors)
        } else {
            self.adopt_arena(index, hello, &mut fds)
                .and_then(|()| self.adopt(index, hello, &mut fds))
        };
        if let Err(reason) = result {
            if let Some(socket) = &self.links[index as usize].socket {
                send_refusal(socket, 0, reason);
            }
            let peer = self.links[index as usize].peer;
            self.link_down(index, DownCause::Failed, ConnectError::Protocol(peer));
            return;
        }
        let reply = Frame::LinkReply(self.signed(index, Step::Reply, self.hello_of(index)));
        if self.watch(index).and_then(|()| self.send_hello(index, &reply)).is_err() {
            self.link_ended(index);
            return;
        }
        self.links[index as usize].phase = LinkPhase::ReplySent;
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
        link.peer_nonce = hello.nonce;
        if !self.proves(index, Step::Reply, hello) {
            self.key_refuse(index);
            return;
        }
        let adopted =
            if lost { Err(RefuseReason::Descriptors) } else { self.adopt(index, hello, &mut fds) };
        if let Err(reason) = adopted {
            let error = match reason {
                RefuseReason::Descriptors => ConnectError::Descriptors(os::descriptor_limit()),
                _ => ConnectError::Memory,
            };
            self.link_down(index, DownCause::Failed, error);
            return;
        }
        let ready = Frame::LinkReady(self.signed(index, Step::Ready, self.hello_of(index)));
        if self.send_hello(index, &ready).is_err() {
            self.link_ended(index);
            return;
        }
        self.links[index as usize].phase = LinkPhase::Ready;
        self.counters.links += 1;
        self.hearing_start(index);
        self.ask_all(index);
    }

    /// `LinkReady` has come.
    fn ready(&mut self, index: u32, hello: &LinkHello) {
        if !self.proves(index, Step::Ready, hello) {
            self.key_refuse(index);
            return;
        }
        let link = &mut self.links[index as usize];
        // now the peer knows whether it can read our memory
        link.features = hello.features;
        link.phase = LinkPhase::Ready;
        self.counters.links += 1;
        self.hearing_start(index);
    }

    /// Maps the connector's arena.
    fn adopt_arena(
        &mut self,
        index: u32,
        hello: &LinkHello,
        fds: &mut Descriptors,
    ) -> Result<(), RefuseReason> {
        let fd = fds.next().flatten().ok_or(RefuseReason::Protocol)?;
        let arena = self.memory.map_arena(fd, hello.arena_bytes).map_err(refuse)?;
        let link = &mut self.links[index as usize];
        link.arena = Some(arena);
        link.arena_bytes = hello.arena_bytes;
        Ok(())
    }

    /// Takes what both hellos bring, and tries to read the writer's memory.
    fn adopt(
        &mut self,
        index: u32,
        hello: &LinkHello,
        fds: &mut Descriptors,
    ) -> Result<(), RefuseReason> {
        if hello.heap_bytes != 0 {
            let fd = fds.next().flatten().ok_or(RefuseReason::Protocol)?;
            let heap = self.memory.map_heap(fd, hello.heap_bytes).map_err(refuse)?;
            self.links[index as usize].heap = Some((heap, hello.heap_bytes));
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
        let peer = self.links[index as usize].peer;
        match reason {
            RefuseReason::NoListener => ConnectError::NoListener(peer),
            RefuseReason::Full => ConnectError::PeerFull(peer),
            RefuseReason::Version => ConnectError::Version(major),
            RefuseReason::Memory => ConnectError::PeerMemory(peer),
            RefuseReason::Descriptors => ConnectError::PeerDescriptors(peer),
            RefuseReason::Closed | RefuseReason::Abandoned => ConnectError::PeerDied(peer),
            RefuseReason::Key => ConnectError::Key(peer),
            RefuseReason::Rail => ConnectError::Rail(peer),
            RefuseReason::Protocol => ConnectError::Protocol(peer),
        }
    }
}

fn refuse(error: MemoryError) -> RefuseReason {
    match error {
        MemoryError::Exhausted | MemoryError::System(_) => RefuseReason::Memory,
        MemoryError::Descriptors => RefuseReason::Descriptors,
    }
}
