//! The endpoint, and the half of it that belongs to one thread at a time.

use super::choice::device::DeviceKind;
use super::choice::network;
use super::choice::options::Options;
use super::choice::plan::Plan;
use super::choice::settings;
use super::choice::vendor::{self, VendorRail};
use super::error::OpenError;
use super::gpu::{Flushes, GpuFlushes};
use super::group::gpu_adds::GpuAdds;
use super::life::connections::{connections, since};
pub use super::life::known::ConnectionRail;
use super::life::known::{Known, RailView};
use super::life::lanes::{self, Lanes};
use super::life::linger::Linger;
use super::life::vouch::Vouching;
use super::life::{join, pairs};
use super::log::network::VendorOut;
use super::log::stalls::Stalls;
use super::machine::{Machine, each};
use super::parts::{Parts, Tables, heap_create, room_check};
use super::shared::{Half, Shared, is_current, is_live};
use crate::base::carve::{BLOCK_ALIGN, Carver};
use crate::base::descriptor::StandardHeld;
use crate::base::ids::ConnectionIndex;
use crate::base::ring::Consumer;
use crate::base::slab::Handle;
use crate::base::sync::AtomicU32;
use crate::base::units::{Bytes, Instant, Span};
use crate::connect::{BandEvent, Rail};
use crate::fabric::{DownCause, RailKey};
use crate::memory::WakeFd;
use crate::provider::copy_engine::Copied;
use crate::transport::request::RequestIdError;
use crate::transport::{
    DataMrs, Incoming, LaneView, Outcome, Outgoing, Progress, RequestError, RequestId, Stats,
    SubmitError,
};
use core::fmt;
use std::sync::Arc;

/// Most bytes copied in one call of [`Endpoint::progress`].
const POLL_BUDGET: Bytes = Bytes::kib(256);
/// One of so many requests that are asked after looks at all connections.
const ASKED_ALONE: u32 = 8;

/// An endpoint in a block of the caller's memory.
pub struct Endpoint {
    pub(super) machine: Machine,
    pub(super) known: &'static mut [Known],
    pub(super) lanes: Lanes,
    pub(super) events: Consumer<'static, BandEvent>,
    pub(super) mailbox_key: RailKey,
    /// Those of `shared`: read at every request, so that the way there is short.
    pub(super) generations: &'static [AtomicU32],
    /// How many eager sends there were when nothing was staged, the last time that one was posted.
    /// What a full socket has not taken does not count as staged.
    pub(super) left: u64,
    /// Ends of loopback connections whose listener has closed before they were accepted.
    pub(super) orphans: u32,
    /// Connections whose queue pairs are to say whether they hear the peer.
    pub(super) vouching: Vouching,
    /// Requests that were asked after, of which most look at their own connection alone.
    pub(super) asked: u32,
    pub(super) linger: Linger,
    /// Whether anything has happened since the wait descriptor was armed last: what progress has
    /// found for one request may be the end of another, which is not asked after before the sleep.
    pub(super) has_happened: bool,
    /// [`clock_ns`](crate::memory::probe::clock_ns) at open.
    pub(super) opened_ns: u64,
    pub(super) stalls: Stalls,
    pub(super) plan: Plan,
    /// Adds to words of windows in memory of GPUs.
    pub(super) gpu_adds: GpuAdds,
    pub(super) flushes: Flushes,
    /// What any thread may use, also while another thread uses the rest.
    pub shared: Half,
}

/// Whether a connection is closed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Closing {
    /// It is.
    Closed,
    /// Operations are being fenced: make progress, then call again.
    Again,
    /// No such connection.
    Stale,
}

impl Endpoint {
    /// What it uses, as it was chosen when it was opened.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Cuts an endpoint out of `block` and opens it. Lets the environment change the options that
    /// do not change the block's size.
    ///
    /// # Safety
    /// - `block` is aligned to 64 bytes and valid for reads and writes of `length` bytes until
    ///   [`Endpoint::close`] has returned, and nobody else touches it;
    /// - who uses [`Half::place`] has ended doing so when the endpoint is closed or dropped.
    pub unsafe fn open(
        block: *mut u8,
        length: usize,
        options: &Options,
    ) -> Result<Endpoint, OpenError> {
        // SAFETY: this function's contract.
        unsafe { Endpoint::open_with(block, length, options, &[]) }
    }

