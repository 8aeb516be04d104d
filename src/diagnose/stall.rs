//! Why a request does not end: a class and a sentence, from how both sides say that they stand.
//!
//! Pure: it reads two snapshots (W8.12), ours and, where it could be had, the peer's. The classes
//! and what each sentence looks like are in `doc/stalls.md`.
#![forbid(unsafe_code)]

use crate::base::seq::Seq;
use crate::wire::status::{
    AGE_UNKNOWN_MS, RailStanding, RequestStatus, STATUS_CLOSED, STATUS_FRESH, STATUS_SNAPSHOT,
    Standing, Status, StatusHello, Waits,
};
use core::fmt;

/// What the peer has said when it was asked.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Answer<'a> {
    /// It was not asked, or is of a version that cannot be.
    NotAsked,
    /// Nothing, for so many ms.
    Silent(u32),
    /// This.
    Said(&'a StatusHello),
}

/// Why a request does not end.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Class {
    /// A rail lost what it carried, or none lives.
    DeadRail,
    /// The peer's process does not run.
    StoppedPeer,
    /// The peer's program does not call the library.
    NoProgress,
    /// The peer has not posted a receive for the message.
    NeverPosted,
    /// The peer has not sent a message for the receive.
    NeverSent,
    /// An offer of a receive was written, and is not seen.
    LostSlot,
    /// The receiver keeps no more receives for the sender.
    NoCredits,
    /// The tags of sender and receiver differ.
    WrongTag,
    /// The peer has closed the connection.
    ClosedPeer,
    /// A failed rail is not sorted out.
    Unfenced,
    /// Nothing is seen to be wrong.
    Moving,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 11] = [
        Class::DeadRail,
        Class::StoppedPeer,
        Class::NoProgress,
        Class::NeverPosted,
        Class::NeverSent,
        Class::LostSlot,
        Class::NoCredits,
        Class::WrongTag,
        Class::ClosedPeer,
        Class::Unfenced,
        Class::Moving,
    ];

    /// Its name, as the table of `doc/stalls.md` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Class::DeadRail => "dead rail",
            Class::StoppedPeer => "stopped peer",
            Class::NoProgress => "peer makes no progress",
            Class::NeverPosted => "peer never posted its receive",
            Class::NeverSent => "peer never sent",
            Class::LostSlot => "lost slot",
            Class::NoCredits => "exhausted credits",
            Class::WrongTag => "wrong tag",
            Class::ClosedPeer => "closed peer",
            Class::Unfenced => "unfenced region",
            Class::Moving => "no fault seen",
        }
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
}

