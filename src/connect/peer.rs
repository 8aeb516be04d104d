//! How log lines and errors name a peer.
#![forbid(unsafe_code)]

use super::tried::Tried;
use crate::wire::hello::LinkHello;
use core::fmt;

/// Length of a program's name in bytes, cut if longer.
pub const NAME_BYTES: usize = 32;

/// A peer as messages to people name it.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Peer {
    /// The program, zero-padded UTF-8; empty: it never said.
    pub name: [u8; NAME_BYTES],
    /// Process id as it is seen from here if it can be seen, else as the peer sees it; 0: unknown.
    pub pid: u32,
    /// The host.
    pub node_id: u64,
    /// The endpoint.
    pub endpoint_id: u128,
    /// Where it was dialled. Not among the words of [`fmt::Display`], for which room is short.
    pub tried: Tried,
}

impl Peer {
    /// Nobody yet.
    pub const UNKNOWN: Peer =
        Peer { name: [0; NAME_BYTES], pid: 0, node_id: 0, endpoint_id: 0, tried: Tried::NONE };

    /// What a hello says.
    pub fn of(hello: &LinkHello, pid: i32) -> Peer {
        let mut name = [0; NAME_BYTES];
        name[..16].copy_from_slice(&hello.name_low.to_le_bytes());
        name[16..].copy_from_slice(&hello.name_high.to_le_bytes());
        let pid = if pid > 0 { pid as u32 } else { hello.pid };
        let (node_id, endpoint_id) = (hello.node_id, hello.endpoint_id);
        Peer { name, pid, node_id, endpoint_id, tried: Tried::NONE }
    }

    /// The program's name; what is not printable is left out of it.
    fn printable(&self) -> impl Iterator<Item = char> + '_ {
        let ascii = self.name.iter().take_while(|byte| **byte != 0);
        ascii.map(|byte| char::from(*byte)).filter(|c| c.is_ascii_graphic())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        for c in self.printable() {
            fmt::Write::write_char(f, c)?;
            any = true;
        }
        if !any {
            f.write_str("a peer")?;
        }
        if self.pid != 0 {
            write!(f, " (pid {})", self.pid)?;
        }
        write!(f, " on host {:016x}", self.node_id)
    }
}

/// Text into bytes that the caller owns; what does not fit is cut.
#[derive(Debug)]
pub struct TextBuffer<'b> {
    bytes: &'b mut [u8],
    length: usize,
}

impl<'b> TextBuffer<'b> {
    /// An empty text.
    pub fn new(bytes: &'b mut [u8]) -> TextBuffer<'b> {
        TextBuffer { bytes, length: 0 }
    }

    /// How long the text is.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The text; nothing where a cut has left a part of a character.
    pub fn text(self) -> &'b str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

impl fmt::Write for TextBuffer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..self.length + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    #[test]
    fn a_text_longer_than_its_buffer_is_cut() {
        let mut bytes = [0; 5];
        let mut text = TextBuffer::new(&mut bytes);
        write!(text, "{}", Peer { pid: 7, ..Peer::default() }).unwrap();
        assert_eq!(text.length(), 5);
        assert_eq!(&bytes, b"a pee");
    }
}
