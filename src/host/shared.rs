//! The half of an endpoint that any thread may use: registration and set-up.

use super::error::{
    AcceptError, AllocateError, ConnectError, DeregisterError, ListenError, RegisterError,
};
use super::gpu::{self, GpuMemory};
use super::link_memory::HostMemory;
use super::log::news;
use super::memory_options::{MemoryError, MemoryOptions};
use super::own::Own;
use super::ports_memory::PortsMemory;
use crate::base::carve::{BLOCK_ALIGN, RawSlice};
use crate::base::regions::LENGTH_MAX;
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, Ordering};
use crate::base::units::{Bytes, Span};
use crate::connect::{Band, CloseError, Ending, ListenerId, PendingId};
use crate::fabric::{Domain, MemoryKind, RailKey, Region};
use crate::memory::cuda::pointer::is_of_gpu;
use crate::memory::heap::HeapError;
use crate::memory::{SharedHeap, WaitSet, WakeFd, locked};
use crate::provider::host_domain::HostDomain;
use crate::provider::shm::ShmDomain;
use crate::transport::{DataMrs, MAPPED};
use crate::wire::RAILS_MAX;
use crate::wire::handle::HANDLE_BYTES;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;
use static_assertions::assert_impl_all;
use std::boxed::Box;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

/// An attempt to connect that is under way.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Attempt(pub Handle);

