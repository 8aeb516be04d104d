//! The provider: its storage, its peers, and [`Provider`] on top of them.

use super::board::{Board, HeapSpan};
use super::copiers::{Copiers, PART_BYTES_MAX};
use super::domain::ShmDomain;
use super::held::words_for;
use super::ops::{Entry, Kind, Ops, Outcome, Tools};
use super::peer::{PIPELINE_BYTES_MIN, Peer, PeerSetup, State};
use super::pull::Pulled;
use super::push::write_line;
use super::record::{LINE, lines_for};
use super::ring::RingWriter;
use super::rota::Rota;
use super::waiting::Waiting;
use super::word::{FULL, fence};
use crate::base::carve::{BlockTooSmall, Carver, Zeroable, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::pool::Pool;
use crate::base::regions::{RegionSlot, RegionTable};
use crate::base::sync::{AtomicU32, AtomicU64};
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Head, LINE_BYTES, LocalSpan, MemoryDomain,
    Op, OpKind, PeerLife, PostError, Posted, Provider, RailKey, RecvSlot, RemoteSpan, Source,
    Syscalls,
};
use crate::memory::{Errno, wake};
use crate::provider::events::Events;
use crate::provider::notes::{self, NOTE_KEY, Note, Notes};

/// Capacities of one [`Shm`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Peers open at a time.
    pub peers_max: u32,
    /// Regions registered at a time.
    pub regions_max: u32,
    /// Ops accepted and not reported at a time, all peers together. Sends and writes of lines are
    /// done when they are posted and count only when they failed.
    pub ops_max: u32,
    /// The longest send ring that a peer may be opened with; a power of two.
    pub send_ring_bytes: u32,
    /// Longest payload of a send; a message also takes at most a quarter of the peer's ring.
    pub send_payload_max: u32,
}

impl Limits {
    /// Messages of the longest kind from one peer that may be held at a time: the ring without
    /// the lines that stay clear and those that padding may waste.
    pub const fn recv_slots(&self) -> u32 {
        let lines = self.send_ring_bytes / LINE as u32;
        let each = lines_for(self.send_payload_max as usize);
        (lines - 2 - (each - 1)) / each
    }

    const fn held_words(&self) -> usize {
        words_for(self.send_ring_bytes / LINE as u32)
    }
}

/// What [`Shm::open`] carves out of its block.
pub const fn bytes(limits: &Limits) -> usize {
    bytes_for::<Peer>(limits.peers_max as usize)
        + bytes_for::<u32>(limits.peers_max as usize)
        + bytes_for::<u64>(limits.peers_max as usize * limits.held_words())
        + bytes_for::<Entry>(limits.ops_max as usize)
        + bytes_for::<RegionSlot>(limits.regions_max as usize)
        + bytes_for::<AtomicU32>(limits.regions_max as usize)
        + bytes_for::<AtomicU64>(1)
}

/// What the rail keeps, and the sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 2] =
    [("shm peer", size_of::<Peer>()), ("shm op", size_of::<Entry>())];

// SAFETY: integers and enums in which zero is a value; nothing is owned.
unsafe impl Zeroable for Entry {}

/// Why a peer could not be opened. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// The index is beyond the limits, or open.
    Index,
    /// The rings' sizes are no powers of two, or beyond the limits.
    Sizes,
}

/// The shared-memory rail of one endpoint.
#[derive(Debug)]
pub struct Shm<'m> {
    peers: &'m mut [Peer],
    rota: Rota<'m>,
    waiting: Waiting,
    held: &'m mut [u64],
    /// Words of `held` that each peer has.
    held_words: usize,
    tools: Tools<'m>,
    domain: ShmDomain<'m>,
    limits: Limits,
    /// Threads to be started with the first peer that has long rings.
    copiers_wanted: u32,
    /// What kept them from starting.
    copiers_refused: Option<Errno>,
}

// SAFETY: the raw pointers of its peers lead to shared memory that one side's one owner may touch
// (`peer_open`); which thread that is may change as it does for the rest of the object.
unsafe impl Send for Shm<'_> {}

