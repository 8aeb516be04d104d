//! Variables that look like ours and are not: mistyped ones.
#![forbid(unsafe_code)]

use super::settings::names;
use crate::host::log::event::tell;
use crate::host::log::settings::SettingEvent;
use crate::memory::Variables;
use std::string::{String, ToString};

/// Says which variables of this process look like ours and are not.
pub fn report() {
    report_of(Variables::of_process());
}

/// Says which of these variables look like ours and are not.
pub(in crate::host) fn report_of(all: &Variables) {
    for (name, _) in all.iter() {
        let Some(name) = name.to_str() else { continue };
        if let Some(event) = unknown(name) {
            tell(&event);
        }
    }
}

/// Edits that a mistyped name has at most: more make another word.
const NEAREST_MAX: usize = 5;

/// What to say of a variable that looks like ours and is not.
pub fn sentence(name: &str) -> Option<String> {
    unknown(name).map(|event| event.to_string())
}

fn unknown(name: &str) -> Option<SettingEvent<'_>> {
    if !name.starts_with("CROSSTIE_") || names().any(|known| known == name) {
        return None;
    }
    let far = |known: &&str| distance(known, name);
    let nearest = names().min_by_key(far).filter(|near| far(near) <= NEAREST_MAX);
    // who wrote only the beginning meant that one, however much is missing
    let begun = name.len() > "CROSSTIE_".len() + 2;
    let whole = names().find(|known| begun && known.starts_with(name));
    Some(SettingEvent::Unknown { name, nearest: whole.or(nearest) })
}

/// Edits between two words (Levenshtein).
pub fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: std::vec::Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_string().bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variable_is_reported_with_the_nearest_name() {
        let near = sentence("CROSSTIE_EGER_BYTE").unwrap();
        assert!(near.contains("CROSSTIE_EAGER_BYTES"), "{near}");
        let begun = sentence("CROSSTIE_IB_QP").unwrap();
        assert!(begun.ends_with("the nearest is CROSSTIE_IB_QPS_PER_CONNECTION"), "{begun}");
        let far = sentence("CROSSTIE_FAVOURITE_COLOUR").unwrap();
        assert!(!far.contains("nearest"), "{far}");
        assert_eq!(sentence("CROSSTIE_HEAP_BYTES"), None);
        assert_eq!(sentence("PATH"), None);
    }
}
