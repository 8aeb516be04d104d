//! What the ends of a lane tell each other before either sends: one file for each kind of rail.

pub mod queue_pair;
pub mod shared_end;
pub mod vendor_end;
