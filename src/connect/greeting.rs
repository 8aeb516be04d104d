//! Accepted sockets that have not sent their first frame yet.
//!
//! They stand in a small table of their own, so that strangers take no link. A socket leaves the
//! table when its first frame is whole and addressed to this endpoint. If the table is full, or the
//! process has no descriptor left, the oldest socket is closed. A peer whose socket was closed
//! dials again.
#![forbid(unsafe_code)]

use super::address;
use super::channel::Channel;
use super::control::{Control, TOKEN_GREETING, TOKEN_LINK, door_token};
use super::entry::{Caller, Then};
use super::event::Side;
use super::link::LinkPhase;
use super::listening::{DOORS, Door};
use super::memory::LinkMemory;
use super::note::Note;
use super::os;
use super::peer::Peer;
use super::socket::Received;
use super::stream::StreamSocket;
use super::tried::Tried;
use crate::base::descriptor;
use crate::base::units::{Instant, Span};
use crate::wire::DecodeError;
use crate::wire::hello::{FRAME_BYTES_MAX, FRAME_MAGIC, Frame, FrameHeader, RefuseReason};
use core::net::SocketAddr;
use std::io;
use std::os::fd::AsFd;
use std::vec::Vec;

/// Sockets that may stand at a time. Peers of other hosts speak within a round trip, and those of
/// this one within two, so that even a thousand that dial at once seldom meet a full table.
const GREETINGS_MAX: usize = 256;
/// How long a socket may take to say its first frame, if no shorter deadline is set.
const GREETING_TIME_MAX: Span = Span::millis(10_000);
/// New sockets taken from one listening socket at a time, so that a scanner cannot hold the lock.
const ACCEPTS_MAX: usize = 64;
/// How long nobody is answered after not even the spare descriptor could be used to say no.
const DEAF: Span = Span::millis(10);

/// A socket that has not said a whole frame.
#[derive(Debug)]
struct Greeting {
    channel: Channel,
    deadline: Instant,
    /// When it came, compared with others.
    order: u64,
    /// Bytes that have come.
    length: usize,
    /// How far it is at a door of this host.
    caller: Caller,
}

/// The table of them.
#[derive(Debug)]
pub(super) struct Greetings {
    all: Vec<Option<Greeting>>,
    bytes: Vec<u8>,
    count: usize,
    order: u64,
    /// Whether it was said that there are strangers.
    pub stranger_named: bool,
}

impl Greetings {
    /// An empty table.
    pub fn new() -> Greetings {
        Greetings {
            all: core::iter::repeat_with(|| None).take(GREETINGS_MAX).collect(),
            bytes: std::vec![0; GREETINGS_MAX * FRAME_BYTES_MAX],
            count: 0,
            order: 0,
            stranger_named: false,
        }
    }

    /// Whether nobody stands there.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the one stands that came first, if anybody does.
    fn oldest(&self) -> Option<usize> {
        let standing = self.all.iter().enumerate();
        let orders =
            standing.filter_map(|(place, greeting)| Some((greeting.as_ref()?.order, place)));
        orders.min().map(|(_, place)| place)
    }

    /// A free place, or that of the oldest.
    fn place(&self) -> usize {
        let order = |place: &usize| self.all[*place].as_ref().map_or(0, |greeting| greeting.order);
        (0..GREETINGS_MAX).min_by_key(order).expect("the table is not empty")
    }
}

/// What a first read gave.
enum First {
    /// A whole frame, and with a record what came along.
    Frame(usize, Option<Received>),
    /// The beginning of one.
    Part(usize),
    /// The end of a stream, before a byte.
    Silent,
    /// No frame of ours, or the end.
    Nonsense,
}

