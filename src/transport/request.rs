//! Requests as the user sees them: a number to ask by, and how it ended.
#![forbid(unsafe_code)]

use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::words::said;
use crate::wire::GROUP_MAX;

/// Names an outstanding request. Zero is none; a number kept too long names nothing.
///
/// *Shape*: generation in bits 32 to 63, kind in 30 and 31, connection in 8 to 27, record in 0 to
/// 7; an eager send that was complete when it was accepted has its length in the low 22 bits, and
/// its number in the 8 above.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct RequestId(pub u64);

/// What a number names.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RequestKind {
    /// A send that was complete when it was accepted. It stays complete, however often it is asked.
    Complete {
        /// Its length in bytes, at most [`COMPLETE_BYTES_MAX`].
        length: u64,
        /// The low bits of how many eager sends the endpoint had posted before.
        number: u8,
        /// The endpoint's salt.
        generation: u32,
    },
    /// A send record.
    Send {
        /// Whose.
        connection: ConnectionIndex,
        /// Which record.
        record: u8,
        /// Which use of it.
        generation: u32,
    },
    /// A group of receives.
    Receive {
        /// Whose.
        connection: ConnectionIndex,
        /// Which record.
        record: u8,
        /// Which use of it.
        generation: u32,
    },
}

/// Longest send that may be complete when it is accepted.
pub const COMPLETE_BYTES_MAX: u64 = (1 << COMPLETE_BITS) - 1;

const COMPLETE_BITS: u32 = 22;
const KIND_COMPLETE: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_RECEIVE: u64 = 3;

impl RequestId {
    /// The number for `kind`.
    #[inline]
    pub const fn pack(kind: RequestKind) -> RequestId {
        RequestId(match kind {
            RequestKind::Complete { length, number, generation } => {
                let number = (number as u64) << COMPLETE_BITS;
                (generation as u64) << 32 | KIND_COMPLETE << 30 | number | length
            }
            RequestKind::Send { connection, record, generation } => {
                number(KIND_SEND, connection, record, generation)
            }
            RequestKind::Receive { connection, record, generation } => {
                number(KIND_RECEIVE, connection, record, generation)
            }
        })
    }

    /// What the number names, if it names anything.
    #[inline]
    pub const fn unpack(self) -> Option<RequestKind> {
        let generation = (self.0 >> 32) as u32;
        let connection = ConnectionIndex((self.0 >> 8) as u32 & 0xf_ffff);
        let record = self.0 as u8;
        match self.0 >> 30 & 3 {
            KIND_COMPLETE => {
                let number = (self.0 >> COMPLETE_BITS) as u8;
                let length = self.0 & COMPLETE_BYTES_MAX;
                Some(RequestKind::Complete { length, number, generation })
            }
            KIND_SEND => Some(RequestKind::Send { connection, record, generation }),
            KIND_RECEIVE => Some(RequestKind::Receive { connection, record, generation }),
            _ => None,
        }
    }
}

const fn number(kind: u64, connection: ConnectionIndex, record: u8, generation: u32) -> u64 {
    (generation as u64) << 32 | kind << 30 | (connection.0 as u64) << 8 | record as u64
}

/// A message to send.
#[derive(Copy, Clone, Debug)]
pub struct Outgoing {
    /// Region that the message lies in; not looked at when `length` is zero.
    pub region: Handle,
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Matched against the tags of the oldest group.
    pub tag: i32,
}

/// Room for a message to receive.
#[derive(Copy, Clone, Debug)]
pub struct Incoming {
    /// Region that the room lies in; not looked at when `length` is zero.
    pub region: Handle,
    /// Address of its first byte.
    pub address: u64,
    /// Room in bytes.
    pub length: u64,
    /// Takes messages with this tag.
    pub tag: i32,
}

/// Why a request was not accepted. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SubmitError {
    /// No record is free now: test outstanding requests, or make progress, then call again.
    Again,
    /// No such connection, or it is closed.
    Connection,
    /// The connection has failed; the cause.
    Failed(RequestError),
    /// The region handle names no registered region.
    Region,
    /// The buffer does not lie inside its region.
    Range,
    /// The buffer lies in a GPU, and what the connection runs over does not reach that.
    Device,
    /// A group has 1 to 8 receives.
    Group,
    /// The message is longer than any message may be, or than the connection takes:
    /// [`Endpoint::message_bytes_max`](super::Endpoint::message_bytes_max).
    TooLong,
    /// The connection's rail pushes, and the ends offer different numbers of groups at a time:
    /// `requests_max` is 32 at one of them, and more at the other.
    RequestsMax,
}

said! {
    /// Why a request did not end well.
    #[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
    #[repr(u8)] // from 1 on: zeroed memory is no error
    pub enum RequestError {
        /// Nothing was written to the buffer.
        Truncated = 1 => "the message was longer than the receive",
        PeerClosed => "the peer closed the connection",
        /// The peer's process ended, or its side band broke.
        PeerDied => "the peer's process ended, or cannot be reached any more",
        Closed => "this side closed the connection",
        Canceled => "the request was canceled",
        Protocol => "the peer broke the protocol",
        /// The peer gave the connection up, for a reason of its own: its requests ended with that.
        PeerGaveUp => "the peer gave the connection up, and its requests say why",
        /// The provider's code.
        Fabric(code: i32) => "the rail failed (code {code})",
        /// Although the peer was heard otherwise.
        Silent =>
            "the peer's host acknowledged nothing on the connection for too long: packets are lost \
             on the way",
        /// The last one's code.
        RailsLost(code: i32) => "every rail failed, and none came back in time (code {code})",
        NoAnswer => "a rail failed, and the peer never said what it had carried",
        /// Not in time. The regions of the request cannot be deregistered, nor its connection
        /// closed, before the fence holds after all.
        Unfenced => "a rail failed and could not be fenced: the memory may still be touched",
    }
}

/// How a request ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Outcome {
    /// Success, or the first error of the group.
    pub result: Result<(), RequestError>,
    /// How many of `lengths` count: 1 for a send, the group's size for a receive.
    pub count: u8,
    /// Bytes sent, or received in each buffer of the group.
    pub lengths: [u64; GROUP_MAX],
}

impl Outcome {
    /// That of one message.
    #[inline]
    pub(super) const fn one(result: Result<(), RequestError>, length: u64) -> Outcome {
        Outcome { result, count: 1, lengths: [length, 0, 0, 0, 0, 0, 0, 0] }
    }
}

/// Why a request could not be asked or canceled. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RequestIdError {
    /// The number names no outstanding request: it was tested to its end, or never existed.
    Stale,
    /// The request is under way: it ends with its message, or with the connection.
    Busy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_what_they_were_made_of() {
        let connection = ConnectionIndex(0xffff);
        for kind in [
            RequestKind::Complete { length: 0, number: 0, generation: 0 },
            RequestKind::Complete { length: 1 << 20, number: 0, generation: u32::MAX },
            RequestKind::Complete { length: COMPLETE_BYTES_MAX, number: 255, generation: 1 },
            RequestKind::Send { connection, record: 255, generation: u32::MAX },
            RequestKind::Receive { connection, record: 0, generation: 0 },
        ] {
            assert_eq!(RequestId::pack(kind).unpack(), Some(kind));
            assert_ne!(RequestId::pack(kind).0, 0);
        }
        assert_eq!(RequestId(0).unpack(), None);
        assert_eq!(RequestId(0x1234_5678).unpack(), None);
    }
}
