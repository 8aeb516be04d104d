//! Names of operations, and what an add comes after.
#![forbid(unsafe_code)]

/// Names an operation whose local buffer is in use: rank in the upper 16 bits, the number of its
/// record in the others. Zero is none, and has ended.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Default, Debug)]
#[repr(transparent)]
pub struct Ticket(pub u64);

const NUMBER_BITS: u32 = 48;

impl Ticket {
    pub(super) fn new(rank: u32, number: u64) -> Ticket {
        Ticket(u64::from(rank) << NUMBER_BITS | number)
    }

    /// The rank that the operation is with.
    pub const fn rank(self) -> u32 {
        (self.0 >> NUMBER_BITS) as u32
    }

    pub(super) const fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }
}

/// What an add comes after, at its rank.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum After {
    /// Nothing.
    Nothing,
    /// All that was issued to the rank before.
    All,
    /// The same. Where the rank has refused this operation, or one between it and the add, it
    /// refuses the add, too. Gets do not count.
    Success(Ticket),
    /// The same of all operations that came after this one; after none, of all.
    SuccessSince(Ticket),
}

impl After {
    /// How many records before an add it needs, where `issued` are before it. As many as fit the
    /// field stand for all. `None`: the operation is none of those with `rank`.
    pub(super) fn needs(self, rank: u32, issued: u64) -> Option<u16> {
        let (ticket, itself) = match self {
            After::Nothing | After::All => return Some(0),
            After::Success(ticket) => (ticket, 1),
            After::SuccessSince(ticket) => (ticket, 0),
        };
        let number = ticket.number();
        let is_one = ticket.rank() == rank && (1..=issued).contains(&number);
        let is_good = is_one || (itself == 0 && ticket == Ticket::default());
        is_good.then(|| u16::try_from(issued + itself - number).unwrap_or(u16::MAX))
    }
}

/// The first record that an add with `number` needs, which needs so many.
pub(super) const fn first_needed(number: u64, needs: u16) -> u64 {
    match needs {
        u16::MAX => 0,
        _ => number.saturating_sub(needs as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_needs_what_is_between_it_and_its_operation() {
        let needs = |number, issued| After::Success(Ticket::new(3, number)).needs(3, issued);
        assert_eq!((needs(7, 7), needs(5, 7)), (Some(1), Some(3)));
        assert_eq!((needs(0, 7), needs(8, 7)), (None, None));
        assert_eq!(After::Success(Ticket::new(2, 7)).needs(3, 7), None);
        assert_eq!((After::All.needs(3, 7), After::Nothing.needs(3, 7)), (Some(0), Some(0)));
        let since = |number, issued| After::SuccessSince(Ticket::new(3, number)).needs(3, issued);
        assert_eq!((since(7, 7), since(5, 7), since(8, 7)), (Some(0), Some(2), None));
        assert_eq!(After::SuccessSince(Ticket::default()).needs(3, 7), Some(7));
        for (first, number) in [(7, 8), (5, 8), (1, 65_535)] {
            let needs = needs(first, number - 1).unwrap();
            assert_eq!(first_needed(number, needs), first);
        }
    }

    #[test]
    fn operation_that_is_far_back_stands_for_all() {
        let far = u64::from(u16::MAX);
        let needs = After::Success(Ticket::new(0, 9)).needs(0, far + 8).unwrap();
        assert_eq!((needs, first_needed(far + 9, needs)), (u16::MAX, 0));
    }
}
