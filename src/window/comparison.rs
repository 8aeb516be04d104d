//! How words are compared.
#![forbid(unsafe_code)]

/// How a word is compared with a value, both unsigned.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Comparison {
    /// The word is the value.
    Equal,
    /// It is not.
    NotEqual,
    /// It is larger.
    Greater,
    /// It is larger, or the value.
    GreaterEqual,
    /// It is smaller.
    Less,
    /// It is smaller, or the value.
    LessEqual,
}

impl Comparison {
    /// Whether it holds.
    pub const fn holds(self, word: u64, value: u64) -> bool {
        match self {
            Comparison::Equal => word == value,
            Comparison::NotEqual => word != value,
            Comparison::Greater => word > value,
            Comparison::GreaterEqual => word >= value,
            Comparison::Less => word < value,
            Comparison::LessEqual => word <= value,
        }
    }
}
