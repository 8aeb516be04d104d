//! Descriptors of the cache's own, one for each registration at most.

use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::descriptor;
use crate::memory::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

/// Duplicates by number of the registration, each plus one; zero is none.
#[derive(Debug)]
pub struct Descriptors<'m> {
    numbers: &'m mut [u32],
}

impl<'m> Descriptors<'m> {
    pub const fn bytes(max: usize) -> usize {
        bytes_for::<u32>(max)
    }

    pub fn carve(carver: &mut Carver<'m>, max: usize) -> Result<Descriptors<'m>, BlockTooSmall> {
        Ok(Descriptors { numbers: carver.slice(max)? })
    }

    /// Keeps a duplicate of `fd`, which programs that are executed do not get.
    pub fn keep(&mut self, index: u32, fd: BorrowedFd<'_>) -> Result<(), i32> {
        self.close(index);
        let own = descriptor::copy(fd.as_raw_fd()).map_err(|error| Errno::from(error).0)?;
        self.numbers[index as usize] = own.into_raw_fd() as u32 + 1;
        Ok(())
    }

    /// The duplicate, if one is kept.
    pub fn get(&self, index: u32) -> Option<BorrowedFd<'_>> {
        let own = self.numbers[index as usize].checked_sub(1)?;
        // SAFETY: `keep` made it, and `close`, which wants `&mut`, has not closed it.
        Some(unsafe { BorrowedFd::borrow_raw(own as i32) })
    }

    /// Closes the duplicate, if one is kept.
    pub fn close(&mut self, index: u32) {
        if let Some(own) = core::mem::take(&mut self.numbers[index as usize]).checked_sub(1) {
            // SAFETY: `keep` made it, and nobody else has it.
            unsafe { libc::close(own as i32) };
        }
    }
}

impl Drop for Descriptors<'_> {
    fn drop(&mut self) {
        for index in 0..self.numbers.len() as u32 {
            self.close(index);
        }
    }
}
