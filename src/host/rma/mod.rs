//! One-sided operations that the host issues: what NCCL's RMA plugins, and its GIN plugins in proxy
//! mode, are translated to.
//!
//! A [`Comm`] is a group of ranks ([`super::group`]) over an endpoint of its own. Each function
//! returns at once, but for those that all ranks call together: connecting and registering. Those
//! have a deadline.
//!
//! - [`listener`]: the endpoint, before its ranks are known
//! - [`comm`]: the communicator
//! - `core`: what its lock guards, and each step of it
//! - [`requests`]: operations under way, in places that are made beforehand
//! - `tend`: the thread that makes progress while the user does not
//!
//! # Promises
//!
//! | What | When |
//! |---|---|
//! | a signal is seen | all that its rank issued to that rank before is there |
//! | a put has ended well | the bytes are there, and its source may be used again |
//! | a get has ended | the bytes are there |
//! | a flush has ended | the gets of the same context and rank that came before have ended |

pub mod comm;
mod core;
pub mod error;
pub mod listener;
pub mod requests;
mod tend;

pub use self::core::{Memory, Side, Signal, Target};
pub use comm::{Comm, Opening};
pub use error::{Refused, RmaError, What};
pub use listener::Listener;
