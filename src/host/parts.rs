//! What an endpoint is put together from.

use super::choice::device::{DeviceKind, Rails};
use super::choice::network::{Network, Streams};
use super::choice::options::{self, Options};
use super::choice::plan::Plan;
use super::choice::ports;
use super::choice::settings::Environment;
use super::choice::vendor::VendorRail;
use super::endpoint::Endpoint;
use super::error::OpenError;
use super::gpu::Flushes;
use super::gpu::GpuMemory;
use super::group::gpu_adds::GpuAdds;
use super::life::known::{Known, LaneKnown};
use super::life::lanes::Lanes;
use super::life::linger::Linger;
use super::life::vouch::Vouching;
use super::link_memory::HostMemory;
use super::log::event::tell;
use super::log::network::NetworkEvent;
use super::log::news::{self, note};
use super::log::stalls::Stalls;
use super::machine::Machine;
use super::own::Own;
use super::ports_memory::PortsMemory;
use super::shared::{Half, PortsDomain, RailDomain, SetUp, Shared};
use crate::base::carve::{BlockTooSmall, Carver, RawSlice};
use crate::base::pool::Pool;
use crate::base::ring::{self, Consumer, Producer};
use crate::base::sync::{AtomicU32, AtomicU64, Cell};
use crate::base::units::{Bytes, Span};
use crate::connect::{Band, BandConfig, BandEvent, BandTables, LocalTemplate, Trust, Wake, Watch};
use crate::fabric::{Domain, MemoryDomain, RailKey};
use crate::memory::probe::clock_ns;
use crate::memory::{Errno, SharedHeap, WaitSet, WakeFd, available, probe, wake};
use crate::provider::loopback::Loopback;
use crate::provider::rail_set::RailSet;
use crate::provider::shm::{self, HeapSpan, RingSizes};
use crate::provider::tcp;
use crate::transport::limits::CREDITS;
use crate::transport::{self, Config, DataMrs};
use crate::wire::hello::{
    AddressList, CONNECT_FILLED, CONNECT_GPUS, CONNECT_PROBED, CONNECT_PUSH, CONNECT_ROWS,
    CONNECT_RUNS, CONNECT_SUMS, CONNECT_SUMS_WANTED,
};
use std::boxed::Box;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// Regions that a heap can be cut into besides those that can be registered.
const HEAP_SPARE: usize = 16;

/// Least address space that is left for what an endpoint allocates and maps in small pieces, and
/// for a thread's stack of 2 MiB. Rust ends the process where an allocation fails.
const ROOM_BYTES: u64 = 4 << 20;
/// The same of each connection: rows of tables, of 3 KiB together.
const ROOM_BYTES_EACH: u64 = 4096;

/// Refuses what a limit on the address space would end half-way.
pub(super) fn room_check(options: &Options) -> Result<(), OpenError> {
    let connections = u64::from(options.limits.connections_max);
    let needed = ROOM_BYTES + ROOM_BYTES_EACH * connections;
    if available::address_space_left() < needed {
        return Err(Errno::NO_MEMORY.into());
    }
    Ok(())
}

/// The tables that data thread and side band share.
pub(super) struct Tables {
    pool: Pool<'static>,
    generations: &'static [AtomicU32],
    producer: Producer<'static, BandEvent>,
    consumer: Consumer<'static, BandEvent>,
    known: &'static mut [Known],
    lanes: &'static mut [LaneKnown],
}

impl From<BlockTooSmall> for OpenError {
    fn from(_: BlockTooSmall) -> OpenError {
        OpenError::Storage
    }
}

impl From<tcp::OpenError> for OpenError {
    fn from(error: tcp::OpenError) -> OpenError {
        match error {
            tcp::OpenError::Block => OpenError::Storage,
            tcp::OpenError::Settings => OpenError::Device,
            tcp::OpenError::Cpu(cpu) => OpenError::Cpu(cpu),
            tcp::OpenError::System(code) => OpenError::System(code),
        }
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        OpenError::System(errno.0)
    }
}

impl Tables {
    pub(super) fn carve(
        block: &mut Carver<'static>,
        options: &Options,
        salt: u32,
    ) -> Result<Tables, OpenError> {
        let connections = options.limits.connections_max as usize;
        let head: &AtomicU64 = block.value()?;
        let next: &[AtomicU32] = block.slice(connections)?;
        let generations: &[AtomicU32] = block.filled_with(connections, || AtomicU32::new(salt))?;
        let indices = block.value::<ring::Indices>()?;
        let cells: &[Cell<BandEvent>] = block.slice(options::events(&options.limits))?;
        let (producer, consumer) = ring::split(indices, cells);
        let known = block.filled(connections, Known::NOTHING)?;
        let lanes = connections * options::lanes_each(&options.limits);
        let lanes = block.filled(lanes, LaneKnown::NOTHING)?;
        Ok(Tables { pool: Pool::new(head, next), generations, producer, consumer, known, lanes })
    }
}

