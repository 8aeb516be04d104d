//! Operations that wait for room, so that who issues them need not: for callers with a bound of
//! their own, such as NCCL's 32 requests with each rank.

use crate::base::slab::Handle;
use crate::host::Endpoint;
use crate::window::{After, Local, Put, Ticket, WindowError, group};
use std::collections::VecDeque;
use std::vec::Vec;

/// What is done at a rank.
#[derive(Copy, Clone, Debug)]
pub enum Work {
    /// Bytes of a local buffer go to `offset` of the window.
    Put {
        /// The window.
        window: Handle,
        /// Where in it.
        offset: u64,
        /// The bytes.
        local: Local,
    },
    /// Bytes of the window come into a local buffer.
    Get {
        /// The window.
        window: Handle,
        /// Where in it.
        offset: u64,
        /// Where they come.
        local: Local,
    },
    /// A word of the window grows.
    Add {
        /// The window.
        window: Handle,
        /// Where in it.
        offset: u64,
        /// By how much.
        value: u64,
        /// After what.
        after: Before,
    },
}

/// What comes before an add.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Before {
    /// What a group knows.
    Known(After),
    /// All that was issued to the rank before, as [`Jobs::so_far`] says it.
    SoFar(SoFar),
}

/// What had ended of the operations with a rank at some time.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SoFar {
    /// All through this one.
    ended: Ticket,
    /// How many could not be issued.
    unissued: u64,
}

/// When it ends.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Until {
    /// Its local buffer may be used again; of a get, the bytes are there.
    Local,
    /// It has taken effect at its rank.
    Applied,
}

/// Names an operation until its outcome was taken.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct JobId(u32);

#[derive(Copy, Clone, Debug)]
enum State {
    Free,
    Waits(u32, Work, Until),
    Issued(Ticket, Until),
    Ended(Result<Ticket, WindowError>),
}

/// The operations of one group, each rank's in the order in which they came.
#[derive(Debug)]
pub struct Jobs {
    /// As many for each rank: none waits because another stands still.
    rows: Vec<State>,
    each: usize,
    /// By rank.
    free: Vec<Vec<u32>>,
    /// By rank, what waits for room.
    waiting: Vec<VecDeque<u32>>,
    /// What was issued and has not ended.
    issued: Vec<u32>,
    ranks: Vec<Rank>,
    failures: u64,
}

/// What is known of the operations with a rank.
#[derive(Copy, Clone, Default, Debug)]
struct Rank {
    /// The last one that took effect.
    ended: Ticket,
    /// How many could not be issued, and why the last one could not.
    unissued: u64,
    why: Option<WindowError>,
}

impl Jobs {
    /// Room for `each` operations with each rank. Nothing is allocated later.
    pub fn new(ranks: usize, each: usize) -> Jobs {
        let count = ranks * each;
        let rows_of = |rank: usize| (rank * each) as u32..((rank + 1) * each) as u32;
        Jobs {
            rows: (0..count).map(|_| State::Free).collect(),
            each,
            free: (0..ranks).map(|rank| rows_of(rank).rev().collect()).collect(),
            waiting: (0..ranks).map(|_| VecDeque::with_capacity(each)).collect(),
            issued: Vec::with_capacity(count),
            ranks: (0..ranks).map(|_| Rank::default()).collect(),
            failures: 0,
        }
    }

    /// For an add that is pushed next: it fails where something with its rank is refused, or cannot
    /// be issued, that was pushed before and has not ended now.
    pub fn so_far(&self, rank: u32) -> Before {
        let Rank { ended, unissued, .. } = self.ranks[rank as usize];
        Before::SoFar(SoFar { ended, unissued })
    }

    /// How many operations have failed.
    #[inline]
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// Takes an operation; `None`: as many are taken as there is room for with the rank, or there
    /// is no such rank.
    pub fn push(&mut self, rank: u32, work: Work, until: Until) -> Option<JobId> {
        let waiting = self.waiting.get_mut(rank as usize)?;
        let row = self.free.get_mut(rank as usize)?.pop()?;
        self.rows[row as usize] = State::Waits(rank, work, until);
        waiting.push_back(row);
        Some(JobId(row))
    }

