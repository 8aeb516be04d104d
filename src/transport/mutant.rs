//! Planted faults, each a mistake that this protocol could have been written with: proofs show that
//! they find every one (`tool/tests/model`). In a build without the feature `proof` the question
//! whether one is planted is the constant `false`.
#![forbid(unsafe_code)]

/// A fault.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Mutant {
    /// A failed lane counts as fenced at once.
    FenceSkipped,
    /// A report says that a lane is fenced while its fence is under way.
    AnswerBeforeFence,
    /// Numbers of the stream are read as if they had 10 bits.
    SequenceNarrow,
    /// The stream is sent again from its start, whatever the peer has taken in.
    CursorIgnored,
    /// What a report says of deliveries is not looked at.
    DeliveriesIgnored,
    /// A send ends when its stripes have been written.
    ReleaseOnLocal,
    /// Control moves on before the old control lane is fenced, so that slots are written again.
    ControlUnfenced,
    /// Stripes take the lanes in turn, however fast those are. Nothing is lost by it but time
    /// (`tool/sim/throttle.rs`).
    WeightsEqual,
    /// A rail's: no fence of it holds. Requests end unfenced, and reports say so (`doc/stalls.md`).
    FenceNever,
    /// A report says of a fenced lane that its fence is under way. The peer of who does that gives
    /// the connection up by name.
    AnswerNever,
    /// A rail's: slots are said to be written, and are not. Reports say so.
    SlotUnwritten,
}

#[cfg(feature = "proof")]
impl Mutant {
    /// All that break the protocol; one that is slow does not, and what a rail does wrong, the
    /// protocol tells of.
    pub const ALL: [Mutant; 7] = [
        Mutant::FenceSkipped,
        Mutant::AnswerBeforeFence,
        Mutant::SequenceNarrow,
        Mutant::CursorIgnored,
        Mutant::DeliveriesIgnored,
        Mutant::ReleaseOnLocal,
        Mutant::ControlUnfenced,
    ];
}

/// What [`Mutant::SequenceNarrow`] leaves of a number.
pub(super) const NARROW: u32 = (1 << 10) - 1;
