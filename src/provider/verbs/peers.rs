//! The peers of a rail: their records, what all of them share, and how they end: by a failed
//! request, by the side band, by a fence, by a close.

use super::area::Area;
use super::closer::Closer;
use super::domain::VerbsDomain;
use super::peer::{Down, Peer, Receives, State};
use super::poll::slot_parts;
use super::report::{ErrorReport, SILENT};
use super::sends::{CHAIN, Chain, Link, Ring, SENDS, Sent};
use super::sys::abi::Gid;
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::{CloseError, Completion, DownCause, HEAD_BYTES, PostError, RecvSlot};
use crate::provider::asides::Aside;
use crate::provider::events::Events;
use crate::provider::fifo::Fifo;
use crate::provider::ops::Ops;

pub const ROOM: &str = "the block is as long as `bytes` says";
/// Fences, and ops that were refused for a key of our own, per peer.
const ASIDES: u32 = 4;

fn asides(peers_max: u32) -> usize {
    (peers_max * ASIDES) as usize
}

/// What [`Peers::carve`] cuts.
pub fn bytes(peers_max: u32) -> usize {
    let peers = peers_max as usize;
    bytes_for::<Peer>(peers)
        + bytes_for::<Ring>(peers)
        + bytes_for::<Chain>(peers)
        + bytes_for::<Aside>(asides(peers_max))
        + 2 * bytes_for::<u32>(peers.next_power_of_two())
}

/// What peers may do, by the device and the settings: it does not change.
#[derive(Copy, Clone, Debug)]
pub struct Abilities {
    /// Whether a doorbell is a system call.
    pub is_software: bool,
    pub has_atomics: bool,
    /// Most parts of a write that are asked for.
    pub parts_max: u8,
    /// Reads and adds in flight at most: ours to one peer, and a peer's to us.
    pub reads_max: u8,
    pub answers_max: u8,
    /// Longest write or read.
    pub message_bytes_max: u32,
    /// Longest payload of a send.
    pub payload_bytes_max: u32,
    /// See [`Config::adaptive_bytes_min`](super::Config::adaptive_bytes_min); the largest number:
    /// never.
    pub adaptive_bytes_min: u64,
}

impl Abilities {
    /// Whether packets of a queue pair take one way, so that writes land in the order of posts.
    #[inline]
    pub fn is_ordered(&self) -> bool {
        self.adaptive_bytes_min == u64::MAX
    }
}

/// All peers of a rail.
#[derive(Debug)]
pub struct Peers<'m> {
    pub abilities: Abilities,
    pub domain: VerbsDomain<'m>,
    pub area: Area,
    pub records: &'m mut [Peer],
    pub sent: &'m mut [Ring],
    pub chains: &'m mut [Chain],
    pub asides: Ops<'m, Aside>,
    /// Those with something to send.
    pub dirty: Fifo<'m, u32>,
    /// Those with ends to report that found no room; each once.
    pub owing: Fifo<'m, u32>,
    /// The last that has cells to be posted again.
    pub due: Option<u32>,
    /// How many are open.
    pub open: u32,
    /// Ends that are to be told, and peers whose fences wait.
    pub endings: u32,
    closer: Closer,
}

