//! Memory that is registered while it is registered costs libfabric nothing: counted by the strict
//! fabric, under whole endpoints.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod libfabric_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind};
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{Incoming, Outgoing};
use host_support::pair::{Pair, alone};
use host_support::{Node, small, wait_both};
use libfabric_support::{Layout, strict};
use std::ffi::{CStr, c_void};

const PAGE: usize = 4096;
const BYTES: usize = 64 * PAGE;

/// Registrations of the strict fabric: ever made, and open.
fn counts(library: &CStr) -> [usize; 2] {
    let mut counts = [0; 2];
    // SAFETY: the strict fabric, which an endpoint has loaded, and its function for this.
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        let call: *mut c_void = libc::dlsym(library, c"strict_registrations".as_ptr());
        assert!(!call.is_null(), "the strict fabric counts");
        let call: extern "C" fn(*mut usize) = std::mem::transmute(call);
        call(counts.as_mut_ptr());
    }
    counts
}

fn open(library: &CStr, provider: &str) -> Node {
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = 2;
    for (name, value) in [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_OFI_LIBRARY", library.to_str().unwrap()),
        ("CROSSTIE_OFI_PROVIDER", provider),
        ("CROSSTIE_OFI_DOMAINS", "strict0"),
    ] {
        // SAFETY: whoever reads the environment does it through the same lock of the standard
        // library; tests of this binary take turns.
        unsafe { std::env::set_var(name, value) };
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
        let inside = register(node, at + 3 * PAGE as u64 + 17, 5000);
        assert_eq!(since(), [1, 1], "the same, and a part of it");
        node.shared.deregister(first).unwrap();
        for handle in again {
            node.shared.deregister(handle).unwrap();
        }
        assert_eq!(since(), [1, 1], "one that is inside is left");
        node.shared.deregister(inside).unwrap();
        assert_eq!(since(), [1, 0]);
        assert_eq!(node.shared.deregister(inside), Err(DeregisterError::Stale));
    });
}

/// Who gives memory up may unmap all of it that nobody else has registered.
#[test]
fn addresses_that_may_be_other_memorys_are_registered_anew() {
    counted(|node, since| {
        let at = pages();
        let whole = register(node, at, BYTES);
        let part = register(node, at, PAGE);
        node.shared.deregister(whole).unwrap();
        assert_eq!(since(), [1, 1]);
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
        assert_eq!(since(), [2, 2], "what is mapped there now is other memory");
        let both = register(node, at, BYTES);
        assert_eq!(since(), [3, 3]);
        for handle in [part, other, both] {
            node.shared.deregister(handle).unwrap();
        }
        assert_eq!(since(), [3, 0]);
    });
}

#[test]
fn full_table_of_regions_leaves_registrations_as_they_were() {
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
        node.shared.deregister(held.pop().unwrap()).unwrap();
        held.push(register().unwrap());
        for handle in held {
            node.shared.deregister(handle).unwrap();
        }
    });
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
