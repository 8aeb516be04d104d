//! Pings over silent links tell whether a peer still answers (W8.7).
//!
//! - A *dead* peer is noticed through the kernel: by a pidfd on one host, by missing
//!   acknowledgements between hosts ([`super::stream`]). Its link ends.
//! - A *stopped* peer, or one without a processor, has a kernel that still acknowledges. Its link
//!   stays. One report is made when it was silent for the deadline, another when it speaks again.
//!   When its kernel does not acknowledge any more, either, it is dead.
//!
//! Time is monotonic. Time in which this process did not look is not counted as silence. Data
//! streams that lose packets while the link answers are handled in [`super::stalls`].
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::control::Control;
use super::dialog::Sent;
use super::ending::Ending;
use super::event::Rail;
use super::link::{Link, LinkPhase};
use super::memory::LinkMemory;
use super::note::Note;
use crate::base::units::{Instant, Span};
use crate::wire::hello::{Frame, PingHello};

/// A ping is due after this part of the deadline without a word.
const PINGS: u64 = 4;
/// Looks per deadline, at most: each goes through all links, and there may be thousands.
const LOOKS_MAX: u64 = 64;

/// What one link has heard of its peer, and when.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Hearing {
    /// When something came last.
    heard: Instant,
    /// When the next ping is due unless something comes.
    due: Instant,
    /// Number of the last ping.
    number: u64,
    /// When it was sent, if nothing has come since. A second one would say nothing more, and fill
    /// the socket of a peer that does not read.
    asked: Option<Instant>,
    /// Whether the peer's kernel, too, had left that ping without an answer at the last look;
    /// `None`: nobody has looked since.
    forsaken: Option<bool>,
    /// Whether the silence has been reported.
    reported: bool,
    /// Since when the peer's kernel has been asked over the lanes of connections, too.
    lanes: Option<Instant>,
    /// A ping of the peer's that is to be answered.
    pub owes_pong: Option<u64>,
}

/// What is to be done about a silence.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
struct Verdict {
    /// The number of the ping to send.
    ping: Option<u64>,
    /// How long nothing was heard, to be reported now.
    silent: Option<Span>,
    /// When to look again.
    next: Option<Instant>,
}

impl Hearing {
    /// That of no link.
    pub const NONE: Hearing = Hearing {
        heard: Instant(0),
        due: Instant(0),
        number: 0,
        asked: None,
        forsaken: None,
        reported: false,
        lanes: None,
        owes_pong: None,
    };

    /// A link that stands since now. `part` of 256 of the first interval is added to it, so that
    /// the pings of many links are spread.
    pub fn start(now: Instant, deadline: Span, part: u8) -> Hearing {
        let interval = deadline.0 / PINGS;
        let due = now.after(Span(interval + interval / 256 * u64::from(part)));
        Hearing { heard: now, due, ..Hearing::NONE }
    }

    /// Something has come. Says how long it was silent before, and how long it had left a question
    /// without an answer, if that had been reported.
    fn heard(&mut self, now: Instant, deadline: Span) -> Option<(Span, Span)> {
        let silent = now.since(self.heard);
        let owed = now.since(self.asked.unwrap_or(now));
        self.heard = now;
        self.due = now.after(Span(deadline.0 / PINGS));
        self.asked = None;
        self.forsaken = None;
        self.lanes = None;
        core::mem::take(&mut self.reported).then_some((silent, owed))
    }

    /// How long ago something came.
    pub fn silence(&self, now: Instant) -> Span {
        now.since(self.heard)
    }

    /// When something came last.
    pub fn when(&self) -> Instant {
        self.heard
    }

    /// The peer's kernel is asked over lanes now; `false`: it has been asked since the last word.
    pub fn lanes_asked(&mut self, now: Instant) -> bool {
        let first = self.lanes.is_none();
        self.lanes.get_or_insert(now);
        first
    }

    /// Since when it has been asked over lanes.
    pub fn when_lanes_asked(&self) -> Option<Instant> {
        self.lanes
    }

    /// Whether a ping has been left without an answer for a good part of the deadline.
    fn is_unanswered(&self, now: Instant, deadline: Span) -> bool {
        self.asked.is_some_and(|asked| now.since(asked).0 >= deadline.0 / LOOKS_MAX)
    }

