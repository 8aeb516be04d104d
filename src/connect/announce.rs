//! What the data thread is told, and the slots that it is told of.
#![forbid(unsafe_code)]

use super::connection::{Connection, Phase};
use super::control::{Control, RETRY};
use super::event::{BandEvent, LinkParams, Rail, Side};
use super::memory::LinkMemory;
use super::stream::StreamSocket;
use crate::base::sync::Ordering;
use crate::fabric::completion::DownCause;
use crate::wire::hello::{
    CONNECT_PUSH, CONNECT_SUMS, CONNECT_SUMS_WANTED, FEATURE_KERNEL_COPY, FEATURE_MEMBARRIER,
};
use core::num::{NonZeroI32, NonZeroUsize};
use std::os::fd::{AsFd, AsRawFd};

impl<M: LinkMemory> Control<M> {
    /// Tries to tell the data thread all that it is owed; `false`: the queue is full.
    pub fn announce_all(&mut self) -> bool {
        let mut from = 0;
        while let Some(index) = self.owing.next_from(from) {
            from = index + 1;
            if !self.announce(index) {
                self.look_by(self.now().after(RETRY));
                return false;
            }
        }
        true
    }

    /// Marks events as owed, and tells what the queue has room for.
    pub fn owe(&mut self, index: u32, established: bool, gone: Option<DownCause>) {
        let connection = &mut self.connections[index as usize];
        connection.owes_established |= established;
        connection.owes_gone = connection.owes_gone.or(gone);
        self.owing.put(index, true);
        if !self.announce(index) {
            self.look_by(self.now().after(RETRY));
        }
    }

    /// Forgets what the data thread is owed of a connection that our user has closed.
    pub fn owe_nothing(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.owes_established = false;
        connection.owes_gone = None;
        connection.owes_lanes = 0;
        connection.vouched.owed = false;
        self.owing.put(index, false);
    }

    /// Pushes the owed events of one connection; `false`: the queue is full.
    fn announce(&mut self, index: u32) -> bool {
        let connection = self.connections[index as usize];
        if !connection.owes_event() {
            return true;
        }
        let generation = connection.generation;
        if connection.owes_established {
            let params = self.params(index);
            let event = BandEvent::Established { index, generation, params };
            if self.tables.events.push(event).is_err() {
                return false;
            }
            self.connections[index as usize].owes_established = false;
        }
        if connection.owes_lanes != 0 && !self.announce_lanes(index) {
            return false;
        }
        if connection.vouched.owed && !self.announce_vouch(index) {
            return false;
        }
        if let Some(cause) = connection.owes_gone {
            let event = BandEvent::Gone { index, generation, cause };
            if self.tables.events.push(event).is_err() {
                return false;
            }
            self.connections[index as usize].owes_gone = None;
        }
        self.owing.put(index, false);
        (self.config.wake.call)(self.config.wake.context);
        true
    }

    /// What the data path needs of a connection.
    fn params(&self, index: u32) -> LinkParams {
        let connection = &self.connections[index as usize];
        let link = &self.links[connection.link as usize];
        let (theirs, ours) = (connection.peer.features, self.config.template.features);
        let is_wanted = (theirs | ours) & CONNECT_SUMS_WANTED != 0;
        let sums = is_wanted && theirs & ours & CONNECT_SUMS != 0;
        if link.rail == Rail::Tcp {
            let fd = |socket: &Option<StreamSocket>| match socket {
                Some(socket) => socket.as_fd().as_raw_fd(),
                None => -1,
            };
            return LinkParams {
                peer: connection.peer,
                side: connection.side,
                rail: Rail::Tcp,
                streams: self.streams[index as usize].each_ref().map(fd),
                stream_count: connection.stream_count,
                lanes: connection.lanes,
                sums,
                ..LinkParams::NONE
            };
        }
        let arena = link.arena.as_ref().map_or(0, |arena| self.memory.address(arena));
        let theirs = link.peer_arena.as_ref().map_or(0, |arena| self.memory.view_address(arena));
        let template = &self.config.template;
        let (send_ring_bytes, write_ring_bytes) = match connection.side {
            Side::Connector => (template.send_ring_bytes, template.write_ring_bytes),
            Side::Listener => (connection.peer.send_ring_bytes, connection.peer.write_ring_bytes),
        };
        let mut peer = connection.peer;
        peer.features &= template.features;
        peer.eager_bytes_max = peer.eager_bytes_max.min(template.eager_bytes_max);
        if template.groups_max != peer.groups_max {
            peer.features &= !CONNECT_PUSH; // slots are numbered alike by both
        }
        LinkParams {
            peer,
            side: connection.side,
            rail: Rail::Shm,
            streams: LinkParams::NONE.streams,
            stream_count: 0,
            lanes: connection.lanes,
            rings_address: arena + connection.rings_offset as usize,
            peer_rings_address: theirs + connection.rings_offset as usize,
            send_ring_bytes,
            write_ring_bytes,
            kernel_copy_pid: NonZeroI32::new(link.pid).filter(|_| link.copies),
            peer_copies: link.features & FEATURE_KERNEL_COPY != 0,
            heap: link.heap.as_ref().and_then(|(heap, bytes)| {
                NonZeroUsize::new(self.memory.view_address(heap)).map(|at| (at, *bytes))
            }),
            doorbell_fd: link.doorbell.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            membarrier: self.config.membarrier && link.features & FEATURE_MEMBARRIER != 0,
            sums,
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

    /// Slots that nobody has: those of closed connections are taken until their peers have closed.
    pub fn slots_free(&mut self) -> u32 {
        self.help();
        let is_free = |it: &&Connection| it.phase == Phase::Free;
        self.connections.iter().filter(is_free).count() as u32
    }

    /// Slots that their peers have not closed yet.
    pub fn slots_leaving(&self) -> u32 {
        let leaves = |it: &&Connection| it.phase != Phase::Free && it.closed_here;
        self.connections.iter().filter(leaves).count() as u32
    }

    /// Changes how far a connection is.
    pub fn connection_phase(&mut self, index: u32, phase: Phase) {
        self.connections[index as usize].phase = phase;
        self.attempts.put(index, matches!(phase, Phase::Connecting | Phase::Gathering));
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
        self.streams_close(index);
        self.connection_phase(index, Phase::Free);
        self.connections[index as usize] = Connection::FREE;
        self.tables.pool.release(index);
    }
}
