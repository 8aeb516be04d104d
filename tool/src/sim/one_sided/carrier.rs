//! What carries the records of a rank here: its endpoint, and a queue of its own to itself.
#![forbid(unsafe_code)]

use crate::sim::memory::Arena;
use crosstie::base::ids::ConnectionIndex;
use crosstie::base::slab::Handle;
use crosstie::transport::request::RequestIdError;
use crosstie::transport::{
    Endpoint, Incoming, Outcome, Outgoing, RequestError, RequestId, SubmitError,
};
use crosstie::window::{Carrier, Links};
use crosstie_kit::random::Random;
use crosstie_kit::sim::SimPort;
use std::collections::{BTreeMap, VecDeque};

/// The connection to the other rank that carries frames, and the one that carries bytes.
pub const FRAMES: ConnectionIndex = ConnectionIndex(0);
pub const BYTES: ConnectionIndex = ConnectionIndex(1);

/// Names a connection of a rank.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Link {
    /// To the other rank.
    Peer(ConnectionIndex),
    /// To itself.
    Own(ConnectionIndex),
}

impl Link {
    /// The connections of a rank with itself, or with the other.
    pub fn all(is_own: bool) -> Links<Link> {
        let link = if is_own { Link::Own } else { Link::Peer };
        let (frames, bytes) = (link(FRAMES), link(BYTES));
        Links { frames_out: frames, frames_in: frames, bytes_out: bytes, bytes_in: bytes }
    }
}

/// Messages of a rank to itself on one connection.
#[derive(Default)]
struct Queue {
    sends: VecDeque<(u64, Outgoing)>,
    receives: VecDeque<(u64, Incoming)>,
}

/// Messages of a rank to itself.
#[derive(Default)]
pub struct Own {
    queues: [Queue; 2],
    ended: BTreeMap<u64, Outcome>,
    /// Requests so far. They are told from those of an endpoint by their kind, which is none.
    requests: u64,
}

impl Own {
    fn number(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Some messages arrive, of any connection.
    pub fn progress(&mut self, arena: &mut Arena, random: &mut Random) {
        for _ in 0..random.below(6) {
            let queue = &mut self.queues[random.below(2) as usize];
            if queue.sends.is_empty() || queue.receives.is_empty() {
                continue;
            }
            let ((send, out), (receive, room)) =
                (queue.sends.pop_front().unwrap(), queue.receives.pop_front().unwrap());
            let fits = out.length <= room.length;
            if fits {
                arena.copy(out.address, room.address, out.length as usize);
            }
            let lengths = [out.length, 0, 0, 0, 0, 0, 0, 0];
            let result = if fits { Ok(()) } else { Err(RequestError::Truncated) };
            self.ended.insert(send, Outcome { result: Ok(()), count: 1, lengths });
            self.ended.insert(receive, Outcome { result, count: 1, lengths });
        }
    }
}

/// A rank's connections, for the time of a call.
pub struct Ports<'a, 'f, 'm> {
    pub endpoint: &'a mut Endpoint<'m, SimPort<'f, 'm>>,
    pub own: &'a mut Own,
    /// Bytes that travel apart do not leave.
    pub holds: bool,
}

impl Carrier for Ports<'_, '_, '_> {
    type Link = Link;

    fn isend(&mut self, link: Link, message: Outgoing) -> Result<RequestId, SubmitError> {
        match link {
            Link::Peer(BYTES) | Link::Own(BYTES) if self.holds => Err(SubmitError::Again),
            Link::Peer(connection) => self.endpoint.isend(connection, message),
            Link::Own(connection) => {
                let number = self.own.number();
                self.own.queues[connection.0 as usize].sends.push_back((number, message));
                Ok(RequestId(number))
            }
        }
    }

    fn irecv(&mut self, link: Link, rooms: &[Incoming]) -> Result<RequestId, SubmitError> {
        match link {
            Link::Peer(connection) => self.endpoint.irecv(connection, rooms),
            Link::Own(connection) => {
                let number = self.own.number();
                self.own.queues[connection.0 as usize].receives.push_back((number, rooms[0]));
                Ok(RequestId(number))
            }
        }
    }

    fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        if request.unpack().is_some() {
            return self.endpoint.test(request);
        }
        Ok(self.own.ended.remove(&request.0))
    }

    fn locate(&self, region: Handle, address: u64, length: u64) -> Result<bool, SubmitError> {
        self.endpoint.locate(region, address, length)
    }

    fn reaches_device(&self, _link: Link) -> bool {
        false
    }
}
