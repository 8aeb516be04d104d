//! What the copy engine needs of the rail that a peer is on.
#![forbid(unsafe_code)]

use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::{Op, PostError, Posted};
use crate::provider::notes::Note;

/// The rails that it stands beside.
pub trait Under {
    /// Tells a peer something. `false`: there is no room now, or the peer is down.
    fn note_send(&mut self, peer: PeerIndex, note: &Note, now: Instant) -> bool;

    /// The oldest note that has come, and from whom.
    fn note_take(&mut self) -> Option<(PeerIndex, Note)>;

    /// Posts an op on memory of the host, or a fence.
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError>;

    /// A peer has broken the format.
    fn fail(&mut self, peer: PeerIndex);

    /// Whether the peer is on this host, so that its memory can be mapped.
    fn is_near(&self, peer: PeerIndex) -> bool;
}
