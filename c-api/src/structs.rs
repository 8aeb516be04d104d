//! Structures that start with `struct_size`: read and written in the version that the caller has.

use crate::result::xtie_result;
use crate::result::xtie_result::*;

/// A `repr(C)` structure of plain numbers that begins with `struct_size: u32`, whose zero bytes are
/// a value and which later versions only lengthen.
///
/// # Safety
/// - the type is `repr(C)`, has no padding, any bytes are a value of it, and its first field is the
///   `u32` that holds its size.
pub(crate) unsafe trait Sized32: Copy {
    /// Its sizes in earlier versions of the library.
    const EARLIER_BYTES: &'static [usize] = &[];

    /// Whether a version of it has this size, or a later one may.
    fn is_size(size: usize) -> bool {
        let is_later = (size_of::<Self>()..=STRUCT_BYTES_MAX).contains(&size);
        let may_be = is_later && size.is_multiple_of(align_of::<Self>());
        may_be || Self::EARLIER_BYTES.contains(&size)
    }
}

/// Larger than any version that there will be: a size beyond it is a variable never set.
const STRUCT_BYTES_MAX: usize = 4096;

/// The size that the caller's structure says it has.
unsafe fn size_of_callers<T: Sized32>(place: *const T) -> Result<usize, xtie_result> {
    if place.is_null() {
        return Err(XTIE_ERR_NULL);
    }
    // SAFETY: not null, and the caller says that it points to a structure which begins with its
    // size (crosstie.h); alignment is not relied on.
    let size = unsafe { place.cast::<u32>().read_unaligned() } as usize;
    if !T::is_size(size) {
        return Err(XTIE_ERR_STRUCT_SIZE);
    }
    Ok(size)
}

/// Reads a structure that the caller filled: fields that it does not have are zero, and bytes that
/// we do not know must be.
///
/// # Safety
/// - `place` is null, or valid for reads of the bytes that its first word says.
pub(crate) unsafe fn read<T: Sized32>(place: *const T) -> Result<T, xtie_result> {
    // SAFETY: by this function's contract.
    let size = unsafe { size_of_callers(place)? };
    let bytes: *const u8 = place.cast();
    for at in size_of::<T>()..size {
        // SAFETY: within the size that the caller said.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(XTIE_ERR_STRUCT);
        }
    }
    // SAFETY: zero bytes are a value (`Sized32`).
    let mut value: T = unsafe { core::mem::zeroed() };
    let whole = (&raw mut value).cast::<u8>();
    // SAFETY: both sides hold as many bytes; the copy is ours alone.
    unsafe { whole.copy_from_nonoverlapping(bytes, size.min(size_of::<T>())) };
    Ok(value)
}

/// Fills a structure of the caller's as far as it reaches; the rest of a longer one becomes zero.
/// Its `struct_size` stays.
///
/// # Safety
/// - `place` is null, or valid for reads and writes of the bytes that its first word says.
pub(crate) unsafe fn write<T: Sized32>(place: *mut T, value: &T) -> Result<(), xtie_result> {
    // SAFETY: by this function's contract.
    let size = unsafe { size_of_callers(place.cast_const())? };
    let from = core::ptr::from_ref(value).cast::<u8>();
    let to: *mut u8 = place.cast();
    let known = size.min(size_of::<T>());
    let first = size_of::<u32>();
    // SAFETY: both sides hold `known` bytes, of which the caller's size is left as it is.
    unsafe { to.add(first).copy_from_nonoverlapping(from.add(first), known - first) };
    // SAFETY: within the size that the caller said.
    unsafe { to.add(known).write_bytes(0, size - known) };
    Ok(())
}

/// Writes an output, if there is a place for it.
///
/// # Safety
/// - `place` is null or valid for a write of a `T`.
#[inline(always)]
pub(crate) unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: by this function's contract.
        unsafe { place.write(value) };
    }
}

/// Copies text and its zero to the caller, cut to `room` bytes.
///
/// # Safety
/// - `place` is null or valid for writes of `room` bytes.
pub(crate) unsafe fn give_text(
    place: *mut core::ffi::c_char,
    room: usize,
    text: &[u8],
) -> Result<xtie_result, xtie_result> {
    if place.is_null() {
        return Err(XTIE_ERR_NULL);
    }
    if room == 0 {
        return Err(XTIE_ERR_TEXT);
    }
    let mut length = text.len().min(room - 1);
    // not inside of a character, whose later bytes begin with the bits 10
    while length < text.len() && text[length] & 0xc0 == 0x80 && length > 0 {
        length -= 1;
    }
    // SAFETY: at most `room - 1` bytes, which the caller has room for.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length) };
    // SAFETY: the last of them at most.
    unsafe { place.add(length).write(0) };
    Ok(XTIE_OK)
}

/// Text into room of the caller's, with a zero behind it; what does not fit is cut.
pub(crate) struct Out {
    place: *mut u8,
    room: usize,
    length: usize,
}

impl Out {
    /// An empty text.
    ///
    /// # Safety
    /// - `place` is valid for writes of `room` bytes, at least one, while the result is used.
    pub unsafe fn new(place: *mut core::ffi::c_char, room: usize) -> Out {
        let place: *mut u8 = place.cast();
        // SAFETY: one byte at least, by this function's contract.
        unsafe { place.write(0) };
        Out { place, room, length: 0 }
    }
}

impl core::fmt::Write for Out {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let mut fits = text.len().min(self.room - 1 - self.length);
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        // SAFETY: behind what was written, and before the last byte (`new`).
        let end = unsafe { self.place.add(self.length) };
        // SAFETY: `fits` bytes lie before the last one.
        unsafe { end.copy_from_nonoverlapping(text.as_ptr(), fits) };
        self.length += fits;
        // SAFETY: the last byte at most.
        unsafe { self.place.add(self.length).write(0) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        let text = "a\u{e9}\u{1f980}".as_bytes();
        for (room, whole) in [(1, 0), (2, 1), (3, 1), (4, 3), (5, 3), (7, 3), (8, 7), (9, 7)] {
            let mut place = [-1; 9];
            // SAFETY: as much room as is said.
            assert_eq!(unsafe { give_text(place.as_mut_ptr(), room, text) }, Ok(XTIE_OK));
            let given = place.map(|byte| byte as u8);
            assert_eq!((&given[..whole], given[whole]), (&text[..whole], 0), "room {room}");
        }
    }
}
