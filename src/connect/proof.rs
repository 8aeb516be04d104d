//! What proves that a peer is one of ours: random numbers that only the two of a link know, and the
//! shared key where one is configured (W8.8).
#![forbid(unsafe_code)]

use super::control::Control;
use super::error::KeyCause;
use super::event::Side;
use super::key::{self, LinkNumbers, Step};
use super::memory::LinkMemory;
use crate::wire::hello::{FrameKind, LinkHello, RefuseReason, StreamHello};

impl<M: LinkMemory> Control<M> {
    /// What both ends of a link have said so far.
    fn numbers(&self, link: u32) -> LinkNumbers {
        let link = &self.links[link as usize];
        let (ours, theirs) = (link.nonce, link.peer_nonce);
        let (id, peer_id) = (self.endpoint_id, link.peer.endpoint_id);
        let (connector, listener, connector_id, listener_id) = match link.side {
            Side::Connector => (ours, theirs, id, peer_id),
            Side::Listener => (theirs, ours, peer_id, id),
        };
        LinkNumbers { connector, listener, connector_id, listener_id }
    }

    /// What our hello of `kind` says in its proof, low half first.
    pub fn link_proof(&self, link: u32, kind: FrameKind) -> (u128, u128) {
        key::link_proof(self.config.trust.key.as_ref(), step(kind), &self.numbers(link))
    }

    /// Checks the proof in a peer's hello of `kind`; our link knows the peer's nonce already.
    /// Without a key on either side all are let in. Who is not is counted, and the first is told
    /// of.
    pub fn link_verify(
        &mut self,
        link: u32,
        kind: FrameKind,
        hello: &LinkHello,
    ) -> Result<(), RefuseReason> {
        let key = self.config.trust.key.as_ref();
        let proof = (hello.proof_low, hello.proof_high);
        // a peer of minor version 0 says no number, and can prove nothing
        let fresh = key.is_none() || hello.nonce != 0;
        if fresh && key::link_proves(key, step(kind), &self.numbers(link), proof) {
            return Ok(());
        }
        let cause = self.key_cause(proof);
        let link = &self.links[link as usize];
        if link.side == Side::Listener {
            self.key_refused(link.named(), cause);
        }
        Err(RefuseReason::Key)
    }

    /// How the key of who wrote a wrong proof differs from ours: without a key it is zero.
    pub fn key_cause(&self, proof: (u128, u128)) -> KeyCause {
        match (&self.config.trust.key, proof) {
            (None, _) => KeyCause::NoneHere,
            (Some(_), (0, 0)) => KeyCause::NoneThere,
            (Some(_), _) => KeyCause::Other,
        }
    }

    /// What our hello of `kind` on the link `index` says to take `lost` over.
    pub fn resume_proof(&self, index: u32, lost: u32, kind: FrameKind) -> u128 {
        let (numbers, lost) = (self.numbers(index), self.numbers(lost));
        key::resume_proof(self.config.trust.key.as_ref(), step(kind), &numbers, &lost)
    }

    /// Whether a peer's hello of `kind` on the link `index` takes `lost` over.
    pub fn resume_verify(&self, index: u32, lost: u32, kind: FrameKind, hello: &LinkHello) -> bool {
        let (numbers, lost) = (self.numbers(index), self.numbers(lost));
        key::resume_proves(
            self.config.trust.key.as_ref(),
            step(kind),
            &numbers,
            &lost,
            hello.resume,
        )
    }

    /// What our hello on a data stream says in its proof.
    pub fn stream_proof(&self, link: u32, hello: &StreamHello) -> u128 {
        key::stream_proof(self.config.trust.key.as_ref(), &self.numbers(link), hello)
    }

    /// Whether a data stream's proof is that of this link.
    pub fn stream_verify(&self, link: u32, hello: &StreamHello) -> bool {
        key::stream_proves(self.config.trust.key.as_ref(), &self.numbers(link), hello)
    }
}

fn step(kind: FrameKind) -> Step {
    match kind {
        FrameKind::LinkHello => Step::Hello,
        FrameKind::LinkReply => Step::Reply,
        _ => Step::Ready,
    }
}
