//! An endpoint over a provider in C: the machine, in storage of the caller.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;

use crosstie::base::carve::{BLOCK_ALIGN, Carver, lines};
use crosstie::base::ids::PeerIndex;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Caps, DeregisterError, Domain, FenceKind, MemoryDomain, MemoryKind, RailKey, Region,
    RegisterError,
};
use crosstie::provider::vendor::abi::*;
use crosstie::provider::vendor::flights::{self, Flights};
use crosstie::provider::vendor::sized::{self, Sized32};
use crosstie::provider::vendor::{Table, TableError, Vendor};
use crosstie::transport::limits::CREDITS;
use crosstie::transport::{Config, DataMrs, Endpoint, Limits};

use crate::result::xtie_core_result;
use crate::result::xtie_core_result::*;

/// An endpoint: the library's state for one thread of the program, in storage that the program
/// gives. Not for looking into.
pub struct xtie_core_endpoint {
    _opaque: [u8; 0],
}

/// What an endpoint is opened with. A field that is zero means the default.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_core_config {
    /// sizeof(xtie_core_config).
    pub struct_size: u32,
    /// Most connections at a time, 1 to 65536; default 8. Each is a peer of the provider's, with
    /// the same number.
    pub connections_max: u32,
    /// Most outstanding sends, and groups of receives, of one connection: 32, 64, 128 or 256;
    /// default 32.
    pub requests_max: u32,
    /// Most pieces of registered memory, 1 to 65534; default 16.
    pub regions_max: u32,
    /// Longest message in bytes that is copied instead of taken from its place; default 8192, and
    /// never more than the provider's send_bytes_max.
    pub eager_bytes_max: u32,
    /// A random number, by which requests of different endpoints differ; may be zero.
    pub salt: u32,
}

// SAFETY: integers; the size comes first.
unsafe impl Sized32 for xtie_core_config {
    const FIRST_BYTES: usize = 24;
}

/// Shortest sends that carry every kind of control message.
const SEND_BYTES_MIN: u64 = 512;
/// Bytes copied per call of progress, about.
const BUDGET: Bytes = Bytes::kib(256);
/// Regions of the library's own: the mailboxes.
const REGIONS_OWN: u32 = 1;
/// Ops that the provider may have of a connection and not have ended; with more it is "not now".
const OPS_MAX: u32 = 64;

const OPEN: u64 = 0x7469_636f_7265_2e31;
const CLOSED: u64 = 0x7469_636c_6f73_2e32;

/// An endpoint at the start of its storage.
#[repr(C, align(64))]
struct Room {
    /// Says how it is; memory that never was an endpoint is recognised.
    state: u64,
    host: UnsafeCell<ManuallyDrop<Host>>,
}

/// What one thread uses.
pub struct Host {
    pub machine: Endpoint<'static, Vendor<'static>>,
    pub regions: DataMrs<'static>,
    /// What the rail calls the mailboxes.
    pub mailbox_key: RailKey,
    /// As told to peers.
    pub eager: Bytes,
}

/// The configuration with its defaults filled in.
fn limits_of(config: &xtie_core_config) -> Result<(Limits, Bytes), xtie_core_result> {
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let limits = Limits {
        connections_max: or(config.connections_max, 8),
        requests_max: or(config.requests_max, 32),
        regions_max: or(config.regions_max, 16),
        rails_max: 1,
    };
    limits.check()?;
    Ok((limits, Bytes(or(config.eager_bytes_max, 8192).into())))
}

/// # Safety
/// - `config` is null, or valid for reads of the bytes that its first word says.
unsafe fn config_read(
    config: *const xtie_core_config,
) -> Result<xtie_core_config, xtie_core_result> {
    // SAFETY: by this function's contract.
    unsafe { sized::read(config) }.map_err(|error| TableError::from(error).into())
}

const fn storage_bytes(limits: &Limits) -> usize {
    lines(size_of::<Room>())
        + flights::bytes(limits.connections_max, OPS_MAX)
        + limits.machine_bytes()
        + limits.regions_bytes()
}

