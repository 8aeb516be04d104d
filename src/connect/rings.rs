//! Where the rings of a connection lie (W8.2): at the same place of the arenas of both sides.
//!
//! Each side makes an arena for each link, writes it alone, and hands it to the peer for reading.
//! The connector chooses the place. Each side zeroes its own part before it says that the
//! connection is asked for, or made.
#![forbid(unsafe_code)]

use super::control::Control;
use super::dialog::local_memory_error;
use super::memory::{LinkMemory, MemoryError};
use super::os;
use crate::wire::hello::{ConnectHello, RefuseReason};

impl<M: LinkMemory> Control<M> {
    /// Finds memory for a connection's rings and sends `Connect`.
    pub fn ask_rings(&mut self, index: u32) {
        let link = self.connections[index as usize].link;
        let words = self.arena_words();
        let row = &mut self.arena_used[link as usize * words..][..words];
        let word = row.iter().position(|word| *word != u64::MAX);
        // as many parts as connections, each of which holds one at most
        let word = word.expect("an arena has a part for every connection");
        let slot = word as u32 * 64 + row[word].trailing_ones();
        row[word] |= 1 << (slot % 64);
        let offset = u64::from(slot) * self.rings_bytes;
        let connection = &mut self.connections[index as usize];
        connection.arena_slot = slot;
        connection.rings_offset = offset;
        let arena = self.links[link as usize].arena.as_ref().expect("a link that stands");
        let template = &self.config.template;
        let rings = (template.send_ring_bytes, template.write_ring_bytes);
        if let Err(error) = self.memory.populate(arena, offset, rings) {
            self.fail(index, local_memory_error(error));
            return;
        }
        let connection = &mut self.connections[index as usize];
        connection.asked = true;
        connection.owes_hello = true;
        self.flush(index);
    }

    /// Finds memory for our rings of a connection that a peer asks for, at the place of its own.
    pub fn rings_answer(&mut self, link: u32, hello: &ConnectHello) -> Result<(), RefuseReason> {
        let end = self.rings_end(hello).ok_or(RefuseReason::Protocol)?;
        let entry = &self.links[link as usize];
        let is_aligned = hello.rings_offset.is_multiple_of(os::page_bytes());
        if !is_aligned || end > entry.arena_bytes {
            return Err(RefuseReason::Protocol);
        }
        // the peer must not make us populate more than our connections can use; twice as much,
        // since it hears later than we do that one is over
        let least = (end - hello.rings_offset).next_multiple_of(os::page_bytes());
        if end > 2 * self.connections.len() as u64 * least {
            return Err(RefuseReason::Full);
        }
        // rings of a connection that lives would be zeroed under it
        if hello.rings_offset < entry.rings_end && self.rings_overlap(link, hello, end) {
            return Err(RefuseReason::Protocol);
        }
        let rings = (hello.send_ring_bytes, hello.write_ring_bytes);
        let arena = self.links[link as usize].arena.as_ref().ok_or(RefuseReason::Protocol)?;
        match self.memory.populate(arena, hello.rings_offset, rings) {
            Ok(()) => {}
            Err(MemoryError::Descriptors) => return Err(RefuseReason::Descriptors),
            Err(MemoryError::Exhausted | MemoryError::System(_)) => {
                self.memory_short();
                return Err(RefuseReason::Memory);
            }
        }
        let entry = &mut self.links[link as usize];
        entry.rings_end = entry.rings_end.max(end);
        Ok(())
    }

    /// Where rings end in both arenas; `None`: there are no such rings.
    fn rings_end(&self, hello: &ConnectHello) -> Option<u64> {
        let rings_bytes = self.config.template.rings_bytes;
        let bytes = rings_bytes(hello.send_ring_bytes, hello.write_ring_bytes)?;
        hello.rings_offset.checked_add(bytes)
    }

    /// Whether a connection of the link has rings at the place of others, which end at `end`.
    /// *Cost*: a walk over the connections of the link.
    fn rings_overlap(&self, link: u32, hello: &ConnectHello, end: u64) -> bool {
        self.joined(link).any(|at| {
            let known = &self.connections[at as usize].peer;
            let known_end = self.rings_end(known).unwrap_or(0);
            known.rings_offset < end && hello.rings_offset < known_end
        })
    }
}
