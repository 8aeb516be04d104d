//! The communicator: what its user calls, from any thread.

use super::core::{Core, Exchange, Memory, Side, Signal, Target};
use super::error::RmaError;
use super::listener::{Listener, RANKS_MAX, WINDOWS_MAX};
use super::tend::Tender;
use crate::base::units::Span as Time;
use crate::host::MemoryOptions;
use crate::host::group::board::Board;
use crate::host::group::{Group, GroupOptions};
use crate::memory::probe::clock_ns;
use crate::memory::{Reserve, locked};
use crate::window::Limits;
use crate::wire::handle::HANDLE_BYTES;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::yield_now;

/// Bits of the row in the number of a request.
const ROW_BITS: u32 = 40;

/// Steps in which an answer of this rank's may carry what has taken effect. NCCL's thread, or our
/// own, makes many of them.
const TELL_STEPS: u8 = 4;

/// What a rank connects with.
#[derive(Copy, Clone, Debug)]
pub struct Opening<'a> {
    /// Handles of all ranks, in their order.
    pub handles: &'a [[u8; HANDLE_BYTES]],
    /// This rank.
    pub rank: usize,
    /// Contexts that requests may name at once, as list 0; none: [`Comm::contexts_open`] makes all.
    pub contexts: usize,
    /// How long the ranks wait for each other in each call that all of them make.
    pub timeout: Time,
}

/// What the users of a communicator and its thread share.
pub(super) struct Seat {
    core: Mutex<Core>,
    /// Users that wait for the lock: who polls lets them pass.
    wanted: AtomicU32,
    /// Calls in which the user has made progress.
    pub calls: AtomicU64,
}

impl Seat {
    /// The core, for a call that polls.
    pub fn poll(&self) -> MutexGuard<'_, Core> {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            yield_now(); // a hint alone: the lock orders
        }
        locked(&self.core)
    }

    /// The core, for a call that is made once.
    fn enter(&self) -> MutexGuard<'_, Core> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let core = locked(&self.core);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        core
    }
}

/// The ranks of one communicator.
pub struct Comm {
    // ended first
    tender: Option<Tender>,
    seat: Arc<Seat>,
    /// One call that all ranks make at a time.
    collective: Mutex<()>,
    ranks: usize,
    timeout: Time,
}

