//! What a peer can do with the memory that it gets: read it, whatever it tries.

#![allow(dead_code)] // of the shared parts

mod host_support;

use host_support::*;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// How mappings and descriptors of heaps are called.
const HEAP: &str = "memfd:crosstie-heap";
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const SECRET: &[u8] = b"a message of the victim";

/// Where heaps are mapped in this process, and how.
fn heaps_mapped() -> Vec<(usize, usize, String)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let of_heap = maps.lines().filter(|line| line.contains(HEAP));
    let parsed = of_heap.map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start), number(end), words.next().unwrap().to_string())
    });
    parsed.collect()
}

/// Descriptors of heaps in this process: our own two, and copies that the side band has brought.
fn heaps_open() -> Vec<RawFd> {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let of_heap = open.filter(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.to_string_lossy().contains(HEAP)
    });
    of_heap.map(|entry| entry.file_name().to_string_lossy().parse().unwrap()).collect()
}

fn is_writable_by_mapping(file: RawFd) -> bool {
    // SAFETY: a new mapping wherever the kernel likes.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, READ_WRITE, libc::MAP_SHARED, file, 0) };
    if at == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(at, 4096) };
    true
}

#[test]
fn a_peer_reads_a_heap_and_writes_it_in_no_way() {
    if over_tcp() {
        return println!("SKIP: no shared memory");
    }
    let (mut victim, mut peer) = (Node::open(&small(2)), Node::open(&small(2)));
    let memory = Memory::new(&victim, Place::Shared, 64 << 10);
    // SAFETY: the allocation has as many bytes.
    unsafe { memory.start.copy_from(SECRET.as_ptr(), SECRET.len()) };
    let (here, there) = joined(&mut victim, &mut peer);
    // each endpoint has its own heap to write, and the other's to read
    let views: Vec<_> = heaps_mapped().into_iter().filter(|(.., kind)| kind == "r--s").collect();
    assert_eq!(views.len(), 2, "{views:?}");
    let mut found = 0;
    for (start, end, _) in &views {
        let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(*start);
        // SAFETY: a mapping of ours; the call is to fail.
        let changed = unsafe { libc::mprotect(at, end - start, READ_WRITE) };
        assert_ne!(changed, 0, "a peer's mapping was made writable");
        // SAFETY: mapped for reading as long as both endpoints are open.
        let seen = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), 1 << 20) };
        found += seen.windows(SECRET.len()).filter(|part| *part == SECRET).count();
    }
    assert_eq!(found, 1, "the peer reads the victim's memory");
    let files = heaps_open();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        assert!(!is_writable_by_mapping(file), "mapped for writing");
        let path = format!("/proc/self/fd/{file}");
        let Ok(again) = File::options().read(true).write(true).open(path) else { continue };
        assert!(!is_writable_by_mapping(again.as_raw_fd()), "opened anew and mapped");
        assert!(again.write_at(b"thief", 0).is_err(), "written");
        assert!(again.set_len(0).is_err(), "cut");
    }
    victim.disconnect(here);
    peer.disconnect(there);
    memory.release(&victim);
    victim.close();
    peer.close();
}