pub(super) fn heap_create(options: &Options) -> Result<Option<Arc<SharedHeap>>, OpenError> {
    if options.heap_bytes == Bytes::ZERO {
        return Ok(None);
    }
    let regions = options.limits.regions_max as usize;
    let head = shm::board_bytes(options.limits.regions_max + 1);
    let (reserve, allocations) = (options.heap_bytes.as_usize(), regions + HEAP_SPARE);
    let heap = SharedHeap::create(c"crosstie-heap", reserve, head, allocations);
    let heap = heap.or_else(|errno| match probe::shared_memory() {
        Ok(()) => Err(errno),
        // who sends from there need not know; peers of this host read it by no other rail
        Err((call, errno)) => {
            tell(&NetworkEvent::PrivateHeap { call, errno });
            SharedHeap::private(reserve, allocations)
        }
    })?;
    Ok(Some(Arc::new(heap)))
}

/// What both kinds of endpoint are put together from.
pub(super) struct Parts {
    pub(super) salt: u32,
    pub(super) options: Options,
    pub(super) environment: Environment,
    pub(super) regions: DataMrs<'static>,
    pub(super) tables: Tables,
    /// The place of [`Shared`].
    pub(super) half: RawSlice,
    pub(super) heap: Option<Arc<SharedHeap>>,
    pub(super) wake: Arc<WakeFd>,
}

/// A machine that stands, and what goes beside it.
struct Opened {
    machine: Machine,
    domain: RailDomain,
    gpus: Box<GpuMemory>,
    /// What wakes a sleeper, where that is more than the doorbell.
    wait: Option<WaitSet>,
    mailbox_key: RailKey,
}

impl Parts {
    fn config(&self, streams: &Streams) -> Config {
        let over_tcp = self.options.tcp_eager_bytes_max();
        let over_tcp = match streams.threads {
            0 => over_tcp,
            _ => over_tcp.min(options::TCP_EAGER_BESIDE_THREADS),
        };
        let eager_bytes_max = self.options.eager_bytes_max.max(over_tcp);
        Config { eager_bytes_max, salt: self.salt, ..Config::default() }
    }

    pub(super) fn open_host(
        self,
        block: &mut Carver<'static>,
        vendor: Vec<VendorRail>,
    ) -> Result<Endpoint, OpenError> {
        let limits = self.options.limits;
        let mut network = Network::choose(&self.options, &self.environment, vendor)?;
        let mut rail = self.rail(block, &network)?;
        if !network.ports.is_empty() {
            ports::open(&mut rail, &mut network.ports, &limits, &self.environment);
            network.rails_of_ports();
            if self.options.companions {
                ports::companions_open(&mut rail, &network.ports);
            }
        }
        self.open_on(block, network, rail)
    }

    fn open_on(
        self,
        block: &mut Carver<'static>,
        mut network: Network,
        mut rail: RailSet<'static>,
    ) -> Result<Endpoint, OpenError> {
        // again: buffers of rails were mapped
        room_check(&self.options)?;
        let limits = self.options.limits;
        let mut fds = rail.wait_fds();
        fds.push(self.wake.fd().as_raw_fd());
        // one alone needs no set
        let wait = if fds.len() > 1 { Some(WaitSet::over(&fds)?) } else { None };
        let domain = rail.domain();
        let trust = Trust::new(network.key.clone(), self.environment.users);
        let gpus = Box::new(GpuMemory::new(domain, trust));
        rail.gpus_use(Arc::clone(gpus.gpus()));
        let config = self.config(&network.streams);
        let mut machine = transport::Endpoint::open(block, limits, config, self.regions, rail)?;
        assert_eq!(block.left(), 0, "what was cut is what `Options::bytes` says");
        let mailboxes = machine.mailboxes();
        // SAFETY: the mailboxes lie in the block, which outlives the machine.
        let key = unsafe { domain.register(mailboxes.region()) }.map_err(|_| OpenError::Storage)?;
        // SAFETY: as above.
        let ports = unsafe {
            let (rail, region) = (machine.rail_mut(), mailboxes.region());
            ports::mailboxes_register(rail, &mut network.ports, &self.environment, region)
        };
        network.rails_of_ports();
        network.required_check(self.options.device, &self.environment)?;
        let template = self.template(&mailboxes, key);
        let domain = match ports.is_empty() {
            true => RailDomain::Host(domain),
            false => {
                let ports = PortsMemory::open(ports, limits.regions_max, self.options.gpu_flushes)?;
                RailDomain::Ports(Box::new(PortsDomain { host: domain, ports }))
            }
        };
        let machine = Machine::Host(machine);
        let opened = Opened { machine, domain, gpus, wait, mailbox_key: key };
        self.open_band(network, template, opened)
    }

