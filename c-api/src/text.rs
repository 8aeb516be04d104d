//! Text in memory that never grows.
#![forbid(unsafe_code)]

use core::fmt;

/// Room for one sentence that names a peer.
pub(crate) const TEXT_BYTES: usize = 320;
/// Room for what the log is told: a stalled request with both sides' account, and the zero.
pub(crate) const LOG_BYTES: usize = crosstie::host::log::TEXT_BYTES_MAX + 1;

/// UTF-8 with a zero at its end; what does not fit is cut.
#[derive(Copy, Clone)]
pub(crate) struct Text<const BYTES: usize = TEXT_BYTES> {
    bytes: [u8; BYTES],
    length: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    /// An empty text.
    pub const EMPTY: Self = Text { bytes: [0; BYTES], length: 0 };

    /// What `write` writes.
    pub fn of(write: impl FnOnce(&mut Self) -> fmt::Result) -> Self {
        let mut text = Self::EMPTY;
        // A text that is cut is better than none.
        let _ = write(&mut text);
        text
    }

    /// Without the zero.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }

    /// With the zero.
    pub fn with_zero(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

impl<const BYTES: usize> fmt::Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut fits = text.len().min(BYTES - 1 - self.length);
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        self.bytes[self.length..self.length + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    #[test]
    fn long_text_is_cut_between_characters_and_keeps_its_zero() {
        let text: Text = Text::of(|text| text.write_str(&"é".repeat(TEXT_BYTES)));
        assert_eq!(text.as_str().len(), TEXT_BYTES - 2);
        assert_eq!(text.with_zero().last(), Some(&0));
        assert!(text.as_str().chars().all(|c| c == 'é'));
    }
}
