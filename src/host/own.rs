//! Connecting an endpoint to itself, for the loopback device: no side band, no peers.

use crate::base::pool::Pool;
use crate::base::ring::Producer;
use crate::base::slab::{Generation, Handle};
use crate::base::sync::{AtomicU32, Ordering};
use crate::connect::{
    AcceptError, BandEvent, ConnectError, LinkParams, ListenError, ListenerId, Side,
};
use crate::fabric::DownCause;
use crate::wire::WIRE_MINOR;
use crate::wire::handle::{HANDLE_BYTES, ListenHandle};
use crate::wire::hello::ConnectHello;
use std::boxed::Box;

/// Listeners of the loopback device.
const LISTENERS_MAX: usize = 4;

/// No connection.
const NONE: u32 = u32::MAX;

/// Connections that were made and not accepted, oldest first, in a list through their places.
#[derive(Copy, Clone)]
struct Listener {
    generation: Generation,
    first: u32,
    last: u32,
}

/// One end of a connection.
#[derive(Copy, Clone)]
struct Place {
    other: Handle,
    /// Who waits behind it at its listener.
    next: u32,
    /// Whether the machine may have it.
    is_used: bool,
}

/// What the loopback device knows of its connections.
pub(super) struct Own {
    endpoint_id: u128,
    pool: Pool<'static>,
    generations: &'static [AtomicU32],
    /// News of ends that are to be closed: one for each place at most, and there are more.
    events: Producer<'static, BandEvent>,
    listeners: [Listener; LISTENERS_MAX],
    places: Box<[Place]>,
    /// Places whose handles are stale, and that the data thread has not closed.
    orphans: u32,
}

impl Own {
    pub(super) fn new(
        endpoint_id: u128,
        pool: Pool<'static>,
        generations: &'static [AtomicU32],
        events: Producer<'static, BandEvent>,
    ) -> Own {
        let generation = Generation::salted(endpoint_id as u32);
        let listener = Listener { generation, first: NONE, last: NONE };
        let place = Place { other: Handle { index: 0, generation: 0 }, next: NONE, is_used: false };
        Own {
            endpoint_id,
            pool,
            generations,
            events,
            listeners: [listener; LISTENERS_MAX],
            places: std::vec![place; generations.len()].into(),
            orphans: 0,
        }
    }

    pub(super) fn listen(&mut self) -> Result<(ListenerId, [u8; HANDLE_BYTES]), ListenError> {
        let free = self.listeners.iter().position(|listener| !listener.generation.is_live());
        let index = free.ok_or(ListenError::Full)?;
        let listener = &mut self.listeners[index];
        let generation = listener.generation.acquire();
        (listener.first, listener.last) = (NONE, NONE);
        let handle = Handle { index: index as u32, generation };
        let listener = handle.pack();
        let endpoint_id = self.endpoint_id;
        let bytes =
            ListenHandle { minor: WIRE_MINOR, endpoint_id, listener, ..ListenHandle::default() };
        Ok((ListenerId(handle), bytes.encode()))
    }

    /// Closes a listener, and the connections that nobody has accepted.
    pub(super) fn listener_close(&mut self, id: ListenerId) -> Result<(), AcceptError> {
        let listener = self.listener(id.0).ok_or(AcceptError::Stale)?;
        listener.generation.release();
        let mut at = listener.first;
        while at != NONE {
            let Place { next, is_used, .. } = self.places[at as usize];
            if is_used {
                // the data thread has opened it, and closes it
                let Handle { index, generation } = self.handle(at);
                self.step(at);
                self.orphans += 1;
                let event = BandEvent::Gone { index, generation, cause: DownCause::Closed };
                assert!(self.events.push(event).is_ok(), "a place for each connection");
            } else {
                self.release(at);
            }
            at = next;
        }
        Ok(())
    }

    /// Makes both ends of a connection; gives the one that connects.
    pub(super) fn connect(&mut self, bytes: &[u8; HANDLE_BYTES]) -> Result<Handle, ConnectError> {
        let handle = ListenHandle::decode(bytes).map_err(crate::connect::handle_error)?;
        if handle.endpoint_id != self.endpoint_id {
            return Err(ConnectError::OtherEndpoint);
        }
        let listener = Handle::unpack(handle.listener);
        let stale = ConnectError::NoListener(crate::connect::Peer::default());
        self.listener(listener).ok_or(stale)?;
        let connecting = self.pool.acquire().ok_or(ConnectError::LocalFull)?;
        let Some(listening) = self.pool.acquire() else {
            self.pool.release(connecting);
            return Err(ConnectError::LocalFull);
        };
        for index in [connecting, listening] {
            self.step(index);
        }
        for (index, other) in [(connecting, listening), (listening, connecting)] {
            let other = self.handle(other);
            self.places[index as usize] = Place { other, next: NONE, is_used: false };
        }
        let listener = &mut self.listeners[listener.index as usize];
        match core::mem::replace(&mut listener.last, listening) {
            NONE => listener.first = listening,
            last => self.places[last as usize].next = listening,
        }
        Ok(self.handle(connecting))
    }

    pub(super) fn connections_left(&self) -> u32 {
        let is_free = |it: &&AtomicU32| it.load(Ordering::Acquire) & 1 == 0;
        self.generations.iter().filter(is_free).count() as u32 - self.orphans
    }

    pub(super) fn connections_leaving(&self) -> u32 {
        self.orphans
    }

    pub(super) fn accept(&mut self, id: ListenerId) -> Result<Option<Handle>, AcceptError> {
        let at = self.listener(id.0).ok_or(AcceptError::Stale)?.first;
        if at == NONE {
            return Ok(None);
        }
        let next = self.places[at as usize].next;
        let listener = &mut self.listeners[id.0.index as usize];
        listener.first = next;
        if next == NONE {
            listener.last = NONE;
        }
        Ok(Some(self.handle(at)))
    }

    /// Both ends of a connection that is taken into use, as far as they stand, and what there is to
    /// know of each.
    pub(super) fn use_both(
        &mut self,
        index: usize,
    ) -> impl Iterator<Item = (Handle, LinkParams)> + use<> {
        let here = self.handle(index as u32);
        let there = self.places[index].other;
        let stands = self.handle(there.index) == there;
        self.places[index].is_used = true;
        if stands {
            self.places[there.index as usize].is_used = true;
        }
        let other = stands.then(|| (there, params(there.index, here.index)));
        [Some((here, params(here.index, there.index))), other].into_iter().flatten()
    }

    fn handle(&self, index: u32) -> Handle {
        let generation = self.generations[index as usize].load(Ordering::Acquire);
        Handle { index, generation }
    }

    /// Frees a connection's number.
    pub(super) fn release(&mut self, index: u32) {
        match self.handle(index).generation & 1 {
            0 => self.orphans -= 1,
            _ => self.step(index),
        }
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

/// What the data path needs of one end.
fn params(index: u32, other: u32) -> LinkParams {
    let peer = ConnectHello { connection: u64::from(other), ..ConnectHello::default() };
    let side = if index < other { Side::Connector } else { Side::Listener };
    LinkParams { peer, side, ..LinkParams::NONE }
}
