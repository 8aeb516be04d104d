//! What the lock of a communicator guards: its group and endpoint, memories, and requests.

use super::error::{Refused, RmaError};
use super::listener::{Opened, WINDOWS_MAX};
use super::requests::{Requests, Word};
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span as Time};
use crate::host::group::Group;
use crate::host::group::board::{Board, News};
use crate::host::group::jobs::Work;
use crate::host::{MemoryOptions, Shared};
use crate::memory::Reserve;
use crate::memory::probe::clock_ns;
use crate::transport::RequestError;
use crate::window::group::Flushed;
use crate::window::{Local, Span, WindowError};
use std::vec::Vec;

/// How long an end waits for operations under way.
pub(super) const END_PATIENCE: Time = Time::millis(2_000);

/// Names registered memory; its number is not zero, and below 2^63.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Memory(pub u64);

/// Bits of the place in a [`Memory`].
const PLACE_BITS: u32 = 16;
const _: () = assert!(WINDOWS_MAX < 1 << PLACE_BITS);

/// One end of a transfer.
#[derive(Copy, Clone, Debug)]
pub struct Side {
    /// The memory; not looked at where there are no bytes.
    pub memory: Memory,
    /// Bytes from its start, at the rank whose end this is.
    pub offset: u64,
}

/// A word that grows.
#[derive(Copy, Clone, Debug)]
pub struct Signal {
    /// Where it is, in the memory of the rank that the operation is with.
    pub at: Side,
    /// By how much.
    pub value: u64,
}

/// Whom an operation is with.
#[derive(Copy, Clone, Debug)]
pub struct Target {
    /// The set of contexts.
    pub list: usize,
    /// Which of them.
    pub context: usize,
    /// The rank.
    pub rank: u32,
}

/// Memory that was registered here, and its window at all ranks.
#[derive(Copy, Clone, Debug)]
struct Registered {
    region: Handle,
    window: Handle,
    address: u64,
    length: u64,
    is_device: bool,
}

/// A place for memory.
#[derive(Copy, Clone, Debug, Default)]
struct Slot {
    uses: u32,
    registered: Option<Registered>,
}

/// The communicator behind its lock.
pub(super) struct Core {
    rank: u32,
    /// `None`: given up.
    group: Option<Group>,
    // the group's block is freed after the endpoint has closed
    opened: Opened,
    _block: Reserve,
    /// Ranks tell by it that they have failed.
    board: Board,
    /// Memory of no bytes, for a rank that cannot register its own.
    nothing: (Handle, u64),
    slots: Vec<Slot>,
    lists: Vec<Option<Requests>>,
    fault: Option<RmaError>,
}

/// A registration whose exchange is under way.
pub(super) struct Exchange {
    registered: Registered,
    /// Why this rank takes part without memory.
    refusal: Option<RmaError>,
    has_begun: bool,
}

impl Core {
    pub fn new(
        rank: u32,
        group: Group,
        (opened, block): (Opened, Reserve),
        (board, nothing): (Board, (Handle, u64)),
    ) -> Core {
        let slots = std::vec![Slot::default(); WINDOWS_MAX as usize];
        let (group, lists) = (Some(group), Vec::new());
        Core { rank, group, opened, _block: block, board, nothing, slots, lists, fault: None }
    }

    /// Why nothing goes on any more, if so.
    pub fn check(&self) -> Result<(), RmaError> {
        self.fault.map_or(Ok(()), Err)
    }

    /// The same, or that a rank has told that it has failed: its requests come no more.
    pub fn check_all(&self) -> Result<(), RmaError> {
        self.check()?;
        self.board.told(News::Failed).map_or(Ok(()), |rank| Err(RmaError::Told(rank)))
    }

    /// Tells all ranks that this one has failed, unless another one was the first.
    pub fn tell(&mut self) {
        if self.board.told(News::Failed).is_none() {
            self.board.tell(News::Failed);
            self.step();
        }
    }

