use super::*;
use crate::base::carve::heap::HeapBlock;
use crate::base::sync::Ordering;
use std::collections::BTreeMap;
#[cfg(not(miri))]
use std::fs;
use std::os::fd::AsRawFd;
#[cfg(not(miri))]
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::vec::Vec;

const PAGE: u64 = 4096;

/// Rails that remember what they have.
#[derive(Default, Debug)]
struct Rails {
    next: u64,
    /// What is registered, by its key on rail 0.
    live: BTreeMap<u64, Region>,
    busy: Vec<u64>,
    refuse: bool,
    /// Descriptors that came with registrations, and their offsets.
    dmabufs: Vec<(i32, u64)>,
}

impl Rails {
    fn make(&mut self, pages: &Pages<'_>) -> Result<u64, RegisterError> {
        if core::mem::take(&mut self.refuse) {
            return Err(RegisterError::Kind);
        }
        if let Some((fd, offset)) = pages.dmabuf {
            self.dmabufs.push((fd.as_raw_fd(), offset));
        }
        self.next += 1;
        self.live.insert(self.next, pages.region);
        Ok(self.next)
    }
}

impl Registrar for Rails {
    fn register(&mut self, pages: &Pages<'_>) -> Result<Keys, RegisterError> {
        let key = self.make(pages)?;
        Ok(core::array::from_fn(|rail| RailKey(key << 8 | rail as u64)))
    }

    fn deregister(&mut self, keys: &mut Keys) -> Result<(), DeregisterError> {
        let key = keys[0].0 >> 8;
        if self.busy.contains(&key) {
            return Err(DeregisterError::Busy);
        }
        self.live.remove(&key).map(|_| ()).ok_or(DeregisterError::Stale)
    }
}

/// The registration that the same memory would get now.
fn find<R: Registrar>(cache: &Registrations<'_, R>, memory: &Memory<'_>) -> Option<Handle> {
    let span = cache.span_of(memory).ok()?;
    cache.lock().ranges.find(&span)
}

/// How many registrations there are, those that leave included.
fn count<R: Registrar>(cache: &Registrations<'_, R>) -> usize {
    cache.lock().ranges.all().count()
}

fn block(max: u32) -> HeapBlock {
    HeapBlock::new(Registrations::<Rails>::bytes(max))
}

fn cache(block: &mut HeapBlock, max: u32) -> Registrations<'_, Rails> {
    let mut carver = block.carver();
    let cache = Registrations::carve(&mut carver, max, PAGE, Rails::default()).unwrap();
    assert_eq!(carver.left(), 0, "`bytes` is exactly what is carved");
    cache
}

fn memory(address: u64, length: u64, kind: u64) -> Memory<'static> {
    let region = Region { address, length: Bytes(length), kind: kind_unpack(kind) };
    Memory { region, dmabuf: None }
}

#[test]
fn last_holder_who_must_know_keeps_what_a_rail_will_not_forget() {
    let mut block = block(2);
    let cache = cache(&mut block, 2);
    let first = cache.acquire(&memory(PAGE, 2 * PAGE, 0)).unwrap();
    let second = cache.acquire(&memory(PAGE + 5, 2 * PAGE - 5, 0)).unwrap();
    let key = first.keys[0].0 >> 8;
    cache.lock().registrar.busy.push(key);
    assert_eq!(cache.release_wholly(first.handle), Ok(LetGo::Held));
    let busy = Err(LetGoError::Rail(DeregisterError::Busy));
    for _ in 0..2 {
        assert_eq!(cache.release_wholly(second.handle), busy);
        assert_eq!(cache.keys(second.handle), Some(second.keys), "it is held on");
        assert_eq!(find(&cache, &memory(PAGE, 2 * PAGE, 0)), None, "for nobody else");
    }
    cache.lock().registrar.busy.clear();
    assert_eq!(cache.release_wholly(second.handle), Ok(LetGo::Forgotten));
    assert_eq!(cache.release_wholly(second.handle), Err(LetGoError::Stale));
    assert_eq!(count(&cache), 0);
}

