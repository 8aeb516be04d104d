//! What a connection receives: the groups of receives, the slots that offer them, and the messages
//! that came before they could be taken in.
#![forbid(unsafe_code)]

pub mod groups;
pub mod held;
pub mod hold;
pub mod matching;
pub mod offers;

pub use hold::Hold;

use super::limits::CELLS;
use super::records::{CellDue, KnownRegion, NIL, ReceiveRecord};
use super::recv::held::Messages;
use crate::base::seq::{Seq, SeqWindow};
use crate::base::slab::Handle;
use core::hash::Hash;

/// One connection as receiver.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Recv {
    /// Long messages that are delivered.
    pub arrived: SeqWindow,
    /// The oldest group that is not fully bound.
    pub oldest: Seq,
    /// Number of the next group.
    pub post: Seq,
    /// Number of the next send of the peer's stream.
    pub expected: Seq,
    pub offers: Offers,
    pub hold: Hold,
    pub messages: Messages,
    /// The peer waits for news of a delivery.
    pub delivery_news: bool,
    pub cells: Cells,
}

impl Recv {
    /// Nothing to receive.
    pub const NONE: Recv = Recv {
        arrived: SeqWindow::new(Seq(0)),
        oldest: Seq(0),
        post: Seq(0),
        expected: Seq(0),
        offers: Offers::NEW,
        hold: Hold::NEW,
        messages: Messages::NONE,
        delivery_news: false,
        cells: Cells::NONE,
    };

    /// Messages of the stream since the last start, or some that are enough to tell.
    pub const fn short_run(&self) -> u16 {
        (self.expected.0 as u16).wrapping_sub(self.hold.started_at)
    }

    /// Says that so many messages have come since the last start.
    pub const fn short_run_set(&mut self, run: u16) {
        self.hold.started_at = (self.expected.0 as u16).wrapping_sub(run);
    }

    /// Whether the stream of sends can be taken in without looking left or right: nothing waits
    /// for its turn or for a receive, and no group is being withdrawn.
    #[inline]
    pub const fn has_no_detours(&self) -> bool {
        self.messages.is_empty() && !self.offers.cancels_due
    }

    /// Whether all groups that the peer has slots of are behind it, and all of its messages in
    /// receives.
    pub const fn is_past_slots(&self) -> bool {
        self.offers.passed.0 == self.offers.next.0 && self.offers.at == 0 && self.has_no_detours()
    }
}

/// Which groups the peer was offered, and which it has passed.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Offers {
    /// The next group whose slots are to be written.
    pub next: Seq,
    /// No slot of a group from here on has ever been written.
    pub through: Seq,
    /// The peer, as sender, has bound all groups below this.
    pub passed: Seq,
    /// The group whose slot asks the peer to give it up.
    pub canceling: Option<Seq>,
    /// Whether a group that is offered may be canceled and have no verdict.
    pub cancels_due: bool,
    /// Slots of groups below `through` were written once more on the control lane of now, and may
    /// still be on their way although the peer had passed them.
    pub again: bool,
    /// How many slots of the next group have been written.
    pub at: u8,
}

impl Offers {
    /// Nothing was offered.
    pub const NEW: Offers = Offers {
        next: Seq(0),
        through: Seq(0),
        passed: Seq(0),
        again: false,
        canceling: None,
        cancels_due: false,
        at: 0,
    };

    /// Takes in how far the peer, as sender, has bound our groups.
    #[inline]
    pub fn passed_take(&mut self, through: Seq) {
        if through.ahead_of(self.passed) > 0 {
            self.passed = through;
        }
    }

    /// Whether the first slots of all groups that the peer may have seen are written on the control
    /// lane of now: no older asking for one of them stands.
    pub fn is_written_again(&self) -> bool {
        let next = if self.at == 0 { self.next } else { self.next.next() };
        !next.before(self.through)
    }
}

/// The cells that tell the peer the keys of regions.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Cells {
    pub known: [KnownRegion; CELLS],
}

impl Cells {
    /// None was written.
    pub const NONE: Cells = Cells { known: [KnownRegion::NONE; CELLS] };

    /// The lines were written on a lane that is no more: those that are still named are written
    /// again.
    pub fn lose(&mut self) {
        for cell in &mut self.known {
            if cell.users != 0 || cell.due != CellDue::Nothing {
                cell.due = CellDue::Both;
            }
            if cell.users == 0 {
                cell.region = Handle::default();
            }
        }
    }

    /// Whether lines of a cell are to be written.
    pub fn is_due(&self, at: usize) -> bool {
        self.known[at].due != CellDue::Nothing
    }

    /// A receive whose slot names a cell names it no more.
    pub const fn drop_user(&mut self, receive: &mut ReceiveRecord) {
        self.known[receive.cell as usize].users -= 1;
        receive.cell = NIL;
    }
}
