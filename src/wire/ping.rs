//! W8.7: whether the other end of a link is there.

use super::wire_struct;

wire_struct! {
    /// W8.7. Body of `Ping` and `Pong`.
    PingHello [16] {
        /// The writer's count; a `Pong` has that of its `Ping`.
        number: u64 = 0,
    }
}
