//! Structures of a C program that begin with their size: read in the version that its header had.

/// A structure of plain numbers, pointers and functions that begins with `struct_size: u32`, and
/// which later versions only lengthen.
///
/// # Safety
/// - the type is `repr(C)`, zero bytes are a value of it, pointers and functions in it may be null,
///   and its first field is the `u32` that holds its size.
pub unsafe trait Sized32: Copy {
    /// Its size in the first version that had it.
    const FIRST_BYTES: usize;

    /// Whether a version of it may have this size: each is a multiple of its alignment, so that no
    /// part of a pointer is taken for one.
    fn is_size(size: usize) -> bool {
        let is_between = (Self::FIRST_BYTES..=STRUCT_BYTES_MAX).contains(&size);
        is_between && size.is_multiple_of(align_of::<Self>())
    }
}

/// Why a structure was not read.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SizedError {
    /// There is none.
    Null,
    /// `struct_size` is that of no version.
    Size,
    /// It has something behind what this version knows.
    Longer,
}

/// Larger than any version that there will be: a size beyond it is a variable never set.
const STRUCT_BYTES_MAX: usize = 4096;

/// Reads a structure: fields that it does not have are zero, and bytes that are unknown here must
/// be, which the headers say: a vendor with an entry that we would not call is told so. Of a size
/// that is no version's, nothing but the size is read.
///
/// # Safety
/// - `place` is null, or valid for reads of the bytes that its first word says, and those are a
///   value of `T`.
pub unsafe fn read<T: Sized32>(place: *const T) -> Result<T, SizedError> {
    if place.is_null() {
        return Err(SizedError::Null);
    }
    // SAFETY: valid for its first word by this function's contract; alignment is not relied on.
    let size = unsafe { place.cast::<u32>().read_unaligned() } as usize;
    if !T::is_size(size) {
        return Err(SizedError::Size);
    }
    let bytes: *const u8 = place.cast();
    for at in size_of::<T>()..size {
        // SAFETY: within the size that the caller said.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(SizedError::Longer);
        }
    }
    // SAFETY: zero bytes are a value (`Sized32`).
    let mut value: T = unsafe { core::mem::zeroed() };
    let whole = (&raw mut value).cast::<u8>();
    // SAFETY: both sides hold as many bytes; the copy is ours alone.
    unsafe { whole.copy_from_nonoverlapping(bytes, size.min(size_of::<T>())) };
    Ok(value)
}
