//! Groups of ranks and their windows: one-sided operations.
//!
//! A group stands in storage of the caller's, as an endpoint does ([`room`]). Each function finds
//! the group there and its endpoint, hands the call to `crosstie::host::group`, and turns the
//! answer into a result code.

mod calls;
mod config;
mod device;
mod gather;
mod room;
mod window;
mod words;

pub use calls::*;
pub use config::*;
pub use device::*;
pub use gather::*;
pub use window::*;
pub use words::*;
