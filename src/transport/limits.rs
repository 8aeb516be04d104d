//! Every capacity of an endpoint, each a sum of its users, and what they add up to in bytes.
#![forbid(unsafe_code)]

use crate::base::carve::lines;
use crate::base::units::{Bytes, Span};
use crate::fabric::LONG_SLOTS;
use crate::wire::{GROUP_MAX, RAILS_MAX};

/// Most outstanding sends, and most outstanding groups of receives, of one connection: a record's
/// number is a byte.
pub const REQUESTS_MAX: u32 = 256;

/// Most groups whose slots the peer has at a time. Those behind them wait on this side, so that a
/// mailbox stays small however many groups are posted, and peers with other numbers of requests
/// agree on one window.
pub const GROUPS_OFFERED_MAX: u32 = 64;

/// Most connections of one endpoint: a request handle has 20 bits for it.
pub const CONNECTIONS_MAX: u32 = 1 << 16;

/// Most regions of one endpoint: a record has 16 bits for it, less the value for none.
pub const REGIONS_MAX: u32 = (1 << 16) - 1;

/// Receives that one side keeps for the other's sends and immediates, its credits. At 48 a stream
/// of short messages with 32 outstanding never stops for them, and a state line per 12 messages
/// returns them; what is held unexpected stays within 1.5 KiB of records.
pub const CREDITS: u32 = 48;

/// Receives of one lane beyond the credits, for a probe and its answer, reports, and words that one
/// was read: one of each is under way, or two where a report was sent again that had come the first
/// time.
pub const RECEIVES_SPARE: u32 = 8;

/// Sends of the stream that are kept until the peer has taken them in, where another lane may have
/// to carry them again: more than there are credits.
pub const STREAM_KEPT: u32 = 64;

/// Bytes of their payloads that are kept; the longest message of the stream is a quarter of it.
pub const KEPT_BYTES: u32 = 8 << 10;

/// On a rail that pushes, credits that only starts of bound messages may use, so that early
/// messages which nobody receives cannot keep a bound message from starting.
pub const CREDITS_FOR_STARTS: u32 = 8;

/// Long messages that may be on their way and not known to be delivered: what a delivery mask can
/// say.
pub const UNDELIVERED_MAX: u32 = 64;

/// Early sends that may be unbound: never more than there are control slots, or slots would be
/// written over before the sender has replayed them.
pub const EARLY_MAX: u32 = 24;

/// Early sends that may be unbound when one leaves that is longer than what a rail takes from all:
/// its receiver has room for so many that nobody receives yet. Those that are known to be received
/// do not count, though their slots may be held back.
pub const EARLY_LONG_MAX: u32 = LONG_SLOTS;

/// How long slots are held back when nothing comes, at least: some looks at a socket, and less than
/// a message over one costs.
pub const HELD_SPAN: Span = Span::micros(20);

/// As long as so many messages of late took to come, where that is longer, and they came within
/// [`HELD_GAP_MAX_US`] of each other: who answers each message would else be offered slots while
/// the answer is on its way.
pub const HELD_GAPS: u32 = 3;
/// Microseconds from one message to the next beyond which no slot waits for it. With
/// [`HELD_GAPS`] of them a long message behind short ones waits half a millisecond at most.
pub const HELD_GAP_MAX_US: u32 = 160;

/// Regions whose keys a peer remembers at a time: a group can name eight.
pub const CELLS: usize = GROUP_MAX;

/// Completions taken from the rail per poll.
pub const POLL_BATCH: usize = 16;

const _: () = assert!(EARLY_MAX + CREDITS_FOR_STARTS <= CREDITS && CREDITS <= UNDELIVERED_MAX);
const _: () = assert!(UNDELIVERED_MAX <= 64, "the delivery mask is one word");
const _: () = assert!(CREDITS <= u8::MAX as u32 && REQUESTS_MAX <= 1 << 8);
const _: () = assert!(EARLY_MAX <= REQUESTS_MIN && REQUESTS_MIN <= GROUPS_OFFERED_MAX);
const _: () = assert!(STREAM_KEPT.is_power_of_two() && STREAM_KEPT > CREDITS);

