//! The bytes that peers exchange, numbered as in `doc/wire.md`.
//!
//! Every field is little-endian and of fixed width. Each structure is a plain value with `encode`
//! and `decode`; a decoder takes any bytes, never panics, and refuses what it does not understand.
//! What a peer polls (slot, cell, state line) carries its sequence and epoch in its last word, so
//! that it validates itself.
#![forbid(unsafe_code)]

pub mod blob;
pub mod cell;
pub mod descriptor;
pub mod door;
mod ends;
pub mod features;
pub mod handle;
pub mod head;
pub mod hello;
pub mod immediate;
pub mod one_sided;
pub mod pair;
pub mod ping;
pub mod report;
pub mod slot;
pub mod state;
pub mod status;
pub mod stream;

pub use ends::{queue_pair, shared_end, vendor_end};

/// Wire major version: peers with another one are refused.
pub const WIRE_MAJOR: u16 = 1;
/// Wire minor version: peers with another one work; features decide what is used.
pub const WIRE_MINOR: u16 = 1;
/// Most data rails, and most control rails, of one connection.
pub const RAILS_MAX: usize = 8;
/// Most receives in one group.
pub const GROUP_MAX: usize = 8;
/// Most stripes of one message.
pub const STRIPES_MAX: u32 = 64;

/// Why bytes were refused.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum DecodeError {
    /// Shorter than the structure.
    Short,
    /// Not ours: the magic differs.
    Magic,
    /// Ours, but of another major version, which is given.
    Version(u16),
    /// A field has a value that this version does not know.
    Field,
    /// The checksum does not match.
    Checksum,
}

/// Defines a fixed-size little-endian structure: fields at stated offsets.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident [$size:expr] {
        $($(#[$fdoc:meta])* $field:ident : $ty:ty = $at:expr),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl $name {
            /// Length on the wire in bytes.
            pub const SIZE: usize = $size;

            /// Every field zero.
            pub const ZERO: $name = $name { $($field: 0),* };

            /// The bytes; unnamed ones are zero.
            #[inline]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0u8; $size];
                $(
                    const { let _room: usize = $size - $at - core::mem::size_of::<$ty>(); };
                    bytes[$at..$at + core::mem::size_of::<$ty>()]
                        .copy_from_slice(&self.$field.to_le_bytes());
                )*
                bytes
            }

            /// The fields as they stand, unchecked.
            #[inline]
            pub fn from_bytes(bytes: &[u8; $size]) -> $name {
                $name { $($field: {
                    let mut field = [0u8; core::mem::size_of::<$ty>()];
                    field.copy_from_slice(&bytes[$at..$at + core::mem::size_of::<$ty>()]);
                    <$ty>::from_le_bytes(field)
                }),* }
            }
        }
    };
}
pub(crate) use wire_struct;
