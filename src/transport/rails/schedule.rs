//! How a pushed message is cut into stripes, and which lane carries each: pure functions.
//!
//! A message is cut once. Each stripe goes to the lane that is expected to finish it first. The
//! estimate uses the bytes under way on each lane and its measured speed. Equal lanes take turns; a
//! lane at a tenth of the speed gets a tenth.

use crate::base::units::{Bytes, Instant, Span};
use crate::wire::{RAILS_MAX, STRIPES_MAX};

/// Stripes start on multiples of this, so that no two rails write one pair of cache lines.
pub const STRIPE_ALIGN: u64 = 128;

/// Shortest stripe of a message that is cut for the sake of several lanes.
pub const STRIPE_BYTES_LANES_MIN: u64 = 64 << 10;

/// Bytes of stripes that one lane may have on its way while others are up.
pub const FLYING_BYTES_MAX: u64 = 4 << 20;

/// How long it may take to carry them: more than a processor is away at a time.
const FLYING: Span = Span::millis(20);

/// What a speed is measured over at least: longer than completions wait for a processor.
const WINDOW: Span = Span::millis(10);

/// After so many bytes, or so long, what a lane did counts for half.
const MEMORY_BYTES: u64 = 4 << 20;
const MEMORY: Span = Span::millis(64);

/// What a lane shows that runs out raises its speed by this part of it at most: after a rest a link
/// may carry some of it faster than it goes on (token buckets, queues).
const RISE: u64 = 4;

/// So many stripes are little to carry.
const FEW: u64 = 4;

/// Lanes whose speeds differ by no more than this factor count as equally fast.
const ALIKE: u64 = 4;

/// No lane counts as slower than the fastest by more than this.
const SLOWNESS_MAX: u64 = 64;

/// A lane that has been idle for so many times as long as a stripe would take it, and through so
/// many messages and stripes, gets one, so that its speed is known: it costs at most the inverse of
/// this, of the time and of messages that come one by one.
const IDLE_TIMES: u64 = 32;

/// The cut of one message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Cut {
    /// Stripes, 1 to [`STRIPES_MAX`].
    pub count: u32,
    /// Length of each but the last; a multiple of [`STRIPE_ALIGN`] when there are several.
    pub stripe_bytes: u64,
}

/// Cuts `length` bytes into stripes of at least `stripe_min`: into such as every lane carries, of
/// `every` bytes at most, or else into such as the first does. `None`: it is longer than
/// [`length_max`] of the first.
pub const fn cut(length: u64, stripe_min: Bytes, every: Bytes, first: Bytes) -> Option<Cut> {
    let evenly = length.div_ceil(STRIPES_MAX as u64);
    let wanted = if evenly > stripe_min.0 { evenly } else { stripe_min.0 };
    let wanted = wanted.div_ceil(STRIPE_ALIGN) * STRIPE_ALIGN;
    match cut_within(length, wanted, every) {
        Some(cut) => Some(cut),
        None => cut_within(length, wanted, first),
    }
}

/// Cuts `length` bytes into stripes of `wanted`, or as long as they may be.
const fn cut_within(length: u64, wanted: u64, transfer_max: Bytes) -> Option<Cut> {
    if length > length_max(transfer_max) {
        return None;
    }
    let most = transfer_max.0 / STRIPE_ALIGN * STRIPE_ALIGN;
    let stripe_bytes = if wanted < most { wanted } else { most };
    let count = if length == 0 { 1 } else { length.div_ceil(stripe_bytes) };
    Some(Cut { count: count as u32, stripe_bytes })
}

/// Longest message whose stripes a lane carries in one op each, of `transfer_max` at most.
pub const fn length_max(transfer_max: Bytes) -> u64 {
    (transfer_max.0 / STRIPE_ALIGN * STRIPE_ALIGN).saturating_mul(STRIPES_MAX as u64)
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
///
/// Completions are heard of in bursts, so a speed is what was completed within [`WINDOW`] or more
/// of a time in which the lane never ran out. What a lane takes to get going is no part of that,
/// nor the last completions, which may have waited long for their being heard of: these show what
/// the lane can do at least, or what it could after a rest, so that they raise a speed by little
/// each time. What a lane shows that never has enough to carry to be measured is
/// kept apart, and compared with what others show in the same way.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Load {
    /// Bytes posted and not completed.
    pub flying: u64,
    /// Bytes per second as measured; 0: not known.
    pub speed: u64,
    /// Bytes per second with little to carry; 0: not known.
    lone: u64,
    /// Bytes that were measured lately, and how long they took.
    bytes: u64,
    taken: Span,
    /// Bytes of the running window.
    window: u64,
    /// When it began.
    mark: Instant,
    /// When the first completion was since something has been on its way.
    first: Option<Instant>,
    /// Since when something has been on its way, the bytes completed since, and whether a window
    /// has ended since.
    since: Instant,
    shown: u64,
    is_measured: bool,
    /// When a stripe was completed last.
    last: Instant,
    /// Which message or stripe of the connection it carried last; see [`pick`].
    pub number: u32,
    /// It counts as the slowest lane that there may be, whatever was measured: it is used where
    /// the others are not, and, but as lane 0, to know its speed.
    pub reserve: bool,
}

