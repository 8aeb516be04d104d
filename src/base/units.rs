//! Quantities with their unit in the type: [`Bytes`], [`Instant`], [`Span`].
#![forbid(unsafe_code)]

/// A number of bytes.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes at all.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` KiB.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// The bytes of a slice or object whose size the compiler gave as `usize`.
    pub const fn of(n: usize) -> Bytes {
        Bytes(n as u64)
    }

    /// For indexing memory of this process, which the value was measured in.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }

    /// The smaller of both.
    pub const fn min(self, other: Bytes) -> Bytes {
        if self.0 < other.0 { self } else { other }
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

/// A point in time: nanoseconds since a start that only its source knows.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Instant(pub u64);

impl Instant {
    /// How long ago `earlier` was; zero if it lies ahead.
    pub const fn since(self, earlier: Instant) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The point `span` later.
    pub const fn after(self, span: Span) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Span(pub u64);

impl Span {
    /// `n` microseconds.
    pub const fn micros(n: u64) -> Span {
        Span(n * 1_000)
    }

    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Span {
        Span(n * 1_000_000)
    }
}
