//! The rails of a connection, its *lanes*.
#![forbid(unsafe_code)]

mod breaks;
pub mod failure;
pub mod join;
pub mod schedule;
pub mod table;

use super::records::NEVER;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{Caps, DownCause, Syscalls};
use core::hash::Hash;

/// No message is longer than this power of two.
const TRANSFER_LOG2_MAX: u8 = 63;

/// The lanes of one connection.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Rails {
    pub control_lane: ControlLane,
    /// Each lane that was opened carries two to this power of bytes in one op. For what is longer,
    /// the rails are asked one by one.
    transfer_log2: u8,
    /// How many there are; with one, its end is the connection's.
    pub count: u8,
    /// Probes of its lanes are answered.
    pub probed: bool,
    /// A bit for each lane that is in use.
    pub up: u8,
    /// A bit for each lane that is not there for others alone.
    pub first: u8,
    /// The lane whose turn it is to carry a stripe.
    pub turn: u8,
    /// The peer went down by the provider's word.
    pub peer_down: bool,
    /// Requests have ended unfenced: their regions are pinned until the fence comes.
    pub quarantine: bool,
    /// The peer is gone, and lanes still have something of it.
    pub lost: Option<DownCause>,
    /// Since when deadlines are looked at with no lane up; 0: not yet; [`NEVER`]: one is up.
    pub stranded_at: Instant,
}

impl Rails {
    /// One lane, which is up.
    pub const ONE: Rails = Rails {
        control_lane: ControlLane::FIRST,
        transfer_log2: TRANSFER_LOG2_MAX,
        count: 1,
        probed: false,
        up: 1,
        first: 1,
        turn: 0,
        peer_down: false,
        quarantine: false,
        lost: None,
        stranded_at: NEVER,
    };

    /// What each lane carries in one op, at least.
    #[inline]
    pub const fn transfer_max(&self) -> Bytes {
        Bytes(1 << self.transfer_log2)
    }

    /// A lane was opened that carries so much in one op.
    pub fn carries(&mut self, transfer_max: Bytes) {
        let log2 = transfer_max.0.max(1).ilog2() as u8;
        self.transfer_log2 = self.transfer_log2.min(log2);
    }

    /// Whether a lane may die without the connection: what has left may have to leave again.
    #[inline]
    pub const fn fails_over(&self) -> bool {
        self.count > 1
    }

    /// Whether control runs on a lane that is there for others, and one is up that is not.
    #[inline]
    pub const fn is_control_away(&self) -> bool {
        let (first, up, lane) = (self.first, self.up, self.control_lane.lane);
        first >> lane & 1 == 0 && up & first != 0 && up >> lane & 1 == 1
    }

    /// The lane that control is to run on.
    pub const fn control_next(&self) -> u8 {
        match self.up & self.first {
            0 => self.up.trailing_zeros() as u8,
            first => first.trailing_zeros() as u8,
        }
    }

    /// The lane that carries our reports: that of control while it lives.
    pub const fn report_lane(&self) -> Option<u8> {
        match self.up {
            0 => None,
            up if up >> self.control_lane.lane & 1 == 1 => Some(self.control_lane.lane),
            up => Some(up.trailing_zeros() as u8),
        }
    }
}

/// The lane that carries our stream of sends and our lines.
#[derive(Copy, Clone, Hash, Debug)]
pub struct ControlLane {
    /// Its end.
    pub peer: PeerIndex,
    /// Its number.
    pub lane: u8,
    /// It has failed, and the peer has not said what it carried.
    pub blocked: bool,
    /// The peer has, but no lane lives that could carry on.
    pub fenced: bool,
    /// What its rail promises: bits, `ORDERED` and `COSTS_CALLS`.
    caps: u8,
}

/// The rail keeps the order of ops.
const ORDERED: u8 = 1;
/// A line costs a call of the system, unless it leaves with others.
const COSTS_CALLS: u8 = 2;

impl ControlLane {
    /// The first lane, before its end was opened.
    const FIRST: ControlLane =
        ControlLane { peer: PeerIndex(0), lane: 0, blocked: false, fenced: false, caps: 0 };

    /// Keeps what the stream and the lines need to know of its rail.
    pub fn caps_set(&mut self, caps: &Caps) {
        let costs_calls = caps.syscalls == Syscalls::PerBatch;
        self.caps = (ORDERED * u8::from(caps.ordered)) | (COSTS_CALLS * u8::from(costs_calls));
    }

    /// Whether its rail keeps the order of ops.
    #[inline]
    pub const fn is_ordered(&self) -> bool {
        self.caps & ORDERED != 0
    }

    /// Whether a line on it costs a call of the system, unless it leaves with others.
    #[inline]
    pub const fn costs_calls(&self) -> bool {
        self.caps & COSTS_CALLS != 0
    }
}
