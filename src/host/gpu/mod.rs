//! Memory of GPUs that an endpoint's user registers, and that of peers.
//!
//! Registration finds the GPU by the address, opens streams on it once, and keeps what another
//! process needs to map each allocation. A helper thread hands that out, and maps what peers have,
//! so that the data thread never waits for the driver ([`helper`]).

mod flushes;
mod helper;
mod record;

use super::error::RegisterError;
use super::log::news;
use crate::base::units::Bytes;
use crate::base::words::{said, wraps};
use crate::connect::{Name, Socket, Trust, random};
use crate::fabric::{Domain, MemoryKind, RailKey, Region};
use crate::memory::cuda::pointer::is_writable;
use crate::memory::cuda::vmm::{is_private, range_of};
use crate::memory::cuda::{CudaError, Gpu, Handle, Library, LoadError, Place, Segment, dmabuf};
use crate::memory::{Errno, WakeFd, heap, locked, threads};
use crate::provider::copy_engine::{Exporter, GPUS_MAX, LaneError, Shared as Gpus};
use crate::provider::shm::ShmDomain;
pub(in crate::host) use flushes::Flushes;
pub use flushes::{FlushId, GpuFlushes};
use helper::Helper;
use std::collections::BTreeMap;
use std::format;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use std::vec::Vec;

/// How long an endpoint that is closed waits for copies under way.
const END_PATIENCE: Duration = Duration::from_secs(2);

said! {
    /// Why memory of a GPU cannot be registered.
    #[derive(Debug)]
    pub enum GpuError {
        /// There is no driver.
        Driver(error: LoadError) => "{error}",
        /// The driver refused.
        Cuda(error: CudaError) => "{error}",
        /// It is not memory of a GPU.
        Place(what: Place) => |f| match what {
            Place::Managed => {
                f.write_str("it is managed memory, which no other process can map: use cudaMalloc")
            }
            _ => f.write_str("it is no memory of a GPU, or not any more; register memory of the \
                              host with XTIE_MEMORY_HOST"),
        },
        /// Its two ends lie in different places.
        Torn => "it does not lie in memory of one GPU from end to end",
        /// Several allocations of cudaMalloc, of which a peer can open but one.
        Several => "it lies in several allocations of cudaMalloc: register each by itself",
        /// It may not be written.
        ReadOnly => "its GPU may not write it: allow reads and writes by cuMemSetAccess",
        /// More GPUs than there is room for.
        Number(number: i32) => "it is of GPU {number}, and there is room for {GPUS_MAX}",
        Lanes(error: LaneError) => "its GPU cannot be used: {error}",
        /// What NICs write to it must be flushed.
        Flush => "what a NIC writes to it would need a flush",
        /// The helper thread cannot be started, or heard.
        Helper(error: io::Error) => "no helper thread: {error}",
    }
}

wraps!(GpuError: Cuda(CudaError));

/// A region as others may have it.
#[derive(Debug)]
pub struct Export {
    start: u64,
    bytes: u64,
    /// The id of its GPU.
    gpu: u128,
    /// Its allocations; none where other processes cannot map it.
    segments: Vec<Segment>,
}

/// What the user's threads and the helper share.
#[derive(Debug)]
pub(super) struct Exports {
    /// By the region's key.
    regions: Mutex<BTreeMap<u64, Export>>,
    /// Keys that peers have to be told about.
    gone: Mutex<Vec<u64>>,
    stop: AtomicBool,
    /// What peers have stays mapped: copies out of it are under way.
    keep: AtomicBool,
}

/// The memory of GPUs of one endpoint.
pub struct GpuMemory {
    gpus: Arc<Gpus>,
    exports: Arc<Exports>,
    trust: Trust,
    domain: ShmDomain<'static>,
    helper: Mutex<Option<JoinHandle<()>>>,
}

impl GpuMemory {
    /// Of an endpoint whose memory is known to `domain`, for peers that `trust` admits. Neither
    /// the driver is loaded nor a thread started before memory of a GPU is registered.
    pub fn new(domain: ShmDomain<'static>, trust: Trust) -> GpuMemory {
        let gpus = Gpus::new();
        let exports = Exports {
            regions: Mutex::default(),
            gone: Mutex::default(),
            stop: AtomicBool::new(false),
            keep: AtomicBool::new(false),
        };
        let (gpus, exports) = (Arc::new(gpus), Arc::new(exports));
        let domain = domain.with_gpus();
        GpuMemory { gpus, exports, trust, domain, helper: Mutex::new(None) }
    }

