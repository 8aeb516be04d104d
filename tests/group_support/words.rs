//! Rows about signals, counters and barriers.

use super::IDS;
use super::suite::{Actor, MOMENT, Outcome, Window, is_timeout, plain};
use crosstie::host::group::{NicCountError, TIMEOUT, WaitError};
use crosstie::host::nic_counter::{self, NicCounterError};
use crosstie::window::{Comparison, Put, Ticket, WindowError};
use std::sync::atomic::Ordering;

pub const NO_COMPANION: &str = "the endpoint was opened without companions";

/// A signal grows once by each value, modulo 2^64, and its neighbours do not.
pub fn signal(actor: &mut Actor) -> Outcome {
    let window = actor.window(0);
    let next = actor.next();
    for value in [5, u64::MAX, 1 << 63, 1 << 63, 0] {
        actor.signal(&window, next, (1, value));
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    for id in 0..IDS as u16 {
        assert_eq!(actor.read(&window, id), if id == 1 { 4 } else { 0 });
    }
    for id in 0..IDS as u16 {
        assert_eq!(actor.rank.group().inner().counter_read(window.handle, id), Ok(0));
    }
    actor.window_end(window);
    Outcome::Ran
}

/// The counter of a signal grows once that has taken effect, not before.
pub fn signal_counter(actor: &mut Actor) -> Outcome {
    let window = actor.window(0);
    let next = actor.next();
    actor.barrier(&window);
    actor.alone(|actor| {
        let target = (window.handle, next);
        actor.rank.signal(target, (0, 9), false, Some((3, 2))).unwrap();
        for _ in 0..if actor.ranks() == 1 { 0 } else { 2000 } {
            actor.rank.progress();
        }
        let counter = actor.rank.group().inner().counter_read(window.handle, 3);
        assert_eq!(counter, Ok(0), "the owner did nothing yet");
    });
    if actor.me() == 0 {
        actor.rank.wait_counter((window.handle, 3), Comparison::Equal, 2, None).unwrap();
    }
    actor.together(true);
    if actor.before() == 0 {
        assert_eq!(actor.read(&window, 0), 9);
    }
    actor.window_end(window);
    Outcome::Ran
}

/// A counter that the NIC adds to: where there are no companions, an error with a type of its own.
pub fn nic_counter(actor: &mut Actor) -> Outcome {
    let has_companions = actor.rail.options.companions;
    let window = actor.window(4096);
    let source = actor.piece(4096);
    let next = actor.next();
    let mut counted = 0;
    for bytes in [8, 4096] {
        let ticket = actor.put(&plain(&window, next, 0), &source, 0, bytes);
        let (group, node) = (actor.rank.group.as_mut().expect("open"), &mut actor.rank.node);
        let count = group.count_by_nic(node, ticket, (window.handle, 1), 5);
        let none = NicCountError::Nic(NicCounterError::NoCompanions);
        assert_eq!(count, if has_companions { Ok(()) } else { Err(none) });
        counted += if has_companions { 5 } else { 0 };
        actor.rank.wait_counter((window.handle, 1), Comparison::Equal, counted, None).unwrap();
        let other = actor.rank.group().inner().counter_read(window.handle, 0);
        assert_eq!(other, Ok(0));
    }
    let (group, node) = (actor.rank.group.as_mut().expect("open"), &mut actor.rank.node);
    let ticket = Ticket(u64::MAX);
    let refused = group.count_by_nic(node, ticket, (window.handle, 1), 5);
    assert_eq!(refused, Err(NicCountError::Window(WindowError::Rank)));
    actor.rank.flush().unwrap();
    actor.piece_free(source);
    actor.window_end(window);
    if has_companions { Outcome::Ran } else { Outcome::Refused(NO_COMPANION) }
}

/// Where the NIC leaves the old values of what it adds to: it is at address 0, or there is no
/// companion, which tries that when it opens.
pub fn sink(actor: &mut Actor) -> Outcome {
    let has_companions = actor.rail.options.companions;
    let ports = (0..4).filter_map(|place| nic_counter::of_port(&actor.rank.node, place));
    assert_eq!(ports.filter(Result::is_ok).count() != 0, has_companions);
    if has_companions { Outcome::Ran } else { Outcome::Refused(NO_COMPANION) }
}

/// What holds, and what does not, of a word that is 5.
const OF_FIVE: [(Comparison, u64, bool); 12] = [
    (Comparison::Equal, 5, true),
    (Comparison::Equal, 4, false),
    (Comparison::NotEqual, 4, true),
    (Comparison::NotEqual, 5, false),
    (Comparison::Greater, 4, true),
    (Comparison::Greater, 5, false),
    (Comparison::GreaterEqual, 5, true),
    (Comparison::GreaterEqual, 6, false),
    (Comparison::Less, 6, true),
    (Comparison::Less, 5, false),
    (Comparison::LessEqual, 5, true),
    (Comparison::LessEqual, 4, false),
];

type Wait = fn(&mut Actor, &Window, (Comparison, u64)) -> Result<(), WaitError>;

fn compared(actor: &mut Actor, window: &Window, wait: Wait, add: fn(&mut Actor, &Window, u64)) {
    wait(actor, window, (Comparison::GreaterEqual, 0)).expect("0 is there at once");
    wait(actor, window, (Comparison::Equal, 0)).expect("0 is there at once");
    add(actor, window, 5);
    for (comparison, value, holds) in OF_FIVE {
        let ended = wait(actor, window, (comparison, value));
        assert_eq!(ended.is_ok(), holds, "5 {comparison:?} {value}: {ended:?}");
        assert!(holds || is_timeout(ended));
    }
    add(actor, window, u64::MAX - 5);
    for comparison in [Comparison::Equal, Comparison::GreaterEqual, Comparison::LessEqual] {
        wait(actor, window, (comparison, u64::MAX)).expect("it is the largest");
    }
    for comparison in [Comparison::Greater, Comparison::Less, Comparison::NotEqual] {
        assert!(is_timeout(wait(actor, window, (comparison, u64::MAX))));
    }
}

/// All comparisons, with a signal.
pub fn wait_signal(actor: &mut Actor) -> Outcome {
    let window = actor.window(0);
    let wait: Wait = |actor, window, (comparison, value)| {
        let signal = (window.handle, 2, None);
        actor.rank.wait_signal(signal, comparison, value, Some(MOMENT))
    };
    compared(actor, &window, wait, |actor, window, value| {
        let next = actor.next();
        actor.barrier(window);
        actor.signal(window, next, (2, value));
        actor.rank.flush().unwrap();
        actor.barrier(window);
    });
    actor.window_end(window);
    Outcome::Ran
}

/// The same with a counter.
pub fn wait_counter(actor: &mut Actor) -> Outcome {
    let window = actor.window(0);
    let wait: Wait = |actor, window, (comparison, value)| {
        actor.rank.wait_counter((window.handle, 1), comparison, value, Some(MOMENT))
    };
    compared(actor, &window, wait, |actor, window, value| {
        let target = (window.handle, actor.next());
        actor.rank.signal(target, (0, 1), false, Some((1, value))).unwrap();
        actor.rank.flush().unwrap();
    });
    actor.window_end(window);
    Outcome::Ran
}

/// Both end a wait, each with its own error, and all goes on afterwards.
pub fn timeout_and_abort(actor: &mut Actor) -> Outcome {
    // waits end by themselves
    const { assert!(TIMEOUT.0 != 0 && TIMEOUT.0 != u64::MAX) };
    let window = actor.window(0);
    let (next, before) = (actor.next(), actor.before());
    let at_least_one = |actor: &mut Actor, timeout| {
        let signal = (window.handle, 0, Some(before));
        actor.rank.wait_signal(signal, Comparison::GreaterEqual, 1, timeout)
    };
    assert_eq!(at_least_one(actor, Some(MOMENT)), Err(WaitError::Timeout(Some(before))));
    let abort = actor.rank.group().abort();
    abort.set();
    assert_eq!(at_least_one(actor, None), Err(WaitError::Aborted));
    let counter = (window.handle, 0);
    let aborted = actor.rank.wait_counter(counter, Comparison::Equal, 1, None);
    assert_eq!(aborted, Err(WaitError::Aborted));
    abort.clear();
    let from_another_thread = abort.clone();
    let sets = std::thread::spawn(move || from_another_thread.set());
    assert_eq!(at_least_one(actor, None), Err(WaitError::Aborted));
    sets.join().expect("a thread that sets");
    abort.clear();
    actor.barrier(&window);
    if actor.ranks() > 1 {
        actor.alone(|actor| {
            let (group, node) = (actor.rank.group.as_mut().expect("open"), &mut actor.rank.node);
            for _ in 0..3 {
                let ended = group.barrier(node, window.handle, 2, Some(MOMENT));
                assert_eq!(ended, Err(WaitError::Timeout(Some(1))));
            }
        });
    }
    actor.rank.barrier(window.handle, 2).unwrap();
    actor.signal(&window, next, (0, 1));
    at_least_one(actor, None).unwrap();
    actor.window_end(window);
    Outcome::Ran
}

/// Reading changes nothing.
pub fn read(actor: &mut Actor) -> Outcome {
    let window = actor.window(0);
    let target = (window.handle, actor.next());
    actor.rank.signal(target, (0, 21), false, Some((0, 22))).unwrap();
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    for _ in 0..3 {
        assert_eq!(actor.read(&window, 0), 21);
        let before = actor.before();
        let group = actor.rank.group().inner();
        assert_eq!(group.signal_read_from(window.handle, 0, before), Ok(21));
        assert_eq!(group.counter_read(window.handle, 0), Ok(22));
    }
    actor.window_end(window);
    Outcome::Ran
}

/// Words are zero after a reset, and the next replay does not see the last one's.
pub fn reset(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 5000;
    let window = actor.window(BYTES);
    let source = actor.piece(BYTES);
    let (me, next, before) = (u64::from(actor.me()), actor.next(), actor.before());
    for replay in 0..5 {
        let signal = (window.handle, 0, Some(before));
        let stale = actor.rank.wait_signal(signal, Comparison::GreaterEqual, 1, Some(MOMENT));
        assert!(is_timeout(stale), "replay {replay} has seen an old signal: {stale:?}");
        actor.barrier(&window);
        source.fill(0, BYTES, me + replay);
        let put = Put { signal: Some((0, 1)), counter: Some((1, 1)), ..plain(&window, next, 0) };
        actor.put(&put, &source, 0, BYTES);
        actor.rank.wait_signal(signal, Comparison::Equal, 1, None).unwrap();
        window.piece.check((0, BYTES), u64::from(before) + replay, 0);
        actor.rank.wait_counter((window.handle, 1), Comparison::Equal, 1, None).unwrap();
        actor.rank.flush().unwrap();
        let group = actor.rank.group().inner();
        group.signal_reset(window.handle, 0).unwrap();
        group.counter_reset(window.handle, 1).unwrap();
        assert_eq!(group.signal_read(window.handle, 0), Ok(0));
        assert_eq!(group.counter_read(window.handle, 1), Ok(0));
        actor.barrier(&window);
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// What was applied before a reset and what is applied later make up the exact total.
pub fn reset_in_flight(actor: &mut Actor) -> Outcome {
    const ADDS: u64 = 600;
    let window = actor.window(0);
    let (next, mut total, mut resets) = (actor.next(), 0, 0);
    let mut taken = |actor: &mut Actor| {
        let group = actor.rank.group().inner();
        let word = group.signal_read(window.handle, 3).unwrap();
        group.signal_reset(window.handle, 3).unwrap();
        total += word;
        resets += u64::from(word != 0);
    };
    for add in 1..=ADDS {
        actor.signal(&window, next, (3, add));
        if add % 3 == 0 {
            actor.rank.progress();
            taken(actor);
        }
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    taken(actor);
    assert_eq!(total, ADDS * (ADDS + 1) / 2, "{resets} resets");
    actor.window_end(window);
    Outcome::Ran
}

/// All ranks add to one word, by signals and by puts: nothing is lost.
pub fn shared_slot(actor: &mut Actor) -> Outcome {
    const ADDS: u64 = 100;
    let window = actor.window(4096);
    let source = actor.piece(4096);
    let value = u64::from(actor.me()) + 1;
    for add in 0..ADDS {
        if add % 2 == 0 {
            actor.signal(&window, 0, (2, value));
        } else {
            // not where other ranks write
            let put = Put {
                signal: Some((2, value)),
                ..plain(&window, 0, 1024 * (u64::from(actor.me()) % 4))
            };
            actor.put(&put, &source, 0, if add % 4 == 1 { 8 } else { 1024 });
        }
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    let ranks = u64::from(actor.ranks());
    let expected = if actor.me() == 0 { ADDS * ranks * (ranks + 1) / 2 } else { 0 };
    assert_eq!(actor.read(&window, 2), expected);
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// What one rank has added, and the sum of all.
pub fn per_peer(actor: &mut Actor) -> Outcome {
    let window = actor.window(0);
    let (me, ranks) = (u64::from(actor.me()), actor.ranks());
    for rank in 0..ranks {
        actor.signal(&window, rank, (0, 10 + me));
        actor.signal(&window, rank, (0, 100 * (me + 1)));
    }
    let each = |rank: u32| 10 + u64::from(rank) + 100 * (u64::from(rank) + 1);
    for rank in 0..ranks {
        let signal = (window.handle, 0, Some(rank));
        actor.rank.wait_signal(signal, Comparison::Equal, each(rank), None).unwrap();
    }
    let sum = (0..ranks).map(each).sum();
    let signal = (window.handle, 0, None);
    actor.rank.wait_signal(signal, Comparison::Equal, sum, None).unwrap();
    actor.rank.flush().unwrap();
    actor.window_end(window);
    Outcome::Ran
}

/// No barrier is passed before all have come, whatever its number, and none hangs.
pub fn barriers(actor: &mut Actor) -> Outcome {
    const ROUNDS: u64 = 40;
    let window = actor.window(0);
    let ranks = u64::from(actor.ranks());
    actor.common.count.store(0, Ordering::SeqCst);
    actor.together(true);
    let mut comes = 0;
    for _ in 0..ROUNDS {
        for id in [0, 1, 0] {
            comes += 1;
            actor.common.count.fetch_add(1, Ordering::SeqCst);
            actor.rank.barrier(window.handle, id).unwrap();
            let come = actor.common.count.load(Ordering::SeqCst);
            assert!(come >= comes * ranks, "barrier {id} was passed early");
        }
    }
    actor.window_end(window);
    Outcome::Ran
}
