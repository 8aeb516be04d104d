//! The rail's endpoint: what is opened with the library for it, and closed and opened again when a
//! NIC fails.

use super::area::{Area, CELLS, SENDS};
use super::choice::offer;
use super::domain::LibfabricDomain;
use super::domain::turns::Act;
use super::sys::abi::{Context, CqEntry, CqErrEntry};
use super::sys::numbers as n;
use super::sys::{
    Code, Cq, Domain, Endpoint, Event, EventQueue, Fabric, Info, Library, Port, Registration,
    Vector,
};
use super::{Config, Limits, OpenError, Step, Traits};
use crate::base::carve::{Carver, bytes_for};
use crate::wire::shared_end::NAME_BYTES_MAX;
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;

/// Completions that are taken at a time.
pub const BATCH: usize = 16;
/// Addresses that are announced to the library at most: a hint, which shm of 2.6 refuses beyond 256
/// although many peers may have one address.
const ADDRESSES_HINT: usize = 64;
/// Failures of the whole endpoint.
const EVENTS_BESIDE: usize = 16;
/// Of the block.
pub const ROOM: &str = "the block is as long as `bytes` says";

/// An address, with zeroes behind it.
pub type Name = [u8; NAME_BYTES_MAX];

/// How many completions may be in the queue at a time.
fn completions(limits: &Limits) -> usize {
    limits.peers_max as usize * (SENDS + CELLS) + 1
}

/// A peer's part of the area, from its first use until the endpoint closes.
#[derive(Copy, Clone, Debug)]
struct Part {
    /// The library's registration, as a number; 0: none yet.
    registration: u64,
    descriptor: *mut c_void,
    /// Where its receives are posted, and its ops.
    port: Option<Port>,
}

impl Part {
    const UNUSED: Part = Part { registration: 0, descriptor: null_mut(), port: None };
}

/// What is closed and opened again when a NIC fails. Fields are dropped in this order.
#[derive(Debug)]
struct Open {
    endpoint: Endpoint,
    cq: Cq,
    vector: Vector,
    /// Where failures of the endpoint are told, if it can be joined to such a queue.
    events: Option<EventQueue>,
}

/// The endpoint that peers share. Fields are dropped in this order.
#[derive(Debug)]
pub struct SharedEndpoint<'m> {
    pub domain: LibfabricDomain<'m>,
    open: Option<Open>,
    library_domain: Domain,
    fabric: Fabric,
    info: Info,
    pub library: Library,
    pub area: Area,
    parts: &'m mut [Part],
    /// The library's: ops first, cells behind them, and a flush last.
    contexts: *mut Context,
    pub limits: Limits,
    pub traits: Traits,
    pub has_atomics: bool,
    pub address_format: u32,
    name: Name,
    name_bytes: usize,
}

impl<'m> SharedEndpoint<'m> {
    /// Bytes that [`SharedEndpoint::find`] cuts.
    pub fn bytes(limits: &Limits) -> usize {
        LibfabricDomain::bytes(limits.regions_max)
            + bytes_for::<Part>(limits.peers_max as usize)
            + bytes_for::<Context>(completions(limits))
    }

