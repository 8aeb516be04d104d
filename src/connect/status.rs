//! Questions and answers about how connections stand, over the side band (W8.12), for stall
//! reports.
//!
//! The data thread leaves a status; the thread of the side band answers with it, and says how old
//! it is. This tells a program that makes no progress from a process that does not run. A peer's
//! status is for people. It decides one thing only: whether the peer's program polls, where a rail
//! must know that (`doc/decisions/0020`).
#![forbid(unsafe_code)]

use super::connection::Phase;
use super::control::Control;
use super::link::LinkPhase;
use super::memory::LinkMemory;
use super::report::ReportDoor;
use super::table::Marks;
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering};
use crate::base::units::{Instant, Span};
use crate::wire::hello::Frame;
use crate::wire::status::{
    AGE_UNKNOWN_MS, ASK_STANDS, STATUS_CLOSED, STATUS_FRESH, STATUS_SNAPSHOT, Status, StatusAsk,
    StatusHello,
};
use std::sync::Arc;
use std::time;
use std::vec::Vec;

/// What the data thread and the thread of the side band tell each other about stalls. All of it are
/// hints: nothing else is read because of them without the lock.
#[derive(Debug)]
pub struct Watch {
    start: time::Instant,
    /// The data thread is to look at its requests.
    due: AtomicU32,
    /// Requests are open, or may be: who sleeps is woken to look at them.
    busy: AtomicU32,
    /// When the data thread looked last, in ms since start; 0: never.
    looked_ms: AtomicU64,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            start: time::Instant::now(),
            due: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            looked_ms: AtomicU64::new(0),
        }
    }
}

impl Watch {
    /// Time since start, never 0.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// Whether the data thread is to look at its requests. *Cost*: one load.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0 // [watch-due], a hint
    }

    /// The data thread looks now.
    pub fn look(&self) -> u64 {
        let now_ms = self.now_ms();
        self.due.store(0, Ordering::Relaxed); // [watch-due]
        self.looked_ms.store(now_ms, Ordering::Relaxed); // [watch-looked], a hint
        now_ms
    }

    /// Whether requests are open.
    #[inline]
    pub fn busy_set(&self, busy: bool) {
        self.busy.store(busy.into(), Ordering::Relaxed); // [watch-busy], a hint
    }

    fn silent_ms(&self) -> u32 {
        match self.looked_ms.load(Ordering::Relaxed) /* [watch-looked] */ {
            0 => AGE_UNKNOWN_MS,
            then => age(self.now_ms(), then),
        }
    }
}

/// A difference that fits.
fn age(now_ms: u64, then_ms: u64) -> u32 {
    u32::try_from(now_ms.saturating_sub(then_ms)).unwrap_or(AGE_UNKNOWN_MS - 1)
}

/// What is known of one connection's statuses.
#[derive(Copy, Clone, Default, Debug)]
struct Row {
    /// Which use of the slot it is of.
    generation: u32,
    /// Number of our last question, and when the first was put that has no full answer; 0: none.
    asked: u32,
    asked_ms: u64,
    /// Number of the peer's, while an answer with a fresh status is owed.
    owed: Option<u32>,
    /// It asked because a request of its own stands.
    stands: bool,
    /// When the peer asked last, and when our own status was left last; 0: never.
    wanted_ms: u64,
    left_ms: u64,
    /// When the peer's was said; 0: not since it was asked.
    said_ms: u64,
}

/// The table of them.
pub(super) struct Statuses {
    pub watch: Arc<Watch>,
    rows: Vec<Row>,
    /// Ours and the peer's of each connection, as bytes that take memory when they are written.
    bytes: Vec<u8>,
    /// Connections of which a status is wanted.
    wanted: Marks,
    span: Span,
    next: Instant,
    /// When the data thread wants to be woken.
    wake_at: Instant,
    pub report_door: ReportDoor,
}

impl Statuses {
    pub fn new(connections: usize) -> Statuses {
        Statuses {
            watch: Arc::default(),
            rows: std::vec![Row::default(); connections],
            bytes: std::vec![0; connections * 2 * Status::SIZE],
            wanted: Marks::new(connections),
            span: Span(0),
            next: Instant(u64::MAX),
            wake_at: Instant(u64::MAX),
            report_door: ReportDoor::CLOSED,
        }
    }

    fn place(&mut self, index: u32, peers: bool) -> &mut [u8] {
        let at = (2 * index as usize + usize::from(peers)) * Status::SIZE;
        &mut self.bytes[at..at + Status::SIZE]
    }

    fn read(&mut self, index: u32, peers: bool) -> StatusHello {
        StatusHello::decode(self.place(index, peers)).unwrap_or_default()
    }

