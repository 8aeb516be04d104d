//! What stands where in the memory that one side of a connection writes and the other reads.
//!
//! ```text
//! 0        128      256    384      512
//! | flags  | places | rung | unused | send ring | write ring |
//! ```
//!
//! Each side has such memory of its own, and nothing in it is written by the other. Two lines for
//! each part, as processors fetch lines in pairs.
#![forbid(unsafe_code)]

use super::record::LINE;
use super::ring::{LINES_MIN, lines_first};

/// What stands before the first ring: with it the ring's first lines fill a page.
const CONTROL_BYTES: usize = 512;
const PLACES_AT: usize = 128;

/// In the flags: nonzero while the side sleeps and wants its doorbell rung, another number each
/// time.
pub const ARMED_AT: usize = 0;
/// In the flags: one of the `LEFT_` constants.
pub const LEFT_AT: usize = 8;
/// In the places: how far the side has read its incoming send ring.
pub const SEND_READ_AT: usize = PLACES_AT;
/// In the places: how far the side has read its incoming write ring.
pub const WRITE_READ_AT: usize = PLACES_AT + 4;
/// In the places: how many acknowledged ops the side has carried out.
pub const ACKED_AT: usize = PLACES_AT + 8;
/// In the places: bit `n % 64` says that acknowledged op `n` was refused.
pub const REFUSED_AT: usize = PLACES_AT + 16;
/// The other side's armed word as it was when the side rang last. For the side's own threads.
pub const RUNG_AT: usize = 256;
/// The send ring that the side writes.
pub const SEND_RING_AT: usize = CONTROL_BYTES;

/// The side is there.
pub const LEFT_NOT: u32 = 0;
/// The side has closed the connection.
pub const LEFT_CLOSED: u32 = 1;
/// The side has given the connection up as broken.
pub const LEFT_FAILED: u32 = 2;

/// Lengths of a connection's rings in bytes: powers of two.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct RingSizes {
    /// Of each send ring.
    pub send_bytes: u32,
    /// Of each write ring.
    pub write_bytes: u32,
}

impl RingSizes {
    /// Whether rings can have these sizes.
    pub const fn is_valid(self) -> bool {
        let least = LINES_MIN * LINE as u32;
        self.send_bytes.is_power_of_two()
            && self.write_bytes.is_power_of_two()
            && self.send_bytes >= least
            && self.write_bytes >= least
    }
}

/// Bytes that one side's part of a connection takes: the rings that it writes, and what stands
/// before them.
///
/// *Shape*: a multiple of 512; aligned to a line, better to a page. Its writer zeroes it before
/// either side opens the connection.
pub const fn rings_bytes(send_ring_bytes: u32, write_ring_bytes: u32) -> usize {
    CONTROL_BYTES + send_ring_bytes as usize + write_ring_bytes as usize
}

/// Offset of the write ring that the side writes.
pub const fn write_ring_at(sizes: RingSizes) -> usize {
    SEND_RING_AT + sizes.send_bytes as usize
}

/// Offsets and lengths in bytes of what must be there before either side opens the connection. The
/// writer of a ring sees to it that more is there before it uses more.
pub const fn first_parts(sizes: RingSizes) -> [(usize, usize); 2] {
    let send = lines_first(sizes.send_bytes / LINE as u32) as usize * LINE;
    let write = lines_first(sizes.write_bytes / LINE as u32) as usize * LINE;
    [(0, SEND_RING_AT + send), (write_ring_at(sizes), write)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_the_memory_without_overlap() {
        let sizes = RingSizes { send_bytes: 4096, write_bytes: 8192 };
        let control = [ARMED_AT, LEFT_AT, SEND_READ_AT, WRITE_READ_AT, ACKED_AT, REFUSED_AT];
        let ends = [8, 4, 4, 4, 4, 8];
        let next = [LEFT_AT, SEND_READ_AT, WRITE_READ_AT, ACKED_AT, REFUSED_AT, RUNG_AT];
        for ((at, bytes), next) in control.into_iter().zip(ends).zip(next) {
            assert!(at + bytes <= next && at.is_multiple_of(bytes));
        }
        const { assert!(RUNG_AT + 8 <= SEND_RING_AT) };
        assert_eq!(write_ring_at(sizes), SEND_RING_AT + 4096);
        assert_eq!(write_ring_at(sizes) + 8192, rings_bytes(4096, 8192));
        assert!(sizes.is_valid() && !RingSizes { send_bytes: 1000, ..sizes }.is_valid());
    }
}