    /// Whether something has come since then.
    pub fn is_heard_since(&self, then: Instant) -> bool {
        self.heard > then
    }

    /// Nobody looked for too long: the peer gets its time again.
    fn restart(&mut self, now: Instant) {
        if !self.reported {
            self.heard = now;
            self.asked = self.asked.map(|_| now);
        }
    }

    fn look(&mut self, now: Instant, deadline: Span) -> Verdict {
        let mut verdict = Verdict::default();
        if now >= self.due && self.asked.is_none() {
            self.number += 1;
            self.asked = Some(now);
            verdict.ping = Some(self.number);
        }
        let Some(asked) = self.asked else {
            verdict.next = Some(self.due);
            return verdict;
        };
        // who was asked late, for want of somebody to look, still has time to answer
        let end = self.heard.after(deadline).max(asked.after(Span(deadline.0 / 2)));
        if !self.reported && now >= end {
            self.reported = true;
            verdict.silent = Some(now.since(self.heard));
        }
        // after the report only the peer's own words change anything
        let soon = now.after(Span(deadline.0 / PINGS));
        verdict.next = (!self.reported).then_some(end.min(soon));
        verdict
    }
}

impl<M: LinkMemory> Control<M> {
    /// A link stands: from now on its peer is listened for. One of minor version 0 knows no pings.
    pub fn hearing_start(&mut self, index: u32) {
        let deadline = self.config.peer_deadline;
        let now = self.now();
        self.watch_arm(now);
        let link = &mut self.links[index as usize];
        link.hearing = Hearing::start(now, deadline, link.nonce as u8);
        link.pings = deadline != Span(0) && link.peer_nonce != 0;
        if let (Some(Channel::Stream(socket)), true) = (&link.socket, link.pings) {
            // no more pings go to a peer that was reported as stopped, and its host may die yet;
            // one that refuses the option still has the ping's own time
            let interval_s = (deadline.0 / PINGS / 1_000_000_000).clamp(1, 32_767) as i32;
            let _ = socket.keep_alive(interval_s);
        }
        if link.pings {
            let due = link.hearing.due;
            self.hearing_by(due);
        }
    }

    /// Silences are looked at at `at` or before.
    fn hearing_by(&mut self, at: Instant) {
        self.hearing_next = self.hearing_next.min(at);
        self.look_by(self.hearing_next);
    }

    /// Something has come over a link.
    pub fn hearing_note(&mut self, index: u32) {
        if !self.links[index as usize].pings {
            return;
        }
        let (now, deadline) = (self.now(), self.config.peer_deadline);
        let link = &mut self.links[index as usize];
        let silent = link.hearing.heard(now, deadline);
        let (peer, due) = (link.peer, link.hearing.due);
        if let Some((silent, owed)) = silent {
            (self.config.note)(Note::Resumed { peer, silent, owed });
            self.hearing_by(due);
        }
    }

    /// What was due was looked at so much later: this process was stopped, or got no processor.
    /// What a busy host brings about is not worth a word.
    pub fn pause_note(&mut self, late: Span) {
        let deadline = self.config.peer_deadline;
        if deadline != Span(0) && late.0 > deadline.0 / 2 {
            (self.config.note)(Note::Paused(late));
        }
    }

    /// How long nothing had come over a link between hosts, where that is so long that the peer may
    /// have given us up: not even its kernel has answered, as it does for one that is stopped.
    pub fn silence_before(&self, index: u32) -> Option<Span> {
        let (now, link) = (self.now(), &self.links[index as usize]);
        let silent = link.hearing.silence(now);
        let is_asked = link.pings && link.phase == LinkPhase::Ready && link.rail == Rail::Tcp;
        let is_long = silent.0 >= self.config.peer_deadline.0 / 2;
        // of a socket that was reset the kernel does not tell any more
        let is_forsaken = link.hearing.forsaken.unwrap_or(link.hearing.asked.is_some());
        (is_asked && is_long && is_forsaken).then_some(silent)
    }

    /// `Ping` has come: answered at once, whoever of this process reads it.
    pub fn pinged(&mut self, index: u32, ping: &PingHello) {
        self.links[index as usize].hearing.owes_pong = Some(ping.number);
        self.flush_pong(index);
    }

