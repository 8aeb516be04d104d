//! Rooms: endpoints, each with its block, shared by the connections of one device, one
//! communicator and one thread that sets them up.
//!
//! NCCL has a service thread for each communicator and GPU, which makes all of their connections.
//! So with a room for each such thread, what two GPUs of one process send never waits for one lock,
//! also under tables that know of no communicators. A room is opened when the first connection
//! wants it, and closed with its last.

use super::device::Device;
use super::kind::Kind;
use super::process::OfProcess;
use super::tender::{Seat, Seated};
use super::{Fault, close, crew, log};
use crosstie::base::units::Bytes;
use crosstie::connect::fork::forks;
use crosstie::host::{Endpoint, Options, Shared};
use crosstie::memory::Reserve;
use crosstie::provider::verbs::settings::Names;
use crosstie::transport::Limits;
use crosstie::wire::RAILS_MAX;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Connections of one endpoint. A slot is free again only when both ends have closed, so there are
/// more than [`PLACES`]: who gets one of these finds as many slots free.
const CONNECTIONS_MAX: u32 = LISTENER_CONNECTIONS + PLACES as u32 - 1;
/// Listeners, attempts and connections after which another room is opened.
const PLACES: usize = 32;
/// Connections that one listener serves at a time in a room whose slots are free at first, whatever
/// else has a place there. A listener cannot move to another room: its handle names this one. NCCL
/// makes one connection by each, other users of its networks many.
const LISTENER_CONNECTIONS: u32 = 65;
/// Pieces of memory registered with one room: NCCL registers up to three buffers for each
/// connection, and the user's.
pub const REGIONS_MAX: u32 = 4096;

/// NCCL's buffers are not ours, so that all goes through the rings in two copies: as much as both
/// sides can copy at once without waiting for each other, and as a second-level cache holds.
const WRITE_RING_BYTES: u32 = 1 << 20;

// A device of one interface may meet one of as many as there can be, all in its subnet: a
// connection has as many rails as the smaller of both sides allows.
const _: () = assert!(RAILS_MAX >= crate::net::device::MEMBERS_MAX);

/// What a call hands to TCP: NCCL's thread sends and receives as much.
const TCP_CALL_BYTES: Bytes = Bytes::kib(1024);

fn options(device: &Device, traffic_class: Option<i32>) -> Options {
    let mut options = Options {
        limits: Limits {
            connections_max: CONNECTIONS_MAX,
            requests_max: crate::net::comm::REQUESTS as u32,
            regions_max: REGIONS_MAX,
            rails_max: RAILS_MAX as u32,
        },
        write_ring_bytes: WRITE_RING_BYTES,
        heap_bytes: Bytes::ZERO,
        // several of NCCL's ranks share a connection, each with a tag of its own
        push: true,
        accept_taken: true,
        thread_retires: true,
        gpu_flushes: true,
        tcp_call_bytes: TCP_CALL_BYTES,
        shm_threads: crew::shm_threads(),
        tcp_threads: crew::tcp_threads(),
        verbs_names: Names::WithNccl,
        verbs_traffic_class: traffic_class.and_then(|class| u8::try_from(class).ok()),
        interfaces_spare: Some(device.spare),
        family: device.family,
        ..Options::default()
    };
    device.kind.choose(&mut options);
    options
}

/// What becomes of a traffic class that a communicator's user wants.
fn traffic_class_text(device: &Device, class: i32) -> String {
    let name = device.name.to_string_lossy();
    match (device.kind, u8::try_from(class)) {
        (_, Err(_)) => format!("{name}: traffic class {class} is ignored: it may be up to 255"),
        (Kind::Ports { .. }, Ok(_)) => {
            format!("{name}: traffic class {class}, unless a variable says another")
        }
        (Kind::Alone | Kind::Interfaces(_) | Kind::Nics { .. }, Ok(_)) => {
            format!("{name}: traffic class {class} is ignored: only RDMA ports have one")
        }
    }
}

