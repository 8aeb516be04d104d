//! The cache against a list that is walked from end to end.

use super::*;

const MAX: u32 = 5;
const PAGES: u64 = 8;
const KINDS: u64 = 2;

/// What a registration is, without any index.
#[derive(Clone, Debug)]
struct Known {
    start: u64,
    end: u64,
    kind: u64,
    key: u64,
    holders: usize,
    found: bool,
}

#[derive(Default)]
struct Oracle {
    all: Vec<Known>,
    next: u64,
    busy: Vec<u64>,
}

impl Oracle {
    fn find(&self, start: u64, end: u64, kind: u64) -> Option<usize> {
        let wanted = (start, end, kind);
        self.all.iter().position(|k| k.found && (k.start, k.end, k.kind) == wanted)
    }

    fn leave(&mut self) {
        let busy = &self.busy;
        self.all.retain(|k| k.holders != 0 || busy.contains(&k.key));
    }

    /// The key that is held, or `None` when there is no room.
    fn acquire(&mut self, start: u64, end: u64, kind: u64) -> Option<u64> {
        if let Some(at) = self.find(start, end, kind) {
            self.all[at].holders += 1;
            return Some(self.all[at].key);
        }
        self.leave();
        if self.all.len() == MAX as usize {
            return None;
        }
        self.next += 1;
        let key = self.next;
        self.all.push(Known { start, end, kind, key, holders: 1, found: true });
        Some(key)
    }

    fn release(&mut self, key: u64) {
        let known = self.all.iter_mut().find(|k| k.key == key).unwrap();
        known.holders -= 1;
        if known.holders == 0 {
            known.found = false;
            self.leave();
        }
    }
}

#[derive(Copy, Clone, Debug)]
enum Operation {
    Acquire { page: u64, pages: u64, kind: u64 },
    Release { which: usize },
    Busy { key: u64 },
    Idle,
    Sweep,
}

fn operation(dice: &mut impl FnMut(u64) -> u64) -> Operation {
    match dice(10) {
        0..=3 => {
            let page = dice(PAGES);
            let pages = 1 + dice(PAGES - page);
            Operation::Acquire { page, pages, kind: dice(KINDS) }
        }
        4..=6 => Operation::Release { which: dice(64) as usize },
        7 => Operation::Busy { key: 1 + dice(200) },
        8 => Operation::Idle,
        _ => Operation::Sweep,
    }
}

fn apply(
    cache: &Registrations<'_, Rails>,
    oracle: &mut Oracle,
    leases: &mut Vec<Lease>,
    operation: Operation,
) {
    match operation {
        Operation::Acquire { page, pages, kind } => {
            let wanted = memory(page * PAGE + 7, pages * PAGE - 7, kind);
            let expected = oracle.acquire(page * PAGE, (page + pages) * PAGE, kind);
            match cache.acquire(&wanted) {
                Ok(lease) => {
                    assert_eq!(Some(lease.keys[0].0 >> 8), expected);
                    leases.push(lease);
                }
                Err(error) => assert_eq!((error, expected), (AcquireError::Full, None)),
            }
        }
        Operation::Release { which } if !leases.is_empty() => {
            let lease = leases.swap_remove(which % leases.len());
            oracle.release(lease.keys[0].0 >> 8);
            assert_eq!(cache.release(lease.handle), Ok(()));
        }
        Operation::Release { .. } => {}
        Operation::Busy { key } => {
            oracle.busy.push(key);
            cache.lock().registrar.busy.push(key);
        }
        Operation::Idle => {
            oracle.busy.clear();
            cache.lock().registrar.busy.clear();
        }
        Operation::Sweep => {
            oracle.leave();
            let left = oracle.all.iter().filter(|k| k.holders == 0).count();
            assert_eq!(cache.lock().leave_all(), left);
        }
    }
}

fn compare(cache: &Registrations<'_, Rails>, oracle: &Oracle) {
    let mut keys: Vec<u64> = oracle.all.iter().map(|k| k.key).collect();
    keys.sort_unstable();
    let live: Vec<u64> = cache.lock().registrar.live.keys().copied().collect();
    assert_eq!(live, keys);
    assert_eq!(count(cache), keys.len());
    for kind in 0..KINDS {
        for page in 0..PAGES {
            for pages in 1..=PAGES - page {
                let found = find(cache, &memory(page * PAGE, pages * PAGE, kind));
                let found = found.map(|handle| cache.keys(handle).unwrap()[0].0 >> 8);
                let at = oracle.find(page * PAGE, (page + pages) * PAGE, kind);
                assert_eq!(found, at.map(|at| oracle.all[at].key), "{kind} {page} {pages}");
            }
        }
    }
}

#[test]
fn cache_agrees_with_a_list() {
    let (seeds, operations) = if cfg!(miri) { (2, 40) } else { (300, 300) };
    for seed in 0..seeds {
        let mut state: u64 = seed;
        let mut dice = |bound: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % bound
        };
        let mut block = block(MAX);
        let cache = cache(&mut block, MAX);
        let (mut oracle, mut leases) = (Oracle::default(), Vec::new());
        for _ in 0..operations {
            let operation = operation(&mut dice);
            std::println!("seed {seed}: {operation:?}");
            apply(&cache, &mut oracle, &mut leases, operation);
            compare(&cache, &oracle);
        }
    }
}
