//! The end of connections. Never waits for a peer: what is still on its way to one is seen off by
//! a thread of its own, which ends by itself; where none can be started, the caller sees it off.
#![forbid(unsafe_code)]

use super::comm::Comm;
use super::process::OfProcess;
use super::room::Room;
use super::{ended, joined, locked};
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::host::endpoint::Closing;
use crosstie::memory::threads;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls of progress that a caller of close makes itself.
const STEPS: usize = 256;
/// How long memory may take to be let go by rails that must be fenced: longer than the library
/// itself waits for a fence.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How long what is on its way is seen off, and the end of the plugin may wait for it: longer than
/// the library itself waits for a peer, unless `CROSSTIE_PEER_TIMEOUT_MS` is longer.
const LINGER_MAX: Duration = Duration::from_secs(60);
/// How long a host may acknowledge nothing before the end of the plugin waits for it no longer: two
/// or three packets were sent again.
const VAIN: Span = Span::millis(2_000);
/// Between two looks of the thread.
const LOOK: Duration = Duration::from_millis(1);

/// A thread that sees a connection off.
struct SeeingOff {
    /// Whose connection it was.
    context: u64,
    thread: JoinHandle<()>,
    /// Whether somebody waits for the thread.
    awaited: Arc<AtomicBool>,
}

/// Those of a process.
struct Threads {
    all: Vec<SeeingOff>,
    /// The last that has let go of itself.
    ended: Option<JoinHandle<()>>,
}

impl Threads {
    const fn new() -> Mutex<Threads> {
        Mutex::new(Threads { all: Vec::new(), ended: None })
    }
}

static THREADS: OfProcess<Mutex<Threads>> = OfProcess::new(Threads::new(), Threads::new);

