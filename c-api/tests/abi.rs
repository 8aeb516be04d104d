//! What programs depend on, compared with the snapshot in `c-api/abi`: exported symbols, sizes and
//! offsets of structures, values of constants. `XTIE_ABI_UPDATE=1` writes the snapshot anew; a
//! change that breaks programs also steps `XTIE_ABI_VERSION`.

use crosstie_c::xtie_result;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn header() -> String {
    header_of("crosstie.h")
}

fn header_of(name: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join("include").join(name)).unwrap()
}

/// Compares with a file of the snapshot, or writes it.
fn compare(name: &str, text: &str) {
    let path = Path::new(ROOT).join("abi").join(name);
    if std::env::var_os("XTIE_ABI_UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let snapshot = std::fs::read_to_string(&path).unwrap_or_default();
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (snapshot.lines().collect(), text.lines().collect());
    let gone: Vec<_> = old.difference(&new).collect();
    let come: Vec<_> = new.difference(&old).collect();
    assert!(
        snapshot == text,
        "the ABI is not that of {}\ngone: {gone:#?}\ncome: {come:#?}\nXTIE_ABI_UPDATE=1 writes it",
        path.display()
    );
}

/// Names of the functions that the header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut names = BTreeSet::new();
    for line in code {
        let Some(open) = line.find('(') else { continue };
        let name = line[..open].rsplit([' ', '*']).next().unwrap_or("");
        let starts = !line.starts_with([' ', '#']) && !line.starts_with("typedef");
        if starts && name.starts_with("xtie_") {
            names.insert(name.to_string());
        }
    }
    names
}

/// Structures of the header with their fields.
fn structures(header: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let (mut inside, mut open) = (false, 0);
    for line in header.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        // a function may go over several lines
        let continued = open > 0;
        open += line.matches('(').count() as i32 - line.matches(')').count() as i32;
        let function = line.split_once("(*").and_then(|(_, rest)| rest.split_once(')'));
        if let Some((name, _)) = function.filter(|_| inside && !continued) {
            found.last_mut().unwrap().1.push(name.to_string());
        } else if continued {
        } else if let Some(name) =
            line.strip_prefix("typedef struct ").and_then(|l| l.strip_suffix(" {"))
        {
            found.push((name.to_string(), Vec::new()));
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if inside && line.ends_with(';') {
            let field = line.trim_end_matches(';').rsplit([' ', '*']).next().unwrap();
            let field = field.split('[').next().unwrap();
            found.last_mut().unwrap().1.push(field.to_string());
        }
    }
    found
}

/// Constants of the header: plain macros and enumerators.
fn constants(header: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in header.lines().map(str::trim) {
        let define = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '));
        let enumerator = line.split_once(" = ").map(|(name, _)| (name, ""));
        if let Some((name, _)) = define.or(enumerator)
            && name.starts_with("XTIE_")
            && !name.contains('(')
        {
            names.push(name.to_string());
        }
    }
    names
}

/// What a C program says about all structures and constants of a header.
fn layout(name: &str) -> String {
    let header = header_of(name);
    let mut program = format!(
        "#include <{name}>\n#include <stdio.h>\n#include <stddef.h>\nint main(void)\n{{\n",
    );
    for (name, fields) in structures(&header) {
        let size = format!("sizeof({name}), _Alignof({name})");
        writeln!(program, "printf(\"{name} size %zu align %zu\\n\", {size});").unwrap();
        for field in fields {
            let place = format!("offsetof({name}, {field}), sizeof((({name} *)0)->{field})");
            writeln!(program, "printf(\"{name}.{field} at %zu size %zu\\n\", {place});").unwrap();
        }
    }
    for name in constants(&header) {
        writeln!(program, "printf(\"{name} %lld\\n\", (long long)({name}));").unwrap();
    }
    program += "return 0;\n}\n";
    ran(&program)
}

fn ran(program: &str) -> String {
    let thread = std::thread::current().id();
    let folder =
        std::env::temp_dir().join(format!("crosstie-abi-{}-{thread:?}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("abi.c"), folder.join("abi"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc")
        .args(["-std=c11", "-I", &format!("{ROOT}/include"), "-o"])
        .args([&binary, &source])
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = Command::new(&binary).output().unwrap().stdout;
    std::fs::remove_dir_all(&folder).unwrap();
    String::from_utf8(said).unwrap()
}

/// The shared library that cargo built along with this test.
fn shared_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name("libcrosstie_c.so")
}

