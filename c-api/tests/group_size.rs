//! The size of a group: what the function says is what the macro says in C, and it holds what a
//! group really takes.

mod common;
#[path = "common/program.rs"]
mod program;

use common::*;
use crosstie::base::units::Span;
use crosstie::host::group::GroupOptions;
use crosstie::window::Limits;
use crosstie_c::*;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

fn all() -> impl Iterator<Item = Limits> {
    let ids = [(0, 0, 0), (1, 1, 1), (16, 0, 3), (3, 4096, 5), (4096, 4096, 4096)];
    let pairs = [1, 2, 3, 8, 64, 4096].into_iter().flat_map(|r| [1, 2, 5, 1024].map(|w| (r, w)));
    pairs.flat_map(move |(ranks, windows_max)| {
        ids.map(|(signals_max, counters_max, barriers_max)| Limits {
            ranks,
            windows_max,
            signals_max,
            counters_max,
            barriers_max,
        })
    })
}

fn said(limits: &Limits) -> usize {
    // SAFETY: numbers, and functions that may be null.
    let mut config: xtie_group_config = unsafe { std::mem::zeroed() };
    config.struct_size = size_of_val(&config) as u32;
    config.ranks = limits.ranks;
    config.windows_max = limits.windows_max;
    config.signals_max = limits.signals_max;
    config.counters_max = limits.counters_max;
    config.barriers_max = limits.barriers_max;
    let mut bytes = 0;
    // SAFETY: both are ours.
    expect(unsafe { xtie_group_size(&config, &mut bytes) }, XTIE_OK);
    bytes
}

#[test]
fn group_fits_and_little_is_wasted() {
    for limits in all() {
        let options = GroupOptions { limits, rank: 0, timeout: Span::millis(1) };
        let (exact, said) = (exact_group_bytes_for_tests(&options), said(&limits));
        println!("{limits:?} {exact} {said}");
        assert!(exact <= said, "{limits:?}: {exact} do not fit in {said}");
        assert!(said <= exact + exact / 2 + 1024, "{limits:?}: {said} for {exact}");
    }
}

#[test]
fn macro_says_what_the_function_says() {
    let mut source = String::from("#include <crosstie.h>\n#include <stdio.h>\nint main(void)\n{\n");
    let mut expected = String::new();
    for limits in all() {
        let Limits { ranks, windows_max, signals_max, counters_max, barriers_max } = limits;
        let list = format!("{ranks}, {windows_max}, {signals_max}, {counters_max}, {barriers_max}");
        // an integer constant expression: the size of an array
        writeln!(source, "{{ struct a {{ char a[XTIE_GROUP_BYTES({list})]; }};").unwrap();
        writeln!(source, "printf(\"%zu\\n\", sizeof(struct a)); }}").unwrap();
        writeln!(expected, "{}", said(&limits)).unwrap();
    }
    source += "return 0;\n}\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("group_size.c");
    std::fs::write(&file, source).unwrap();
    let program = program::built(folder.join("group_size"), &[file.to_str().unwrap()], &[]);
    let out = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), expected);
}