impl<'m> Shm<'m> {
    /// Takes its storage: exactly [`bytes`] of the block. With `heap`, the board is laid at the
    /// heap's start, and peers may pull without our help.
    ///
    /// *Panics* when the limits contradict each other.
    ///
    /// # Safety
    /// - the first [`super::board_bytes`] bytes of `heap` are allocated, zeroed or not, and used
    ///   for nothing else; the heap stays mapped for as long as the provider or a copy of its
    ///   domain is used.
    pub unsafe fn open(
        carver: &mut Carver<'m>,
        limits: &Limits,
        heap: Option<HeapSpan>,
    ) -> Result<Shm<'m>, BlockTooSmall> {
        let ring_lines = limits.send_ring_bytes / LINE as u32;
        assert!(limits.send_ring_bytes.is_power_of_two());
        let lines = lines_for(limits.send_payload_max as usize);
        assert!(lines <= RingWriter::record_lines_max(ring_lines));
        let peers_max = limits.peers_max as usize;
        let peers = carver.slice::<Peer>(peers_max)?;
        let rota = Rota::new(carver.slice::<u32>(peers_max)?);
        let held = carver.slice::<u64>(peers_max * limits.held_words())?;
        let ops = Ops::new(carver.slice::<Entry>(limits.ops_max as usize)?);
        let slots = carver.slice::<RegionSlot>(limits.regions_max as usize)?;
        let next = carver.slice::<AtomicU32>(limits.regions_max as usize)?;
        let regions = RegionTable::new(slots, Pool::new(carver.value::<AtomicU64>()?, next));
        // SAFETY: the heap's head is ours by this function's contract.
        let board = unsafe { Board::create(heap, limits.regions_max) };
        let domain = ShmDomain { regions, board, has_gpus: false };
        let held_words = limits.held_words();
        let tools = Tools { ops, regions, copiers: None, notes: Notes::refused() };
        Ok(Shm {
            peers,
            rota,
            waiting: Waiting::NEW,
            held,
            held_words,
            tools,
            domain,
            limits: *limits,
            copiers_wanted: 0,
            copiers_refused: None,
        })
    }

    /// Has so many threads, at most [`super::THREADS_MAX`], copy what is long to and from peers
    /// whose write rings are long too. They start with the first such peer; where the system
    /// refuses them, the data thread copies alone, and [`Shm::copy_threads_refused`] says why.
    ///
    /// # Safety
    /// - memory that is registered, and rings, go after the provider, or after the peer was closed.
    pub unsafe fn copy_threads(&mut self, count: u32) {
        self.copiers_wanted = count;
    }

    /// What kept the copy threads from starting; told once.
    pub fn copy_threads_refused(&mut self) -> Option<Errno> {
        self.copiers_refused.take()
    }

    /// How many parts threads were given so far.
    pub fn parts_aside(&self) -> u64 {
        self.tools.copiers.as_ref().map_or(0, Copiers::given)
    }

    /// Whether copies that threads make have not been taken note of yet.
    fn is_copying(&self) -> bool {
        let open = self.rota.all().iter();
        let copiers = self.tools.copiers.as_ref();
        copiers.is_some_and(|all| open.copied().any(|peer| !all.none_taken(PeerIndex(peer))))
    }

    /// Opens a connection. Neither side waits for the other.
    ///
    /// # Safety
    /// - `setup.rings` is valid for reads and writes, `setup.peer_rings` for reads, of
    ///   [`super::rings_bytes`] bytes until the peer was closed; both are aligned to a line;
    /// - these were zeroed before either side opened them, and are used by one pair of sides once;
    /// - the other side is given the same two, the other way round;
    /// - `setup.heap` stays mapped until the peer was closed; the peer's provider was opened on it
    ///   before, or its board is not found and everything is pulled through the ring;
    /// - `setup.kernel_copy_pid` is the peer's process, and `setup.doorbell` an eventfd, until
    ///   then.
    pub unsafe fn peer_open(
        &mut self,
        peer: PeerIndex,
        setup: &PeerSetup,
    ) -> Result<(), OpenError> {
        let sizes = setup.sizes;
        let fits = sizes.is_valid() && sizes.send_bytes <= self.limits.send_ring_bytes;
        if !fits {
            return Err(OpenError::Sizes);
        }
        let words = self.held_words;
        let slot = self.peers.get_mut(peer.as_usize()).ok_or(OpenError::Index)?;
        if slot.state != State::Closed {
            return Err(OpenError::Index);
        }
        if self.copiers_wanted > 0 && sizes.write_bytes >= PIPELINE_BYTES_MIN {
            let wanted = core::mem::take(&mut self.copiers_wanted);
            match Copiers::start(wanted, self.limits.peers_max as usize) {
                Ok(copiers) => self.tools.copiers = Some(copiers),
                // they are for speed alone
                Err(errno) => self.copiers_refused = Some(errno),
            }
        }
        *slot = Peer::closed();
        self.held[peer.as_usize() * words..][..words].fill(0);
        // SAFETY: as this function's contract says.
        unsafe { slot.open(peer, setup) };
        self.rota.insert(peer.0);
        Ok(())
    }

    /// Whether no peer is open.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.rota.all().is_empty()
    }

    /// Prepares to sleep until the doorbell rings. `false`: something came meanwhile, or is left to
    /// do; poll instead. After sleeping, call [`Shm::disarm`].
    ///
    /// *Cost*: a walk over all open peers, and a process-wide barrier.
    pub fn arm(&mut self) -> bool {
        if self.is_copying() {
            return false;
        }
        let (mut barrier, mut full) = (false, false);
        for index in self.rota.all() {
            let peer = &mut self.peers[*index as usize];
            peer.before_sleep();
            peer.sides.set_armed(true);
            full |= peer.sides.use_fence;
            barrier |= !peer.sides.use_fence;
        }
        if full {
            // [armed]: our flags before our look at the rings
            fence(FULL);
        }
        let ordered = !barrier || wake::barrier().is_ok();
        let mut open = self.rota.all().iter().map(|index| &self.peers[*index as usize]);
        if ordered && self.tools.ops.none_done() && !open.any(|peer| peer.must_stay_awake()) {
            return true;
        }
        self.disarm();
        false
    }

    /// Says that nobody need ring any more.
    pub fn disarm(&mut self) {
        for index in self.rota.all() {
            self.peers[*index as usize].sides.set_armed(false);
        }
    }

    /// Takes notes from now on; a peer that sends one before has broken the format.
    pub fn notes_accept(&mut self) {
        self.tools.notes = Notes::accepted(0);
    }

    /// Tells something to the other end of a rail beside this one. `false`: there is no room now,
    /// or the peer is down.
    pub fn note_send(&mut self, peer: PeerIndex, note: &Note) -> bool {
        let open = self.peers.get_mut(peer.as_usize()).filter(|peer| peer.takes_ops());
        let target = RemoteSpan { key: NOTE_KEY, address: 0 };
        let line = notes::line_of(note);
        open.is_some_and(|peer| write_line(&mut peer.sides, &line, target, None).is_ok())
    }

    /// Whether notes have come.
    #[inline(always)]
    pub fn has_notes(&self) -> bool {
        !self.tools.notes.is_empty()
    }

    /// The oldest note that came, and from whom.
    #[inline]
    pub fn note_take(&mut self) -> Option<(PeerIndex, Note)> {
        self.tools.notes.take()
    }

    /// How the reads from an open peer were carried out so far.
    pub fn pulled(&self, peer: PeerIndex) -> Option<Pulled> {
        self.opened(peer).map(|peer| peer.pulls.pulled)
    }

    /// Accepts an op that ends later, with `outcome` at once when there is one.
    fn accept(&mut self, entry: Entry, outcome: Option<Outcome>) -> Result<Posted, PostError> {
        if self.tools.ops.is_full() && entry.kind != Kind::Fence {
            return Err(PostError::Again);
        }
        let index = self.tools.ops.acquire(entry).ok_or(PostError::Again)?;
        let peer = &mut self.peers[entry.peer.as_usize()];
        peer.in_flight += 1;
        match (outcome, entry.kind) {
            (Some(outcome), _) => self.tools.quiet(0).finish(index, outcome, 0),
            (None, Kind::Write | Kind::Add) => {
                let first = peer.pushes.queued.is_empty();
                self.tools.ops.append(&mut peer.pushes.queued, index);
                if first {
                    let mut work = self.tools.quiet(u64::from(peer.sides.chunk_bytes));
                    peer.pushes.push(&mut peer.sides, &mut work);
                }
            }
            (None, Kind::Read) => self.tools.ops.append(&mut peer.pulls.queued, index),
            (None, Kind::Fence) => unreachable!("a fence ends at once"),
        }
        Ok(Posted::Pending)
    }

    /// Pins a span's region in `entry`. An op on a span outside of its region ends with `Key`.
    fn pin(&self, entry: &mut Entry) -> Option<Outcome> {
        if entry.local.length() == Bytes::ZERO {
            return None; // no bytes lie in no region
        }
        entry.pinned = self.domain.pin(entry.local).is_some();
        (!entry.pinned).then_some(Outcome::Key)
    }

    /// Accepts a transfer between our memory and the peer's.
    fn accept_span(&mut self, mut entry: Entry, refused: bool) -> Result<Posted, PostError> {
        if entry.local.length().0 > TRANSFER_MAX {
            return Err(PostError::Unsupported);
        }
        if self.tools.ops.is_full() {
            return Err(PostError::Again);
        }
        let outcome = if refused { Some(Outcome::Key) } else { self.pin(&mut entry) };
        self.accept(entry, outcome)
    }

    fn post_write(&mut self, op: &Op) -> Result<Posted, PostError> {
        let OpKind::Write { source, target, immediate } = &op.kind else {
            unreachable!("called for writes")
        };
        let peer = &mut self.peers[op.peer.as_usize()];
        let span = match source {
            Source::Line(line) if !peer.sides.board.refuses(*target, LINE_BYTES as u64) => {
                write_line(&mut peer.sides, line, *target, *immediate)?;
                return Ok(Posted::Done);
            }
            Source::Line(_) => LocalSpan::EMPTY,
            Source::Span(span) => *span,
        };
        let refused =
            matches!(source, Source::Line(_)) || peer.sides.board.refuses(*target, span.length().0);
        let mut entry = Entry::new(Kind::Write, op.id, op.peer, span, *target);
        entry.immediate = immediate.unwrap_or(0);
        entry.has_immediate = immediate.is_some();
        self.accept_span(entry, refused)
    }

    fn post_add(&mut self, op: &Op, at: RemoteSpan, value: u64) -> Result<Posted, PostError> {
        if !at.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        let refused = self.peers[op.peer.as_usize()].sides.board.refuses(at, 8);
        let mut entry = Entry::new(Kind::Add, op.id, op.peer, LocalSpan::EMPTY, at);
        entry.value = value;
        self.accept(entry, refused.then_some(Outcome::Key))
    }

    fn post_fence(&mut self, op: &Op, generation: u64) -> Result<Posted, PostError> {
        if self.tools.ops.is_full_of_fences() {
            return Err(PostError::Again);
        }
        self.peers[op.peer.as_usize()].fence(&mut self.tools.quiet(0));
        let nowhere = RemoteSpan { key: RailKey(0), address: 0 };
        let mut entry = Entry::new(Kind::Fence, op.id, op.peer, LocalSpan::EMPTY, nowhere);
        entry.value = generation;
        self.accept(entry, Some(Outcome::Success))
    }

    #[cold]
    fn report_done(&mut self, out: &mut Events) {
        while out.has_room() {
            let Some(entry) = self.tools.ops.take_done() else { break };
            self.peers[entry.peer.as_usize()].in_flight -= 1;
            out.push(entry.completion());
        }
    }

    fn opened(&self, peer: PeerIndex) -> Option<&Peer> {
        self.peers.get(peer.as_usize()).filter(|peer| peer.state != State::Closed)
    }

    fn held_of(&self, peer: PeerIndex) -> &[u64] {
        let words = self.held_words;
        &self.held[peer.as_usize() * words..][..words]
    }
}

