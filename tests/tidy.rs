//! Rules of the house that no compiler checks. Each rule has a planted violation below, which it
//! must report.
//!
//! The arrows between rooms are drawn in `doc/architecture.md`; the reasons for the rooms where
//! unsafe code may stand are in `doc/decisions/0002-host-room.md`.

#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/structure.rs"]
mod structure;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest file, without its tests, in lines. Longer ones are listed in [`LENGTHS`].
const FILE_LINES_MAX: usize = 600;
/// Longest function in lines, braces included.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest line in characters.
const COLUMNS_MAX: usize = 100;
/// How far above an unsafe block its reason may begin.
const SAFETY_LINES_MAX: usize = 8;
/// The ratchet: files over [`FILE_LINES_MAX`] with the length they may have.
const LENGTHS: &str = "tests/tidy-lengths.txt";

/// Who may name whom. A room may always name itself.
const ARROWS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("collective", &[]),
    ("wire", &["base"]),
    ("fabric", &["base"]),
    ("hca", &["base"]),
    ("transport", &["fabric", "wire", "base"]),
    ("window", &["transport", "fabric", "wire", "base"]),
    ("memory", &["fabric", "base"]),
    ("provider", &["memory", "fabric", "wire", "base"]),
    ("connect", &["wire", "fabric", "base"]),
    ("diagnose", &["transport", "wire", "base"]),
    (
        "host",
        &[
            "connect",
            "provider",
            "memory",
            "window",
            "collective",
            "transport",
            "diagnose",
            "hca",
            "fabric",
            "wire",
            "base",
        ],
    ),
    (
        "tool",
        &[
            "kit",
            "host",
            "connect",
            "provider",
            "memory",
            "window",
            "collective",
            "transport",
            "diagnose",
            "fabric",
            "wire",
            "base",
        ],
    ),
    (
        "adapter",
        &[
            "host",
            "connect",
            "provider",
            "memory",
            "window",
            "collective",
            "transport",
            "diagnose",
            "hca",
            "fabric",
            "wire",
            "base",
        ],
    ),
    ("kit", &["provider", "fabric", "base"]),
    (
        "c-api",
        &[
            "kit",
            "host",
            "connect",
            "provider",
            "memory",
            "window",
            "collective",
            "transport",
            "diagnose",
            "fabric",
            "wire",
            "base",
        ],
    ),
];

/// Where unsafe code may stand: a folder ends with `/`.
const UNSAFE_PLACES: &[&str] = &[
    "src/base/sync.rs",
    "src/base/ring.rs",
    "src/base/carve.rs",
    // the one way in which descriptors become the library's, for rooms that may not name each other
    "src/base/descriptor.rs",
    "src/transport/mr.rs",
    "src/window/memory.rs",
    "src/fabric/provider.rs",
    "src/provider/",
    "src/memory/",
    "src/connect/",
    "src/host/",
    "tool/src/heap.rs",
    "tool/src/owned.rs",
    "tool/src/sim/memory.rs",
    "tool/tests/",
    "c-api/",
    "adapter/",
    "tests/",
];

/// Folders whose root forbids unsafe code for all of them.
const SAFE_FOLDERS: &[&str] = &[
    "src/base/access/",
    "src/collective/",
    "src/connect/group/",
    "src/connect/interfaces/",
    "src/diagnose/",
    "src/hca/",
    "src/provider/verbs/choice/",
    "src/transport/control/",
    "src/transport/rails/",
    "src/transport/recv/",
    "src/transport/send/",
    "src/transport/tests/",
    "src/window/lane/",
    "src/wire/",
];

/// Where `std` may be named.
const STD_PLACES: &[&str] = &[
    "src/provider/shm/",
    "src/provider/tcp/",
    "src/provider/libfabric/",
    "src/provider/verbs/",
    // ports, in tables that are made at open
    "src/provider/rail_set/",
    // tables of copies, which are made at open, and of what a helper thread maps
    "src/provider/copy_engine/",
    "src/provider/notes.rs",
    "src/memory/",
    "src/connect/",
    "src/host/",
    "src/diagnose/",
    // It names `std` once for all rooms, behind `cfg(any(test, feature = "std"))`.
    "src/lib.rs",
    // Its heap block for tests and tools, behind the same.
    "src/base/carve.rs",
    // Behind feature `std`.
    "src/base/descriptor.rs",
    "c-api/src/",
    "c-api/build.rs",
    "c-api/tests/",
    "adapter/nccl/src/",
    "adapter/nccl/build.rs",
    "adapter/nccl/tests/",
    "tool/",
];

