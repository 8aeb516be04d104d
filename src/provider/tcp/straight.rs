//! The straight way in: what a poll does for the common message, without the rest of a poll.
//!
//! It is for one stream that is read directly, with short sends on it and the lines between them.
//! Whatever else there is, it leaves to a poll as it was.
#![forbid(unsafe_code)]

use super::area::{SCRATCH_BYTES, SHORT_BYTES_MAX};
use super::pull::{Garbage, Read};
use super::rail::{NONE, Tcp};
use super::stream::To;
use crate::base::ids::PeerIndex;
use crate::fabric::{DownCause, Next, RecvSlot};
use crate::provider::notes::NOTE_KEY;
use crate::wire::stream::{self, HEADER_BYTES_MAX};

/// Staged bytes that one look hands over.
const LOOK_BYTES: u64 = 64 << 10;

impl Tcp<'_> {
    /// [`crate::fabric::Provider::next`]: hands over what is staged, reads once, and gives out what
    /// was read, one send per call. *Cost*: at most two system calls, a third for eight messages.
    #[inline(never)]
    pub fn next_straight(&mut self) -> Next {
        let Some(index) = self.straight_stream() else { return Next::Poll };
        self.only = NONE; // there is one
        if self.scratch.owner == NONE {
            if !self.dirty.is_empty() {
                self.flush_dirty(&mut LOOK_BYTES.clone());
            }
            match self.read(index, &mut (SCRATCH_BYTES as u64)) {
                Read::Whole | Read::Short => {}
                Read::Empty if self.endings == 0 => return Next::Nothing,
                Read::Empty | Read::Closed => return Next::Poll,
            }
        }
        self.next_in_scratch(index).unwrap_or_else(|Garbage| {
            self.break_off(self.peer_of(index).0, DownCause::Failed);
            Next::Poll
        })
    }

    /// The one stream, if nothing but short frames is under way on it.
    #[inline]
    fn straight_stream(&self) -> Option<usize> {
        let is_alone = self.open_count == 1
            && !self.is_watching
            && self.endings == 0
            && self.ops.none_done()
            && !self.has_helpers();
        let index = is_alone.then(|| self.open_stream(0))?;
        let stream = &self.streams[index];
        let is_short = stream.payload.to == To::Nowhere && stream.out.only_staged().is_some();
        (is_short && stream.carried == 0 && !stream.sums).then_some(index)
    }

    /// The next send in the scratch buffer. Carries out the lines before it.
    #[inline]
    fn next_in_scratch(&mut self, index: usize) -> Result<Next, Garbage> {
        loop {
            let bytes = self.scratch_bytes();
            if let Some(length) = stream::send_length(bytes) {
                let is_there = bytes.len() - HEADER_BYTES_MAX >= length as usize;
                if !is_there || length > SHORT_BYTES_MAX {
                    return Ok(Next::Poll);
                }
                let Some((slot, head)) = self.take_send(index, length)? else {
                    return Ok(Next::Poll);
                };
                let (peer, slot) = (PeerIndex(self.peer_of(index).0 as u32), RecvSlot(slot.into()));
                return Ok(Next::Received { peer, slot, head, length });
            }
            if !bytes.is_empty() {
                match stream::silent_write(bytes) {
                    Some(line) if line.is_whole(bytes) && line.key != NOTE_KEY.0 => {
                        self.take_line(index, line)?;
                    }
                    Some(_) | None => return Ok(Next::Poll),
                }
                continue;
            }
            self.scratch.owner = NONE;
            // less came than was asked for: there is no more
            return Ok(if self.scratch.is_full { Next::Poll } else { Next::Nothing });
        }
    }
}
