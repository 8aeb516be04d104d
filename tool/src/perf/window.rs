//! One window: a number of messages of one kind, which both processes run through at once.
#![forbid(unsafe_code)]

use crate::owned::Backing;

/// Longest message, so that the buffers of both processes fit into small machines.
pub const SIZE_MAX: u64 = 1 << 30;
/// Most receives outstanding.
pub const OUTSTANDING_MAX: u64 = 1024;
/// Far more than any window has.
const ROUNDS_MAX: u64 = 1 << 48;

/// What the messages of a window do.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// Back and forth, one at a time.
    PingPong,
    /// From the measuring process to its peer, several outstanding.
    Stream,
    /// As [`Kind::Stream`], in both directions at once.
    Both,
    /// Puts with a signal, back and forth, one at a time.
    PutPing,
    /// Puts with a signal from the measuring process, several outstanding; a flush ends them.
    PutStream,
    /// Gets of the measuring process, one at a time.
    Get,
    /// Gets of the measuring process, several outstanding.
    GetStream,
    /// Signals back and forth, one at a time.
    SignalPing,
    /// Signals from the measuring process, and a flush.
    SignalStream,
    /// Puts with a signal, of which each one's buffer is waited for.
    PutLocal,
    /// The same with a counter, which is waited for instead.
    PutCounter,
}

/// As they are told to a peer.
const KINDS: [(Kind, &str); 11] = [
    (Kind::PingPong, "pingpong"),
    (Kind::Stream, "stream"),
    (Kind::Both, "both"),
    (Kind::PutPing, "put-ping"),
    (Kind::PutStream, "put-stream"),
    (Kind::Get, "get"),
    (Kind::GetStream, "get-stream"),
    (Kind::SignalPing, "signal-ping"),
    (Kind::SignalStream, "signal-stream"),
    (Kind::PutLocal, "put-local"),
    (Kind::PutCounter, "put-counter"),
];

/// A window, as the measuring process asks its peer for it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Window {
    /// What the messages do.
    pub kind: Kind,
    /// Where they lie.
    pub backing: Backing,
    /// Length of each in bytes.
    pub bytes: u64,
    /// Receives: each takes `group` messages.
    pub rounds: u64,
    /// Receives, and the sends for them, that are outstanding at a time.
    pub outstanding: u64,
    /// Messages per receive, 1 to 8.
    pub group: u64,
    /// All outstanding messages use the same buffer.
    pub one_buffer: bool,
    /// Every message is filled before and checked after it travelled.
    pub verify: bool,
}

impl Window {
    /// Where message `part` of receive `round` lies in a buffer.
    #[inline]
    pub fn offset(&self, round: u64, part: u64) -> u64 {
        if self.one_buffer {
            return 0;
        }
        let slot = round % self.outstanding * self.group + part;
        slot * self.stride()
    }

    /// Distance of messages in a buffer: whole cache lines.
    fn stride(&self) -> u64 {
        self.bytes.max(1).next_multiple_of(64)
    }

    /// Bytes of a buffer that holds all outstanding messages.
    pub fn buffer_bytes(&self) -> u64 {
        if self.one_buffer { self.stride() } else { self.stride() * self.outstanding * self.group }
    }

    /// Messages that end it early: of a length that its other messages have not.
    pub fn stop(self) -> Window {
        Window { bytes: u64::from(self.bytes == 0), verify: false, ..self }
    }

    /// Whether a message of such a length ends the window early.
    #[inline]
    pub fn is_stop(&self, length: u64) -> bool {
        length != self.bytes
    }

    /// Room for each message: for one that ends the window as well.
    #[inline]
    pub fn room_bytes(&self) -> u64 {
        self.bytes.max(1)
    }

    /// What the content of a message is made from.
    pub fn seed(&self, round: u64, part: u64) -> u64 {
        (round * self.group + part).wrapping_mul(2).wrapping_add(self.bytes)
    }

    /// As a line for the peer.
    pub fn to_line(self) -> String {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).expect("all of them").1;
        let backing = self.backing.name();
        let flags = (u64::from(self.one_buffer), u64::from(self.verify));
        let numbers = [self.bytes, self.rounds, self.outstanding, self.group, flags.0, flags.1];
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        format!("{kind} {backing} {}", numbers.join(" "))
    }

    /// The inverse of [`Window::to_line`].
    pub fn from_line(line: &str) -> Option<Window> {
        let mut words = line.split_whitespace();
        let kind = words.next()?;
        let kind = KINDS.iter().find(|(_, name)| *name == kind)?.0;
        let backing = Backing::named(words.next()?)?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let window = Window {
            kind,
            backing,
            bytes: number()?,
            rounds: number()?,
            outstanding: number()?,
            group: number()?,
            one_buffer: number()? != 0,
            verify: number()? != 0,
        };
        let is_sane = window.bytes <= SIZE_MAX
            && (1..=OUTSTANDING_MAX).contains(&window.outstanding)
            && (1..=8).contains(&window.group)
            && window.rounds <= ROUNDS_MAX;
        is_sane.then_some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        kind: Kind::Both,
        backing: Backing::Private,
        bytes: 100,
        rounds: 10,
        outstanding: 4,
        group: 2,
        one_buffer: false,
        verify: true,
    };

    #[test]
    fn the_peer_reads_what_was_written() {
        for (kind, _) in KINDS {
            let window = Window { kind, ..WINDOW };
            assert_eq!(Window::from_line(&window.to_line()), Some(window));
        }
        assert_eq!(Window::from_line("stream shared 1 2 3"), None);
        assert_eq!(Window::from_line("stream shared 1 2 0 1 0 0"), None);
    }

    #[test]
    fn outstanding_messages_do_not_share_memory() {
        assert_eq!(WINDOW.buffer_bytes(), 8 * 128);
        assert_eq!(WINDOW.offset(3, 1), 7 * 128);
        assert_eq!(WINDOW.offset(4, 0), 0);
        assert_eq!(Window { one_buffer: true, ..WINDOW }.buffer_bytes(), 128);
    }
}
