//! What rails ask and tell each other about keys of regions.

use super::domain::LibfabricDomain;
use super::message::{KeyWords, Prefix};
use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::units::{Instant, Span};
use crate::fabric::RailKey;

/// Answers about keys that are kept of each peer.
pub const KEYS: usize = 64;
/// How often a question is asked again that a breaking connection may have lost.
pub const AGAIN: Span = Span::millis(100);

const _: () = assert!(KEYS <= u8::MAX as usize);

/// What a peer has told about one of its regions.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Answer {
    pub words: KeyWords,
    pub state: AnswerState,
    /// Ops in flight that use it.
    pub users: u16,
    /// Whether the peer wants it forgotten.
    pub is_revoked: bool,
    /// Which question it answers.
    pub count: u32,
}

/// What a peer was told of at one of its places for answers.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Told {
    /// The region of ours that it holds, plus one; 0: none.
    pub region: u32,
    /// Which question of its that answered, or the next one, if it has given that back: what is
    /// said of earlier ones counts no more.
    pub count: u32,
}

#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum AnswerState {
    #[default]
    Empty,
    /// The question is on its way.
    Asked,
    /// There is such a region.
    Good,
    /// There is none.
    Gone,
}

/// What a post finds out about a peer's key.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Lookup {
    /// The library's key, the address or offset's base, and the place of the answer.
    Found { library_key: u64, start: u64, place: u8 },
    /// No region, or the range lies outside.
    Bad,
    /// Ask, at this place.
    Ask(u8),
    /// Wait for an answer.
    Wait,
}

/// Where the answer about a key is kept.
pub const fn key_place(key: RailKey) -> u8 {
    (key.0 % KEYS as u64) as u8
}

impl Answer {
    /// What this place, which is the key's, says of a range.
    #[inline]
    pub fn lookup(&self, key: RailKey, address: u64, length: u64) -> Lookup {
        let words = self.words;
        match self.state {
            AnswerState::Good if words.key == key.0 && !self.is_revoked => {
                let offset = address.wrapping_sub(words.start);
                match offset <= words.length && length <= words.length - offset {
                    true => Lookup::Found {
                        library_key: words.library_key,
                        start: words.start,
                        place: key_place(key),
                    },
                    false => Lookup::Bad,
                }
            }
            AnswerState::Gone if words.key == key.0 => Lookup::Bad,
            AnswerState::Asked => Lookup::Wait,
            // another key's answer gives way when nothing uses it
            AnswerState::Good if self.users > 0 || self.is_revoked => Lookup::Wait,
            AnswerState::Good | AnswerState::Gone | AnswerState::Empty => {
                Lookup::Ask(key_place(key))
            }
        }
    }
}

/// A question, an answer, or what ends either: of which region, at which place of the asker's, and
/// how many questions there were with it.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Note {
    pub words: KeyWords,
    pub place: u8,
    pub count: u32,
}

/// What is asked and said about keys: see [`Answer`] and [`Told`].
#[derive(Default, Debug)]
pub struct Questions {
    pub asked: Note,
    /// How many messages it had been sent when a look asked it something last.
    pub asked_after: u32,
    /// Whether it has answered a question since it was to be heard.
    pub has_answered: bool,
    /// The answer that is owed.
    pub told: Note,
    /// Whether something is wanted back from the peer, and what.
    pub is_revoking: bool,
    pub revoked: Note,
    /// What the peer wants back.
    pub given: Note,
}

impl Questions {
    /// Whether a question has no answer.
    pub fn is_asked(&self) -> bool {
        self.asked.words != KeyWords::default()
    }
}

/// A peer's number, and what is said with it.
type Of<'a> = (usize, &'a mut Questions);

/// What is said about keys, of all peers: answers of theirs, and what they were told.
#[derive(Debug)]
pub struct Keys<'m> {
    domain: LibfabricDomain<'m>,
    answers: &'m mut [Answer],
    /// Of each peer and place: the region of ours that it was told of.
    told: &'m mut [Told],
    /// Questions that are not answered, and when one was asked last.
    asks: u32,
    asked_at: Instant,
}

impl<'m> Keys<'m> {
    /// Bytes that [`Keys::carve`] cuts.
    pub const fn bytes(peers_max: usize) -> usize {
        bytes_for::<Answer>(peers_max * KEYS) + bytes_for::<Told>(peers_max * KEYS)
    }