/// A rule found broken: path, line (0: the file as a whole), what.
#[derive(Clone, Eq, PartialEq, Debug)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

/// One file, and what the rules need to know of it.
struct Source {
    path: String,
    lines: Vec<String>,
    /// The lines with comments and literals blanked out.
    code: Vec<String>,
    /// Which lines stand inside a `#[cfg(test)]` item.
    test: Vec<bool>,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let lines: Vec<String> = text.lines().map(String::from).collect();
        let code: Vec<String> = blanked(text).lines().map(String::from).collect();
        // `tests.rs` is what stands behind a `#[cfg(test)] mod tests;`.
        let whole = is_test(path) || path.contains("/tests/") || path.ends_with("/tests.rs");
        let test = if whole { vec![true; lines.len()] } else { test_lines(&code) };
        Source { path: path.into(), lines, code, test }
    }

    fn is(&self, extension: &str) -> bool {
        self.path.ends_with(&format!(".{extension}"))
    }

    fn lies_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| match place.ends_with('/') {
            true => self.path.starts_with(place),
            false => self.path == *place,
        })
    }

    fn found(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Lines of code, numbered from one, that are no tests.
    fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        let pairs = self.code.iter().zip(&self.test).enumerate();
        pairs.filter(|(_, (_, test))| !**test).map(|(at, (line, _))| (at + 1, line.as_str()))
    }
}

/// Whether a file stands in `tests/` and is not the test kit's, which the core archive ships.
fn is_test(path: &str) -> bool {
    path.starts_with("tests/") && !path.starts_with("tests/kit/src/")
}

/// `text` with every comment, string and character literal turned into spaces.
fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = match &bytes[at..] {
            [b'/', b'/', ..] => line_length(&bytes[at..]),
            [b'/', b'*', ..] => comment_length(&bytes[at..]),
            [b'r', b'"' | b'#', ..] if !part_of_word(bytes, at) => raw_length(&bytes[at..]),
            [b'"', ..] => string_length(&bytes[at..]),
            [b'\'', ..] => char_length(&bytes[at..]),
            _ => 0,
        };
        for byte in &bytes[at..at + length.max(1)] {
            let kept = length == 0 || *byte == b'\n';
            out.push(if kept { char::from(*byte) } else { ' ' });
        }
        at += length.max(1);
    }
    out
}

fn part_of_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn line_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len())
}

