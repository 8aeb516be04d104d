//! What the copy engine knows of one peer.
#![forbid(unsafe_code)]

use super::note::{Exporter, Word};
use super::under::Under;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::units::Instant;
use crate::fabric::{Completion, DownCause, OpId};
use crate::provider::events::Events;

/// Most copies at a time whose source a peer copies out for us.
pub(super) const TURNS_MAX: u32 = 8;

/// One peer.
#[derive(Copy, Clone, Debug)]
pub(super) struct Link {
    /// Whether it is open.
    pub is_open: bool,
    /// Nothing more comes from it, or goes to it.
    pub is_down: bool,
    pub is_fenced: bool,
    /// Whether it was asked where its memory can be had, and whether it has asked for ours.
    pub is_asked: bool,
    pub owes_answer: bool,
    /// Where its memory can be had.
    pub exporter: Option<Exporter>,
    /// Copies under way, and of these those that it makes.
    pub in_flight: u32,
    pub writes: u32,
    /// Copies that it has asked for, those of ours for which it copies out pieces, and pieces that
    /// it has asked for.
    pub asked: u32,
    pub turns: u32,
    pub lends: u32,
    /// Reported when nothing is under way any more.
    pub down: Option<DownCause>,
    pub fence: Option<(OpId, RailGeneration)>,
}

impl Link {
    /// Not open.
    pub const CLOSED: Link = Link {
        is_open: false,
        is_down: false,
        is_fenced: false,
        is_asked: false,
        owes_answer: false,
        exporter: None,
        in_flight: 0,
        writes: 0,
        asked: 0,
        turns: 0,
        lends: 0,
        down: None,
        fence: None,
    };

    /// Open, and nothing known of it.
    pub const OPEN: Link = Link { is_open: true, ..Link::CLOSED };

    /// Whether ops may be posted.
    pub const fn takes_ops(&self) -> bool {
        self.is_open && !self.is_down && !self.is_fenced
    }

    /// Where its memory can be had; asks, if it was not said.
    pub fn exporter_ask(
        &mut self,
        under: &mut dyn Under,
        peer: PeerIndex,
        now: Instant,
    ) -> Option<Exporter> {
        if self.exporter.is_none() && !self.is_asked {
            self.is_asked = under.note_send(peer, &Word::Where.encode(), now);
        }
        self.exporter
    }

    /// Says what is due; whether nothing is left.
    pub fn pay(
        &mut self,
        under: &mut dyn Under,
        peer: PeerIndex,
        exporter: Option<Exporter>,
        (out, now): (&mut Events<'_>, Instant),
    ) -> bool {
        if self.owes_answer {
            let answer = Word::Here(exporter.unwrap_or_default()).encode();
            self.owes_answer = self.takes_ops() && !under.note_send(peer, &answer, now);
        }
        if self.in_flight == 0 {
            if let (Some((id, generation)), true) = (self.fence, out.has_room()) {
                out.push(Completion::Fenced { peer, id, generation });
                self.fence = None;
            }
            if let (None, Some(cause), true) = (self.fence, self.down, out.has_room()) {
                out.push(Completion::PeerDown { peer, cause });
                self.down = None;
            }
        }
        !self.owes_answer && self.fence.is_none() && self.down.is_none()
    }
}
