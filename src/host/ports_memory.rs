//! Memory as the ports know it: what is registered again, page for page, while it is registered is
//! registered once.

use super::error::OpenError;
use super::gpu::Wants;
use super::log::news::{self, NotRegistered};
use crate::base::carve::Carver;
use crate::base::slab::Handle;
use crate::fabric::{DeregisterError, MemoryKind, RailKey, Region, RegisterError};
use crate::memory::registrations::{
    AcquireError, Keys, LetGo, LetGoError, Memory, Pages, RAILS_MAX, Registrar, Registrations,
};
use crate::memory::{Reserve, heap, locked};
use crate::provider::rail_set::PortDomain;
use std::format;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::string::String;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

/// The registration that a region of the user's holds.
#[derive(Copy, Clone)]
struct Hold {
    region: Handle,
    registration: Handle,
}

/// Registrations on all ports of a host, each as often held as there are regions of its pages.
///
/// The user says of each region when its memory may go, and of no other. Each page of a
/// registration has memory of all its holders, so that it stays mapped as long as one is left; of a
/// registration that took in parts of itself that would not be so.
pub(super) struct PortsMemory {
    // dropped before its records
    cache: Registrations<'static, Ports>,
    /// By the region's index.
    holds: Mutex<Vec<Option<Hold>>>,
    /// How many ports there are.
    count: usize,
    gpu_wants: Wants,
    _records: Reserve,
}

/// What a port that has refused has in place of a key.
const NO_KEY: RailKey = RailKey(0);

/// A port by what it registers memory, and its name for people.
pub(super) struct NamedDomain {
    pub name: String,
    pub domain: PortDomain<'static>,
}

/// By place.
struct Ports(Vec<NamedDomain>);

impl Ports {
    /// Says which ports have refused memory. Of a GPU's that none takes, it is one line.
    fn tell(&self, kind: MemoryKind, refusals: &[Option<RegisterError>]) {
        let each = self.0.iter().zip(refusals);
        let refused = each.filter_map(|(port, refusal)| Some((port, (*refusal)?)));
        let refused = refused
            .map(|(port, error)| (&port.name, NotRegistered { domain: &port.domain, error, kind }));
        match kind {
            MemoryKind::Cuda(number) if refusals.iter().all(Option::is_some) => {
                let words: Vec<_> = refused.map(|(port, why)| format!("{port}: {why}")).collect();
                news::gpu_beside_ports(number, &words.join(", "));
            }
            MemoryKind::Host | MemoryKind::Mapped | MemoryKind::Cuda(_) => {
                refused.for_each(|(port, why)| news::not_registered(port, &why));
            }
        }
    }
}

impl Registrar for Ports {
    /// A port that refuses has no key, which is said once: what lies there goes over another rail.
    fn register(&mut self, pages: &Pages<'_>) -> Result<Keys, RegisterError> {
        let mut keys = Keys::default();
        let dmabuf = pages.dmabuf.map(|(file, offset)| (file.as_raw_fd(), offset));
        let mut refusals = [None; RAILS_MAX];
        for (port, (key, refusal)) in self.0.iter().zip(keys.iter_mut().zip(&mut refusals)) {
            // SAFETY: who acquires vouches for the range, and so for the pages that it lies in.
            let made = unsafe { port.domain.register_payload(pages.region, dmabuf) };
            *key = made.unwrap_or(NO_KEY);
            *refusal = made.err();
        }
        self.tell(pages.region.kind, &refusals[..self.0.len()]);
        Ok(keys)
    }

    fn may_be_shared(&self, keys: &Keys) -> bool {
        !keys[..self.0.len()].contains(&NO_KEY)
    }