fn comment_length(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn raw_length(bytes: &[u8]) -> usize {
    let hashes = bytes[1..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = &bytes[2 + hashes..];
    let found = body.windows(end.len()).position(|w| w == end).unwrap_or(body.len() - end.len());
    2 + hashes + found + end.len()
}

fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// A character literal's length; 0 for a lifetime.
fn char_length(bytes: &[u8]) -> usize {
    match bytes {
        [_, b'\\', ..] => 2 + bytes[3..].iter().position(|b| *b == b'\'').map_or(0, |n| n + 2),
        [_, _, b'\'', ..] => 3,
        [_, first, ..] if !first.is_ascii() => {
            bytes.iter().skip(1).position(|b| *b == b'\'').map_or(0, |n| n + 2)
        }
        _ => 0,
    }
}

/// Marks the items under `#[cfg(test)]` and the like, to their closing brace or semicolon.
fn test_lines(code: &[String]) -> Vec<bool> {
    let mut test = vec![false; code.len()];
    let mut at = 0;
    while at < code.len() {
        let line = code[at].trim();
        if line.starts_with("#[cfg(") && line.contains("test") && !line.contains("any(") {
            let end = item_end(code, at);
            test[at..=end].fill(true);
            at = end;
        }
        at += 1;
    }
    test
}

/// The line on which the item that starts at `from` ends.
fn item_end(code: &[String], from: usize) -> usize {
    let (mut depth, mut opened) = (0i32, false);
    for (at, line) in code.iter().enumerate().skip(from) {
        let item =
            if at == from { line.split_once(']').map_or("", |(_, rest)| rest) } else { line };
        for byte in item.bytes() {
            match byte {
                b'{' => (depth, opened) = (depth + 1, true),
                b'}' => depth -= 1,
                b';' if depth == 0 => return at,
                _ => {}
            }
        }
        if opened && depth <= 0 {
            return at;
        }
    }
    code.len() - 1
}

// The rules.

type Rule = fn(&Source) -> Vec<Finding>;

const RULES: &[(&str, Rule)] = &[
    ("arrows", arrows),
    ("unsafe places", unsafe_places),
    ("safety comments", safety_comments),
    ("std places", std_places),
    ("columns", columns),
    ("function length", function_length),
    ("descriptors", descriptors),
    ("leftovers", leftovers),
];

/// Rooms that are crates of their own, with their folders. In these `crate` is themselves.
const CRATES: &[(&str, &str)] =
    &[("adapter", "adapter/"), ("c-api", "c-api/"), ("kit", "tests/kit/src/"), ("tool", "tool/")];

/// The room of a file that stands in a crate of its own.
fn crate_of(path: &str) -> Option<&'static str> {
    CRATES.iter().find(|(_, folder)| path.starts_with(folder)).map(|(room, _)| *room)
}

/// The room that a path belongs to, if it is one that the arrows speak of.
fn room(path: &str) -> Option<String> {
    if let Some(room) = crate_of(path) {
        return Some(room.into());
    }
    let rest = path.strip_prefix("src/")?;
    let (room, _) = rest.split_once('/').or_else(|| rest.split_once(".rs"))?;
    (room != "lib").then(|| room.into())
}

/// Rooms named on a line: after `crate::` (or `crosstie::` outside the library), also inside
/// `use crate::{a::…, b::…}`, which may go over several lines and is handed over joined.
fn rooms_named(code: &str, prefix: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        if part_of_word(code.as_bytes(), at) {
            continue;
        }
        let rest = code[at + prefix.len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => named.extend(group_heads(group)),
            None => named.push(word(rest)),
        }
    }
    named.retain(|name| !name.is_empty());
    named
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// First words of a brace group's members, up to the group's end.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut start) = (0, vec![], true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            c if start && !c.is_whitespace() => {
                heads.push(word(&group[at..]));
                start = false;
            }
            _ => {}
        }
    }
    heads
}

/// Every `use` or path, joined to one line where it goes over several: line number and text.
fn statements(source: &Source) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (at, line) in source.shipped() {
        let starts = line.trim_start().trim_start_matches("pub ").starts_with("use ");
        match out.last_mut() {
            Some((_, text)) if open => text.push_str(line.trim()),
            _ => out.push((at, line.into())),
        }
        open = (open || starts) && !line.contains(';');
    }
    out
}

fn arrows(source: &Source) -> Vec<Finding> {
    let Some(room) = room(&source.path).filter(|_| source.is("rs")) else { return vec![] };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else {
        return vec![source.found(0, format!("room `{room}` is unknown to the arrows"))];
    };
    let prefix = if crate_of(&source.path).is_some() { "crosstie::" } else { "crate::" };
    let mut found = Vec::new();
    for (at, text) in statements(source) {
        let mut named = rooms_named(&text, prefix);
        named.extend(above(&source.path, &text));
        named.extend(text.contains("crosstie_kit::").then(|| "kit".into()));
        for name in named {
            let known = ARROWS.iter().any(|(room, _)| *room == name);
            if known && name != room && !allowed.contains(&name.as_str()) {
                found.push(source.found(at, format!("`{room}` may not name `{name}`")));
            }
        }
    }
    found
}

/// What `super::super::…` reaches when it climbs out of the room.
fn above(path: &str, text: &str) -> Vec<String> {
    // Steps from this file's module up to the crate's root.
    let depth = path.trim_end_matches("/mod.rs").split('/').count() - 1;
    let climb = "super::".repeat(depth);
    let own = crate_of(path).is_some();
    if depth == 0 || own { vec![] } else { rooms_named(text, &climb) }
}