    /// The first error of a connection, what the communicator was given up for, or that a rank has
    /// told of an operation that was refused.
    pub fn failure(&self) -> Option<RmaError> {
        let failed = || {
            let (rank, error) = self.group.as_ref()?.view().failed()?;
            // a rank that is done may close before this one
            let is_lost = error != RequestError::PeerClosed;
            is_lost.then_some(RmaError::Window(WindowError::Failed(rank, error)))
        };
        let refused = || self.board.told(News::Refused).map(RmaError::Told);
        self.check_all().err().or_else(failed).or_else(refused)
    }

    /// Makes progress; whether anything happened.
    pub fn step(&mut self) -> bool {
        let Some(group) = &mut self.group else { return false };
        let endpoint = self.opened.endpoint();
        let mut any = self.board.step(group, endpoint);
        for list in self.lists.iter_mut().flatten() {
            any |= list.step(group, endpoint);
        }
        any | group.progress(endpoint)
    }

    /// The descriptor to sleep by, once it is armed; `None`: make progress instead.
    pub fn arm(&mut self) -> Option<i32> {
        let endpoint = self.opened.endpoint();
        endpoint.wait_arm().then(|| endpoint.shared.wait_fd())
    }

    // ---- memory

    /// Registers memory here, and makes a window of it. A rank that cannot do so makes a window of
    /// no bytes, and so tells all.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until [`Core::deregister`] has returned.
    pub unsafe fn register(
        &mut self,
        (address, length): (u64, u64),
        options: &MemoryOptions,
    ) -> Result<Exchange, RmaError> {
        self.check()?;
        let Some(group) = &mut self.group else { return Err(RmaError::Broken) };
        let endpoint = self.opened.endpoint();
        let shared: &Shared = &endpoint.shared;
        let mut refusal = (length == 0).then_some(RmaError::Argument("the size of the memory"));
        if refusal.is_none() {
            // SAFETY: this function's contract.
            match unsafe { shared.register_with(address, Bytes(length), options) } {
                Ok(region) => {
                    // SAFETY: as above; peers write to it, as the user expects.
                    match unsafe { group.register(endpoint, (region, address, length), false) } {
                        Ok(window) => {
                            let is_device = options.is_device();
                            let registered =
                                Registered { region, window, address, length, is_device };
                            return Ok(Exchange { registered, refusal: None, has_begun: false });
                        }
                        Err(error) => {
                            refusal = Some(error.into());
                            let _ = endpoint.shared.deregister(region); // nobody has used it
                        }
                    }
                }
                Err(error) => refusal = Some(RmaError::Register(error)),
            }
        }
        let (region, address) = self.nothing;
        // SAFETY: memory of the group's block, of which the window has no byte.
        let window = unsafe { group.register(endpoint, (region, address, 0), false) }?;
        let registered = Registered { region, window, address, length: 0, is_device: false };
        Ok(Exchange { registered, refusal, has_begun: false })
    }

    /// Whether all ranks have come to an exchange: `Err(Missing)` names the first that has not.
    pub fn exchange(&mut self, exchange: &mut Exchange) -> Result<(), RmaError> {
        self.check()?;
        let window = exchange.registered.window;
        let Some(group) = &mut self.group else { return Err(RmaError::Broken) };
        let inner = group.inner();
        if !exchange.has_begun {
            match inner.exchange_begin(window) {
                Ok(()) => exchange.has_begun = true,
                Err(WindowError::Again) => return Err(RmaError::Missing(self.rank)),
                Err(error) => return Err(error.into()),
            }
        }
        match inner.exchange_look(window)? {
            Flushed::Done => {}
            Flushed::Waiting(rank) => return Err(RmaError::Missing(rank)),
        }
        if let Some(refusal) = exchange.refusal {
            return Err(refusal);
        }
        for rank in 0..inner.ranks() {
            if inner.length(window, rank)? == 0 {
                return Err(RmaError::Rank(rank));
            }
        }
        Ok(())
    }

