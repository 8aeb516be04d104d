//! Failures by no op of ours: of the whole endpoint, of which the library tells in an event queue,
//! and those that the completion queue has of no op.
#![forbid(unsafe_code)]

use super::peers::Peers;
use super::report::ErrorReport;
use super::sys::Event;
use crate::base::units::{Instant, Span};

/// Looks into a queue that one poll takes at most: what nobody is told of fills no room, and a
/// queue may have more and more of it.
pub const LOOKS_MAX: u32 = 64;
/// How often events are looked for: a look is a system call of some providers.
const LOOK: Span = Span::millis(10);
/// Failures of no op, in a row and none of them a second behind the one before, that are the
/// endpoint's. `ofi_rxm` says so with every look when its device has died; some may be of
/// connections that strangers have broken.
const FAILURES_MAX: u32 = 64;
const FAILURES_APART: Span = Span::millis(1000);

/// Where events and failures of no op stand.
#[derive(Copy, Clone, Default, Debug)]
pub struct Watch {
    /// Whether there is a queue of events.
    is_on: bool,
    /// When events were looked for last.
    looked_at: Instant,
    /// Whether more of them were there.
    has_more: bool,
    /// Failures of no op since the last completion.
    failures: u32,
    /// When the last of them was.
    failed_at: Instant,
}

impl Watch {
    /// Of an endpoint that was opened.
    pub fn new(is_on: bool) -> Watch {
        Watch { is_on, ..Watch::default() }
    }

    /// A completion has come.
    #[inline]
    pub fn works(&mut self) {
        self.failures = 0;
    }

    /// Whether so many failures were of no op that the endpoint has failed.
    pub fn is_failed(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// A failure that belongs to no op may be the endpoint's.
    pub fn failed_of_none(&mut self, report: ErrorReport, peers: &mut Peers) {
        if peers.now.since(self.failed_at) >= FAILURES_APART {
            self.failures = 0;
        }
        self.failed_at = peers.now;
        self.failures = self.failures.saturating_add(1);
        if self.is_failed() {
            peers.failed_beside(report);
        }
    }

    /// Looks for events now and then.
    #[inline]
    pub fn events_on(&mut self, peers: &mut Peers) {
        if self.is_on && (self.has_more || peers.now.since(self.looked_at) >= LOOK) {
            self.events_take(peers);
        }
    }

    /// Takes events, no more than one poll looks for completions: a queue may have more and more of
    /// what is nobody's. The next poll goes on.
    #[cold]
    fn events_take(&mut self, peers: &mut Peers) {
        self.looked_at = peers.now;
        self.has_more = false;
        for _ in 0..LOOKS_MAX {
            let Some(event) = peers.endpoint.read_event() else { return };
            match event {
                Ok(None) => return,
                Ok(Some(Event::Failed(code, provider_code))) => {
                    peers.failed_beside(ErrorReport::new(code.0, provider_code));
                }
                Ok(Some(Event::Other)) => {}
                // a queue that nothing needs, and that cannot be read, is none
                Err(_) => return self.is_on = false,
            }
        }
        self.has_more = true;
    }
}
