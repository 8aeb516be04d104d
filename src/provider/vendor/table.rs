//! A vendor's table and what its object promises, checked before anything is called for.

use super::abi::*;
use super::sized::{self, Sized32, SizedError};
use crate::base::units::Bytes;
use crate::fabric::{Caps, FenceKind, Syscalls};
use core::ffi::{c_int, c_void};

/// What is wrong with a table.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum TableError {
    /// There is none.
    Null,
    /// `struct_size` is that of no version.
    Size,
    /// It has entries behind those of this version.
    Longer,
    /// Its reserved field is not zero.
    Reserved,
    /// This entry is NULL and must not be.
    Entry(&'static str),
}

impl From<SizedError> for TableError {
    fn from(error: SizedError) -> TableError {
        match error {
            SizedError::Null => TableError::Null,
            SizedError::Size => TableError::Size,
            SizedError::Longer => TableError::Longer,
        }
    }
}

// SAFETY: integers and functions that may be null; the size comes first.
unsafe impl Sized32 for xtie_provider_ops {
    const FIRST_BYTES: usize = OPS_BYTES_FIRST;
}

/// What one op must carry at least: stripes of long messages start on multiples of this.
const TRANSFER_BYTES_LEAST: u64 = 128;

/// What is wrong with the caps of an object.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum CapsError {
    /// `struct_size` was changed, or the reserved field is not zero.
    Size,
    /// A flag is unknown.
    Flags,
    /// A length that must not be zero is too small: nothing can be sent, written or received.
    Nothing,
    /// Neither reads nor immediates: there is no way for a long message.
    Way,
    /// Atomic adds have 8 bytes, or there are none.
    Atomic,
    /// The fence is unknown, or promised by a table without `fence_begin`.
    Fence,
    /// What cannot be divided is longer than any transfer.
    Granule,
    /// The system calls are of an unknown kind.
    Syscalls,
    /// The blob is longer than blobs may be.
    Blob,
}

impl CapsError {
    /// The field, and what is wrong with it.
    pub const fn words(self) -> &'static str {
        match self {
            CapsError::Size => "struct_size was changed, or reserved is not zero",
            CapsError::Flags => "a flag is unknown",
            CapsError::Nothing => {
                "send_bytes_max or recv_slots is 0, or transfer_bytes_max is below 128"
            }
            CapsError::Way => "neither _PULL nor _IMMEDIATE: long messages have no way",
            CapsError::Atomic => "atomic_bytes is neither 0 nor 8",
            CapsError::Fence => "the fence is unknown, or fence_begin is NULL",
            CapsError::Granule => "copy_granule_bytes is over transfer_bytes_max",
            CapsError::Syscalls => "syscalls is unknown",
            CapsError::Blob => "blob_bytes is over XTIE_PROVIDER_BLOB_BYTES_MAX",
        }
    }
}

type Object = *mut c_void;

/// A table that was checked: each entry is there.
#[derive(Copy, Clone, Debug)]
pub struct Table {
    pub(super) open:
        unsafe extern "C" fn(Object, *const xtie_provider_limits, *mut Object) -> c_int,
    pub(super) close: unsafe extern "C" fn(Object),
    pub(super) caps: unsafe extern "C" fn(Object, *mut xtie_provider_caps),
    pub(super) peer_blob: unsafe extern "C" fn(Object, u32, *mut c_void) -> c_int,
    pub(super) peer_open: unsafe extern "C" fn(Object, u32, *const c_void) -> c_int,
    pub(super) region_register: unsafe extern "C" fn(Object, u64, u64, u32, *mut u64) -> c_int,
    pub(super) region_deregister: unsafe extern "C" fn(Object, u64) -> c_int,
    pub(super) post: unsafe extern "C" fn(Object, *const xtie_provider_op, u64) -> c_int,
    pub(super) poll: unsafe extern "C" fn(Object, *mut xtie_provider_event, u32, u64, u64) -> u32,
    /// NULL where there is no fence.
    pub(super) fence_begin: Option<unsafe extern "C" fn(Object, u32, u64, u32, u64) -> c_int>,
    pub(super) received_copy:
        unsafe extern "C" fn(Object, u32, u64, u64, *const xtie_provider_span),
    pub(super) received_release: unsafe extern "C" fn(Object, u32, u64),
    pub(super) peer_fail: unsafe extern "C" fn(Object, u32, u32, i32),
    pub(super) peer_close: unsafe extern "C" fn(Object, u32) -> c_int,
    pub(super) peer_detach: Option<unsafe extern "C" fn(Object, u32) -> c_int>,
    pub(super) flush: Option<unsafe extern "C" fn(Object, u64)>,
}

