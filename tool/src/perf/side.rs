//! One process of a measurement: its endpoint, its buffers, its connections.
#![forbid(unsafe_code)]

use super::window::Window;
use crate::Failure;
use crate::arguments::refused;
use crate::owned::{Backing, Buffer, BufferError, Location, Owned};
use crosstie::base::slab::Handle;
use crosstie::connect::ListenerId;
use crosstie::host::{AllocateError, DeviceKind, Options, RegisterError};
use crosstie::memory::probe;
use crosstie::transport::{Incoming, Outcome, Outgoing, RequestId, SubmitError};
use crosstie::wire::handle::HANDLE_BYTES;
use crosstie::wire::{GROUP_MAX, RAILS_MAX};
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// Fruitless polls after which the CPU is offered to others: a peer on the same CPU must run.
const POLLS_BEFORE_YIELD: u32 = 1 << 14;
/// The same among more processes than CPUs: whoever has nothing to do is in the way.
const POLLS_IN_A_CROWD: u32 = 16;
/// Fruitless polls after which the clock is looked at, which a window's end is read from.
const POLLS_BEFORE_LOOK: u32 = 1 << 10;
/// Bytes of messages after which it is looked at as well, and what a short message counts as.
const BYTES_BEFORE_LOOK: u64 = 1 << 20;
const BYTES_LEAST: u64 = 1 << 10;
/// How often somebody who waits for something else makes progress.
const ATTENTION: Duration = Duration::from_millis(1);
/// Outstanding receives, and sends, of one connection.
pub const REQUESTS_MAX: u32 = 64;

/// Ends of connections of a group of two: two with the other, and two with itself of two ends each.
const GROUP_CONNECTIONS: u32 = 6;

/// How large an endpoint is to be.
#[derive(Copy, Clone, Debug)]
pub struct Shape {
    /// On which device.
    pub device: DeviceKind,
    /// Connections that will be open at a time.
    pub connections: u32,
    /// TCP rails of each; `None`: as many as a program has that says nothing.
    pub rails: Option<u32>,
    /// Where buffers lie that are located.
    pub location: Location,
    /// It is of a group, which has connections of its own.
    pub has_group: bool,
}

impl Shape {
    /// The options to open with.
    pub fn options(&self) -> Options {
        let mut options = Options { device: self.device, ..Options::default() };
        let of_group = if self.has_group { GROUP_CONNECTIONS } else { 0 };
        options.limits.connections_max = self.connections.max(2) + of_group;
        options.limits.requests_max = REQUESTS_MAX;
        if let Some(rails) = self.rails {
            options.tcp_rails = rails;
            options.limits.rails_max = rails.next_power_of_two().min(RAILS_MAX as u32);
        }
        options
    }
}

/// Buffers of one backing.
#[derive(Copy, Clone, Debug)]
pub(super) struct Buffers {
    pub backing: Backing,
    pub send: Buffer,
    pub receive: Buffer,
    /// The group's window of what is received.
    pub window: Handle,
}

/// Where one message of a pattern lies in a buffer of its own kind.
#[derive(Copy, Clone, Debug)]
pub struct Place {
    /// In which memory.
    pub backing: Backing,
    /// Bytes from the buffer's start.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What the bytes are made from; `None`: nobody looks.
    pub seed: Option<u64>,
}

/// One process of a measurement.
pub struct Side {
    /// The endpoint and its memory.
    pub owned: Owned,
    /// Connections in the order in which they were made.
    pub connections: Vec<Handle>,
    buffers: Vec<Buffers>,
    polls: u32,
    polls_before_yield: u32,
    /// When the window that runs is to be cut short, and whether it is.
    until: Option<Instant>,
    over: bool,
    /// Sent since the clock was looked at; a short message counts as if it were longer.
    sent: u64,
    /// Bytes that were compared with what was sent.
    pub verified: u64,
    /// Messages whose bytes were wrong.
    pub wrong: u64,
}

impl Side {
    /// Opens an endpoint.
    pub fn open(shape: &Shape) -> Result<Side, Failure> {
        Side::open_in(&shape.options(), shape.location)
    }

    /// Opens an endpoint of a shape of its own.
    pub fn open_with(options: &Options) -> Result<Side, Failure> {
        Side::open_in(options, Location::Host)
    }

