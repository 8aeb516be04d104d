//! Rails of vendors through the C functions: a message over one, and each thing that is refused.

mod common;
#[path = "../../tests/vendor_support/mod.rs"]
#[allow(dead_code)]
mod vendor_support;

use common::*;
use crosstie::host::log::{Level, sink_set};
use crosstie::provider::vendor::abi;
use crosstie_c::*;
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::ptr::{from_ref, null, null_mut};
use std::sync::Mutex;
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
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let source = "#include <crosstie.h>\n#include <crosstie_provider.h>\n\
                  static const xtie_provider_ops *ops(const xtie_vendor_rail *it)\n\
                  { return it->ops; }\n\
                  int main(void) { xtie_vendor_rail rail = {0}; return ops(&rail) != NULL; }\n";
    for (language, standard) in [("c", "-std=c11"), ("c++", "-std=c++17")] {
        let source = if language == "c" { source.into() } else { source.replace("{0}", "{}") };
        let file = std::env::temp_dir().join(format!("xtie-both-{}", std::process::id()));
        std::fs::write(&file, source).unwrap();
        let done = Command::new("cc")
            .args(["-x", language, standard, "-Wall", "-Wextra", "-pedantic", "-Werror"])
            .args(["-fsyntax-only", "-I", include])
            .arg(&file)
            .output();
        let _ = std::fs::remove_file(&file);
        let done = done.expect("a C compiler");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
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
