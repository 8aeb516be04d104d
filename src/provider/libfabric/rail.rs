//! The rail: what it keeps, and how it is opened.

use super::address::socket_of;
use super::area::{Area, CELLS, SENDS};
use super::choice::offer::{self, Traits};
use super::domain::turns::Act;
use super::domain::{LibfabricDomain, Scope};
use super::flush::Flushing;
use super::peer::{Answer, KEYS, Part, Peer, Sent, State, Told};
use super::probe::Probes;
use super::report::{Complaint, Health};
use super::silence::Silence;
use super::sys::abi::{Context, CqEntry};
use super::sys::numbers as n;
use super::sys::{
    Code, Cq, Domain, Endpoint, EventQueue, Fabric, Info, Library, Registration, Vector,
};
use super::watch::Watch;
use super::{Config, Hello, Limits, OpenError, PAYLOAD_BYTES_MAX, PEERS_MAX, REGIONS_MAX, Step};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::OpId;
use crate::provider::asides::Aside;
use crate::provider::fifo::Fifo;
use crate::provider::ops::Ops;
pub(super) use crate::wire::shared_end::NAME_BYTES_MAX;
use core::ffi::CStr;
use core::fmt;
use core::mem::ManuallyDrop;
use core::net::SocketAddr;

/// Completions that are taken at a time.
pub(super) const BATCH: usize = 16;
/// Completions that one peer may have in the queue.
pub(super) const COMPLETIONS_PER_PEER: usize = SENDS + CELLS;
/// Fences, and ops that were refused for a key, per peer.
const ASIDES: u32 = 8;
/// Addresses that are announced to the library at most: a hint, which shm of 2.6 refuses beyond 256
/// although many peers may have one address.
const ADDRESSES_HINT: usize = 64;
/// Of the block.
const ROOM: &str = "the block is as long as `bytes` says";
/// Failures of the whole endpoint.
const EVENTS_BESIDE: usize = 16;
/// An address, with zeroes behind it.
pub(super) type Name = [u8; NAME_BYTES_MAX];

/// Whose message a cell holds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Cell {
    /// Its part is not in use.
    Unused,
    /// The library has it.
    Posted,
    /// It must be posted.
    Due,
    /// A message of so many bytes, whose peer does not take it yet.
    Early(u32),
    /// A message that this peer has not released, and how many bytes stand before its payload.
    Held { peer: u32, ahead: u8 },
}

/// How many completions may be in the queue at a time.
fn completions(limits: &Limits) -> usize {
    limits.peers_max as usize * COMPLETIONS_PER_PEER + 1
}

/// Of ops, cells and a flush.
fn contexts(limits: &Limits) -> usize {
    limits.peers_max as usize * (SENDS + CELLS) + 1
}

fn asides(limits: &Limits) -> usize {
    (limits.peers_max * ASIDES) as usize
}

/// Bytes that [`Libfabric::open`] cuts.
pub fn bytes(limits: &Limits) -> usize {
    let peers = limits.peers_max as usize;
    let cells = peers * CELLS;
    LibfabricDomain::bytes(limits.regions_max)
        + bytes_for::<Peer>(peers)
        + bytes_for::<Part>(peers)
        + bytes_for::<Name>(peers)
        + bytes_for::<Sent>(peers * SENDS)
        + bytes_for::<Answer>(peers * KEYS)
        + bytes_for::<Told>(peers * KEYS)
        + bytes_for::<Cell>(cells)
        + bytes_for::<Context>(contexts(limits))
        + bytes_for::<Aside>(asides(limits))
        + 2 * bytes_for::<u32>(cells.next_power_of_two())
}

/// What the rail keeps, and the sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 6] = [
    ("libfabric peer", size_of::<Peer>()),
    ("libfabric address", size_of::<Name>()),
    ("libfabric send", size_of::<Sent>()),
    ("libfabric context", size_of::<Context>()),
    ("libfabric answer about a key", size_of::<Answer>()),
    ("libfabric op aside", size_of::<Aside>()),
];

