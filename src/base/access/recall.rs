//! Whether something that others were told of is wanted back from them, or was given up although
//! they hold it.

use super::sync::{AtomicU32, Ordering};

/// Its owner asked for it, and asks again.
const WANTED: u32 = 1;
/// It goes as soon as nobody holds it: its owner does not ask again, and may use what it stood for
/// otherwise.
const DOOMED: u32 = 2;

/// One thing's state, for its owner, any thread, and for the one thread that lets others use it.
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

    /// Its owner gives it up.
    pub fn doom(&self) {
        // release: [doomed], what its owner did with it before
        self.0.fetch_or(DOOMED, Ordering::Release);
    }

    /// Whether its owner has given it up.
    pub fn is_doomed(&self) -> bool {
        // acquire: [doomed]
        self.0.load(Ordering::Acquire) & DOOMED != 0
    }

    /// Its place is another's, or nobody's: what was said of it is over.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}
