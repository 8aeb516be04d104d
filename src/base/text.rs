//! A short text as a value, in room of its own.
#![forbid(unsafe_code)]

use core::fmt;

/// No more than so many bytes, 255 at most. Those that are not UTF-8 are kept, and not displayed.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    length: u8,
}

impl<const BYTES: usize> Text<BYTES> {
    /// Nothing.
    pub const EMPTY: Self = {
        assert!(BYTES <= u8::MAX as usize);
        Text { bytes: [0; BYTES], length: 0 }
    };

    /// All of it; `None`: there is no room.
    pub fn whole(text: &[u8]) -> Option<Self> {
        (text.len() <= BYTES).then(|| Self::beginning(text))
    }

    /// All of it, or the beginning of a long one.
    pub fn beginning(text: &[u8]) -> Self {
        let mut kept = Self::EMPTY;
        kept.append(text);
        kept
    }

    /// All of it, or the end of a long one.
    pub fn end(text: &[u8]) -> Self {
        Self::beginning(&text[text.len().saturating_sub(BYTES)..])
    }

    /// What is written, or its beginning.
    pub fn written(text: fmt::Arguments<'_>) -> Self {
        let mut kept = Self::EMPTY;
        let _ = fmt::write(&mut kept, text);
        kept
    }

    /// How many bytes.
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length()]
    }

    /// As text; what is none is empty.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or("")
    }

    fn append(&mut self, text: &[u8]) {
        let at = self.length();
        let fits = text.len().min(BYTES - at);
        self.bytes[at..at + fits].copy_from_slice(&text[..fits]);
        self.length += fits as u8;
    }
}

/// Cuts what there is no room for.
impl<const BYTES: usize> fmt::Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.append(text.as_bytes());
        Ok(())
    }
}

impl<const BYTES: usize> fmt::Display for Text<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()))
    }
}

impl<const BYTES: usize> fmt::Debug for Text<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    #[test]
    fn a_text_that_is_too_long_is_refused_or_cut_at_the_side_that_is_named() {
        assert_eq!(Text::<4>::whole(b"mlx5").unwrap().as_str(), "mlx5");
        assert_eq!(Text::<4>::whole(b"mlx5_"), None);
        assert_eq!(Text::<4>::beginning(b"mlx5_0").as_bytes(), b"mlx5");
        assert_eq!(Text::<4>::end(b"mlx5_0").as_bytes(), b"x5_0");
        assert_eq!(Text::<4>::end(b"x").as_bytes(), b"x");
        assert_eq!(Text::<4>::written(format_args!("{}:{}", "ab", 77)).as_str(), "ab:7");
        assert_eq!(Text::<4>::EMPTY.length(), 0);
    }

    #[test]
    fn what_is_no_text_is_kept_and_not_displayed() {
        let half = Text::<4>::beginning("abc\u{e9}".as_bytes());
        assert_eq!((half.length(), half.as_str()), (4, ""));
        assert_eq!(half.to_string(), "abc");
    }
}
