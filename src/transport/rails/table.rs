//! The rails of one connection, its *lanes*: what each is good for, and how it is.
//!
//! ```text
//! lane   Down ─rejoin──────► Joining ─our probes are answered─► Up
//!        Up, Joining ─error, peer's word─► Failing ─fence holds, ops retired─► Fenced
//!        Fenced ─peer has fenced it too──► Down (what it lost moves to living lanes)
//! ```
//!
//! Control and data are written by different types, each of which takes memory of its own kind:
//!
//! ```compile_fail
//! use crosstie::transport::rail::{CtrlRail, DataSpan};
//! fn wrong(rail: CtrlRail, line: [u8; 64], user_memory: DataSpan) {
//!     rail.write(line, user_memory); // a control rail writes mailboxes, never user memory
//! }
//! ```
//!
//! ```compile_fail
//! use crosstie::transport::rail::{CtrlSpan, DataRail};
//! use crosstie::fabric::LocalSpan;
//! fn wrong(rail: DataRail, from: LocalSpan, mailbox: CtrlSpan) {
//!     rail.write(from, mailbox, 0); // a data rail writes user memory, never mailboxes
//! }
//! ```
//!
//! ```
//! use crosstie::transport::rail::{CtrlRail, CtrlSpan, DataRail, DataSpan};
//! use crosstie::fabric::{LocalSpan, OpKind};
//! fn right(line: [u8; 64], mailbox: CtrlSpan, from: LocalSpan, to: DataSpan) -> [OpKind; 2] {
//!     [CtrlRail(0).write(line, mailbox), DataRail(1).write(from, to, 7)]
//! }
//! ```

use super::breaks::Breaks;
use super::schedule::Load;
use crate::base::bitset;
use crate::base::bitset::BitSet;
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::PeerIndex;
use crate::base::units::{Instant, Span};
use crate::fabric::{Line, LocalSpan, OpKind, RailKey, RemoteSpan, Source};
use crate::transport::limits::Limits;

/// Memory of the peer that holds its mailbox for us.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct CtrlSpan(pub RemoteSpan);

impl CtrlSpan {
    /// The span that starts `offset` bytes later.
    pub const fn plus(self, offset: u64) -> CtrlSpan {
        CtrlSpan(self.0.plus(offset))
    }
}

/// Memory of the peer's user.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct DataSpan(pub RemoteSpan);

impl DataSpan {
    /// Nowhere.
    pub const NONE: DataSpan = DataSpan(RemoteSpan { key: RailKey(0), address: 0 });

    /// The span that starts `offset` bytes later.
    pub const fn plus(self, offset: u64) -> DataSpan {
        DataSpan(self.0.plus(offset))
    }
}

/// A lane as one that carries control: the stream of sends, and lines of mailboxes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct CtrlRail(pub u8);

impl CtrlRail {
    /// One line of the peer's mailbox.
    #[inline]
    pub const fn write(self, line: Line, target: CtrlSpan) -> OpKind {
        OpKind::Write { source: Source::Line(line), target: target.0, immediate: None }
    }
}

/// A lane as one that carries data: stripes into memory of the peer's user.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DataRail(pub u8);

impl DataRail {
    /// One stripe, with the immediate that tells of it.
    #[inline]
    pub const fn write(self, source: LocalSpan, target: DataSpan, immediate: u32) -> OpKind {
        let source = Source::Span(source);
        OpKind::Write { source, target: target.0, immediate: Some(immediate) }
    }
}

/// Where a lane is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum LaneState {
    /// Not in use; fenced on both sides, or never up.
    Down,
    /// Open again; the peer has not said that our probe has come, so that nobody knows whether
    /// anything gets there.
    Joining,
    /// In use.
    Up,
    /// Nothing more is posted; operations are being fenced.
    Failing,
    /// Fenced here; the peer has not said that it is there.
    Fenced,
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

/// Counts of one lane since the connection was opened.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct LaneStats {
    /// Bytes of stripes posted on it.
    pub bytes: u64,
    /// Stripes posted on it.
    pub stripes: u64,
    /// Stripes that it lost, and that moved to other lanes.
    pub moved: u64,
    /// Times that it failed.
    pub failures: u64,
    /// Times that it came up again.
    pub joins: u64,
}

