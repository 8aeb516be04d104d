//! Listeners, and connections in the making. Nothing here blocks.
#![forbid(unsafe_code)]

use super::abandoned::{self, Asker, Patience};
use super::comm::{Comm, Way};
use super::contexts::{Asked, Context, Pending, common, context, patience};
use super::process::{self, OfProcess, locked};
use super::room::Room;
use super::{Fault, device, log};
use crate::abi::HANDLE_BYTES_MAX;
use crosstie::connect::ListenerId;
use crosstie::host::{AcceptError, Attempt, ConnectError};
use crosstie::wire::handle::HANDLE_BYTES;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const _: () = assert!(HANDLE_BYTES <= HANDLE_BYTES_MAX);

/// An attempt that nobody has asked for so long was dropped by an aborted communicator.
const DROPPED: Duration = Patience::USUAL.dropped;

/// What a user can do about a rank without this plugin.
const STRANGE: &str = "a rank runs another network; set the plugin on every rank (NCCL_NET_PLUGIN)";

/// Linux's numbers of families of addresses.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A listener of NCCL's.
struct Listener {
    context: u64,
    device: &'static device::Device,
    room: Arc<Room>,
    id: ListenerId,
    waiting: Mutex<Waiting>,
    /// Who waits at it.
    asker: Asker,
    /// Whether nobody says that its communicator has ended.
    is_left: AtomicBool,
}

/// NCCL's wait for the next peer of a listener.
#[derive(Default)]
struct Waiting {
    since: Option<Instant>,
    /// Whether it was told that none comes.
    told: bool,
}

impl Listener {
    /// Whether nobody says that its communicator has ended.
    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed) // read and written under the lock of the table
    }

    /// Nobody has come yet. A rank may be late for good reasons, so that is no error for as long as
    /// nothing else is known; but the user is told after the time that a connect may take.
    fn alone(&self) -> Result<(), Fault> {
        let name = self.device.name.to_string_lossy();
        if context(self.context)?.is_strange() {
            log::warn(&format!("{name}: no rank will connect: {STRANGE}"));
            return Err(Fault::Usage);
        }
        let (waiting, patience) = (&mut *locked(&self.waiting), patience());
        let waited = waiting.since.get_or_insert_with(Instant::now).elapsed();
        if waited > patience && !waiting.told {
            waiting.told = true;
            log::warn(&format!(
                "{name}: a listener of this rank has waited {} ms for a connection: the other rank \
                 is late, or runs another network; set the plugin on every rank (NCCL_NET_PLUGIN)",
                patience.as_millis()
            ));
        }
        Ok(())
    }
}

struct Listeners {
    all: BTreeMap<u64, Arc<Listener>>,
    /// Those that were closed because nobody asked.
    swept: Vec<u64>,
    next: u64,
}

impl Listeners {
    const fn new(next: u64) -> Mutex<Listeners> {
        Mutex::new(Listeners { all: BTreeMap::new(), swept: Vec::new(), next })
    }
}

static LISTENERS: OfProcess<Mutex<Listeners>> =
    OfProcess::new(Listeners::new(1), || Listeners::new(process::first_number()));

fn listeners() -> MutexGuard<'static, Listeners> {
    locked(LISTENERS.get())
}

/// Opens a listener; its number and its handle.
pub fn listen(of: u64, number: i32) -> Result<(u64, [u8; HANDLE_BYTES]), Fault> {
    let (place, device) = device(number)?;
    let context = context(of)?;
    let room = context.rooms.place(place, device, context.traffic_class)?;
    let (id, handle) = room.shared().listen().map_err(|error| {
        log::warn(&format!("device {:?} cannot listen: {error}", device.name));
        Fault::from(&error)
    })?;
    let (waiting, asker) = (Mutex::default(), Asker::new());
    let is_left = AtomicBool::new(!context.own);
    let listener = Arc::new(Listener { context: of, device, room, id, waiting, asker, is_left });
    let name = {
        let mut listeners = listeners();
        let name = listeners.next;
        listeners.next += 1;
        listeners.all.insert(name, listener);
        name
    };
    if !context.own {
        abandoned::begin();
    }
    Ok((name, handle))
}

