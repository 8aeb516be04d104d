//! Whether this process may write to its memory, as `/proc/self/maps` says. Control path; nothing
//! allocates.

use std::fs::File;
use std::io::{ErrorKind, Read};

/// Bytes of a line that say where a mapping lies, and what is allowed there.
const HEAD_BYTES: usize = 40;

/// Whether all of some memory is mapped, and may be written. Also where the kernel does not tell,
/// since `/proc` is not mounted.
pub fn is_writable(address: u64, length: u64) -> bool {
    let Ok(mut maps) = File::open("/proc/self/maps") else { return true };
    let mut look = Look { next: address, end: address.saturating_add(length), answer: None };
    let (mut head, mut at) = ([0; HEAD_BYTES], 0);
    let mut buffer = [0; 4096];
    loop {
        let count = match maps.read(&mut buffer) {
            Ok(0) => return look.answer.unwrap_or(look.next >= look.end),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return true,
        };
        for byte in &buffer[..count] {
            if *byte == b'\n' {
                look.line(&head[..at]);
                at = 0;
            } else if at < HEAD_BYTES {
                head[at] = *byte;
                at += 1;
            }
        }
    }
}

/// A look at mappings, in the order of their addresses.
struct Look {
    /// What lies before may be written.
    next: u64,
    end: u64,
    answer: Option<bool>,
}

impl Look {
    fn line(&mut self, line: &[u8]) {
        let Some((start, end, is_writable)) = mapping(line) else { return };
        if self.answer.is_some() || end <= self.next {
            return;
        }
        if self.next >= self.end {
            self.answer = Some(true);
        } else if start > self.next || !is_writable {
            self.answer = Some(false);
        } else {
            self.next = end;
        }
    }
}

/// Start, end, and whether it may be written, of a line such as `7f00-7f10 rw-p ...`.
fn mapping(line: &[u8]) -> Option<(u64, u64, bool)> {
    let text = core::str::from_utf8(line).ok()?;
    let mut words = text.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?, words.next()?.as_bytes().get(1) == Some(&b'w')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(address: u64, length: u64, lines: &[&str]) -> bool {
        let mut look = Look { next: address, end: address + length, answer: None };
        lines.iter().for_each(|line| look.line(line.as_bytes()));
        look.answer.unwrap_or(look.next >= look.end)
    }

    #[test]
    fn all_of_the_memory_must_be_mapped_and_writable() {
        let lines = ["1000-2000 rw-p 0", "2000-4000 rw-s 0", "5000-6000 rw-p 0", "6000-7000 r--p"];
        for (address, length, expected) in [
            (0x1000, 0x1000, true),
            (0x1000, 0x3000, true),
            (0x1fff, 2, true),
            (0x1000, 0x3001, false),
            (0x4000, 1, false),
            (0x5000, 0x1000, true),
            (0x5000, 0x1001, false),
            (0x6000, 1, false),
            (0x7000, 1, false),
            (0x800, 0x900, false),
            (0x9000, 0, true),
        ] {
            assert_eq!(look(address, length, &lines), expected, "{address:#x} {length:#x}");
        }
    }

    #[test]
    fn memory_of_this_process_is_looked_up() {
        static CONSTANT: [u8; 64] = [7; 64];
        let variable = [0u8; 64];
        assert!(is_writable((&raw const variable).expose_provenance() as u64, 64));
        assert!(!is_writable((&raw const CONSTANT).expose_provenance() as u64, 64));
        assert!(!is_writable(8, 8));
    }
}
