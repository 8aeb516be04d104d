//! Where completions come.

use super::abi::{Cq, Wc};
use super::channel::CompletionChannel;
use super::objects::{Device, made};
use crate::memory::Errno;
use core::ffi::c_int;
use core::ptr::{self, NonNull};

/// A completion queue. Dropped after its queue pairs, before its device.
#[derive(Debug)]
pub struct CompletionQueue {
    destroy: unsafe extern "C" fn(*mut Cq) -> c_int,
    poll: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    notify: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    cq: NonNull<Cq>,
    // destroyed after the queue, which `drop` does
    channel: Option<CompletionChannel>,
}

// SAFETY: used by whoever owns it, by one thread at a time.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// One with room for so many completions, and a channel where the device gives one.
    pub fn create(device: &Device, entries: c_int) -> Result<CompletionQueue, Errno> {
        let library = device.library();
        let channel = CompletionChannel::create(device).ok();
        let told = channel.as_ref().map_or(ptr::null_mut(), CompletionChannel::as_ptr);
        let none = ptr::null_mut();
        // SAFETY: an open device; its channel or none, no context of ours.
        let cq = unsafe { (library.create_cq)(device.context(), entries, none, told, 0) };
        // SAFETY: an open device's table.
        let poll = unsafe { (*device.context()).ops.poll_cq };
        // SAFETY: as above.
        let notify = unsafe { (*device.context()).ops.req_notify_cq };
        Ok(CompletionQueue { destroy: library.destroy_cq, poll, notify, cq: made(cq)?, channel })
    }

    /// What tells of completions.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// Asks for an event with the next completion that comes; earlier events are taken back.
    /// `false`: there will be none.
    pub fn ask(&mut self) -> bool {
        let Some(channel) = &self.channel else { return false };
        channel.drain();
        // SAFETY: a live queue, which has a channel.
        unsafe { (self.notify)(self.cq.as_ptr(), 0) == 0 }
    }

    /// Takes completions, as many as fit; negative: the queue is broken.
    #[inline]
    pub fn poll(&mut self, room: &mut [Wc]) -> c_int {
        // SAFETY: a live queue, and room for as many as are said.
        unsafe { (self.poll)(self.cq.as_ptr(), room.len() as c_int, room.as_mut_ptr()) }
    }

    /// For [`super::QueuePair::create`].
    pub fn as_ptr(&self) -> *mut Cq {
        self.cq.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made by us, and its queue pairs are gone.
        unsafe { (self.destroy)(self.cq.as_ptr()) };
    }
}
