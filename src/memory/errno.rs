//! The number that the system gave the last failure of a thread.

pub use crate::base::errno::Errno;

impl Errno {
    /// Not enough memory or space.
    pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);

    /// The error of this thread's last failed call.
    pub fn last() -> Errno {
        // SAFETY: the location of this thread's errno is always valid.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// `Err` with the thread's errno when a call returned a negative number.
    pub(crate) fn check(result: i64) -> Result<u64, Errno> {
        u64::try_from(result).map_err(|_| Errno::last())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(0))
    }
}