    /// [`Endpoint::open`] with rails of vendors beside those of the host: each is a lane of
    /// connections to peers that have a rail of the same network, with TCP as the reserve.
    ///
    /// # Safety
    /// - as [`Endpoint::open`];
    /// - of each rail: [`crate::provider::vendor::Vendor::open`].
    pub unsafe fn open_with(
        block: *mut u8,
        length: usize,
        options: &Options,
        vendor: &[VendorRail],
    ) -> Result<Endpoint, OpenError> {
        Endpoint::is_room(block, length, options)?;
        // SAFETY: aligned and long enough (checked above), and the caller's for as long as needed.
        let block = unsafe { Carver::new(block, options.bytes()) };
        Endpoint::open_in(block, options, vendor)
    }

    /// [`Endpoint::open`] in a block that reads as zero, such as fresh pages: what the endpoint
    /// does not use of it stays untouched, and is not even looked at.
    ///
    /// # Safety
    /// - as [`Endpoint::open`];
    /// - all bytes of the block are zero.
    pub unsafe fn open_zeroed(
        block: *mut u8,
        length: usize,
        options: &Options,
    ) -> Result<Endpoint, OpenError> {
        Endpoint::is_room(block, length, options)?;
        // SAFETY: as in `open_with`, and zero by this function's contract.
        let block = unsafe { Carver::over_zeroed(block, options.bytes()) };
        Endpoint::open_in(block, options, &[])
    }

    /// Checks the options, and that the block can be one for them.
    fn is_room(block: *mut u8, length: usize, options: &Options) -> Result<(), OpenError> {
        options.check()?;
        let fits = length >= options.bytes() && (block as usize).is_multiple_of(BLOCK_ALIGN);
        if fits { Ok(()) } else { Err(OpenError::Storage) }
    }

    fn open_in(
        mut block: Carver<'static>,
        options: &Options,
        vendor: &[VendorRail],
    ) -> Result<Endpoint, OpenError> {
        let _standard = StandardHeld::new();
        let mut options = *options;
        let mut environment = settings::apply(&mut options)?;
        if matches!(options.device, DeviceKind::Host | DeviceKind::Tcp) {
            network::libfabric_unused_tell(&environment);
        }
        if let Some(choice) = options.interfaces.exact_choice() {
            environment.socket_ifname = Some(choice);
        }
        if let Some(ports) = &options.ports {
            environment.rails.verbs &= !ports.is_empty();
            environment.verbs.hca = ports.choice();
        }
        if let Some(nics) = &options.nics {
            environment.rails.libfabric &= !nics.is_empty();
            nics.choose(&mut environment.libfabric);
        }
        options.check()?;
        let options = options.effective();
        if options.companions {
            environment.verbs.queue_pairs = 1; // a port is one rail
        }
        let brought = vendor::listed(vendor)?;
        let salt = salt()?;
        let regions = DataMrs::carve(&mut block, options.limits.regions_max, salt)?;
        let tables = Tables::carve(&mut block, &options, salt)?;
        let half = block.raw(size_of::<Shared>())?;
        let heap = heap_create(&options)?;
        room_check(&options)?;
        let wake = Arc::new(WakeFd::create()?);
        let parts = Parts { salt, options, environment, regions, tables, half, heap, wake };
        match options.device {
            DeviceKind::Host | DeviceKind::SharedMemory | DeviceKind::Tcp => {
                parts.open_host(&mut block, brought)
            }
            DeviceKind::Loopback => {
                vendor::left_out(&brought, VendorOut::Device);
                parts.open_loopback(&mut block)
            }
        }
    }

    /// Accepts a message for sending; see [`crate::transport::Endpoint::isend`].
    #[inline(always)]
    pub fn isend(
        &mut self,
        connection: Handle,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let index = self.take_into_use(connection)?;
        self.stalls.unseen = true;
        if !self.machine.is_unsent() {
            self.left = each!(&self.machine, endpoint => endpoint.stats().eager);
        }
        each!(&mut self.machine, endpoint => endpoint.isend(index, message))
    }

