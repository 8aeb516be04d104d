//! What was seen of a peer that is gone, in words.
#![forbid(unsafe_code)]

use super::event::Rail;
use crate::base::errno::Errno;
use crate::base::units::Span;
use crate::base::words::said;
use crate::fabric::completion::DownCause;

said! {
    /// How a link ended without a word from the peer.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum Ending {
        /// The kernel says that the peer's process has ended.
        Process => "its process has ended",
        /// The peer's end of the link was closed, by its process or because that ended.
        Closed => "its process has ended, or closed the link",
        /// The link broke; the kernel's code.
        Broken(code: i32) => |f| write!(f, "the link to it broke: {}", Errno(*code)),
        /// Nothing has come of the peer's host for so long, on the link or any stream, although it
        /// owes an acknowledgement.
        Silent(silent: Span) => |f| {
            let silent_ms = silent.0 / 1_000_000;
            write!(
                f,
                "nothing has come from its host for {silent_ms} ms, not even an acknowledgement"
            )
        },
        /// The peer's end was closed, or the link broke, after nothing had come of the peer for so
        /// long: as likely because the peer has given *us* up, and lives.
        Late(silent: Span) => |f| {
            let silent_ms = silent.0 / 1_000_000;
            write!(
                f,
                "the link to it was closed after {silent_ms} ms of silence: it may live, and \
                 may have heard as little from this side"
            )
        },
    }
}

/// Whether a kernel's code says that packets do not get through, and nothing of the peer.
pub(super) const fn is_of_path(code: i32) -> bool {
    matches!(
        code,
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENETUNREACH | libc::ENETDOWN
    )
}

impl Ending {
    /// What it says of a peer that counts as dead: that its process is gone, that its end of the
    /// link is, or, since a path that broke says nothing of it, only that it was not heard. Within
    /// a host the kernel closes no living process's socket.
    pub(super) fn cause(&self, rail: Rail) -> DownCause {
        match self {
            Ending::Process => DownCause::Died,
            Ending::Broken(code) if is_of_path(*code) => DownCause::Unheard,
            Ending::Closed | Ending::Broken(_) => match rail {
                Rail::Tcp => DownCause::Severed,
                Rail::Shm => DownCause::Died,
            },
            Ending::Silent(_) | Ending::Late(_) => DownCause::Unheard,
        }
    }

    /// What it says after so long a silence.
    pub(super) fn after(self, silent: Span) -> Ending {
        match self {
            Ending::Closed => Ending::Late(silent),
            Ending::Broken(code) if !is_of_path(code) => Ending::Late(silent),
            Ending::Process | Ending::Broken(_) | Ending::Silent(_) | Ending::Late(_) => self,
        }
    }

    /// What the kernel said of the link's socket.
    pub(super) fn of(error: &std::io::Error) -> Ending {
        Ending::Broken(error.raw_os_error().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_paths_are_no_word_of_the_peer() {
        for severed in [Ending::Closed, Ending::Broken(libc::ECONNRESET)] {
            assert_eq!(severed.cause(Rail::Tcp), DownCause::Severed, "{severed}");
            assert_eq!(severed.cause(Rail::Shm), DownCause::Died, "{severed}");
        }
        let broken = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].map(Ending::Broken);
        for of_path in broken.into_iter().chain([Ending::Silent(Span::millis(2000))]) {
            assert_eq!(of_path.cause(Rail::Tcp), DownCause::Unheard, "{of_path}");
            assert_eq!(of_path.after(Span(1)), of_path);
        }
        for severed in [Ending::Closed, Ending::Broken(libc::ECONNRESET)] {
            let late = severed.after(Span::millis(2000));
            assert_eq!(late.cause(Rail::Tcp), DownCause::Unheard, "{severed}");
        }
        let process = Ending::Process.after(Span::millis(2000));
        assert_eq!(process.cause(Rail::Tcp), DownCause::Died);
    }
}
