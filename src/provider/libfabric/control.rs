//! What rails say to each other: about keys, and about the end of a connection.

use super::area::SENDS;
use super::keys::{KEYS, Note};
use super::message::{
    AT_CLOSED, IN_ORDER, KEY_MESSAGE_BYTES, KeyWords, Kind, PREFIX_BYTES, Prefix,
};
use super::peer::{Address, Down, Lingering, State, Use, wants};
use super::peers::Peers;
use super::sys::Code;
use crate::fabric::{DownCause, RailKey};

const KEY_WORDS: usize = KEY_MESSAGE_BYTES - PREFIX_BYTES;

impl Peers<'_> {
    /// Asks a peer about a key, if it is not asked about another one.
    #[cold]
    pub fn ask(&mut self, index: usize, key: RailKey, place: u8) {
        if self.keys.ask((index, &mut self.all[index].keys), key, place, self.now) {
            self.want(index, wants::ASK);
        }
    }

    /// Asks again what was not answered in time.
    #[cold]
    pub fn ask_again(&mut self) {
        if !self.keys.ask_again(self.now) {
            return;
        }
        for index in 0..self.all.len() {
            let record = &self.all[index];
            if record.keys.is_asked() && record.takes_ops() {
                self.want(index, wants::ASK);
            }
        }
    }

    /// Owes a peer a message, and sends it if there is room now.
    pub fn want(&mut self, index: usize, what: u8) {
        self.all[index].wants |= what;
        self.has_chores = true;
        self.chores_of(index);
    }

    /// Sends what is owed to peers, as far as there is room.
    #[cold]
    pub fn chores(&mut self) {
        self.has_chores = false;
        for index in 0..self.all.len() {
            if self.all[index].has_chores() {
                self.has_chores |= !self.chores_of(index);
            }
        }
    }

    /// Whether nothing is left.
    pub fn chores_of(&mut self, index: usize) -> bool {
        if self.all[index].address == Address::NONE {
            let record = &mut self.all[index];
            (record.wants, record.ops.words_due) = (0, 0);
            return true;
        }
        while self.all[index].ops.words_due != 0 {
            let op = self.all[index].ops.words_due.trailing_zeros() as usize;
            let word = self.sent[index * SENDS + op].word.unwrap_or(0);
            match self.word_message(index, word) {
                Ok(()) => {}
                Err(Code::AGAIN) => return self.chore_refused(index),
                Err(code) => self.end(index, DownCause::Broken(code.0)),
            }
            self.all[index].ops.words_due &= !(1 << op);
            self.op_free(index, op);
        }
        while self.all[index].wants != 0 {
            let what = 1 << self.all[index].wants.trailing_zeros();
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
            self.all[index].wants &= !what;
        }
        true
    }

    /// There was no room for what is owed to a peer: it is left.
    #[cold]
    fn chore_refused(&mut self, index: usize) -> bool {
        self.all[index].was_refused(self.now);
        false
    }

    fn control_send(&mut self, index: usize, what: u8) -> Result<(), Code> {
        let record = &self.all[index];
        let keys = &record.keys;
        let words = KeyWords { key: record.token.into(), ..KeyWords::default() };
        let writer = |place| Note { words, place, count: 0 };
        let (kind, note) = match what {
            wants::ASK => (Kind::Ask, keys.asked),
            wants::TELL => (Kind::Tell, keys.told),
            wants::REVOKE => (Kind::Revoke, keys.revoked),
            wants::GIVEN_BACK => (Kind::GivenBack, keys.given),
            wants::DRAIN if record.down == Down::No => (Kind::Drain, writer(IN_ORDER)),
            wants::DRAIN => (Kind::Drain, writer(0)),
            // what our closed endpoint had posted has ended for us alone
            _ if record.ending.is_cut => (Kind::Drained, writer(AT_CLOSED)),
            _ => (Kind::Drained, writer(0)),
        };
        let is_watched = what == wants::DRAIN && record.is_drain_watched();
        let used = if is_watched { Use::Drain } else { Use::Quiet };
        let prefix = self.prefix(index, kind, note.place, note.count).encode();
        let words = note.words.encode();
        // SAFETY: no bytes behind the words.
        let sent =
            unsafe { self.message(index, &[&prefix, &words], (words.as_ptr() as u64, 0), used) };
        if what == wants::DRAIN {
            self.all[index].ending.is_bounced = sent.is_err();
        }
        sent
    }

    /// Takes a message that is no send and no word.
    #[cold]
    pub fn control_received(&mut self, index: usize, prefix: &Prefix, words: &[u8]) {
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
        if is_end && words.key != u64::from(self.all[index].their_token) {
            // of an end that was told of this one before, and is no more
            self.health.strange += 1;
            return;
        }
        if is_end && !self.endpoint.traits.messages_ordered {
            self.all[index].ending.awaited_count = Some(prefix.number);
        }
        let record = &mut self.all[index];
        let of = (index, &mut record.keys);
        match prefix.kind {
            // who is fenced will not write here any more
            Kind::Ask if record.is_fenced || record.state != State::Live => {}
            Kind::Ask => {
                if self.keys.asked(of, prefix, RailKey(words.key)) {
                    self.want(index, wants::TELL);
                }
            }
            Kind::Tell => {
                let is_asked = self.keys.answered(of, prefix, words);
                record.ops.ended = record.ops.ended.wrapping_add(is_asked.into());
            }
            Kind::Revoke => {
                if self.keys.revoked(of, prefix, words) {
                    record.wants &= !wants::ASK;
                }
                self.give_back(index, place);
            }
            Kind::GivenBack => self.keys.given_back(of, prefix),
            Kind::Drain => self.drain_asked(index, place == IN_ORDER),
            Kind::Drained if place == AT_CLOSED => self.was_closed(index),
            Kind::Drained => self.drained(index),
            Kind::Send | Kind::Brief | Kind::Word => {}
        }
    }

    /// An op has ended that used the answer at a place.
    pub fn use_end(&mut self, index: usize, place: u8) {
        if self.keys.use_end(index, place) {
            self.want(index, wants::GIVEN_BACK);
        }
    }

    /// Gives a region back, unless something of ours uses it.
    fn give_back(&mut self, index: usize, place: u8) {
        if self.keys.give_back(index, place) {
            self.want(index, wants::GIVEN_BACK);
        }
    }

    /// Asks peers for regions that were to be deregistered, one at a time of each.
    #[cold]
    pub fn revoke_wanted(&mut self) {
        let domain = self.endpoint.domain;
        domain.look_for_wanted(|| {
            let mut are_left = false;
            for index in 0..self.all.len() {
                let (is_left, is_due) = self.keys.revoke((index, &mut self.all[index].keys));
                are_left |= is_left;
                if is_due {
                    self.want(index, wants::REVOKE);
                }
            }
            are_left
        });
    }

    /// The peer fences us: nothing more is posted, and it is told when all has ended. That more
    /// than this closes in good order, or that the lane has failed after all, it says elsewhere.
    fn drain_asked(&mut self, index: usize, in_order: bool) {
        self.all[index].owes_word = true;
        self.end(index, if in_order { DownCause::Closed } else { DownCause::Broken(0) });
        self.say_drained(index);
    }

    /// Says that nothing of ours is under way, if so and if it is owed.
    #[inline]
    pub fn say_drained(&mut self, index: usize) {
        let record = &mut self.all[index];
        if record.owes_word && record.ops.touching == 0 {
            record.owes_word = false;
            self.want(index, wants::DRAINED);
        }
    }

    /// The peer has said that nothing of its is under way. That this is the end of more than a lane
    /// only the side band says.
    fn drained(&mut self, index: usize) {
        self.all[index].ending.is_attested = true;
        self.end(index, DownCause::Broken(0));
        self.told_release_all(index);
    }

    /// The peer's endpoint was closed, maybe to be opened anew. It posts nothing more, but what it
    /// had posted may still come: a kernel goes on sending what a closed socket has, and this word
    /// has taken another way. Whatever is sent to the old address has that kernel stop.
    fn was_closed(&mut self, index: usize) {
        let record = &self.all[index];
        if record.state == State::Live && !record.ending.is_attested {
            self.outlast_closed(index, Lingering::Ended);
            if self.all[index].is_fenced {
                self.want(index, wants::DRAIN);
            }
        }
        self.end(index, DownCause::Broken(0));
    }
}
