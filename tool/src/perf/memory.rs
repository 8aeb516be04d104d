//! What `--memory` names.
#![forbid(unsafe_code)]

use crate::Failure;
use crate::owned::{Backing, Location};
use core::fmt;

/// Memory that messages lie in.
#[derive(Clone, Debug)]
pub enum Memory {
    /// These kinds, one after the other, the same on both sides.
    Kinds(Vec<Backing>),
    /// Of each side its own.
    Located(Locations),
}

impl Memory {
    /// Reads a value of the option.
    pub fn parse(text: &str) -> Result<Memory, Failure> {
        Ok(match text {
            "shared" => Memory::Kinds(vec![Backing::Shared]),
            "private" => Memory::Kinds(vec![Backing::Private]),
            "both" => Memory::Kinds(vec![Backing::Shared, Backing::Private]),
            _ => {
                Memory::Located(Locations::parse(text).map_err(|error| {
                    format!("{error}, and it is none of shared, private and both")
                })?)
            }
        })
    }

    /// What each measurement goes through.
    pub fn backings(&self) -> Vec<Backing> {
        match self {
            Memory::Kinds(kinds) => kinds.clone(),
            Memory::Located(_) => vec![Backing::Located],
        }
    }

    /// Where memory lies that is located.
    pub fn locations(&self) -> Locations {
        match self {
            Memory::Kinds(_) => Locations::HOSTS,
            Memory::Located(locations) => *locations,
        }
    }
}

/// Memory of the connecting side, which measures, and of the other.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Locations(pub Location, pub Location);

impl Locations {
    /// Nothing is on a GPU.
    pub const HOSTS: Locations = Locations(Location::Host, Location::Host);

    /// `A,B`, or one value for both.
    pub fn parse(text: &str) -> Result<Locations, Failure> {
        let (near, far) = text.split_once(',').unwrap_or((text, text));
        Ok(Locations(Location::parse(near)?, Location::parse(far)?))
    }

    /// Whether a GPU is among them.
    pub fn has_gpu(self) -> bool {
        self != Locations::HOSTS
    }
}

impl fmt::Display for Locations {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_memory_of_both_sides() {
        let parsed = |text: &str| Locations::parse(text).map(|both| both.to_string());
        assert_eq!(parsed("cuda:0,cuda:1"), Ok("cuda:0,cuda:1".into()));
        assert_eq!(parsed("host,cuda:12"), Ok("host,cuda:12".into()));
        assert_eq!(parsed("cuda:3"), Ok("cuda:3,cuda:3".into()));
        for wrong in ["", "cuda", "cuda:", "cuda:-1", "cuda:1,", "cuda:1,2", "host,host,host"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(!Locations::parse("host").unwrap().has_gpu());
    }
}