    /// Issues what has room, and finds what has ended. Whether anything did.
    pub fn step(
        &mut self,
        group: &mut group::Group<'static, Handle>,
        endpoint: &mut Endpoint,
    ) -> bool {
        let mut any = self.issue(group, endpoint);
        let (rows, ranks, failures) = (&mut self.rows, &mut self.ranks, &mut self.failures);
        self.issued.retain(|row| {
            let State::Issued(ticket, until) = rows[*row as usize] else { return false };
            let ended = match until {
                Until::Local => group.is_local_done(ticket),
                Until::Applied => group.is_applied(ticket),
            };
            if ended == Ok(false) {
                return true;
            }
            let mut ended = ended.map(|_| ticket);
            if until == Until::Applied && ended.is_ok() {
                ended = group.refusal_of(ticket).map_or(ended, Err);
                let rank = &mut ranks[ticket.rank() as usize];
                rank.ended = rank.ended.max(ticket);
            }
            *failures += u64::from(ended.is_err());
            rows[*row as usize] = State::Ended(ended);
            any = true;
            false
        });
        any
    }

    /// Issues what has room; whether anything had.
    pub fn issue(
        &mut self,
        group: &mut group::Group<'static, Handle>,
        endpoint: &mut Endpoint,
    ) -> bool {
        let mut any = false;
        for (waiting, of) in self.waiting.iter_mut().zip(&mut self.ranks) {
            while let Some(row) = waiting.front().copied() {
                let State::Waits(rank, work, until) = self.rows[row as usize] else { break };
                self.rows[row as usize] = match issue(group, endpoint, (rank, of), work) {
                    Err(WindowError::Again) => break,
                    Ok(ticket) => {
                        self.issued.push(row);
                        if until == Until::Applied {
                            // the frame that it leaves in asks at once
                            let _ = group.is_applied(ticket);
                        }
                        State::Issued(ticket, until)
                    }
                    Err(error) => {
                        of.unissued += 1;
                        of.why = Some(error);
                        self.failures += 1;
                        State::Ended(Err(error))
                    }
                };
                waiting.pop_front();
                any = true;
            }
        }
        any
    }

    /// An operation that was issued, as the group knows it; `None`: it waits for room. An error: it
    /// has ended with that.
    pub fn ticket(&self, id: JobId) -> Option<Result<Ticket, WindowError>> {
        match *self.rows.get(id.0 as usize)? {
            State::Free | State::Waits(..) => None,
            State::Issued(ticket, _) => Some(Ok(ticket)),
            State::Ended(outcome) => Some(outcome),
        }
    }

    /// Whether nothing waits for room or for its end.
    pub fn is_idle(&self) -> bool {
        self.issued.is_empty() && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// The outcome of an operation, once it has ended; the name is free again then.
    pub fn outcome(&mut self, id: JobId) -> Option<Result<(), WindowError>> {
        let State::Ended(outcome) = *self.rows.get(id.0 as usize)? else { return None };
        self.rows[id.0 as usize] = State::Free;
        self.free[id.0 as usize / self.each].push(id.0);
        Some(outcome.map(drop))
    }
}

fn issue(
    group: &mut group::Group<'static, Handle>,
    endpoint: &mut Endpoint,
    (rank, of): (u32, &Rank),
    work: Work,
) -> Result<Ticket, WindowError> {
    match work {
        Work::Put { window, offset, local } => {
            let put = Put { window, rank, offset, signal: None, counter: None };
            group.put(endpoint, &put, &local)
        }
        Work::Get { window, offset, local } => group.get(endpoint, (window, rank), offset, &local),
        Work::Add { window, offset, value, after } => {
            let after = match after {
                Before::Known(after) => after,
                Before::SoFar(SoFar { ended, unissued }) => match of.why {
                    Some(why) if of.unissued != unissued => return Err(why),
                    _ => After::SuccessSince(ended),
                },
            };
            group.add((window, rank), offset, value, after)
        }
    }
}
