//! The conformance suite: one list of entries that every provider passes.
//!
//! A test gives a [`Rig`]: two connected sides over some provider, with their memory and time.
//! [`entries`] lists the tests. An entry ends in one of three ways:
//!
//! - passed;
//! - skipped: the provider's [`Caps`] do not promise the behaviour;
//! - a [`Failure`], which names the broken promise of the contract (P1 to P10, see
//!   [`crosstie::fabric`]).
//!
//! No entry panics over a broken promise, so programs in other languages can run the list, too.
//! Each entry takes a fresh rig. Nothing here allocates.

mod bench;
mod data;
mod ending;
mod longs;
mod order;
mod parts;
mod posting;
mod receives;
mod regions;

use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Instant;
use crosstie::fabric::{Caps, DownCause, PeerLife, Provider};

/// Rounds of polls until what must come counts as missing, where nothing but polls moves bytes.
pub const PATIENCE: u32 = 4096;

/// Memory of each side, in bytes.
pub const ARENA_BYTES: usize = 512 * 1024;

/// One end of the connection under test.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Side {
    /// Mostly the one that posts.
    A,
    /// Mostly the one at which something appears.
    B,
}

impl Side {
    /// The opposite end.
    pub const fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    const fn index(self) -> usize {
        match self {
            Side::A => 0,
            Side::B => 1,
        }
    }
}

/// Two connected sides, as a test file makes them.
pub trait Rig {
    /// What is tested.
    type Provider: Provider;

    /// The provider of a side; the same for both when [`Rig::shared`].
    fn provider(&mut self, side: Side) -> &mut Self::Provider;

    /// Whether both sides are peers of one provider.
    fn shared(&self) -> bool {
        false
    }

    /// What the provider of a side promises when it is asked now; `None`: what cannot be.
    fn promises(&mut self, side: Side) -> Option<Caps> {
        let peer = self.peer(side);
        Some(self.provider(side).caps(peer))
    }

    /// Where `side` posts to.
    fn peer(&self, side: Side) -> PeerIndex;

    /// First byte of the memory of `side`.
    ///
    /// *Shape*: [`ARENA_BYTES`], aligned to 64, valid as long as the rig, touched by nobody else.
    fn arena(&mut self, side: Side) -> *mut u8;

    /// Where the processor reaches that memory: elsewhere, if it lies in a device.
    fn view(&mut self, side: Side) -> *mut u8 {
        self.arena(side)
    }

    /// The time.
    fn now(&self) -> Instant;

    /// Lets time pass; 64 calls are longer than any delay of the rail's own.
    fn advance(&mut self);

    /// Whether to go on waiting for something that must come, and has not come within so many
    /// rounds of polls; each wait asks with 0 first. Where the kernel or threads move bytes, a
    /// watchdog says so: how many rounds they need says nothing on a busy machine.
    fn is_patient(&mut self, rounds: u32) -> bool {
        rounds < PATIENCE
    }

    /// Most runs of the same calls, of which two in a row must have the same answers. More than two
    /// where the kernel moves bytes, which on a busy host it may do later once.
    fn runs_max(&self) -> u32 {
        2
    }

    /// Whether threads of the rail's own move bytes, whoever polls.
    fn has_threads(&self) -> bool {
        false
    }

    /// Whether the ends of all ops are told before that of the peer after [`PeerLife::peer_fail`].
    /// The header has vendors promise that; the contract leaves the order open.
    fn tells_ends_first(&self) -> bool {
        false
    }

    /// How many regions each provider was opened for, if that is known.
    fn regions_max(&self) -> Option<u32> {
        None
    }

    /// Makes the connection die under both sides.
    fn sever(&mut self) {
        for side in [Side::A, Side::B] {
            let peer = self.peer(side);
            self.provider(side).peer_fail(peer, DownCause::Died);
        }
    }

    /// Builds everything anew, exactly as it was at first. `false` when that cannot be done.
    fn renew(&mut self) -> bool {
        false
    }