impl Load {
    /// Nothing to carry, nothing known.
    pub const IDLE: Load = Load {
        flying: 0,
        speed: 0,
        lone: 0,
        bytes: 0,
        taken: Span(0),
        window: 0,
        mark: Instant(0),
        first: None,
        since: Instant(0),
        shown: 0,
        is_measured: false,
        last: Instant(0),
        number: 0,
        reserve: false,
    };

    /// A stripe was posted.
    #[inline]
    pub fn posted(&mut self, bytes: u64, now: Instant) {
        if self.flying == 0 {
            (self.window, self.first) = (0, None);
            (self.since, self.shown, self.is_measured) = (now, 0, false);
            self.last = now;
        }
        self.flying += bytes;
    }

    /// A stripe was completed.
    #[inline]
    pub fn completed(&mut self, bytes: u64, now: Instant) {
        self.flying = self.flying.saturating_sub(bytes);
        self.last = now;
        self.shown += bytes;
        if self.flying == 0 {
            self.ran_out(now.since(self.since));
            return;
        }
        if self.first.is_none_or(|first| first == now) {
            (self.first, self.mark) = (Some(now), now);
            return;
        }
        self.window += bytes;
        let taken = now.since(self.mark);
        if taken >= WINDOW {
            self.measured(self.window, taken);
            (self.window, self.mark) = (0, now);
        }
    }

    /// Nothing is on its way any more; it took so long since there was something.
    fn ran_out(&mut self, taken: Span) {
        if taken.0 == 0 {
            return;
        }
        let speed = speed_of(self.shown, taken);
        if !self.is_measured {
            let known = if self.lone == 0 { speed } else { self.lone };
            self.lone = (known - known / 4 + speed / 4).max(1);
        }
        if self.speed > 0 && speed > self.speed {
            self.speed = speed.min(self.speed + self.speed / RISE);
            (self.bytes, self.taken) = (0, Span(0));
        }
    }

    /// So many bytes were completed by a lane that did not run out.
    fn measured(&mut self, bytes: u64, taken: Span) {
        if self.bytes > MEMORY_BYTES || self.taken > MEMORY {
            (self.bytes, self.taken) = (self.bytes / 2, Span(self.taken.0 / 2));
        }
        self.bytes += bytes;
        self.taken.0 += taken.0;
        self.speed = speed_of(self.bytes, self.taken);
        self.lone = self.lone.min(self.speed); // more was a rest's worth, or long ago
        self.is_measured = true;
    }

    /// How long what is on its way has waited for the first of it to end.
    pub fn stands(&self, now: Instant) -> Span {
        if self.flying == 0 { Span(0) } else { now.since(self.last) }
    }

    /// As a lane counts that has enough to carry until what it has is done, however long that
    /// takes: nothing waits for it.
    pub fn on_trial(&mut self) {
        self.flying = u64::MAX / 2;
    }

    /// The lane has failed: what it carried is gone, what it was capable of is unknown.
    pub fn reset(&mut self) {
        *self = Load { number: self.number, reserve: self.reserve, ..Load::IDLE };
    }

    /// Whether the lane has enough on its way: what keeps it busy for [`FLYING`], and two stripes,
    /// so that it never waits for the next. What comes after that takes the lane that has room
    /// first.
    fn is_full(&self, stripe_bytes: u64) -> bool {
        let busy = u128::from(self.speed) * u128::from(FLYING.0) / 1_000_000_000;
        let most = if self.speed == 0 { u128::from(FLYING_BYTES_MAX) } else { busy };
        let most = (most as u64).min(FLYING_BYTES_MAX).max(2 * stripe_bytes);
        self.flying != 0 && self.flying + stripe_bytes > most
    }
}