/// An open endpoint.
pub struct Room {
    /// Beside the endpoint in its block; used without the lock.
    shared: NonNull<Shared>,
    seat: Arc<Seat>,
    /// Forks of the process that has opened it.
    forks: u32,
    /// Whether closing the endpoint may wait for threads of a library, which callers do not.
    is_slow_to_close: bool,
    // freed after the endpoint: `Remains` closes that first
    block: Mutex<Option<Reserve>>,
}

/// An endpoint whose room has ended, and its block.
pub struct Remains {
    endpoint: Endpoint,
    _block: Option<Reserve>,
}

impl Remains {
    /// Closes the endpoint before the block.
    pub fn close(self) {
        self.endpoint.close();
        STANDING.get().fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: the pointer stands for a `&Shared`, which any thread may use; the rest is `Send` and
// behind locks.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    fn open(device: &Device, traffic_class: Option<i32>) -> Result<Room, Fault> {
        let room = Room::with(device, &options(device, traffic_class))?;
        if let Some(class) = traffic_class {
            log::info(&traffic_class_text(device, class));
        }
        Ok(room)
    }

    fn with(device: &Device, options: &Options) -> Result<Room, Fault> {
        let block = Reserve::create(options.bytes()).map_err(|error| {
            let (name, bytes) = (device.name, options.bytes());
            log::warn(&format!(
                "device {name:?} cannot be opened: no memory for {bytes} bytes ({error})"
            ));
            Fault::System
        })?;
        // SAFETY: the block is aligned to a page, as long as told, zeroed, and the room's until it
        // has closed the endpoint (`drop`); its memory does not move with it. `shared` is used
        // through the room alone.
        let opened = unsafe { Endpoint::open_zeroed(block.start(), block.length(), options) };
        let endpoint = opened.map_err(|error| {
            log::warn(&format!("device {:?} cannot be opened: {error}", device.name));
            Fault::from(&error)
        })?;
        let shared = endpoint.shared.place();
        let (seat, forks) = (Seat::with(endpoint), forks());
        STANDING.get().fetch_add(1, Ordering::Relaxed);
        let (is_slow_to_close, block) =
            (matches!(device.kind, Kind::Nics { .. }), Mutex::new(Some(block)));
        Ok(Room { shared, seat, forks, is_slow_to_close, block })
    }

    /// What any thread may use at any time.
    pub fn shared(&self) -> &Shared {
        // SAFETY: it stands in the block until the endpoint is closed, which `drop` alone does.
        unsafe { self.shared.as_ref() }
    }

    /// Whether another listener or connection may have a place in it, and be sure of a connection.
    /// All that have one may be listeners, and then wait for a peer each.
    fn has_place(room: &Arc<Room>) -> bool {
        // the caller holds it, too
        Arc::strong_count(room) <= PLACES && room.shared().connections_left() >= PLACES as u32
    }

    /// Whether this process is a fork of the one whose room it is: nothing of it may be used here,
    /// nor closed.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != forks()
    }

    /// The endpoint, for one thread at a time.
    #[inline]
    pub fn enter(&self) -> Entered<'_> {
        Entered(self.seat.enter())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        #[cfg(test)]
        tests::told_of_the_end();
        let Some(endpoint) = self.seat.vacate() else { return };
        let block = self.block.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.is_forked() {
            endpoint.close();
            return;
        }
        let remains = Remains { endpoint, _block: block };
        match self.is_slow_to_close {
            true => close::end_aside(remains),
            false => remains.close(),
        }
    }
}

/// Rooms of this process that were opened and not closed. Nothing is ordered by it.
static STANDING: OfProcess<AtomicU32> = OfProcess::new(AtomicU32::new(0), || AtomicU32::new(0));

/// How many rooms stand.
pub fn standing() -> u32 {
    STANDING.get().load(Ordering::Relaxed)
}

/// The endpoint of a room, held.
pub struct Entered<'r>(MutexGuard<'r, Seated>);