    /// Memory that a port has forgotten already is no error, so that what was refused can be asked
    /// again. All are asked, whatever one says. Busy goes before other errors: it is asked again.
    fn deregister(&mut self, keys: &mut Keys) -> Result<(), DeregisterError> {
        let mut result = Ok(());
        for (port, key) in self.0.iter().zip(keys).filter(|(_, key)| **key != NO_KEY) {
            match port.domain.deregister_soon(*key) {
                // a vendor may give the number to other memory from now on
                Ok(()) | Err(DeregisterError::Stale) => *key = NO_KEY,
                Err(DeregisterError::Busy) => result = Err(DeregisterError::Busy),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

impl PortsMemory {
    /// For so many regions at a time. `flushed`: as [`Wants::flushed`].
    pub fn open(
        ports: Vec<NamedDomain>,
        regions_max: u32,
        flushed: bool,
    ) -> Result<PortsMemory, OpenError> {
        let count = ports.len();
        let any = |is: fn(&PortDomain<'static>) -> bool| ports.iter().any(|it| is(&it.domain));
        let gpu_wants = Wants {
            dmabufs: any(PortDomain::takes_dmabufs),
            addresses: any(PortDomain::takes_gpu_addresses),
            flushed,
        };
        let length = Registrations::<Ports>::bytes(regions_max);
        let records = Reserve::create(length)?;
        // SAFETY: a fresh mapping reads as zero and is aligned to a page; it lives until the cache
        // is gone (order of the fields), and nobody else knows it.
        let mut carver = unsafe { Carver::over_zeroed(records.start(), length) };
        let page = heap::page_bytes() as u64;
        let cache = Registrations::carve(&mut carver, regions_max, page, Ports(ports))
            .map_err(|_| OpenError::Storage)?;
        let holds = Mutex::new(std::vec![None; regions_max as usize]);
        Ok(PortsMemory { cache, holds, count, gpu_wants, _records: records })
    }

    /// What ports want of memory of a GPU.
    pub fn gpu_wants(&self) -> Wants {
        self.gpu_wants
    }

    /// A registration of the memory: one that is there, or a new one; its keys, by place.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until it was released with success;
    /// - the descriptor is open, and stays so until this returns; it is a dma-buf of that memory.
    pub unsafe fn acquire(
        &self,
        region: Region,
        dmabuf: Option<(RawFd, u64)>,
        keys: &mut [RailKey],
    ) -> Result<Handle, RegisterError> {
        // SAFETY: open by this function's contract.
        let borrowed = |file| unsafe { BorrowedFd::borrow_raw(file) };
        let dmabuf = dmabuf.map(|(file, offset)| (borrowed(file), offset));
        // who registers keeps the memory until it is deregistered, so that what is registered now
        // is of the memory that is there now
        let memory = Memory { region, dmabuf };
        let lease = self.cache.acquire(&memory).map_err(|error| match error {
            AcquireError::Full => RegisterError::Full,
            AcquireError::Range => RegisterError::Range,
            AcquireError::Descriptor(code) => RegisterError::Fabric(code),
            AcquireError::Rail(error) => error,
        })?;
        for (out, key) in keys.iter_mut().zip(&lease.keys[..self.count]) {
            *out = *key;
        }
        Ok(lease.handle)
    }

    /// A region of the user's holds it from now on.
    pub fn keep(&self, region: Handle, registration: Handle) {
        self.holds()[region.index as usize] = Some(Hold { region, registration });
    }

    /// No region does. What a port keeps busy is tried again whenever another registration is made
    /// or goes.
    pub fn give_back(&self, registration: Handle) {
        // it was acquired, and is given back once
        let _ = self.cache.release(registration);
    }

    /// A region is given up. One that holds nothing has done so before. Where it cannot be, because
    /// one port is busy, others have forgotten theirs: `told` is given the keys that it has from
    /// now on, by place, before anybody else can give it up.
    pub fn release(
        &self,
        region: Handle,
        told: impl FnOnce(&[RailKey]),
    ) -> Result<(), DeregisterError> {
        let mut holds = self.holds();
        let Some(place) = holds.get_mut(region.index as usize) else { return Ok(()) };
        let Some(hold) = place.filter(|it| it.region == region) else { return Ok(()) };
        match self.cache.release_wholly(hold.registration) {
            Err(LetGoError::Rail(error)) => {
                told(&self.cache.keys(hold.registration).unwrap_or_default()[..self.count]);
                Err(error)
            }
            Ok(LetGo::Forgotten | LetGo::Held) | Err(LetGoError::Stale) => {
                *place = None;
                Ok(())
            }
        }
    }

    fn holds(&self) -> MutexGuard<'_, Vec<Option<Hold>>> {
        locked(&self.holds)
    }
}
