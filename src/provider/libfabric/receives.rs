//! Receive cells: which the library has, which hold a message, and which are to be posted.

use super::area::{CELLS, LAZY, RECEIVES};
use super::domain::turns::Act;
use super::endpoint::{ROOM, SharedEndpoint};
use super::peers::Peers;
use super::sys::Code;
use super::{PeerOpenError, Step};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::fabric::RecvSlot;
use crate::provider::fifo::Fifo;

const _: () = assert!(RECEIVES < CELLS);

/// Whose message a cell holds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Cell {
    /// Its part is not in use.
    Unused,
    /// The library has it.
    Posted,
    /// It must be posted.
    Due,
    /// A message of so many bytes, whose peer does not take it yet.
    Early(u32),
    /// A message that this peer has not released, and how many bytes stand before its payload.
    Held { peer: u32, ahead: u8 },
}

/// A received message's name: its cell, and how long its payload is.
#[inline]
pub fn slot_of(cell: usize, length: u32) -> RecvSlot {
    RecvSlot(u64::from(length) << 32 | cell as u64)
}

/// The inverse of [`slot_of`].
#[inline]
fn slot_parts(slot: RecvSlot) -> (usize, u32) {
    ((slot.0 & 0xffff_ffff) as usize, (slot.0 >> 32) as u32)
}

/// The cells of all peers.
#[derive(Debug)]
pub struct Receives<'m> {
    pub cells: &'m mut [Cell],
    /// Cells that the library did not take back, or will be handed later.
    due: Fifo<'m, u32>,
    /// Cells whose messages came before their peer was joined.
    pub early: Fifo<'m, u32>,
    /// Whether a peer was joined since early messages were looked at.
    pub early_due: bool,
}

impl<'m> Receives<'m> {
    /// Bytes that [`Receives::carve`] cuts for so many cells.
    pub fn bytes(cells: usize) -> usize {
        bytes_for::<Cell>(cells) + 2 * bytes_for::<u32>(cells.next_power_of_two())
    }

    pub fn carve(block: &mut Carver<'m>, cells: usize) -> Receives<'m> {
        let [due, early] =
            [(); 2].map(|()| Fifo::new(block.slice::<u32>(cells.next_power_of_two()).expect(ROOM)));
        let cells = block.filled(cells, Cell::Unused).expect(ROOM);
        Receives { cells, due, early, early_due: false }
    }

    /// Registers a peer's part of the area and posts its cells, at its first use.
    pub fn part_open(&mut self, peers: &mut Peers, index: usize) -> Result<(), PeerOpenError> {
        let refused = |step| move |code| PeerOpenError::Refused(step, code);
        if !peers.endpoint.part_open(index).map_err(refused(Step::Buffers))? {
            return Ok(());
        }
        for cell in index * CELLS..(index + 1) * CELLS {
            if self.cells[cell] == Cell::Unused {
                self.again(peers, cell);
            }
        }
        match peers.health.is_lost() {
            true => Err(refused(Step::Receives)(Code(peers.health.lost_code))),
            false => Ok(()),
        }
    }

    /// Posts the receive of a cell, now or when the library takes it.
    #[inline]
    pub fn again(&mut self, peers: &mut Peers, cell: usize) {
        if !self.post(peers, cell) {
            self.due.push(cell as u32);
        }
    }

    /// Whether the library has taken it, or it is not to be posted.
    fn post(&mut self, peers: &mut Peers, cell: usize) -> bool {
        let (endpoint, part) = (&peers.endpoint, cell / CELLS);
        let Ok(port) = endpoint.port(part) else {
            // held since before the endpoint was opened anew: it is posted with its part
            self.cells[cell] = Cell::Unused;
            return true;
        };
        let range = (endpoint.area.cell(cell), endpoint.area.message_bytes_max());
        let (descriptor, context) = (endpoint.part_descriptor(part), endpoint.cell_context(cell));
        self.cells[cell] = Cell::Posted;
        let turn = endpoint.domain.turn(Act::Post);
        // SAFETY: a cell that nobody uses, registered with its part, and its context.
        let posted = unsafe { port.receive(range, descriptor, context) };
        drop(turn);
        let Err(code) = posted else { return true };
        self.cells[cell] = Cell::Due;
        // some libraries say so when their queue is full
        if !matches!(code, Code::AGAIN | Code(libc::ENOMEM | libc::ENOBUFS)) {
            peers.lose(code.0);
        }
        false
    }

    /// Posts what was put off, or the library would not take before: where nothing else is to do,
    /// or too many wait.
    #[inline]
    pub fn due_on(&mut self, peers: &mut Peers, is_idle: bool) {
        if !self.due.is_empty() && (is_idle || self.due.len() > LAZY) {
            self.due_post(peers);
        }
    }

    #[cold]
    fn due_post(&mut self, peers: &mut Peers) {
        for _ in 0..self.due.len() {
            let Some(cell) = self.due.pop() else { return };
            if !self.post(peers, cell as usize) {
                return self.due.push(cell);
            }
        }
    }

    /// Whether a cell of which the library says that its receive has ended was posted.
    #[inline]
    pub fn has_ended(&self, cell: usize) -> bool {
        self.cells[cell] == Cell::Posted
    }

    /// A message of so many bytes came before its peer was joined, and is taken when that is.
    pub fn put_early(&mut self, cell: usize, bytes: usize) {
        self.cells[cell] = Cell::Early(bytes as u32);
        self.early.push(cell as u32);
    }

    /// How many bytes stand before the payload of a cell that a peer's message holds.
    #[inline]
    fn held(&self, peer: PeerIndex, cell: usize) -> u8 {
        match self.cells.get(cell) {
            Some(&Cell::Held { peer: holder, ahead }) if holder == peer.0 => ahead,
            Some(_) | None => panic!("a receive slot that is held"),
        }
    }

    /// Where a held payload lies from `offset` on, of which `length` bytes are wanted.
    #[inline]
    pub fn payload(
        &self,
        endpoint: &SharedEndpoint,
        (peer, slot): (PeerIndex, RecvSlot),
        offset: u64,
        length: u64,
    ) -> u64 {
        let (cell, whole) = slot_parts(slot);
        let whole = u64::from(whole);
        let ahead = self.held(peer, cell);
        let fits = offset <= whole && length <= whole - offset;
        let is_one = whole <= endpoint.limits.payload_bytes_max.into();
        assert!(fits && is_one, "bytes of the payload");
        endpoint.area.cell(cell) + u64::from(ahead) + offset
    }

    /// Gives a held message's cell back.
    #[inline]
    pub fn release(&mut self, peers: &mut Peers, peer: PeerIndex, slot: RecvSlot) {
        let (cell, _) = slot_parts(slot);
        self.held(peer, cell);
        // a few of many wait for a poll that finds nothing, while nobody waits for an answer
        self.cells[cell] = Cell::Due;
        self.due.push(cell as u32);
        self.due_on(peers, false);
    }

    /// Gives back what a peer's messages hold.
    pub fn discard(&mut self, peers: &mut Peers, index: usize) {
        for cell in 0..self.cells.len() {
            if matches!(self.cells[cell], Cell::Held { peer, .. } if peer == index as u32) {
                self.again(peers, cell);
            }
        }
    }

    /// The endpoint was closed: the library has no cell any more.
    pub fn reset(&mut self) {
        while self.due.pop().is_some() {}
        while self.early.pop().is_some() {}
        for cell in self.cells.iter_mut() {
            if !matches!(cell, Cell::Held { .. }) {
                *cell = Cell::Unused;
            }
        }
    }
}
