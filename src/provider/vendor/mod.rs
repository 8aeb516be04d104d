//! A provider written in C: a table of functions over an object of the vendor's.
//!
//! - [`abi`]: the C types
//! - [`Table`]: a table that was checked
//! - [`Vendor`]: the seam over one of the vendor's objects
//!
//! `doc/decisions/0012-vendor-table.md` says why the table looks as it does.
//!
//! A vendor's answers are checked where a mistake would reach further than its own rail:
//!
//! - an unknown answer, or an event of no known kind;
//! - more events than asked for;
//! - an impossible peer or length;
//! - the end of an op that is not in flight ([`flights`]);
//! - a refusal of what the caps promise.
//!
//! The first mistake is kept as a [`Breach`], which ends the suite; the owner of an endpoint asks
//! for it. From then on nothing is posted, and no answer is believed. Ops in flight end with the
//! object.

pub mod abi;
mod convert;
pub mod flights;
mod gate;
#[cfg(feature = "std")]
pub mod port;
#[cfg(feature = "std")]
mod port_words;
#[cfg(feature = "std")]
mod shelter;
pub mod sized;
mod table;

use crate::base::ids::PeerIndex;
#[cfg(feature = "std")]
use crate::base::ids::RailGeneration;
use crate::base::sync::AtomicU32;
use crate::base::units::{Bytes, Instant};
#[cfg(feature = "std")]
use crate::fabric::OpId;
use crate::fabric::{
    Caps, CloseError, Completion, DeregisterError, Domain, DownCause, LocalSpan, MemoryDomain,
    MemoryKind, Op, OpKind, PeerLife, PostError, Posted, Provider, RailKey, RecvSlot, Region,
    RegisterError,
};
use abi::*;
use core::ffi::{c_int, c_void};
use flights::{Flights, Kind};
pub use table::{CapsError, Table, TableError};

/// Longest blob, in bytes.
pub const BLOB_BYTES_MAX: usize = XTIE_PROVIDER_BLOB_BYTES_MAX as usize;

/// Of whoever registers memory on an object that was closed: "no such device".
const ENODEV: i32 = 19;

const EVENTS_MAX: usize = XTIE_PROVIDER_EVENTS_MAX as usize;

/// An answer of a vendor's function that is none.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Breach {
    /// Which entry of the table gave it.
    pub entry: &'static str,
    /// What was wrong with it.
    pub why: &'static str,
}

/// Why an object could not be opened. There is none then.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// The vendor's `open` refused, with its code, or with an answer that is none.
    Refused(i32),
    /// What it promises cannot be.
    Caps(CapsError),
}

/// Why a peer's blob could not be had, or a peer not be opened. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PeerError {
    /// Not yet: poll, then again.
    Again,
    /// The blob is not one of this kind of rail.
    Blob,
    /// The vendor refused, with its code.
    Refused(i32),
}

/// One object of a vendor's: a rail. Ends with [`Vendor`]'s drop.
#[derive(Debug)]
pub struct Vendor<'m> {
    table: Table,
    object: *mut c_void,
    caps: Caps,
    blob_bytes: usize,
    flights: Flights<'m>,
    breach: Option<Breach>,
    /// Whether the object was closed, on account of a breach.
    is_closed: bool,
    events: [xtie_provider_event; EVENTS_MAX],
}

// SAFETY: an object has one thread at a time, which may be another later (`crosstie_provider.h`).
unsafe impl Send for Vendor<'_> {}

