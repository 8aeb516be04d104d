//! A conformance rig over any provider, and the loop over all entries.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;

use crosstie::base::carve::{Carver, heap::HeapBlock};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{Completion, LocalSpan, Op, OpId, OpKind, Provider};
use crosstie::provider::loopback::{Limits, Loopback};
use crosstie_kit::conformance::{ARENA_BYTES, ENTRY_COUNT, Outcome, PATIENCE, Rig, Side, entries};

/// How long anything may take before an entry says that it never comes.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(600);

/// Counts allocations per thread, for P4.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's; counting touches no memory of its.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: handed on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: handed on as it came.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Two joined peers: one provider that has both, or a provider each.
pub struct Pair<P> {
    pub providers: Vec<P>,
    pub peers: [PeerIndex; 2],
    /// Joins them again when they were closed, where that can be done.
    pub rejoin: Option<Rejoin<P>>,
}

/// Joins the peers of [`Pair::peers`] anew.
pub type Rejoin<P> = Box<dyn FnMut(&mut [P])>;

/// A rig over a pair that can be made again and again.
pub struct PairRig<P: 'static> {
    make: Rc<dyn Fn() -> Pair<P>>,
    pair: Pair<P>,
    arenas: [*mut u8; 2],
    /// Where the processor reaches them.
    views: [*mut u8; 2],
    now: Instant,
    /// Lets the world outside move on, where a rail depends on it. Then nothing repeats exactly.
    pause: Option<Pause<P>>,
    /// Whether what must come is waited for by the clock: the kernel or threads move bytes.
    is_outside: bool,
    /// What [`Rig::runs_max`] says.
    runs_max: u32,
    /// When the wait began that is under way.
    waits_since: std::time::Instant,
    /// What [`Rig::regions_max`] says.
    pub regions_max: Option<u32>,
    /// What [`Rig::tells_ends_first`] says.
    pub tells_ends_first: bool,
}

/// How time passes for a rail that depends on the world outside.
pub struct Pause<P> {
    /// Gives the world its time.
    pub wait: fn(&mut Pair<P>),
    /// Whether the rail has threads of its own.
    pub threads: bool,
}

impl<P> Clone for Pause<P> {
    fn clone(&self) -> Pause<P> {
        *self
    }
}

impl<P> Copy for Pause<P> {}

impl<P> PairRig<P> {
    pub fn new(make: Rc<dyn Fn() -> Pair<P>>) -> PairRig<P> {
        let arenas = [(); 2].map(|()| HeapBlock::leaked(ARENA_BYTES));
        PairRig {
            pair: make(),
            make,
            arenas,
            views: arenas,
            now: Instant(0),
            pause: None,
            is_outside: false,
            runs_max: 2,
            waits_since: std::time::Instant::now(),
            regions_max: None,
            tells_ends_first: false,
        }
    }

    /// The same over memory of the test's, each with where the processor reaches it; on a rail that
    /// depends on the world outside.
    pub fn on(
        make: Rc<dyn Fn() -> Pair<P>>,
        memory: [(*mut u8, *mut u8); 2],
        pause: Pause<P>,
    ) -> PairRig<P> {
        let (arenas, views) = (memory.map(|(arena, _)| arena), memory.map(|(_, view)| view));
        let (pause, is_outside) = (Some(pause), true);
        PairRig { arenas, views, pause, is_outside, ..PairRig::new(make) }
    }
}

impl<P: Provider> Rig for PairRig<P> {
    type Provider = P;

    fn provider(&mut self, side: Side) -> &mut P {
        let last = self.pair.providers.len() - 1;
        &mut self.pair.providers[last.min(side as usize)]
    }

    fn shared(&self) -> bool {
        self.pair.providers.len() == 1
    }

    fn peer(&self, side: Side) -> PeerIndex {
        self.pair.peers[side as usize]
    }

    fn arena(&mut self, side: Side) -> *mut u8 {
        self.arenas[side as usize]
    }