/// What is closed and opened again when a NIC fails. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Open {
    pub endpoint: Endpoint,
    pub cq: Cq,
    pub vector: Vector,
    /// Where failures of the endpoint are told, if it can be joined to such a queue.
    pub events: Option<EventQueue>,
}

/// The libfabric rail of one endpoint.
#[derive(Debug)]
pub struct Libfabric<'m> {
    pub(super) domain: LibfabricDomain<'m>,
    pub(super) open: ManuallyDrop<Option<Open>>,
    pub(super) library_domain: ManuallyDrop<Domain>,
    fabric: ManuallyDrop<Fabric>,
    pub(super) info: Info,
    library: Library,
    pub(super) traits: Traits,
    pub(super) limits: Limits,
    pub(super) address_format: u32,
    pub(super) name: [u8; NAME_BYTES_MAX],
    pub(super) name_bytes: usize,
    pub(super) peers: &'m mut [Peer],
    pub(super) parts: &'m mut [Part],
    /// Of each peer whose address is known.
    pub(super) names: &'m mut [Name],
    pub(super) sent: &'m mut [Sent],
    pub(super) answers: &'m mut [Answer],
    /// Of each peer and place: the region of ours that it was told of.
    pub(super) told: &'m mut [Told],
    pub(super) cells: &'m mut [Cell],
    /// The library's: ops first, cells behind them, and a flush last.
    contexts: *mut Context,
    pub(super) asides: Ops<'m, Aside>,
    /// Cells that the library did not take back, or will be handed later.
    pub(super) due: Fifo<'m, u32>,
    /// Cells whose messages came before their peer was joined.
    pub(super) early: Fifo<'m, u32>,
    pub(super) area: Area,
    /// Completions taken and not looked at.
    pub(super) batch: [CqEntry; BATCH],
    pub(super) batch_at: usize,
    pub(super) batch_count: usize,
    pub(super) peers_open: u32,
    /// Peers whose end or fence is under way.
    pub(super) endings: u32,
    pub(super) watch: Watch,
    /// Whether some peer may be owed a message.
    pub(super) has_chores: bool,
    /// Questions about keys that are not answered, and when one was asked last.
    pub(super) asks: u32,
    pub(super) asked_at: Instant,
    /// Whether a peer was joined since early messages were looked at.
    pub(super) early_due: bool,
    pub(super) has_atomics: bool,
    pub(super) now: Instant,
    pub(super) health: Health,
    pub(super) silence: Silence,
    pub(super) flushing: Flushing,
    pub(super) probes: Probes,
    /// Whether people should know something of a peer.
    pub(super) has_complaints: bool,
}

// SAFETY: its pointers lead into the reserve, the block and objects that one thread uses at a time.
unsafe impl Send for Libfabric<'_> {}