impl<'a> Stall<'a> {
    /// Names the fault.
    pub fn class(&self) -> Class {
        if let Some(class) = self.class_of_ours() {
            return class;
        }
        let peer = match self.answer {
            Answer::NotAsked => return self.class_alone(),
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
        match (self.request.waits().is_receive(), standing) {
            // its program has never used the connection
            (true, Standing::None) => Class::NeverSent,
            (false, Standing::None) if self.request.waits() != Waits::Credit => Class::NeverPosted,
            (true, _) => self.class_of_receive(peer),
            (false, _) => self.class_of_send(peer),
        }
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

    fn class_of_send(&self, peer: &StatusHello) -> Class {
        let (ours, theirs, tag) = (self.ours, &peer.status, self.request.tag as i32);
        let none_posted = theirs.group_oldest == theirs.group_post;
        let unmatched = if none_posted { Class::NeverPosted } else { Class::WrongTag };
        match self.request.waits() {
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
        match peer.send.waits() {
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

    /// The rail that a sentence names: one that carries the request, else that of control.
    fn rail(&self) -> usize {
        let ours = self.ours;
        match (self.rail_unsettled(), self.request.rails) {
            (Some(lane), _) => lane,
            (None, 0) => usize::from(ours.control),
            (None, rails) => rails.trailing_zeros() as usize,
        }
    }

    fn said(&self) -> StatusHello {
        match self.answer {
            Answer::Said(said) => *said,
            Answer::NotAsked | Answer::Silent(_) => StatusHello::ZERO,
        }
    }

    fn because(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, request, said) = (self.ours, self.request, self.said());
        let (theirs, tag) = (&said.status, request.tag as i32);
        match self.class() {
            Class::DeadRail if ours.up == 0 => {
                write!(f, "no rail lives that could carry it; each is tried again")
            }
            Class::DeadRail => self.because_dead_rail(f),
            Class::StoppedPeer => {
                let silent_ms = match self.answer {
                    Answer::Silent(silent_ms) => silent_ms,
                    Answer::NotAsked | Answer::Said(_) => 0,
                };
                write!(
                    f,
                    "the peer owes an answer: it was asked over the side band {silent_ms} ms ago \
                     and says nothing: its process is stopped or gets no processor, or its \
                     host cannot be reached"
                )
            }
            Class::NoProgress => {
                write!(f, "the peer's program owes a call of progress: ")?;
                match theirs.silent_ms {
                    AGE_UNKNOWN_MS => write!(f, "it has made none since it was first looked at"),
                    silent_ms => write!(f, "its last one was {silent_ms} ms ago"),
                }
            }
            Class::NeverPosted => write!(
                f,
                "the peer owes a receive: it has posted none since group {}, and {} message(s) \
                 of ours wait there",
                theirs.group_post, theirs.unexpected
            ),
            Class::NeverSent => write!(
                f,
                "the peer owes a message: nothing that it has sent is on its way (it has sent {} \
                 in the stream, {} long)",
                theirs.eager_number, theirs.send_number
            ),
            Class::LostSlot => {
                let (writer, group) = match request.waits().is_receive() {
                    true => ("we have", request.sequence),
                    false => ("the peer has", ours.group_next),
                };
                write!(
                    f,
                    "rail {} owes the slot of group {group}: {writer} written it, and the other \
                     side does not see it",
                    ours.control
                )
            }
            Class::NoCredits => self.because_credits(f, theirs),
            Class::WrongTag => self.because_tag(f, theirs, tag),
            Class::ClosedPeer => write!(f, "the peer has closed the connection"),
            Class::Unfenced => self.because_unfenced(f),
            Class::Moving => {
                write!(f, "neither side sees a fault; something last moved ")?;
                write!(f, "{} ms ago", ours.moved_ms)
            }
        }
    }

    fn because_dead_rail(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, request) = (self.rail(), self.request);
        write!(f, "rail {lane} (generation {}) owes ", self.ours.generation(lane))?;
        let all = match request.stripes {
            64.. => u64::MAX,
            stripes => (1 << stripes) - 1,
        };
        match request.waits() {
            Waits::Arrival => {
                write!(f, "stripes {:#x}, which have not come", all & !request.posted)?
            }
            Waits::Stripes | Waits::Completion => {
                write!(f, "stripes {:#x}, which have not completed", all & !request.written)?;
            }
            _ => write!(f, "what has left on it and has not come")?,
        }
        write!(f, "; packets are lost on the way, or it moves nothing")
    }

    fn because_credits(&self, f: &mut fmt::Formatter<'_>, theirs: &Status) -> fmt::Result {
        let (ours, receiver) = (self.ours, self.request.waits().is_receive());
        let (owner, sender, held) = match receiver {
            true => ("this side owes the peer", theirs, ours),
            false => ("the peer owes us", ours, theirs),
        };
        write!(
            f,
            "{owner} credits: {} receives of {} are consumed, and {} message(s) wait for a \
             receive of the user's",
            sender.consumed, sender.credits_through, held.unexpected
        )?;
        if held.unexpected != 0 {
            write!(f, ", the first with tag {}", held.unexpected_tag as i32)?;
        }
        Ok(())
    }

    fn because_tag(&self, f: &mut fmt::Formatter<'_>, theirs: &Status, tag: i32) -> fmt::Result {
        let ours = self.ours;
        match (self.request.waits().is_receive(), theirs.tag_open()) {
            (true, _) if ours.unexpected != 0 => {
                let wrong = ours.unexpected_tag as i32;
                write!(f, "the peer owes tag {tag}: what it has sent first has tag {wrong}")
            }
            (true, _) => {
                let wrong = self.said().send.tag as i32;
                write!(f, "the peer owes tag {tag}: what it wants to send has tag {wrong}")
            }
            (false, Some(wanted)) => {
                let oldest = theirs.group_oldest;
                write!(f, "the peer owes a receive with tag {tag}: ")?;
                write!(f, "its oldest group, {oldest}, waits for tag {wanted}")
            }
            (false, None) => write!(f, "the peer owes a receive with tag {tag}"),
        }
    }

    fn because_unfenced(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = self.ours;
        let lane = self.rail_unsettled().or(ours.lane_that_is(RailStanding::Failing));
        let lane = lane.unwrap_or(self.rail());
        write!(f, "rail {lane} (generation {}) has failed, and ", ours.generation(lane))?;
        match ours.lane(lane) {
            RailStanding::Fenced => write!(f, "the peer owes its report about it"),
            _ => write!(f, "it owes its fence: the memory may still be touched"),
        }
    }
}

/// Numbers of a stripe map.
fn bits(f: &mut fmt::Formatter<'_>, request: &RequestStatus) -> fmt::Result {
    match (request.waits(), request.stripes) {
        (_, 0) => Ok(()),
        (Waits::Arrival, stripes) => {
            write!(f, ", {} of {stripes} stripes here", request.posted.count_ones())?;
            write!(f, " ({:#x})", request.posted)
        }
        (_, stripes) => {
            write!(f, ", of {stripes} stripes posted {:#x}", request.posted)?;
            write!(f, " completed {:#x}", request.written)
        }
    }
}

/// One request in words: what it is, and what it waits for.
#[derive(Copy, Clone, Debug)]
pub struct Named<'a>(pub &'a RequestStatus);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.0;
        if request.waits().is_receive() {
            write!(f, "receive of group {}", request.sequence)?;
            if request.count > 1 {
                let bound = request.bound.count_ones();
                write!(f, " ({bound} of {} have their message)", request.count)?;
            }
        } else {
            write!(f, "send {}", request.sequence)?;
        }
        if request.waits() != Waits::Arrival {
            write!(f, ", tag {}", request.tag as i32)?;
        }
        write!(f, ", {} bytes", request.length)?;
        bits(f, request)?;
        write!(f, ", open for {} ms, waits for {}", request.age_ms, waits(request.waits()))
    }
}

