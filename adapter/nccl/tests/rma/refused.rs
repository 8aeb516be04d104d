//! Operations that their owner refuses, since it has deregistered its memory: each one's own
//! request says so, and nothing else fails.

use super::memory::{Area, Kind, pattern};
use super::table::{ADD, HOST};
use super::world::wait_until;
use super::world::{CONTEXTS, HOSTS, PROCESSES, Rank, TCP, THREADS, play_to_the_end, said};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

type Request = *mut c_void;

/// So many of each kind, one after the other.
const EACH: usize = 20;
const BYTES: usize = 80_000;
/// NCCL's number of what a peer has done.
const REMOTE: Result<(), c_int> = Err(6);

/// How a request ends.
fn end_of(rank: &Rank, request: Request) -> Result<(), c_int> {
    let mut ended = Ok(false);
    wait_until("the end of a request", || {
        ended = rank.table.test(rank.coll, request);
        ended != Ok(false)
    });
    ended.map(drop)
}

/// Memory that stays, and such that the owners of the other ranks have given back.
struct Memories {
    source: Area,
    stays: Area,
    goes: Area,
    /// In the same order.
    names: [Request; 3],
}

impl Memories {
    /// Rank 1 gives back its part of the last one; the ranks that put there have theirs.
    fn new(rank: &mut Rank) -> Memories {
        let [source, stays, goes] =
            [BYTES, EACH * BYTES, BYTES].map(|bytes| Area::new(Kind::Host, bytes, rank.own()));
        source.write(0, &pattern(rank.own(), BYTES));
        let names = [source, stays, goes].map(|area| rank.register(area.at(), HOST));
        rank.meet();
        if rank.own() == 1 {
            assert_eq!(rank.table.deregister(rank.coll, names[2]), 0);
        }
        rank.meet();
        Memories { source, stays, goes, names }
    }

    fn end(&self, rank: &mut Rank) {
        let [source, stays, goes] = self.names;
        let kept: &[Request] =
            if rank.own() == 1 { &[source, stays] } else { &[source, stays, goes] };
        rank.end(kept);
    }
}

/// A rank that has failed nothing goes on, though all hear that an operation was refused.
fn all_hear_and_go_on(rank: &mut Rank) {
    if rank.table.has_gets() {
        wait_until("the news of a refusal", || rank.table.has_failed(rank.context));
    }
    assert_eq!(rank.table.progress(rank.coll, rank.context), 0);
    rank.meet();
}

/// Puts of all lengths to memory that is there and that is not, in turn: each request ends as its
/// own put did.
fn puts_in_turn(rank: &mut Rank) {
    let it = Memories::new(rank);
    let [source, stays, goes] = it.names;
    if rank.own() == 0 {
        let mut requests = Vec::new();
        for at in 0..EACH {
            let bytes = [8, 3000, BYTES][at % 3];
            let put = |to| rank.put(0, ((0, source), bytes, to), 1);
            requests.push((put((0, goes)), REMOTE));
            requests.push((put(((at * BYTES) as u64, stays)), Ok(())));
        }
        // a rank that has its memory
        requests.push((rank.put(0, ((0, source), 64, (0, goes)), 0), Ok(())));
        for peer in 2..rank.ranks() {
            requests.push((rank.put(0, ((0, source), 64, (0, goes)), peer), Ok(())));
        }
        for (at, (request, expected)) in requests.into_iter().enumerate() {
            assert_eq!(end_of(rank, request), expected, "request {at}");
            if expected.is_err() {
                // NCCL up to 2.29 passes over the error, and goes on asking and putting
                let next = rank.put(0, ((0, source), 8, (0, stays)), 1);
                assert_eq!(end_of(rank, request), expected, "request {at}, asked again");
                assert_eq!(end_of(rank, next), Ok(()));
            }
        }
        assert_eq!(said("the put of 3000 bytes at 0 with rank 1 in context 0 was refused"), 7);
        assert_eq!(said("that rank has freed its window"), EACH);
    }
    all_hear_and_go_on(rank);
    if rank.own() == 1 {
        for at in 0..EACH {
            let bytes = [8, 3000, BYTES][at % 3];
            assert!(it.stays.read(at * BYTES, bytes) == pattern(0, bytes), "put {at}");
        }
        assert!(it.goes.read(0, BYTES).iter().all(|byte| *byte == 0), "a put that was refused");
    }
    rank.meet();
    it.end(rank);
}

#[test]
fn put_that_its_owner_refuses_fails_alone() {
    play_to_the_end(
        "refused::put_that_its_owner_refuses_fails_alone",
        &[(11, THREADS), (13, PROCESSES), (14, TCP), (15, HOSTS)],
        puts_in_turn,
    );
}

