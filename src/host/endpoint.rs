//! The endpoint, and the half of it that belongs to one thread at a time.

extern crate std;

use super::device::DeviceKind;
use super::error::OpenError;
use super::link_memory::HostMemory;
use super::machine::{Machine, each};
use super::options::{self, Options};
use super::own::Own;
use super::settings::{self, Environment};
use super::shared::{Half, RailDomain, SetUp, Shared, is_current, is_live, locked, note};
use crate::base::carve::{BLOCK_ALIGN, BlockTooSmall, Carver, RawSlice};
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::pool::Pool;
use crate::base::ring::{self, Consumer, Producer};
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64, Cell};
use crate::base::units::{Bytes, Instant};
use crate::connect::{Band, BandConfig, BandEvent, BandTables, LinkParams, LocalTemplate, Wake};
use crate::fabric::{Domain, DownCause, Provider, RailKey, RemoteSpan};
use crate::memory::{Errno, SharedHeap, WakeFd, wake};
use crate::provider::loopback::Loopback;
use crate::provider::shm::{self, HeapSpan, PeerSetup, RingSizes, Shm};
use crate::transport::endpoint::ConnectionCloseError;
use crate::transport::limits::CREDITS;
use crate::transport::request::RequestIdError;
use crate::transport::{
    self, Config, ConnectionSetup, DataMrs, Incoming, Outcome, Outgoing, Progress, RequestError,
    RequestId, Stats, SubmitError,
};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

/// Most bytes copied in one call of [`Endpoint::progress`].
const POLL_BUDGET: Bytes = Bytes::kib(256);

/// Regions that a heap can be cut into besides those that can be registered.
const HEAP_SPARE: usize = 16;

/// Calls of progress that closing an endpoint grants each connection to be fenced.
const CLOSE_STEPS: usize = 10_000;

/// What the side band has told of a connection. The data thread takes the connection into use when
/// its user does, because until then the side band may close it without a word.
#[derive(Copy, Clone, Debug)]
pub(super) struct Known {
    generation: u32,
    in_use: bool,
    gone: Option<DownCause>,
    params: LinkParams,
}

const UNKNOWN: Known = Known { generation: 0, in_use: false, gone: None, params: LinkParams::NONE };

/// An endpoint in a block of the caller's memory.
pub struct Endpoint {
    machine: Machine,
    known: &'static mut [Known],
    events: Consumer<'static, BandEvent>,
    mailbox_key: RailKey,
    /// Those of `shared`: read at every request, so that the way there is short.
    generations: &'static [AtomicU32],
    /// What any thread may use, also while another thread uses the rest.
    pub shared: Half,
}

/// Whether a connection is closed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Closing {
    /// It is.
    Closed,
    /// Operations are being fenced: make progress, then call again.
    Again,
    /// No such connection.
    Stale,
}

/// The tables that data thread and side band share.
struct Tables {
    pool: Pool<'static>,
    generations: &'static [AtomicU32],
    producer: Producer<'static, BandEvent>,
    consumer: Consumer<'static, BandEvent>,
    known: &'static mut [Known],
}

impl From<BlockTooSmall> for OpenError {
    fn from(_: BlockTooSmall) -> OpenError {
        OpenError::Storage
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        OpenError::System(errno.0)
    }
}

impl Tables {
    fn carve(
        block: &mut Carver<'static>,
        options: &Options,
        salt: u32,
    ) -> Result<Tables, OpenError> {
        let connections = options.limits.connections_max as usize;
        let head: &AtomicU64 = block.value()?;
        let next: &[AtomicU32] = block.slice(connections)?;
        let generations: &[AtomicU32] = block.filled_with(connections, || AtomicU32::new(salt))?;
        let indices = block.value::<ring::Indices>()?;
        let nothing = BandEvent::Gone { index: 0, generation: 0, cause: DownCause::Closed };
        let count = options::events(&options.limits);
        let cells = block.filled_with(count, || Cell::new(nothing))?;
        let (producer, consumer) = ring::split(indices, cells);
        let known = block.filled(connections, UNKNOWN)?;
        Ok(Tables { pool: Pool::new(head, next), generations, producer, consumer, known })
    }
}

