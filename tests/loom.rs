//! Every interleaving of the containers that threads share, under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --no-default-features --test loom`
//!
//! The planted modules compile the same source files against weaker orderings: if loom did not
//! find those, its silence about the shipped ones would mean nothing.
#![cfg(loom)]

use crosstie::base::pool::Pool;
use crosstie::base::ring::{Indices, split};
use crosstie::base::slab::Handle;
use crosstie::base::sync::{AtomicU32, AtomicU64, Cell};
use loom::thread;

/// Items through the ring; with two slots the indices lap it.
const ITEMS: u32 = 3;

/// Loom's threads are `'static`, and a model is run some thousand times: leaking is simplest.
fn leak<T>(item: T) -> &'static T {
    Box::leak(Box::new(item))
}

/// A module `Ordering` with these in the places of those orderings.
macro_rules! orderings {
    (release = $release:ident, acquire = $acquire:ident, both = $both:ident) => {
        #[allow(non_snake_case, non_upper_case_globals)]
        pub mod Ordering {
            use loom::sync::atomic::Ordering;
            pub const Relaxed: Ordering = Ordering::Relaxed;
            pub const Release: Ordering = Ordering::$release;
            pub const Acquire: Ordering = Ordering::$acquire;
            pub const AcqRel: Ordering = Ordering::$both;
        }
    };
}

