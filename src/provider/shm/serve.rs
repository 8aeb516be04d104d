//! The other end of a read through the ring: the owner copies its memory out, part by part.

use super::peer::{Peer, Work};
use super::push::{Prefix, fill, prefix_of};
use super::record::{Header, Kind, lines_for};
use super::ring::{Corrupt, Record};
use crate::base::regions::RegionTable;
use crate::base::slab::Handle;

/// Requests that a reader may have outstanding: enough to hide the way there and back.
pub(super) const REQUESTS_MAX: usize = 4;

/// One request. Zeroed: none.
#[derive(Copy, Clone, Default, Debug)]
struct Serve {
    address: u64,
    left: u64,
    serial: u32,
    /// Index of the pinned region.
    region: u32,
    refused: bool,
}

/// The requests that one peer has outstanding, oldest first.
#[derive(Debug, Default)]
pub(super) struct Serves {
    list: [Serve; REQUESTS_MAX],
    count: u32,
}

impl Serves {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, serve: Serve) -> Result<(), Corrupt> {
        *self.list.get_mut(self.count as usize).ok_or(Corrupt)? = serve;
        self.count += 1;
        Ok(())
    }

    fn drop_first(&mut self, regions: RegionTable) {
        if !self.list[0].refused {
            regions.pin(self.list[0].region, -1);
        }
        self.list.rotate_left(1);
        self.count -= 1;
    }

    /// Forgets all requests.
    pub(super) fn clear(&mut self, regions: RegionTable) {
        while self.count != 0 {
            self.drop_first(regions);
        }
    }
}

impl Peer {
    /// Takes a request; the region stays pinned until it is met.
    pub(super) fn take_request(&mut self, work: &mut Work, record: &Record) -> Result<(), Corrupt> {
        let prefix = prefix_of(record);
        let handle = Handle::unpack(prefix.key);
        if self.serves.count as usize == REQUESTS_MAX {
            return Err(Corrupt);
        }
        let inside = work.regions.hold(handle, prefix.address, prefix.amount).is_some();
        self.serves.push(Serve {
            address: prefix.address,
            left: prefix.amount,
            serial: prefix.word,
            region: handle.index,
            refused: !inside,
        })
    }

    /// Meets the oldest requests as far as room and budget reach.
    pub(super) fn serve(&mut self, work: &mut Work) -> bool {
        let mut served = false;
        while !self.serves.is_empty() && work.budget != 0 && self.serve_part(work) {
            served = true;
        }
        if served {
            self.ring_bell();
        }
        served
    }

    fn serve_part(&mut self, work: &mut Work) -> bool {
        let first = self.serves.list[0];
        let part = if first.refused { 0 } else { first.left.min(u64::from(self.chunk_bytes)) };
        let lines = lines_for(part as usize);
        let Some(at) = self.write_out.reserve(lines) else { return false };
        let prefix = Prefix { key: 0, address: 0, amount: 0, word: first.serial, zero: 0 };
        // SAFETY: just reserved for a body of `part` bytes, which lie in a region that is pinned
        // since the request was checked (`take_request`).
        unsafe { fill(at, prefix, first.address as *const u8, part as usize) };
        let kind = if first.refused { Kind::Refuse } else { Kind::Data };
        self.write_out.publish(lines, Header::new(kind, 0, part as u32));
        work.charge(part);
        let serve = &mut self.serves.list[0];
        serve.address = serve.address.wrapping_add(part);
        serve.left -= part;
        if serve.refused || serve.left == 0 {
            self.serves.drop_first(work.regions);
        }
        true
    }
}