impl<'m> Libfabric<'m> {
    /// Cuts a rail out of `block` and opens it.
    ///
    /// *Cost*: control path.
    pub fn open(
        block: &mut Carver<'m>,
        limits: &Limits,
        config: &Config,
    ) -> Result<Libfabric<'m>, OpenError> {
        check(limits, block.left())?;
        let Found { library, info, traits, area, fabric, library_domain } = find(limits, config)?;
        let count = limits.peers_max as usize;
        let (cell_count, queue) = (count * CELLS, (count * CELLS).next_power_of_two());
        let peers = block.filled_with(count, Peer::closed).expect(ROOM);
        let parts = block.filled(count, Part::UNUSED).expect(ROOM);
        let names = block.filled(count, [0; NAME_BYTES_MAX]).expect(ROOM);
        let sent = block.filled(count * SENDS, Sent::FREE).expect(ROOM);
        let answers = block.filled(count * KEYS, Answer::default()).expect(ROOM);
        let told = block.filled(count * KEYS, Told::default()).expect(ROOM);
        let cells = block.filled(cell_count, Cell::Unused).expect(ROOM);
        let contexts = block.filled(contexts(limits), Context::default()).expect(ROOM);
        let asides = Ops::new(block.slice::<Aside>(asides(limits)).expect(ROOM));
        let [due, early] = [(); 2].map(|()| Fifo::new(block.slice::<u32>(queue).expect(ROOM)));
        let mut rail = Libfabric {
            domain: LibfabricDomain::carve(block, limits.regions_max, &traits).expect(ROOM),
            open: ManuallyDrop::new(None),
            library_domain,
            fabric,
            address_format: info.get().addr_format,
            info,
            library,
            traits,
            limits: *limits,
            name: [0; NAME_BYTES_MAX],
            name_bytes: 0,
            peers,
            parts,
            names,
            sent,
            answers,
            told,
            cells,
            contexts: contexts.as_mut_ptr(),
            asides,
            due,
            early,
            area,
            batch: [CqEntry::NOTHING; BATCH],
            batch_at: 0,
            batch_count: 0,
            peers_open: 0,
            endings: 0,
            watch: Watch::default(),
            has_chores: false,
            asks: 0,
            asked_at: Instant(0),
            early_due: false,
            has_atomics: false,
            now: Instant(0),
            health: Health::default(),
            silence: Silence::new(config.silence_max),
            flushing: Flushing::NONE,
            probes: Probes::NONE,
            has_complaints: false,
        };
        // what was opened so far goes with the rail
        rail.endpoint_open().map_err(|(step, code)| rail.why_not(step, code))?;
        rail.domain.admit();
        Ok(rail)
    }

    /// Opens what [`Open`] has; nobody is let in to register yet.
    pub(super) fn endpoint_open(&mut self) -> Result<(), (Step, Code)> {
        let at = |step| move |code| (step, code);
        let peers = self.limits.peers_max as usize;
        let cq = Cq::open(&self.library_domain, completions(&self.limits));
        let cq = cq.map_err(at(Step::CompletionQueue))?;
        let vector = Vector::open(&self.library_domain, peers.min(ADDRESSES_HINT));
        let vector = vector.map_err(at(Step::AddressVector))?;
        // where there is none, failures of the whole endpoint are the completion queue's to say
        let mut events = EventQueue::open(&self.fabric, EVENTS_BESIDE).ok();
        let is_efa = self.provider_name() == c"efa";
        let (domain, info) = (&self.library_domain, &self.info);
        let endpoint = Endpoint::open_watched(domain, info, (&cq, &vector), &mut events, is_efa);
        let endpoint = endpoint.map_err(at(Step::Endpoint))?;
        self.name_bytes = endpoint.name(&mut self.name).map_err(at(Step::Name))?;
        self.has_atomics = endpoint.has_atomics();
        let raw = endpoint.as_ptr();
        self.watch.is_on = events.is_some();
        *self.open = Some(Open { endpoint, cq, vector, events });
        // SAFETY: both are closed after `shut`: see `endpoint_close` and `drop`.
        unsafe { self.domain.open(self.library_domain.as_raw(), raw) };
        Ok(())
    }

    /// Why it could not be opened. A completion queue that is too long is refused without a word of
    /// how long it may be.
    #[cold]
    fn why_not(&self, step: Step, code: Code) -> OpenError {
        let one = completions(&Limits { peers_max: 1, ..self.limits });
        let wanted = completions(&self.limits);
        let mut most = wanted / 2;
        while step == Step::CompletionQueue && most >= one {
            if Cq::open(&self.library_domain, most).is_ok() {
                return OpenError::Completions { wanted: wanted as u32, most: most as u32 };
            }
            most /= 2;
        }
        OpenError::Refused(step, code)
    }

    /// Takes what has come and drops it: `ofi_rxm` of 1.17 looks at what it finds when its endpoint
    /// closes, and posts a receive again to a connection that has gone by then.
    fn drain(&mut self) {
        let Some(open) = self.open.as_ref() else { return };
        for _ in 0..=self.cells.len() {
            let _turn = self.domain.turn(Act::Poll);
            match open.cq.read(&mut self.batch) {
                Ok(1..) => {}
                Err(Code(n::EAVAIL)) => {
                    let _ = open.cq.read_error(&mut [0; 1]);
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Closes what [`Open`] has, registrations first.
    pub(super) fn endpoint_close(&mut self, for_good: bool) {
        self.drain();
        self.flush_close();
        self.domain.shut(for_good);
        for part in self.parts.iter_mut() {
            if part.registration != 0 {
                // nothing can be done about a refusal: the endpoint goes
                let _ = Registration::from_raw(part.registration).close();
                *part = Part::UNUSED;
            }
        }
        drop(self.open.take());
    }

    /// What the library knows an op by.
    #[inline]
    pub(super) fn op_context(&self, op: usize) -> *mut core::ffi::c_void {
        debug_assert!(op < self.peers.len() * SENDS);
        // SAFETY: inside the table.
        unsafe { self.contexts.add(op) }.cast()
    }

    /// What it knows a cell by.
    #[inline]
    pub(super) fn cell_context(&self, cell: usize) -> *mut core::ffi::c_void {
        debug_assert!(cell < self.cells.len());
        // SAFETY: inside the table.
        unsafe { self.contexts.add(self.peers.len() * SENDS + cell) }.cast()
    }

    /// What it knows a flush by.
    pub(super) fn flush_context(&self) -> *mut core::ffi::c_void {
        // SAFETY: the last of the table.
        unsafe { self.contexts.add(self.peers.len() * SENDS + self.cells.len()) }.cast()
    }

    /// The inverse of all three; `None`: it is none of ours.
    #[inline]
    pub(super) fn context_index(&self, context: *mut core::ffi::c_void) -> Option<usize> {
        let offset = (context as usize).wrapping_sub(self.contexts as usize);
        let index = offset / size_of::<Context>();
        let count = self.peers.len() * SENDS + self.cells.len() + 1;
        (offset.is_multiple_of(size_of::<Context>()) && index < count).then_some(index)
    }

    /// Whether no peer is open, and no flush under way, so that polling is of no use.
    pub fn is_idle(&self) -> bool {
        self.peers_open == 0 && !self.is_flushing()
    }

    /// Whether something that was posted to a living peer has not ended yet: poll and ask again.
    pub fn is_undelivered(&self, peer: PeerIndex) -> bool {
        let record = self.peers.get(peer.as_usize());
        record.is_some_and(|record| record.takes_ops() && record.under_way() != 0)
    }

    /// The same of messages, words, and those ops on the peer's memory that `awaits` says.
    pub fn is_awaiting(&self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool {
        if !self.is_undelivered(peer) {
            return false;
        }
        let index = peer.as_usize();
        let under_way = self.peers[index].under_way();
        self.sent[index * SENDS..(index + 1) * SENDS]
            .iter()
            .enumerate()
            .any(|(place, op)| under_way >> place & 1 == 1 && (!op.touches || awaits(op.id)))
    }

    /// Whether something is owed to a peer that the next poll says.
    pub fn is_unsent(&self) -> bool {
        self.has_chores
    }

    /// Whether polls must be told the time: ends and questions are timed by it.
    pub fn wants_time(&self) -> bool {
        self.peers_open != 0 || self.is_flushing() || self.health.is_lost()
    }

    /// What broke the connection to a peer, while it is not closed.
    pub fn error(&self, peer: PeerIndex) -> Option<super::ErrorReport> {
        self.peers.get(peer.as_usize()).filter(|peer| peer.state != State::Closed)?.report
    }

    /// How the rail is.
    pub fn health(&self) -> Health {
        self.health
    }

    /// What the provider is like.
    pub fn traits(&self) -> Traits {
        self.traits
    }

    /// The library's version.
    pub fn version(&self) -> super::sys::library::VersionText {
        super::sys::library::VersionText(self.library.version())
    }

    /// The provider's name.
    pub fn provider_name(&self) -> &CStr {
        offer::provider_name(&self.info)
    }

    /// Whether the library may crash when the endpoint is closed: `ofi_rxm` of 1.17 does while a
    /// long write is half-way on a path that is gone. The fence of such a peer does not hold then.
    pub(super) fn dies_of_a_close(&self) -> bool {
        let is_half_way = |it: &Peer| it.is_drain_watched() && it.ops.touching > 0;
        (self.health.unheard || self.peers.iter().any(is_half_way))
            && self.provider_name().to_bytes().ends_with(b";ofi_rxm")
    }

    /// The domain's name.
    pub fn domain_name(&self) -> &CStr {
        offer::domain_name(self.info.get())
    }

    /// What it is opened on, for people.
    pub fn nic(&self) -> NicName<'_> {
        let (provider, domain) = (self.provider_name(), self.domain_name());
        NicName { provider, domain }
    }

    /// The address of its endpoint, and that of another one of the same provider; `None`: they are
    /// no addresses of sockets.
    pub fn ends(&self, other: &Hello) -> Option<[SocketAddr; 2]> {
        let format = self.address_format;
        let ends = [&self.name[..self.name_bytes], other.name()];
        match ends.map(|name| socket_of(format, name)) {
            [Some(ours), Some(theirs)] => Some([ours, theirs]),
            [_, _] => None,
        }
    }

    /// Has somebody told of a peer.
    #[cold]
    pub(super) fn complain(&mut self, index: usize, complaint: Complaint) {
        self.peers[index].complaint = Some(complaint);
        self.has_complaints = true;
    }

    /// Whether [`Libfabric::complaint`] has one to name.
    #[inline]
    pub fn has_complaints(&self) -> bool {
        self.has_complaints
    }

    /// The next peer that people should know something of. Each is named once.
    #[cold]
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        let mut peers = self.peers.iter_mut().enumerate();
        let found = peers.find_map(|(index, peer)| Some((index, peer.complaint.take()?)));
        self.has_complaints = found.is_some();
        found.map(|(index, complaint)| (PeerIndex(index as u32), complaint))
    }

    /// To what its registrations belong.
    pub fn scope(&self) -> Scope {
        self.traits.scope
    }
}

/// `tcp;ofi_rxm eth0`.
#[derive(Copy, Clone, Debug)]
pub struct NicName<'a> {
    provider: &'a CStr,
    domain: &'a CStr,
}

impl fmt::Display for NicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [provider, domain] = [self.provider, self.domain].map(|it| it.to_str().unwrap_or("?"));
        write!(f, "{provider} {domain}")
    }
}

