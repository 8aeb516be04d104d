//! Received messages that stay in the ring until their user has read them, in any order.
//!
//! Space goes back to the sender in order, so a message released early is remembered as one bit
//! per line; the usual case, the oldest first, touches no bit.
#![forbid(unsafe_code)]

/// Which lines before the reading position are still held. Zeroed: none.
#[derive(Debug, Default)]
pub struct Held {
    /// Everything before this is free.
    base: u32,
    /// Bits that are set.
    marked: u32,
}

/// How many words [`Held`] needs for a ring of `lines`.
pub const fn words_for(lines: u32) -> usize {
    (lines as usize).div_ceil(64)
}

impl Held {
    /// Every line before this may go back to the sender.
    #[inline(always)]
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Whether the lines at `position` were read (lie before `read`) and not yet released.
    pub fn holds(&self, bits: &[u64], position: u32, lines: u32, read: u32) -> bool {
        let (from, until) = (position.wrapping_sub(self.base), read.wrapping_sub(self.base));
        from < until && lines <= until - from && !bit(bits, position)
    }

    /// Releases `lines` lines at `position`, which are held.
    #[inline(always)]
    pub fn release(&mut self, bits: &mut [u64], position: u32, lines: u32) {
        if position != self.base {
            self.mark(bits, position, lines);
            return;
        }
        self.base = position.wrapping_add(lines);
        if self.marked != 0 {
            self.sweep(bits);
        }
    }

    #[cold]
    fn mark(&mut self, bits: &mut [u64], position: u32, lines: u32) {
        // by words: a padding is as long as most of the ring
        let mut left = lines;
        while left != 0 {
            let at = position.wrapping_add(lines - left);
            let count = left.min(64 - at % 64);
            bits[place(bits, at).0] |= run_of(at, count);
            left -= count;
        }
        self.marked += lines;
    }

    #[cold]
    fn sweep(&mut self, bits: &mut [u64]) {
        while self.marked != 0 {
            let word = place(bits, self.base).0;
            let count = (bits[word] >> (self.base % 64)).trailing_ones();
            if count == 0 {
                break;
            }
            bits[word] &= !run_of(self.base, count);
            self.marked -= count;
            self.base = self.base.wrapping_add(count);
        }
    }
}

/// The bits of `count` lines from `position` on, in one word.
const fn run_of(position: u32, count: u32) -> u64 {
    (u64::MAX >> (64 - count)) << (position % 64)
}

fn bit(bits: &[u64], position: u32) -> bool {
    let (word, mask) = place(bits, position);
    bits[word] & mask != 0
}

/// `bits` is as long as the ring or longer, and a power of two or shorter than one word's lines.
fn place(bits: &[u64], position: u32) -> (usize, u64) {
    ((position / 64) as usize & (bits.len() - 1), 1 << (position % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn base_moves_past_what_was_released_in_any_order() {
        const LINES: u32 = 128;
        let mut bits = [0u64; words_for(LINES)];
        let mut held = Held { base: u32::MAX - 50, marked: 0 };
        let mut read = held.base();
        let mut open: VecDeque<(u32, u32)> = VecDeque::new();
        let mut state = 3u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let random = (state >> 33) as u32;
            let lines = if random.is_multiple_of(7) { 1 + random % 90 } else { 1 + random % 5 };
            if random & 64 == 0 && read.wrapping_add(lines).wrapping_sub(held.base()) <= LINES {
                open.push_back((read, lines));
                read = read.wrapping_add(lines);
            } else if !open.is_empty() {
                let index = (random >> 8) as usize % open.len();
                let (position, lines) = open.remove(index).unwrap();
                assert!(held.holds(&bits, position, lines, read));
                held.release(&mut bits, position, lines);
                assert!(!held.holds(&bits, position, lines, read));
            }
            assert_eq!(held.base(), open.front().map_or(read, |first| first.0));
        }
    }
}