/// The holder of the whole may unmap all pages but those of the part.
#[test]
fn part_of_a_registration_is_registered_by_itself() {
    let mut block = block(4);
    let cache = cache(&mut block, 4);
    let whole = cache.acquire(&memory(PAGE, 3 * PAGE, 0)).unwrap();
    let parts = [memory(PAGE, PAGE, 0), memory(2 * PAGE, 2 * PAGE, 0), memory(PAGE, 2 * PAGE, 0)];
    for part in parts.map(|part| cache.acquire(&part).unwrap()) {
        assert_ne!(part.handle, whole.handle);
        assert_ne!(part.keys, whole.keys);
    }
    assert_eq!(cache.release_wholly(whole.handle), Ok(LetGo::Forgotten));
    assert_eq!(cache.lock().registrar.live.len(), parts.len());
}

#[test]
fn memory_of_another_kind_is_registered_by_itself() {
    let mut block = block(4);
    let cache = cache(&mut block, 4);
    let of = |kind| {
        let known = memory(PAGE, PAGE, 0);
        cache.acquire(&Memory { region: Region { kind, ..known.region }, ..known }).unwrap().handle
    };
    let kinds = [MemoryKind::Host, MemoryKind::Mapped, MemoryKind::Cuda(0), MemoryKind::Cuda(1)];
    let made = kinds.map(of);
    assert_eq!(kinds.map(of), made, "each is found again");
    let registered: Vec<_> = cache.lock().registrar.live.values().map(|it| it.kind).collect();
    assert_eq!(registered, kinds);
}

/// Two rails, of which the first has calls by its key counted.
#[test]
fn rail_that_has_forgotten_is_asked_no_second_time_when_another_is_busy() {
    #[derive(Default)]
    struct Two {
        asked: [Vec<u64>; 2],
        busy: usize,
        refuses: bool,
    }

    impl Registrar for Two {
        fn register(&mut self, _: &Pages<'_>) -> Result<Keys, RegisterError> {
            let mut keys = Keys::default();
            keys[0] = RailKey(1);
            keys[1] = RailKey(if self.refuses { 0 } else { 2 });
            Ok(keys)
        }

        fn may_be_shared(&self, keys: &Keys) -> bool {
            keys[1] != RailKey(0)
        }

        fn deregister(&mut self, keys: &mut Keys) -> Result<(), DeregisterError> {
            for (rail, key) in keys.iter_mut().enumerate().filter(|(_, key)| key.0 != 0) {
                self.asked[rail].push(key.0);
                if rail == 1 && self.busy > 0 {
                    self.busy -= 1;
                    return Err(DeregisterError::Busy);
                }
                *key = RailKey(0);
            }
            Ok(())
        }
    }

    let mut block = HeapBlock::new(Registrations::<Two>::bytes(4));
    let cache = Registrations::carve(&mut block.carver(), 4, PAGE, Two::default()).unwrap();
    cache.lock().registrar.busy = 1;
    let lease = cache.acquire(&memory(PAGE, 1, 0)).unwrap();
    let busy = Err(LetGoError::Rail(DeregisterError::Busy));
    assert_eq!(cache.release_wholly(lease.handle), busy);
    assert_eq!(cache.release_wholly(lease.handle), Ok(LetGo::Forgotten));
    assert_eq!(cache.lock().registrar.asked, [[1].to_vec(), [2, 2].to_vec()]);
    // the other way to let go
    cache.lock().registrar.busy = 1;
    let lease = cache.acquire(&memory(PAGE, 1, 0)).unwrap();
    cache.release(lease.handle).unwrap();
    assert_eq!((count(&cache), cache.lock().leave_all()), (1, 0));
    assert_eq!(cache.lock().registrar.asked, [[1, 1].to_vec(), [2, 2, 2, 2].to_vec()]);
    // what one of them refused is its holder's alone
    cache.lock().registrar.refuses = true;
    let [first, second] = [(); 2].map(|()| cache.acquire(&memory(PAGE, 1, 0)).unwrap());
    assert_ne!(first.handle, second.handle);
    for lease in [first, second] {
        assert_eq!(cache.release_wholly(lease.handle), Ok(LetGo::Forgotten));
    }
}