impl<M: LinkMemory> Control<M> {
    /// Takes what has knocked at a door.
    pub fn answer(&mut self, door: Door) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listening) = &self.listening else { return };
            match listening.accept(door) {
                Ok(channel) => self.greet(channel),
                // the kernel looks for a number before it looks for a caller
                Err(error)
                    if address::is_out_of_descriptors(&error) && !listening.has_caller(door) =>
                {
                    return;
                }
                // the peer that has said nothing yet goes first, as when the table is full
                Err(error) if address::is_out_of_descriptors(&error) => {
                    if let Some(oldest) = self.greetings.oldest() {
                        // it may well be a peer, which then dials again
                        self.greeting_drop(oldest, false);
                        self.descriptors_short();
                        continue;
                    }
                    self.turn_away(door);
                    return;
                }
                // one that was reset before it was accepted; more may wait
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    }

    /// Without a free descriptor a waiting peer would wait for its deadline, and its socket would
    /// keep us awake: the spare one is given up to say no.
    fn turn_away(&mut self, door: Door) {
        self.spare = None;
        let mut told = false;
        if let Some(Ok(caller)) = self.listening.as_ref().map(|all| all.accept(door)) {
            self.decline(caller);
            told = true;
        }
        self.spare_take();
        if self.spare.is_none() {
            // another thread was faster: again later, instead of at once and for ever
            self.be_deaf();
        }
        if told {
            self.descriptors_short();
        }
    }

    /// Opens the spare descriptor again, if it is gone and may be.
    fn spare_take(&mut self) {
        self.spare = self.spare.take().or_else(|| descriptor::spare().ok());
    }

    /// Nobody was answered for a while: that ends when there is a spare descriptor again, without
    /// which nobody could be told no.
    pub(super) fn deaf_look(&mut self) {
        if !core::mem::take(&mut self.deaf) {
            return;
        }
        self.spare_take();
        match self.spare {
            Some(_) => self.hearing(true),
            None => self.be_deaf(),
        }
    }

    /// A peer was refused because this process may open no descriptor more: said once.
    pub(super) fn descriptors_short(&mut self) {
        self.counters.descriptors_short += 1;
        if self.counters.descriptors_short == 1 {
            (self.config.note)(Note::Descriptors(os::descriptor_limit()));
        }
    }

    /// A peer was refused for want of memory: said once.
    pub(super) fn memory_short(&mut self) {
        self.counters.memory_short += 1;
        if self.counters.memory_short == 1 {
            (self.config.note)(Note::Memory);
        }
    }

    /// Tells a caller that there is no descriptor for it: a data stream's over its link.
    fn decline(&mut self, caller: Channel) {
        let mut bytes = [0; FRAME_BYTES_MAX];
        if let Channel::Stream(socket) = &caller
            && let Ok(length) = socket.receive(&mut bytes)
            && let Ok(Frame::StreamHello(stream, _)) = Frame::decode(&bytes[..length])
            && let Some(link) = self.link_of_stream(&stream)
        {
            // a lane's end says enough
            if stream.lane_generation == 0 {
                self.part(link, stream.connection, RefuseReason::Descriptors);
            }
            return;
        }
        caller.refuse(0, RefuseReason::Descriptors);
    }

    /// Nobody is answered for a while.
    pub(super) fn be_deaf(&mut self) {
        self.deaf = true;
        self.hearing(false);
        self.look_by(self.now().after(DEAF));
    }

    /// Whether the sockets at which peers knock, and who wants a report, are watched.
    pub fn hearing(&self, on: bool) {
        self.report_hearing(on);
        let Some(listening) = &self.listening else { return };
        for door in DOORS {
            if let Some(socket) = listening.socket(door) {
                self.poller.change(socket, door_token(door), on, false);
            }
        }
    }

    /// A socket that has just been accepted. Its first frame is often there already.
    fn greet(&mut self, channel: Channel) {
        self.worked = true;
        if !self.is_let_in(&channel) {
            return;
        }
        let mut bytes = [0; FRAME_BYTES_MAX];
        let mut caller = match &channel {
            Channel::Record(_) => Caller::Silent,
            Channel::Stream(_) => Caller::LetIn,
        };
        let length = match read_first(&channel, &mut bytes, 0) {
            First::Frame(length, received) => {
                match self.door_asked(&channel, &mut caller, &bytes[..length]) {
                    Then::Welcome => {
                        self.welcome(channel, &bytes[..length], received, false);
                        return;
                    }
                    Then::Gone => return,
                    Then::Wait => 0,
                }
            }
            First::Part(length) => length,
            First::Silent => {
                self.silent(&channel);
                return;
            }
            First::Nonsense => {
                self.unwelcome(&channel);
                return;
            }
        };
        let place = self.greetings.place();
        self.greeting_drop(place, true);
        if self.poller.add(channel.as_fd(), TOKEN_GREETING | place as u64).is_err() {
            return;
        }
        let span = Span(self.config.handshake_deadline.0.min(GREETING_TIME_MAX.0));
        let deadline = self.now().after(span);
        self.look_by(deadline);
        let greetings = &mut self.greetings;
        greetings.bytes[place * FRAME_BYTES_MAX..][..length].copy_from_slice(&bytes[..length]);
        greetings.order += 1;
        greetings.count += 1;
        let order = greetings.order;
        greetings.all[place] = Some(Greeting { channel, deadline, order, length, caller });
    }

    /// More has come of a first frame, or the end.
    pub fn greeting_ready(&mut self, index: u32) {
        let place = index as usize;
        let Some(Some(greeting)) = self.greetings.all.get_mut(place) else { return };
        let row = &mut self.greetings.bytes[place * FRAME_BYTES_MAX..][..FRAME_BYTES_MAX];
        match read_first(&greeting.channel, row, greeting.length) {
            First::Part(length) => greeting.length = length,
            First::Nonsense => self.greeting_drop(place, true),
            First::Silent => {
                let Some(greeting) = self.greetings.all[place].take() else { return };
                self.greetings.count -= 1;
                self.poller.remove(greeting.channel.as_fd());
                self.silent(&greeting.channel);
            }
            First::Frame(length, received) => {
                let mut bytes = [0; FRAME_BYTES_MAX];
                bytes[..length].copy_from_slice(&row[..length]);
                let Some(mut greeting) = self.greetings.all[place].take() else { return };
                let caller = &mut greeting.caller;
                match self.door_asked(&greeting.channel, caller, &bytes[..length]) {
                    Then::Wait => self.greetings.all[place] = Some(greeting),
                    Then::Gone => {
                        self.greetings.count -= 1;
                        self.poller.remove(greeting.channel.as_fd());
                    }
                    Then::Welcome => {
                        self.greetings.count -= 1;
                        self.welcome(greeting.channel, &bytes[..length], received, true);
                    }
                }
            }
        }
    }

    /// Drops whoever stands in a place, as a stranger or not.
    fn greeting_drop(&mut self, place: usize, stranger: bool) {
        let Some(greeting) = self.greetings.all[place].take() else { return };
        self.greetings.count -= 1;
        self.poller.remove(greeting.channel.as_fd());
        if stranger {
            self.unwelcome(&greeting.channel);
        }
    }

    /// Drops those that take too long.
    pub fn greetings_look(&mut self, now: Instant) {
        if self.greetings.is_empty() {
            return;
        }
        for place in 0..GREETINGS_MAX {
            let Some(greeting) = &self.greetings.all[place] else { continue };
            match greeting.deadline {
                due if now >= due => self.greeting_drop(place, true),
                later => self.look_by(later),
            }
        }
    }

    /// Drops all, at close.
    pub fn greetings_end(&mut self) {
        for place in 0..GREETINGS_MAX {
            self.greeting_drop(place, false);
        }
    }

    /// Counts a socket that was not a peer's.
    pub fn stranger(&mut self, from: Option<SocketAddr>) {
        self.counters.strangers += 1;
        if !core::mem::replace(&mut self.greetings.stranger_named, true) {
            (self.config.note)(Note::Stranger(Tried::of(from)));
        }
    }

    /// A stream has ended before it said a byte: a stranger's, or that of a peer which had no
    /// descriptor for what was to follow. Where a peer of ours is, it is not called a stranger.
    fn silent(&mut self, channel: &Channel) {
        let ip = |at: SocketAddr| at.ip();
        let from = channel.remote().map(ip);
        let mut links = self.links.iter().filter(|link| link.stands());
        match from.is_some() && links.any(|link| link.remote.map(ip) == from) {
            true => self.counters.strangers += 1,
            false => self.unwelcome(channel),
        }
    }

    fn unwelcome(&mut self, channel: &Channel) {
        // an endpoint that opens knocks at paths to see whether their owner lives, and goes
        let looked = match channel {
            Channel::Record(socket) => {
                matches!(socket.receive(&mut [0; 1]), Ok(end) if end.length == 0)
            }
            Channel::Stream(_) => false,
        };
        if !looked {
            self.stranger(channel.remote());
        }
    }

    /// A first frame is whole. `watched`: the socket is in the poller.
    fn welcome(
        &mut self,
        channel: Channel,
        bytes: &[u8],
        received: Option<Received>,
        watched: bool,
    ) {
        let minor = FrameHeader::decode(bytes).map_or(0, |(_, minor, _)| minor);
        match (Frame::decode(bytes), channel) {
            (Ok(Frame::LinkHello(hello)), channel) => {
                let (lost, descriptors) = match received {
                    Some(received) => (received.descriptors_lost, received.descriptors),
                    None => (false, [const { None }; 4]),
                };
                if let Some(index) = self.link_greeted(channel, watched) {
                    let link = &mut self.links[index as usize];
                    link.peer = Peer::of(&hello, link.pid);
                    link.peer_minor = minor;
                    self.hello(index, &hello, descriptors.into_iter(), lost);
                }
            }
            (Ok(Frame::StreamHello(stream, connect)), Channel::Stream(socket)) => {
                if watched {
                    self.poller.remove(socket.as_fd());
                }
                self.stream_hello(socket, &stream, &connect);
            }
            (frame, channel) => {
                if watched {
                    self.poller.remove(channel.as_fd());
                }
                match frame {
                    Err(DecodeError::Version(theirs)) => self.version_refuse(&channel, theirs),
                    Ok(_) | Err(_) => self.stranger(channel.remote()),
                }
            }
        }
    }

    /// A peer of another major version: said once.
    fn version_refuse(&mut self, channel: &Channel, theirs: u16) {
        channel.refuse(0, RefuseReason::Version);
        self.counters.versions_refused += 1;
        if self.counters.versions_refused == 1 {
            (self.config.note)(Note::Version(Tried::of(channel.remote()), theirs));
        }
    }

    /// A link for a socket that has said hello.
    fn link_greeted(&mut self, channel: Channel, watched: bool) -> Option<u32> {
        self.greeted_bound();
        let Some(index) = self.link_acquire() else {
            channel.refuse(0, RefuseReason::Full);
            if watched {
                self.poller.remove(channel.as_fd());
            }
            return None;
        };
        let deadline = self.deadline();
        let link = &mut self.links[index as usize];
        link.side = Side::Listener;
        link.rail = channel.rail();
        link.deadline = deadline;
        link.pid = channel.pid();
        link.remote = channel.remote();
        let token = TOKEN_LINK | u64::from(index);
        let added = if watched {
            self.poller.change(channel.as_fd(), token, true, false);
            Ok(())
        } else {
            self.poller.add(channel.as_fd(), token)
        };
        link.socket = Some(channel);
        self.link_phase(index, LinkPhase::ReplySent);
        self.look_by(deadline);
        if added.is_err() {
            self.link_forget(index);
            return None;
        }
        Some(index)
    }
}

