//! The engine: takes ops and notes, moves copies on, and reports what has ended.

use super::chunks::{lent_to, piece_of};
use super::fetch::{Fetch, Origin, Stage, Work};
use super::keys::{gpu_of, handle_of, is_device};
use super::lanes::{CELL_BYTES, Use};
use super::lends::Lends;
use super::note::{BAD_KEY, Pull, Word};
use super::peers::Link;
use super::shared::Shared;
use super::under::Under;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::regions::RegionTable;
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{Completion, DownCause, LocalSpan, OpId, PostError, Posted, RemoteSpan};
use crate::provider::events::Events;
use crate::provider::notes::Note;
use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Vec;

/// Copies under way at a time, all peers together.
const FETCHES: usize = 512;
/// Of these, most that wait for one peer to make them.
const WRITES_MAX: u32 = 32;

/// How often the driver is asked whether a GPU has failed, while something is under way there: what
/// is posted to one that has failed never ends.
const FAULT_EVERY: Span = Span::millis(10);

/// How many bytes came to memory of this process, by the way they took.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(C)]
pub struct Copied {
    /// From GPU to GPU by a copy engine.
    pub engine_bytes: u64,
    /// From or to a GPU through pinned memory of the host.
    pub staged_bytes: u64,
}

/// The data thread's part.
#[derive(Debug)]
pub struct CopyEngine<'m> {
    shared: Arc<Shared>,
    regions: RegionTable<'m>,
    links: Vec<Link>,
    fetches: Vec<Fetch>,
    /// Numbers of records that are free, and of those that are in use, oldest first.
    free: Vec<u16>,
    used: Vec<u16>,
    /// Copies that peers have asked for and that have no record yet.
    asked: VecDeque<(PeerIndex, Pull)>,
    lends: Lends,
    /// Peers to which something is owed.
    owing: Vec<u32>,
    /// Nothing moves until a stream does, or a note or an op comes.
    rests: bool,
    /// When the driver was asked last whether a GPU has failed.
    asked_at: Instant,
    copied: Copied,
}

impl<'m> CopyEngine<'m> {
    /// For so many peers, whose regions stand in `regions`.
    pub fn new(shared: Arc<Shared>, regions: RegionTable<'m>, peers_max: u32) -> CopyEngine<'m> {
        let count = peers_max as usize;
        CopyEngine {
            shared,
            regions,
            // what follows becomes memory with use
            links: Vec::with_capacity(count),
            fetches: Vec::with_capacity(FETCHES),
            free: Vec::with_capacity(FETCHES),
            used: Vec::with_capacity(FETCHES),
            asked: VecDeque::with_capacity(count * WRITES_MAX as usize),
            lends: Lends::new(count),
            owing: Vec::with_capacity(count),
            rests: false,
            asked_at: Instant(0),
            copied: Copied::default(),
        }
    }

    /// How many bytes came, and how.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Whether nothing is under way.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.used.is_empty()
            && self.owing.is_empty()
            && self.asked.is_empty()
            && self.lends.is_empty()
    }

    /// What this side has under way with a peer.
    pub fn in_flight(&self, peer: PeerIndex) -> u32 {
        self.links.get(peer.as_usize()).map_or(0, |link| link.in_flight)
    }

    /// Whether a peer is open.
    pub fn has(&self, peer: PeerIndex) -> bool {
        self.links.get(peer.as_usize()).is_some_and(|link| link.is_open)
    }

    /// A peer was opened that has a copy engine, too. It may have been detached before: messages
    /// that it has sent are still copied.
    pub fn peer_open(&mut self, peer: PeerIndex) {
        let link = self.link_ready(peer);
        let Link { in_flight, asked, turns, lends, .. } = *link;
        *link = Link { in_flight, asked, turns, lends, ..Link::OPEN };
    }

    fn link_ready(&mut self, peer: PeerIndex) -> &mut Link {
        if self.links.len() <= peer.as_usize() {
            self.links.resize(peer.as_usize() + 1, Link::CLOSED);
        }
        &mut self.links[peer.as_usize()]
    }