impl<'m> Vendor<'m> {
    /// Opens an object for the peers that `flights` has, and `regions_max` regions.
    ///
    /// # Safety
    /// - `context` is what the table's `open` expects;
    /// - handles to the [`Domain`] are not used after the result is gone;
    /// - memory of ops and regions stays valid until then, as [`Domain::register`] and
    ///   [`LocalSpan::new`] say.
    pub unsafe fn open(
        table: Table,
        context: *mut c_void,
        flights: Flights<'m>,
        regions_max: u32,
    ) -> Result<Vendor<'m>, OpenError> {
        let limits = xtie_provider_limits {
            struct_size: size_of::<xtie_provider_limits>() as u32,
            peers_max: flights.peers_max(),
            regions_max,
            reserved: 0,
        };
        let mut object = core::ptr::null_mut();
        // SAFETY: a checked entry; the context is the caller's word, the rest is ours.
        let answer = unsafe { (table.open)(context, &limits, &mut object) };
        if answer != XTIE_PROVIDER_OK {
            return Err(OpenError::Refused(convert::code(answer)));
        }
        // SAFETY: the object was opened just now.
        let (caps, blob_bytes) = unsafe { table.told(object) }.map_err(|error| {
            // SAFETY: as above, and this is the last call.
            unsafe { (table.close)(object) };
            OpenError::Caps(error)
        })?;
        let events = [xtie_provider_event::default(); EVENTS_MAX];
        let (breach, is_closed) = (None, false);
        Ok(Vendor { table, object, caps, blob_bytes, flights, breach, is_closed, events })
    }

    /// The first answer of the vendor's that was none, if there was one. The rail is not to be
    /// relied on from then on.
    pub fn breach(&self) -> Option<Breach> {
        self.breach
    }

    /// Length of this rail's blobs.
    pub fn blob_bytes(&self) -> usize {
        self.blob_bytes
    }

    /// What the object promised when it was opened, to every peer.
    pub const fn promised(&self) -> Caps {
        self.caps
    }

    /// What the object promises when it is asked again; `None`: what cannot be, or blobs of another
    /// length.
    pub fn promises(&self) -> Option<Caps> {
        if self.is_closed {
            return None;
        }
        // SAFETY: the object is open (above).
        let told = unsafe { self.table.told(self.object) };
        told.ok().filter(|(_, bytes)| *bytes == self.blob_bytes).map(|(caps, _)| caps)
    }

    /// What the other end needs to open its peer towards `peer`; [`Vendor::blob_bytes`] of it.
    pub fn peer_blob(&mut self, peer: PeerIndex) -> Result<[u8; BLOB_BYTES_MAX], PeerError> {
        let mut blob = [0; BLOB_BYTES_MAX];
        // SAFETY: an open object, and room for the longest blob (`Table::told`).
        let answer =
            unsafe { (self.table.peer_blob)(self.object, peer.0, blob.as_mut_ptr().cast()) };
        match answer {
            XTIE_PROVIDER_OK => Ok(blob),
            answer => Err(PeerError::Refused(convert::code(answer))),
        }
    }

    /// Joins `peer` to the end that wrote `blob`.
    pub fn peer_open(
        &mut self,
        peer: PeerIndex,
        blob: &[u8; BLOB_BYTES_MAX],
    ) -> Result<(), PeerError> {
        // SAFETY: an open object, and as many bytes as the longest blob has.
        let answer = unsafe { (self.table.peer_open)(self.object, peer.0, blob.as_ptr().cast()) };
        match answer {
            XTIE_PROVIDER_OK => {
                self.flights.open(peer);
                Ok(())
            }
            XTIE_PROVIDER_AGAIN => Err(PeerError::Again),
            XTIE_PROVIDER_BLOB => Err(PeerError::Blob),
            answer => Err(PeerError::Refused(convert::code(answer))),
        }
    }

    #[cold]
    fn note(&mut self, entry: &'static str, why: &'static str) {
        self.breach.get_or_insert(Breach { entry, why });
    }

    /// Puts an op to the vendor under a name of ours, and keeps what it takes. `call` puts it.
    #[inline]
    fn put(
        &mut self,
        op: &Op,
        kind: Kind,
        word: u32,
        call: impl FnOnce(&Table, *mut c_void, u64) -> c_int,
    ) -> Result<Posted, PostError> {
        if self.breach.is_some() {
            return Err(PostError::PeerDown);
        }
        let place = match self.flights.is_open(op.peer) {
            true => Some(self.flights.place(op.peer, kind).ok_or(PostError::Again)?),
            false => None,
        };
        let name = place.map_or(0, |place| self.flights.name(place, kind));
        let (answer, entry) = (call(&self.table, self.object, name), kind.entry());
        let is_op = kind == Kind::Op;
        match (answer, place) {
            (XTIE_PROVIDER_OK, Some(place)) => {
                self.flights.take(op.peer, place, kind, op.id, word);
                Ok(Posted::Pending)
            }
            (XTIE_PROVIDER_DONE, Some(place)) if is_op => {
                self.flights.skip(place);
                Ok(Posted::Done)
            }
            (XTIE_PROVIDER_AGAIN, _) => Err(PostError::Again),
            (XTIE_PROVIDER_PEER_DOWN, _) => Err(PostError::PeerDown),
            (XTIE_PROVIDER_UNSUPPORTED, _) if is_op && !convert::is_within(op, &self.caps) => {
                Err(PostError::Unsupported)
            }
            (XTIE_PROVIDER_UNSUPPORTED, _) if is_op => {
                Err(self.refuse(entry, "it refuses what its caps promise (_UNSUPPORTED)"))
            }
            (XTIE_PROVIDER_OK | XTIE_PROVIDER_DONE, None) => {
                Err(self.refuse(entry, "it takes an op to a peer that is not open"))
            }
            _ => Err(self.refuse(entry, "the answer is none of those that it may give")),
        }
    }

    #[cold]
    fn refuse(&mut self, entry: &'static str, why: &'static str) -> PostError {
        self.note(entry, why);
        PostError::PeerDown
    }

    fn fence(&mut self, op: &Op, generation: u32, now: Instant) -> Result<Posted, PostError> {
        let Some(begin) = self.table.fence_begin else {
            return Err(PostError::Unsupported);
        };
        self.put(op, Kind::Fence, generation, |_, object, name| {
            // SAFETY: an open object, numbers.
            unsafe { begin(object, op.peer.0, name, generation, now.0) }
        })
    }

    /// What an event says, in the poster's words.
    #[inline]
    fn completion(&mut self, event: &xtie_provider_event) -> Result<Completion, &'static str> {
        let completion = convert::completion(event, &self.caps, self.flights.peers_max())?;
        match completion {
            Completion::Done { peer, id, result } => match self.flights.end(peer, id.0, Kind::Op) {
                Some((id, _)) => Ok(Completion::Done { peer, id, result }),
                None => Err("an op ends that is not in flight to that peer"),
            },
            Completion::Fenced { peer, id, generation } => {
                match self.flights.end(peer, id.0, Kind::Fence) {
                    Some((id, word)) if word == generation.0 => {
                        Ok(Completion::Fenced { peer, id, generation })
                    }
                    Some(_) | None => Err("a fence holds that was not begun"),
                }
            }
            Completion::Received { peer, .. }
            | Completion::Immediate { peer, .. }
            | Completion::PeerDown { peer, .. } => match self.flights.is_open(peer) {
                true => Ok(completion),
                false => Err("an event names a peer that is not open"),
            },
        }
    }

    /// Ops and fences that the vendor has of a peer.
    #[cfg(feature = "std")]
    fn in_flight(&self, peer: PeerIndex) -> u32 {
        self.flights.in_flight(peer)
    }

    /// After [`Vendor::end`]: one of what the vendor had of a peer, [`Flights::drain`].
    #[cfg(feature = "std")]
    fn drain(&mut self, peer: PeerIndex) -> Option<(OpId, Option<RailGeneration>)> {
        self.flights.drain(peer)
    }

    /// Closes the object after a breach: from then on nothing touches memory of its ops and
    /// regions. `false`: not yet, another thread is registering memory.
    #[cfg(feature = "std")]
    #[cold]
    fn end(&mut self) -> bool {
        if self.is_closed {
            return true;
        }
        if !gate::shut(self.flights.gate) {
            return false;
        }
        self.is_closed = true;
        // SAFETY: the object is open, no other thread is inside of it, and this is the last call:
        // `breach` keeps this thread out, the gate all others.
        unsafe { (self.table.close)(self.object) };
        gate::closed(self.flights.gate);
        true
    }

    fn closed(
        &mut self,
        entry: &'static str,
        peer: PeerIndex,
        answer: c_int,
    ) -> Result<(), CloseError> {
        match answer {
            XTIE_PROVIDER_OK => {
                self.flights.close(peer);
                Ok(())
            }
            XTIE_PROVIDER_BUSY => Err(CloseError::Busy),
            XTIE_PROVIDER_STALE => Err(CloseError::Stale),
            _ => {
                self.note(entry, "the answer is none of those that it may give");
                Err(CloseError::Busy)
            }
        }
    }

    fn copy(&self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: &xtie_provider_span) {
        // SAFETY: an open object; the span is valid for writes (whoever made it vouches for it).
        unsafe { (self.table.received_copy)(self.object, peer.0, slot.0, offset, to) };
    }
}

