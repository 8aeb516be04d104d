//! What people should know of a peer that stands still, and that nothing else tells.

use super::rail::Libfabric;
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use core::fmt;

/// What it is. Behind the words for a rail.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Complaint {
    /// Its fence waits for a word that may never come.
    Unfenced(Span),
    /// The library refuses every post, although the peer's program polls, and nobody is to be given
    /// up for it.
    Refused(Span),
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Complaint::Unfenced(waited) => write!(
                f,
                "is not fenced after {} ms: it has failed or is closed, and operations of either \
                 side may still arrive. Its requests wait, or end with Unfenced and their memory \
                 stays registered. A close waits, too: for the fence, or until the rail has no \
                 other peer and is opened again",
                waited.0 / 1_000_000
            ),
            Complaint::Refused(silent) => write!(
                f,
                "takes nothing: for {} ms its library has refused every operation to the peer, and \
                 ended none, although the peer's program polls. Messages wait; \
                 CROSSTIE_OFI_SILENCE_MS gives such a peer up",
                silent.0 / 1_000_000
            ),
        }
    }
}

impl Libfabric<'_> {
    /// Has somebody told of a peer.
    #[cold]
    pub(super) fn complain(&mut self, index: usize, complaint: Complaint) {
        self.peers[index].complaint = Some(complaint);
        self.has_complaints = true;
    }

    /// Whether [`Libfabric::complaint`] has one to name.
    #[inline]
    pub fn has_complaints(&self) -> bool {
        self.has_complaints
    }

    /// The next peer that people should know something of. Each is named once.
    #[cold]
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        let mut peers = self.peers.iter_mut().enumerate();
        let found = peers.find_map(|(index, peer)| Some((index, peer.complaint.take()?)));
        self.has_complaints = found.is_some();
        found.map(|(index, complaint)| (PeerIndex(index as u32), complaint))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn complaints_say_for_how_long_and_what_comes_of_it() {
        let unfenced = Complaint::Unfenced(Span::millis(3000)).to_string();
        assert!(unfenced.contains("after 3000 ms") && unfenced.contains("Unfenced"), "{unfenced}");
        let refused = Complaint::Refused(Span::millis(6256)).to_string();
        assert!(refused.contains("for 6256 ms") && refused.contains("SILENCE_MS"), "{refused}");
    }
}
