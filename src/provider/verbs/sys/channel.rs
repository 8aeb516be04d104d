//! What wakes who sleeps until a completion comes.

use super::abi::{CompChannel, Cq};
use super::library::Library;
use super::objects::Device;
use crate::memory::{Errno, WakeFd};
use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::os::fd::AsRawFd;

/// A completion channel: a descriptor that is readable when a queue that was asked to has told of a
/// completion. Dropped after its queue, before its device.
#[derive(Debug)]
pub struct CompletionChannel {
    library: Library,
    channel: NonNull<CompChannel>,
}

impl CompletionChannel {
    /// Makes one, whose descriptor does not block.
    pub fn create(device: &Device) -> Result<CompletionChannel, Errno> {
        let library = *device.library();
        // SAFETY: an open device.
        let made = unsafe { (library.create_comp_channel)(device.context()) };
        let channel = NonNull::new(made).ok_or_else(Errno::last)?;
        let channel = CompletionChannel { library, channel };
        let fd = channel.fd();
        // SAFETY: flags of a descriptor that is open as long as the channel.
        let flags = Errno::check(unsafe { libc::fcntl(fd, libc::F_GETFL) }.into())? as c_int;
        // SAFETY: as above.
        let set = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
        Errno::check(set.into())?;
        Ok(channel)
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        // SAFETY: a live channel of the library's.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// For making a queue.
    pub fn as_ptr(&self) -> *mut CompChannel {
        self.channel.as_ptr()
    }

    /// Nothing wakes by it any more. The kernel hangs up at whoever waits for a device that is
    /// gone, which `poll` reports for ever: a counter that nobody rings takes the descriptor's
    /// place. Where none can be had it stays as it is.
    pub fn mute(&self) {
        if let Ok(quiet) = WakeFd::create() {
            // SAFETY: two open descriptors; the second is closed by that, and the channel's from
            // then on.
            unsafe { libc::dup3(quiet.fd().as_raw_fd(), self.fd(), libc::O_CLOEXEC) };
        }
    }

    /// Takes back what it has told. *Cost*: a system call for each time that it was asked, and one.
    pub fn drain(&self) {
        let (mut cq, mut context): (*mut Cq, _) = (ptr::null_mut(), ptr::null_mut());
        let channel = self.channel.as_ptr();
        // SAFETY: a live channel, and places for the answer; the descriptor does not block.
        while unsafe { (self.library.get_cq_event)(channel, &mut cq, &mut context) } == 0 {
            // SAFETY: the queue whose event was just got; closing it waits for this.
            unsafe { (self.library.ack_cq_events)(cq, 1) };
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: made by us, and its queue is gone.
        unsafe { (self.library.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}
