//! Taking turns at a library that does not let every thread call at once.

use super::Scope;
use crate::base::tickets::{Ticket, Tickets};

/// Looks before a waiting thread lets others have its processor.
const LOOKS: u32 = 64;

/// Which of our threads may be in the library at once: those that register memory, and the rail's,
/// which polls and posts. The offer says it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Callers {
    /// All (`FI_THREAD_SAFE`).
    All,
    /// All, says the library, but its registrations are one thread's at a time, and whatever makes
    /// progress looks for them: polls, and posts too (`xnet_get_conn` to a peer that is not
    /// connected yet; `ofi_rxm` where some wait).
    OneAtRegistrations,
    /// One at a time of those that use what belongs to a completion queue, its endpoints among it
    /// (`FI_THREAD_COMPLETION`, and `FI_THREAD_ENDPOINT` and `FI_THREAD_FID`, which ask for less;
    /// of what fi_domain(3) names for each of them nothing is a domain, nor a registration). All
    /// that is the rail's thread's own but for registrations that are bound to the endpoint.
    OneAtQueue,
    /// One (`FI_THREAD_DOMAIN`).
    One,
}

/// What a thread is in the library for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Act {
    /// To make or end a registration, and to bind it where that is wanted.
    Register = 1 << 0,
    /// To take completions or events.
    Poll = 1 << 1,
    /// To post.
    Post = 1 << 2,
    /// For an address.
    Control = 1 << 3,
}

impl Callers {
    /// What is done in turns.
    const fn in_turns(self, scope: Scope) -> u8 {
        let at_queue = Act::Poll as u8 | Act::Post as u8;
        match (self, scope) {
            (Callers::All, _) | (Callers::OneAtQueue, Scope::Domain) => 0,
            (Callers::OneAtQueue, Scope::Endpoint) => Act::Register as u8 | at_queue,
            // which posts make progress the library alone knows, and a turn is two adds
            (Callers::OneAtRegistrations | Callers::One, _) => {
                Act::Register as u8 | at_queue | Act::Control as u8
            }
        }
    }
}

/// Who may be in the library: where turns are kept, one thread at a time, in the order in which
/// they came. So the thread that polls waits for one call of each other thread at most.
#[derive(Debug)]
pub struct Turns {
    in_turns: u8,
    tickets: Tickets,
}

/// One thread's turn, if that is needed, until it is dropped.
pub type Turn<'t> = Option<Ticket<'t>>;

/// Between two looks: others have this thread's processor now and then.
pub fn pause(looks: u32) {
    if looks.is_multiple_of(LOOKS) {
        // SAFETY: takes nothing.
        unsafe { libc::sched_yield() };
    }
}

impl Turns {
    pub fn new(callers: Callers, scope: Scope) -> Turns {
        Turns { in_turns: callers.in_turns(scope), tickets: Tickets::default() }
    }

    /// Waits for this thread's turn, if that is needed for this. Nothing that waits for another
    /// thread is done in one, and nobody who has one takes another.
    #[inline]
    pub fn take(&self, act: Act) -> Turn<'_> {
        if self.in_turns & act as u8 == 0 {
            return None;
        }
        self.wait()
    }

    #[cold]
    fn wait(&self) -> Turn<'_> {
        Some(self.tickets.take(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTS: [Act; 4] = [Act::Register, Act::Poll, Act::Post, Act::Control];

    fn taken(callers: Callers, scope: Scope) -> [bool; 4] {
        let turns = Turns::new(callers, scope);
        ACTS.map(|act| turns.take(act).is_some())
    }

    #[test]
    fn turns_are_taken_where_the_library_wants_them_and_nowhere_else() {
        for scope in [Scope::Domain, Scope::Endpoint] {
            assert_eq!(taken(Callers::All, scope), [false; 4]);
            assert_eq!(taken(Callers::OneAtRegistrations, scope), [true; 4]);
            assert_eq!(taken(Callers::One, scope), [true; 4]);
        }
        assert_eq!(taken(Callers::OneAtQueue, Scope::Domain), [false; 4]);
        assert_eq!(taken(Callers::OneAtQueue, Scope::Endpoint), [true, true, true, false]);
    }
}
