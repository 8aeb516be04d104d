//! What must fail does so at every rank, within the deadline, and leaves nothing behind.

use super::memory::{Area, Kind};
use super::table::{ADD, CUDA, HOST, Table};
use super::world::{
    HOSTS, Layout, PROCESSES, Rank, TCP, THREADS, THREE, THREE_TCP, acquainted, acquainted_by,
    all_succeed, each_rank, is_child, leaves_nothing, play, play_to_the_end, start, threads,
    vanish_when_it_says, wait_until,
};
use crosstie::base::hash::fnv1a;
use std::ffi::c_int;

/// A deadline that a test can wait for.
const SOON: (&str, &str) = ("CROSSTIE_CONNECT_TIMEOUT_MS", "1500");

/// For all hosts.
const ALL_SOON: [&[(&str, &str)]; 3] = [&[SOON]; 3];

/// Tables and layouts that show a rule.
const ENOUGH: [(usize, Layout); 6] =
    [(11, THREADS), (14, THREADS), (11, TCP), (13, PROCESSES), (14, THREE), (15, HOSTS)];

/// A request that was refused, or that ends with an error.
fn fails(rank: &Rank, request: Result<*mut std::ffi::c_void, c_int>) {
    let Ok(request) = request else { return };
    let mut ended = Ok(false);
    wait_until("an error", || {
        ended = rank.table.test(rank.coll, request);
        ended != Ok(false)
    });
    assert!(ended.is_err(), "it must not end well");
}

/// NCCL's numbers.
const ARGUMENT: Result<*mut std::ffi::c_void, c_int> = Err(4);
const REMOTE: c_int = 6;

/// NCCL's threads stop at an error, here and so everywhere: each rank hears of it.
fn hears_of_a_failure(rank: &Rank) {
    wait_until("the news of a failure", || rank.table.progress(rank.coll, rank.context) == REMOTE);
    // the first table's contexts are not made where hosts ask
    assert!(rank.table.has_failed(rank.context) || !rank.table.has_gets());
}

/// Signals outside the memory or between its words, ranks and operations that do not exist, and
/// transfers beyond the end.
fn operations_out_of_range(rank: &mut Rank) {
    let area = Area::new(Kind::Host, 4096, rank.own());
    let name = rank.register(area.at(), area.number());
    let none = (0, std::ptr::null_mut());
    let by = (rank.coll, rank.context, 0);
    let put = |ends, peer, raise| rank.table.put(by, ends, peer, raise);
    for offset in [4, 4089, 4096, 1 << 40, u64::MAX - 7] {
        for peer in 0..rank.ranks() as u32 {
            let raised = put((none, 0, none), peer, Some(((offset, name), 1, ADD)));
            assert_eq!(raised, ARGUMENT, "a signal at {offset}");
        }
    }
    assert_eq!(put((none, 0, none), 0, Some(((0, name), 1, 3))), ARGUMENT, "an operation");
    assert_eq!(put((none, 0, none), 99, Some(((0, name), 1, ADD))), ARGUMENT, "a rank");
    assert_eq!(put(((0, name), 4097, (0, name)), 0, None), ARGUMENT, "too long");
    assert_eq!(put(((0, name), 8, (4090, name)), 0, None), ARGUMENT, "beyond the end");
    assert_eq!(put(((u64::MAX, name), 8, (0, name)), 0, None), ARGUMENT, "before the start");
    let other = (0, (name as u64 + 1) as *mut _);
    assert_eq!(put((other, 8, (0, name)), 0, None), ARGUMENT, "no such memory");
    if rank.table.has_gets() {
        let by = (rank.coll, rank.context, 77);
        let raised = Some(((0, name), 1, ADD));
        assert_eq!(rank.table.put(by, (none, 0, none), 0, raised), ARGUMENT, "a context");
    }
    hears_of_a_failure(rank);
    assert_eq!(put((none, 0, none), 0, Some(((0, name), 1, ADD))), Err(REMOTE), "a good one");
    rank.meet();
    rank.end(&[name]);
}