    /// What the copy engine shares with this.
    pub fn gpus(&self) -> &Arc<Gpus> {
        &self.gpus
    }

    /// The peers that it is open to.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The number of the GPU that a range lies in, which can be used from now on, and the region.
    pub fn prepare(&self, address: u64, length: Bytes) -> Result<(u32, Export), GpuError> {
        let library = Library::load().map_err(GpuError::Driver)?;
        let last = address.checked_add(length.0).and_then(|end| end.checked_sub(1));
        let (place, last) = (Place::of(library, address)?, last.ok_or(GpuError::Torn)?);
        let Place::Device(number) = place else { return Err(GpuError::Place(place)) };
        if Place::of(library, last)? != place {
            return Err(GpuError::Torn);
        }
        let gpu = Arc::new(Gpu::at(library, number)?);
        let segments = segments(&gpu, address, length.0)?;
        let at = usize::try_from(number).ok().filter(|number| *number < GPUS_MAX);
        helper::open_lanes(&self.gpus, at.ok_or(GpuError::Number(number))?, &gpu, &self.domain)?;
        self.helper_start()?;
        let id = u128::from_be_bytes(gpu.uuid()?);
        Ok((number as u32, Export { start: address, bytes: length.0, gpu: id, segments }))
    }

    /// A region was registered under `key`: peers may have it, where they can map it.
    pub fn publish(&self, key: RailKey, export: Export) {
        if !export.segments.is_empty() {
            locked(&self.exports.regions).insert(key.0, export);
        }
    }

