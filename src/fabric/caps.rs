//! What a provider promises beyond the contract.
#![forbid(unsafe_code)]

use crate::base::units::Bytes;

/// Promises of one rail, fixed while it is open.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Caps {
    /// Longest payload of one send, beside its head.
    pub send_payload_max: Bytes,
    /// Receives that one peer has for the other: messages that may be on their way, or received
    /// and not yet released. Where the rail has [`Caps::immediate`], a word on its way may take one
    /// too. Who posts beyond them may be told `Again`, or lose the peer.
    pub recv_slots: u32,
    /// Longest write or read in one op.
    pub transfer_max: Bytes,
    /// Reads work, so that a receiver can pull; otherwise the transport pushes.
    pub pull: bool,
    /// A write may carry an immediate that the target's poll reports.
    pub immediate: bool,
    /// Ops to one peer take effect at the target in the order in which they were posted. Writes and
    /// reads with memory of a GPU on either side keep no order, on any rail.
    pub ordered: bool,
    /// A send or a write from a line has read its source when `post` returns, whatever its
    /// completion says later about delivery.
    pub copies_at_post: bool,
    /// Width of atomic adds in bytes: 8, or 0 for none.
    pub atomic_bytes: u8,
    /// What may be copied beyond the budget, the slack of P3: at least the largest copy that cannot
    /// be divided.
    pub copy_granule: Bytes,
    /// What a fence takes.
    pub fence: FenceKind,
    /// An op on a key of the peer's that is not registered takes the peer with it: that op ends
    /// with [`super::OpErrorKind::Key`], those behind it with an error, and the peer goes down.
    pub bad_key_breaks: bool,
    /// System calls on the data path.
    pub syscalls: Syscalls,
}

/// How strong a fence a rail has (P10).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FenceKind {
    /// Our own act suffices.
    Local,
    /// The peer must attest that each of its ops has retired.
    WriterDrained,
    /// Only by closing the whole endpoint.
    Endpoint,
    /// None: such a rail may fill bounce buffers only.
    None,
}

/// System calls that `post` and `poll` make.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Syscalls {
    /// None at all.
    None,
    /// One per large copy, none for small messages; and while nothing comes, now and then one that
    /// offers the processor to the peer.
    PerCopy,
    /// Per batch of messages, as sockets must.
    PerBatch,
}