#[test]
fn operations_out_of_range_are_refused() {
    const TEST: &str = "bad_input::operations_out_of_range_are_refused";
    play_to_the_end(TEST, &ENOUGH, operations_out_of_range);
}

/// One rank raises a signal that does not exist. All others hear of it, each in the calls that NCCL
/// makes: the progress function, a test, and the question for the last error.
fn one_signal_out_of_range(rank: &mut Rank) {
    let area = Area::new(Kind::Host, 4096, rank.own());
    let name = rank.register(area.at(), area.number());
    let none = (0, std::ptr::null_mut());
    let by = (rank.coll, rank.context, 0);
    let next = (rank.own() + 1) % rank.ranks();
    let good = rank.signal(next, ((0, name), 1, ADD));
    wait_until("a signal", || area.word(0) == 1);
    rank.wait(good);
    let waits = rank.signal(next, ((8, name), 1, ADD));
    rank.meet();
    if rank.own() == 1 {
        let raised = rank.table.put(by, (none, 0, none), 0, Some(((4096, name), 1, ADD)));
        assert_eq!(raised, ARGUMENT);
    }
    hears_of_a_failure(rank);
    assert_eq!(rank.table.test(rank.coll, waits), Err(REMOTE));
    rank.meet();
    rank.end(&[name]);
}

#[test]
fn signal_out_of_range_is_an_error_of_all_ranks() {
    const TEST: &str = "bad_input::signal_out_of_range_is_an_error_of_all_ranks";
    play_to_the_end(TEST, &ENOUGH, one_signal_out_of_range);
}

/// Memory that one rank cannot register is refused at all; the next is registered.
#[test]
fn memory_that_one_rank_cannot_register_is_refused_by_all() {
    play(
        "bad_input::memory_that_one_rank_cannot_register_is_refused_by_all",
        &[11, 14],
        &[THREADS, TCP, HOSTS],
        |rank| {
            let area = Area::new(Kind::Host, 4096, rank.own());
            // memory of the host as a GPU's, memory of another kind, and none
            for (at, kind) in [(area.at(), CUDA), (area.at(), 9), ((area.start, 0), HOST)] {
                let (at, kind) = if rank.own() == 1 { (at, kind) } else { (area.at(), HOST) };
                assert!(rank.table.register(rank.coll, at, kind).is_err());
                rank.meet();
            }
            let name = rank.register(area.at(), HOST);
            let request = rank.signal((rank.own() + 1) % rank.ranks(), ((0, name), 1, ADD));
            rank.wait(request);
            wait_until("a signal", || area.word(0) == 1);
        },
    );
}

/// The ranks wait for one that has a handle and does not connect.
#[test]
fn rank_that_does_not_connect_is_an_error_of_the_others() {
    const TEST: &str = "bad_input::rank_that_does_not_connect_is_an_error_of_the_others";
    if is_child() {
        return leaves_nothing(true, |place| {
            if place.rank == 1 {
                let (table, init, listener, _) = acquainted(place);
                super::world::gather(place, "over", &[]);
                assert_eq!(table.close_listen(listener), 0);
                assert_eq!(table.finalize(init), 0);
            } else {
                assert!(Rank::open(place).is_err());
                super::world::gather(place, "over", &[]);
            }
        });
    }
    for (version, layout) in [(11, PROCESSES), (14, TCP), (15, HOSTS), (13, THREE), (14, THREE_TCP)]
    {
        all_succeed(TEST, start(TEST, version, &layout, &ALL_SOON));
    }
}

