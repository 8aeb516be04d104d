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
    std::fs::read_to_string(Path::new(ROOT).join("include/crosstie.h")).unwrap()
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
    let mut inside = false;
    for line in header.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("typedef struct ").and_then(|l| l.strip_suffix(" {"))
        {
            found.push((name.to_string(), Vec::new()));
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if inside && line.ends_with(';') && !line.starts_with("//") {
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

/// What a C program says about all structures and constants.
fn layout() -> String {
    let header = header();
    let mut program = String::from(
        "#include <crosstie.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void)\n{\n",
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
    let folder = std::env::temp_dir().join(format!("crosstie-abi-{}", std::process::id()));
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
    compare("layout.txt", &layout());
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
