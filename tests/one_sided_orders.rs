//! Every order in which the messages of two ranks can come. Frames and bytes go over connections of
//! their own, so either may be late. Each order is checked against what the operations promise.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::transport::request::RequestIdError;
use crosstie::transport::{Incoming, Outcome, Outgoing, RequestError, RequestId, SubmitError};
use crosstie::window::group::Flushed;
use crosstie::window::{
    After, Carrier, Group, Limits, Links, Local, Put, Span, Ticket, WindowError, WindowMemory,
};
use crosstie::wire::one_sided::{FENCE, FRAME_HEAD_BYTES, RecordKind, SHORT_FRAME_BYTES};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

const FRAMES: u8 = 0;
const BYTES: u8 = 1;
/// The first link of a rank with itself.
const SELF: u8 = 2;
const WINDOW_BYTES: usize = 16_384;
const REGION: Handle = Handle { index: 1, generation: 1 };

/// A message under way. A short one was copied, a long one is read when it comes.
struct Message {
    bytes: Vec<u8>,
    address: u64,
    length: u64,
    request: RequestId,
}

/// What comes to one rank over one link.
#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    receives: VecDeque<(Incoming, RequestId)>,
}

#[derive(Default)]
struct Wire {
    queues: HashMap<(usize, u8), Queue>,
    ended: HashMap<u64, Outcome>,
    requests: u64,
    /// Ignore fences, as a fault of the owner would.
    without_fences: bool,
    /// Adds need nothing, as of an owner that does not look at it.
    without_needs: bool,
}

impl Wire {
    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn end(&mut self, request: RequestId, result: Result<(), RequestError>, length: u64) {
        let mut lengths = [0; 8];
        lengths[0] = length;
        self.ended.insert(request.0, Outcome { result, count: 1, lengths });
    }

    /// The queues whose next message can come, but those of a rank with itself.
    fn choices(&self) -> Vec<(usize, u8)> {
        let mut keys: Vec<_> = self
            .queues
            .iter()
            .filter(|(_, queue)| !queue.messages.is_empty() && !queue.receives.is_empty())
            .map(|(key, _)| *key)
            .collect();
        keys.sort_unstable();
        keys
    }

    fn deliver(&mut self, key: (usize, u8)) {
        let queue = self.queues.get_mut(&key).unwrap();
        let message = queue.messages.pop_front().unwrap();
        let (room, receive) = queue.receives.pop_front().unwrap();
        let mut bytes = message.bytes;
        if bytes.is_empty() && message.length != 0 {
            // SAFETY: who sent it keeps the memory until the request has ended.
            bytes = unsafe { read(message.address, message.length as usize) };
        }
        if self.without_fences && key.1 % 2 == FRAMES {
            // of the first record alone, whose flags follow its kind
            let record = if bytes.len() == SHORT_FRAME_BYTES { 0 } else { FRAME_HEAD_BYTES };
            bytes.iter_mut().skip(record + 1).take(1).for_each(|flags| *flags &= !FENCE);
        }
        let is_add = bytes.first().is_some_and(|kind| kind & 15 == RecordKind::Add as u8);
        if self.without_needs && bytes.len() == SHORT_FRAME_BYTES && is_add {
            bytes[6..8].fill(0);
        }
        if message.length > room.length {
            self.end(receive, Err(RequestError::Truncated), message.length);
        } else {
            // SAFETY: who receives it keeps the memory until the request has ended.
            unsafe { write(room.address, &bytes) };
            self.end(receive, Ok(()), message.length);
        }
        self.end(message.request, Ok(()), message.length);
    }
}

/// # Safety
/// - memory of a rank.
unsafe fn read(address: u64, length: usize) -> Vec<u8> {
    let start: *const u8 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: this function's contract.
    unsafe { std::slice::from_raw_parts(start, length) }.to_vec()
}

/// # Safety
/// - memory of a rank.
unsafe fn write(address: u64, bytes: &[u8]) {
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
}

/// One rank's end of the wire.
struct End {
    wire: Rc<RefCell<Wire>>,
    rank: usize,
}

impl End {
    fn reader(&self, link: u8) -> (usize, u8) {
        (if link >= SELF { self.rank } else { 1 - self.rank }, link)
    }
}

impl Carrier for End {
    type Link = u8;