    /// The row of a connection, empty if it is of an earlier use of the slot.
    fn row(&mut self, index: u32, generation: u32) -> &mut Row {
        let row = &mut self.rows[index as usize];
        if row.generation != generation {
            *row = Row { generation, ..Row::default() };
        }
        row
    }
}

impl<M: LinkMemory> Control<M> {
    /// Begins to tell the data thread to look at its requests.
    pub fn watch_start(&mut self, span: Span) {
        self.statuses.span = span;
        self.report_open();
        let now = self.now();
        self.watch_arm(now);
    }

    /// A link stands: there may be requests.
    pub fn watch_arm(&mut self, now: Instant) {
        if self.statuses.span != Span(0) && self.statuses.next == Instant(u64::MAX) {
            self.statuses.next = now.after(self.statuses.span);
            self.look_by(self.statuses.next);
        }
    }

    /// Has the data thread woken after a while.
    pub fn wake_after(&mut self, span: Span) {
        self.statuses.wake_at = self.statuses.wake_at.min(self.now().after(span));
        self.look_by(self.statuses.wake_at);
    }

    /// Wakes it when it is time.
    pub fn wake_look(&mut self, now: Instant) {
        if now >= self.statuses.wake_at {
            self.statuses.wake_at = Instant(u64::MAX);
            (self.config.wake.call)(self.config.wake.context);
        } else if self.statuses.wake_at != Instant(u64::MAX) {
            self.look_by(self.statuses.wake_at);
        }
    }

    /// Tells the data thread when it is time.
    pub fn watch_look(&mut self, now: Instant) {
        if now < self.statuses.next {
            if self.statuses.next != Instant(u64::MAX) {
                self.look_by(self.statuses.next);
            }
            return;
        }
        self.statuses.next = Instant(u64::MAX);
        if self.links_used() == 0 {
            return; // goes on with the next link
        }
        self.watch_arm(now);
        self.statuses.watch.due.store(1, Ordering::Relaxed); // [watch-due]
        if self.statuses.watch.busy.load(Ordering::Relaxed) != 0 {
            (self.config.wake.call)(self.config.wake.context); // [watch-busy]
        }
    }

    /// Has the data thread leave a status of a connection.
    pub fn status_want(&mut self, index: u32) {
        let now_ms = self.statuses.watch.now_ms();
        let generation = self.connections[index as usize].generation;
        self.statuses.row(index, generation).wanted_ms = now_ms;
        self.statuses.wanted.put(index, true);
        self.statuses.watch.due.store(1, Ordering::Relaxed); // [watch-due]
        (self.config.wake.call)(self.config.wake.context);
    }

    /// A peer asks.
    pub fn status_asked(&mut self, link: u32, ask: &StatusAsk) {
        let handle = Handle::unpack(ask.target);
        let known = self.connections.get(handle.index as usize).is_some_and(|connection| {
            connection.phase == Phase::Open
                && connection.generation == handle.generation
                && connection.link == link
                && !connection.closed_here
        });
        if !known {
            let status = Status {
                target: ask.connection,
                number: ask.number,
                flags: STATUS_CLOSED,
                ..Status::ZERO
            };
            self.send(link, &Frame::Status(StatusHello { status, ..StatusHello::ZERO }));
            return;
        }
        let index = handle.index;
        self.status_want(index);
        let row = self.statuses.row(index, handle.generation);
        row.owed = Some(ask.number);
        row.stands |= ask.flags & ASK_STANDS != 0;
        self.status_send(index, ask.number);
    }

    /// Our own status of a connection, as it was left.
    pub fn status_own(&mut self, index: u32) -> StatusHello {
        let generation = self.connections[index as usize].generation;
        let row = *self.statuses.row(index, generation);
        let mut hello = match row.left_ms {
            0 => StatusHello::ZERO,
            _ => self.statuses.read(index, false),
        };
        let status = &mut hello.status;
        status.flags = match row.left_ms {
            0 => 0,
            left_ms if left_ms >= row.wanted_ms => STATUS_SNAPSHOT | STATUS_FRESH,
            _ => STATUS_SNAPSHOT,
        };
        let now_ms = self.statuses.watch.now_ms();
        status.left_ms = if row.left_ms == 0 { AGE_UNKNOWN_MS } else { age(now_ms, row.left_ms) };
        status.silent_ms = self.statuses.watch.silent_ms();
        hello
    }

    fn status_send(&mut self, index: u32, number: u32) {
        let mut hello = self.status_own(index);
        let connection = &self.connections[index as usize];
        let link = connection.link;
        (hello.status.target, hello.status.number) = (connection.peer.connection, number);
        // one that does not fit need not: who is asked and cannot say it has said enough
        self.send(link, &Frame::Status(hello));
    }

