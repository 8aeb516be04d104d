//! Collective operations over windows, as pure schedules: which rank gives which bytes to which,
//! and what must have happened before. `doc/collective.md` is the guide.
//!
//! An AllGather has two workers at each rank. A *stream* of the GPU copies to the rank's *mates*,
//! whose memory it reaches. A *service*, on the thread that makes progress, puts to all other
//! ranks, the *strangers*. They tell each other by [`Word`]s of host memory.
//!
//! - [`plan`]: the schedules `direct` and `pipeline`
//! - [`mod@program`]: what the stream does, in the order in which it does it
#![forbid(unsafe_code)]

pub mod plan;
pub mod program;

pub use plan::{Algorithm, Plan, Put};
pub use program::{Op, Word, Words, program};