/// A process that ends while the others wait for it: before it connects, when its first connection
/// stands, or before it registers.
#[test]
fn rank_that_vanishes_is_an_error_of_the_others() {
    const TEST: &str = "bad_input::rank_that_vanishes_is_an_error_of_the_others";
    const WHEN: &str = "RMA_VANISHES";
    if is_child() {
        let when = std::env::var(WHEN).unwrap();
        return leaves_nothing(false, |place| {
            if place.rank == 1 && when != "register" {
                if when == "connecting" {
                    vanish_when_it_says(": connected ");
                    assert!(Rank::open(place).is_err());
                }
                acquainted(place);
                std::process::abort();
            }
            if when != "register" {
                return assert!(Rank::open(place).is_err());
            }
            let mut rank = Rank::open(place).expect("the ranks come together");
            let area = Area::new(Kind::Host, 4096, place.rank);
            let name = rank.register(area.at(), HOST);
            rank.meet();
            if place.rank == 1 {
                std::process::abort();
            }
            assert!(rank.table.register(rank.coll, area.at(), HOST).is_err());
            let none = (0, std::ptr::null_mut());
            let raise = Some(((0, name), 1, ADD));
            let by = (rank.coll, rank.context, 0);
            fails(&rank, rank.table.put(by, (none, 0, none), 1, raise));
            assert!(rank.table.has_failed(rank.context) || !rank.table.has_gets());
            rank.end(&[name]);
        });
    }
    for when in ["connect", "connecting", "register"] {
        for (version, layout) in [(11, PROCESSES), (14, TCP), (15, THREE), (13, THREE_TCP)] {
            let more: &[(&str, &str)] = &[SOON, (WHEN, when)];
            let mut children = start(TEST, version, &layout, &[more; 3]);
            let gone = children.remove(1).wait_with_output().unwrap();
            assert!(!gone.status.success());
            all_succeed(&format!("{TEST}, {when} with v{version}, {}", layout.name), children);
        }
    }
}

/// NCCL aborts: contexts, memory and the communicator end while a peer that was stopped takes
/// nothing. What was not issued is not read once its memory is gone.
#[test]
fn end_does_not_wait_for_a_peer_that_is_stopped() {
    const TEST: &str = "bad_input::end_does_not_wait_for_a_peer_that_is_stopped";
    const BYTES: usize = 1 << 24;
    if is_child() {
        return each_rank(|place| {
            let mut rank = Rank::open(place).expect("the ranks come together");
            let source = Area::sparse(BYTES);
            let target = Area::sparse(BYTES);
            let names = [source, target].map(|area| rank.register(area.at(), HOST));
            rank.meet();
            if place.rank == 1 {
                // SAFETY: a signal to this process itself.
                unsafe { libc::raise(libc::SIGSTOP) };
                return;
            }
            for _ in 0..8 {
                rank.put(0, ((0, names[0]), BYTES, (0, names[1])), 1);
            }
            assert_eq!(rank.table.destroy(rank.context), 0);
            rank.context = std::ptr::null_mut();
            // SAFETY: mappings of this test's own.
            unsafe {
                libc::munmap(source.start as *mut _, BYTES);
                libc::munmap(target.start as *mut _, BYTES);
            }
            rank.end(&names);
            wait_until("the end of the plugin's threads", || threads().is_empty());
        });
    }
    for (version, layout) in [(14, PROCESSES), (15, TCP)] {
        let mut children = start(TEST, version, &layout, &ALL_SOON);
        let mut stopped = children.remove(1);
        all_succeed(TEST, children);
        stopped.kill().unwrap();
        stopped.wait().unwrap();
    }
}

