//! What rails say to each other: about keys, and about the end of a connection.

use super::area::SENDS;
use super::message::{
    AT_CLOSED, IN_ORDER, KEY_MESSAGE_BYTES, KeyWords, Kind, PREFIX_BYTES, Prefix,
};
use super::peer::{Answer, AnswerState, Down, KEYS, Lingering, Sent, State, Told, Use, wants};
use super::rail::Libfabric;
use super::sys::{Code, numbers as n};
use crate::base::units::Span;
use crate::fabric::{DownCause, RailKey};

const KEY_WORDS: usize = KEY_MESSAGE_BYTES - PREFIX_BYTES;

/// How often a question is asked again that a breaking connection may have lost.
pub(super) const AGAIN: Span = Span::millis(100);

impl Libfabric<'_> {
    /// Asks a peer about a key, if it is not asked about another one.
    #[cold]
    pub(super) fn ask(&mut self, index: usize, key: RailKey, place: u8) {
        let answer = &mut self.answers[index * KEYS + usize::from(place)];
        let record = &mut self.peers[index];
        let is_asking = record.keys.asked != KeyWords::default();
        if is_asking {
            return;
        }
        let words = KeyWords { key: key.0, ..KeyWords::default() };
        let count = record.keys.ask_count.wrapping_add(1);
        *answer = Answer { words, state: AnswerState::Asked, count, ..Answer::default() };
        (record.keys.asked, record.keys.ask_place, record.keys.ask_count) = (words, place, count);
        if self.asks == 0 {
            // the first of those without an answer says when they are asked again
            self.asked_at = self.now;
        }
        self.asks += 1;
        self.want(index, wants::ASK);
    }

    /// Asks again what was not answered in time: a library may lose what it was told to copy.
    #[cold]
    pub(super) fn ask_again(&mut self) {
        if self.now.since(self.asked_at) < AGAIN {
            return;
        }
        self.asked_at = self.now;
        for index in 0..self.peers.len() {
            let record = &self.peers[index];
            if record.keys.asked != KeyWords::default() && record.takes_ops() {
                self.want(index, wants::ASK);
            }
        }
    }

    /// Nothing is asked of a peer any more.
    pub(super) fn ask_end(&mut self, index: usize) {
        let record = &mut self.peers[index];
        if record.keys.asked != KeyWords::default() {
            record.keys.asked = KeyWords::default();
            self.asks -= 1;
        }
    }

    /// Owes a peer a message, and sends it if there is room now.
    pub(super) fn want(&mut self, index: usize, what: u8) {
        self.peers[index].wants |= what;
        self.has_chores = true;
        self.chores_of(index);
    }

    /// Sends what is owed to peers, as far as there is room.
    #[cold]
    pub(super) fn chores(&mut self) {
        self.has_chores = false;
        for index in 0..self.peers.len() {
            if self.peers[index].has_chores() {
                self.has_chores |= !self.chores_of(index);
            }
        }
    }

    /// Whether nothing is left.
    pub(super) fn chores_of(&mut self, index: usize) -> bool {
        if self.peers[index].address == n::ADDR_UNSPEC {
            let record = &mut self.peers[index];
            (record.wants, record.ops.words_due) = (0, 0);
            return true;
        }
        while self.peers[index].ops.words_due != 0 {
            let op = self.peers[index].ops.words_due.trailing_zeros() as usize;
            let word = self.sent[index * SENDS + op].word.unwrap_or(0);
            match self.word_message(index, word) {
                Ok(()) => {}
                Err(Code::AGAIN) => return self.chore_refused(index),
                Err(code) => self.end(index, DownCause::Broken(code.0)),
            }
            let record = &mut self.peers[index];
            record.ops.words_due &= !(1 << op);
            record.ops.used &= !(1 << op);
            self.sent[index * SENDS + op] = Sent::FREE;
        }
        while self.peers[index].wants != 0 {
            let what = 1 << self.peers[index].wants.trailing_zeros();
            match self.control_send(index, what) {
                Ok(()) => {}
                Err(Code::AGAIN) => return self.chore_refused(index),
                Err(code) => {
                    if what == wants::DRAIN {
                        self.drain_failed(index, code.0, 0);
                    }
                    self.end(index, DownCause::Broken(code.0));
                }
            }
            self.peers[index].wants &= !what;
        }
        true
    }

    /// There was no room for what is owed to a peer: it is left.
    #[cold]
    fn chore_refused(&mut self, index: usize) -> bool {
        self.peers[index].was_refused(self.now);
        false
    }

    fn control_send(&mut self, index: usize, what: u8) -> Result<(), Code> {
        let record = &self.peers[index];
        let writer = KeyWords { key: record.token.into(), ..KeyWords::default() };
        let (kind, place, words, count) = match what {
            wants::ASK => {
                (Kind::Ask, record.keys.ask_place, record.keys.asked, record.keys.ask_count)
            }
            wants::TELL => {
                (Kind::Tell, record.keys.tell_place, record.keys.told, record.keys.tell_count)
            }
            wants::REVOKE => {
                let place = record.keys.revoking.wrapping_sub(1);
                (Kind::Revoke, place, record.keys.revoked, record.keys.revoke_count)
            }
            wants::GIVEN_BACK => {
                let place = record.keys.giving.unwrap_or(0);
                (Kind::GivenBack, place, record.keys.given, record.keys.give_count)
            }
            wants::DRAIN if record.down == Down::No => (Kind::Drain, IN_ORDER, writer, 0),
            wants::DRAIN => (Kind::Drain, 0, writer, 0),
            // what our closed endpoint had posted has ended for us alone
            _ if record.ending.is_cut => (Kind::Drained, AT_CLOSED, writer, 0),
            _ => (Kind::Drained, 0, writer, 0),
        };
        let prefix = self.prefix(index, kind, place, count).encode();
        let words = words.encode();
        let last = (words.as_ptr() as u64, 0);
        let is_watched = self.peers[index].is_drain_watched();
        let sent = match what {
            // SAFETY: bytes on the stack.
            wants::DRAIN if is_watched => unsafe {
                self.message_as(index, &[&prefix, &words], last, (Use::Drain, 0))
            },
            // SAFETY: as above.
            _ => unsafe { self.message(index, &[&prefix, &words], last) },
        };
        if what == wants::DRAIN {
            self.peers[index].ending.is_bounced = sent.is_err();
        }
        sent?;
        if what == wants::GIVEN_BACK {
            self.peers[index].keys.giving = None;
        }
        Ok(())
    }

    /// Takes a message that is no send and no word.
    #[cold]
    pub(super) fn control_received(&mut self, index: usize, prefix: &Prefix, words: &[u8]) {
        let Some(words) = words.first_chunk::<KEY_WORDS>().map(KeyWords::decode) else {
            self.health.strange += 1;
            return;
        };
        let place = prefix.place;
        if usize::from(place) >= KEYS {
            self.health.strange += 1;
            return;
        }
        let is_end = matches!(prefix.kind, Kind::Drain | Kind::Drained);
        if is_end && words.key != u64::from(self.peers[index].their_token) {
            // of an end that was told of this one before, and is no more
            self.health.strange += 1;
            return;
        }
        if is_end && !self.traits.messages_ordered {
            self.peers[index].ending.awaited_count = Some(prefix.number);
        }
        let count = prefix.word;
        match prefix.kind {
            Kind::Ask => self.asked(index, place, RailKey(words.key), count),
            Kind::Tell => self.told(index, place, words, count),
            Kind::Revoke => self.revoked(index, place, words, count),
            Kind::GivenBack => self.given_back(index, place, count),
            Kind::Drain => self.drain_asked(index, place == IN_ORDER),
            Kind::Drained if place == AT_CLOSED => self.was_closed(index),
            Kind::Drained => self.drained(index),
            Kind::Send | Kind::Brief | Kind::Word => {}
        }
    }

    /// The peer wants to use a region: it is told, and holds it from now on.
    fn asked(&mut self, index: usize, place: u8, key: RailKey, count: u32) {
        if self.peers[index].is_fenced || self.peers[index].state != State::Live {
            return; // it will not write here any more
        }
        let last = self.told[index * KEYS + usize::from(place)].count;
        if (count.wrapping_sub(last) as i32) < 0 {
            return; // asked once more, and overtaken by the next question or by what ended this one
        }
        let record = &self.peers[index];
        let said = (record.keys.tell_place, record.keys.tell_count, record.keys.told.key);
        if said == (place, count, key.0) && self.told[index * KEYS + usize::from(place)].region != 0
        {
            // the same question once more: what it got is what the peer holds
            return self.want(index, wants::TELL);
        }
        let words = self.tell(index, place, key, count);
        let record = &mut self.peers[index];
        (record.keys.told, record.keys.tell_place, record.keys.tell_count) = (words, place, count);
        self.want(index, wants::TELL);
    }

    /// What is said of a region to a peer, which holds it from now on.
    pub(super) fn tell(&mut self, index: usize, place: u8, key: RailKey, count: u32) -> KeyWords {
        self.told_release(index, usize::from(place));
        let gone = KeyWords { key: key.0, ..KeyWords::default() };
        self.told[index * KEYS + usize::from(place)].count = count;
        let Some((region, range)) = self.domain.hold_whole(key) else { return gone };
        let Some(library_key) = self.domain.library_key(region) else {
            self.domain.release_whole(region);
            return gone;
        };
        self.told[index * KEYS + usize::from(place)].region = region + 1;
        KeyWords { library_key, start: range.start, length: range.length, ..gone }
    }

    fn told(&mut self, index: usize, place: u8, words: KeyWords, count: u32) {
        let record = &mut self.peers[index];
        let is_asked = record.keys.asked.key == words.key && record.keys.ask_place == place;
        if !is_asked || record.keys.ask_count != count {
            return;
        }
        self.ask_end(index);
        let record = &mut self.peers[index];
        (record.ops.ended, record.keys.has_answered) = (record.ops.ended.wrapping_add(1), true);
        let state = if words.length == 0 { AnswerState::Gone } else { AnswerState::Good };
        self.answers[index * KEYS + usize::from(place)] =
            Answer { words, state, count, ..Answer::default() };
    }

    /// The peer wants a region back, of which it has told in answer to a question.
    fn revoked(&mut self, index: usize, place: u8, words: KeyWords, count: u32) {
        let record = &mut self.peers[index];
        (record.keys.giving, record.keys.given, record.keys.give_count) =
            (Some(place), words, count);
        let answer = &mut self.answers[index * KEYS + usize::from(place)];
        let is_its = answer.words.key == words.key && answer.count == count;
        match answer.state {
            AnswerState::Good if is_its => answer.is_revoked = true,
            // it has overtaken the answer, which is no good any more when it comes
            AnswerState::Asked if is_its => {
                *answer = Answer::default();
                self.peers[index].wants &= !wants::ASK;
                self.ask_end(index);
            }
            AnswerState::Good | AnswerState::Asked | AnswerState::Empty | AnswerState::Gone => {}
        }
        self.give_back(index, usize::from(place));
    }

    /// Gives a region back that nothing of ours uses any more.
    pub(super) fn give_back(&mut self, index: usize, place: usize) {
        let answer = &mut self.answers[index * KEYS + place];
        if answer.users > 0 && answer.is_revoked {
            return;
        }
        if answer.is_revoked {
            *answer = Answer::default();
        }
        self.want(index, wants::GIVEN_BACK);
    }

    fn given_back(&mut self, index: usize, place: u8, count: u32) {
        let record = &mut self.peers[index];
        if record.keys.revoking == place + 1 && record.keys.revoke_count == count {
            record.keys.revoking = 0;
        }
        let told = &mut self.told[index * KEYS + usize::from(place)];
        // a place that was told of something since keeps that
        if told.count == count {
            told.count = count.wrapping_add(1);
            self.told_release(index, usize::from(place));
        }
    }

    fn told_release(&mut self, index: usize, place: usize) {
        let region = core::mem::take(&mut self.told[index * KEYS + place].region);
        if region != 0 {
            self.domain.release_whole(region - 1);
        }
    }

    /// Nothing of the peer's is under way any more: it holds nothing.
    pub(super) fn told_release_all(&mut self, index: usize) {
        for place in 0..KEYS {
            self.told_release(index, place);
        }
        self.peers[index].keys.revoking = 0;
    }

    /// Asks peers for regions that were to be deregistered, one at a time of each.
    #[cold]
    pub(super) fn revoke_wanted(&mut self) {
        let domain = self.domain;
        domain.look_for_wanted(|| self.revoke_told());
    }

    /// Whether peers hold some that are wanted.
    fn revoke_told(&mut self) -> bool {
        let mut left = false;
        for index in 0..self.peers.len() {
            for place in 0..KEYS {
                let Told { region, count } = self.told[index * KEYS + place];
                if region == 0 || !self.domain.wants(region - 1) {
                    continue;
                }
                left = true;
                if self.peers[index].keys.revoking == 0 {
                    let key = self.domain.key_at(region - 1).0;
                    let record = &mut self.peers[index];
                    (record.keys.revoking, record.keys.revoke_count) = (place as u8 + 1, count);
                    record.keys.revoked = KeyWords { key, ..KeyWords::default() };
                    self.want(index, wants::REVOKE);
                }
            }
        }
        left
    }

    /// The peer fences us: nothing more is posted, and it is told when all has ended. That more
    /// than this closes in good order, or that the lane has failed after all, it says elsewhere.
    fn drain_asked(&mut self, index: usize, in_order: bool) {
        self.peers[index].owes_word = true;
        self.end(index, if in_order { DownCause::Closed } else { DownCause::Broken(0) });
        self.say_drained(index);
    }

    /// Says that nothing of ours is under way, if so and if it is owed.
    pub(super) fn say_drained(&mut self, index: usize) {
        let record = &mut self.peers[index];
        if record.owes_word && record.ops.touching == 0 {
            record.owes_word = false;
            self.want(index, wants::DRAINED);
        }
    }

    /// The peer has said that nothing of its is under way. That this is the end of more than a lane
    /// only the side band says.
    fn drained(&mut self, index: usize) {
        self.peers[index].ending.is_attested = true;
        self.end(index, DownCause::Broken(0));
        self.told_release_all(index);
    }

    /// The peer's endpoint was closed, maybe to be opened anew. It posts nothing more, but what it
    /// had posted may still come: a kernel goes on sending what a closed socket has, and this word
    /// has taken another way. Whatever is sent to the old address has that kernel stop.
    fn was_closed(&mut self, index: usize) {
        let record = &self.peers[index];
        if record.state == State::Live && !record.ending.is_attested {
            self.outlast_closed(index, Lingering::Ended);
            if self.peers[index].is_fenced {
                self.want(index, wants::DRAIN);
            }
        }
        self.end(index, DownCause::Broken(0));
    }

    /// Whether an op's place may be used again.
    pub(super) fn op_is_free(&self, op: usize) -> bool {
        self.sent[op].used == Use::Free
    }
}
