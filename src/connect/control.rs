//! The state of a band, and what moves it: ready sockets and time.
#![forbid(unsafe_code)]

extern crate std;

use super::address::{self, Address, Listening};
use super::band::{BandConfig, BandTables};
use super::connection::{Connection, Phase};
use super::error::{ConnectError, OpenError};
use super::event::Side;
use super::link::{Link, LinkPhase};
use super::listener::Listener;
use super::memory::LinkMemory;
use super::os::{self, Poller, Ready};
use super::peer::{NAME_BYTES, Peer};
use super::socket::Socket;
use crate::base::sync::AtomicU64;
use crate::base::units::{Instant, Span};
use crate::fabric::completion::DownCause;
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{FRAME_BYTES_WRITTEN, Frame, RefuseReason, RefusedHello};
use std::boxed::Box;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time;
use std::vec::Vec;

/// What a poller's token names, in its high half; the low half is an index.
pub(super) const TOKEN_KICK: u64 = 0;
const TOKEN_BY_NAME: u64 = 1 << 32;
const TOKEN_BY_PATH: u64 = 2 << 32;
const TOKEN_LINK: u64 = 3 << 32;
const TOKEN_PIDFD: u64 = 4 << 32;

/// New sockets taken from one listening socket at a time, so that a scanner cannot hold the lock.
const ACCEPTS_MAX: usize = 64;
/// How often we look again for what no descriptor announces: a full event queue, a full backlog.
pub(super) const RETRY: Span = Span::millis(1);
/// How long nobody is answered after not even the spare descriptor could be used to say no.
const DEAF: Span = Span::millis(10);
/// How often, and how often at most, we look whether a dead peer's path can be removed. Its sockets
/// close one by one while the process ends, so the first look may come too early.
const GRAVE_RETRY: Span = Span::millis(10);
const GRAVE_LOOKS_MAX: u8 = 100;
/// Dead peers watched at a time; a path beyond them waits for the sweep of a later open.
const GRAVES_MAX: usize = 32;

/// What the side band wants to be known, once each.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Note {
    /// Something that is no peer of ours talks to our socket; the first time only.
    Stranger,
    /// A peer was not let in: its shared key is not ours, or one side alone has one; the first
    /// time only.
    Key(Peer),
    /// A peer has said nothing for the deadline, although its kernel answers: its process is
    /// stopped, or does not get a processor. Its connections stay. Once per silence.
    Stopped {
        /// Who.
        peer: Peer,
        /// How long.
        silent: Span,
    },
    /// A peer that was reported as stopped has spoken.
    Resumed {
        /// Who.
        peer: Peer,
        /// How long it was silent.
        silent: Span,
    },
    /// A peer was turned away because this process may open no more descriptors; its limit.
    Descriptors(u64),
}

/// What the side band has counted since open.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct BandCounters {
    /// Sockets dropped because what came, or did not come, was no hello.
    pub strangers: u64,
    /// Links that stood.
    pub links: u64,
    /// Links lost to a dead or misbehaving peer.
    pub links_lost: u64,
    /// Peers that were not let in because of the shared key.
    pub keys_refused: u64,
    /// Pings answered.
    pub pongs: u64,
    /// Peers turned away for want of descriptors.
    pub descriptors_short: u64,
}

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
    pub links: Vec<Link<M::Mapping>>,
    pub connections: Vec<Connection>,
    /// Arena slots in use: a row of words per link.
    pub arena_used: Vec<u64>,
    pub rings_bytes: u64,
    /// What peers try to read, and where it stands.
    pub probe: Box<AtomicU64>,
    pub counters: BandCounters,
    /// Attempts made by handle alone, so that the common case of none needs no search.
    pub keyed: u32,
    pub events_owed: u32,
    /// When somebody must look at deadlines, backlogs and graves again; never before.
    pub next_look: Instant,
    /// When the silences of peers were looked at last.
    pub looked: Instant,
    /// The thread sleeps too long, and must be woken to look at the time.
    pub attention: bool,
    graves: [Option<Grave>; GRAVES_MAX],
    /// Given up for a moment when descriptors run out, to turn a peer away politely.
    spare: Option<File>,
    /// The listening sockets are not watched for a moment.
    deaf: bool,
    start: time::Instant,
    pub closed: bool,
}

