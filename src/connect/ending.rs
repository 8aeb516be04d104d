//! What was seen of a peer that is gone, in words.
#![forbid(unsafe_code)]

extern crate std;

use crate::base::errno::Errno;
use crate::base::units::Span;
use core::fmt;

/// How a link ended without a word from the peer.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Ending {
    /// The kernel says that the peer's process has ended.
    Process,
    /// The peer's end of the link was closed, by its process or because that ended.
    Closed,
    /// The link broke; the kernel's code.
    Broken(i32),
    /// Nothing has come of the peer's host for so long, on the link or any stream, although it owes
    /// an acknowledgement.
    Silent(Span),
}

/// Whether a kernel's code says that packets do not get through, and nothing of the peer.
pub(super) const fn is_of_path(code: i32) -> bool {
    matches!(
        code,
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENETUNREACH | libc::ENETDOWN
    )
}

impl Ending {
    /// Whether it says that the peer's process is gone, and not only that it was not heard: a path
    /// that broke says nothing of it.
    pub(super) fn is_of_peer(&self) -> bool {
        match self {
            Ending::Process | Ending::Closed => true,
            Ending::Broken(code) => !is_of_path(*code),
            Ending::Silent(_) => false,
        }
    }

    /// What the kernel said of the link's socket.
    pub(super) fn of(error: &std::io::Error) -> Ending {
        Ending::Broken(error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Process => f.write_str("its process has ended"),
            Ending::Closed => f.write_str("its process has ended, or closed the link"),
            Ending::Broken(code) => write!(f, "the link to it broke: {}", Errno(*code)),
            Ending::Silent(silent) => {
                let silent_ms = silent.0 / 1_000_000;
                write!(
                    f,
                    "nothing has come of its host for {silent_ms} ms, not even an acknowledgement"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_paths_are_no_word_of_the_peer() {
        for of_peer in [Ending::Process, Ending::Closed, Ending::Broken(libc::ECONNRESET)] {
            assert!(of_peer.is_of_peer(), "{of_peer}");
        }
        let broken = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].map(Ending::Broken);
        for of_path in broken.into_iter().chain([Ending::Silent(Span::millis(2000))]) {
            assert!(!of_path.is_of_peer(), "{of_path}");
        }
    }
}
