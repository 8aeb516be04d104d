//! Rows about what windows refuse, how they begin and end, and that all rails agree.

use super::super::host_support::Random;
use super::IDS;
use super::suite::{Actor, Outcome, Window, patterns, plain};
use crosstie::base::slab::Handle;
use crosstie::host::group::WaitError;
use crosstie::transport::SubmitError;
use crosstie::window::{Comparison, Put, WindowError};

/// Nothing that is out of range is accepted, and nothing changes.
pub fn bounds(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 4096;
    let window = actor.window(BYTES);
    let source = actor.piece(BYTES);
    window.piece.fill(0, BYTES, 3);
    source.fill(0, BYTES, 4);
    actor.barrier(&window);
    let (next, length) = (actor.next(), BYTES as u64);
    let range = WindowError::Range(length);
    for (offset, bytes) in [
        (length, 1),
        (length + 1, 0),
        (length - 1, 2),
        (1, BYTES),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 1, BYTES),
        (1 << 63, BYTES),
    ] {
        let put = Put { signal: Some((0, 1)), ..plain(&window, next, offset) };
        assert_eq!(actor.rank.put(&put, source.memory, 0, bytes), Err(range), "{offset} {bytes}");
        let get = actor.rank.get((window.handle, next), offset, source.memory, bytes);
        assert_eq!(get, Err(range));
    }
    let past = plain(&window, next, length);
    actor.put(&past, &source, 0, 0);
    numbers(actor, &window, source.memory);
    buffers(actor, &window, source.memory);
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    window.piece.check((0, BYTES), 3, 0);
    source.check((0, BYTES), 4, 0);
    for id in 0..IDS as u16 {
        assert_eq!(actor.read(&window, id), 0);
        assert_eq!(actor.rank.group().inner().counter_read(window.handle, id), Ok(0));
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// Ranks, signals, counters and barriers that do not exist.
fn numbers(actor: &mut Actor, window: &Window, source: super::Memory) {
    let (next, at) = (actor.next(), window.handle);
    for rank in [actor.ranks(), actor.ranks() + 1, u32::MAX] {
        let refused = Err(WindowError::Rank);
        assert_eq!(actor.rank.put(&plain(window, rank, 0), source, 0, 8), refused);
        assert_eq!(actor.rank.get((at, rank), 0, source, 8), refused);
        assert_eq!(actor.rank.signal((at, rank), (0, 1), false, None), refused);
        let group = actor.rank.group().inner();
        assert_eq!(group.length(at, rank), Err(WindowError::Rank));
        assert_eq!(group.signal_read_from(at, 0, rank), Err(WindowError::Rank));
        assert_eq!(group.fence(rank), Err(WindowError::Rank));
        let refused = Err(WaitError::Window(WindowError::Rank));
        let (group, node) = (actor.rank.group.as_mut().expect("open"), &mut actor.rank.node);
        assert_eq!(group.flush(node, Some(rank), None), refused, "rank {rank}");
        let wait = (at, 0, Some(rank));
        assert_eq!(actor.rank.wait_signal(wait, Comparison::Equal, 0, None), refused);
    }
    for id in [IDS as u16, IDS as u16 + 1, u16::MAX] {
        let refused = Err(WindowError::Id);
        let signal = Put { signal: Some((id, 1)), ..plain(window, next, 0) };
        assert_eq!(actor.rank.put(&signal, source, 0, 8), refused);
        let counter = Put { counter: Some((id, 1)), ..plain(window, next, 0) };
        assert_eq!(actor.rank.put(&counter, source, 0, 8), refused);
        assert_eq!(actor.rank.signal((at, next), (id, 1), false, None), refused);
        assert_eq!(actor.rank.signal((at, next), (0, 1), false, Some((id, 1))), refused);
        let group = actor.rank.group().inner();
        assert_eq!(group.signal_read(at, id), Err(WindowError::Id));
        assert_eq!(group.counter_read(at, id), Err(WindowError::Id));
        assert_eq!(group.signal_reset(at, id), Err(WindowError::Id));
        assert_eq!(group.counter_reset(at, id), Err(WindowError::Id));
        assert_eq!(group.barrier_enter(at, id), Err(WindowError::Id));
        let refused = Err(WaitError::Window(WindowError::Id));
        assert_eq!(actor.rank.barrier(at, id), refused);
        assert_eq!(actor.rank.wait_signal((at, id, None), Comparison::Equal, 0, None), refused);
        assert_eq!(actor.rank.wait_counter((at, id), Comparison::Equal, 0, None), refused);
    }
}

/// Local buffers that are not in their region, or in none.
fn buffers(actor: &mut Actor, window: &Window, source: super::Memory) {
    let put = plain(window, actor.next(), 0);
    let target = (window.handle, actor.next());
    let far = source.address().wrapping_add(1 << 40);
    let unknown = Handle { index: 60, generation: source.region.generation };
    for place in [
        (source.region, far, 8),
        (source.region, source.address() - 1, 8),
        (source.region, source.address() + source.bytes as u64 - 1, 2),
        (source.region, u64::MAX, 2),
        (unknown, source.address(), 8),
    ] {
        let (group, node) = (actor.rank.group.as_mut().expect("open"), &actor.rank.node);
        // SAFETY: what is refused is not touched.
        let put = unsafe { group.put(node, &put, place) };
        // SAFETY: as above.
        let get = unsafe { group.get(node, target, 0, place) };
        for issued in [put, get] {
            let Err(WindowError::Buffer(error)) = issued else { panic!("{place:?}: {issued:?}") };
            assert!(!matches!(error, SubmitError::Again | SubmitError::Failed(_)), "{error:?}");
        }
    }
}

/// Once, before anything else; each rank's part has a size of its own.
pub fn exchange(actor: &mut Actor) -> Outcome {
    let (me, next) = (actor.me() as usize, actor.next());
    let piece = actor.piece(1000 * (me + 1));
    piece.fill(0, 1000 * (me + 1), 1);
    // rank 0 only takes part
    let handle = actor.rank.try_register(piece.memory, 1000 * me as u64, false).unwrap();
    let window = Window { handle, piece };
    let early = Err(WindowError::NotExchanged);
    assert_eq!(actor.rank.put(&plain(&window, next, 0), piece.memory, 0, 0), early);
    assert_eq!(actor.rank.get((handle, next), 0, piece.memory, 0), early);
    assert_eq!(actor.rank.signal((handle, next), (0, 1), false, None), early);
    let group = actor.rank.group().inner();
    assert_eq!(group.length(handle, next), Err(WindowError::NotExchanged));
    assert_eq!(group.signal_read(handle, 0), Err(WindowError::NotExchanged));
    assert_eq!(group.counter_read(handle, 0), Err(WindowError::NotExchanged));
    assert_eq!(group.barrier_enter(handle, 0), early.map(|_| ()));
    actor.rank.exchange(handle).unwrap();
    let twice = Err(WaitError::Window(WindowError::Exchanged));
    assert_eq!(actor.rank.exchange(handle), twice);
    for rank in 0..actor.ranks() {
        let length = 1000 * u64::from(rank);
        assert_eq!(actor.rank.group().inner().length(handle, rank), Ok(length));
        let past = plain(&window, rank, length);
        let refused = Err(WindowError::Range(length));
        assert_eq!(actor.rank.put(&past, piece.memory, 0, 1), refused);
        if length != 0 {
            // one writer for each byte
            let last = plain(&window, rank, length - 1 - me as u64);
            actor.put(&last, &piece, 0, 1);
        }
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    if me != 0 {
        let ranks = actor.ranks() as usize;
        let expected = vec![patterns(1, 0, 1)[0]; ranks];
        assert_eq!(piece.read(1000 * me - ranks, ranks), expected);
    }
    // all that there are
    let more: Vec<_> = (0..3)
        .map(|_| actor.rank.try_register(piece.memory, 1, false).expect("a window"))
        .collect();
    let full = actor.rank.try_register(piece.memory, 1, false);
    assert_eq!(full, Err(WindowError::WindowsFull));
    more.into_iter().for_each(|window| actor.free(window));
    actor.window_end(window);
    Outcome::Ran
}

/// Peers may get from it, and signal; a put is refused before it leaves.
pub fn read_only(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 9000;
    let (piece, target) = (actor.piece(BYTES), actor.piece(BYTES));
    piece.fill(0, BYTES, 8 + u64::from(actor.me()));
    let handle = actor.rank.try_register(piece.memory, BYTES as u64, true).unwrap();
    actor.rank.exchange(handle).unwrap();
    let window = Window { handle, piece };
    let next = actor.next();
    for bytes in [0, 8, BYTES] {
        let put = Put { signal: Some((0, 1)), ..plain(&window, next, 0) };
        let refused = actor.rank.put(&put, target.memory, 0, bytes);
        assert_eq!(refused, Err(WindowError::ReadOnly));
        let get = actor.rank.get((handle, next), 0, target.memory, bytes).unwrap();
        actor.rank.wait_local(get).unwrap();
        target.check((0, bytes), 8 + u64::from(next), 0);
    }
    actor.signal(&window, next, (1, 1));
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    assert_eq!((actor.read(&window, 0), actor.read(&window, 1)), (0, 1));
    piece.check((0, BYTES), 8 + u64::from(actor.me()), 0);
    actor.piece_free(target);
    actor.window_end(window);
    Outcome::Ran
}

/// A handle of what was freed is refused, also when the memory is another window's.
pub fn reuse(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 50_000;
    let old = actor.window(BYTES);
    let source = actor.piece(BYTES);
    old.piece.fill(0, BYTES, 6);
    source.fill(0, BYTES, 7);
    let next = actor.next();
    actor.barrier(&old);
    let is_owner = actor.me() == 1 || actor.ranks() == 1;
    let again = is_owner.then(|| {
        actor.free(old.handle);
        actor.rank.try_register(old.piece.memory, BYTES as u64, false).unwrap()
    });
    actor.together(true);
    if let Some(again) = again {
        assert_ne!(again, old.handle);
        let stale = Err(WindowError::Window);
        assert_eq!(actor.rank.put(&plain(&old, next, 0), source.memory, 0, 8), stale);
        assert_eq!(actor.rank.get((old.handle, next), 0, source.memory, 8), stale);
        assert_eq!(actor.rank.signal((old.handle, next), (0, 1), false, None), stale);
        let group = actor.rank.group().inner();
        assert_eq!(group.signal_read(old.handle, 0), Err(WindowError::Window));
        assert_eq!(group.barrier_enter(old.handle, 0), Err(WindowError::Window));
        assert_eq!(group.free(old.handle), Err(WindowError::Window));
    } else {
        // its owner's part is gone
        for bytes in [8, BYTES] {
            let put = Put { signal: Some((0, 1)), ..plain(&old, 1, 0) };
            actor.put(&put, &source, 0, bytes);
            let freed = Err(WaitError::Window(WindowError::Freed));
            assert_eq!(actor.rank.flush(), freed);
        }
        actor.signal(&old, 1, (0, 1));
        assert_eq!(actor.rank.flush(), Err(WaitError::Window(WindowError::Freed)));
    }
    actor.together(true);
    old.piece.check((0, BYTES), 6, 0);
    if !is_owner {
        actor.free(old.handle);
    }
    let new = match again {
        Some(again) => again,
        None => actor.rank.try_register(old.piece.memory, BYTES as u64, false).unwrap(),
    };
    actor.rank.exchange(new).unwrap();
    let window = Window { handle: new, piece: old.piece };
    assert_eq!(actor.read(&window, 0), 0);
    actor.put(&plain(&window, next, 0), &source, 0, BYTES);
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    window.piece.check((0, BYTES), 7, 0);
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// Windows end in any order, each rank has its own, and those that stay work.
pub fn destroy(actor: &mut Actor) -> Outcome {
    const BYTES: usize = 3000;
    let mut windows: Vec<_> = (0..4).map(|_| actor.window(BYTES)).collect();
    let source = actor.piece(BYTES);
    let (me, next, before) = (actor.me() as usize, actor.next(), actor.before());
    let last = windows.pop().expect("four");
    windows.rotate_left(me % 3);
    for (step, window) in windows.into_iter().enumerate() {
        actor.barrier(&last);
        actor.free(window.handle);
        source.fill(0, BYTES, me as u64 + step as u64);
        actor.put(&plain(&last, next, 0), &source, 0, BYTES);
        actor.rank.flush().unwrap();
        actor.barrier(&last);
        last.piece.check((0, BYTES), u64::from(before) + step as u64, 0);
        actor.piece_free(window.piece);
    }
    actor.piece_free(source);
    actor.window_end(last);
    Outcome::Ran
}

const RUNS: usize = 300;
const CELL: usize = 4096;

/// One of the random operations of a rank.
#[derive(Copy, Clone)]
enum Move {
    Put { to: u32, at: usize, from: usize, bytes: usize, signal: Option<(u16, u64)> },
    Signal { to: u32, id: u16, value: u64 },
    Count { to: u32, id: u16, value: u64 },
}

/// What a rank does: the same on every rail.
fn moves_of(rank: u32, ranks: u32) -> Vec<Move> {
    let mut random = Random(0x0a11_ab1e + u64::from(rank));
    let mut one = || {
        let to = random.below(u64::from(ranks)) as u32;
        let (id, value) = (random.below(3) as u16, random.next());
        match random.below(4) {
            0 => Move::Signal { to, id, value },
            1 => Move::Count { to, id, value },
            kind => {
                let bytes = random.below(CELL as u64 + 1) as usize;
                let [at, from] = [0; 2].map(|_| random.below((CELL - bytes) as u64 + 1) as usize);
                Move::Put { to, at, from, bytes, signal: (kind == 2).then_some((id, value)) }
            }
        }
    };
    (0..RUNS).map(|_| one()).collect()
}

/// What a rank has in the end: its window, signals and counters.
type End = (Vec<u8>, Vec<u64>, Vec<u64>);

fn end_of(rank: u32, ranks: u32) -> End {
    let mut end = (vec![0; CELL * ranks as usize], vec![0; 3], vec![0; 3]);
    let add = |word: &mut u64, value: u64| *word = word.wrapping_add(value);
    for writer in 0..ranks {
        for one in moves_of(writer, ranks) {
            match one {
                Move::Put { to, at, from, bytes, signal } if to == rank => {
                    let place = CELL * writer as usize + at;
                    end.0[place..place + bytes].copy_from_slice(&patterns(
                        u64::from(writer),
                        from,
                        bytes,
                    ));
                    if let Some((id, value)) = signal {
                        add(&mut end.1[usize::from(id)], value);
                    }
                }
                Move::Signal { to, id, value } if to == rank => {
                    add(&mut end.1[usize::from(id)], value);
                }
                Move::Count { id, value, .. } if writer == rank => {
                    add(&mut end.2[usize::from(id)], value);
                }
                Move::Put { .. } | Move::Signal { .. } | Move::Count { .. } => {}
            }
        }
    }
    end
}

/// The same random operations end in the same bytes and words on every rail: those of a plain
/// model of them.
pub fn identical(actor: &mut Actor) -> Outcome {
    let (me, ranks) = (actor.me(), actor.ranks());
    let window = actor.window(CELL * ranks as usize);
    let source = actor.piece(CELL);
    source.fill(0, CELL, u64::from(me));
    window.piece.write(0, &vec![0; CELL * ranks as usize]);
    actor.barrier(&window);
    for one in moves_of(me, ranks) {
        match one {
            Move::Put { to, at, from, bytes, signal } => {
                let offset = (CELL * me as usize + at) as u64;
                let put = Put { signal, ..plain(&window, to, offset) };
                // puts of one rank may write over each other
                actor.rank.group().inner().fence(to).unwrap();
                actor.put(&put, &source, from, bytes);
            }
            Move::Signal { to, id, value } => actor.signal(&window, to, (id, value)),
            Move::Count { to, id, value } => {
                let target = (window.handle, to);
                actor.rank.signal(target, (0, 0), false, Some((id, value))).unwrap();
            }
        }
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    let (bytes, signals, counters) = end_of(me, ranks);
    assert!(window.piece.read(0, bytes.len()) == bytes, "the bytes differ from the model's");
    for id in 0..3u16 {
        assert_eq!(actor.read(&window, id), signals[usize::from(id)]);
        let counter = actor.rank.group().inner().counter_read(window.handle, id);
        assert_eq!(counter, Ok(counters[usize::from(id)]));
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}
