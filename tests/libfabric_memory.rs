//! Memory that is registered while it is registered costs libfabric nothing: counted by the strict
//! fabric, under whole endpoints.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod libfabric_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind, RegisterError};
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{Incoming, Outgoing};
use host_support::pair::{Pair, alone};
use host_support::{Node, Watch, small, wait_both};
use libfabric_support::{Layout, counts, strict, strict_environment};
use std::ffi::{CStr, c_void};

const PAGE: usize = 4096;
const BYTES: usize = 64 * PAGE;

fn open(library: &CStr, provider: &str) -> Node {
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = 2;
    for (name, value) in strict_environment(library, provider) {
        host_support::set(name, value);
    }
    Node::open(&options)
}

/// Pages of their own, which stay.
fn pages() -> u64 {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

fn register(node: &Node, address: u64, length: usize) -> Handle {
    // SAFETY: pages that stay.
    unsafe { node.shared.register(address, Bytes(length as u64), MemoryKind::Host) }.unwrap()
}

const SCOPES: [&str; 2] = ["strict", "strict-domain"];

/// What a test has: an endpoint, and how many registrations there were before and are since.
fn counted(act: impl Fn(&Node, &dyn Fn() -> [usize; 2])) {
    let Some(library) = strict(Layout::One) else { return };
    let _alone = alone();
    for provider in SCOPES {
        let node = open(library, provider);
        let before = counts(library);
        act(&node, &|| {
            let now = counts(library);
            [now[0] - before[0], now[1] - before[1]]
        });
        assert_eq!(counts(library)[1], before[1], "all that was registered has gone");
        node.close();
    }
}

#[test]
fn memory_that_is_registered_again_costs_no_registration() {
    counted(|node, since| {
        let at = pages();
        let first = register(node, at, BYTES);
        assert_eq!(since(), [1, 1]);
        let again: Vec<_> = (0..20).map(|_| register(node, at, BYTES)).collect();
        let pages = register(node, at + 17, BYTES - 30);
        assert_eq!(since(), [1, 1], "the same pages");
        node.shared.deregister(first).unwrap();
        for handle in again {
            node.shared.deregister(handle).unwrap();
        }
        assert_eq!(since(), [1, 1], "one that takes all pages is left");
        node.shared.deregister(pages).unwrap();
        assert_eq!(since(), [1, 0]);
        assert_eq!(node.shared.deregister(pages), Err(DeregisterError::Stale));
    });
}

/// Who gives memory up may unmap all of it that nobody else has registered.
#[test]
fn addresses_that_may_be_other_memorys_are_registered_anew() {
    counted(|node, since| {
        let at = pages();
        let whole = register(node, at, BYTES);
        let part = register(node, at, PAGE);
        assert_eq!(since(), [2, 2], "a part is registered by itself");
        node.shared.deregister(whole).unwrap();
        assert_eq!(since(), [2, 1]);
        let tail = at + PAGE as u64;
        // SAFETY: pages of this test, which are registered no more by its user's word.
        unsafe {
            let (protection, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            );
            libc::munmap(tail as *mut c_void, BYTES - PAGE);
            let again = libc::mmap(tail as *mut c_void, BYTES - PAGE, protection, flags, -1, 0);
            assert_eq!(again as u64, tail);
        }
        let other = register(node, tail, BYTES - PAGE);
        assert_eq!(since(), [3, 2], "what is mapped there now is other memory");
        let both = register(node, at, BYTES);
        assert_eq!(since(), [4, 3]);
        for handle in [part, other, both] {
            node.shared.deregister(handle).unwrap();
        }
        assert_eq!(since(), [4, 0]);
    });
}

/// The endpoint's own table is as long as that of its ports, which are not asked when it is full.
#[test]
fn full_table_of_regions_asks_no_port() {
    counted(|node, since| {
        let at = pages();
        let mut held = Vec::new();
        // SAFETY: pages that stay.
        let register =
            || unsafe { node.shared.register(at, Bytes(BYTES as u64), MemoryKind::Host) };
        while let Ok(handle) = register() {
            held.push(handle);
        }
        assert!(held.len() > 1);
        assert_eq!(since(), [1, 1]);
        // SAFETY: pages that stay.
        let other = unsafe { node.shared.register(at, Bytes(1), MemoryKind::Host) };
        assert_eq!(other.err(), Some(RegisterError::Full));
        assert_eq!(since(), [1, 1]);
        node.shared.deregister(held.pop().unwrap()).unwrap();
        held.push(register().unwrap());
        for handle in held {
            node.shared.deregister(handle).unwrap();
        }
    });
}

/// What peers have not given back yet takes places of a port's table, so that the port refuses
/// before the endpoint does. It is asked again when it has room.
#[test]
fn port_whose_table_is_full_is_asked_again() {
    const COUNT: usize = 64; // as `small` has them
    let Some(library) = strict(Layout::One) else { return };
    for provider in SCOPES {
        let alone = alone();
        let [a, b] = [(); 2].map(|()| open(library, provider));
        let mut pair = Pair::of(alone, a, b, 2);
        let Pair { a, b, to_b, to_a, .. } = &mut pair;
        let (from, length) = (pages(), BYTES as u64);
        let theirs = register(b, from, BYTES);
        let [made, open] = counts(library);
        let held = [(); COUNT].map(|()| pages()).map(|at| (at, register(a, at, BYTES)));
        assert_eq!(counts(library), [made + COUNT, open + COUNT]);
        // the first is nobody's, and leaves the port a place
        for &(address, region) in &held[1..] {
            let receive = a.irecv(*to_b, &[Incoming { region, address, length, tag: 3 }]).unwrap();
            let message = Outgoing { region: theirs, address: from, length, tag: 3 };
            let send = b.isend(*to_a, message).unwrap();
            assert_eq!(wait_both(a, b, receive).result, Ok(()));
            assert_eq!(wait_both(b, a, send).result, Ok(()));
        }
        for (_, region) in held {
            a.shared.deregister(region).unwrap();
        }
        let [made, left] = counts(library);
        let left = left - open;
        assert!(left > 0, "no peer has anything of it");
        let again = held.map(|(at, _)| (at, register(a, at, BYTES)));
        assert_eq!(counts(library)[0] - made, COUNT - left, "the port has no more places");
        let watch = Watch::start();
        while counts(library)[1] - open > COUNT - left {
            a.progress();
            b.progress();
            watch.look("what was given up to come back");
        }
        // the endpoint's own table has a place for it
        let (granted, refused) = again.split_at(COUNT - left);
        a.shared.deregister(granted[0].1).unwrap();
        let before = counts(library)[0];
        let mut held: Vec<_> = granted[1..].iter().map(|(_, region)| *region).collect();
        for (address, region) in refused {
            held.push(register(a, *address, BYTES));
            a.shared.deregister(*region).unwrap();
        }
        assert_eq!(counts(library)[0] - before, left, "the refusals were kept");
        for region in held {
            a.shared.deregister(region).unwrap();
        }
        assert_eq!(counts(library)[1], open);
        b.shared.deregister(theirs).unwrap();
    }
}

/// Two that share a page are of one holder each: with the longer one all its other pages may go.
#[test]
fn part_on_the_last_page_of_the_whole_outlives_it() {
    const WHOLE: usize = BYTES - PAGE + 100;
    const PART: usize = 500;
    let Some(library) = strict(Layout::One) else { return };
    for provider in SCOPES {
        let alone = alone();
        let [a, b] = [(); 2].map(|()| open(library, provider));
        let mut pair = Pair::of(alone, a, b, 2);
        let (at, into) = (pages(), pages());
        let address = at + (WHOLE + 100) as u64;
        let Pair { a, b, to_b, to_a, .. } = &mut pair;
        let theirs = register(b, into, PAGE);
        let before = counts(library);
        let since = || [0, 1].map(|n| counts(library)[n] - before[n]);
        let whole = register(a, at, WHOLE);
        let part = register(a, address, PART);
        assert_eq!(since(), [2, 2], "each by itself");
        a.shared.deregister(whole).unwrap();
        assert_eq!(since(), [2, 1], "nobody has the whole any more");
        // SAFETY: pages of this test, of which all but the last are registered no more.
        unsafe {
            assert_eq!(libc::munmap(at as *mut c_void, BYTES - PAGE), 0);
            (address as *mut u8).write_bytes(0x5a, PART);
        }
        let length = PART as u64;
        let message = Incoming { region: theirs, address: into, length, tag: 3 };
        let receive = b.irecv(*to_a, &[message]).unwrap();
        let send = a.isend(*to_b, Outgoing { region: part, address, length, tag: 3 }).unwrap();
        assert_eq!(wait_both(b, a, receive).result, Ok(()));
        assert_eq!(wait_both(a, b, send).result, Ok(()));
        // SAFETY: as above.
        let came = unsafe { std::slice::from_raw_parts(into as *const u8, PART) };
        assert!(came.iter().all(|byte| *byte == 0x5a));
        a.shared.deregister(part).unwrap();
        assert_eq!(since(), [2, 0]);
        b.shared.deregister(theirs).unwrap();
    }
}

/// What one holder gives up, messages of the other still go by.
#[test]
fn memory_of_the_holder_that_is_left_carries_messages() {
    const LENGTH: usize = BYTES;
    let Some(library) = strict(Layout::One) else { return };
    for provider in SCOPES {
        let alone = alone();
        let [a, b] = [(); 2].map(|()| open(library, provider));
        let mut pair = Pair::of(alone, a, b, 2);
        let (out, into) = (pages(), pages());
        let before = pair.bytes(1)[0];
        let Pair { a, b, to_b, to_a, .. } = &mut pair;
        for round in 0..40u8 {
            let kept = [register(a, out, LENGTH), register(b, into, LENGTH)];
            let given_up = [register(a, out, LENGTH), register(b, into, LENGTH)];
            // SAFETY: pages of this test; no request stands.
            unsafe { (out as *mut u8).write_bytes(round, LENGTH) };
            let message = |region, address| {
                let length = LENGTH as u64;
                (
                    Outgoing { region, address, length, tag: 3 },
                    Incoming { region, address, length, tag: 3 },
                )
            };
            let receive = b.irecv(*to_a, &[message(kept[1], into).1]).unwrap();
            let send = a.isend(*to_b, message(kept[0], out).0).unwrap();
            a.shared.deregister(given_up[0]).unwrap();
            b.shared.deregister(given_up[1]).unwrap();
            assert_eq!(wait_both(b, a, receive).result, Ok(()));
            assert_eq!(wait_both(a, b, send).result, Ok(()));
            // SAFETY: as above.
            let came = unsafe { std::slice::from_raw_parts(into as *const u8, LENGTH) };
            assert!(came.iter().all(|byte| *byte == round));
            a.shared.deregister(kept[0]).unwrap();
            b.shared.deregister(kept[1]).unwrap();
        }
        assert!(pair.bytes(1)[0] > before, "some of it went over libfabric");
    }
}
