//! The thread rule of the header: what it says of "any" thread may be called while the endpoint's
//! thread is inside of a call. One thread moves messages between two endpoints; another registers,
//! allocates, listens, connects and accepts on the same two.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const LONG: usize = 40_000;
const SIZES: [usize; 6] = [0, 8, 25, 4096, 8193, LONG];
const MADE: usize = 60;

/// Both ends of a connection, as numbers: objects may go from thread to thread.
type Ends = (usize, usize);
type Connections = (*mut xtie_connection, *mut xtie_connection);

/// Both endpoints, for the thread that may only call what any thread may.
#[derive(Copy, Clone)]
struct Two(*mut xtie_endpoint, *mut xtie_endpoint);

// SAFETY: the thread that it goes to calls the functions of "any" thread only.
unsafe impl Send for Two {}

#[test]
fn functions_of_any_thread_do_not_disturb_the_endpoints_thread() {
    let mut config = config(HOST);
    config.connections_max = 8;
    config.regions_max = 16;
    let (a, b) = (Opened::new(&config), Opened::new(&config));
    let ends = a.join(&b);
    let (mut ours, mut theirs) = (vec![0u8; LONG], vec![0u8; LONG]);
    let memory = (a.register(&mut ours), b.register(&mut theirs));
    let (two, done) = (Two(a.endpoint, b.endpoint), AtomicBool::new(false));
    let (made, take) = sync_channel(1);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let _done = Done(done);
            set_up(two, made);
        });
        let mut number = 0;
        let mut exchange = |ends: Connections| {
            number += 1;
            let size = SIZES[number % SIZES.len()];
            ours[..size].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at ^ number) as u8);
            theirs.fill(0);
            let (result, receive) = b.receive(ends.1, &[room(&mut theirs, memory.1)]);
            expect(result, XTIE_OK);
            let (result, send) = a.send(ends.0, &ours[..size], memory.0);
            expect(result, XTIE_OK);
            let (result, sizes) = b.finish(receive, &a);
            expect(result, XTIE_OK);
            assert_eq!(sizes[0], size);
            expect(a.finish(send, &b).0, XTIE_OK);
            assert!(ours[..size] == theirs[..size], "message {number}");
        };
        while !done.load(Ordering::Acquire) {
            exchange(ends);
            taken(&a, &b, &take, &mut exchange);
        }
        taken(&a, &b, &take, &mut exchange);
    });
    a.close_connection(ends.0);
    b.close_connection(ends.1);
    a.close();
    b.close();
}

/// Ends the other thread's loop also when this one panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn taken(a: &Opened, b: &Opened, take: &Receiver<Ends>, exchange: &mut impl FnMut(Connections)) {
    for ends in take.try_iter() {
        let ends = (ends.0 as *mut xtie_connection, ends.1 as *mut xtie_connection);
        exchange(ends);
        a.close_connection(ends.0);
        b.close_connection(ends.1);
    }
}

fn set_up(Two(a, b): Two, made: SyncSender<Ends>) {
    let (mut handle, mut listener) = (xtie_handle { bytes: [0; 128] }, null_mut());
    // SAFETY: outputs of ours.
    expect(unsafe { xtie_endpoint_listen(b, &mut handle, &mut listener) }, XTIE_OK);
    for _ in 0..MADE {
        memory(a);
        memory(b);
        let ends = connect(Two(a, b), listener, &handle);
        named(b, ends.1);
        // SAFETY: refused, which leaves a sentence behind.
        expect(unsafe { xtie_memory_deregister(a, null_mut()) }, XTIE_ERR_MEMORY);
        made.send((ends.0.addr(), ends.1.addr())).unwrap();
    }
    // SAFETY: an open listener.
    expect(unsafe { xtie_listener_close(b, listener) }, XTIE_OK);
}

fn memory(endpoint: *mut xtie_endpoint) {
    let mut bytes = vec![0u8; 5000];
    let (mut registered, mut allocated, mut data) = (null_mut(), null_mut(), null_mut());
    let (start, length) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: the bytes outlive their registration.
    let result =
        unsafe { xtie_memory_register(endpoint, start, length, XTIE_MEMORY_HOST, &mut registered) };
    expect(result, XTIE_OK);
    // SAFETY: outputs of ours.
    expect(unsafe { xtie_memory_alloc(endpoint, 10_000, &mut data, &mut allocated) }, XTIE_OK);
    // SAFETY: allocated, and no request names it.
    unsafe { data.cast::<u8>().write_bytes(7, 10_000) };
    // SAFETY: no request names them.
    expect(unsafe { xtie_memory_free(endpoint, allocated) }, XTIE_OK);
    // SAFETY: as above.
    expect(unsafe { xtie_memory_deregister(endpoint, registered) }, XTIE_OK);
}

fn connect(Two(a, b): Two, listener: *mut xtie_listener, handle: &xtie_handle) -> Connections {
    let (mut ours, mut theirs): Connections = (null_mut(), null_mut());
    let mut attempt = null_mut();
    while ours.is_null() || theirs.is_null() {
        if ours.is_null() {
            // SAFETY: outputs of ours.
            expect(unsafe { xtie_endpoint_connect(a, handle, &mut attempt, &mut ours) }, XTIE_OK);
        }
        if theirs.is_null() {
            // SAFETY: as above.
            expect(unsafe { xtie_listener_accept(b, listener, &mut theirs) }, XTIE_OK);
        }
        std::thread::yield_now();
    }
    (ours, theirs)
}

fn named(endpoint: *mut xtie_endpoint, connection: *mut xtie_connection) {
    let mut text = [0 as c_char; 128];
    // SAFETY: the text has as many bytes as it says.
    let result =
        unsafe { xtie_connection_peer(endpoint, connection, text.as_mut_ptr(), text.len()) };
    expect(result, XTIE_OK);
    // SAFETY: it ends with a zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap();
    assert!(text.contains(&std::process::id().to_string()), "{text}");
}