/// Takes a connection that a peer has made; `None`: none is there yet.
pub fn accept(listener: u64) -> Result<Option<Box<Comm>>, Fault> {
    let found = listeners().all.get(&listener).map(Arc::clone);
    let listener = found.ok_or_else(|| not_there(listener))?;
    listener.asker.asks();
    let accepted = listener.room.shared().accept(listener.id);
    let accepted = accepted.map_err(|error| match error {
        AcceptError::Stale => Fault::Argument,
        AcceptError::Forked => Fault::Usage,
    })?;
    let Some(connection) = accepted else { return listener.alone().map(|()| None) };
    *locked(&listener.waiting) = Waiting::default();
    let room = Arc::clone(&listener.room);
    let way = Way::Receive;
    Comm::new(listener.context, room, connection, listener.device, way).map(Some)
}

/// Why no listener has a number.
fn not_there(listener: u64) -> Fault {
    if listeners().swept.contains(&listener) {
        log::warn(
            "a listener was closed, since it was not used for long (as in an aborted \
             communicator); it accepts no connection any more",
        );
        return Fault::Usage;
    }
    if process::is_of_parent(listener) { Fault::Usage } else { Fault::Argument }
}

/// Closes a listener; one that is closed, or none, is closed already. Its accepted connections
/// stay.
pub fn listener_close(listener: u64) {
    let found = listeners().all.remove(&listener);
    if let Some(listener) = found {
        // the one error is that it is closed
        let _ = listener.room.shared().listener_close(listener.id);
        abandoned::closed();
    }
}

/// Whether anything is there whose communicator nobody says the end of.
pub fn is_anything_left() -> bool {
    let is_listener = listeners().all.values().any(|it| it.is_left());
    is_listener || common().is_some_and(|context| !locked(&context.attempts).is_empty())
}

/// Closes listeners that nobody will ask any more, and gives up attempts; the last of a room ends
/// it, with its thread.
pub fn sweep(patience: Patience) {
    let gone = {
        let listeners = &mut *listeners();
        let is_gone = |it: &Listener| it.is_left() && it.asker.is_gone(patience);
        let its = listeners.all.iter().filter(|(_, it)| is_gone(it));
        let names: Vec<u64> = its.map(|(name, _)| *name).collect();
        listeners.swept.extend(&names);
        names.iter().filter_map(|name| listeners.all.remove(name)).collect::<Vec<_>>()
    };
    for listener in gone {
        let name = listener.device.name.to_string_lossy();
        log::info(&format!("{name}: a listener is closed, since it was not used for long"));
        let _ = listener.room.shared().listener_close(listener.id);
    }
    if let Some(context) = common() {
        let is_dropped = |it: &mut Pending| it.at.elapsed() >= patience.dropped;
        let dropped = locked(&context.attempts).extract_if(.., is_dropped).collect();
        give_up(dropped);
    }
}

/// Closes what a context has left open; with the last context what any has. Until then a listener
/// stays that another thread, which lives, may wait at: communicators that share resources have one
/// service thread, and set up in the context of the one that began it, which NCCL 2.28.3 may end
/// before the others (2.28.7 and later after them). Where none shares, that thread has ended.
pub fn listeners_close(of: u64, is_last: bool) {
    // the end of a room takes a while, and nobody waits for it
    for listener in listeners_of(of, is_last) {
        let _ = listener.room.shared().listener_close(listener.id);
    }
    match is_anything_left() {
        true => abandoned::begin(),
        false => abandoned::closed(),
    }
}

/// Takes the listeners of a context out of the table, and leaves those that are others'.
fn listeners_of(context: u64, is_last: bool) -> Vec<Arc<Listener>> {
    let all = &mut listeners().all;
    let is_closed = |it: &Listener| {
        let is_its = it.context == context;
        let is_others = is_its && !is_last && it.asker.is_elsewhere();
        it.is_left.fetch_or(is_others, Ordering::Relaxed);
        (is_its && !is_others) || (is_last && it.context != 0 && it.is_left())
    };
    let its = all.iter().filter(|(_, it)| is_closed(it));
    let names: Vec<u64> = its.map(|(name, _)| *name).collect();
    names.into_iter().filter_map(|name| all.remove(&name)).collect()
}

