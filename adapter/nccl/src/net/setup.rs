//! Listeners, and connections in the making. Nothing here blocks.
#![forbid(unsafe_code)]

use super::comm::{Comm, Way};
use super::process::{self, OfProcess};
use super::room::Room;
use super::{Context, Fault, context, device, locked, log, patience};
use crate::abi::HANDLE_BYTES_MAX;
use crosstie::connect::ListenerId;
use crosstie::host::{AcceptError, Attempt, ConnectError};
use crosstie::wire::handle::HANDLE_BYTES;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const _: () = assert!(HANDLE_BYTES <= HANDLE_BYTES_MAX);

/// An attempt that nobody has asked for so long was dropped by an aborted communicator.
const ABANDONED: Duration = Duration::from_secs(60);

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
}

/// NCCL's wait for the next peer of a listener.
#[derive(Default)]
struct Waiting {
    since: Option<Instant>,
    /// Whether it was told that none comes.
    told: bool,
}

impl Listener {
    fn new(
        context: u64,
        device: &'static device::Device,
        room: Arc<Room>,
        id: ListenerId,
    ) -> Listener {
        Listener { context, device, room, id, waiting: Mutex::default() }
    }

    /// Nobody has come yet. A rank may be late for good reasons, so that is no error for as long as
    /// nothing else is known; but the user is told after the time that a connect may take.
    fn alone(&self) -> Result<(), Fault> {
        let name = self.device.name.to_string_lossy();
        if context(self.context)?.is_strange() {
            log::warn(&format!("{name}: nobody will connect: {STRANGE}"));
            return Err(Fault::Usage);
        }
        let (waiting, patience) = (&mut *locked(&self.waiting), patience());
        let waited = waiting.since.get_or_insert_with(Instant::now).elapsed();
        if waited > patience && !waiting.told {
            waiting.told = true;
            log::warn(&format!(
                "{name}: nobody has connected for {} ms to a listener that this rank waits at: the \
                 other rank has not come to it yet, or it runs another network; set the plugin on \
                 every rank (NCCL_NET_PLUGIN)",
                patience.as_millis()
            ));
        }
        Ok(())
    }
}

struct Listeners {
    all: BTreeMap<u64, Arc<Listener>>,
    next: u64,
}

impl Listeners {
    const fn new(next: u64) -> Mutex<Listeners> {
        Mutex::new(Listeners { all: BTreeMap::new(), next })
    }
}

static LISTENERS: OfProcess<Mutex<Listeners>> =
    OfProcess::new(Listeners::new(1), || Listeners::new(process::first_number()));

fn listeners() -> MutexGuard<'static, Listeners> {
    locked(LISTENERS.get())
}

/// An attempt to connect, known by where its handle lies and what the handle is: NCCL asks again
/// with both.
pub struct Pending {
    address: usize,
    handle: [u8; HANDLE_BYTES],
    device: usize,
    room: Arc<Room>,
    attempt: Attempt,
    asked: Instant,
}

/// Opens a listener; its number and its handle.
pub fn listen(of: u64, number: i32) -> Result<(u64, [u8; HANDLE_BYTES]), Fault> {
    let (place, device) = device(number)?;
    let room = context(of)?.rooms.place(place, device)?;
    let (id, handle) = room.shared().listen().map_err(|error| {
        log::warn(&format!("device {:?} cannot listen: {error}", device.name));
        Fault::from(&error)
    })?;
    let listener = Arc::new(Listener::new(of, device, room, id));
    let mut listeners = listeners();
    let name = listeners.next;
    listeners.next += 1;
    listeners.all.insert(name, listener);
    Ok((name, handle))
}

/// Takes a connection that a peer has made; `None`: none is there yet.
pub fn accept(listener: u64) -> Result<Option<Box<Comm>>, Fault> {
    let found = listeners().all.get(&listener).map(Arc::clone);
    let none = if process::is_of_parent(listener) { Fault::Usage } else { Fault::Argument };
    let listener = found.ok_or(none)?;
    let accepted = listener.room.shared().accept(listener.id);
    let accepted = accepted.map_err(|error| match error {
        AcceptError::Stale => Fault::Argument,
        AcceptError::Forked => Fault::Usage,
    })?;
    let Some(connection) = accepted else { return listener.alone().map(|()| None) };
    *locked(&listener.waiting) = Waiting::default();
    let room = Arc::clone(&listener.room);
    Ok(Some(Comm::new(room, connection, listener.device, Way::Receive)))
}

/// Closes a listener; one that is closed, or none, is closed already. Its accepted connections
/// stay.
pub fn listener_close(listener: u64) {
    let found = listeners().all.remove(&listener);
    if let Some(listener) = found {
        // the one error is that it is closed
        let _ = listener.room.shared().listener_close(listener.id);
    }
}

/// Closes what a context has left open.
pub fn listeners_close(of: u64) {
    let all = &mut listeners().all;
    let left: Vec<u64> = all.iter().filter(|(_, it)| it.context == of).map(|it| *it.0).collect();
    for name in left {
        if let Some(listener) = all.remove(&name) {
            let _ = listener.room.shared().listener_close(listener.id);
        }
    }
}

/// Connects to the listener of a handle, which lies at `address`; `None`: not yet, ask again with
/// the same.
pub fn connect(
    of: u64,
    number: i32,
    address: usize,
    handle: &[u8; HANDLE_BYTES],
) -> Result<Option<Box<Comm>>, Fault> {
    let (place, device) = device(number)?;
    let context = context(of)?;
    let mut attempts = locked(&context.attempts);
    let is_it = |it: &Pending| it.address == address && it.device == place && it.handle == *handle;
    let at = match attempts.iter().position(is_it) {
        Some(at) => at,
        None => {
            forget(&mut attempts, address);
            let (room, attempt) = begin(&context, place, device, handle)?;
            let (handle, asked) = (*handle, Instant::now());
            attempts.push(Pending { address, handle, device: place, room, attempt, asked });
            attempts.len() - 1
        }
    };
    attempts[at].asked = Instant::now();
    match attempts[at].room.shared().connect_poll(attempts[at].attempt) {
        Ok(None) => Ok(None),
        Ok(Some(connection)) => {
            let room = attempts.swap_remove(at).room;
            Ok(Some(Comm::new(room, connection, device, Way::Send)))
        }
        Err(error) => {
            attempts.swap_remove(at);
            Err(refused(&context, device, handle, &error))
        }
    }
}

/// Starts an attempt in a room that has a connection left.
fn begin(
    context: &Context,
    place: usize,
    device: &device::Device,
    handle: &[u8; HANDLE_BYTES],
) -> Result<(Arc<Room>, Attempt), Fault> {
    loop {
        let room = context.rooms.place(place, device)?;
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
fn forget(attempts: &mut Vec<Pending>, address: usize) {
    attempts.retain(|it| {
        let stays = it.address != address && it.asked.elapsed() < ABANDONED;
        if !stays {
            let _ = it.room.shared().connect_abandon(it.attempt);
        }
        stays
    });
}

/// Gives up all attempts of a context.
pub fn abandon(context: &Context) {
    for it in locked(&context.attempts).drain(..) {
        let _ = it.room.shared().connect_abandon(it.attempt);
    }
}