    /// Keeps the memory of an exchange that has ended well.
    pub fn keep(&mut self, exchange: &Exchange) -> Result<Memory, RmaError> {
        let free = self.slots.iter().position(|slot| slot.registered.is_none());
        let place = free.ok_or(RmaError::Full)?; // there are as many as windows
        let slot = &mut self.slots[place];
        slot.uses = slot.uses.wrapping_add(1);
        slot.registered = Some(exchange.registered);
        Ok(Memory((u64::from(slot.uses) << PLACE_BITS | place as u64) + 1))
    }

    /// Gives up what an exchange that failed has made.
    pub fn unmake(&mut self, exchange: &Exchange) {
        self.free(exchange.registered);
    }

    fn place_of(&self, memory: Memory) -> Result<usize, RmaError> {
        let number = memory.0.checked_sub(1).ok_or(RmaError::Argument("the memory handle"))?;
        let (place, uses) = ((number & ((1 << PLACE_BITS) - 1)) as usize, number >> PLACE_BITS);
        let slot = self.slots.get(place).filter(|slot| u64::from(slot.uses) == uses);
        slot.map(|_| place).ok_or(RmaError::Argument("the memory handle"))
    }

    fn registered(&self, memory: Memory) -> Result<&Registered, RmaError> {
        let place = self.place_of(memory)?;
        self.slots[place].registered.as_ref().ok_or(RmaError::Argument("the memory handle"))
    }

    /// Ends a registration, without the peers. What they still send there is refused.
    pub fn deregister(&mut self, memory: Memory) -> Result<(), RmaError> {
        let place = self.place_of(memory)?;
        if let Some(registered) = self.slots[place].registered.take() {
            self.free(registered);
        }
        Ok(())
    }

    /// Frees a window and its region: transfers under way there get a moment to end, and then their
    /// connections are given up.
    fn free(&mut self, registered: Registered) {
        let is_own = registered.length != 0;
        let is_freed = |core: &mut Core| {
            let endpoint = core.opened.endpoint();
            if let Some(group) = &mut core.group
                && group.free(registered.window) == Err(WindowError::Again)
            {
                return false;
            }
            !is_own || endpoint.shared.deregister(registered.region).is_ok()
        };
        if !self.wait(is_freed) {
            self.give_up(RmaError::Broken);
            let _ = self.opened.endpoint().shared.deregister(registered.region);
        }
    }

    /// Makes progress until something has come, for a moment.
    fn wait(&mut self, mut has_come: impl FnMut(&mut Core) -> bool) -> bool {
        let deadline_ns = clock_ns().saturating_add(END_PATIENCE.0);
        loop {
            if has_come(self) {
                return true;
            }
            if clock_ns() > deadline_ns {
                return false;
            }
            self.step();
        }
    }

    // ---- requests

    /// Makes places for the requests of contexts; their number.
    pub fn list_add(&mut self, ranks: usize, contexts: usize) -> usize {
        let list = Some(Requests::new(ranks, contexts));
        match self.lists.iter().position(Option::is_none) {
            Some(at) => {
                self.lists[at] = list;
                at
            }
            None => {
                self.lists.push(list);
                self.lists.len() - 1
            }
        }
    }

    /// Ends contexts: what is under way there gets a moment to end. What does not end must not be
    /// issued later, when its memory is gone, so the communicator is given up with it.
    pub fn list_end(&mut self, list: usize) {
        let has_ended = |core: &mut Core| core.lists[list].as_mut().is_none_or(Requests::has_ended);
        if !self.wait(has_ended) {
            self.give_up(RmaError::Broken);
        }
        if let Some(list) = self.lists.get_mut(list) {
            *list = None;
        }
    }

    fn list(&mut self, list: usize) -> Result<&mut Requests, RmaError> {
        let list = self.lists.get_mut(list).and_then(Option::as_mut);
        list.ok_or(RmaError::Argument("the context"))
    }

