//! The size of an endpoint: what the function says is what the macros say in C, and it holds what
//! an endpoint really takes.

mod common;

use common::{HOST, LOOPBACK, SHM, TCP, config, size};
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::Limits;
use crosstie_c::*;
use std::fmt::Write as _;
use std::process::Command;

const CONNECTIONS: [u32; 16] = [1, 2, 3, 4, 5, 9, 17, 31, 33, 64, 65, 127, 128, 1000, 1025, 65536];
const REGIONS: [u32; 6] = [1, 2, 7, 256, 1000, 65534];

fn all() -> impl Iterator<Item = (u32, u32, u32)> {
    let pairs = CONNECTIONS.into_iter().flat_map(|c| [32, 64].map(|r| (c, r)));
    pairs.flat_map(|(c, r)| REGIONS.map(|m| (c, r, m)))
}

fn said(device: u32, limits: (u32, u32, u32)) -> usize {
    said_of(device, limits, 0)
}

fn said_of(device: u32, (connections, requests, regions): (u32, u32, u32), rails: u32) -> usize {
    let mut config = config(device);
    config.rails_max = rails;
    config.connections_max = connections;
    config.requests_max = requests;
    config.regions_max = regions;
    size(&config)
}

#[test]
fn endpoint_fits_and_little_is_wasted() {
    let devices = [
        (HOST, DeviceKind::Host),
        (LOOPBACK, DeviceKind::Loopback),
        (SHM, DeviceKind::SharedMemory),
        (TCP, DeviceKind::Tcp),
    ];
    for ((index, device), rails_max) in devices.into_iter().flat_map(|d| [1, 2, 8].map(|r| (d, r)))
    {
        if rails_max > 1 && matches!(device, DeviceKind::Loopback | DeviceKind::SharedMemory) {
            continue; // there is one
        }
        for (connections_max, requests_max, regions_max) in all() {
            let limits = Limits { connections_max, requests_max, regions_max, rails_max };
            let exact = exact_bytes_for_tests(&Options { device, limits, ..Options::default() });
            let said = said_of(index, (connections_max, requests_max, regions_max), rails_max);
            assert!(exact <= said, "{device:?} {limits:?}: {exact} do not fit in {said}");
            let most = match device {
                _ if rails_max > 1 => exact + exact / 2 + (16 << 10),
                DeviceKind::Host | DeviceKind::SharedMemory => exact + exact / 8 + (16 << 10),
                // it has no state of rings
                DeviceKind::Tcp => exact + exact / 7 + (16 << 10),
                // its queue of events is rounded up to a power of two
                DeviceKind::Loopback => 2 * exact,
            };
            assert!(said <= most, "{device:?} {limits:?}: {said} for {exact}");
        }
    }
}

/// A mailbox has room for 64 groups at most, and the sum for as many as there are requests.
#[test]
fn endpoint_of_more_requests_fits() {
    for (connections_max, requests_max) in [(1, 128), (1, 256), (65, 128), (1000, 256)] {
        for rails_max in [1, 2, 8] {
            let limits = Limits { connections_max, requests_max, regions_max: 7, rails_max };
            let options = Options { device: DeviceKind::Host, limits, ..Options::default() };
            let exact = exact_bytes_for_tests(&options);
            let said = said_of(HOST, (connections_max, requests_max, 7), rails_max);
            assert!(exact <= said, "{limits:?}: {exact} do not fit in {said}");
        }
    }
}

/// A pair of connections is what `doc/limits.md` says of one.
#[test]
fn pair_of_connections_takes_64_kib_at_most() {
    // the queues that all connections share grow in powers of two: a doubling shows their share
    let side = (said_of(HOST, (512, 32, 1), 1) - said_of(HOST, (256, 32, 1), 1)) / 256;
    assert!(2 * side <= 64 << 10, "{side}");
}

/// A program that was compiled when a connection had one rail has arrays of the sizes of that time.
#[test]
fn programs_of_one_rail_have_storage_enough() {
    for (connections, requests, regions) in all() {
        let mut config = config(HOST);
        config.struct_size = 48;
        (config.connections_max, config.requests_max) = (connections, requests);
        config.regions_max = regions;
        let (c, r, m) = (connections as usize, requests as usize, regions as usize);
        let operations = c.next_power_of_two().max(16);
        let then = 8192 + c * 4096 + c * r * 880 + operations * 512 + m * 144;
        assert_eq!(size(&config), then);
    }
}

/// The page left out what several rails take.
#[test]
fn page_of_limits_has_the_terms_of_the_header() {
    let page = include_str!("../../doc/limits.md");
    for line in [
        format!(
            "XTIE_ENDPOINT_BYTES(C, R, M) = {XTIE_BYTES_FIXED} + {XTIE_BYTES_CONNECTION} C + \
             {XTIE_BYTES_REQUEST} C R + {XTIE_BYTES_OPERATION} O + {XTIE_BYTES_REGION} M + \
             XTIE_RAILS_BYTES(C, 2)\n"
        ),
        format!("XTIE_RAILS_BYTES(C, L) = {XTIE_BYTES_SEVERAL} C + {XTIE_BYTES_RAIL} C L\n"),
        format!(
            "XTIE_LOOPBACK_BYTES(C, R, M) = XTIE_ENDPOINT_BYTES(C, R, M) + {XTIE_BYTES_LOOPBACK} C \
             + {XTIE_BYTES_LOOPBACK_OPERATION} O\n"
        ),
        format!("for (4, 32, 16) that is {} bytes", said(HOST, (4, 32, 16))),
    ] {
        assert!(page.contains(&line), "doc/limits.md does not say {line:?}");
    }
}

#[test]
fn macros_say_what_the_function_says() {
    let mut program = String::from("#include <crosstie.h>\n");
    for (at, (c, r, m)) in all().enumerate() {
        for (name, device) in [("ENDPOINT", HOST), ("LOOPBACK", LOOPBACK)] {
            let bytes = said(device, (c, r, m));
            let expression = format!("XTIE_{name}_BYTES({c}, {r}, {m}) == {bytes}u");
            writeln!(program, "_Static_assert({expression}, \"{at}\");").unwrap();
        }
        let eight = said_of(HOST, (c, r, m), 8) - said_of(HOST, (c, r, m), 1);
        let expression = format!("XTIE_RAILS_BYTES({c}, 8) == {eight}u");
        writeln!(program, "_Static_assert({expression}, \"{at}\");").unwrap();
    }
    program += "XTIE_ENDPOINT_STORAGE(storage, 4, 32, 16);\n";
    program += "int main(void) { return sizeof storage == XTIE_ENDPOINT_BYTES(4, 32, 16); }\n";
    let folder = std::env::temp_dir().join(format!("crosstie-macro-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("macro.c");
    std::fs::write(&source, program).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let done = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"])
        .arg(include)
        .arg(&source)
        .output()
        .expect("a C compiler");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