    fn open_band(
        self,
        network: Network,
        template: LocalTemplate,
        opened: Opened,
    ) -> Result<Endpoint, OpenError> {
        let limits = self.options.limits;
        let Opened { machine, domain, gpus, wait, mailbox_key } = opened;
        let Parts { options, environment, regions, tables, half, heap, wake, .. } = self;
        let memory = HostMemory {
            heap: heap.clone(),
            wake: Arc::clone(&wake),
            kernel_copy: environment.kernel_copy,
            heap_told: false,
        };
        let (linger, stall) = (environment.peer_timeout, environment.stall);
        let end_with_rdma = options.companions;
        let (device, rails, addresses) = (options.device, network.rails, network.addresses);
        let plan = Plan { rails, ports: network.ports.iter().map(ports::Port::planned).collect() };
        let config = band_config(environment, network, &options, template, &wake);
        let shared_tables = BandTables {
            pool: tables.pool,
            generations: tables.generations,
            events: tables.producer,
        };
        let band = Band::open(config, shared_tables, memory);
        let band = band.map_err(OpenError::Band)?;
        news::opened(device, rails, &addresses, band.node_id());
        let watch = band.watch().unwrap_or_default();
        let stalls = Stalls::new(watch, stall, limits.connections_max as usize);
        band.watch_start(stalls.look_span());
        let set_up = SetUp::Band(band);
        let generations = tables.generations;
        let gpus = Some(gpus);
        let shared = Shared { regions, domain, gpus, set_up, heap, wake, wait, generations };
        Ok(Endpoint {
            machine,
            lanes: Lanes::new(tables.lanes, tables.known.len(), end_with_rdma),
            known: tables.known,
            flushes: Flushes::new(),
            events: tables.consumer,
            mailbox_key,
            generations,
            left: 0,
            orphans: 0,
            vouching: Vouching::new(limits.connections_max as usize),
            asked: 0,
            linger: Linger::new(linger),
            has_happened: false,
            opened_ns: clock_ns(),
            stalls,
            plan,
            gpu_adds: GpuAdds::NONE,
            // SAFETY: cut from the block for this (`open`), which outlives the endpoint.
            shared: unsafe { Half::put(half, shared) },
        })
    }