/// Storage that an endpoint takes, in bytes: known before it is opened, and never more. What the
/// provider takes is the provider's.
///
/// Returns XTIE_CORE_OK, or what is wrong with config.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_endpoint_size(
    config: *const xtie_core_config,
    bytes_out: *mut usize,
) -> c_int {
    if bytes_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    // SAFETY: by this function's contract.
    match unsafe { config_read(config) }.and_then(|config| limits_of(&config)) {
        Ok((limits, _)) => {
            // SAFETY: not null, and valid by this function's contract.
            unsafe { bytes_out.write(storage_bytes(&limits)) };
            XTIE_CORE_OK as c_int
        }
        Err(result) => result as c_int,
    }
}

/// Opens an endpoint over an object of a provider's, which it opens and in the end closes.
///
/// storage: aligned to 64 bytes, storage_bytes long; the library's until xtie_core_endpoint_close,
/// and not to be moved. config, ops: read during the call; the functions of ops stay in the
/// program. context: what the provider's open gets. endpoint_out: the endpoint.
/// Returns XTIE_CORE_OK; what is wrong with storage, config or table; XTIE_CORE_ERR_OPEN or _CAPS_
/// (the provider refused, or contradicts itself); XTIE_CORE_ERR_RAIL_SMALL (it has too little for
/// an endpoint); XTIE_CORE_ERR_MEMORY_KIND, _REGIONS_FULL or _FABRIC (it did not register the
/// mailboxes).
/// Threads: any one, which is the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_endpoint_open(
    storage: *mut c_void,
    storage_bytes: usize,
    config: *const xtie_core_config,
    ops: *const xtie_provider_ops,
    context: *mut c_void,
    endpoint_out: *mut *mut xtie_core_endpoint,
) -> c_int {
    if storage.is_null() || endpoint_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    let storage: *mut u8 = storage.cast();
    // SAFETY: by this function's contract.
    match unsafe { open(storage, storage_bytes, config, ops, context) } {
        Ok(()) => {
            // SAFETY: not null, and valid by this function's contract.
            unsafe { endpoint_out.write(storage.cast()) };
            XTIE_CORE_OK as c_int
        }
        Err(result) => result as c_int,
    }
}

/// # Safety
/// - as [`xtie_core_endpoint_open`]; `storage` is not null.
unsafe fn open(
    storage: *mut u8,
    bytes: usize,
    config: *const xtie_core_config,
    ops: *const xtie_provider_ops,
    context: *mut c_void,
) -> Result<(), xtie_core_result> {
    if !storage.addr().is_multiple_of(BLOCK_ALIGN) {
        return Err(XTIE_CORE_ERR_STORAGE_ALIGN);
    }
    // SAFETY: by this function's contract.
    let config = unsafe { config_read(config) }?;
    let (limits, eager) = limits_of(&config)?;
    let whole = self::storage_bytes(&limits);
    if bytes < whole {
        return Err(XTIE_CORE_ERR_STORAGE_SIZE);
    }
    // SAFETY: by this function's contract.
    let table = unsafe { Table::check(ops) }?;
    storage.expose_provenance(); // peers reach the mailboxes by address
    let room = lines(size_of::<Room>());
    // SAFETY: `whole` bytes are there (above), the room's lines are the first of them.
    let start = unsafe { storage.add(room) };
    // SAFETY: aligned and long enough, ours until close (this function's contract).
    let mut carver: Carver<'static> = unsafe { Carver::new(start, whole - room) };
    let small = |_| XTIE_CORE_ERR_STORAGE_SIZE;
    let flights = Flights::carve(&mut carver, limits.connections_max, OPS_MAX).map_err(small)?;
    let regions_max = limits.regions_max + REGIONS_OWN;
    // SAFETY: the context is the caller's word; the domain is used while the room stands, which
    // ends with the object.
    let rail = unsafe { Vendor::open(table, context, flights, regions_max) }?;
    let caps = rail.promised();
    if !carries(&caps) {
        return Err(XTIE_CORE_ERR_RAIL_SMALL);
    }
    let eager = eager.min(caps.send_payload_max);
    let config = Config { eager_bytes_max: eager, salt: config.salt, ..Config::default() };
    let regions = DataMrs::carve(&mut carver, limits.regions_max, config.salt).map_err(small)?;
    let machine = Endpoint::open(&mut carver, limits, config, regions, rail).map_err(small)?;
    let mailboxes = machine.mailboxes().region();
    // SAFETY: part of the storage, which stands until the object has been closed.
    let mailbox_key = unsafe { machine.rail().domain().register(mailboxes) }.map_err(registered)?;
    let host = Host { machine, regions, mailbox_key, eager };
    let host = UnsafeCell::new(ManuallyDrop::new(host));
    // SAFETY: aligned, and long enough for a room.
    unsafe { storage.cast::<Room>().write(Room { state: OPEN, host }) };
    Ok(())
}