impl<M: LinkMemory> Control<M> {
    /// Reserves everything that is needed until close.
    pub fn new(
        config: BandConfig,
        tables: BandTables,
        memory: M,
        poller: Arc<Poller>,
    ) -> Result<Control<M>, OpenError> {
        let system = |error: std::io::Error| {
            if address::is_out_of_descriptors(&error) {
                return OpenError::Descriptors(os::descriptor_limit());
            }
            OpenError::System(error.raw_os_error().unwrap_or(0))
        };
        let template = &config.template;
        let rings = (template.rings_bytes)(template.send_ring_bytes, template.write_ring_bytes);
        let rings_bytes = rings.ok_or(OpenError::Tables)?.next_multiple_of(os::page_bytes());
        let connections = tables.generations.len();
        let links = config.links_max as usize;
        if connections == 0 || links == 0 || config.listeners_max == 0 {
            return Err(OpenError::Tables);
        }
        let endpoint_id = os::random().map_err(system)?;
        let word = os::random().map_err(system)? as u64;
        Ok(Control {
            endpoint_id,
            node_id: address::node_id().map_err(system)?,
            name: program_name(),
            address: Address::new(&config.shm_dir, endpoint_id).ok_or(OpenError::ShmDir)?,
            listening: None,
            listeners: std::vec![Listener::free(); config.listeners_max as usize],
            links: core::iter::repeat_with(Link::free).take(links).collect(),
            connections: std::vec![Connection::FREE; connections],
            arena_used: std::vec![0; links * connections.div_ceil(64)],
            rings_bytes,
            probe: Box::new(AtomicU64::new(word)),
            counters: BandCounters::default(),
            keyed: 0,
            events_owed: 0,
            next_look: Instant(u64::MAX),
            looked: Instant(0),
            attention: false,
            graves: [const { None }; GRAVES_MAX],
            spare: Some(File::open("/dev/null").map_err(system)?),
            deaf: false,
            start: time::Instant::now(),
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
                TOKEN_BY_NAME => self.answer(false),
                TOKEN_BY_PATH => self.answer(true),
                TOKEN_LINK => self.link_ready(index),
                TOKEN_PIDFD => self.process_ended(index),
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
            // before anything that may ask for the next look
            self.next_look = Instant(u64::MAX);
        }
        if self.events_owed > 0 {
            self.announce_all();
        }
        if !due {
            return;
        }
        self.bury(now);
        if core::mem::take(&mut self.deaf) {
            self.spare = self.spare.take().or_else(|| File::open("/dev/null").ok());
            self.hearing(true);
        }
        self.attempts_look(now);
        self.hearing_look(now);
        for index in 0..self.links.len() as u32 {
            let link = &self.links[index as usize];
            if !link.is_half_open() {
                continue;
            }
            let (deadline, dialing) = (link.deadline, link.phase == LinkPhase::Dialing);
            if now >= deadline {
                self.overdue(index);
                continue;
            }
            self.look_by(deadline);
            if dialing {
                self.dial_again(index);
                self.look_by(now.after(RETRY));
            }
        }
    }

    /// A handshake has taken too long.
    fn overdue(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let peer = link.peer;
        if link.phase == LinkPhase::Greeting {
            self.stranger();
        }
        self.link_down(index, DownCause::Failed, ConnectError::Deadline(peer));
    }

    /// Wakes whoever sleeps over an attempt to connect whose deadline has passed: the next poll of
    /// the attempt says so.
    fn attempts_look(&mut self, now: Instant) {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if connection.phase != Phase::Connecting {
                continue;
            }
            match connection.deadline {
                due if now >= due => (self.config.wake.call)(self.config.wake.context),
                later => self.look_by(later),
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

    /// Takes what has dialled one of the listening sockets.
    fn answer(&mut self, by_path: bool) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listening) = &self.listening else { return };
            let socket = match (by_path, &listening.by_path) {
                (true, Some(socket)) => socket,
                (true, None) => return,
                (false, _) => &listening.by_name,
            };
            match socket.accept() {
                Ok(socket) => self.greet(socket),
                Err(error) if address::is_out_of_descriptors(&error) => {
                    self.turn_away(by_path);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Without a free descriptor a waiting peer would wait for its deadline, and its socket would
    /// keep us awake: the spare one is given up to say no.
    fn turn_away(&mut self, by_path: bool) {
        self.spare = None;
        let mut told = false;
        if let Some(listening) = &self.listening {
            let socket =
                if by_path { listening.by_path.as_ref() } else { Some(&listening.by_name) };
            if let Some(Ok(caller)) = socket.map(Socket::accept) {
                send_refusal(&caller, 0, RefuseReason::Descriptors);
                told = true;
            }
        }
        self.spare = File::open("/dev/null").ok();
        if !told {
            // another thread was faster: look again later instead of at once and for ever
            self.deaf = true;
            self.hearing(false);
            self.look_by(self.now().after(DEAF));
            return;
        }
        self.counters.descriptors_short += 1;
        if self.counters.descriptors_short == 1 {
            (self.config.note)(Note::Descriptors(os::descriptor_limit()));
        }
    }

    /// Whether the listening sockets are watched.
    fn hearing(&self, on: bool) {
        let Some(listening) = &self.listening else { return };
        self.poller.change(listening.by_name.as_fd(), TOKEN_BY_NAME, on, false);
        if let Some(socket) = &listening.by_path {
            self.poller.change(socket.as_fd(), TOKEN_BY_PATH, on, false);
        }
    }

    /// A socket that has just been accepted: it has until the deadline to say hello.
    fn greet(&mut self, socket: Socket) {
        let Some(index) = self.link_acquire() else {
            send_refusal(&socket, 0, RefuseReason::Full);
            return;
        };
        if self.poller.add(socket.as_fd(), TOKEN_LINK | u64::from(index)).is_err() {
            return;
        }
        let deadline = self.deadline();
        let link = &mut self.links[index as usize];
        link.phase = LinkPhase::Greeting;
        link.side = Side::Listener;
        link.deadline = deadline;
        link.pid = socket.credentials().map_or(0, |peer| peer.pid);
        link.socket = Some(socket);
        self.look_by(deadline);
        // the hello is often there already
        self.link_ready(index);
    }

    /// A free entry for a link. The caller fills it, or leaves it free.
    pub fn link_acquire(&self) -> Option<u32> {
        self.links.iter().position(|link| link.phase == LinkPhase::Free).map(|i| i as u32)
    }

    /// Counts a socket that was not a peer's.
    pub fn stranger(&mut self) {
        self.counters.strangers += 1;
        if self.counters.strangers == 1 {
            (self.config.note)(Note::Stranger);
        }
    }

    /// Watches a link's socket, and its peer's process.
    pub fn watch(&mut self, index: u32) -> std::io::Result<()> {
        let link = &mut self.links[index as usize];
        let socket = link.socket.as_ref().expect("a link that is watched has a socket");
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
            self.poller.change(socket.as_fd(), token, link.refusal.is_none(), link.blocked);
        }
    }

    /// Adds a link's socket to the poller.
    pub fn watch_socket(&self, index: u32) -> std::io::Result<()> {
        match &self.links[index as usize].socket {
            Some(socket) => self.poller.add(socket.as_fd(), TOKEN_LINK | u64::from(index)),
            None => Ok(()),
        }
    }

    /// Watches the listening sockets.
    pub fn watch_listening(&self, listening: &Listening) -> std::io::Result<()> {
        self.poller.add(listening.by_name.as_fd(), TOKEN_BY_NAME)?;
        match &listening.by_path {
            Some(socket) => self.poller.add(socket.as_fd(), TOKEN_BY_PATH),
            None => Ok(()),
        }
    }

    /// Closes the listening sockets, and removes the path.
    pub fn unlisten(&mut self) {
        let Some(listening) = self.listening.take() else { return };
        self.poller.remove(listening.by_name.as_fd());
        if let Some(socket) = &listening.by_path {
            self.poller.remove(socket.as_fd());
            self.address.remove();
        }
    }

    /// The peer's process has ended, although a child of its may hold the socket.
    fn process_ended(&mut self, index: u32) {
        let ended = |link: &Link<M::Mapping>| {
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
            self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
        }
    }

    /// Deadline of something that begins now.
    pub fn deadline(&self) -> Instant {
        self.now().after(self.config.handshake_deadline)
    }
}

/// Says no on a socket; who does not listen will not hear it.
pub(super) fn send_refusal(socket: &Socket, target: u64, reason: RefuseReason) {
    let mut bytes = [0; FRAME_BYTES_WRITTEN];
    let refusal = RefusedHello { target, reason: reason as u32, major: WIRE_MAJOR };
    let length = Frame::Refused(refusal).encode(&mut bytes);
    let _ = socket.send(&bytes[..length], &[]);
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
