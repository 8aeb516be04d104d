//! `crosstie sim --one-sided`: random operations on windows between two ranks.
//!
//! Each rank has an endpoint on the simulated network, with two connections to the other, and a
//! group on it. The oracle knows what each word and each byte must be at every moment, and looks at
//! both ranks after each call of progress.
//!
//! The bytes of a put that leave apart from their record are held back at times. Lanes die and come
//! back, above all right after a signal was added, before its rank can have heard of it.
#![forbid(unsafe_code)]

mod bytes;
mod carrier;
mod oracle;
#[cfg(test)]
mod ordering;
pub mod schedule;
mod side;
pub mod tally;
mod way;
mod word;
mod world;

pub use schedule::run;
pub use tally::Tally;
