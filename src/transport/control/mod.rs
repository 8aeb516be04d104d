//! What both sides of a connection tell each other: credits, state lines and reports.
#![forbid(unsafe_code)]

pub mod lines;
pub mod report;

use super::limits::CREDITS;
use super::rails::table::{CtrlSpan, DataSpan};
use crate::base::seq::Seq;
use core::hash::Hash;

/// The control of one connection.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Control {
    pub credits: Credits,
    pub lines: Lines,
    pub taken: Taken,
    /// Groups of the peer that we have bound, as we last told.
    pub groups_told: Seq,
    pub report: ReportState,
    /// What our lines say, and what the peer's must say.
    pub epoch: u32,
    pub peer_epoch: u32,
    /// The peer's mailbox for us.
    pub mailbox: CtrlSpan,
}

impl Control {
    /// Nothing was told.
    pub const NEW: Control = Control {
        credits: Credits::NONE,
        lines: Lines::NONE,
        taken: Taken { told: Seq(0), bytes: 0 },
        groups_told: Seq(0),
        report: ReportState::NONE,
        epoch: 1,
        peer_epoch: 1,
        mailbox: CtrlSpan(DataSpan::NONE.0),
    };
}

/// Credits that are owed before a state line is written for them alone.
const CREDITS_OWED: i32 = CREDITS as i32 / 4;

/// The same where a line leaves with others, at no call of its own: slots that were held back are
/// fewer than all that they speak for.
const CREDITS_WORTH: i32 = CREDITS_OWED / 2;

/// Receives of the peer that we may consume, and ours that the peer may.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Credits {
    /// How many of the peer's we may consume.
    pub through: Seq,
    /// Those that our sends and immediates have consumed.
    pub consumed: Seq,
    /// Receives given back to the rail.
    pub released: Seq,
    /// Credits of the peer as we last told them.
    pub told: Seq,
}

impl Credits {
    /// None on either side.
    pub const NONE: Credits =
        Credits { through: Seq(0), consumed: Seq(0), released: Seq(0), told: Seq(0) };

    /// The count of receives that the peer may consume, as of now.
    #[inline]
    pub fn now(&self) -> Seq {
        self.released.plus(CREDITS)
    }

    /// Whether one more receive of the peer may be consumed, leaving `reserve`.
    #[inline]
    pub fn may_consume(&self, reserve: u32) -> bool {
        self.through.ahead_of(self.consumed) > reserve as i32
    }

    /// Whether the peer has told of all receives that we consumed that they are free again: it has
    /// taken in what was sent.
    #[inline]
    pub fn is_all_taken(&self) -> bool {
        self.through.ahead_of(self.consumed) >= CREDITS as i32
    }

    /// Takes in how many we may consume.
    #[inline(always)]
    pub fn raise(&mut self, through: Seq) {
        if through.ahead_of(self.through) > 0 {
            self.through = through;
        }
    }

    /// A receive that the peer had consumed is free again; says whether the peer must hear of it.
    #[inline(always)]
    #[must_use]
    pub fn free(&mut self) -> bool {
        self.released = self.released.next();
        self.is_due()
    }

    /// Whether the peer may run out of credits before it hears of more.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.now().ahead_of(self.told) >= CREDITS_OWED
    }

    /// Whether the peer hears of credits by a line that leaves with something else.
    #[inline]
    pub fn is_worth(&self) -> bool {
        self.now().ahead_of(self.told) >= CREDITS_WORTH
    }
}

/// Lines of the mailboxes.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Lines {
    /// Sequence of our last state line.
    pub sequence: u32,
    /// Sequence of the last state line that we took in.
    pub seen: u32,
    /// Slots and cells of ours that have not landed.
    pub flying: u16,
    /// Our last state line has not landed.
    pub state_flying: bool,
    /// What the peer reads that not every peer does: bits, of `READS_`.
    pub reads: u8,
}

impl Lines {
    /// None was written.
    pub const NONE: Lines =
        Lines { sequence: 0, seen: 0, flying: 0, state_flying: false, reads: 0 };
}

/// What we have said that we took in of the peer's stream.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Taken {
    /// Sends of the peer that we had taken in when we last said so.
    pub told: Seq,
    /// Bytes of them since then.
    pub bytes: u32,
}

/// Where the exchange of reports stands. One report of each side is unread at most.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct ReportState {
    /// Number of our last one.
    pub number: u32,
    /// There is something that it did not say.
    pub due: bool,
    /// The lane that carries it, until the peer has read it.
    pub unread_on: Option<u8>,
    /// It was lost with its lane, and is to be sent again.
    pub lost: bool,
    /// Number of the peer's last one.
    pub seen: u32,
    /// The peer is to be told that we have read it.
    pub read_due: bool,
    /// The lane on which it was told so last, and may not have heard it.
    pub read_on: Option<u8>,
}

impl ReportState {
    /// No report yet.
    pub const NONE: ReportState = ReportState {
        number: 0,
        due: false,
        unread_on: None,
        lost: false,
        seen: 0,
        read_due: false,
        read_on: None,
    };

    /// Whether ours is to be sent again, and whether a new one is to be sent.
    #[inline]
    pub const fn ours_due(&self) -> (bool, bool) {
        let is_unread = self.unread_on.is_some();
        (is_unread && self.lost, !is_unread && self.due)
    }

    /// Whether a word is due about either side's.
    #[inline]
    pub const fn is_due(&self) -> bool {
        let (again, fresh) = self.ours_due();
        again | fresh | self.read_due
    }
}
