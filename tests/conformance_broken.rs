//! The suite notices: for each entry there is a provider that breaks just that promise, and fails.

#[path = "common/broken.rs"]
mod broken;
mod common;

use broken::{Broken, Vice};
use common::{LOOPBACK, NOTHING, PairRig, loopback_of, over, over_loopback};
use crosstie::provider::loopback::Limits;
use crosstie_kit::conformance::{ENTRY_COUNT, Failure, Verdict, entries};
use std::rc::Rc;

const VICES: [(&str, Vice); ENTRY_COUNT] = [
    ("post_takes_whole_write_or_again_changes_nothing", Vice::HalfWrite),
    ("post_takes_whole_send_or_again_changes_nothing", Vice::RefusedButSent),
    ("accepted_op_completes", Vice::ForgetsCompletion),
    ("accepted_op_completes_once", Vice::RepeatsCompletion),
    ("poll_stays_inside_its_slice", Vice::LosesBeyondSlice),
    ("poll_stays_inside_its_budget", Vice::IgnoresBudget),
    ("post_and_poll_do_not_allocate", Vice::Allocates),
    ("sends_arrive_in_order", Vice::SwapsMessages),
    ("write_is_visible_before_a_later_send", Vice::SendOvertakes),
    ("immediate_comes_after_its_data", Vice::ImmediateFirst),
    ("read_brings_the_peers_bytes", Vice::ReadsBeside),
    ("adds_sum_in_64_bits", Vice::AddsHalf),
    ("ops_without_bytes_take_effect", Vice::DropsEmpty),
    ("longest_payload_arrives_whole", Vice::CutsLongest),
    ("send_source_is_free_after_post", Vice::SendsLate),
    ("line_lands_whole_at_its_target", Vice::BreaksLine),
    ("head_and_payload_arrive_unchanged", Vice::BreaksHead),
    ("held_payload_stays_until_release", Vice::ServesNewest),
    ("slots_come_back_in_any_order", Vice::LeaksSlot),
    ("ops_beyond_caps_are_unsupported", Vice::CutsToCaps),
    ("death_completes_everything", Vice::SwallowsErrors),
    ("nothing_arrives_after_peer_down", Vice::SpeaksAfterDown),
    ("post_to_a_dead_peer_is_refused", Vice::AcceptsForTheDead),
    ("error_names_its_op", Vice::WrongId),
    ("deregistered_key_is_refused", Vice::MasterKey),
    ("range_outside_of_region_is_refused", Vice::MasterKey),
    ("region_stays_until_deregister_returns", Vice::DeregistersEarly),
    ("same_calls_give_same_answers", Vice::OwnDice),
    ("close_is_busy_while_ops_are_in_flight", Vice::ClosesAnyway),
    ("nothing_is_touched_after_the_fence", Vice::FencesInNameOnly),
    ("parts_of_a_write_arrive_one_behind_the_other", Vice::SwapsParts),
    ("write_lands_at_any_address", Vice::RoundsTargets),
    ("caps_stay_as_they_are", Vice::ChangesCaps),
    ("end_is_told_with_its_cause", Vice::TellsAnotherCause),
    ("region_has_any_length_but_none", Vice::RefusesShortRegions),
    ("what_had_come_is_told_before_the_end", Vice::ThrowsAwayWhatCame),
    ("regions_are_as_many_as_were_asked_for", Vice::TakesMoreRegions),
    ("memory_that_cannot_be_is_refused", Vice::TakesAnyMemory),
    ("receives_are_as_many_as_promised", Vice::PromisesMoreReceives),
    ("refused_write_with_word_leaves_no_bytes", Vice::WritesThenRefusesWord),
    ("close_gives_held_receives_back", Vice::LeaksHeldAtClose),
    ("held_messages_outlive_a_detach", Vice::FreesHeldAtDetach),
    ("own_posts_do_not_pass_the_fence", Vice::OwnPostsPassFence),
    ("long_payloads_are_held_as_many_as_promised", Vice::HoldsOneLongLess),
    ("short_ops_stay_behind_longer_ones", Vice::ShortWritesOvertake),
];

/// Other ways to break a promise, and the entry that finds them.
const MORE: [(&str, Vice); 7] = [
    ("adds_sum_in_64_bits", Vice::AddsByReading),
    ("post_takes_whole_write_or_again_changes_nothing", Vice::RefusedButWritten),
    ("what_had_come_is_told_before_the_end", Vice::TellsEndsLast),
    ("own_posts_do_not_pass_the_fence", Vice::OwnOpsOutliveFence),
    ("long_payloads_are_held_as_many_as_promised", Vice::TakesNoLongMore),
    ("long_payloads_are_held_as_many_as_promised", Vice::LeaksLongPlaces),
    ("short_ops_stay_behind_longer_ones", Vice::ShortReadsOvertake),
];

