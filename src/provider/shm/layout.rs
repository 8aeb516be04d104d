//! What stands where in the memory of one connection.
//!
//! ```text
//! 0          128        256        384        512
//! | flags 0  | places 0 | flags 1  | places 1 | send ring 0→1 | write ring 0→1 | 1→0 ... |
//! ```
//!
//! `flags s` and `places s` are written by side `s`; only the armed word is also cleared by the
//! other side. Two lines each, as processors fetch lines in pairs.
#![forbid(unsafe_code)]

use super::record::LINE;
use super::ring::{LINES_MIN, lines_first};

const CONTROL_BYTES: usize = 512;
const SIDE_BYTES: usize = 256;
const PLACES_AT: usize = 128;

/// In the flags: nonzero while the side sleeps and wants its doorbell rung.
pub const ARMED_AT: usize = 0;
/// In the flags: one of the `LEFT_` constants.
pub const LEFT_AT: usize = 4;
/// In the places: how far the side has read its incoming send ring.
pub const SEND_READ_AT: usize = 0;
/// In the places: how far the side has read its incoming write ring.
pub const WRITE_READ_AT: usize = 4;
/// In the places: how many acknowledged ops the side has carried out.
pub const ACKED_AT: usize = 8;
/// In the places: bit `n % 64` says that acknowledged op `n` was refused.
pub const REFUSED_AT: usize = 16;

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

/// Bytes that the rings of one connection take, both directions.
///
/// *Shape*: a multiple of 512; aligned to a line, better to a page. Zeroed by whoever made the
/// memory, before either side opens it.
pub const fn rings_bytes(send_ring_bytes: u32, write_ring_bytes: u32) -> usize {
    CONTROL_BYTES + 2 * (send_ring_bytes as usize + write_ring_bytes as usize)
}

/// Offset of the flags that `side` writes.
pub const fn flags_at(side: u8) -> usize {
    side as usize * SIDE_BYTES
}

/// Offset of the places that `side` writes.
pub const fn places_at(side: u8) -> usize {
    flags_at(side) + PLACES_AT
}

/// Offset of the send ring that `side` writes.
pub const fn send_ring_at(side: u8, sizes: RingSizes) -> usize {
    CONTROL_BYTES + side as usize * (sizes.send_bytes as usize + sizes.write_bytes as usize)
}

/// Offset of the write ring that `side` writes.
pub const fn write_ring_at(side: u8, sizes: RingSizes) -> usize {
    send_ring_at(side, sizes) + sizes.send_bytes as usize
}

/// Offsets and lengths in bytes of what must be there before either side opens the connection. The
/// writer of a ring sees to it that more is there before it uses more.
pub const fn first_parts(sizes: RingSizes) -> [(usize, usize); 4] {
    let send = lines_first(sizes.send_bytes / LINE as u32) as usize * LINE;
    let write = lines_first(sizes.write_bytes / LINE as u32) as usize * LINE;
    [
        (0, CONTROL_BYTES + send),
        (write_ring_at(0, sizes), write),
        (send_ring_at(1, sizes), send),
        (write_ring_at(1, sizes), write),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_the_memory_without_overlap() {
        let sizes = RingSizes { send_bytes: 4096, write_bytes: 8192 };
        assert_eq!(places_at(1) + PLACES_AT, send_ring_at(0, sizes));
        assert_eq!(write_ring_at(0, sizes), send_ring_at(0, sizes) + 4096);
        assert_eq!(send_ring_at(1, sizes), write_ring_at(0, sizes) + 8192);
        assert_eq!(write_ring_at(1, sizes) + 8192, rings_bytes(4096, 8192));
        assert!(sizes.is_valid() && !RingSizes { send_bytes: 1000, ..sizes }.is_valid());
    }
}