/// Reads on until a first frame is whole.
fn read_first(channel: &Channel, bytes: &mut [u8], before: usize) -> First {
    match channel {
        Channel::Record(socket) => match socket.receive(bytes) {
            Ok(received) if received.length == 0 => First::Nonsense,
            Ok(received) => First::Frame(received.length, Some(received)),
            Err(error) if is_waiting(&error) => First::Part(0),
            Err(_) => First::Nonsense,
        },
        Channel::Stream(socket) => {
            // its header first, which says how much is the frame's: behind a lane's hello its data
            // may be there already
            let mut length = before;
            loop {
                let end = match frame_length(&bytes[..length]) {
                    None => FrameHeader::SIZE,
                    Some(end) => end,
                };
                match socket.receive(&mut bytes[length..end]) {
                    Ok(0) if length == 0 => return First::Silent,
                    Ok(0) => return First::Nonsense,
                    Ok(more) => length += more,
                    Err(error) if is_waiting(&error) => return First::Part(length),
                    Err(_) => return First::Nonsense,
                }
                match first_frame(&bytes[..length]) {
                    First::Part(_) => {}
                    First::Frame(..) if is_followed(socket, &bytes[..length]) => {
                        return First::Nonsense;
                    }
                    first => return first,
                }
            }
        }
    }
}

/// Whether something stands behind a first frame of which nothing may before it is answered; that
/// of a lane is not.
fn is_followed(socket: &StreamSocket, frame: &[u8]) -> bool {
    match Frame::decode(frame) {
        Ok(Frame::StreamHello(hello, _)) if hello.lane_generation != 0 => false,
        Ok(_) | Err(_) => matches!(socket.peek(&mut [0; 1]), Ok(more) if more > 0),
    }
}

fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// What the first bytes of a stream are.
fn first_frame(bytes: &[u8]) -> First {
    let magic = FRAME_MAGIC.to_le_bytes();
    let known = bytes.len().min(magic.len());
    if bytes[..known] != magic[..known] {
        return First::Nonsense;
    }
    match frame_length(bytes) {
        None => First::Part(bytes.len()),
        Some(length) if length > FRAME_BYTES_MAX => First::Nonsense,
        Some(length) if bytes.len() < length => First::Part(bytes.len()),
        Some(length) => First::Frame(length, None),
    }
}

/// How long a frame is that begins with these bytes; `None`: too few of them.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk().map(FrameHeader::from_bytes)?;
    Some(FrameHeader::SIZE + usize::from(header.length))
}
