//! Why a request does not end: a class and a sentence, from how both sides say that they stand.
//!
//! Pure: it reads two snapshots (W8.12), ours and, where it could be had, the peer's. The classes
//! and what each sentence looks like are in `doc/stalls.md`.

use crate::base::seq::Seq;
use crate::base::words::named;
use crate::transport::limits::UNDELIVERED_MAX;
use crate::wire::status::{
    RailStanding, RequestStatus, STATUS_CLOSED, STATUS_FRESH, Standing, Status, StatusHello, Waits,
};
use crate::wire::{RAILS_MAX, immediate};

mod words;

pub use words::{Named, RailsOf, Side, waits};

/// Where nothing has moved for so long, what is on its way counts as stuck: a few times what a
/// kernel waits for before it sends again (200 ms in Linux' TCP).
const STILL_MS: u32 = 1_000;
/// A peer's snapshot older than ours by more than this tells nothing where something has moved
/// since: the answer to a question is waited for as long at most.
const APART_MS: u32 = 1_000;

/// What the peer has said when it was asked.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Answer<'a> {
    /// It has not been asked yet.
    NotAsked,
    /// It was asked so many ms ago, and may still answer.
    Asked(u32),
    /// It cannot be asked: its wire version is 1.0, or the link to it does not stand.
    Cannot,
    /// Nothing, for so many ms.
    Silent(u32),
    /// This.
    Said(&'a StatusHello),
}

named! {
    /// Why a request does not end.
    pub enum Class {
        /// A rail lost what it carried, or none lives.
        DeadRail = "dead rail",
        /// A rail moves, and has not moved all of what is old.
        SlowRail = "slow rail",
        /// The peer's process does not run.
        StoppedPeer = "stopped peer",
        /// The peer's program does not call the library.
        NoProgress = "peer makes no progress",
        /// The peer has not posted a receive for the message.
        NeverPosted = "peer never posted its receive",
        /// The peer has not sent a message for the receive.
        NeverSent = "peer never sent",
        /// An offer of a receive was written, and is not seen.
        LostSlot = "lost slot",
        /// The receiver keeps no more receives for the sender.
        NoCredits = "exhausted credits",
        /// The tags of sender and receiver differ.
        WrongTag = "wrong tag",
        /// The peer has closed the connection.
        ClosedPeer = "closed peer",
        /// A failed rail is not sorted out.
        Unfenced = "unfenced region",
        /// Nothing is seen to be wrong.
        Moving = "no fault seen",
    }
}

/// A stalled request, and what is known about it.
#[derive(Copy, Clone, Debug)]
pub struct Stall<'a> {
    /// How we stand.
    pub ours: &'a Status,
    /// The request.
    pub request: &'a RequestStatus,
    /// What the peer says.
    pub answer: Answer<'a>,
    /// Who the peer is.
    pub peer: &'a str,
    /// From this age on a request counts as stalled, whatever moves beside it.
    pub stall_ms: u32,
}

impl<'a> Stall<'a> {
    /// Names the fault.
    pub fn class(&self) -> Class {
        if let Some(class) = self.class_of_ours() {
            return class;
        }
        let peer = match self.answer {
            Answer::NotAsked | Answer::Asked(_) | Answer::Cannot => {
                return self.unless_under_way(self.class_alone());
            }
            Answer::Silent(_) => return Class::StoppedPeer,
            Answer::Said(said) => said,
        };
        let standing = Standing::from_wire(peer.status.standing);
        let open = matches!(standing, Standing::Open | Standing::None);
        if peer.status.flags & STATUS_CLOSED != 0 || !open {
            return Class::ClosedPeer;
        }
        if peer.status.flags & STATUS_FRESH == 0 {
            return Class::NoProgress;
        }
        if !self.is_judged_by(&peer.status) {
            return Class::Moving;
        }
        let waits = send_waits(self.ours, self.request);
        self.unless_under_way(match (waits.is_receive(), standing) {
            // its program has never used the connection
            (true, Standing::None) => Class::NeverSent,
            (false, Standing::None) if waits != Waits::Credit => Class::NeverPosted,
            (true, _) => self.class_of_receive(peer),
            (false, _) => self.class_of_send(peer, waits),
        })
    }