fn unsafe_places(source: &Source) -> Vec<Finding> {
    if !source.is("rs") || source.path.starts_with("tests/fuzz/") {
        return vec![];
    }
    if source.lies_in(UNSAFE_PLACES) {
        return vec![];
    }
    // Some roots of modules lower the wall for a part of theirs, and have no code themselves.
    let lowers = ["src/fabric/", "src/transport/", "src/window/", "tool/src/sim/"]
        .map(|room| room.to_owned() + "mod.rs")
        .contains(&source.path)
        || source.path == "tool/src/lib.rs";
    let forbids = source.code.iter().any(|line| {
        line.starts_with("#![forbid(unsafe_code)]")
            || (lowers && line.starts_with("#![deny(unsafe_code)]"))
    });
    let roots = ["src/lib.rs", "src/base/mod.rs"].contains(&source.path.as_str());
    let used = unsafe_lines(source);
    let mut found: Vec<Finding> =
        used.iter().map(|at| source.found(*at, "unsafe code in a room that has none")).collect();
    let empty = source.code.iter().all(|line| line.trim().is_empty());
    let is_root = |folder: &&str| source.path == format!("{folder}mod.rs");
    let below = source.lies_in(SAFE_FOLDERS) && !SAFE_FOLDERS.iter().any(is_root);
    if !forbids && !roots && !empty && !below {
        found.push(source.found(0, "`#![forbid(unsafe_code)]` is missing"));
    }
    found
}

/// Lines with the keyword, which is also part of attributes and lint names.
fn unsafe_lines(source: &Source) -> Vec<usize> {
    let lines = source.code.iter().enumerate();
    lines.filter(|(_, line)| has_word(line, "unsafe")).map(|(at, _)| at + 1).collect()
}

fn has_word(line: &str, wanted: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == wanted)
}

fn safety_comments(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for at in unsafe_lines(source) {
        let line = &source.code[at - 1];
        if !line.contains("unsafe {") && !line.contains("unsafe impl") {
            continue;
        }
        let from = at.saturating_sub(SAFETY_LINES_MAX + 1);
        if !source.lines[from..at].iter().any(|line| line.contains("// SAFETY:")) {
            found.push(source.found(at, "unsafe without `// SAFETY:` above it"));
        }
    }
    found
}

fn std_places(source: &Source) -> Vec<Finding> {
    if !source.is("rs") || is_test(&source.path) {
        return vec![];
    }
    let mut found = Vec::new();
    for (at, line) in source.shipped() {
        let names_std = line.contains("extern crate std") || starts_path(line, "std::");
        if names_std && !source.lies_in(STD_PLACES) {
            found.push(source.found(at, "`std` in a room without it"));
        }
        if line.contains("extern crate alloc") || starts_path(line, "alloc::") {
            found.push(source.found(at, "`alloc` is named nowhere"));
        }
    }
    found
}

/// Whether a path on the line begins with `prefix`; `x::alloc::y` and `my_std::` do not.
fn starts_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix)
        .any(|(at, _)| !part_of_word(line.as_bytes(), at) && !line[..at].ends_with("::"))
}

fn columns(source: &Source) -> Vec<Finding> {
    let generated = source.path == "c-api/include/crosstie.h";
    let mut found = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let table = source.is("md") && line.trim_start().starts_with('|');
        let link = source.is("md") && line.contains("http");
        if !generated && !table && !link && line.chars().count() > COLUMNS_MAX {
            found.push(source.found(at + 1, format!("over {COLUMNS_MAX} columns")));
        }
    }
    found
}

fn function_length(source: &Source) -> Vec<Finding> {
    if !source.is("rs") {
        return vec![];
    }
    let mut found = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        let declares = has_word(line, "fn") && line.contains('(') && !line.contains("fn(");
        if !declares {
            continue;
        }
        let lines = item_end_of_fn(&source.code, at) - at + 1;
        if lines > FUNCTION_LINES_MAX {
            found.push(source.found(at + 1, format!("a function of {lines} lines")));
        }
    }
    found
}