macro_rules! ring_hands_over_in_order {
    ($split:path, $indices:ty) => {
        loom::model(|| {
            let indices = leak(<$indices>::default());
            let slots = leak([Cell::new(0u32), Cell::new(0u32)]);
            let (mut producer, mut consumer) = $split(indices, slots);
            let writer = thread::spawn(move || {
                for item in 1..=ITEMS {
                    while producer.push(item).is_err() {
                        thread::yield_now();
                    }
                }
            });
            for expected in 1..=ITEMS {
                let item = loop {
                    match consumer.pop() {
                        Some(item) => break item,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(item, expected);
            }
            assert_eq!(consumer.pop(), None);
            writer.join().unwrap();
        })
    };
}

macro_rules! pool_hands_each_index_to_one_thread {
    ($pool:path, $threads:expr, $rounds:expr) => {
        loom::model(|| {
            let head = leak(AtomicU64::new(0));
            let next = leak([AtomicU32::new(0), AtomicU32::new(0)]);
            let pool = <$pool>::new(head, next);
            // What an index stands for: loom reports two threads in one cell at a time.
            let owned = leak([Cell::new(0u32), Cell::new(0u32)]);
            let work = move |mark: u32| {
                for _ in 0..$rounds {
                    if let Some(index) = pool.acquire() {
                        let cell = &owned[index as usize];
                        // SAFETY: the pool gave this index to this thread alone; that it did is
                        // the claim of the test, and loom checks each access.
                        unsafe { cell.write(mark) };
                        // SAFETY: as above.
                        assert_eq!(unsafe { cell.read() }, mark);
                        pool.release(index);
                    }
                }
            };
            let threads: Vec<_> =
                (1..$threads).map(|mark| thread::spawn(move || work(mark))).collect();
            work(0);
            for thread in threads {
                thread.join().unwrap();
            }
            let mut back = [pool.acquire(), pool.acquire()];
            back.sort();
            assert_eq!(back, [Some(0), Some(1)], "an index was lost or doubled");
            assert_eq!(pool.acquire(), None);
        })
    };
}

/// One thread uses a range that another takes out, and then does with the memory what it likes.
macro_rules! range_in_use_stays {
    ($regions:ident, $pool:path, $handle:ty, $hold:expr) => {
        range_in_use_stays!($regions, $pool, $handle, $hold, Data);
    };
    ($regions:ident, $pool:path, $handle:ty, $hold:expr, $counter:ident) => {
        loom::model(|| {
            let free = <$pool>::new(leak(AtomicU64::new(0)), leak([AtomicU32::new(0)]));
            let slots = leak([$regions::RegionSlot::default()]);
            let table = $regions::RegionTable::new(slots, free);
            let range = $regions::Range { start: 64, length: 8, tag: 0 };
            let handle = table.insert(range).unwrap();
            let memory = leak(Cell::new(0u32));
            let remover = thread::spawn(move || {
                if table.remove(handle).is_ok() {
                    // SAFETY: nobody uses the range; loom checks that.
                    unsafe { memory.write(2) };
                }
            });
            let hold: fn(&$regions::RegionTable<'static>, $handle) -> bool = $hold;
            if hold(&table, handle) {
                // SAFETY: the range stays while it is pinned; loom checks that.
                unsafe { memory.write(1) };
                table.pin_as($regions::Counter::$counter, handle.index, -1);
            }
            remover.join().unwrap();
            // whichever came first, the counts are even
            let gone = table.get(handle).is_none();
            assert_eq!(table.remove(handle).is_err(), gone);
            assert!(table.insert(range).is_some(), "the slot is free again");
        })
    };
}

#[test]
fn range_in_use_is_not_taken_out() {
    use crosstie::base::regions;
    range_in_use_stays!(regions, Pool<'_>, Handle, |table, handle| {
        table.hold(handle, 64, 8).is_some()
    });
}

#[test]
fn range_in_use_beside_the_data_thread_is_not_taken_out() {
    use crosstie::base::regions;
    range_in_use_stays!(
        regions,
        Pool<'_>,
        Handle,
        |table, handle| table.hold_as(regions::Counter::Beside, handle, 64, 8).is_some(),
        Beside
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn range_that_is_looked_up_and_then_pinned_is_found() {
    use crosstie::base::regions;
    range_in_use_stays!(regions, Pool<'_>, Handle, |table, handle| {
        let found = table.get(handle).is_some();
        if found {
            table.pin(handle.index, 1);
        }
        found
    });
}

/// The shipped file without its fences.
#[allow(dead_code, unused_imports)]
#[path = "."]
mod no_fence {
    pub use crosstie::base::{pool, slab};
    pub mod sync {
        pub use crosstie::base::sync::{AtomicU32, AtomicU64, Ordering};

        pub fn fence(_: Ordering) {}
    }
    #[path = "../src/base/regions.rs"]
    pub mod regions;
}

#[test]
#[should_panic(expected = "Causality violation")]
fn range_beside_without_fences_is_found() {
    use no_fence::regions;
    range_in_use_stays!(
        regions,
        Pool<'_>,
        Handle,
        |table, handle| table.hold_as(regions::Counter::Beside, handle, 64, 8).is_some(),
        Beside
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn range_without_fences_is_found() {
    use no_fence::regions;
    range_in_use_stays!(regions, Pool<'_>, Handle, |table, handle| {
        table.hold(handle, 64, 8).is_some()
    });
}

#[test]
fn ring_hands_over_in_order() {
    ring_hands_over_in_order!(split, Indices);
}

#[test]
fn pool_hands_each_index_to_one_of_three_threads() {
    pool_hands_each_index_to_one_thread!(Pool<'_>, 3, 1);
}

#[test]
fn pool_survives_an_index_that_comes_back() {
    pool_hands_each_index_to_one_thread!(Pool<'_>, 2, 2);
}

/// The shipped files against `$release`, `$acquire` and `$both` in the places of those orderings.
macro_rules! planted {
    ($name:ident, release = $release:ident, acquire = $acquire:ident, both = $both:ident) => {
        #[allow(dead_code, unused_imports)]
        // Paths of files below are relative to this folder, not to one named like the module.
        #[path = "."]
        mod $name {
            pub mod sync {
                pub use crosstie::base::sync::{
                    AtomicU32, AtomicU64, CachePadded, Cell, spin_loop,
                };

                orderings!(release = $release, acquire = $acquire, both = $both);
            }
            #[path = "../src/base/access/gate.rs"]
            pub mod gate;
            #[path = "../src/base/pool.rs"]
            pub mod pool;
            #[path = "../src/base/access/recall.rs"]
            pub mod recall;
            #[path = "../src/base/ring.rs"]
            pub mod ring;
            #[path = "../src/base/access/tickets.rs"]
            pub mod tickets;
        }
    };
}

planted!(no_release, release = Relaxed, acquire = Acquire, both = Acquire);
planted!(no_acquire, release = Release, acquire = Relaxed, both = AcqRel);
planted!(no_order, release = Relaxed, acquire = Relaxed, both = Relaxed);

#[test]
#[should_panic(expected = "Causality violation")]
fn ring_without_release_is_found() {
    ring_hands_over_in_order!(no_release::ring::split, no_release::ring::Indices);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn ring_without_acquire_is_found() {
    ring_hands_over_in_order!(no_acquire::ring::split, no_acquire::ring::Indices);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn pool_without_release_is_found() {
    pool_hands_each_index_to_one_thread!(no_release::pool::Pool<'_>, 2, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn pool_without_acquire_is_found() {
    pool_hands_each_index_to_one_thread!(no_acquire::pool::Pool<'_>, 2, 2);
}

/// Threads use what stands behind a gate, while one closes it, opens it anew, and closes it again.
macro_rules! what_is_behind_a_gate_is_closed_for_nobody_inside {
    ($gate:ident) => {
        loom::model(|| {
            let gate = leak($gate::Gate::default());
            // what stands behind it: 0 where that is closed
            let behind = leak(Cell::new(0u32));
            // SAFETY: the gate is shut; loom checks that nobody is inside.
            let open = move |what| unsafe { behind.write(what) };
            open(1);
            gate.admit();
            let enter = move || match gate.enter() {
                $gate::Entry::Inside => {
                    // SAFETY: inside the gate it stays; loom checks that.
                    assert_ne!(unsafe { behind.read() }, 0);
                    gate.leave();
                    true
                }
                $gate::Entry::Shut | $gate::Entry::Gone => false,
            };
            let others = [0; 2].map(|_| thread::spawn(enter));
            gate.shut(false);
            open(0);
            open(2);
            gate.admit();
            gate.shut(true);
            open(0);
            assert!(!enter() && gate.enter() == $gate::Entry::Gone);
            for other in others {
                other.join().unwrap();
            }
        })
    };
}

/// Each thread has its turn, alone.
macro_rules! turns_are_of_one_thread_at_a_time {
    ($tickets:ident) => {
        loom::model(|| {
            let tickets = leak($tickets::Tickets::default());
            let count = leak(Cell::new(0u32));
            let add = move || {
                let turn = tickets.take(|_| ());
                // SAFETY: this thread's turn; loom checks that it is alone.
                unsafe { count.write(count.read() + 1) };
                drop(turn);
            };
            // of three threads that wait for each other loom sees no end
            let other = thread::spawn(add);
            (0..2).for_each(|_| add());
            other.join().unwrap();
            let turn = tickets.take(|_| ());
            // SAFETY: as above.
            assert_eq!(unsafe { count.read() }, 3);
            drop(turn);
        })
    };
}

/// An owner gives something up, while another thread looks whether it has.
macro_rules! what_was_given_up_was_used_before {
    ($recall:ident) => {
        loom::model(|| {
            let recall = leak($recall::Recall::default());
            // what its owner did with it before it gave it up
            let was_used = leak(Cell::new(false));
            let owner = thread::spawn(move || {
                // SAFETY: read by nobody before it is given up; loom checks that.
                unsafe { was_used.write(true) };
                recall.doom();
            });
            for _ in 0..2 {
                if recall.is_doomed() {
                    // SAFETY: it was given up before; loom checks that.
                    assert!(unsafe { was_used.read() });
                }
                recall.want_no_more();
            }
            owner.join().unwrap();
            assert!(recall.is_doomed());
        })
    };
}

#[test]
fn what_is_behind_a_gate_is_closed_for_nobody_inside() {
    use crosstie::base::gate;
    what_is_behind_a_gate_is_closed_for_nobody_inside!(gate);
}

#[test]
fn turns_are_of_one_thread_at_a_time() {
    use crosstie::base::tickets;
    turns_are_of_one_thread_at_a_time!(tickets);
}

#[test]
fn what_was_given_up_was_used_before() {
    use crosstie::base::recall;
    what_was_given_up_was_used_before!(recall);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn recall_without_acquire_is_found() {
    use no_acquire::recall;
    what_was_given_up_was_used_before!(recall);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn gate_without_order_is_found() {
    use no_order::gate;
    what_is_behind_a_gate_is_closed_for_nobody_inside!(gate);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn turns_without_order_are_found() {
    use no_order::tickets;
    turns_are_of_one_thread_at_a_time!(tickets);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn recall_without_order_is_found() {
    use no_order::recall;
    what_was_given_up_was_used_before!(recall);
}