    /// It was closed, with nothing under way.
    pub fn peer_close(&mut self, peer: PeerIndex) {
        let Some(link) = self.links.get_mut(peer.as_usize()) else { return };
        *link = Link::CLOSED;
        self.asked.retain(|(of, _)| *of != peer);
        self.owing.retain(|of| *of != peer.0);
    }

    /// Reads the peer's memory.
    pub fn read(
        &mut self,
        (id, peer): (OpId, PeerIndex),
        target: LocalSpan,
        source: RemoteSpan,
    ) -> Result<Posted, PostError> {
        self.begin(peer, Origin::Read(id), source, target)
    }

    /// Writes into the peer's memory: the peer is asked to copy.
    pub fn write(
        &mut self,
        under: &mut dyn Under,
        (id, peer, now): (OpId, PeerIndex, Instant),
        source: LocalSpan,
        (target, immediate): (RemoteSpan, Option<u32>),
    ) -> Result<Posted, PostError> {
        let link = &self.links[peer.as_usize()];
        if !link.takes_ops() {
            return Err(PostError::PeerDown);
        }
        if link.writes >= WRITES_MAX || self.used.len() > FETCHES / 4 * 3 {
            return Err(PostError::Again);
        }
        self.record_ready();
        let Some(region) = self.pin(source) else {
            self.links[peer.as_usize()].writes += 1;
            return self.refuse(peer, Origin::Write(id));
        };
        let number = self.free[self.free.len() - 1];
        let serial = self.fetches[usize::from(number)].serial_next(number);
        let spot = RemoteSpan { key: source.key(), address: source.address() };
        let pull = Pull { serial, immediate, source: spot, length: source.length().0, target };
        if !under.note_send(peer, &Word::Pull(pull).encode(), now) {
            self.unpin(region);
            return Err(PostError::Again);
        }
        let fetch = self.take(peer, Origin::Write(id));
        (fetch.serial, fetch.region, fetch.stage) = (serial, region, Stage::Asked);
        self.links[peer.as_usize()].writes += 1;
        Ok(Posted::Pending)
    }

    /// Copies a message out of its slot, whose bytes `copy` puts where it is told, into a GPU. The
    /// peer may be one that was not opened here, because it is on a port.
    pub fn received(
        &mut self,
        (id, peer): (OpId, PeerIndex),
        target: LocalSpan,
        copy: impl FnOnce(LocalSpan),
    ) -> Result<Posted, PostError> {
        let length = target.length().0;
        if length > CELL_BYTES as u64 {
            return Err(PostError::Unsupported);
        }
        if !self.record_ready() {
            return Err(PostError::Again);
        }
        self.link_ready(peer);
        let Some((gpu, region)) = gpu_of(self.regions, target.key()).zip(self.pin(target)) else {
            return self.refuse(peer, Origin::Received(id));
        };
        let shared = Arc::clone(&self.shared);
        let cell = shared.lanes(gpu).and_then(|mut lanes| {
            let cell = lanes.cell_take(Use::Fetch)?;
            // SAFETY: the cell was just taken, and is filled within its bounds.
            copy(unsafe { lanes.span(cell, length) });
            Some(cell)
        });
        let Some(cell) = cell else {
            self.unpin(region);
            return Err(PostError::Again);
        };
        let fetch = self.take(peer, Origin::Received(id));
        (fetch.to, fetch.to_key, fetch.length) = (target.address(), target.key(), length);
        (fetch.gpu, fetch.region, fetch.stage) = (gpu, region, Stage::Staged);
        fetch.chunks.fill_first(cell, length as u32);
        Ok(Posted::Pending)
    }

    /// An op of the rail below has ended; whether it was one of ours.
    #[inline]
    pub fn piece_read(&mut self, id: OpId, is_ok: bool) -> bool {
        let Some((number, place)) = piece_of(id) else { return false };
        self.fetches[usize::from(number)].chunks.read_ended(place, is_ok);
        self.rests = false;
        true
    }

    /// Holds the end of a peer back until what was under way has ended. `false`: there is nothing.
    #[inline]
    pub fn peer_down(&mut self, peer: PeerIndex, cause: DownCause) -> bool {
        let Some(link) = self.links.get_mut(peer.as_usize()) else { return false };
        link.is_down = true;
        self.rests = false;
        if link.in_flight == 0 {
            return false;
        }
        link.down = Some(cause);
        self.owe(peer);
        true
    }

