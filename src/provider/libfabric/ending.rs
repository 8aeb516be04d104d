//! How peers begin and end: prepared, joined, failed, fenced, closed; and the whole endpoint.

use super::area::{CELLS, SENDS};
use super::domain::turns::Act;
use super::message::{CUTS_WORDS, KeyWords, READS_BRIEF, word_token};
use super::peer::{
    Answer, AnswerState, Down, Ending, KEYS, Lingering, Part, Peer, Sent, State, Told, Use,
    key_place, wants,
};
use super::rail::{Cell, Libfabric, Name, Open};
use super::report::errno;
use super::sys::{Code, numbers as n};
use super::{Hello, PeerOpenError, Step};
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::fabric::{CloseError, Completion, DownCause, RailKey};
use crate::provider::events::Events;

/// How long a peer's ops may take to end by themselves after its end, before they are answered for,
/// and how long a library may have no memory for a peer to which nothing is under way.
pub(super) const PATIENCE: Span = Span::millis(2000);
/// How long what a process has sent that is dead, or has ended its connection, may be under way.
pub(super) const DEATH: Span = Span::millis(200);

impl Libfabric<'_> {
    /// Gives a peer a number and says what its other end must know. `token` is a number that
    /// strangers do not guess, not zero; where its lower half is, the peer gets the next one.
    ///
    /// *Cost*: control path.
    pub fn peer_prepare(&mut self, peer: PeerIndex, token: u32) -> Result<Hello, PeerOpenError> {
        let index = peer.as_usize();
        match self.peers.get(index) {
            Some(record) if record.state == State::Closed && token != 0 => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        if self.open.is_none() || self.health.is_lost() {
            return Err(PeerOpenError::RailLost);
        }
        if self.owes_last_word(index) {
            return Err(PeerOpenError::Again);
        }
        self.part_open(index)?;
        let token = word_token(token);
        self.told_release_all(index);
        let (left, left_ops) = self.address_leave(index);
        // what the library still has of an earlier use keeps its places, and is not counted here
        let used = self.peers[index].ops.used;
        let sends_words = !self.health.cuts_words;
        self.peers[index] = Peer { state: State::Prepared, token, sends_words, ..Peer::closed() };
        let ops = &mut self.peers[index].ops;
        (ops.used, ops.left, ops.left_ops) = (used, left, left_ops);
        for sent in &mut self.sent[index * SENDS..(index + 1) * SENDS] {
            // they were for the peer before: it gave the answers, and this one's are others
            (sent.word, sent.key_place) = (None, 0);
            (sent.touches, sent.is_read) = (false, false);
            if sent.used == Use::Drain {
                sent.used = Use::Quiet;
            }
        }
        for place in 0..KEYS {
            self.answers[index * KEYS + place] = Answer::default();
            self.told[index * KEYS + place] = Told::default();
        }
        self.peers_open += 1;
        let mut name = [0; super::rail::NAME_BYTES_MAX];
        name[..self.name_bytes].copy_from_slice(&self.name[..self.name_bytes]);
        Ok(Hello {
            name,
            name_bytes: self.name_bytes as u32,
            format: self.address_format
                | if self.traits.messages_ordered { READS_BRIEF } else { 0 }
                | if self.health.cuts_words { CUTS_WORDS } else { 0 },
            number: index as u32,
            token,
            payload_bytes_max: self.limits.payload_bytes_max,
            told: KeyWords::default(),
        })
    }

    /// [`Libfabric::peer_prepare`] that tells of a region, for which the other end need not ask: a
    /// word that is written there leaves at once, also if its writer polls no more.
    pub fn peer_prepare_telling(
        &mut self,
        peer: PeerIndex,
        token: u32,
        key: RailKey,
    ) -> Result<Hello, PeerOpenError> {
        let hello = self.peer_prepare(peer, token)?;
        let index = peer.as_usize();
        Ok(Hello { told: self.tell(index, key_place(key), key, 0), ..hello })
    }

    /// Whether the last peer of a number is owed the word that its fence waits for. Its address may
    /// be one that answers no more, and what is under way to it may never end: the number does not
    /// wait for ever.
    fn owes_last_word(&mut self, index: usize) -> bool {
        let &Peer { wants: owed, owes_word, ref ending, .. } = &self.peers[index];
        let Ending { gone, ends_since, .. } = *ending;
        let waited = self.now.since(ends_since);
        if gone.is_some() || waited >= PATIENCE {
            return false;
        }
        owes_word || owed & wants::DRAINED != 0 && waited < DEATH && !self.chores_of(index)
    }

    /// Registers a peer's part of the area and posts its cells, at its first use.
    fn part_open(&mut self, index: usize) -> Result<(), PeerOpenError> {
        if self.parts[index].registration != 0 {
            return Ok(());
        }
        let range = self.area.part(index);
        // SAFETY: a part of the reserve, which outlives the registration.
        let made = unsafe { self.domain.make(range) };
        let made = made.map_err(|code| PeerOpenError::Refused(Step::Buffers, code))?;
        let port = self.open.as_ref().map(|open| open.endpoint.port());
        let (registration, descriptor) = (made.into_raw(), made.descriptor());
        self.parts[index] = Part { registration, descriptor, port };
        self.cells_post(index);
        match self.health.is_lost() {
            true => Err(PeerOpenError::Refused(Step::Receives, Code(self.health.lost_code))),
            false => Ok(()),
        }
    }

    /// Posts the cells of a peer that nobody has.
    pub(super) fn cells_post(&mut self, index: usize) {
        for cell in index * CELLS..(index + 1) * CELLS {
            if self.cells[cell] == Cell::Unused {
                self.receive_again(cell);
            }
        }
    }

    /// Joins a prepared peer to its other end. Ops are accepted from now on. When it fails, also
    /// because the endpoint was opened anew since the peer was prepared, the peer is closed.
    ///
    /// *Cost*: control path.
    pub fn peer_connect(&mut self, peer: PeerIndex, other: &Hello) -> Result<(), PeerOpenError> {
        let index = peer.as_usize();
        match self.peers.get(index) {
            Some(record) if record.state == State::Prepared => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        let mut joined = self.join(index, other);
        if joined.is_err() {
            self.told_release_all(index);
            // of a closed number no end is told; a fence of it still is
            let record = &mut self.peers[index];
            (record.state, record.down) = (State::Closed, Down::No);
            self.peers_open -= 1;
        } else if self.peers[index].down != Down::No {
            // the endpoint that the other end was told of is no more: it hears so, since it may
            // know us already, and wait for our word, which leaves by the endpoint of today
            let _ = self.part_open(index);
            self.forget(index, false);
            joined = Err(PeerOpenError::RailLost);
        }
        joined
    }

    fn join(&mut self, index: usize, other: &Hello) -> Result<(), PeerOpenError> {
        if other.format & !(READS_BRIEF | CUTS_WORDS) != self.address_format {
            return Err(PeerOpenError::Format);
        }
        if self.open.is_none() {
            return Err(PeerOpenError::RailLost);
        }
        let address = self
            .address_of(&other.name, other.name())
            .map_err(|code| PeerOpenError::Refused(Step::Address, code))?;
        self.names[index] = other.name;
        if other.told.length != 0 {
            let place = usize::from(key_place(RailKey(other.told.key)));
            let answer = &mut self.answers[index * KEYS + place];
            (answer.words, answer.state) = (other.told, AnswerState::Good);
        }
        let record = &mut self.peers[index];
        record.address = address;
        record.name_bytes = other.name().len() as u8;
        (record.their_number, record.their_token) = (other.number as u16, other.token);
        record.payload_bytes_max = other.payload_bytes_max.min(self.limits.payload_bytes_max);
        record.reads_brief = self.traits.messages_ordered && other.format & READS_BRIEF != 0;
        record.state = State::Live;
        self.traits.carries_words &= other.format & CUTS_WORDS == 0;
        self.early_due = true;
        Ok(())
    }

    /// What the library calls an endpoint. Peers at one share its place in the vector, which is
    /// short in some libraries.
    fn address_of(&self, padded: &Name, name: &[u8]) -> Result<u64, Code> {
        let known = |(peer, name): (&Peer, &Name)| {
            // of one that is prepared anew it is the last peer's name still
            let address = if peer.state == State::Prepared { peer.ops.left } else { peer.address };
            (address != n::ADDR_UNSPEC && name == padded).then_some(address)
        };
        match (self.peers.iter().zip(self.names.iter()).find_map(known), self.open.as_ref()) {
            (Some(address), _) => Ok(address),
            (None, Some(Open { vector, .. })) => {
                let _turn = self.domain.turn(Act::Control);
                vector.insert(name)
            }
            (None, _) => Err(Code(libc::ENODEV)),
        }
    }

    /// The endpoint was closed, and nothing more of ours is posted: peers are told, who may have
    /// others and must not lose their endpoint for us. They know our old address alone, but take
    /// our word from any, as that of a closed endpoint.
    fn say_closed(&mut self) {
        for index in 0..self.peers.len() {
            let record = &self.peers[index];
            // what was said to one that was forgotten lately may have been lost with the endpoint
            let is_forgotten = record.state == State::Closed
                && record.name_bytes != 0
                && record.ending.gone.is_none()
                && self.now.since(record.ending.ends_since) < PATIENCE;
            let knows_us = record.state == State::Live || record.owes_word || is_forgotten;
            if !knows_us || self.part_open(index).is_err() {
                continue;
            }
            let padded = self.names[index];
            let length = usize::from(self.peers[index].name_bytes);
            if let Ok(address) = self.address_of(&padded, &padded[..length]) {
                self.peers[index].address = address;
                self.peers[index].owes_word = true;
                self.say_drained(index);
            }
        }
    }

    /// A peer's number is given anew: the address of its last peer, and the ops that are under way
    /// to it. Where nothing is, it is taken out of the vector. It is not before: `efa` ends no op
    /// whose address was taken out.
    fn address_leave(&mut self, index: usize) -> (u64, u64) {
        let record = &mut self.peers[index];
        let address = core::mem::replace(&mut record.address, n::ADDR_UNSPEC);
        let left = core::mem::replace(&mut record.ops.left, n::ADDR_UNSPEC);
        if record.ops.used == 0 {
            self.address_remove(address);
            return (n::ADDR_UNSPEC, 0);
        }
        // of two addresses to which something is under way the older one stays, which takes memory
        (if address == n::ADDR_UNSPEC { left } else { address }, record.ops.used)
    }

    /// Something of a number's last peer is not under way any more.
    #[cold]
    pub(super) fn left_retired(&mut self, index: usize, bit: u64) {
        let record = &mut self.peers[index];
        record.ops.left_ops &= !bit;
        if record.ops.left_ops == 0 {
            let left = core::mem::replace(&mut record.ops.left, n::ADDR_UNSPEC);
            self.address_remove(left);
        }
    }

    /// Takes an address out of the vector, unless a peer is at it.
    fn address_remove(&mut self, address: u64) {
        let is_shared =
            self.peers.iter().any(|peer| [peer.address, peer.ops.left].contains(&address));
        if address != n::ADDR_UNSPEC
            && !is_shared
            && let Some(Open { vector, .. }) = self.open.as_ref()
        {
            let _turn = self.domain.turn(Act::Control);
            vector.remove(address);
        }
    }

    /// The peer is gone, for the first cause that is heard: nothing is posted to it any more; what
    /// has come is still reported, then its end.
    #[cold]
    pub(super) fn end(&mut self, index: usize, cause: DownCause) {
        let record = &mut self.peers[index];
        if record.down != Down::No || record.state == State::Closed {
            return;
        }
        record.down = Down::Due(match cause {
            DownCause::Broken(code) => DownCause::Broken(errno(code)),
            cause => cause,
        });
        record.ending.is_timed = false;
        self.mark_ending(index);
    }

    /// The side band says that a peer has ended. Whoever is gone may not say its word any more:
    /// what it has sent is waited for.
    #[cold]
    pub(super) fn hear(&mut self, index: usize, cause: DownCause) {
        let is_live = self.peers[index].state == State::Live;
        match cause {
            DownCause::Died if is_live => self.outlast(index, DEATH),
            // its word goes with its endpoint, if that is closed, too; it may have closed without
            // having fenced us
            DownCause::Closed if is_live => self.outlast_closed(index, Lingering::Closed),
            DownCause::Died | DownCause::Closed => {}
            // it may live: its word is waited for, or the library's that nobody is there, or the
            // endpoint's end
            DownCause::Severed | DownCause::Unheard | DownCause::Silent => {}
            DownCause::Failed | DownCause::Broken(_) => {}
        }
        if matches!(cause, DownCause::Severed | DownCause::Unheard) {
            self.peers[index].ending.doubt = Some(cause);
        }
        self.health.unheard |= cause == DownCause::Unheard;
        self.end(index, cause);
    }

    pub(super) fn mark_ending(&mut self, index: usize) {
        let record = &mut self.peers[index];
        if !record.is_ending {
            record.is_ending = true;
            self.endings += 1;
        }
    }

    /// Goes on with every peer that is ending or being fenced. `is_empty`: all that had come has
    /// been taken.
    #[cold]
    pub(super) fn end_peers(&mut self, is_empty: bool, events: &mut Events) {
        for index in 0..self.peers.len() {
            if self.peers[index].is_ending {
                self.end_on(index, is_empty, events);
            }
        }
    }

    fn end_on(&mut self, index: usize, is_empty: bool, events: &mut Events) {
        let now = self.now;
        let record = &mut self.peers[index];
        if !record.ending.is_timed {
            (record.ending.is_timed, record.ending.ends_since) = (true, now);
        }
        let is_all_here = record.is_fenced
            || record.ending.awaited_count.is_none_or(|count| count == record.seen_count)
            || now.since(record.ending.ends_since) >= DEATH;
        if let Down::Due(cause) = record.down
            && is_empty
            && is_all_here
            && events.has_room()
        {
            record.down = Down::Told;
            events.push(Completion::PeerDown { peer: PeerIndex(index as u32), cause });
        }
        let waited = now.since(self.peers[index].ending.ends_since);
        let record = &mut self.peers[index];
        if let Some(span) = record.ending.gone
            && is_empty
            && !record.ending.is_attested
        {
            record.ending.gone_polls = record.ending.gone_polls.saturating_sub(1);
            record.ending.is_attested = waited >= span && record.ending.gone_polls == 0;
            if record.ending.is_attested {
                self.told_release_all(index);
            }
        }
        let record = &self.peers[index];
        let is_told = record.down == Down::Told;
        if is_told && (record.ending.is_cut || waited >= PATIENCE) {
            self.answer_for(index, events);
        }
        if !self.peers[index].ending.fences.is_empty() {
            self.fence_on(index, waited);
        }
        let record = &mut self.peers[index];
        let is_told = matches!(record.down, Down::Told | Down::No);
        // of a fenced peer, ops whose ends the library says are not waited for here
        let others_end = record.down == Down::No;
        if is_told && record.ending.fences.is_empty() && (others_end || record.ops.in_flight == 0) {
            record.is_ending = false;
            self.endings -= 1;
        }
    }

    /// Answers for ops that the library does not give back. Unless its endpoint was closed, it
    /// still has them: what they hold stays held.
    fn answer_for(&mut self, index: usize, events: &mut Events) {
        let error = self.peers[index].cut_off();
        for op in index * SENDS..(index + 1) * SENDS {
            if self.sent[op].used == Use::Loud && events.has_room() {
                let (peer, id) = (PeerIndex(index as u32), self.sent[op].id);
                events.push(Completion::Done { peer, id, result: Err(error) });
                self.peers[index].ops.in_flight -= 1;
                if self.peers[index].ending.is_cut {
                    self.sent[op] = Sent::FREE;
                    self.peers[index].ops.used &= !(1 << (op % SENDS));
                } else {
                    self.sent[op].used = Use::Quiet;
                    self.health.orphans += 1;
                }
            }
        }
    }

    pub(super) fn closable(&self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.peers.get(peer.as_usize()) {
            None => Err(CloseError::Stale),
            Some(record) if record.state == State::Closed => Err(CloseError::Stale),
            Some(record) if record.ops.in_flight > 0 => Err(CloseError::Busy),
            Some(_) => Ok(()),
        }
    }

    /// Forgets a peer without ops in flight. What it sent and is held stays, unless it is to be
    /// discarded. Its other end is told, as far as it can be, and may still ask.
    pub(super) fn forget(&mut self, index: usize, discard: bool) {
        self.peers[index].owes_word = true;
        self.say_drained(index);
        self.told_release_all(index);
        self.probes.end(index);
        let record = &mut self.peers[index];
        (record.state, record.ending.ends_since) = (State::Closed, self.now);
        record.report = None;
        record.ops.words_due = 0;
        record.wants &= wants::DRAINED;
        if record.is_ending {
            record.is_ending = false;
            self.endings -= 1;
        }
        for op in index * SENDS..(index + 1) * SENDS {
            if self.sent[op].used == Use::WordDue {
                self.sent[op] = Sent::FREE;
                self.peers[index].ops.used &= !(1 << (op % SENDS));
            }
        }
        self.ask_end(index);
        self.peers_open -= 1;
        for cell in 0..if discard { self.cells.len() } else { 0 } {
            if matches!(self.cells[cell], Cell::Held { peer, .. } if peer == index as u32) {
                self.receive_again(cell);
            }
        }
    }

    /// Opens the endpoint anew, after its NIC has failed: closes registrations, endpoint, queue
    /// and vector, which fences everything, ends every peer, and registers every region again
    /// under the key that it has. Peers must be closed and opened again, with new hellos.
    ///
    /// *Errors*: the step that was refused; the rail is lost, and may be tried again.
    ///
    /// *Cost*: control path. Threads that register wait meanwhile, not until it succeeds.
    pub fn reopen(&mut self) -> Result<(), PeerOpenError> {
        if self.health.lost_code == 0 {
            self.health.lost_code = libc::ENETDOWN;
        }
        self.endpoint_close(false);
        let cause = DownCause::Broken(self.health.lost_code);
        (self.batch_at, self.batch_count, self.watch.failures) = (0, 0, 0);
        self.watch.has_more = false;
        while self.due.pop().is_some() {}
        while self.early.pop().is_some() {}
        for cell in self.cells.iter_mut() {
            if !matches!(cell, Cell::Held { .. }) {
                *cell = Cell::Unused;
            }
        }
        for index in 0..self.peers.len() {
            self.end(index, cause);
            self.peers[index].ending.is_attested = true;
            (self.peers[index].address, self.peers[index].ops.left) =
                (n::ADDR_UNSPEC, n::ADDR_UNSPEC);
            self.peers[index].ops.left_ops = 0;
            self.told_release_all(index);
            self.cut_off(index);
        }
        let opened = self.endpoint_open();
        let restored = opened.and_then(|()| self.domain.restore());
        self.domain.admit();
        self.health.refused = restored.err();
        let lost_code = self.health.lost_code;
        if opened.is_ok() {
            (self.health.lost_code, self.health.unheard) = (0, false);
            self.say_closed();
        }
        if let Err((step, code)) = restored {
            // nobody is joined; but peers waited for that word, and have it with the next polls
            self.health.lost_code = lost_code;
            return Err(PeerOpenError::Refused(step, code));
        }
        self.health.reopened += 1;
        Ok(())
    }

    /// The library has nothing of a peer's any more: what was accepted ends with the next polls.
    fn cut_off(&mut self, index: usize) {
        for op in index * SENDS..(index + 1) * SENDS {
            let sent = self.sent[op];
            if let Some(region) = sent.pin.checked_sub(1) {
                self.domain.release(region);
            }
            (self.sent[op].pin, self.sent[op].key_place) = (0, 0);
            if sent.used != Use::Loud {
                self.sent[op] = Sent::FREE;
                self.peers[index].ops.used &= !(1 << (op % SENDS));
            }
        }
        let record = &mut self.peers[index];
        record.ending.is_cut = true;
        (record.ops.touching, record.ops.reads, record.ops.words_due, record.wants) = (0, 0, 0, 0);
        for place in 0..KEYS {
            self.answers[index * KEYS + place] = Answer::default();
        }
        self.ask_end(index);
    }
}