/// Registration on the device's rail.
pub(super) enum RailDomain {
    Host(ShmDomain<'static>),
    /// With ports.
    Ports(Box<PortsDomain>),
    Loopback(HostDomain<'static>),
}

/// Registration with the rails of a host and with its ports.
pub(super) struct PortsDomain {
    pub(super) host: ShmDomain<'static>,
    pub(super) ports: PortsMemory,
}

impl RailDomain {
    fn domain(&self) -> &dyn Domain {
        match self {
            RailDomain::Host(domain) => domain,
            RailDomain::Ports(domain) => &domain.host,
            RailDomain::Loopback(domain) => domain,
        }
    }

    fn ports(&self) -> Option<&PortsMemory> {
        match self {
            RailDomain::Ports(domain) => Some(&domain.ports),
            RailDomain::Host(_) | RailDomain::Loopback(_) => None,
        }
    }
}

/// Who makes connections.
#[allow(clippy::large_enum_variant)] // one per endpoint, in the caller's storage, never moved
pub(super) enum SetUp {
    Band(Band<HostMemory>),
    Own(Mutex<Own>),
}

/// Registration and set-up. All functions may be called from any thread and never block, but that
/// memory becomes known to ports, and is forgotten, by one thread at a time.
pub struct Shared {
    pub(super) regions: DataMrs<'static>,
    pub(super) domain: RailDomain,
    /// Memory of GPUs, where there is shared memory to say where it lies.
    pub(super) gpus: Option<Box<GpuMemory>>,
    // dropped in this order: the side band before the memory that its links map
    pub(super) set_up: SetUp,
    pub(super) heap: Option<Arc<SharedHeap>>,
    pub(super) wake: Arc<WakeFd>,
    /// What wakes a sleeper, where that is more than `wake`.
    pub(super) wait: Option<WaitSet>,
    pub(super) generations: &'static [AtomicU32],
}

assert_impl_all!(Shared: Send, Sync);

/// An endpoint's hold on its [`Shared`], which lies in the endpoint's block, not in the endpoint:
/// another thread's `&Shared` and the data thread's `&mut Endpoint` never cover the same bytes.
pub struct Half(NonNull<Shared>);

// SAFETY: stands for a `Shared` and a `&Shared`, both of which may go to another thread (above).
unsafe impl Send for Half {}
// SAFETY: as above.
unsafe impl Sync for Half {}

impl Half {
    /// Moves `shared` to its place in the block.
    ///
    /// # Safety
    /// - `place` is a cut of a block that is valid until the result is dropped, as long as a
    ///   `Shared` at least, and nobody else touches it.
    pub(super) unsafe fn put(place: RawSlice, shared: Shared) -> Half {
        const { assert!(align_of::<Shared>() <= BLOCK_ALIGN) };
        assert!(place.length >= size_of::<Shared>());
        let start: *mut Shared = place.start.cast();
        // SAFETY: long enough (asserted), aligned as every cut is, ours by this contract.
        unsafe { start.write(shared) };
        // SAFETY: a cut of a block is not at address zero.
        Half(unsafe { NonNull::new_unchecked(start) })
    }

    /// Where it lies. A thread other than the endpoint's may use it there until the endpoint is
    /// closed, also while the endpoint's thread is in a call.
    pub fn place(&self) -> NonNull<Shared> {
        self.0
    }

    /// Ends the side band, then what it stood on.
    pub(super) fn close(self) {
        let held = ManuallyDrop::new(self);
        // SAFETY: `put` wrote it; nobody uses it any more (`Endpoint::open`), and the hold is not
        // dropped a second time.
        let shared = unsafe { held.0.read() };
        if let SetUp::Band(band) = shared.set_up {
            band.close();
        }
        drop((shared.heap, shared.wait, shared.wake));
    }
}

impl Deref for Half {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        // SAFETY: `put` wrote it, and only `close` and `drop`, which own the hold, end it. It is
        // never borrowed mutably.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // SAFETY: as in `close`.
        unsafe { self.0.drop_in_place() };
    }
}

/// Whether the generations say that a connection's handle is live. *Cost*: one load.
#[inline]
pub(super) fn is_live(generations: &[AtomicU32], connection: Handle) -> bool {
    connection.generation & 1 == 1 && is_current(generations, connection)
}

/// [`is_live`] of a handle that was live once.
#[inline(always)]
pub(super) fn is_current(generations: &[AtomicU32], connection: Handle) -> bool {
    generations.get(connection.index as usize).is_some_and(|generation| {
        // acquire: pairs with [connection-generation] of the side band
        generation.load(Ordering::Acquire) == connection.generation
    })
}

/// Registers memory with ports; that of a GPU by the dma-buf that the user gives, or by one that
/// the driver makes, and by its address with those that want that. Where no port takes such memory,
/// each says why. `None`: NICs may not write there, or there is no dma-buf, which was said.
///
/// # Safety
/// - as [`Shared::register_with`].
unsafe fn acquire(
    ports: &PortsMemory,
    region: Region,
    given: Option<(RawFd, u64)>,
    keys: &mut [RailKey],
) -> Result<Option<Handle>, RegisterError> {
    let wants = ports.gpu_wants();
    let dmabuf = match region.kind {
        MemoryKind::Cuda(number) if wants.dmabufs || wants.addresses => {
            match gpu::for_ports(number, region, given, wants) {
                Ok(dmabuf) => dmabuf,
                Err(error) => {
                    news::gpu_beside_ports(number, &error);
                    return Ok(None);
                }
            }
        }
        MemoryKind::Cuda(_) | MemoryKind::Host | MemoryKind::Mapped => None,
    };
    let place = dmabuf.as_ref().map(|dmabuf| (dmabuf.descriptor, dmabuf.offset));
    // SAFETY: the caller's promise; what was made here is open until this returns.
    unsafe { ports.acquire(region, place, keys) }.map(Some)
}

impl Shared {
    /// Makes memory known to the rails. Its handle goes with every request that uses it.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until it was deregistered with success, and
    ///   while a request stands nobody else touches what it was given.
    pub unsafe fn register(
        &self,
        address: u64,
        length: Bytes,
        kind: MemoryKind,
    ) -> Result<Handle, RegisterError> {
        self.may_register(length)?;
        if let MemoryKind::Cuda(_) = kind {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.register_gpu(address, length, None) };
        }
        if is_of_gpu(address) {
            news::memory_of_gpu_refused(address, length.0);
            return Err(RegisterError::Kind);
        }
        let region = Region { address, length, kind };
        // SAFETY: the caller's promise is the domain's.
        let key = unsafe { self.domain.domain().register(region) }?;
        // all other rails of this host reach its memory through one table
        // SAFETY: the caller's promise is the same.
        unsafe { self.enter(region, [key; RAILS_MAX], None) }
    }

