//! Rows about words inside windows that peers add to.

use super::suite::{Actor, Outcome, Piece, Window, plain};
use crosstie::base::slab::Handle;
use crosstie::host::group::jobs::{Before, JobId, Jobs, Until, Work};
use crosstie::window::{After, Local, Span, Ticket, WindowError};

fn word(piece: &Piece, at: usize) -> u64 {
    u64::from_le_bytes(piece.read(at, 8).try_into().expect("8 bytes"))
}

/// Adds, and makes progress until there is room.
fn add(actor: &mut Actor, target: (Handle, u32), (at, value): (u64, u64), fence: bool) -> Ticket {
    let after = if fence { After::All } else { After::Nothing };
    loop {
        match actor.rank.group().inner().add(target, at, value, after) {
            Err(WindowError::Again) => actor.rank.progress(),
            added => return added.expect("a word of the window"),
        }
    }
}

/// The values of a rank's adds; they wrap.
fn value(rank: u32, step: u64) -> u64 {
    (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(step)
}

/// All ranks add to the same words at once: nothing is lost, nothing twice, the neighbours stay.
pub fn at_once(actor: &mut Actor) -> Outcome {
    const EACH: u64 = 200;
    let window = actor.window(64);
    window.piece.write(0, &[7; 64]);
    let (me, ranks) = (actor.me(), actor.ranks());
    actor.barrier(&window);
    for step in 0..EACH {
        for rank in 0..ranks {
            let at = 8 + 16 * (step % 2);
            add(actor, (window.handle, rank), (at, value(me, step)), step % 3 == 0);
        }
    }
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    let before = u64::from_le_bytes([7; 8]);
    for (at, parity) in [(8, 0), (24, 1)] {
        let steps = || (0..EACH).filter(|step| step % 2 == parity);
        let values = (0..ranks).flat_map(|rank| steps().map(move |step| value(rank, step)));
        let expected = values.fold(before, u64::wrapping_add);
        assert_eq!(word(&window.piece, at), expected, "the word at {at}");
    }
    for at in [0, 16, 32, 40, 48, 56] {
        assert_eq!(word(&window.piece, at), before, "the word at {at}");
    }
    actor.window_end(window);
    Outcome::Ran
}

/// A fenced add is seen after the bytes of all puts before it, however they travel.
pub fn behind_puts(actor: &mut Actor) -> Outcome {
    const PUTS: usize = 5;
    let each = actor.rail.bytes_max.min(300_000);
    let window = actor.window(8 + PUTS * each);
    let source = actor.piece(PUTS * each);
    let (me, next, before) = (actor.me(), actor.next(), u64::from(actor.before()));
    window.piece.write(0, &[0; 8]);
    for round in 1..=4u64 {
        source.fill(0, PUTS * each, u64::from(me) + round);
        actor.barrier(&window);
        for put in 0..PUTS {
            let bytes = if put % 2 == 0 { each } else { 100 };
            let place = plain(&window, next, (8 + put * each) as u64);
            actor.put(&place, &source, put * each, bytes);
        }
        let ticket = add(actor, (window.handle, next), (0, 1), true);
        while word(&window.piece, 0) != round {
            actor.rank.progress();
        }
        for put in 0..PUTS {
            let bytes = if put % 2 == 0 { each } else { 100 };
            window.piece.check((8 + put * each, bytes), before + round, put * each);
        }
        while actor.rank.group().inner().is_applied(ticket) == Ok(false) {
            actor.rank.progress();
        }
        actor.rank.flush().unwrap();
        actor.barrier(&window);
    }
    actor.piece_free(source);
    actor.window_end(window);
    Outcome::Ran
}

/// More operations than there is room for wait by themselves, and end in their order.
pub fn jobs(actor: &mut Actor) -> Outcome {
    const EACH: usize = 5000;
    const COUNT: usize = 60;
    let window = actor.window(8 + COUNT * EACH);
    let (source, back) = (actor.piece(COUNT * EACH), actor.piece(COUNT * EACH));
    let (me, next, before) = (u64::from(actor.me()), actor.next(), u64::from(actor.before()));
    source.fill(0, COUNT * EACH, me);
    window.piece.write(0, &[0; 8]);
    actor.barrier(&window);
    let mut jobs = Jobs::new(actor.ranks() as usize, 2 * COUNT);
    let mut ids = Vec::new();
    let local = |piece: &Piece, at: usize| {
        let (region, address) = (piece.memory.region, piece.memory.address() + at as u64);
        // SAFETY: memory of the rank, which stays to the end of the row.
        let bytes = unsafe { Span::new(address, EACH as u64) };
        Local { region, address, length: EACH as u64, bytes }
    };
    for at in 0..COUNT {
        let offset = (8 + at * EACH) as u64;
        let put = Work::Put { window: window.handle, offset, local: local(&source, at * EACH) };
        ids.push(jobs.push(next, put, Until::Applied).expect("room"));
        let add = Work::Add {
            window: window.handle,
            offset: 0,
            value: 1,
            after: Before::Known(After::All),
        };
        ids.push(jobs.push(next, add, Until::Local).expect("room"));
    }
    let none =
        Work::Add { window: window.handle, offset: 0, value: 1, after: Before::Known(After::All) };
    assert_eq!(jobs.push(next, none, Until::Local), None, "all rows are in use");
    end(actor, &mut jobs, ids);
    actor.rank.flush().unwrap();
    actor.barrier(&window);
    assert_eq!(word(&window.piece, 0), COUNT as u64);
    window.piece.check((8, COUNT * EACH), before, 0);
    let gets = (0..COUNT).map(|at| {
        let offset = (8 + at * EACH) as u64;
        let get = Work::Get { window: window.handle, offset, local: local(&back, at * EACH) };
        jobs.push(next, get, Until::Local).expect("room")
    });
    let gets = gets.collect();
    end(actor, &mut jobs, gets);
    back.check((0, COUNT * EACH), me, 0);
    assert!(jobs.is_idle() && jobs.push(actor.ranks(), none, Until::Local).is_none());
    let wrong = Work::Add {
        window: window.handle,
        offset: 4,
        value: 1,
        after: Before::Known(After::Nothing),
    };
    let wrong = jobs.push(next, wrong, Until::Local).expect("room");
    let outcome = end_of(actor, &mut jobs, wrong);
    assert!(matches!(outcome, Err(WindowError::Range(_))), "{outcome:?}");
    actor.barrier(&window);
    actor.piece_free(source);
    actor.piece_free(back);
    actor.window_end(window);
    Outcome::Ran
}

fn end(actor: &mut Actor, jobs: &mut Jobs, ids: Vec<JobId>) {
    for id in ids {
        assert_eq!(end_of(actor, jobs, id), Ok(()));
    }
}

fn end_of(actor: &mut Actor, jobs: &mut Jobs, id: JobId) -> Result<(), WindowError> {
    loop {
        let (group, node) = (actor.rank.group.as_mut().expect("open"), &mut actor.rank.node);
        jobs.step(group.inner(), node);
        group.progress(node);
        if let Some(outcome) = jobs.outcome(id) {
            return outcome;
        }
    }
}

/// Words that there are not, or that peers may not write.
pub fn refused(actor: &mut Actor) -> Outcome {
    let window = actor.window(20);
    let next = actor.next();
    let target = (window.handle, next);
    let add = |actor: &mut Actor, at| actor.rank.group().inner().add(target, at, 1, After::Nothing);
    for at in [13, 16, 20, 21, u64::MAX - 7, u64::MAX] {
        assert_eq!(add(actor, at), Err(WindowError::Range(20)), "at {at}");
    }
    for at in [1, 4, 12] {
        assert_eq!(add(actor, at), Err(WindowError::Range(20)), "at {at}");
    }
    let nobody = (window.handle, actor.ranks());
    assert_eq!(
        actor.rank.group().inner().add(nobody, 0, 1, After::Nothing),
        Err(WindowError::Rank)
    );
    let handle = actor.rank.try_register(window.piece.memory, 16, true).unwrap();
    actor.rank.exchange(handle).unwrap();
    let read_only = Window { handle, piece: window.piece };
    let refused = actor.rank.group().inner().add((handle, next), 0, 1, After::Nothing);
    assert_eq!(refused, Err(WindowError::ReadOnly));
    actor.barrier(&read_only);
    actor.free(handle);
    actor.window_end(window);
    unaligned_part(actor);
    Outcome::Ran
}

/// A part of a window whose first byte is not aligned: its owner says no.
fn unaligned_part(actor: &mut Actor) {
    let piece = actor.piece(64);
    let mut memory = piece.memory;
    memory.start = memory.start.wrapping_add(4);
    let handle = actor.rank.try_register(memory, 32, false).unwrap();
    actor.rank.exchange(handle).unwrap();
    let next = actor.next();
    let ticket = actor.rank.group().inner().add((handle, next), 8, 1, After::All).unwrap();
    while actor.rank.group().inner().is_applied(ticket) == Ok(false) {
        actor.rank.progress();
    }
    let refused = Some(WindowError::Range(0));
    assert_eq!(actor.rank.group().inner().refusal_of(ticket), refused);
    assert!(actor.rank.flush().is_err(), "it tells of the refusal");
    assert!(actor.rank.flush().is_ok(), "it has told");
    actor.together(true);
    actor.free(handle);
    actor.piece_free(piece);
}
