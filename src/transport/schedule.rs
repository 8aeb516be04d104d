//! How a pushed message is cut into stripes, and which lane carries each: pure functions.
//!
//! A message is cut once. Every stripe goes where it is expected to be done first, by what each
//! lane has on its way and how fast it was seen to be: alike lanes take turns, and one at a tenth
//! of the speed gets a tenth.
#![forbid(unsafe_code)]

use crate::base::units::{Bytes, Instant};
use crate::wire::{RAILS_MAX, STRIPES_MAX};

/// Stripes start on multiples of this, so that no two rails write one pair of cache lines.
pub const STRIPE_ALIGN: u64 = 128;

/// Shortest stripe of a message that is cut for the sake of several lanes.
pub const STRIPE_BYTES_LANES_MIN: u64 = 64 << 10;

/// Bytes of stripes that one lane may have on its way while others are up.
pub const FLYING_BYTES_MAX: u64 = 4 << 20;

/// Bytes after which a busy lane's speed is measured anew.
const SAMPLE_BYTES: u64 = 256 << 10;

/// No lane counts as slower than the fastest by more than this.
const SLOWNESS_MAX: u64 = 64;

/// A lane that has been idle for so many times as long as a stripe would take it gets one, so that
/// its speed is known: it costs at most the inverse of this.
const IDLE_TIMES: u64 = 32;

/// The cut of one message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Cut {
    /// Stripes, 1 to [`STRIPES_MAX`].
    pub count: u32,
    /// Length of each but the last; a multiple of [`STRIPE_ALIGN`] when there are several.
    pub stripe_bytes: u64,
}

/// Cuts `length` bytes into stripes of at least `stripe_min`, none longer than `transfer_max`.
/// `None` when that takes more than [`STRIPES_MAX`].
pub const fn cut(length: u64, stripe_min: Bytes, transfer_max: Bytes) -> Option<Cut> {
    let evenly = length.div_ceil(STRIPES_MAX as u64);
    let wanted = if evenly > stripe_min.0 { evenly } else { stripe_min.0 };
    let mut stripe_bytes = wanted.div_ceil(STRIPE_ALIGN) * STRIPE_ALIGN;
    if stripe_bytes > transfer_max.0 {
        stripe_bytes = transfer_max.0 / STRIPE_ALIGN * STRIPE_ALIGN;
    }
    if stripe_bytes == 0 {
        return None;
    }
    let count = if length == 0 { 1 } else { length.div_ceil(stripe_bytes) };
    if count > STRIPES_MAX as u64 {
        return None;
    }
    Some(Cut { count: count as u32, stripe_bytes })
}

/// Shortest stripe of a message that `lanes` lanes may share: with several, four stripes for each,
/// so that unequal lanes can have unequal parts.
pub const fn stripe_min(length: u64, lanes: u32, configured: Bytes) -> Bytes {
    if lanes < 2 {
        return configured;
    }
    let shared = length / (4 * lanes as u64);
    let least = if shared > STRIPE_BYTES_LANES_MIN { shared } else { STRIPE_BYTES_LANES_MIN };
    if least < configured.0 { Bytes(least) } else { configured }
}

impl Cut {
    /// Offset and length of one stripe of a message of `length` bytes.
    pub const fn stripe(&self, index: u32, length: u64) -> (u64, u64) {
        let start = index as u64 * self.stripe_bytes;
        let left = length.saturating_sub(start);
        (start, if left < self.stripe_bytes { left } else { self.stripe_bytes })
    }

    /// Bits of all stripes.
    pub const fn all(&self) -> u64 {
        if self.count == 64 { u64::MAX } else { (1 << self.count) - 1 }
    }
}

/// What one lane has to carry, and how fast it has been.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Load {
    /// Bytes posted and not completed.
    pub flying: u64,
    /// Bytes per second, as measured; 0: not known.
    pub speed: u64,
    /// Since when the running measurement counts.
    since: Instant,
    /// Bytes completed since then.
    done: u64,
    /// When a stripe was posted, or completed, last.
    last: Instant,
    /// It counts as the slowest lane that there may be, whatever was measured: it is used where
    /// the others are not, and to know its speed.
    pub reserve: bool,
}

impl Load {
    /// Nothing to carry, nothing known.
    pub const IDLE: Load =
        Load { flying: 0, speed: 0, since: Instant(0), done: 0, last: Instant(0), reserve: false };

    /// Its speed as it counts; 0: not known.
    fn counted(&self) -> u64 {
        match (self.reserve, self.speed) {
            (true, 1..) => (self.speed / SLOWNESS_MAX).max(1),
            (true | false, speed) => speed,
        }
    }

    /// A stripe was posted.
    #[inline]
    pub fn posted(&mut self, bytes: u64, now: Instant) {
        if self.flying == 0 {
            (self.since, self.done) = (now, 0);
        }
        self.flying += bytes;
        self.last = now;
    }