/// As [`item_end`], for a line that is no attribute. Semicolons within `[T; N]` end nothing.
fn item_end_of_fn(code: &[String], from: usize) -> usize {
    let (mut depth, mut brackets, mut opened) = (0i32, 0i32, false);
    for (at, line) in code.iter().enumerate().skip(from) {
        for byte in line.bytes() {
            match byte {
                b'{' => (depth, opened) = (depth + 1, true),
                b'}' => depth -= 1,
                b'[' | b'(' => brackets += 1,
                b']' | b')' => brackets -= 1,
                b';' if depth == 0 && brackets == 0 => return at,
                _ => {}
            }
            if opened && depth <= 0 {
                return at;
            }
        }
    }
    code.len() - 1
}

/// What makes a descriptor that outlives the call. Files that are read whole do not (`fs::read`).
const MAKERS: &[&str] = &[
    "libc::socket(",
    "libc::socketpair(",
    "libc::accept",
    "libc::open(",
    "libc::openat(",
    "libc::dup(",
    "libc::dup2(",
    "libc::pipe",
    "libc::eventfd(",
    "libc::memfd_create(",
    "libc::epoll_create",
    "libc::timerfd_create(",
    "libc::signalfd(",
    "libc::inotify_init",
    "libc::F_DUPFD",
    "libc::SYS_pidfd_",
    "libc::SYS_memfd_",
    "libc::SYS_open",
    "OwnedFd::from_raw_fd(",
    "UdpSocket::bind(",
];
/// What takes it over, close by.
const TAKERS: &[&str] = &["descriptor::made(", "descriptor::lift(", "PrivateFd::made("];
/// How close.
const TAKERS_LINES: usize = 3;

/// Descriptors below 3 are the program's: `base/descriptor.rs`.
fn descriptors(source: &Source) -> Vec<Finding> {
    let ships = source.path.starts_with("src/") || source.path.starts_with("c-api/src/");
    let ships = ships || source.path.starts_with("adapter/nccl/src/");
    // the tool is a program: the standard library sees to its streams
    if !ships || source.lies_in(&["src/base/descriptor.rs"]) {
        return vec![];
    }
    let has = |line: &str, words: &[&str]| words.iter().any(|word| line.contains(word));
    let mut found = Vec::new();
    for (at, line) in source.shipped().filter(|(_, line)| has(line, MAKERS)) {
        let end = (at + TAKERS_LINES).min(source.code.len());
        let near = &source.code[(at - 1).saturating_sub(TAKERS_LINES)..end];
        if !near.iter().any(|line| has(line, TAKERS)) {
            found.push(source.found(at, format!("a raw descriptor: {}", line.trim())));
        }
    }
    found
}

fn leftovers(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        // In pieces, so that this file does not report itself.
        for word in ["todo!", "unimplemented!", concat!("#[ign", "ore")] {
            if source.is("rs") && line.contains(word) {
                found.push(source.found(at + 1, format!("`{word}`")));
            }
        }
    }
    for (at, line) in source.lines.iter().enumerate() {
        if line.contains(concat!("FIX", "ME")) {
            found.push(source.found(at + 1, concat!("`FIX", "ME`")));
        }
    }
    found
}

/// Lines of a file that are no tests.
fn shipped_length(source: &Source) -> usize {
    source.test.iter().filter(|test| !**test).count()
}

/// The lines of a ratchet that say something.
fn entries(ratchet: &str) -> impl Iterator<Item = &str> {
    ratchet.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty())
}

/// Compares lengths with the ratchet: path and the length that it may have, in lines.
fn lengths(sources: &[Source], ratchet: &str) -> Vec<Finding> {
    let mut allowed: BTreeMap<&str, usize> = BTreeMap::new();
    for line in entries(ratchet) {
        let (path, lines) = line.split_once(' ').expect("`path lines` in the ratchet");
        allowed.insert(path, lines.trim().parse().expect("a number in the ratchet"));
    }
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.is("rs")) {
        let lines = shipped_length(source);
        match allowed.remove(source.path.as_str()) {
            None if lines > FILE_LINES_MAX => {
                found.push(source.found(0, format!("{lines} lines without tests")));
            }
            Some(limit) if lines > limit => {
                found.push(source.found(0, format!("grew from {limit} to {lines} lines")));
            }
            Some(limit) if lines < limit => {
                let what = format!("shrank to {lines} lines: say so in {LENGTHS}, not {limit}");
                found.push(source.found(0, what));
            }
            Some(_) | None => {}
        }
    }
    for path in allowed.keys() {
        let what = format!("is gone: take it out of {LENGTHS}");
        found.push(Finding { path: (*path).into(), line: 0, what });
    }
    found
}

