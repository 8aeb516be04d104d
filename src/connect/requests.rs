//! What callers ask of a band, under its lock.
#![forbid(unsafe_code)]

use super::address;
use super::band::PendingId;
use super::connection::{NONE, Phase};
use super::control::{Control, door_token};
use super::ending::Ending;
use super::error::{AcceptError, CloseError, ConnectError, ListenError};
use super::event::{Rail, Side};
use super::listener::ListenerId;
use super::listening::{Answers, DOORS, Listening};
use super::memory::LinkMemory;
use super::os;
use super::peer::TextBuffer;
use super::route::handle_addresses;
use crate::base::slab::Handle;
use crate::base::units::Instant;
use crate::wire::handle::{ADDRESSES_MAX, Address, HANDLE_BYTES};
use crate::wire::handle::{HANDLE_LOCAL, ListenHandle, MORE_MAX};
use crate::wire::hello::{AddressList, RAIL_SHM, RAIL_TCP};
use crate::wire::{DecodeError, WIRE_MINOR};
use core::fmt::Write;

/// Why a handle could not be read.
pub fn handle_error(error: DecodeError) -> ConnectError {
    match error {
        DecodeError::Magic => ConnectError::HandleForeign,
        DecodeError::Version(major) => ConnectError::Version(major),
        DecodeError::Short | DecodeError::Field | DecodeError::Checksum => {
            ConnectError::HandleCorrupt
        }
    }
}

impl<M: LinkMemory> Control<M> {
    /// Opens a listener; the first one opens the sockets, which stay while there is something to
    /// wait for. As long as a forked child holds copies of them, nobody can bind their name: the
    /// next ones are reached by a path.
    pub fn listen(&mut self) -> Result<(ListenerId, ListenHandle), ListenError> {
        let index = self.listeners.iter().position(|listener| !listener.generation.is_live());
        let index = index.ok_or(ListenError::Full)?;
        if self.listening.is_none() {
            self.listen_sockets().map_err(|error| {
                if address::is_out_of_descriptors(&error) {
                    return ListenError::Descriptors(os::descriptor_limit());
                }
                match error.raw_os_error() {
                    // none was named
                    Some(libc::EADDRINUSE) if self.config.rails & RAIL_TCP != 0 => {
                        ListenError::Ports
                    }
                    code => ListenError::System(code.unwrap_or(0)),
                }
            })?;
        }
        let generation = self.listeners[index].generation.acquire();
        self.listeners_live += 1;
        self.worked = true;
        let id = Handle { index: index as u32, generation };
        let local = self.listening.as_ref().is_some_and(Listening::has_local);
        let mut handle = ListenHandle {
            minor: WIRE_MINOR,
            flags: if local { HANDLE_LOCAL } else { 0 },
            node_id: self.node_id,
            endpoint_id: self.endpoint_id,
            listener: id.pack(),
            addresses: [Address::default(); ADDRESSES_MAX],
            more: [Address::default(); MORE_MAX],
        };
        if let Some(listening) = &self.listening {
            let remote = listening.answered(&self.config.addresses);
            handle.addresses_set(handle_addresses(&remote));
        }
        Ok((ListenerId(id), handle))
    }

    fn listen_sockets(&mut self) -> std::io::Result<()> {
        let mut listening = Listening::default();
        // without a network there is still this host
        let alone = self.config.addresses.count == 0 && self.config.rails & RAIL_SHM != 0;
        let beside = self.config.rails & RAIL_TCP != 0 && !alone;
        if self.config.rails & RAIL_SHM != 0 {
            match listening.open_local(&self.address) {
                Ok(()) => {}
                Err(error) if !beside || address::is_out_of_descriptors(&error) => {
                    return Err(error);
                }
                Err(error) => self.shared_refused(error.raw_os_error().unwrap_or(0)),
            }
        }
        let addresses = &self.config.addresses;
        let mut opened = Ok(());
        if beside {
            opened = listening.open_remote(addresses, self.answers(), self.silence_ms());
        }
        for door in DOORS {
            if let (Some(socket), Ok(())) = (listening.socket(door), &opened) {
                opened = self.poller.add(socket, door_token(door));
            }
        }
        self.listening = Some(listening);
        if opened.is_err() {
            self.unlisten();
        }
        opened
    }