impl Table {
    /// Checks a vendor's table, and copies it.
    ///
    /// # Safety
    /// - `ops` is null, or valid for reads of the bytes that its first word says;
    /// - its entries are null, or functions that do what `crosstie_provider.h` says of them, and
    ///   stay in the program as long as the table is used.
    pub unsafe fn check(ops: *const xtie_provider_ops) -> Result<Table, TableError> {
        // SAFETY: by this function's contract.
        let ops = unsafe { sized::read(ops) }?;
        if ops.reserved != 0 {
            return Err(TableError::Reserved);
        }
        macro_rules! entry {
            ($name:ident) => {
                ops.$name.ok_or(TableError::Entry(stringify!($name)))?
            };
        }
        Ok(Table {
            open: entry!(open),
            close: entry!(close),
            caps: entry!(caps),
            peer_blob: entry!(peer_blob),
            peer_open: entry!(peer_open),
            region_register: entry!(region_register),
            region_deregister: entry!(region_deregister),
            post: entry!(post),
            poll: entry!(poll),
            fence_begin: ops.fence_begin,
            received_copy: entry!(received_copy),
            received_release: entry!(received_release),
            peer_fail: entry!(peer_fail),
            peer_close: entry!(peer_close),
            peer_detach: ops.peer_detach,
            flush: ops.flush,
        })
    }

    /// What an object says of itself; the second number is the length of its blobs.
    ///
    /// # Safety
    /// - `provider` is an object that the table's `open` gave, and is still open.
    pub(super) unsafe fn told(&self, provider: Object) -> Result<(Caps, usize), CapsError> {
        let size = size_of::<xtie_provider_caps>() as u32;
        let mut caps = xtie_provider_caps { struct_size: size, ..xtie_provider_caps::default() };
        // SAFETY: an open object (this function's contract) and room for its caps.
        unsafe { (self.caps)(provider, &mut caps) };
        if caps.struct_size != size || caps.reserved != 0 {
            return Err(CapsError::Size);
        }
        Ok((self.caps_check(&caps)?, caps.blob_bytes as usize))
    }

    fn caps_check(&self, caps: &xtie_provider_caps) -> Result<Caps, CapsError> {
        let has = |flag: u32| caps.flags & flag != 0;
        if caps.flags & !FLAGS != 0 {
            return Err(CapsError::Flags);
        }
        let shortest = caps.transfer_bytes_max < TRANSFER_BYTES_LEAST;
        if caps.send_bytes_max == 0 || caps.recv_slots == 0 || shortest {
            return Err(CapsError::Nothing);
        }
        if !has(XTIE_PROVIDER_CAP_PULL | XTIE_PROVIDER_CAP_IMMEDIATE) {
            return Err(CapsError::Way);
        }
        if !matches!(caps.atomic_bytes, 0 | 8) {
            return Err(CapsError::Atomic);
        }
        if caps.copy_granule_bytes > caps.transfer_bytes_max {
            return Err(CapsError::Granule);
        }
        if caps.blob_bytes > XTIE_PROVIDER_BLOB_BYTES_MAX {
            return Err(CapsError::Blob);
        }
        Ok(Caps {
            send_payload_max: Bytes(caps.send_bytes_max),
            recv_slots: caps.recv_slots,
            transfer_max: Bytes(caps.transfer_bytes_max),
            pull: has(XTIE_PROVIDER_CAP_PULL),
            immediate: has(XTIE_PROVIDER_CAP_IMMEDIATE),
            ordered: has(XTIE_PROVIDER_CAP_ORDERED),
            copies_at_post: has(XTIE_PROVIDER_CAP_COPIES_AT_POST),
            atomic_bytes: caps.atomic_bytes as u8,
            copy_granule: Bytes(caps.copy_granule_bytes),
            fence: self.fence(caps.fence)?,
            bad_key_breaks: has(XTIE_PROVIDER_CAP_BAD_KEY_BREAKS),
            syscalls: syscalls(caps.syscalls)?,
        })
    }

    fn fence(&self, kind: u32) -> Result<FenceKind, CapsError> {
        let kind = match kind {
            XTIE_PROVIDER_FENCE_NONE => return Ok(FenceKind::None),
            XTIE_PROVIDER_FENCE_ENDPOINT => return Ok(FenceKind::Endpoint),
            XTIE_PROVIDER_FENCE_LOCAL => FenceKind::Local,
            XTIE_PROVIDER_FENCE_WRITER_DRAINED => FenceKind::WriterDrained,
            _ => return Err(CapsError::Fence),
        };
        self.fence_begin.map(|_| kind).ok_or(CapsError::Fence)
    }
}

/// Every flag that there is.
const FLAGS: u32 = XTIE_PROVIDER_CAP_PULL
    | XTIE_PROVIDER_CAP_IMMEDIATE
    | XTIE_PROVIDER_CAP_ORDERED
    | XTIE_PROVIDER_CAP_COPIES_AT_POST
    | XTIE_PROVIDER_CAP_BAD_KEY_BREAKS;

fn syscalls(kind: u32) -> Result<Syscalls, CapsError> {
    match kind {
        XTIE_PROVIDER_SYSCALLS_NONE => Ok(Syscalls::None),
        XTIE_PROVIDER_SYSCALLS_PER_COPY => Ok(Syscalls::PerCopy),
        XTIE_PROVIDER_SYSCALLS_PER_BATCH => Ok(Syscalls::PerBatch),
        _ => Err(CapsError::Syscalls),
    }
}
