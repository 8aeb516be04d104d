//! Why a peer's report is not believed.
#![forbid(unsafe_code)]

use core::fmt;

/// Why a report is not one that an honest peer writes. Its connection ends with
/// [`RequestError::Protocol`](super::RequestError::Protocol).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ReportError {
    /// It cannot be read.
    Malformed,
    /// Its number is not the next one.
    Number,
    /// Its control epoch is far from the last one.
    Epoch,
    /// It speaks of other lanes than were agreed on.
    Lanes,
    /// It speaks of a generation that has not been.
    Generation,
    /// It acknowledges what was never sent.
    Through,
    /// It claims stripes that were never written.
    Stripes,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReportError::Malformed => "its report about failed rails cannot be read",
            ReportError::Number => "its report about failed rails is not the next one",
            ReportError::Epoch => "its report skips epochs, or goes back to old ones",
            ReportError::Lanes => "its report speaks of other rails than were agreed on",
            ReportError::Generation => "it speaks of a rail in a generation that has not been",
            ReportError::Through => "its report acknowledges what was never sent",
            ReportError::Stripes => "its report claims stripes that were never written",
        })
    }
}