    fn isend(&mut self, link: u8, message: Outgoing) -> Result<RequestId, SubmitError> {
        let mut wire = self.wire.borrow_mut();
        let request = wire.request();
        let Outgoing { address, length, .. } = message;
        let is_short = link.is_multiple_of(2);
        // SAFETY: the group keeps the memory until the request has ended.
        let bytes = if is_short { unsafe { read(address, length as usize) } } else { vec![] };
        if is_short {
            wire.end(request, Ok(()), length);
        }
        let queue = wire.queues.entry(self.reader(link)).or_default();
        queue.messages.push_back(Message { bytes, address, length, request });
        Ok(request)
    }

    fn irecv(&mut self, link: u8, rooms: &[Incoming]) -> Result<RequestId, SubmitError> {
        let mut wire = self.wire.borrow_mut();
        let request = wire.request();
        let queue = wire.queues.entry((self.rank, link)).or_default();
        queue.receives.push_back((rooms[0], request));
        Ok(request)
    }

    fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        Ok(self.wire.borrow().ended.get(&request.0).copied())
    }

    fn locate(&self, _: Handle, _: u64, _: u64) -> Result<bool, SubmitError> {
        Ok(false)
    }

    fn reaches_device(&self, _: u8) -> bool {
        true
    }
}

/// A rank: its group, its window, and memory to put from and get into.
struct Rank {
    group: Group<'static, u8>,
    end: End,
    window: Handle,
    memory: Box<[u8]>,
    local: Box<[u8]>,
}

impl Rank {
    fn open(wire: &Rc<RefCell<Wire>>, rank: usize, blocks: &mut Vec<HeapBlock>) -> Rank {
        let limits =
            Limits { ranks: 2, windows_max: 2, signals_max: 4, counters_max: 4, barriers_max: 2 };
        let mut state = HeapBlock::new(limits.state_bytes::<u8>());
        let mut frames = HeapBlock::new(limits.frames_bytes());
        // SAFETY: the blocks outlive the rank, which alone uses them.
        let mut carver = unsafe {
            crosstie::base::carve::Carver::new(state.start(), limits.state_bytes::<u8>())
        };
        let address = frames.start().expose_provenance() as u64;
        // SAFETY: as above.
        let span = unsafe { Span::new(address, limits.frames_bytes() as u64) };
        blocks.extend([state, frames]);
        let links = |other: u32| {
            let first = if other as usize == rank { SELF } else { FRAMES };
            let (frames, bytes) = (first, first + BYTES);
            Links { frames_out: frames, frames_in: frames, bytes_out: bytes, bytes_in: bytes }
        };
        let opened = Group::open(&mut carver, limits, rank as u32, (span, REGION), links);
        let mut group = opened.expect("the block is long enough");
        let mut end = End { wire: Rc::clone(wire), rank };
        group.begin(&mut end).expect("a healthy wire");
        let memory = vec![0; WINDOW_BYTES].into_boxed_slice();
        let local = (0..WINDOW_BYTES).map(|at| (at * 7 + rank) as u8 | 1).collect();
        let mut opened = Rank { group, end, window: Handle::default(), memory, local };
        opened.window = opened.window_open(0, WINDOW_BYTES);
        opened
    }

    /// A window of a part of the memory, whose exchange has begun.
    fn window_open(&mut self, at: usize, bytes: usize) -> Handle {
        let address = self.memory[at..at + bytes].as_mut_ptr().expose_provenance() as u64;
        let length = bytes as u64;
        let window = self.group.register(WindowMemory {
            region: REGION,
            address,
            length,
            is_device: false,
            is_read_only: false,
            // SAFETY: it lives as long as the rank.
            bytes: unsafe { Span::new(address, length) },
        });
        let window = window.expect("a window");
        self.group.exchange_begin(window).expect("room");
        window
    }

    fn step(&mut self) {
        self.group.step(&mut self.end);
    }

    fn local(&mut self, at: usize, bytes: usize) -> Local {
        let address = self.local[at..at + bytes].as_mut_ptr().expose_provenance() as u64;
        let length = bytes as u64;
        // SAFETY: it lives as long as the rank.
        Local { region: REGION, address, length, bytes: unsafe { Span::new(address, length) } }
    }

    /// Whether bytes of the window are those that rank 0 puts there.
    fn has(&self, at: usize, bytes: usize) -> bool {
        (at..at + bytes).all(|at| self.memory[at] == (at * 7) as u8 | 1)
    }
}

/// Both ranks, whose windows are exchanged.
struct World {
    wire: Rc<RefCell<Wire>>,
    ranks: [Rank; 2],
    _blocks: Vec<HeapBlock>,
}

