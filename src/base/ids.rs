//! Numbers that name things, one type each, so that a rail cannot be passed for a peer.
#![forbid(unsafe_code)]

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default, Debug)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// For indexing the table that this number counts in.
            pub const fn as_usize(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A rail of an endpoint, 0 to 7.
    RailIndex(u8)
);
id!(
    /// The other end of one connection as one rail's provider numbers it.
    PeerIndex(u32)
);
id!(
    /// A connection of an endpoint.
    ConnectionIndex(u32)
);
id!(
    /// How often a rail has been brought up again; keys and fences carry it.
    RailGeneration(u32)
);
id!(
    /// How often a connection has reconciled after losing a rail.
    Epoch(u32)
);
