//! The sentences about stalled requests, as `doc/stalls.md` has them.

use super::{Answer, Class, Stall, untaken};
use crate::wire::RAILS_MAX;
use crate::wire::status::{
    AGE_UNKNOWN_MS, RailStanding, RequestStatus, STATUS_CLOSED, STATUS_SNAPSHOT, Status,
    StatusHello, Waits,
};
use core::fmt;

impl Stall<'_> {
    /// Our rail that a sentence describes: the first that holds the request up, else the one that
    /// carries control.
    fn rail(&self) -> usize {
        match self.rails_owing() {
            0 => self.ours.control.into(),
            rails => rails.trailing_zeros() as usize,
        }
    }

    fn said(&self) -> StatusHello {
        match self.answer {
            Answer::Said(said) => *said,
            Answer::NotAsked | Answer::Asked(_) | Answer::Cannot | Answer::Silent(_) => {
                StatusHello::ZERO
            }
        }
    }

    fn because(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, request, said) = (self.ours, self.request, self.said());
        let (theirs, tag) = (&said.status, request.tag as i32);
        match self.class() {
            Class::DeadRail if ours.up == 0 => {
                write!(f, "no rail is up that could carry it")
            }
            Class::DeadRail | Class::SlowRail => self.because_rail(f),
            Class::StoppedPeer => {
                let silent_ms = match self.answer {
                    Answer::Silent(silent_ms) => silent_ms,
                    _ => 0,
                };
                write!(
                    f,
                    "the peer owes an answer: it was asked over the side band {silent_ms} ms ago \
                     and does not answer; its process is stopped or gets no processor, or its host \
                     cannot be reached"
                )
            }
            Class::NoProgress => {
                write!(f, "the peer's program owes a call of progress: ")?;
                match theirs.silent_ms {
                    AGE_UNKNOWN_MS => write!(f, "it has made none since it was asked"),
                    silent_ms => write!(f, "its last one was {silent_ms} ms ago"),
                }
            }
            Class::NeverPosted => self.because_unposted(f, theirs),
            Class::NeverSent => self.because_unsent(f, theirs),
            Class::LostSlot => {
                let (writer, group, lane) = match request.waits().is_receive() {
                    true => ("we have", request.sequence, ours.control),
                    false => ("the peer has", ours.group_next, theirs.control),
                };
                write!(
                    f,
                    "rail {lane} owes the slot of group {group}: {writer} written it, and the \
                     other side does not see it"
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

    fn because_unposted(&self, f: &mut fmt::Formatter<'_>, theirs: &Status) -> fmt::Result {
        write!(f, "the peer owes a receive: ")?;
        match self.answer {
            Answer::Said(_) => write!(
                f,
                "it has posted none since group {}, and {} message(s) of ours wait there",
                theirs.group_post,
                untaken(self.ours, theirs)
            ),
            _ => write!(f, "this side knows of none that would take the message"),
        }
    }

    fn because_unsent(&self, f: &mut fmt::Formatter<'_>, theirs: &Status) -> fmt::Result {
        write!(f, "the peer owes a message: ")?;
        match self.answer {
            Answer::Said(_) => write!(
                f,
                "nothing that it has sent is on its way (it has sent {} in the stream, {} long)",
                theirs.eager_number, theirs.send_number
            ),
            _ => write!(f, "none has come that no receive has taken"),
        }
    }

    fn because_rail(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rails, request) = (self.rails_owing(), self.request);
        match rails.count_ones() {
            0 => write!(f, "one of the rails owes ")?,
            1 => {
                let lane = self.rail();
                write!(f, "rail {lane} (generation {}) owes ", self.ours.generation(lane))?;
            }
            _ => {
                let lanes = (0..RAILS_MAX).filter(|lane| rails >> lane & 1 == 1);
                for (at, lane) in lanes.enumerate() {
                    write!(f, "{} {lane}", if at == 0 { "rails" } else { "," })?;
                }
                write!(f, " owe ")?;
            }
        }
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
            _ => write!(f, "what has left and has not come")?,
        }
        let is_shm = rails != 0 && rails & !self.ours.lanes_shm == 0;
        match self.class() {
            Class::SlowRail => {
                write!(f, "; it is slow: something moved {} ms ago", self.ours.moved_ms)
            }
            _ if is_shm => write!(f, "; it moves nothing"),
            _ => write!(f, "; packets are lost on the way, or it moves nothing"),
        }
    }

    fn because_credits(&self, f: &mut fmt::Formatter<'_>, theirs: &Status) -> fmt::Result {
        let (ours, receiver) = (self.ours, self.request.waits().is_receive());
        let (owner, sender, held) = match receiver {
            true => ("this side owes the peer", theirs, ours),
            false => ("the peer owes us", ours, theirs),
        };
        let (consumed, granted) = (sender.consumed, sender.credits_through);
        write!(f, "{owner} credits: {consumed} receives of {granted} are consumed")?;
        if !matches!(self.answer, Answer::Said(_)) {
            return Ok(());
        }
        let count = untaken(sender, held);
        write!(f, ", and {count} message(s) wait for a receive of the program")?;
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
                write!(f, "the peer owes tag {tag}: its first message has tag {wrong}")
            }
            (true, _) => {
                let wrong = self.said().send.tag as i32;
                write!(f, "the peer owes tag {tag}: its next message has tag {wrong}")
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
            let short = if request.short != 0 { "short " } else { "" };
            write!(f, "{short}send {}", request.sequence)?;
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
        Waits::Slot => "a receive of the peer",
        Waits::Tag => "a receive with its tag",
        Waits::Credit => "credits",
        Waits::Room => "room on the rail",
        Waits::Control => "a failed rail",
        Waits::Turn => "its turn",
        Waits::Stripes => "room for its stripes",
        Waits::Completion => "completions",
        Waits::Delivery => "the peer's acknowledgement",
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
            Answer::NotAsked => write!(f, "peer not asked yet]"),
            Answer::Asked(ms) => write!(f, "peer asked {ms} ms ago]"),
            Answer::Cannot => write!(f, "peer cannot be asked]"),
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
            return write!(f, "peer: its requests are not known");
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
