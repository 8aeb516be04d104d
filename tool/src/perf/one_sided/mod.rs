//! Windows of one-sided operations: both processes are ranks of a group, the measuring one rank 0.
//!
//! The first signal of a window says what has come. The measuring process ends a window by a great
//! value there, and both flush: nothing is on its way when the next begins.
#![forbid(unsafe_code)]

pub mod beside;

use super::side::Side;
use super::window::{Kind, Window};
use crate::Failure;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::host::group::{Bootstrap, BootstrapError, GroupOptions, WaitError};
use crosstie::window::{Comparison, Limits, Put, Ticket, WindowError};
use crosstie::wire::one_sided::MEMBER_BYTES;
use std::collections::VecDeque;

/// Says what has come.
const SIGNAL: u16 = 0;
/// Grows with each put of [`Kind::PutCounter`].
const COUNTER: u16 = 0;
/// Added to the signal when a window ends; more than any window has operations.
const STOP: u64 = 1 << 50;
/// How long opening and each wait may take: a window's operation takes far less.
const TIMEOUT: Span = Span::millis(60_000);
/// One window for each kind of memory.
const LIMITS: Limits =
    Limits { ranks: 2, windows_max: 3, signals_max: 1, counters_max: 1, barriers_max: 0 };

/// Gives what this process says to the other, and returns what that one says.
type Gather<'a> = dyn FnMut(&[u8]) -> Result<[u8; MEMBER_BYTES], Failure> + 'a;

/// Brings the two together by what they have between them already.
struct Meeting<'a> {
    rank: usize,
    gather: &'a mut Gather<'a>,
    /// Why it went wrong.
    failure: Option<Failure>,
}

impl Bootstrap for Meeting<'_> {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        match (self.gather)(mine) {
            Ok(theirs) => {
                for (rank, member) in all.chunks_exact_mut(MEMBER_BYTES).enumerate() {
                    member.copy_from_slice(if rank == self.rank { mine } else { &theirs });
                }
                Ok(())
            }
            Err(failure) => {
                self.failure = Some(failure);
                Err(BootstrapError(1))
            }
        }
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

/// Opens the group, and makes a window of each buffer for what is received.
pub fn open<'a>(side: &mut Side, rank: u32, gather: &'a mut Gather<'a>) -> Result<(), Failure> {
    let mut meeting = Meeting { rank: rank as usize, gather, failure: None };
    let options = GroupOptions { limits: LIMITS, rank, timeout: TIMEOUT };
    if let Err(error) = side.owned.group_open(&options, &mut meeting) {
        return Err(meeting.failure.unwrap_or_else(|| format!("a group: {error}")));
    }
    side.windows_make()
}

impl Side {
    /// Makes a window of each buffer that is received into.
    fn windows_make(&mut self) -> Result<(), Failure> {
        for at in 0..self.buffers_all().len() {
            let receive = self.buffers_all()[at].receive;
            let made = self.owned.window(receive);
            self.buffers_all()[at].window = made.map_err(|error| format!("a window: {error}"))?;
        }
        Ok(())
    }

    /// The window of the group in which operations of a perf window are, and the other rank.
    fn target(&mut self, window: &Window) -> (Handle, u32) {
        let rank = 1 - self.owned.group().0.view().rank();
        (self.buffers(window.backing).window, rank)
    }

    /// Issues what a round of a window is; waits for room.
    #[inline]
    fn issue(&mut self, window: &Window, round: u64, end: &End) -> Result<Ticket, Failure> {
        self.sent_count(window.bytes);
        let (target, bytes) = (end.target, window.bytes);
        let (buffer, offset) = (self.buffers(window.backing).send, window.offset(round, 0));
        if window.verify && end.is_put {
            self.owned.fill(buffer, offset, bytes, window.seed(round, 0))?;
        }
        loop {
            let issued = match window.kind {
                Kind::Get | Kind::GetStream => {
                    self.owned.get(target, offset, (buffer, offset, bytes))
                }
                Kind::SignalPing | Kind::SignalStream => {
                    self.owned.group().0.inner().signal(target, (SIGNAL, 1), false, None)
                }
                _ => {
                    let (window, rank) = target;
                    let signal = Some((SIGNAL, 1));
                    let put = Put { window, rank, offset, signal, counter: end.counter };
                    self.owned.put(&put, (buffer, offset, bytes))
                }
            };
            match issued {
                Err(WindowError::Again) => self.owned.progress(),
                other => return other.map_err(|error| format!("an operation: {error}")),
            }
        }
    }

    /// Looks at the bytes of a get that has ended.
    fn got(&mut self, window: &Window) -> Result<(), Failure> {
        let buffer = self.buffers(window.backing).send;
        self.verified += window.bytes;
        let same = self.owned.check(buffer, 0, window.bytes, window.seed(0, 0))?;
        self.wrong += u64::from(!same);
        Ok(())
    }

    fn local(&mut self, ticket: Ticket) -> Result<(), Failure> {
        let (group, endpoint) = self.owned.group();
        said(group.wait_local(endpoint, ticket, None))
    }

