//! `doc/settings.md` is what the table of settings says. `UPDATE_SNAPSHOTS=1` writes it anew.

use crosstie::host::settings::names;
use crosstie_tool::settings::{DEBUG, Group, PUBLIC, Setting, all};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const UPDATE: &str = "UPDATE_SNAPSHOTS";
/// Most settings that a user is asked to know.
const PUBLIC_MAX: usize = 24;

const HEAD: &str = "\
# Settings

A program configures an endpoint by a struct. Environment variables override what does not change
the endpoint's size. This page is made from the table in `tool/src/settings.rs`:
`UPDATE_SNAPSHOTS=1 cargo test --test settings_page` writes it.

- The first call that opens an endpoint reads all variables, once.
- An empty variable is not set, except `CROSSTIE_KEY_FILE`: empty is an error there.
- Numbers are plain: `8192`, not `8k`.
- A value that makes no sense is one error (`XTIE_ERR_SETTING`), and no endpoint opens.
- The log reports a `CROSSTIE_` name that does not exist, with the nearest one that does.
- `crosstie info --all` shows which are set, and what each means.
";

fn page() -> String {
    let mut text = HEAD.to_string();
    PUBLIC.iter().chain([&DEBUG]).for_each(|group| section(&mut text, group));
    text
}

fn section(text: &mut String, group: &Group) {
    writeln!(text, "\n## {}\n", group.title).unwrap();
    if !group.about.is_empty() {
        writeln!(text, "{}\n", wrapped(group.about)).unwrap();
    }
    text.push_str("| Variable | Default | May be | Effect |\n| --- | --- | --- | --- |\n");
    for Setting { name, default, values, effect } in group.settings {
        let effect = linked(effect);
        writeln!(text, "| `{name}` | {default} | {values} | {effect} |").unwrap();
    }
}

/// Words in lines of at most 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().unwrap();
        match last.is_empty() || last.len() + 1 + word.len() <= 100 {
            true if last.is_empty() => last.push_str(word),
            true => last.extend([" ", word]),
            false => lines.push(word.to_string()),
        }
    }
    lines.join("\n")
}

/// Links in place of the names of pages.
fn linked(text: &str) -> String {
    let word = |word: &str| match word.strip_prefix("doc/").map(|page| page.split_once(".md")) {
        Some(Some((page, rest))) => format!("[{page}.md]({page}.md){rest}"),
        Some(None) | None => word.to_string(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../doc/settings.md")
}

#[test]
fn page_of_settings_says_what_the_table_says() {
    let page = page();
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path(), page).unwrap();
    }
    let written = std::fs::read_to_string(path()).unwrap();
    let same = written.lines().zip(page.lines()).find(|(written, page)| written != page);
    assert_eq!(same, None, "doc/settings.md is stale: {UPDATE}=1 writes it");
    assert_eq!(written, page, "doc/settings.md is stale: {UPDATE}=1 writes it");
}

#[test]
fn table_has_each_variable_of_the_library_once() {
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(all().map(|setting| setting.name).collect()), sorted(names().collect()));
}

#[test]
fn users_are_asked_to_know_few_settings() {
    let public: usize = PUBLIC.iter().map(|group| group.settings.len()).sum();
    assert!(public <= PUBLIC_MAX, "{public} settings are public");
}

/// A `|` would end a cell, and a page that is not there leads nowhere.
#[test]
fn texts_fit_into_a_table_and_name_pages_that_are_there() {
    for Setting { name, default, values, effect } in all() {
        for text in [default, values, effect] {
            assert!(!text.contains(['|', '\n']) && !text.is_empty(), "{name}: {text}");
            assert!(text.matches('`').count() % 2 == 0, "{name}: {text}");
        }
        assert!(effect.ends_with('.'), "{name}: {effect}");
        for word in effect.split(' ').filter(|word| word.starts_with("doc/")) {
            let file = path().with_file_name(word.trim_start_matches("doc/").trim_end_matches('.'));
            assert!(file.exists(), "{name} names {word}");
        }
    }
}
