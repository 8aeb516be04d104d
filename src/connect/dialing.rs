//! How a connector reaches a listener: on its host first, then at its addresses in turn.
#![forbid(unsafe_code)]

use super::address::{self, Address};
use super::channel::Channel;
use super::connection::NONE;
use super::control::{Control, RETRY, TOKEN_LINK};
use super::entry::Waits;
use super::error::ConnectError;
use super::event::{Rail, Side};
use super::link::LinkPhase;
use super::memory::{LinkMemory, MemoryError};
use super::note::Note;
use super::os;
use super::peer::Peer;
use super::route::Route;
use super::stream::StreamSocket;
use super::way::Way;
use crate::base::units::Instant;
use crate::fabric::completion::DownCause;
use crate::wire::handle::{Family, HANDLE_LOCAL, ListenHandle};
use crate::wire::hello::{Frame, RAIL_SHM, RAIL_TCP};
use std::io;
use std::os::fd::AsFd;

/// Why an address did not answer as a listener does.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Miss {
    /// The kernel's code, or one that says it best: the next address is tried.
    Code(i32),
    /// The socket closed before it answered: a listener drops whom it has no room to greet, so the
    /// same address is tried again.
    Dropped,
}

impl<M: LinkMemory> Control<M> {
    /// Begins a link to who listens there, or leaves nothing behind.
    pub fn link_open(
        &mut self,
        handle: &ListenHandle,
        deadline: Instant,
    ) -> Result<u32, ConnectError> {
        let says_local = handle.flags & HANDLE_LOCAL != 0;
        let same_host = handle.node_id == self.node_id;
        let local = same_host && says_local && self.config.rails & RAIL_SHM != 0;
        let route = match self.config.rails & RAIL_TCP {
            0 => Route::NONE,
            _ => {
                let mut route = Route::to(handle, self.config.addresses.as_slice(), same_host);
                if let Some(lost) = self.path_lost(handle.endpoint_id) {
                    route.put_last(lost);
                }
                route
            }
        };
        let peer =
            Peer { node_id: handle.node_id, endpoint_id: handle.endpoint_id, ..Peer::default() };
        let theirs = rails_of(handle, says_local);
        if same_host && self.config.rails & RAIL_SHM != 0 && handle.is_of_older_door() {
            if route.is_empty() {
                return Err(ConnectError::LocalVersion(peer));
            }
            (self.config.note)(Note::LocalVersion(peer));
        }
        if !local && route.is_empty() {
            let ours = self.config.rails;
            return Err(match same_host || ours & RAIL_TCP != 0 {
                true => ConnectError::Rail { peer, ours, theirs, same_host },
                false if self.config.without_interface => ConnectError::NoInterface,
                false => ConnectError::OtherHost,
            });
        }
        let nonce = os::random().map_err(|error| system(&error))?;
        let index = self.link_acquire().ok_or(ConnectError::LinksFull)?;
        let link = &mut self.links[index as usize];
        link.side = Side::Connector;
        link.rail = if local { Rail::Shm } else { Rail::Tcp };
        link.address =
            local.then(|| Address::new(&self.config.shm_dir, handle.endpoint_id)).flatten();
        link.entry.listener = handle.listener;
        link.route = route;
        link.nonce = nonce;
        link.peer = peer;
        link.peer_rails = theirs;
        link.deadline = deadline;
        self.link_phase(index, LinkPhase::Dialing);
        self.link_chain(index);
        let now = self.now();
        self.links[index as usize].route.begin(now, deadline);
        self.look_by(deadline);
        if let Err(error) = self.dial(index) {
            self.link_forget(index);
            return Err(error);
        }
        Ok(index)
    }

    /// Dials, and again after the listener's queue was full or its door had closed.
    fn dial(&mut self, index: u32) -> Result<(), ConnectError> {
        if self.links[index as usize].rail == Rail::Tcp {
            return self.dial_remote(index);
        }
        match self.dial_local(index) {
            Ok(()) => {
                if self.links[index as usize].phase == LinkPhase::Dialing {
                    self.look_by(self.now().after(RETRY));
                }
                Ok(())
            }
            Err(error) => self.dial_otherwise(index, error),
        }
    }

