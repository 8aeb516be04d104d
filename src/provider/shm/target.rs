//! What the peer asks for through its write ring: writes and adds into our memory, and reads of it
//! where it cannot copy itself.
//!
//! A counter and a word of refusals beside the rings tell the writer what was carried out, in the
//! order in which the last records of its ops stand in the ring. These are no records themselves:
//! two full rings could never be emptied if emptying one took room in the other.

use super::copiers::{Job, PART_BYTES_MIN, Taken};
use super::layout::{ACKED_AT, REFUSED_AT};
use super::ops::Work;
use super::pull::{Pulls, REQUESTS_MAX};
use super::push::ACKS_MAX;
use super::record::{FLAG_ACK, FLAG_IMMEDIATE, Header, Kind, body_at};
use super::ring::{Corrupt, Record, RingReader};
use super::sides::{Prefix, Sides};
use super::word::{RELAXED, RELEASE, u32_at, u64_at};
use crate::base::ids::PeerIndex;
use crate::base::regions::RegionTable;
use crate::base::slab::Handle;
use crate::fabric::{Completion, LINE_BYTES, Line};
use crate::provider::notes::NOTE_KEY;

/// One request to read. Zeroed: none.
#[derive(Copy, Clone, Default, Debug)]
struct Request {
    address: u64,
    left: u64,
    serial: u32,
    /// Index of the pinned region.
    region: u32,
    refused: bool,
}

/// The peer's writes, adds and requests. Zeroed: of no ring, and not to be used.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) ring: RingReader,
    /// Outstanding requests, oldest first.
    requests: [Request; REQUESTS_MAX],
    requests_count: u8,
    /// An earlier part of the incoming write was refused.
    part_refused: bool,
    acks_unpublished: bool,
    acks_given: u32,
    refused_bits: u64,
}

impl Target {
    /// Whether no request waits.
    #[inline(always)]
    pub(super) fn has_no_requests(&self) -> bool {
        self.requests_count == 0
    }

    /// Carries out what came through the write ring.
    pub(super) fn take(
        &mut self,
        sides: &mut Sides,
        pulls: &mut Pulls,
        work: &mut Work,
    ) -> Result<(), Corrupt> {
        let mut told = false;
        while work.budget != 0 && work.has_room_for_taken(sides.peer) && work.notes.has_room() {
            let Some(record) = self.ring.peek()? else { break };
            if record.flags & FLAG_IMMEDIATE != 0 && !work.out.has_room() {
                break;
            }
            let mut taken = Taken::behind(&record);
            match record.kind {
                Kind::Write => self.take_write(sides.peer, work, &record, &mut taken)?,
                Kind::Add => take_add(work, &record, &mut taken),
                Kind::Read => self.take_request(work, &record)?,
                Kind::Data | Kind::Refuse => pulls.take_answer(work, &record)?,
                Kind::Pad => self.ring.turned(&record),
                Kind::Send => return Err(Corrupt),
            }
            work.charge(if taken.region == 0 { u64::from(record.length) } else { 0 });
            self.ring.pass(&record);
            told |= self.end_or_wait(sides, work, taken);
        }
        self.tell_acks(sides, told);
        Ok(())
    }

    /// Ends a record that was passed, or has it wait for its copy and for those before it. Says
    /// whether the peer was told.
    fn end_or_wait(&mut self, sides: &Sides, work: &mut Work, taken: Taken) -> bool {
        match work.copiers.as_deref_mut() {
            Some(copiers) if taken.region != 0 || !copiers.none_taken(sides.peer) => {
                copiers.take(sides.peer, taken);
                false
            }
            _ => self.end_taken(sides, work, taken),
        }
    }

