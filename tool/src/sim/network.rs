//! The network of a schedule, and how large its endpoints are.
#![forbid(unsafe_code)]

use super::lanes::{self, Lanes};
use crosstie::base::units::{Bytes, Span};
use crosstie::fabric::Syscalls;
use crosstie::transport::Limits;
use crosstie::transport::limits::{CREDITS, RECEIVES_SPARE, REQUESTS_MAX};
use crosstie::wire::report::REPORT_BYTES_MAX;
use crosstie_kit::random::Random;
use crosstie_kit::sim::{CERTAIN, Faults, SimConfig};

/// Regions of each endpoint: more than a peer remembers, so that cells are written anew.
pub const REGIONS: usize = 12;
/// Longest message of the stream.
pub const EAGER_BYTES: Bytes = Bytes(256);

/// The limits of endpoints whose connection has so many lanes at most.
pub const fn limits(rails_max: u32) -> Limits {
    Limits { connections_max: 1, requests_max: 32, regions_max: REGIONS as u32, rails_max }
}

/// Those of a schedule: every eighth has more requests than its peer's mailbox has slots for.
pub const fn limits_of(seed: u64, rails_max: u32) -> Limits {
    let requests_max = if seed % 8 == 5 { REQUESTS_MAX } else { limits(rails_max).requests_max };
    Limits { requests_max, ..limits(rails_max) }
}

/// A network without faults, for tests that break it by hand.
#[cfg(test)]
pub fn calm(pull: bool, lanes: u32, seed: u64) -> SimConfig {
    SimConfig {
        ports: 2,
        peers_max: lanes.next_power_of_two(),
        recv_slots: CREDITS + if lanes > 1 { RECEIVES_SPARE } else { 0 },
        payload_max: EAGER_BYTES.max(Bytes::of(REPORT_BYTES_MAX)),
        regions_max: 2 * REGIONS as u32 + 2,
        flights_max: 512,
        pull,
        ordered: true,
        immediate: true,
        copies_at_post: true,
        syscalls: Syscalls::None,
        latency: Span(100),
        delay_max: Span(3000),
        seed,
        faults: Faults::default(),
    }
}

/// The network of a schedule: half of them pull, half of the others keep no order.
pub fn config(seed: u64) -> (SimConfig, Lanes) {
    let mut random = Random::new(seed ^ 0x5eed);
    let pull = random.below(3) == 0;
    let lanes = lanes::draw(&mut random, pull);
    let often = |random: &mut Random, most: u32| random.below(u64::from(most)) as u32;
    let lossy = random.below(4) == 0;
    let faults = Faults {
        delay: often(&mut random, CERTAIN / 2),
        reorder: often(&mut random, CERTAIN / 2),
        again: often(&mut random, CERTAIN / 3),
        error: if lossy { often(&mut random, CERTAIN / 400) } else { 0 },
        rail_death: if lossy { often(&mut random, CERTAIN / 400) } else { 0 },
        late_completion: often(&mut random, CERTAIN / 4),
        ghost: if lossy { CERTAIN / 2 } else { 0 },
    };
    let config = SimConfig {
        ports: 2,
        peers_max: lanes.count.next_power_of_two(),
        recv_slots: CREDITS + if lanes.count > 1 { RECEIVES_SPARE } else { 0 },
        payload_max: EAGER_BYTES.max(Bytes::of(REPORT_BYTES_MAX)),
        regions_max: 2 * REGIONS as u32 + 2,
        flights_max: 512,
        pull,
        ordered: random.below(2) == 0,
        immediate: true,
        copies_at_post: true,
        syscalls: if random.below(2) == 0 { Syscalls::PerBatch } else { Syscalls::None },
        latency: Span(100),
        delay_max: Span(3000),
        seed,
        faults: lanes.faults(faults),
    };
    (config, lanes)
}
