//! How many bytes of the caller's block a machine takes, and what each record takes of them.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::limits::{CREDITS, EARLY_MAX, KEPT_BYTES, Limits, STREAM_KEPT};
use super::mr::scratch_bytes;
use super::rails::table::{Lane, LaneMeter};
use super::records::{
    EarlySend, GroupRecord, HeldMessage, ReceiveRecord, SendRecord, StreamRecord,
};
use super::send::used::record_words;
use crate::base::bitset;
use crate::base::carve::{bytes_for, lines};
use crate::base::regions::RegionSlot;
use crate::wire::{GROUP_MAX, RAILS_MAX};

impl Limits {
    /// Bytes that one connection adds to the block: the published state of one side.
    pub const fn connection_bytes(&self) -> usize {
        let requests = self.requests_max as usize;
        lines(core::mem::size_of::<Connection>())
            + bytes_for::<SendRecord>(requests)
            + bytes_for::<GroupRecord>(requests)
            + bytes_for::<ReceiveRecord>(requests * GROUP_MAX)
            + bytes_for::<EarlySend>(EARLY_MAX as usize)
            + bytes_for::<HeldMessage>(CREDITS as usize)
            + self.mailbox_bytes()
            + self.lanes_bytes()
    }

    /// The part of it that the number of lanes decides: their records, which of them carries which
    /// stripe, and, where there may be several, what of the stream is kept to be sent again.
    pub const fn lanes_bytes(&self) -> usize {
        let rails = self.rails_max as usize;
        let meters = if rails > 1 { bytes_for::<LaneMeter>(rails) } else { 0 };
        bytes_for::<Lane>(rails)
            + bytes_for::<u64>(self.requests_max as usize * self.carried_words())
            + self.kept_bytes()
            + meters
    }

    /// The part of it that is a queue: what of the stream is kept, until the peer has taken it in,
    /// where another lane may have to carry it again. 0 where there is no other.
    pub const fn kept_bytes(&self) -> usize {
        let kept = bytes_for::<StreamRecord>(STREAM_KEPT as usize) + lines(KEPT_BYTES as usize);
        if self.rails_max > 1 { kept } else { 0 }
    }

    /// Bytes of the region table.
    pub const fn regions_bytes(&self) -> usize {
        let regions = self.regions_max as usize;
        bytes_for::<u64>(2)
            + bytes_for::<u32>(regions)
            + bytes_for::<RegionSlot>(regions)
            + bytes_for::<[u64; RAILS_MAX]>(regions)
    }

    /// Bytes of everything that the machine carves.
    pub const fn machine_bytes(&self) -> usize {
        let connections = self.connections_max as usize;
        connections * self.connection_bytes()
            + bytes_for::<u64>(connections * record_words(self.requests_max))
            + 3 * bytes_for::<u64>(bitset::words(connections))
            + bytes_for::<u64>(bitset::words(self.peers_max() as usize))
            + lines(scratch_bytes(self.rails_max))
    }
}

/// The records that the terms of the formula count, and their sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 11] = [
    ("Connection", size_of::<Connection>()),
    ("SendRecord", size_of::<SendRecord>()),
    ("GroupRecord", size_of::<GroupRecord>()),
    ("ReceiveRecord", size_of::<ReceiveRecord>()),
    ("EarlySend", size_of::<EarlySend>()),
    ("HeldMessage", size_of::<HeldMessage>()),
    ("Lane", size_of::<Lane>()),
    ("LaneMeter", size_of::<LaneMeter>()),
    ("StreamRecord", size_of::<StreamRecord>()),
    ("RegionSlot", size_of::<RegionSlot>()),
    ("region keys", size_of::<[u64; RAILS_MAX]>()),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_pair_fits_in_64_kib() {
        let limits = Limits { connections_max: 1, requests_max: 32, regions_max: 1, rails_max: 1 };
        let pair = 2 * limits.connection_bytes();
        std::println!(
            "pair {pair}: connection {} send {} group {} receive {} held {} early {} mailbox {}",
            size_of::<Connection>(),
            size_of::<SendRecord>(),
            size_of::<GroupRecord>(),
            size_of::<ReceiveRecord>(),
            size_of::<HeldMessage>(),
            size_of::<EarlySend>(),
            limits.mailbox_bytes(),
        );
        assert!(pair <= 64 << 10, "{pair}");
    }
}
