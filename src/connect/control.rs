//! The state of a band, and what moves it: ready sockets and time.
#![forbid(unsafe_code)]

use super::address::{self, Address};
use super::band::{BandConfig, BandTables};
use super::carrier::Carriers;
use super::channel::Channel;
use super::connection::{Connection, Phase};
use super::ending::Ending;
use super::error::{ConnectError, OpenError};
use super::event::{BandCounters, STREAMS_MAX};
use super::greeting::Greetings;
use super::idle::Dismissed;
use super::lanes::Lane;
use super::link::{BUFFER_BYTES, Link, LinkPhase};
use super::listener::{self, Listener};
use super::listening::{DOORS, Door, Listening};
use super::memory::LinkMemory;
use super::os::{self, Poller, Ready};
use super::pairs::Pair;
use super::peer::NAME_BYTES;
use super::stalls::Rounds;
use super::status::Statuses;
use super::stream::StreamSocket;
use super::table::{Chains, Marks};
use crate::base::descriptor;
use crate::base::sync::AtomicU64;
use crate::base::units::{Instant, Span};
use crate::fabric::completion::DownCause;
use crate::wire::RAILS_MAX;
use crate::wire::hello::{RAIL_PORTS, RAIL_SHM, RAIL_TCP};
use std::boxed::Box;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time;
use std::vec::Vec;

/// What a poller's token names, in its high half; the low half is an index.
pub(super) const TOKEN_KICK: u64 = 0;
const TOKEN_DOOR: u64 = 1 << 32;
pub(super) const TOKEN_LINK: u64 = 2 << 32;
const TOKEN_PIDFD: u64 = 3 << 32;
pub(super) const TOKEN_GREETING: u64 = 4 << 32;
/// The index is that of the connection, times [`STREAMS_MAX`], and the stream.
pub(super) const TOKEN_STREAM: u64 = 5 << 32;
/// The index is that of the lane's place in its table, times [`STREAMS_MAX`], and the stream.
pub(super) const TOKEN_LANE: u64 = 6 << 32;

/// The report door itself, or with index 1 who has come in.
pub(super) const TOKEN_REPORT: u64 = 7 << 32;
/// The kernel tells of interfaces.
pub(super) const TOKEN_CARRIER: u64 = 8 << 32;

/// How often we look again for what no descriptor announces: a full event queue, a full backlog.
pub(super) const RETRY: Span = Span::millis(1);
/// How often, and how often at most, we look whether a dead peer's path can be removed. Its sockets
/// close one by one while the process ends, so the first look may come too early.
const GRAVE_RETRY: Span = Span::millis(10);
const GRAVE_LOOKS_MAX: u8 = 100;
/// Dead peers watched at a time; a path beyond them waits for the sweep of a later open.
const GRAVES_MAX: usize = 32;

/// A path that its dead owner left.
struct Grave {
    address: Address,
    /// Says for certain that it is dead: a child of its may still hold the listening sockets, so
    /// that dialling would not tell.
    pidfd: Option<OwnedFd>,
    looks: u8,
}

