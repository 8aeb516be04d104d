//! Reports of stalled requests, with the state of both sides.
//!
//! The side band's thread tells the data thread to look, a few times within `CROSSTIE_STALL_MS`.
//! The data thread then asks the peer, and waits one second at most for the answer.
#![forbid(unsafe_code)]

use super::news::warning;
use super::stalls::Stalls;
use crate::base::ids::ConnectionIndex;
use crate::base::units::Span;
use crate::diagnose::stall::{Answer, Named, RailsOf, Side, Stall};
use crate::fabric::DownCause;
use crate::host::life::connections::{Connections, PEER_BYTES_MAX};
use crate::host::life::suspect::Suspect;
use crate::host::machine::each;
use crate::transport::snapshot::Tick;
use crate::wire::status::{STATUS_CLOSED, STATUS_FRESH, Standing, Status, StatusHello};
use core::fmt;

/// How long the peer's answer is waited for before a report goes without it.
const ANSWER_MS: u64 = 1_000;
/// From this age on a request counts as stalled where nothing is reported, or where it is another
/// process's, whose setting is not known: the default of `CROSSTIE_STALL_MS`.
const STALL_MS_DEFAULT: u32 = 10_000;
/// Requests of one connection that are reported one by one; of the others their number.
const SENTENCES_MAX: u32 = 4;

impl Stalls {
    /// Looks at all open requests.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn look(&mut self, connections: &mut Connections<'_>) {
        let now_ms = self.watch.look();
        let tick = self.tick(now_ms);
        self.unseen = false;
        let (mut unreported, mut next_ms) = (0, None);
        self.stands_take(connections, now_ms);
        for index in 0..connections.known.len() as u32 {
            let (known, handle) = (&connections.known[index as usize], connections.handle(index));
            let is_standing = known.is_standing;
            if !known.in_use {
                self.asked_ms[index as usize] = 0;
                self.suspects[index as usize] = Suspect::NONE;
                continue;
            }
            let watched = each!(&mut *connections.machine, endpoint => {
                endpoint.watch(ConnectionIndex(index), tick)
            });
            unreported += if is_standing { 0 } else { watched.unreported };
            // for who asks while our program is elsewhere
            if watched.oldest_ms >= self.look_ms {
                connections.status_leave(handle, tick);
            }
            let stall_ms = self.stall_ms;
            if stall_ms != 0 && !is_standing && watched.unreported_ms >= stall_ms {
                self.look_at(connections, index, now_ms, tick);
            } else {
                self.asked_ms[index as usize] = 0;
            }
            if stall_ms != 0 {
                let stands = watched.oldest_ms >= stall_ms;
                let again_ms = self.lost_look(connections, index, stands, (now_ms, tick));
                next_ms = next_ms.into_iter().chain(again_ms).min();
            }
        }
        let band = connections.shared.band();
        let mut from = 0;
        while let Some(handle) = band.and_then(|band| band.status_wanted(from)) {
            from = handle.index + 1;
            connections.status_leave(handle, tick);
        }
        // what has been reported is no reason to wake a sleeper again
        self.watch.busy_set(self.stall_ms != 0 && unreported != 0);
        if let (Some(next_ms), Some(band)) = (next_ms, band) {
            band.wake_after(Span::millis(next_ms.saturating_sub(now_ms)));
        }
    }

    /// Remembers which peers have asked because a request of theirs stands.
    fn stands_take(&mut self, connections: &Connections<'_>, now_ms: u64) {
        let Some(band) = connections.shared.band() else { return };
        let mut from = 0;
        while let Some(handle) = band.status_wanted_from(from) {
            from = handle.index + 1;
            if band.status_stands(handle) {
                self.suspects[handle.index as usize].want(now_ms, u64::from(self.look_ms));
            }
        }
    }

    /// A connection has stalled requests: its peer is asked, then they are reported.
    fn look_at(&mut self, connections: &mut Connections<'_>, index: u32, now_ms: u64, tick: Tick) {
        let (handle, band) = (connections.handle(index), connections.shared.band());
        let asked_ms = &mut self.asked_ms[index as usize];
        if *asked_ms == 0 {
            if band.is_some_and(|band| band.status_ask(handle)) {
                *asked_ms = now_ms;
            } else {
                self.tell(connections, index, Answer::Cannot, tick);
            }
            return;
        }
        let said = band.and_then(|band| band.status_of_peer(handle));
        let waited_ms = (now_ms - *asked_ms).max(1);
        if said.as_ref().is_some_and(is_full) || waited_ms >= ANSWER_MS {
            *asked_ms = 0;
            let silent = Answer::Silent(waited_ms as u32);
            self.tell(connections, index, said.as_ref().map_or(silent, Answer::Said), tick);
            if said.as_ref().is_some_and(is_closing) {
                peer_leaves(connections, index);
            }
        }
    }

    /// Says the sentences of a connection's stalled requests.
    fn tell(&self, connections: &mut Connections<'_>, index: u32, answer: Answer<'_>, tick: Tick) {
        let ours = connections.status(index, tick).status;
        let mut name = [0; PEER_BYTES_MAX];
        let peer = connections.peer_name(index, &mut name);
        let own = connections.status_of_partner(index, tick);
        let answer = own.as_ref().map_or(answer, Answer::Said);
        let (connection, stall_ms) = (ConnectionIndex(index), self.stall_ms);
        let mut count = 0;
        while let Some(request) = each!(&mut *connections.machine, endpoint => {
            endpoint.next_stalled(connection, stall_ms, tick)
        }) {
            count += 1;
            if count <= SENTENCES_MAX {
                let stall = Stall { ours: &ours, request: &request, answer, peer, stall_ms };
                warning!("stalled: {stall}");
            }
        }
        if count > SENTENCES_MAX {
            let more = count - SENTENCES_MAX;
            warning!("stalled: {more} more requests with {peer}");
        }
    }

    /// [`Endpoint::report`](crate::host::Endpoint::report).
    pub(in crate::host) fn report(
        &self,
        connections: &mut Connections<'_>,
        out: &mut dyn fmt::Write,
    ) -> Result<u32, fmt::Error> {
        let tick = self.tick(self.watch.look());
        let mut open = 0;
        for index in 0..connections.known.len() as u32 {
            if !connections.known[index as usize].in_use {
                continue;
            }
            let watched = each!(&mut *connections.machine, endpoint => {
                endpoint.watch(ConnectionIndex(index), tick)
            });
            open += watched.open;
            if watched.open != 0 {
                self.report_of(connections, index, tick, out)?;
            }
        }
        Ok(open)
    }

    fn report_of(
        &self,
        connections: &Connections<'_>,
        index: u32,
        tick: Tick,
        out: &mut dyn fmt::Write,
    ) -> fmt::Result {
        let ours = connections.status(index, tick).status;
        let mut said = StatusHello::ZERO;
        let answer = answer_now(connections, index, tick, &mut said);
        let mut name = [0; PEER_BYTES_MAX];
        let peer = connections.peer_name(index, &mut name);
        let stall_ms = match self.stall_ms {
            0 => STALL_MS_DEFAULT,
            stall_ms => stall_ms,
        };
        let machine = &*connections.machine;
        for at in 0..2 * each!(machine, endpoint => endpoint.limits().requests_max) {
            let request = each!(machine, endpoint => {
                endpoint.request_status(ConnectionIndex(index), at, tick)
            });
            if let Some(request) = request {
                let stall = Stall { ours: &ours, request: &request, answer, peer, stall_ms };
                writeln!(out, "connection {index}: {stall}")?;
            }
        }
        Ok(())
    }
}