impl Endpoint {
    /// Cuts an endpoint out of `block` and opens it. Lets the environment change the options that
    /// do not change the block's size.
    ///
    /// # Safety
    /// - `block` is aligned to 64 bytes and valid for reads and writes of `length` bytes until
    ///   [`Endpoint::close`] has returned, and nobody else touches it;
    /// - who uses [`Half::place`] has ended doing so when the endpoint is closed or dropped.
    pub unsafe fn open(
        block: *mut u8,
        length: usize,
        options: &Options,
    ) -> Result<Endpoint, OpenError> {
        let mut options = *options;
        options.check()?;
        if length < options.bytes() || !(block as usize).is_multiple_of(BLOCK_ALIGN) {
            return Err(OpenError::Storage);
        }
        let environment = settings::apply(&mut options);
        options.check()?;
        // SAFETY: aligned and long enough (checked above), and the caller's for as long as needed.
        let mut block: Carver<'static> = unsafe { Carver::new(block, options.bytes()) };
        let salt = salt()?;
        let regions = DataMrs::carve(&mut block, options.limits.regions_max, salt)?;
        let tables = Tables::carve(&mut block, &options, salt)?;
        let half = block.raw(size_of::<Shared>())?;
        let heap = heap_create(&options)?;
        let wake = Arc::new(WakeFd::create()?);
        let parts = Parts { salt, options, environment, regions, tables, half, heap, wake };
        match options.device {
            DeviceKind::SharedMemory => parts.open_shm(&mut block),
            DeviceKind::Loopback => parts.open_loopback(&mut block),
        }
    }

    /// Accepts a message for sending; see [`crate::transport::Endpoint::isend`].
    #[inline(always)]
    pub fn isend(
        &mut self,
        connection: Handle,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let index = self.take_into_use(connection)?;
        each!(&mut self.machine, endpoint => endpoint.isend(index, message))
    }

    /// Accepts a group of receives; see [`crate::transport::Endpoint::irecv`].
    #[inline(always)]
    pub fn irecv(
        &mut self,
        connection: Handle,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        let index = self.take_into_use(connection)?;
        each!(&mut self.machine, endpoint => endpoint.irecv(index, buffers))
    }

