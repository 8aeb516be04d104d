//! Rails of vendors through the C functions: a message over one, and each thing that is refused.

mod common;
#[path = "../../tests/vendor_support/mod.rs"]
#[allow(dead_code)]
mod vendor_support;

use common::*;
use crosstie::host::log::{Level, sink_set};
use crosstie::provider::vendor::abi;
use crosstie_c::*;
use std::ffi::{CStr, c_int, c_void};
use std::process::{Command, Output};
use std::ptr::{from_ref, null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use vendor_support::{OPS, Wire};

fn rail(wire: &'static Wire) -> xtie_vendor_rail {
    let ops: &'static abi::xtie_provider_ops = &OPS;
    xtie_vendor_rail {
        struct_size: size_of::<xtie_vendor_rail>() as u32,
        flags: 0,
        ops: from_ref(ops).cast(),
        context: from_ref(wire).cast_mut().cast::<c_void>(),
        name: c"acme0".as_ptr(),
        network: null(),
        speed_mbps: 100_000,
        reserved: 0,
    }
}

/// Tests of this program take turns: the environment is the process's.
fn environment() {
    for (name, value) in [("CROSSTIE_RAILS", "vendor"), ("CROSSTIE_SOCKET_IFNAME", "=lo")] {
        // SAFETY: the one test that opens endpoints sets it before.
        unsafe { std::env::set_var(name, value) };
    }
}

#[test]
fn message_goes_over_a_vendors_rail_and_what_is_none_is_refused() {
    environment();
    let wire = Wire::new();
    let rails = [rail(wire)];
    let config = config(HOST);
    let [it, other] = [(); 2].map(|()| Opened::with_rails(&config, &rails).unwrap());
    let (here, there) = it.join(&other);
    let mut kind = 0;
    // SAFETY: an output of ours.
    expect(unsafe { xtie_connection_rail(it.endpoint, here, &mut kind) }, XTIE_OK);
    assert_eq!(kind, XTIE_RAIL_VENDOR);
    let (mut ours, mut theirs) = (vec![0u8; 1 << 20], vec![0u8; 1 << 20]);
    let (memory, their_memory) = (it.register(&mut ours), other.register(&mut theirs));
    let mut rounds = 0u8;
    // the first may leave before the rail is in use
    while wire.bytes() < 1 << 20 {
        rounds += 1;
        ours.fill(rounds);
        let (result, receive) = other.receive(there, &[room(&mut theirs, their_memory)]);
        expect(result, XTIE_OK);
        let (result, send) = it.send(here, &ours, memory);
        expect(result, XTIE_OK);
        expect(other.finish(receive, &it).0, XTIE_OK);
        expect(it.finish(send, &other).0, XTIE_OK);
        assert!(theirs.iter().all(|byte| *byte == rounds));
        assert!(rounds < 200, "the rail carries nothing");
    }
    // SAFETY: integers, for which zero is a value.
    let stats: xtie_rail_stats = unsafe { std::mem::zeroed() };
    let mut stats = xtie_rail_stats { struct_size: size_of_val(&stats) as u32, ..stats };
    // SAFETY: a structure of ours.
    let told = unsafe { xtie_connection_rail_stats(it.endpoint, here, 1, &mut stats) };
    expect(told, XTIE_OK);
    // SAFETY: texts that end with a zero.
    let ends = [&stats.local, &stats.remote].map(|text| unsafe { CStr::from_ptr(text.as_ptr()) });
    assert_eq!((stats.rail, ends), (XTIE_RAIL_VENDOR, [c"acme0", c""]));
    it.close_connection(here);
    other.close_connection(there);
    it.close();
    other.close();
    refusals(&config, wire);
}

static SAID: Mutex<String> = Mutex::new(String::new());

fn keep(_: usize, _: Level, text: &str) {
    SAID.lock().unwrap().push_str(text);
}

/// What was said since it was asked last.
fn said() -> String {
    sink_set(Some((keep, 0)));
    std::mem::take(&mut SAID.lock().unwrap())
}

fn refusals(config: &xtie_endpoint_config, wire: &'static Wire) {
    const REFUSED: c_int = XTIE_ERR_VENDOR_RAIL as c_int;
    let mut short = OPS;
    short.struct_size = 8;
    let mut without = OPS;
    without.poll = None;
    let good = rail(wire);
    let bad = [
        xtie_vendor_rail { struct_size: 0, ..good },
        xtie_vendor_rail { struct_size: 40, ..good },
        xtie_vendor_rail { reserved: 1, ..good },
        xtie_vendor_rail { flags: 4, ..good },
        xtie_vendor_rail { ops: null(), ..good },
        xtie_vendor_rail { ops: from_ref(&short).cast(), ..good },
        xtie_vendor_rail { ops: from_ref(&without).cast(), ..good },
        xtie_vendor_rail { name: null(), ..good },
        xtie_vendor_rail { name: c"".as_ptr(), ..good },
        xtie_vendor_rail { name: c"two words".as_ptr(), ..good },
        xtie_vendor_rail { name: c"a-name-that-is-longer-than-names-are".as_ptr(), ..good },
    ];
    for (at, rail) in bad.iter().enumerate() {
        assert_eq!(Opened::with_rails(config, &[*rail]).err(), Some(REFUSED), "case {at}");
    }
    // it was called a wrong struct_size
    let _ = said();
    let reserved = xtie_vendor_rail { reserved: 2, ..good };
    assert_eq!(Opened::with_rails(config, &[reserved]).err(), Some(REFUSED));
    let said = said();
    assert!(said.contains("reserved is not zero") && !said.contains("struct_size"), "{said}");
    assert_eq!(Opened::with_rails(config, &[good; 8]).err(), Some(REFUSED));
    Opened::with_rails(config, &[]).unwrap().close();
    let mut endpoint = null_mut();
    let mut storage = storage(size(config));
    let (place, bytes) = (storage.as_mut_ptr().cast(), storage.len() * 64);
    // SAFETY: the storage is there, and no rails are read.
    let result =
        unsafe { xtie_endpoint_open_with_rails(place, bytes, config, null(), 1, &mut endpoint) };
    expect(result, XTIE_ERR_NULL);
}

/// A program that brings a rail includes both headers.
#[test]
fn both_headers_go_into_one_program() {
    let source = "#include <crosstie.h>\n#include <crosstie_provider.h>\n\
                  static const xtie_provider_ops *ops(const xtie_vendor_rail *it)\n\
                  { return it->ops; }\n\
                  int main(void) { xtie_vendor_rail rail = {0}; return ops(&rail) != NULL; }\n";
    let (c, cpp) = (source.to_string(), source.replace("{0}", "{}"));
    let reversed = {
        let mut lines: Vec<&str> = c.lines().collect();
        lines.swap(0, 1);
        lines.join("\n") + "\n"
    };
    // C99 has no second typedef of a name, which later ones allow
    for (language, standard, source) in [
        ("c", "-std=c99", &c),
        ("c", "-std=c99", &reversed),
        ("c", "-std=c11", &c),
        ("c++", "-std=c++17", &cpp),
    ] {
        for compiler in compilers() {
            let done = compiled(compiler, language, standard, source);
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{compiler} {standard}: {said}");
        }
    }
}

/// A C++ program had no way to bring a rail, nor to ask for what its connections run over.
#[test]
fn cpp_program_brings_a_rail_and_asks_what_its_connections_run_over() {
    let source = r#"#include <crosstie.hpp>
static crosstie::storage<2, 32, 4> place;
std::uint32_t asked(const xtie_vendor_rail &rail)
{
    crosstie::endpoint endpoint(place, &rail, 1);
    crosstie::listener listener = endpoint.listen();
    crosstie::attempt attempt = endpoint.connect(listener.handle());
    crosstie::connection peer = attempt.poll();
    while (!peer)
        peer = attempt.poll();
    std::uint32_t rails = 0;
    while (peer.rail_stats(rails))
        rails++;
    char text[1280];
    return endpoint.report(text, sizeof text) + rails + peer.rail();
}
"#;
    for compiler in compilers() {
        let done = compiled(compiler, "c++", "-std=c++17", source);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{compiler}: {said}");
    }
}

/// What there is of gcc and clang, or else the C compiler.
fn compilers() -> Vec<&'static str> {
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let mut there: Vec<&str> = ["gcc", "clang"].into_iter().filter(is_there).collect();
    if there.is_empty() {
        there.push("cc");
    }
    there
}