    /// The data thread has left a status.
    pub fn status_leave(&mut self, handle: Handle, hello: &StatusHello) {
        let Some(index) = self.live(handle) else { return };
        self.statuses.place(index, false).copy_from_slice(&hello.encode());
        let now_ms = self.statuses.watch.now_ms();
        let row = self.statuses.row(index, handle.generation);
        row.left_ms = now_ms;
        let owed = row.owed.take();
        self.statuses.wanted.put(index, false);
        let open = self.connections[index as usize].phase == Phase::Open;
        if let Some(number) = owed.filter(|_| open) {
            self.status_send(index, number);
        }
    }

    /// The next connection of which a status is wanted, which stays so.
    pub fn status_wanted_from(&mut self, from: u32) -> Option<Handle> {
        let index = self.statuses.wanted.next_from(from)?;
        Some(self.connections[index as usize].handle(index))
    }

    /// The next connection of which a status is wanted.
    pub fn status_wanted(&mut self, from: u32) -> Option<Handle> {
        let index = self.statuses.wanted.next_from(from)?;
        self.statuses.wanted.put(index, false);
        Some(self.connections[index as usize].handle(index))
    }

    /// Whether the peer has asked since the last call because a request of its own stands.
    pub fn status_stands(&mut self, handle: Handle) -> bool {
        let Some(index) = self.live(handle) else { return false };
        core::mem::take(&mut self.statuses.row(index, handle.generation).stands)
    }

    /// Asks the peer of a connection, with `ASK_` bits.
    pub fn status_ask(&mut self, handle: Handle, flags: u32) -> bool {
        let Some(index) = self.live(handle) else { return false };
        let connection = self.connections[index as usize];
        if connection.phase != Phase::Open || connection.peer_closed {
            return false;
        }
        let link = &self.links[connection.link as usize];
        // one of minor version 0 knows no such question
        if link.phase != LinkPhase::Ready || link.peer_nonce == 0 {
            return false;
        }
        let now_ms = self.statuses.watch.now_ms();
        let row = self.statuses.row(index, handle.generation);
        row.asked = row.asked.wrapping_add(1);
        row.said_ms = 0;
        if row.asked_ms == 0 {
            row.asked_ms = now_ms;
        }
        let ask = StatusAsk {
            target: connection.peer.connection,
            connection: handle.pack(),
            number: row.asked,
            flags,
        };
        self.send(connection.link, &Frame::StatusAsk(ask));
        true
    }

    /// A peer has answered.
    pub fn status_said(&mut self, link: u32, hello: &StatusHello) {
        let handle = Handle::unpack(hello.status.target);
        let Some(index) = self.live(handle) else { return };
        if self.connections[index as usize].link != link {
            return;
        }
        let now_ms = self.statuses.watch.now_ms();
        let row = self.statuses.row(index, handle.generation);
        if row.asked == 0 || row.asked != hello.status.number {
            return; // late, or never asked for
        }
        row.said_ms = now_ms;
        let full = hello.status.flags & (STATUS_FRESH | STATUS_CLOSED) != 0;
        if full {
            row.asked_ms = 0;
        }
        self.statuses.place(index, true).copy_from_slice(&hello.encode());
        if full {
            self.statuses.watch.due.store(1, Ordering::Relaxed); // [watch-due]
            (self.config.wake.call)(self.config.wake.context);
        }
    }

    /// For how many ms the peer owes a full answer, one that its program has had a part in;
    /// `None`: it was not asked, or has answered.
    pub fn status_owed_ms(&mut self, handle: Handle) -> Option<u32> {
        let index = self.live(handle)?;
        let now_ms = self.statuses.watch.now_ms();
        match self.statuses.row(index, handle.generation).asked_ms {
            0 => None,
            asked_ms => Some(age(now_ms, asked_ms)),
        }
    }

    /// What the peer has said since it was asked last.
    pub fn status_of_peer(&mut self, handle: Handle) -> Option<StatusHello> {
        let index = self.live(handle)?;
        let now_ms = self.statuses.watch.now_ms();
        let said_ms = self.statuses.row(index, handle.generation).said_ms;
        if said_ms == 0 {
            return None;
        }
        let mut hello = self.statuses.read(index, true);
        let status = &mut hello.status;
        let since = age(now_ms, said_ms);
        status.left_ms = status.left_ms.saturating_add(since);
        if status.silent_ms != AGE_UNKNOWN_MS {
            status.silent_ms = status.silent_ms.saturating_add(since);
        }
        Some(hello)
    }
}
