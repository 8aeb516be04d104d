//! Connecting an endpoint to itself, for the loopback device: no side band, no peers.

use crate::base::pool::Pool;
use crate::base::ring::Producer;
use crate::base::slab::{Generation, Handle};
use crate::base::sync::{AtomicU32, Ordering};
use crate::connect::{AcceptError, BandEvent, ConnectError, ListenError, ListenerId};
use crate::wire::WIRE_MINOR;
use crate::wire::handle::{HANDLE_BYTES, ListenHandle};

/// Listeners of the loopback device.
const LISTENERS_MAX: usize = 4;
/// Connections made and not accepted, of one listener.
const WAITING_MAX: usize = 16;

#[derive(Copy, Clone)]
struct Listener {
    generation: Generation,
    waiting: [u32; WAITING_MAX],
    count: usize,
}

/// What the loopback device knows of its connections.
pub(super) struct Own {
    endpoint_id: u128,
    pool: Pool<'static>,
    generations: &'static [AtomicU32],
    pub(super) events: Producer<'static, BandEvent>,
    listeners: [Listener; LISTENERS_MAX],
}

/// Both ends of a connection that was just made.
#[derive(Copy, Clone, Debug)]
pub(super) struct Joined {
    pub(super) connecting: u32,
    pub(super) listening: u32,
}

impl Own {
    pub(super) fn new(
        endpoint_id: u128,
        pool: Pool<'static>,
        generations: &'static [AtomicU32],
        events: Producer<'static, BandEvent>,
    ) -> Own {
        let generation = Generation::salted(endpoint_id as u32);
        let none = Listener { generation, waiting: [0; WAITING_MAX], count: 0 };
        Own { endpoint_id, pool, generations, events, listeners: [none; LISTENERS_MAX] }
    }

    pub(super) fn listen(&mut self) -> Result<(ListenerId, [u8; HANDLE_BYTES]), ListenError> {
        let free = self.listeners.iter().position(|listener| !listener.generation.is_live());
        let index = free.ok_or(ListenError::Full)?;
        let generation = self.listeners[index].generation.acquire();
        self.listeners[index].count = 0;
        let handle = Handle { index: index as u32, generation };
        let listener = handle.pack();
        let endpoint_id = self.endpoint_id;
        let bytes =
            ListenHandle { minor: WIRE_MINOR, endpoint_id, listener, ..ListenHandle::default() };
        Ok((ListenerId(handle), bytes.encode()))
    }

    pub(super) fn listener_close(&mut self, id: ListenerId) -> Result<(), AcceptError> {
        let listener = self.listener(id.0).ok_or(AcceptError::Stale)?;
        listener.generation.release();
        let (waiting, count) = (listener.waiting, listener.count);
        for index in &waiting[..count] {
            self.release(*index);
        }
        Ok(())
    }

    /// Makes both ends of a connection; `None` in the place of one when the table is full.
    pub(super) fn connect(&mut self, bytes: &[u8; HANDLE_BYTES]) -> Result<Joined, ConnectError> {
        let handle = ListenHandle::decode(bytes).map_err(crate::connect::handle_error)?;
        if handle.endpoint_id != self.endpoint_id {
            return Err(ConnectError::OtherHost);
        }
        let listener = Handle::unpack(handle.listener);
        let stale = ConnectError::NoListener(crate::connect::Peer::default());
        let waiting = self.listener(listener).ok_or(stale)?.count;
        if waiting == WAITING_MAX {
            return Err(ConnectError::LocalFull);
        }
        let connecting = self.pool.acquire().ok_or(ConnectError::LocalFull)?;
        let Some(listening) = self.pool.acquire() else {
            self.pool.release(connecting);
            return Err(ConnectError::LocalFull);
        };
        for index in [connecting, listening] {
            self.step(index);
        }
        if let Some(place) = self.listener(listener) {
            place.waiting[waiting] = listening;
            place.count += 1;
        }
        Ok(Joined { connecting, listening })
    }

    pub(super) fn connections_left(&self) -> u32 {
        let is_free = |it: &&AtomicU32| it.load(Ordering::Acquire) & 1 == 0;
        self.generations.iter().filter(is_free).count() as u32
    }

    pub(super) fn accept(&mut self, id: ListenerId) -> Result<Option<Handle>, AcceptError> {
        let listener = self.listener(id.0).ok_or(AcceptError::Stale)?;
        if listener.count == 0 {
            return Ok(None);
        }
        let index = listener.waiting[0];
        listener.waiting.copy_within(1.., 0);
        listener.count -= 1;
        Ok(Some(self.handle(index)))
    }

    pub(super) fn handle(&self, index: u32) -> Handle {
        let generation = self.generations[index as usize].load(Ordering::Acquire);
        Handle { index, generation }
    }

    /// Frees a connection's number.
    pub(super) fn release(&mut self, index: u32) {
        self.step(index);
        self.pool.release(index);
    }

    fn step(&mut self, index: u32) {
        self.generations[index as usize].fetch_add(1, Ordering::AcqRel);
    }

    fn listener(&mut self, id: Handle) -> Option<&mut Listener> {
        self.listeners
            .get_mut(id.index as usize)
            .filter(|listener| listener.generation.is(id.generation))
    }
}