/// A queue that the long writes of an entry do not fill.
const JOBS: u32 = 64;

/// More receives than entries had looked at that are about other promises.
const SLOTS: u32 = 96;

fn verdict(index: usize, vice: Vice) -> Verdict {
    let limits = match vice {
        Vice::PromisesMoreReceives | Vice::TakesSendsSlowly => Limits { slots: SLOTS, ..LOOPBACK },
        Vice::RefusedButWritten => Limits { jobs: JOBS, ..LOOPBACK },
        vice if vice.is_of_longs() => Limits { slots: SLOTS, ..LOOPBACK },
        _ => LOOPBACK,
    };
    let make = move || over(Broken::new(loopback_of(limits), vice));
    let mut rig = PairRig::new(Rc::new(make));
    rig.regions_max = Some(LOOPBACK.regions_max);
    rig.tells_ends_first = true;
    (entries()[index].run)(&mut rig)
}

#[test]
fn each_entry_has_a_provider_that_fails_it() {
    for (index, entry) in entries::<PairRig<Broken>>().iter().enumerate() {
        let (name, vice) = VICES[index];
        assert_eq!(name, entry.name, "entries and vices are listed in one order");
        match verdict(index, vice) {
            Err(Failure { promise, .. }) if promise == entry.promise => {}
            other => panic!("P{} {name} with {vice:?}: {other:?}", entry.promise),
        }
    }
}

#[test]
fn entries_find_more_ways_to_break_a_promise() {
    for (name, vice) in MORE {
        let entries = entries::<PairRig<Broken>>();
        let index = entries.iter().position(|entry| entry.name == name).expect("an entry");
        match verdict(index, vice) {
            Err(Failure { promise, .. }) if promise == entries[index].promise => {}
            other => panic!("{name} with {vice:?}: {other:?}"),
        }
    }
}

/// What the suite promises a vendor: that the entry of that name is the first that complains.
#[test]
fn no_earlier_entry_finds_what_the_newer_ones_are_for() {
    let newer = [
        Vice::PromisesMoreReceives,
        Vice::WritesThenRefusesWord,
        Vice::LeaksHeldAtClose,
        Vice::FreesHeldAtDetach,
        Vice::OwnPostsPassFence,
        Vice::OwnOpsOutliveFence,
        Vice::HoldsOneLongLess,
        Vice::TakesNoLongMore,
        Vice::LeaksLongPlaces,
        Vice::ShortWritesOvertake,
        Vice::ShortReadsOvertake,
        Vice::TellsEndsLast,
    ];
    for vice in newer {
        let found = VICES.iter().chain(&MORE).find(|(_, other)| *other == vice);
        let (name, _) = found.expect("it is listed");
        let entries = entries::<PairRig<Broken>>();
        let first = (0..ENTRY_COUNT).find(|index| verdict(*index, vice).is_err());
        assert_eq!(first.map(|index| entries[index].name), Some(*name), "{vice:?}");
    }
}

#[test]
fn wrapper_without_a_vice_fails_none() {
    // a loopback detaches no peers, and has no longer payloads towards one
    common::run_all(|| over_loopback(|rail| Broken::new(rail, Vice::None)), 2);
    for (index, (name, _)) in VICES.iter().enumerate() {
        assert!(verdict(index, Vice::None).is_ok(), "{name}");
    }
}

/// So what the vices of long payloads fail of is the vice.
#[test]
fn long_payloads_without_a_vice_fail_none() {
    for slots in [LOOPBACK.slots, 9, 12, SLOTS] {
        let limits = Limits { slots, ..LOOPBACK };
        let make = move || over(Broken::new(loopback_of(limits), Vice::HasLongs));
        common::run_all(make, 1); // a loopback detaches no peers
    }
}

/// The suite waited no longer for all of them than it does for one, so a rail of many receives and
/// a short send queue failed.
#[test]
fn receives_may_take_as_long_as_they_come() {
    let counted = [
        "receives_are_as_many_as_promised",
        "refused_write_with_word_leaves_no_bytes",
        "close_gives_held_receives_back",
    ];
    let entries = entries::<PairRig<Broken>>();
    for name in counted {
        let index = entries.iter().position(|entry| entry.name == name).expect("an entry");
        let verdict = verdict(index, Vice::TakesSendsSlowly);
        assert!(verdict.is_ok(), "{name}: {verdict:?}");
    }
}
