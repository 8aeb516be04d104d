//! Flushes: a read of memory that the device has written, by a queue pair that is its own other
//! end. When it has ended, the device's earlier writes there are visible to every reader, a GPU
//! too.
//!
//! - One buffer and one read at a time serve all peers of the rail: a flush waits for the device's
//!   way to memory.
//! - The first flush makes the queue pair, its completion queue and the buffer. They are made anew
//!   when a read has failed, or the rail has taken another GID.
//! - A read that does not end in time has failed. Its queue pair is destroyed, and so it has ended.
//!   That is no fence: the device is done with the read alone. Writes of the other queue pairs pass
//!   neither through this one nor behind the command that destroys it, and they may go on.
//! - A lost port whose queue pairs are at rest has nothing to flush
//!   ([`Verbs::fenced_through`]): a flush of it is done, and a read that it kept is canceled.
//!
//! [`Flush`](crate::transport::flush::Flush) counts the flushes of several rails. If this one
//! fails, a fence settles it.

use super::super::domain::rkey;
use super::super::rail::Verbs;
use super::super::sys::abi::{Gid, SendWr, Sge, Wc};
use super::super::sys::{CompletionQueue, MemoryRegion, QueuePair, numbers as n};
use super::ends;
use crate::base::units::{Instant, Span};
use crate::fabric::{OpError, OpErrorKind, OpId, PostError, Posted, RailKey};
use crate::memory::Reserve;
use core::ffi::c_int;

/// What a flush reads: as much as leaves a device at once.
const FLUSH_BYTES: u64 = 64;
/// How long a read may take: longer than the device sends it again.
const PATIENCE: Span = Span::millis(2000);

/// Where flushes of a rail stand. It is dropped before the rail.
#[derive(Debug, Default)]
pub struct Flushing {
    loop_: Option<Loop>,
    read: Option<Read>,
    /// One that has ended, and was not taken.
    ended: Option<(OpId, Result<(), OpError>)>,
}

/// A queue pair that is its own other end, and what its reads write. Dropped in this order.
#[derive(Debug)]
struct Loop {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
    buffer: Reserve,
    /// The rail's when it was made.
    gid: Gid,
}

/// A read that the device has.
#[derive(Copy, Clone, Debug)]
struct Read {
    id: OpId,
    /// The region that it holds.
    region: u32,
    since: Instant,
}

impl Flushing {
    /// Begins a flush of what the device has written to a region of ours, by a read of
    /// [`FLUSH_BYTES`] at `address`, or of what the region has there. Its end is
    /// [`Flushing::end`]'s to say.
    ///
    /// *Errors*: `Again`: one is under way; `Unsupported`: the device refuses, there is no such
    /// memory, or the port is lost and not at rest yet. *Cost*: the first one makes a queue pair.
    pub fn begin(
        &mut self,
        rail: &Verbs<'_>,
        id: OpId,
        (key, address): (RailKey, u64),
        now: Instant,
    ) -> Result<Posted, PostError> {
        if self.read.is_some() || self.ended.is_some() {
            return Err(PostError::Again);
        }
        if is_over(rail) {
            return Ok(Posted::Done); // its queue pairs are at rest, with all that was on its way
        }
        if rail.health().is_lost() || self.make(rail).is_none() {
            return Err(PostError::Unsupported);
        }
        let held = rail.domain.hold_from(key, address, FLUSH_BYTES);
        let Some((region, length)) = held else { return Err(PostError::Unsupported) };
        let Some(Loop { qp, mr, buffer, .. }) = &mut self.loop_ else {
            return Err(PostError::Unsupported);
        };
        let addr = buffer.start().expose_provenance() as u64;
        let mut part = Sge { addr, length: length as u32, lkey: mr.lkey() };
        let mut request = SendWr {
            sg_list: &mut part,
            num_sge: 1,
            opcode: n::WR_READ,
            send_flags: n::SEND_SIGNALED,
            remote_addr: address,
            rkey_or_add: SendWr::rkey_field(rkey(key)),
            ..SendWr::NOTHING
        };
        // SAFETY: one request; its part is the registered buffer, which stays until the queue pair
        // is gone, and is in use by one read at a time.
        if unsafe { qp.send(&mut request, false) }.is_err() {
            rail.domain.release(region);
            self.loop_ = None;
            return Err(PostError::Unsupported);
        }
        self.read = Some(Read { id, region, since: now });
        Ok(Posted::Pending)
    }

    /// The flush that has ended: then what was written before it began is visible, or nothing is
    /// known of that.
    pub fn end(&mut self, rail: &Verbs<'_>, now: Instant) -> Option<(OpId, Result<(), OpError>)> {
        if let (Some(read), Some(loop_)) = (self.read, &mut self.loop_) {
            let mut found = [Wc::NOTHING];
            let failed = |code: c_int| OpError { kind: OpErrorKind::Fabric, code };
            let result = match loop_.cq.poll(&mut found) {
                0 if is_over(rail) => Err(OpError { kind: OpErrorKind::Canceled, code: 0 }),
                0 if now.since(read.since) < PATIENCE => return None,
                0 => Err(failed(libc::ETIMEDOUT)),
                1 if found[0].status == n::WC_SUCCESS => Ok(()),
                1 => Err(failed(found[0].status)),
                _ => Err(failed(libc::EIO)),
            };
            if result.is_err() {
                self.loop_ = None; // so that nothing writes to the buffer any more
            }
            self.read = None;
            rail.domain.release(read.region);
            self.ended = Some((read.id, result));
        }
        self.ended.take()
    }

    /// Makes what flushes need, where it is not there. `None`: it cannot be had.
    fn make(&mut self, rail: &Verbs<'_>) -> Option<()> {
        let gid = rail.port.place.gid;
        if self.loop_.as_ref().is_some_and(|it| it.gid.0 == gid.0) {
            return Some(());
        }
        self.loop_ = None;
        let shared = rail.domain.shared();
        let buffer = Reserve::create(FLUSH_BYTES as usize).ok()?;
        let start = buffer.start().expose_provenance() as u64;
        let access = n::ACCESS_LOCAL_WRITE;
        // SAFETY: the reserve outlives the registration, by the order of the fields.
        let mr = unsafe { shared.pd().register(start, FLUSH_BYTES as usize, access, false) };
        let (mr, cq) = (mr.ok()?, CompletionQueue::create(shared.device(), 1).ok()?);
        let mut qp = ends::create(rail, &cq, 1).ok()?;
        let number = qp.number();
        ends::join(rail, &mut qp, number, n::ACCESS_REMOTE_READ as c_int, 1).ok()?;
        self.loop_ = Some(Loop { qp, cq, mr, buffer, gid });
        Some(())
    }
}

/// Whether the port is lost, and nothing of before is on its way any more.
fn is_over(rail: &Verbs<'_>) -> bool {
    rail.health().is_lost() && rail.fenced_through() == u32::MAX
}
