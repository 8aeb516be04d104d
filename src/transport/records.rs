//! What the machine remembers: plain values in the caller's block, no pointers.
//!
//! Where the lanes of a connection are is in [`super::rail`].
//!
//! ```text
//! connection   Free ─open─► Open ─close──────────► Closing ─fenced─► Free
//!                            └─peer down, failure─► Failing ─fenced─► Failed ─close─► Closing
//! send         Free ─isend─► Queued ─eager, room────────────────────────────────► Done
//!                            Queued ─descriptor sent──► Waiting ─acknowledged───► Done
//!                            Queued ─bound to a slot──► Writing ─stripes posted─► Waiting
//!              Done ─test─► Free; an accepted send leaves any state for Done when it fails
//! receive      Free ─irecv─► Open ─bound to an eager message─► Done
//!                            Open ─bound to a descriptor─► Pulling ─read─► Done
//!                            Open ─bound by a start──────► Filling ─all stripes─► Done
//! ```
#![forbid(unsafe_code)]

use super::limits::CELLS;
use super::mr::NO_REGION;
use super::rail::{CtrlSpan, DataSpan};
use super::report_state::ReportState;
use super::request::RequestError;
use super::used::SendQueue;
use crate::base::ids::PeerIndex;
use crate::base::seq::{Seq, SeqWindow};
use crate::base::slab::Handle;
use crate::base::units::Instant;
use crate::fabric::{DownCause, RecvSlot};

/// End of a list of records.
pub const NIL: u8 = u8::MAX;

/// Where a connection is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum ConnectionState {
    /// Not in use.
    Free,
    /// In use.
    Open,
    /// Lost; outstanding operations are being fenced.
    Failing,
    /// Lost; every request has ended.
    Failed,
    /// The user closes it; outstanding operations are being fenced.
    Closing,
}

/// Whether the peer can still touch our memory, or we the peer's, once a connection is given up.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Fence {
    /// It can.
    Needed,
    /// The fence was posted.
    Posted,
    /// It cannot.
    Holds,
}

/// Why a connection is no longer open, with its request error.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Failure(pub RequestError);

/// A first-in first-out list through the `next` fields of records.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Queue {
    pub head: u8,
    pub tail: u8,
}

impl Queue {
    /// Nothing in it.
    pub const EMPTY: Queue = Queue { head: NIL, tail: NIL };

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.head == NIL
    }
}

/// A region whose keys the peer knows, or is being told.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct KnownRegion {
    /// Which; the default handle for none.
    pub region: Handle,
    /// Times that the cell was written.
    pub sequence: u32,
    /// Outstanding receives whose slots name the cell.
    pub users: u16,
    /// Of its two lines, which are to be written, the first has been.
    pub half: bool,
    /// [`super::mr::DataMrs::keys_version`] when its keys were read.
    pub version: u8,
}

/// The peer reads slots that speak for several groups.
pub const READS_RUNS: u8 = 1;
/// The peer reads in heads which groups its messages have filled.
pub const READS_FILLED: u8 = 2;
/// In both mailboxes the first slots of all groups lie together.
pub const READS_ROWS: u8 = 4;

/// All as bits.
pub const fn reads(runs: bool, filled: bool, rows: bool) -> u8 {
    (READS_RUNS * runs as u8) | (READS_FILLED * filled as u8) | (READS_ROWS * rows as u8)
}

/// One connection, both directions of it.
#[repr(align(64))] // whole lines, as `Limits::connection_bytes` counts it
#[derive(Copy, Clone, Hash, Debug)]
pub struct Connection {
    pub state: ConnectionState,
    /// The rail pulls: long messages go by descriptor, and no slots are written.
    pub pull: bool,
    /// The peer went down by the provider's word.
    pub peer_down: bool,
    /// Its requests have ended unfenced: their regions are pinned until the fence comes.
    pub quarantine: bool,
    /// The end of the lane that carries control.
    pub peer: PeerIndex,
    pub failure: Failure,

