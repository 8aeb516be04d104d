//! Reads: our own copies out of the peer's memory, one of three ways.
//!
//! - *direct*: the memory lies in the peer's shared heap, which is mapped here: one copy.
//! - *kernel*: it does not, but the kernel lets us read the process: one copy. Not where the ring
//!   is long enough for two copies to be made at once, which is faster.
//! - *ring*: it does neither: the peer copies parts into its write ring and we copy them out.
//!
//! The first two take place without the peer, so its word is asked for afterwards: if it left, or
//! withdrew the key, while we copied, the read ends with an error whatever was copied.

use super::layout::LEFT_NOT;
use super::ops::{List, Outcome, Way, Work};
use super::record::{Header, Kind, body_at};
use super::ring::{Corrupt, Record};
use super::sides::{Prefix, Sides};
use super::word::{ACQUIRE, fence};
use crate::base::slab::Handle;
use crate::memory::{Errno, kernel_copy};

/// Requests that a reader may have outstanding: enough to hide the way there and back.
pub(super) const REQUESTS_MAX: usize = 4;

/// Bytes that were pulled from one peer, by the way they came.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(C)]
pub struct Pulled {
    /// Copied out of the peer's shared heap.
    pub direct_bytes: u64,
    /// Copied by the kernel.
    pub kernel_bytes: u64,
    /// Copied by the peer and by us.
    pub ring_bytes: u64,
}

/// What became of one step of a read.
enum Step {
    /// It goes on, or another has its turn.
    Next,
    /// It waits for the peer, or for the next poll.
    Wait,
}

/// Reads that have not ended. Zeroed: none.
#[derive(Debug)]
pub(super) struct Pulls {
    pub(super) queued: List,
    /// The oldest waits for the peer.
    waits: bool,
    /// 0 where the kernel does not let us, or is not asked.
    pub(super) kernel_pid: i32,
    serial_next: u32,
    pub(super) pulled: Pulled,
}

impl Pulls {
    /// Moves the oldest reads on. Says whether anything moved.
    pub(super) fn pull(&mut self, sides: &mut Sides, work: &mut Work) -> bool {
        let mut moved = false;
        self.waits = false;
        while let Some(index) = self.queued.first() {
            let step = match self.way(sides, work, index) {
                Some(Way::Direct | Way::Kernel) => self.pull_part(sides, work, index),
                Some(Way::Ring | Way::RingAsked) => self.ask(sides, work),
                Some(Way::Undecided) | None => Step::Next,
            };
            match step {
                Step::Next => moved = true,
                Step::Wait => break,
            }
        }
        moved
    }

    /// Whether a read can move on without the peer.
    pub(super) fn must_move(&self) -> bool {
        !self.queued.is_empty() && !self.waits
    }

    /// How a read is carried out, decided when its turn comes. `None`: refused, and ended.
    fn way(&mut self, sides: &Sides, work: &mut Work, index: u32) -> Option<Way> {
        let entry = work.ops.get(index);
        if entry.way != Way::Undecided {
            return Some(entry.way);
        }
        let length = entry.local.length().0;
        entry.way = Way::Ring;
        if sides.board.is_some() {
            if !sides.board.allows(Handle::unpack(entry.key), entry.address, length) {
                self.end_first(work, Outcome::Key, 0);
                return None;
            }
            if sides.board.here(entry.address, length).is_some() {
                entry.way = Way::Direct;
            } else if self.kernel_pid != 0 {
                entry.way = Way::Kernel;
            }
        }
        Some(entry.way)
    }

    /// Copies a part of the oldest read ourselves.
    fn pull_part(&mut self, sides: &Sides, work: &mut Work, index: u32) -> Step {
        let budget = work.budget;
        let entry = work.ops.get(index);
        let left = entry.local.length().0 - entry.progress;
        if left != 0 && budget == 0 {
            return Step::Wait;
        }
        let part = left.min(budget) as usize;
        let remote = entry.address.wrapping_add(entry.progress);
        let to = (entry.local.address() + entry.progress) as *mut u8;
        let result = match (entry.way, sides.board.here(remote, part as u64)) {
            (Way::Direct, Some(from)) => {
                // SAFETY: the source lies in the mapped heap (`here`), the target in the op's
                // span. They overlap when a process pulls from itself, so this is a move.
                unsafe { from.copy_to(to, part) };
                Ok(part)
            }
            _ if part == 0 => Ok(0),
            // SAFETY: the target lies in the op's span, valid until the op ends.
            _ => unsafe { kernel_copy::read_some(self.kernel_pid, remote, to, part) },
        };
        match result {
            Ok(copied) => {
                entry.progress += copied as u64;
                match entry.way {
                    Way::Direct => self.pulled.direct_bytes += copied as u64,
                    _ => self.pulled.kernel_bytes += copied as u64,
                }
                let ended = entry.progress == entry.local.length().0;
                work.charge(copied as u64);
                if ended {
                    self.end_pull(sides, work, index);
                }
                Step::Next
            }
            Err(errno) => self.kernel_refused(work, index, errno),
        }
    }