    /// Finds what an endpoint stands on. It is not open yet.
    pub fn find(
        block: &mut Carver<'m>,
        limits: &Limits,
        config: &Config,
    ) -> Result<SharedEndpoint<'m>, OpenError> {
        let at = |step| move |code| OpenError::Refused(step, code);
        let library = Library::load(config.library).map_err(OpenError::Library)?;
        let (info, traits) = offer::choose(&library, config, limits)?;
        let area = Area::create(limits.peers_max, limits.payload_bytes_max);
        let area = area.map_err(OpenError::Buffers)?;
        let fabric = Fabric::open(&library, &info).map_err(at(Step::Fabric))?;
        let library_domain = Domain::open(&fabric, &info).map_err(at(Step::Domain))?;
        let contexts = block.filled(completions(limits), Context::default()).expect(ROOM);
        Ok(SharedEndpoint {
            domain: LibfabricDomain::carve(block, limits.regions_max, &traits).expect(ROOM),
            open: None,
            library_domain,
            fabric,
            address_format: info.get().addr_format,
            info,
            library,
            area,
            parts: block.filled(limits.peers_max as usize, Part::UNUSED).expect(ROOM),
            contexts: contexts.as_mut_ptr(),
            limits: *limits,
            traits,
            has_atomics: false,
            name: [0; NAME_BYTES_MAX],
            name_bytes: 0,
        })
    }

    /// Opens what [`Open`] has; nobody is let in to register yet. Whether there is a queue of
    /// events.
    pub fn open(&mut self) -> Result<bool, (Step, Code)> {
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
        let (raw, is_watched) = (endpoint.as_ptr(), events.is_some());
        self.open = Some(Open { endpoint, cq, vector, events });
        // SAFETY: both are closed after `shut`: see `close`, and the order of our fields.
        unsafe { self.domain.open(self.library_domain.as_raw(), raw) };
        Ok(is_watched)
    }

    /// Why it could not be opened. A completion queue that is too long is refused without a word of
    /// how long it may be.
    #[cold]
    pub fn why_not(&self, step: Step, code: Code) -> OpenError {
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
    pub fn drain(&self) {
        let mut batch = [CqEntry::NOTHING; BATCH];
        for _ in 0..=self.cells() {
            match self.read(&mut batch) {
                Some(Ok(1..)) => {}
                Some(Err(Code(n::EAVAIL))) => {
                    let _ = self.read_error(&mut [0; 1]);
                }
                Some(Ok(_) | Err(_)) | None => return,
            }
        }
    }

    /// Closes what [`Open`] has, registrations first.
    pub fn close(&mut self, for_good: bool) {
        self.domain.shut(for_good);
        for part in self.parts.iter_mut().filter(|part| part.registration != 0) {
            // nothing can be done about a refusal: the endpoint goes
            let _ = Registration::from_raw(part.registration).close();
            *part = Part::UNUSED;
        }
        self.open = None;
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes completions; `None`: it is closed.
    #[inline]
    pub fn read(&self, batch: &mut [CqEntry; BATCH]) -> Option<Result<usize, Code>> {
        let open = self.open.as_ref()?;
        let _turn = self.domain.turn(Act::Poll);
        Some(open.cq.read(batch))
    }

    /// Takes a failure and the provider's words; `None`: it is closed.
    #[cold]
    pub fn read_error(&self, text: &mut [u8]) -> Option<Result<CqErrEntry, Code>> {
        let open = self.open.as_ref()?;
        let _turn = self.domain.turn(Act::Poll);
        Some(open.cq.read_error(text))
    }

    /// Takes an event; `None`: there is no queue of events.
    pub fn read_event(&self) -> Option<Result<Option<Event>, Code>> {
        let events = self.open.as_ref()?.events.as_ref()?;
        let _turn = self.domain.turn(Act::Poll);
        Some(events.read())
    }

    /// Registers a peer's part of the area, at its first use; whether this is that.
    pub fn part_open(&mut self, index: usize) -> Result<bool, Code> {
        if self.parts[index].registration != 0 {
            return Ok(false);
        }
        // SAFETY: a part of the reserve, which outlives the registration.
        let made = unsafe { self.domain.make(self.area.part(index)) }?;
        let port = self.open.as_ref().map(|open| open.endpoint.port());
        let (registration, descriptor) = (made.into_raw(), made.descriptor());
        self.parts[index] = Part { registration, descriptor, port };
        Ok(true)
    }

    #[inline]
    pub fn part_descriptor(&self, index: usize) -> *mut c_void {
        self.parts[index].descriptor
    }

    /// Where a peer's ops go.
    #[inline(always)]
    pub fn port(&self, index: usize) -> Result<Port, Code> {
        self.parts[index].port.ok_or(Code(libc::ENODEV))
    }

    /// Where ops go that are no peer's.
    pub fn own_port(&self) -> Result<Port, Code> {
        self.open.as_ref().map(|open| open.endpoint.port()).ok_or(Code(libc::EOPNOTSUPP))
    }

    /// Puts an address into the vector, and says what ops call it.
    pub fn address_insert(&self, name: &[u8]) -> Result<u64, Code> {
        let Open { vector, .. } = self.open.as_ref().ok_or(Code(libc::ENODEV))?;
        let _turn = self.domain.turn(Act::Control);
        vector.insert(name)
    }

    /// Takes one out.
    pub fn address_remove(&self, address: u64) {
        if let Some(Open { vector, .. }) = &self.open {
            let _turn = self.domain.turn(Act::Control);
            vector.remove(address);
        }
    }

    /// Places of all tables of ops.
    #[inline]
    pub fn ops(&self) -> usize {
        self.limits.peers_max as usize * SENDS
    }

    /// Cells of all peers.
    #[inline]
    pub fn cells(&self) -> usize {
        self.limits.peers_max as usize * CELLS
    }

    /// What the library knows an op by.
    #[inline]
    pub fn op_context(&self, op: usize) -> *mut c_void {
        debug_assert!(op < self.ops());
        // SAFETY: inside the table.
        unsafe { self.contexts.add(op) }.cast()
    }

    /// What it knows a cell by; behind the last one, what it knows a flush by.
    #[inline]
    pub fn cell_context(&self, cell: usize) -> *mut c_void {
        debug_assert!(cell <= self.cells());
        // SAFETY: inside the table.
        unsafe { self.contexts.add(self.ops() + cell) }.cast()
    }

    /// The inverse of both; `None`: it is none of ours.
    #[inline]
    pub fn context_index(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).wrapping_sub(self.contexts as usize);
        let index = offset / size_of::<Context>();
        let is_whole = offset.is_multiple_of(size_of::<Context>());
        (is_whole && index <= self.ops() + self.cells()).then_some(index)
    }

    /// The provider's name.
    pub fn provider_name(&self) -> &CStr {
        offer::provider_name(&self.info)
    }

    /// The domain's name.
    pub fn domain_name(&self) -> &CStr {
        offer::domain_name(self.info.get())
    }

    /// Its address, with zeroes behind it, and how long it is.
    pub fn name(&self) -> (Name, usize) {
        (self.name, self.name_bytes)
    }
}
