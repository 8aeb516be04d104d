//! Peers that are strange, closed, of another version, or dead, and children of a fork: each has
//! its own code, and the sentence names the peer.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::c_int;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::Duration;

/// A handle whose bytes were changed by someone who knows the checksum.
fn forged(handle: &xtie_handle, change: impl FnOnce(&mut [u8; 128])) -> xtie_handle {
    let mut bytes = handle.bytes;
    change(&mut bytes);
    let sum = bytes[..120].iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    bytes[120..].copy_from_slice(&sum.to_le_bytes());
    xtie_handle { bytes }
}

#[test]
fn handles_are_checked() {
    for device in [HOST, LOOPBACK] {
        let (it, other) = (Opened::new(&config(device)), Opened::new(&config(device)));
        let (listener, handle) = other.listen();
        let mut corrupt = handle;
        corrupt.bytes[60] ^= 4;
        expect(connect(&it, &corrupt).0, XTIE_ERR_HANDLE_CORRUPT);
        expect(connect(&it, &xtie_handle { bytes: [7; 128] }).0, XTIE_ERR_HANDLE_FOREIGN);
        let newer = forged(&handle, |bytes| bytes[8..10].copy_from_slice(&9u16.to_le_bytes()));
        expect(connect(&it, &newer).0, XTIE_ERR_VERSION_HERE);
        let older = forged(&handle, |bytes| bytes[8..10].copy_from_slice(&0u16.to_le_bytes()));
        expect(connect(&it, &older).0, XTIE_ERR_VERSION_PEER);
        assert!(it.error().contains("upgrade the peer"), "{}", it.error());
        // SAFETY: an open listener.
        expect(unsafe { xtie_listener_close(other.endpoint, listener) }, XTIE_OK);
        if device == HOST {
            expect(connect(&it, &handle).0, XTIE_ERR_NO_LISTENER);
            let (result, connection) = connect(&it, &other.listen().1);
            expect(result, XTIE_OK);
            it.close_connection(connection);
        }
        it.works_alone();
        it.close();
        other.close();
    }
}

/// Its last listener is closed while others still dial: the door shuts when the side band's thread
/// gets to it, with who has come meanwhile in it. That said that the operating system refused.
#[test]
fn door_that_is_being_shut_has_no_listener() {
    for _ in 0..40 {
        let (it, other) = (Opened::new(&config(HOST)), Opened::new(&config(HOST)));
        let (listener, handle) = other.listen();
        // SAFETY: an open listener.
        expect(unsafe { xtie_listener_close(other.endpoint, listener) }, XTIE_OK);
        expect(connect(&it, &handle).0, XTIE_ERR_NO_LISTENER);
        it.close();
        other.close();
    }
}

#[test]
fn attempt_can_be_abandoned_and_is_stale_afterwards() {
    let (it, other) = (Opened::new(&config(HOST)), Opened::new(&config(HOST)));
    let (_, handle) = other.listen();
    let mut attempt: *mut xtie_attempt = null_mut();
    let mut connection: *mut xtie_connection = null_mut();
    // SAFETY: outputs of ours.
    let result =
        unsafe { xtie_endpoint_connect(it.endpoint, &handle, &mut attempt, &mut connection) };
    expect(result, XTIE_OK);
    if connection.is_null() {
        // SAFETY: one thread.
        expect(unsafe { xtie_attempt_abandon(it.endpoint, attempt) }, XTIE_OK);
        // SAFETY: as above.
        expect(unsafe { xtie_attempt_abandon(it.endpoint, attempt) }, XTIE_ERR_ATTEMPT);
        // SAFETY: outputs of ours.
        let result =
            unsafe { xtie_endpoint_connect(it.endpoint, &handle, &mut attempt, &mut connection) };
        expect(result, XTIE_ERR_ATTEMPT);
        // where it is another endpoint's, it stands
        assert!(!attempt.is_null());
    }
    expect(connect(&it, &handle).0, XTIE_OK);
    it.close();
    other.close();
}

#[test]
fn requests_say_which_side_closed() {
    let (it, other) = (Opened::new(&config(HOST)), Opened::new(&config(HOST)));
    let (here, there) = it.join(&other);
    let (mut ours, mut theirs) = ([0u8; 8], [0u8; 8]);
    let (memory, their_memory) = (it.register(&mut ours), other.register(&mut theirs));
    let (result, receive) = it.receive(here, &[room(&mut ours, memory)]);
    expect(result, XTIE_OK);
    let (result, their_receive) = other.receive(there, &[room(&mut theirs, their_memory)]);
    expect(result, XTIE_OK);
    other.close_connection(there);
    let mut done = 0;
    // SAFETY: outputs of ours.
    let result = unsafe { xtie_request_test(other.endpoint, their_receive, &mut done, null_mut()) };
    assert_eq!((result, done), (CLOSED, 1));
    expect(it.finish(receive, &other).0, XTIE_ERR_PEER_CLOSED);
    let said = it.error();
    assert!(said.contains("peer") && said.contains(&std::process::id().to_string()), "{said}");
    expect(it.send(here, &ours, memory).0, XTIE_ERR_PEER_CLOSED);
    it.close_connection(here);
    expect(it.send(here, &ours, memory).0, XTIE_ERR_CONNECTION);
    it.close();
    other.close();
}

const CLOSED: c_int = XTIE_ERR_CONNECTION_CLOSED as c_int;