impl Entered<'_> {
    /// It.
    #[inline]
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.0.endpoint.as_mut().expect("open until the room is dropped")
    }
}

/// Whose connections are in one room.
#[derive(Copy, Clone, Eq, PartialEq)]
struct Whose {
    device: usize,
    thread: usize,
    traffic_class: Option<i32>,
}

/// A room that stands, and for whom.
struct Standing {
    whose: Whose,
    room: Weak<Room>,
}

/// The rooms of one communicator.
#[derive(Default)]
pub struct Rooms(Mutex<Vec<Standing>>);

impl Rooms {
    /// The calling thread's room of a device with a place in it; opened if there is none.
    pub fn place(
        &self,
        number: usize,
        device: &Device,
        traffic_class: Option<i32>,
    ) -> Result<Arc<Room>, Fault> {
        let whose = Whose { device: number, thread: thread_number(), traffic_class };
        // none ends, or is asked or opened, under the lock; other threads open none of this one's
        if let Some(room) = self.all_of(&whose).into_iter().find(Room::has_place) {
            return Ok(room);
        }
        let room = Arc::new(Room::open(device, traffic_class)?);
        let standing = Standing { whose, room: Arc::downgrade(&room) };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(standing);
        Ok(room)
    }

    fn all_of(&self, whose: &Whose) -> Vec<Arc<Room>> {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.retain(|standing| standing.room.strong_count() > 0);
        let its = rooms.iter().filter(|standing| standing.whose == *whose);
        its.filter_map(|standing| standing.room.upgrade()).collect()
    }

    /// From now on nobody finds this room: its connections are all in use.
    pub fn leave_out(&self, room: &Arc<Room>) {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.retain(|standing| !std::ptr::eq(standing.room.as_ptr(), Arc::as_ptr(room)));
    }
}

/// Different for threads that live at the same time.
fn thread_number() -> usize {
    // without a destructor, which would have to run when the thread ends
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place) as usize)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crosstie::base::slab::Handle;
    use crosstie::connect::interfaces::{InterfaceName, Interfaces};
    use crosstie::fabric::MemoryKind;
    use crosstie::host::DeviceKind;
    use std::cell::Cell;

    thread_local! {
        /// What a test does whenever the last hold on a room goes on its thread.
        pub(in crate::net) static AT_THE_END: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    pub(super) fn told_of_the_end() {
        if let Some(act) = AT_THE_END.get() {
            act();
        }
    }

    /// A room of the loopback interface, over sockets alone.
    pub(in crate::net) fn over_tcp() -> Arc<Room> {
        let device = crate::net::device::survey().unwrap().remove(0);
        let interfaces = Interfaces::one(InterfaceName::new(b"lo"));
        let its = Options { device: DeviceKind::Tcp, interfaces, ..options(&device, None) };
        Arc::new(Room::with(&device, &its).unwrap())
    }

    pub(in crate::net) fn registered(room: &Room, memory: &'static mut [u8]) -> Handle {
        let (address, length) = (memory.as_mut_ptr() as u64, Bytes(memory.len() as u64));
        // SAFETY: nobody else has it, for ever.
        unsafe { room.shared().register(address, length, MemoryKind::Host) }.unwrap()
    }

    #[test]
    fn traffic_class_of_a_communicator_is_that_of_its_rooms_ports() {
        let device = crate::net::device::survey().unwrap().remove(0);
        let asked = |class| options(&device, class).verbs_traffic_class;
        assert_eq!([asked(None), asked(Some(106)), asked(Some(256))], [None, Some(106), None]);
        let text = traffic_class_text(&device, 256);
        assert!(text.ends_with("traffic class 256 is ignored: it may be up to 255"), "{text}");
    }

    #[test]
    fn room_takes_what_the_decision_says() {
        for device in crate::net::device::survey().unwrap() {
            let bytes = options(&device, None).bytes();
            assert!((16_500_000..17_500_000).contains(&bytes), "doc/decisions/0010: {bytes}");
        }
    }
}
