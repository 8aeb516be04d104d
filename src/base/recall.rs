//! Whether something that others were told of is wanted back from them, or was given up although
//! they hold it.
#![forbid(unsafe_code)]

use super::sync::{AtomicU32, Ordering};

/// Its owner asked for it, and asks again.
const WANTED: u32 = 1;
/// It goes as soon as nobody holds it: its owner does not ask again, and may use what it stood for
/// otherwise.
const DOOMED: u32 = 2;
/// It is being made usable for somebody.
const MAKING: u32 = 4;

/// One thing's state, for its owner, any thread, and for the one thread that lets others use it.
///
/// Nothing is made usable that was given up: [`DOOMED`] and [`MAKING`] are bits of one word, whose
/// changes have one order. Either [`Recall::doom`] was first, and [`Recall::make_begin`] sees it;
/// or it finds that the thing is being made usable, and says so.
#[derive(Debug, Default)]
pub struct Recall(AtomicU32);

impl Recall {
    /// It is asked back from those who hold it.
    pub fn want(&self) {
        self.0.fetch_or(WANTED, Ordering::Release);
    }

    /// Somebody holds it anew: whoever wanted it back asks again. What was given up stays so.
    pub fn want_no_more(&self) {
        self.0.fetch_and(!WANTED, Ordering::Relaxed);
    }

    /// Whether those who hold it are asked for it.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire) & (WANTED | DOOMED) != 0
    }

    /// Its owner gives it up. `false`: not now, because it is being made usable.
    #[must_use]
    pub fn doom(&self) -> bool {
        let doomed = |word: u32| (word & MAKING == 0).then_some(word | DOOMED);
        // acquire: [made]; release: [doomed], what its owner did with it before
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, doomed).is_ok()
    }

    /// Whether its owner has given it up.
    pub fn is_doomed(&self) -> bool {
        self.0.load(Ordering::Acquire) & DOOMED != 0
    }

    /// From now on it is made usable, until [`Recall::make_end`]. `false`: it was given up before,
    /// so that it may not; that is to be ended, too.
    #[must_use]
    pub fn make_begin(&self) -> bool {
        // acquire: [doomed]
        self.0.fetch_or(MAKING, Ordering::Acquire) & DOOMED == 0
    }

    /// It is usable, or will not be.
    pub fn make_end(&self) {
        // release: [made], it is usable before it is given up
        self.0.fetch_and(!MAKING, Ordering::Release);
    }

    /// Its place is another's, or nobody's: what was said of it is over. The thread that makes
    /// things usable may still look at the one before.
    pub fn reset(&self) {
        self.0.fetch_and(MAKING, Ordering::Release);
    }
}
