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

use super::domain::turns::Act;
use super::domain::{FlushSource, LibfabricDomain};
use super::endpoint::SharedEndpoint;
use super::peers::PATIENCE;
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
pub struct Flushing {
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

    /// Begins a flush: see [`Libfabric::flush_begin`](super::Libfabric::flush_begin).
    pub fn begin(
        &mut self,
        endpoint: &SharedEndpoint,
        (id, now): (OpId, Instant),
        key: RailKey,
        address: u64,
    ) -> Result<Posted, PostError> {
        match self.read {
            Some(Read { is_late: true, .. }) => return Err(PostError::Unsupported),
            Some(_) => return Err(PostError::Again),
            None if self.ended.is_some() => return Err(PostError::Again),
            None => {}
        }
        if !endpoint.is_open() {
            return Ok(Posted::Done); // the endpoint was closed, with all that was on its way
        }
        let port = self.port(endpoint).map_err(|_| PostError::Unsupported)?;
        let source = endpoint.domain.hold_for_flush(key, address, FLUSH_BYTES);
        let Some(FlushSource { region, library_key, start, length }) = source else {
            return Err(PostError::Unsupported);
        };
        let part = libc::iovec {
            iov_base: endpoint.area.flush_buffer() as *mut c_void,
            iov_len: length as usize,
        };
        let addr = endpoint.traits.library_address(start, address);
        let words = RmaIov { addr, len: length as usize, key: library_key };
        let message = MsgRma {
            msg_iov: &part,
            desc: &mut self.descriptor,
            iov_count: 1,
            addr: self.own,
            rma_iov: &words,
            rma_iov_count: 1,
            context: endpoint.cell_context(endpoint.cells()),
            data: 0,
        };
        let turn = endpoint.domain.turn(Act::Post);
        // SAFETY: the buffer and the context are in use by one read at a time; the rest is copied.
        let posted = unsafe { port.read(&message, n::COMPLETION) };
        drop(turn);
        if let Err(code) = posted {
            endpoint.domain.release(region);
            return Err(if code == Code::AGAIN {
                PostError::Again
            } else {
                PostError::Unsupported
            });
        }
        self.read = Some(Read { id, region, since: now, is_late: false });
        Ok(Posted::Pending)
    }

    /// The flush that has ended: see [`Libfabric::flush_end`](super::Libfabric::flush_end).
    pub fn end(&mut self, now: Instant) -> Option<(OpId, Result<(), OpError>)> {
        if let Some(read) = &mut self.read
            && !read.is_late
            && now.since(read.since) >= PATIENCE
        {
            read.is_late = true;
            let late = OpError { kind: OpErrorKind::Fabric, code: libc::ETIMEDOUT };
            self.ended = Some((read.id, Err(late)));
        }
        self.ended.take()
    }

    /// Whether polls are waited for by a flush.
    pub fn is_under_way(&self) -> bool {
        self.read.is_some()
    }

    /// Where flushes are posted, with what they need there.
    fn port(&mut self, endpoint: &SharedEndpoint) -> Result<Port, Code> {
        let port = endpoint.own_port()?;
        if self.own == n::ADDR_UNSPEC {
            let (name, length) = endpoint.name();
            self.own = endpoint.address_insert(&name[..length])?;
        }
        if self.registration == 0 {
            let range = (endpoint.area.flush_buffer(), FLUSH_BYTES as usize);
            // SAFETY: a part of the area, which outlives the endpoint; this is the rail's thread.
            let made = unsafe { endpoint.domain.make(range) }?;
            self.descriptor = made.descriptor();
            self.registration = made.into_raw();
        }
        Ok(port)
    }

    /// The library has done with the read. `false`: there was none.
    #[cold]
    pub fn retire(&mut self, domain: &LibfabricDomain, result: Result<(), OpError>) -> bool {
        let Some(read) = self.read.take() else { return false };
        domain.release(read.region);
        if !read.is_late {
            self.ended = Some((read.id, result));
        }
        true
    }

    /// The endpoint closes: its read ends with it, and the buffer's registration goes first.
    pub fn close(&mut self, domain: &LibfabricDomain) {
        self.retire(domain, Err(OpError { kind: OpErrorKind::Canceled, code: 0 }));
        let Flushing { registration, ended, .. } = core::mem::replace(self, Flushing::NONE);
        self.ended = ended;
        if registration != 0 {
            let _turn = domain.turn(Act::Register);
            // nothing can be done about a refusal: the endpoint goes
            let _ = Registration::from_raw(registration).close();
        }
    }
}