impl Kind {
    /// The entry that takes it.
    const fn entry(self) -> &'static str {
        match self {
            Kind::Op => "post",
            Kind::Fence => "fence_begin",
        }
    }
}

impl Drop for Vendor<'_> {
    fn drop(&mut self) {
        if !self.is_closed {
            // SAFETY: the object is open, and this is the last call.
            unsafe { (self.table.close)(self.object) };
        }
    }
}

/// The registration side of a [`Vendor`].
#[derive(Copy, Clone, Debug)]
pub struct VendorDomain<'m> {
    gate: &'m AtomicU32,
    register: unsafe extern "C" fn(*mut c_void, u64, u64, u32, *mut u64) -> c_int,
    deregister: unsafe extern "C" fn(*mut c_void, u64) -> c_int,
    object: *mut c_void,
}

// SAFETY: the two functions may be called from any thread (`crosstie_provider.h`), and nothing else
// is done with the pointer.
unsafe impl Sync for VendorDomain<'_> {}
// SAFETY: as above.
unsafe impl Send for VendorDomain<'_> {}

impl Domain for VendorDomain<'_> {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        let kind = match region.kind {
            MemoryKind::Host => XTIE_PROVIDER_MEMORY_HOST,
            MemoryKind::Mapped => XTIE_PROVIDER_MEMORY_MAPPED,
            MemoryKind::Cuda(ordinal) => XTIE_PROVIDER_MEMORY_CUDA | ordinal << 8,
        };
        let mut key = 0;
        let answer = gate::through(self.gate, || {
            // SAFETY: an object that is still open (`Vendor::open`, and the gate); the range is the
            // caller's word.
            let answer = unsafe {
                (self.register)(self.object, region.address, region.length.0, kind, &mut key)
            };
            if answer == XTIE_PROVIDER_OK && key == 0 {
                // SAFETY: as above; nothing can be done about a refusal.
                let _ = unsafe { (self.deregister)(self.object, key) };
            }
            answer
        });
        match answer.ok_or(RegisterError::Fabric(ENODEV))? {
            // 0 stands for none, in spans and wherever keys are kept
            XTIE_PROVIDER_OK if key == 0 => Err(RegisterError::Fabric(XTIE_PROVIDER_OK)),
            XTIE_PROVIDER_OK => Ok(RailKey(key)),
            XTIE_PROVIDER_FULL => Err(RegisterError::Full),
            XTIE_PROVIDER_KIND => Err(RegisterError::Kind),
            XTIE_PROVIDER_RANGE => Err(RegisterError::Range),
            answer => Err(RegisterError::Fabric(convert::code(answer))),
        }
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        let answer = gate::through(self.gate, || {
            // SAFETY: an object that is still open (`Vendor::open`, and the gate).
            unsafe { (self.deregister)(self.object, key.0) }
        });
        // a closed object has no regions; one that is about to be has them still
        let without = match gate::is_closed(self.gate) {
            true => XTIE_PROVIDER_OK,
            false => XTIE_PROVIDER_BUSY,
        };
        match answer.unwrap_or(without) {
            XTIE_PROVIDER_OK => Ok(()),
            XTIE_PROVIDER_BUSY => Err(DeregisterError::Busy),
            XTIE_PROVIDER_STALE => Err(DeregisterError::Stale),
            answer => Err(DeregisterError::Fabric(convert::code(answer))),
        }
    }
}