    /// A stripe was completed. The new speed counts for a quarter, and for no more than twice or
    /// half of what was known, so that one hiccup does not turn the traffic round.
    #[inline]
    pub fn completed(&mut self, bytes: u64, now: Instant) {
        self.flying = self.flying.saturating_sub(bytes);
        self.done += bytes;
        self.last = now;
        let taken_ns = now.since(self.since).0;
        if taken_ns == 0 || (self.done < SAMPLE_BYTES && self.flying != 0) {
            return;
        }
        let sample = (u128::from(self.done) * 1_000_000_000 / u128::from(taken_ns)) as u64;
        let sample = sample.max(1);
        self.speed = match self.speed {
            0 => sample,
            // what bursts that buffers take, and hiccups, turn is little at a time
            known => known - known / 4 + sample.clamp(known / 2, known * 2).max(1) / 4,
        };
        (self.since, self.done) = (now, 0);
    }

    /// The lane has failed: what it carried is gone, what it was capable of is unknown.
    pub fn reset(&mut self) {
        *self = Load { reserve: self.reserve, ..Load::IDLE };
    }
}

/// The lane of `lanes` that should carry a stripe of `bytes`; `None` when each has enough on its
/// way. `turn`: the lane that comes first among equals.
pub fn pick(loads: &[Load], lanes: u8, bytes: u64, turn: u8, now: Instant) -> Option<u8> {
    if lanes.is_power_of_two() {
        return Some(lanes.trailing_zeros() as u8);
    }
    let among = |lane: &usize| lanes >> *lane & 1 == 1;
    let count = loads.len().min(RAILS_MAX);
    let fastest = (0..count).filter(among).map(|lane| loads[lane].counted()).max().unwrap_or(0);
    let mut best: Option<(u64, usize)> = None;
    for step in 0..count {
        let lane = (usize::from(turn) + step) % count;
        if !among(&lane) {
            continue;
        }
        let load = &loads[lane];
        let speed = effective(load.counted(), fastest);
        let alone_ns = time_ns(bytes, speed);
        let idle_ns = now.since(load.last).0;
        if load.flying == 0 && speed < fastest && idle_ns > alone_ns.saturating_mul(IDLE_TIMES) {
            return Some(lane as u8); // how fast is it today?
        }
        if load.flying != 0 && load.flying + bytes > flying_max(bytes) {
            continue;
        }
        let done_ns = time_ns(load.flying + bytes, speed);
        if best.is_none_or(|(least, _)| done_ns < least) {
            best = Some((done_ns, lane));
        }
    }
    let (done_ns, lane) = best?;
    // a full lane that would be done earlier all the same is worth waiting for
    let waits = (0..count).filter(among).any(|other| {
        let load = &loads[other];
        let full = load.flying != 0 && load.flying + bytes > flying_max(bytes);
        full && time_ns(load.flying + bytes, effective(load.counted(), fastest)) < done_ns
    });
    if waits { None } else { Some(lane as u8) }
}

/// Bytes that a lane may have on its way: several stripes, so that it never waits for the next.
const fn flying_max(stripe_bytes: u64) -> u64 {
    let several = 4 * stripe_bytes;
    if several > FLYING_BYTES_MAX { several } else { FLYING_BYTES_MAX }
}

/// A lane's speed as it counts: one that is not known yet counts as the fastest.
const fn effective(speed: u64, fastest: u64) -> u64 {
    if fastest == 0 {
        return 1;
    }
    let least = if fastest / SLOWNESS_MAX == 0 { 1 } else { fastest / SLOWNESS_MAX };
    if speed == 0 {
        fastest
    } else if speed < least {
        least
    } else {
        speed
    }
}