    /// Waits until the signal of this rank has at least a value; what it has.
    #[inline]
    fn signal_at_least(&mut self, end: &End, value: u64) -> Result<u64, Failure> {
        let (group, endpoint) = self.owned.group();
        let (window, rank) = end.target;
        let word = (window, SIGNAL, Some(rank));
        said(group.wait_signal(endpoint, word, (Comparison::GreaterEqual, value), None))?;
        let word = group.view().signal_read_from(window, SIGNAL, rank);
        word.map_err(|error| format!("a signal: {error}"))
    }

    /// Waits until the other has applied all.
    fn flush(&mut self, end: &End) -> Result<(), Failure> {
        let (group, endpoint) = self.owned.group();
        said(group.flush(endpoint, Some(end.target.1), None))
    }
}

fn said(result: Result<(), WaitError>) -> Result<(), Failure> {
    result.map_err(|error| format!("a one-sided operation: {error}"))
}

/// One end of a window.
struct End {
    target: (Handle, u32),
    counter: Option<(u16, u64)>,
    is_put: bool,
}

impl End {
    /// The words of both processes begin at zero: each sets its own before either issues anything.
    fn new(side: &mut Side, window: &Window) -> Result<End, Failure> {
        let target = side.target(window);
        let counter = (window.kind == Kind::PutCounter).then_some((COUNTER, 1));
        let (group, _) = side.owned.group();
        let reset = group.inner().signal_reset(target.0, SIGNAL);
        let reset = reset.and_then(|()| group.inner().counter_reset(target.0, COUNTER));
        reset.map_err(|error| format!("a window's words: {error}"))?;
        let is_put = matches!(window.kind, Kind::PutPing | Kind::PutLocal | Kind::PutCounter);
        Ok(End { target, counter, is_put })
    }
}

/// Runs the measuring process, until the time is over; returns how many rounds that were.
///
/// Called when the other has said that it is ready.
pub fn run(side: &mut Side, window: &Window) -> Result<u64, Failure> {
    let end = End::new(side, window)?;
    let rounds = match window.kind {
        Kind::PutPing | Kind::SignalPing => ping(side, window, &end)?,
        Kind::PutLocal | Kind::PutCounter | Kind::Get => single(side, window, &end)?,
        _ => stream(side, window, &end)?,
    };
    loop {
        let (group, _) = side.owned.group();
        match group.inner().signal(end.target, (SIGNAL, STOP), true, None) {
            Err(WindowError::Again) => side.owned.progress(),
            Err(error) => return Err(format!("a signal: {error}")),
            Ok(_) => break,
        }
    }
    side.flush(&end)?;
    Ok(rounds)
}

/// Back and forth.
fn ping(side: &mut Side, window: &Window, end: &End) -> Result<u64, Failure> {
    for round in 0..window.rounds {
        if round > 0 && side.is_over() {
            return Ok(round);
        }
        let ticket = side.issue(window, round, end)?;
        side.signal_at_least(end, round + 1)?;
        if end.is_put {
            side.received(window, round)?;
        }
        side.local(ticket)?;
    }
    Ok(window.rounds)
}

/// One after the other.
fn single(side: &mut Side, window: &Window, end: &End) -> Result<u64, Failure> {
    for round in 0..window.rounds {
        if round > 0 && side.is_over() {
            return Ok(round);
        }
        let ticket = side.issue(window, round, end)?;
        match window.kind {
            Kind::PutCounter => {
                let (group, endpoint) = side.owned.group();
                let counter = (end.target.0, COUNTER);
                let reached = (Comparison::GreaterEqual, round + 1);
                said(group.wait_counter(endpoint, counter, reached, None))?;
            }
            _ => side.local(ticket)?,
        }
        if window.verify && window.kind == Kind::Get {
            side.got(window)?;
        }
    }
    Ok(window.rounds)
}

/// Several outstanding; a flush ends them.
fn stream(side: &mut Side, window: &Window, end: &End) -> Result<u64, Failure> {
    let mut tickets = VecDeque::with_capacity(window.outstanding as usize);
    let mut round = 0;
    while round < window.rounds && !(round > 0 && side.is_over()) {
        while round < window.rounds && (tickets.len() as u64) < window.outstanding {
            tickets.push_back(side.issue(window, round, end)?);
            round += 1;
        }
        side.owned.progress();
        let (group, _) = side.owned.group();
        while let Some(ticket) = tickets.front() {
            let done = group.view().is_local_done(*ticket);
            if !done.map_err(|error| format!("an operation: {error}"))? {
                break;
            }
            tickets.pop_front();
        }
        if tickets.len() as u64 == window.outstanding {
            side.pause();
        }
    }
    side.flush(end)?;
    Ok(round)
}

/// Runs the other process, until the first ends it.
pub fn serve(side: &mut Side, window: &Window) -> Result<(), Failure> {
    let end = End::new(side, window)?;
    if window.verify && window.kind == Kind::Get {
        let buffer = side.buffers(window.backing).receive;
        side.owned.fill(buffer, 0, window.bytes, window.seed(0, 0))?;
    }
    side.signal()?;
    match window.kind {
        Kind::PutPing | Kind::SignalPing => {
            for round in 0.. {
                if side.signal_at_least(&end, round + 1)? >= STOP {
                    break;
                }
                if end.is_put {
                    side.received(window, round)?;
                }
                let ticket = side.issue(window, round, &end)?;
                side.local(ticket)?;
            }
        }
        _ => while side.signal_at_least(&end, STOP)? < STOP {},
    }
    side.flush(&end)
}
