//! What lies at which address: allocations, mappings, registered host memory.

use crate::backing::Backing;
use crate::codes::{Answer, Code, INVALID_VALUE};
use crate::context::{Context, contexts};
use crate::settings::DEVICES_MAX;
use crate::space::{Space, is_device};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

/// No access; or reads; or reads and writes: flags of the driver's.
pub const READ: u8 = 1;
/// Reads and writes.
pub const READ_WRITE: u8 = 3;

/// How a range came about.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// `cuMemAlloc`.
    Alloc,
    /// `cuMemAllocAsync`.
    Pool,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemMap`.
    Mapping,
    /// `cuIpcOpenMemHandle`, opened so often.
    Import(u32),
    /// `cuMemAllocHost`.
    Host,
    /// `cuMemHostRegister`.
    Registered,
}

/// What lies at a range of addresses.
#[derive(Clone)]
pub struct Range {
    pub start: u64,
    pub bytes: usize,
    pub kind: Kind,
    /// The context that it was made in; none for mappings and pools.
    pub context: Option<Context>,
    pub backing: Arc<Backing>,
    /// Which GPUs may do what, by their number in the host.
    pub access: [u8; DEVICES_MAX],
    /// Its number, which no other range ever has.
    pub id: u64,
}

/// Where a byte of a copy lies.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Place {
    /// On a GPU, by its number in the host.
    Device(usize),
    /// In host memory that the driver knows.
    Pinned,
    /// In other host memory.
    Pageable,
}

/// A part of a range, as a copy needs it.
#[derive(Clone)]
pub struct Piece {
    pub at: *mut u8,
    pub bytes: usize,
    pub place: Place,
    /// The range, which must still be there when the copy is done; none for pageable memory.
    pub id: Option<u64>,
    /// Keeps the bytes mapped; nothing reads it.
    #[allow(dead_code)]
    pub keeps: Option<Arc<Backing>>,
}

/// All ranges.
#[derive(Default)]
pub struct Ranges {
    pub space: Space,
    all: BTreeMap<u64, Range>,
    ids: HashSet<u64>,
    /// Address space that was reserved: start and length.
    pub reserved: BTreeMap<u64, usize>,
}

/// Held for reading while bytes move, and for writing while a range goes.
pub static MOVING: RwLock<()> = RwLock::new(());

/// All ranges, locked.
pub fn ranges() -> MutexGuard<'static, Ranges> {
    static ALL: OnceLock<Mutex<Ranges>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().expect("no panic while it is locked")
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Access of all GPUs.
pub fn all_may() -> [u8; DEVICES_MAX] {
    [READ_WRITE; DEVICES_MAX]
}

/// Takes a range away, once no byte of it moves.
pub fn remove(start: u64) -> Option<Range> {
    let _still = MOVING.write().expect("no panic while it is locked");
    ranges().take_out(start)
}

/// The same, and gives its addresses back.
pub fn free(start: u64) -> Option<Range> {
    let range = remove(start);
    ranges().space.give(start);
    range
}

/// Frees what a context has allocated, which ends.
pub fn free_of(handle: usize) {
    let is_its = |range: &&Range| {
        range.kind == Kind::Alloc && range.context.is_some_and(|context| context.handle == handle)
    };
    let its: Vec<u64> = ranges().iter().filter(is_its).map(|range| range.start).collect();
    its.into_iter().for_each(|start| drop(free(start)));
}

impl Ranges {
    /// Adds a range.
    pub fn add(
        &mut self,
        start: u64,
        kind: Kind,
        context: Option<Context>,
        backing: Arc<Backing>,
        access: [u8; DEVICES_MAX],
    ) {
        let (id, bytes) = (next_id(), backing.bytes());
        self.ids.insert(id);
        self.all.insert(start, Range { start, bytes, kind, context, backing, access, id });
    }

    fn take_out(&mut self, start: u64) -> Option<Range> {
        let range = self.all.remove(&start)?;
        self.ids.remove(&range.id);
        Some(range)
    }

    /// The range around an address.
    pub fn find(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.all.range(..=address).next_back()?;
        (address < range.start + range.bytes as u64).then_some(range)
    }

    /// The range that starts at an address.
    pub fn at(&mut self, start: u64) -> Option<&mut Range> {
        self.all.get_mut(&start)
    }

    /// Ranges that have a byte of these addresses.
    pub fn among(&self, start: u64, bytes: usize) -> Vec<Range> {
        let end = start.saturating_add(bytes as u64);
        let near = self.all.range(..end);
        near.map(|(_, range)| range)
            .filter(|range| range.start + range.bytes as u64 > start)
            .cloned()
            .collect()
    }

    /// All ranges.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.all.values()
    }

    /// The reservation around an address.
    pub fn reservation(&self, address: u64) -> Option<(u64, usize)> {
        let (start, bytes) = self.reserved.range(..=address).next_back()?;
        (address < start + *bytes as u64).then_some((*start, *bytes))
    }

    /// Whether a range is still there.
    pub fn lives(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    /// The pieces of `bytes` at an address, for a copy of `context`. `None`: the driver knows
    /// nothing of the address, which is then pageable host memory.
    ///
    /// Several mappings that follow each other in one reservation are one range to a copy.
    pub fn pieces(
        &self,
        address: u64,
        bytes: usize,
        context: Context,
        need: u8,
    ) -> Result<Option<Vec<Piece>>, Code> {
        let end = address.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        if address == 0 {
            return Err(INVALID_VALUE);
        }
        let Some(first) = self.find(address) else {
            return if is_device(address) { Err(INVALID_VALUE) } else { Ok(None) };
        };
        let mut pieces = Vec::new();
        let (mut at, mut range) = (address, first);
        loop {
            range.may(context, need)?;
            let left = (range.start + range.bytes as u64).min(end) - at;
            pieces.push(range.piece(at, left as usize));
            at += left;
            if at >= end {
                return Ok(Some(pieces));
            }
            let next = self.find(at).filter(|next| next.kind == Kind::Mapping);
            let same = self.reservation(at) == self.reservation(address);
            let joins = range.kind == Kind::Mapping && same;
            range = next.filter(|_| joins).ok_or(INVALID_VALUE)?;
        }
    }
}

impl Range {
    /// Whether a GPU may do that with it. Memory of `cuMemAlloc` on another GPU is reached by
    /// copies also without peer access, as the driver does it.
    fn may(&self, context: Context, need: u8) -> Answer {
        if self.access[context.device] & need == need { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Where its bytes lie.
    pub fn place(&self) -> Place {
        match (self.kind, self.backing.device()) {
            (Kind::Managed, _) | (_, None) => Place::Pinned,
            (_, Some(device)) => Place::Device(device),
        }
    }

    fn piece(&self, address: u64, bytes: usize) -> Piece {
        let offset = (address - self.start) as usize;
        // SAFETY: inside the view, which is as long as the range.
        let at = unsafe { self.backing.view().add(offset) };
        let keeps = Some(self.backing.clone());
        Piece { at, bytes, place: self.place(), id: Some(self.id), keeps }
    }

    /// Whether another context can map it by a legacy handle.
    pub fn is_legacy(&self) -> bool {
        self.kind == Kind::Alloc
    }

    /// Whether a GPU of this process may reach another one's memory by its mapping.
    pub fn may_map(&self, device: usize) -> bool {
        self.backing.device().is_none_or(|owner| contexts().may_access(device, owner))
    }
}
