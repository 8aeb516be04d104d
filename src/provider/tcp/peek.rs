//! Short messages are read and left where they are, and taken out of the kernel some at a time.
//!
//! Whoever takes the second short message since the kernel has acknowledged any has it send an
//! acknowledgement, within that very call, if nothing is left to read. On a connection that goes
//! one way that is a packet for every second message, which takes two to four microseconds, while
//! somebody waits for what was read. So a stream of short messages is peeked at, and what was is
//! taken out when some have gathered: by then a line of the transport's own has told the peer's
//! kernel, most of the time. One that brings nothing more for a while is emptied, so that a peer
//! with a small window does not wait for an acknowledgement; so is one that somebody sleeps over,
//! which would wake him, and one that is closed, which would be reset.
//!
//! Needs a kernel that remembers how far a TCP socket was peeked at: Linux 6.10. Elsewhere each
//! message is taken as it is read.
#![forbid(unsafe_code)]

use super::rail::Tcp;
use super::socket;
use super::stream::{Stream, To};

/// Reads of a stream that gave no more than so many bytes gave short messages.
const SHORT_READ: usize = 1 << 10;
/// So many are peeked at before they are taken: as many as a line answers.
const PEEKS_MAX: u8 = 8;
/// Looks that give nothing until they are taken: some of the time that a GPU needs to answer.
const VAIN_MAX: u8 = 48;
/// What one look counts that is one at all streams: those come less often, and of a stream that was
/// peeked at the kernel says each time that it has something.
const VAIN_IN_TURN: u8 = VAIN_MAX / 4;

/// What was peeked at on one stream. Zeroed: nothing, nor may it be.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Peeked {
    /// Bytes that were read and not taken.
    bytes: u16,
    /// Reads that gave them.
    reads: u8,
    /// Looks since that gave nothing.
    vain: u8,
    /// Whether the kernel remembers how far the socket was peeked at.
    may: bool,
    /// Whether the last read gave little.
    short: bool,
}

const _: () = assert!(SHORT_READ * PEEKS_MAX as usize <= u16::MAX as usize);

impl Peeked {
    /// Of a stream that was just opened.
    pub fn opened(may: bool) -> Peeked {
        Peeked { may, ..Peeked::default() }
    }

    /// Whether something was read and not taken.
    #[inline]
    pub const fn is_due(&self) -> bool {
        self.bytes != 0
    }
}

impl Stream {
    /// Whether the next read leaves what it reads; takes what must be taken before it. When enough
    /// have gathered it leaves nothing: with something unread the kernel would acknowledge none.
    #[inline]
    pub(super) fn peeks(&mut self) -> bool {
        let seen = &self.peeked;
        let between = self.payload.to == To::Nowhere && !self.was_long;
        let leaves = between && seen.short && seen.reads < PEEKS_MAX;
        if seen.is_due() && !leaves {
            self.peeked_take();
        }
        leaves
    }

    /// A read has given so many bytes, and left them if it `peeks`.
    #[inline]
    pub(super) fn peeks_note(&mut self, bytes: usize, peeks: bool) {
        let seen = &mut self.peeked;
        seen.short = seen.may && bytes <= SHORT_READ;
        if !peeks {
            return;
        }
        if seen.short {
            (seen.bytes, seen.reads, seen.vain) = (seen.bytes + bytes as u16, seen.reads + 1, 0);
        } else {
            socket::discard(self.fd, usize::from(seen.bytes) + bytes);
            (seen.bytes, seen.reads) = (0, 0);
        }
    }

    /// A read has given nothing.
    #[inline]
    pub(super) fn peeks_in_vain(&mut self) {
        if !self.peeked.is_due() {
            return;
        }
        self.peeked.vain += 1;
        if self.peeked.vain >= VAIN_MAX {
            self.peeked_take();
        }
    }

    /// It is read as one of all. Nobody waits for this one more than for others, so that it is not
    /// peeked at for the first time; if it was, looks in vain have an end.
    #[inline]
    pub(super) fn peeks_in_turn(&mut self) {
        let seen = &mut self.peeked;
        if seen.is_due() {
            seen.vain = (seen.vain + VAIN_IN_TURN).min(VAIN_MAX - 1);
        } else {
            seen.short = false;
        }
    }

    /// Takes what was peeked at.
    #[inline(never)]
    pub(super) fn peeked_take(&mut self) {
        socket::discard(self.fd, self.peeked.bytes.into());
        let Peeked { may, short, .. } = self.peeked;
        self.peeked = Peeked { may, short, ..Peeked::default() };
    }
}

impl Tcp<'_> {
    /// Takes what was peeked at on all streams.
    pub(super) fn peeked_take_all(&mut self) {
        for n in 0..self.open_count {
            let index = self.open_stream(n);
            if self.streams[index].peeked.is_due() {
                self.streams[index].peeked_take();
            }
        }
    }
}