/// All state of a band, under its lock.
pub(super) struct Control<M: LinkMemory> {
    pub config: BandConfig,
    pub tables: BandTables,
    pub memory: M,
    pub poller: Arc<Poller>,
    pub endpoint_id: u128,
    pub node_id: u64,
    pub name: [u8; NAME_BYTES],
    pub address: Address,
    pub listening: Option<Listening>,
    pub listeners: Vec<Listener>,
    /// Listeners in use.
    pub listeners_live: u32,
    pub links: Vec<Link<M>>,
    /// Entries of `links` not in use.
    pub links_free: Vec<u32>,
    /// Links whose peer owes us the last word of the handshake.
    pub links_greeted: u32,
    /// The last [`Link::order`] given.
    pub links_order: u64,
    /// Endpoints whose links have given way lately.
    pub dismissed: Dismissed,
    /// Links by endpoint.
    pub chains: Chains,
    /// Links whose handshake goes on.
    pub half_open: Marks,
    /// Links that were lost, and may come back.
    pub lost: Marks,
    /// A row of [`BUFFER_BYTES`] per link; the kernel gives them memory when they are touched.
    pub buffers: Vec<u8>,
    pub connections: Vec<Connection>,
    /// The data streams of each connection's lane 0.
    pub streams: Vec<[Option<StreamSocket>; STREAMS_MAX]>,
    /// Where a connection may have several lanes, as many entries for each connection; else none.
    pub lanes: Vec<Lane>,
    /// As many entries as of lanes, where there may be lanes of queue pairs; else none.
    pub pairs: Vec<Pair>,
    /// Lanes that something is due for.
    pub lanes_due: Marks,
    /// Connections over TCP by the peer's number, where the peer connected.
    pub met: Chains,
    /// Connections that are connecting or being gathered.
    pub attempts: Marks,
    /// Connections of which the data thread is owed an event.
    pub owing: Marks,
    /// Sockets that have not said who they are.
    pub greetings: Greetings,
    /// Arena slots in use: a row of words per link.
    pub arena_used: Vec<u64>,
    pub rings_bytes: u64,
    /// What peers try to read, and where it stands.
    pub probe: Box<AtomicU64>,
    pub counters: BandCounters,
    /// When somebody must look at deadlines, backlogs and graves again; never before.
    pub next_look: Instant,
    /// When we had time for the silences of peers last, and when we must have some again.
    pub looked: Instant,
    pub hearing_next: Instant,
    /// When data streams are looked at for vanished packets, and which.
    pub stalls: Rounds,
    /// Which of our interfaces have no carrier.
    pub carriers: Carriers,
    /// How connections stand, for people.
    pub statuses: Statuses,
    /// The thread sleeps too long, and must be woken to look at the time.
    pub attention: bool,
    graves: [Option<Grave>; GRAVES_MAX],
    /// Given up for a moment when descriptors run out, to turn a peer away politely.
    pub spare: Option<OwnedFd>,
    /// The listening sockets are not watched for a moment.
    pub deaf: bool,
    start: time::Instant,
    /// There was something to do since the thread started.
    pub worked: bool,
    /// The thread runs.
    pub running: bool,
    pub closed: bool,
}

/// Whether there is room for anything, and a way to reach anybody.
fn is_sound(config: &BandConfig) -> bool {
    config.links_max != 0
        && config.listeners_max != 0
        && config.rails & (RAIL_SHM | RAIL_TCP) != 0
        && (1..=STREAMS_MAX).contains(&(config.streams as usize))
}

impl<M: LinkMemory> Control<M> {
    /// Reserves everything that is needed until close.
    pub fn new(
        config: BandConfig,
        tables: BandTables,
        memory: M,
        poller: Arc<Poller>,
    ) -> Result<Control<M>, OpenError> {
        let system = |error| OpenError::of(&error);
        let template = &config.template;
        let rings = (template.rings_bytes)(template.send_ring_bytes, template.write_ring_bytes);
        let rings_bytes = rings.ok_or(OpenError::Tables)?.next_multiple_of(os::page_bytes());
        let connections = tables.generations.len();
        let links = config.links_max as usize;
        if connections == 0 || !is_sound(&config) {
            return Err(OpenError::Tables);
        }
        let lanes = lane_count(&config, connections)?;
        let endpoint_id = os::random().map_err(system)?;
        Ok(Control {
            endpoint_id,
            node_id: host_number(&config)?,
            name: program_name(),
            address: Address::new(&config.shm_dir, endpoint_id).ok_or(OpenError::ShmDir)?,
            listening: None,
            listeners: listener::table(endpoint_id, config.listeners_max),
            listeners_live: 0,
            links: Vec::with_capacity(links),
            links_free: (0..links as u32).rev().collect(),
            links_greeted: 0,
            links_order: 0,
            dismissed: Dismissed::NONE,
            chains: Chains::new(links),
            half_open: Marks::new(links),
            lost: Marks::new(links),
            buffers: std::vec![0; buffer_bytes(&config)],
            connections: std::vec![Connection::FREE; connections],
            streams: core::iter::repeat_with(Default::default).take(connections).collect(),
            lanes: core::iter::repeat_with(Lane::free).take(lanes).collect(),
            pairs: std::vec![Pair::NONE; if config.rails & RAIL_PORTS != 0 { lanes } else { 0 }],
            lanes_due: Marks::new(lanes),
            met: Chains::new(connections),
            attempts: Marks::new(connections),
            owing: Marks::new(connections),
            greetings: Greetings::new(),
            arena_used: std::vec![0; links * connections.div_ceil(64)],
            rings_bytes,
            probe: Box::new(AtomicU64::new(os::random().map_err(system)? as u64)),
            counters: BandCounters::default(),
            next_look: Instant(u64::MAX),
            looked: Instant(0),
            hearing_next: Instant(u64::MAX),
            stalls: Rounds::NONE,
            carriers: Carriers::open(&config, &poller),
            statuses: Statuses::new(connections),
            attention: false,
            graves: [const { None }; GRAVES_MAX],
            spare: Some(descriptor::spare().map_err(system)?),
            deaf: false,
            start: time::Instant::now(),
            worked: false,
            running: false,
            closed: false,
            config,
            tables,
            memory,
            poller,
        })
    }

