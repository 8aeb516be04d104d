//! The functions of the tables, each in the file of the version in which it was born. They
//! translate arguments, field by field, and decide nothing: what they mean stands in
//! [`crate::net`].
//!
//! Each function's contract is NCCL's: pointers are NULL, or valid for what the function's name
//! says, during the call; objects are those that the same table has handed out.

// Each function's contract is NCCL's, above.
#![allow(clippy::missing_safety_doc)]

pub mod gin_v11;
pub mod gin_v13;
pub mod gin_v14;
pub mod rma_v14;
pub mod rma_v15;
pub mod tuner;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use crate::abi::table::Pointer;
use crate::abi::{PTR_CUDA, PTR_DMABUF, PTR_HOST, Rc, result};
use crate::cuda;
use crate::net::comm::{Comm, Request};
use crate::net::device::{Device, GpuWay};
use crate::net::{Fault, log};
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use crosstie::base::slab::Handle;
use crosstie::fabric::MemoryKind;
use crosstie::transport::Incoming;
use crosstie::wire::GROUP_MAX;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call; a panic is an error, and goes no further.
#[inline(always)]
fn call(act: impl FnOnce() -> Result<(), Fault>) -> Rc {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => result::SUCCESS,
        Ok(Err(fault)) => fault.code(),
        Err(payload) => {
            // its destructor could panic, here where nothing catches it
            core::mem::forget(payload);
            log::warn("a bug of the library: it has panicked");
            result::INTERNAL
        }
    }
}

/// Writes an output.
///
/// # Safety
/// - `place` is NULL, or valid for a write.
#[inline(always)]
unsafe fn write<T>(place: *mut T, value: T) -> Result<(), Fault> {
    if place.is_null() {
        return Err(Fault::Argument);
    }
    // SAFETY: not NULL, so valid by this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

/// The connection of a pointer.
///
/// # Safety
/// - `comm` is NULL, or of connect or accept and not closed.
#[inline(always)]
unsafe fn comm<'a>(comm: Pointer) -> Result<&'a Comm, Fault> {
    // SAFETY: NULL, or a `Comm` by this function's contract.
    unsafe { comm.cast::<Comm>().as_ref() }.ok_or(Fault::Argument)
}

/// A number as a pointer that NCCL keeps, and back.
fn named(number: u64) -> Pointer {
    without_provenance_mut(number as usize)
}

fn number(name: Pointer) -> u64 {
    name.addr() as u64
}

#[inline(always)]
fn memory(handle: Pointer) -> Handle {
    Handle::unpack(number(handle))
}

#[inline(always)]
fn request(request: Option<NonNull<Request>>) -> Pointer {
    request.map_or(null_mut(), |request| request.as_ptr().cast())
}

fn kept(comm: Option<Box<Comm>>) -> Pointer {
    comm.map_or(null_mut(), |comm| Box::into_raw(comm).cast())
}

/// Kinds of memory that a device takes.
fn pointers(device: &Device) -> i32 {
    let by_nics = cuda::by_nics(device);
    let cuda = if by_nics || cuda::by_copies() { PTR_CUDA } else { 0 };
    let dmabuf = if by_nics && device.gpus == GpuWay::Dmabuf { PTR_DMABUF } else { 0 };
    PTR_HOST | cuda | dmabuf
}

/// The kind of memory that NCCL means.
fn kind_of(kind: i32) -> Result<MemoryKind, Fault> {
    match kind {
        PTR_HOST => Ok(MemoryKind::Host),
        PTR_CUDA => Ok(MemoryKind::Cuda(0)), // the driver knows of which GPU
        _ => {
            log::warn(&format!("memory of kind {kind} is refused: there is no such kind"));
            Err(Fault::Argument)
        }
    }
}

/// Receives of a group, from NCCL's arrays.
struct Group {
    receives: [Incoming; GROUP_MAX],
    count: usize,
}

impl Group {
    /// # Safety
    /// - the arrays are NULL, or have `count` entries each.
    #[inline(always)]
    unsafe fn read<S: Copy>(
        count: i32,
        (data, sizes): (*const Pointer, *const S),
        (tags, handles): (*const i32, *const Pointer),
        bytes: fn(S) -> Result<u64, Fault>,
    ) -> Result<Group, Fault> {
        let there = !(data.is_null() || sizes.is_null() || tags.is_null() || handles.is_null());
        let count = usize::try_from(count).map_err(|_| Fault::Argument)?;
        if !there || count == 0 || count > GROUP_MAX {
            return Err(Fault::Argument);
        }
        let none = Incoming { region: Handle::default(), address: 0, length: 0, tag: 0 };
        let mut receives = [none; GROUP_MAX];
        for (at, receive) in receives.iter_mut().enumerate().take(count) {
            // SAFETY: `at` is less than `count`, and none of the arrays is NULL, so each of the
            // four has an entry there.
            let (data, size, tag, handle) =
                unsafe { (*data.add(at), *sizes.add(at), *tags.add(at), *handles.add(at)) };
            let (region, address) = (memory(handle), data as u64);
            *receive = Incoming { region, address, length: bytes(size)?, tag };
        }
        Ok(Group { receives, count })
    }

    fn receives(&self) -> &[Incoming] {
        &self.receives[..self.count]
    }
}

/// A length that NCCL gives as an `int`.
#[inline(always)]
fn int_bytes(bytes: i32) -> Result<u64, Fault> {
    u64::try_from(bytes).map_err(|_| Fault::Argument)
}

/// One that it gives as a `size_t`.
#[inline(always)]
fn size_bytes(bytes: usize) -> Result<u64, Fault> {
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_3_panic_is_an_error_and_goes_no_further() {
        assert_eq!(call(|| panic!("asked for by a test")), result::INTERNAL);
        assert_eq!(call(|| Err(Fault::Remote)), result::REMOTE);
        assert_eq!(call(|| Ok(())), result::SUCCESS);
    }

    #[test]
    fn faults_keep_their_numbers_and_none_is_in_progress() {
        for fault in [Fault::System, Fault::Internal, Fault::Argument, Fault::Usage, Fault::Remote]
        {
            assert_eq!(Fault::of_code(fault.code()), fault);
            assert!((1..=6).contains(&fault.code()), "7 would stop NCCL's thread");
        }
    }
}