    // its lanes
    /// How many there are; with one, its end is the connection's.
    pub lane_count: u8,
    /// Probes of its lanes are answered.
    pub probed: bool,
    /// What the peer reads that not every peer does: bits, of `READS_`.
    pub reads: u8,
    /// A bit for each lane that is in use.
    pub up: u8,
    /// A bit for each lane that is not there for others alone.
    pub first: u8,
    /// The lane that carries our stream of sends and our lines.
    pub control: u8,
    /// The lane whose turn it is to carry a stripe.
    pub turn: u8,
    /// Our control lane has failed, and the peer has not said what it carried.
    pub control_blocked: bool,
    /// The peer has, but no lane lives that could carry on.
    pub control_fenced: bool,
    /// Cells that are to be written, maybe again: their lines were lost with a control lane.
    pub cells_lost: u8,
    /// The next send of the stream that is to be sent again, if any.
    pub resend: Option<Seq>,
    /// The peer has taken in our sends below this.
    pub taken_through: Seq,
    /// Where the next payload is kept.
    pub kept_next: u32,
    /// Our sends that we had taken in when we last said so, and bytes of them since then.
    pub taken_told: Seq,
    pub taken_bytes: u32,
    pub report: ReportState,
    /// The peer is gone, and lanes still have something of it.
    pub lost: Option<DownCause>,
    /// Since when deadlines are looked at with no lane up; 0: not yet; [`NEVER`]: one is up.
    pub stranded_at: Instant,
    /// What our lines say, and what the peer's must say.
    pub epoch: u32,
    pub peer_epoch: u32,

    // as sender
    pub eager_bytes_max: u64,
    /// Sends that are not bound, or not told to the peer, in order.
    pub queue: SendQueue,
    /// Number of the next long message.
    pub send_number: Seq,
    /// Number of the next send of the stream.
    pub eager_number: Seq,
    /// Receives of the peer that our sends and immediates have consumed.
    pub consumed: Seq,
    /// How many we may consume.
    pub credits_through: Seq,
    /// The peer has all messages below this.
    pub delivered_through: Seq,
    /// Sends in state `Waiting`.
    pub waiting: u16,
    /// The oldest group of the peer that is not fully bound.
    pub group_next: Seq,
    /// Its receives; 0 until its slots have been seen.
    pub group_count: u8,
    /// Which of them are bound.
    pub group_bound: u8,
    /// Early sends that no visible slot accounts for yet.
    pub early: u8,
    /// Groups of the peer that we have bound, as we last told.
    pub groups_told: Seq,
    /// The group of the peer's that was withdrawn last; every state line says it, since only the
    /// newest is read.
    pub canceled: Option<Seq>,
    /// It has not been told yet.
    pub canceled_news: bool,
    pub mailbox: CtrlSpan,
    /// Sequence of the last state line that we took in.
    pub state_seen: u32,

    // as receiver
    /// The oldest group that is not fully bound.
    pub group_oldest: Seq,
    /// Number of the next group.
    pub group_post: Seq,
    /// The next group whose slots are to be written.
    pub slots_next: Seq,
    /// How many of that group's have been written.
    pub slots_at: u8,
    /// Whether slots are held back until there are several.
    pub holds: bool,
    /// Since when, in microseconds, which wrap; 0: the time is not known yet.
    pub held_since_us: u32,
    /// The last message had come some time before that.
    pub held_late: bool,
    /// The last bits of what had come then.
    pub held_at: u16,
    /// Microseconds from one message to the next, as of late; 0: not known.
    pub gap_us: u16,
    /// The last bits of the number in the stream behind the last start, or of one not long ago:
    /// what has come since is short.
    pub started_at: u16,
    /// The peer, as sender, has bound all groups below this.
    pub peer_groups_through: Seq,
    /// No slot of a group from here on has ever been written.
    pub offered_through: Seq,
    /// The group whose slot asks the peer to give it up.
    pub canceling: Option<Seq>,
    /// Whether a group that is offered may be canceled and have no verdict.
    pub cancels_due: bool,
    pub eager_expected: Seq,
    pub held_free: u8,
    /// Messages that no receive matches yet, in order.
    pub unexpected: Queue,
    /// Sends that came before their turn.
    pub ahead: Queue,
    /// Descriptors that are bound, and wait for room to be read.
    pub pulls: Queue,
    /// Receives given back to the rail.
    pub released: Seq,
    /// Credits as we last told them.
    pub credits_told: Seq,
    pub arrived: SeqWindow,
    /// The peer waits for news of a delivery.
    pub delivery_news: bool,
    /// Our last state line has not landed.
    pub state_flying: bool,
    /// Slots and cells of ours that have not landed.
    pub lines_flying: u32,
    pub state_sequence: u32,
    /// What the watch looks at to see that something moves, and when it last did.
    pub moved: u16,
    pub moved_at_ms: u32,
    pub cells: [KnownRegion; CELLS],
}

/// No moment.
pub const NEVER: Instant = Instant(u64::MAX);

impl Connection {
    /// Messages of the stream since the last start, or some that are enough to tell.
    pub const fn short_run(&self) -> u16 {
        (self.eager_expected.0 as u16).wrapping_sub(self.started_at)
    }

