//! Sentences about AllGathers.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use crate::connect::group::GroupError;
use core::fmt;

/// What is to be said of AllGathers.
pub(in crate::host) enum GatherEvent<'a> {
    /// Ranks of this host do not share memory.
    Share(&'a GroupError),
    /// One has failed.
    Failed { rank: u32, why: &'a dyn fmt::Display },
}

impl Event for GatherEvent<'_> {
    fn level(&self) -> Level {
        Level::Error
    }
}

impl fmt::Display for GatherEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all_gather: ")?;
        match self {
            GatherEvent::Share(error) => {
                write!(f, "ranks of this host share no memory ({error}); it is not prepared")
            }
            GatherEvent::Failed { rank, why } => write!(
                f,
                "rank {rank}: {why}; its stream is let go, and what was received is not valid"
            ),
        }
    }
}
