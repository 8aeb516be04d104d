//! Two ranks over a network, what they have under way, and what they ask of each other.
#![forbid(unsafe_code)]

use super::bytes::Bytes;
use super::carrier::{BYTES, FRAMES, Link, Ports};
use super::oracle::{ANY, IDS, IN_WINDOW, Oracle, Part};
use super::side::{GUARD_BYTES, LIMITS, Pending, Shape, Side, WINDOWS};
use super::tally::Tally;
use crate::sim::lanes::{self, Ends, Lanes};
use crate::sim::memory::pattern;
use crate::sim::world::{BUDGET, Opened, ends_open, setup};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Instant, Span};
use crosstie::fabric::{MemoryDomain, RemoteSpan};
use crosstie::transport::{DataMrs, Limits, RequestError};
use crosstie::window::group::Flushed;
use crosstie::window::{Group, Local, Put, WindowError, WindowMemory};
use crosstie_kit::random::Random;
use crosstie_kit::sim::SimFabric;

/// Everything of a schedule.
pub struct World<'f, 'm> {
    pub ends: Ends<'f, 'm>,
    pub tables: [DataMrs<'m>; 2],
    pub sides: [Side<'m>; 2],
    pub oracle: Oracle,
    pub lanes: [Lanes; 2],
    pub shape: Shape,
    pub random: Random,
    pub now: Instant,
    pub tally: Tally,
    /// The last progress has added to a signal.
    was_added: bool,
}

/// The blocks that two ranks are cut from.
pub struct Blocks {
    ends: [HeapBlock; 2],
    groups: [HeapBlock; 2],
}

impl Blocks {
    pub fn new(limits: Limits) -> Blocks {
        let end = || HeapBlock::new(limits.machine_bytes() + limits.regions_bytes());
        let group = || HeapBlock::new(LIMITS.state_bytes::<Link>());
        Blocks { ends: [end(), end()], groups: [group(), group()] }
    }
}

impl<'f, 'm> World<'f, 'm> {
    pub fn open(
        fabric: &'f SimFabric<'m>,
        blocks: &'m mut Blocks,
        (pull, limits): (bool, Limits),
        lanes: Lanes,
        seed: u64,
    ) -> Result<World<'f, 'm>, String> {
        let shape = Shape::of(seed);
        let Opened { mut endpoints, tables, keys } = ends_open(fabric, &mut blocks.ends, limits);
        for side in 0..2 {
            let other = 1 - side;
            for connection in [FRAMES, BYTES] {
                let address = endpoints[other].mailboxes().address(connection.0);
                let mailbox = RemoteSpan { key: keys[other], address };
                let setup = setup(seed, side, (pull, limits), (lanes.count, mailbox));
                endpoints[side].connection_open(connection, &setup);
            }
        }
        let mut rank = 0;
        let sides = blocks.groups.each_mut().map(|block| {
            let domain = endpoints[rank].rail().domain();
            let side = Side::open(&domain, &tables[rank], (block, rank as u32), shape);
            rank += 1;
            side
        });
        let [a, b] = sides;
        let lanes = [lanes.of(FRAMES), lanes.of(BYTES)];
        let mut world = World {
            ends: endpoints,
            tables,
            sides: [a?, b?],
            oracle: Oracle::default(),
            lanes,
            shape,
            random: Random::new(seed),
            now: Instant(0),
            tally: Tally::default(),
            was_added: false,
        };
        for rank in 0..2 {
            let (group, mut ports) = world.parts(rank);
            group.begin(&mut ports).map_err(|error| format!("begin: {error}"))?;
        }
        Ok(world)
    }

    /// A rank's group and what carries it.
    pub fn parts(&mut self, rank: usize) -> (&mut Group<'m, Link>, Ports<'_, 'f, 'm>) {
        let Side { group, own, holds, .. } = &mut self.sides[rank];
        (group, Ports { endpoint: &mut self.ends[rank], own, holds: *holds })
    }

    /// A little time, progress of one rank, and a look at all that may have happened.
    pub fn progress(&mut self, rank: usize) -> Result<(), String> {
        self.tally.calls += 1;
        self.now = self.now.after(Span(self.random.below(600)));
        self.ends[rank].progress(self.now, BUDGET);
        let Side { own, arena, .. } = &mut self.sides[rank];
        own.progress(arena, &mut self.random);
        let (group, mut ports) = self.parts(rank);
        group.step(&mut ports);
        if let Some((_, error)) = self.sides[rank].group.failed() {
            self.fail(rank, error)?;
        }
        self.opened_look(rank)?;
        self.words_look(rank)?;
        self.pending_look(rank)?;
        self.flush_look(rank)?;
        self.barriers_look(rank)
    }

    /// A rank's connection has failed, by name.
    fn fail(&mut self, rank: usize, error: RequestError) -> Result<(), String> {
        match matches!(error, RequestError::Truncated | RequestError::Canceled) {
            true => Err(format!("rank {rank} failed with {error:?}")),
            false => {
                self.sides[rank].failure = Some(error);
                Ok(())
            }
        }
    }

    pub fn has_failed(&self) -> bool {
        self.sides.iter().any(|side| side.failure.is_some())
    }

    /// What an error of an operation means: `Ok(true)`: its connection has failed.
    pub fn refused(&mut self, rank: usize, error: WindowError) -> Result<bool, String> {
        match error {
            WindowError::Again => Ok(false),
            WindowError::Failed(_, cause) => self.fail(rank, cause).map(|()| true),
            other => Err(format!("rank {rank} was refused: {other:?}")),
        }
    }

    /// Windows whose exchange has ended.
    fn opened_look(&mut self, rank: usize) -> Result<(), String> {
        for window in 0..self.oracle.windows.len() {
            let handle = self.sides[rank].windows.get(window).copied().flatten();
            let Some(handle) = handle else { continue };
            if self.oracle.part(window, rank).is_open {
                continue;
            }
            match self.sides[rank].group.exchange_look(handle) {
                Ok(Flushed::Done) => self.oracle.part(window, rank).is_open = true,
                Ok(Flushed::Waiting(_)) => {}
                Err(error) => drop(self.refused(rank, error)?),
            }
        }
        Ok(())
    }

    /// The words inside of a rank's windows, by the rank that adds to them.
    fn words_of(&mut self, rank: usize) -> Vec<[u64; 2]> {
        let arena = &mut self.sides[rank].arena;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let parts = self.oracle.windows.iter().map(|parts| parts[rank].as_ref());
        let places = parts.map(|part| part.filter(|part| !part.is_freed)?.words_place());
        let words = places.map(|place| match place {
            Some(place) => {
                let bytes = arena.bytes(&place);
                [word(&bytes[..8]), word(&bytes[8..])]
            }
            None => [0; 2],
        });
        words.collect()
    }

    fn words_look(&mut self, rank: usize) -> Result<(), String> {
        let words = self.words_of(rank);
        let Side { group, windows, arena, .. } = &mut self.sides[rank];
        let read = |window: usize, id: usize, from: usize| {
            let handle = windows[window].expect("open");
            let word = group.signal_read_from(handle, id as u16, from as u32).expect("open");
            // values are bits, so that both words have some of them
            word + if id == IN_WINDOW { words[window][from] } else { 0 }
        };
        let seen = self.oracle.look(rank, read, arena)?;
        self.tally.signals += seen as u64;
        self.was_added = seen > 0;
        Ok(())
    }

    /// Operations whose buffers are free again, and counters.
    fn pending_look(&mut self, rank: usize) -> Result<(), String> {
        self.counters_look(rank)?;
        let mut at = 0;
        while at < self.sides[rank].pending.len() {
            let pending = self.sides[rank].pending[at];
            let is_done = match self.sides[rank].group.is_local_done(pending.ticket) {
                Ok(is_done) => is_done,
                Err(WindowError::Freed) => {
                    self.tally.refused += 1;
                    true
                }
                Err(error) => self.refused(rank, error)?,
            };
            let has_failed = self.sides[rank].failure.is_some() && pending.to != rank;
            if !is_done || (pending.counter.is_some() && !has_failed) {
                at += 1;
                continue;
            }
            self.sides[rank].pending.swap_remove(at);
            self.pending_end(rank, &pending, has_failed)?;
        }
        Ok(())
    }

    fn pending_end(&mut self, rank: usize, pending: &Pending, failed: bool) -> Result<(), String> {
        let Side { arena, buffers, .. } = &mut self.sides[rank];
        let Some((buffer, length)) = pending.buffer else { return Ok(()) };
        let whole = self.shape.buffer(buffer);
        let (body, rest) = (whole.start..whole.start + length, whole.start + length..whole.end);
        if !arena.is_untouched(&rest) {
            return Err(format!("rank {rank}: bytes behind a buffer were touched"));
        }
        if let Some(name) = pending.get {
            let bytes = arena.bytes(&body).to_vec();
            if !failed && !self.oracle.get_end(name, &bytes)? {
                self.tally.gets += 1;
            }
        }
        // of a connection that has failed, what is not fenced may still come
        if !failed {
            arena.give_back(&whole);
            buffers.push(buffer);
        }
        Ok(())
    }

    /// A counter that was added to says that the buffer is free, or that the signal was added.
    pub fn counters_look(&mut self, rank: usize) -> Result<(), String> {
        for window in 0..self.oracle.windows.len() {
            let handle = self.sides[rank].windows.get(window).copied().flatten();
            let Some(handle) = handle.filter(|_| self.oracle.part(window, rank).is_open) else {
                continue;
            };
            for id in 0..IDS {
                let word = self.sides[rank].group.counter_read(handle, id as u16);
                let word = word.map_err(|error| format!("counter: {error}"))?;
                let new = self.oracle.counter_look((window, rank), id, word)?;
                self.counted(rank, window, (id, new))?;
            }
        }
        Ok(())
    }

    fn counted(
        &mut self,
        rank: usize,
        window: usize,
        (id, new): (usize, u64),
    ) -> Result<(), String> {
        if new == 0 {
            return Ok(());
        }
        let Side { arena, pending, dropped, .. } = &mut self.sides[rank];
        let mut left = new;
        for (of, counter, value) in dropped.iter() {
            left &= if (*of, *counter) == (window, id) { !value } else { u64::MAX };
        }
        for pending in pending.iter_mut().filter(|pending| pending.window == window) {
            let Some((_, value)) =
                pending.counter.filter(|(of, value)| *of == id && value & new != 0)
            else {
                continue;
            };
            pending.counter = None;
            left &= !value;
            self.tally.counters += 1;
            if let Some((buffer, _)) = pending.buffer {
                // the user writes what it likes there from now on
                let whole = self.shape.buffer(buffer);
                arena.give_back(&whole);
            }
            let (way, signal) = ((rank, pending.to), pending.signal);
            if signal.is_some_and(|number| !self.oracle.may_be_added(way, number)) {
                return Err(format!("a counter of rank {rank} grew before its signal"));
            }
        }
        match left {
            0 => Ok(()),
            _ => Err(format!("counter {id} of window {window} at rank {rank} grew by {left:x}")),
        }
    }

    fn flush_look(&mut self, rank: usize) -> Result<(), String> {
        for to in 0..2 {
            if !self.sides[rank].flushing[to] {
                continue;
            }
            let is_refused = match self.sides[rank].group.flush(to as u32) {
                Ok(Flushed::Waiting(_)) => continue,
                Ok(Flushed::Done) => false,
                Err(WindowError::Freed) => true,
                Err(error) => {
                    self.sides[rank].flushing[to] = !self.refused(rank, error)?;
                    continue;
                }
            };
            self.sides[rank].flushing[to] = false;
            self.tally.flushes += 1;
            self.flushed(rank, to)?;
            let Side { group, windows, arena, .. } = &mut self.sides[to];
            let any = |window: usize| {
                let handle = windows[window].expect("open");
                group.signal_read_from(handle, ANY as u16, rank as u32).expect("open")
            };
            self.oracle.flushed((rank, to), is_refused, any, arena)?;
        }
        Ok(())
    }

    /// Gets have ended by then, also where a ticket before theirs has not. Counters of signals that
    /// were refused do not grow.
    fn flushed(&mut self, rank: usize, to: usize) -> Result<(), String> {
        let Side { pending, arena, dropped, .. } = &mut self.sides[rank];
        for pending in pending.iter_mut().filter(|pending| pending.to == to) {
            if let Some((name, (buffer, length))) = pending.get.take().zip(pending.buffer) {
                let start = self.shape.buffer(buffer).start;
                let bytes = arena.bytes(&(start..start + length));
                self.oracle.get_end(name, bytes).map_err(|error| format!("flush: {error}"))?;
            }
            if pending.signal.is_some()
                && self.oracle.is_freed(pending.window, to)
                && let Some((id, value)) = pending.counter.take()
            {
                dropped.push((pending.window, id, value));
            }
        }
        Ok(())
    }

    fn barriers_look(&mut self, rank: usize) -> Result<(), String> {
        for (window, id) in core::mem::take(&mut self.sides[rank].waiting) {
            let handle = self.sides[rank].windows[window].expect("open");
            match self.sides[rank].group.barrier_look(handle, id as u16) {
                Ok(Flushed::Done) => {
                    self.tally.barriers += 1;
                    self.oracle.pass(rank, window, id, &mut self.sides[rank].arena)?;
                }
                Ok(Flushed::Waiting(_)) => self.sides[rank].waiting.push((window, id)),
                Err(error) => drop(self.refused(rank, error)?),
            }
        }
        Ok(())
    }

    /// The next window of a rank: registered, and its exchange begun.
    pub fn window_new(&mut self, rank: usize) -> Result<(), String> {
        let Side { places, .. } = &self.sides[rank];
        let Some(place) = places.iter().position(Option::is_none) else { return Ok(()) };
        let length = match self.random.below(8) {
            0 => 0,
            _ => 1 + self.random.below(self.shape.window_bytes_max as u64) as usize,
        };
        let seed = self.random.next();
        let side = &mut self.sides[rank];
        let start = self.shape.window(place).start + GUARD_BYTES;
        let part = start..start + length;
        let content = pattern(seed, length);
        side.arena.bytes(&part).copy_from_slice(&content);
        let end = side.arena.span(&part).address() + length as u64;
        let words = (length != 0).then(|| length + (end.next_multiple_of(8) - end) as usize);
        let part = Part::new(part, words, content);
        if let Some(words) = part.words_place() {
            side.arena.bytes(&words).fill(0);
        }
        let whole = part.whole();
        let bytes = side.arena.span(&whole);
        let memory = WindowMemory {
            region: side.window_regions[place],
            address: bytes.address(),
            length: bytes.length(),
            is_device: false,
            is_read_only: false,
            bytes,
        };
        let handle = match side.group.register(memory) {
            Ok(handle) => handle,
            Err(error) => return Err(format!("register: {error}")),
        };
        if let Err(error) = side.group.exchange_begin(handle) {
            side.group.free(handle).map_err(|error| format!("free: {error}"))?;
            side.arena.give_back(&whole);
            return self.refused(rank, error).map(drop);
        }
        let window = side.windows.len();
        side.windows.push(Some(handle));
        side.places[place] = Some(window);
        if self.oracle.windows.len() == window {
            self.oracle.windows.push([None, None]);
        }
        self.oracle.windows[window][rank] = Some(part);
        self.tally.windows += 1;
        Ok(())
    }

    /// A rank gives up a window.
    pub fn window_free(&mut self, rank: usize, window: usize) -> Result<(), String> {
        let Some(handle) = self.sides[rank].windows[window] else { return Ok(()) };
        match self.sides[rank].group.free(handle) {
            Ok(()) => {}
            Err(WindowError::Again) => {
                self.tally.frees_waited += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("free: {error}")),
        }
        let side = &mut self.sides[rank];
        side.windows[window] = None;
        let place = side.places.iter().position(|of| *of == Some(window)).expect("a place");
        side.places[place] = None;
        side.waiting.retain(|(of, _)| *of != window);
        // its counters are gone, whatever is added to them
        for pending in side.pending.iter_mut().filter(|pending| pending.window == window) {
            pending.counter = None;
        }
        self.oracle.free(rank, window, &mut side.arena)?;
        side.arena.give_back(&self.oracle.part(window, rank).whole());
        Ok(())
    }

    /// Memory that nobody may touch: guards, windows and buffers that were given back.
    pub fn idle_check(&mut self) -> Result<(), String> {
        for rank in 0..2 {
            for place in 0..WINDOWS {
                let whole = self.shape.window(place);
                let used = match self.sides[rank].places[place] {
                    Some(window) => self.oracle.part(window, rank).whole(),
                    None => whole.start..whole.start,
                };
                let arena = &mut self.sides[rank].arena;
                let (front, rest) = (whole.start..used.start, used.end..whole.end);
                if !arena.is_untouched(&front) || !arena.is_untouched(&rest) {
                    return Err(format!("rank {rank}: memory outside its windows was touched"));
                }
            }
            for buffer in self.sides[rank].buffers.clone() {
                if !self.sides[rank].arena.is_untouched(&self.shape.buffer(buffer)) {
                    return Err(format!("rank {rank}: a buffer that was free was touched"));
                }
            }
            for window in 0..self.oracle.windows.len() {
                self.oracle.part_check(rank, window, &mut self.sides[rank].arena)?;
            }
        }
        Ok(())
    }

    /// A rank's buffer for an operation.
    pub fn local(&mut self, rank: usize, buffer: usize, length: usize) -> Local {
        let start = self.shape.buffer(buffer).start;
        let side = &mut self.sides[rank];
        let bytes = side.arena.span(&(start..start + length));
        let (region, address) = (side.buffers_region, bytes.address());
        Local { region, address, length: length as u64, bytes }
    }

    /// A rank puts bytes. Whether it was accepted.
    pub fn put(
        &mut self,
        rank: usize,
        put: &Put,
        bytes: Bytes,
        fence: bool,
    ) -> Result<bool, String> {
        let (to, window) = (put.rank as usize, self.window_of(rank, put.window));
        let Some(buffer) = self.sides[rank].buffers.pop() else { return Ok(false) };
        let length = bytes.bytes().len();
        let local = self.local(rank, buffer, length);
        let start = self.shape.buffer(buffer).start;
        self.sides[rank].arena.bytes(&(start..start + length)).copy_from_slice(bytes.bytes());
        if fence {
            self.fence(rank, to)?;
        }
        let (group, ports) = self.parts(rank);
        let ticket = match group.put(&ports, put, &local) {
            Ok(ticket) => ticket,
            Err(error) => {
                self.sides[rank].arena.give_back(&(start..start + length));
                self.sides[rank].buffers.push(buffer);
                return self.refused(rank, error).map(|_| false);
            }
        };
        let signal = put.signal.map(|(id, value)| (usize::from(id), value));
        let number = self.oracle.issue((rank, to), window, Some(bytes), signal, false);
        self.sides[rank].keep_last(to, ticket, number);
        self.tally.puts += 1;
        self.tally.puts_apart += u64::from(length > crosstie::wire::one_sided::INLINE_BYTES_MAX);
        self.sides[rank].pending.push(Pending {
            to,
            window,
            ticket,
            buffer: Some((buffer, length)),
            get: None,
            counter: put.counter.map(|(id, value)| (usize::from(id), value)),
            signal: None,
        });
        Ok(true)
    }

    pub fn fence(&mut self, rank: usize, to: usize) -> Result<(), String> {
        match self.sides[rank].group.fence(to as u32) {
            Ok(()) => self.oracle.fence((rank, to)),
            Err(error) => drop(self.refused(rank, error)?),
        }
        Ok(())
    }

    /// The number of a rank's window.
    fn window_of(&self, rank: usize, handle: Handle) -> usize {
        let windows = &self.sides[rank].windows;
        windows.iter().position(|window| *window == Some(handle)).expect("a window")
    }

    /// Lanes die and come back; now and then right after a signal was added, before the peer that
    /// issued it can know.
    pub fn lanes_step(&mut self, fabric: &SimFabric<'m>) -> Result<(), String> {
        let strikes = core::mem::take(&mut self.was_added) && self.random.below(4) == 0;
        if self.lanes[0].count == 1 {
            return Ok(());
        }
        let failed = self.has_failed();
        lanes::release(&mut self.ends, &mut self.lanes)?;
        for lanes in &mut self.lanes {
            lanes.step(&mut self.ends, fabric, (&mut self.random, self.now), failed)?;
        }
        if strikes && self.lanes[0].careful {
            let lanes = &mut self.lanes[self.random.below(2) as usize];
            if lanes.kills < lanes::KILLS_MAX
                && lanes.kill(&self.ends, fabric, (&mut self.random, self.now))
            {
                self.tally.strikes += 1;
            }
        }
        Ok(())
    }
}