// The tree.

fn tree() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for place in ["src", "c-api", "adapter", "tool", "examples-c", "tests", "doc"] {
        collect(&root.join(place), &mut paths);
    }
    paths.extend(["README.md", "CHANGELOG.md"].map(|name| root.join(name)));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        let relative = path.strip_prefix(root).ok()?.to_str()?;
        Some(Source::new(relative, &text))
    };
    paths.into_iter().filter_map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && name != "corpus" && name != "build" {
                collect(&path, paths);
            }
            continue;
        }
        let extension = path.extension().and_then(|e| e.to_str());
        if matches!(extension, Some("rs" | "c" | "h" | "hpp" | "cpp" | "md")) {
            paths.push(path);
        }
    }
}

#[test]
fn the_tree_is_tidy() {
    let sources = tree();
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    let ratchet = Path::new(env!("CARGO_MANIFEST_DIR")).join(LENGTHS);
    let mut found = lengths(&sources, &fs::read_to_string(ratchet).unwrap());
    let ratchet = Path::new(env!("CARGO_MANIFEST_DIR")).join(structure::STRUCTURE);
    found.extend(structure::structure(&sources, &fs::read_to_string(ratchet).unwrap()));
    for source in &sources {
        found.extend(RULES.iter().flat_map(|(_, rule)| rule(source)));
    }
    let report: Vec<String> =
        found.iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.what)).collect();
    assert!(report.is_empty(), "{} findings\n{}", report.len(), report.join("\n"));
}

// Planted violations.

/// What the rule called `name` says of `text` at `path`: line and words.
fn planted(name: &str, path: &str, text: &str) -> Vec<(usize, String)> {
    let (_, rule) = RULES.iter().find(|(rule, _)| *rule == name).expect("such a rule");
    rule(&Source::new(path, text)).into_iter().map(|f| (f.line, f.what)).collect()
}

fn lines_found(name: &str, path: &str, text: &str) -> Vec<usize> {
    planted(name, path, text).into_iter().map(|(line, _)| line).collect()
}

#[test]
fn arrow_against_the_direction_is_reported() {
    let said = |path, text| planted("arrows", path, text);
    let wrong = vec![(1, "`provider` may not name `transport`".to_string())];
    assert_eq!(said("src/provider/sim.rs", "use crate::transport::endpoint::Endpoint;"), wrong);
    assert_eq!(said("src/provider/sim.rs", "use crate::{base::seq::Seq, transport};"), wrong);
    assert_eq!(said("src/provider/sim.rs", "use super::super::transport::Endpoint;"), wrong);
    assert_eq!(said("src/provider/mod.rs", "use super::transport::Endpoint;"), wrong);
    assert_eq!(
        said("src/provider/sim.rs", "use crate::{\n    base::seq,\n    transport,\n};"),
        wrong
    );
    assert_eq!(said("src/provider/sim.rs", "fn f(e: crate::transport::Endpoint) {}"), wrong);
    assert_eq!(said("src/provider/sim.rs", "use super::transport::x;"), vec![]);
    assert_eq!(said("src/provider/sim.rs", "use crate::fabric::Op; // crate::tool"), vec![]);
    assert_eq!(said("src/base/seq.rs", "use crate::wire::slot;").len(), 1);
    assert_eq!(said("src/connect/mod.rs", "use crate::host::Host;").len(), 1);
    assert_eq!(said("src/host/mod.rs", "use crate::transport::Endpoint;"), vec![]);
    assert_eq!(said("c-api/src/lib.rs", "use crosstie::tool::perf;").len(), 1);
    assert_eq!(said("c-api/src/lib.rs", "use crosstie::host::Host;"), vec![]);
    assert_eq!(said("adapter/nccl/src/lib.rs", "use crosstie::tool::perf;").len(), 1);
    assert_eq!(said("adapter/nccl/src/lib.rs", "use crosstie::host::Host;"), vec![]);
    assert_eq!(said("tool/src/main.rs", "use crosstie::host::Host;"), vec![]);
    assert_eq!(said("tool/src/main.rs", "use crosstie::hca::Engine;").len(), 1);
    assert_eq!(said("tests/kit/src/sim/mod.rs", "use crosstie::transport::Endpoint;").len(), 1);
    assert_eq!(said("tests/kit/src/sim/mod.rs", "use crosstie::provider::touch;"), vec![]);
    assert_eq!(said("src/provider/mod.rs", "use crosstie_kit::conformance::Rig;").len(), 1);
    assert_eq!(said("c-api/core/src/lib.rs", "use crosstie_kit::conformance::Rig;"), vec![]);
    assert_eq!(said("src/strange/mod.rs", "").len(), 1);
}

