//! The declarations of libibverbs that we wrote ourselves are those of the installed header.

#[path = "verbs_support/header.rs"]
mod header;

use crosstie::provider::verbs::sys::FACTS;
use std::fmt::Write as _;
use std::process::Command;

#[test]
fn declarations_are_those_of_the_header() {
    if !header::is_installed() {
        return;
    }
    let mut program = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    let mut facts = 0;
    for fact in FACTS.iter().flat_map(|facts| facts.iter()) {
        let (expression, value) = (fact.expression, fact.value);
        writeln!(program, "_Static_assert({expression} == {value}ull, \"{expression}\");").unwrap();
        facts += 1;
    }
    assert!(facts > 150, "{facts} facts");
    let planted = format!("{program}_Static_assert(sizeof(struct ibv_wc) == 49, \"planted\");\n");
    assert!(compiles(&program, "layout"), "a declaration differs from the header: see above");
    assert!(!compiles(&planted, "planted"), "a wrong size was not noticed");
}

fn compiles(program: &str, name: &str) -> bool {
    let folder = std::env::temp_dir().join(format!("crosstie-verbs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, program).unwrap();
    let done = Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&source).output();
    let done = done.expect("a C compiler");
    if name == "layout" && !done.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&done.stderr));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    done.status.success()
}
