//! The version in the header, as C evaluates it, is the library's and Cargo's.

use crosstie_c::{xtie_abi_version, xtie_version, xtie_version_str};
use std::ffi::CStr;
use std::process::Command;

#[test]
fn version_macro_call_and_cargo_agree() {
    let folder = std::env::temp_dir().join(format!("crosstie-version-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("version.c"), folder.join("version"));
    let text = "#include <crosstie.h>\n#include <stdio.h>\nint main(void) { printf(\"%u %u\", \
                (unsigned)XTIE_VERSION, (unsigned)XTIE_ABI_VERSION); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", include, "-o"])
        .args([&program, &source])
        .status()
        .expect("a C compiler");
    assert!(built.success());
    let said = Command::new(&program).output().unwrap().stdout;
    std::fs::remove_dir_all(&folder).unwrap();

    let number = |text: &str| text.parse::<u32>().unwrap();
    let cargo = number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"));
    assert_eq!(xtie_version(), cargo);
    assert_eq!(String::from_utf8(said).unwrap(), format!("{cargo} {}", xtie_abi_version()));
    // SAFETY: a static string.
    let text = unsafe { CStr::from_ptr(xtie_version_str()) };
    assert_eq!(text.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}