    /// A region was forgotten: peers are told.
    pub fn withdraw(&self, key: RailKey) {
        if locked(&self.exports.regions).remove(&key.0).is_some() {
            locked(&self.exports.gone).push(key.0);
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(wake) = self.gpus.imports.wake() {
            wake.ring();
        }
    }

    fn helper_start(&self) -> Result<(), GpuError> {
        let system = |errno: Errno| GpuError::Helper(io::Error::from_raw_os_error(errno.0));
        let mut helper = locked(&self.helper);
        if helper.is_some() {
            return Ok(());
        }
        let exporter = Exporter {
            name: random().map_err(GpuError::Helper)?,
            secret: random().map_err(GpuError::Helper)?,
        };
        let listener = Socket::listen(&socket_of(exporter)).map_err(GpuError::Helper)?;
        let wake = WakeFd::create().map_err(system)?;
        let (gpus, exports) = (Arc::clone(&self.gpus), Arc::clone(&self.exports));
        let mut work =
            Helper::new(gpus, exports, listener, exporter, self.trust.clone(), self.domain);
        self.gpus.imports.wake_set(wake);
        *helper = Some(threads::start("crosstie-gpu", move || work.run()).map_err(system)?);
        let _ = self.gpus.exporter.set(exporter);
        Ok(())
    }
}

impl Drop for GpuMemory {
    /// The rails are gone. What a stream may still touch stays.
    fn drop(&mut self) {
        if !self.gpus.settle(END_PATIENCE) {
            news::gpu_copies_left();
            core::mem::forget(Arc::clone(&self.gpus));
            self.exports.keep.store(true, Ordering::Release);
        }
        self.exports.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(helper) = locked(&self.helper).take() {
            let _ = helper.join();
        }
    }
}

/// A dma-buf of a region.
pub(in crate::host) struct Dmabuf {
    /// The user's, or of this value's.
    pub descriptor: RawFd,
    /// Where the region's first byte lies in it.
    pub offset: u64,
    _made: Option<OwnedFd>,
}

/// Where an address lies, as the driver knows it; `None`: the process has no driver, or that fails.
pub(in crate::host) fn place_of(address: u64) -> Option<Place> {
    Place::of(Library::loaded()?, address).ok()
}

/// What ports want of memory of a GPU.
#[derive(Copy, Clone, Debug)]
pub(in crate::host) struct Wants {
    /// Some want a dma-buf.
    pub dmabufs: bool,
    /// Some want its address alone.
    pub addresses: bool,
    /// The user flushes what they have written, as NCCL does.
    pub flushed: bool,
}

/// What ports register a region of a GPU by. The dma-buf is the one that is `given`, or one that is
/// made, which lives as long as the result. The region's first byte lies at an offset in it.
///
/// *Errors*: NICs may not write to the GPU, or all ports want a dma-buf that cannot be made.
pub(in crate::host) fn for_ports(
    number: u32,
    region: Region,
    given: Option<(RawFd, u64)>,
    wants: Wants,
) -> Result<Option<Dmabuf>, GpuError> {
    let library = Library::load().map_err(GpuError::Driver)?;
    let gpu = Gpu::at(library, number as i32)?;
    if !dmabuf::suits_nics(&gpu, wants.flushed)? {
        return Err(GpuError::Flush);
    }
    if !wants.dmabufs {
        return Ok(None);
    }
    if let Some((descriptor, offset)) = given {
        return Ok(Some(Dmabuf { descriptor, offset, _made: None }));
    }
    let page = heap::page_bytes() as u64;
    let start = region.address / page * page;
    let end = (region.address + region.length.0).next_multiple_of(page);
    match dmabuf::export(&gpu.enter()?, start, (end - start) as usize) {
        Ok(file) => {
            let (descriptor, offset) = (file.as_raw_fd(), region.address - start);
            Ok(Some(Dmabuf { descriptor, offset, _made: Some(file) }))
        }
        Err(_) if wants.addresses => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The socket of an exporter.
fn socket_of(exporter: Exporter) -> Name {
    let name = format!("crosstie-gpu-{:032x}", exporter.name);
    Name::abstract_of(name.as_bytes()).expect("a short name")
}

/// The allocations that a range lies in: mapped one behind the other, or one of cuMemAlloc.
fn segments(gpu: &Arc<Gpu>, address: u64, length: u64) -> Result<Vec<Segment>, GpuError> {
    let entered = gpu.enter()?;
    let (mut at, mut all, mut private) = (address, Vec::new(), None);
    let place = Place::of(gpu.library(), address)?;
    while at < address + length {
        if Place::of(gpu.library(), at)? != place {
            return Err(GpuError::Torn); // nothing lies behind the first ones, or another GPU's
        }
        if !is_writable(entered.library(), at)? {
            return Err(GpuError::ReadOnly);
        }
        let (start, bytes) = range_of(&entered, at)?;
        match Segment::of(&entered, at) {
            Ok(segment) => all.push(segment),
            Err(error) if is_private(&error) => private = Some(error),
            Err(error) => return Err(error.into()),
        }
        at = start + bytes;
    }
    if let Some(error) = private {
        // what peers copy out of it goes through memory of the host
        news::gpu_memory_private(address, length, &error);
        return Ok(Vec::new());
    }
    let is_opened_whole = |segment: &Segment| matches!(segment.handle, Handle::Ipc(_));
    match all.len() > 1 && all.iter().any(is_opened_whole) {
        true => Err(GpuError::Several),
        false => Ok(all),
    }
}

/// Registers memory of a GPU with shared memory, under whose peers it moves.
///
/// # Safety
/// - as `Shared::register`.
pub unsafe fn register(
    memory: &GpuMemory,
    address: u64,
    length: Bytes,
) -> Result<(Region, RailKey, Export), RegisterError> {
    let (number, export) = memory.prepare(address, length).map_err(|error| {
        news::gpu_memory_refused(address, length.0, &error);
        match error {
            GpuError::Place(_) | GpuError::Driver(_) | GpuError::Flush => RegisterError::Kind,
            GpuError::Torn | GpuError::Several | GpuError::ReadOnly => RegisterError::Range,
            GpuError::Cuda(error) | GpuError::Lanes(LaneError::Cuda(error)) => {
                RegisterError::Fabric(error.code as i32)
            }
            GpuError::Lanes(LaneError::System(errno)) => RegisterError::Fabric(errno.0),
            GpuError::Number(_) => RegisterError::Full,
            GpuError::Helper(error) => RegisterError::Fabric(error.raw_os_error().unwrap_or(0)),
        }
    })?;
    let region = Region { address, length, kind: MemoryKind::Cuda(number) };
    // SAFETY: the caller's promise is the domain's.
    let key = unsafe { memory.domain.register(region) }?;
    Ok((region, key, export))
}