    pub fn carve(
        block: &mut Carver<'m>,
        peers_max: usize,
        domain: LibfabricDomain<'m>,
    ) -> Result<Keys<'m>, BlockTooSmall> {
        let answers = block.filled(peers_max * KEYS, Answer::default())?;
        let told = block.filled(peers_max * KEYS, Told::default())?;
        Ok(Keys { domain, answers, told, asks: 0, asked_at: Instant(0) })
    }

    #[inline(always)]
    fn answer(&mut self, index: usize, place: u8) -> &mut Answer {
        &mut self.answers[index * KEYS + usize::from(place)]
    }

    /// What a peer's answer, if there is one, says of a range.
    #[inline(always)]
    pub fn lookup(&self, index: usize, key: RailKey, address: u64, length: u64) -> Lookup {
        self.answers[index * KEYS + usize::from(key_place(key))].lookup(key, address, length)
    }

    /// An op is under way that uses the answer at a place.
    #[inline(always)]
    pub fn use_begin(&mut self, index: usize, place: u8) {
        self.answer(index, place).users += 1;
    }

    /// It has ended; whether what the peer wants back is to be given back.
    pub fn use_end(&mut self, index: usize, place: u8) -> bool {
        let answer = self.answer(index, place);
        answer.users = answer.users.saturating_sub(1);
        answer.is_revoked && self.give_back(index, place)
    }

    /// Whether peers are asked anything.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.asks > 0
    }

    /// Puts a question to a peer, if it is not asked another one. `false`: it is.
    pub fn ask(&mut self, (index, peer): Of, key: RailKey, place: u8, now: Instant) -> bool {
        if peer.is_asked() {
            return false;
        }
        let words = KeyWords { key: key.0, ..KeyWords::default() };
        let count = peer.asked.count.wrapping_add(1);
        let asked = Answer { words, state: AnswerState::Asked, count, ..Answer::default() };
        *self.answer(index, place) = asked;
        peer.asked = Note { words, place, count };
        if self.asks == 0 {
            // the first of those without an answer says when they are asked again
            self.asked_at = now;
        }
        self.asks += 1;
        true
    }

    /// Whether questions without an answer are to be asked again: a library may lose what it was
    /// told to copy.
    pub fn ask_again(&mut self, now: Instant) -> bool {
        let is_due = now.since(self.asked_at) >= AGAIN;
        if is_due {
            self.asked_at = now;
        }
        is_due
    }

    /// Nothing is asked of a peer any more.
    pub fn ask_end(&mut self, peer: &mut Questions) {
        if peer.is_asked() {
            peer.asked.words = KeyWords::default();
            self.asks -= 1;
        }
    }

    /// A place for the answer to a question about a key that is none: one that holds no good
    /// answer.
    pub fn free_place(&self, index: usize) -> Option<u8> {
        self.last_place(index, |it| matches!(it.state, AnswerState::Empty | AnswerState::Gone))
    }

    /// Another one: of a good answer that nothing uses, which can be asked for again.
    pub fn spare_place(&self, index: usize) -> Option<u8> {
        let is_unused = |it: &Answer| it.state == AnswerState::Good && it.users == 0;
        self.last_place(index, |it| is_unused(it) && !it.is_revoked)
    }

    fn last_place(&self, index: usize, is_it: impl Fn(&Answer) -> bool) -> Option<u8> {
        let place = self.answers[index * KEYS..][..KEYS].iter().rposition(is_it);
        place.map(|place| place as u8)
    }

    /// A peer has told of a region without a question; none is 0 bytes long.
    pub fn learn(&mut self, index: usize, words: KeyWords) {
        if words.length != 0 {
            let answer = self.answer(index, key_place(RailKey(words.key)));
            (answer.words, answer.state) = (words, AnswerState::Good);
        }
    }

    /// The peer wants to use a region: it is told, and holds it from now on. Whether it is owed the
    /// answer.
    pub fn asked(&mut self, (index, peer): Of, prefix: &Prefix, key: RailKey) -> bool {
        let (place, count) = (prefix.place, prefix.word);
        let Told { region, count: last } = self.told[index * KEYS + usize::from(place)];
        if (count.wrapping_sub(last) as i32) < 0 {
            return false; // asked once more, and overtaken by the next one or by what ended this
        }
        let said = (peer.told.place, peer.told.count, peer.told.words.key);
        // the same question once more: what it got is what the peer holds
        if said != (place, count, key.0) || region == 0 {
            peer.told = Note { words: self.tell(index, place, key, count), place, count };
        }
        true
    }

    /// What is said of a region to a peer, which holds it from now on.
    pub fn tell(&mut self, index: usize, place: u8, key: RailKey, count: u32) -> KeyWords {
        self.release(index, place);
        let gone = KeyWords { key: key.0, ..KeyWords::default() };
        let told = &mut self.told[index * KEYS + usize::from(place)];
        told.count = count;
        let Some((region, range)) = self.domain.hold_whole(key) else { return gone };
        let Some(library_key) = self.domain.library_key(region) else {
            self.domain.release_whole(region);
            return gone;
        };
        told.region = region + 1;
        KeyWords { library_key, start: range.start, length: range.length, ..gone }
    }

    /// The peer has answered; whether that was asked.
    pub fn answered(&mut self, (index, peer): Of, prefix: &Prefix, words: KeyWords) -> bool {
        let (place, count) = (prefix.place, prefix.word);
        let Note { words: asked, place: at, count: last } = peer.asked;
        if (asked.key, at, last) != (words.key, place, count) {
            return false;
        }
        self.ask_end(peer);
        peer.has_answered = true;
        let state = if words.length == 0 { AnswerState::Gone } else { AnswerState::Good };
        *self.answer(index, place) = Answer { words, state, count, ..Answer::default() };
        true
    }

    /// The peer wants a region back, of which it has told in answer to a question. Whether it has
    /// overtaken the answer, which is no good any more when it comes.
    pub fn revoked(&mut self, (index, peer): Of, prefix: &Prefix, words: KeyWords) -> bool {
        let (place, count) = (prefix.place, prefix.word);
        peer.given = Note { words, place, count };
        let answer = self.answer(index, place);
        let is_its = answer.words.key == words.key && answer.count == count;
        match answer.state {
            AnswerState::Good if is_its => answer.is_revoked = true,
            AnswerState::Asked if is_its => {
                *answer = Answer::default();
                self.ask_end(peer);
                return true;
            }
            AnswerState::Good | AnswerState::Asked | AnswerState::Empty | AnswerState::Gone => {}
        }
        false
    }

    /// Whether a region can be given back: nothing of ours uses it any more.
    pub fn give_back(&mut self, index: usize, place: u8) -> bool {
        let answer = self.answer(index, place);
        if answer.users > 0 && answer.is_revoked {
            return false;
        }
        if answer.is_revoked {
            *answer = Answer::default();
        }
        true
    }

    /// The peer has given a region back.
    pub fn given_back(&mut self, (index, peer): Of, prefix: &Prefix) {
        let (place, count) = (prefix.place, prefix.word);
        if (peer.revoked.place, peer.revoked.count) == (place, count) {
            peer.is_revoking = false;
        }
        let told = &mut self.told[index * KEYS + usize::from(place)];
        // a place that was told of something since keeps that
        if told.count == count {
            told.count = count.wrapping_add(1);
            self.release(index, place);
        }
    }

    fn release(&mut self, index: usize, place: u8) {
        let told = &mut self.told[index * KEYS + usize::from(place)];
        if let Some(region) = core::mem::take(&mut told.region).checked_sub(1) {
            self.domain.release_whole(region);
        }
    }

    /// Nothing of the peer's is under way any more: it holds nothing.
    pub fn release_all(&mut self, (index, peer): Of) {
        for place in 0..KEYS {
            self.release(index, place as u8);
        }
        peer.is_revoking = false;
    }

    /// Whether a peer can have posted what writes here: it was told of memory of ours.
    pub fn is_told(&self, index: usize) -> bool {
        self.told[index * KEYS..][..KEYS].iter().any(|it| it.region != 0)
    }

    /// Which regions that are wanted back a peer holds: whether it holds any, and whether it is to
    /// be asked for one now, as it is for one at a time.
    pub fn revoke(&self, (index, peer): Of) -> (bool, bool) {
        let held = self.told[index * KEYS..][..KEYS].iter().enumerate();
        let mut wanted = held.filter(|(_, it)| it.region != 0 && self.domain.wants(it.region - 1));
        let Some((place, told)) = wanted.next() else { return (false, false) };
        let is_first = !core::mem::replace(&mut peer.is_revoking, true);
        if is_first {
            let key = self.domain.key_at(told.region - 1).0;
            let words = KeyWords { key, ..KeyWords::default() };
            peer.revoked = Note { words, place: place as u8, count: told.count };
        }
        (true, is_first)
    }

    /// What a peer's answers say is of no use any more.
    pub fn forget(&mut self, index: usize) {
        self.answers[index * KEYS..][..KEYS].fill(Answer::default());
    }

    /// The number is given anew, of which nothing is told.
    pub fn renew(&mut self, index: usize) {
        self.forget(index);
        self.told[index * KEYS..][..KEYS].fill(Told::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_for_its_key_and_range_alone() {
        let key = RailKey(5 << 32 | 7);
        let words = KeyWords { key: key.0, library_key: 99, start: 4096, length: 100 };
        let good = Answer { words, state: AnswerState::Good, ..Answer::default() };
        let found = Lookup::Found { library_key: 99, start: 4096, place: 7 };
        assert_eq!(good.lookup(key, 4096, 100), found);
        assert_eq!(good.lookup(key, 4196, 0), found);
        assert_eq!(good.lookup(key, 4096, 101), Lookup::Bad);
        assert_eq!(good.lookup(key, 4095, 1), Lookup::Bad);
        let other = RailKey(6 << 32 | 7);
        assert_eq!(good.lookup(other, 4096, 1), Lookup::Ask(7));
        assert_eq!(Answer { users: 1, ..good }.lookup(other, 4096, 1), Lookup::Wait);
        assert_eq!(Answer { is_revoked: true, ..good }.lookup(key, 4096, 1), Lookup::Wait);
        let gone = Answer { state: AnswerState::Gone, ..good };
        assert_eq!(gone.lookup(key, 4096, 1), Lookup::Bad);
        assert_eq!(gone.lookup(other, 4096, 1), Lookup::Ask(7));
        assert_eq!(Answer::default().lookup(key, 4096, 1), Lookup::Ask(7));
    }
}
