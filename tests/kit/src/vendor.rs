//! The conformance suite over two objects of a vendor's, joined by the blobs that they wrote.

use crate::conformance::{ENTRY_COUNT, Failure, Outcome, Rig, Side, entries};
use core::ffi::c_void;
use crosstie::base::carve::Carver;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{Caps, Completion, Provider};
use crosstie::provider::vendor::flights::{self, Flights};
use crosstie::provider::vendor::{Breach, OpenError, PeerError, Table, Vendor};

/// Peers and regions that an object is opened for: more than the suite uses at a time.
pub const PEERS_MAX: u32 = 2;
/// See [`PEERS_MAX`].
pub const REGIONS_MAX: u32 = 8;

/// Ops that may be in flight to a peer: more than the suite posts at a time.
const OPS_MAX: u32 = 512;
const ROOM_BYTES: usize = flights::bytes(PEERS_MAX, OPS_MAX);

/// Memory for the ops of one end.
#[repr(C, align(64))]
pub struct Room([u8; ROOM_BYTES]);

/// Polls within which a peer opens.
const PATIENCE: u32 = 4096;
/// What passes between two polls where the program does not say: 64 of them are longer than any
/// delay of a rail that counts in this time.
const TICK_NS: u64 = 10_000_000;

/// What the suite runs on.
#[derive(Copy, Clone, Debug)]
pub struct Setup {
    /// The table under test.
    pub table: Table,
    /// What each end's `open` gets.
    pub contexts: [*mut c_void; 2],
    /// Memory of each end, as [`Rig::arena`] says.
    pub arenas: [*mut u8; 2],
    /// Whether bytes move although nobody polls.
    pub threads: bool,
    /// Called between polls.
    pub advance: Option<unsafe extern "C" fn(*mut c_void)>,
    /// The time in nanoseconds; without it, the suite counts its own.
    pub now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// How often the thread has allocated.
    pub allocations: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// What these three get.
    pub user: *mut c_void,
}

/// Why two objects could not be had and joined.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum JoinError {
    /// An object was not opened.
    Open(OpenError),
    /// A peer was not opened.
    Peer(PeerError),
    /// An answer was none.
    Breach(Breach),
}

/// What a run found.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Verdict {
    /// No entry found anything.
    Passed,
    /// The entry of this number found a promise broken.
    Failed(usize, Failure),
    /// Before or in the entry of this number an answer was none.
    Breach(usize, Breach),
    /// For the entry of this number no two objects could be had.
    NoPair(usize, JoinError),
}

/// A run's result, as a value.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Report {
    /// Where it ended, and why.
    pub verdict: Verdict,
    /// A bit for each entry that passed.
    pub passed: u64,
    /// A bit for each entry that was skipped, because of what the caps do not promise.
    pub skipped: u64,
}

const _: () = assert!(ENTRY_COUNT <= 64);

/// Two joined ends, made again and again.
pub struct VendorRig<'s> {
    setup: &'s Setup,
    sides: [Option<Vendor<'s>>; 2],
    /// Of each side's ops.
    rooms: [*mut Room; 2],
    trouble: Option<JoinError>,
    ticks: u64,
}

impl<'s> VendorRig<'s> {
    /// Opens and joins two objects.
    ///
    /// # Safety
    /// - what `setup` points to is as its fields say, for as long as the rig stands;
    /// - so are the rooms, which nobody else touches.
    pub unsafe fn new(setup: &'s Setup, rooms: [*mut Room; 2]) -> Result<VendorRig<'s>, JoinError> {
        let mut rig = VendorRig { setup, sides: [None, None], rooms, trouble: None, ticks: 0 };
        rig.join().map(|()| rig)
    }

    fn join(&mut self) -> Result<(), JoinError> {
        // a device may not be there twice: the old ones end first
        self.sides = [None, None];
        for (at, (side, context)) in self.sides.iter_mut().zip(self.setup.contexts).enumerate() {
            // SAFETY: the room stands (`new`), and the object that had it has ended (above).
            let mut block = unsafe { Carver::new(self.rooms[at].cast(), ROOM_BYTES) };
            let flights = Flights::carve(&mut block, PEERS_MAX, OPS_MAX);
            let flights = flights.expect("as large as the sum of its parts");
            // SAFETY: the context is as the table's `open` wants it (`new`); the domain and the
            // memory are the suite's, which ends before the rig.
            let opened = unsafe { Vendor::open(self.setup.table, context, flights, REGIONS_MAX) };
            *side = Some(opened.map_err(JoinError::Open)?);
        }
        self.connect()
    }

    /// Joins a peer of each object's to one of the other's.
    fn connect(&mut self) -> Result<(), JoinError> {
        let [a, b] = [Side::A, Side::B].map(|side| {
            let peer = self.peer(side);
            self.provider(side).peer_blob(peer)
        });
        let (a, b) = (a.map_err(JoinError::Peer)?, b.map_err(JoinError::Peer)?);
        let mut left = [(Side::A, b), (Side::B, a)].map(Some);
        for _ in 0..PATIENCE {
            for end in &mut left {
                let Some((side, blob)) = *end else { continue };
                let peer = self.peer(side);
                match self.provider(side).peer_open(peer, &blob) {
                    Ok(()) => *end = None,
                    Err(PeerError::Again) => self.poll(side),
                    Err(error) => return Err(JoinError::Peer(error)),
                }
            }
            if left.iter().all(Option::is_none) {
                return self.breach().map_or(Ok(()), |breach| Err(JoinError::Breach(breach)));
            }
            self.advance();
        }
        Err(JoinError::Peer(PeerError::Again))
    }

    /// Lets an end work of which nothing can have come yet.
    fn poll(&mut self, side: Side) {
        let now = self.now();
        let nothing = Completion::Immediate { peer: PeerIndex(u32::MAX), immediate: 0 };
        self.provider(side).poll(&mut [nothing; 0], Bytes::kib(64), now);
    }

    /// The first answer that was none.
    fn breach(&self) -> Option<Breach> {
        self.sides.iter().flatten().find_map(Vendor::breach)
    }

    fn remake(&mut self) -> bool {
        self.trouble = self.breach().map(JoinError::Breach);
        if self.trouble.is_none() {
            self.trouble = self.join().err();
        }
        self.trouble.is_none()
    }
}

impl<'s> Rig for VendorRig<'s> {
    type Provider = Vendor<'s>;