    /// What follows when a record has been carried out.
    fn end_taken(&mut self, sides: &Sides, work: &mut Work, taken: Taken) -> bool {
        if taken.is_acked {
            self.acknowledge(sides, taken.is_refused);
        }
        if taken.has_immediate && !taken.is_refused {
            let (peer, immediate) = (sides.peer, taken.immediate);
            work.out.push(Completion::Immediate { peer, immediate });
        }
        self.ring.retire(taken.end)
    }

    /// Ends what threads have copied. There is something.
    pub(super) fn end_copied(&mut self, sides: &mut Sides, work: &mut Work) {
        let mut told = false;
        while let Some(taken) = work.copiers.as_deref().and_then(|all| all.front(sides.peer)) {
            if taken.has_immediate && !work.out.has_room() {
                break;
            }
            work.drop_taken(sides.peer, taken);
            told |= self.end_taken(sides, work, taken);
        }
        self.tell_acks(sides, told);
    }

    /// Counts one more of the peer's acknowledged ops as carried out; told by
    /// [`Target::tell_acks`].
    fn acknowledge(&mut self, sides: &Sides, refused: bool) {
        let bit = 1u64 << (self.acks_given % ACKS_MAX);
        let bits = if refused { self.refused_bits | bit } else { self.refused_bits & !bit };
        if bits != self.refused_bits {
            self.refused_bits = bits;
            // SAFETY: a word of our places (`Peer::open`).
            unsafe { u64_at(sides.ours.add(REFUSED_AT)) }.store(bits, RELAXED);
        }
        self.acks_given = self.acks_given.wrapping_add(1);
        self.acks_unpublished = true;
    }

    /// Publishes what [`Target::acknowledge`] counted, and that the ring was read.
    fn tell_acks(&mut self, sides: &mut Sides, told_position: bool) {
        if self.acks_unpublished {
            self.acks_unpublished = false;
            // SAFETY: a word of our places (`Peer::open`).
            // release: [acked], the ops took effect and their refusals are written
            unsafe { u32_at(sides.ours.add(ACKED_AT)) }.store(self.acks_given, RELEASE);
            sides.bell_due = true;
        }
        sides.bell_due |= told_position;
    }

    fn take_write(
        &mut self,
        peer: PeerIndex,
        work: &mut Work,
        record: &Record,
        taken: &mut Taken,
    ) -> Result<(), Corrupt> {
        let prefix = Prefix::of(record);
        let length = u64::from(record.length);
        let (last, acked) = (length == prefix.amount, record.flags & FLAG_ACK != 0);
        if length > prefix.amount || (acked && !last) {
            return Err(Corrupt);
        }
        let key = Handle::unpack(prefix.key);
        let held = work.regions.hold(key, prefix.address, prefix.amount);
        if held.is_none() && last && !acked {
            return take_note(peer, work, record, &prefix);
        }
        self.part_refused |= held.is_none();
        if last {
            let is_refused = core::mem::take(&mut self.part_refused);
            let has_immediate = record.flags & FLAG_IMMEDIATE != 0;
            (taken.is_acked, taken.is_refused) = (acked, is_refused);
            (taken.immediate, taken.has_immediate) = (prefix.word, has_immediate);
        }
        let Some(region) = held else { return Ok(()) };
        if self.part_refused || taken.is_refused {
            region.pin(-1);
            return Ok(());
        }
        // SAFETY: the record lies in the ring (`peek`).
        let body = unsafe { record.at.add(body_at(record.length as usize)) };
        if record.length >= PART_BYTES_MIN
            && let Some(copiers) = work.copiers.as_deref_mut()
            && let Some(copier) = copiers.choose()
        {
            // it stays pinned until the copy has ended
            taken.region = key.index + 1;
            copiers.begin(peer);
            let (body, to, number) = (body as u64, prefix.address, copiers.next_taken(peer));
            let job = Job::Out { body, to, length: record.length, taken: number };
            copiers.give(copier, peer, None, job);
            return Ok(());
        }
        // SAFETY: the target lies in a registered region, which is pinned (`hold`).
        unsafe { body.copy_to(prefix.address as *mut u8, record.length as usize) };
        region.pin(-1);
        Ok(())
    }

