//! What went wrong, in the provider's words.
#![forbid(unsafe_code)]

use super::Step;
use super::sys::Code;
use crate::base::units::Span;
use crate::base::words::said;
use core::fmt;

/// Bytes of a provider's words that are kept.
pub const TEXT_BYTES: usize = 80;

/// A failed op or receive.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct ErrorReport {
    /// Why: an errno, or one of libfabric's own numbers from 256 on.
    pub code: i32,
    /// The provider's own number.
    pub provider_code: i32,
    /// Its words, which end with a zero.
    pub text: [u8; TEXT_BYTES],
    /// For how long nothing that was sent has ended, if it was given up for that; else 0.
    pub silent: Span,
    /// Whether a word that came with a write had lost its upper half.
    pub cuts_words: bool,
}

/// A code of libfabric's as an errno: its own numbers have no meaning among those.
pub const fn errno(code: i32) -> i32 {
    if code < 256 { code } else { libc::EIO }
}

impl ErrorReport {
    /// One of which the provider has said no words.
    pub const fn new(code: i32, provider_code: i32) -> ErrorReport {
        let (text, silent) = ([0; TEXT_BYTES], Span(0));
        ErrorReport { code, provider_code, text, silent, cuts_words: false }
    }

    /// The provider's words; empty if it had none.
    pub fn words(&self) -> &str {
        let end = self.text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_BYTES);
        core::str::from_utf8(&self.text[..end]).unwrap_or("")
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.silent.0 != 0 {
            let silent_ms = self.silent.0 / 1_000_000;
            return write!(
                f,
                "silent, nothing that was sent on it has ended for {silent_ms} ms, although the \
                 peer's program polls"
            );
        }
        if self.cuts_words {
            return f.write_str(
                "its provider promises words of 8 bytes with writes (cq_data_size), but delivers 4 \
                 bytes; words go as messages from now on",
            );
        }
        write!(f, "{}", super::sys::Code(self.code))?;
        match (self.words(), self.provider_code) {
            ("", 0) => Ok(()),
            ("", code) => write!(f, " (the provider's code {code})"),
            (words, code) => write!(f, ", the provider says: {words} (its code {code})"),
        }
    }
}

/// How a rail is.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Health {
    /// Why the endpoint is of no use any more; 0: it is.
    pub lost_code: i32,
    /// Completions of ops that nobody posted, messages of nobody, and receives that failed.
    pub strange: u32,
    /// Of those, completions whose context is none of ours, or of an op that has ended.
    pub unknown: u32,
    /// Whether its provider delivers less of a word with a write than it says.
    pub cuts_words: bool,
    /// Whether a peer was not heard any more, to which something may be under way for ever.
    pub unheard: bool,
    /// Ops that were answered for before the library had done with them.
    pub orphans: u32,
    /// Why the endpoint could not be opened again, the last time; `None`: it was, or need not be.
    pub refused: Option<(Step, Code)>,
    /// Times that the endpoint was opened again.
    pub reopened: u32,
}

impl Health {
    /// Whether the endpoint must be opened again.
    pub const fn is_lost(&self) -> bool {
        self.lost_code != 0
    }
}

said! {
    /// What people should know of a peer that stands still, and that nothing else tells. Behind the
    /// words for a rail.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum Complaint {
        /// Its fence waits for a word that may never come.
        Unfenced(waited: Span) => |f| write!(
            f,
            "is not fenced after {} ms: it has failed or is closed, and operations of either \
             side may still arrive. Its requests wait, or end with Unfenced and their memory \
             stays registered. A close waits, too: for the fence, or until the rail has no \
             other peer and is opened again",
            waited.0 / 1_000_000
        ),
        /// The library refuses every post, although the peer's program polls, and nobody is to be
        /// given up for it.
        Refused(silent: Span) => |f| write!(
            f,
            "takes nothing: for {} ms its library has refused every operation to the peer, and \
             ended none, although the peer's program polls. Messages wait; \
             CROSSTIE_OFI_SILENCE_MS gives such a peer up",
            silent.0 / 1_000_000
        ),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    #[test]
    fn report_has_the_providers_words() {
        let mut text = [0; TEXT_BYTES];
        text[..9].copy_from_slice(b"bad luck!");
        let report = ErrorReport { text, ..ErrorReport::new(libc::ECONNRESET, -7) };
        let said = report.to_string();
        assert_eq!(said, "errno 104, connection reset, the provider says: bad luck! (its code -7)");
        let mute = ErrorReport::new(libc::ECANCELED, 0);
        assert_eq!(mute.to_string(), "errno 125, operation canceled");
        let silent = ErrorReport { silent: Span::millis(6300), ..mute };
        assert!(silent.to_string().contains("for 6300 ms"), "{silent}");
    }

    #[test]
    fn complaints_say_for_how_long_and_what_comes_of_it() {
        let unfenced = Complaint::Unfenced(Span::millis(3000)).to_string();
        assert!(unfenced.contains("after 3000 ms") && unfenced.contains("Unfenced"), "{unfenced}");
        let refused = Complaint::Refused(Span::millis(6256)).to_string();
        assert!(refused.contains("for 6256 ms") && refused.contains("SILENCE_MS"), "{refused}");
    }
}
