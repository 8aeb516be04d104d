//! A gate before objects that many threads use and one closes: whoever closes them turns others
//! away, and waits for those inside.

use super::sync::{AtomicU32, Ordering, spin_loop};

/// Nobody is let in. Below both flags, how many threads are inside, or about to turn round.
const SHUT: u32 = 1 << 31;
/// It stays shut for good.
const GONE: u32 = 1 << 30;

/// What a thread that comes finds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[must_use]
pub enum Entry {
    /// It is inside, and leaves again ([`Gate::leave`]).
    Inside,
    /// Objects are being opened anew: it may come again.
    Shut,
    /// There will be none any more.
    Gone,
}

/// Who may be inside. A gate begins shut.
#[derive(Debug)]
pub struct Gate(AtomicU32);

impl Default for Gate {
    fn default() -> Gate {
        Gate(AtomicU32::new(SHUT))
    }
}

impl Gate {
    /// Counts this thread in, if the gate is open.
    pub fn enter(&self) -> Entry {
        // acquire: [gate], what was opened before is seen, and what follows stays behind the count
        let before = self.0.fetch_add(1, Ordering::Acquire);
        if before & SHUT == 0 {
            return Entry::Inside;
        }
        self.leave();
        if before & GONE == 0 { Entry::Shut } else { Entry::Gone }
    }

    /// Counts this thread out.
    pub fn leave(&self) {
        // release: [gate], what was done inside happens before the objects are closed
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Lets threads in.
    pub fn admit(&self) {
        // release: [gate], the objects are there before anybody comes in
        self.0.fetch_and(!SHUT, Ordering::Release);
    }

    /// Turns threads away, for good or for a while, and waits for those inside: for one call of
    /// each, since none of them waits for who shuts the gate.
    pub fn shut(&self, for_good: bool) {
        let flags = if for_good { SHUT | GONE } else { SHUT };
        self.0.fetch_or(flags, Ordering::AcqRel);
        // acquire: pairs with [gate]
        while self.0.load(Ordering::Acquire) & !(SHUT | GONE) != 0 {
            spin_loop();
        }
    }
}
