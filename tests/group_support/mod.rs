//! Ranks of a group as threads of a test, each with an endpoint of its own.
#![allow(dead_code)]

pub mod adds;
pub mod liar;
pub mod moves;
pub mod rules;
pub mod suite;
pub mod words;

use super::host_support::Node;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Span};
use crosstie::fabric::MemoryKind;
use crosstie::host::Options;
use crosstie::host::group::{
    Bootstrap, BootstrapError, Group, GroupError, GroupOptions, WaitError,
};
use crosstie::window::{Comparison, Limits, Put, Ticket, WindowError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The signals, counters and barriers of each window of a test.
pub const IDS: u32 = 4;

/// What the ranks of a test give each other, in one process.
pub struct Table {
    state: Mutex<Gathered>,
    changed: Condvar,
    ranks: usize,
}

#[derive(Default)]
struct Gathered {
    /// The round that fills, what each rank has given to it, and what all gave to the one before.
    round: usize,
    given: Vec<Option<Vec<u8>>>,
    last: Vec<u8>,
    gone: bool,
}

impl Table {
    pub fn new(ranks: usize) -> Arc<Table> {
        let given = vec![None; ranks];
        let state = Mutex::new(Gathered { given, ..Gathered::default() });
        Arc::new(Table { state, changed: Condvar::new(), ranks })
    }

    /// Tells all that a rank is gone.
    pub fn end(&self) {
        self.state.lock().unwrap_or_else(|error| error.into_inner()).gone = true;
        self.changed.notify_all();
    }
}

/// One rank's end of a [`Table`].
pub struct Member {
    pub table: Arc<Table>,
    pub rank: usize,
    /// How long it waits for the others.
    pub patience: Duration,
}

impl Bootstrap for Member {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        let mut state = self.table.state.lock().unwrap();
        let round = state.round;
        state.given[self.rank] = Some(mine.to_vec());
        if state.given.iter().all(Option::is_some) {
            state.last = state.given.iter_mut().flat_map(|one| one.take().unwrap()).collect();
            state.round += 1;
            self.table.changed.notify_all();
        }
        while state.round == round && !state.gone {
            let (next, late) = self.table.changed.wait_timeout(state, self.patience).unwrap();
            state = next;
            if late.timed_out() && state.round == round {
                return Err(BootstrapError(110));
            }
        }
        if state.round == round {
            return Err(BootstrapError(1));
        }
        all.copy_from_slice(&state.last);
        Ok(())
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        if self.table.state.lock().unwrap().gone { Err(BootstrapError(1)) } else { Ok(()) }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.table.end();
        }
    }
}

/// The limits of a test's group.
pub fn limits(ranks: u32) -> Limits {
    Limits { ranks, windows_max: 4, signals_max: IDS, counters_max: IDS, barriers_max: IDS }
}

/// One rank: its endpoint, its group, and memory with a name for each piece.
pub struct Rank {
    pub group: Option<Group>,
    pub node: Node,
    pub rank: u32,
    pub ranks: u32,
    pub member: Member,
    block: HeapBlock,
}

impl Rank {
    pub fn try_open(
        options: &Options,
        table: &Arc<Table>,
        rank: usize,
        limits: Limits,
        timeout: Span,
    ) -> Result<Rank, GroupError> {
        let patience = Duration::from_nanos(timeout.0);
        let mut member = Member { table: Arc::clone(table), rank, patience };
        let other = Member { table: Arc::clone(table), rank, patience };
        Rank::open_by(options, other, &mut member, limits, timeout)
    }

    /// The same by another way to meet. `member`: for [`Rank::meet`].
    pub fn open_by(
        options: &Options,
        member: Member,
        bootstrap: &mut dyn Bootstrap,
        limits: Limits,
        timeout: Span,
    ) -> Result<Rank, GroupError> {
        let (mut node, rank) = (Node::open(options), member.rank);
        let options = GroupOptions { limits, rank: rank as u32, timeout };
        let mut block = HeapBlock::new(options.bytes());
        let place = (block.start(), block.length());
        // SAFETY: the rank keeps the block until its group is closed.
        let group = unsafe { Group::open(&mut node, place, &options, bootstrap) }?;
        let (rank, ranks) = (rank as u32, limits.ranks);
        Ok(Rank { group: Some(group), node, rank, ranks, member, block })
    }

    pub fn group(&mut self) -> &mut Group {
        self.group.as_mut().expect("open")
    }

    /// Allocates memory that peers of the host reach.
    pub fn memory(&mut self, bytes: usize) -> Memory {
        let (start, region) = self.node.shared.allocate(Bytes::of(bytes)).expect("memory");
        Memory { start, region, bytes }
    }

    /// Registers private memory.
    pub fn private(&mut self, memory: &'static mut [u8]) -> Memory {
        let (start, bytes) = (memory.as_mut_ptr(), memory.len());
        let address = start.expose_provenance() as u64;
        let shared = &self.node.shared;
        // SAFETY: the memory is never freed.
        let region = unsafe { shared.register(address, Bytes::of(bytes), MemoryKind::Host) };
        Memory { start, region: region.expect("a region"), bytes }
    }

    pub fn register(&mut self, memory: Memory) -> Handle {
        self.try_register(memory, memory.bytes as u64, false).expect("a window")
    }

    pub fn try_register(
        &mut self,
        memory: Memory,
        bytes: u64,
        is_read_only: bool,
    ) -> Result<Handle, WindowError> {
        let place = (memory.region, memory.address(), bytes);
        let (group, node) = (self.group.as_mut().expect("open"), &mut self.node);
        // SAFETY: the endpoint's memory lives as long as the endpoint, private memory for ever.
        unsafe { group.register(node, place, is_read_only) }
    }

