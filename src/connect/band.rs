//! The side band of one endpoint, as its owner sees it.
#![forbid(unsafe_code)]

use super::address;
use super::control::{Control, TOKEN_KICK};
use super::ending::Ending;
use super::error::{AcceptError, CloseError, ConnectError, ListenError, OpenError};
use super::event::{BandCounters, BandEvent, LocalTemplate, STREAMS_MAX, Wake};
use super::interfaces::InterfaceAddress;
use super::listener::ListenerId;
use super::memory::LinkMemory;
use super::note::Note;
use super::os::NoThread;
use super::os::{self, Kick, Poller, Ready};
use super::pairs::{self, PairEnd, PairPorts};
use super::status::Watch;
use super::stream::Traffic;
use super::trust::Trust;
use super::vouch::Vouch;
use crate::base::descriptor::Headroom;
use crate::base::pool::Pool;
use crate::base::ring::Producer;
use crate::base::slab::Handle;
use crate::base::sync::AtomicU32;
use crate::base::units::Span;
use crate::wire::handle::{HANDLE_BYTES, ListenHandle};
use crate::wire::hello::{AddressList, RAIL_TCP};
use crate::wire::pair::{PORTS_MAX, PortList};
use crate::wire::status::{ASK_STANDS, StatusHello};
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::vec::Vec;

/// What a band is told at open.
#[derive(Clone, Debug)]
pub struct BandConfig {
    /// Where the path socket lies: `/dev/shm`, unless the host has another place that containers
    /// share.
    pub shm_dir: PathBuf,
    /// How long a handshake, or the answer to a connect, may take. 10 s is usual.
    pub handshake_deadline: Span,
    /// Peers at a time; two per endpoint that both connects to us and is connected to.
    pub links_max: u32,
    /// Listeners at a time.
    pub listeners_max: u32,
    /// Our host's number; `None`: what the kernel says. Processes with one number are of one host.
    pub node_id: Option<u64>,
    /// `RAIL_` bits: what may be used at all. Without `RAIL_SHM` nobody is answered on this host
    /// but over the network; without `RAIL_TCP` nothing touches the network.
    pub rails: u32,
    /// Data streams of each lane over TCP, 1 to [`STREAMS_MAX`]: our wish
    /// when we connect, our limit when we listen.
    pub streams: u32,
    /// Descriptors of the process from which on connections have one stream all the same;
    /// `u64::MAX`: never.
    pub descriptors_max: u64,
    /// Lanes per connection over TCP, 1 to [`RAILS_MAX`](crate::wire::RAILS_MAX): our limit.
    pub lanes_max: u32,
    /// Lanes that we ask for when we connect: so many, as far as both limits allow. 0: as many as
    /// there are pairs of addresses in common subnets, at least 1.
    pub lanes_wish: u32,
    /// Our ports, which peers are told that have such, too (`RAIL_PORTS`).
    pub ports: PortList,
    /// Which of them make lanes with those of a peer.
    pub pair_ports: PairPorts,
    /// Our addresses, best first, which peers are told. Their ports do not count.
    pub addresses: AddressList,
    /// Over TCP other hosts would be reached, but for want of an interface.
    pub without_interface: bool,
    /// Answer at our addresses alone, instead of at all of the host; without further lanes, at the
    /// first of each family. Peers of other hosts are dialled from these alone, too.
    pub bind: bool,
    /// Addresses of interfaces that `bind` leaves out, to be named when they are the only way.
    pub excluded: Vec<InterfaceAddress>,
    /// Those of them from which peers are dialled to whom none of our addresses leads.
    pub spare: Vec<InterfaceAddress>,
    /// Whether this process can order doorbells with `membarrier(2)`.
    pub membarrier: bool,
    /// Who may be a peer: who has our key, and without one which users of this host.
    pub trust: Trust,
    /// How long a peer may be silent before it is reported; one of another host counts as dead if
    /// its host has acknowledged nothing for so long, on the link, and then on any lane. 10 s is
    /// usual; [`Span`]`(0)`: nobody is asked.
    pub peer_deadline: Span,
    /// Whether the connections that we ask for may be accepted only once our own user has them:
    /// of several, the peer's user takes none that ours has stopped asking for.
    pub accept_taken: bool,
    /// Whether the thread ends while nothing can be ready or due for it.
    pub thread_retires: bool,
    /// Our numbers in every connection.
    pub template: LocalTemplate,
    /// How the data thread is woken after an event.
    pub wake: Wake,
    /// Told what people should know; from any thread, under the lock: it must not block, allocate
    /// or call back.
    pub note: fn(Note),
}

