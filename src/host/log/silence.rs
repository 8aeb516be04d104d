//! Sentences about who was silent, and what nobody may see.
#![forbid(unsafe_code)]

use super::news::{once, warning};
use crate::base::units::Span;
use crate::connect::Peer;
use crate::memory::Errno;

/// A peer that was reported as silent has spoken.
pub(in crate::host) fn resumed(peer: &Peer, silent: Span, owed: Span) {
    warning!(
        "{peer} answers again after {} ms: its host was alive, but its process did not run for at \
         least {} ms; it was stopped, or got no processor",
        silent.0 / 1_000_000,
        owed.0 / 1_000_000
    );
}

/// We were not heard for a while ourselves.
pub(in crate::host) fn paused(late: Span) {
    warning!(
        "this process did not run for at least {} ms: it was stopped, or got no processor; peers \
         may have reported it as silent",
        late.0 / 1_000_000
    );
}

/// Once per process.
pub(in crate::host) fn carriers_unknown(code: i32) {
    once!(warning!(
        "interfaces: the kernel does not say which have lost their carrier ({}); a rail over such \
         an interface fails later, when it has been silent for too long",
        Errno(code)
    ));
}

/// Once per process.
pub(in crate::host) fn unchecked(peer: &Peer) {
    once!(warning!(
        "{peer} has a version without checksums over TCP; CROSSTIE_CHECKSUM=1 has no effect with \
         peers of that version"
    ));
}