    /// At which of our addresses peers are answered.
    fn answers(&self) -> Answers {
        match self.config.bind {
            false => Answers::All,
            true if self.config.lanes_max > 1 => Answers::Each,
            true => Answers::First,
        }
    }

    /// Closes the listening sockets, and removes the path.
    pub fn unlisten(&mut self) {
        let Some(listening) = self.listening.take() else { return };
        for door in DOORS {
            if let Some(socket) = listening.socket(door) {
                self.poller.remove(socket);
            }
        }
        // first, so that who is refused there finds a file that stays dead
        if listening.has_path() {
            self.address.remove();
        }
        listening.end();
    }

    /// Closes a listener, and the connections that nobody has accepted.
    pub fn listener_close(&mut self, id: ListenerId) -> Result<(), CloseError> {
        let ListenerId(Handle { index, generation }) = id;
        let listener = self.listeners.get_mut(index as usize).ok_or(CloseError::Stale)?;
        if !listener.generation.is(generation) {
            return Err(CloseError::Stale);
        }
        while let Some(waiting) = self.listeners[index as usize].first() {
            self.close(waiting);
        }
        self.listeners[index as usize].generation.release();
        self.listeners_live -= 1;
        // the thread may have nothing left to do
        self.attention = true;
        Ok(())
    }

    /// The connection that has waited longest at a listener.
    pub fn accept(&mut self, id: ListenerId) -> Result<Option<Handle>, AcceptError> {
        let ListenerId(Handle { index, generation }) = id;
        let known = self.listeners.get(index as usize).ok_or(AcceptError::Stale)?;
        if !known.generation.is(generation) {
            return Err(AcceptError::Stale);
        }
        self.help();
        let listener = &mut self.listeners[index as usize];
        let Some(first) = listener.first_taken(&self.connections) else { return Ok(None) };
        listener.remove(&mut self.connections, first);
        Ok(Some(self.connections[first as usize].handle(first)))
    }

    /// Begins an attempt to connect.
    pub fn connect_begin(&mut self, bytes: &[u8; HANDLE_BYTES]) -> Result<PendingId, ConnectError> {
        let handle = ListenHandle::decode(bytes).map_err(handle_error)?;
        let deadline = self.deadline();
        let index = self.slot_find().ok_or(ConnectError::LocalFull)?;
        let link = match self.link_to(&handle, deadline) {
            Ok(link) => link,
            Err(error) => {
                self.slot_stale(index);
                self.connection_phase(index, Phase::Failed(error));
                self.slot_release(index);
                return Err(error);
            }
        };
        let connection = &mut self.connections[index as usize];
        connection.side = Side::Connector;
        connection.listener = handle.listener;
        connection.deadline = deadline;
        self.connection_phase(index, Phase::Connecting);
        self.look_by(deadline);
        self.link_join(index, link);
        let id = PendingId(self.connections[index as usize].handle(index));
        if self.links[link as usize].is_askable() {
            self.ask(index);
        }
        Ok(id)
    }

    /// A slot; one whose peer has said that it closed, too, although nobody has listened yet.
    fn slot_find(&mut self) -> Option<u32> {
        self.slot_acquire().or_else(|| {
            self.help();
            self.slot_acquire()
        })
    }

    /// The link to a listener's endpoint: the one there is, or a new one.
    fn link_to(&mut self, handle: &ListenHandle, deadline: Instant) -> Result<u32, ConnectError> {
        let leads = |at: &u32| {
            let link = &self.links[*at as usize];
            link.is_usable() && link.side == Side::Connector
        };
        let known = self.chained(handle.endpoint_id).find(leads);
        known.map_or_else(|| self.link_open(handle, deadline), Ok)
    }