/// Whether an endpoint can stand on such a rail.
fn carries(caps: &Caps) -> bool {
    let fences = match caps.fence {
        FenceKind::Local | FenceKind::WriterDrained => true,
        FenceKind::Endpoint | FenceKind::None => false,
    };
    fences
        && caps.copies_at_post
        && caps.recv_slots >= CREDITS
        && caps.send_payload_max.0 >= SEND_BYTES_MIN
}

fn registered(error: RegisterError) -> xtie_core_result {
    match error {
        RegisterError::Full => XTIE_CORE_ERR_REGIONS_FULL,
        RegisterError::Kind => XTIE_CORE_ERR_MEMORY_KIND,
        RegisterError::Range => XTIE_CORE_ERR_REGISTER_RANGE,
        RegisterError::Fabric(_) => XTIE_CORE_ERR_FABRIC,
    }
}

fn room<'a>(endpoint: *const xtie_core_endpoint) -> Result<&'a Room, xtie_core_result> {
    let place: *const Room = endpoint.cast();
    if place.is_null() {
        return Err(XTIE_CORE_ERR_NULL);
    }
    if !place.is_aligned() {
        return Err(XTIE_CORE_ERR_ENDPOINT);
    }
    // SAFETY: a pointer of `xtie_core_endpoint_open` whose storage the caller still keeps; anything
    // else that is readable is told by its first word.
    match unsafe { (*place).state } {
        // SAFETY: as above, and the word says that a room stands here.
        OPEN => Ok(unsafe { &*place }),
        CLOSED => Err(XTIE_CORE_ERR_CLOSED),
        _ => Err(XTIE_CORE_ERR_ENDPOINT),
    }
}

/// Runs a call of the endpoint's one thread. A rail that has given an answer that is none is not
/// used any more.
pub fn enter(
    endpoint: *const xtie_core_endpoint,
    call: impl FnOnce(&mut Host) -> Result<xtie_core_result, xtie_core_result>,
) -> c_int {
    let entered = room(endpoint).and_then(|room| {
        // SAFETY: one thread at a time is in here (crosstie_provider.h), and no call is nested.
        let host: &mut Host = unsafe { &mut *room.host.get() };
        match host.machine.rail().breach() {
            None => call(host),
            Some(_) => Err(XTIE_CORE_ERR_BREACH),
        }
    });
    entered.unwrap_or_else(|error| error) as c_int
}

/// Ends an endpoint, with its provider's object: afterwards nothing touches the storage, nor memory
/// that was registered or given to requests. Peers of connections that were not closed see what the
/// rail shows them.
///
/// Returns XTIE_CORE_OK, or what is wrong with the pointer.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_endpoint_close(endpoint: *mut xtie_core_endpoint) -> c_int {
    match room(endpoint) {
        Ok(room) => {
            // SAFETY: the one thread's, and the state below says that nobody takes it again.
            unsafe { ManuallyDrop::drop(&mut *room.host.get()) };
            let place: *mut Room = endpoint.cast();
            // SAFETY: the room's first word; `room` is not used any more.
            unsafe { (&raw mut (*place).state).write(CLOSED) };
            XTIE_CORE_OK as c_int
        }
        Err(result) => result as c_int,
    }
}