/// Tables that a band shares with its endpoint. They outlive it.
#[derive(Debug)]
pub struct BandTables {
    /// Connection slots, as many as generations. The band alone takes from it.
    pub pool: Pool<'static>,
    /// Use of each slot: odd while its handle is live. Written by the band.
    pub generations: &'static [AtomicU32],
    /// News for the data thread.
    pub events: Producer<'static, BandEvent>,
}

/// An attempt to connect. It has the number of the connection that may come of it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(transparent)]
pub struct PendingId(pub Handle);

struct Shared<M: LinkMemory> {
    control: Mutex<Control<M>>,
    poller: Arc<Poller>,
    kick: Kick,
}

impl<M: LinkMemory> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, Control<M>> {
        // a panic under the lock is a bug that has been reported; peers must still be told
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The side band of one endpoint. All functions may be called from any thread, and none waits for
/// a peer. After `open` nothing allocates until `close`.
pub struct Band<M: LinkMemory> {
    shared: Option<Arc<Shared<M>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
    /// For what its links and connections open under the lock.
    _headroom: Headroom,
}

impl<M: LinkMemory> Band<M> {
    /// Opens the side band and starts its thread.
    ///
    /// *Cost*: allocates all tables: about 500 bytes per connection, 900 per link, one bit per pair
    /// of both; and address space that takes memory when it is used: 640 bytes per connection, and
    /// 3.7 KiB per link over TCP. With more than one lane about 200 bytes for each of a connection,
    /// and as much again where we have RDMA ports.
    /// Makes room in the kernel's table of descriptors for those of all links and connections.
    /// Sweeps sockets of dead endpoints out of `shm_dir`.
    pub fn open(
        mut config: BandConfig,
        tables: BandTables,
        memory: M,
    ) -> Result<Band<M>, OpenError> {
        let system = |error| OpenError::of(&error);
        config.rails = pairs::rails_sound(config.rails, config.lanes_max, config.ports.count);
        address::sweep(&config.shm_dir);
        let headroom = Headroom::new(descriptors(&config, tables.generations.len()));
        let poller = Arc::new(Poller::new().map_err(system)?);
        let kick = Kick::new().map_err(system)?;
        poller.add(kick.as_fd(), TOKEN_KICK).map_err(system)?;
        let control = Control::new(config, tables, memory, Arc::clone(&poller))?;
        let shared = Arc::new(Shared { control: Mutex::new(control), poller, kick });
        let thread = Mutex::new(Some(
            start(&shared).map_err(|error| OpenError::Thread(NoThread::of(&error)))?,
        ));
        Ok(Band { shared: Some(shared), thread, pid: std::process::id(), _headroom: headroom })
    }

    /// Opens a listener, and says with which handle peers reach it.
    pub fn listen(&self) -> Result<(ListenerId, ListenHandle), ListenError> {
        let unattended = |error| match error {
            Attend::Forked => ListenError::Forked,
            Attend::Thread(why) => ListenError::Thread(why),
        };
        self.attended(unattended, Control::listen)
    }

    /// Closes a listener, and the connections that nobody has accepted. Others stay.
    pub fn listener_close(&self, id: ListenerId) -> Result<(), CloseError> {
        self.with(Err(CloseError::Forked), |control| control.listener_close(id))
    }

    /// Begins to connect. Follow with [`Band::connect_poll`] until it ends, or
    /// [`Band::connect_abandon`].
    ///
    /// *Errors*: nothing was begun.
    pub fn connect_begin(&self, handle: &[u8; HANDLE_BYTES]) -> Result<PendingId, ConnectError> {
        self.attended(Attend::of_connect, |control| control.connect_begin(handle))
    }

    /// How far an attempt is: `None` means call again. The id is spent once this gives a connection
    /// or an error. The data thread's [`BandEvent::Established`] is in its queue before; where that
    /// is full, [`Band::tell`] brings it.
    pub fn connect_poll(&self, id: PendingId) -> Result<Option<Handle>, ConnectError> {
        self.with(Err(ConnectError::Forked), |control| control.connect_poll(id))
    }

    /// Gives an attempt up. The peer is told; a connection that it has made is closed there, and
    /// never handed out if nobody has accepted it yet.
    pub fn connect_abandon(&self, id: PendingId) -> Result<(), CloseError> {
        self.with(Err(CloseError::Forked), |control| control.connect_abandon(id))
    }