/// Connects to the listener of a handle, which lies at `address`; `None`: not yet, ask again with
/// the same. `traffic_class`: where this connection has one of its own.
pub fn connect(
    of: u64,
    number: i32,
    traffic_class: Option<i32>,
    address: usize,
    handle: &[u8; HANDLE_BYTES],
) -> Result<Option<Box<Comm>>, Fault> {
    let (place, device) = device(number)?;
    let context = context(of)?;
    let by = Asked { address, handle: *handle, device: place };
    let (room, attempt) = match under_way(&context, &by) {
        Some(pending) => pending,
        None => {
            forget(&context, address);
            let traffic_class = traffic_class.or(context.traffic_class);
            let (room, attempt) = begin(&context, (place, device), traffic_class, handle)?;
            let pending = Pending { by, room: Arc::clone(&room), attempt, at: Instant::now() };
            locked(&context.attempts).push(pending);
            if !context.own {
                abandoned::begin();
            }
            (room, attempt)
        }
    };
    let polled = room.shared().connect_poll(attempt);
    if let Ok(None) = polled {
        return Ok(None);
    }
    // `room` holds it, so that none ends under the lock
    locked(&context.attempts).retain(|it| it.by != by);
    if !context.own {
        abandoned::closed();
    }
    match polled {
        Ok(connection) => {
            connection.map(|it| Comm::new(of, room, it, device, Way::Send)).transpose()
        }
        Err(error) => Err(refused(&context, device, handle, &error)),
    }
}

/// The attempt that NCCL asks for again.
fn under_way(context: &Context, by: &Asked) -> Option<(Arc<Room>, Attempt)> {
    let mut attempts = locked(&context.attempts);
    let pending = attempts.iter_mut().find(|it| it.by == *by)?;
    pending.at = Instant::now();
    Some((Arc::clone(&pending.room), pending.attempt))
}

/// Starts an attempt in a room that has a connection left.
fn begin(
    context: &Context,
    (place, device): (usize, &device::Device),
    traffic_class: Option<i32>,
    handle: &[u8; HANDLE_BYTES],
) -> Result<(Arc<Room>, Attempt), Fault> {
    loop {
        let room = context.rooms.place(place, device, traffic_class)?;
        match room.shared().connect(handle) {
            Ok(attempt) => return Ok((room, attempt)),
            // the next is a fresh one, in which nothing is full
            Err(ConnectError::LocalFull) if Arc::strong_count(&room) > 1 => {
                context.rooms.leave_out(&room);
            }
            Err(error) => return Err(refused(context, device, handle, &error)),
        }
    }
}

fn refused(
    context: &Context,
    device: &device::Device,
    handle: &[u8; HANDLE_BYTES],
    error: &ConnectError,
) -> Fault {
    let name = device.name.to_string_lossy();
    if *error == ConnectError::HandleForeign {
        context.strange_set();
        let at = socket_address(handle).map_or(String::new(), |at| format!(" at {at}"));
        log::warn(&format!(
            "{name}: no connection: {error}, but of another network{at}: {STRANGE}"
        ));
    } else {
        log::warn(&format!("{name}: no connection: {error}"));
    }
    Fault::from(error)
}

