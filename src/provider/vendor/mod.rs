//! A provider written in C: a table of functions over an object of the vendor's.
//!
//! [`abi`] has the C types, [`Table`] a table that was checked, [`Vendor`] answers the seam over
//! one of its objects, and [`suite`] runs the conformance suite over two of them. Why the table
//! looks as it does: `doc/decisions/0012-vendor-table.md`.
//!
//! What a vendor's function answers is not believed where a mistake would reach further than its
//! own rail: an unknown answer, an event of no known kind, more events than asked for, a peer or a
//! length that cannot be. Such an event is dropped and the first of them is kept as a [`Breach`],
//! which ends the suite, and which whoever owns an endpoint over the rail asks for.

pub mod abi;
mod convert;
pub mod port;
pub mod sized;
pub mod suite;
mod table;

use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DeregisterError, Domain, DownCause, LocalSpan, MemoryKind, Op,
    OpKind, PostError, Posted, Provider, RailKey, RecvSlot, Region, RegisterError,
};
use abi::*;
use core::ffi::{c_int, c_void};
pub use table::{CapsError, Table, TableError};

/// Longest blob, in bytes.
pub const BLOB_BYTES_MAX: usize = XTIE_PROVIDER_BLOB_BYTES_MAX as usize;

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
pub struct Vendor {
    table: Table,
    object: *mut c_void,
    caps: Caps,
    blob_bytes: usize,
    peers_max: u32,
    breach: Option<Breach>,
    events: [xtie_provider_event; EVENTS_MAX],
}

// SAFETY: an object has one thread at a time, which may be another later (`crosstie_provider.h`).
unsafe impl Send for Vendor {}

impl Vendor {
    /// Opens an object for `peers_max` peers and `regions_max` regions.
    ///
    /// # Safety
    /// - `context` is what the table's `open` expects;
    /// - handles to the [`Domain`] are not used after the result is gone;
    /// - memory of ops and regions stays valid until then, as [`Domain::register`] and
    ///   [`LocalSpan::new`] say.
    pub unsafe fn open(
        table: Table,
        context: *mut c_void,
        peers_max: u32,
        regions_max: u32,
    ) -> Result<Vendor, OpenError> {
        let limits = xtie_provider_limits {
            struct_size: size_of::<xtie_provider_limits>() as u32,
            peers_max,
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
        Ok(Vendor { table, object, caps, blob_bytes, peers_max, breach: None, events })
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
            XTIE_PROVIDER_OK => Ok(()),
            XTIE_PROVIDER_AGAIN => Err(PeerError::Again),
            XTIE_PROVIDER_BLOB => Err(PeerError::Blob),
            answer => Err(PeerError::Refused(convert::code(answer))),
        }
    }

    #[cold]
    fn note(&mut self, entry: &'static str, why: &'static str) {
        self.breach.get_or_insert(Breach { entry, why });
    }

    fn posted(&mut self, entry: &'static str, answer: c_int) -> Result<Posted, PostError> {
        match answer {
            XTIE_PROVIDER_OK => Ok(Posted::Pending),
            XTIE_PROVIDER_DONE if entry == POST => Ok(Posted::Done),
            XTIE_PROVIDER_AGAIN => Err(PostError::Again),
            XTIE_PROVIDER_PEER_DOWN => Err(PostError::PeerDown),
            XTIE_PROVIDER_UNSUPPORTED if entry == POST => Err(PostError::Unsupported),
            _ => {
                self.note(entry, "the answer is none of those that it may give");
                Err(PostError::PeerDown)
            }
        }
    }

    fn fence(&mut self, op: &Op, generation: u32, now: Instant) -> Result<Posted, PostError> {
        let Some(begin) = self.table.fence_begin else {
            return Err(PostError::Unsupported);
        };
        // SAFETY: an open object, numbers.
        let answer = unsafe { begin(self.object, op.peer.0, op.id.0, generation, now.0) };
        self.posted("fence_begin", answer)
    }

