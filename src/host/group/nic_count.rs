//! Counters of a group that a NIC adds to, by its companion: once the local buffer of an operation
//! may be used again.
#![forbid(unsafe_code)]

use super::Group;
use crate::base::slab::Handle;
use crate::host::Endpoint;
use crate::host::nic_counter::{self, CounterTicket, NicCounterError};
use crate::window::group::Word;
use crate::window::{Ticket, WindowError};
use std::vec::Vec;

/// Most counts of a group that have not ended.
pub const COUNTS_MAX: usize = 64;

/// A count that has not ended.
#[derive(Copy, Clone, Debug)]
pub(super) struct NicCount {
    word: Word,
    value: u64,
    connection: Handle,
    state: State,
}

#[derive(Copy, Clone, Debug)]
enum State {
    /// Until the operation's local buffer may be used again.
    Waiting(Ticket),
    Adding(CounterTicket),
}

/// Why a NIC does not count. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum NicCountError {
    /// The window or its counter.
    Window(WindowError),
    /// The NIC.
    Nic(NicCounterError),
}

impl Group {
    /// Has a NIC add `value` to a counter of this rank once the local buffer of an operation may be
    /// used again: the endpoint has companions, and the connection to the operation's rank an RDMA
    /// rail. A counter is either a NIC's or the library's. Where the operation is refused, or its
    /// connection fails, nothing is added. Where the NIC fails, reads of the window's counters say
    /// [`WindowError::OutcomeUnknown`].
    pub fn count_by_nic(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        (window, id): (Handle, u16),
        value: u64,
    ) -> Result<(), NicCountError> {
        // of the four connections with a rank the third carries its bytes
        let link = self.links.get(ticket.rank() as usize * 4 + 2).copied();
        let connection = link.ok_or(NicCountError::Window(WindowError::Rank))?;
        if self.counts.len() == COUNTS_MAX {
            return Err(NicCountError::Window(WindowError::Again));
        }
        let word = self.inner.word_begin(window, id).map_err(NicCountError::Window)?;
        if let Err(error) = nic_counter::check(endpoint, connection, self.memory, word.address) {
            self.inner.word_end(word, true);
            return Err(NicCountError::Nic(error));
        }
        self.counts.push(NicCount { word, value, connection, state: State::Waiting(ticket) });
        Ok(())
    }

    /// Posts the adds that are due, and ends those that have ended.
    pub(super) fn counts_step(&mut self, endpoint: &mut Endpoint) {
        let mut counts: Vec<NicCount> = core::mem::take(&mut self.counts);
        counts.retain_mut(|count| match self.count_step(endpoint, count) {
            Some(is_known) => {
                self.inner.word_end(count.word, is_known);
                false
            }
            None => true,
        });
        self.counts = counts;
    }

    /// Whether it is known how a count has ended; `None`: it has not.
    fn count_step(&mut self, endpoint: &mut Endpoint, count: &mut NicCount) -> Option<bool> {
        if let State::Waiting(ticket) = count.state {
            match self.inner.is_local_done(ticket) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => return Some(true),
            }
            let (connection, address) = (count.connection, count.word.address);
            match nic_counter::add(endpoint, connection, self.memory, address, count.value) {
                Ok(add) => count.state = State::Adding(add),
                Err(NicCounterError::Again) => return None,
                // the operation was carried out, and is not counted
                Err(_) => return Some(false),
            }
        }
        match count.state {
            State::Adding(add) => Some(nic_counter::test(endpoint, add)?.is_ok()),
            State::Waiting(_) => None,
        }
    }
}