    /// Shared memory does not lead to the listener: the network may.
    fn dial_otherwise(&mut self, index: u32, error: ConnectError) -> Result<(), ConnectError> {
        match error {
            // what runs out is short over the network, too
            ConnectError::Descriptors(_) | ConnectError::Memory => return Err(error),
            _ if !self.has_route(index) => return Err(error),
            // another network namespace, a host that was cloned with its number, or a socket that
            // is another user's
            ConnectError::NoListener(_) | ConnectError::System(libc::EACCES | libc::EPERM) => {}
            ConnectError::System(code) => self.shared_refused(code),
            ConnectError::SharedMemory => self.shared_refused(0),
            // it was said, here or there
            _ => {}
        }
        self.link_unplug(index);
        self.link_phase(index, LinkPhase::Dialing);
        let link = &mut self.links[index as usize];
        link.rail = Rail::Tcp;
        link.entry.waits = Waits::Nothing;
        (link.arena, link.peer_arena, link.arena_bytes) = (None, None, 0);
        (link.heap, link.doorbell) = (None, None);
        (link.copies, link.features) = (false, 0);
        (link.peer.pid, link.pid) = (0, 0);
        self.dial_remote(index)
    }

    /// One of us has refused the other over shared memory; over the network it need not.
    pub fn turned_away(&mut self, index: u32, error: ConnectError) {
        let mut result = Err(error);
        if self.links[index as usize].rail == Rail::Shm && self.has_route(index) {
            match error {
                ConnectError::User(peer, cause) => self.user_refused(peer, cause),
                ConnectError::LocalVersion(peer) => (self.config.note)(Note::LocalVersion(peer)),
                _ => {}
            }
            result = self.dial_otherwise(index, error);
        }
        if let Err(error) = result {
            self.link_down(index, DownCause::Failed, error);
        }
    }

    /// The kernel refuses what shared memory needs: said once.
    pub fn shared_refused(&mut self, code: i32) {
        self.counters.shared_refused += 1;
        if self.counters.shared_refused == 1 {
            (self.config.note)(Note::SharedRefused(code));
        }
    }

    fn has_route(&self, index: u32) -> bool {
        !self.links[index as usize].route.is_empty()
    }

    fn dial_local(&mut self, index: u32) -> Result<(), ConnectError> {
        let link = &mut self.links[index as usize];
        let Some(address) = link.address.as_ref() else {
            return Err(ConnectError::NoListener(link.peer));
        };
        let socket = match address.dial() {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(self.dial_error(index, &error)),
        };
        if let Err((peer, cause)) = self.user_check(&socket) {
            self.user_refused(peer, cause);
            return Err(ConnectError::User(peer, cause));
        }
        let (socket, link) = (Channel::Record(socket), &mut self.links[index as usize]);
        link.pid = socket.pid();
        link.peer.pid = link.pid.max(0) as u32;
        link.socket = Some(socket);
        match self.arena_make(index).and_then(|()| self.knock(index)) {
            Ok(()) => {}
            // turned away before we spoke: why, is there to be read
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(self.dial_error(index, &error)),
        }
        self.link_phase(index, LinkPhase::HelloSent);
        Ok(())
    }

    /// What a local door, or memory for it, says.
    pub fn dial_error(&mut self, index: u32, error: &io::Error) -> ConnectError {
        let link = &self.links[index as usize];
        match error.kind() {
            // reset: it was shut while we stood in it
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotFound => {
                if let Some(address) = &link.address {
                    address.remove_if_stale();
                }
                ConnectError::NoListener(link.peer)
            }
            io::ErrorKind::OutOfMemory => ConnectError::Memory,
            io::ErrorKind::Unsupported => ConnectError::SharedMemory,
            _ => system(error),
        }
    }