    /// The rails that the network is reached by.
    fn rail(
        &self,
        block: &mut Carver<'static>,
        network: &Network,
    ) -> Result<RailSet<'static>, OpenError> {
        let (device, limits) = (self.options.device, self.options.limits);
        let set = options::rail_limits(device, &limits);
        let shared = self.heap.as_ref().filter(|heap| heap.is_shared());
        let span = shared.map(|heap| HeapSpan { start: heap.start(), length: heap.length() });
        let tcp = network.rails.tcp.then(|| {
            let Streams { each, threads, cpus: thread_cpus, .. } = network.streams;
            let call_bytes = self.options.tcp_call_bytes;
            let settings = tcp::Settings { threads, thread_cpus, call_bytes };
            (options::tcp_limits(&limits, each), settings)
        });
        // SAFETY: the heap's head was allocated for the board (`heap_create`), and the endpoint
        // keeps the heap until after the machine is gone (`close`).
        let mut rail = unsafe { RailSet::open(block, &set, span, tcp) }?;
        if network.rails.shm && self.options.push {
            rail.lanes_reserve()?;
        }
        let threads = self.environment.shm_threads.unwrap_or(self.options.shm_threads);
        // SAFETY: heap and rings go after the machine (`close`), and who registers memory keeps it
        // until it was deregistered, which is refused while threads copy.
        unsafe { rail.copy_threads(threads) };
        Ok(rail)
    }

    fn template(&self, mailboxes: &transport::mr::CtrlMr, key: RailKey) -> LocalTemplate {
        LocalTemplate {
            mailbox_key: key.0,
            mailbox_base: mailboxes.address(0),
            mailbox_stride: mailboxes.stride() as u64,
            groups_max: self.options.limits.groups_max(),
            credits: CREDITS,
            eager_bytes_max: self.options.eager_bytes_max.0 as u32,
            tcp_eager_bytes_max: self.options.tcp_eager_bytes_max().0 as u32,
            data_rails: self.options.limits.rails_max,
            control_rails: self.options.limits.rails_max,
            features: CONNECT_PROBED
                | CONNECT_RUNS
                | CONNECT_FILLED
                | CONNECT_ROWS
                | CONNECT_GPUS
                | CONNECT_SUMS
                | if self.environment.checksum { CONNECT_SUMS_WANTED } else { 0 }
                | if self.options.push { CONNECT_PUSH } else { 0 },
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

    pub(super) fn open_loopback(self, block: &mut Carver<'static>) -> Result<Endpoint, OpenError> {
        let limits = self.options.limits;
        let rail = Loopback::open(options::loopback_limits(&limits), block)?;
        let domain = rail.domain();
        let config = self.config(&Streams::ONE);
        let machine = transport::Endpoint::open(block, limits, config, self.regions, rail)?;
        assert_eq!(block.left(), 0, "what was cut is what `Options::bytes` says");
        // SAFETY: the mailboxes lie in the block, which outlives the machine.
        let mailbox_key = unsafe { domain.register(machine.mailboxes().region()) }
            .map_err(|_| OpenError::Storage)?;
        let endpoint_id = crate::connect::random()
            .map_err(|error| OpenError::System(error.raw_os_error().unwrap_or(0)))?;
        let node_id = self.environment.node_id.or_else(|| crate::connect::node_id().ok());
        news::opened(DeviceKind::Loopback, Rails::NONE, &AddressList::EMPTY, node_id.unwrap_or(0));
        let Parts { regions, tables, half, heap, wake, environment, .. } = self;
        let Tables { pool, generations, producer, consumer, known, lanes } = tables;
        let own = Own::new(endpoint_id, pool, generations, producer);
        let shared = Shared {
            regions,
            domain: RailDomain::Loopback(domain),
            gpus: None,
            set_up: SetUp::Own(Mutex::new(own)),
            heap,
            wake,
            wait: None,
            generations,
        };
        let machine = Machine::Loopback(machine);
        let watch = Arc::new(Watch::default());
        let connections = limits.connections_max as usize;
        let stalls = Stalls::new(watch, environment.stall, connections);
        // SAFETY: cut from the block for this (`open`), which outlives the endpoint.
        let shared = unsafe { Half::put(half, shared) };
        Ok(Endpoint {
            machine,
            known,
            lanes: Lanes::new(lanes, connections, false),
            flushes: Flushes::new(),
            events: consumer,
            mailbox_key,
            generations,
            left: 0,
            orphans: 0,
            vouching: Vouching::new(0),
            asked: 0,
            linger: Linger::new(Span::millis(0)),
            has_happened: false,
            opened_ns: clock_ns(),
            stalls,
            plan: Plan { rails: Rails::NONE, ports: Vec::new() },
            gpu_adds: GpuAdds::NONE,
            shared,
        })
    }
}

/// What the side band is told.
fn band_config(
    environment: Environment,
    network: Network,
    options: &Options,
    template: LocalTemplate,
    wake: &WakeFd,
) -> BandConfig {
    let connections_max = options.limits.connections_max;
    BandConfig {
        shm_dir: environment.shm_dir,
        handshake_deadline: options.handshake_deadline,
        links_max: 2 * connections_max,
        listeners_max: connections_max,
        node_id: environment.node_id,
        rails: network.rail_bits(),
        streams: network.streams.each,
        descriptors_max: network.streams.descriptors_max,
        lanes_max: options.limits.rails_max,
        lanes_wish: match environment.tcp_rails {
            0 => options.tcp_rails,
            wish => wish,
        },
        ports: ports::port_list(&network.ports),
        pair_ports: ports::pair_ports,
        addresses: network.addresses,
        without_interface: network.without_interface,
        bind: environment.socket_ifname.is_some(),
        excluded: network.excluded,
        spare: network.spare,
        membarrier: wake::barrier_register(),
        trust: Trust::new(network.key, environment.users),
        peer_deadline: environment.peer_timeout,
        accept_taken: options.accept_taken,
        thread_retires: options.thread_retires,
        template,
        wake: Wake { call: |fd| wake::ring(fd as i32), context: wake.fd().as_raw_fd() as usize },
        note,
    }
}