    fn view(&mut self, side: Side) -> *mut u8 {
        self.views[side as usize]
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn advance(&mut self) {
        // 64 of these are longer than the 500 ms that a rail waits for the side band to say why
        self.now = Instant(self.now.0 + 10_000_000);
        if let Some(pause) = self.pause {
            (pause.wait)(&mut self.pair);
        }
    }

    fn is_patient(&mut self, rounds: u32) -> bool {
        if rounds == 0 {
            self.waits_since = std::time::Instant::now();
        }
        if rounds < PATIENCE {
            return true;
        }
        std::thread::yield_now();
        self.is_outside && self.waits_since.elapsed() < WATCHDOG
    }

    fn regions_max(&self) -> Option<u32> {
        self.regions_max
    }

    fn tells_ends_first(&self) -> bool {
        self.tells_ends_first
    }

    fn runs_max(&self) -> u32 {
        self.runs_max
    }

    fn has_threads(&self) -> bool {
        self.pause.is_some_and(|pause| pause.threads)
    }

    fn renew(&mut self) -> bool {
        if self.pause.is_some() {
            return false;
        }
        self.pair = (self.make)();
        self.now = Instant(0);
        true
    }

    fn anew(&mut self) -> bool {
        self.pair = (self.make)();
        true
    }

    fn rejoin(&mut self) -> bool {
        let Pair { providers, rejoin, .. } = &mut self.pair;
        rejoin.as_mut().map(|rejoin| rejoin(providers)).is_some()
    }

    fn allocations(&self) -> Option<u64> {
        Some(ALLOCATIONS.with(Cell::get))
    }
}

/// Blocks that live as long as the test does.
pub trait Leaked {
    fn leaked(length: usize) -> *mut u8;
}

impl Leaked for HeapBlock {
    fn leaked(length: usize) -> *mut u8 {
        Box::leak(Box::new(HeapBlock::new(length))).start()
    }
}

pub fn carver(length: usize) -> Carver<'static> {
    Box::leak(Box::new(HeapBlock::new(length))).carver()
}

/// Runs every entry on a fresh rig. `skips` says how many the provider's caps exclude.
pub fn run_all<P: Provider + 'static>(make: impl Fn() -> Pair<P> + 'static, skips: usize) {
    run_entries(make, skips, None, 2);
}

/// The same on rigs whose bytes the kernel moves.
pub fn run_all_through_kernel<P: Provider + 'static>(
    make: impl Fn() -> Pair<P> + 'static,
    skips: usize,
) {
    run_entries(make, skips, None, 8);
}

/// The same on rigs that pause; the entry about repetition is skipped on them.
pub fn run_all_pausing<P: Provider + 'static>(
    make: impl Fn() -> Pair<P> + 'static,
    skips: usize,
    pause: Option<Pause<P>>,
) {
    run_entries(make, skips, pause, 2);
}

fn run_entries<P: Provider + 'static>(
    make: impl Fn() -> Pair<P> + 'static,
    skips: usize,
    pause: Option<Pause<P>>,
    runs_max: u32,
) {
    let make: Rc<dyn Fn() -> Pair<P>> = Rc::new(make);
    run_all_rigs(
        || PairRig { pause, is_outside: true, runs_max, ..PairRig::new(make.clone()) },
        skips,
    );
}

/// The same on rigs as they are made.
pub fn run_all_rigs<P: Provider + 'static>(rig: impl Fn() -> PairRig<P>, skips: usize) {
    let (mut skipped, mut failed) = (0, Vec::new());
    for index in 0..ENTRY_COUNT {
        let mut rig = rig();
        let entry = &entries::<PairRig<P>>()[index];
        match (entry.run)(&mut rig) {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Skipped(why)) => {
                println!("P{} {}: skipped, {why}", entry.promise, entry.name);
                skipped += 1;
            }
            Err(failure) => failed.push((entry.promise, entry.name, failure)),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(skipped, skips, "entries skipped");
}

pub const LOOPBACK: Limits =
    Limits { peers_max: 2, slots: 8, payload_max: Bytes::kib(8), regions_max: 8, jobs: 16 };

/// How the peers of [`loopback`] are called.
pub const PEERS: [PeerIndex; 2] = [PeerIndex(0), PeerIndex(1)];

/// Fills a slice before a poll.
pub const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(99), immediate: 0 };

pub fn empty_send(peer: PeerIndex, id: u64) -> Op {
    let kind = OpKind::Send { head: [id as u8; 32], payload: LocalSpan::EMPTY };
    Op { id: OpId(id), peer, kind }
}

pub fn loopback() -> Loopback<'static> {
    loopback_of(LOOPBACK)
}

pub fn loopback_of(limits: Limits) -> Loopback<'static> {
    let mut rail = Loopback::open(limits, &mut carver(Loopback::bytes(limits))).unwrap();
    rail.peer_open_at(PeerIndex(0), PeerIndex(1)).unwrap();
    rail
}

/// A provider over a loopback.
pub trait OverLoopback {
    /// What it wraps.
    fn loopback(&mut self) -> &mut Loopback<'static>;
}

impl OverLoopback for Loopback<'static> {
    fn loopback(&mut self) -> &mut Loopback<'static> {
        self
    }
}

/// A pair inside one provider that wraps a loopback.
pub fn over_loopback<P: OverLoopback>(wrap: impl Fn(Loopback<'static>) -> P) -> Pair<P> {
    over(wrap(loopback()))
}

/// The same of a loopback with other limits.
pub fn over<P: OverLoopback>(provider: P) -> Pair<P> {
    let rejoin: Rejoin<P> =
        Box::new(|rails| rails[0].loopback().peer_open_at(PEERS[0], PEERS[1]).unwrap());
    Pair { providers: vec![provider], peers: PEERS, rejoin: Some(rejoin) }
}