/// What an endpoint is opened for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Connections open or being set up at a time, 1 to [`CONNECTIONS_MAX`].
    pub connections_max: u32,
    /// Outstanding sends, and outstanding (grouped) receives, of each connection: a power of two,
    /// up to [`REQUESTS_MAX`]; at least [`EARLY_MAX`] rounded up. On rails that push, peers must
    /// have the same [`Limits::groups_max`].
    pub requests_max: u32,
    /// Regions registered at a time, 1 to [`REGIONS_MAX`].
    pub regions_max: u32,
    /// Lanes of each connection at most: 1, 2, 4 or 8. With one nothing is kept for a second.
    pub rails_max: u32,
}

/// Why limits were refused.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum LimitsError {
    /// `connections_max` is zero or too large.
    Connections,
    /// `requests_max` is not a power of two from 32 to 256.
    Requests,
    /// `regions_max` is zero or too large.
    Regions,
    /// `rails_max` is not 1, 2, 4 or 8.
    Rails,
}

/// Fewest `requests_max`: a slot per early send.
pub const REQUESTS_MIN: u32 = EARLY_MAX.next_power_of_two();

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections_max: 64, requests_max: 32, regions_max: 256, rails_max: 1 }
    }
}

impl Limits {
    /// Checks each limit.
    pub const fn check(&self) -> Result<(), LimitsError> {
        if self.connections_max == 0 || self.connections_max > CONNECTIONS_MAX {
            return Err(LimitsError::Connections);
        }
        let power = self.requests_max.is_power_of_two();
        if !power || self.requests_max < REQUESTS_MIN || self.requests_max > REQUESTS_MAX {
            return Err(LimitsError::Requests);
        }
        if self.regions_max == 0 || self.regions_max > REGIONS_MAX {
            return Err(LimitsError::Regions);
        }
        if !self.rails_max.is_power_of_two() || self.rails_max > RAILS_MAX as u32 {
            return Err(LimitsError::Rails);
        }
        Ok(())
    }

    /// Groups of receives that the peer can see at a time: the window that both sides number slots
    /// by.
    pub const fn groups_max(&self) -> u32 {
        if self.requests_max < GROUPS_OFFERED_MAX { self.requests_max } else { GROUPS_OFFERED_MAX }
    }

    /// What stands behind such a number where a user reads it: behind the largest one,
    /// `requests_max` may be more.
    pub const fn or_more(groups_max: u32) -> &'static str {
        if groups_max == GROUPS_OFFERED_MAX { " or more" } else { "" }
    }

    /// Bytes of one connection's mailbox: state line, region cells, control slots.
    pub const fn mailbox_bytes(&self) -> usize {
        lines(1) + CELLS * 2 * lines(1) + self.groups_max() as usize * GROUP_MAX * lines(1)
    }

    /// Words for each send where there may be several lanes: which stripes each of them carried,
    /// and which have arrived.
    pub(super) const fn carried_words(&self) -> usize {
        if self.rails_max > 1 { self.rails_max as usize + 1 } else { 0 }
    }

    /// Peers that the rail must have room for: one per lane.
    pub const fn peers_max(&self) -> u32 {
        self.connections_max * self.rails_max
    }
}

/// Longest message of any connection. NCCL's steps are at most 1 GiB. A rail may carry less:
/// [`Endpoint::message_bytes_max`](super::Endpoint::message_bytes_max).
pub const MESSAGE_BYTES_MAX: u64 = 1 << 40;

/// How an endpoint behaves.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Config {
    /// Longest message that travels in the stream of sends; shorter of this and what rail and peer
    /// take.
    pub eager_bytes_max: Bytes,
    /// The same for memory that peers have mapped, on a rail that pulls: reading it in place costs
    /// them little, so that copying pays for short messages only.
    pub eager_mapped_bytes_max: Bytes,
    /// Request numbers of endpoints with different salts differ; a random number.
    pub salt: u32,
    /// Shortest stripe that a pushed message is cut into.
    pub stripe_bytes_min: Bytes,
    /// How long a connection waits for a lane to come back when none lives.
    pub loss_span: Span,
    /// How long a failed lane's fence, and then the peer's report about it, may take.
    pub fence_span: Span,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager_bytes_max: Bytes::kib(8),
            eager_mapped_bytes_max: Bytes::kib(1),
            salt: 0,
            stripe_bytes_min: Bytes::kib(128),
            loss_span: Span::millis(2_000),
            fence_span: Span::millis(10_000),
        }
    }
}