/// What a request waits for, in words.
pub const fn waits(waits: Waits) -> &'static str {
    match waits {
        Waits::None => "nothing",
        Waits::Slot => "a receive of the peer's",
        Waits::Tag => "a receive with its tag",
        Waits::Credit => "credits",
        Waits::Room => "room on the rail",
        Waits::Control => "a failed rail",
        Waits::Turn => "its turn",
        Waits::Stripes => "room for its stripes",
        Waits::Completion => "completions",
        Waits::Delivery => "the peer's word that it has come",
        Waits::Reading => "the peer to read it",
        Waits::Message => "a message",
        Waits::Older => "older groups",
        Waits::Offer => "room for its offer",
        Waits::Arrival => "the rest of its message",
    }
}

impl fmt::Display for Stall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.request.waits().is_receive() { "from" } else { "to" };
        write!(f, "{} {way} {}: {}: ", Named(self.request), self.peer, self.class().name())?;
        self.because(f)?;
        let (ours, lane) = (self.ours, self.rail());
        let (generation, state) = (ours.generation(lane), ours.lane(lane).name());
        let kind = ours.lane_kind(lane);
        write!(f, " [rail {lane}{kind} generation {generation} {state}, epoch {}, ", ours.epoch)?;
        write!(f, "last movement {} ms ago; ", ours.moved_ms)?;
        match self.answer {
            Answer::NotAsked => write!(f, "peer not asked]"),
            Answer::Silent(_) => write!(f, "peer silent]"),
            Answer::Said(said) => write!(f, "{}]", Side(said)),
        }
    }
}

/// One side of a connection in one line.
#[derive(Copy, Clone, Debug)]
pub struct Side<'a>(pub &'a StatusHello);

impl fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.0.status;
        if status.flags & STATUS_CLOSED != 0 {
            return write!(f, "peer: closed");
        }
        if status.flags & STATUS_SNAPSHOT == 0 {
            return write!(f, "peer: no snapshot");
        }
        write!(
            f,
            "peer {} ms ago: {} sends, {} groups",
            status.left_ms, status.sends, status.receives
        )?;
        write!(f, " open, {} unexpected, group {}", status.unexpected, status.group_oldest)?;
        write!(f, " of {}, slots to {}", status.group_post, status.slots_next)?;
        write!(f, ", stream {}/{}", status.eager_number, status.eager_expected)?;
        write!(f, ", epoch {}", status.epoch)
    }
}

/// All rails of a connection, and how they are.
#[derive(Copy, Clone, Debug)]
pub struct RailsOf<'a>(pub &'a Status);

impl fmt::Display for RailsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.0;
        for lane in 0..usize::from(status.lane_count).min(8) {
            let (kind, state) = (status.lane_kind(lane), status.lane(lane).name());
            let between = if lane == 0 { "rail" } else { ", rail" };
            write!(f, "{between} {lane}{kind} {state}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