#[test]
fn ranges_of_one_page_are_registered_once_and_counted() {
    let mut block = block(4);
    let cache = cache(&mut block, 4);
    let first = cache.acquire(&memory(PAGE + 10, 20, 0)).unwrap();
    let second = cache.acquire(&memory(PAGE + 4000, 96, 0)).unwrap();
    assert_eq!(first, second);
    let inside = cache.lock();
    let whole = Region { address: PAGE, length: Bytes(PAGE), kind: MemoryKind::Host };
    assert_eq!(inside.registrar.live.values().copied().collect::<Vec<_>>(), [whole]);
    drop(inside);
    assert_eq!(cache.keys(first.handle), Some(first.keys));
    assert_eq!(cache.release(first.handle), Ok(()));
    assert_eq!(find(&cache, &memory(PAGE + 1, 1, 0)), Some(second.handle));
    assert_eq!(cache.release(second.handle), Ok(()));
    assert_eq!(cache.release(second.handle), Err(Stale));
    assert_eq!(find(&cache, &memory(PAGE + 1, 1, 0)), None);
    assert!(cache.lock().registrar.live.is_empty());
}

#[test]
fn ranges_that_cannot_be_and_a_full_cache_are_answers() {
    let mut block = block(1);
    let cache = cache(&mut block, 1);
    let refused = |memory: &Memory<'_>| cache.acquire(memory).unwrap_err();
    assert_eq!(refused(&memory(PAGE, 0, 0)), AcquireError::Range);
    assert_eq!(refused(&memory(u64::MAX, 2, 0)), AcquireError::Range);
    assert_eq!(refused(&memory(u64::MAX - 8, 4, 0)), AcquireError::Range, "its page wraps");
    cache.lock().registrar.refuse = true;
    let kind = AcquireError::Rail(RegisterError::Kind);
    assert_eq!(refused(&memory(PAGE, 1, 0)), kind);
    assert_eq!(count(&cache), 0);
    let lease = cache.acquire(&memory(PAGE, 1, 0)).unwrap();
    assert_eq!(refused(&memory(2 * PAGE, 1, 0)), AcquireError::Full);
    let key = lease.keys[0].0 >> 8;
    cache.lock().registrar.busy.push(key);
    cache.release(lease.handle).unwrap();
    assert_eq!(refused(&memory(2 * PAGE, 1, 0)), AcquireError::Full, "the rail is still busy");
    assert_eq!(refused(&memory(PAGE, 1, 0)), AcquireError::Full, "nor does it come back");
    cache.lock().registrar.busy.clear();
    assert!(cache.acquire(&memory(2 * PAGE, 1, 0)).is_ok());
}