/// Bytes per second, at least 1.
fn speed_of(bytes: u64, taken: Span) -> u64 {
    ((u128::from(bytes) * 1_000_000_000 / u128::from(taken.0)) as u64).max(1)
}

/// The lane of `lanes` that should carry a stripe of `bytes`; `None` when each has enough on its
/// way. `turn`: the lane that comes first among equals. `number`: how many messages and stripes
/// there have been on the connection.
pub fn pick(
    loads: &[Load],
    lanes: u8,
    bytes: u64,
    turn: u8,
    (now, number): (Instant, u32),
) -> Option<u8> {
    if lanes.is_power_of_two() {
        return Some(lanes.trailing_zeros() as u8);
    }
    let among = |lane: &usize| lanes >> *lane & 1 == 1;
    let count = loads.len().min(RAILS_MAX);
    let speeds = effective(loads, lanes, bytes);
    let fastest = (0..count).filter(among).map(|lane| speeds[lane]).max().unwrap_or(1);
    let mut best: Option<(u64, usize)> = None;
    for step in 0..count {
        let lane = (usize::from(turn) + step) % count;
        if !among(&lane) {
            continue;
        }
        let (load, speed) = (&loads[lane], speeds[lane]);
        let alone_ns = time_ns(bytes, speed);
        let idle_ns = now.since(load.last).0;
        // lane 0 as a reserve is what the connection was made by, and known to live
        let is_asked = lane != 0 || !load.reserve;
        let is_slow = load.flying == 0 && speed < fastest && is_asked;
        let others = u64::from(number.wrapping_sub(load.number));
        if is_slow && others > IDLE_TIMES && idle_ns > alone_ns.saturating_mul(IDLE_TIMES) {
            return Some(lane as u8); // how fast is it today?
        }
        if load.is_full(bytes) {
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
        load.is_full(bytes) && time_ns(load.flying + bytes, speeds[other]) < done_ns
    });
    if waits { None } else { Some(lane as u8) }
}

/// The lanes' speeds as they count. One that is not known, and one within [`ALIKE`] of the fastest,
/// counts as the fastest: among those the one with the least on its way comes next, which evens out
/// what they differ by, and does not follow what measurements waver by. While there is little to
/// carry, what lanes showed then counts in the same way, and for a lane that was never measured it
/// counts always: it may be one that never will be, since it runs out each time. Those in reserve
/// count as the slowest.
fn effective(loads: &[Load], lanes: u8, bytes: u64) -> [u64; RAILS_MAX] {
    let among = |(lane, _): &(usize, &Load)| lanes >> *lane & 1 == 1;
    let all = || loads.iter().enumerate().take(RAILS_MAX).filter(among);
    let ours = || all().map(|(_, load)| load).filter(|load| !load.reserve);
    let fastest_lone = ours().map(|load| load.lone).max().unwrap_or(0).max(SLOWNESS_MAX);
    let shown = |load: &Load| if load.speed == 0 { load.lone } else { load.speed };
    let fastest = match ours().map(shown).max() {
        Some(0) | None => fastest_lone,
        Some(speed) => speed,
    };
    let is_little = all().all(|(_, load)| load.flying < FEW * bytes);
    let mut speeds = [0; RAILS_MAX];
    for (lane, load) in all() {
        let mut speed = as_counted(load.speed, fastest);
        if is_little || load.speed == 0 {
            let lone = as_counted(load.lone, fastest_lone);
            let share = u128::from(fastest) * u128::from(lone) / u128::from(fastest_lone);
            speed = speed.min(share as u64).max(1);
        }
        speeds[lane] = if load.reserve { (fastest / SLOWNESS_MAX).max(1) } else { speed };
    }
    speeds
}

