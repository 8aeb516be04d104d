//! The acceptance table of one-sided operations: each row runs on each rail, as a column of it.
//! A cell says that the row ran, or why the rail refuses it; both are expected, or the test fails.

use super::super::host_support::{Watch, small};
use super::{IDS, Memory, Rank, Table, adds, moves, pattern, rules, words};
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Span};
use crosstie::fabric::MemoryKind;
use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::group::WaitError;
use crosstie::host::{DeviceKind, Options};
use crosstie::memory::Variables;
use crosstie::window::{Limits, Put, Ticket, WindowError};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a row did on a rail.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Outcome {
    Ran,
    /// The rail does not have it, and says why.
    Refused(&'static str),
}

/// One row: every rank runs it.
pub struct Row {
    pub name: &'static str,
    pub run: fn(&mut Actor) -> Outcome,
}

const fn row(name: &'static str, run: fn(&mut Actor) -> Outcome) -> Row {
    Row { name, run }
}

pub const ROWS: &[Row] = &[
    row("put", moves::put),
    row("put ticket, wait_local", moves::ticket),
    row("get", moves::get),
    row("put_signal", moves::put_signal),
    row("two-lane puts, then signal", moves::flush_then_signal),
    row("signal_with_fence", moves::fence_then_signal),
    row("put_signal_counter", moves::put_signal_counter),
    row("flush, fence, two flushers", moves::two_flushers),
    row("signal", words::signal),
    row("signal_counter", words::signal_counter),
    row("counter of the NIC", words::nic_counter),
    row("sink region", words::sink),
    row("wait_signal", words::wait_signal),
    row("wait_counter", words::wait_counter),
    row("timeout, abort", words::timeout_and_abort),
    row("read_signal, read_counter", words::read),
    row("reset, five replays", words::reset),
    row("reset while adds are in flight", words::reset_in_flight),
    row("shared slot", words::shared_slot),
    row("per peer and aggregate", words::per_peer),
    row("barriers 0, 1, 0, repeated", words::barriers),
    row("adds to words of windows", adds::at_once),
    row("puts, then a fenced add", adds::behind_puts),
    row("more operations than room", adds::jobs),
    row("adds that are refused", adds::refused),
    row("bounds", rules::bounds),
    row("window exchange", rules::exchange),
    row("put into read-only memory", rules::read_only),
    row("address reuse after free", rules::reuse),
    row("destroy in any order", rules::destroy),
    row("the same results everywhere", rules::identical),
];

/// Rows that are refused, and why, on every rail without companions.
const REFUSED: &[(&str, &str)] =
    &[("counter of the NIC", words::NO_COMPANION), ("sink region", words::NO_COMPANION)];

/// How memory of a GPU is had, on the thread of a rank.
#[derive(Copy, Clone)]
pub struct DeviceCalls {
    /// Makes the GPU of a rank the thread's.
    pub enter: fn(u32),
    pub allocate: fn(usize) -> u64,
    pub free: fn(u64),
    pub write: fn(u64, &[u8]),
    pub read: fn(u64, usize) -> Vec<u8>,
}

/// Where windows and buffers lie.
#[derive(Copy, Clone)]
pub enum Place {
    /// In the endpoint's heap, which peers map.
    Shared,
    /// In ordinary memory.
    Private,
    Device(DeviceCalls),
}

/// One column.
pub struct Rail {
    pub name: &'static str,
    pub ranks: u32,
    pub options: Options,
    /// Settings of all ranks.
    pub settings: Vec<(&'static str, String)>,
    /// Settings of one rank beside them.
    pub settings_of: fn(u32) -> Vec<(&'static str, String)>,
    pub place: Place,
    /// The longest put.
    pub bytes_max: usize,
    /// What carries the connections between ranks, where that is to be waited for.
    pub carrier: Option<ConnectionRail>,
}

impl Rail {
    pub fn new(name: &'static str, device: DeviceKind, ranks: u32) -> Rail {
        let options = Options { device, ..small(32) };
        Rail {
            name,
            ranks,
            options,
            settings: Vec::new(),
            settings_of: |_| Vec::new(),
            place: Place::Shared,
            bytes_max: 16 << 20,
            carrier: None,
        }
    }

    fn options_of(&self, rank: u32) -> Options {
        let more = (self.settings_of)(rank);
        let settings = self.settings.iter().chain(&more);
        let variables: Variables = Variables::of_process()
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .filter(|(name, _)| !settings.clone().any(|(it, _)| name == it))
            .chain(settings.clone().map(|(name, value)| (OsString::from(name), value.into())))
            .collect();
        // a test opens few endpoints
        Options { variables: Some(Box::leak(Box::new(variables))), ..self.options }
    }
}

/// What the ranks of a column share, as threads of one process.
#[derive(Default)]
pub struct Common {
    arrived: AtomicU64,
    gone: AtomicBool,
    /// For rows that count by other means than the group's.
    pub count: AtomicU64,
}

/// A rank in a column.
pub struct Actor<'a> {
    pub rank: &'a mut Rank,
    pub rail: &'a Rail,
    pub common: &'a Common,
    rounds: u64,
}

/// Registered memory of a rank.
#[derive(Copy, Clone)]
pub struct Piece {
    pub memory: Memory,
    place: Place,
}

/// An exchanged window and its memory.
pub struct Window {
    pub handle: Handle,
    pub piece: Piece,
}

/// The bytes of a pattern from byte `from` on.
pub fn patterns(seed: u64, from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|at| pattern(seed, at)).collect()
}

impl Piece {
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.memory.bytes);
        match self.place {
            // SAFETY: inside the memory, which no request uses now.
            Place::Shared | Place::Private => unsafe {
                self.memory.start.add(at).copy_from(bytes.as_ptr(), bytes.len());
            },
            Place::Device(calls) => (calls.write)(self.memory.address() + at as u64, bytes),
        }
    }

    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.memory.bytes);
        match self.place {
            Place::Shared | Place::Private => {
                let mut read = vec![0; bytes];
                // SAFETY: inside the memory, and into a buffer of the same length.
                unsafe { self.memory.start.add(at).copy_to(read.as_mut_ptr(), bytes) };
                read
            }
            Place::Device(calls) => (calls.read)(self.memory.address() + at as u64, bytes),
        }
    }

    /// Writes a pattern: byte n of it goes to `at + n`.
    pub fn fill(&self, at: usize, bytes: usize, seed: u64) {
        self.write(at, &patterns(seed, 0, bytes));
    }

    /// Checks that bytes are those of a pattern from byte `from` on.
    pub fn check(&self, (at, bytes): (usize, usize), seed: u64, from: usize) {
        let (read, expected) = (self.read(at, bytes), patterns(seed, from, bytes));
        let differs = read.iter().zip(&expected).position(|(read, expected)| read != expected);
        let near = differs
            .map(|from| [&read, &expected].map(|all| all[from..bytes.min(from + 8)].to_vec()));
        assert_eq!(
            differs, None,
            "the first wrong byte of {bytes} at {at}; there, wanted {near:?}"
        );
    }
}