fn time_ns(bytes: u64, speed: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(speed)).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_the_message_once_aligned_and_bounded() {
        let lengths = [0, 1, 127, 128, 129, 4096, 65_537, 1 << 20, (1 << 30) + 3];
        for length in lengths {
            for min in [1, 128, 4096, 131_072] {
                let cut = cut(length, Bytes(min), Bytes::mib(64)).unwrap();
                assert!(cut.count >= 1 && cut.count <= STRIPES_MAX);
                let mut next = 0;
                for index in 0..cut.count {
                    let (start, bytes) = cut.stripe(index, length);
                    assert_eq!(start, next);
                    assert_eq!(start % STRIPE_ALIGN, 0);
                    assert!(bytes > 0 || length == 0);
                    next = start + bytes;
                }
                assert_eq!(next, length);
            }
        }
        assert_eq!(cut(1 << 40, Bytes(128), Bytes::mib(1)), None);
    }

    #[test]
    fn several_lanes_share_a_message_in_parts_that_are_not_too_short() {
        let configured = Bytes::mib(1);
        assert_eq!(stripe_min(1 << 30, 1, configured), configured);
        assert_eq!(stripe_min(1 << 20, 2, configured), Bytes::kib(128));
        assert_eq!(stripe_min(100_000, 2, configured), Bytes(STRIPE_BYTES_LANES_MIN));
        assert_eq!(stripe_min(1 << 30, 4, configured), configured);
        assert_eq!(stripe_min(1 << 20, 4, Bytes(128)), Bytes(128));
    }

    /// Lanes of so many bytes per second carry stripes, `window` at a time, for as long as `total`
    /// lasts; the speeds may be swapped midway. Returns how long that takes beside the ideal.
    fn excess_percent(speeds: [u64; 2], swap: bool, stripes: u64) -> u64 {
        const BYTES: u64 = 128 << 10;
        let mut loads = [Load::IDLE; 2];
        let mut lanes: [std::collections::VecDeque<u64>; 2] = Default::default();
        let (mut now, mut posted, mut done, mut turn) = (Instant(1), 0, 0, 0);
        let mut speeds = speeds;
        while done < stripes {
            if swap && done == stripes / 2 && speeds[0] > speeds[1] {
                speeds.swap(0, 1);
            }
            while posted < stripes && posted - done < 64 {
                let Some(lane) = pick(&loads, 0b11, BYTES, turn, now) else { break };
                turn = (lane + 1) % 2;
                let at = usize::from(lane);
                let free = lanes[at].back().copied().unwrap_or(now.0).max(now.0);
                lanes[at].push_back(free + BYTES * 1_000_000_000 / speeds[at]);
                loads[at].posted(BYTES, now);
                posted += 1;
            }
            let due = |lane: &usize| lanes[*lane].front().copied().unwrap_or(u64::MAX);
            let at = if due(&0) <= due(&1) { 0 } else { 1 };
            now = Instant(lanes[at].pop_front().unwrap());
            loads[at].completed(BYTES, now);
            done += 1;
        }
        let ideal = u128::from(stripes * BYTES) * 1_000_000_000 / u128::from(speeds[0] + speeds[1]);
        // a stripe takes whole ns, which may be less than it should
        ((u128::from(now.0) * 100 / ideal) as u64).saturating_sub(100)
    }

    #[test]
    fn slow_lane_costs_little_although_nobody_says_which_it_is() {
        for speeds in [[1 << 30, 1 << 30], [1 << 30, 107 << 20], [107 << 20, 1 << 30]] {
            let excess = excess_percent(speeds, false, 4000);
            assert!(excess <= 5, "{speeds:?}: {excess} %");
        }
        let excess = excess_percent([1 << 30, 107 << 20], true, 4000);
        assert!(excess <= 5, "swapped: {excess} %");
    }

    #[test]
    fn alike_lanes_take_turns() {
        let mut loads = [Load::IDLE; 3];
        let mut turn = 0;
        for at in 0..9 {
            let lane = pick(&loads, 0b111, 1000, turn, Instant(at)).unwrap();
            assert_eq!(u64::from(lane), at % 3);
            loads[usize::from(lane)].posted(1000, Instant(at));
            turn = (lane + 1) % 3;
        }
    }

    #[test]
    fn reserve_carries_little_while_another_lane_lives_and_everything_when_none_does() {
        let stripe = 256 << 10;
        let mut loads = [Load::IDLE, Load { reserve: true, ..Load::IDLE }];
        let (mut carried, mut turn, mut now) = ([0u64; 2], 0, Instant(0));
        for _ in 0..10_000 {
            // both as fast, one stripe at a time
            let lane = pick(&loads, 0b11, stripe, turn, now).unwrap();
            turn = (lane + 1) % 2;
            let at = usize::from(lane);
            loads[at].posted(stripe, now);
            now = Instant(now.0 + 100_000);
            loads[at].completed(stripe, now);
            carried[at] += 1;
        }
        assert!(carried[1] > 1 && carried[1] < carried[0] / 100, "{carried:?}");
        // behind a queue of the other's, too
        loads[0].flying = FLYING_BYTES_MAX;
        loads[1].posted(1, now);
        assert_eq!(pick(&loads, 0b11, stripe, 0, now), None);
        assert_eq!(pick(&loads, 0b10, stripe, 0, now), Some(1));
        loads[1].reset();
        assert!(loads[1].reserve);
    }

    #[test]
    fn lane_that_was_slow_is_tried_again() {
        let mut loads = [Load { speed: 1000, ..Load::IDLE }, Load { speed: 1 << 30, ..Load::IDLE }];
        loads[1].last = Instant(1_000_000);
        // a stripe would take it a second by what it was, as the floor has it 64 times less
        let second = 1_000_000_000;
        assert_eq!(pick(&loads, 0b11, 1 << 24, 0, Instant(second / 2)), Some(1));
        assert_eq!(pick(&loads, 0b11, 1 << 24, 0, Instant(40 * second)), Some(0));
    }
}