/// One rail of one connection.
#[repr(align(64))] // whole lines, as `Limits::lanes_bytes` counts it
#[derive(Copy, Clone, Debug)]
pub(in crate::transport) struct Lane {
    pub state: LaneState,
    pub fence: Fence,
    /// The peer's target side is fenced for this generation.
    pub peer_fenced: bool,
    /// The peer has said that its side of each generation below this is fenced.
    pub peer_past: u32,
    /// The peer has closed it in good order.
    pub closed: bool,
    pub probe: Probe,
    pub answer: Answer,
    /// Which of a region's keys it goes by.
    pub key: u8,
    /// How control leaves it, and the number of the word that asks for that.
    pub flush: Flush,
    pub flush_number: u32,
    /// The peer's control leaves it, and is to be told so: the number that it asked with.
    pub flushed_due: Option<u32>,
    /// The provider's code of its last failure.
    pub code: i32,
    pub generation: u32,
    /// Operations accepted as pending and not completed.
    pub ops_in_flight: u32,
    /// When its failure was looked at first; 0: not yet. The time of the last progress may be old
    /// when a lane fails between two.
    pub failed_at: Instant,
    /// What [`heard`](crate::transport::connection::Connection::heard) said last since then, and
    /// when it changed; of a lane that the peer has closed, when that was looked at first.
    pub heard_mark: u32,
    pub heard_at: Instant,
    /// What it calls the peer's mailbox.
    pub mailbox_key: RailKey,
}

/// Our probe of a lane that is joining.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
pub(in crate::transport) enum Probe {
    /// There is none.
    #[default]
    No,
    /// It is to be sent when the peer's has come: it cannot receive before.
    Waits,
    /// It is to be sent.
    Due,
    /// It was sent.
    Sent,
    /// It was answered, and a long one is to be sent.
    LongDue,
    /// The long one was sent.
    LongSent,
}

/// Our answers to the peer's probes.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
pub(in crate::transport) enum Answer {
    /// None has come.
    #[default]
    No,
    /// The first has come, and is to be answered.
    Due,
    /// Each that has come was answered.
    Given,
    /// One behind the first is to be answered.
    DueAgain,
}

/// How our control leaves a lane that has not failed.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(in crate::transport) enum Flush {
    /// It does not.
    #[default]
    No,
    /// It waits until it is tried again.
    Later,
    /// It is held; the peer was asked whether all has come.
    Asked,
    /// It is held; all has come.
    Holds,
}

/// What one of several lanes carries, and has carried.
#[repr(align(64))]
#[derive(Copy, Clone, Debug)]
pub(in crate::transport) struct LaneMeter {
    pub load: Load,
    pub stats: LaneStats,
    /// A stripe of ours has ended well, or one of the peer's has come, since it joined last.
    pub carried: bool,
    /// Bytes of stripes of ours that have ended well since then.
    pub ended: u64,
    /// How long stripes of ours had waited for the next of them to end when it failed last.
    pub stood: Span,
    /// When it failed last, short messages of ours had come to the peer, and nothing long.
    pub short_alone: bool,
    /// Of the first lane: those of all lanes of its connection.
    pub breaks: Breaks,
}

impl LaneMeter {
    /// Nothing yet.
    pub const NONE: LaneMeter = LaneMeter {
        load: Load::IDLE,
        stats: LaneStats { bytes: 0, stripes: 0, moved: 0, failures: 0, joins: 0 },
        carried: false,
        ended: 0,
        stood: Span(0),
        short_alone: false,
        breaks: Breaks::NONE,
    };

    /// It has been opened anew: what the last one carried says nothing of it.
    pub fn joins(&mut self) {
        (self.carried, self.ended, self.stood) = (false, 0, Span(0));
    }

    /// A stripe of ours has ended. Those of a lane that fails may all be told before its end.
    #[inline]
    pub fn completed(&mut self, bytes: u64, is_well: bool, now: Instant) {
        if !is_well {
            self.stood = self.stood.max(self.load.stands(now));
        }
        self.load.completed(bytes, now);
        self.carried |= is_well;
        self.ended += if is_well { bytes } else { 0 };
    }

    /// It has failed. `probe`: our last, if it was joining.
    pub fn failed(&mut self, probe: Option<Probe>, now: Instant) {
        self.stats.failures += 1;
        self.stood = self.stood.max(self.load.stands(now));
        self.short_alone = match probe {
            Some(probe) => probe == Probe::LongSent,
            None => self.ended == 0 && self.stood.0 != 0,
        };
    }
}