impl Actor<'_> {
    pub fn me(&self) -> u32 {
        self.rank.rank
    }

    pub fn ranks(&self) -> u32 {
        self.rank.ranks
    }

    /// The rank behind this one, and the one before it.
    pub fn next(&self) -> u32 {
        (self.me() + 1) % self.ranks()
    }

    pub fn before(&self) -> u32 {
        (self.me() + self.ranks() - 1) % self.ranks()
    }

    /// All ranks come here. This one makes progress meanwhile, or does not.
    pub fn together(&mut self, progresses: bool) {
        self.rounds += 1;
        let all = self.rounds * u64::from(self.ranks());
        self.common.arrived.fetch_add(1, Ordering::SeqCst);
        let watch = Watch::start();
        while self.common.arrived.load(Ordering::SeqCst) < all {
            assert!(!self.common.gone.load(Ordering::SeqCst), "another rank has failed");
            if progresses {
                self.rank.progress();
            }
            std::thread::yield_now();
            watch.look("the other ranks");
        }
    }

    /// Waits until both connections to each other rank are carried as they should be.
    fn await_carrier(&mut self) {
        let Some(carrier) = self.rail.carrier else { return };
        let wanted = 2 * (self.ranks() as usize - 1);
        let watch = Watch::start();
        loop {
            let node = &mut self.rank.node;
            let used: Vec<_> = (0..self.rail.options.limits.connections_max)
                .filter_map(|at| node.used_at(at))
                .collect();
            let rails: Vec<_> =
                used.into_iter().filter_map(|it| node.connection_rail(it)).collect();
            if rails.iter().filter(|rail| **rail == carrier).count() >= wanted {
                return;
            }
            self.rank.progress();
            watch.look("rails that are up");
        }
    }

    /// Rank 0 does something while the others make no progress.
    pub fn alone(&mut self, work: impl FnOnce(&mut Self)) {
        self.together(true);
        // no other is in a call of progress any more
        self.together(false);
        if self.me() == 0 {
            work(self);
        }
        self.together(false);
    }

    pub fn piece(&mut self, bytes: usize) -> Piece {
        let place = self.rail.place;
        let bytes = bytes.max(1);
        let memory = match place {
            Place::Shared => self.rank.memory(bytes),
            Place::Private => self.rank.private(Box::leak(vec![0; bytes].into_boxed_slice())),
            Place::Device(calls) => {
                let address = (calls.allocate)(bytes);
                let kind = MemoryKind::Cuda(0);
                let shared = &self.rank.node.shared;
                // SAFETY: it is freed after it was deregistered.
                let region = unsafe { shared.register(address, Bytes::of(bytes), kind) };
                let start = std::ptr::with_exposed_provenance_mut(address as usize);
                Memory { start, region: region.expect("a region"), bytes }
            }
        };
        Piece { memory, place }
    }

    pub fn piece_free(&mut self, piece: Piece) {
        let shared = &self.rank.node.shared;
        let region = piece.memory.region;
        match piece.place {
            Place::Shared => shared.free(region).expect("no request stands"),
            Place::Private => shared.deregister(region).expect("no request stands"),
            Place::Device(calls) => {
                shared.deregister(region).expect("no request stands");
                (calls.free)(piece.memory.address());
            }
        }
    }

    /// A window of so many bytes, exchanged.
    pub fn window(&mut self, bytes: usize) -> Window {
        let piece = self.piece(bytes);
        let registered = self.rank.try_register(piece.memory, bytes as u64, false);
        let handle = registered.expect("a window");
        self.rank.exchange(handle).expect("an exchange");
        Window { handle, piece }
    }

    /// Ends a window once no rank uses it.
    pub fn window_end(&mut self, window: Window) {
        self.barrier(&window);
        self.free(window.handle);
        self.together(true);
        self.piece_free(window.piece);
    }

    pub fn free(&mut self, window: Handle) {
        let watch = Watch::start();
        while let Err(error) = self.rank.group().free(window) {
            assert_eq!(error, WindowError::Again);
            self.rank.progress();
            watch.look("a window that is free");
        }
    }

    /// Waits for all ranks, with a barrier that no row uses.
    pub fn barrier(&mut self, window: &Window) {
        self.rank.barrier(window.handle, IDS as u16 - 1).expect("all ranks");
    }

    pub fn put(&mut self, put: &Put, piece: &Piece, at: usize, bytes: usize) -> Ticket {
        self.rank.put(put, piece.memory, at, bytes).expect("a put")
    }

    pub fn signal(&mut self, window: &Window, rank: u32, signal: (u16, u64)) {
        self.rank.signal((window.handle, rank), signal, false, None).expect("a signal");
    }

    /// A signal of this rank.
    pub fn read(&mut self, window: &Window, id: u16) -> u64 {
        self.rank.group().inner().signal_read(window.handle, id).expect("a signal")
    }
}