/// A window that one rank does not register is an error of the others, and of that rank when it
/// goes on.
#[test]
fn window_that_one_rank_does_not_register_is_an_error_of_all() {
    const TEST: &str = "bad_input::window_that_one_rank_does_not_register_is_an_error_of_all";
    if is_child() {
        return leaves_nothing(true, |place| {
            let mut rank = Rank::open(place).expect("the ranks come together");
            let area = Area::new(Kind::Host, 4096, place.rank);
            let name = rank.register(area.at(), HOST);
            if place.rank != 1 {
                assert!(rank.table.register(rank.coll, area.at(), HOST).is_err());
            }
            rank.meet();
            let none = (0, std::ptr::null_mut());
            let by = (rank.coll, rank.context, 0);
            let raise = || Some(((0, name), 1, ADD));
            // until it has heard that the others have given up
            wait_until("an error", || {
                let Ok(request) = rank.table.put(by, (none, 0, none), 0, raise()) else {
                    return true;
                };
                let mut ended = Ok(false);
                wait_until("an end", || {
                    ended = rank.table.test(rank.coll, request);
                    ended != Ok(false)
                });
                ended.is_err()
            });
            rank.end(&[name]);
        });
    }
    for (version, layout) in
        [(11, PROCESSES), (14, TCP), (15, PROCESSES), (14, THREE), (11, THREE_TCP)]
    {
        all_succeed(TEST, start(TEST, version, &layout, &ALL_SOON));
    }
}

/// Changes a handle to one of the next version of its format, as its reader checks it.
fn next_version(handle: &mut [u8; 128]) {
    handle[8] += 1;
    let sum = fnv1a(&handle[..120]);
    handle[120..].copy_from_slice(&sum.to_le_bytes());
}

/// A rank of another table of NCCL's, and one whose handle a later version of the plugin has made.
#[test]
fn ranks_of_different_versions_do_not_come_together() {
    const TEST: &str = "bad_input::ranks_of_different_versions_do_not_come_together";
    const LATER: &str = "RMA_LATER";
    const OTHER: &str = "RMA_OTHER";
    if is_child() {
        return leaves_nothing(true, |place| {
            let other = std::env::var(OTHER).ok().filter(|_| place.rank == 1);
            let (table, init, listener, mut handles) = match other {
                Some(other) => acquainted_by(Table::of(other.parse().unwrap()), place),
                None => acquainted(place),
            };
            if std::env::var_os(LATER).is_some() {
                next_version(&mut handles[1]);
            }
            assert!(table.connect(&mut handles, place.rank, listener).is_err());
            assert_eq!(table.close_listen(listener), 0);
            assert_eq!(table.finalize(init), 0);
        });
    }
    for (version, other) in [(11, "13"), (13, "14"), (14, "15"), (15, "14"), (15, "11")] {
        for layout in [PROCESSES, TCP, THREE] {
            let more: &[(&str, &str)] = &[SOON, (OTHER, other)];
            all_succeed(TEST, start(TEST, version, &layout, &[more; 3]));
        }
    }
    for (version, layout) in [(11, THREADS), (14, TCP), (15, HOSTS), (13, THREE_TCP)] {
        let later: &[(&str, &str)] = &[SOON, (LATER, "1")];
        all_succeed(TEST, start(TEST, version, &layout, &[later; 3]));
    }
}

/// Ranks of which one has the software HCA: each gets a handle that is of another kind.
#[test]
fn ranks_of_different_kinds_do_not_come_together() {
    const TEST: &str = "bad_input::ranks_of_different_kinds_do_not_come_together";
    if is_child() {
        return each_rank(|place| {
            let table = super::table::Table::of(11);
            let init = table.init(None).expect("init");
            assert!(table.devices() > 0);
            let mut handle = [0; 128];
            let listener = table.listen(init, &mut handle).expect("a listener");
            let handles = super::world::gather(place, "handle", &handle);
            let mut handles: Vec<[u8; 128]> =
                handles.into_iter().map(|handle| handle.try_into().unwrap()).collect();
            super::cuda_support::steps::on(0);
            assert!(table.connect(&mut handles, place.rank, listener).is_err());
            assert_eq!(table.close_listen(listener), 0);
            assert_eq!(table.finalize(init), 0);
            wait_until("the end of the plugin's threads", || threads().is_empty());
        });
    }
    let hca: &[(&str, &str)] = &[SOON, ("CROSSTIE_GIN", "1")];
    for more in [[hca, &[SOON], hca], [&[SOON], hca, &[SOON]]] {
        for layout in [PROCESSES, THREE] {
            all_succeed(TEST, start(TEST, 11, &layout, &more));
        }
    }
}
