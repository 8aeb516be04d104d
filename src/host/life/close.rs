//! Closing connections, and the endpoint.
#![forbid(unsafe_code)]

use super::connections::connections;
use super::known::Patience;
use super::linger::{self, LINGERED};
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::Span;
use crate::host::endpoint::{Closing, Endpoint};
use crate::host::log::news;
use crate::host::machine::each;
use crate::host::shared::{SetUp, is_live};
use crate::memory::locked;
use crate::transport::endpoint::ConnectionCloseError;

/// Calls of progress that closing an endpoint grants each connection to be fenced.
const CLOSE_STEPS: usize = 10_000;

impl Endpoint {
    /// Gives up a connection: its outstanding requests end with `Closed`. Their memory is the
    /// caller's again when it says [`Closing::Closed`].
    pub fn connection_close(&mut self, connection: Handle) -> Closing {
        self.close_with(connection, Patience::Messages)
    }

    /// The same for who wants the memory back as soon as nothing uses it: beside requests that a
    /// rail has begun, messages that are on their way are not waited for. From its first call on
    /// who is told to wait for the peer alone ([`Endpoint::is_lingering`]) has the memory.
    pub fn connection_stop(&mut self, connection: Handle) -> Closing {
        self.close_with(connection, Patience::Memory)
    }

    fn close_with(&mut self, connection: Handle, patience: Patience) -> Closing {
        if !is_live(self.generations, connection) {
            return Closing::Stale;
        }
        // who only sets up and closes makes no progress
        self.events_take();
        if let Some(index) = self.used(connection) {
            if self.lingers(connection.index, patience) {
                return Closing::Again;
            }
            match each!(&mut self.machine, endpoint => endpoint.connection_close(index)) {
                Err(ConnectionCloseError::Again) => return Closing::Again,
                Ok(()) | Err(ConnectionCloseError::Stale) => {}
            }
            self.known[connection.index as usize].in_use = false;
            self.lanes.pairs.strange_tell(&self.machine);
        }
        match &self.shared.set_up {
            SetUp::Band(band) => match band.connection_close(connection) {
                Ok(()) => Closing::Closed,
                Err(_) => Closing::Stale,
            },
            SetUp::Own(own) => {
                locked(own).release(connection.index);
                Closing::Closed
            }
        }
    }

    /// Ends everything: connections, listeners, the side band's thread.
    pub fn close(mut self) {
        // what waits for room waits on all connections at once
        for index in 0..self.known.len() as u32 {
            if self.known[index as usize].in_use {
                self.lingers(index, Patience::Messages);
            }
        }
        for index in 0..self.known.len() as u32 {
            self.connection_end(index);
        }
        let Endpoint { machine, shared, .. } = self;
        // the rail uses sockets that the side band closes
        drop(machine);
        shared.close();
        news::closed();
    }

    /// Closes a connection that is in use, if it can be.
    fn connection_end(&mut self, index: u32) {
        let mut steps = 0;
        while steps < CLOSE_STEPS && self.known[index as usize].in_use {
            let connection = self.known[index as usize].handle(index);
            if self.connection_close(connection) != Closing::Again {
                break;
            }
            self.progress();
            steps += usize::from(!linger::is_undelivered(&mut connections!(self), index));
        }
    }

    /// Whether closing a connection waits for what was accepted, as [`Linger`] says.
    ///
    /// [`Linger`]: linger::Linger
    fn lingers(&mut self, index: u32, patience: Patience) -> bool {
        if !linger::may_wait(&mut connections!(self), index, patience) {
            return false;
        }
        self.progress();
        self.linger.waits(&mut connections!(self), index)
    }

    /// Whether a close that says [`Closing::Again`] waits for a peer to take what has left, and not
    /// for memory of requests to be let go, or read.
    pub fn is_lingering(&self, connection: Handle) -> bool {
        let index = connection.index as usize % self.known.len();
        let known = &self.known[index];
        known.generation == connection.generation
            && known.linger_until_ms > LINGERED
            && !self.machine.is_writing(index as u32)
    }

    /// Whether rails may still read or write memory of requests of a connection. Asked after a
    /// close said [`Closing::Again`]. If not, what it waits for uses the endpoint's own memory
    /// alone.
    pub fn is_memory_used(&mut self, connection: Handle) -> bool {
        let index = self.used(connection);
        index.is_some_and(
            |index| each!(&mut self.machine, endpoint => endpoint.requests_give_up(index)),
        )
    }

    /// Closing waits no longer for the peer of a connection to take what has left, for which it has
    /// waited so long, nor begins to.
    pub fn linger_end(&mut self, connection: Handle, waited: Span) {
        let Some(ConnectionIndex(index)) = self.used(connection) else { return };
        let until_ms = &mut self.known[index as usize].linger_until_ms;
        if core::mem::replace(until_ms, LINGERED) == LINGERED {
            return;
        }
        linger::end_tell(&mut connections!(self), index, waited);
    }
}