/// Moves everything on that can move now.
///
/// now_ns: the time in nanoseconds, of any clock that does not go back.
/// Returns XTIE_CORE_OK, or XTIE_CORE_ERR_BREACH: the provider gave an answer that is none, and the
/// endpoint cannot be used any more.
/// Threads: the endpoint's. Cost: at most 256 KiB copied by the provider.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_endpoint_progress(
    endpoint: *mut xtie_core_endpoint,
    now_ns: u64,
) -> c_int {
    enter(endpoint, |host| {
        host.machine.progress(Instant(now_ns), BUDGET);
        match host.machine.rail().breach() {
            None => Ok(XTIE_CORE_OK),
            Some(_) => Err(XTIE_CORE_ERR_BREACH),
        }
    })
}

/// Makes memory known to the endpoint and its peers, to send from and receive into.
///
/// data, bytes: the range; the program's, and to be kept until the memory is deregistered. kind:
/// XTIE_PROVIDER_MEMORY_. memory_out: its number.
/// Returns XTIE_CORE_OK, XTIE_CORE_ERR_REGIONS_FULL, _MEMORY_KIND, _REGISTER_RANGE or _FABRIC.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_memory_register(
    endpoint: *mut xtie_core_endpoint,
    data: *mut c_void,
    bytes: usize,
    kind: u32,
    memory_out: *mut u64,
) -> c_int {
    if memory_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    let address = data.expose_provenance() as u64;
    enter(endpoint, |host| {
        let kind = match kind & 0xff {
            XTIE_PROVIDER_MEMORY_HOST if kind < 0x100 => MemoryKind::Host,
            XTIE_PROVIDER_MEMORY_MAPPED if kind < 0x100 => MemoryKind::Mapped,
            XTIE_PROVIDER_MEMORY_CUDA => MemoryKind::Cuda(kind >> 8),
            _ => return Err(XTIE_CORE_ERR_MEMORY_KIND),
        };
        let region = Region { address, length: Bytes::of(bytes), kind };
        if bytes == 0 || address.checked_add(bytes as u64).is_none() {
            return Err(XTIE_CORE_ERR_REGISTER_RANGE);
        }
        let domain = host.machine.rail().domain();
        // SAFETY: by this function's contract.
        let key = unsafe { domain.register(region) }.map_err(registered)?;
        let mut keys = [RailKey(0); 8];
        keys[0] = key;
        // SAFETY: by this function's contract.
        let Some(handle) = (unsafe { host.regions.insert(region, &keys) }) else {
            let _ = domain.deregister(key); // nobody has seen it
            return Err(XTIE_CORE_ERR_REGIONS_FULL);
        };
        // SAFETY: not null, and valid by this function's contract.
        unsafe { memory_out.write(handle.pack()) };
        Ok(XTIE_CORE_OK)
    })
}

/// Forgets memory; after success no peer touches it.
///
/// Returns XTIE_CORE_OK, XTIE_CORE_ERR_MEMORY_BUSY (requests or ops use it; nothing was changed),
/// XTIE_CORE_ERR_MEMORY or _FABRIC.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_memory_deregister(
    endpoint: *mut xtie_core_endpoint,
    memory: u64,
) -> c_int {
    enter(endpoint, |host| {
        use crosstie::base::regions::RemoveError;
        let handle = Handle::unpack(memory);
        let refused = |error| match error {
            RemoveError::Busy => XTIE_CORE_ERR_MEMORY_BUSY,
            RemoveError::Stale => XTIE_CORE_ERR_MEMORY,
        };
        let keys = host.regions.idle_keys(handle).map_err(refused)?;
        match host.machine.rail().domain().deregister(keys[0]) {
            Ok(()) => {}
            Err(DeregisterError::Busy) => return Err(XTIE_CORE_ERR_MEMORY_BUSY),
            Err(DeregisterError::Stale) => return Err(XTIE_CORE_ERR_MEMORY),
            Err(DeregisterError::Fabric(_)) => return Err(XTIE_CORE_ERR_FABRIC),
        }
        host.regions.remove(handle).map_err(refused)?;
        Ok(XTIE_CORE_OK)
    })
}

/// The peer of the provider that carries a connection.
pub fn peer_of(connection: u32) -> PeerIndex {
    PeerIndex(connection)
}

const _: () = assert!(size_of::<xtie_core_config>() == 24);
