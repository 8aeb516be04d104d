//! How NCCL moves data of GPUs over copy engines: algorithm, protocol and channels by size.
//!
//! NCCL's own model knows nothing of copies that cost some microseconds each, however short. It
//! takes LL up to a megabyte, and all channels from the first byte on. The table below is of two
//! H200: the fastest of LL and Simple with 1 to 32 channels for each size of an all_reduce.

use crate::net::log;
use crate::{cuda, launcher, net};
use core::ffi::c_int;
use crosstie::memory::Variables;
use std::sync::Once;

/// NCCL's numbers of what is chosen.
pub const ALGORITHM_RING: usize = 1;
const LL: usize = 0;
const SIMPLE: usize = 2;
/// Up to here LL is faster than Simple.
const LL_BYTES_MAX: u64 = 16 << 10;
/// Channels from each size on.
const CHANNELS: [(u64, c_int); 5] =
    [(0, 1), (2 << 20, 2), (8 << 20, 4), (32 << 20, 8), (64 << 20, 16)];

/// What is chosen; nothing of what the user has chosen.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Choice {
    /// For the ring.
    pub protocol: Option<usize>,
    /// How many channels.
    pub channels: Option<c_int>,
}

/// Whether a communicator's traffic is that of copy engines: each rank is a node of its own to
/// NCCL, though no launcher says that there are several hosts; the network is ours, and it is given
/// memory of GPUs.
pub fn answers(ranks: usize, nodes: usize) -> bool {
    static SAID: Once = Once::new();
    let variables = Variables::of_process();
    let network = variables.text("NCCL_NET");
    let is_ours = network.is_none_or(|name| name.eq_ignore_ascii_case("crosstie"));
    let is_here = ranks > 1 && nodes == ranks && !launcher::several_hosts(variables);
    let answers = is_here && is_ours && net::is_open() && cuda::by_copies();
    if answers {
        SAID.call_once(|| log::info("tuner: ring, LL up to 16 KiB, channels by size"));
    }
    answers
}

/// What is chosen for so many bytes.
pub fn choice(bytes: u64) -> Choice {
    let ours = cuda::OUR_CHANNELS.to_bytes();
    let is_ours = |name: &str, value: &[u8]| name == "NCCL_MIN_NCHANNELS" && value == ours;
    chosen(bytes, |name| {
        let value = Variables::of_process().get(name);
        value.is_some_and(|value| !is_ours(name, value.as_encoded_bytes()))
    })
}

fn chosen(bytes: u64, is_set: impl Fn(&str) -> bool) -> Choice {
    let protocol = if bytes <= LL_BYTES_MAX { LL } else { SIMPLE };
    let channels = CHANNELS.iter().rev().find(|(from, _)| *from <= bytes).map(|(_, its)| *its);
    let free = |names: [&str; 2]| !names.into_iter().any(&is_set);
    Choice {
        protocol: Some(protocol).filter(|_| free(["NCCL_PROTO", "NCCL_ALGO"])),
        channels: channels.filter(|_| free(["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"])),
    }
}

impl Choice {
    /// Makes its entry of a table of costs, by algorithm and protocol, the cheapest; whether NCCL
    /// has one. What NCCL cannot use is below zero there.
    pub fn cheapen(&self, costs: &mut [f32], protocols: usize) -> bool {
        let Some(protocol) = self.protocol.filter(|its| *its < protocols) else { return true };
        match costs.get_mut(ALGORITHM_RING * protocols + protocol) {
            Some(cost) if *cost >= 0.0 => {
                *cost = 0.0;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_collectives_take_ll_and_long_ones_more_channels() {
        let all = [(8, LL, 1), (16 << 10, LL, 1), (1 << 20, SIMPLE, 1), (2 << 20, SIMPLE, 2)];
        for (bytes, protocol, channels) in all {
            let expected = Choice { protocol: Some(protocol), channels: Some(channels) };
            assert_eq!(chosen(bytes, |_| false), expected);
        }
        assert_eq!(chosen(1 << 30, |_| false).channels, Some(16));
    }

    #[test]
    fn what_the_user_has_set_is_not_chosen() {
        let set = |its: &'static str| move |name: &str| name == its;
        assert_eq!(chosen(8, set("NCCL_PROTO")), Choice { protocol: None, channels: Some(1) });
        assert_eq!(chosen(8, set("NCCL_ALGO")).protocol, None);
        assert_eq!(chosen(8, set("NCCL_MAX_NCHANNELS")).channels, None);
    }

    #[test]
    fn the_choice_is_the_cheapest_unless_nccl_cannot_use_it() {
        let choice = Choice { protocol: Some(SIMPLE), channels: Some(4) };
        let mut costs = [[5.0_f32, 6.0, 7.0], [1.0, 2.0, 3.0]].concat();
        assert!(choice.cheapen(&mut costs, 3));
        assert_eq!(costs, [5.0, 6.0, 7.0, 1.0, 2.0, 0.0]);
        costs[5] = -1.0;
        assert!(!choice.cheapen(&mut costs, 3));
        assert_eq!(costs[5], -1.0);
        assert!(!choice.cheapen(&mut costs[..3], 3), "a table without the ring");
    }
}