/// A file, which stands for a dma-buf.
#[cfg(not(miri))]
fn file() -> OwnedFd {
    // SAFETY: a name that is a C string.
    let fd = unsafe { libc::memfd_create(c"registrations".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: made just now, and nobody else has it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

#[cfg(not(miri))]
fn same_file(one: i32, other: &fs::File) -> bool {
    use std::os::linux::fs::MetadataExt;
    let path = std::format!("/proc/self/fd/{one}");
    let (a, b) = (fs::metadata(path), other.metadata().unwrap());
    a.is_ok_and(|a| (a.st_dev(), a.st_ino()) == (b.st_dev(), b.st_ino()))
}

#[cfg(not(miri))]
#[test]
fn dmabuf_is_kept_by_a_descriptor_of_its_own_until_the_last_release() {
    let mut block = block(2);
    let cache = cache(&mut block, 2);
    let (theirs, witness) = {
        let fd = file();
        let witness = fs::File::from(fd.try_clone().unwrap());
        (fd, witness)
    };
    let place = 3 * PAGE + 100;
    let dmabuf = Some((theirs.as_fd(), 5 * PAGE + 100));
    let lease = cache.acquire(&Memory { dmabuf, ..memory(place, 10, 0) }).unwrap();
    let (own, offset) = cache.lock().registrar.dmabufs[0];
    assert_ne!(own, theirs.as_raw_fd());
    assert_eq!(offset, 5 * PAGE, "of the first whole page");
    drop(theirs); // its owner closes it
    assert!(same_file(own, &witness));
    // SAFETY: a descriptor that is open.
    assert_eq!(unsafe { libc::fcntl(own, libc::F_GETFD) } & libc::FD_CLOEXEC, libc::FD_CLOEXEC);

    cache.release(lease.handle).unwrap();
    assert!(!same_file(own, &witness), "closed with the registration");
    let before = Memory { dmabuf: Some((witness.as_fd(), 99)), ..memory(place, 10, 0) };
    assert_eq!(cache.acquire(&before).unwrap_err(), AcquireError::Range, "no whole page in it");
}

mod model;

/// Threads take and give back what overlaps, while rails are busy now and then: what is held is
/// registered.
#[test]
fn what_is_held_is_registered_whoever_lets_go() {
    use crate::base::sync::AtomicU8;

    /// Rails whose registrations any thread can look at.
    struct Watched {
        alive: Arc<Vec<AtomicU8>>,
        next: usize,
    }

    impl Registrar for Watched {
        fn register(&mut self, _: &Pages<'_>) -> Result<Keys, RegisterError> {
            self.next += 1;
            self.alive[self.next].store(1, Ordering::Relaxed);
            Ok([RailKey(self.next as u64); RAILS_MAX])
        }

        fn deregister(&mut self, keys: &mut Keys) -> Result<(), DeregisterError> {
            if keys[0].0.is_multiple_of(7) && self.next.is_multiple_of(3) {
                return Err(DeregisterError::Busy);
            }
            assert_eq!(self.alive[keys[0].0 as usize].swap(0, Ordering::Relaxed), 1);
            Ok(())
        }
    }

    const THREADS: u64 = 4;
    let rounds: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let alive: Arc<Vec<AtomicU8>> =
        Arc::new((0..THREADS * rounds + 2).map(|_| AtomicU8::new(0)).collect());
    let mut block = HeapBlock::new(Registrations::<Watched>::bytes(6));
    let watched = Watched { alive: alive.clone(), next: 0 };
    let cache = Registrations::carve(&mut block.carver(), 6, PAGE, watched).unwrap();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (cache, alive) = (&cache, &alive);
            scope.spawn(move || {
                let mut dice = seed + 1;
                for _ in 0..rounds {
                    dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (page, pages) = (dice >> 33 & 7, 1 + (dice >> 40 & 3));
                    let wanted = memory(page * PAGE + 5, pages * PAGE, dice >> 50 & 1);
                    match cache.acquire(&wanted) {
                        Ok(lease) => {
                            let key = lease.keys[0].0 as usize;
                            assert_eq!(alive[key].load(Ordering::Relaxed), 1, "held, and gone");
                            assert_eq!(cache.release(lease.handle), Ok(()));
                        }
                        Err(error) => assert_eq!(error, AcquireError::Full),
                    }
                }
            });
        }
    });
    let table = cache.lock();
    let left = table.ranges.all().map(|handle| table.lease(handle).keys[0].0);
    let left = left.filter(|key| key.is_multiple_of(7)).count() as u64;
    let registered: u8 = alive.iter().map(|key| key.load(Ordering::Relaxed)).sum();
    assert_eq!(u64::from(registered), left, "nothing stays but what its rail kept busy");
}