    /// A window of so many bytes, exchanged.
    pub fn window(&mut self, bytes: usize) -> (Handle, Memory) {
        let memory = self.memory(bytes.max(1));
        let window = self.try_register(memory, bytes as u64, false).expect("a window");
        self.exchange(window).expect("an exchange");
        (window, memory)
    }

    pub fn exchange(&mut self, window: Handle) -> Result<(), WaitError> {
        self.group.as_mut().expect("open").exchange(&mut self.node, window, None)
    }

    /// Issues a put as soon as there is room.
    pub fn put(
        &mut self,
        put: &Put,
        memory: Memory,
        at: usize,
        bytes: usize,
    ) -> Result<Ticket, WindowError> {
        let place = (memory.region, memory.address() + at as u64, bytes as u64);
        loop {
            let (group, node) = (self.group.as_mut().expect("open"), &mut self.node);
            // SAFETY: tests write to what they put after the ticket has ended.
            match unsafe { group.put(node, put, place) } {
                Err(WindowError::Again) => _ = group.progress(node),
                other => return other,
            }
        }
    }

    pub fn get(
        &mut self,
        target: (Handle, u32),
        offset: u64,
        memory: Memory,
        bytes: usize,
    ) -> Result<Ticket, WindowError> {
        let place = (memory.region, memory.address(), bytes as u64);
        loop {
            let (group, node) = (self.group.as_mut().expect("open"), &mut self.node);
            // SAFETY: tests look at what they get after the ticket has ended.
            match unsafe { group.get(node, target, offset, place) } {
                Err(WindowError::Again) => _ = group.progress(node),
                other => return other,
            }
        }
    }

    pub fn signal(
        &mut self,
        target: (Handle, u32),
        signal: (u16, u64),
        fence: bool,
        counter: Option<(u16, u64)>,
    ) -> Result<Ticket, WindowError> {
        loop {
            let (group, node) = (self.group.as_mut().expect("open"), &mut self.node);
            match group.inner().signal(target, signal, fence, counter) {
                Err(WindowError::Again) => _ = group.progress(node),
                other => return other,
            }
        }
    }

    pub fn progress(&mut self) {
        let _ = self.group.as_mut().expect("open").progress(&mut self.node);
    }

    pub fn wait_local(&mut self, ticket: Ticket) -> Result<(), WaitError> {
        self.group.as_mut().expect("open").wait_local(&mut self.node, ticket, None)
    }

    pub fn flush(&mut self) -> Result<(), WaitError> {
        self.group.as_mut().expect("open").flush(&mut self.node, None, None)
    }

    pub fn wait_signal(
        &mut self,
        (window, id, from): (Handle, u16, Option<u32>),
        comparison: Comparison,
        value: u64,
        timeout: Option<Span>,
    ) -> Result<(), WaitError> {
        let (group, node) = (self.group.as_mut().expect("open"), &mut self.node);
        group.wait_signal(node, (window, id, from), (comparison, value), timeout)
    }

    pub fn wait_counter(
        &mut self,
        at: (Handle, u16),
        comparison: Comparison,
        value: u64,
        timeout: Option<Span>,
    ) -> Result<(), WaitError> {
        let (group, node) = (self.group.as_mut().expect("open"), &mut self.node);
        group.wait_counter(node, at, (comparison, value), timeout)
    }

    pub fn barrier(&mut self, window: Handle, id: u16) -> Result<(), WaitError> {
        self.group.as_mut().expect("open").barrier(&mut self.node, window, id, None)
    }

    /// All ranks come here: none is closed while another still needs it.
    pub fn meet(&mut self) {
        let mut all = vec![0; self.ranks as usize];
        self.member.gather(&[0], &mut all).expect("all ranks");
    }

    /// The same, with progress for the others until all have come.
    pub fn close(mut self) {
        self.meet();
        if let Some(group) = self.group.take() {
            assert!(group.close(&mut self.node), "a connection stays");
        }
        self.meet();
    }
}

/// Memory of a rank.
#[derive(Copy, Clone)]
pub struct Memory {
    pub start: *mut u8,
    pub region: Handle,
    pub bytes: usize,
}

impl Memory {
    pub fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub fn fill(&self, seed: u64) {
        for at in 0..self.bytes {
            // SAFETY: inside the memory, which no request uses now.
            unsafe { self.start.add(at).write_volatile(pattern(seed, at)) };
        }
    }

    pub fn read(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: inside the memory.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Checks `bytes` at `at` against the pattern of `seed`.
    pub fn check(&self, at: usize, bytes: usize, seed: u64) {
        for byte in 0..bytes {
            assert_eq!(self.read(at + byte), pattern(seed, byte), "byte {byte} of {bytes} at {at}");
        }
    }

    /// Checks that bytes are zero.
    pub fn check_zero(&self, at: usize, bytes: usize) {
        assert!((at..at + bytes).all(|at| self.read(at) == 0), "{bytes} at {at} were touched");
    }
}

/// Byte `at` of a pattern.
pub fn pattern(seed: u64, at: usize) -> u8 {
    let x =
        (at as u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x >> 56) as u8 | 1
}

/// Runs a program on all ranks of a group, and closes it.
pub fn run(options: &Options, ranks: u32, program: impl Fn(&mut Rank) + Sync) {
    let table = Table::new(ranks as usize);
    std::thread::scope(|scope| {
        for rank in 0..ranks as usize {
            let (table, program) = (&table, &program);
            scope.spawn(move || {
                let timeout = Span::millis(30_000);
                let opened = Rank::try_open(options, table, rank, limits(ranks), timeout);
                let mut rank = opened.expect("a group");
                program(&mut rank);
                rank.close();
            });
        }
    });
}
