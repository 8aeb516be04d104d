//! Notes: what the two ends of a rail that stands beside another tell each other over that one.
//!
//! A note is a line that is written to no region: to [`NOTE_KEY`]. So it travels as lines do, and a
//! rail looks for it only where a line would otherwise break the connection.

use crate::base::ids::PeerIndex;
use crate::fabric::{LINE_BYTES, Line, RailKey};

use std::collections::VecDeque;
use std::vec::Vec;

/// What a note says is its rail's business.
pub type Note = [u64; LINE_BYTES / 8];

/// The key of no region, which lines of notes name.
pub const NOTE_KEY: RailKey = RailKey(u64::MAX);

/// Notes that may wait to be taken. Where they are as many, rails read no further; what has come in
/// part by then still finds room.
const WAITING_MAX: usize = 128;

/// The notes that have come, oldest first.
#[derive(Debug)]
pub struct Notes {
    /// With room for [`WAITING_MAX`] and one of each stream; none where no notes are taken.
    waiting: VecDeque<(PeerIndex, Note)>,
    room: usize,
    /// By stream, lines that come in parts.
    parts: Vec<Line>,
}

/// As a line.
pub fn line_of(note: &Note) -> Line {
    let mut line = [0; LINE_BYTES];
    for (to, word) in line.chunks_exact_mut(8).zip(note) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    line
}

/// What a line says.
fn note_of(line: &Line) -> Note {
    let mut note = Note::default();
    for (word, bytes) in note.iter_mut().zip(line.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    note
}

impl Notes {
    /// No note may come.
    pub const fn refused() -> Notes {
        Notes { waiting: VecDeque::new(), room: 0, parts: Vec::new() }
    }

    /// Room for notes, which may come in parts over so many streams. It becomes memory with use.
    pub fn accepted(streams: usize) -> Notes {
        let room = WAITING_MAX + streams;
        let parts = std::vec![[0; LINE_BYTES]; streams];
        Notes { waiting: VecDeque::with_capacity(room), room, parts }
    }

    /// Whether one more finds room; where none may come, it is refused anyway.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Whether none waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes one in; `false`: none may come, or there is no room.
    pub fn put(&mut self, peer: PeerIndex, line: &Line) -> bool {
        let fits = self.waiting.len() < self.room;
        if fits {
            self.waiting.push_back((peer, note_of(line)));
        }
        fits
    }

    /// Where the parts of a stream's line go; `None`: no note may come.
    pub fn part(&mut self, stream: usize) -> Option<*mut u8> {
        self.parts.get_mut(stream).map(|line| line.as_mut_ptr())
    }

    /// The parts of a stream's line are all there: [`Notes::put`].
    pub fn put_parts(&mut self, peer: PeerIndex, stream: usize) -> bool {
        self.parts.get(stream).copied().is_some_and(|line| self.put(peer, &line))
    }

    /// The oldest one.
    #[inline]
    pub fn take(&mut self) -> Option<(PeerIndex, Note)> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_taken_in_their_order_and_only_where_they_may_come() {
        let mut notes = Notes::accepted(1);
        for round in 0..3u64 {
            let line = line_of(&[round; 8]);
            for number in 0..WAITING_MAX as u32 {
                assert!(notes.has_room() && notes.put(PeerIndex(number), &line));
            }
            assert!(!notes.has_room() && notes.put(PeerIndex(WAITING_MAX as u32), &line));
            assert!(!notes.put(PeerIndex(0), &line), "one more, for one stream");
            for number in 0..=WAITING_MAX as u32 {
                assert_eq!(notes.take(), Some((PeerIndex(number), [round; 8])));
            }
            assert!(notes.is_empty() && notes.take().is_none());
        }
        let mut refused = Notes::refused();
        assert!(!refused.put(PeerIndex(0), &[0; LINE_BYTES]) && refused.part(0).is_none());
    }

    #[test]
    fn note_comes_out_of_its_line() {
        let note = [1, u64::MAX, 3, 4, 5, 6, 7, 1 << 63];
        assert_eq!(note_of(&line_of(&note)), note);
    }
}
