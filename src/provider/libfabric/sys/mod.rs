//! libfabric as we call it: declarations of our own, loaded at run time.

pub mod abi;
pub mod calls;
pub mod events;
pub mod gpu_attr;
pub mod layout;
pub mod library;
pub mod numbers;
pub mod objects;

pub use events::{Event, EventQueue};
pub use library::{Info, Library, LoadError};
pub use objects::{Code, Cq, Domain, Endpoint, Fabric, Port, Registration, Vector};