    /// How far an attempt is.
    pub fn connect_poll(&mut self, id: PendingId) -> Result<Option<Handle>, ConnectError> {
        self.help();
        let PendingId(handle) = id;
        let index = self.attempt(id).ok_or(ConnectError::Stale)?;
        let now = self.now();
        let connection = &mut self.connections[index as usize];
        match connection.phase {
            Phase::Open => {
                self.take(index);
                Ok(Some(handle))
            }
            Phase::Failed(error) => {
                self.slot_stale(index);
                self.slot_release(index);
                Err(error)
            }
            Phase::Connecting if now >= connection.deadline => {
                let error = self.links[connection.link as usize].unanswered();
                self.give_up(index);
                Err(error)
            }
            Phase::Connecting => Ok(None),
            Phase::Free | Phase::Gathering => Err(ConnectError::Stale),
        }
    }

    /// Forgets an attempt, or closes what came of it.
    pub fn connect_abandon(&mut self, id: PendingId) -> Result<(), CloseError> {
        let index = self.attempt(id).ok_or(CloseError::Stale)?;
        match self.connections[index as usize].phase {
            Phase::Connecting => self.give_up(index),
            Phase::Failed(_) => {
                self.slot_stale(index);
                self.slot_release(index);
            }
            Phase::Open => {
                self.connections[index as usize].abandoned = true;
                self.close(index);
            }
            Phase::Free | Phase::Gathering => return Err(CloseError::Stale),
        }
        Ok(())
    }

    /// The attempt's slot stays until the peer, if it was asked, has answered and closed.
    fn give_up(&mut self, index: u32) {
        self.slot_stale(index);
        let connection = &mut self.connections[index as usize];
        connection.abandoned = true;
        connection.closed_here = true;
        // over TCP nothing can come any more once the sockets are closed: nobody need answer first
        if !connection.asked || self.links[connection.link as usize].rail == Rail::Tcp {
            self.fail(index, ConnectError::Stale);
        }
    }

    /// Closes an established connection.
    pub fn connection_close(&mut self, handle: Handle) -> Result<(), CloseError> {
        let index = self.live(handle).ok_or(CloseError::Stale)?;
        if self.connections[index as usize].phase != Phase::Open {
            return Err(CloseError::Stale);
        }
        self.close(index);
        Ok(())
    }

    /// Writes who the peer of a connection is.
    pub fn peer_text(&self, handle: Handle, out: &mut [u8]) -> usize {
        let link = self.live(handle).map(|index| self.connections[index as usize].link);
        let Some(link) = link.and_then(|link| self.links.get(link as usize)) else { return 0 };
        let mut text = TextBuffer::new(out);
        let _ = write!(text, "{}", link.peer);
        text.length()
    }

    /// How the link of a connection ended, if it did without a word from the peer.
    pub fn peer_ending(&self, handle: Handle) -> Option<Ending> {
        let link = self.connections[self.live(handle)? as usize].link;
        self.links.get(link as usize)?.ending
    }

    /// The slot of an attempt that is not over: once its caller has the connection, only a close of
    /// that ends it.
    fn attempt(&self, PendingId(handle): PendingId) -> Option<u32> {
        let index = self.live(handle)?;
        let connection = &self.connections[index as usize];
        (connection.side == Side::Connector && !connection.handed).then_some(index)
    }

    /// The slot of a handle that is not stale.
    pub fn live(&self, handle: Handle) -> Option<u32> {
        let connection = self.connections.get(handle.index as usize)?;
        let live = connection.phase != Phase::Free
            && connection.generation == handle.generation
            && !connection.closed_here;
        live.then_some(handle.index)
    }

    /// Says goodbye to all peers, and closes the sockets.
    pub fn shut_down(&mut self) {
        self.closed = true;
        for index in 0..self.connections.len() as u32 {
            let connection = &self.connections[index as usize];
            if connection.phase == Phase::Open && !connection.closed_here {
                self.close(index);
            }
        }
        self.unlisten();
        self.greetings_end();
    }

    /// The addresses that the peer of a connection has said.
    pub fn peer_addresses(&self, handle: Handle) -> AddressList {
        let link = self.live(handle).map(|index| self.connections[index as usize].link);
        match link {
            Some(link) if link != NONE => self.addresses_of(link),
            Some(_) | None => AddressList::EMPTY,
        }
    }
}