/// Closes a connection; its outstanding requests are gone with it, and nothing of them is read or
/// written any more.
pub fn close(comm: Box<Comm>) {
    if comm.room.is_forked() {
        // the parent's: closing it here would tell the peer that it has left
        std::mem::forget(comm);
        return;
    }
    comm.farewell();
    let (room, connection, context) = (Arc::clone(&comm.room), comm.connection, comm.context);
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
    // what is seen off are bytes of the endpoint's own; where no fence came, pins keep the memory
    forget(&room, &memories);
    let (seen_off, theirs) = (Arc::clone(&room), memories.clone());
    let awaited = Arc::new(AtomicBool::new(false));
    let is_awaited = Arc::clone(&awaited);
    let work = move || {
        see_off(&seen_off, connection, &is_awaited, || start.elapsed());
        forget(&seen_off, &theirs);
        drop(seen_off);
        leave(THREADS.get());
    };
    // held, so that the thread finds its handle
    let mut threads = locked(THREADS.get());
    match threads::start("crosstie-close", work) {
        Ok(thread) => threads.all.push(SeeingOff { context, thread, awaited }),
        Err(_) => {
            drop(threads);
            see_off(&room, connection, &awaited, || start.elapsed());
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

/// A thread that nobody waits for yet takes itself out of the list. It has still to end, and the
/// next waits for that, or the last finalize.
fn leave(threads: &Mutex<Threads>) {
    let own = std::thread::current().id();
    let before = {
        let threads = &mut *locked(threads);
        let place = threads.all.iter().position(|it| it.thread.thread().id() == own);
        let own = place.map(|place| threads.all.swap_remove(place).thread);
        let before = own.and_then(|own| threads.ended.replace(own));
        ended(&mut threads.ended);
        before
    };
    joined(before);
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

/// Sees a connection off that was closed `elapsed` ago. What its peer has not taken after
/// [`LINGER_MAX`] is given up here: the end of the room would wait for it as long as peers may be
/// silent.
fn see_off(room: &Room, connection: Handle, awaited: &AtomicBool, elapsed: impl Fn() -> Duration) {
    while !step(room, connection) {
        let since = elapsed();
        let is_over = since >= LINGER_MAX;
        // a hint: the next look comes soon
        let is_awaited = awaited.load(Ordering::Relaxed);
        if is_over || (is_awaited && is_vain(room, connection, since)) {
            room.enter().endpoint().linger_end(connection, Span::millis(since.as_millis() as u64));
        }
        if is_over {
            // what cannot be fenced so soon ends with the room
            let _ = (0..STEPS).any(|_| step(room, connection));
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a connection has been seen off for so long, and nothing comes of its peer's host. One
/// whose program alone is slow acknowledges what it has room for.
fn is_vain(room: &Room, connection: Handle, since: Duration) -> bool {
    since.as_nanos() >= VAIN.0.into() && room.shared().peer_silence(connection) >= VAIN
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

/// Waits until what was closed of a context has left, as far as hosts can be reached; at the last
/// that there is, what was closed of any, since NCCL may unload the plugin afterwards. Another
/// communicator's peer may take nothing for long, and NCCL begins and ends none meanwhile (from
/// 2.28.3 on its `ncclNetFinalize` holds the lock of `ncclNetInit`).
pub fn finish(context: u64, is_last: bool) {
    let mut threads = locked(THREADS.get());
    let is_ours = |it: &mut SeeingOff| is_last || it.context == context;
    let ours: Vec<SeeingOff> = threads.all.extract_if(.., is_ours).collect();
    let before = if is_last { threads.ended.take() } else { None };
    // a thread that ends takes it
    drop(threads);
    for it in &ours {
        // a hint, as above
        it.awaited.store(true, Ordering::Relaxed);
    }
    for it in ours {
        joined(Some(it.thread));
    }
    joined(before);
}

#[cfg(test)]
mod tests {
    use super::super::room::tests::{over_tcp, registered};
    use super::super::{context_close, context_open};
    use super::*;
    use crosstie::transport::{Outgoing, SubmitError};
    use std::cell::Cell;

    /// A connection between two rooms.
    fn connected(from: &Room, to: &Room) -> Handle {
        let (_, handle) = to.shared().listen().unwrap();
        let attempt = from.shared().connect(&handle).unwrap();
        loop {
            if let Some(connection) = from.shared().connect_poll(attempt).unwrap() {
                return connection;
            }
            std::thread::yield_now();
        }
    }

    /// Sends what is copied until nothing leaves any more.
    fn fill_up(room: &Room, connection: Handle) {
        let memory: &'static mut [u8] = Box::leak(vec![0; 8192].into());
        let (address, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let message = Outgoing { region: registered(room, memory), address, length, tag: 1 };
        for _ in 0..10_000 {
            let mut entered = room.enter();
            match entered.endpoint().isend(connection, message) {
                Ok(request) => {
                    _ = (0..STEPS).any(|_| {
                        // what has no room waits
                        !matches!(entered.endpoint().test(request), Ok(None))
                    })
                }
                Err(SubmitError::Again) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("all leaves");
    }

    /// The end of its room waited for that as long as any peer may be silent.
    #[test]
    fn what_a_peer_takes_too_late_is_given_up() {
        let (room, peer) = (over_tcp(), over_tcp());
        let connection = connected(&room, &peer);
        // as a stopped process: nobody else gets in
        let stopped = peer.enter();
        fill_up(&room, connection);
        let is_lingering = || room.enter().endpoint().is_lingering(connection);
        assert!(!step(&room, connection) && is_lingering());
        // looked at while it may go on, and when it may not
        let looks = Cell::new(0);
        see_off(&room, connection, &AtomicBool::new(true), || {
            assert!(is_lingering());
            looks.set(looks.get() + 1);
            LINGER_MAX - LOOK * u32::from(looks.get() == 1)
        });
        assert_eq!((looks.get(), is_lingering()), (2, false));
        drop(stopped);
    }

    /// Where a rail had memory of requests for so long, the wait for the peer had not begun.
    #[test]
    fn connection_that_is_to_wait_no_longer_does_not_begin_to() {
        let (room, peer) = (over_tcp(), over_tcp());
        let connection = connected(&room, &peer);
        let stopped = peer.enter();
        fill_up(&room, connection);
        room.enter().endpoint().linger_end(connection, Span::millis(1));
        step(&room, connection);
        assert!(!room.enter().endpoint().is_lingering(connection));
        drop(stopped);
    }

    /// One that was about to end was in no list any more, and no finalize waited for it.
    #[test]
    fn thread_that_has_let_go_of_itself_is_held_until_it_has_ended() {
        let threads: &'static Mutex<Threads> = Box::leak(Box::new(Threads::new()));
        let context = context_open(None, None).unwrap();
        for _ in 0..3 {
            let mut held = locked(threads);
            let thread = std::thread::spawn(|| leave(threads));
            let own = thread.thread().id();
            held.all.push(SeeingOff { context: 1, thread, awaited: Arc::default() });
            drop(held);
            while !locked(threads).all.is_empty() {
                std::thread::yield_now();
            }
            let ended = locked(threads).ended.as_ref().map(|it| it.thread().id());
            assert_eq!(ended, Some(own));
        }
        context_close(context).unwrap();
    }
}