/// The address that handles of NCCL's own networks begin with: a `struct sockaddr` (socket.h(0p)).
fn socket_address(handle: &[u8; HANDLE_BYTES]) -> Option<SocketAddr> {
    let part = |at| u16::from_ne_bytes([handle[at], handle[at + 1]]);
    let port = u16::from_be(part(2));
    let ip: IpAddr = match part(0) {
        AF_INET => <[u8; 4]>::try_from(&handle[4..8]).ok()?.into(),
        AF_INET6 => <[u8; 16]>::try_from(&handle[8..24]).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Gives up attempts that NCCL has dropped: another handle lies where theirs lay, or nobody has
/// asked for a long time.
fn forget(context: &Context, address: usize) {
    let is_dropped = |it: &mut Pending| it.by.address == address || it.at.elapsed() >= DROPPED;
    let dropped = locked(&context.attempts).extract_if(.., is_dropped).collect();
    give_up(dropped);
}

/// Gives up all attempts of a context.
pub fn abandon(context: &Context) {
    let all = std::mem::take(&mut *locked(&context.attempts));
    give_up(all);
}

/// Of attempts that are in no list any more: with the last its room ends, for which nobody waits.
fn give_up(attempts: Vec<Pending>) {
    for it in attempts {
        let _ = it.room.shared().connect_abandon(it.attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::tests::AT_THE_END;
    use super::super::{context_close, context_open};
    use super::*;
    use std::cell::Cell;
    use std::sync::TryLockError;

    thread_local! {
        static OF: Cell<u64> = const { Cell::new(0) };
        static ENDED: Cell<u32> = const { Cell::new(0) };
    }

    fn is_free<T>(place: &Mutex<T>) -> bool {
        !matches!(place.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// No other test sets connections up, so it would be this thread that holds a lock.
    fn look() {
        ENDED.set(ENDED.get() + 1);
        assert!(is_free(LISTENERS.get()), "the listeners wait for the end of a room");
        let context = context(OF.get()).unwrap();
        assert!(is_free(&context.attempts), "the attempts wait for the end of a room");
    }

    /// Whose turn it is to set connections up.
    static TURN: Mutex<()> = Mutex::new(());

    /// Its endpoint, thread and descriptors stayed for ever. One whose thread lives may wait for
    /// what another rank says.
    #[test]
    fn listener_of_a_thread_that_has_ended_is_given_back() {
        let _turn = locked(&TURN);
        let later = Duration::from_secs(1 << 20);
        let patience = Patience { dropped: Duration::ZERO, silent: later };
        super::super::init(None).unwrap();
        let (own, _) = listen(0, 0).unwrap();
        let aborted = std::thread::spawn(|| {
            let (listener, handle) = listen(0, 0).unwrap();
            // dropped while it is under way
            while connect(0, 0, None, 1, &handle).unwrap().is_some() {}
            listener
        });
        let listener = aborted.join().unwrap();
        let room = |name| Arc::downgrade(&listeners().all[&name].room);
        let (gone, stays) = (room(listener), room(own));
        sweep(Patience { dropped: later, silent: later });
        assert!(gone.strong_count() > 0 && abandoned::runs());
        // the kernel may still be at the end of the thread
        while gone.strong_count() > 0 {
            sweep(patience);
        }
        assert!(stays.strong_count() > 0);
        assert_eq!(accept(listener).err(), Some(Fault::Usage));
        assert!(accept(own).unwrap().is_none());
        sweep(Patience { silent: Duration::ZERO, ..patience });
        assert_eq!((stays.strong_count(), accept(own).err()), (0, Some(Fault::Usage)));
        while abandoned::runs() {
            abandoned::closed();
            std::thread::yield_now();
        }
    }

    /// An endpoint's end takes a while, and all communicators waited for it.
    #[test]
    fn rooms_end_while_no_lock_is_held() {
        let _turn = locked(&TURN);
        AT_THE_END.set(Some(look));
        let handle = |of| listen(of, 0).unwrap();
        let elsewhere = context_open(None, None).unwrap();
        let (_, there) = handle(elsewhere);
        let ended = |act: &dyn Fn(u64)| {
            let of = context_open(None, None).unwrap();
            OF.set(of);
            ENDED.set(0);
            act(of);
            assert!(ENDED.get() > 0);
            context_close(of).unwrap();
        };
        ended(&|of| listener_close(handle(of).0));
        ended(&|of| {
            handle(of);
            listeners_close(of, false);
        });
        let attempt = |of, at| {
            // one that is under way yet: this thread alone lets the other side go on
            while connect(of, 0, None, at, &there).unwrap().is_some() {}
        };
        ended(&|of| {
            attempt(of, 1);
            abandon(&context(of).unwrap());
        });
        ended(&|of| {
            // another handle lies there
            attempt(of, 1);
            assert!(connect(of, 0, None, 1, &[0; HANDLE_BYTES]).is_err());
        });
        AT_THE_END.set(None);
        context_close(elsewhere).unwrap();
    }
}