    /// Makes the arena, which nobody gets yet.
    fn arena_make(&mut self, index: u32) -> io::Result<()> {
        let arena_bytes = self.rings_bytes * self.connections.len() as u64;
        if self.links[index as usize].arena.is_none() {
            let arena = self.memory.create_arena(arena_bytes).map_err(|error| match error {
                MemoryError::Exhausted => io::Error::from(io::ErrorKind::OutOfMemory),
                MemoryError::Descriptors => io::Error::from_raw_os_error(libc::EMFILE),
                MemoryError::System(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                    io::Error::from(io::ErrorKind::Unsupported)
                }
                MemoryError::System(code) => io::Error::from_raw_os_error(code),
            })?;
            let link = &mut self.links[index as usize];
            link.arena = Some(arena);
            link.arena_bytes = arena_bytes;
        }
        Ok(())
    }

    /// Sends `LinkHello` to a listener that has proved to be the one that is meant.
    pub fn say_hello(&mut self, index: u32) -> io::Result<()> {
        self.watch(index)?;
        self.memory.allow_tracer();
        let hello = self.hello_of(index);
        self.send_hello(index, &Frame::LinkHello(hello))
    }

    /// Dials the address whose turn it is, and the next ones while they refuse at once.
    pub fn dial_remote(&mut self, index: u32) -> Result<(), ConnectError> {
        loop {
            let now = self.now();
            let link = &self.links[index as usize];
            let Some(to) = link.route.current() else { return Err(self.route_error(index)) };
            let from = match self.way_to(to.ip()) {
                Way::Any => None,
                Way::From(ip) => Some(ip),
                Way::Spare(ip) => {
                    self.way_note(index, ip);
                    Some(ip)
                }
                Way::Excluded(ip) => {
                    let link = &mut self.links[index as usize];
                    link.route.exclude(ip);
                    link.route.begin(now, link.deadline);
                    continue;
                }
            };
            // the peer's silence counts from when the link stands; until then the deadline does
            match StreamSocket::connect_from(from, to, self.handshake_ms()) {
                Ok(socket) => {
                    let link = &mut self.links[index as usize];
                    link.socket = Some(Channel::Stream(socket));
                    link.remote = Some(to);
                    let token = TOKEN_LINK | u64::from(index);
                    let socket = link.socket.as_ref().expect("just put there");
                    self.poller.add(socket.as_fd(), token).map_err(|error| system(&error))?;
                    match self.greet_remote(index) {
                        None => {
                            self.look_by(self.links[index as usize].route.slice_end);
                            return Ok(());
                        }
                        Some(Miss::Code(code)) => self.miss_code(index, code, now),
                        Some(Miss::Dropped) => {
                            self.dial_later(index);
                            return Ok(());
                        }
                    }
                }
                Err(error) if address::is_out_of_descriptors(&error) => {
                    return Err(system(&error));
                }
                Err(error) => self.miss_code(index, error.raw_os_error().unwrap_or(0), now),
            }
        }
    }