    /// The rail below has taken a fence of a peer: nothing more begins, and what waits ends.
    pub fn fence(&mut self, peer: PeerIndex) {
        let Some(link) = self.links.get_mut(peer.as_usize()) else { return };
        link.is_fenced = true;
        self.rests = false;
        self.asked.retain(|(of, _)| *of != peer);
    }

    /// The fence holds below. `true`: a GPU copies, and it is reported when nothing is under way.
    pub fn fenced(&mut self, peer: PeerIndex, id: OpId, generation: RailGeneration) -> bool {
        let Some(link) = self.links.get_mut(peer.as_usize()) else { return false };
        if link.in_flight == 0 {
            return false;
        }
        link.fence = Some((id, generation));
        self.owe(peer);
        true
    }

    fn owe(&mut self, peer: PeerIndex) {
        if !self.owing.contains(&peer.0) {
            self.owing.push(peer.0);
        }
    }

    /// Begins a copy into our memory.
    fn begin(
        &mut self,
        peer: PeerIndex,
        origin: Origin,
        source: RemoteSpan,
        target: LocalSpan,
    ) -> Result<Posted, PostError> {
        if !self.links[peer.as_usize()].takes_ops() {
            return Err(PostError::PeerDown);
        }
        if !self.record_ready() {
            return Err(PostError::Again);
        }
        let gpu = match is_device(target.key()) {
            true => gpu_of(self.regions, target.key()),
            false => Some(self.shared.any_gpu()),
        };
        // from host to host is no copy of ours
        let is_ours = is_device(target.key()) || is_device(source.key);
        let pinned = gpu.filter(|_| is_ours).and_then(|gpu| Some((gpu, self.pin(target)?)));
        let Some((gpu, region)) = pinned else { return self.refuse(peer, origin) };
        let fetch = self.take(peer, origin);
        (fetch.source, fetch.to, fetch.length) = (source, target.address(), target.length().0);
        (fetch.to_key, fetch.region, fetch.gpu) = (target.key(), region, gpu);
        Ok(Posted::Pending)
    }

    /// Whether there is a record that is free; it is the last of its list then.
    fn record_ready(&mut self) -> bool {
        if self.free.is_empty() && self.fetches.len() < FETCHES {
            self.free.push(self.fetches.len() as u16);
            self.fetches.push(Fetch::FREE);
        }
        !self.free.is_empty()
    }

    /// Takes a record, which is there.
    fn take(&mut self, peer: PeerIndex, origin: Origin) -> &mut Fetch {
        let number = self.free.pop().expect("the caller has looked for one");
        self.used.push(number);
        self.links[peer.as_usize()].in_flight += 1;
        self.rests = false;
        let fetch = &mut self.fetches[usize::from(number)];
        fetch.begin(peer, origin);
        fetch
    }

    /// Accepts an op that ends with an error: a key names nothing. There is a record.
    fn refuse(&mut self, peer: PeerIndex, origin: Origin) -> Result<Posted, PostError> {
        self.take(peer, origin).stage = Stage::Ended(BAD_KEY);
        Ok(Posted::Pending)
    }

    /// Pins the region of a span of ours; its place in the table. No bytes need no region.
    fn pin(&self, span: LocalSpan) -> Option<Option<u32>> {
        if span.length() == Bytes(0) {
            return Some(None);
        }
        let handle = handle_of(span.key());
        self.regions.hold(handle, span.address(), span.length().0).map(|_| Some(handle.index))
    }

    fn unpin(&self, region: Option<u32>) {
        if let Some(region) = region {
            self.regions.pin(region, -1);
        }
    }

