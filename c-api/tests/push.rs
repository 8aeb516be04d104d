//! Receives that are offered over shared memory, where both endpoints want it.

mod common;

use common::*;
use crosstie_c::*;
use std::ptr::null_mut;

const LONG: usize = 100_000;
/// More messages than a connection may send unasked.
const WAITING: usize = 100;

fn wanting(push: bool) -> Opened {
    let flags = if push { XTIE_ENDPOINT_PUSH } else { 0 };
    Opened::new(&xtie_endpoint_config { flags, requests_max: 128, ..config(HOST) })
}

/// How many messages were sent for the receiver to read, and written by their sender.
fn ways(it: &Opened) -> (u64, u64) {
    // SAFETY: plain integers, and the first says how many bytes are ours.
    let mut stats: xtie_stats = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<xtie_stats>() as u32;
    // SAFETY: an output of ours.
    expect(unsafe { xtie_endpoint_stats(it.endpoint, &mut stats) }, XTIE_OK);
    (stats.pulled, stats.pushed)
}

fn over_shared_memory() -> bool {
    std::env::var("CROSSTIE_RAILS").is_ok_and(|rails| rails == "shm")
}

#[test]
fn long_messages_are_written_where_both_want_it() {
    if !over_shared_memory() {
        // every rail to other hosts pushes; this test is for shared memory
        return again_over_shared_memory("long_messages_are_written_where_both_want_it");
    }
    for wants in [[false, false], [true, false], [false, true], [true, true]] {
        let [it, other] = wants.map(wanting);
        let (here, there) = it.join(&other);
        let (mut source, mut target) = (vec![7u8; LONG], vec![0u8; LONG]);
        let (from, to) = (it.register(&mut source), other.register(&mut target));
        let (result, receive) = other.receive(there, &[room(&mut target, to)]);
        expect(result, XTIE_OK);
        let (result, send) = it.send(here, &source, from);
        expect(result, XTIE_OK);
        expect(other.finish(receive, &it).0, XTIE_OK);
        expect(it.finish(send, &other).0, XTIE_OK);
        let both = wants == [true, true];
        assert_eq!(ways(&it), (u64::from(!both), u64::from(both)), "{wants:?}");
        assert_eq!(source, target);
        it.close();
        other.close();
    }
}

#[test]
fn messages_of_a_tag_that_nobody_receives_hold_up_no_other() {
    let [it, other] = [wanting(true), wanting(true)];
    let (here, there) = it.join(&other);
    let (mut source, mut target) = (vec![5u8; LONG], vec![0u8; LONG]);
    let (from, to) = (it.register(&mut source), other.register(&mut target));
    let mut sends = Vec::new();
    let mut send = |tag: i32, value: u8| {
        let mut request = null_mut();
        let bytes = &source[usize::from(value)..];
        // SAFETY: the bytes stay until the endpoint is closed.
        let result = unsafe {
            let (start, length) = (bytes.as_ptr().cast(), bytes.len());
            xtie_connection_isend(it.endpoint, here, start, length, tag, from, &mut request)
        };
        expect(result, XTIE_OK);
        assert!(!request.is_null());
        sends.push(request);
    };
    (0..WAITING).for_each(|_| send(1, 0));
    send(2, 9);
    let mut receive = |tag: i32| {
        let space = xtie_buffer { tag, ..room(&mut target, to) };
        let (result, request) = other.receive(there, &[space]);
        expect(result, XTIE_OK);
        let (result, sizes) = other.finish(request, &it);
        expect(result, XTIE_OK);
        sizes[0]
    };
    assert_eq!(receive(2), LONG - 9);
    (0..WAITING).for_each(|_| assert_eq!(receive(1), LONG));
    for request in sends {
        expect(it.finish(request, &other).0, XTIE_OK);
    }
    it.close();
    other.close();
}

/// Runs a test in a process whose connections take shared memory.
fn again_over_shared_memory(test: &str) {
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env("CROSSTIE_RAILS", "shm")
        .status();
    assert!(run.unwrap().success());
}
