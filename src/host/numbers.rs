//! Values of variables as they stand in the environment, and the numbers that they are.
#![forbid(unsafe_code)]

extern crate std;

use super::log::{Level, say_once};
use crate::base::integer::nearest;
use core::ops::RangeInclusive;
use std::env::VarError;
use std::format;
use std::string::String;

/// A variable's number, if it is one of these.
pub(super) fn among(name: &str, range: RangeInclusive<u64>) -> Option<u64> {
    let (text, value) = whole(name)?;
    let value = u64::try_from(value).ok().filter(|value| range.contains(value));
    if value.is_none() {
        let (least, most) = (range.start(), range.end());
        say_once(
            Level::Warning,
            &format!("{name}={text} is ignored: it may be from {least} to {most}"),
        );
    }
    value
}

/// A variable's number, whose bounds are the options': they refuse the greatest.
pub(super) fn number(name: &str) -> Option<u64> {
    let (text, value) = whole(name)?;
    if value < 0 {
        say_once(Level::Warning, &format!("{name}={text} is ignored: it may be from 0 on"));
        return None;
    }
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

/// A variable's value, if it is set; one that is no text is reported.
pub(super) fn value_of(name: &str) -> Option<String> {
    match std::env::var(name) {
        Ok(text) => Some(text),
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(bytes)) => {
            let text = bytes.to_string_lossy();
            say_once(Level::Warning, &format!("{name}={text} is ignored: it is not UTF-8"));
            None
        }
    }
}

/// A variable's text, and the number that it is; what is too long for one is the nearest.
fn whole(name: &str) -> Option<(String, i128)> {
    let text = value_of(name)?;
    let value = nearest(text.trim(), 10);
    if value.is_none() {
        say_once(Level::Warning, &format!("{name}={text} is ignored: it is not a number"));
    }
    value.map(|value| (text, value))
}
