//! How a connector brings lanes up, and tries again as long as the connection stands (W8.10).
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::control::{Control, TOKEN_LANE};
use super::event::STREAMS_MAX;
use super::lanes::{Lane, LaneState};
use super::memory::LinkMemory;
use super::note::Note;
use super::plan::{Ends, plan};
use super::stream::StreamSocket;
use crate::base::units::{Instant, Span};
use std::io;
use std::os::fd::AsFd;

/// How long after a dial that failed, or a lane that stood for less than [`BACKOFF_MAX`], the next
/// one waits; doubled each time.
const BACKOFF: Span = Span::millis(10);
/// Longest wait.
const BACKOFF_MAX: Span = Span::millis(1000);
/// How long a dial may take: two attempts of the kernel's. A path that comes back during a longer
/// one would wait for the kernel's next attempt, which come further and further apart.
const DIAL_MAX: Span = Span::millis(2000);

/// The wait after the one that is due.
fn longer(backoff: Span) -> Span {
    Span((backoff.0 * 2).clamp(BACKOFF.0, BACKOFF_MAX.0))
}

impl Lane {
    /// When a lane of which the data thread has let go is dialled: at once, unless it keeps dying.
    fn redial_at(&mut self, now: Instant) -> Instant {
        if now.since(self.stood) >= BACKOFF_MAX {
            self.backoff = Span(0);
        }
        let at = now.after(self.backoff);
        self.backoff = longer(self.backoff);
        at
    }

    /// It is given up because nothing was heard on it for so long: it did not stand then.
    pub fn stood_silent(&mut self, silent: Span) {
        self.stood = self.stood.after(silent);
    }

    /// When a lane that could not be dialled is dialled again.
    fn retry_at(&mut self, now: Instant) -> Instant {
        self.backoff = Span(self.backoff.0.max(BACKOFF.0));
        let at = now.after(self.backoff);
        self.backoff = longer(self.backoff);
        at
    }
}

impl<M: LinkMemory> Control<M> {
    /// Plans the lanes of a connection over TCP that is about to be asked for.
    pub fn lanes_plan(&mut self, index: u32) {
        if self.pairs_plan(index) {
            return; // the first is enough of streams
        }
        let link = self.connections[index as usize].link;
        let theirs = self.addresses_of(link);
        let link = &self.links[link as usize];
        let (Some(to), true) = (link.remote, link.lanes > 1) else { return };
        let from = match &link.socket {
            Some(Channel::Stream(socket)) => socket.local().ok(),
            Some(Channel::Record(_)) | None => None,
        };
        let ends = Ends {
            ours: &self.config.addresses,
            theirs: &theirs,
            from,
            to,
            same_host: link.peer.node_id == self.node_id,
        };
        let plan = plan(&ends, self.config.lanes_wish, link.lanes);
        self.connections[index as usize].lanes = plan.count as u8;
        for (lane, path) in plan.paths[..plan.count].iter().enumerate() {
            self.lane(index, lane as u32).path = *path;
        }
    }

    /// Dials a lane's streams, as a generation of its own: what came of the last one may still be
    /// on its way.
    pub fn lane_dial(&mut self, index: u32, lane: u32) {
        if self.is_pair(index, lane) {
            return self.pair_ask(index, lane);
        }
        let connection = &self.connections[index as usize];
        let (count, link) = (connection.stream_count, connection.link);
        let from = self.way_of(link);
        let link = &self.links[link as usize];
        let (remote, stands) = (link.remote, link.stands());
        let path = self.lane(index, lane).path;
        let (Some(to), true) = (path.to.or(remote), stands) else {
            self.lane(index, lane).state = LaneState::Absent;
            self.lane_due(index, lane, None);
            return;
        };
        let deadline = self.now().after(Span(self.config.handshake_deadline.0.min(DIAL_MAX.0)));
        let entry = self.lane(index, lane);
        entry.state = LaneState::Dialing;
        entry.generation += 1;
        entry.at = deadline;
        self.lane_due(index, lane, Some(deadline));
        // what goes where the link goes begins where it begins
        let from = path.from.or(from.filter(|_| path.to.is_none()));
        for stream in 0..u32::from(count) {
            let dialled = StreamSocket::connect_from(from, to, 0);
            let said = dialled.and_then(|socket| {
                self.lane_sockets(index, lane)[stream as usize] = Some(socket);
                self.lane_say(index, lane, stream)
            });
            if let Err(error) = said {
                self.lane_missed(index, lane, error.raw_os_error().unwrap_or(0));
                return;
            }
        }
        self.lane_said(index, lane);
    }

