//! What the ends of a connection say that they can: bits of `ConnectHello::features` (W8.2).

/// The writer wants receives to be offered over shared memory too, and messages to be written to
/// them, though the connection has one lane (W8.2): a bit of `ConnectHello::features`.
pub const CONNECT_PUSH: u64 = 0x1;

/// The further lanes of the connection are pairs of ports (W8.14): a bit of
/// `ConnectHello::features`.
pub const CONNECT_PAIRS: u64 = 0x2;

/// The writer of `Connect` says `Taken` once its user has the connection, and the reader's user
/// does not get it before (W8.2): a bit of `ConnectHello::features`.
pub const CONNECT_TAKEN: u64 = 0x4;

/// The writer answers probes of lanes, and uses a lane when its own is answered (W10): a bit of
/// `ConnectHello::features`.
pub const CONNECT_PROBED: u64 = 0x8;

/// The writer reads slots that speak for several groups (W3): a bit of `ConnectHello::features`.
pub const CONNECT_RUNS: u64 = 0x10;

/// The writer reads in heads which groups its messages have filled (W1): a bit of
/// `ConnectHello::features`.
pub const CONNECT_FILLED: u64 = 0x20;
/// The writer can check its data streams over TCP by sums (W9.1).
pub const CONNECT_SUMS: u64 = 0x80;
/// The writer takes notes about memory of GPUs (W15).
pub const CONNECT_GPUS: u64 = 0x200;
/// The writer wants that: it is done if either side does, and both can.
pub const CONNECT_SUMS_WANTED: u64 = 0x100;

/// The writer knows slots of which the first ones of all groups lie together (W3): a bit of
/// `ConnectHello::features`. They do where both sides say so.
pub const CONNECT_ROWS: u64 = 0x40;
