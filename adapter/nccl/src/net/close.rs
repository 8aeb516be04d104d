//! The end of connections. Never waits for a peer: what is still on its way to one, and fences that
//! need its word, one thread of the process sees off, which ends when nothing is left. A call waits
//! in two cases: a rail may still use memory of requests, or [`SEEN_OFF_MAX`] connections are seen
//! off already.
#![forbid(unsafe_code)]

use super::comm::Comm;
use super::log;
use super::process::{OfProcess, locked};
use super::room::{Remains, Room};
use super::threads::{ended, joined};
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::host::endpoint::Closing;
use crosstie::memory::threads;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls of progress that a caller of close makes itself.
const STEPS: usize = 256;
/// How long memory may take to be let go by rails that must be fenced: longer than the library
/// itself waits for a fence.
const STOP_MAX: Duration = Duration::from_secs(15);
/// Connections and endpoints that the thread sees off at a time. A close beyond waits until one of
/// them has ended, which takes [`LINGER_MAX`] at most. An endpoint has room for about a hundred, so
/// that ten of them wait for peers that say nothing.
const SEEN_OFF_MAX: usize = 1000;
/// How long what is on its way is seen off, and the end of the plugin may wait for it: longer than
/// the library itself waits for a peer, unless `CROSSTIE_PEER_TIMEOUT_MS` is longer.
const LINGER_MAX: Duration = Duration::from_secs(60);
/// How long a host may acknowledge nothing before the end of the plugin waits for it no longer: two
/// or three packets were sent again.
const VAIN: Span = Span::millis(2_000);
/// Between two looks of the thread.
const LOOK: Duration = Duration::from_millis(1);

/// A connection that is seen off.
struct Parting {
    /// Whose connection it was.
    context: u64,
    room: Arc<Room>,
    connection: Handle,
    /// What was registered with it.
    memories: Vec<Handle>,
    closed: Instant,
}

/// The contexts of rooms that end: the last end of any waits for them, and no other.
const ROOMS: u64 = 0;

/// What the process sees off, and the thread that does: there is one while something is left.
#[derive(Default)]
struct Door {
    state: Mutex<State>,
    /// Something was seen off.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Connections that were not looked at yet.
    fresh: Vec<Parting>,
    /// Endpoints whose rooms have ended.
    remains: Vec<Remains>,
    /// The contexts of all that are seen off, one for each; of an endpoint [`ROOMS`].
    contexts: Vec<u64>,
    /// Contexts whose end waits, and whether the last end does, for all.
    awaited: Vec<u64>,
    is_last: bool,
    /// Closes that wait until fewer are seen off, and whether the log has said that some do.
    held: usize,
    is_told: bool,
    /// The thread that was started last, until somebody has waited for it.
    thread: Option<JoinHandle<()>>,
    /// Whether it works.
    works: bool,
    /// Which thread it is, counted: one that is waited for begins no other's work.
    number: u64,
}

static DOOR: OfProcess<Door> = OfProcess::new(
    Door {
        state: Mutex::new(State {
            fresh: Vec::new(),
            remains: Vec::new(),
            contexts: Vec::new(),
            awaited: Vec::new(),
            is_last: false,
            held: 0,
            is_told: false,
            thread: None,
            works: false,
            number: 0,
        }),
        changed: Condvar::new(),
    },
    Door::default,
);

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
        if !waits_for_memory(&room, connection) || start.elapsed() > STOP_MAX {
            break;
        }
        std::thread::yield_now();
    }
    // what is seen off are bytes of the endpoint's own; where no fence came, pins keep the memory
    forget(&room, &memories);
    let parting = Parting { context, room, connection, memories, closed: start };
    DOOR.get().see_off(parting, SEEN_OFF_MAX);
}

/// Whether a close that is not over waits for rails to let go of memory of requests.
fn waits_for_memory(room: &Room, connection: Handle) -> bool {
    let mut entered = room.enter();
    let endpoint = entered.endpoint();
    !endpoint.is_lingering(connection) && endpoint.is_memory_used(connection)
}

/// Ends what a room has left where its caller does not wait for that.
pub fn end_aside(remains: Remains) {
    DOOR.get().begin(ROOMS, |state| state.remains.push(remains));
}