impl<'m> MemoryDomain for Vendor<'m> {
    type Domain = VendorDomain<'m>;

    fn domain(&self) -> VendorDomain<'m> {
        let Table { region_register, region_deregister, .. } = self.table;
        VendorDomain {
            gate: self.flights.gate,
            register: region_register,
            deregister: region_deregister,
            object: self.object,
        }
    }
}

impl<'m> Provider for Vendor<'m> {
    const SEVERAL_LANES: bool = false;

    fn caps(&self, _peer: PeerIndex) -> Caps {
        self.caps
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        if let OpKind::Fence { generation } = op.kind {
            return self.fence(op, generation.0, now);
        }
        self.put(op, Kind::Op, 0, |table, object, name| {
            let op = convert::op(op, name);
            // SAFETY: an open object; the op's spans are vouched for, its data stands until we
            // return.
            unsafe { (table.post)(object, &op, now.0) }
        })
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        if self.breach.is_some() {
            return 0;
        }
        let room = out.len().min(EVENTS_MAX) as u32;
        let events = self.events.as_mut_ptr();
        // SAFETY: an open object, and room for as many events as it is told.
        let told = unsafe { (self.table.poll)(self.object, events, room, budget.0, now.0) };
        if told > room {
            self.note("poll", "it says that it gave more events than it was asked for");
            return 0;
        }
        for (at, place) in out.iter_mut().enumerate().take(told as usize) {
            let event = self.events[at];
            match self.completion(&event) {
                Ok(completion) => *place = completion,
                Err(why) => {
                    // what it says behind that is not believed
                    self.note("poll", why);
                    return at;
                }
            }
        }
        told as usize
    }

    fn flush(&mut self, budget: Bytes) {
        if let (Some(flush), None) = (self.table.flush, self.breach) {
            // SAFETY: an open object.
            unsafe { flush(self.object, budget.0) };
        }
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        self.copy(peer, slot, offset, &convert::span(to));
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let address = to.as_mut_ptr().expose_provenance() as u64;
        let to = xtie_provider_span { address, bytes: to.len() as u64, key: 0 };
        self.copy(peer, slot, 0, &to);
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        // SAFETY: an open object, numbers.
        unsafe { (self.table.received_release)(self.object, peer.0, slot.0) };
    }
}

impl<'m> PeerLife for Vendor<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        let (cause, code) = convert::cause(cause);
        // SAFETY: an open object, numbers.
        unsafe { (self.table.peer_fail)(self.object, peer.0, cause, code) };
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        // SAFETY: an open object, a number.
        let answer = unsafe { (self.table.peer_close)(self.object, peer.0) };
        self.closed("peer_close", peer, answer)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let Some(detach) = self.table.peer_detach else {
            return Err(CloseError::Busy);
        };
        // SAFETY: an open object, a number.
        let answer = unsafe { detach(self.object, peer.0) };
        self.closed("peer_detach", peer, answer)
    }
}
