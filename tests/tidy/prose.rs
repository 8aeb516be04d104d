//! Pages and heads of files are in plain English: short sentences, and none of the banned forms.
//!
//! It reads README, `doc/`, and the `//!` lines of `src/`. A heading, a list item, a cell of a
//! table and a paragraph are each checked by themselves. Code is left out.

use super::{Finding, Source, tree};

/// Most words of a sentence. Aim at 25.
const WORDS_MAX: usize = 35;
/// How no sentence begins, unless it is a question: the reader cannot see who is meant.
const BANNED: &[&str] =
    &["Who ", "Whoever ", "Whom ", "Of whom ", "Of a ", "Of an ", "Of one ", "Nobody ", "What is "];
/// Dots that end no sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "etc.", "vs.", "cf."];
/// A piece of text that no other continues, and the line that it begins at.
#[derive(Clone, Eq, PartialEq, Debug)]
struct Item {
    line: usize,
    text: String,
}

/// Gathers lines to items.
#[derive(Default)]
struct Reader {
    items: Vec<Item>,
    /// The next line continues the last item.
    open: bool,
    fenced: bool,
    /// Columns that the marker of the present list takes; 0 outside lists.
    indent: usize,
    after_blank: bool,
}

impl Reader {
    fn line(&mut self, at: usize, line: &str) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.starts_with("```") || text.starts_with("~~~") {
            self.fenced = !self.fenced;
            self.open = false;
        } else if self.fenced {
        } else if text.is_empty() {
            (self.open, self.after_blank) = (false, true);
            return;
        } else if !self.open && indent >= self.indent + 4 {
            // Code is indented, and stays so over blank lines.
        } else {
            self.prose(at, indent, text);
        }
        self.after_blank = false;
    }

    fn prose(&mut self, at: usize, indent: usize, text: &str) {
        if self.after_blank && indent == 0 {
            self.indent = 0;
        }
        let marker = marker(text);
        if let Some(row) = text.strip_prefix('|') {
            let cells = row.replace("\\|", " ");
            let cells = cells.split('|').map(str::trim).filter(|cell| !cell.is_empty());
            self.items.extend(cells.map(|cell| Item { line: at, text: cell.into() }));
            self.open = false;
        } else if text.starts_with('#') {
            self.items.push(Item { line: at, text: text.trim_start_matches('#').trim().into() });
            self.open = false;
        } else if text.starts_with('[') && text.contains("]: ") {
            self.open = false;
        } else if marker > 0 || !self.open {
            self.indent = if marker > 0 { indent + marker } else { self.indent };
            self.items.push(Item { line: at, text: text[marker..].into() });
            self.open = true;
        } else if let Some(item) = self.items.last_mut() {
            item.text.push(' ');
            item.text.push_str(text);
        }
    }
}

/// Length of a list's marker at the head of a line, or 0.
fn marker(text: &str) -> usize {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match text.as_bytes() {
        [b'-' | b'*' | b'+' | b'>', b' ', ..] => 2,
        [..] if digits > 0 && text[digits..].starts_with(". ") => digits + 2,
        _ => 0,
    }
}

/// The items of a page, or of the head of a file of Rust.
fn items(source: &Source) -> Vec<Item> {
    let mut reader = Reader::default();
    for (at, line) in source.lines.iter().enumerate() {
        match line.strip_prefix("//!") {
            Some(text) if source.is("rs") => {
                reader.line(at + 1, text.strip_prefix(' ').unwrap_or(text));
            }
            _ if source.is("md") => reader.line(at + 1, line),
            _ => {}
        }
    }
    reader.items
}

/// A text with each piece of code as one word, and links as their words alone.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        out.push_str(if at % 2 == 0 { part } else { "code" });
    }
    while let Some(start) = out.find("](") {
        let end = out[start..].find(')').map_or(out.len(), |end| start + end + 1);
        out.replace_range(start..end, "]");
    }
    out.replace(['[', ']', '*', '_', '"'], "")
}