    /// The next connection of a listener: `None` means call again.
    pub fn accept(&self, id: ListenerId) -> Result<Option<Handle>, AcceptError> {
        self.with(Err(AcceptError::Forked), |control| control.accept(id))
    }

    /// Closes a connection and makes its handle stale. From now on the data thread does not touch
    /// its rings. Its slot is used again when the peer has closed too, or died.
    pub fn connection_close(&self, connection: Handle) -> Result<(), CloseError> {
        self.with(Err(CloseError::Forked), |control| control.connection_close(connection))
    }

    /// Tells the data thread what the queue of events has room for; `false`: more is owed. Whoever
    /// takes the events calls it where a handle is not known yet: the news of earlier connections,
    /// which nobody took, may have filled the queue.
    pub fn tell(&self) -> bool {
        // in a forked child there is nothing to tell
        self.with(true, |control| control.announce_all())
    }

    /// Asks for the next generation of a lane: the data thread has let go of the streams that the
    /// last [`BandEvent::Lane`], or `Established`, brought, and they are closed. Call it once for
    /// each of these: a second call may close what has come since. Lanes 1 and up of a new
    /// connection are wanted without asking. Another [`BandEvent::Lane`] follows when it is up; a
    /// lane that is wanted already stays so.
    ///
    /// Where we connect, the lane is dialled at once, unless it died within a second of coming up
    /// and had done so before; then, and when it cannot be dialled, after 10 ms, doubled up to a
    /// second, for as long as the connection stands.
    ///
    /// *Errors*: [`CloseError::Stale`] also when the connection has no such lane, or one alone.
    pub fn lane_wanted(&self, connection: Handle, lane: u32) -> Result<(), CloseError> {
        self.with(Err(CloseError::Forked), |control| control.lane_wanted(connection, lane))
    }

    /// Our ports of the lanes of a connection that are queue pairs, from lane 1 on, and how many
    /// such lanes it has.
    pub fn pair_ports(&self, connection: Handle) -> ([u8; PORTS_MAX], usize) {
        self.with(([0; PORTS_MAX], 0), |control| control.pair_ports(connection))
    }

    /// Our ports and the peer's, whether or not they make lanes, and whether the peer is on our
    /// host; `None`: the connection is gone.
    pub fn ports_towards(&self, connection: Handle) -> Option<(PortList, PortList, bool)> {
        self.with(None, |control| control.ports_towards(connection))
    }

    /// Tells the peer of a queue pair that is prepared for a lane: the first, or the next when the
    /// data thread has let go of the last one. [`BandEvent::Pair`] brings the peer's end; until
    /// then a second one is refused.
    ///
    /// Where we connect, the peer is asked with the delays of [`Band::lane_wanted`].
    ///
    /// *Errors*: [`CloseError::Stale`] also when the connection has no such lane.
    pub fn pair_offer(
        &self,
        connection: Handle,
        lane: u32,
        end: &PairEnd,
    ) -> Result<(), CloseError> {
        self.with(Err(CloseError::Forked), |control| control.pair_offer(connection, lane, end))
    }

    /// The end that [`BandEvent::Pair`] brought; `None`: the peer has let go of it meanwhile.
    pub fn pair_end(&self, connection: Handle, lane: u32, generation: u32) -> Option<PairEnd> {
        self.with(None, |control| control.pair_end(connection, lane, generation))
    }

    /// The end that [`BandEvent::Pair`] brought is connected: where we listen, the peer is told.
    pub fn pair_answer(&self, connection: Handle, lane: u32, lane_generation: u32) {
        self.with((), |control| control.pair_answer(connection, lane, lane_generation));
    }

    /// What was found out since [`BandEvent::Vouch`] asked for it.
    pub fn vouch(&self, connection: Handle, vouch: Vouch) {
        self.with((), |control| control.vouch(connection, vouch));
    }

    /// Writes who a connection's peer is, cut to fit, and says how many bytes that took; 0: the
    /// handle is stale.
    pub fn peer_text(&self, connection: Handle, out: &mut [u8]) -> usize {
        self.with(0, |control| control.peer_text(connection, out))
    }

    /// What was seen of a connection's peer that is gone; `None`: nothing, or the handle is stale.
    pub fn peer_ending(&self, connection: Handle) -> Option<Ending> {
        self.with(None, |control| control.peer_ending(connection))
    }