#[test]
fn killed_peer_is_told_from_one_that_closed() {
    let it = Opened::new(&config(HOST));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_listens_until_it_is_killed", "--nocapture"])
        .env("CHILD_OF_PEERS", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut said = Vec::new();
    let marker = b"handle:";
    let at = loop {
        let mut byte = [0];
        output.read_exact(&mut byte).expect("a handle from the child");
        said.push(byte[0]);
        if said.ends_with(marker) {
            break said.len();
        }
    };
    assert!(at > 0);
    let mut handle = xtie_handle { bytes: [0; 128] };
    output.read_exact(&mut handle.bytes).unwrap();
    let (result, connection) = connect(&it, &handle);
    expect(result, XTIE_OK);
    let mut bytes = [0u8; 8];
    let memory = it.register(&mut bytes);
    let (result, receive) = it.receive(connection, &[room(&mut bytes, memory)]);
    expect(result, XTIE_OK);
    child.kill().unwrap();
    child.wait().unwrap();
    expect(it.finish(receive, &it).0, XTIE_ERR_PEER_DIED);
    let said = it.error();
    assert!(said.contains(&child.id().to_string()), "{said}");
    // what was seen stands in the place of the code's own sentence, which says the same vaguely
    assert!(said.starts_with("the peer is gone: its process has ended"), "{said}");
    assert_eq!(said.matches("ended").count(), 1, "{said}");
    it.close_connection(connection);
    it.works_alone();
    it.close();
}

/// A role of the test above; without its variable there is nothing to do.
#[test]
fn child_that_listens_until_it_is_killed() {
    if std::env::var_os("CHILD_OF_PEERS").is_none() {
        return;
    }
    let it = Opened::new(&config(HOST));
    let (_, handle) = it.listen();
    let mut out = std::io::stdout();
    out.write_all(b"handle:").unwrap();
    out.write_all(&handle.bytes).unwrap();
    out.flush().unwrap();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn child_of_a_fork_cannot_use_the_parents_endpoint() {
    let it = Opened::new(&config(HOST));
    // SAFETY: the child makes calls that look at one word, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: refused before anything is touched.
        let progress = unsafe { xtie_endpoint_progress(it.endpoint, null_mut()) };
        // SAFETY: as above.
        let close = unsafe { xtie_endpoint_close(it.endpoint) };
        let (mut handle, mut listener) = (xtie_handle { bytes: [0; 128] }, null_mut());
        // SAFETY: as above.
        let listen = unsafe { xtie_endpoint_listen(it.endpoint, &mut handle, &mut listener) };
        let right = [progress, close, listen] == [XTIE_ERR_FORKED as c_int; 3];
        // SAFETY: ends the child without running what the parent would.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    it.progress();
    it.close();
}

#[test]
fn report_says_what_open_requests_wait_for_and_rails_are_told() {
    let (it, other) = (Opened::new(&config(LOOPBACK)), Opened::new(&config(HOST)));
    let pair = it.join(&it);
    let mut bytes = [0u8; 64];
    let memory = it.register(&mut bytes);
    let (_, request) = it.receive(pair.1, &[room(&mut bytes, memory)]);
    let (mut text, mut open) = ([0 as std::ffi::c_char; 2560], 7);
    let report = |text: &mut [std::ffi::c_char], open: &mut u32| {
        // SAFETY: outputs of ours.
        let result =
            unsafe { xtie_endpoint_report(it.endpoint, text.as_mut_ptr(), text.len(), open) };
        expect(result, XTIE_OK);
        // SAFETY: it ends with a zero.
        unsafe { std::ffi::CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_string()
    };
    let said = report(&mut text, &mut open);
    assert!(said.contains("receive of group 0") && said.ends_with('\n'), "{said}");
    assert!(said.contains(": peer never sent: "), "{said}");
    assert_eq!((said.lines().count(), open), (1, 1));
    assert_eq!(report(&mut text[..9], &mut open), said[..8]);

    let mut stats: xtie_rail_stats = xtie_rail_stats_of(72);
    // SAFETY: a structure of ours.
    let result = unsafe { xtie_connection_rail_stats(it.endpoint, pair.0, 0, &mut stats) };
    expect(result, XTIE_OK);
    assert_eq!((stats.state, stats.generation, stats.control), (XTIE_RAIL_STATE_UP, 1, 1));
    assert_eq!(stats.rail, XTIE_RAIL_LOOPBACK);
    for (size, connection, rail, error) in [
        (72, pair.0, 1, XTIE_ERR_RAIL),
        (72, pair.0, u32::MAX, XTIE_ERR_RAIL),
        (72, null_mut(), 0, XTIE_ERR_CONNECTION),
        (0, pair.0, 0, XTIE_ERR_STRUCT_SIZE),
    ] {
        let mut stats = xtie_rail_stats_of(size);
        // SAFETY: a structure of ours.
        expect(
            unsafe { xtie_connection_rail_stats(it.endpoint, connection, rail, &mut stats) },
            error,
        );
    }
    // SAFETY: a request that stands.
    expect(unsafe { xtie_request_cancel(it.endpoint, request) }, XTIE_OK);
    assert_eq!(it.finish(request, &other).0, XTIE_ERR_CANCELED as c_int);
    assert_eq!(report(&mut text, &mut open), "");
    assert_eq!(open, 0);
    it.close();
    other.close();
}

fn xtie_rail_stats_of(struct_size: u32) -> xtie_rail_stats {
    // SAFETY: integers.
    let stats: xtie_rail_stats = unsafe { std::mem::zeroed() };
    xtie_rail_stats { struct_size, ..stats }
}