    /// Accepts a group of receives; see [`crate::transport::Endpoint::irecv`].
    #[inline(always)]
    pub fn irecv(
        &mut self,
        connection: Handle,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        let index = self.take_into_use(connection)?;
        self.stalls.unseen = true;
        each!(&mut self.machine, endpoint => endpoint.irecv(index, buffers))
    }

    /// Asks how a request stands; makes progress when it is outstanding.
    #[inline(always)]
    pub fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        // a request may have ended before its message has left
        let outstanding = each!(&self.machine, endpoint => endpoint.is_outstanding(request));
        if outstanding {
            self.asked = self.asked.wrapping_add(1);
            if !self.asked.is_multiple_of(ASKED_ALONE) {
                each!(&mut self.machine, endpoint => endpoint.look_for(request));
            }
            self.progress();
        } else if self.is_unsent_before(request) {
            self.asked = self.asked.wrapping_add(1);
            if self.asked.is_multiple_of(ASKED_ALONE) {
                self.progress();
            } else {
                each!(&mut self.machine, endpoint => endpoint.flush(POLL_BUDGET));
            }
        }
        let outcome = each!(&mut self.machine, endpoint => endpoint.test(request));
        // what ended it may have staged an answer, and the caller may never come again
        if matches!(outcome, Ok(Some(_))) && self.is_unsent_before(request) {
            self.progress();
        }
        outcome
    }

    /// Whether something is staged that must leave before a request is told to have ended. What was
    /// staged after a short send that has left does not: it leaves with the requests that it is of,
    /// several in one call of the system.
    #[inline(always)]
    fn is_unsent_before(&self, request: RequestId) -> bool {
        self.machine.is_unsent()
            && !each!(&self.machine, endpoint => endpoint.is_complete_before(request, self.left))
    }

    /// Asks for a request to end early; see [`crate::transport::Endpoint::cancel`].
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestIdError> {
        each!(&mut self.machine, endpoint => endpoint.cancel(request))
    }

    /// Moves everything on that can move; copies about 256 KiB at most, and over TCP a MiB of what
    /// has come.
    #[inline(never)]
    pub fn progress(&mut self) -> Progress {
        if self.events.has_some() {
            self.events_take();
        }
        match &mut self.machine {
            Machine::Host(_) => {
                if self.stalls.watch.is_due() {
                    self.stalls_look();
                }
                self.progress_with_peers()
            }
            Machine::Loopback(endpoint) => {
                let progress = endpoint.progress(Instant(0), POLL_BUDGET);
                if self.orphans != 0 {
                    self.orphans_end();
                }
                if self.stalls.polled() {
                    self.stalls_look();
                }
                progress
            }
        }
    }

    /// Hands over what was posted since the last progress, if anything was.
    #[inline(always)]
    pub(super) fn hand_over(&mut self) {
        if self.machine.is_unsent() {
            each!(&mut self.machine, endpoint => endpoint.flush(POLL_BUDGET));
        }
    }

    /// [`Endpoint::progress`] in place of a user who makes none. Peers are told of that all the
    /// same, when they ask why nothing comes.
    pub fn tend(&mut self) {
        if self.events.has_some() {
            self.events_take();
        }
        if !matches!(self.machine, Machine::Loopback(_)) {
            self.progress_with_peers();
        }
    }

    #[inline(always)]
    fn progress_with_peers(&mut self) -> Progress {
        let now = if self.machine.wants_time() { self.now() } else { Instant(0) };
        let progress = each!(&mut self.machine, endpoint => endpoint.progress(now, POLL_BUDGET));
        self.has_happened |= progress.events != 0;
        if self.lanes.has_fresh() {
            self.lanes.look(&mut connections!(self));
        }
        if self.lanes.end_with_rdma() {
            self.lanes.rdma_lost_look(&mut connections!(self));
        }
        if self.machine.has_lane_down() {
            self.lanes.give_back_down(&mut connections!(self));
        }
        if !self.flushes.is_empty() {
            self.gpu_flushes().step();
        }
        if self.vouching.has_some() {
            self.vouching.look(&mut connections!(self));
        }
        if now != Instant(0) {
            let connections = &mut connections!(self);
            lanes::lies_tell(connections);
            self.lanes.tell(connections, now);
            pairs::doubts_look(connections);
        }
        progress
    }

    /// Flushes of what NICs have written to GPUs, for who has said that it flushes
    /// ([`Options::gpu_flushes`]).
    pub fn gpu_flushes(&mut self) -> GpuFlushes<'_> {
        let (now, regions) = (self.now(), &self.shared.regions);
        GpuFlushes { flushes: &mut self.flushes, machine: &mut self.machine, regions, now }
    }

    /// The time since open.
    pub(super) fn now(&self) -> Instant {
        since(self.opened_ns)
    }

    /// The number of a connection, taken into use if this is the first use.
    #[inline(always)]
    fn take_into_use(&mut self, connection: Handle) -> Result<ConnectionIndex, SubmitError> {
        // what is in use was live with this generation once: whether it still is, is one load
        match self.used(connection) {
            Some(index) if is_current(self.generations, connection) => Ok(index),
            Some(_) | None => self.first_use(connection),
        }
    }

    #[cold]
    #[inline(never)]
    fn first_use(&mut self, connection: Handle) -> Result<ConnectionIndex, SubmitError> {
        if !is_live(self.generations, connection) {
            return Err(SubmitError::Connection);
        }
        self.news_take(connection);
        let known = self.known[connection.index as usize];
        if known.generation != connection.generation {
            return Err(SubmitError::Connection);
        }
        let index = connection.index;
        let pairs = pairs::pairs_of(&self.machine, &self.shared, connection);
        match &mut self.machine {
            Machine::Host(endpoint) => join::host_use(endpoint, index, &known, pairs.1)?,
            Machine::Loopback(endpoint) => {
                let partner = known.params.peer.connection as u32;
                let other = &mut self.known[partner as usize];
                let live = Handle { index: partner, generation: other.generation };
                if !is_live(self.generations, live)
                    || other.params.peer.connection != u64::from(index)
                {
                    return Err(SubmitError::Failed(RequestError::PeerClosed));
                }
                other.in_use = true;
                join::loopback_use(endpoint, index, partner, self.mailbox_key)?;
            }
        }
        self.known[index as usize].in_use = true;
        let is_tcp = known.params.rail == Rail::Tcp;
        let connections = &mut connections!(self);
        if is_tcp {
            self.lanes.ends_keep(index, 0, &known.params.streams[..1]);
        }
        if self.lanes.has_fresh() {
            self.lanes.look(connections);
        }
        self.lanes.pairs.begin(connections, index, &pairs);
        if is_tcp {
            self.lanes.pairs.unused_say(connections, index, pairs.1);
        }
        if let Some(cause) = known.gone {
            connections.gone(index, cause, cause);
        }
        Ok(ConnectionIndex(index))
    }

    /// What a connection runs over; `None`: it is closed.
    pub fn connection_rail(&mut self, connection: Handle) -> Option<ConnectionRail> {
        if !is_live(self.generations, connection) {
            return None;
        }
        self.news_take(connection);
        let known = self.known.get(connection.index as usize)?;
        match (&self.machine, known.params.rail) {
            _ if known.generation != connection.generation => None,
            (Machine::Loopback(_), _) => Some(ConnectionRail::Loopback),
            (_, Rail::Shm) => Some(ConnectionRail::Shm),
            (_, Rail::Tcp) => {
                let (places, count) = pairs::pairs_of(&self.machine, &self.shared, connection);
                let first = places[..count].first().map(|place| usize::from(*place));
                let port = first.and_then(|place| self.machine.port_at(place));
                Some(port.map_or(ConnectionRail::Tcp, ConnectionRail::of))
            }
        }
    }

    /// Longest message that a connection in use takes.
    pub fn message_bytes_max(&self, connection: Handle) -> Option<Bytes> {
        let index = self.used(connection)?;
        each!(&self.machine, endpoint => endpoint.message_bytes_max(index))
    }

    /// The connection that is in use at a place: whose requests those are that name it.
    pub fn used_at(&self, index: u32) -> Option<Handle> {
        let known = self.known.get(index as usize).filter(|known| known.in_use)?;
        Some(known.handle(index))
    }

    /// Arms the wait descriptor. `false`: something is there already, make progress instead.
    ///
    /// *Cost*: two system calls.
    pub fn wait_arm(&mut self) -> bool {
        // whoever rang has changed something that the caller may not have looked at since
        let rung = self.shared.wake.drain();
        self.progress();
        if core::mem::take(&mut self.has_happened) || rung || !self.gpu_adds.is_idle() {
            return false;
        }
        self.linger.wake(&connections!(self));
        if self.stalls.unseen {
            self.stalls.watch.busy_set(true); // woken now and then, to look at its requests
        }
        match &mut self.machine {
            Machine::Host(endpoint) => {
                // arming hands over what is staged
                !endpoint.rail().has_adds()
                    && endpoint.look_around()
                    && endpoint.rail_mut().arm()
                    && !endpoint.has_left()
            }
            Machine::Loopback(_) => false,
        }
    }

    /// Counts since open.
    pub fn stats(&self) -> Stats {
        each!(&self.machine, endpoint => *endpoint.stats())
    }

    /// Bytes that came to memory of this process since open, from or to GPUs, by their way.
    pub fn copied(&self) -> Copied {
        match &self.machine {
            Machine::Host(endpoint) => endpoint.rail().copied(),
            Machine::Loopback(_) => Copied::default(),
        }
    }

    /// How a rail of a connection is; `None`: it has none of that number. An error: the connection
    /// is closed.
    pub fn rail_view(
        &mut self,
        connection: Handle,
        rail: u32,
    ) -> Result<Option<RailView>, SubmitError> {
        let index = self.take_into_use(connection)?;
        let lane = u8::try_from(rail).unwrap_or(u8::MAX);
        Ok(self.lanes.rail_of(&connections!(self), index.0, lane))
    }

    /// How a lane of a connection is that was used; `None`: there is no such lane.
    pub fn lane_view(&self, connection: Handle, lane: u8) -> Option<LaneView> {
        self.machine.lane_view(self.used(connection)?.0, lane)
    }

    /// The first socket of a lane that is open, which stays the library's: for who wants to see
    /// what becomes of a lane that breaks.
    pub fn lane_socket(&self, connection: Handle, lane: u8) -> Option<i32> {
        self.machine.socket(self.used(connection)?.0, lane)
    }

    /// Gives up a lane of a connection in use, as if packets vanished on it: for who wants to see
    /// what becomes of it where there is no socket to break.
    pub fn lane_break(&mut self, connection: Handle, lane: u8) {
        if let Some(ConnectionIndex(index)) = self.used(connection) {
            let loss = (DownCause::Failed, Span(0));
            self.lanes.gone(&mut connections!(self), index, lane, loss);
        }
    }

    /// Writes what every open request waits for, a line each, and what the peers have said when
    /// they were asked last; asks them again. Says how many requests are open.
    ///
    /// *Cost*: control path; a system call or two per connection with open requests.
    pub fn report(&mut self, out: &mut dyn fmt::Write) -> Result<u32, fmt::Error> {
        self.stalls.report(&mut connections!(self), out)
    }

    /// Plants a fault in the machine, for tests of how it is told of.
    #[cfg(feature = "proof")]
    pub fn mutant_set(&mut self, mutant: Option<crate::transport::mutant::Mutant>) {
        each!(&mut self.machine, endpoint => endpoint.mutant_set(mutant));
    }

    /// The number of a connection in use.
    #[inline(always)]
    pub(super) fn used(&self, connection: Handle) -> Option<ConnectionIndex> {
        let known = self.known.get(connection.index as usize)?;
        known.is_use_of(connection).then_some(ConnectionIndex(connection.index))
    }

    /// Has no stall of a connection reported.
    pub(super) fn standing_set(&mut self, connection: Handle) {
        if let Some(index) = self.used(connection) {
            self.known[index.as_usize()].is_standing = true;
        }
    }

    /// Looks at all open requests.
    #[cold]
    fn stalls_look(&mut self) {
        self.lanes.pairs.strange_tell(&self.machine);
        self.stalls.look(&mut connections!(self));
    }
}

/// A random even number: handles and requests of one endpoint mean nothing to another.
fn salt() -> Result<u32, OpenError> {
    let random = crate::connect::random()
        .map_err(|error| OpenError::System(error.raw_os_error().unwrap_or(0)))?;
    Ok(random as u32 & !1)
}