#[test]
fn tests_may_cross_rooms() {
    let text = "use crate::base::seq;\n#[cfg(test)]\nmod tests {\n    use crate::tool::x;\n}\n";
    assert_eq!(lines_found("arrows", "src/wire/slot.rs", text), []);
    assert_eq!(lines_found("arrows", "src/wire/tests.rs", "use crate::tool::x;"), []);
    assert_eq!(lines_found("arrows", "tests/host.rs", "use crosstie::tool::x;"), []);
}

#[test]
fn unsafe_outside_its_rooms_is_reported() {
    let forbid = "#![forbid(unsafe_code)]\nfn f() {}\n";
    let uses = "#![forbid(unsafe_code)]\nfn f() { unsafe { g() } }\n";
    assert_eq!(lines_found("unsafe places", "src/wire/slot.rs", forbid), []);
    assert_eq!(lines_found("unsafe places", "src/transport/net.rs", "fn f() {}\n"), [0]);
    assert_eq!(lines_found("unsafe places", "src/wire/mod.rs", "fn f() {}\n"), [0]);
    assert_eq!(lines_found("unsafe places", "src/wire/slot.rs", "fn f() {}\n"), []);
    assert_eq!(lines_found("unsafe places", "src/wire/slot.rs", uses), [2]);
    assert_eq!(lines_found("unsafe places", "src/transport/mod.rs", "#![deny(unsafe_code)]"), []);
    assert_eq!(lines_found("unsafe places", "src/wire/mod.rs", "#![deny(unsafe_code)]"), [0]);
    assert_eq!(lines_found("unsafe places", "src/memory/host.rs", uses), []);
}

#[test]
fn unsafe_without_a_reason_is_reported() {
    let far = format!("// SAFETY: x\n{}unsafe {{ g() }}\n", "\n".repeat(SAFETY_LINES_MAX));
    let near = "// SAFETY: x\n\n\nunsafe { g() }\n";
    let path = "src/memory/host.rs";
    assert_eq!(lines_found("safety comments", path, "fn f() { unsafe { g() } }"), [1]);
    assert_eq!(lines_found("safety comments", path, "unsafe impl Send for X {}"), [1]);
    assert_eq!(lines_found("safety comments", path, &far), [SAFETY_LINES_MAX + 2]);
    assert_eq!(lines_found("safety comments", path, near), []);
    assert_eq!(lines_found("safety comments", path, "unsafe fn f() {} // \"unsafe {\""), []);
}

#[test]
fn std_and_alloc_outside_their_rooms_are_reported() {
    let said = |path, text| lines_found("std places", path, text);
    assert_eq!(said("src/wire/slot.rs", "extern crate std;"), [1]);
    assert_eq!(said("src/provider/sim.rs", "fn f() -> std::vec::Vec<u8> {}"), [1]);
    assert_eq!(said("src/provider/shm/map.rs", "extern crate std;"), []);
    assert_eq!(said("tests/kit/src/trace.rs", "extern crate std;"), [1]);
    assert_eq!(said("tests/host.rs", "use std::fs;"), []);
    assert_eq!(said("src/memory/host.rs", "extern crate alloc;"), [1]);
    assert_eq!(said("src/memory/host.rs", "use std::alloc::Layout;"), []);
    assert_eq!(said("src/wire/slot.rs", "#[cfg(test)]\nextern crate std;\nfn f() {}"), []);
    assert_eq!(said("src/wire/slot.rs", "#[cfg(test)]\nmod tests { use std::vec; }"), []);
    assert_eq!(said("src/wire/slot.rs", "#[cfg(not(loom))]\nextern crate std;"), [2]);
}

