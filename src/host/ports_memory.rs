//! Memory as the ports know it: what is registered again while it is registered is registered once.

extern crate std;

use super::error::OpenError;
use super::news;
use crate::base::carve::Carver;
use crate::base::slab::Handle;
use crate::fabric::{DeregisterError, RailKey, Region, RegisterError};
use crate::memory::registrations::{
    AcquireError, Keys, LetGo, LetGoError, Memory, Pages, Registrar, Registrations,
};
use crate::memory::{Reserve, heap};
use crate::provider::port::PortDomain;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// What a region of the user's holds.
#[derive(Copy, Clone)]
struct Hold {
    region: Handle,
    registration: Handle,
    /// Whether the region takes all pages of it.
    is_whole: bool,
}

/// Registrations on all ports of a host, each as often held as there are regions in it.
///
/// The user says of each region when its memory may go, and of no other: where the last region goes
/// that takes all pages of a registration, the pages beside those that are left may be unmapped,
/// and other memory be mapped there. So nobody new is given it from then on.
pub(super) struct PortsMemory {
    // dropped before its records
    cache: Registrations<'static, Ports>,
    /// By the region's index.
    holds: Mutex<Vec<Option<Hold>>>,
    /// How many ports there are.
    count: usize,
    _records: Reserve,
}

/// By place.
struct Ports(Vec<PortDomain<'static>>);

impl Registrar for Ports {
    /// A port that refuses has no key, which is said once: what lies there goes over another rail.
    fn register(&mut self, pages: &Pages<'_>) -> Result<Keys, RegisterError> {
        let mut keys = Keys::default();
        for (port, key) in self.0.iter().zip(&mut keys) {
            // SAFETY: who acquires vouches for the range, and so for the pages that it lies in.
            *key = match unsafe { port.register_payload(pages.region) } {
                Ok(key) => key,
                Err(error) => {
                    news::not_registered(error);
                    RailKey(0)
                }
            };
        }
        Ok(keys)
    }

    /// Memory that a port has forgotten already is no error, so that what was refused can be asked
    /// again.
    fn deregister(&mut self, keys: &Keys) -> Result<(), DeregisterError> {
        for (port, key) in self.0.iter().zip(keys) {
            match port.deregister_soon(*key) {
                Ok(()) | Err(DeregisterError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

const fn memory_of(region: Region) -> Memory<'static> {
    // who registers keeps the memory until it is deregistered, so that what is registered now is of
    // the memory that is there now
    Memory { region, identity: 0, dmabuf: None }
}

impl PortsMemory {
    /// For so many regions at a time.
    pub fn open(
        ports: Vec<PortDomain<'static>>,
        regions_max: u32,
    ) -> Result<PortsMemory, OpenError> {
        let count = ports.len();
        let length = Registrations::<Ports>::bytes(regions_max);
        let records = Reserve::create(length)?;
        // SAFETY: a fresh mapping reads as zero and is aligned to a page; it lives until the cache
        // is gone (order of the fields), and nobody else knows it.
        let mut carver = unsafe { Carver::over_zeroed(records.start(), length) };
        let page = heap::page_bytes() as u64;
        let cache = Registrations::carve(&mut carver, regions_max, page, Ports(ports))
            .map_err(|_| OpenError::Storage)?;
        let holds = Mutex::new(std::vec![None; regions_max as usize]);
        Ok(PortsMemory { cache, holds, count, _records: records })
    }

    /// A registration of the memory: one that is there, or a new one; its keys, by place.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until it was released with success.
    pub unsafe fn acquire(
        &self,
        region: Region,
        keys: &mut [RailKey],
    ) -> Result<Handle, RegisterError> {
        let lease = self.cache.acquire(&memory_of(region)).map_err(|error| match error {
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
    pub fn keep(&self, handle: Handle, region: Region, registration: Handle) {
        let is_whole = self.cache.is_of(registration, &memory_of(region));
        let hold = Hold { region: handle, registration, is_whole };
        self.holds()[handle.index as usize] = Some(hold);
    }

    /// No region does.
    pub fn give_back(&self, registration: Handle) {
        // its keys were nobody's yet, or another region holds it: so it cannot be busy
        let _ = self.cache.release_wholly(registration);
    }

    /// A region is given up. One that holds nothing has done so before.
    pub fn release(&self, region: Handle) -> Result<(), DeregisterError> {
        let mut holds = self.holds();
        let index = region.index as usize;
        let Some(hold) = holds.get(index).copied().flatten().filter(|it| it.region == region)
        else {
            return Ok(());
        };
        match self.cache.release_wholly(hold.registration) {
            Err(LetGoError::Rail(error)) => return Err(error),
            Ok(LetGo::Forgotten) | Err(LetGoError::Stale) => holds[index] = None,
            Ok(LetGo::Held) => {
                holds[index] = None;
                let is_left = |it: &Hold| it.registration == hold.registration && it.is_whole;
                if hold.is_whole && !holds.iter().flatten().any(is_left) {
                    self.cache.retire(hold.registration);
                }
            }
        }
        Ok(())
    }

    fn holds(&self) -> MutexGuard<'_, Vec<Option<Hold>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
