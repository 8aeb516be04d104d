//! What the engine and the calls of the user share: regions, contexts, and what is under way.

use super::adds::Adds;
use super::context::Context;
use super::flow::{Flow, Posted};
use super::hosts::{Far, Hosts, Works};
use super::leaked::Leaked;
use super::road::Pending;
use crate::base::slab::Handle;
use crate::hca::completion::Syndrome;
use crate::hca::entry::Address;
use crate::hca::executor::{Action, Local, Operation, Step};
use crate::hca::keys::{Keys, Kind, Place, Slot};
use crate::hca::outbox::Request;
use crate::host::group::jobs::{Before, Work};
use crate::host::log::event::tell;
use crate::host::log::gin::GinEvent;
use crate::memory::SharedMapping;
use crate::memory::cuda::{CudaError, DeviceBlock, Entered, Import, Pinned};
use crate::window::{self, After, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

/// Most entries that a pass takes of one queue, so that others have their turn.
const PASS_ENTRIES: usize = 128;

/// How a region is reached from here.
#[derive(Debug)]
pub enum Reach {
    /// Device memory: where each rank's part lies, and that rank's key for it. Parts of ranks of
    /// other hosts lie nowhere.
    Device(Vec<(u64, u32)>),
    /// Words of shared host memory, one table for each rank; `None`: this process has it not.
    Words(Vec<Option<SharedMapping>>),
    /// Nowhere.
    Sink,
}

/// A region and what keeps it.
#[derive(Debug)]
pub struct Region {
    /// Registrations of host memory, dropped before the memory (`reach`).
    pub pinned: Option<Pinned>,
    /// How it is reached.
    pub reach: Reach,
    /// How ranks of other hosts reach the own part, and this rank theirs.
    pub far: Option<Far>,
    /// Mappings of other ranks' memory.
    pub imports: Vec<Import>,
    /// The structures that the GPU was given.
    pub blocks: Vec<DeviceBlock>,
}

impl Region {
    /// One that is nowhere.
    pub const SINK: Region = Region {
        pinned: None,
        reach: Reach::Sink,
        far: None,
        imports: Vec::new(),
        blocks: Vec::new(),
    };
}

/// The state that the engine and the calls of the user share.
#[derive(Debug)]
pub struct State {
    /// Dropped before the memory that they use.
    pub hosts: Option<Hosts>,
    pub(super) flow: Flow,
    pub(super) adds: Adds,
    pub(super) keys: Keys<'static>,
    pub(super) regions: Vec<Option<Region>>,
    pub(super) contexts: Vec<Context>,
    pub(super) lost: Vec<bool>,
    /// The first rank that has told that a queue of its own has failed; this one, where one of its
    /// own has.
    pub(super) told: Option<usize>,
    pub(super) own: usize,
    pub(super) _slots: Leaked<Slot>,
    pub(super) _bytes: Leaked<u64>,
}

/// What was under way at some moment.
#[derive(Debug)]
pub struct UnderWay {
    posted: Posted,
    round: u64,
    far: Vec<u64>,
}

/// Says what became of an operation, if its context still stands.
pub(super) fn end(contexts: &mut [Context], pending: &Pending, outcome: Result<(), Syndrome>) {
    let of = |context: &&mut Context| context.number() == pending.context;
    if let Some(context) = contexts.iter_mut().find(of) {
        context.executor().complete(&pending.operation, outcome);
    }
}

impl State {
    /// One pass over all queues; see [`super::Comm::pass`].
    pub(super) fn pass(&mut self, entered: &Entered<'_>, now_ns: u64) -> bool {
        let mut busy = self.hosts.as_mut().is_some_and(Hosts::progress);
        self.flow.pass(entered, now_ns);
        while let Some((pending, outcome)) = self.ended() {
            busy = true;
            end(&mut self.contexts, &pending, outcome);
        }
        let State { adds, keys, regions, own, .. } = self;
        busy |= adds.serve(entered, |request| own_word(keys, regions, *own, request));
        for at in 0..self.contexts.len() {
            for lane in 0..self.contexts[at].executor().lanes().len() {
                busy |= self.pass_lane(entered, at, lane, now_ns);
            }
        }
        self.flow.mark(entered);
        busy
    }

    /// The next operation that has ended, on whatever way.
    fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        let State { hosts, flow, adds, .. } = self;
        let far = || hosts.as_mut().and_then(Hosts::ended);
        flow.ended().or_else(|| adds.ended()).or_else(far)
    }

    fn pass_lane(&mut self, entered: &Entered<'_>, at: usize, lane: usize, now_ns: u64) -> bool {
        let rank = self.contexts[at].executor().lanes()[lane].rank;
        for count in 0..PASS_ENTRIES {
            let has_room = self.hosts.as_ref().is_none_or(|hosts| hosts.has_room(rank));
            if self.flow.is_held(rank) || !has_room {
                return count > 0;
            }
            match self.contexts[at].executor().step(lane, &self.keys, now_ns) {
                Step::Idle | Step::Blocked | Step::Failed => return count > 0,
                Step::Ended => {}
                Step::Operation(operation) => self.begin(entered, at, operation),
            }
        }
        true
    }

    /// Starts an operation: an add has ended with this, a copy ends with its marker.
    fn begin(&mut self, entered: &Entered<'_>, at: usize, operation: Operation) {
        let pending = Pending { context: self.contexts[at].number(), operation };
        if let Some(rank) = self.far_rank(&operation.action) {
            return match self.works(at, &operation) {
                Ok(works) => self.hosts.iter_mut().for_each(|it| it.begin(rank, works, pending)),
                Err(syndrome) => end(&mut self.contexts, &pending, Err(syndrome)),
            };
        }
        let road = match operation.action {
            Action::Add { word, value, .. } => match self.add(word, value, pending) {
                Some(outcome) => return end(&mut self.contexts, &pending, outcome),
                None => return,
            },
            Action::Write { to, .. } | Action::WriteInline { to, .. } => to.rank,
            Action::Read { from, .. } => from.rank,
        };
        match self.post(entered, at, &operation) {
            Ok(()) => self.flow.note(entered, usize::from(road), pending),
            Err(syndrome) => end(&mut self.contexts, &pending, Err(syndrome)),
        }
    }

    fn post(
        &mut self,
        entered: &Entered<'_>,
        at: usize,
        operation: &Operation,
    ) -> Result<(), Syndrome> {
        match operation.action {
            Action::Add { .. } => Ok(()),
            Action::Write { to, from } => {
                let mut start = self.address(to)?;
                for local in from.iter().flatten() {
                    let from = self.address(local.at)?;
                    self.copy(entered, to.rank, start, from, local);
                    start += local.bytes;
                }
                Ok(())
            }
            Action::Read { from, to } => {
                let mut start = self.address(from)?;
                for local in to.iter().flatten() {
                    let to = self.address(local.at)?;
                    self.copy(entered, from.rank, to, start, local);
                    start += local.bytes;
                }
                Ok(())
            }
            Action::WriteInline { to, data, bytes } => {
                let kept = self.contexts[at].inline(operation);
                let (rank, start) = (usize::from(to.rank), self.address(to)?);
                let value = &data[..usize::from(bytes)];
                // SAFETY: a registered region in bounds (`Keys::place`), which stays until copies
                // have ended (`Comm::deregister`); the place of an entry in flight is its own.
                let posted = unsafe { self.flow.write(entered, rank, start, value, kept) };
                posted.map_err(refused)
            }
        }
    }

    fn copy(&mut self, entered: &Entered<'_>, rank: u16, to: u64, from: u64, local: &Local) {
        let (rank, bytes) = (usize::from(rank), local.bytes as usize);
        // SAFETY: registered regions in bounds (`Keys::place`), which stay until copies have ended
        // (`Comm::deregister`).
        unsafe { self.flow.copy(entered, rank, to, from, bytes) };
    }

    /// Where a place of device memory lies.
    fn address(&self, place: Place) -> Result<u64, Syndrome> {
        match &self.regions[usize::from(place.region)] {
            Some(Region { reach: Reach::Device(addresses), .. }) => {
                Ok(addresses[usize::from(place.rank)].0 + place.offset)
            }
            Some(_) | None => Err(Syndrome::RemoteOperation),
        }
    }

    /// Adds to a word that the ranks share, or asks the owner of a word of a window; `None`: the
    /// outcome comes later.
    fn add(&mut self, place: Place, value: u64, pending: Pending) -> Option<Result<(), Syndrome>> {
        let rank = usize::from(place.rank);
        let table = match self.regions[usize::from(place.region)].as_ref().map(|r| &r.reach) {
            Some(Reach::Words(tables)) => tables[rank].as_ref(),
            Some(Reach::Device(parts)) => {
                let request = Request { key: parts[rank].1, offset: place.offset, value };
                self.adds.ask(rank, pending, request);
                return None;
            }
            Some(Reach::Sink) | None => None,
        };
        let Some(table) = table else { return Some(Err(Syndrome::RemoteOperation)) };
        // SAFETY: in bounds of the table (`Keys::place`, whose sizes are the tables'), aligned
        // (`Executor`), and only touched as an atomic.
        let word = unsafe { &*table.start().add(place.offset as usize).cast::<AtomicU64>() };
        // pairs with the system-scope acquire of the GPU that waits; what it covers has ended
        word.fetch_add(value, Ordering::Release);
        Some(Ok(()))
    }

    /// The rank whose endpoint does an action. Words of windows are added to by one thread alone:
    /// where some ranks are of other hosts, by the owner's endpoint for all.
    fn far_rank(&self, action: &Action) -> Option<usize> {
        let hosts = self.hosts.as_ref()?;
        let (place, is_of_all) = match action {
            Action::Write { to, .. } | Action::WriteInline { to, .. } => (to, false),
            Action::Read { from, .. } => (from, false),
            Action::Add { word, .. } => (word, word.kind == Kind::Window),
        };
        let rank = usize::from(place.rank);
        (is_of_all || hosts.is_far(rank)).then_some(rank)
    }

    /// What an operation with a rank of another host is made of.
    fn works(&self, at: usize, operation: &Operation) -> Result<Works, Syndrome> {
        match operation.action {
            Action::Add { word, value, .. } => {
                let (window, offset) = (self.window(word)?, word.offset);
                let after = Before::Known(After::All);
                Ok([Some(Work::Add { window, offset, value, after }), None])
            }
            Action::Write { to, from } => {
                let (window, mut offset) = (self.window(to)?, to.offset);
                self.parts(&from, |local| {
                    let work = Work::Put { window, offset, local };
                    offset += local.length;
                    work
                })
            }
            Action::Read { from, to } => {
                let (window, mut offset) = (self.window(from)?, from.offset);
                self.parts(&to, |local| {
                    let work = Work::Get { window, offset, local };
                    offset += local.length;
                    work
                })
            }
            Action::WriteInline { to, data, bytes } => {
                let (window, offset) = (self.window(to)?, to.offset);
                let kept = self.contexts[at].inline(operation);
                let (address, length) = (kept.expose_provenance() as u64, u64::from(bytes));
                // SAFETY: room for an inline value, which is the entry's until it has ended.
                let span = unsafe { Span::new(address, length) };
                span.write(&data[..usize::from(bytes)]);
                let region = self.contexts[at].far().ok_or(Syndrome::LocalProtection)?.region;
                let local = window::Local { region, address, length, bytes: span };
                Ok([Some(Work::Put { window, offset, local }), None])
            }
        }
    }

    /// The works of local stretches, one behind the other.
    fn parts(
        &self,
        locals: &[Option<Local>; 2],
        mut work: impl FnMut(window::Local) -> Work,
    ) -> Result<Works, Syndrome> {
        let mut works = [None; 2];
        for (to, local) in works.iter_mut().zip(locals.iter().flatten()) {
            let (address, length) = (self.address(local.at)?, local.bytes);
            let region = self.far(local.at).ok_or(Syndrome::LocalProtection)?.region;
            // SAFETY: memory of a GPU, where the span is not looked at (`window::Local`); in bounds
            // of a region (`Keys::place`), which stays until the operation has ended
            // (`Comm::deregister`).
            let bytes = unsafe { Span::new(address, length) };
            *to = Some(work(window::Local { region, address, length, bytes }));
        }
        Ok(works)
    }

    fn far(&self, place: Place) -> Option<Far> {
        self.regions[usize::from(place.region)].as_ref()?.far
    }

    /// The window that a place of another rank lies in.
    fn window(&self, place: Place) -> Result<Handle, Syndrome> {
        self.far(place).and_then(|far| far.window).ok_or(Syndrome::RemoteOperation)
    }

    /// Tells the other ranks of a queue that has failed here, or hears which of them has told so
    /// first.
    pub(super) fn look_for_failures(&mut self) -> Option<usize> {
        if self.told.is_some() {
            return None;
        }
        if self.contexts.iter().any(Context::has_failed_alone) {
            self.told = Some(self.own);
            self.adds.tell_failure();
            self.hosts.iter_mut().for_each(Hosts::tell_failure);
            return None;
        }
        let far = || self.hosts.as_ref().and_then(Hosts::told_failure);
        self.told = self.adds.told_failure().or_else(far);
        self.told
    }

    /// By rank of another host, operations with it that have not ended.
    pub(super) fn beyond(&self) -> Vec<Option<u64>> {
        let of = |rank| {
            let hosts = self.hosts.as_ref().filter(|hosts| hosts.is_far(rank))?;
            Some(hosts.under_way(rank))
        };
        (0..self.lost.len()).map(of).collect()
    }

    /// What is under way now.
    pub(super) fn under_way(&self) -> UnderWay {
        let far = self.hosts.as_ref().map_or_else(Vec::new, Hosts::begun);
        UnderWay { posted: self.flow.posted(), round: self.adds.due(), far }
    }

    /// Whether all of that has ended, so that nothing of it touches memory any more.
    pub(super) fn has_ended(&self, under_way: &mut UnderWay) -> bool {
        self.flow.has_ended(&mut under_way.posted)
            && self.adds.has_reached(under_way.round)
            && self.hosts.as_ref().is_none_or(|hosts| hosts.has_ended(&under_way.far))
    }
}

/// Where the own word lies that a peer asks to add to.
fn own_word(
    keys: &Keys<'_>,
    regions: &[Option<Region>],
    own: usize,
    request: &Request,
) -> Result<u64, Syndrome> {
    let at = Address { key: request.key, offset: request.offset };
    let place = keys.place(at, 8, own, Syndrome::RemoteAccess)?;
    match &regions[usize::from(place.region)] {
        Some(Region { reach: Reach::Device(parts), .. }) => {
            let word = parts[own].0 + place.offset;
            word.is_multiple_of(8).then_some(word).ok_or(Syndrome::RemoteAccess)
        }
        Some(_) | None => Err(Syndrome::RemoteAccess),
    }
}

fn refused(error: CudaError) -> Syndrome {
    tell(&GinEvent::CopyRefused(error));
    Syndrome::RemoteOperation
}