/// A signal covers all puts of its context and rank that came before, as NCCL splits them, until
/// the user knows how they have ended. Those of other contexts and ranks go on meanwhile.
fn signals_of_puts(rank: &mut Rank) {
    let it = Memories::new(rank);
    let [source, stays, goes] = it.names;
    let word = |at: usize| Some(((8 * at as u64, stays), 1, ADD));
    if rank.own() == 0 {
        let good = |context, at| {
            rank.put_signal(context, ((0, source), BYTES, (8192, stays)), 1, word(at))
        };
        let bad = |bytes, raise| rank.put_signal(0, ((0, source), bytes, (0, goes)), 1, raise);
        let before = good(0, 0);
        // a signal of its own, and one behind puts without
        let refused = [bad(8, word(1)), bad(BYTES, None), rank.signal(1, word(2).unwrap())];
        // its bytes arrive
        let behind = good(0, 3);
        let other = (CONTEXTS > 1 && rank.table.has_gets()).then(|| good(1, 4));
        let others: Vec<_> = (2..rank.ranks())
            .map(|peer| rank.put_signal(0, ((0, source), 8, (0, goes)), peer, word(0)))
            .collect();
        assert_eq!(end_of(rank, before), Ok(()));
        for (at, request) in refused.into_iter().chain([behind]).enumerate() {
            assert_eq!(end_of(rank, request), REMOTE, "request {at}");
        }
        for request in other.into_iter().chain(others) {
            assert_eq!(end_of(rank, request), Ok(()), "another context, or rank");
        }
        // the user knows of all
        for at in [5, 6] {
            assert_eq!(end_of(rank, good(0, at)), Ok(()));
        }
        assert_eq!(end_of(rank, rank.signal(1, word(7).unwrap())), Ok(()));
    }
    rank.meet();
    if rank.own() == 1 {
        let other = u64::from(rank.table.has_gets());
        let words = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| it.stays.word(8 * at));
        assert_eq!(words, [1, 0, 0, 0, other, 1, 1, 1]);
    }
    if rank.own() > 1 {
        wait_until("the signal of a rank that refuses nothing", || it.stays.word(0) == 1);
    }
    all_hear_and_go_on(rank);
    it.end(rank);
}

#[test]
fn signal_is_not_raised_behind_a_put_that_was_refused() {
    play_to_the_end(
        "refused::signal_is_not_raised_behind_a_put_that_was_refused",
        &[(11, TCP), (13, THREADS), (14, PROCESSES), (15, HOSTS)],
        signals_of_puts,
    );
}

/// Signals and puts to a word whose owner has given it back, and another in its place.
fn signals_without_a_word(rank: &mut Rank) {
    let it = Memories::new(rank);
    let [source, stays, goes] = it.names;
    let smaller = Area::new(Kind::Host, 64, rank.own());
    let name = rank.register(smaller.at(), HOST);
    if rank.own() == 0 {
        let own = |at: u64| rank.put(0, ((0, source), 8, (8 * at, stays)), 1);
        let raised = rank.signal(1, ((0, goes), 1, ADD));
        let put = own(0);
        let both = rank.put_signal(0, ((0, source), 8, (8, stays)), 1, Some(((0, goes), 1, ADD)));
        let requests = [(raised, REMOTE), (put, Ok(())), (both, REMOTE), (own(2), Ok(()))];
        for (at, (request, expected)) in requests.into_iter().enumerate() {
            assert_eq!(end_of(rank, request), expected, "request {at}");
        }
        assert_eq!(end_of(rank, rank.signal(1, ((0, name), 7, ADD))), Ok(()));
    }
    rank.meet();
    if rank.own() == 1 {
        assert_eq!((it.goes.word(0), smaller.word(0)), (0, 7));
    }
    all_hear_and_go_on(rank);
    assert_eq!(rank.table.destroy(rank.context), 0);
    assert_eq!(rank.table.deregister(rank.coll, name), 0);
    rank.context = null_mut();
    it.end(rank);
}

#[test]
fn signal_whose_word_is_gone_fails_alone() {
    play_to_the_end(
        "refused::signal_whose_word_is_gone_fails_alone",
        &[(11, THREADS), (14, TCP), (15, PROCESSES)],
        signals_without_a_word,
    );
}

/// Gets from memory that is there and that is not, in turn, and flushes of them.
fn gets_in_turn(rank: &mut Rank) {
    let it = Memories::new(rank);
    let [source, stays, goes] = it.names;
    if rank.own() == 0 {
        let by = |context: c_int| (rank.context, context);
        let get = |context, from, bytes| {
            rank.table.get(by(context), ((0, from), bytes, (0, stays)), 1).expect("a get")
        };
        let flush = |context| rank.table.flush(by(context), null_mut(), 1).expect("a flush");
        let mut requests = Vec::new();
        for at in 0..EACH {
            let bytes = [8, 3000, BYTES][at % 3];
            requests.push((get(0, goes, bytes), REMOTE));
            requests.push((get(0, source, bytes), Ok(())));
        }
        requests.push((get(1, source, 8), Ok(())));
        let (of_both, of_good) = (flush(0), flush(1));
        assert!(!of_both.is_null());
        assert_eq!(end_of(rank, of_both), REMOTE, "not all that it waits for is there");
        if !of_good.is_null() {
            assert_eq!(end_of(rank, of_good), Ok(()));
        }
        // whose get has ended, and nobody was told
        let late = flush(0);
        assert!(!late.is_null());
        assert_eq!(end_of(rank, late), REMOTE);
        for (at, (request, expected)) in requests.into_iter().enumerate() {
            assert_eq!(end_of(rank, request), expected, "request {at}");
        }
        assert!(flush(0).is_null(), "the user knows of all");
        let good = get(0, source, BYTES);
        let flushed = flush(0);
        if !flushed.is_null() {
            assert_eq!(end_of(rank, flushed), Ok(()));
        }
        assert_eq!(end_of(rank, good), Ok(()));
        assert!(it.stays.read(0, BYTES) == pattern(1, BYTES));
        assert_eq!(said("the get of 8 bytes at 0 with rank 1 in context 0 was refused"), 7);
    }
    all_hear_and_go_on(rank);
    it.end(rank);
}

#[test]
fn get_that_its_owner_refuses_fails_alone_and_its_flush() {
    play_to_the_end(
        "refused::get_that_its_owner_refuses_fails_alone_and_its_flush",
        &[(13, THREADS), (14, TCP), (15, HOSTS)],
        gets_in_turn,
    );
}