    /// Whether the peer's snapshot says something of the request: it must have been open then, and
    /// nothing must have moved since a snapshot that is old.
    fn is_judged_by(&self, theirs: &Status) -> bool {
        let ours = self.ours;
        let open_ms = self.request.age_ms.max(ours.moved_ms);
        let older_ms = theirs.left_ms.saturating_sub(ours.left_ms);
        let was_open = match ours.flags & STATUS_FRESH {
            // ours is of now, or our program has been elsewhere since
            0 => open_ms.saturating_add(ours.left_ms) >= theirs.left_ms,
            // two snapshots of earlier: which was first is not known to the ms
            _ => open_ms > ours.left_ms.abs_diff(theirs.left_ms),
        };
        was_open && (older_ms <= APART_MS || ours.moved_ms >= older_ms)
    }

    /// What is on its way may be there in a moment: it is nobody's fault before it is old, or
    /// nothing moves any more; and where the rail itself moves, it is slow.
    fn unless_under_way(&self, class: Class) -> Class {
        let (moved_ms, age_ms) = (self.ours.moved_ms, self.request.age_ms);
        let stuck = age_ms >= self.stall_ms || moved_ms >= STILL_MS;
        // what moved last may be the request itself, on its way out
        let moves = moved_ms < STILL_MS.min(age_ms / 2);
        match class {
            Class::DeadRail | Class::LostSlot if !stuck => Class::Moving,
            Class::DeadRail if moves && self.is_sure_to_move() => Class::SlowRail,
            class => class,
        }
    }

    /// Whether what moves on the connection moves on the rail that holds the request up: no other
    /// is there, or it loses nothing.
    fn is_sure_to_move(&self) -> bool {
        let rails = self.rails_owing();
        self.ours.lane_count <= 1 || (rails != 0 && rails & !self.ours.lanes_shm == 0)
    }

    /// What needs no word of the peer's.
    fn class_of_ours(&self) -> Option<Class> {
        let ours = self.ours;
        match Standing::from_wire(ours.standing) {
            Standing::Failing | Standing::Closing => return Some(Class::Unfenced),
            Standing::Failed => return Some(Class::ClosedPeer),
            Standing::None | Standing::Open => {}
        }
        match self.rail_unsettled().map(|lane| ours.lane(lane)) {
            Some(RailStanding::Failing) => Some(Class::Unfenced),
            // who could report about the failed rail has no rail to do so
            _ if ours.up == 0 => Some(Class::DeadRail),
            Some(_) => Some(Class::Unfenced),
            None => None,
        }
    }

    /// A rail that is not sorted out, and that the request waits for: one that is not fenced first.
    fn rail_unsettled(&self) -> Option<usize> {
        let owes_fence = self.rail_that_is(RailStanding::Failing);
        owes_fence.or_else(|| self.rail_that_is(RailStanding::Fenced))
    }

    fn rail_that_is(&self, unsettled: RailStanding) -> Option<usize> {
        let ours = self.ours;
        let failed = |lane: &usize| {
            let carries = self.request.rails >> lane & 1 == 1;
            let controls = ours.control_blocked != 0 && usize::from(ours.control) == *lane;
            let receives = self.request.waits() == Waits::Arrival;
            ours.lane(*lane) == unsettled && (carries || controls || receives)
        };
        (0..usize::from(ours.lane_count).min(8)).find(failed)
    }

    fn class_alone(&self) -> Class {
        match self.request.waits() {
            Waits::Tag => Class::WrongTag,
            Waits::Credit => Class::NoCredits,
            Waits::Message if self.ours.unexpected != 0 => Class::WrongTag,
            Waits::Slot | Waits::Reading | Waits::Delivery => Class::NeverPosted,
            Waits::Message => Class::NeverSent,
            Waits::None | Waits::Room | Waits::Control | Waits::Turn | Waits::Stripes => {
                Class::Moving
            }
            Waits::Completion | Waits::Arrival => Class::DeadRail,
            Waits::Older | Waits::Offer => Class::Moving,
        }
    }

