//! W8.12: how one connection stands, as its writer sees it; what a stall report is made of.
//!
//! The same plain value is the machine's own snapshot of a connection and what goes to the peer.
//! It is for people: nothing that a peer says in it changes what the reader does with messages. But
//! one that is fresh shows that the writer's program polls, and a rail that stands still
//! nevertheless may be given up (`doc/decisions/0020`).

use super::{DecodeError, GROUP_MAX, RAILS_MAX, wire_struct};
use crate::base::words::numbered;

/// The connection that was asked for does not stand at the writer (any more).
pub const STATUS_CLOSED: u32 = 0x1;
/// The writer's program has left a snapshot since it was asked, or within a moment before.
pub const STATUS_FRESH: u32 = 0x2;
/// There is a snapshot at all.
pub const STATUS_SNAPSHOT: u32 = 0x4;

/// An age that is not known.
pub const AGE_UNKNOWN_MS: u32 = u32::MAX;

/// The writer has a request that stands, and lacks nothing of its own: the reader may look whether
/// the writer has what it was sent.
pub const ASK_STANDS: u32 = 1;

wire_struct! {
    /// W8.12. Body of `StatusAsk`.
    StatusAsk [24] {
        /// The reader's connection.
        target: u64 = 0,
        /// The writer's connection.
        connection: u64 = 8,
        /// The writer's count; a `Status` has that of its `StatusAsk`.
        number: u32 = 16,
        /// `ASK_` bits.
        flags: u32 = 20,
    }
}

wire_struct! {
    /// W8.12. One open request.
    RequestStatus [64] {
        /// Bytes of the message; of a receive that is open, its room.
        length: u64 = 0,
        /// Stripes posted (send), or arrived (receive).
        posted: u64 = 8,
        /// Stripes whose operation has completed (send).
        written: u64 = 16,
        /// How long it has been open at least, in ms.
        age_ms: u32 = 24,
        /// Its tag; of a group, that of its first open receive.
        tag: u32 = 28,
        /// Its number: of a long message among the long ones, of a short one in the stream, of a
        /// receive that of its group.
        sequence: u32 = 32,
        /// What a send is bound to: group and receive, as an immediate names them.
        token: u32 = 36,
        /// Which use of the record: the high half of the user's number.
        generation: u32 = 40,
        /// What it waits for: a [`Waits`].
        waits: u8 = 44,
        /// Stripes that the message was cut into; 0: not known yet.
        stripes: u8 = 45,
        /// A bit for each rail that carries some of it now.
        rails: u8 = 46,
        /// Which record.
        record: u8 = 47,
        /// Receives in the group, which of them are bound, and which are done.
        count: u8 = 48,
        /// See `count`.
        bound: u8 = 49,
        /// See `count`.
        done: u8 = 50,
        /// 1: a message that goes in the stream (send).
        short: u8 = 51,
    }
}

wire_struct! {
    /// W8.12. Body of `Status`.
    Status [320] {
        /// The reader's connection.
        target: u64 = 0,
        /// Number of the `StatusAsk`.
        number: u32 = 8,
        /// `STATUS_` bits.
        flags: u32 = 12,
        /// How long ago the snapshot was made.
        left_ms: u32 = 16,
        /// How long ago the writer's program was last seen making progress.
        silent_ms: u32 = 20,
        /// How long ago something last moved on the connection.
        moved_ms: u32 = 24,
        /// Where the connection is: a [`Standing`].
        standing: u8 = 28,
        /// Long messages are read by their receiver.
        pull: u8 = 29,
        /// Rails of the connection, and those in use.
        lane_count: u8 = 30,
        /// See `lane_count`: a bit each.
        up: u8 = 31,
        /// The rail that carries control.
        control: u8 = 32,
        /// Control waits until a failed rail is sorted out.
        control_blocked: u8 = 33,
        /// Receives in the oldest group that is open.
        group_count: u8 = 34,
        /// Which of them are bound.
        group_bound: u8 = 35,
        /// Sends that are outstanding.
        sends: u16 = 36,
        /// Groups of receives that are outstanding.
        receives: u16 = 38,
        /// Messages of the reader's that no receive takes.
        unexpected: u16 = 40,
        /// Sends whose turn has not come.
        queued: u16 = 42,
        /// Tag of the first message that no receive takes.
        unexpected_tag: u32 = 44,
        /// Sends of the stream that left, and those of the reader's that were taken in.
        eager_number: u32 = 48,
        /// See `eager_number`.
        eager_expected: u32 = 52,
        /// Long messages that left, and those that the reader has.
        send_number: u32 = 56,
        /// See `send_number`.
        delivered_through: u32 = 60,
        /// Long messages of the reader's that have come.
        arrived_through: u32 = 64,
        /// Receives of the reader that were consumed, and may be.
        consumed: u32 = 68,
        /// See `consumed`.
        credits_through: u32 = 72,
        /// Receives that the reader may consume, as of now.
        credits_given: u32 = 76,
        /// The oldest open group, the next one to be posted, the next whose slots are written.
        group_oldest: u32 = 80,
        /// See `group_oldest`.
        group_post: u32 = 84,
        /// See `group_oldest`.
        slots_next: u32 = 88,
        /// The reader's oldest group that is not bound.
        group_next: u32 = 92,
        /// Control epochs of writer and reader.
        epoch: u32 = 96,
        /// See `epoch`.
        peer_epoch: u32 = 100,
        /// Why the connection failed: a number of the writer's.
        failure: u32 = 104,
        /// The rails through shared memory, a bit each.
        lanes_shm: u8 = 108,
        /// The rails over TCP, likewise.
        lanes_tcp: u8 = 109,
        /// The states of the rails, a byte each: a [`RailStanding`].
        lane_states: u64 = 112,
        /// Their generations, 32 bits each.
        lane_generations_low: u128 = 120,
        /// Continued.
        lane_generations_high: u128 = 136,
        /// The tags of the oldest open group, 32 bits each.
        tags_low: u128 = 152,
        /// Continued.
        tags_high: u128 = 168,
    }
}

