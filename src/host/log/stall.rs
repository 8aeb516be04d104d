//! Reports of stalled requests, with the state of both sides.
//!
//! The side band's thread tells the data thread to look, a few times within `CROSSTIE_STALL_MS`.
//! The data thread then asks the peer, and waits one second at most for the answer.
#![forbid(unsafe_code)]

extern crate std;

use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::Span;
use crate::connect::{Band, TextBuffer};
use crate::diagnose::stall::{Answer, Named, RailsOf, Side, Stall};
use crate::fabric::{DownCause, PeerLife};
use crate::host::endpoint::Endpoint;
use crate::host::life::known::ConnectionRail;
use crate::host::life::suspect::Suspect;
use crate::host::log::{Level, TEXT_BYTES_MAX, say};
use crate::host::machine::{Machine, each};
use crate::host::shared::SetUp;
use crate::transport::snapshot::Tick;
use crate::wire::status::{
    STATUS_CLOSED, STATUS_FRESH, STATUS_SNAPSHOT, Standing, Status, StatusHello,
};
use core::fmt::{self, Write};

/// How long the peer's answer is waited for before a report goes without it.
const ANSWER_MS: u64 = 1_000;
/// From this age on a request counts as stalled where nothing is reported, or where it is another
/// process's, whose setting is not known: the default of `CROSSTIE_STALL_MS`.
const STALL_MS_DEFAULT: u32 = 10_000;
/// Requests of one connection that are reported one by one; of the others their number.
const SENTENCES_MAX: u32 = 4;
pub(in crate::host) const PEER_BYTES_MAX: usize = 128;

impl Endpoint {
    pub(in crate::host) fn band(&self) -> Option<&Band<crate::host::link_memory::HostMemory>> {
        match &self.shared.set_up {
            SetUp::Band(band) => Some(band),
            SetUp::Own(_) => None,
        }
    }

    pub(in crate::host) fn handle_of(&self, index: u32) -> Handle {
        Handle { index, generation: self.known[index as usize].generation }
    }

    /// Has no stall of a connection reported.
    pub(in crate::host) fn standing_set(&mut self, connection: Handle) {
        if let Some(index) = self.used(connection) {
            self.known[index.0 as usize].is_standing = true;
        }
    }

