//! Memory that a rail may touch.
#![forbid(unsafe_code)]

use crate::base::regions::RemoveError;
use crate::base::units::Bytes;

/// Where memory lies.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum MemoryKind {
    /// Pages of this process.
    Host,
    /// Pages of this process that its peers have mapped, so that they read without being helped.
    Mapped,
    /// Memory of a GPU, by CUDA device ordinal.
    Cuda(u32),
}

/// An address range to register.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Region {
    /// Address of its first byte.
    pub address: u64,
    /// Length; not zero.
    pub length: Bytes,
    /// Where it lies.
    pub kind: MemoryKind,
}

/// What one rail calls a registered region, here and at its peers. Carries the generation of the
/// registration, so that a key kept too long names nothing. 0 is no region's.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct RailKey(pub u64);

/// Why a region could not be registered. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RegisterError {
    /// The table of regions is full: deregister one first.
    Full,
    /// This rail cannot reach that kind of memory.
    Kind,
    /// The range is empty or wraps around the address space.
    Range,
    /// The provider's library or device refused, with its code.
    Fabric(i32),
}

/// Why a region could not be deregistered. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum DeregisterError {
    /// Ops on it are outstanding: try again when they have ended.
    Busy,
    /// The key names no registered region.
    Stale,
    /// The provider's library or device refused, with its code.
    Fabric(i32),
}

impl From<RemoveError> for DeregisterError {
    fn from(error: RemoveError) -> DeregisterError {
        match error {
            RemoveError::Stale => DeregisterError::Stale,
            RemoveError::Busy => DeregisterError::Busy,
        }
    }
}
