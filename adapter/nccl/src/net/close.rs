//! The end of connections. Never waits for a peer: what is still on its way to one is seen off by
//! a thread of its own, which ends by itself.
#![forbid(unsafe_code)]

use super::comm::Comm;
use super::locked;
use super::process::OfProcess;
use super::room::Room;
use crosstie::base::slab::Handle;
use crosstie::host::endpoint::Closing;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Calls of progress that a caller of close makes itself.
const STEPS: usize = 256;
/// How long memory may take to be let go by rails that must be fenced.
const STOP_MAX: Duration = Duration::from_secs(10);
/// How long what is on its way is seen off: longer than the library itself waits for a peer.
const LINGER_MAX: Duration = Duration::from_secs(60);
/// Between two looks of the thread.
const LOOK: Duration = Duration::from_millis(1);

static THREADS: OfProcess<Mutex<Vec<JoinHandle<()>>>> =
    OfProcess::new(Mutex::new(Vec::new()), || Mutex::new(Vec::new()));

/// Closes a connection; its outstanding requests are gone with it, and nothing of them is read or
/// written any more.
pub fn close(comm: Box<Comm>) {
    if comm.room.is_forked() {
        // the parent's: closing it here would tell the peer that it has left
        std::mem::forget(comm);
        return;
    }
    comm.farewell();
    let (room, connection) = (Arc::clone(&comm.room), comm.connection);
    let memories = std::mem::take(&mut *locked(&comm.memories));
    drop(comm);
    let start = Instant::now();
    loop {
        if (0..STEPS).any(|_| step(&room, connection)) {
            return forget(&room, &memories);
        }
        let lingers = room.enter().endpoint().is_lingering(connection);
        if lingers || start.elapsed() > STOP_MAX {
            break;
        }
        std::thread::yield_now();
    }
    let (seen_off, theirs) = (Arc::clone(&room), memories.clone());
    let named = Builder::new().name("crosstie-close".into());
    let work = move || {
        see_off(&seen_off, connection);
        forget(&seen_off, &theirs);
        drop(seen_off);
        leave();
    };
    // held, so that the thread finds its handle
    let mut threads = locked(THREADS.get());
    match named.spawn(work) {
        Ok(thread) => threads.push(thread),
        Err(_) => {
            drop(threads);
            see_off(&room, connection);
            forget(&room, &memories);
        }
    }
}

/// Takes back what was registered with a connection that is closed: nothing uses it any more.
fn forget(room: &Room, memories: &[Handle]) {
    for memory in memories {
        // one that another connection uses all the same stays registered
        let _ = room.shared().deregister(*memory);
    }
}

/// A thread that nobody waits for lets go of itself: tables up to v10 have no finalize, and what is
/// never joined keeps its stack.
fn leave() {
    let own = std::thread::current().id();
    locked(THREADS.get()).retain(|thread| thread.thread().id() != own);
}

/// One attempt to close; whether it is closed.
fn step(room: &Room, connection: Handle) -> bool {
    let mut entered = room.enter();
    let endpoint = entered.endpoint();
    // NCCL has its memory back when it is called no more
    if endpoint.connection_stop(connection) == Closing::Again {
        endpoint.progress();
        return false;
    }
    true
}

fn see_off(room: &Room, connection: Handle) {
    let start = Instant::now();
    while !step(room, connection) && start.elapsed() < LINGER_MAX {
        std::thread::sleep(LOOK);
    }
}

/// Makes progress for a moment, until `enough`; whether it was. For what has ended, and waits for
/// nothing but to be looked at.
pub fn settle(comm: &Comm, enough: impl Fn() -> bool) -> bool {
    (0..STEPS).any(|_| {
        comm.room.enter().endpoint().progress();
        enough()
    })
}

/// Ends the requests of a connection at once, until `enough`; whether it was.
pub fn stop(comm: &Comm, enough: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if enough() {
            return true;
        }
        step(&comm.room, comm.connection);
        if start.elapsed() > STOP_MAX {
            return enough();
        }
        std::thread::yield_now();
    }
}

/// Waits until all that was closed has left: NCCL may unload the plugin afterwards.
pub fn finish() {
    let threads = std::mem::take(&mut *locked(THREADS.get()));
    for thread in threads {
        // a panic there was reported when it happened
        let _ = thread.join();
    }
}