impl<'m> Peers<'m> {
    /// Cuts records for so many out of `block`, which has room for them.
    pub fn carve(
        block: &mut Carver<'m>,
        peers_max: u32,
        domain: VerbsDomain<'m>,
        area: Area,
        abilities: Abilities,
    ) -> Peers<'m> {
        let count = peers_max as usize;
        let records = block.filled_with(count, Peer::unused).expect(ROOM);
        let sent = block.filled(count, [Sent::quiet(0); SENDS as usize]).expect(ROOM);
        let chains = block.filled(count, [Link::FREE; CHAIN]).expect(ROOM);
        let asides = Ops::new(block.slice::<Aside>(asides(peers_max)).expect(ROOM));
        let queue = count.next_power_of_two();
        let [dirty, owing] = [(); 2].map(|()| Fifo::new(block.slice::<u32>(queue).expect(ROOM)));
        let closer = Closer::new(peers_max);
        let (due, open, endings) = (None, 0, 0);
        Peers {
            abilities,
            domain,
            area,
            records,
            sent,
            chains,
            asides,
            dirty,
            owing,
            due,
            open,
            endings,
            closer,
        }
    }

    /// A peer, if there is such a number.
    #[inline]
    pub fn get(&self, peer: PeerIndex) -> Option<&Peer> {
        self.records.get(peer.as_usize())
    }

    /// The place of a peer that takes ops other than fences.
    #[inline]
    pub fn open_at(&self, peer: PeerIndex) -> Result<usize, PostError> {
        match self.get(peer).is_some_and(|peer| peer.takes_ops()) {
            true => Ok(peer.as_usize()),
            false => Err(PostError::PeerDown),
        }
    }

    /// Whether one is in this state.
    pub fn has(&self, state: State) -> bool {
        self.records.iter().any(|peer| peer.state == state)
    }

    /// Whether there is nothing to report or to hand to the device.
    pub fn is_quiet(&self) -> bool {
        self.dirty.is_empty()
            && self.owing.is_empty()
            && self.asides.none_done()
            && self.endings == 0
    }

    /// Where a held payload lies from `offset` on, of which `length` bytes are wanted.
    #[inline]
    pub fn payload(&self, peer: PeerIndex, slot: RecvSlot, offset: u64, length: u64) -> u64 {
        let (cell, whole) = slot_parts(slot);
        let whole = u64::from(whole);
        let receives = &self.records[peer.as_usize()].receives;
        assert!(receives.is_held(cell), "a receive slot that is held");
        let fits = offset <= whole && length <= whole - offset;
        assert!(fits && whole <= self.abilities.payload_bytes_max.into(), "bytes of the payload");
        self.area.head(peer.as_usize(), cell) as u64 + HEAD_BYTES as u64 + offset
    }

    /// A cell that is held is free again, and posted at once or with a few others: without those
    /// the peer has enough, so that the credit for it may be there first.
    #[inline]
    pub fn slot_free(&mut self, index: usize, slot: RecvSlot) {
        let (cell, _) = slot_parts(slot);
        let receives = &mut self.records[index].receives;
        assert!(receives.is_held(cell), "a receive slot that is held");
        receives.held &= !(1 << cell);
        self.receive_again(index, cell);
    }

    /// The peer is gone, for the first cause that is heard: nothing is sent to it any more; what
    /// has come is still reported, then its end.
    #[cold]
    pub fn end(&mut self, index: usize, cause: DownCause) {
        let record = &mut self.records[index];
        if record.down != Down::No || record.state == State::Closed {
            return;
        }
        record.down = Down::Due(cause);
        self.endings += 1;
        record.drain(index);
    }

    /// Ends every peer in one of these states.
    #[cold]
    pub fn end_all(&mut self, states: &[State], cause: DownCause) {
        for index in 0..self.records.len() {
            if states.contains(&self.records[index].state) {
                self.end(index, cause);
            }
        }
    }

    /// Ends the peer whose queue pair an event is about.
    pub fn end_element(&mut self, element: u64, cause: DownCause) {
        let is = |peer: &Peer| peer.qp.as_ref().is_some_and(|qp| qp.is(element));
        if let Some(index) = self.records.iter().position(is) {
            self.end(index, cause);
        }
    }

    /// Goes on with every peer that is ending or being fenced: on a device that `is_gone` or not,
    /// and with all completions taken or not. `undrained` counts those that were late.
    #[cold]
    pub fn end_peers(
        &mut self,
        now: Instant,
        (is_gone, is_taken): (bool, bool),
        undrained: &mut u32,
        events: &mut Events,
    ) {
        for index in 0..self.records.len() {
            let (record, is_empty) = (&mut self.records[index], is_taken && events.has_room());
            if record.state == State::Draining && record.drain_on(now, is_gone, is_empty, undrained)
            {
                let error = record.cut_off();
                record.sends.cut_off(&mut self.sent[index], &self.domain, error);
            }
            if record.state == State::Drained && self.report(index, events) {
                self.finish_end(index, events);
            }
        }
    }

    /// All ops but fences are reported: so are those now, and the end.
    fn finish_end(&mut self, index: usize, events: &mut Events) {
        let mut fences = core::mem::take(&mut self.records[index].fences);
        self.endings -= u32::from(!fences.is_empty());
        while let Some(fence) = self.asides.take_first(&mut fences) {
            self.asides.finish(fence);
        }
        let record = &mut self.records[index];
        if let Down::Due(cause) = record.down
            && events.has_room()
        {
            record.down = Down::Told;
            self.endings -= 1;
            events.push(Completion::PeerDown { peer: PeerIndex(index as u32), cause });
        }
    }

    /// Looks for silent peers of a rail with this GID, behind a poll that has taken every
    /// completion there was.
    #[cold]
    pub fn end_silent(&mut self, local: Gid) {
        for index in 0..self.records.len() {
            let record = &mut self.records[index];
            if !record.takes_ops() {
                continue;
            }
            if record.looks.is_silent(record.sends.ended, record.sends.is_undelivered()) {
                let (status, vendor, was_send) = (SILENT, 0, true);
                let remote = record.terms.gid;
                let report = ErrorReport { status, vendor, was_send, local, remote };
                record.report.get_or_insert(report);
                self.end(index, DownCause::Broken(libc::ETIMEDOUT));
            } else {
                // of what nobody waits for nothing would be heard
                self.ask(index);
            }
        }
    }

    /// Forgets a peer without ops in flight. What it sent and is held stays, unless it is to be
    /// discarded.
    pub fn forget(&mut self, peer: PeerIndex, discard: bool) -> Result<(), CloseError> {
        let index = peer.as_usize();
        match self.get(peer).filter(|record| record.state != State::Closed) {
            None => return Err(CloseError::Stale),
            Some(record) if record.sends.in_flight > 0 => return Err(CloseError::Busy),
            Some(_) => self.ring(index),
        }
        let record = &mut self.records[index];
        self.endings -= u32::from(matches!(record.down, Down::Due(_)));
        record.close(&mut self.closer);
        *record = record.closed(record.generation);
        if discard {
            record.receives = Receives::default();
            self.area.release(index);
        }
        self.open -= 1;
        Ok(())
    }

    /// Closes every peer, and waits until their queue pairs are destroyed.
    pub fn close_all(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.state != State::Closed) {
            record.down = Down::Told;
            record.close(&mut self.closer);
        }
        self.closer.finish();
    }

    /// Closes one whose queue pair has failed.
    pub fn close(&mut self, index: usize) {
        self.records[index].close(&mut self.closer);
    }
}
