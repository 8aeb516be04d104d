//! Address space that becomes memory where it is touched.

use super::errno::Errno;
use super::space::{self, Use};

/// Private zeroed memory, of which only touched pages exist; unmapped on drop. It is in no core
/// dump.
#[derive(Debug)]
pub struct Reserve {
    start: *mut u8,
    length: usize,
}

// SAFETY: plain memory reached through raw pointers; the type itself only calls the kernel.
unsafe impl Send for Reserve {}
// SAFETY: as above; what other threads have in the range that `release` gives back is its caller's
// to know.
unsafe impl Sync for Reserve {}

impl Reserve {
    /// Reserves `length` bytes, not zero.
    ///
    /// *Errors*: ENOMEM if the address space is limited, EAGAIN if locked memory is
    /// (`mlockall(MCL_FUTURE)`).
    pub fn create(length: usize) -> Result<Reserve, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = space::map(-1, length, flags, Use::Internal)?;
        // Whole huge pages for a few bytes of each part would be what this type avoids.
        // SAFETY: our mapping; advice that is refused changes nothing.
        unsafe { libc::madvise(start.cast(), length, libc::MADV_NOHUGEPAGE) };
        Ok(Reserve { start, length })
    }

    /// First byte; aligned to a page.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Gives the whole pages of a range back; they read as zero afterwards. *Panics* when the range
    /// lies outside.
    pub fn release(&self, offset: usize, length: usize) {
        assert!(offset <= self.length && length <= self.length - offset);
        // SAFETY: inside our mapping.
        let at = unsafe { self.start.add(offset) };
        // SAFETY: as above; nobody keeps references into it, only pointers.
        unsafe { libc::madvise(at.cast(), length, libc::MADV_DONTNEED) };
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody uses it beyond this type's life.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_as_zero() {
        let reserve = Reserve::create(64 << 20).unwrap();
        // SAFETY: inside the mapping.
        unsafe { reserve.start().add(4096).write(7) };
        reserve.release(4096, 4096);
        // SAFETY: as above.
        assert_eq!(unsafe { reserve.start().add(4096).read() }, 0);
        assert_eq!(reserve.length(), 64 << 20);
    }
}
