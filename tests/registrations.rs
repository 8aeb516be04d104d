//! The cache of registrations allocates nothing once it is carved, full or not.

mod common;

use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind, RailKey, Region, RegisterError};
use crosstie::memory::registrations::{
    AcquireError, Keys, Memory, Pages, RAILS_MAX, Registrar, Registrations,
};
use crosstie_kit::conformance::Rig;

const MAX: u32 = 16;
const PAGE: u64 = 4096;

/// Rails that remember a number.
struct Counted(u64);

impl Registrar for Counted {
    fn register(&mut self, _: &Pages<'_>) -> Result<Keys, RegisterError> {
        self.0 += 1;
        Ok([RailKey(self.0); RAILS_MAX])
    }

    fn deregister(&mut self, keys: &mut Keys) -> Result<(), DeregisterError> {
        if keys[0].0.is_multiple_of(3) { Err(DeregisterError::Busy) } else { Ok(()) }
    }
}

fn memory(page: u64) -> Memory<'static> {
    let (address, length) = (page * PAGE + 1, Bytes(PAGE));
    Memory { region: Region { address, length, kind: MemoryKind::Host }, dmabuf: None }
}

#[test]
fn cache_allocates_nothing_after_it_is_carved() {
    let bytes = Registrations::<Counted>::bytes(MAX);
    let cache = Registrations::carve(&mut common::carver(bytes), MAX, PAGE, Counted(0)).unwrap();
    let rig = common::PairRig::new(std::rc::Rc::new(|| common::over_loopback(|rail| rail)));
    let allocations = || rig.allocations().unwrap();
    let before = allocations();
    let mut full = 0;
    for round in 0..64 {
        let mut held = [None; MAX as usize];
        for (page, held) in held.iter_mut().enumerate() {
            match cache.acquire(&memory(round + 3 * page as u64)) {
                Ok(lease) => *held = Some(lease.handle),
                Err(error) => {
                    assert_eq!(error, AcquireError::Full);
                    full += 1;
                }
            }
        }
        for handle in held.into_iter().flatten() {
            cache.release(handle).unwrap();
        }
    }
    assert_eq!(allocations(), before);
    assert!(full > 0, "what the rails keep busy fills the cache");
    drop(std::hint::black_box(Box::new(full)));
    assert_eq!(allocations(), before + 1, "allocations are counted");
}