/// The sentences of a text: up to a stop that a space follows.
fn sentences(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    for word in text.split_whitespace() {
        let last = out.last_mut().expect("one at least");
        if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
        let bare = word.trim_end_matches(')');
        if bare.ends_with(['.', '?', '!']) && !ABBREVIATIONS.contains(&bare.trim_start_matches('('))
        {
            out.push(String::new());
        }
    }
    out.retain(|sentence| !sentence.is_empty());
    out
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// What is wrong in a page, or in the head of a file.
fn prose(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for item in items(source) {
        for sentence in sentences(&plain(&item.text)) {
            let words = words(&sentence);
            let head: String = sentence.chars().take(40).collect();
            if words > WORDS_MAX {
                found.push(source.found(item.line, format!("{words} words: {head}...")));
            }
            let question = sentence.ends_with('?');
            for form in BANNED.iter().filter(|form| !question && sentence.starts_with(**form)) {
                found.push(source.found(item.line, format!("begins with `{}`", form.trim())));
            }
        }
    }
    found
}

fn is_read(source: &Source) -> bool {
    let pages = source.path == "README.md" || source.path.starts_with("doc/");
    (pages && source.is("md")) || (source.path.starts_with("src/") && source.is("rs"))
}

#[test]
fn pages_and_heads_are_in_plain_english() {
    let sources: Vec<Source> = tree().into_iter().filter(is_read).collect();
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    let found: Vec<Finding> = sources.iter().flat_map(prose).collect();
    let report: Vec<String> =
        found.iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.what)).collect();
    assert!(report.is_empty(), "{} findings\n{}", report.len(), report.join("\n"));
}

fn said(path: &str, text: &str) -> Vec<usize> {
    prose(&Source::new(path, text)).iter().map(|finding| finding.line).collect()
}

#[test]
fn long_sentences_are_reported() {
    let long = "word ".repeat(WORDS_MAX + 1);
    let (half, fits) = ("word ".repeat(WORDS_MAX - 5), "word ".repeat(WORDS_MAX));
    assert_eq!(said("doc/a.md", &long), [1]);
    assert_eq!(said("doc/a.md", &fits), []);
    assert_eq!(said("doc/a.md", &format!("{half}\n{half}")), [1], "lines are joined");
    assert_eq!(said("doc/a.md", &format!("{half}. {half}")), []);
    assert_eq!(said("doc/a.md", &format!("{half}(e.g. {half})")), [1]);
    assert_eq!(said("doc/a.md", &format!("{half}\n\n{half}\n- {half}\n# {half}\n1. {half}")), []);
    assert_eq!(said("doc/a.md", &format!("| {half} | {half} |\n| a | {long} |")), [2]);
    assert_eq!(said("doc/a.md", &format!("`{long}` is [one word](http://a.b/c)")), []);
    assert_eq!(said("doc/a.md", &format!("- a\n\n  {long}")), [3], "a list item goes on");
    assert_eq!(said("src/a/b.rs", &format!("//! a\n//!\n//! {long}\nfn f() {{}} // {long}")), [3]);
}

#[test]
fn code_is_no_prose() {
    let long = "word ".repeat(WORDS_MAX + 1);
    assert_eq!(said("doc/a.md", &format!("```sh\n{long}\n\n{long}\n```\n")), []);
    assert_eq!(said("doc/a.md", &format!("a\n\n    {long}\n\n    {long}\n")), []);
    assert_eq!(said("doc/a.md", &format!("```\na\n```\n{long}")), [4]);
}

#[test]
fn banned_forms_are_reported() {
    assert_eq!(said("doc/a.md", "It ends. Whoever waits is told."), [1]);
    assert_eq!(said("doc/a.md", "- Of a NIC a line says\n- Nobody knows\n"), [1, 2]);
    assert_eq!(said("doc/a.md", "**What is** beyond waits."), [1]);
    assert_eq!(said("doc/a.md", "What is wrong? Somebody of whom one knows. Whole pages."), []);
}
