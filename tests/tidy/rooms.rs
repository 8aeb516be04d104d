//! The picture of the rooms, `doc/rooms.svg`, shows the rooms that exist, and their arrows.
//!
//! `make rooms` draws it from `doc/rooms.dot`. The source is compared with the folders and with
//! [`ARROWS`](super::ARROWS), the picture with its source.

use super::{ARROWS, CRATES};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What a drawing shows.
#[derive(Default, Debug)]
struct Drawing {
    rooms: BTreeSet<String>,
    arrows: BTreeSet<(String, String)>,
}

/// Reads the source: a statement a line, `room [label = ...]` or `room -> room`.
fn source_of(text: &str) -> Drawing {
    let mut drawing = Drawing::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let name = |text: &str| text.trim().trim_matches('"').to_string();
        if let Some((from, to)) = line.split_once(" -> ") {
            drawing.arrows.insert((name(from), name(to)));
        } else if let Some((room, _)) = line.split_once(" [label = ") {
            drawing.rooms.insert(name(room));
        }
    }
    drawing
}

/// Reads the picture: each room and each arrow has its title.
fn picture_of(text: &str) -> Drawing {
    let mut drawing = Drawing::default();
    let titles = text.lines().filter_map(|line| line.strip_prefix("<title>"));
    for title in titles.filter_map(|line| line.strip_suffix("</title>")).skip(1) {
        let title = title.replace("&#45;", "-").replace("&gt;", ">");
        match title.split_once("->") {
            Some((from, to)) => drawing.arrows.insert((from.into(), to.into())),
            None => drawing.rooms.insert(title),
        };
    }
    drawing
}

/// What is reached from a room along the arrows, whatever the number of steps.
fn reached(drawing: &Drawing, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_string()];
    while let Some(room) = open.pop() {
        for (_, to) in drawing.arrows.iter().filter(|(from, _)| *from == room) {
            if found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// The drawing against the folders of the tree.
fn against_folders(drawing: &Drawing, folders: &BTreeSet<String>) -> Vec<String> {
    let absent = folders.difference(&drawing.rooms).map(|room| format!("`{room}` is not drawn"));
    let gone = drawing.rooms.difference(folders).map(|room| format!("`{room}` does not exist"));
    absent.chain(gone).collect()
}

/// The drawing against the rules: no arrow but those allowed, and each of these drawn or implied.
fn against_rules(drawing: &Drawing, rules: &[(&str, &[&str])]) -> Vec<String> {
    let mut found = Vec::new();
    for (from, to) in &drawing.arrows {
        let allowed = rules.iter().any(|(room, may)| room == from && may.contains(&to.as_str()));
        if !allowed {
            found.push(format!("`{from}` may not name `{to}`"));
        }
    }
    for (room, may) in rules {
        let reached = reached(drawing, room);
        let lost = may.iter().filter(|to| !reached.contains(**to));
        found.extend(lost.map(|to| format!("no way from `{room}` to `{to}` is drawn")));
    }
    found
}

/// The picture against its source.
fn against_source(picture: &Drawing, source: &Drawing) -> Vec<String> {
    let mut found = Vec::new();
    if picture.rooms != source.rooms {
        found.push(format!("rooms {:?}, not {:?}", picture.rooms, source.rooms));
    }
    if picture.arrows != source.arrows {
        found.push(format!("arrows {:?}, not {:?}", picture.arrows, source.arrows));
    }
    found
}

fn folders() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join("src")).unwrap().map(Result::unwrap);
    let inside = entries.filter(|entry| entry.path().is_dir());
    let inside = inside.map(|entry| entry.file_name().into_string().unwrap());
    let outside = CRATES.iter().filter(|(_, folder)| root.join(folder).is_dir());
    inside.chain(outside.map(|(room, _)| (*room).to_string())).collect()
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("doc").join(name)).unwrap()
}

#[test]
fn picture_shows_the_rooms_that_exist_and_their_arrows() {
    let source = source_of(&page("rooms.dot"));
    assert_eq!(against_folders(&source, &folders()), [""; 0], "doc/rooms.dot");
    assert_eq!(against_rules(&source, ARROWS), [""; 0], "doc/rooms.dot");
    let picture = picture_of(&page("rooms.svg"));
    assert_eq!(against_source(&picture, &source), [""; 0], "doc/rooms.svg: `make rooms`");
}

#[test]
fn stale_drawing_is_reported() {
    let text = "// a -> c\na [label = \"a\"]\n\"b-b\" [label = \"b\"]\na -> \"b-b\"\n";
    let drawing = source_of(text);
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    assert_eq!(against_folders(&drawing, &set(&["a", "b-b"])), [""; 0]);
    assert_eq!(
        against_folders(&drawing, &set(&["a", "c"])),
        ["`c` is not drawn", "`b-b` does not exist"]
    );
    assert_eq!(against_rules(&drawing, &[("a", &["b-b"]), ("b-b", &[])]), [""; 0]);
    assert_eq!(
        against_rules(&drawing, &[("a", &[]), ("b-b", &["a"])]),
        ["`a` may not name `b-b`", "no way from `b-b` to `a` is drawn"]
    );
    let title = |text: &str| format!("<title>{text}</title>\n");
    let all = [title("rooms"), title("a"), title("b&#45;b"), title("a&#45;&gt;b&#45;b")].concat();
    assert_eq!(against_source(&picture_of(&all), &drawing), [""; 0]);
    assert_eq!(against_source(&picture_of(&(all + &title("c"))), &drawing).len(), 1);
}