/// What a compiler says of a program.
fn compiled(compiler: &str, language: &str, standard: &str, source: &str) -> Output {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("xtie-compiled-{}-{number}", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, source).unwrap();
    let done = Command::new(compiler)
        .args(["-x", language, standard, "-Wall", "-Wextra", "-pedantic", "-Werror"])
        .args(if language == "c++" { &["-Weffc++", "-Wnon-virtual-dtor"][..] } else { &[] })
        .args(["-fsyntax-only", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/include")])
        .arg(&file)
        .output();
    let _ = std::fs::remove_file(&file);
    done.expect("a C compiler")
}

/// The smallest class that makes a table, and what `MEMBERS` adds to it.
const PROVIDER: &str = r#"
#include <crosstie_provider.hpp>
struct acme {
    static int open(void *, const xtie_provider_limits &, acme **);
    void close();
    void caps(xtie_provider_caps &);
    int peer_blob(std::uint32_t, void *);
    int peer_open(std::uint32_t, const void *);
    int region_register(std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t &);
    int region_deregister(std::uint64_t);
    int post(const xtie_provider_op &, std::uint64_t);
    std::uint32_t poll(xtie_provider_event *, std::uint32_t, std::uint64_t, std::uint64_t);
    void received_copy(std::uint32_t, std::uint64_t, std::uint64_t, const xtie_provider_span &);
    void received_release(std::uint32_t, std::uint64_t);
    void peer_fail(std::uint32_t, std::uint32_t, std::int32_t);
    int peer_close(std::uint32_t);
    MEMBERS
};
xtie_provider_ops table() { return crosstie::core::provider_ops<acme>(); }
"#;

/// Members that may be left out were left out without a word where they had other arguments.
#[test]
fn optional_member_of_another_signature_does_not_compile() {
    let good = [
        "",
        "int fence_begin(std::uint32_t, std::uint64_t, std::uint32_t, std::uint64_t);",
        "int peer_detach(std::uint32_t); void flush(std::uint64_t);",
        "int peer_detach(std::uint32_t) noexcept; void flush(std::uint64_t) noexcept;",
        // what takes the arguments is as good
        "int peer_detach(std::uint64_t); void flush(unsigned long long, int = 0);",
        "template <typename T> void flush(T);",
        // members of these names that are for others than the table are no entries
        "int flushes; int detach();",
        "FINAL int peer_detach(std::uint32_t);",
        "FINAL",
        "UNION",
    ];
    let bad = [
        ("flush", "void flush();"),
        ("flush", "FINAL void flush();"),
        ("flush", "void flush(std::uint64_t, int);"),
        ("flush", "void flush(void *);"),
        ("flush", "int flush = 0;"),
        ("flush", "private: void flush(std::uint64_t);"),
        ("flush", "void flush(std::uint64_t) = delete;"),
        ("flush", "void flush(); void flush(int, int);"),
        ("peer_detach", "int peer_detach();"),
        ("peer_detach", "int peer_detach(std::uint32_t, int);"),
        ("peer_detach", "void peer_detach(std::uint32_t);"),
        ("fence_begin", "int fence_begin(std::uint32_t);"),
        ("fence_begin", "int fence_begin(std::uint32_t, std::uint64_t, std::uint32_t);"),
        (
            "fence_begin",
            "void fence_begin(std::uint32_t, std::uint64_t, std::uint32_t, \
                         std::uint64_t);",
        ),
    ];
    for compiler in compilers() {
        tables(compiler, &good, &bad);
    }
}

/// Who may end an object is the class's own business. What is derived from the class to look at its
/// names had a destructor that could not be, or that compilers warned of.
#[test]
fn class_whose_destructor_is_not_for_all_makes_a_table() {
    let good = [
        "private: ~acme();",
        "private: virtual ~acme();",
        "protected: virtual ~acme();",
        "protected: ~acme(); virtual void work();",
        "virtual ~acme(); private: void operator delete(void *);",
        "virtual ~acme() noexcept(false);",
        "virtual ~acme() = delete;",
        "int peer_detach(std::uint32_t); private: virtual ~acme();",
    ];
    let bad = [
        ("flush", "void flush(); private: virtual ~acme();"),
        ("flush", "void flush(); void flush(int, int); private: ~acme();"),
        ("flush", "virtual ~acme(); private: void flush(); void operator delete(void *);"),
    ];
    for compiler in compilers() {
        tables(compiler, &good, &bad);
    }
}

/// A compiler makes tables of classes with these members, and of others says which one is wrong.
fn tables(compiler: &str, good: &[&str], bad: &[(&str, &str)]) {
    let said = |members: &str| {
        let (kind, members) = match (members.strip_prefix("FINAL"), members) {
            (Some(members), _) => ("struct acme final {", members),
            (None, "UNION") => ("union acme {", ""),
            (None, members) => ("struct acme {", members),
        };
        let source = PROVIDER.replace("MEMBERS", members).replace("struct acme {", kind);
        let done = compiled(compiler, "c++", "-std=c++17", &source);
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for members in good {
        let (compiles, said) = said(members);
        assert!(compiles, "{compiler}: {members}: {said}");
    }
    for (name, members) in bad {
        let (compiles, said) = said(members);
        assert!(!compiles, "{compiler} takes {members}");
        let sentence = format!("the member {name} is not one that the table can call");
        assert!(said.contains(&sentence), "{compiler}: {members}: {said}");
    }
}

/// Of a program that is built without exceptions.
#[test]
fn provider_header_compiles_without_exceptions() {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/include/crosstie_provider.hpp");
    let done = Command::new("cc")
        .args(["-x", "c++", "-std=c++17", "-fno-exceptions", "-Wall", "-Wextra", "-Werror"])
        .args(["-fsyntax-only", "-I", include, "-include", header, "/dev/null"])
        .output()
        .expect("a C++ compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
