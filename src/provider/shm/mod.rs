//! (being built)
pub mod held;
pub mod record;
pub mod ring;
pub mod word;
