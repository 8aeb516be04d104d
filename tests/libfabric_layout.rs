//! The declarations of libfabric that we wrote ourselves are those of the installed headers.

use crosstie::provider::libfabric::sys::abi::FACTS;
use std::fmt::Write as _;
use std::process::Command;

const HEADER: &str = "/usr/include/rdma/fabric.h";

#[test]
fn declarations_are_those_of_the_headers() {
    if !std::path::Path::new(HEADER).exists() {
        let why = format!("{HEADER} is not installed (package libfabric-dev)");
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
        println!("SKIP: {why}");
        return;
    }
    let mut program = String::from("#include <stddef.h>\n");
    for header in ["fabric", "fi_errno", "fi_domain", "fi_endpoint", "fi_rma", "fi_eq", "fi_cm"] {
        writeln!(program, "#include <rdma/{header}.h>").unwrap();
    }
    program.push_str("#include <rdma/fi_atomic.h>\n");
    let mut facts = 0;
    for fact in FACTS.iter().flat_map(|facts| facts.iter()) {
        let (expression, value) = (fact.expression, fact.value);
        // a number of an `int` is compared as one
        writeln!(
            program,
            "_Static_assert((unsigned long long)({expression}) == {value}ull, \"{expression}\");"
        )
        .unwrap();
        facts += 1;
    }
    assert!(facts > 200, "{facts} facts");
    let planted = format!("{program}_Static_assert(sizeof(struct fid_mr) == 41, \"planted\");\n");
    assert!(compiles(&program, "layout"), "a declaration differs from the headers: see above");
    assert!(!compiles(&planted, "planted"), "a wrong size was not noticed");
}

fn compiles(program: &str, name: &str) -> bool {
    let folder = std::env::temp_dir().join(format!("crosstie-libfabric-{}", std::process::id()));
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
