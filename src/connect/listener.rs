//! One listener: a queue of connections that wait for `accept`, linked through their own slots.
#![forbid(unsafe_code)]

use super::connection::{Connection, NONE};
use crate::base::slab::{Generation, Handle};
use std::vec::Vec;

/// Names a listener of an endpoint.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(transparent)]
pub struct ListenerId(pub Handle);

/// An entry of the table of listeners.
#[derive(Copy, Clone, Debug)]
pub(super) struct Listener {
    pub generation: Generation,
    head: u32,
    tail: u32,
}

/// The listeners of an endpoint, which are not taken for another's.
pub(super) fn table(endpoint_id: u128, listeners_max: u32) -> Vec<Listener> {
    std::vec![Listener::free(endpoint_id as u32); listeners_max as usize]
}

impl Listener {
    /// An entry with nobody waiting, of a table with this salt.
    pub fn free(salt: u32) -> Listener {
        Listener { generation: Generation::salted(salt), head: NONE, tail: NONE }
    }

    /// The connection that has waited longest of those that may be accepted.
    pub fn first_taken(&self, connections: &[Connection]) -> Option<u32> {
        let mut at = self.head;
        while at != NONE && connections[at as usize].untaken {
            at = connections[at as usize].next;
        }
        (at != NONE).then_some(at)
    }

    /// The connection that has waited longest.
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Puts a connection at the end.
    pub fn push(&mut self, connections: &mut [Connection], index: u32) {
        connections[index as usize].next = NONE;
        connections[index as usize].queued = true;
        match self.tail {
            NONE => self.head = index,
            tail => connections[tail as usize].next = index,
        }
        self.tail = index;
    }

    /// Takes a connection out, wherever it stands. *Cost*: those before it.
    pub fn remove(&mut self, connections: &mut [Connection], index: u32) {
        let mut before = NONE;
        let mut at = self.head;
        while at != index {
            assert!(at != NONE, "a queued connection is in its listener's queue");
            before = at;
            at = connections[at as usize].next;
        }
        let next = connections[index as usize].next;
        match before {
            NONE => self.head = next,
            before => connections[before as usize].next = next,
        }
        if self.tail == index {
            self.tail = before;
        }
        connections[index as usize].next = NONE;
        connections[index as usize].queued = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_in_order_and_from_the_middle() {
        let mut connections = [Connection::FREE; 4];
        let mut listener = Listener::free(0);
        for index in 0..4 {
            listener.push(&mut connections, index);
        }
        listener.remove(&mut connections, 2);
        listener.remove(&mut connections, 3);
        listener.push(&mut connections, 2);
        for expected in [0, 1, 2] {
            assert_eq!(listener.first(), Some(expected));
            listener.remove(&mut connections, expected);
        }
        assert_eq!(listener.first(), None);
    }
}