    /// Sends `LinkHello` on a stream that has connected, or sees that it has not yet.
    fn greet_remote(&mut self, index: u32) -> Option<Miss> {
        let hello = self.hello_of(index);
        match self.send_hello(index, &Frame::LinkHello(hello)) {
            Ok(()) => {
                let link = &mut self.links[index as usize];
                link.route.connected = true;
                if link.resumes != NONE {
                    // somebody is there: from now on it is not the path that is tried
                    link.route.slice_end = link.deadline;
                }
                self.link_phase(index, LinkPhase::HelloSent);
                self.links[index as usize].blocked = self.links[index as usize].unsent > 0;
                self.interest(index);
                None
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.links[index as usize].blocked = true;
                self.interest(index);
                None
            }
            Err(error) => Some(match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Miss::Dropped,
                _ => Miss::Code(error.raw_os_error().unwrap_or(0)),
            }),
        }
    }

    /// The socket of a link that dials has connected, or failed.
    pub fn dial_ready(&mut self, index: u32) {
        self.links[index as usize].blocked = false;
        if let Some(miss) = self.greet_remote(index) {
            self.missed(index, miss);
        }
    }

    /// The address at which a link dials is no listener's, or not now.
    pub fn missed(&mut self, index: u32, miss: Miss) {
        match miss {
            Miss::Dropped if self.links[index as usize].resumes == NONE => self.dial_later(index),
            Miss::Dropped => self.missed(index, Miss::Code(libc::ECONNRESET)),
            Miss::Code(code) => {
                self.miss_code(index, code, self.now());
                self.dial_now(index);
            }
        }
    }

    fn miss_code(&mut self, index: u32, code: i32, now: Instant) {
        self.link_unplug(index);
        let link = &mut self.links[index as usize];
        link.route.failed(code);
        link.route.begin(now, link.deadline);
    }

    /// Dials the same address again in a while.
    fn dial_later(&mut self, index: u32) {
        self.link_unplug(index);
        self.link_phase(index, LinkPhase::Dialing);
        let now = self.now();
        let link = &mut self.links[index as usize];
        link.route.again(now);
        let at = link.route.retry_at;
        self.look_by(at);
    }

    /// Dials, and ends the link if that cannot be.
    pub fn dial_now(&mut self, index: u32) {
        self.link_phase(index, LinkPhase::Dialing);
        if let Err(error) = self.dial(index) {
            self.link_down(index, DownCause::Failed, error);
        }
    }

    /// What time brings to a handshake: the end of an address's slice, or the next attempt.
    pub fn dial_look(&mut self, index: u32, now: Instant) {
        let link = &self.links[index as usize];
        if !matches!(link.phase, LinkPhase::Dialing | LinkPhase::HelloSent) {
            return;
        }
        if link.rail == Rail::Tcp {
            if now >= link.route.slice_end {
                self.missed(index, Miss::Code(libc::ETIMEDOUT));
                return;
            }
            let slice_end = link.route.slice_end;
            self.look_by(slice_end);
        }
        let link = &self.links[index as usize];
        if link.socket.is_some() {
            return;
        }
        let at = link.route.retry_at;
        if now >= at {
            self.dial_now(index);
        } else {
            self.look_by(at);
        }
    }

    /// Why no address leads to the listener.
    fn route_error(&self, index: u32) -> ConnectError {
        let link = &self.links[index as usize];
        if let Some(ip) = link.route.excluded() {
            return self.way_error(index, ip);
        }
        if link.peer.node_id != self.node_id && link.named().tried.is_loopback_alone() {
            // whatever answered, or did not, is a process of this host
            return ConnectError::Unreachable(link.named(), libc::EHOSTUNREACH);
        }
        match link.route.code {
            _ if link.route.is_refused() => ConnectError::NoListener(link.named()),
            libc::ETIMEDOUT if link.route.answered => ConnectError::Deadline(link.named()),
            libc::EPROTO => ConnectError::OtherProgram(link.named()),
            code => ConnectError::Unreachable(link.named(), code),
        }
    }

    /// How long a peer of another host may leave what we sent unacknowledged; 0: as long as the
    /// kernel likes. Less than the deadline: before it begins, a silent link waits for its ping.
    pub fn silence_ms(&self) -> u32 {
        let deadline_ms = self.config.peer_deadline.0 / 1_000_000;
        if deadline_ms == 0 {
            return 0;
        }
        (deadline_ms * 5 / 8).clamp(1, i32::MAX as u64) as u32
    }

    /// How long the kernel may try to connect: as long as we would wait for the answer.
    fn handshake_ms(&self) -> u32 {
        (self.config.handshake_deadline.0 / 1_000_000).clamp(1, i32::MAX as u64) as u32
    }
}

/// The rails that a listener's handle names, as `RAIL_` bits.
fn rails_of(handle: &ListenHandle, says_local: bool) -> u32 {
    let remote = |family| matches!(family, Family::Ipv4 | Family::Ipv6);
    let tcp = handle.addresses.iter().any(|address| remote(address.family));
    (if says_local { RAIL_SHM } else { 0 }) | (if tcp { RAIL_TCP } else { 0 })
}

/// What the kernel said.
pub(super) fn system(error: &io::Error) -> ConnectError {
    if address::is_out_of_descriptors(error) {
        return ConnectError::Descriptors(os::descriptor_limit());
    }
    ConnectError::System(error.raw_os_error().unwrap_or(0))
}