#[test]
fn long_lines_functions_and_files_are_reported() {
    let long = "x".repeat(COLUMNS_MAX + 1);
    assert_eq!(lines_found("columns", "examples-c/a.c", &long), [1]);
    assert_eq!(lines_found("columns", "doc/a.md", &format!("| {long}")), []);
    assert_eq!(lines_found("columns", "c-api/include/crosstie.h", &long), []);
    let function = |lines: usize| format!("fn f(\n) {{\n{}}}\n", "    g();\n".repeat(lines - 3));
    let path = "src/wire/slot.rs";
    assert_eq!(lines_found("function length", path, &function(FUNCTION_LINES_MAX)), []);
    assert_eq!(lines_found("function length", path, &function(FUNCTION_LINES_MAX + 1)), [1]);
    assert_eq!(lines_found("function length", path, "fn f(a: [u8; 3]) -> u8;\nfn g();"), []);

    let file = |lines: usize| {
        let tests = "#[cfg(test)]\nmod tests {\n    // x\n}\n".repeat(200);
        vec![Source::new("src/a/b.rs", &("x\n".repeat(lines) + &tests))]
    };
    let said = |lines, ratchet| lengths(&file(lines), ratchet).len();
    assert_eq!(said(600, ""), 0);
    assert_eq!(said(601, ""), 1);
    assert_eq!(said(650, "# why\nsrc/a/b.rs 650\n"), 0);
    assert_eq!(said(651, "src/a/b.rs 650\n"), 1);
    assert_eq!(said(649, "src/a/b.rs 650\n"), 1, "the ratchet only shrinks");
    assert_eq!(said(10, "src/a/gone.rs 650\n"), 1);
}

#[test]
fn raw_descriptors_are_reported() {
    let said = |path, text| lines_found("descriptors", path, text);
    let raw = "let fd = unsafe { libc::socket(1, 2, 3) };";
    let taken = "let make = || unsafe { libc::socket(1, 2, 3) };\nPrivateFd::made(make)";
    let far = format!("{raw}{}PrivateFd::made(make)", "\n".repeat(TAKERS_LINES + 1));
    assert_eq!(said("src/connect/socket.rs", raw), [1]);
    assert_eq!(said("src/connect/socket.rs", taken), []);
    assert_eq!(said("src/connect/socket.rs", &far), [1]);
    assert_eq!(said("src/memory/x.rs", "libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)"), [1]);
    assert_eq!(said("tool/src/rdma.rs", raw), []);
    assert_eq!(said("src/memory/x.rs", &format!("#[cfg(test)]\nmod tests {{\n{raw}\n}}")), []);
}

#[test]
fn leftovers_are_reported() {
    let path = "src/wire/slot.rs";
    assert_eq!(lines_found("leftovers", path, "fn f() { todo!() }"), [1]);
    assert_eq!(lines_found("leftovers", path, "fn f() { unimplemented!(\"x\") }"), [1]);
    assert_eq!(lines_found("leftovers", path, concat!("\n#[ign", "ore = \"slow\"]")), [2]);
    assert_eq!(lines_found("leftovers", path, concat!("// FIX", "ME: later")), [1]);
    assert_eq!(lines_found("leftovers", path, "// a todo! in words, \"todo!\""), []);
}

#[test]
fn comments_and_literals_are_no_code() {
    assert_eq!(blanked("a // b"), "a     ");
    assert_eq!(blanked("a /* /* b */ */ c"), "a               c");
    assert_eq!(blanked("a \"\\\"b\" c"), "a       c");
    assert_eq!(blanked("r#\"x\"#;"), "      ;");
    assert_eq!(blanked("&'a str, '{', '\\''"), "&'a str,    ,     ");
}