    fn closed(&mut self, entry: &'static str, answer: c_int) -> Result<(), CloseError> {
        match answer {
            XTIE_PROVIDER_OK => Ok(()),
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

const POST: &str = "post";

impl Drop for Vendor {
    fn drop(&mut self) {
        // SAFETY: the object is open, and this is the last call.
        unsafe { (self.table.close)(self.object) };
    }
}

/// The registration side of a [`Vendor`].
#[derive(Copy, Clone, Debug)]
pub struct VendorDomain {
    register: unsafe extern "C" fn(*mut c_void, u64, u64, u32, *mut u64) -> c_int,
    deregister: unsafe extern "C" fn(*mut c_void, u64) -> c_int,
    object: *mut c_void,
}

// SAFETY: the two functions may be called from any thread (`crosstie_provider.h`), and nothing else
// is done with the pointer.
unsafe impl Sync for VendorDomain {}
// SAFETY: as above.
unsafe impl Send for VendorDomain {}

impl Domain for VendorDomain {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        let kind = match region.kind {
            MemoryKind::Host => XTIE_PROVIDER_MEMORY_HOST,
            MemoryKind::Mapped => XTIE_PROVIDER_MEMORY_MAPPED,
            MemoryKind::Cuda(ordinal) => XTIE_PROVIDER_MEMORY_CUDA | ordinal << 8,
        };
        let mut key = 0;
        // SAFETY: an object that is still open (`Vendor::open`); the range is the caller's word.
        let answer = unsafe {
            (self.register)(self.object, region.address, region.length.0, kind, &mut key)
        };
        match answer {
            // 0 stands for none, in spans and wherever keys are kept
            XTIE_PROVIDER_OK if key == 0 => {
                // SAFETY: as above; nothing can be done about a refusal.
                let _ = unsafe { (self.deregister)(self.object, key) };
                Err(RegisterError::Fabric(XTIE_PROVIDER_OK))
            }
            XTIE_PROVIDER_OK => Ok(RailKey(key)),
            XTIE_PROVIDER_FULL => Err(RegisterError::Full),
            XTIE_PROVIDER_KIND => Err(RegisterError::Kind),
            XTIE_PROVIDER_RANGE => Err(RegisterError::Range),
            answer => Err(RegisterError::Fabric(convert::code(answer))),
        }
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        // SAFETY: an object that is still open (`Vendor::open`).
        match unsafe { (self.deregister)(self.object, key.0) } {
            XTIE_PROVIDER_OK => Ok(()),
            XTIE_PROVIDER_BUSY => Err(DeregisterError::Busy),
            XTIE_PROVIDER_STALE => Err(DeregisterError::Stale),
            answer => Err(DeregisterError::Fabric(convert::code(answer))),
        }
    }
}

impl Provider for Vendor {
    const SEVERAL_LANES: bool = false;

    type Domain = VendorDomain;

    fn domain(&self) -> VendorDomain {
        let Table { region_register, region_deregister, .. } = self.table;
        VendorDomain {
            register: region_register,
            deregister: region_deregister,
            object: self.object,
        }
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        if let OpKind::Fence { generation } = op.kind {
            return self.fence(op, generation.0, now);
        }
        let op = convert::op(op);
        // SAFETY: an open object; the op's spans are vouched for, its data stands until we return.
        let answer = unsafe { (self.table.post)(self.object, &op, now.0) };
        self.posted(POST, answer)
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let room = out.len().min(EVENTS_MAX) as u32;
        let events = self.events.as_mut_ptr();
        // SAFETY: an open object, and room for as many events as it is told.
        let told = unsafe { (self.table.poll)(self.object, events, room, budget.0, now.0) };
        if told > room {
            self.note("poll", "it says that it gave more events than it was asked for");
        }
        let mut count = 0;
        for at in 0..told.min(room) as usize {
            match convert::completion(&self.events[at], &self.caps, self.peers_max) {
                Ok(completion) => {
                    out[count] = completion;
                    count += 1;
                }
                Err(why) => self.note("poll", why),
            }
        }
        count
    }

    fn flush(&mut self, budget: Bytes) {
        if let Some(flush) = self.table.flush {
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

    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        let (cause, code) = convert::cause(cause);
        // SAFETY: an open object, numbers.
        unsafe { (self.table.peer_fail)(self.object, peer.0, cause, code) };
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        // SAFETY: an open object, a number.
        let answer = unsafe { (self.table.peer_close)(self.object, peer.0) };
        self.closed("peer_close", answer)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let Some(detach) = self.table.peer_detach else {
            return Err(CloseError::Busy);
        };
        // SAFETY: an open object, a number.
        let answer = unsafe { detach(self.object, peer.0) };
        self.closed("peer_detach", answer)
    }
}