/// Offsets of the oldest requests in a `Status`.
const SEND_AT: usize = 192;
const RECEIVE_AT: usize = SEND_AT + RequestStatus::SIZE;
const _: () = assert!(RECEIVE_AT + RequestStatus::SIZE == Status::SIZE);

/// A connection and its oldest requests.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct StatusHello {
    /// The connection.
    pub status: Status,
    /// Its oldest send; `waits` 0: none is open.
    pub send: RequestStatus,
    /// Its oldest group of receives, likewise.
    pub receive: RequestStatus,
}

impl StatusHello {
    /// Nothing.
    pub const ZERO: StatusHello = StatusHello {
        status: Status::ZERO,
        send: RequestStatus::ZERO,
        receive: RequestStatus::ZERO,
    };

    /// The bytes.
    pub fn encode(&self) -> [u8; Status::SIZE] {
        let mut bytes = self.status.encode();
        bytes[SEND_AT..RECEIVE_AT].copy_from_slice(&self.send.encode());
        bytes[RECEIVE_AT..].copy_from_slice(&self.receive.encode());
        bytes
    }

    /// Reads a body; any bytes of the length are a value.
    pub fn decode(body: &[u8]) -> Result<StatusHello, DecodeError> {
        let bytes: &[u8; Status::SIZE] = body.first_chunk().ok_or(DecodeError::Short)?;
        let request = |at: usize| match bytes[at..].first_chunk() {
            Some(bytes) => RequestStatus::from_bytes(bytes),
            None => RequestStatus::ZERO,
        };
        let status = Status::from_bytes(bytes);
        Ok(StatusHello { status, send: request(SEND_AT), receive: request(RECEIVE_AT) })
    }
}

impl Status {
    /// The tag of a receive of the oldest open group.
    pub const fn tag(&self, receive: usize) -> i32 {
        word(self.tags_low, self.tags_high, receive) as i32
    }

    /// Sets it.
    pub const fn tag_set(&mut self, receive: usize, tag: i32) {
        word_set(&mut self.tags_low, &mut self.tags_high, receive, tag as u32);
    }

    /// The generation of a rail.
    pub const fn generation(&self, lane: usize) -> u32 {
        word(self.lane_generations_low, self.lane_generations_high, lane)
    }

    /// Sets generation and state of a rail.
    pub const fn lane_set(&mut self, lane: usize, generation: u32, standing: RailStanding) {
        let (low, high) = (&mut self.lane_generations_low, &mut self.lane_generations_high);
        word_set(low, high, lane, generation);
        self.lane_states |= (standing as u64) << (8 * lane);
    }

    /// How a rail is.
    pub const fn lane(&self, lane: usize) -> RailStanding {
        RailStanding::from_wire((self.lane_states >> (8 * (lane % RAILS_MAX))) as u8)
    }