/// A put that does nothing beside.
pub fn plain(window: &Window, rank: u32, offset: u64) -> Put {
    Put { window: window.handle, rank, offset, signal: None, counter: None }
}

/// A moment that is over at once.
pub const MOMENT: Span = Span::millis(2);

pub fn is_timeout(result: Result<(), WaitError>) -> bool {
    matches!(result, Err(WaitError::Timeout(_)))
}

fn limits_of(ranks: u32) -> Limits {
    super::limits(ranks)
}

/// Whether a row runs: `XTIE_ROW` chooses some by a part of their names.
fn is_chosen(row: &Row) -> bool {
    std::env::var("XTIE_ROW").map_or(true, |part| row.name.contains(&part))
}

/// Runs all rows on a rail.
fn column(rail: &Rail) -> Vec<Option<Outcome>> {
    let (table, common) = (Table::new(rail.ranks as usize), Common::default());
    let ranks = 0..rail.ranks;
    std::thread::scope(|scope| {
        let run = |number| (&table, &common, number);
        let threads: Vec<_> = ranks
            .map(run)
            .map(|(table, common, number)| {
                scope.spawn(move || {
                    struct Gone<'a>(&'a Common);
                    impl Drop for Gone<'_> {
                        fn drop(&mut self) {
                            let panics = std::thread::panicking();
                            self.0.gone.fetch_or(panics, Ordering::SeqCst);
                        }
                    }
                    let _gone = Gone(common);
                    member(rail, table, common, number)
                })
            })
            .collect();
        let columns: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let mut columns = columns.into_iter().map(|column| match column {
            Ok(column) => column,
            Err(cause) => std::panic::resume_unwind(cause),
        });
        let first = columns.next().expect("a rank");
        assert!(columns.all(|column| column == first), "{}: ranks differ", rail.name);
        first
    })
}

