//! Who a link's hellos let in: the side that has the shared key, where one is configured (W8.4).
#![forbid(unsafe_code)]

use super::control::{Control, Note, send_refusal};
use super::error::ConnectError;
use super::event::Side;
use super::key::{self, LinkNumbers, Step};
use super::link::LinkPhase;
use super::memory::LinkMemory;
use crate::fabric::completion::DownCause;
use crate::wire::hello::{LinkHello, RefuseReason, RefusedHello};

impl<M: LinkMemory> Control<M> {
    /// What both ends of a link have said so far.
    pub fn numbers(&self, index: u32) -> LinkNumbers {
        let link = &self.links[index as usize];
        let (ours, theirs) = (link.nonce, link.peer_nonce);
        let (id, peer_id) = (self.endpoint_id, link.peer.endpoint_id);
        let (connector, listener, connector_id, listener_id) = match link.side {
            Side::Connector => (ours, theirs, id, peer_id),
            Side::Listener => (theirs, ours, peer_id, id),
        };
        LinkNumbers { connector, listener, connector_id, listener_id }
    }

    /// A hello of ours with its number and proof.
    pub fn signed(&self, index: u32, step: Step, hello: LinkHello) -> LinkHello {
        let key = self.config.key.as_ref();
        let (proof_low, proof_high) = key::link_proof(key, step, &self.numbers(index));
        let nonce = self.links[index as usize].nonce;
        LinkHello { nonce, proof_low, proof_high, ..hello }
    }

    /// Whether a hello that has come proves what it must. Without a key on either side all do.
    pub fn proves(&self, index: u32, step: Step, hello: &LinkHello) -> bool {
        let proof = (hello.proof_low, hello.proof_high);
        let numbers = self.numbers(index);
        // a peer of minor version 0 says no number, and can prove nothing
        let fresh = self.config.key.is_none() || hello.nonce != 0;
        fresh && key::link_proves(self.config.key.as_ref(), step, &numbers, proof)
    }

    /// The key of the peer is not ours: both sides say so, once, and the link ends.
    pub fn key_refuse(&mut self, index: u32) {
        if let Some(socket) = &self.links[index as usize].socket {
            send_refusal(socket, 0, RefuseReason::Key);
        }
        self.key_differs(index);
    }

    /// The link ends because the keys differ.
    fn key_differs(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let peer = link.peer;
        if link.side == Side::Listener {
            self.key_stranger(index);
        }
        self.link_down(index, DownCause::Failed, ConnectError::Key(peer));
    }

    /// Counts a peer that was not let in; the first one is told of.
    pub fn key_stranger(&mut self, index: u32) {
        self.counters.keys_refused += 1;
        if self.counters.keys_refused == 1 {
            (self.config.note)(Note::Key(self.links[index as usize].peer));
        }
    }

    /// The peer refuses the link itself after our hello, and not one connection on it.
    pub fn link_refused(&mut self, index: u32, refused: &RefusedHello) {
        let phase = self.links[index as usize].phase;
        match RefuseReason::from_wire(refused.reason) {
            RefuseReason::Key => self.key_differs(index),
            reason if phase == LinkPhase::HelloSent => {
                let error = self.refusal_error(index, reason, refused.major);
                self.link_down(index, DownCause::Failed, error);
            }
            _ => self.nonsense(index),
        }
    }
}