    /// `Pong` has come: that something came is what counts.
    pub fn ponged(&mut self, _index: u32, _pong: &PingHello) {}

    /// Sends the answer that a link owes, if its socket has room.
    pub fn flush_pong(&mut self, index: u32) {
        let Some(number) = self.links[index as usize].hearing.owes_pong else { return };
        let sent = self.send(index, &Frame::Pong(PingHello { number }));
        if sent != Sent::Blocked {
            self.links[index as usize].hearing.owes_pong = None;
        }
        self.counters.pongs += u64::from(sent == Sent::Whole);
    }

    /// Called whenever something may be due: looks who is silent when it is time.
    pub fn liveness(&mut self, now: Instant) {
        let deadline = self.config.peer_deadline;
        let gap = now.since(core::mem::replace(&mut self.looked, now));
        if now < self.hearing_next {
            self.look_by(self.hearing_next);
            return;
        }
        self.hearing_next = Instant(u64::MAX);
        for index in 0..self.links.len() as u32 {
            let link = &mut self.links[index as usize];
            if link.phase != LinkPhase::Ready || !link.pings {
                continue;
            }
            // we were stopped, or suspended with the host: the silence was ours
            if gap.0 > deadline.0 / 2 {
                link.hearing.restart(now);
            }
            let verdict = link.hearing.look(now, deadline);
            let peer = link.peer;
            if link.hearing.is_unanswered(now, deadline) {
                self.lanes_ask(index);
            }
            let link = &mut self.links[index as usize];
            let is_forsaken = link.is_forsaken(now);
            let was_asked = link.hearing.asked.is_some() && verdict.ping.is_none();
            link.hearing.forsaken = was_asked.then_some(is_forsaken);
            if let Some(silent) = verdict.silent {
                if link.connections == 0 {
                    // nobody misses it
                    self.link_dismiss(index);
                    continue;
                }
                if is_forsaken {
                    let silent = self.host_silence(index, now);
                    self.links[index as usize].ending = Some(Ending::Silent(silent));
                    self.link_silent(index);
                    continue;
                }
                (self.config.note)(Note::Stopped { peer, silent });
            }
            let link = &self.links[index as usize];
            if link.hearing.reported {
                if link.has_no_host(deadline, Span(self.asks_s() as u64 * 2_000_000_000)) {
                    let silent = self.host_silence(index, now);
                    self.links[index as usize].ending = Some(Ending::Silent(silent));
                    self.link_silent(index);
                    continue;
                }
                self.hearing_by(now.after(Span(deadline.0 / PINGS)));
            }
            if let Some(next) = verdict.next {
                self.hearing_by(next.max(now.after(Span(deadline.0 / LOOKS_MAX))));
            }
            if let Some(number) = verdict.ping {
                // one that does not fit need not: much of ours waits to be read there already, and
                // what the peer does about it will be heard
                self.send(index, &Frame::Ping(PingHello { number }));
            }
        }
    }
}

impl<M: LinkMemory> Link<M> {
    /// Whether the peer's kernel has left us without an answer, too, since we asked: then it is
    /// not the process that is stopped. Earlier than the kernel's own timers see it, which step.
    fn is_forsaken(&self, now: Instant) -> bool {
        let Some(Channel::Stream(socket)) = &self.socket else { return false };
        let Some(asked) = self.hearing.asked else { return false };
        let half_ms = now.since(asked).0 / 2_000_000;
        socket.unacknowledged_ms().is_some_and(|silent_ms| u64::from(silent_ms) >= half_ms)
    }

    /// Whether the host of a peer that is stopped has gone: for the deadline its kernel has left
    /// something without an acknowledgement, or, where all was acknowledged before, has not
    /// answered ours, which asks twice in `asks`.
    fn has_no_host(&self, deadline: Span, asks: Span) -> bool {
        let Some(Channel::Stream(socket)) = &self.socket else { return false };
        let span = |ms: u32| Span::millis(ms.into());
        match socket.unacknowledged_ms() {
            Some(ms) => span(ms) >= deadline,
            // what waits for room at the peer is asked about the more seldom the longer it waits
            None if !socket.traffic().is_some_and(|it| it.delivered) => false,
            None => socket.heard_ms().is_some_and(|ms| span(ms).0 >= deadline.0 + asks.0),
        }
    }
}

#[cfg(test)]
mod tests;
