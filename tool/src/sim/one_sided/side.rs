//! One rank of a schedule: its group, its memory, and what it waits for.
#![forbid(unsafe_code)]

use super::carrier::{Link, Own};
use super::oracle::IDS;
use crate::sim::memory::{self, Arena};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::fabric::Domain;
use crosstie::transport::{DataMrs, RequestError};
use crosstie::window::{self, Group, Ticket};
use std::collections::VecDeque;
use std::ops::Range;

/// Windows of a rank at a time.
pub const WINDOWS: usize = 3;
pub const GUARD_BYTES: usize = 64;
/// Operations that an add may need.
const LAST: usize = 8;
/// Room for two aligned words behind the bytes of a window.
const WORDS_BYTES: usize = 24;

/// How much memory a rank of a schedule has.
#[derive(Copy, Clone, Debug)]
pub struct Shape {
    pub window_bytes_max: usize,
    pub buffer_bytes_max: usize,
    pub buffers: usize,
}

impl Shape {
    /// Every eighth schedule has long windows.
    pub fn of(seed: u64) -> Shape {
        match seed % 8 {
            3 => Shape { window_bytes_max: 300 << 10, buffer_bytes_max: 200 << 10, buffers: 6 },
            _ => Shape { window_bytes_max: 12 << 10, buffer_bytes_max: 6 << 10, buffers: 20 },
        }
    }

    fn frames() -> Range<usize> {
        0..LIMITS.frames_bytes()
    }

    /// The place of a window, with its guards.
    pub fn window(self, place: usize) -> Range<usize> {
        let each = self.window_bytes_max + WORDS_BYTES + 2 * GUARD_BYTES;
        let start = Shape::frames().end + place * each;
        start..start + each
    }

    fn buffers_all(self) -> Range<usize> {
        let start = self.window(WINDOWS).start;
        start..start + self.buffers * (self.buffer_bytes_max + GUARD_BYTES)
    }

    /// A buffer with the guard behind it.
    pub fn buffer(self, at: usize) -> Range<usize> {
        let each = self.buffer_bytes_max + GUARD_BYTES;
        let start = self.buffers_all().start + at * each;
        start..start + each
    }
}

/// The capacities of the groups.
pub const LIMITS: window::Limits = window::Limits {
    ranks: 2,
    windows_max: WINDOWS as u32,
    signals_max: IDS as u32,
    counters_max: IDS as u32,
    barriers_max: IDS as u32,
};

/// What a rank waits for.
#[derive(Copy, Clone, Debug)]
pub struct Pending {
    pub to: usize,
    pub window: usize,
    pub ticket: Ticket,
    /// A buffer of so many bytes.
    pub buffer: Option<(usize, usize)>,
    /// Its name at the oracle, of a get.
    pub get: Option<u64>,
    /// The counter and value that are added when it is done.
    pub counter: Option<(usize, u64)>,
    /// Its number, if it is a signal.
    pub signal: Option<u64>,
}

/// One rank, without its endpoint.
pub struct Side<'m> {
    pub group: Group<'m, Link>,
    pub own: Own,
    pub arena: Arena,
    frames: Handle,
    pub window_regions: [Handle; WINDOWS],
    pub buffers_region: Handle,
    pub buffers: Vec<usize>,
    /// By number of their exchange; `None`: not yet, or no more.
    pub windows: Vec<Option<Handle>>,
    /// Which places of windows are taken.
    pub places: [Option<usize>; WINDOWS],
    pub pending: Vec<Pending>,
    /// By rank, the last puts and signals, with their numbers at the oracle.
    pub last: [VecDeque<(Ticket, u64)>; 2],
    pub flushing: [bool; 2],
    /// Counters of signals that may have been refused: window, number and value.
    pub dropped: Vec<(usize, usize, u64)>,
    /// Barriers that it has come to.
    pub waiting: Vec<(usize, usize)>,
    pub holds: bool,
    /// The other rank.
    pub other: usize,
    /// Why its connections to the other have failed.
    pub failure: Option<RequestError>,
}

impl<'m> Side<'m> {
    pub fn open(
        domain: &impl Domain,
        table: &DataMrs<'m>,
        (block, rank): (&'m mut HeapBlock, u32),
        shape: Shape,
    ) -> Result<Side<'m>, String> {
        let mut arena = Arena::new(shape.buffers_all().end);
        let mut region = |part: Range<usize>| {
            let region = arena.region(&part);
            let key = memory::register(domain, region).map_err(|error| format!("{error:?}"))?;
            memory::enter(table, region, key).ok_or("regions".to_string())
        };
        let frames = region(Shape::frames())?;
        let mut window_regions = [Handle::default(); WINDOWS];
        for (place, handle) in window_regions.iter_mut().enumerate() {
            *handle = region(shape.window(place))?;
        }
        let buffers_region = region(shape.buffers_all())?;
        let span = arena.span(&Shape::frames());
        let links = |other| Link::all(other == rank);
        let group = Group::open(&mut block.carver(), LIMITS, rank, (span, frames), links);
        Ok(Side {
            group: group.map_err(|_| "group block")?,
            own: Own::default(),
            arena,
            frames,
            window_regions,
            buffers_region,
            buffers: (0..shape.buffers).collect(),
            windows: Vec::new(),
            places: [None; WINDOWS],
            pending: Vec::new(),
            last: Default::default(),
            flushing: [false; 2],
            dropped: Vec::new(),
            waiting: Vec::new(),
            holds: false,
            other: 1 - rank as usize,
            failure: None,
        })
    }

    /// A put or signal to a rank was issued.
    pub fn keep_last(&mut self, to: usize, ticket: Ticket, number: u64) {
        if self.last[to].len() == LAST {
            self.last[to].pop_front();
        }
        self.last[to].push_back((ticket, number));
    }

    /// Its registered regions.
    pub fn regions(&self) -> impl Iterator<Item = Handle> {
        let windows = self.window_regions;
        [self.frames, self.buffers_region].into_iter().chain(windows)
    }
}