    /// Looks at all open requests.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn stalls_look(&mut self) {
        let now_ms = self.stalls.watch.look();
        let tick = self.stalls.tick(now_ms);
        self.stalls.unseen = false;
        self.strange_tell();
        let (mut unreported, mut next_ms) = (0, None);
        self.stands_take(now_ms);
        for index in 0..self.known.len() as u32 {
            if !self.known[index as usize].in_use {
                self.stalls.asked_ms[index as usize] = 0;
                self.stalls.suspects[index as usize] = Suspect::NONE;
                continue;
            }
            let connection = ConnectionIndex(index);
            let watched = each!(&mut self.machine, endpoint => endpoint.watch(connection, tick));
            let is_standing = self.known[index as usize].is_standing;
            unreported += if is_standing { 0 } else { watched.unreported };
            // for who asks while our program is elsewhere
            if watched.oldest_ms >= self.stalls.look_ms {
                self.status_leave(self.handle_of(index), tick);
            }
            let stall_ms = self.stalls.stall_ms;
            if stall_ms != 0 && !is_standing && watched.unreported_ms >= stall_ms {
                self.stall_look(index, now_ms, tick);
            } else {
                self.stalls.asked_ms[index as usize] = 0;
            }
            if stall_ms != 0 {
                let stands = watched.oldest_ms >= stall_ms;
                let again_ms = self.lost_look(index, stands, now_ms, tick);
                next_ms = next_ms.into_iter().chain(again_ms).min();
            }
        }
        let mut from = 0;
        while let Some(handle) = self.band().and_then(|band| band.status_wanted(from)) {
            from = handle.index + 1;
            self.status_leave(handle, tick);
        }
        // what has been reported is no reason to wake a sleeper again
        self.stalls.watch.busy_set(self.stalls.stall_ms != 0 && unreported != 0);
        if let (Some(next_ms), Some(band)) = (next_ms, self.band()) {
            band.wake_after(Span::millis(next_ms.saturating_sub(now_ms)));
        }
    }

    /// Remembers which peers have asked because a request of theirs stands.
    fn stands_take(&mut self, now_ms: u64) {
        let SetUp::Band(band) = &self.shared.set_up else { return };
        let mut from = 0;
        while let Some(handle) = band.status_wanted_from(from) {
            from = handle.index + 1;
            if band.status_stands(handle) {
                let look_ms = u64::from(self.stalls.look_ms);
                self.stalls.suspects[handle.index as usize].want(now_ms, look_ms);
            }
        }
    }

    fn status_leave(&self, handle: Handle, tick: Tick) {
        let known = &self.known[handle.index as usize];
        let used = known.in_use && known.generation == handle.generation;
        let status = if used { self.status_of(handle.index, tick) } else { StatusHello::ZERO };
        if let Some(band) = self.band() {
            band.status_leave(handle, &status);
        }
    }

    pub(in crate::host) fn status_of(&self, index: u32, tick: Tick) -> StatusHello {
        let connection = ConnectionIndex(index);
        let mut said = each!(&self.machine, endpoint => endpoint.status(connection, tick));
        for lane in 0..said.status.lane_count {
            match self.lane_rail(index, lane) {
                ConnectionRail::Shm => said.status.lanes_shm |= 1 << lane,
                ConnectionRail::Tcp => said.status.lanes_tcp |= 1 << lane,
                ConnectionRail::Loopback
                | ConnectionRail::Verbs
                | ConnectionRail::Libfabric
                | ConnectionRail::Vendor => {}
            }
        }
        said
    }

    /// A connection has stalled requests: its peer is asked, then they are reported.
    fn stall_look(&mut self, index: u32, now_ms: u64, tick: Tick) {
        let handle = self.handle_of(index);
        let asked_ms = self.stalls.asked_ms[index as usize];
        if asked_ms == 0 {
            if self.band().is_some_and(|band| band.status_ask(handle)) {
                self.stalls.asked_ms[index as usize] = now_ms;
            } else {
                self.stall_report(index, Answer::Cannot, tick);
            }
            return;
        }
        let said = self.band().and_then(|band| band.status_of_peer(handle));
        let waited_ms = (now_ms - asked_ms).max(1);
        if said.as_ref().is_some_and(is_full) || waited_ms >= ANSWER_MS {
            self.stalls.asked_ms[index as usize] = 0;
            let silent = Answer::Silent(waited_ms as u32);
            self.stall_report(index, said.as_ref().map_or(silent, Answer::Said), tick);
            if said.as_ref().is_some_and(is_closing) {
                self.peer_leaves(index);
            }
        }
    }

    /// The peer's program closes a connection on which a request of ours has stood for long:
    /// nothing more is to come. It can have posted something that it waits for itself, so that it
    /// is heard of as one that was given up, not as one that has closed, before which it would have
    /// fenced us; and its own fence may wait for ours.
    #[cold]
    fn peer_leaves(&mut self, index: u32) {
        let connection = ConnectionIndex(index);
        let lanes = self.known[index as usize].params.lanes.max(1);
        match &mut self.machine {
            Machine::Host(endpoint) => {
                if lanes > 1 {
                    endpoint.connection_gone(connection, DownCause::Closed);
                    for lane in 0..lanes {
                        let peer = endpoint.lane_peer(connection, lane);
                        endpoint.rail_mut().peer_fail(peer, DownCause::Unheard);
                    }
                }
            }
            Machine::Loopback(_) => {}
        };
    }

    /// Says the sentences of a connection's stalled requests.
    fn stall_report(&mut self, index: u32, answer: Answer<'_>, tick: Tick) {
        let ours = self.status_of(index, tick).status;
        let mut name = [0; PEER_BYTES_MAX];
        let peer = self.peer_name(index, &mut name);
        let own = self.status_of_partner(index, tick);
        let answer = own.as_ref().map_or(answer, Answer::Said);
        let (connection, stall_ms) = (ConnectionIndex(index), self.stalls.stall_ms);
        let mut count = 0;
        while let Some(request) = each!(&mut self.machine, endpoint => {
            endpoint.next_stalled(connection, stall_ms, tick)
        }) {
            count += 1;
            if count <= SENTENCES_MAX {
                let stall = Stall { ours: &ours, request: &request, answer, peer, stall_ms };
                sentence(format_args!("stalled: {stall}"));
            }
        }
        if count > SENTENCES_MAX {
            let more = count - SENTENCES_MAX;
            sentence(format_args!("stalled: {more} more requests with {peer}"));
        }
    }

    pub(in crate::host) fn peer_name<'n>(
        &self,
        index: u32,
        name: &'n mut [u8; PEER_BYTES_MAX],
    ) -> &'n str {
        let length = self.shared.peer_text(self.handle_of(index), name);
        core::str::from_utf8(&name[..length]).unwrap_or("a peer")
    }

    /// Where both ends are ours, the other one is known.
    fn status_of_partner(&self, index: u32, tick: Tick) -> Option<StatusHello> {
        match self.machine {
            Machine::Host(_) => None,
            Machine::Loopback(_) => {
                let partner = self.known[index as usize].params.peer.connection as u32;
                let mut said = self.status_of(partner, tick);
                said.status.flags = STATUS_SNAPSHOT | STATUS_FRESH;
                Some(said)
            }
        }
    }

    /// Writes what every open request waits for, a line each, and what the peers have said when
    /// they were asked last; asks them again. Says how many requests are open.
    ///
    /// *Cost*: control path; a system call or two per connection with open requests.
    pub fn report(&mut self, out: &mut dyn fmt::Write) -> Result<u32, fmt::Error> {
        let now_ms = self.stalls.watch.look();
        let tick = self.stalls.tick(now_ms);
        let mut open = 0;
        for index in 0..self.known.len() as u32 {
            if !self.known[index as usize].in_use {
                continue;
            }
            let connection = ConnectionIndex(index);
            let watched = each!(&mut self.machine, endpoint => endpoint.watch(connection, tick));
            open += watched.open;
            if watched.open != 0 {
                self.report_connection(index, tick, out)?;
            }
        }
        Ok(open)
    }

    fn report_connection(
        &mut self,
        index: u32,
        tick: Tick,
        out: &mut dyn fmt::Write,
    ) -> fmt::Result {
        let ours = self.status_of(index, tick).status;
        let mut said = StatusHello::ZERO;
        let answer = self.answer_now(index, tick, &mut said);
        let mut name = [0; PEER_BYTES_MAX];
        let peer = self.peer_name(index, &mut name);
        let stall_ms = match self.stalls.stall_ms {
            0 => STALL_MS_DEFAULT,
            stall_ms => stall_ms,
        };
        let connection = ConnectionIndex(index);
        for at in 0..u32::MAX {
            let requests = each!(&self.machine, endpoint => endpoint.limits().requests_max);
            if at == 2 * requests {
                break;
            }
            let request = each!(&self.machine, endpoint => {
                endpoint.request_status(connection, at, tick)
            });
            if let Some(request) = request {
                let stall = Stall { ours: &ours, request: &request, answer, peer, stall_ms };
                writeln!(out, "connection {index}: {stall}")?;
            }
        }
        Ok(())
    }
}

impl Endpoint {
    /// What is known of a peer's side now; it is asked again, unless an answer is on its way.
    fn answer_now<'s>(&self, index: u32, tick: Tick, said: &'s mut StatusHello) -> Answer<'s> {
        if let Some(own) = self.status_of_partner(index, tick) {
            *said = own;
            return Answer::Said(said);
        }
        let Some(band) = self.band() else { return Answer::Cannot };
        let handle = self.handle_of(index);
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

#[cfg(feature = "proof")]
impl Endpoint {
    /// Plants a fault in the machine, for tests of how it is told of.
    pub fn mutant_set(&mut self, mutant: Option<crate::transport::mutant::Mutant>) {
        each!(&mut self.machine, endpoint => endpoint.mutant_set(mutant));
    }
}

fn sentence(text: fmt::Arguments<'_>) {
    let mut bytes = [0; TEXT_BYTES_MAX];
    let mut buffer = TextBuffer::new(&mut bytes);
    let _ = buffer.write_fmt(text);
    let length = buffer.length();
    say(Level::Warning, core::str::from_utf8(&bytes[..length]).unwrap_or(""));
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