    /// For how long the peer's host has acknowledged nothing of what it was sent over TCP; nothing:
    /// it owes nothing, or the handle is stale.
    pub fn silence(&self, connection: Handle) -> Span {
        self.with(Span(0), |control| control.silence(connection))
    }

    /// All addresses that a connection's peer has said; none over shared memory, and none when the
    /// handle is stale.
    pub fn peer_addresses(&self, connection: Handle) -> AddressList {
        self.with(AddressList::EMPTY, |control| control.peer_addresses(connection))
    }

    /// Connections that may be made yet: closed ones count until their peers have closed, too.
    ///
    /// *Cost*: as [`Band::connect_poll`], and a look at each connection.
    pub fn connections_left(&self) -> u32 {
        self.with(0, |control| control.slots_free())
    }

    /// Closed connections whose peers have not closed them yet.
    ///
    /// *Cost*: as [`Band::connections_left`].
    pub fn connections_leaving(&self) -> u32 {
        self.with(0, |control| control.slots_leaving())
    }

    /// Our host's number.
    pub fn node_id(&self) -> u64 {
        self.with(0, |control| control.node_id)
    }

    /// What the data thread and this thread tell each other about stalls.
    pub fn watch(&self) -> Option<Arc<Watch>> {
        self.with(None, |control| Some(Arc::clone(&control.statuses.watch)))
    }

    /// Begins to tell the data thread every `span` to look at its requests, and opens the door at
    /// which [`super::reports`] asks.
    pub fn watch_start(&self, span: Span) {
        self.with((), |control| control.watch_start(span));
    }

    /// Wakes the data thread after a while, if it sleeps then: once, at the earliest time that was
    /// asked for.
    pub fn wake_after(&self, span: Span) {
        self.with((), |control| control.wake_after(span));
    }

    /// Asks a connection's peer how it stands; `false`: it cannot be asked.
    pub fn status_ask(&self, connection: Handle) -> bool {
        self.with(false, |control| control.status_ask(connection, 0))
    }

    /// The same because a request of ours stands: the peer may look whether we have all that it has
    /// sent.
    pub fn status_ask_standing(&self, connection: Handle) -> bool {
        self.with(false, |control| control.status_ask(connection, ASK_STANDS))
    }

    /// Whether the peer has asked like that since the last call.
    pub fn status_stands(&self, connection: Handle) -> bool {
        self.with(false, |control| control.status_stands(connection))
    }

    /// What the sockets of a lane over TCP have carried; `None`: it has none that stand.
    pub fn lane_traffic(&self, connection: Handle, lane: u32) -> Option<Traffic> {
        self.with(None, |control| control.lane_traffic(connection, lane))
    }

    /// For how many ms the peer owes an answer with a fresh status; `None`: it owes none.
    pub fn status_owed_ms(&self, connection: Handle) -> Option<u32> {
        self.with(None, |control| control.status_owed_ms(connection))
    }

    /// What the peer has said since it was asked last.
    pub fn status_of_peer(&self, connection: Handle) -> Option<StatusHello> {
        self.with(None, |control| control.status_of_peer(connection))
    }

    /// Leaves our own status of a connection, for whoever asks.
    pub fn status_leave(&self, connection: Handle, status: &StatusHello) {
        self.with((), |control| control.status_leave(connection, status));
    }

    /// [`Band::status_wanted`], which goes on to be so.
    pub fn status_wanted_from(&self, from: u32) -> Option<Handle> {
        self.with(None, |control| control.status_wanted_from(from))
    }

    /// The next connection, from number `from` on, of which a status is wanted.
    pub fn status_wanted(&self, from: u32) -> Option<Handle> {
        self.with(None, |control| control.status_wanted(from))
    }

    /// Whether the thread runs: from open, or the first use after it ended, until the last
    /// listener, handshake and link is gone.
    pub fn is_attended(&self) -> bool {
        self.with(false, |control| control.running)
    }

    /// What was counted since open.
    pub fn counters(&self) -> BandCounters {
        self.with(BandCounters::default(), |control| control.counters)
    }

    /// Closes connections and listeners, tells the peers, ends the thread and frees everything.
    ///
    /// In a forked child it only forgets: all is the parent's.
    pub fn close(mut self) {
        self.end();
    }

    /// Acts under the lock; `forked` is the answer in a forked child.
    fn with<R>(&self, forked: R, act: impl FnOnce(&mut Control<M>) -> R) -> R {
        let Some(shared) = &self.shared else { return forked };
        if std::process::id() != self.pid {
            return forked;
        }
        let mut control = shared.lock();
        let result = act(&mut control);
        if core::mem::take(&mut control.attention) {
            shared.kick.ring();
        }
        result
    }

