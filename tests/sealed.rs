//! What a peer can do with the memory that it gets: read it, whatever it tries.

#![allow(dead_code)] // of the shared parts

mod host_support;

use host_support::*;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// How mappings and descriptors of what peers share are called.
const HEAP: &str = "memfd:crosstie-heap";
const RINGS: &str = "memfd:crosstie-rings";
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// One test at a time: they look at all mappings and descriptors of this process.
static ALONE: Mutex<()> = Mutex::new(());
const SECRET: &[u8] = b"a message of the victim";

/// Where files of a name are mapped in this process, and how.
fn mapped(name: &str) -> Vec<(usize, usize, String)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let of_name = maps.lines().filter(|line| line.contains(name));
    let parsed = of_name.map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start), number(end), words.next().unwrap().to_string())
    });
    parsed.collect()
}

/// Where they are mapped for reading alone.
fn views(name: &str) -> Vec<(usize, usize)> {
    let all = mapped(name).into_iter();
    all.filter(|(.., kind)| kind == "r--s").map(|(start, end, _)| (start, end)).collect()
}

/// Descriptors of such files in this process. What a peer gets is a copy, which means the same open
/// file.
fn files(name: &str) -> Vec<RawFd> {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let of_name = open.filter(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.to_string_lossy().contains(name)
    });
    of_name.map(|entry| entry.file_name().to_string_lossy().parse().unwrap()).collect()
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

/// What a peer can do with a descriptor: nothing that changes a byte, or the file.
fn assert_read_only(file: RawFd) {
    assert!(!is_writable_by_mapping(file), "mapped for writing");
    // SAFETY: calls on a descriptor, and one readable byte.
    let refused = unsafe {
        [
            ("written", libc::pwrite(file, b"x".as_ptr().cast(), 1, 0) as i32),
            ("cut", libc::ftruncate(file, 0)),
            ("made longer", libc::ftruncate(file, 1 << 40)),
            ("punched", libc::fallocate(file, PUNCH, 0, 4096)),
            ("zeroed", libc::fallocate(file, libc::FALLOC_FL_ZERO_RANGE, 0, 4096)),
            ("sealed", libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_WRITE)),
        ]
    };
    for (what, result) in refused {
        assert_eq!(result, -1, "{what}");
    }
    let path = format!("/proc/self/fd/{file}");
    let Ok(again) = File::options().read(true).write(true).open(path) else { return };
    assert!(!is_writable_by_mapping(again.as_raw_fd()), "opened anew and mapped");
    assert!(again.write_at(b"thief", 0).is_err(), "opened anew and written");
    assert!(again.set_len(0).is_err(), "opened anew and cut");
}

/// What a peer can do with a mapping: read it.
fn assert_stays_read_only(start: usize, end: usize) {
    let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start);
    // SAFETY: a mapping of ours; the call is to fail.
    let changed = unsafe { libc::mprotect(at, end - start, READ_WRITE) };
    assert_ne!(changed, 0, "a peer's mapping was made writable");
}

#[test]
fn a_peer_reads_a_heap_and_writes_it_in_no_way() {
    if over_tcp() {
        return println!("SKIP: no shared memory");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut victim, mut peer) = (Node::open(&small(2)), Node::open(&small(2)));
    let memory = Memory::new(&victim, Place::Shared, 64 << 10);
    // SAFETY: the allocation has as many bytes.
    unsafe { memory.start.copy_from(SECRET.as_ptr(), SECRET.len()) };
    let (here, there) = joined(&mut victim, &mut peer);
    // each endpoint has its own heap to write, and the other's to read
    let views = views(HEAP);
    assert_eq!(views.len(), 2, "{views:?}");
    let mut found = 0;
    for (start, end) in views {
        assert_stays_read_only(start, end);
        let at = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: mapped for reading as long as both endpoints are open.
        let seen = unsafe { std::slice::from_raw_parts(at, 1 << 20) };
        found += seen.windows(SECRET.len()).filter(|part| *part == SECRET).count();
    }
    assert_eq!(found, 1, "the peer reads the victim's memory");
    let files = files(HEAP);
    assert!(files.len() >= 2, "{files:?}");
    files.into_iter().for_each(assert_read_only);
    victim.disconnect(here);
    peer.disconnect(there);
    memory.release(&victim);
    victim.close();
    peer.close();
}

/// They lay in one file that both sides wrote.
#[test]
fn a_peer_reads_the_rings_of_the_other_side_and_writes_its_own() {
    if over_tcp() {
        return println!("SKIP: no shared memory");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut victim, mut peer) = (Node::open(&small(2)), Node::open(&small(2)));
    let (here, there) = joined(&mut victim, &mut peer);
    let (ours, views) = (mapped(RINGS), views(RINGS));
    // each side has its own file to write, and the other's to read; of both this process has two
    let written = ours.iter().filter(|(.., kind)| kind == "rw-s").count();
    assert_eq!((ours.len(), written, views.len()), (4, 2, 2), "{ours:?}");
    views.into_iter().for_each(|(start, end)| assert_stays_read_only(start, end));
    let files = files(RINGS);
    assert_eq!(files.len(), 2, "{files:?}");
    files.into_iter().for_each(assert_read_only);
    // no other memory was handed over
    let named = [mapped("memfd:").len(), mapped("/dev/shm").len()];
    assert_eq!(named, [mapped(HEAP).len() + 4, 0]);
    // all that failed has changed nothing
    let memory = Memory::new(&victim, Place::Shared, 64 << 10);
    let into = Memory::new(&peer, Place::Shared, 64 << 10);
    for (number, length) in [8, 3000, 64 << 10].into_iter().enumerate() {
        memory.fill(0, length, number as u64);
        let receive = peer.irecv(there, &[into.incoming(0, length, 0)]).unwrap();
        let send = victim.isend(here, memory.outgoing(0, length, 0)).unwrap();
        assert_eq!(wait_both(&mut peer, &mut victim, receive).result, Ok(()));
        assert_eq!(wait_both(&mut victim, &mut peer, send).result, Ok(()));
        into.verify(0, length, number as u64);
    }
    victim.disconnect(here);
    peer.disconnect(there);
    memory.release(&victim);
    into.release(&peer);
    victim.close();
    peer.close();
}