/// Takes back what was registered with a connection that is closed: nothing uses it any more.
fn forget(room: &Room, memories: &[Handle]) {
    for memory in memories {
        // one that another connection uses all the same stays registered
        let _ = room.shared().deregister(*memory);
    }
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

impl Parting {
    /// A look after a connection that was closed so long ago; whether it was the last. What its
    /// peer has not taken after [`LINGER_MAX`] is given up here: the end of the room would wait for
    /// it as long as peers may be silent.
    fn look(&self, is_awaited: bool, since: Duration) -> bool {
        let Parting { room, connection, .. } = self;
        let mut is_over = step(room, *connection);
        if !is_over {
            is_over = since >= LINGER_MAX;
            if is_over || (is_awaited && is_vain(room, *connection, since)) {
                let waited = Span::millis(since.as_millis() as u64);
                room.enter().endpoint().linger_end(*connection, waited);
            }
            // what cannot be fenced so soon ends with the room
            let _ = is_over && (0..STEPS).any(|_| step(room, *connection));
        }
        if is_over {
            forget(room, &self.memories);
        }
        is_over
    }
}

impl Door {
    /// Hands a connection over to the thread, as soon as it has fewer than `most`.
    fn see_off(&'static self, parting: Parting, most: usize) {
        let mut state = locked(&self.state);
        if state.contexts.len() >= most {
            if !std::mem::replace(&mut state.is_told, true) {
                log::warn(&format!(
                    "{most} closed connections wait for their peers; the next close waits until \
                     one of them has ended"
                ));
            }
            state.held += 1;
            state = self.wait_while(state, |state| state.contexts.len() >= most);
            state.held -= 1;
        }
        let context = parting.context;
        self.begin_locked(state, context, |state| state.fresh.push(parting));
    }

    fn begin(&'static self, context: u64, hand_over: impl FnOnce(&mut State)) {
        self.begin_locked(locked(&self.state), context, hand_over);
    }

    fn begin_locked(
        &'static self,
        mut state: MutexGuard<'_, State>,
        context: u64,
        hand_over: impl FnOnce(&mut State),
    ) {
        state.contexts.push(context);
        hand_over(&mut state);
        if state.works {
            return;
        }
        joined(state.thread.take());
        state.number += 1;
        let number = state.number;
        match threads::start("crosstie-close", move || self.work(number)) {
            Ok(thread) => (state.thread, state.works) = (Some(thread), true),
            Err(error) => log::warn(&format!(
                "cannot start a thread ({error}): a later close, or the end of the communicator, \
                 finishes what a closed connection has left"
            )),
        }
    }

    fn work(&self, number: u64) {
        let is_wanted = |state: &State| state.number == number && !state.contexts.is_empty();
        let mut own = Vec::new();
        let mut state = locked(&self.state);
        while is_wanted(&state) {
            drop(state);
            self.turn(&mut own);
            state = locked(&self.state);
            if is_wanted(&state) {
                let waited = self.changed.wait_timeout(state, LOOK);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        // who comes next starts another
        if state.number == number {
            state.works = false;
            ended(&mut state.thread);
        }
    }

    /// Looks once after each. A room may end here with its last connection.
    fn turn(&self, own: &mut Vec<Parting>) {
        let (is_last, awaited, remains) = {
            let mut state = locked(&self.state);
            own.append(&mut state.fresh);
            (state.is_last, state.awaited.clone(), std::mem::take(&mut state.remains))
        };
        let is_over = |parting: &mut Parting| {
            let is_awaited = is_last || awaited.contains(&parting.context);
            let look = || parting.look(is_awaited, parting.closed.elapsed());
            // the thread is of all connections, and goes on
            catch_unwind(AssertUnwindSafe(look)).unwrap_or(true)
        };
        let mut over = vec![ROOMS; remains.len()];
        for remains in remains {
            let _ = catch_unwind(AssertUnwindSafe(|| remains.close()));
        }
        over.extend(own.extract_if(.., is_over).map(|parting| parting.context));
        let mut state = locked(&self.state);
        for context in &over {
            let place = state.contexts.iter().position(|other| other == context);
            place.map(|place| state.contexts.swap_remove(place));
        }
        if !over.is_empty() {
            self.changed.notify_all();
        }
    }

    /// Waits as long as `is_left`, and sees off what is left itself where there is no thread.
    fn wait_while<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        is_left: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        let mut own = Vec::new();
        while is_left(&state) {
            if !state.works {
                // no thread could be started
                drop(state);
                self.turn(&mut own);
                state = locked(&self.state);
                // who comes next may start one
                state.fresh.append(&mut own);
            }
            if is_left(&state) {
                let waited = self.changed.wait_timeout(state, LOOK);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        state
    }

    /// Waits until all of a context is seen off; at the last end of any, until all is, and the
    /// thread has ended.
    fn finish(&self, context: u64, is_last: bool) {
        let is_left = |state: &State| match is_last {
            true => !state.contexts.is_empty(),
            false => state.contexts.contains(&context),
        };
        let mut state = locked(&self.state);
        state.awaited.push(context);
        state.is_last |= is_last;
        state = self.wait_while(state, is_left);
        state.awaited.retain(|other| *other != context);
        state.is_last &= !is_last;
        let thread = if is_last { state.thread.take() } else { None };
        if is_last {
            // what is closed meanwhile has a thread of its own
            (state.number, state.works) = (state.number + 1, false);
        }
        drop(state);
        joined(thread);
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
    DOOR.get().finish(context, is_last);
}

#[cfg(test)]
mod tests {
    use super::super::room::tests::{over_tcp, registered};
    use super::super::{context_close, context_open};
    use super::*;
    use crosstie::transport::{Outgoing, SubmitError};

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
        let memories = Vec::new();
        let closed = Instant::now();
        let parting = Parting { context: 1, room: Arc::clone(&room), connection, memories, closed };
        // looked at while it may go on, and when it may not
        assert!(!parting.look(true, LINGER_MAX - LOOK) && is_lingering());
        assert!(parting.look(true, LINGER_MAX) && !is_lingering());
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
    fn thread_that_has_nothing_left_is_held_until_somebody_has_waited_for_it() {
        let door: &'static Door = Box::leak(Box::default());
        let context = context_open(None, None).unwrap();
        for _ in 0..3 {
            let (room, connection, memories) = (over_tcp(), Handle::default(), Vec::new());
            let closed = Instant::now();
            let parting = Parting { context: 1, room, connection, memories, closed };
            door.begin(1, |state| state.fresh.push(parting));
            door.finish(1, false);
            while locked(&door.state).works {
                std::thread::yield_now();
            }
            assert!(locked(&door.state).thread.is_some());
        }
        door.finish(1, true);
        assert!(locked(&door.state).thread.is_none());
        context_close(context).unwrap();
    }

    /// Each connection that was seen off had a thread of its own.
    #[test]
    fn connections_are_seen_off_by_one_thread() {
        let door: &'static Door = Box::leak(Box::default());
        let context = context_open(None, None).unwrap();
        let (room, peer) = (over_tcp(), over_tcp());
        let stopped = peer.enter();
        let (mut thread, mut all) = (None, Vec::new());
        for _ in 0..4 {
            let connection = connected(&room, &peer);
            all.push(connection);
            fill_up(&room, connection);
            assert!(!step(&room, connection));
            let (room, memories, closed) = (Arc::clone(&room), Vec::new(), Instant::now());
            let parting = Parting { context: 1, room, connection, memories, closed };
            door.begin(1, |state| state.fresh.push(parting));
            let state = locked(&door.state);
            let its = state.thread.as_ref().map(|it| it.thread().id());
            assert_eq!(*thread.get_or_insert(its), its);
        }
        for connection in all {
            room.enter().endpoint().linger_end(connection, Span::millis(1));
        }
        door.finish(1, true);
        drop(stopped);
        context_close(context).unwrap();
    }

    /// There was no bound: peers that say nothing kept any number.
    #[test]
    fn close_beyond_the_bound_waits_for_one_to_end() {
        let door: &'static Door = Box::leak(Box::default());
        let context = context_open(None, None).unwrap();
        let (room, peer) = (over_tcp(), over_tcp());
        let connections: [Handle; 3] = std::array::from_fn(|_| connected(&room, &peer));
        let stopped = peer.enter();
        let partings = connections.map(|connection| {
            fill_up(&room, connection);
            assert!(!step(&room, connection));
            let (room, closed) = (Arc::clone(&room), Instant::now());
            Parting { context: 1, room, connection, memories: Vec::new(), closed }
        });
        let most = partings.len() - 1;
        let [first, second, third] = partings;
        door.see_off(first, most);
        door.see_off(second, most);
        let beyond = std::thread::spawn(move || door.see_off(third, most));
        while locked(&door.state).held == 0 {
            assert!(!beyond.is_finished(), "a third is seen off beside {most}");
            std::thread::yield_now();
        }
        assert_eq!(locked(&door.state).contexts.len(), most);
        room.enter().endpoint().linger_end(connections[0], Span::millis(1));
        beyond.join().unwrap();
        assert_eq!(locked(&door.state).held, 0);
        for connection in connections {
            room.enter().endpoint().linger_end(connection, Span::millis(1));
        }
        door.finish(1, true);
        drop(stopped);
        context_close(context).unwrap();
    }
}