    /// Takes notes, moves everything on, and reports what has ended.
    pub fn poll(&mut self, under: &mut dyn Under, out: &mut Events<'_>, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let mut work = Work { shared: &shared, under, now };
        while let Some((peer, note)) = work.under.note_take() {
            self.rests = false;
            if !self.heard(peer, &note, &mut work) {
                work.under.fail(peer);
            }
        }
        if self.is_idle() {
            return;
        }
        if now.since(self.asked_at) >= FAULT_EVERY {
            self.asked_at = now;
            shared.look_for_faults();
            shared.look_for_overdue(now);
        }
        if !shared.has_moved() && self.rests {
            return;
        }
        self.asked_begin();
        let mut at = 0;
        while at < self.used.len() {
            let number = self.used[at];
            let fetch = &mut self.fetches[usize::from(number)];
            fetch.advance(number, &mut self.links[fetch.peer.as_usize()], &mut work);
            if self.report(number, out, &mut work) {
                self.used.remove(at);
                self.free.push(number);
            } else {
                at += 1;
            }
        }
        self.lends.advance(self.regions, &mut self.links, &mut work);
        shared.flush();
        let exporter = shared.exporter.get().copied();
        let links = &mut self.links;
        self.owing.retain(|peer| {
            let link = &mut links[*peer as usize];
            !link.pay(work.under, PeerIndex(*peer), exporter, (&mut *out, now))
        });
        let is_told = |number: &u16| self.fetches[usize::from(*number)].is_told();
        self.rests = self.used.iter().all(is_told)
            && self.owing.is_empty()
            && self.asked.is_empty()
            && self.lends.is_empty();
    }

    /// Gives records to copies that peers have asked for.
    fn asked_begin(&mut self) {
        while let Some(&(peer, pull)) = self.asked.front() {
            // SAFETY: `pin` finds out whether the range lies in a region, whose registrant has
            // vouched for it, or the op ends with an error.
            let target =
                unsafe { LocalSpan::new(pull.target.address, Bytes(pull.length), pull.target.key) };
            let origin = Origin::Asked { serial: pull.serial, immediate: pull.immediate };
            match self.begin(peer, origin, pull.source, target) {
                Err(PostError::Again) => return,
                Err(PostError::PeerDown | PostError::Unsupported) | Ok(_) => {
                    self.asked.pop_front();
                }
            }
        }
    }

    /// Takes in a note. `false`: it breaks the format.
    fn heard(&mut self, peer: PeerIndex, note: &Note, work: &mut Work<'_>) -> bool {
        let Some(link) = self.links.get_mut(peer.as_usize()) else { return true };
        if link.is_fenced || !link.is_open {
            return true;
        }
        match Word::decode(note) {
            Some(Word::Where) => {
                link.owes_answer = true;
                self.owe(peer);
                true
            }
            Some(Word::Here(exporter)) => {
                link.exporter = Some(exporter);
                true
            }
            Some(Word::Pull(pull)) => {
                let fits = link.asked < WRITES_MAX;
                if fits {
                    link.asked += 1;
                    self.asked.push_back((peer, pull));
                }
                fits
            }
            Some(Word::Pulled { serial, outcome }) => {
                let fetch = self.fetches.get_mut(usize::from(serial as u16));
                let fetch = fetch.filter(|it| it.peer == peer && it.awaits(serial));
                fetch.map(|fetch| fetch.stage = Stage::Ended(outcome)).is_some()
            }
            Some(Word::Lend { serial, source, length }) => {
                self.lends.ask(link, peer, serial, (source, length))
            }
            Some(Word::Lent { serial, outcome, place }) => {
                let (number, piece) = lent_to(serial);
                let fetch = self.fetches.get_mut(usize::from(number));
                let fetch = fetch.filter(|it| it.peer == peer);
                fetch.is_some_and(|fetch| fetch.chunks.lent(piece, outcome, place))
            }
            Some(Word::Free { serial }) => self.lends.free(link, peer, serial, work),
            None => false,
        }
    }