    fn provider(&mut self, side: Side) -> &mut Vendor<'s> {
        self.sides[side as usize].as_mut().expect("made by `new`, or an entry has given up")
    }

    fn promises(&mut self, side: Side) -> Option<Caps> {
        self.provider(side).promises()
    }

    fn peer(&self, side: Side) -> PeerIndex {
        PeerIndex(side as u32) // another number at each end
    }

    fn arena(&mut self, side: Side) -> *mut u8 {
        self.setup.arenas[side as usize]
    }

    fn now(&self) -> Instant {
        // SAFETY: the program's function and its argument (`new`).
        Instant(self.setup.now.map_or(self.ticks, |now| unsafe { now(self.setup.user) }))
    }

    fn advance(&mut self) {
        self.ticks += TICK_NS;
        if let Some(advance) = self.setup.advance {
            // SAFETY: the program's function and its argument (`new`).
            unsafe { advance(self.setup.user) };
        }
    }

    fn regions_max(&self) -> Option<u32> {
        Some(REGIONS_MAX)
    }

    fn tells_ends_first(&self) -> bool {
        true
    }

    fn has_threads(&self) -> bool {
        self.setup.threads
    }

    fn renew(&mut self) -> bool {
        if self.setup.now.is_some() || self.setup.threads {
            return false; // nothing repeats exactly
        }
        self.ticks = 0;
        self.remake()
    }

    fn anew(&mut self) -> bool {
        self.remake()
    }

    fn rejoin(&mut self) -> bool {
        self.trouble = self.breach().map(JoinError::Breach);
        if self.trouble.is_none() {
            self.trouble = self.connect().err();
        }
        self.trouble.is_none()
    }

    fn allocations(&self) -> Option<u64> {
        // SAFETY: the program's function and its argument (`new`).
        self.setup.allocations.map(|count| unsafe { count(self.setup.user) })
    }
}

/// Runs the whole suite, up to the first entry that finds something.
///
/// # Safety
/// - as [`VendorRig::new`].
pub unsafe fn run(setup: &Setup) -> Report {
    let mut report = Report { verdict: Verdict::Passed, passed: 0, skipped: 0 };
    let mut rooms = [const { Room([0; ROOM_BYTES]) }; 2];
    let rooms = rooms.each_mut().map(core::ptr::from_mut);
    for (index, entry) in entries::<VendorRig<'_>>().iter().enumerate() {
        // SAFETY: by this function's contract; the rooms stand above.
        let mut rig = match unsafe { VendorRig::new(setup, rooms) } {
            Ok(rig) => rig,
            Err(error) => {
                report.verdict = no_pair(index, error);
                return report;
            }
        };
        let said = (entry.run)(&mut rig);
        // what the entry made of an answer that is none says less than the answer
        if let Some(error) = rig.trouble {
            report.verdict = no_pair(index, error);
            return report;
        }
        if let Some(breach) = rig.breach() {
            report.verdict = Verdict::Breach(index, breach);
            return report;
        }
        match said {
            Ok(Outcome::Passed) => report.passed |= 1 << index,
            Ok(Outcome::Skipped(_)) => report.skipped |= 1 << index,
            Err(failure) => {
                report.verdict = Verdict::Failed(index, failure);
                return report;
            }
        }
    }
    report
}

fn no_pair(index: usize, error: JoinError) -> Verdict {
    match error {
        JoinError::Breach(breach) => Verdict::Breach(index, breach),
        error => Verdict::NoPair(index, error),
    }
}

/// Number, promise and name of an entry.
pub fn entry(index: usize) -> Option<(u8, &'static str)> {
    entries::<VendorRig<'_>>().get(index).map(|entry| (entry.promise, entry.name))
}
