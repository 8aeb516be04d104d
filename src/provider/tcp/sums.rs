//! Sums behind headers and payloads (W9.1), where both sides have agreed on them: CRC-32C, which
//! processors compute by themselves.

use super::pull::{Garbage, received};
use super::rail::Tcp;
use super::stream::CARRY_BYTES;
use crate::fabric::LINE_BYTES;
use crate::provider::events::Events;
use crate::provider::touch;
pub use crate::wire::stream::SUM_BYTES;
use crate::wire::stream::StreamFrame;

/// What is summed at a time: it stays in the nearest cache.
const PART_BYTES: usize = 4 << 10;

/// The sum of bytes of our own.
pub fn of(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Goes on with a sum, 0 at first, over memory that others may touch.
///
/// # Safety
/// - the memory is valid for reads.
pub unsafe fn of_memory(mut sum: u32, address: u64, length: u64) -> u32 {
    let mut part = [0; PART_BYTES];
    let mut at = 0;
    while at < length {
        let count = (length - at).min(PART_BYTES as u64) as usize;
        // SAFETY: inside the memory that the caller vouches for.
        unsafe { touch::copy_in(address + at, &mut part[..count]) };
        sum = crc32c::crc32c_append(sum, &part[..count]);
        at += count as u64;
    }
    sum
}

/// The sum that bytes begin with; `None`: there are too few.
pub fn read(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<SUM_BYTES>().map(|bytes| u32::from_le_bytes(*bytes))
}

impl Tcp<'_> {
    /// Keeps what has come of a header, a line or a sum until the rest comes.
    pub(super) fn carry_rest(&mut self, index: usize) {
        let bytes = self.scratch_bytes();
        let left = bytes.len();
        let mut carry = [0; CARRY_BYTES];
        carry[..left].copy_from_slice(bytes);
        self.streams[index].carry = carry;
        self.streams[index].carried = left as u8;
        self.scratch_pass(left);
    }

    /// [`Tcp::parse_frame`] of a stream with sums: nothing is done by a header, or a line, before
    /// it is known to be right. There is at least one byte.
    pub(super) fn parse_summed(
        &mut self,
        index: usize,
        events: &mut Events,
    ) -> Result<bool, Garbage> {
        // whatever is no frame was changed
        self.streams[index].is_changed = true;
        let bytes = self.scratch_bytes();
        let header = StreamFrame::header_bytes(bytes[0]).map_err(|_| Garbage)?;
        let Some(sum) = bytes.get(header..).and_then(read) else {
            self.streams[index].is_changed = false;
            self.carry_rest(index);
            return Ok(false);
        };
        if sum != of(&bytes[..header]) {
            return Err(Garbage);
        }
        let frame = StreamFrame::decode(&bytes[..header]).map_err(|_| Garbage)?;
        let line = match frame {
            StreamFrame::Write { length, silent: true, .. } if !self.is_bulk => {
                usize::try_from(length).ok().filter(|length| *length == LINE_BYTES)
            }
            _ => None,
        };
        if let Some(length) = line {
            let rest = &bytes[header + SUM_BYTES..];
            match rest.get(length..).and_then(read) {
                None => {
                    self.streams[index].is_changed = false;
                    self.carry_rest(index);
                    return Ok(false);
                }
                Some(sum) if sum != of(&rest[..length]) => return Err(Garbage),
                Some(_) => {}
            }
        }
        self.streams[index].is_changed = false;
        if let StreamFrame::Send { length } = frame {
            if self.scratch.has_long && !self.peers[self.peer_of(index).0].has_cell(length) {
                self.scratch.waits = true;
                return Ok(false);
            }
            match self.take_send(index, length)? {
                Some((slot, head)) => {
                    events.push(received(self.peer_of(index).0, slot, head, length));
                }
                None => self.streams[index].payload.has_sum = true,
            }
            return Ok(true);
        }
        if let StreamFrame::Write { key, .. } = frame
            && self.has_no_room_for(key)
        {
            return Ok(false);
        }
        self.scratch_pass(header + SUM_BYTES);
        self.take(index, frame)?;
        let payload = &mut self.streams[index].payload;
        payload.has_sum = payload.left > 0;
        Ok(true)
    }

    /// Looks at the sum behind a payload that is whole. `false`: it has not come.
    pub(super) fn parse_sum(&mut self, index: usize) -> Result<bool, Garbage> {
        let Some(sum) = read(self.scratch_bytes()) else {
            self.carry_rest(index);
            return Ok(false);
        };
        self.scratch_pass(SUM_BYTES);
        let stream = &mut self.streams[index];
        stream.payload.has_sum = false;
        stream.is_changed = sum != stream.payload.sum;
        if stream.is_changed { Err(Garbage) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// RFC 3720, B.4.
    #[test]
    fn sum_is_that_of_iscsi() {
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        let bytes: std::vec::Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        // SAFETY: bytes of ours.
        let sum = unsafe { of_memory(0, bytes.as_ptr() as u64, bytes.len() as u64) };
        assert_eq!(sum, of(&bytes));
    }
}