impl Lane {
    /// Not in use.
    pub const DOWN: Lane = Lane {
        state: LaneState::Down,
        fence: Fence::Holds,
        peer_fenced: true,
        peer_past: 0,
        closed: false,
        probe: Probe::No,
        answer: Answer::No,
        key: 0,
        flush: Flush::No,
        flush_number: 0,
        flushed_due: None,
        code: 0,
        generation: 0,
        ops_in_flight: 0,
        failed_at: Instant(0),
        heard_mark: 0,
        heard_at: Instant(0),
        mailbox_key: RailKey(0),
    };

    /// Whether nothing is to be posted on it for its own sake: no fence, word, or move of control.
    #[inline]
    pub const fn is_calm(&self) -> bool {
        let is_in_order = !matches!(self.state, LaneState::Failing);
        let is_said = !matches!(self.probe, Probe::Due | Probe::LongDue)
            & !matches!(self.answer, Answer::Due | Answer::DueAgain)
            & self.flushed_due.is_none();
        is_in_order & is_said & matches!(self.flush, Flush::No)
    }

    /// Whether nothing is in flight on it any more, in either direction.
    pub const fn is_quiet(&self) -> bool {
        self.ops_in_flight == 0 && matches!(self.fence, Fence::Holds)
    }
}

/// The lanes of all connections.
#[derive(Debug)]
pub(in crate::transport) struct Lanes<'m> {
    pub table: &'m mut [Lane],
    /// By lane, where there may be several.
    pub meters: &'m mut [LaneMeter],
    /// Lanes, by their peer number, that their provider may close and open again.
    pub down: BitSet<'m>,
    /// A lane's number within its peer number has so many bits.
    pub bits: u32,
}

impl<'m> Lanes<'m> {
    /// Cuts the lanes of all connections out of a block.
    pub fn carve(block: &mut Carver<'m>, limits: &Limits) -> Result<Lanes<'m>, BlockTooSmall> {
        let (connections, rails) = (limits.connections_max as usize, limits.rails_max as usize);
        let meters = if rails == 1 { 0 } else { rails };
        Ok(Lanes {
            table: block.filled(connections * rails, Lane::DOWN)?,
            meters: block.filled(connections * meters, LaneMeter::NONE)?,
            down: BitSet::new(block.slice(bitset::words(limits.peers_max() as usize))?),
            bits: limits.rails_max.trailing_zeros(),
        })
    }

    /// Where a lane stands in the table, which is its end's number.
    #[inline(always)]
    pub const fn at(&self, index: usize, lane: u8) -> usize {
        index << self.bits | lane as usize
    }

    /// The end of a lane, as the rail knows it.
    #[inline(always)]
    pub const fn peer(&self, index: usize, lane: u8) -> PeerIndex {
        PeerIndex((index as u32) << self.bits | lane as u32)
    }

    /// Which connection has a lane with this end, and which of its lanes it is.
    #[inline(always)]
    pub const fn of(&self, peer: PeerIndex) -> (usize, u8) {
        let lane = peer.0 & ((1 << self.bits) - 1);
        ((peer.0 >> self.bits) as usize, lane as u8)
    }

    /// No lane of a connection is in use any more.
    pub fn clear(&mut self, index: usize) {
        let (first, end) = (self.at(index, 0), self.at(index + 1, 0));
        self.table[first..end].fill(Lane::DOWN);
        if let Some(meters) = self.meters.get_mut(first..end) {
            meters.fill(LaneMeter::NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rail has under way ends before its own end is told.
    #[test]
    fn lane_whose_stripes_fail_before_its_end_is_told_has_stood_as_long_as_they() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let mut meter = LaneMeter::NONE;
        meter.joins();
        (0..3).for_each(|_| meter.load.posted(1000, at(1)));
        (0..3).for_each(|_| meter.completed(1000, false, at(7)));
        meter.failed(None, at(7));
        assert_eq!((meter.stood, meter.short_alone), (Span::millis(6000), true));
        meter.joins();
        meter.load.posted(1000, at(8));
        meter.completed(1000, true, at(9));
        meter.failed(None, at(20));
        assert_eq!((meter.stood, meter.short_alone, meter.ended), (Span(0), false, 1000));
    }
}
