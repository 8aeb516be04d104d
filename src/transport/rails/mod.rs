//! The rails of a connection, its *lanes*.
#![forbid(unsafe_code)]

pub mod failure;
pub mod join;
pub mod schedule;
pub mod table;

use super::records::NEVER;
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::DownCause;
use core::hash::Hash;

/// The lanes of one connection.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Rails {
    pub control_lane: ControlLane,
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
        control_lane: ControlLane { peer: PeerIndex(0), lane: 0, blocked: false, fenced: false },
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
}