impl World {
    fn open(without_fences: bool) -> World {
        let wire = Rc::new(RefCell::new(Wire::default()));
        let mut blocks = vec![];
        let ranks = [0, 1].map(|rank| Rank::open(&wire, rank, &mut blocks));
        let mut world = World { wire, ranks, _blocks: blocks };
        loop {
            world.settle();
            let look = |rank: &mut Rank| rank.group.exchange_look(rank.window);
            if world.ranks.iter_mut().map(look).all(|look| look == Ok(Flushed::Done)) {
                break;
            }
            let choices = world.wire.borrow().choices();
            world.wire.borrow_mut().deliver(choices[0]);
        }
        world.wire.borrow_mut().without_fences = without_fences;
        world
    }

    /// Lets both ranks do all that they can before a further message comes.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.ranks.iter_mut().for_each(Rank::step);
            loop {
                let own = self.wire.borrow().choices().into_iter().find(|key| key.1 >= SELF);
                let Some(key) = own else { break };
                self.wire.borrow_mut().deliver(key);
            }
        }
    }
}

/// Runs a program once for each order of what comes. `judge` looks after every message, and says
/// whether all has ended. The number of orders, or what is wrong with one of them.
fn orders(
    without_fences: bool,
    program: impl Fn(&mut [Rank; 2]) -> Vec<Ticket>,
    judge: impl Fn(&mut [Rank; 2], &[Ticket]) -> Result<bool, String>,
) -> Result<usize, String> {
    let mut path: Vec<(usize, usize)> = vec![];
    let mut runs = 0;
    loop {
        let mut world = World::open(without_fences);
        let tickets = program(&mut world.ranks);
        let mut depth = 0;
        loop {
            world.settle();
            let is_done = judge(&mut world.ranks, &tickets)?;
            let choices = world.wire.borrow().choices();
            if choices.is_empty() {
                // what is asked for by a look leaves with the next step
                if !is_done {
                    world.settle();
                    if world.wire.borrow().choices().is_empty() {
                        return Err(format!(
                            "nothing is under way, and not all has ended: {path:?}"
                        ));
                    }
                    continue;
                }
                break;
            }
            if depth == path.len() {
                path.push((0, choices.len()));
            }
            world.wire.borrow_mut().deliver(choices[path[depth].0]);
            depth += 1;
        }
        runs += 1;
        assert!(runs < 100_000, "so many orders take too long");
        while path.last().is_some_and(|(at, of)| at + 1 == *of) {
            path.pop();
        }
        match path.last_mut() {
            Some((at, _)) => *at += 1,
            None => return Ok(runs),
        }
    }
}

fn put(rank: &mut Rank, at: usize, bytes: usize, signal: Option<(u16, u64)>) -> Ticket {
    let local = rank.local(at, bytes);
    let put =
        Put { window: rank.window, rank: 1, offset: at as u64, signal, counter: Some((0, 1)) };
    rank.group.put(&rank.end, &put, &local).expect("room")
}

/// Windows of a part of each rank's memory, which are exchanged.
fn second_windows(ranks: &mut [Rank; 2], at: usize, bytes: usize) -> [Handle; 2] {
    let windows = ranks.each_mut().map(|rank| rank.window_open(at, bytes));
    loop {
        ranks.iter_mut().for_each(Rank::step);
        let look = |at: usize, ranks: &mut [Rank; 2]| ranks[at].group.exchange_look(windows[at]);
        if [0, 1].map(|at| look(at, ranks)) == [Ok(Flushed::Done); 2] {
            return windows;
        }
        let choices = ranks[0].end.wire.borrow().choices();
        choices.into_iter().for_each(|key| ranks[0].end.wire.borrow_mut().deliver(key));
    }
}

fn signals(rank: &Rank) -> [u64; 4] {
    [0, 1, 2, 3].map(|id| rank.group.signal_read(rank.window, id).expect("a signal"))
}