    fn open_in(options: &Options, location: Location) -> Result<Side, Failure> {
        let owned = Owned::open(options, location).map_err(|error| format!("open: {error}"))?;
        Ok(Side {
            owned,
            connections: [].into(),
            buffers: [].into(),
            polls: 0,
            polls_before_yield: POLLS_BEFORE_YIELD,
            until: None,
            over: false,
            sent: 0,
            verified: 0,
            wrong: 0,
        })
    }

    /// So many processes of this host run at once.
    pub fn crowd(&mut self, processes: u32) {
        if processes as usize > probe::cpus_allowed().len() {
            self.polls_before_yield = POLLS_IN_A_CROWD;
        }
    }

    /// Allocates buffers to send from and to receive into.
    pub fn buffers_make(&mut self, backing: Backing, bytes: u64) -> Result<(), Failure> {
        let mut make = || self.owned.buffer(backing, bytes);
        let pair = make().and_then(|send| Ok((send, make()?)));
        let (send, receive) = pair.map_err(|error| {
            if backing == Backing::Located {
                return refused("--memory", &error.to_string());
            }
            use BufferError::Allocate;
            let is_heapless =
                matches!(error, Allocate(AllocateError::Register(RegisterError::Kind)));
            let end = if is_heapless { "; --memory private needs none" } else { "" };
            format!("{bytes} bytes of {} memory: {error}{end}", backing.name())
        })?;
        let window = Handle::default();
        self.buffers.push(Buffers { backing, send, receive, window });
        Ok(())
    }

    /// The buffers of each backing, in the order of the backings.
    pub(super) fn buffers_all(&mut self) -> &mut [Buffers] {
        self.buffers.sort_by_key(|buffers| buffers.backing.name());
        &mut self.buffers
    }

    pub(super) fn buffers(&self, backing: Backing) -> &Buffers {
        let found = self.buffers.iter().find(|buffers| buffers.backing == backing);
        found.expect("made before the first window")
    }

    /// Opens a listener.
    pub fn listen(&mut self) -> Result<(ListenerId, [u8; HANDLE_BYTES]), Failure> {
        let shared = &self.owned.endpoint().shared;
        shared.listen().map_err(|error| format!("listen: {error}"))
    }

    /// Makes one connection to a listener of another process.
    pub fn connect(&mut self, handle: &[u8; HANDLE_BYTES]) -> Result<(), Failure> {
        let wrong = |error| format!("connect: {error}");
        let attempt = self.owned.endpoint().shared.connect(handle).map_err(wrong)?;
        loop {
            if let Some(made) = self.owned.endpoint().shared.connect_poll(attempt).map_err(wrong)? {
                self.connections.push(made);
                return Ok(());
            }
            self.owned.endpoint().progress();
            self.idle();
        }
    }

    /// Waits until `count` connections have been accepted in all.
    pub fn accept(&mut self, listener: ListenerId, count: usize) -> Result<(), Failure> {
        self.accept_while(listener, count, || Ok(()))
    }

    /// As [`Side::accept`], until `wanted` says that it is in vain.
    pub fn accept_while(
        &mut self,
        listener: ListenerId,
        count: usize,
        wanted: impl Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while self.connections.len() < count {
            let accepted = self.owned.endpoint().shared.accept(listener);
            match accepted.map_err(|error| format!("accept: {error:?}"))? {
                Some(made) => self.connections.push(made),
                None => {
                    wanted()?;
                    self.owned.endpoint().progress();
                    self.idle();
                }
            }
        }
        Ok(())
    }