    /// Reports a copy that has ended; whether its record is free.
    fn report(&mut self, number: u16, out: &mut Events<'_>, work: &mut Work<'_>) -> bool {
        let fetch = &mut self.fetches[usize::from(number)];
        let (peer, Stage::Ended(outcome)) = (fetch.peer, fetch.stage) else { return false };
        if let Some(region) = fetch.region.take() {
            self.regions.pin(region, -1);
        }
        if let Some(import) = fetch.import.take() {
            work.shared.imports.release(import);
        }
        let link = &mut self.links[peer.as_usize()];
        match fetch.origin {
            Origin::Read(id) | Origin::Received(id) | Origin::Write(id) => {
                if !out.has_room() {
                    return false;
                }
                out.push(Completion::Done { peer, id, result: outcome });
            }
            Origin::Asked { serial, immediate } if link.takes_ops() => {
                let immediate = immediate.filter(|_| outcome.is_ok());
                let told = Word::Pulled { serial, outcome }.encode();
                if (immediate.is_some() && !out.has_room())
                    || !work.under.note_send(peer, &told, work.now)
                {
                    return false;
                }
                if let Some(immediate) = immediate {
                    out.push(Completion::Immediate { peer, immediate });
                }
            }
            Origin::Asked { .. } => {}
        }
        let is_write = matches!(fetch.origin, Origin::Write(_));
        link.asked -= u32::from(matches!(fetch.origin, Origin::Asked { .. }));
        link.turns -= u32::from(core::mem::take(&mut fetch.has_turn));
        if outcome.is_ok() && !is_write {
            match fetch.is_by_engine() {
                true => self.copied.engine_bytes += fetch.length,
                false => self.copied.staged_bytes += fetch.length,
            }
        }
        link.writes -= u32::from(is_write);
        link.in_flight -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::lends::LENDS_MAX;
    use super::*;
    use crate::base::pool::Pool;
    use crate::base::regions::RegionSlot;
    use crate::fabric::Op;
    use core::sync::atomic::{AtomicU32, AtomicU64};

    const PEER: PeerIndex = PeerIndex(0);

    /// A rail over which nothing goes but notes that stand in it.
    #[derive(Default)]
    struct Wire {
        notes: VecDeque<Note>,
        failed: bool,
    }

    impl Under for Wire {
        fn note_send(&mut self, _: PeerIndex, _: &Note, _: Instant) -> bool {
            true
        }

        fn note_take(&mut self) -> Option<(PeerIndex, Note)> {
            self.notes.pop_front().map(|note| (PEER, note))
        }

        fn post(&mut self, _: &Op, _: Instant) -> Result<Posted, PostError> {
            Err(PostError::Unsupported)
        }

        fn fail(&mut self, _: PeerIndex) {
            self.failed = true;
        }

        fn is_near(&self, _: PeerIndex) -> bool {
            true
        }
    }

    /// A peer that has sent a note so often; whether it has failed. Its end is told then.
    fn fails(word: Word, times: u32) -> bool {
        let (head, next) = (AtomicU64::new(0), [const { AtomicU32::new(0) }; 2]);
        let slots: [RegionSlot; 2] = Default::default();
        let regions = RegionTable::new(&slots, Pool::new(&head, &next));
        let mut engine = CopyEngine::new(Arc::new(Shared::new()), regions, 1);
        engine.peer_open(PEER);
        let mut wire = Wire::default();
        wire.notes.extend((0..times).map(|_| word.encode()));
        let poll = |engine: &mut CopyEngine<'_>, wire: &mut Wire| {
            let mut slots = [Completion::Immediate { peer: PEER, immediate: 0 }; 4];
            let mut out = Events { slots: &mut slots, used: 0 };
            engine.poll(wire, &mut out, Instant(1));
            out.used == 1 && matches!(slots[0], Completion::PeerDown { .. })
        };
        poll(&mut engine, &mut wire);
        let is_told = engine.peer_down(PEER, DownCause::Died);
        assert!(!is_told || (0..10).any(|_| poll(&mut engine, &mut wire)), "no end: {word:?}");
        assert_eq!(engine.in_flight(PEER), 0);
        wire.failed
    }

    #[test]
    fn peer_that_asks_for_too_much_at_once_fails_and_its_end_is_told() {
        let spot = RemoteSpan { key: crate::fabric::RailKey(0), address: 0 };
        let lend = Word::Lend { serial: 1, source: spot, length: 8 };
        let pull =
            Word::Pull(Pull { serial: 1, immediate: None, source: spot, length: 8, target: spot });
        let long = Word::Lend { serial: 1, source: spot, length: CELL_BYTES as u64 + 1 };
        assert!(!fails(lend, LENDS_MAX) && !fails(pull, WRITES_MAX));
        assert!(fails(lend, LENDS_MAX + 1) && fails(pull, WRITES_MAX + 1) && fails(long, 1));
    }
}