/// Long puts with signals, a plain signal, and a signal with a fence.
fn fenced(without_fences: bool) -> Result<usize, String> {
    orders(
        without_fences,
        |ranks| {
            let origin = &mut ranks[0];
            let to = (origin.window, 1);
            let tickets =
                vec![put(origin, 0, 3000, Some((0, 1))), put(origin, 5500, 8, Some((1, 1)))];
            origin.step(); // the next record is the first of its frame
            origin.group.signal(to, (2, 5), true, Some((1, 1))).expect("room");
            origin.step();
            put(origin, 6000, 4000, Some((3, 7)));
            tickets
        },
        |ranks, tickets| {
            let [origin, owner] = ranks;
            let [first, short, fenced, last] = signals(owner);
            let rule = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_string()) };
            rule(first <= 1 && short <= 1 && fenced <= 5 && last <= 7, "a signal was added twice")?;
            rule(first == 0 || owner.has(0, 3000), "a signal came before its bytes")?;
            rule(short == 0 || owner.has(5500, 8), "a signal came before its inline bytes")?;
            rule(last == 0 || owner.has(6000, 4000), "the last signal came before its bytes")?;
            let before = owner.has(0, 3000) && first == 1 && short == 1;
            rule(fenced == 0 || before, "a signal passed its fence")?;
            let counter = origin.group.counter_read(origin.window, 1).expect("a counter");
            rule(counter == 0 || fenced == 5, "a counter grew before its signal")?;
            let is_flushed = origin.group.flush(1) == Ok(Flushed::Done);
            rule(!is_flushed || (fenced == 5 && last == 7), "a flush ended early")?;
            for ticket in tickets {
                origin.group.is_local_done(*ticket).map_err(|error| error.to_string())?;
            }
            Ok(is_flushed && counter == 1)
        },
    )
}

#[test]
fn signals_come_after_their_bytes_and_fences_in_every_order() {
    let runs = fenced(false).expect("every order");
    assert!(runs >= 8, "{runs} orders are few");
}

/// The rules above can fail: an owner that ignores the fence breaks one of them.
#[test]
fn an_owner_without_fences_is_caught() {
    let found = fenced(true).expect_err("a signal that passes its fence");
    assert_eq!(found, "a signal passed its fence");
}

/// Gets, short and long, in both directions.
#[test]
fn gets_end_with_their_bytes_in_every_order() {
    let runs = orders(
        false,
        |ranks| {
            let mut tickets = vec![];
            for rank in ranks.iter_mut() {
                let other = 1 - rank.group.rank();
                let local = rank.local(0, 4000);
                let long = rank.group.get(&rank.end, (rank.window, other), 0, &local);
                let local = rank.local(4000, 100);
                let short = rank.group.get(&rank.end, (rank.window, other), 4000, &local);
                tickets.extend([long.expect("room"), short.expect("room")]);
            }
            tickets
        },
        |ranks, tickets| {
            let mut all = true;
            for (at, rank) in ranks.iter_mut().enumerate() {
                for ticket in &tickets[2 * at..2 * at + 2] {
                    let done = rank.group.is_local_done(*ticket);
                    all &= done.map_err(|error| error.to_string())?;
                }
                if all && rank.local[..4100].iter().any(|byte| *byte != 0) {
                    return Err("a get ended before its bytes were there".to_string());
                }
            }
            Ok(all)
        },
    );
    assert!(runs.expect("every order") >= 4);
}

/// What the owner does not take is told to who flushes, whatever comes first, and changes nothing.
#[test]
fn what_is_refused_is_told_in_every_order() {
    let runs = orders(
        false,
        |ranks| {
            let owner = &mut ranks[1];
            owner.group.free(owner.window).expect("nothing is under way");
            let origin = &mut ranks[0];
            let long = put(origin, 0, 3000, Some((0, 1)));
            let local = origin.local(8000, 64);
            let get = origin.group.get(&origin.end, (origin.window, 1), 0, &local).expect("room");
            let signal = origin.group.signal((origin.window, 1), (1, 1), false, Some((2, 1)));
            vec![long, get, signal.expect("room")]
        },
        |ranks, tickets| {
            let [origin, owner] = ranks;
            if owner.memory.iter().any(|byte| *byte != 0) {
                return Err("a freed window was written".to_string());
            }
            if origin.group.counter_read(origin.window, 2) != Ok(0) {
                return Err("a signal that was refused was counted".to_string());
            }
            let told = origin.group.is_local_done(tickets[1]) == Err(WindowError::Freed);
            match origin.group.flush(1) {
                Err(WindowError::Freed) if told => Ok(true),
                Ok(Flushed::Done) if told => Ok(true), // it was told before
                Err(WindowError::Freed) => Err("flushed before the get had ended".to_string()),
                Ok(Flushed::Waiting(1)) => Ok(false),
                other => Err(format!("{other:?}")),
            }
        },
    );
    assert!(runs.expect("every order") >= 2);
}

