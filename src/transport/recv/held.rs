//! The records of messages that stay in their receive slots for now, and the lists through them.

use crate::base::carve::{BlockTooSmall, Carver};
use crate::transport::limits::CREDITS;
use crate::transport::records::{HeldMessage, NIL, Queue};
use core::hash::Hash;

/// Messages that stay in their receive slots for now, by their records.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Messages {
    /// Records that are not in use.
    pub free: u8,
    /// Messages that no receive matches yet, in order.
    pub unexpected: Queue,
    /// Sends that came before their turn.
    pub ahead: Queue,
    /// Descriptors that are bound, and wait for room to be read.
    pub pulls: Queue,
}

impl Messages {
    /// None, and no record for one.
    pub const NONE: Messages =
        Messages { free: NIL, unexpected: Queue::EMPTY, ahead: Queue::EMPTY, pulls: Queue::EMPTY };

    /// Whether none waits for its turn or for a receive.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.unexpected.is_empty() && self.ahead.is_empty()
    }
}

/// The records of all connections. Each list belongs to one connection.
#[derive(Debug)]
pub struct Held<'m>(&'m mut [HeldMessage]);

impl<'m> Held<'m> {
    /// Cuts the records out of a block.
    pub fn carve(block: &mut Carver<'m>, connections: usize) -> Result<Held<'m>, BlockTooSmall> {
        Ok(Held(block.slice(connections * CREDITS as usize)?))
    }

    #[inline]
    fn at(&mut self, index: usize, record: u8) -> &mut HeldMessage {
        &mut self.0[index * CREDITS as usize + usize::from(record)]
    }

    /// A record of a connection.
    #[inline]
    pub fn get(&self, index: usize, record: u8) -> &HeldMessage {
        &self.0[index * CREDITS as usize + usize::from(record)]
    }

    /// No record of a connection is in use any more: the first one is number 0.
    pub fn clear(&mut self, index: usize) {
        for record in 0..CREDITS as u8 {
            let next = if u32::from(record) + 1 < CREDITS { record + 1 } else { NIL };
            *self.at(index, record) = HeldMessage { next, ..HeldMessage::FREE };
        }
    }

    /// A record for a message that stays in its slot; `None` when the peer overran its credits.
    pub fn acquire(
        &mut self,
        index: usize,
        messages: &mut Messages,
        message: HeldMessage,
    ) -> Option<u8> {
        let record = messages.free;
        if record == NIL {
            return None;
        }
        messages.free = self.get(index, record).next;
        *self.at(index, record) = HeldMessage { next: NIL, ..message };
        Some(record)
    }

    /// Gives a record back, which is in no list.
    pub fn release(&mut self, index: usize, messages: &mut Messages, record: u8) {
        self.at(index, record).next = messages.free;
        messages.free = record;
    }

    /// Puts a record at the end of a list.
    pub fn append(&mut self, index: usize, list: &mut Queue, record: u8) {
        match list.tail {
            NIL => list.head = record,
            tail => self.at(index, tail).next = record,
        }
        list.tail = record;
    }

    /// Puts a record at the start of a list that is not used by its end.
    pub fn prepend(&mut self, index: usize, list: &mut Queue, record: u8) {
        self.at(index, record).next = list.head;
        list.head = record;
    }

    /// Takes `record`, which follows `previous`, out of a list; gives the one after it.
    pub fn unlink(&mut self, index: usize, list: &mut Queue, previous: u8, record: u8) -> u8 {
        let next = self.get(index, record).next;
        match previous {
            NIL => list.head = next,
            previous => self.at(index, previous).next = next,
        }
        if list.tail == record {
            list.tail = previous;
        }
        next
    }

    /// Cuts a list off behind `record`, which is its end from now on.
    pub fn cut_behind(&mut self, index: usize, list: &mut Queue, record: u8) {
        self.at(index, record).next = NIL;
        list.tail = record;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::carve::heap::HeapBlock;

    #[test]
    fn list_keeps_its_order_and_records_are_used_again() {
        let mut block = HeapBlock::new(2 * CREDITS as usize * size_of::<HeldMessage>() + 64);
        let mut held = Held::carve(&mut block.carver(), 2).unwrap();
        held.clear(1);
        let mut messages = Messages { free: 0, ..Messages::NONE };
        let mut list = Queue::EMPTY;
        for tag in 0..CREDITS as i32 {
            let message = HeldMessage { tag, ..HeldMessage::FREE };
            let record = held.acquire(1, &mut messages, message).unwrap();
            held.append(1, &mut list, record);
        }
        assert_eq!(held.acquire(1, &mut messages, HeldMessage::FREE), None);
        let second = held.get(1, list.head).next;
        let first = list.head;
        let third = held.unlink(1, &mut list, first, second);
        assert_eq!((held.get(1, first).next, held.get(1, third).tag), (third, 2));
        held.release(1, &mut messages, second);
        assert_eq!(held.acquire(1, &mut messages, HeldMessage::FREE), Some(second));
        held.cut_behind(1, &mut list, third);
        assert_eq!((list.tail, held.get(1, third).next), (third, NIL));
    }
}