    /// [`Shared::register`] of memory of which the user says more than its kind.
    ///
    /// # Safety
    /// - as [`Shared::register`]; the dma-buf is of this memory.
    pub unsafe fn register_with(
        &self,
        address: u64,
        length: Bytes,
        options: &MemoryOptions,
    ) -> Result<Handle, MemoryError> {
        self.may_register(length)?;
        options.check(address, length)?;
        Ok(match options.kind {
            // SAFETY: the caller's promise is the same.
            MemoryKind::Cuda(_) => unsafe { self.register_gpu(address, length, options.dmabuf)? },
            MemoryKind::Host | MemoryKind::Mapped => {
                // SAFETY: as above.
                unsafe { self.register(address, length, MemoryKind::Host)? }
            }
        })
    }

    fn may_register(&self, length: Bytes) -> Result<(), RegisterError> {
        if length.0 > LENGTH_MAX {
            return Err(RegisterError::Range);
        }
        if self.regions.is_full() {
            return Err(RegisterError::Full); // no rail need be asked
        }
        Ok(())
    }

    /// Makes memory of a GPU known, which is found by its address. Ports know it where it has a
    /// dma-buf.
    ///
    /// # Safety
    /// - as [`Shared::register_with`].
    unsafe fn register_gpu(
        &self,
        address: u64,
        length: Bytes,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<Handle, RegisterError> {
        let gpus = self.gpus.as_ref().ok_or(RegisterError::Kind)?;
        // SAFETY: the caller's promise is the same.
        let (region, key, export) = unsafe { gpu::register(gpus, address, length) }?;
        let mut keys = [RailKey(0); RAILS_MAX];
        keys[0] = key;
        // SAFETY: as above.
        let handle = unsafe { self.enter(region, keys, dmabuf) }?;
        gpus.publish(key, export);
        Ok(handle)
    }

    /// Enters a region that the first rail knows by the first key, which is given back in the case
    /// of an error. Ports know it from now on, too.
    ///
    /// # Safety
    /// - as [`Shared::register_with`].
    unsafe fn enter(
        &self,
        region: Region,
        mut keys: [RailKey; RAILS_MAX],
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<Handle, RegisterError> {
        let held = self.domain.ports().map(|ports| {
            // SAFETY: the caller's promise is that of the domains.
            let lease = unsafe { acquire(ports, region, dmabuf, &mut keys[1..]) };
            lease.map(|lease| lease.map(|lease| (ports, lease)))
        });
        let entered = held.unwrap_or(Ok(None)).and_then(|held| {
            // SAFETY: the caller's promise is the table's.
            let handle = unsafe { self.regions.insert(region, &keys) };
            match (handle, held) {
                (Some(handle), Some((ports, lease))) => ports.keep(handle, lease),
                (None, Some((ports, lease))) => ports.give_back(lease),
                (_, None) => {}
            }
            handle.ok_or(RegisterError::Full)
        });
        if entered.is_err() {
            // nobody has seen the key yet, so it cannot be busy
            let _ = self.domain.domain().deregister(keys[0]);
        }
        entered
    }

    /// Forgets memory of [`Shared::register`]. `Busy` while requests that use it stand. It is
    /// usable on then, but no more over ports that have forgotten it.
    pub fn deregister(&self, region: Handle) -> Result<(), DeregisterError> {
        match self.is_allocated(region) {
            Some(false) => self.forget(region),
            Some(true) | None => Err(DeregisterError::Stale),
        }
    }

    /// Whether a region is one of [`Shared::allocate`], if there is such a region.
    fn is_allocated(&self, region: Handle) -> Option<bool> {
        let range = self.regions.range(region)?;
        let within = |heap: &Arc<SharedHeap>| heap.contains(range.start, range.length);
        Some(range.tag == MAPPED && self.heap.as_ref().is_some_and(within))
    }

    fn forget(&self, region: Handle) -> Result<(), DeregisterError> {
        let keys = self.regions.idle_keys(region)?;
        // a request may begin at any moment: what it holds stays as it is
        self.regions.remove_with(region, || {
            if let Some(ports) = self.domain.ports() {
                ports.release(region, |keys| self.regions.keys_set(region, 1, keys))?;
            }
            let forgotten = self.domain.domain().deregister(keys[0]);
            if let (Ok(()), Some(gpus)) = (forgotten, &self.gpus) {
                gpus.withdraw(keys[0]);
            }
            if forgotten.is_err() && self.domain.ports().is_some() {
                self.regions.keys_set(region, 1, &[RailKey(0); RAILS_MAX - 1]);
            }
            forgotten
        })
    }

    /// Allocates shared memory that peers reach without a system call, and registers it. Where the
    /// kernel makes no shared memory, it is private.
    ///
    /// *Errors*: `Kind` when the endpoint was opened without a heap, `Full` when the table of
    /// regions is used up, `HeapFull` when its address space is, `Fabric` with the code when the
    /// system has no memory.
    pub fn allocate(&self, length: Bytes) -> Result<(*mut u8, Handle), AllocateError> {
        let heap = self.heap.as_ref().ok_or(RegisterError::Kind)?;
        let (start, _) = heap.allocate(length.as_usize()).map_err(|error| match error {
            HeapError::Argument => RegisterError::Range.into(),
            HeapError::Full => RegisterError::Full.into(),
            HeapError::Space => AllocateError::HeapFull,
            HeapError::System(errno) => RegisterError::Fabric(errno.0).into(),
        })?;
        let address = start.expose_provenance() as u64;
        // SAFETY: the allocation lives until `free`, which deregisters it first.
        match unsafe { self.register(address, length, MemoryKind::Mapped) } {
            Ok(handle) => Ok((start, handle)),
            Err(error) => {
                // SAFETY: nobody knows the allocation.
                let _ = unsafe { heap.free(start) };
                Err(error.into())
            }
        }
    }

    /// Deregisters and frees memory of [`Shared::allocate`].
    pub fn free(&self, region: Handle) -> Result<(), DeregisterError> {
        let heap = self.heap.as_ref().ok_or(DeregisterError::Stale)?;
        // the user may have registered the same pages once more, under another handle
        if self.is_allocated(region) != Some(true) {
            return Err(DeregisterError::Stale);
        }
        let range = self.regions.range(region).ok_or(DeregisterError::Stale)?;
        self.forget(region)?;
        // SAFETY: deregistered: no request and no peer can reach it; the user gives it up.
        unsafe { heap.free(range.start as usize as *mut u8) }.map_err(|_| DeregisterError::Stale)
    }

    /// Opens a listener; the bytes reach it from other endpoints.
    pub fn listen(&self) -> Result<(ListenerId, [u8; HANDLE_BYTES]), ListenError> {
        match &self.set_up {
            SetUp::Band(band) => {
                let (id, handle) = band.listen()?;
                news::listening(&handle);
                Ok((id, handle.encode()))
            }
            SetUp::Own(own) => locked(own).listen(),
        }
    }

    /// Closes a listener. Connections that nobody accepted are closed with it.
    pub fn listener_close(&self, listener: ListenerId) -> Result<(), AcceptError> {
        match &self.set_up {
            SetUp::Band(band) => band.listener_close(listener).map_err(|error| match error {
                CloseError::Stale => AcceptError::Stale,
                CloseError::Forked => AcceptError::Forked,
            }),
            SetUp::Own(own) => locked(own).listener_close(listener),
        }
    }

    /// Starts to connect to the listener that made `handle`.
    pub fn connect(&self, handle: &[u8; HANDLE_BYTES]) -> Result<Attempt, ConnectError> {
        match &self.set_up {
            SetUp::Band(band) => band.connect_begin(handle).map(|PendingId(id)| Attempt(id)),
            SetUp::Own(own) => locked(own).connect(handle).map(Attempt),
        }
    }

    /// Asks how an attempt stands: the connection's handle once it is made.
    pub fn connect_poll(&self, attempt: Attempt) -> Result<Option<Handle>, ConnectError> {
        match &self.set_up {
            SetUp::Band(band) => band.connect_poll(PendingId(attempt.0)),
            SetUp::Own(_) if self.is_live(attempt.0) => Ok(Some(attempt.0)),
            SetUp::Own(_) => Err(ConnectError::Stale),
        }
    }

    /// Gives an attempt up.
    pub fn connect_abandon(&self, attempt: Attempt) -> Result<(), CloseError> {
        match &self.set_up {
            SetUp::Band(band) => band.connect_abandon(PendingId(attempt.0)),
            // on this device an attempt is a connection at once: the user closes it
            SetUp::Own(_) => Err(CloseError::Stale),
        }
    }

    /// Connections that may be made yet: closed ones count until their peers have closed, too.
    ///
    /// *Cost*: a look at each connection; for set-up.
    pub fn connections_left(&self) -> u32 {
        match &self.set_up {
            SetUp::Band(band) => band.connections_left(),
            SetUp::Own(own) => locked(own).connections_left(),
        }
    }

    /// Closed connections whose peers have not closed them yet.
    ///
    /// *Cost*: as [`Shared::connections_left`].
    pub fn connections_leaving(&self) -> u32 {
        match &self.set_up {
            SetUp::Band(band) => band.connections_leaving(),
            SetUp::Own(own) => locked(own).connections_leaving(),
        }
    }

    /// Takes a connection that a peer has made to a listener.
    pub fn accept(&self, listener: ListenerId) -> Result<Option<Handle>, AcceptError> {
        match &self.set_up {
            SetUp::Band(band) => band.accept(listener),
            SetUp::Own(own) => locked(own).accept(listener),
        }
    }

    /// The side band, where there is one.
    pub(super) fn band(&self) -> Option<&Band<HostMemory>> {
        match &self.set_up {
            SetUp::Band(band) => Some(band),
            SetUp::Own(_) => None,
        }
    }

    /// Writes the peer's name (program, process id, host) as UTF-8; returns its length in bytes.
    pub fn peer_text(&self, connection: Handle, out: &mut [u8]) -> usize {
        match &self.set_up {
            SetUp::Band(band) => band.peer_text(connection, out),
            SetUp::Own(_) => {
                let text = b"this endpoint itself";
                let length = text.len().min(out.len());
                out[..length].copy_from_slice(&text[..length]);
                length
            }
        }
    }

    /// For how long the peer's host has acknowledged nothing of what it was sent over TCP; nothing:
    /// it owes nothing.
    pub fn peer_silence(&self, connection: Handle) -> Span {
        match &self.set_up {
            SetUp::Band(band) => band.silence(connection),
            SetUp::Own(_) => Span(0),
        }
    }

    /// What was seen of a connection's peer that is gone, if anything was.
    pub fn peer_ending(&self, connection: Handle) -> Option<Ending> {
        match &self.set_up {
            SetUp::Band(band) => band.peer_ending(connection),
            SetUp::Own(_) => None,
        }
    }

    /// The descriptor that becomes readable after [`super::Endpoint::wait_arm`].
    pub fn wait_fd(&self) -> i32 {
        match &self.wait {
            Some(set) => set.fd().as_raw_fd(),
            None => self.wake.fd().as_raw_fd(),
        }
    }

    /// Whether a connection's handle is live. *Cost*: one load.
    #[inline]
    pub fn is_live(&self, connection: Handle) -> bool {
        is_live(self.generations, connection)
    }
}