/// Puts to a window that its owner frees at any moment, each with an add to a word of the other
/// window that needs it, and an add that needs none of them.
fn needed(without_needs: bool, lengths: [usize; 2], freed_at: usize) -> Result<usize, String> {
    const WORDS: usize = 12_000;
    let (looks, is_freed) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
    orders(
        false,
        |ranks| {
            looks.set(0);
            is_freed.set(false);
            let words = second_windows(ranks, WORDS, 64);
            ranks[0].end.wire.borrow_mut().without_needs = without_needs;
            let origin = &mut ranks[0];
            let mut tickets = vec![];
            for (at, bytes) in lengths.into_iter().enumerate() {
                let put = put(origin, at * 4000, bytes, None);
                origin.step();
                let (to, word) = ((words[0], 1), 8 * at as u64);
                let after = After::Success(put);
                tickets.extend([put, origin.group.add(to, word, 1, after).expect("room")]);
                origin.step();
            }
            tickets.push(origin.group.add((words[0], 1), 16, 1, After::All).expect("room"));
            tickets
        },
        |ranks, tickets| {
            let [origin, owner] = ranks;
            let word = |owner: &Rank, at: usize| owner.memory[WORDS + 8 * at];
            for (at, bytes) in lengths.into_iter().enumerate() {
                if word(owner, at) != 0 && !owner.has(at * 4000, bytes) {
                    return Err(format!("word {at} grew, and its bytes are not there"));
                }
            }
            looks.set(looks.get() + 1);
            if !is_freed.get() && looks.get() > freed_at && owner.group.free(owner.window) == Ok(())
            {
                is_freed.set(true);
            }
            let mut all = true;
            for ticket in tickets {
                all &= origin.group.is_applied(*ticket) == Ok(true);
            }
            if !all {
                return Ok(false);
            }
            for (at, pair) in tickets.chunks_exact(2).enumerate() {
                let refused = [0, 1].map(|of| origin.group.refusal_of(pair[of]).is_some());
                if refused[0] && !refused[1] {
                    return Err(format!("put {at} was refused, and its add was not"));
                }
                if refused[1] == (word(owner, at) != 0) {
                    return Err(format!("add {at}: what is told is not so"));
                }
            }
            match (word(owner, 2), origin.group.refusal_of(tickets[4])) {
                (1, None) => Ok(true),
                other => Err(format!("the add that needs nothing: {other:?}")),
            }
        },
    )
}

#[test]
fn no_word_grows_behind_a_put_that_was_refused_in_every_order() {
    for lengths in [[3000, 8], [8, 3000], [3000, 3000], [8, 8]] {
        for freed_at in 0..8 {
            needed(false, lengths, freed_at).expect("every order");
        }
    }
}

/// The rules above can fail: an owner that does not look at what an add needs breaks one of them.
#[test]
fn an_owner_that_adds_behind_a_refusal_is_caught() {
    let found = needed(true, [3000, 8], 0).expect_err("a word that grows");
    assert!(found.contains("grew") || found.contains("refused"), "{found}");
}

/// A barrier is passed when all have come, and after what they put before: also where bytes are
/// late, and where gets of both sides are answered meanwhile.
#[test]
fn a_barrier_comes_after_what_was_put_before_in_every_order() {
    let runs = orders(
        false,
        |ranks| {
            let owner = &mut ranks[1];
            owner.group.barrier_enter(owner.window, 1).expect("room");
            let origin = &mut ranks[0];
            let long = put(origin, 0, 3000, None);
            origin.group.barrier_enter(origin.window, 1).expect("room");
            let local = origin.local(8000, 3000);
            let get = origin.group.get(&origin.end, (origin.window, 1), 8000, &local);
            let fenced = origin.group.signal((origin.window, 1), (0, 1), true, None);
            assert_eq!(fenced, Err(WindowError::Again), "a fence waits for gets");
            vec![long, get.expect("room")]
        },
        |ranks, tickets| {
            let [origin, owner] = ranks;
            let passed = [&mut *origin, &mut *owner]
                .map(|rank| rank.group.barrier_look(rank.window, 1) == Ok(Flushed::Done));
            if passed[1] && !owner.has(0, 3000) {
                return Err("a barrier was passed before the bytes were there".to_string());
            }
            let got = origin.group.is_local_done(tickets[1]).map_err(|error| error.to_string())?;
            Ok(passed == [true, true] && got)
        },
    );
    assert!(runs.expect("every order") >= 2);
}