    /// Waits for something beside messages, in a thread, and makes progress meanwhile: what told a
    /// peer that its message has come may have been on a rail that dies.
    ///
    /// *Errors*: that of the wait, or there is no thread to be had.
    pub fn attend<T: Send>(
        &mut self,
        wait: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let waiting = thread::current();
        thread::scope(|scope| {
            let waits = move || {
                let heard = wait();
                waiting.unpark();
                heard
            };
            let waited = thread::Builder::new().spawn_scoped(scope, waits);
            let waited = waited.map_err(|error| format!("a thread that waits: {error}"))?;
            while !waited.is_finished() {
                self.owned.progress();
                thread::park_timeout(ATTENTION);
            }
            waited.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// A window begins, which may last until then.
    pub fn time_set(&mut self, until: Option<Instant>) {
        self.until = until;
        self.over = false;
        self.look();
    }

    /// Whether the window's time is over, as far as is known: the clock is looked at from time to
    /// time.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The peer has cut the window short.
    pub fn cut(&mut self) {
        self.over = true;
    }

    #[cold]
    fn look(&mut self) {
        self.over |= self.until.is_some_and(|until| Instant::now() >= until);
    }

    /// So many bytes are sent: looks at the clock from time to time.
    #[inline]
    pub(super) fn sent_count(&mut self, bytes: u64) {
        self.sent += bytes.max(BYTES_LEAST);
        if self.sent >= BYTES_BEFORE_LOOK {
            self.sent = 0;
            self.look();
        }
    }

    /// The first message of a window, and room for it.
    pub fn message(&self, window: &Window) -> (Outgoing, Incoming) {
        let buffers = self.buffers(window.backing);
        let message = self.owned.outgoing(buffers.send, 0, window.bytes, 0);
        (message, self.owned.incoming(buffers.receive, 0, window.bytes, 0))
    }

    /// Sends one message of a window. `None`: no record is free now.
    #[inline]
    pub fn send(
        &mut self,
        connection: Handle,
        window: &Window,
        round: u64,
        part: u64,
    ) -> Result<Option<RequestId>, Failure> {
        self.sent_count(window.bytes);
        let buffer = self.buffers(window.backing).send;
        let offset = window.offset(round, part);
        if window.verify {
            self.owned.fill(buffer, offset, window.bytes, window.seed(round, part))?;
        }
        let message = self.owned.outgoing(buffer, offset, window.bytes, part as i32);
        accepted(self.owned.endpoint().isend(connection, message))
    }

    /// Posts one grouped receive of a window. `None`: no record is free now.
    #[inline]
    pub fn receive(
        &mut self,
        connection: Handle,
        window: &Window,
        round: u64,
    ) -> Result<Option<RequestId>, Failure> {
        let buffer = self.buffers(window.backing).receive;
        let incoming = |part| {
            let offset = window.offset(round, part);
            self.owned.incoming(buffer, offset, window.room_bytes(), part as i32)
        };
        let first = incoming(0);
        if window.group == 1 {
            return accepted(self.owned.endpoint().irecv(connection, &[first]));
        }
        let mut room = [first; GROUP_MAX];
        for part in 1..window.group {
            room[part as usize] = incoming(part);
        }
        let group = &room[..window.group as usize];
        accepted(self.owned.endpoint().irecv(connection, group))
    }

    /// Looks at the bytes of a receive that has ended, when the window says so.
    #[inline]
    pub fn received(&mut self, window: &Window, round: u64) -> Result<(), Failure> {
        if window.verify { self.verify(window, round) } else { Ok(()) }
    }

    fn verify(&mut self, window: &Window, round: u64) -> Result<(), Failure> {
        let buffer = self.buffers(window.backing).receive;
        for part in 0..window.group {
            let seed = window.seed(round, part);
            let same = self.owned.check(buffer, window.offset(round, part), window.bytes, seed)?;
            self.verified += window.bytes;
            self.wrong += u64::from(!same);
        }
        Ok(())
    }

    /// Sends one message of a pattern. `None`: no record is free now.
    pub fn send_at(
        &mut self,
        connection: Handle,
        place: &Place,
    ) -> Result<Option<RequestId>, Failure> {
        let buffer = self.buffers(place.backing).send;
        if let Some(seed) = place.seed {
            self.owned.fill(buffer, place.offset, place.bytes, seed)?;
        }
        let message = self.owned.outgoing(buffer, place.offset, place.bytes, 0);
        accepted(self.owned.endpoint().isend(connection, message))
    }

    /// Posts room for one message of a pattern. `None`: no record is free now.
    pub fn receive_at(
        &mut self,
        connection: Handle,
        place: &Place,
    ) -> Result<Option<RequestId>, Failure> {
        let buffer = self.buffers(place.backing).receive;
        let room = self.owned.incoming(buffer, place.offset, place.bytes, 0);
        accepted(self.owned.endpoint().irecv(connection, &[room]))
    }

    /// Looks at the bytes of a message that has arrived, when its place says what they are.
    pub fn verify_at(&mut self, place: &Place) -> Result<(), Failure> {
        let Some(seed) = place.seed else { return Ok(()) };
        let buffer = self.buffers(place.backing).receive;
        let same = self.owned.check(buffer, place.offset, place.bytes, seed)?;
        self.verified += place.bytes;
        self.wrong += u64::from(!same);
        Ok(())
    }

    /// Waits for a receive, and says how long its first message was.
    #[inline]
    pub fn wait_length(&mut self, request: RequestId) -> Result<u64, Failure> {
        loop {
            if let Some(length) = self.ended_length(request)? {
                return Ok(length);
            }
        }
    }

    /// Asks for a request, and makes progress. Its outcome must be a success.
    #[inline]
    pub fn ended(&mut self, request: RequestId) -> Result<bool, Failure> {
        self.ended_length(request).map(|length| length.is_some())
    }

    /// As [`Side::ended`]; says how long the first message was that a receive got.
    #[inline]
    pub fn ended_length(&mut self, request: RequestId) -> Result<Option<u64>, Failure> {
        match self.owned.endpoint().test(request) {
            Ok(None) => {
                self.idle();
                Ok(None)
            }
            Ok(Some(Outcome { result: Ok(()), lengths, .. })) => Ok(Some(lengths[0])),
            Ok(Some(outcome)) => Err(failed(&outcome)),
            Err(error) => Err(format!("test: {error:?}")),
        }
    }

    /// Waits for a request.
    #[inline]
    pub fn wait(&mut self, request: RequestId) -> Result<(), Failure> {
        while !self.ended(request)? {}
        Ok(())
    }

    /// Sends a message of no bytes, which starts or ends a window.
    pub fn signal(&mut self) -> Result<(), Failure> {
        let message = Outgoing { region: Handle::default(), address: 0, length: 0, tag: 0 };
        let connection = self.connections[0];
        loop {
            if let Some(request) = accepted(self.owned.endpoint().isend(connection, message))? {
                return self.wait(request);
            }
            self.owned.endpoint().progress();
        }
    }

    /// Waits for the peer's signal.
    pub fn signal_wait(&mut self) -> Result<(), Failure> {
        let room = Incoming { region: Handle::default(), address: 0, length: 0, tag: 0 };
        let request = accepted(self.owned.endpoint().irecv(self.connections[0], &[room]))?;
        self.wait(request.ok_or("no record free for a signal")?)
    }

    /// Lets others run from time to time.
    pub fn pause(&mut self) {
        self.idle();
    }

    #[inline]
    fn idle(&mut self) {
        self.polls += 1;
        if self.polls.is_multiple_of(POLLS_BEFORE_LOOK) {
            self.look();
        }
        if self.polls >= self.polls_before_yield {
            self.polls = 0;
            self.look();
            std::thread::yield_now();
        }
    }
}

#[cold]
fn failed(outcome: &Outcome) -> Failure {
    match outcome.result {
        Err(error) => format!("a message failed: {error}"),
        Ok(()) => String::from("a message failed"),
    }
}

#[inline]
fn accepted(result: Result<RequestId, SubmitError>) -> Result<Option<RequestId>, Failure> {
    match result {
        Ok(request) => Ok(Some(request)),
        Err(SubmitError::Again) => Ok(None),
        Err(SubmitError::Failed(error)) => Err(format!("a message was refused: {error}")),
        Err(error) => Err(format!("a message was refused: {error:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const BYTES: u64 = 1 << 20;
    const PLACE: Place = Place { backing: Backing::Private, offset: 0, bytes: BYTES, seed: None };

    fn side() -> Side {
        let shape = Shape {
            device: DeviceKind::SharedMemory,
            connections: 1,
            rails: None,
            location: Location::Host,
            has_group: false,
        };
        let mut side = Side::open(&shape).expect("an endpoint");
        side.buffers_make(Backing::Private, BYTES).expect("room");
        side
    }

    /// Ranks that had all their messages met without a call of progress, and waited for ever for
    /// one whose peer's answer was on a rail that had died.
    #[test]
    fn peer_of_who_waits_for_something_else_gets_its_answers() {
        let mut waiting = side();
        let (listener, handle) = waiting.listen().expect("a listener");
        let (say, heard) = channel();
        let peer = thread::spawn(move || {
            let mut side = side();
            side.connect(&handle).expect("it listens");
            let connection = side.connections[0];
            let sent = side.send_at(connection, &PLACE).expect("room").expect("a request");
            side.wait(sent).expect("it is taken");
            say.send(()).expect("somebody waits");
        });
        waiting.accept(listener, 1).expect("it comes");
        let connection = waiting.connections[0];
        waiting.receive_at(connection, &PLACE).expect("room").expect("a request");
        let told = waiting.attend(move || {
            heard.recv_timeout(Duration::from_secs(60)).map_err(|error| format!("{error}"))
        });
        told.expect("the peer's send ends");
        peer.join().expect("it ends well");
    }
}