fn exported() -> BTreeSet<String> {
    let library = shared_library();
    let said = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let said = said.expect("nm").stdout;
    let said = String::from_utf8(said).unwrap();
    let names: BTreeSet<String> =
        said.lines().filter_map(|line| line.split(' ').nth(2)).map(String::from).collect();
    assert!(!names.is_empty(), "no symbols in {}", library.display());
    names
}

#[test]
fn header_library_and_snapshot_have_the_same_functions() {
    let exported: BTreeSet<String> =
        exported().into_iter().filter(|name| name.starts_with("xtie_")).collect();
    assert_eq!(exported, declared(&header()));
    let text = exported.iter().fold(String::new(), |text, name| text + name + "\n");
    compare("symbols.txt", &text);
}

#[test]
fn layout_and_constants_are_those_of_the_snapshot() {
    compare("layout.txt", &layout("crosstie.h"));
}

#[test]
fn layout_of_a_providers_table_is_that_of_the_snapshot() {
    compare("provider-layout.txt", &layout("crosstie_provider.h"));
}

#[test]
fn functions_of_the_core_archive_are_those_of_the_snapshot() {
    let declared = declared(&header_of("crosstie_provider.h"));
    let text = declared.iter().fold(String::new(), |text, name| text + name + "\n");
    compare("provider-symbols.txt", &text);
}

/// Enumerators of a header's result codes, without their prefix.
fn codes(name: &str, prefix: &str) -> Vec<(String, i32)> {
    let header = header_of(name);
    let lines = header.lines().filter_map(|line| line.trim().strip_suffix(','));
    lines
        .filter_map(|line| line.strip_prefix(prefix)?.split_once(" = "))
        .map(|(name, number)| (name.to_string(), number.parse().unwrap()))
        .collect()
}

#[test]
fn a_code_of_both_headers_is_one_number() {
    let library = codes("crosstie.h", "XTIE_");
    let core = codes("crosstie_provider.h", "XTIE_CORE_");
    assert!(core.len() > 40 && library.len() > 40);
    for (name, number) in &core {
        let same_name = library.iter().find(|(other, _)| other == name);
        let same_number = library.iter().find(|(_, other)| other == number);
        match *number {
            ..=-100 => assert_eq!((same_name, same_number), (None, None), "{name}"),
            _ => assert_eq!(same_name, Some(&(name.clone(), *number)), "{name}"),
        }
    }
}

/// The codes of the core archive and their sentences, as they are compiled into it.
#[allow(dead_code, missing_docs)]
#[path = "../core/src/result.rs"]
mod core_result;

#[test]
fn every_code_of_the_core_archive_has_a_sentence_of_its_own() {
    let codes = codes("crosstie_provider.h", "XTIE_CORE_");
    assert_eq!(codes.len(), core_result::RESULTS.len());
    let mut sentences = BTreeSet::new();
    for (name, number) in codes {
        let known = core_result::RESULTS.iter().find(|(code, _)| *code as i32 == number);
        let (code, sentence) = known.unwrap_or_else(|| panic!("{name} has no sentence"));
        assert_eq!(format!("{code:?}"), format!("XTIE_CORE_{name}"));
        assert!(sentences.insert(sentence.to_str().unwrap()), "{name}: {sentence:?} twice");
    }
}

#[test]
fn every_code_has_a_sentence_of_its_own() {
    let header = header();
    let codes = header.lines().filter_map(|line| line.trim().strip_suffix(','));
    let codes: Vec<(&str, i32)> = codes
        .filter(|line| {
            line.starts_with("XTIE_OK")
                || line.starts_with("XTIE_AGAIN")
                || line.starts_with("XTIE_ERR_")
        })
        .map(|line| line.split_once(" = ").unwrap())
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect();
    assert_eq!(codes.len(), crosstie_c::RESULTS.len());
    let mut sentences = BTreeSet::new();
    for (name, number) in codes {
        let known = crosstie_c::RESULTS.iter().find(|(result, _)| *result as i32 == number);
        let (result, sentence) = known.unwrap_or_else(|| panic!("{name} has no sentence"));
        assert_eq!(format!("{result:?}"), name);
        assert!(sentences.insert(sentence.to_str().unwrap()), "{name}: {sentence:?} twice");
    }
    assert_eq!(xtie_result::XTIE_OK.sentence(), c"success");
}
