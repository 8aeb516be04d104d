//! Flushes: a read of our own memory through our own endpoint. When it has ended, the NIC's earlier
//! writes there are visible to every reader, a GPU too.
//!
//! - One buffer and one read at a time serve all peers of the rail: a flush waits for the NIC's way
//!   to memory. The buffer is registered with the endpoint, and closed before it.
//! - The first flush makes the buffer's registration and the endpoint's own address.
//! - A read that does not end in time has failed. The rail has no flush until the library gives the
//!   read back, or the endpoint is reopened: the buffer is still in use.
//!
//! [`Flush`](crate::transport::flush::Flush) counts the flushes of several rails. If this one
//! fails, a fence settles it.

use super::domain::FlushSource;
use super::domain::turns::Act;
use super::ending::PATIENCE;
use super::rail::{Libfabric, Open};
use super::sys::calls::{MsgRma, RmaIov};
use super::sys::{Code, Port, Registration, numbers as n};
use crate::base::units::Instant;
use crate::fabric::{OpError, OpErrorKind, OpId, PostError, Posted, RailKey};
use core::ffi::c_void;
use core::ptr::null_mut;

/// What a flush reads: as much as leaves a NIC at once.
const FLUSH_BYTES: u64 = 64;

/// Where flushes of a rail stand.
#[derive(Debug)]
pub(super) struct Flushing {
    /// The library's registration of the buffer, as a number; 0: none yet.
    registration: u64,
    descriptor: *mut c_void,
    /// What the library calls our own endpoint; `ADDR_UNSPEC`: not asked yet.
    own: u64,
    /// The read that the library has.
    read: Option<Read>,
    /// One that has ended, and was not taken.
    ended: Option<(OpId, Result<(), OpError>)>,
}

/// A read that the library has.
#[derive(Copy, Clone, Debug)]
struct Read {
    id: OpId,
    /// The region that it holds.
    region: u32,
    since: Instant,
    /// Whether it was said that it failed, because it did not end.
    is_late: bool,
}

impl Flushing {
    pub const NONE: Flushing = Flushing {
        registration: 0,
        descriptor: null_mut(),
        own: n::ADDR_UNSPEC,
        read: None,
        ended: None,
    };
}

impl Libfabric<'_> {
    /// Begins a flush of what the NIC has written to a region of ours, by a read of
    /// [`FLUSH_BYTES`] at `address`, or of what the region has there. Its end is
    /// [`Libfabric::flush_end`]'s to say, behind polls.
    ///
    /// *Errors*: `Again`: one is under way, or the library has no room; `Unsupported`: the library
    /// refuses, or there is no such memory. *Cost*: the first one registers the buffer.
    pub fn flush_begin(
        &mut self,
        id: OpId,
        key: RailKey,
        address: u64,
    ) -> Result<Posted, PostError> {
        match self.flushing.read {
            Some(Read { is_late: true, .. }) => return Err(PostError::Unsupported),
            Some(_) => return Err(PostError::Again),
            None if self.flushing.ended.is_some() => return Err(PostError::Again),
            None => {}
        }
        if self.open.is_none() {
            return Ok(Posted::Done); // the endpoint was closed, with all that was on its way
        }
        let port = self.flush_port().map_err(|_| PostError::Unsupported)?;
        let source = self.domain.hold_for_flush(key, address, FLUSH_BYTES);
        let Some(FlushSource { region, library_key, start, length }) = source else {
            return Err(PostError::Unsupported);
        };
        let part = libc::iovec {
            iov_base: self.area.flush_buffer() as *mut c_void,
            iov_len: length as usize,
        };
        let addr = self.traits.library_address(start, address);
        let words = RmaIov { addr, len: length as usize, key: library_key };
        let message = MsgRma {
            msg_iov: &part,
            desc: &mut self.flushing.descriptor,
            iov_count: 1,
            addr: self.flushing.own,
            rma_iov: &words,
            rma_iov_count: 1,
            context: self.flush_context(),
            data: 0,
        };
        let turn = self.domain.turn(Act::Post);
        // SAFETY: the buffer and the context are in use by one read at a time; the rest is copied.
        let posted = unsafe { port.read(&message, n::COMPLETION) };
        drop(turn);
        if let Err(code) = posted {
            self.domain.release(region);
            return Err(if code == Code::AGAIN {
                PostError::Again
            } else {
                PostError::Unsupported
            });
        }
        self.flushing.read = Some(Read { id, region, since: self.now, is_late: false });
        Ok(Posted::Pending)
    }

    /// The flush that has ended: then what was written before it began is visible, or nothing is
    /// known of that.
    pub fn flush_end(&mut self) -> Option<(OpId, Result<(), OpError>)> {
        let now = self.now;
        if let Some(read) = &mut self.flushing.read
            && !read.is_late
            && now.since(read.since) >= PATIENCE
        {
            read.is_late = true;
            let late = OpError { kind: OpErrorKind::Fabric, code: libc::ETIMEDOUT };
            self.flushing.ended = Some((read.id, Err(late)));
        }
        self.flushing.ended.take()
    }

    /// How many endpoints were closed, each with all that was on its way. The largest number: none
    /// is open.
    pub fn fenced_through(&self) -> u32 {
        if self.open.is_none() { u32::MAX } else { self.health.reopened }
    }

    /// Whether polls are waited for by a flush.
    pub(super) fn is_flushing(&self) -> bool {
        self.flushing.read.is_some()
    }

    /// Where flushes are posted, with what they need there.
    fn flush_port(&mut self) -> Result<Port, Code> {
        let Some(Open { endpoint, vector, .. }) = self.open.as_ref() else {
            return Err(Code(libc::EOPNOTSUPP));
        };
        if self.flushing.own == n::ADDR_UNSPEC {
            let _turn = self.domain.turn(Act::Control);
            self.flushing.own = vector.insert(&self.name[..self.name_bytes])?;
        }
        if self.flushing.registration == 0 {
            let range = (self.area.flush_buffer(), FLUSH_BYTES as usize);
            // SAFETY: a part of the area, which outlives the endpoint; this is the rail's thread.
            let made = unsafe { self.domain.make(range) }?;
            self.flushing.descriptor = made.descriptor();
            self.flushing.registration = made.into_raw();
        }
        Ok(endpoint.port())
    }

    /// The library has done with the read.
    #[cold]
    pub(super) fn flush_retire(&mut self, result: Result<(), OpError>) {
        let Some(read) = self.flushing.read.take() else { return self.unknown() };
        self.domain.release(read.region);
        if !read.is_late {
            self.flushing.ended = Some((read.id, result));
        }
    }

    /// The endpoint closes: its read ends with it, and the buffer's registration goes first.
    pub(super) fn flush_close(&mut self) {
        if self.flushing.read.is_some() {
            self.flush_retire(Err(OpError { kind: OpErrorKind::Canceled, code: 0 }));
        }
        let Flushing { registration, ended, .. } =
            core::mem::replace(&mut self.flushing, Flushing::NONE);
        self.flushing.ended = ended;
        if registration != 0 {
            let _turn = self.domain.turn(Act::Register);
            // nothing can be done about a refusal: the endpoint goes
            let _ = Registration::from_raw(registration).close();
        }
    }
}