    /// Says whose a stream is, as soon as it has connected.
    fn lane_say(&mut self, index: u32, lane: u32, stream: u32) -> io::Result<()> {
        let of = (lane as u8, self.lane(index, lane).generation);
        let (bytes, length) = self.stream_hello_bytes(index, stream, of);
        let place = self.lane_place(index, lane) * STREAMS_MAX as u32 + stream;
        let token = TOKEN_LANE | u64::from(place);
        let waiting = self.lane(index, lane).unsent & (1 << stream) != 0;
        let Some(socket) = &self.lane_sockets(index, lane)[stream as usize] else { return Ok(()) };
        let sent = socket.send(&bytes[..length]);
        let unsent = match sent {
            Ok(sent) if sent == length => false,
            // a fresh socket takes more than a hello, so this one is of no use
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => return Err(error),
        };
        if unsent != waiting {
            self.lane_watch(index, lane, stream, token, unsent)?;
        }
        Ok(())
    }

    /// Watches a stream until it has connected.
    fn lane_watch(
        &mut self,
        index: u32,
        lane: u32,
        stream: u32,
        token: u64,
        watch: bool,
    ) -> io::Result<()> {
        let poller = std::sync::Arc::clone(&self.poller);
        let socket = self.lane_sockets(index, lane)[stream as usize].as_ref();
        let Some(socket) = socket else { return Ok(()) };
        if watch {
            poller.add_for(socket.as_fd(), token, false, true)?;
        } else {
            poller.remove(socket.as_fd());
        }
        self.lane(index, lane).unsent ^= 1 << stream;
        Ok(())
    }

    /// A stream of a lane has connected, or failed.
    pub fn lane_ready(&mut self, token: u32) {
        let (place, stream) = (token / STREAMS_MAX as u32, token % STREAMS_MAX as u32);
        let Some(entry) = self.lanes.get(place as usize) else { return };
        if entry.state != LaneState::Dialing || entry.unsent & (1 << stream) == 0 {
            return;
        }
        let (index, lane) = (place / self.config.lanes_max, place % self.config.lanes_max);
        match self.lane_say(index, lane, stream) {
            Ok(()) => self.lane_said(index, lane),
            Err(error) => self.lane_missed(index, lane, error.raw_os_error().unwrap_or(0)),
        }
    }

    /// Hands a lane over whose hellos are all sent.
    fn lane_said(&mut self, index: u32, lane: u32) {
        if self.lane(index, lane).unsent == 0 {
            self.lane_stands(index, lane);
        }
    }

    /// A lane cannot be dialled now: it is tried again, and the first time in a row is reported.
    pub fn lane_missed(&mut self, index: u32, lane: u32, code: i32) {
        self.lane_unplug(index, lane);
        let now = self.now();
        let entry = self.lane(index, lane);
        entry.state = LaneState::Waiting;
        let at = entry.retry_at(now);
        entry.at = at;
        let noted = core::mem::replace(&mut entry.noted, true);
        self.lane_due(index, lane, Some(at));
        if !noted {
            let peer = self.links[self.connections[index as usize].link as usize].peer;
            (self.config.note)(Note::LaneMissed { peer, lane: lane as u8, code });
        }
    }

    /// Dials the next generation of a lane of which the data thread has let go.
    pub fn lane_redial(&mut self, index: u32, lane: u32) {
        let now = self.now();
        let entry = self.lane(index, lane);
        entry.state = LaneState::Waiting;
        let at = entry.redial_at(now);
        entry.at = at;
        match at <= now {
            true => self.lane_dial(index, lane),
            false => self.lane_due(index, lane, Some(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant(ms * MS)
    }

    #[test]
    fn a_lane_that_cannot_be_dialled_waits_longer_each_time() {
        let mut lane = Lane::free();
        let mut waits = [0; 10];
        for wait in &mut waits {
            *wait = lane.retry_at(at(0)).0 / MS;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
    }

    #[test]
    fn a_lane_that_stood_is_dialled_at_once_unless_it_keeps_dying() {
        let mut lane = Lane::free();
        lane.stood = at(5000);
        assert_eq!(lane.redial_at(at(5001)), at(5001));
        lane.stood = at(5001);
        assert_eq!(lane.redial_at(at(5002)), at(5012));
        lane.stood = at(5012);
        assert_eq!(lane.redial_at(at(5012)), at(5032));
        // it has stood for a second
        lane.stood = at(5032);
        assert_eq!(lane.redial_at(at(6032)), at(6032));
    }

    #[test]
    fn a_lane_that_was_silent_since_it_came_up_keeps_dying() {
        let mut lane = Lane::free();
        let mut now = 5000;
        for wait in [0, 10, 20, 40] {
            lane.stood = at(now);
            lane.stood_silent(Span::millis(6250));
            now += 6500;
            assert_eq!(lane.redial_at(at(now)), at(now + wait));
        }
    }
}
