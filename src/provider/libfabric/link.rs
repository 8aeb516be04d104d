//! The connection of one peer, on a rail whose peers have endpoints of their own.
#![forbid(unsafe_code)]

use super::sys::{Endpoint, GREETING_BYTES, Info};
use crate::base::units::Instant;
use core::mem::ManuallyDrop;

/// How far a connection has come.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Phase {
    /// There is none.
    Idle,
    /// It was asked for, or granted, and does not stand yet.
    Opening,
    /// It stands.
    Up,
    /// It stands until our last word has left: we close in good order.
    Leaving,
    /// It was closed, and completions of what it was may still be in the queue.
    Cut,
}

/// The connection of one peer. It lies in the rail's block, and the rail closes what it has.
#[derive(Debug)]
pub struct Link {
    pub phase: Phase,
    /// Whether the peer was joined and has no endpoint yet: one that was closed is waited for, or
    /// the other end's request.
    pub is_wanted: bool,
    /// Whether we are the one who asks.
    pub asks: bool,
    /// Open while it is opening, up or being left.
    pub endpoint: ManuallyDrop<Option<Endpoint>>,
    /// A request of the other end's that came before it could be granted.
    pub request: ManuallyDrop<Option<Info>>,
}

impl Link {
    /// There is none, nor will be.
    pub const NONE: Link = Link {
        phase: Phase::Idle,
        is_wanted: false,
        asks: false,
        endpoint: ManuallyDrop::new(None),
        request: ManuallyDrop::new(None),
    };

    /// Whether somebody waits for it to stand.
    pub fn is_due(&self) -> bool {
        self.is_wanted || self.phase == Phase::Opening
    }
}

/// What the connections of a rail wait for.
#[derive(Copy, Clone, Default, Debug)]
pub struct Watch {
    /// Whether there is a queue of events.
    pub is_on: bool,
    /// Connections that do not stand yet, as was seen last.
    pub due: u32,
    /// Connections that were closed, and whose completions may still come.
    pub cuts: u32,
    /// When events were looked for last.
    pub looked_at: Instant,
    /// Whether more of them were there.
    pub has_more: bool,
    /// Events of failures of nobody, in a row, since the queue was seen empty.
    pub event_failures: usize,
    /// Failures of no op since the last completion.
    pub failures: u32,
    /// When the last of them was.
    pub failed_at: Instant,
}

/// What a request says: who is meant. The token is one that was given to the asking peer alone.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Greeting {
    /// The asked one's number of the peer.
    pub number: u32,
    /// And its token.
    pub token: u32,
}

const MAGIC: [u8; 8] = *b"crosstie";

impl Greeting {
    /// As bytes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// The inverse; `None`: it is none.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Greeting> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        let greeting = Greeting { number: word(8), token: word(12) };
        (bytes[..8] == MAGIC && greeting.token != 0).then_some(greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_comes_back_and_strangers_have_none() {
        let greeting = Greeting { number: 0xfedc, token: 0x89ab_cdef };
        assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
        assert_eq!(Greeting::decode(&[0; GREETING_BYTES]), None);
        let nobody = Greeting { token: 0, ..greeting };
        assert_eq!(Greeting::decode(&nobody.encode()), None);
    }
}