    /// Takes a request; the region stays pinned until it is met.
    fn take_request(&mut self, work: &mut Work, record: &Record) -> Result<(), Corrupt> {
        let prefix = Prefix::of(record);
        let handle = Handle::unpack(prefix.key);
        let place = self.requests.get_mut(usize::from(self.requests_count)).ok_or(Corrupt)?;
        let inside = work.regions.hold(handle, prefix.address, prefix.amount).is_some();
        *place = Request {
            address: prefix.address,
            left: prefix.amount,
            serial: prefix.word,
            region: handle.index,
            refused: !inside,
        };
        self.requests_count += 1;
        Ok(())
    }

    /// Meets the oldest requests as far as room and budget reach.
    pub(super) fn serve(&mut self, sides: &mut Sides, work: &mut Work) -> bool {
        let mut served = false;
        while !self.has_no_requests() && work.budget != 0 && self.serve_part(sides, work) {
            served = true;
        }
        if served {
            sides.bell().ring();
        }
        served
    }

    fn serve_part(&mut self, sides: &mut Sides, work: &mut Work) -> bool {
        let first = &mut self.requests[0];
        let part = if first.refused { 0 } else { first.left.min(u64::from(sides.chunk_bytes)) };
        let kind = if first.refused { Kind::Refuse } else { Kind::Data };
        let prefix = Prefix { key: 0, address: 0, amount: 0, word: first.serial, zero: 0 };
        let header = Header::new(kind, 0, part as u32);
        // SAFETY: the bytes lie in a region that is pinned since the request was checked
        // (`take_request`).
        if !unsafe { sides.put(header, prefix, first.address as *const u8) } {
            return false;
        }
        work.charge(part);
        first.address = first.address.wrapping_add(part);
        first.left -= part;
        if first.refused || first.left == 0 {
            self.drop_request(work.regions);
        }
        true
    }

    fn drop_request(&mut self, regions: RegionTable) {
        if !self.requests[0].refused {
            regions.pin(self.requests[0].region, -1);
        }
        self.requests.rotate_left(1);
        self.requests_count -= 1;
    }

    /// Forgets all requests.
    pub(super) fn clear(&mut self, regions: RegionTable) {
        while !self.has_no_requests() {
            self.drop_request(regions);
        }
    }
}

/// A line to no region is a note, or breaks the format.
#[cold]
fn take_note(
    peer: PeerIndex,
    work: &mut Work,
    record: &Record,
    prefix: &Prefix,
) -> Result<(), Corrupt> {
    if prefix.key != NOTE_KEY.0 || record.length as usize != LINE_BYTES {
        return Err(Corrupt);
    }
    // SAFETY: the record lies in the ring (`peek`), its body on a line of its own; the writer
    // may be changing it, so it is read once.
    let line = unsafe { record.at.add(body_at(LINE_BYTES)).cast::<Line>().read_volatile() };
    if work.notes.put(peer, &line) { Ok(()) } else { Err(Corrupt) }
}

fn take_add(work: &mut Work, record: &Record, taken: &mut Taken) {
    let prefix = Prefix::of(record);
    let held = match prefix.address.is_multiple_of(8) {
        true => work.regions.hold(Handle::unpack(prefix.key), prefix.address, 8),
        false => None,
    };
    if let Some(region) = held {
        // SAFETY: an aligned word of a registered region, which is pinned (`hold`).
        let word = unsafe { u64_at(prefix.address as *mut u8) };
        // All adds through this rail are made by this thread, so a load and a store will do.
        // release: [add], for a user thread that waits for the sum with acquire
        word.store(word.load(RELAXED).wrapping_add(prefix.amount), RELEASE);
        region.pin(-1);
    }
    (taken.is_acked, taken.is_refused) = (true, held.is_none());
}