    /// Asks how a request stands; makes progress when it is outstanding.
    #[inline(always)]
    pub fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        if each!(&self.machine, endpoint => endpoint.is_outstanding(request)) {
            self.progress();
        }
        each!(&mut self.machine, endpoint => endpoint.test(request))
    }

    /// Asks for a request to end early; see [`crate::transport::Endpoint::cancel`].
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestIdError> {
        each!(&mut self.machine, endpoint => endpoint.cancel(request))
    }

    /// Moves everything on that can move; copies about 256 KiB at most.
    #[inline(never)]
    pub fn progress(&mut self) -> Progress {
        if self.events.has_some() {
            self.events_take();
        }
        // no rail of this host needs the time: nothing on them is retransmitted
        each!(&mut self.machine, endpoint => endpoint.progress(Instant(0), POLL_BUDGET))
    }

    #[cold]
    #[inline(never)]
    fn events_take(&mut self) {
        while let Some(event) = self.events.pop() {
            self.event(event);
        }
    }

    fn event(&mut self, event: BandEvent) {
        match event {
            BandEvent::Established { index, generation, params } => {
                self.known[index as usize] =
                    Known { generation, in_use: false, gone: None, params };
            }
            BandEvent::Gone { index, generation, cause } => {
                let known = &mut self.known[index as usize];
                if known.generation != generation {
                    return;
                }
                known.gone = Some(cause);
                if known.in_use {
                    let peer = PeerIndex(index);
                    each!(&mut self.machine, endpoint => {
                        endpoint.rail_mut().peer_fail(peer, cause);
                    });
                }
            }
        }
    }

    /// The number of a connection, taken into use if this is the first use.
    #[inline(always)]
    fn take_into_use(&mut self, connection: Handle) -> Result<ConnectionIndex, SubmitError> {
        // what is in use was live with this generation once: whether it still is, is one load
        let known = self.known.get(connection.index as usize);
        let used = known.is_some_and(|k| k.in_use && k.generation == connection.generation);
        if used && is_current(self.generations, connection) {
            return Ok(ConnectionIndex(connection.index));
        }
        self.first_use(connection)
    }

    #[cold]
    #[inline(never)]
    fn first_use(&mut self, connection: Handle) -> Result<ConnectionIndex, SubmitError> {
        if !is_live(self.generations, connection) {
            return Err(SubmitError::Connection);
        }
        self.events_take();
        let known = self.known[connection.index as usize];
        if known.generation != connection.generation {
            return Err(SubmitError::Connection);
        }
        let index = connection.index;
        match &mut self.machine {
            Machine::Shm(endpoint) => shm_use(endpoint, index, &known)?,
            Machine::Loopback(endpoint) => {
                let partner = known.params.peer.connection as u32;
                let other = &mut self.known[partner as usize];
                let live = Handle { index: partner, generation: other.generation };
                if !is_live(self.generations, live)
                    || other.params.peer.connection != u64::from(index)
                {
                    return Err(SubmitError::Failed(RequestError::PeerClosed));
                }
                other.in_use = true;
                loopback_use(endpoint, index, partner, self.mailbox_key)?;
            }
        }
        self.known[index as usize].in_use = true;
        if let (Some(cause), Machine::Shm(endpoint)) = (known.gone, &mut self.machine) {
            endpoint.rail_mut().peer_fail(PeerIndex(index), cause);
        }
        Ok(ConnectionIndex(index))
    }

    /// Gives up a connection: its outstanding requests end with `Closed`.
    pub fn connection_close(&mut self, connection: Handle) -> Closing {
        if !is_live(self.generations, connection) {
            return Closing::Stale;
        }
        let known = &self.known[connection.index as usize];
        if known.in_use && known.generation == connection.generation {
            let index = ConnectionIndex(connection.index);
            match each!(&mut self.machine, endpoint => endpoint.connection_close(index)) {
                Err(ConnectionCloseError::Again) => return Closing::Again,
                Ok(()) | Err(ConnectionCloseError::Stale) => {}
            }
            self.known[connection.index as usize].in_use = false;
        }
        match &self.shared.set_up {
            SetUp::Band(band) => match band.connection_close(connection) {
                Ok(()) => Closing::Closed,
                Err(_) => Closing::Stale,
            },
            SetUp::Own(own) => {
                locked(own).release(connection.index);
                Closing::Closed
            }
        }
    }

    /// Arms the wait descriptor. `false`: something is there already, make progress instead.
    ///
    /// *Cost*: two system calls.
    pub fn wait_arm(&mut self) -> bool {
        self.shared.wake.drain();
        if self.progress().events != 0 {
            return false;
        }
        match &mut self.machine {
            Machine::Shm(endpoint) => endpoint.rail_mut().arm(),
            Machine::Loopback(_) => false,
        }
    }

    /// Counts since open.
    pub fn stats(&self) -> Stats {
        each!(&self.machine, endpoint => *endpoint.stats())
    }

    /// Ends everything: connections, listeners, the side band's thread.
    pub fn close(mut self) {
        for index in 0..self.known.len() as u32 {
            let Known { generation, in_use, .. } = self.known[index as usize];
            if !in_use {
                continue;
            }
            let connection = Handle { index, generation };
            for _ in 0..CLOSE_STEPS {
                if self.connection_close(connection) != Closing::Again {
                    break;
                }
                self.progress();
            }
        }
        self.shared.close();
    }
}

/// A random even number: handles and requests of one endpoint mean nothing to another.
fn salt() -> Result<u32, OpenError> {
    let random = crate::connect::random()
        .map_err(|error| OpenError::System(error.raw_os_error().unwrap_or(0)))?;
    Ok(random as u32 & !1)
}

fn heap_create(options: &Options) -> Result<Option<Arc<SharedHeap>>, OpenError> {
    if options.heap_bytes == Bytes::ZERO {
        return Ok(None);
    }
    let regions = options.limits.regions_max as usize;
    let head = shm::board_bytes(options.limits.regions_max + 1);
    let reserve = options.heap_bytes.as_usize();
    let heap = SharedHeap::create(c"crosstie-heap", reserve, head, regions + HEAP_SPARE)?;
    Ok(Some(Arc::new(heap)))
}

