//! Rails that break again and again, whatever reconnects them.
#![forbid(unsafe_code)]

use crate::fabric::DownCause;
use crate::transport::request::RequestError;

/// Lanes in use that broke in a row, because what came or was sent on them was wrong, without any
/// progress of the connection between them. What breaks one then breaks each that follows: a number
/// of the set-up was changed, or is a lie.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Breaks {
    count: u8,
    /// How far the connection was at the last one.
    mark: u32,
}

/// A lane's code where the peer has broken the format: that of Linux.
pub const EPROTO: i32 = 71;
/// Where bytes were changed on the way, likewise.
const EBADMSG: i32 = 74;

/// What is wrong with what went over a lane that was lost for this cause; `None`: nothing, its path
/// is gone.
pub const fn breach(cause: DownCause) -> Option<RequestError> {
    match cause {
        DownCause::Failed => Some(RequestError::Protocol),
        DownCause::Broken(EBADMSG) => Some(RequestError::Fabric(EBADMSG)),
        DownCause::Broken(_)
        | DownCause::Closed
        | DownCause::Died
        | DownCause::Severed
        | DownCause::Unheard
        | DownCause::Silent => None,
    }
}

/// So many in a row end the connection. A byte that was changed by chance breaks one, and the next
/// carries something.
const BREAKS_MAX: u8 = 4;

impl Breaks {
    /// None.
    pub const NONE: Breaks = Breaks { count: 0, mark: 0 };

    /// A lane broke, and the connection is so far; whether it gets no further.
    pub fn add(&mut self, mark: u32) -> bool {
        let again = self.count > 0 && self.mark == mark;
        self.count = if again { self.count + 1 } else { 1 };
        self.mark = mark;
        self.count >= BREAKS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_break_in_a_row_count_until_something_moves() {
        let mut breaks = Breaks::NONE;
        let said = [7, 7, 7, 8, 8, 8, 8].map(|mark| breaks.add(mark));
        assert_eq!(said, [false, false, false, false, false, false, true]);
    }
}
