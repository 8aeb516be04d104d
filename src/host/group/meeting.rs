//! How the ranks of a group meet: each listens, the user's bootstrap gathers all handles, and each
//! pair of ranks makes two connections. The lower rank connects, and says by a first message who it
//! is and which of the two this is. A rank connects to itself, too.

use super::error::{BootstrapError, GroupError};
use crate::base::slab::Handle;
use crate::base::units::Span as Time;
use crate::connect::ListenerId;
use crate::host::endpoint::Closing;
use crate::host::{Attempt, Endpoint};
use crate::memory::probe::clock_ns;
use crate::transport::{Incoming, Outgoing, RequestError, RequestId, SubmitError};
use crate::window::{Limits, Links, Span};
use crate::wire::handle::HANDLE_BYTES;
use crate::wire::one_sided::{GREETING_BYTES, Greeting, MEMBER_BYTES, Member};
use std::thread::yield_now;
use std::vec;
use std::vec::Vec;

/// What brings the ranks of a group together: the launcher's, MPI's, or the program's own.
pub trait Bootstrap {
    /// Gives `mine`, as every rank does, and takes those of all ranks, in their order. Returns when
    /// all have given theirs, or in bounded time with an error: a rank does not come.
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError>;

    /// Called again and again while this rank waits for others: an error when one is known to be
    /// gone.
    fn look(&mut self) -> Result<(), BootstrapError>;
}