fn shm_use(
    endpoint: &mut transport::Endpoint<'static, Shm<'static>>,
    index: u32,
    known: &Known,
) -> Result<(), SubmitError> {
    let params = &known.params;
    let span = |(start, length): (usize, u64)| HeapSpan {
        start: core::ptr::with_exposed_provenance_mut(start),
        length: length as usize,
    };
    let setup = PeerSetup {
        rings: core::ptr::with_exposed_provenance_mut(params.rings_address),
        sizes: RingSizes {
            send_bytes: params.send_ring_bytes,
            write_bytes: params.write_ring_bytes,
        },
        side: params.side as u8,
        kernel_copy_pid: params.kernel_copy_pid,
        heap: params.heap.map(span),
        doorbell: (params.doorbell_fd >= 0).then_some(params.doorbell_fd),
        use_fence_for_doorbell: !params.membarrier,
    };
    // SAFETY: the side band mapped the rings, zeroed, one side each, and keeps them, the heap and
    // the descriptor until `connection_close`, which comes after the machine's.
    let opened = unsafe { endpoint.rail_mut().peer_open(PeerIndex(index), &setup) };
    if opened.is_err() {
        return Err(SubmitError::Failed(RequestError::Protocol));
    }
    let mailbox =
        RemoteSpan { key: RailKey(params.peer.mailbox_key), address: params.peer.mailbox_address };
    let setup = ConnectionSetup {
        pull: true,
        mailbox,
        eager_bytes_max: Bytes(u64::from(params.peer.eager_bytes_max))
            .min(options::eager_bytes_max(params.send_ring_bytes)),
        credits: params.peer.credits,
        groups_max: params.peer.groups_max,
    };
    endpoint.connection_open(ConnectionIndex(index), &setup);
    Ok(())
}

fn loopback_use(
    endpoint: &mut transport::Endpoint<'static, Loopback<'static>>,
    index: u32,
    partner: u32,
    mailbox_key: RailKey,
) -> Result<(), SubmitError> {
    let opened = endpoint.rail_mut().peer_open_at(PeerIndex(index), PeerIndex(partner));
    if opened.is_err() {
        return Err(SubmitError::Failed(RequestError::Protocol));
    }
    let mailboxes = endpoint.mailboxes();
    let groups_max = endpoint.limits().requests_max;
    for (own, peer) in [(index, partner), (partner, index)] {
        let setup = ConnectionSetup {
            pull: true,
            mailbox: RemoteSpan { key: mailbox_key, address: mailboxes.address(peer) },
            eager_bytes_max: Bytes::mib(1),
            credits: CREDITS,
            groups_max,
        };
        endpoint.connection_open(ConnectionIndex(own), &setup);
    }
    Ok(())
}

/// What both kinds of endpoint are put together from.
struct Parts {
    salt: u32,
    options: Options,
    environment: Environment,
    regions: DataMrs<'static>,
    tables: Tables,
    /// The place of [`Shared`].
    half: RawSlice,
    heap: Option<Arc<SharedHeap>>,
    wake: Arc<WakeFd>,
}

impl Parts {
    fn config(&self) -> Config {
        Config {
            eager_bytes_max: self.options.eager_bytes_max,
            salt: self.salt,
            ..Config::default()
        }
    }

