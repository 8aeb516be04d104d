//! Failures of the whole endpoint, by no op of ours, of which the library tells in an event queue.
#![forbid(unsafe_code)]

use super::domain::turns::Act;
use super::poll::LOOKS_MAX;
use super::rail::{Libfabric, Open};
use super::report::ErrorReport;
use super::sys::{Code, Event};
use crate::base::units::{Instant, Span};

/// How often events are looked for: a look is a system call of some providers.
const LOOK: Span = Span::millis(10);

/// Where events and failures of no op stand.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Watch {
    /// Whether there is a queue of events.
    pub is_on: bool,
    /// When events were looked for last.
    looked_at: Instant,
    /// Whether more of them were there.
    pub has_more: bool,
    /// Failures of no op since the last completion.
    pub failures: u32,
    /// When the last of them was.
    pub failed_at: Instant,
}

impl Libfabric<'_> {
    /// Looks for events now and then.
    #[inline]
    pub(super) fn events_on(&mut self) {
        if self.watch.has_more || self.now.since(self.watch.looked_at) >= LOOK {
            self.events_take();
        }
    }

    /// Takes events, no more than one poll looks for completions: a queue may have more and more of
    /// what is nobody's. The next poll goes on.
    #[cold]
    fn events_take(&mut self) {
        self.watch.looked_at = self.now;
        self.watch.has_more = false;
        for _ in 0..LOOKS_MAX {
            let Some(event) = self.event_read() else { return };
            match event {
                Ok(None) => return,
                Ok(Some(Event::Failed(code, provider_code))) => {
                    self.failed_beside(ErrorReport::new(code.0, provider_code));
                }
                Ok(Some(Event::Other)) => {}
                // a queue that nothing needs, and that cannot be read, is none
                Err(_) => return self.watch.is_on = false,
            }
        }
        self.watch.has_more = true;
    }

    /// `None`: there is no queue of events.
    fn event_read(&self) -> Option<Result<Option<Event>, Code>> {
        let Some(Open { events: Some(events), .. }) = self.open.as_ref() else { return None };
        let _turn = self.domain.turn(Act::Poll);
        Some(events.read())
    }

    /// The endpoint has failed, by no op of ours: some providers tell of that in an event alone
    /// (`efa`, which ends the process where nobody can be told).
    #[cold]
    pub(super) fn failed_beside(&mut self, report: ErrorReport) {
        let code = if report.code == 0 { libc::EIO } else { report.code };
        let report = ErrorReport { code, ..report };
        for peer in self.peers.iter_mut().filter(|peer| peer.takes_ops()) {
            peer.report.get_or_insert(report);
        }
        self.lose(code);
    }
}