    /// Whether a rank has failed; what is wrong here comes first.
    fn told_behind(&mut self, Target { list, context, rank }: Target) -> Result<(), RmaError> {
        self.list(list)?.lane_of(context, rank)?;
        self.check_all()
    }

    fn local(&self, side: Side, bytes: u64) -> Result<Local, RmaError> {
        let it = self.registered(side.memory)?;
        if side.offset > it.length || bytes > it.length - side.offset {
            return Err(WindowError::Range(it.length).into());
        }
        let address = it.address + side.offset;
        // SAFETY: the user keeps the memory while it is registered; a GPU's is not looked at.
        let span = unsafe { Span::new(address, bytes) };
        let bytes_of = if it.is_device { Span::EMPTY } else { span };
        Ok(Local { region: it.region, address, length: bytes, bytes: bytes_of })
    }

    /// The window of a peer's side, which has so many bytes there.
    fn remote(&self, side: Side, rank: u32, bytes: u64) -> Result<Handle, RmaError> {
        let window = self.registered(side.memory)?.window;
        let group = self.group.as_ref().ok_or(RmaError::Broken)?;
        let length = group.view().length(window, rank)?;
        if side.offset > length || bytes > length - side.offset {
            return Err(WindowError::Range(length).into());
        }
        Ok(window)
    }

    /// Queues a put, a signal, or both; the row of its request.
    pub fn put(
        &mut self,
        target: Target,
        bytes: u64,
        (from, to): (Side, Side),
        signal: Option<Signal>,
    ) -> Result<usize, RmaError> {
        self.check()?;
        let Target { list, context, rank } = target;
        let put = match bytes {
            0 => None,
            _ => {
                let (window, local) = (self.remote(to, rank, bytes)?, self.local(from, bytes)?);
                Some(Work::Put { window, offset: to.offset, local })
            }
        };
        let word = match signal {
            None => None,
            Some(Signal { at, value }) => {
                if !at.offset.is_multiple_of(size_of::<u64>() as u64) {
                    return Err(RmaError::Argument(
                        "the offset of a signal, which is not aligned,",
                    ));
                }
                let window = self.remote(at, rank, size_of::<u64>() as u64)?;
                Some(Word { window, offset: at.offset, value })
            }
        };
        self.told_behind(target)?;
        self.list(list)?.push((context, rank), put, word)
    }

    /// Queues a get; the row of its request.
    pub fn get(
        &mut self,
        target: Target,
        bytes: u64,
        (from, to): (Side, Side),
    ) -> Result<usize, RmaError> {
        self.check()?;
        let Target { list, context, rank } = target;
        let get = match bytes {
            0 => None,
            _ => {
                let (window, local) = (self.remote(from, rank, bytes)?, self.local(to, bytes)?);
                Some(Work::Get { window, offset: from.offset, local })
            }
        };
        self.told_behind(target)?;
        self.list(list)?.push((context, rank), get, None)
    }

    /// Queues a flush of gets; the row of its request, or `None`: there is nothing to wait for.
    pub fn flush(&mut self, target: Target) -> Result<Option<usize>, RmaError> {
        self.check()?;
        self.told_behind(target)?;
        self.list(target.list)?.flush(target.context, target.rank)
    }

    /// How a request stands. All ranks are told where it was refused.
    pub fn test(&mut self, list: usize, row: usize) -> Result<bool, RmaError> {
        self.check_all()?;
        let ended = self.list(list)?.test(row);
        if let Err(RmaError::Refused(Refused { again: false, .. })) = ended {
            self.board.tell(News::Refused);
        }
        ended
    }

    // ---- the end

    /// Nothing is issued from now on, and the connections end: so the peers hear of it.
    pub fn give_up(&mut self, why: RmaError) {
        self.fault.get_or_insert(why);
        self.lists.iter_mut().for_each(|list| *list = None);
        if let Some(group) = self.group.take() {
            group.close(self.opened.endpoint());
        }
    }
}
