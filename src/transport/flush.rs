//! One flush over the rails of a connection. Each rail posts a read behind the data that came
//! through it. When the read has come back, the data is visible to the GPU.
//!
//! Two bitmaps hold the state of a flush: the rails on which its read was *posted*, and those that
//! are *done*. A rail without room does not hold up the others, and the next step goes on exactly
//! there. No rail gets a read twice, and none is left out.
//!
//! A read that failed or was refused for good leaves the flush *unsettled* on that rail: nothing is
//! known of its earlier writes. The rail's fence (P10) settles it: afterwards nothing of that
//! generation is on its way. Until then the flush does not end, and keeps the memory that its reads
//! write. If the fence does not come in time, the flush ends as [`FlushEnd::Unfenced`], and that
//! memory stays taken.
//!
//! | A rail is | read posted | done | unsettled | what moves it |
//! | --- | --- | --- | --- | --- |
//! | due | no | no | no | `step`: taken, done at once, no room (stays due), or refused |
//! | flying | yes | no | no | its completion: good or failed |
//! | unsettled | either | no | yes | a fence of the generation that was posted on, or a later one |
//! | settled | either | yes | no | nothing |
//!
//! This module touches no clock, no rail and no memory. Its callers pass the answers in.
#![forbid(unsafe_code)]

use crate::base::ids::RailGeneration;
use crate::fabric::{PostError, Posted};
use crate::wire::RAILS_MAX;

/// A bit for each rail.
pub type Rails = u8;

const _: () = assert!(RAILS_MAX <= Rails::BITS as usize);

/// How a flush ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FlushEnd {
    /// All that came before it is visible.
    Visible,
    /// Some rail could neither flush nor be fenced in time: nothing is known of what it wrote, and
    /// its read may still write.
    Unfenced,
}

/// A flush that is under way, or has ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Flush {
    rails: Rails,
    posted: Rails,
    done: Rails,
    unsettled: Rails,
    given_up: bool,
    /// Of each rail when the flush began.
    generations: [RailGeneration; RAILS_MAX],
}

impl Flush {
    /// A flush of the rails in `rails`, those through which data may have come; of none it has
    /// ended. `generations` are the rails' present ones.
    pub const fn begin(rails: Rails, generations: [RailGeneration; RAILS_MAX]) -> Flush {
        Flush { rails, posted: 0, done: 0, unsettled: 0, given_up: false, generations }
    }

    /// Rails on which the read was posted.
    pub const fn posted(&self) -> Rails {
        self.posted
    }

    /// Rails of which nothing is left to wait for.
    pub const fn done(&self) -> Rails {
        self.done
    }

    /// Rails that want a fence.
    pub const fn unsettled(&self) -> Rails {
        self.unsettled
    }

    /// Rails whose read is not posted yet.
    pub const fn due(&self) -> Rails {
        if self.given_up { 0 } else { self.rails & !(self.posted | self.done | self.unsettled) }
    }

    /// Rails whose read may still write into the flush's memory.
    pub const fn flying(&self) -> Rails {
        self.posted & !self.done
    }

    /// Posts what is due, each rail's read at most once, by `post`, which is told the rail. A rail
    /// without room stays due. Says whether anything still is.
    pub fn step(&mut self, mut post: impl FnMut(u8) -> Result<Posted, PostError>) -> bool {
        let mut left = self.due();
        while left != 0 {
            let rail = left.trailing_zeros() as u8;
            let bit = 1 << rail;
            left &= !bit;
            match post(rail) {
                Ok(Posted::Pending) => self.posted |= bit,
                Ok(Posted::Done) => (self.posted, self.done) = (self.posted | bit, self.done | bit),
                Err(PostError::Again) => {}
                Err(PostError::PeerDown | PostError::Unsupported) => self.unsettled |= bit,
            }
        }
        self.due() != 0
    }

    /// The read of a rail has ended, well or not. One that the flush does not wait for is a late
    /// word of a rail that was fenced, and changes nothing.
    pub fn completed(&mut self, rail: u8, well: bool) {
        let bit = 1 << rail;
        if self.flying() & bit == 0 {
            return;
        }
        if !well {
            self.unsettled |= bit;
        } else if self.unsettled & bit == 0 {
            self.done |= bit;
        }
    }

    /// A rail has failed, whatever became of its read: only a fence can tell.
    pub fn failed(&mut self, rail: u8) {
        self.unsettled |= 1 << rail & self.rails & !self.done;
    }

    /// A fence holds on a rail, up to a generation: nothing older is on its way. Settles the rail,
    /// whether its read was due, flying or unsettled; of an older generation it says nothing.
    pub fn fenced(&mut self, rail: u8, through: RailGeneration) {
        let bit = 1 << rail & self.rails;
        if through >= self.generations[usize::from(rail)] {
            self.done |= bit;
            self.unsettled &= !bit;
        }
    }

    /// The time for fences is over: what is unsettled now stays so.
    pub fn give_up(&mut self) {
        self.given_up |= self.unsettled != 0;
    }

    /// How it ended; `None`: it is under way. After [`FlushEnd::Unfenced`] a fence that holds after
    /// all is still taken: when nothing is [`Flush::flying`] its memory is free.
    pub const fn end(&self) -> Option<FlushEnd> {
        if self.done == self.rails && !self.given_up {
            Some(FlushEnd::Visible)
        } else if self.given_up {
            Some(FlushEnd::Unfenced)
        } else {
            None
        }
    }
}

#[cfg(test)]
#[path = "tests/flush.rs"]
mod tests;