/// The peer's program closes a connection on which a request of ours has stood for long: nothing
/// more is to come. It can have posted something that it waits for itself, so that it is heard of
/// as one that was given up, not as one that has closed, before which it would have fenced us; and
/// its own fence may wait for ours.
#[cold]
fn peer_leaves(connections: &mut Connections<'_>, index: u32) {
    if connections.lanes_of(index).len() > 1 {
        connections.gone(index, DownCause::Closed, DownCause::Unheard);
    }
}

/// What is known of a peer's side now; it is asked again, unless an answer is on its way.
fn answer_now<'s>(
    connections: &Connections<'_>,
    index: u32,
    tick: Tick,
    said: &'s mut StatusHello,
) -> Answer<'s> {
    if let Some(own) = connections.status_of_partner(index, tick) {
        *said = own;
        return Answer::Said(said);
    }
    let Some(band) = connections.shared.band() else { return Answer::Cannot };
    let handle = connections.handle(index);
    let answer = match (band.status_of_peer(handle), band.status_owed_ms(handle)) {
        (Some(full), _) if is_full(&full) => Some(full),
        (_, Some(owed_ms)) if u64::from(owed_ms) < ANSWER_MS => return Answer::Asked(owed_ms),
        (old, _) => old,
    };
    let owed_ms = band.status_owed_ms(handle);
    let asked = band.status_ask(handle);
    match (answer, owed_ms) {
        (Some(answer), _) => {
            *said = answer;
            Answer::Said(said)
        }
        (None, _) if !asked => Answer::Cannot,
        (None, Some(owed_ms)) => Answer::Silent(owed_ms),
        (None, None) => Answer::NotAsked,
    }
}

/// Whether a peer has said that it closes the connection.
fn is_closing(said: &StatusHello) -> bool {
    let standing = Standing::from_wire(said.status.standing);
    said.status.flags & STATUS_FRESH != 0 && standing == Standing::Closing
}

/// Whether the peer's program has had a part in its answer, or cannot have.
fn is_full(said: &StatusHello) -> bool {
    said.status.flags & (STATUS_FRESH | STATUS_CLOSED) != 0
}

/// A connection of another process in words: both sides' oldest requests.
pub fn describe(
    ours: &StatusHello,
    answer: Answer<'_>,
    peer: &str,
    out: &mut dyn fmt::Write,
) -> fmt::Result {
    let status: &Status = &ours.status;
    if status.flags & STATUS_FRESH == 0 {
        match status.silent_ms {
            u32::MAX => {
                writeln!(out, "  its program has made no call of progress since it was asked")?
            }
            ms => writeln!(out, "  its program made its last call of progress {ms} ms ago")?,
        }
    }
    if status.lane_count > 1 {
        writeln!(out, "  {}", RailsOf(status))?;
    }
    for request in [&ours.send, &ours.receive].into_iter().filter(|request| request.waits != 0) {
        let stall_ms = STALL_MS_DEFAULT;
        writeln!(out, "  {}", Stall { ours: status, request, answer, peer, stall_ms })?;
    }
    match answer {
        Answer::NotAsked | Answer::Asked(_) | Answer::Cannot => {
            writeln!(out, "  the peer cannot be asked")
        }
        Answer::Silent(_) => writeln!(out, "  the peer does not answer"),
        Answer::Said(theirs) => {
            writeln!(out, "  {}", Side(theirs))?;
            for request in [&theirs.send, &theirs.receive] {
                if request.waits != 0 {
                    writeln!(out, "  peer: {}", Named(request))?;
                }
            }
            Ok(())
        }
    }
}