impl Comm {
    /// Brings the ranks together. A call that all ranks make.
    ///
    /// *Errors*: [`RmaError::Group`] where a rank does not come, or is of another kind; nothing is
    /// left then. *Cost*: blocks until all have come, or the time is over.
    pub fn connect(listener: &Listener, opening: &Opening<'_>) -> Result<Comm, RmaError> {
        let Opening { handles, rank, contexts, timeout } = *opening;
        let ranks = handles.len();
        if ranks == 0 || ranks > RANKS_MAX as usize {
            return Err(RmaError::Argument("the number of ranks"));
        }
        if rank >= ranks {
            return Err(RmaError::Argument("the rank"));
        }
        let (mut opened, listens) = listener.take()?;
        let limits = Limits {
            ranks: ranks as u32,
            windows_max: WINDOWS_MAX + 1, // the board
            signals_max: 0,
            counters_max: 0,
            barriers_max: 0,
        };
        let options = GroupOptions { limits, rank: rank as u32, timeout };
        let block = Reserve::create(options.bytes())?;
        let place = (block.start(), block.length());
        let endpoint = opened.endpoint();
        // SAFETY: the block is aligned to a page, as long as told, and kept until the endpoint is
        // closed (`Core`).
        let group = unsafe { Group::open_listening(endpoint, place, &options, (listens, handles)) };
        let _ = endpoint.shared.listener_close(listens);
        let mut group = group?;
        let mut board = Board::new(rank as u32, ranks as u32)?;
        let open = board.open(&mut group, endpoint, timeout).map_err(RmaError::from);
        let nothing = open.and_then(|()| board.nothing().ok_or(RmaError::Broken));
        let nothing = match nothing {
            Ok(nothing) => nothing,
            Err(error) => {
                group.close(endpoint);
                drop(opened); // before the board
                return Err(error);
            }
        };
        group.inner().tell_later(TELL_STEPS);
        let mut core = Core::new(rank as u32, group, (opened, block), (board, nothing));
        if contexts != 0 {
            core.list_add(ranks, contexts);
        }
        let (core, wanted) = (Mutex::new(core), AtomicU32::new(0));
        let seat = Arc::new(Seat { core, wanted, calls: AtomicU64::new(0) });
        let tender = Some(Tender::start(Arc::clone(&seat))?);
        Ok(Comm { tender, seat, collective: Mutex::new(()), ranks, timeout })
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Registers memory: each rank its own, at one time. A call that all ranks make. It fails at
    /// all of them where one cannot register its memory, which may not be empty.
    ///
    /// *Errors*: [`RmaError::Register`] and [`RmaError::Window`] of this rank's memory,
    /// [`RmaError::Rank`] of another's. [`RmaError::Missing`]: a rank did not come in time, and the
    /// communicator is given up.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until [`Comm::deregister`] has returned, and
    ///   the user expects that peers read and write it.
    pub unsafe fn register(
        &self,
        place: (u64, u64),
        options: &MemoryOptions,
    ) -> Result<Memory, RmaError> {
        let _alone = locked(&self.collective);
        // SAFETY: this function's contract.
        let mut exchange = unsafe { self.seat.enter().register(place, options) }?;
        let deadline_ns = clock_ns().saturating_add(self.timeout.0);
        loop {
            let mut core = self.seat.enter();
            match core.exchange(&mut exchange) {
                Ok(()) => return core.keep(&exchange),
                Err(RmaError::Missing(_)) if clock_ns() < deadline_ns => _ = core.step(),
                Err(error) => {
                    self.undo(&mut core, &exchange, error);
                    return Err(error);
                }
            }
            drop(core);
            yield_now();
        }
    }

    /// What has failed at one rank, has at all: the ranks go on together. Where one is missing they
    /// would not.
    fn undo(&self, core: &mut Core, exchange: &Exchange, error: RmaError) {
        core.unmake(exchange);
        if matches!(error, RmaError::Missing(_) | RmaError::Window(_)) {
            core.give_up(error);
        }
    }

    /// Ends a registration. Touches neither the memory nor the peers.
    pub fn deregister(&self, memory: Memory) -> Result<(), RmaError> {
        self.seat.enter().deregister(memory)
    }

    /// Makes contexts, with room for their requests; the number of the list.
    pub fn contexts_open(&self, contexts: usize) -> Result<usize, RmaError> {
        let mut core = self.seat.enter();
        core.check()?;
        Ok(core.list_add(self.ranks, contexts.max(1)))
    }

    /// Ends contexts.
    pub fn contexts_close(&self, list: usize) {
        self.seat.enter().list_end(list);
    }

    /// Puts bytes of this rank's memory into that of another, and then adds to a signal. The result
    /// names the request.
    #[inline]
    pub fn put(
        &self,
        target: Target,
        bytes: u64,
        sides: (Side, Side),
        signal: Option<Signal>,
    ) -> Result<u64, RmaError> {
        let mut core = self.seat.poll();
        let row = core.put(target, bytes, sides, signal)?;
        core.step();
        Ok(name(target.list, row))
    }

    /// Gets bytes of another rank's memory, the first of the two, into this rank's.
    pub fn get(&self, target: Target, bytes: u64, sides: (Side, Side)) -> Result<u64, RmaError> {
        let mut core = self.seat.poll();
        let row = core.get(target, bytes, sides)?;
        core.step();
        Ok(name(target.list, row))
    }

    /// Waits for all gets that came before from that rank in that context; `None`: there are none.
    pub fn flush(&self, target: Target) -> Result<Option<u64>, RmaError> {
        let row = self.seat.poll().flush(target)?;
        Ok(row.map(|row| name(target.list, row)))
    }

    /// How a request stands, with progress for all; one that has ended is forgotten. One that was
    /// refused fails alone ([`RmaError::Refused`]): others go on, and [`Comm::failure`] says so at
    /// all ranks.
    #[inline]
    pub fn test(&self, request: u64) -> Result<bool, RmaError> {
        let number = request.checked_sub(1).ok_or(RmaError::Argument("the request"))?;
        let (list, row) = (number >> ROW_BITS, number & ((1 << ROW_BITS) - 1));
        self.seat.calls.fetch_add(1, Ordering::Relaxed);
        let mut core = self.seat.poll();
        core.step();
        core.test(list as usize, row as usize)
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), RmaError> {
        self.seat.calls.fetch_add(1, Ordering::Relaxed);
        let mut core = self.seat.poll();
        core.step();
        core.check_all()
    }

    /// Tells all ranks that this one has failed, unless another one has told it before. From then
    /// on operations, tests and progress fail at all ranks ([`RmaError::Told`]).
    pub fn fail(&self) {
        self.seat.enter().tell();
    }

    /// What has failed, if anything has.
    pub fn failure(&self) -> Option<RmaError> {
        self.seat.enter().failure()
    }
}

impl Drop for Comm {
    /// Closes it, without the peers: what was issued leaves first.
    fn drop(&mut self) {
        if let Some(tender) = self.tender.take() {
            tender.stop();
        }
        self.seat.enter().give_up(RmaError::Broken);
    }
}

/// The number of a request: not zero, and below 2^63.
fn name(list: usize, row: usize) -> u64 {
    ((list as u64) << ROW_BITS | row as u64) + 1
}