/// How the ranks know of each other.
pub(super) enum Acquaintance<'a> {
    /// Not yet: this gathers what they say.
    Bootstrap(&'a mut dyn Bootstrap),
    /// By their handles, of which this rank's own listener has one.
    Handles(ListenerId, &'a [[u8; HANDLE_BYTES]]),
}

/// How long closing may take: more than what a connection waits for by itself.
pub(super) const CLOSING: Time = Time::millis(60_000);

/// Connections of a pair: frames, and bytes.
const KINDS: usize = 2;

/// A connection that this rank makes.
#[derive(Copy, Clone)]
enum Dial {
    Attempt(Attempt),
    /// The greeting waits for room, or is on its way.
    Made(Handle, Option<RequestId>),
    Done(Handle),
}

/// A connection that another rank has made, or this one with itself.
struct Accepted {
    connection: Handle,
    /// The receive of its greeting.
    request: Option<RequestId>,
}

/// One opening of a group.
pub(super) struct Meeting<'e, 'a> {
    pub endpoint: &'e mut Endpoint,
    acquaintance: Acquaintance<'a>,
    pub rank: u32,
    pub ranks: u32,
    pub windows_max: u32,
    /// Registered memory for greetings: of this rank, and of others.
    pub memory: (Span, Handle),
    /// By the clock of the host.
    pub deadline_ns: u64,
    /// Connections made, by rank and kind.
    outgoing: Vec<[Option<Dial>; KINDS]>,
    incoming: Vec<[Option<Handle>; KINDS]>,
    accepted: Vec<Accepted>,
}

impl<'e, 'a> Meeting<'e, 'a> {
    pub fn new(
        endpoint: &'e mut Endpoint,
        acquaintance: Acquaintance<'a>,
        (rank, limits): (u32, &Limits),
        memory: (Span, Handle),
        deadline_ns: u64,
    ) -> Meeting<'e, 'a> {
        let Limits { ranks, windows_max, .. } = *limits;
        let outgoing = vec![[None; KINDS]; ranks as usize];
        let incoming = vec![[None; KINDS]; ranks as usize];
        let accepted = Vec::with_capacity(KINDS * ranks as usize);
        Meeting {
            endpoint,
            acquaintance,
            rank,
            ranks,
            windows_max,
            memory,
            deadline_ns,
            outgoing,
            incoming,
            accepted,
        }
    }

    /// Meets all ranks. In the case of an error, all that was made is closed again.
    pub fn meet(mut self) -> Result<Vec<Links<Handle>>, GroupError> {
        let met = match self.acquaintance {
            Acquaintance::Bootstrap(_) => self.meet_by_bootstrap(),
            Acquaintance::Handles(listener, handles) => {
                self.has_connections().and_then(|()| self.connect_all(listener, handles))
            }
        };
        match met {
            Ok(()) => Ok(self.links()),
            Err(error) => {
                self.unwind();
                Err(error)
            }
        }
    }

    /// Two for each other rank, and both ends of two with itself. Those of a group that was just
    /// closed are free once its other ranks have closed it, too.
    fn has_connections(&mut self) -> Result<(), GroupError> {
        let needed = KINDS as u32 * (self.ranks + 1);
        loop {
            let leaving = self.endpoint.shared.connections_leaving();
            let left = self.endpoint.shared.connections_left();
            if left >= needed {
                return Ok(());
            }
            if left + leaving < needed || clock_ns() > self.deadline_ns {
                return Err(GroupError::Connections(needed));
            }
            self.endpoint.progress();
            yield_now();
        }
    }

    fn meet_by_bootstrap(&mut self) -> Result<(), GroupError> {
        let listens = self.has_connections().and_then(|()| {
            let listens = self.endpoint.shared.listen();
            listens.map_err(GroupError::Listen)
        });
        let (listener, handle) = match listens {
            Ok(listens) => listens,
            Err(error) => {
                // the others are told before they wait for this rank
                let _ = self.gather([0; HANDLE_BYTES], true);
                return Err(error);
            }
        };
        let met = self.meet_with(listener, &handle);
        let _ = self.endpoint.shared.listener_close(listener);
        met
    }

    fn meet_with(
        &mut self,
        listener: ListenerId,
        handle: &[u8; HANDLE_BYTES],
    ) -> Result<(), GroupError> {
        let handles = self.gather(*handle, false)?;
        let met = self.connect_all(listener, &handles);
        // all hear whether all have met
        let told = self.gather(*handle, met.is_err());
        met?;
        told.map(|_| ())
    }

    /// Gathers what all ranks say. An error: one says that it has failed, or is of another group.
    fn gather(
        &mut self,
        handle: [u8; HANDLE_BYTES],
        has_failed: bool,
    ) -> Result<Vec<[u8; HANDLE_BYTES]>, GroupError> {
        let (rank, ranks) = (self.rank, self.ranks);
        let windows_max = self.windows_max;
        let mine = Member { rank, ranks, has_failed, windows_max, handle }.to_bytes();
        let mut all = vec![0; MEMBER_BYTES * ranks as usize];
        if let Acquaintance::Bootstrap(bootstrap) = &mut self.acquaintance {
            bootstrap.gather(&mine, &mut all).map_err(GroupError::Bootstrap)?;
        }
        let mut members = Vec::with_capacity(ranks as usize);
        for (rank, bytes) in all.chunks_exact(MEMBER_BYTES).enumerate() {
            let rank = rank as u32;
            let member = Member::from_bytes(bytes).ok_or(GroupError::Mismatch(rank))?;
            if (member.rank, member.ranks, member.windows_max) != (rank, ranks, windows_max) {
                return Err(GroupError::Mismatch(rank));
            }
            members.push(member);
        }
        match members.iter().find(|member| member.has_failed && member.rank != self.rank) {
            Some(member) => Err(GroupError::Elsewhere(member.rank)),
            None => Ok(members.iter().map(|member| member.handle).collect()),
        }
    }

    fn connect_all(
        &mut self,
        listener: ListenerId,
        handles: &[[u8; HANDLE_BYTES]],
    ) -> Result<(), GroupError> {
        for rank in self.rank..self.ranks {
            for kind in 0..KINDS {
                let attempt = self.endpoint.shared.connect(&handles[rank as usize]);
                let attempt = attempt.map_err(|error| GroupError::Connect(rank, error))?;
                self.outgoing[rank as usize][kind] = Some(Dial::Attempt(attempt));
            }
        }
        loop {
            self.endpoint.progress();
            let mut is_met = true;
            for rank in self.rank..self.ranks {
                for kind in 0..KINDS {
                    is_met &= self.dial_step(rank, kind)?;
                }
            }
            is_met &= self.accept_step(listener)?;
            if is_met {
                return Ok(());
            }
            if clock_ns() > self.deadline_ns {
                return Err(GroupError::Missing(self.missing()));
            }
            if let Acquaintance::Bootstrap(bootstrap) = &mut self.acquaintance {
                bootstrap.look().map_err(GroupError::Bootstrap)?;
            }
            yield_now();
        }
    }

    /// The first rank that has not connected.
    fn missing(&self) -> u32 {
        let is_dialed = |rank: &usize| {
            let dials = &self.outgoing[*rank];
            (*rank as u32) < self.rank
                || dials.iter().all(|dial| matches!(dial, Some(Dial::Done(_))))
        };
        let is_heard = |rank: &usize| {
            (*rank as u32) > self.rank || self.incoming[*rank].iter().all(Option::is_some)
        };
        (0..self.ranks as usize).find(|rank| !(is_dialed(rank) && is_heard(rank))).unwrap_or(0)
            as u32
    }

    /// Where a greeting lies: those of this rank in the first half of a rank's frames.
    fn place(&self, at: usize, is_ours: bool) -> Span {
        let each = crate::window::frames_bytes_each() as u64;
        let half = if is_ours { 0 } else { each / 2 };
        let start = (at / KINDS) as u64 * each + half + ((at % KINDS) * 64) as u64;
        self.memory.0.part(start, GREETING_BYTES as u64)
    }

    /// Whether a connection that this rank makes is made, and its greeting gone.
    fn dial_step(&mut self, rank: u32, kind: usize) -> Result<bool, GroupError> {
        let dial = self.outgoing[rank as usize][kind];
        let failed = |error| GroupError::Failed(rank, error);
        let next = match dial {
            None => return Ok(false),
            Some(Dial::Done(_)) => return Ok(true),
            Some(Dial::Attempt(attempt)) => match self.endpoint.shared.connect_poll(attempt) {
                Ok(Some(connection)) => Dial::Made(connection, None),
                Ok(None) => return Ok(false),
                Err(error) => {
                    self.outgoing[rank as usize][kind] = None;
                    return Err(GroupError::Connect(rank, error));
                }
            },
            Some(Dial::Made(connection, None)) => {
                let place = self.place(rank as usize * KINDS + kind, true);
                place.write(&Greeting { rank: self.rank, kind: kind as u32 }.to_bytes());
                let message = Outgoing {
                    region: self.memory.1,
                    address: place.address(),
                    length: GREETING_BYTES as u64,
                    tag: 0,
                };
                match self.endpoint.isend(connection, message) {
                    Ok(request) => Dial::Made(connection, Some(request)),
                    Err(SubmitError::Again) => return Ok(false),
                    Err(error) => return Err(failed(cause(error))),
                }
            }
            Some(Dial::Made(connection, Some(request))) => match self.endpoint.test(request) {
                Ok(Some(outcome)) => {
                    outcome.result.map_err(failed)?;
                    Dial::Done(connection)
                }
                Ok(None) => return Ok(false),
                Err(_) => return Err(failed(RequestError::Closed)),
            },
        };
        self.outgoing[rank as usize][kind] = Some(next);
        Ok(matches!(next, Dial::Done(_)))
    }

    /// Whether all connections that other ranks make have come, and said whose they are.
    fn accept_step(&mut self, listener: ListenerId) -> Result<bool, GroupError> {
        let expected = KINDS * (self.rank as usize + 1);
        while self.accepted.len() < expected {
            match self.endpoint.shared.accept(listener).map_err(GroupError::Accept)? {
                Some(connection) => self.accepted.push(Accepted { connection, request: None }),
                None => break,
            }
        }
        for at in 0..self.accepted.len() {
            self.greeting_step(at)?;
        }
        let heard = self.incoming.iter().flatten().filter(|link| link.is_some()).count();
        Ok(heard == expected)
    }

    fn greeting_step(&mut self, at: usize) -> Result<(), GroupError> {
        let Accepted { connection, request } = self.accepted[at];
        if self.incoming.iter().flatten().any(|link| *link == Some(connection)) {
            return Ok(());
        }
        let place = self.place(at, false);
        let missing = self.missing();
        let whose = |error| GroupError::Failed(missing, error);
        let Some(request) = request else {
            let room = Incoming {
                region: self.memory.1,
                address: place.address(),
                length: GREETING_BYTES as u64,
                tag: 0,
            };
            match self.endpoint.irecv(connection, &[room]) {
                Ok(request) => self.accepted[at].request = Some(request),
                Err(SubmitError::Again) => {}
                Err(error) => return Err(whose(cause(error))),
            }
            return Ok(());
        };
        match self.endpoint.test(request) {
            Ok(None) => return Ok(()),
            Ok(Some(outcome)) => outcome.result.map_err(whose)?,
            Err(_) => return Err(whose(RequestError::Closed)),
        }
        let greeting = place.greeting().ok_or(whose(RequestError::Protocol))?;
        let kinds = self.incoming.get_mut(greeting.rank as usize);
        let link = kinds.and_then(|kinds| kinds.get_mut(greeting.kind as usize));
        match link {
            Some(link) if link.is_none() && greeting.rank <= self.rank => *link = Some(connection),
            _ => return Err(GroupError::Mismatch(greeting.rank)),
        }
        Ok(())
    }

    fn links(&self) -> Vec<Links<Handle>> {
        let made = |rank: usize, kind: usize| match self.outgoing[rank][kind] {
            Some(Dial::Done(connection)) => Some(connection),
            _ => None,
        };
        let link = |rank: usize| {
            let heard = self.incoming[rank];
            let out = |kind| made(rank, kind).or(heard[kind]).unwrap_or_default();
            let into = |kind: usize| heard[kind].or(made(rank, kind)).unwrap_or_default();
            Links { frames_out: out(0), frames_in: into(0), bytes_out: out(1), bytes_in: into(1) }
        };
        (0..self.ranks as usize).map(link).collect()
    }

    /// Closes all that was made.
    fn unwind(&mut self) {
        let mut made: Vec<Handle> = self.accepted.iter().map(|one| one.connection).collect();
        for dial in self.outgoing.iter().flatten().flatten() {
            match *dial {
                Dial::Attempt(attempt) => {
                    let _ = self.endpoint.shared.connect_abandon(attempt);
                }
                Dial::Made(connection, _) | Dial::Done(connection) => made.push(connection),
            }
        }
        let deadline_ns = clock_ns().saturating_add(CLOSING.0);
        close_all(self.endpoint, &mut made, Endpoint::connection_stop, deadline_ns);
    }
}

/// Why a message was not accepted, where there is room.
const fn cause(error: SubmitError) -> RequestError {
    match error {
        SubmitError::Failed(error) => error,
        _ => RequestError::Closed,
    }
}

/// Closes connections, all at a time; those stay in the list that cannot be closed in time, since
/// nothing stops what may touch memory for them.
pub(super) fn close_all(
    endpoint: &mut Endpoint,
    connections: &mut Vec<Handle>,
    close: impl Fn(&mut Endpoint, Handle) -> Closing,
    deadline_ns: u64,
) {
    loop {
        connections.retain(|connection| close(endpoint, *connection) == Closing::Again);
        if connections.is_empty() || clock_ns() > deadline_ns {
            return;
        }
        endpoint.progress();
    }
}
