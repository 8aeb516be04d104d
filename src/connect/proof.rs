//! What proves that a peer is one of ours: random numbers that only the two of a link know.
#![forbid(unsafe_code)]

use super::control::Control;
use super::memory::LinkMemory;
use crate::base::units::Instant;
use crate::wire::hello::{FrameKind, LinkHello, PingHello, RefuseReason, StreamHello};

impl<M: LinkMemory> Control<M> {
    /// What our hello of `kind` says in its proof, low half first.
    pub fn link_proof(&self, _link: u32, _kind: FrameKind) -> (u128, u128) {
        (0, 0)
    }

    /// Checks the proof in a peer's hello of `kind`; our link knows the peer's nonce already.
    pub fn link_verify(
        &self,
        _link: u32,
        _kind: FrameKind,
        _hello: &LinkHello,
    ) -> Result<(), RefuseReason> {
        Ok(())
    }

    /// What our hello on a data stream says in its proof.
    pub fn stream_proof(&self, link: u32, _connection: u64, _stream: u32) -> u128 {
        self.links[link as usize].peer_nonce
    }

    /// Whether a data stream's proof is that of this link.
    pub fn stream_verify(&self, link: u32, hello: &StreamHello) -> bool {
        hello.proof == self.links[link as usize].nonce
    }

    /// A `Ping` has come.
    pub fn pinged(&mut self, _link: u32, _ping: &PingHello) {}

    /// A `Pong` has come.
    pub fn ponged(&mut self, _link: u32, _pong: &PingHello) {}

    /// Called whenever something may be due.
    pub fn liveness(&mut self, _now: Instant) {}
}