    /// Acts while the thread runs, which finds what there is to do afterwards.
    fn attended<R, E>(
        &self,
        unattended: impl Fn(Attend) -> E,
        act: impl FnOnce(&mut Control<M>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut act = Some(act);
        loop {
            self.attend().map_err(&unattended)?;
            let done = self.with(None, |control| {
                // it may have ended again meanwhile
                let act = if control.running { act.take() } else { None };
                act.map(|act| act(control))
            });
            if let Some(result) = done {
                return result;
            }
        }
    }

    /// Starts the thread again if it has ended.
    fn attend(&self) -> Result<(), Attend> {
        let Some(shared) = &self.shared else { return Err(Attend::Forked) };
        if std::process::id() != self.pid {
            return Err(Attend::Forked);
        }
        if shared.lock().running {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.lock().running {
            // another caller was faster
            return Ok(());
        }
        if let Some(ended) = thread.take() {
            // its last act was to say so
            let _ = ended.join();
        }
        let started = start(shared);
        *thread = Some(started.map_err(|error| Attend::Thread(NoThread::of(&error)))?);
        Ok(())
    }

    fn end(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if std::process::id() != self.pid {
            // the lock may be held by a thread that does not exist here
            core::mem::forget((shared, thread));
            return;
        }
        shared.lock().shut_down();
        shared.kick.ring();
        if let Some(thread) = thread {
            // it ends by itself; a panic there was reported when it happened
            let _ = thread.join();
        }
    }
}

impl<M: LinkMemory> Drop for Band<M> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Descriptors of a link over shared memory: its socket, the peer's process, our arena and the
/// peer's doorbell.
const LINK_DESCRIPTORS: u32 = 4;

/// The most descriptors that links and so many connections have, with the copies that threads have
/// of data streams.
fn descriptors(config: &BandConfig, connections: usize) -> u32 {
    let of_links = config.links_max.saturating_mul(LINK_DESCRIPTORS);
    if config.rails & RAIL_TCP == 0 {
        return of_links;
    }
    let connections = u32::try_from(connections).unwrap_or(u32::MAX);
    let each = config.lanes_max.saturating_mul(2 * config.streams.min(STREAMS_MAX as u32));
    of_links.saturating_add(connections.saturating_mul(each))
}

/// Why the thread could not be started.
enum Attend {
    Forked,
    Thread(NoThread),
}

impl Attend {
    fn of_connect(self) -> ConnectError {
        match self {
            Attend::Forked => ConnectError::Forked,
            Attend::Thread(why) => ConnectError::Thread(why),
        }
    }
}

/// The thread's stack.
const STACK_BYTES: usize = 2 << 20;

/// Starts the thread, and waits until it allocates no more.
fn start<M: LinkMemory>(shared: &Arc<Shared<M>>) -> std::io::Result<JoinHandle<()>> {
    let of_thread = (Arc::clone(shared), Arc::new(Barrier::new(2)));
    let started = Arc::clone(&of_thread.1);
    // with a size, or the standard library would look for one in the environment
    let named = thread::Builder::new().name("crosstie-band".into()).stack_size(STACK_BYTES);
    let body = move || {
        of_thread.1.wait();
        run(&of_thread.0);
    };
    {
        let mut control = shared.lock();
        control.running = true;
        control.worked = false;
    }
    match os::with_signals_blocked(|| named.spawn(body)) {
        Ok(thread) => {
            // a thread allocates while it starts; afterwards ours does not
            started.wait();
            Ok(thread)
        }
        Err(error) => {
            shared.lock().running = false;
            Err(error)
        }
    }
}

/// The thread: sleeps until something is ready or due, and ends when nothing can be.
fn run<M: LinkMemory>(shared: &Shared<M>) {
    let mut ready = Ready::new();
    // what was due when the last thread ended still is: nobody says so again
    let mut sleep_ms = shared.lock().sleep_ms();
    loop {
        shared.poller.wait(&mut ready, sleep_ms);
        if ready.tokens().any(|token| token == TOKEN_KICK) {
            shared.kick.silence();
        }
        let mut control = shared.lock();
        if control.closed {
            return;
        }
        control.drive(&ready);
        control.attention = false;
        if control.is_done() && control.retire() {
            return;
        }
        sleep_ms = control.sleep_ms();
    }
}
