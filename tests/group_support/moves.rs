//! Rows that move bytes.

use super::suite::{Actor, MOMENT, Outcome, plain};
use crosstie::host::group::WaitError;
use crosstie::window::group::Flushed;
use crosstie::window::{Comparison, Put, WindowError};

const BESIDE: usize = 200;
const SIZES: [usize; 11] =
    [0, 1, 7, 1024, 2047, 2048, 2049, 65_537, 1 << 20, (1 << 20) + 1, 16 << 20];
/// Looks within which a rank that makes no progress would have been passed.
const LOOKS: u32 = 2000;

/// Exactly the bytes of a put change, whatever its length.
pub fn put(actor: &mut Actor) -> Outcome {
    let largest = actor.rail.bytes_max;
    let window = actor.window(largest + 2 * BESIDE);
    let source = actor.piece(largest);
    let (me, next, before) = (actor.me(), actor.next(), u64::from(actor.before()));
    for (step, bytes) in SIZES.into_iter().filter(|bytes| *bytes <= largest).enumerate() {
        let old = 1000 + step as u64;
        window.piece.fill(0, bytes + 2 * BESIDE, old);
        source.fill(0, bytes, u64::from(me) + step as u64);
        actor.barrier(&window);
        actor.put(&plain(&window, next, BESIDE as u64), &source, 0, bytes);
        actor.rank.flush().unwrap();
        actor.barrier(&window);
        window.piece.check((0, BESIDE), old, 0);
        window.piece.check((BESIDE, bytes), before + step as u64, 0);
        window.piece.check((BESIDE + bytes, BESIDE), old, BESIDE + bytes);
        actor.barrier(&window);
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// A buffer may be used again once its ticket has ended; what was refused ends with an error.
pub fn ticket(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 1 << 20;
    let window = actor.window(BYTES);
    let source = actor.piece(BYTES);
    let (me, next, before) = (u64::from(actor.me()), actor.next(), u64::from(actor.before()));
    for step in 0..4 {
        source.fill(0, BYTES, me + step);
        let ticket = actor.put(&plain(&window, next, 0), &source, 0, BYTES);
        assert_eq!(ticket.rank(), next);
        actor.rank.wait_local(ticket).unwrap();
        source.fill(0, BYTES, 99);
        actor.barrier(&window);
        window.piece.check((0, BYTES), before + step, 0);
        actor.barrier(&window);
    }
    if actor.ranks() > 1 {
        refused_tickets(actor, &source);
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// Rank 1 has freed its part of a window.
fn refused_tickets(actor: &mut Actor, source: &super::suite::Piece) {
    let gone = actor.window(64);
    actor.barrier(&gone);
    if actor.me() == 1 {
        actor.free(gone.handle);
    }
    actor.together(true);
    if actor.me() == 0 {
        source.fill(0, 64, 7);
        let freed = Err(WaitError::Window(WindowError::Freed));
        let gets = [8, 8, 16]
            .map(|bytes| actor.rank.get((gone.handle, 1), 0, source.memory, bytes).expect("a get"));
        for get in gets {
            assert_eq!(actor.rank.wait_local(get), freed);
        }
        assert_eq!(actor.rank.flush(), freed);
        assert_eq!(actor.rank.flush(), Ok(()), "an error is told once");
        source.check((0, 64), 7, 0);
    }
    actor.together(true);
    if actor.me() != 1 {
        actor.free(gone.handle);
    }
    actor.piece_free(gone.piece);
}

/// Exactly the bytes of a get change.
pub fn get(actor: &mut Actor) -> Outcome {
    let largest = actor.rail.bytes_max.min(4 << 20);
    let window = actor.window(largest + BESIDE);
    let target = actor.piece(largest + BESIDE);
    let (me, next) = (u64::from(actor.me()), u64::from(actor.next()));
    window.piece.fill(0, largest + BESIDE, me);
    actor.barrier(&window);
    for bytes in SIZES.into_iter().filter(|bytes| *bytes <= largest) {
        target.fill(0, bytes + BESIDE, 1000);
        let from = (window.handle, next as u32);
        let get = actor.rank.get(from, BESIDE as u64, target.memory, bytes).unwrap();
        actor.rank.wait_local(get).unwrap();
        target.check((0, bytes), next, BESIDE);
        target.check((bytes, BESIDE), 1000, bytes);
    }
    actor.barrier(&window);
    window.piece.check((0, largest + BESIDE), me, 0);
    actor.piece_free(target);
    actor.window_end(window);
    Outcome::Ran
}

/// Where a signal is seen, all bytes of its put are.
pub fn put_signal(actor: &mut Actor) -> Outcome {
    const ROUNDS: u64 = 64;
    const BYTES_MAX: usize = 262_144;
    let window = actor.window(BYTES_MAX);
    let source = actor.piece(BYTES_MAX);
    let (me, next, before) = (u64::from(actor.me()), actor.next(), actor.before());
    for round in 1..=ROUNDS {
        let bytes = [8, 3000, 70_000, 1, BYTES_MAX, 2048][round as usize % 6];
        source.fill(0, bytes, me + round);
        let put = Put { signal: Some((0, 1)), ..plain(&window, next, 0) };
        actor.put(&put, &source, 0, bytes);
        let signal = (window.handle, 0, Some(before));
        actor.rank.wait_signal(signal, Comparison::Equal, round, None).unwrap();
        window.piece.check((0, bytes), u64::from(before) + round, 0);
        // the sender goes on when this was looked at
        actor.signal(&window, before, (1, 1));
        let signal = (window.handle, 1, Some(next));
        actor.rank.wait_signal(signal, Comparison::Equal, round, None).unwrap();
    }
    actor.rank.flush().unwrap();
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

const PARTS: usize = 8;
const PART: usize = 128 << 10;

/// Some long puts, then what `order` does, then a signal: with it, all bytes are there.
fn parts_then_signal(actor: &mut Actor, order: fn(&mut Actor, &super::suite::Window)) -> Outcome {
    let window = actor.window(PARTS * PART);
    let source = actor.piece(PARTS * PART);
    let (me, next, before) = (u64::from(actor.me()), actor.next(), actor.before());
    for round in 1..=6 {
        source.fill(0, PARTS * PART, me + round);
        for part in (0..PARTS).rev() {
            actor.put(&plain(&window, next, (part * PART) as u64), &source, part * PART, PART);
        }
        order(actor, &window);
        let signal = (window.handle, 0, Some(before));
        actor.rank.wait_signal(signal, Comparison::GreaterEqual, round, None).unwrap();
        window.piece.check((0, PARTS * PART), u64::from(before) + round, 0);
        actor.rank.flush().unwrap();
        actor.barrier(&window);
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// A signal that is issued after a flush never passes puts.
pub fn flush_then_signal(actor: &mut Actor) -> Outcome {
    parts_then_signal(actor, |actor, window| {
        actor.rank.flush().unwrap();
        let next = actor.next();
        actor.signal(window, next, (0, 1));
    })
}

/// Nor does one with a fence, nor a put behind a fence.
pub fn fence_then_signal(actor: &mut Actor) -> Outcome {
    parts_then_signal(actor, |actor, window| {
        let target = (window.handle, actor.next());
        actor.rank.signal(target, (0, 1), true, None).unwrap();
    });
    parts_then_signal(actor, |actor, window| {
        let next = actor.next();
        actor.rank.group().inner().fence(next).unwrap();
        let put = Put { signal: Some((0, 1)), ..plain(window, next, 0) };
        let piece = actor.piece(1);
        actor.put(&put, &piece, 0, 0);
        actor.rank.flush().unwrap();
        actor.piece_free(piece);
    })
}

/// A counter grows once by its value, with a signal and without.
pub fn put_signal_counter(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 100_000;
    let window = actor.window(BYTES);
    let source = actor.piece(BYTES);
    let (next, before) = (actor.next(), actor.before());
    let mut counted = 0;
    for (round, bytes) in [8, BYTES, 0, 2049].into_iter().enumerate() {
        for signal in [None, Some((0, 3))] {
            let put = Put { signal, counter: Some((2, 7)), ..plain(&window, next, 0) };
            actor.put(&put, &source, 0, bytes);
            counted += 7;
            let counter = (window.handle, 2);
            actor.rank.wait_counter(counter, Comparison::Equal, counted, None).unwrap();
            assert_eq!(actor.rank.group().inner().counter_read(window.handle, 1), Ok(0));
        }
        let signal = (window.handle, 0, Some(before));
        let sum = 3 * (round as u64 + 1);
        actor.rank.wait_signal(signal, Comparison::GreaterEqual, sum, None).unwrap();
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    assert_eq!(actor.read(&window, 0), 12);
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// A flush ends when all has taken effect, however many wait for it.
pub fn two_flushers(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 70_000;
    let window = actor.window(2 * BYTES);
    let source = actor.piece(BYTES);
    source.fill(0, BYTES, 5);
    actor.barrier(&window);
    let next = actor.next();
    let mut is_done = [false; 2];
    actor.alone(|actor| {
        actor.put(&plain(&window, next, 8), &source, 0, BYTES);
        actor.signal(&window, next, (1, 1));
        let looks = if actor.ranks() == 1 { 1 } else { LOOKS };
        for _ in 0..looks {
            for _flusher in 0..2 {
                let flushed = actor.rank.group().inner().flush(next);
                assert_eq!(flushed, Ok(Flushed::Waiting(next)), "the owner did nothing yet");
            }
            if actor.ranks() != 1 {
                actor.rank.progress();
            }
        }
        if actor.ranks() != 1 {
            let flushed = actor.rank.group.as_mut().expect("open").flush(
                &mut actor.rank.node,
                Some(next),
                Some(MOMENT),
            );
            assert_eq!(flushed, Err(WaitError::Timeout(Some(next))));
        }
    });
    if actor.me() == 0 {
        while is_done != [true; 2] {
            for is_done in &mut is_done {
                *is_done |= actor.rank.group().inner().flush(next) == Ok(Flushed::Done);
            }
            actor.rank.progress();
        }
    }
    actor.together(true);
    if actor.before() == 0 {
        window.piece.check((8, BYTES), 5, 0);
        assert_eq!(actor.read(&window, 1), 1);
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}