const fn as_counted(speed: u64, fastest: u64) -> u64 {
    let least = if fastest / SLOWNESS_MAX == 0 { 1 } else { fastest / SLOWNESS_MAX };
    if speed == 0 || speed >= fastest / ALIKE {
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
    use std::vec::Vec;

    #[test]
    fn stripes_cover_the_message_once_aligned_and_bounded() {
        let lengths = [0, 1, 127, 128, 129, 4096, 65_537, 1 << 20, (1 << 30) + 3];
        for length in lengths {
            for min in [1, 128, 4096, 131_072] {
                let cut = cut(length, Bytes(min), Bytes::mib(64), Bytes::mib(64)).unwrap();
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
        assert_eq!(cut(1 << 40, Bytes(128), Bytes::mib(1), Bytes::mib(1)), None);
    }

    #[test]
    fn long_message_is_cut_for_every_lane_while_it_can_be_and_then_for_the_first() {
        let (every, first) = (Bytes::mib(1), Bytes(1 << 30));
        let cut = |length| cut(length, Bytes::kib(128), every, first);
        let bytes = |length| cut(length).map(|cut| cut.stripe_bytes);
        assert_eq!(bytes(64 << 20), Some(1 << 20));
        assert_eq!(bytes((64 << 20) + 1), Some((1 << 20) + STRIPE_ALIGN));
        assert_eq!(cut(64 << 30), Some(Cut { count: 64, stripe_bytes: 1 << 30 }));
        assert_eq!(cut((64 << 30) + 1), None);
        assert_eq!(length_max(first), 64 << 30);
        assert_eq!(length_max(Bytes(STRIPE_ALIGN - 1)), 0);
        assert_eq!(length_max(Bytes(u64::MAX)), u64::MAX);
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

    /// Two lanes of so many bytes per second, between which the speeds may be swapped midway.
    #[derive(Copy, Clone, Debug)]
    struct Links {
        speeds: [u64; 2],
        swap: bool,
        /// From the end of a stripe's transfer to our hearing of it.
        latency_ns: u64,
        /// More of that for a stripe that finds nothing on its way.
        start_ns: u64,
        /// What a lane has completed is heard of at multiples of this.
        burst_ns: [u64; 2],
        /// So many bytes go at [`WIRE`] speed after a time of rest, as token buckets allow.
        bucket: u64,
        /// What is known of them before.
        before: [Load; 2],
    }

    /// One lane of [`Links`]: when what was posted will have gone, and what its bucket holds then.
    #[derive(Copy, Clone, Default)]
    struct Link {
        free_ns: u64,
        tokens: u64,
    }

    impl Link {
        /// A stripe is posted that may begin at `start_ns`.
        fn carries(&mut self, start_ns: u64, speed: u64, bucket: u64) {
            let start = self.free_ns.max(start_ns);
            let filled = bytes_in(start - self.free_ns, speed);
            let tokens = bucket.min(self.tokens + filled);
            let taken = time_ns(STRIPE, WIRE).max(time_ns(STRIPE.saturating_sub(tokens), speed));
            self.free_ns = start + taken;
            self.tokens = bucket.min((tokens + bytes_in(taken, speed)).saturating_sub(STRIPE));
        }
    }

    fn bytes_in(ns: u64, speed: u64) -> u64 {
        (u128::from(ns) * u128::from(speed) / 1_000_000_000) as u64
    }

    const STRIPE: u64 = 128 << 10;
    const STRIPES_EACH: u64 = 8;
    const OUTSTANDING: u64 = 8;

    impl Links {
        fn of(speeds: [u64; 2]) -> Links {
            let (latency_ns, start_ns, burst_ns, before) = (100_000, 0, [1; 2], [Load::IDLE; 2]);
            Links { speeds, swap: false, latency_ns, start_ns, burst_ns, bucket: 0, before }
        }

        /// So many messages, of which some are outstanding and none is done before all its stripes
        /// are: the time beside the ideal of those after the first `warm`, in percent, and each
        /// lane's stripes.
        fn run(&self, messages: u64, warm: u64) -> (u64, [u64; 2]) {
            let mut loads = self.before;
            let mut lanes: [std::collections::VecDeque<(u64, u64)>; 2] = Default::default();
            let mut left = std::vec![STRIPES_EACH; messages as usize];
            let (mut now, mut posted, mut turn) = (Instant(1), 0, 0);
            let (mut done, mut started, mut links) = (0, Instant(1), [Link::default(); 2]);
            let (mut speeds, mut shares) = (self.speeds, [0, 0]);
            while done < messages {
                while posted / STRIPES_EACH < messages.min(done + OUTSTANDING) {
                    let at = (now, posted as u32);
                    let Some(lane) = pick(&loads, 0b11, STRIPE, turn, at) else { break };
                    turn = (lane + 1) % 2;
                    let at = usize::from(lane);
                    let start_ns = if loads[at].flying == 0 { self.start_ns } else { 0 };
                    links[at].carries(now.0 + start_ns, speeds[at], self.bucket);
                    let heard = links[at].free_ns + self.latency_ns;
                    let heard = heard.next_multiple_of(self.burst_ns[at]);
                    lanes[at].push_back((heard, posted / STRIPES_EACH));
                    loads[at].posted(STRIPE, now);
                    shares[at] += 1;
                    posted += 1;
                    loads[at].number = posted as u32;
                }
                let due = |lane: usize| lanes[lane].front().map_or(u64::MAX, |(due, _)| *due);
                let at = usize::from(due(1) < due(0));
                let (due, message) = lanes[at].pop_front().unwrap();
                now = Instant(due);
                loads[at].completed(STRIPE, now);
                left[message as usize] -= 1;
                while done < messages && left[done as usize] == 0 {
                    done += 1;
                    if done == warm {
                        started = now;
                    }
                    if self.swap && done == messages / 2 {
                        speeds = [self.speeds[1], self.speeds[0]];
                    }
                }
            }
            let bytes = u128::from((messages - warm) * STRIPES_EACH * STRIPE);
            let ideal = bytes * 1_000_000_000 / u128::from(speeds[0] + speeds[1]);
            let excess = u128::from(now.since(started).0) * 100 / ideal;
            ((excess as u64).saturating_sub(100), shares)
        }
    }

    const GIGABIT: u64 = 1_000_000_000 / 8;
    const WIRE: u64 = 40 * GIGABIT;

    /// What a lane may do beside carrying: latency, getting going, and bursts.
    const MANNERS: [(u64, u64, [u64; 2]); 5] = [
        (10_000, 0, [1, 1]),
        (1_000_000, 0, [1, 1]),
        (100_000, 0, [2_000_000, 2_000_000]),
        (100_000, 0, [5_000_000, 300_000]),
        (100_000, 40_000_000, [300_000, 5_000_000]),
    ];

    #[test]
    fn alike_lanes_share_evenly_in_whatever_bursts_they_are_heard_of() {
        for (latency_ns, start_ns, burst_ns) in MANNERS {
            let links = Links { latency_ns, start_ns, burst_ns, ..Links::of([GIGABIT; 2]) };
            let (excess, shares) = links.run(400, 100);
            assert!(excess <= 5, "{links:?}: {excess} %");
            assert!(shares[0].abs_diff(shares[1]) <= 3200 / 20, "{links:?}: {shares:?}");
        }
    }

    /// Few stripes of which one lane's were heard of late say little of how it carries many.
    #[test]
    fn alike_lanes_share_evenly_whatever_they_showed_with_little_to_carry() {
        let showed = |lone| Load { lone, ..Load::IDLE };
        let (little, much) = (showed(GIGABIT / 10), showed(GIGABIT));
        for before in [[little, much], [much, little]] {
            for (latency_ns, start_ns, burst_ns) in MANNERS {
                let alike = Links::of([GIGABIT; 2]);
                let links = Links { latency_ns, start_ns, burst_ns, before, ..alike };
                let (excess, shares) = links.run(400, 100);
                assert!(excess <= 5, "{links:?}: {excess} %, {shares:?}");
            }
        }
    }

    #[test]
    fn slower_lane_costs_little_although_nobody_says_which_it_is() {
        let part =
            |percent| [[GIGABIT, GIGABIT / 100 * percent], [GIGABIT / 100 * percent, GIGABIT]];
        for speeds in [10, 30, 45, 55, 80].into_iter().flat_map(part) {
            for (latency_ns, start_ns, burst_ns) in MANNERS {
                let links = Links { latency_ns, start_ns, burst_ns, ..Links::of(speeds) };
                let (excess, _) = links.run(400, 100);
                let most = if start_ns == 0 { 5 } else { 10 }; // which is no transfer
                assert!(excess <= most, "{links:?}: {excess} %");
                let swapped = Links { swap: true, ..links };
                let (excess, _) = swapped.run(1000, 100);
                assert!(excess <= most, "{swapped:?}: {excess} %");
            }
        }
    }

    /// What a token bucket let through at once after a rest was taken for the lane's speed, and the
    /// lane got ten times what it could carry.
    #[test]
    fn token_bucket_does_not_make_a_lane_fast() {
        for speeds in [[GIGABIT, GIGABIT / 10], [GIGABIT / 10, GIGABIT]] {
            for bucket in [64 << 10, 256 << 10, 1 << 20] {
                for (latency_ns, start_ns, burst_ns) in &MANNERS[..4] {
                    let (latency_ns, start_ns, burst_ns) = (*latency_ns, *start_ns, *burst_ns);
                    let links =
                        Links { latency_ns, start_ns, burst_ns, bucket, ..Links::of(speeds) };
                    let (excess, shares) = links.run(400, 100);
                    assert!(excess <= 5, "{links:?}: {excess} %, {shares:?}");
                    let swapped = Links { swap: true, ..links };
                    let (excess, shares) = swapped.run(1000, 100);
                    assert!(excess <= 5, "{swapped:?}: {excess} %, {shares:?}");
                }
            }
        }
    }

    /// Completions that come together were counted as many in no time, and what a lane with little
    /// to carry did as its speed: one of two alike lanes got five times as much as the other.
    #[test]
    fn bursts_do_not_make_a_lane_fast_nor_few_stripes_one_slow() {
        let mut load = Load::IDLE;
        (0..4).for_each(|_| load.posted(STRIPE, Instant(0)));
        for at in 1..=40 {
            (0..4).for_each(|_| load.posted(STRIPE, Instant(at * 4_000_000 - 1_000_000)));
            (0..4).for_each(|_| load.completed(STRIPE, Instant(at * 4_000_000)));
        }
        let speed = 4 * STRIPE * 250;
        assert!(load.speed.abs_diff(speed) <= speed / 10, "{}", load.speed);
        (0..4).for_each(|_| load.completed(STRIPE, Instant(41 * 4_000_000)));
        let measured = load.speed;
        for at in 1..=9 {
            let start = at * 1_000_000_000;
            (0..2).for_each(|_| load.posted(STRIPE, Instant(start)));
            load.completed(STRIPE, Instant(start + 40_000_000));
            load.completed(STRIPE, Instant(start + 60_000_000));
        }
        assert_eq!(load.speed, measured);
    }

    #[test]
    fn slow_lane_is_left_out_of_messages_of_few_stripes() {
        let (mut loads, mut now, mut turn) = ([Load::IDLE; 2], 0, 0);
        let mut carried = [0; 2];
        for message in 0..100 {
            let picked: Vec<usize> = (0..2)
                .map(|stripe| {
                    let number = 2 * message + stripe;
                    let lane = pick(&loads, 0b11, STRIPE, turn, (Instant(now), number)).unwrap();
                    turn = 1 - lane;
                    loads[usize::from(lane)].posted(STRIPE, Instant(now));
                    loads[usize::from(lane)].number = number + 1;
                    usize::from(lane)
                })
                .collect();
            for lane in picked {
                carried[lane] += 1;
                now += [1_000_000, 10_000_000][lane];
                loads[lane].completed(STRIPE, Instant(now));
            }
        }
        assert!(carried[1] <= 10, "{carried:?}");
    }

    /// Two lanes, the second at a tenth, and messages one at a time, of more stripes than are few:
    /// how many the second carries.
    fn slow_share_of_messages_one_at_a_time(loads: &mut [Load; 2], messages: u64) -> u64 {
        let (mut now, mut turn, mut carried) = (0, 0, 0);
        let mut number = loads[0].number.max(loads[1].number);
        for _ in 0..messages {
            let (mut left, mut free) = (STRIPES_EACH, [now; 2]);
            let mut flying = std::collections::BTreeSet::new();
            while left > 0 || !flying.is_empty() {
                if left > 0
                    && let Some(lane) = pick(loads, 0b11, STRIPE, turn, (Instant(now), number))
                {
                    let at = usize::from(lane);
                    number += 1;
                    loads[at].posted(STRIPE, Instant(now));
                    loads[at].number = number;
                    free[at] = free[at].max(now) + [1_000_000, 10_000_000][at];
                    flying.insert((free[at], at));
                    carried += u64::from(lane);
                    (turn, left) = (1 - lane, left - 1);
                    continue;
                }
                let (due, at) = flying.pop_first().unwrap();
                now = due;
                loads[at].completed(STRIPE, Instant(now));
            }
        }
        carried
    }

    /// A lane that ran out with each message was never measured, and so counted as the fastest as
    /// soon as another had a few stripes on its way: it got two of eight, ten times too slow.
    #[test]
    fn slow_lane_that_is_never_measured_is_left_out_of_longer_messages_too() {
        let mut loads = [Load::IDLE; 2];
        slow_share_of_messages_one_at_a_time(&mut loads, 10);
        let carried = slow_share_of_messages_one_at_a_time(&mut loads, 400);
        assert!((1..=400 / 20).contains(&carried), "{carried} of {} stripes", 400 * STRIPES_EACH);
    }

    /// The slow lane alone had been measured, and those that were not counted as no faster.
    #[test]
    fn measured_lane_is_not_the_fastest_because_no_other_was_measured() {
        let slow = Load { speed: 1 << 20, ..Load::IDLE };
        let fast = Load { lone: 10 << 20, flying: 8 * STRIPE, ..Load::IDLE };
        assert_eq!(pick(&[slow, fast], 0b11, STRIPE, 0, (Instant(1), 0)), Some(1));
        let alike = Load { lone: 1 << 20, ..fast };
        assert_eq!(pick(&[slow, alike], 0b11, STRIPE, 0, (Instant(1), 0)), Some(0));
    }

    #[test]
    fn alike_lanes_take_turns() {
        let mut loads = [Load::IDLE; 3];
        let mut turn = 0;
        for at in 0..9 {
            let lane = pick(&loads, 0b111, 1000, turn, (Instant(at), 0)).unwrap();
            assert_eq!(u64::from(lane), at % 3);
            loads[usize::from(lane)].posted(1000, Instant(at));
            turn = (lane + 1) % 3;
        }
    }

    #[test]
    fn reserve_carries_little_while_another_lane_lives_and_everything_when_none_does() {
        let stripe = 256 << 10;
        for reserve in [0, 1] {
            let mut loads = [Load::IDLE; 2];
            loads[reserve].reserve = true;
            let (mut carried, mut turn, mut now) = ([0; 2], 0, Instant(0));
            for number in 0..10_000 {
                // both as fast, one stripe at a time, some of them after a long rest
                let lane = pick(&loads, 0b11, stripe, turn, (now, number)).unwrap();
                turn = 1 - lane;
                let at = usize::from(lane);
                loads[at].posted(stripe, now);
                now = Instant(now.0 + 100_000);
                loads[at].completed(stripe, now);
                loads[at].number = number + 1;
                carried[at] += 1;
                now = Instant(now.0 + u64::from(number % 2) * 50_000_000);
            }
            // beside ports it is lane 0, which nobody asks how fast it is
            let most = [0, 10_000 / 32][reserve];
            assert!(carried[reserve] <= most, "{carried:?}");
            assert!(reserve == 0 || carried[reserve] > 1, "{carried:?}");
            // behind a queue of the other's, too
            loads[1 - reserve].flying = FLYING_BYTES_MAX;
            loads[reserve].posted(1, now);
            assert_eq!(pick(&loads, 0b11, stripe, 0, (now, 0)), None);
            assert_eq!(pick(&loads, 1 << reserve, stripe, 0, (now, 0)), Some(reserve as u8));
            loads[reserve].reset();
            assert!(loads[reserve].reserve);
        }
    }

    /// Each message after a rest went by the slow lane first, to see how fast that is: with rests
    /// between all messages, each did.
    #[test]
    fn slow_lane_is_left_out_of_messages_with_rests_between_them() {
        let (mut loads, mut now, mut turn, mut carried) = ([Load::IDLE; 2], 0, 0, [0; 2]);
        for number in 0..1000 {
            let lane = pick(&loads, 0b11, STRIPE, turn, (Instant(now), number)).unwrap();
            let at = usize::from(lane);
            turn = 1 - lane;
            loads[at].posted(STRIPE, Instant(now));
            loads[at].number = number + 1;
            now += [100_000, 1_000_000][at];
            loads[at].completed(STRIPE, Instant(now));
            carried[at] += 1;
            now += 50_000_000;
        }
        assert!((2..=40).contains(&carried[1]), "{carried:?}");
    }

    #[test]
    fn lane_that_was_slow_is_tried_again() {
        let mut loads = [Load { speed: 1000, ..Load::IDLE }, Load { speed: 1 << 30, ..Load::IDLE }];
        loads[1].last = Instant(1_000_000);
        // a stripe would take it a second by what it was, as the floor has it 64 times less
        let second = 1_000_000_000;
        let pick_at = |at, number| pick(&loads, 0b11, 1 << 24, 0, (Instant(at), number));
        assert_eq!(pick_at(second / 2, 33), Some(1));
        assert_eq!(pick_at(40 * second, 32), Some(1));
        assert_eq!(pick_at(40 * second, 33), Some(0));
    }
}
