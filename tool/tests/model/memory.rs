//! The users' memory. Addresses of it are made up, so that they are the same in every run, and each
//! access is checked: the library may read what is lent to it as a source, and write what is lent
//! to it as a target.

use std::hash::Hash;

/// Where a mailbox is said to begin.
pub const MAILBOX: u64 = 1 << 40;
/// Where the buffers of a side are said to begin.
const BUFFERS: u64 = 1 << 41;
/// Distance from one buffer to the next, and bytes that one region has.
pub const BUFFER_STRIDE: u64 = 1 << 12;

/// Whose a buffer is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Lent {
    No,
    Source,
    Target,
}

#[derive(Clone, Hash, Debug)]
struct Buffer {
    lent: Lent,
    bytes: Vec<u8>,
}

/// The buffers of both sides.
#[derive(Clone, Hash, Debug)]
pub struct Memory {
    buffers: [Vec<Buffer>; 2],
}

impl Memory {
    pub fn new(buffers: usize) -> Memory {
        let buffer = Buffer { lent: Lent::No, bytes: Vec::new() };
        Memory { buffers: [vec![buffer.clone(); buffers], vec![buffer; buffers]] }
    }

    /// The address of a buffer.
    pub fn address(buffer: usize) -> u64 {
        BUFFERS + buffer as u64 * BUFFER_STRIDE
    }

    /// Whether a buffer is the user's own.
    pub fn is_free(&self, side: usize, buffer: usize) -> bool {
        self.buffers[side][buffer].lent == Lent::No
    }

    /// Lends a buffer to the library.
    pub fn lend(&mut self, side: usize, buffer: usize, lent: Lent, bytes: Vec<u8>) {
        assert_eq!(self.buffers[side][buffer].lent, Lent::No, "the user's own mistake");
        self.buffers[side][buffer] = Buffer { lent, bytes };
    }

    /// Takes a buffer back, with what it holds.
    pub fn take_back(&mut self, side: usize, buffer: usize) -> Vec<u8> {
        let buffer = &mut self.buffers[side][buffer];
        buffer.lent = Lent::No;
        std::mem::take(&mut buffer.bytes)
    }

    fn find(
        &mut self,
        side: usize,
        address: u64,
        length: u64,
        lent: Lent,
    ) -> Result<&mut [u8], String> {
        let at = (address - BUFFERS) / BUFFER_STRIDE;
        let offset = ((address - BUFFERS) % BUFFER_STRIDE) as usize;
        let buffer = &mut self.buffers[side][at as usize];
        if buffer.lent != lent {
            return Err(format!(
                "buffer {at} of side {side} is used as {lent:?}, lent as {:?}",
                buffer.lent
            ));
        }
        let room = buffer.bytes.len();
        let bytes = buffer.bytes.get_mut(offset..offset + length as usize);
        bytes.ok_or_else(|| format!("{offset} + {length} of buffer {at} with {room} bytes"))
    }

    /// Reads a source.
    pub fn read(&mut self, side: usize, address: u64, length: u64) -> Result<Vec<u8>, String> {
        self.find(side, address, length, Lent::Source).map(|bytes| bytes.to_vec())
    }

    /// Writes a target.
    pub fn write(&mut self, side: usize, address: u64, bytes: &[u8]) -> Result<(), String> {
        let length = bytes.len() as u64;
        self.find(side, address, length, Lent::Target)?.copy_from_slice(bytes);
        Ok(())
    }
}
