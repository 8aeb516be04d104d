//! Serial numbers that wrap, and the window of those that are outstanding.
//!
//! A 32-bit serial number is compared by signed distance (RFC 1982): two numbers less than 2^31
//! apart compare as they were issued. Every window here is at most [`WINDOW_MAX`] wide, so the
//! field is more than a million times twice the window: the 10-bit wrap that hung another
//! library's eager path cannot be had.
#![forbid(unsafe_code)]

/// The widest window of outstanding numbers anywhere in the library.
pub const WINDOW_MAX: u32 = 512;

const _: () = assert!((1u64 << 32) > 2 * WINDOW_MAX as u64);

/// A serial number that wraps at 2^32.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Seq(pub u32);

impl Seq {
    /// The number after this one.
    pub const fn next(self) -> Seq {
        Seq(self.0.wrapping_add(1))
    }

    /// The number `n` later.
    pub const fn plus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// How far `self` is ahead of `other`; negative when it is behind.
    pub const fn ahead_of(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether `self` was issued before `other`.
    pub const fn before(self, other: Seq) -> bool {
        self.ahead_of(other) < 0
    }

    /// Its cell in a table of `cells`, a power of two, that is used round and round.
    pub const fn cell(self, cells: u32) -> usize {
        debug_assert!(cells.is_power_of_two());
        (self.0 & (cells - 1)) as usize
    }
}

/// What became of a number offered to a [`SeqWindow`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Arrival {
    /// First time; it is recorded now.
    New,
    /// Seen before.
    Duplicate,
    /// Further ahead than the window reaches.
    TooFar,
}

/// Which of the numbers from `through` on have been seen: all below `through`, and those in `mask`.
///
/// *Cost*: one shift per call; numbers up to 63 past `through` fit.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(C)]
pub struct SeqWindow {
    mask: u64,
    through: Seq,
    _pad: u32,
}

impl SeqWindow {
    /// A window in which nothing was seen, starting at `first`.
    pub const fn new(first: Seq) -> SeqWindow {
        SeqWindow { mask: 0, through: first, _pad: 0 }
    }

    /// Every number before this one has been seen.
    pub const fn through(&self) -> Seq {
        self.through
    }

    /// Bit `i` says that `through + i` has been seen; bit 0 is always clear.
    pub const fn mask(&self) -> u64 {
        self.mask
    }

    /// Whether `seq` has been seen.
    pub const fn contains(&self, seq: Seq) -> bool {
        let ahead = seq.ahead_of(self.through);
        ahead < 0 || (ahead < 64 && self.mask >> ahead & 1 == 1)
    }

    /// Records `seq` and slides over everything that is now complete.
    pub const fn record(&mut self, seq: Seq) -> Arrival {
        let ahead = seq.ahead_of(self.through);
        if ahead < 0 {
            return Arrival::Duplicate;
        }
        if ahead >= 64 {
            return Arrival::TooFar;
        }
        let bit = 1u64 << ahead;
        if self.mask & bit != 0 {
            return Arrival::Duplicate;
        }
        self.mask |= bit;
        let done = self.mask.trailing_ones();
        self.mask = if done == 64 { 0 } else { self.mask >> done };
        self.through = self.through.plus(done);
        Arrival::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Seq(u32::MAX);
        assert!(last.before(last.next()));
        assert_eq!(last.next().ahead_of(last), 1);
        assert!(!last.next().before(last));
    }

    #[test]
    fn window_agrees_with_a_set_of_seen_numbers() {
        let first = Seq(u32::MAX - 20);
        let mut window = SeqWindow::new(first);
        let mut seen = [false; 200];
        let mut state = 12345u64;
        for _ in 0..if cfg!(miri) { 400 } else { 4000 } {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let offset = (state >> 33) as u32 % 200;
            let through = window.through().ahead_of(first) as u32;
            let expected = if seen[offset as usize] {
                Arrival::Duplicate
            } else if offset >= through + 64 {
                Arrival::TooFar
            } else {
                seen[offset as usize] = true;
                Arrival::New
            };
            assert_eq!(window.record(first.plus(offset)), expected);
            let complete = seen.iter().position(|s| !s).unwrap_or(200) as u32;
            assert_eq!(window.through(), first.plus(complete));
            assert_eq!(window.mask() & 1, 0);
        }
    }
}