    /// Time of this band.
    pub fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }

    /// Acts on what is ready, and on what time has brought.
    pub fn drive(&mut self, ready: &Ready) {
        for token in ready.tokens() {
            let index = token as u32;
            match token & !0xffff_ffff {
                TOKEN_DOOR => self.answer(door(index)),
                TOKEN_LINK => self.link_ready(index),
                TOKEN_PIDFD => self.process_ended(index),
                TOKEN_GREETING => self.greeting_ready(index),
                TOKEN_STREAM => self.stream_ready(index),
                TOKEN_LANE => self.lane_ready(index),
                TOKEN_REPORT => self.report_ready(index),
                TOKEN_CARRIER => self.carriers_ready(),
                _ => {}
            }
        }
        self.settle();
    }

    /// Waits for nothing, and acts on what is ready.
    pub fn help(&mut self) {
        let mut ready = Ready::new();
        self.poller.wait(&mut ready, 0);
        self.drive(&ready);
    }

    /// What time brings. *Cost* when nothing is due: two compares.
    fn settle(&mut self) {
        let now = self.now();
        let due = now >= self.next_look;
        if due {
            self.pause_note(now.since(self.next_look));
            // before anything that may ask for the next look
            self.next_look = Instant(u64::MAX);
        }
        if self.owing.count() > 0 {
            let _ = self.announce_all();
        }
        if !due {
            return;
        }
        self.bury(now);
        self.deaf_look();
        self.greetings_look(now);
        self.attempts_look(now);
        self.lanes_look(now);
        self.handshakes_look(now);
        self.liveness(now);
        self.outages_look(now);
        self.stalls_look(now);
        self.watch_look(now);
        self.wake_look(now);
    }

    /// Ends handshakes that take too long, and dials again where it is time.
    fn handshakes_look(&mut self, now: Instant) {
        let mut from = 0;
        while let Some(index) = self.half_open.next_from(from) {
            from = index + 1;
            let link = &self.links[index as usize];
            if now >= link.deadline {
                let error = link.unanswered();
                self.link_down(index, DownCause::Failed, error);
                continue;
            }
            self.look_by(self.links[index as usize].deadline);
            self.dial_look(index, now);
        }
    }

    /// Wakes whoever sleeps over an attempt to connect whose deadline has passed: the next poll of
    /// the attempt says so.
    fn attempts_look(&mut self, now: Instant) {
        let mut from = 0;
        while let Some(index) = self.attempts.next_from(from) {
            from = index + 1;
            let connection = &self.connections[index as usize];
            let (deadline, phase) = (connection.deadline, connection.phase);
            if now < deadline {
                self.look_by(deadline);
                self.streams_look(index, now);
            } else if phase == Phase::Gathering {
                self.gathering_end(index);
            } else {
                (self.config.wake.call)(self.config.wake.context);
            }
        }
    }

    /// Makes sure that somebody looks at what time has brought, at `at` or before.
    pub fn look_by(&mut self, at: Instant) {
        if at < self.next_look {
            self.next_look = at;
            self.attention = true;
        }
    }

    /// How long the thread may sleep in milliseconds; -1: until something is ready.
    pub fn sleep_ms(&self) -> i32 {
        if self.next_look == Instant(u64::MAX) {
            return -1;
        }
        // rounded up, so that the time has come when we wake
        (self.next_look.since(self.now()).0 / 1_000_000 + 1).min(60_000) as i32
    }

    /// Removes the paths of dead peers as soon as their sockets are closed.
    fn bury(&mut self, now: Instant) {
        let mut any = false;
        for slot in &mut self.graves {
            if let Some(grave) = slot {
                grave.looks += 1;
                let dead = grave.pidfd.as_ref().is_some_and(|fd| os::is_readable(fd.as_fd()));
                if dead {
                    grave.address.remove();
                }
                if dead || grave.address.remove_if_stale() || grave.looks > GRAVE_LOOKS_MAX {
                    *slot = None;
                }
            }
            any |= slot.is_some();
        }
        if any {
            self.look_by(now.after(GRAVE_RETRY));
        }
    }

    /// Remembers that a peer died, so that its path goes.
    pub fn mourn(&mut self, endpoint_id: u128, pidfd: Option<OwnedFd>) {
        let Some(address) = Address::new(&self.config.shm_dir, endpoint_id) else { return };
        if let Some(slot) = self.graves.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(Grave { address, pidfd, looks: 0 });
            self.look_by(self.now().after(RETRY));
        }
    }

    /// Watches a link's socket, and its peer's process.
    pub fn watch(&mut self, index: u32) -> std::io::Result<()> {
        let link = &mut self.links[index as usize];
        let Some(Channel::Record(socket)) = &link.socket else { return Ok(()) };
        // an old kernel and a process in another namespace: the socket's end must do
        if let Ok(pidfd) = socket.peer_pidfd() {
            self.poller.add(pidfd.as_fd(), TOKEN_PIDFD | u64::from(index))?;
            link.pidfd = Some(pidfd);
        }
        Ok(())
    }

    /// Watches for readable, for room to write, or both.
    pub fn interest(&self, index: u32) {
        let link = &self.links[index as usize];
        if let Some(socket) = &link.socket {
            let token = TOKEN_LINK | u64::from(index);
            let read = link.parting.is_none() && link.phase != LinkPhase::Dialing;
            self.poller.change(socket.as_fd(), token, read, link.blocked);
        }
    }

    /// Adds a link's socket to the poller.
    pub fn watch_socket(&self, index: u32) -> std::io::Result<()> {
        match &self.links[index as usize].socket {
            Some(socket) => self.poller.add(socket.as_fd(), TOKEN_LINK | u64::from(index)),
            None => Ok(()),
        }
    }

    /// The peer's process has ended, although a child of its may hold the socket.
    fn process_ended(&mut self, index: u32) {
        let ended = |link: &Link<M>| {
            link.pidfd.as_ref().is_some_and(|pidfd| os::is_readable(pidfd.as_fd()))
        };
        if !ended(&self.links[index as usize]) {
            return;
        }
        // what it said before it died counts
        while self.pump(index) {}
        let link = &self.links[index as usize];
        if ended(link) {
            let peer = link.peer;
            self.links[index as usize].ending = Some(Ending::Process);
            self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
        }
    }

    /// Whether there is nothing to wait for any more.
    pub fn is_done(&self) -> bool {
        self.worked
            && self.listeners_live == 0
            && self.links_used() == 0
            && self.greetings.is_empty()
            && self.owing.count() == 0
            && self.graves.iter().all(Option::is_none)
    }

    /// The thread has nothing left to do: the sockets at which nobody listens close. Whether it
    /// ends.
    pub fn retire(&mut self) -> bool {
        self.unlisten();
        self.running = !self.config.thread_retires;
        !self.running
    }

    /// Deadline of something that begins now.
    pub fn deadline(&self) -> Instant {
        self.now().after(self.config.handshake_deadline)
    }
}