    /// All is copied: was it the peer's, and registered, until now?
    fn end_pull(&mut self, sides: &Sides, work: &mut Work, index: u32) {
        // [left-gone], [board-gone]: our copying before our looks
        fence(ACQUIRE);
        let entry = work.ops.get(index);
        let (handle, address) = (Handle::unpack(entry.key), entry.address);
        let outcome = if sides.their_left() != LEFT_NOT {
            Outcome::PeerDown
        } else if !sides.board.allows(handle, address, entry.local.length().0) {
            Outcome::Key
        } else {
            Outcome::Success
        };
        self.end_first(work, outcome, 0);
    }

    #[cold]
    fn kernel_refused(&mut self, work: &mut Work, index: u32, errno: Errno) -> Step {
        match errno.0 {
            // ESRCH says that its first thread has ended, not that the peer has: of that the side
            // band tells
            libc::EPERM | libc::ENOSYS | libc::ESRCH => {
                self.kernel_pid = 0;
                work.ops.get(index).way = Way::Ring;
                Step::Next
            }
            libc::EINTR | libc::EAGAIN => Step::Wait,
            // pages that the kernel does not lend, a device's for one: the peer reads them itself
            libc::EFAULT => {
                work.ops.get(index).way = Way::Ring;
                Step::Next
            }
            code => {
                self.end_first(work, Outcome::Fabric, code);
                Step::Next
            }
        }
    }

    fn end_first(&mut self, work: &mut Work, outcome: Outcome, code: i32) {
        if let Some(index) = work.ops.take_first(&mut self.queued) {
            work.finish(index, outcome, code);
        }
    }

    /// Asks the peer for the oldest reads, as many as it takes at a time.
    fn ask(&mut self, sides: &mut Sides, work: &mut Work) -> Step {
        let mut asked = false;
        let mut at = self.queued.first();
        for _ in 0..REQUESTS_MAX {
            let Some(index) = at else { break };
            at = work.ops.after(index);
            match work.ops.get(index).way {
                Way::RingAsked => continue,
                Way::Ring => {}
                Way::Undecided if !sides.board.is_some() => {}
                Way::Undecided | Way::Direct | Way::Kernel => break,
            }
            if !self.ask_for(sides, work, index) {
                break;
            }
            asked = true;
        }
        if asked {
            sides.bell().ring();
        }
        self.waits = true;
        Step::Wait
    }

    fn ask_for(&mut self, sides: &mut Sides, work: &mut Work, index: u32) -> bool {
        let entry = work.ops.get(index);
        let prefix = Prefix {
            key: entry.key,
            address: entry.address.wrapping_add(entry.progress),
            amount: entry.local.length().0 - entry.progress,
            word: self.serial_next,
            zero: 0,
        };
        // SAFETY: the body is empty.
        if !unsafe { sides.put(Header::new(Kind::Read, 0, 0), prefix, [].as_ptr()) } {
            return false;
        }
        (entry.way, entry.serial) = (Way::RingAsked, self.serial_next);
        self.serial_next = self.serial_next.wrapping_add(1);
        true
    }

    /// Takes an answer to the oldest read: a part that the peer put into its ring, or a refusal.
    pub(super) fn take_answer(&mut self, work: &mut Work, record: &Record) -> Result<(), Corrupt> {
        let entry = work.ops.get(self.queued.first().ok_or(Corrupt)?);
        if entry.way != Way::RingAsked || entry.serial != Prefix::of(record).word {
            return Err(Corrupt);
        }
        if record.kind == Kind::Refuse {
            self.end_first(work, Outcome::Key, 0);
            return Ok(());
        }
        let length = u64::from(record.length);
        let left = entry.local.length().0 - entry.progress;
        if length > left {
            return Err(Corrupt);
        }
        let to = (entry.local.address() + entry.progress) as *mut u8;
        // SAFETY: the record lies in the ring (`peek`), the target in the op's span.
        unsafe {
            let from = record.at.add(body_at(record.length as usize));
            from.copy_to_nonoverlapping(to, record.length as usize);
        }
        entry.progress += length;
        self.pulled.ring_bytes += length;
        if length == left {
            self.end_first(work, Outcome::Success, 0);
        }
        Ok(())
    }
}