    /// Says that so many messages have come since the last start.
    pub const fn short_run_set(&mut self, run: u16) {
        self.started_at = (self.eager_expected.0 as u16).wrapping_sub(run);
    }

    /// Whether the stream of sends can be taken in without looking left or right: nothing waits
    /// for its turn or for a receive, and no group is being withdrawn.
    #[inline]
    pub const fn has_no_detours(&self) -> bool {
        self.unexpected.is_empty() && self.ahead.is_empty() && !self.cancels_due
    }

    /// Changes with whatever the peer does: what it sends, says, takes in or acknowledges.
    pub fn heard(&self) -> u32 {
        let counts = [self.eager_expected, self.taken_through, self.arrived.through()];
        let acks = [self.credits_through, self.delivered_through, self.peer_groups_through];
        let sum = counts.iter().chain(&acks).fold(0u32, |sum, count| sum.wrapping_add(count.0));
        sum.wrapping_add(self.state_seen).wrapping_add(self.report.seen)
    }

    /// Whether the peer's state line or slots are waited for.
    pub const fn is_watching(&self) -> bool {
        self.waiting != 0
            || !self.queue.is_empty()
            || self.cancels_due
            || (!self.pull && self.slots_next.0 != self.group_post.0)
    }

    /// Not in use.
    pub const FREE: Connection = Connection {
        state: ConnectionState::Free,
        pull: false,
        peer_down: false,
        quarantine: false,
        peer: PeerIndex(0),
        failure: Failure(RequestError::Closed),
        lane_count: 1,
        probed: false,
        reads: 0,
        up: 1,
        first: 1,
        control: 0,
        turn: 0,
        control_blocked: false,
        control_fenced: false,
        cells_lost: 0,
        resend: None,
        taken_through: Seq(0),
        kept_next: 0,
        taken_told: Seq(0),
        taken_bytes: 0,
        report: ReportState::NONE,
        lost: None,
        stranded_at: NEVER,
        epoch: 1,
        peer_epoch: 1,
        eager_bytes_max: 0,
        queue: SendQueue::EMPTY,
        send_number: Seq(0),
        eager_number: Seq(0),
        consumed: Seq(0),
        credits_through: Seq(0),
        delivered_through: Seq(0),
        waiting: 0,
        group_next: Seq(0),
        group_count: 0,
        group_bound: 0,
        early: 0,
        groups_told: Seq(0),
        canceled: None,
        canceled_news: false,
        mailbox: CtrlSpan(DataSpan::NONE.0),
        state_seen: 0,
        group_oldest: Seq(0),
        group_post: Seq(0),
        slots_next: Seq(0),
        slots_at: 0,
        holds: false,
        held_since_us: 0,
        held_late: false,
        held_at: 0,
        gap_us: 0,
        started_at: 0,
        peer_groups_through: Seq(0),
        offered_through: Seq(0),
        canceling: None,
        cancels_due: false,
        eager_expected: Seq(0),
        held_free: NIL,
        unexpected: Queue::EMPTY,
        ahead: Queue::EMPTY,
        pulls: Queue::EMPTY,
        released: Seq(0),
        credits_told: Seq(0),
        arrived: SeqWindow::new(Seq(0)),
        delivery_news: false,
        state_flying: false,
        lines_flying: 0,
        state_sequence: 0,
        moved: 0,
        moved_at_ms: 0,
        cells: [KnownRegion::NONE; CELLS],
    };
}

/// Where a send is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u8)]
pub enum SendState {
    /// Not in use.
    Free = 0,
    /// Not bound, or not told to the peer.
    Queued,
    /// Bound to a slot; stripes are being written.
    Writing,
    /// Everything is posted; the peer has not said that it is delivered, or the source is in use.
    Waiting,
    /// Sent, and nobody else's business, but the rail keeps some of its bytes until further calls:
    /// `address` says how far the peer's bytes must have left ([`Provider::sent_through`]).
    ///
    /// [`Provider::sent_through`]: crate::fabric::Provider::sent_through
    Leaving,
    /// Ended; the user has not asked.
    Done,
}

/// One outstanding send. Zeroed: never used, and its memory not touched.
#[derive(Copy, Clone, Hash, Debug)]
pub struct SendRecord {
    pub address: u64,
    pub length: u64,
    /// Where the bound slot's buffer lies at the peer.
    pub target: DataSpan,
    /// Stripes posted (of those in `stripes`).
    pub posted: u64,
    /// Stripes whose source is free again.
    pub written: u64,
    pub stripe_bytes: u64,
    pub tag: i32,
    pub number: Seq,
    /// Of the bound slot.
    pub token: u32,
    pub generation: u32,
    pub region: u16,
    pub state: SendState,
    /// While it is queued the next; once it is bound the cell with the keys of the peer's buffer.
    pub next: u8,
    /// Stripes that the message was cut into.
    pub stripes: u8,
    /// The peer says that it has the message.
    pub delivered: bool,
    /// When the watch saw it first, and whether it was reported.
    pub seen: u16,
    pub error: Option<RequestError>,
}