    /// What a rail is, as its name after a blank; empty where it is neither.
    pub const fn lane_kind(&self, lane: usize) -> &'static str {
        match (self.lanes_shm >> (lane % RAILS_MAX) & 1, self.lanes_tcp >> (lane % RAILS_MAX) & 1) {
            (0, 0) => "",
            (0, _) => " tcp",
            (_, _) => " shm",
        }
    }

    /// The first rail that is so.
    pub fn lane_that_is(&self, standing: RailStanding) -> Option<usize> {
        (0..usize::from(self.lane_count).min(RAILS_MAX)).find(|lane| self.lane(*lane) == standing)
    }

    /// The first tag of the oldest open group that is still waited for.
    pub fn tag_open(&self) -> Option<i32> {
        let count = usize::from(self.group_count).min(GROUP_MAX);
        (0..count).find(|at| self.group_bound >> at & 1 == 0).map(|at| self.tag(at))
    }

    /// Whether a receive of the oldest open group takes messages with `tag`.
    pub fn takes(&self, tag: i32) -> bool {
        let count = usize::from(self.group_count).min(GROUP_MAX);
        (0..count).any(|at| self.group_bound >> at & 1 == 0 && self.tag(at) == tag)
    }
}

const fn word(low: u128, high: u128, at: usize) -> u32 {
    let half = if at % 8 < 4 { low } else { high };
    (half >> (32 * (at % 4))) as u32
}

const fn word_set(low: &mut u128, high: &mut u128, at: usize, value: u32) {
    let half = if at % 8 < 4 { low } else { high };
    let shift = 32 * (at % 4);
    *half = *half & !(0xffff_ffff << shift) | (value as u128) << shift;
}

numbered! {
    /// Where a connection is.
    Standing: u8 else None {
        /// Nothing is known of it.
        None = 0,
        /// In use.
        Open = 1,
        /// Lost; operations are being fenced.
        Failing = 2,
        /// Lost.
        Failed = 3,
        /// Being closed.
        Closing = 4,
    }
}

numbered! {
    /// How a rail is.
    RailStanding: u8 else Down {
        /// Not in use.
        Down = 0,
        /// Opened again; the peer's probe has not come.
        Joining = 1,
        /// In use.
        Up = 2,
        /// Failed; being fenced.
        Failing = 3,
        /// Fenced at the writer; the reader has not said that it is.
        Fenced = 4,
    }
}

impl RailStanding {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            RailStanding::Down => "down",
            RailStanding::Joining => "joining",
            RailStanding::Up => "up",
            RailStanding::Failing => "being fenced",
            RailStanding::Fenced => "fenced here",
        }
    }
}

numbered! {
    /// What an open request waits for.
    Waits: u8 else None {
        /// There is no request.
        None = 0,
        /// A send: the peer has offered no receive that has not its message.
        Slot = 1,
        /// A send: the peer's oldest group has no receive with the tag.
        Tag = 2,
        /// A send: the peer keeps no more receives for us.
        Credit = 3,
        /// A send: a rail has no room.
        Room = 4,
        /// A send: control waits for a failed rail to be sorted out.
        Control = 5,
        /// A send: those before it.
        Turn = 6,
        /// A send: stripes are being posted.
        Stripes = 7,
        /// A send: posted stripes have not completed.
        Completion = 8,
        /// A send: all has left, the peer has not said that it has it.
        Delivery = 9,
        /// A send: the peer has not read the message out of our memory.
        Reading = 10,
        /// A receive: no message has come.
        Message = 16,
        /// A receive: older groups are open.
        Older = 17,
        /// A receive: its slots could not be written.
        Offer = 18,
        /// A receive: stripes are missing.
        Arrival = 19,
    }
}

impl Waits {
    /// Whether a receive waits so.
    pub const fn is_receive(self) -> bool {
        self as u8 >= Waits::Message as u8
    }
}

impl RequestStatus {
    /// What it waits for.
    pub const fn waits(&self) -> Waits {
        Waits::from_wire(self.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_rails_come_back_as_they_were_set() {
        let mut status = Status { lane_count: 8, group_count: 8, ..Status::ZERO };
        for at in 0..8 {
            status.tag_set(at, -(at as i32) - 1);
            status.lane_set(at, at as u32 + 7, RailStanding::from_wire(at as u8 % 5));
        }
        for at in 0..8 {
            assert_eq!(status.tag(at), -(at as i32) - 1);
            assert_eq!(status.generation(at), at as u32 + 7);
            assert_eq!(status.lane(at) as usize, at % 5);
        }
        assert_eq!(status.lane_that_is(RailStanding::Fenced), Some(4));
        status.group_bound = 1;
        assert!(status.takes(-2) && !status.takes(-1));
        assert_eq!(status.tag_open(), Some(-2));
        let hello = StatusHello { status, ..StatusHello::ZERO };
        assert_eq!(StatusHello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn what_requests_wait_for_has_one_number_each() {
        let known = (0..=255u8).filter(|n| Waits::from_wire(*n) as u8 == *n).count();
        assert_eq!(known, 15);
    }
}