/// What a rail stands on.
struct Found {
    library: Library,
    info: Info,
    traits: Traits,
    area: Area,
    library_domain: ManuallyDrop<Domain>,
    fabric: ManuallyDrop<Fabric>,
}

fn find(limits: &Limits, config: &Config) -> Result<Found, OpenError> {
    let at = |step| move |code| OpenError::Refused(step, code);
    let library = Library::load(config.library).map_err(OpenError::Library)?;
    let (info, traits) = offer::choose(&library, config, limits)?;
    let area = Area::create(limits.peers_max, limits.payload_bytes_max);
    let area = area.map_err(OpenError::Buffers)?;
    let fabric = Fabric::open(&library, &info).map_err(at(Step::Fabric))?;
    let library_domain = Domain::open(&fabric, &info).map_err(at(Step::Domain))?;
    let (fabric, library_domain) = (ManuallyDrop::new(fabric), ManuallyDrop::new(library_domain));
    Ok(Found { library, info, traits, area, library_domain, fabric })
}

fn check(limits: &Limits, room: usize) -> Result<(), OpenError> {
    let peers = (1..=PEERS_MAX).contains(&limits.peers_max);
    let payload = limits.payload_bytes_max <= PAYLOAD_BYTES_MAX;
    match peers && payload && limits.regions_max <= REGIONS_MAX {
        true if room < bytes(limits) => Err(OpenError::Block),
        true => Ok(()),
        false => Err(OpenError::Limits),
    }
}

impl Drop for Libfabric<'_> {
    fn drop(&mut self) {
        self.endpoint_close(true);
        // SAFETY: dropped once, after everything that was made of it.
        unsafe { ManuallyDrop::drop(&mut self.library_domain) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.fabric) };
    }
}
