//! What the machine remembers: plain values in the caller's block, no pointers.
//!
//! Where the lanes of a connection are is in [`super::rails`].
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

use super::rails::table::DataSpan;
use super::request::RequestError;
use crate::base::seq::Seq;
use crate::base::slab::Handle;
use crate::base::units::Instant;
use crate::fabric::RecvSlot;
use core::hash::Hash;

/// A record's region number when it has none: a message of no bytes.
pub const NO_REGION: u16 = u16::MAX;

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

/// Which of the two lines of a cell are to be written.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum CellDue {
    /// None: they have been.
    Nothing,
    /// Both; they may have been lost with a control lane.
    Both,
    /// The second; the first has been written.
    Second,
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
    /// Its lines that are to be written, maybe again.
    pub due: CellDue,
    /// [`super::mr::DataMrs::keys_version`] when its keys were read.
    pub version: u8,
}

impl KnownRegion {
    /// None; its cell was never written.
    pub const NONE: KnownRegion = KnownRegion {
        region: Handle::unpack(0),
        sequence: 0,
        users: 0,
        due: CellDue::Nothing,
        version: 0,
    };
}

/// No moment.
pub const NEVER: Instant = Instant(u64::MAX);

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