    fn open_shm(self, block: &mut Carver<'static>) -> Result<Endpoint, OpenError> {
        let limits = self.options.limits;
        let span =
            self.heap.as_ref().map(|heap| HeapSpan { start: heap.start(), length: heap.length() });
        // SAFETY: the heap's head was allocated for the board (`heap_create`), and the endpoint
        // keeps the heap until after the machine is gone (`close`).
        let rail = unsafe { Shm::open(block, &options::shm_limits(&limits), span) }?;
        let domain = rail.domain();
        let config = self.config();
        let machine = transport::Endpoint::open(block, limits, config, self.regions, rail)?;
        assert_eq!(block.left(), 0, "what was cut is what `Options::bytes` says");
        // SAFETY: the mailboxes lie in the block, which outlives the machine.
        let key = unsafe { domain.register(machine.mailboxes().region()) }
            .map_err(|_| OpenError::Storage)?;
        let template = self.template(&machine.mailboxes(), key);
        let Parts { options, environment, regions, tables, half, heap, wake, .. } = self;
        let memory = HostMemory {
            heap: heap.clone(),
            wake: Arc::clone(&wake),
            kernel_copy: environment.kernel_copy,
        };
        let config = BandConfig {
            shm_dir: environment.shm_dir,
            handshake_deadline: options.handshake_deadline,
            links_max: 2 * limits.connections_max,
            listeners_max: limits.connections_max,
            membarrier: wake::barrier_register(),
            key: None,
            peer_deadline: crate::base::units::Span::millis(10_000),
            template,
            wake: Wake {
                call: |fd| wake::ring(fd as i32),
                context: wake.fd().as_raw_fd() as usize,
            },
            note,
        };
        let shared_tables = BandTables {
            pool: tables.pool,
            generations: tables.generations,
            events: tables.producer,
        };
        let band = Band::open(config, shared_tables, memory).map_err(OpenError::Band)?;
        let set_up = SetUp::Band(band);
        let generations = tables.generations;
        let domain = RailDomain::Shm(domain);
        let shared = Shared { regions, domain, set_up, heap, wake, generations };
        Ok(Endpoint {
            machine: Machine::Shm(machine),
            known: tables.known,
            events: tables.consumer,
            mailbox_key: key,
            generations,
            // SAFETY: cut from the block for this (`open`), which outlives the endpoint.
            shared: unsafe { Half::put(half, shared) },
        })
    }

    fn template(&self, mailboxes: &transport::mr::CtrlMr, key: RailKey) -> LocalTemplate {
        LocalTemplate {
            mailbox_key: key.0,
            mailbox_base: mailboxes.address(0),
            mailbox_stride: mailboxes.stride() as u64,
            groups_max: self.options.limits.requests_max,
            credits: CREDITS,
            eager_bytes_max: self.options.eager_bytes_max.0 as u32,
            data_rails: 1,
            control_rails: 1,
            features: 0,
            send_ring_bytes: self.options.send_ring_bytes,
            write_ring_bytes: self.options.write_ring_bytes,
            rings_bytes: |send, write| {
                let sizes = RingSizes { send_bytes: send, write_bytes: write };
                let known = sizes.is_valid()
                    && send <= options::SEND_RING_BYTES_MAX
                    && write <= options::WRITE_RING_BYTES_MAX;
                known.then(|| shm::rings_bytes(send, write) as u64)
            },
        }
    }

    fn open_loopback(self, block: &mut Carver<'static>) -> Result<Endpoint, OpenError> {
        let limits = self.options.limits;
        let rail = Loopback::open(options::loopback_limits(&limits), block)?;
        let domain = rail.domain();
        let config = self.config();
        let machine = transport::Endpoint::open(block, limits, config, self.regions, rail)?;
        assert_eq!(block.left(), 0, "what was cut is what `Options::bytes` says");
        // SAFETY: the mailboxes lie in the block, which outlives the machine.
        let mailbox_key = unsafe { domain.register(machine.mailboxes().region()) }
            .map_err(|_| OpenError::Storage)?;
        let endpoint_id = crate::connect::random()
            .map_err(|error| OpenError::System(error.raw_os_error().unwrap_or(0)))?;
        let Parts { regions, tables, half, heap, wake, .. } = self;
        let Tables { pool, generations, producer, consumer, known } = tables;
        let own = Own::new(endpoint_id, pool, generations, producer);
        let shared = Shared {
            regions,
            domain: RailDomain::Loopback(domain),
            set_up: SetUp::Own(Mutex::new(own)),
            heap,
            wake,
            generations,
        };
        let machine = Machine::Loopback(machine);
        // SAFETY: cut from the block for this (`open`), which outlives the endpoint.
        let shared = unsafe { Half::put(half, shared) };
        Ok(Endpoint { machine, known, events: consumer, mailbox_key, generations, shared })
    }
}