/// More than any buffer, and less than what offsets could wrap with.
const TRANSFER_MAX: u64 = 1 << 46;

impl<'m> MemoryDomain for Shm<'m> {
    type Domain = ShmDomain<'m>;

    fn domain(&self) -> ShmDomain<'m> {
        self.domain
    }
}

impl<'m> Provider for Shm<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        Caps {
            send_payload_max: Bytes(u64::from(self.limits.send_payload_max)),
            recv_slots: self.limits.recv_slots(),
            transfer_max: Bytes(TRANSFER_MAX),
            pull: true,
            immediate: true,
            // Sends overtake writes and the other way round, lines overtake spans.
            ordered: false,
            copies_at_post: true,
            atomic_bytes: 8,
            copy_granule: Bytes(PART_BYTES_MAX as u64),
            fence: FenceKind::Local,
            bad_key_breaks: false,
            syscalls: Syscalls::PerCopy,
        }
    }

    #[inline]
    fn post(&mut self, op: &Op, _now: Instant) -> Result<Posted, PostError> {
        let peer = self.peers.get_mut(op.peer.as_usize()).ok_or(PostError::PeerDown)?;
        if !peer.takes_ops() {
            return match op.kind {
                OpKind::Fence { generation } if peer.state != State::Closed => {
                    self.post_fence(op, generation.0.into())
                }
                _ => Err(PostError::PeerDown),
            };
        }
        match &op.kind {
            OpKind::Send { head, payload } => {
                send(peer, self.limits.send_payload_max, head, *payload)
            }
            OpKind::Write { .. } => self.post_write(op),
            OpKind::Read { target, source } => {
                self.accept_span(Entry::new(Kind::Read, op.id, op.peer, *target, *source), false)
            }
            OpKind::Add { target, value } => self.post_add(op, *target, *value),
            OpKind::Fence { generation } => self.post_fence(op, generation.0.into()),
        }
    }

    #[inline(always)]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        match self.peers.get_mut(peer.as_usize()) {
            Some(peer) if peer.takes_ops() => {
                send(peer, self.limits.send_payload_max, head, payload).is_ok()
            }
            _ => false,
        }
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, _now: Instant) -> usize {
        let mut out = Events { slots: out, used: 0 };
        if !self.tools.ops.none_done() {
            self.report_done(&mut out);
        }
        let words = self.held_words;
        let mut work = self.tools.work(out, budget.0);
        let turns = self.rota.turns();
        let (mut turn, mut moved, mut spent) = (0, false, None);
        while turn < turns && work.out.has_room() {
            let (place, index) = self.rota.at(turn);
            let peer = &mut self.peers[index as usize];
            let held = &mut self.held[index as usize * words..][..words];
            if peer.poll(&mut work, held) {
                self.rota.busy(place);
                moved = true;
            }
            turn += 1;
            if work.budget == 0 {
                // those behind it have got nothing: the next poll begins with them
                spent = spent.or(Some(turn));
            }
        }
        self.rota.end(spent.unwrap_or(turn));
        let mut out = work.out;
        if !self.tools.ops.none_done() {
            self.report_done(&mut out);
        }
        if moved || out.used != 0 {
            self.waiting.found();
        } else if turns != 0 {
            self.waiting.nothing();
        }
        out.used
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let (body, length) = self.peers[peer.as_usize()].body(slot, self.held_of(peer));
        let wanted = to.length().0;
        assert!(offset <= length as u64 && wanted <= length as u64 - offset);
        // SAFETY: inside the held body (checked above); the target's maker vouches for it.
        unsafe {
            let from = body.add(offset as usize);
            from.copy_to_nonoverlapping(to.address() as *mut u8, wanted as usize);
        }
    }

    #[inline]
    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let (body, length) = self.peers[peer.as_usize()].body(slot, self.held_of(peer));
        assert!(to.len() <= length);
        // SAFETY: inside the held body (checked above).
        unsafe { body.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        let words = self.held_words;
        let held = &mut self.held[peer.as_usize() * words..][..words];
        self.peers[peer.as_usize()].release(slot, held);
    }
}

impl<'m> PeerLife for Shm<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if self.opened(peer).is_some() {
            self.peers[peer.as_usize()].begin_down(cause);
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let open = self.opened(peer).ok_or(CloseError::Stale)?;
        if open.in_flight != 0 {
            return Err(CloseError::Busy);
        }
        let slot = &mut self.peers[peer.as_usize()];
        slot.close(&mut self.tools.quiet(0));
        *slot = Peer::closed();
        self.rota.remove(peer.0);
        Ok(())
    }
}

#[inline(always)]
fn send(
    peer: &mut Peer,
    payload_max: u32,
    head: &Head,
    payload: LocalSpan,
) -> Result<Posted, PostError> {
    if payload.length().0 > u64::from(payload_max.min(peer.payload_max())) {
        return Err(PostError::Unsupported);
    }
    peer.send(head, payload).map(|()| Posted::Done)
}