fn member(
    rail: &Rail,
    table: &std::sync::Arc<Table>,
    common: &Common,
    number: u32,
) -> Vec<Option<Outcome>> {
    if let Place::Device(calls) = rail.place {
        (calls.enter)(number);
    }
    let options = rail.options_of(number);
    let (limits, timeout) = (limits_of(rail.ranks), Span::millis(30_000));
    let opened = Rank::try_open(&options, table, number as usize, limits, timeout);
    let mut rank = opened.expect("a group");
    let mut actor = Actor { rank: &mut rank, rail, common, rounds: 0 };
    actor.await_carrier();
    actor.together(true);
    let outcomes = ROWS
        .iter()
        .map(|row| {
            if !is_chosen(row) {
                return None;
            }
            if number == 0 {
                println!("{}: {}", rail.name, row.name);
            }
            let outcome = (row.run)(&mut actor);
            actor.together(true);
            Some(outcome)
        })
        .collect();
    rank.close();
    outcomes
}

/// Fills the columns of some rails, prints the table, and checks each cell.
pub fn fill(rails: &[Rail]) {
    let columns: Vec<_> = rails.iter().map(column).collect();
    let width = ROWS.iter().map(|row| row.name.len()).max().unwrap_or_default();
    for (at, row) in ROWS.iter().enumerate() {
        for (rail, column) in rails.iter().zip(&columns) {
            let (name, on) = (row.name, rail.name);
            match column[at] {
                Some(Outcome::Ran) => println!("{name:width$} | {on:16} | RAN"),
                Some(Outcome::Refused(why)) => println!("{name:width$} | {on:16} | REFUSED: {why}"),
                None => println!("{name:width$} | {on:16} |"),
            }
        }
    }
    for (at, row) in ROWS.iter().enumerate().filter(|(_, row)| is_chosen(row)) {
        let refused = REFUSED.iter().find(|(name, _)| *name == row.name);
        for (rail, column) in rails.iter().zip(&columns) {
            let refused = refused.filter(|_| !rail.options.companions);
            let expected = refused.map_or(Outcome::Ran, |(_, why)| Outcome::Refused(why));
            assert_eq!(column[at], Some(expected), "{} on {}", row.name, rail.name);
        }
    }
}
