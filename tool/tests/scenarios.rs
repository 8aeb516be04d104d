//! The table of `doc/testing.md` that says where the simulator's scenarios have a real counterpart
//! is complete and true: every scenario is in it, and every test that it names is there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const HEADING: &str = "## The simulator's scenarios in the guest";
/// What a counterpart that there is not begins with; the reason follows.
const NONE: &str = "none: ";
/// Shortest reason.
const REASON_MIN: usize = 20;

/// The project's.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package of the project")
}

fn read(path: &str) -> String {
    let whole = root().join(path);
    fs::read_to_string(whole).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text between two words, from the first of the first on.
fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let rest = &text[text.find(from).unwrap_or_else(|| panic!("no {from}")) + from.len()..];
    &rest[..rest.find(to).unwrap_or_else(|| panic!("no {to} behind {from}"))]
}

/// Words in backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// Names of the tests of a file.
fn tests(text: &str) -> Vec<String> {
    let parts = text.split("#[test]\n").skip(1);
    let name = |part: &str| Some(part.trim_start().strip_prefix("fn ")?.split('(').next()?.into());
    parts.filter_map(name).collect()
}

/// The names of everything that the simulator brings about: classes that its schedules count, tests
/// of its own, and the classes of stalls that have a scene.
fn scenarios() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["tool/src/sim", "tool/src/sim/one_sided"] {
        for entry in fs::read_dir(root().join(folder)).expect("the simulator") {
            let path = entry.expect("a file").path();
            if path.is_file() {
                names.extend(tests(&fs::read_to_string(&path).expect("a file")));
            }
        }
    }
    let classes = read("tool/src/sim/mod.rs");
    let classes = between(&classes, "fn classes(", "\n}\n").to_string();
    names.extend(classes.split('"').skip(1).step_by(2).map(String::from));
    let stalls = read("tool/src/sim/stalls.rs");
    let scenes = between(&stalls, "const SCENES:", "\n];");
    let scene = |part: &str| format!("Class::{}", part.split(',').next().unwrap_or_default());
    names.extend(scenes.split("scene(Class::").skip(1).map(scene));
    names.sort();
    names.dedup();
    names
}

/// The rows of the table: scenarios, and what stands beside them.
fn rows(page: &str) -> Vec<(Vec<String>, String)> {
    let table = page.split(HEADING).nth(1).expect("the heading");
    let table = table.split("\n## ").next().unwrap_or_default();
    let lines = table.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split(" | ");
        let names = quoted(cells.next().expect("a cell"));
        (names, cells.next().expect("a second cell").trim().to_string())
    };
    lines.map(row).collect()
}

/// The programs that run in the guest, and their files.
fn programs() -> BTreeMap<String, String> {
    let script = read("scripts/test");
    let list = between(&script, "vm_tests=(", ")").to_string();
    let program = |words: &str| {
        let (folder, test) = words.split_once(' ').expect("a folder and a program");
        let test = test.split(':').next().expect("a program").to_string();
        let path = format!("{folder}/tests/{test}.rs");
        (test, path.trim_start_matches("./").to_string())
    };
    list.split('"').skip(1).step_by(2).map(program).collect()
}

/// What is wrong with a table, in words.
fn faults(page: &str) -> Vec<String> {
    let (known, programs) = (scenarios(), programs());
    let mut found = Vec::new();
    let mut told = BTreeMap::new();
    for (names, beside) in rows(page) {
        for name in names {
            *told.entry(name).or_insert(0) += 1;
        }
        if let Some(reason) = beside.strip_prefix(NONE) {
            if reason.len() < REASON_MIN {
                found.push(format!("no reason: {beside}"));
            }
            continue;
        }
        for words in beside.split(';') {
            let words = quoted(words);
            let Some((program, names)) = words.split_first().filter(|(_, names)| !names.is_empty())
            else {
                found.push(format!("names no program and test: {beside}"));
                continue;
            };
            let Some(path) = programs.get(program) else {
                found.push(format!("{program} does not run in the guest"));
                continue;
            };
            let there = tests(&read(path));
            let missing = names.iter().filter(|name| !there.contains(name));
            found.extend(missing.map(|name| format!("{path} has no test {name}")));
        }
    }
    let missing = known.iter().filter(|name| !told.contains_key(*name));
    found.extend(missing.map(|name| format!("{name} is not in the table")));
    for (name, times) in told {
        if !known.contains(&name) || times > 1 {
            found.push(format!("{name} is in the table {times} times, and not in the simulator"));
        }
    }
    found
}

#[test]
fn every_scenario_of_the_simulator_has_a_counterpart_in_the_guest_or_a_reason() {
    let known = scenarios();
    for name in ["fault: ghost write", "Class::StoppedPeer", "seed_that_fails_or_panics_ends_with"]
    {
        assert!(known.iter().any(|known| known.starts_with(name)), "{name} was not found");
    }
    let found = faults(&read("doc/testing.md"));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Each fault that is planted is found.
#[test]
fn table_that_is_not_true_is_noticed() {
    let page = read("doc/testing.md");
    let planted = |from: &str, to: &str| {
        assert!(page.contains(from), "{from}");
        faults(&page.replacen(from, to, 1))
    };
    let gone = planted("`fault: ghost write`", "`fault: none`");
    assert!(gone.iter().any(|fault| fault.contains("fault: ghost write is not in")), "{gone:?}");
    assert!(gone.iter().any(|fault| fault.contains("fault: none is in the table")), "{gone:?}");
    let other = planted("`verbs_scenarios`: `writes_that", "`verbs_scenarios`: `words_that");
    assert!(other.iter().any(|fault| fault.contains("has no test words_that")), "{other:?}");
    let program = planted("`verbs_scenarios`: `writes_that", "`verbs_hosts`: `writes_that");
    assert!(program.iter().any(|fault| fault.contains("does not run in the guest")), "{program:?}");
    let reason = planted("| none: the simulator itself", "| none: x | ");
    assert!(reason.iter().any(|fault| fault.contains("no reason")), "{reason:?}");
}