    /// Builds everything anew, not exactly as it was: for another try after an entry has broken the
    /// connection. `false` when that cannot be done.
    fn anew(&mut self) -> bool {
        self.renew()
    }

    /// Joins both sides again by the same providers, after both have forgotten their peers: each is
    /// called as before. `false` when that cannot be done.
    fn rejoin(&mut self) -> bool {
        false
    }

    /// How often this thread has allocated so far, if that is counted.
    fn allocations(&self) -> Option<u64> {
        None
    }
}

/// A broken promise.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Failure {
    /// Its number in the contract: 1 for P1.
    pub promise: u8,
    /// What was seen.
    pub why: &'static str,
}

/// How an entry ended that found nothing broken.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Outcome {
    /// It was tried.
    Passed,
    /// It could not be tried, because of this.
    Skipped(&'static str),
}

/// What an entry says in the end.
pub type Verdict = Result<Outcome, Failure>;

/// One thing to try.
pub struct Entry<R: Rig> {
    /// The promise it is about: 1 for P1.
    pub promise: u8,
    /// What a keeper of the promise does.
    pub name: &'static str,
    /// Tries it on a fresh rig.
    pub run: fn(&mut R) -> Verdict,
}

/// How many entries there are.
pub const ENTRY_COUNT: usize = 45;

/// The list.
pub fn entries<R: Rig>() -> [Entry<R>; ENTRY_COUNT] {
    macro_rules! list {
        ($($promise:literal $room:ident $name:ident,)*) => {
            [$(Entry { promise: $promise, name: stringify!($name), run: $room::$name }),*]
        };
    }
    list![
        1 posting post_takes_whole_write_or_again_changes_nothing,
        1 posting post_takes_whole_send_or_again_changes_nothing,
        2 posting accepted_op_completes,
        2 posting accepted_op_completes_once,
        3 posting poll_stays_inside_its_slice,
        3 posting poll_stays_inside_its_budget,
        4 posting post_and_poll_do_not_allocate,
        5 order sends_arrive_in_order,
        5 order write_is_visible_before_a_later_send,
        5 order immediate_comes_after_its_data,
        5 data read_brings_the_peers_bytes,
        5 data adds_sum_in_64_bits,
        5 data ops_without_bytes_take_effect,
        5 data longest_payload_arrives_whole,
        5 data send_source_is_free_after_post,
        5 data line_lands_whole_at_its_target,
        5 data head_and_payload_arrive_unchanged,
        5 data held_payload_stays_until_release,
        5 data slots_come_back_in_any_order,
        5 data ops_beyond_caps_are_unsupported,
        6 ending death_completes_everything,
        6 ending nothing_arrives_after_peer_down,
        6 ending post_to_a_dead_peer_is_refused,
        6 regions error_names_its_op,
        7 regions deregistered_key_is_refused,
        7 regions range_outside_of_region_is_refused,
        7 regions region_stays_until_deregister_returns,
        8 posting same_calls_give_same_answers,
        9 ending close_is_busy_while_ops_are_in_flight,
        10 ending nothing_is_touched_after_the_fence,
        5 parts parts_of_a_write_arrive_one_behind_the_other,
        5 data write_lands_at_any_address,
        5 data caps_stay_as_they_are,
        6 ending end_is_told_with_its_cause,
        7 regions region_has_any_length_but_none,
        6 ending what_had_come_is_told_before_the_end,
        7 regions regions_are_as_many_as_were_asked_for,
        7 regions memory_that_cannot_be_is_refused,
        5 receives receives_are_as_many_as_promised,
        1 receives refused_write_with_word_leaves_no_bytes,
        9 receives close_gives_held_receives_back,
        9 receives held_messages_outlive_a_detach,
        10 ending own_posts_do_not_pass_the_fence,
        5 longs long_payloads_are_held_as_many_as_promised,
        5 order short_ops_stay_behind_longer_ones,
    ]
}
