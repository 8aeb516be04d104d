//! What an endpoint has done, as counts.
#![forbid(unsafe_code)]

/// Counts since open. Reading them costs nothing to the data path.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Stats {
    /// Messages accepted by `isend`.
    pub sends: u64,
    /// Bytes of those messages.
    pub send_bytes: u64,
    /// Messages that arrived whole in a receive.
    pub receives: u64,
    /// Bytes of those messages.
    pub receive_bytes: u64,
    /// Messages that travelled in the stream of sends.
    pub eager: u64,
    /// Messages that the receiver read out of the sender's memory.
    pub pulled: u64,
    /// Messages that were written in stripes.
    pub pushed: u64,
    /// Messages that arrived before their receive was posted.
    pub unexpected: u64,
    /// Messages longer than their receive.
    pub truncated: u64,
    /// Sends that had to wait for a slot, a credit or room on the rail.
    pub queued: u64,
    /// Times that a rail had no room.
    pub again: u64,
    /// State lines written.
    pub state_lines: u64,
    /// Connections that failed: those that either side closed are not among them.
    pub failures: u64,
    /// Lanes that failed while their connection went on.
    pub lane_failures: u64,
    /// Lanes that came up, later than their connection or again.
    pub lane_joins: u64,
    /// Reports written about lanes.
    pub reports: u64,
    /// Stripes that a lane lost, and that others carried.
    pub stripes_moved: u64,
    /// Sends of the stream that a lane lost, and that another carried.
    pub resends: u64,
    /// Times that control moved to another lane.
    pub control_moves: u64,
    /// Connections that ended without a fence: their memory stays registered.
    pub unfenced: u64,
}
