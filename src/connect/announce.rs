//! What the data thread is told, and the slots that it is told of.
#![forbid(unsafe_code)]

extern crate std;

use super::connection::{Connection, Phase};
use super::control::{Control, RETRY};
use super::event::{BandEvent, LinkParams, Rail, Side};
use super::memory::LinkMemory;
use crate::base::sync::Ordering;
use crate::fabric::completion::DownCause;
use crate::wire::hello::{FEATURE_KERNEL_COPY, FEATURE_MEMBARRIER};
use std::os::fd::AsRawFd;

impl<M: LinkMemory> Control<M> {
    /// Tries to tell the data thread all that it is owed.
    pub fn announce_all(&mut self) {
        for index in 0..self.connections.len() as u32 {
            if self.connections[index as usize].owes_event() && !self.announce(index) {
                self.look_by(self.now().after(RETRY));
                return;
            }
        }
    }

    /// Marks events as owed, and tells what the queue has room for.
    pub fn owe(&mut self, index: u32, established: bool, gone: Option<DownCause>) {
        let connection = &mut self.connections[index as usize];
        let before = connection.owes_event();
        connection.owes_established |= established;
        connection.owes_gone = connection.owes_gone.or(gone);
        if !before && connection.owes_event() {
            self.events_owed += 1;
        }
        if !self.announce(index) {
            self.look_by(self.now().after(RETRY));
        }
    }

    /// Forgets what the data thread is owed of a connection that our user has closed.
    pub fn owe_nothing(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if connection.owes_event() {
            self.events_owed -= 1;
        }
        connection.owes_established = false;
        connection.owes_gone = None;
    }

    /// Pushes the owed events of one connection; `false`: the queue is full.
    fn announce(&mut self, index: u32) -> bool {
        let connection = self.connections[index as usize];
        if !connection.owes_event() {
            return true;
        }
        let generation = connection.generation;
        if connection.owes_established {
            let params = self.params(&connection);
            let event = BandEvent::Established { index, generation, params };
            if self.tables.events.push(event).is_err() {
                return false;
            }
            self.connections[index as usize].owes_established = false;
        }
        if let Some(cause) = connection.owes_gone {
            let event = BandEvent::Gone { index, generation, cause };
            if self.tables.events.push(event).is_err() {
                return false;
            }
            self.connections[index as usize].owes_gone = None;
        }
        self.events_owed -= 1;
        (self.config.wake.call)(self.config.wake.context);
        true
    }

    /// What the data path needs of a connection.
    fn params(&self, connection: &Connection) -> LinkParams {
        let link = &self.links[connection.link as usize];
        let arena = link.arena.as_ref().map_or(0, |arena| self.memory.address(arena));
        let template = &self.config.template;
        let (send_ring_bytes, write_ring_bytes) = match connection.side {
            Side::Connector => (template.send_ring_bytes, template.write_ring_bytes),
            Side::Listener => (connection.peer.send_ring_bytes, connection.peer.write_ring_bytes),
        };
        LinkParams {
            peer: connection.peer,
            side: connection.side,
            rail: Rail::Shm,
            streams: LinkParams::NONE.streams,
            stream_count: 0,
            rings_address: arena + connection.rings_offset as usize,
            send_ring_bytes,
            write_ring_bytes,
            kernel_copy_pid: link.copies.then_some(link.pid),
            peer_copies: link.features & FEATURE_KERNEL_COPY != 0,
            heap: link.heap.as_ref().map(|(heap, bytes)| (self.memory.address(heap), *bytes)),
            doorbell_fd: link.doorbell.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            membarrier: self.config.membarrier && link.features & FEATURE_MEMBARRIER != 0,
        }
    }

    /// Takes a connection slot, and steps its generation so that its new handle is live.
    pub fn slot_acquire(&mut self) -> Option<u32> {
        let index = self.tables.pool.acquire()?;
        let cell = &self.tables.generations[index as usize];
        let generation = cell.load(Ordering::Relaxed).wrapping_add(1);
        // release: [connection-generation], pairs with who looks a handle up
        cell.store(generation, Ordering::Release);
        self.connections[index as usize] = Connection { generation, ..Connection::FREE };
        Some(index)
    }

    /// Makes the handles of a connection stale; its slot stays taken.
    pub fn slot_stale(&mut self, index: u32) {
        let generation = self.connections[index as usize].generation.wrapping_add(1);
        // release: [connection-generation]
        self.tables.generations[index as usize].store(generation, Ordering::Release);
    }

    /// Gives a slot back whose handles are stale.
    pub fn slot_release(&mut self, index: u32) {
        debug_assert!(self.connections[index as usize].phase != Phase::Free);
        self.owe_nothing(index);
        self.keyed -= u32::from(self.connections[index as usize].keyed.is_some());
        self.connections[index as usize] = Connection::FREE;
        self.tables.pool.release(index);
    }
}