    fn class_of_send(&self, peer: &StatusHello, waits: Waits) -> Class {
        let (ours, theirs, tag) = (self.ours, &peer.status, self.request.tag as i32);
        let none_posted = theirs.group_oldest == theirs.group_post;
        let unmatched = if none_posted { Class::NeverPosted } else { Class::WrongTag };
        match waits {
            Waits::Tag => Class::WrongTag,
            Waits::Credit => Class::NoCredits,
            Waits::Slot | Waits::Turn | Waits::Room | Waits::Control => {
                if ours.pull == 0 && Seq(theirs.slots_next).ahead_of(Seq(ours.group_next)) > 0 {
                    Class::LostSlot
                } else if theirs.unexpected != 0 || none_posted {
                    unmatched
                } else {
                    Class::Moving
                }
            }
            Waits::Reading if theirs.unexpected != 0 => {
                if theirs.takes(tag) && theirs.unexpected_tag as i32 == tag {
                    Class::Moving
                } else {
                    unmatched
                }
            }
            // it left in the stream, and did not come
            Waits::Reading if Seq(theirs.eager_expected).before(Seq(ours.eager_number)) => {
                Class::DeadRail
            }
            Waits::Stripes | Waits::Completion | Waits::Delivery => Class::DeadRail,
            Waits::Reading | Waits::None => Class::Moving,
            Waits::Message | Waits::Older | Waits::Offer | Waits::Arrival => Class::Moving,
        }
    }

    fn class_of_receive(&self, peer: &StatusHello) -> Class {
        let (ours, theirs) = (self.ours, &peer.status);
        if self.request.waits() == Waits::Arrival {
            return Class::DeadRail;
        }
        if ours.unexpected != 0 {
            return Class::WrongTag; // the first that came is taken by none of the oldest group
        }
        if Seq(ours.eager_expected).before(Seq(theirs.eager_number)) {
            return Class::DeadRail; // it left in the stream, and did not come
        }
        match send_waits(theirs, &peer.send) {
            Waits::Tag => Class::WrongTag,
            Waits::Credit => Class::NoCredits,
            Waits::Slot | Waits::Turn | Waits::Room | Waits::Control => {
                let written = Seq(ours.slots_next).ahead_of(Seq(theirs.group_next)) > 0;
                if ours.pull == 0 && written { Class::LostSlot } else { Class::Moving }
            }
            Waits::None => Class::NeverSent,
            Waits::Stripes | Waits::Completion | Waits::Delivery => Class::DeadRail,
            Waits::Reading | Waits::Message | Waits::Older | Waits::Offer | Waits::Arrival => {
                Class::Moving
            }
        }
    }

    /// The rails that hold the request up, a bit each; 0: it is not known which of several.
    fn rails_owing(&self) -> u8 {
        let (ours, request) = (self.ours, self.request);
        if let Some(lane) = self.rail_unsettled() {
            return bit(lane);
        }
        if ours.lane_count <= 1 {
            return bit(ours.control.into());
        }
        match (request.waits(), self.answer) {
            (Waits::Arrival, Answer::Said(said)) => {
                let token = said.send.token;
                let sends_it = !said.send.waits().is_receive()
                    && immediate::resolve(token, Seq(request.sequence), 1).is_some();
                if sends_it { said.send.rails } else { 0 }
            }
            (waits, Answer::Said(said)) if waits.is_receive() => {
                // what leaves in the stream leaves on its sender's rail of control
                match Seq(ours.eager_expected).before(Seq(said.status.eager_number)) {
                    true => bit(said.status.control.into()),
                    false => said.send.rails,
                }
            }
            (waits, _) if waits.is_receive() => 0,
            (Waits::Reading, _) => bit(ours.control.into()),
            _ => request.rails,
        }
    }
}

const fn bit(lane: usize) -> u8 {
    1 << (lane % RAILS_MAX)
}

/// What a send of a side waits for. Behind the first of a queue that has no credits, or no room in
/// the delivery mask, a send waits for the same.
pub(super) fn send_waits(status: &Status, send: &RequestStatus) -> Waits {
    let credits = Seq(status.credits_through).ahead_of(Seq(status.consumed));
    let undelivered = Seq(status.send_number).ahead_of(Seq(status.delivered_through));
    let spent = credits <= 0 || undelivered >= UNDELIVERED_MAX as i32;
    match send.waits() {
        Waits::Turn if status.pull != 0 && spent => Waits::Credit,
        waits => waits,
    }
}

/// Messages that have left in the stream of `sender`, and that no receive of `receiver` has taken.
fn untaken(sender: &Status, receiver: &Status) -> u32 {
    let under_way = Seq(sender.eager_number).ahead_of(Seq(receiver.eager_expected));
    under_way.max(0) as u32 + u32::from(receiver.unexpected)
}

#[cfg(test)]
mod tests;
