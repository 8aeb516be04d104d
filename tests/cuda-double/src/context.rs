//! GPUs and contexts: which there are, which one is a thread's, and which GPU is lost.

use crate::codes::{
    Answer, CONTEXT_IS_DESTROYED, Code, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE,
};
use crate::settings::{DEVICES_MAX, settings};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Handles of contexts are this, plus a step for each.
const FIRST: usize = 0x00c0_0000;
const STEP: usize = 0x100;

static LOST: [AtomicBool; DEVICES_MAX] = [const { AtomicBool::new(false) }; DEVICES_MAX];

thread_local! {
    /// Contexts of this thread, the current one last.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A context that a call runs in.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Context {
    /// The handle that the driver's interface has of it.
    pub handle: usize,
    /// The GPU, by its number in the host.
    pub device: usize,
}

struct State {
    device: usize,
    /// References to a primary context, or 1.
    references: u32,
    primary: bool,
    /// GPUs whose memory it may reach, beside its own.
    peers: BTreeSet<usize>,
}

/// All contexts that there ever were, and the pairs of GPUs without access to each other.
pub struct Contexts {
    all: Vec<State>,
    denied: BTreeSet<(usize, usize)>,
}

/// All contexts, locked.
pub fn contexts() -> MutexGuard<'static, Contexts> {
    static ALL: OnceLock<Mutex<Contexts>> = OnceLock::new();
    let made = || {
        let both = |(a, b): &(usize, usize)| [(*a, *b), (*b, *a)];
        let denied = settings().denied.iter().flat_map(both).collect();
        Mutex::new(Contexts { all: Vec::new(), denied })
    };
    ALL.get_or_init(made).lock().expect("no panic while it is locked")
}

/// The GPU of an ordinal, by its number in the host.
pub fn device(ordinal: i32) -> Result<usize, Code> {
    let visible = &settings().visible;
    usize::try_from(ordinal).ok().and_then(|at| visible.get(at)).copied().ok_or(INVALID_DEVICE)
}

/// The ordinal of a GPU; -2 is the driver's number for none.
pub fn ordinal(device: usize) -> i32 {
    settings().visible.iter().position(|visible| *visible == device).map_or(-2, |at| at as i32)
}

/// Makes a GPU lost.
pub fn lose(device: usize) {
    LOST[device].store(true, Ordering::SeqCst);
}

/// Whether a GPU is lost.
pub fn is_lost(device: usize) -> bool {
    LOST[device].load(Ordering::SeqCst)
}

/// Fails when a GPU is lost.
pub fn lives(device: usize) -> Answer {
    if is_lost(device) { Err(ILLEGAL_ADDRESS) } else { Ok(()) }
}

/// The calling thread's context. Its GPU is not lost.
pub fn current() -> Result<Context, Code> {
    let handle = named()?.handle;
    let context = contexts().find(handle)?;
    lives(context.device)?;
    Ok(context)
}

/// The calling thread's context, also of a lost GPU, and also one that was destroyed.
pub fn named() -> Result<Context, Code> {
    let handle = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?;
    contexts().known(handle).map(|(context, _)| context)
}

/// The handle on top of the calling thread's stack; 0: none.
pub fn top() -> usize {
    CURRENT.with_borrow(|stack| stack.last().copied()).unwrap_or(0)
}

/// Makes a context the calling thread's.
pub fn push(handle: usize) -> Answer {
    contexts().known(handle)?;
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    Ok(())
}

/// Takes the current context off the calling thread's stack.
pub fn pop() -> Result<usize, Code> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)
}

impl Contexts {
    fn index(handle: usize) -> Option<usize> {
        let steps = handle.checked_sub(FIRST)?;
        steps.is_multiple_of(STEP).then_some(steps / STEP)
    }

    /// The context of a handle, and whether it lives.
    pub fn known(&self, handle: usize) -> Result<(Context, bool), Code> {
        let state = Contexts::index(handle).and_then(|at| self.all.get(at));
        let state = state.ok_or(INVALID_CONTEXT)?;
        Ok((Context { handle, device: state.device }, state.references > 0))
    }

    /// The context of a handle, which lives.
    pub fn find(&self, handle: usize) -> Result<Context, Code> {
        let (context, lives) = self.known(handle)?;
        if lives { Ok(context) } else { Err(CONTEXT_IS_DESTROYED) }
    }

    fn add(&mut self, device: usize, primary: bool) -> usize {
        self.all.push(State { device, references: 1, primary, peers: BTreeSet::new() });
        FIRST + (self.all.len() - 1) * STEP
    }

    /// Takes a reference to the primary context of a GPU.
    pub fn retain(&mut self, device: usize) -> usize {
        let found = self.all.iter().position(|state| state.primary && state.device == device);
        match found {
            Some(at) => {
                self.all[at].references += 1;
                FIRST + at * STEP
            }
            None => self.add(device, true),
        }
    }

    /// Gives a reference back.
    pub fn release(&mut self, device: usize) -> Answer {
        let found = self.all.iter_mut().find(|state| state.primary && state.device == device);
        let state = found.filter(|state| state.references > 0).ok_or(INVALID_CONTEXT)?;
        state.references -= 1;
        Ok(())
    }

    /// Makes a context that is not primary.
    pub fn create(&mut self, device: usize) -> usize {
        self.add(device, false)
    }

    /// Ends it.
    pub fn destroy(&mut self, handle: usize) -> Answer {
        self.find(handle)?;
        let state = Contexts::index(handle).and_then(|at| self.all.get_mut(at));
        let state = state.filter(|state| !state.primary).ok_or(INVALID_CONTEXT)?;
        state.references = 0;
        Ok(())
    }

    /// References to contexts.
    pub fn references(&self) -> u64 {
        self.all.iter().map(|state| u64::from(state.references)).sum()
    }

    /// Lets a context reach the memory of another GPU. `false`: it could already.
    pub fn enable_peer(&mut self, handle: usize, device: usize) -> bool {
        let state = Contexts::index(handle).and_then(|at| self.all.get_mut(at));
        state.is_some_and(|state| state.peers.insert(device))
    }

    /// Whether two GPUs may have access to each other.
    pub fn may_access(&self, from: usize, to: usize) -> bool {
        from == to || !self.denied.contains(&(from, to))
    }

    /// Sets that, both ways.
    pub fn deny(&mut self, a: usize, b: usize, denied: bool) {
        for pair in [(a, b), (b, a)] {
            if denied {
                self.denied.insert(pair);
            } else {
                self.denied.remove(&pair);
            }
        }
    }
}

/// Makes a context the current one of the calling thread, in place of the one before.
pub fn set(handle: usize) -> Answer {
    if handle != 0 {
        contexts().known(handle)?;
    }
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}