/// Our host's number.
fn host_number(config: &BandConfig) -> Result<u64, OpenError> {
    match config.node_id {
        Some(node_id) => Ok(node_id),
        None => address::node_id().map_err(|error| OpenError::of_host_number(&error)),
    }
}

/// Bytes of the table of buffers.
fn buffer_bytes(config: &BandConfig) -> usize {
    if config.rails & RAIL_TCP != 0 { config.links_max as usize * BUFFER_BYTES } else { 0 }
}

/// Entries of the table of lanes.
fn lane_count(config: &BandConfig, connections: usize) -> Result<usize, OpenError> {
    match config.lanes_max as usize {
        1 => Ok(0),
        lanes if (2..=RAILS_MAX).contains(&lanes) => Ok(lanes * connections),
        _ => Err(OpenError::Tables),
    }
}

/// A poller's token for a listening socket, and back.
pub(super) fn door_token(door: Door) -> u64 {
    TOKEN_DOOR | door.number() as u64
}

fn door(index: u32) -> Door {
    DOORS[index as usize]
}

/// The file name of the running program, cut to fit.
fn program_name() -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    if let Ok(path) = std::env::current_exe() {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let length = file.len().min(NAME_BYTES);
        name[..length].copy_from_slice(&file.as_bytes()[..length]);
    }
    name
}
