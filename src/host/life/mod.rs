//! The life of connections and their rails: joined, watched, lost, and closed.

pub(super) mod close;
pub(super) mod connections;
pub(super) mod events;
pub(super) mod join;
pub(super) mod known;
pub(super) mod lanes;
pub(super) mod linger;
pub(super) mod lost;
pub(super) mod pairs;
pub(super) mod suspect;
pub(super) mod vouch;

pub use known::RailView;
