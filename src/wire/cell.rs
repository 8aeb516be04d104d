//! W4: the region cell, by which a receiver tells the keys of a region once.

use super::wire_struct;

wire_struct! {
    /// W4. Keys of one region of the receiver, first line of two: data rails 0 to 6.
    CellFirst [64] {
        /// Key on data rail 0.
        key0: u64 = 0,
        /// Key on data rail 1.
        key1: u64 = 8,
        /// Key on data rail 2.
        key2: u64 = 16,
        /// Key on data rail 3.
        key3: u64 = 24,
        /// Key on data rail 4.
        key4: u64 = 32,
        /// Key on data rail 5.
        key5: u64 = 40,
        /// Key on data rail 6.
        key6: u64 = 48,
        /// How often this cell was written.
        sequence: u32 = 56,
        /// The receiver's control epoch.
        epoch: u32 = 60,
    }
}

wire_struct! {
    /// W4. Second line: data rail 7.
    CellSecond [64] {
        /// Key on data rail 7.
        key7: u64 = 0,
        /// As in the first line; the cell is there when both lines show it.
        sequence: u32 = 56,
        /// As in the first line.
        epoch: u32 = 60,
    }
}

/// Builds both lines.
pub fn encode(keys: &[u64; 8], sequence: u32, epoch: u32) -> ([u8; 64], [u8; 64]) {
    let [key0, key1, key2, key3, key4, key5, key6, key7] = *keys;
    let first = CellFirst { key0, key1, key2, key3, key4, key5, key6, sequence, epoch };
    let second = CellSecond { key7, sequence, epoch };
    (first.encode(), second.encode())
}

/// Keys, if both lines show `sequence` and `epoch`.
pub fn decode(first: &[u8; 64], second: &[u8; 64], sequence: u32, epoch: u32) -> Option<[u64; 8]> {
    let a = CellFirst::from_bytes(first);
    let b = CellSecond::from_bytes(second);
    let whole =
        (a.sequence, a.epoch) == (sequence, epoch) && (b.sequence, b.epoch) == (sequence, epoch);
    whole.then_some([a.key0, a.key1, a.key2, a.key3, a.key4, a.key5, a.key6, b.key7])
}