impl SendRecord {
    /// Not in use.
    pub const FREE: SendRecord = SendRecord {
        address: 0,
        length: 0,
        target: DataSpan::NONE,
        posted: 0,
        written: 0,
        stripe_bytes: 0,
        tag: 0,
        number: Seq(0),
        token: 0,
        generation: 0,
        region: NO_REGION,
        state: SendState::Free,
        next: NIL,
        stripes: 0,
        delivered: false,
        seen: 0,
        error: None,
    };
}

/// One outstanding group of receives; its record is its number modulo the table. Zeroed: never
/// used, and its memory not touched.
#[derive(Copy, Clone, Hash, Debug)]
pub struct GroupRecord {
    pub number: Seq,
    /// Which use of the record; request numbers carry it.
    pub generation: u32,
    /// The user has not been told its outcome yet.
    pub used: bool,
    /// Receives in the group; kept when it is free, for the slots that are still to be written.
    pub count: u8,
    /// Receives that have their message.
    pub bound: u8,
    /// Receives that have ended.
    pub done: u8,
    /// The user wants it back.
    pub cancel: bool,
    /// As that of a send.
    pub seen: u16,
    pub error: Option<RequestError>,
}

impl GroupRecord {
    /// Whether it is group `number`, the user wants it back, and nothing was bound to it.
    pub fn is_canceled(&self, number: Seq) -> bool {
        self.number == number && self.cancel && self.used && self.bound == 0
    }

    /// Not in use.
    pub const FREE: GroupRecord = GroupRecord {
        number: Seq(0),
        generation: 0,
        used: false,
        count: 0,
        bound: 0,
        done: 0,
        cancel: false,
        seen: 0,
        error: None,
    };
}

/// One receive of a group.
#[derive(Copy, Clone, Hash, Debug)]
pub struct ReceiveRecord {
    pub address: u64,
    /// Room; once the receive is bound, the message's length.
    pub length: u64,
    /// Stripes that have arrived.
    pub stripes: u64,
    /// The tag; once the receive is bound, the number of the message: of a long one among the long
    /// ones, of a short one in the stream.
    pub label: u32,
    pub region: u16,
    /// Stripes of the message; 0 until its start came.
    pub total: u8,
    /// The region cell that its slot names.
    pub cell: u8,
}

impl ReceiveRecord {
    /// Not in use.
    pub const FREE: ReceiveRecord = ReceiveRecord {
        address: 0,
        length: 0,
        stripes: 0,
        label: 0,
        region: NO_REGION,
        total: 0,
        cell: NIL,
    };
}

/// A message that was sent before its slot was seen: what replaying the match takes. Its number is
/// that in the stream.
#[derive(Copy, Clone, Hash, Debug)]
pub struct EarlySend {
    pub tag: i32,
    pub number: Seq,
}

/// A send of the peer's that stays in its receive slot for now.
#[derive(Copy, Clone, Hash, Debug)]
pub struct HeldMessage {
    pub slot: RecvSlot,
    /// The sender's tag; for a waiting pull, the receive that it is bound to.
    pub tag: i32,
    pub number: Seq,
    pub eager_number: Seq,
    pub group_base: Seq,
    pub length: u32,
    pub kind: u8,
    pub stripes: u8,
    /// The lane that it came on.
    pub lane: u8,
    pub next: u8,
}

impl HeldMessage {
    /// Nothing held.
    pub const FREE: HeldMessage = HeldMessage {
        slot: RecvSlot(0),
        tag: 0,
        number: Seq(0),
        eager_number: Seq(0),
        group_base: Seq(0),
        length: 0,
        kind: 0,
        stripes: 0,
        lane: 0,
        next: NIL,
    };
}

/// A send of the stream that the peer may not have taken in: what sending it again takes. Zeroed:
/// nothing is kept.
#[derive(Copy, Clone, Hash, Debug)]
pub struct StreamRecord {
    pub tag: i32,
    pub send_number: Seq,
    pub group_base: Seq,
    /// Where its payload is kept, counted through all payloads ever kept.
    pub kept_at: u32,
    pub length: u16,
    pub kind: u8,
    pub stripes: u8,
}
