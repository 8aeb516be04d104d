//! Short messages are peeked at, and taken out of the kernel some at a time.
//!
//! If an application reads a second short message before the kernel has acknowledged any, that call
//! sends an acknowledgement, unless more is left to read. On a one-way connection this is a packet
//! for every second message. It takes two to four microseconds, while the caller waits for the
//! message.
//!
//! So a stream of short messages is peeked at, and taken out when some have gathered. By then a
//! line of the transport has mostly acknowledged them. A stream is emptied early in these cases:
//!
//! - nothing more comes for a while: a peer with a small window would wait for an acknowledgement;
//! - the thread is about to sleep: unread bytes would wake it;
//! - the socket is closed: unread bytes would reset the connection.
//!
//! The kernel must remember how far a TCP socket was peeked at: Linux 6.10, or 6.12 for IPv6. On
//! older kernels each message is taken as it is read.
#![forbid(unsafe_code)]

use super::socket;

/// Reads of a stream that gave no more gave short messages: some of them at a time.
const SHORT_READ_BYTES: usize = 1 << 10;
/// So many reads leave what they read before it is taken: as many as a line of slots speaks for,
/// and fewer than the segments that a new connection may have under way, ten.
const PEEKS_MAX: u8 = 8;
/// In place of the count: what was to be taken was not there, and the stream is of no use.
const READS_LOST: u8 = u8::MAX;
/// Looks that give nothing until it is taken. Between two messages of a collective NCCL looks six
/// times, and thirty before the next one: what was read last stays until a line leaves.
const VAIN_MAX: u8 = 48;
/// What one look counts that is one at all streams: those come less often, and of a stream that was
/// peeked at the kernel says each time that it has something.
const VAIN_IN_TURN: u8 = VAIN_MAX / 4;

/// What was peeked at on one stream. Zeroed: nothing, and it is not to be peeked at.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Peeked {
    /// Bytes that were read and not taken.
    bytes: u32,
    /// Reads that gave them.
    reads: u8,
    /// Looks since that gave nothing.
    vain: u8,
    /// Whether the kernel remembers how far the socket was peeked at.
    may: bool,
    /// Whether the last read gave little.
    short: bool,
}

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

    /// Whether the next read leaves what it reads, if it `may`; takes what must be taken before it.
    /// When enough have gathered it leaves nothing: with something unread the kernel would
    /// acknowledge none. `None`: what was to be taken is not there, and the stream is of no use.
    #[inline]
    pub fn leaves(&mut self, may: bool, fd: i32) -> Option<bool> {
        let leaves = may && self.short && self.reads < PEEKS_MAX;
        (leaves || !self.is_due() || self.take(fd)).then_some(leaves)
    }

    /// A read has given so many bytes, and left them if it `peeks`.
    #[inline]
    pub fn note(&mut self, bytes: usize, peeks: bool) {
        self.short = self.may && bytes <= SHORT_READ_BYTES;
        if peeks {
            (self.bytes, self.reads, self.vain) = (self.bytes + bytes as u32, self.reads + 1, 0);
        }
    }

    /// A read has given nothing.
    #[inline]
    pub fn note_vain(&mut self, fd: i32) {
        if !self.is_due() {
            return;
        }
        self.vain += 1;
        if self.vain >= VAIN_MAX {
            self.take(fd);
        }
    }

    /// It is read as one of all. Nobody waits for this one more than for others, so that it is not
    /// peeked at for the first time; if it was, looks in vain have an end.
    #[inline]
    pub fn note_turn(&mut self) {
        if self.is_due() {
            self.vain = (self.vain + VAIN_IN_TURN).min(VAIN_MAX - 1);
        } else {
            self.short = false;
        }
    }

    /// Takes what was peeked at. `false`: it is not there, now or when somebody tried before; who
    /// reads next hears of it again.
    #[inline(never)]
    pub fn take(&mut self, fd: i32) -> bool {
        let may = self.reads != READS_LOST;
        let is_taken = may && socket::take_out(fd, self.bytes as usize);
        let left = if is_taken { (0, 0) } else { (self.bytes, READS_LOST) };
        ((self.bytes, self.reads), self.vain) = (left, 0);
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair::{PairConfig, connected};
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn short_reads_are_left_until_enough_have_gathered() {
        let [near, _far] = connected(&PairConfig::default());
        let fd = near.as_raw_fd();
        let mut peeked = Peeked::opened(true);
        assert_eq!(peeked.leaves(true, fd), Some(false), "the first read may be long");
        peeked.note(64, false);
        assert_eq!(peeked.leaves(false, fd), Some(false), "it may not");
        for _ in 0..PEEKS_MAX {
            assert_eq!(peeked.leaves(true, fd), Some(true));
            peeked.note(64, true);
        }
        // nothing of that is there
        assert_eq!((peeked.leaves(true, fd), peeked.is_due()), (None, true));
    }
}
